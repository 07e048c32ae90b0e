"""Exact attacks on several gradients: together, or each by itself if their records differ."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from leakaudit._util.plural import counted
from leakaudit.core.evidence import Evidence, Origin
from leakaudit.core.leak import GradientLeak
from leakaudit.core.progress import expired, step
from leakaudit.core.reconstruction import Certificate, Reconstruction
from leakaudit.inversion import inputs_shown
from leakaudit.inversion.exact.pixel_errors import SURE
from leakaudit.inversion.inputs_shown import InputCounts
from leakaudit.inversion.search import objectives

if TYPE_CHECKING:
    from leakaudit.tasks.task import Task

# If all rounds use the same records, all gradients together determine them best. If rounds use
# other records, as ordinary training does, the gradients have no common batch; but an exact attack
# that needs a single gradient can take them one at a time, and every record that was used in one of
# these rounds comes back. Which of the two holds is declared, but the messages may contradict it
# (`inputs_shown`), and whether inputs explain a gradient is tested gradient by gradient.

# Rounds in a row without a certified input after which no other is tried, unless each gradient
# comes from one record, which costs little. A choice: rounds differ by their records, and an attack
# that fails at three batches usually fails at all of them.
PATIENCE = 3

# Relative residual up to which inputs reproduce a gradient that is computed again. Rounding in
# float32 leaves 2e-6, and one level in one of 3072 pixels 1e-4.
REPRODUCED = 1e-5

# Residual of a gradient that its noise explains, in units of this noise.
NOISE = 3.0

PROVEN = (Certificate.EXACT, Certificate.INTERVAL)

# Root mean square distance from which two inputs that are not certified count as different.
APART = 0.02

Attempt = Callable[[GradientLeak], Reconstruction]


def attack(leak: GradientLeak, task: Task, attempt: Attempt) -> Reconstruction:
    """Attack all gradients together, or one by one if the inputs of all do not explain each."""
    known = inputs_shown.shown(leak, task)
    believed = _believed(leak, known)
    found: Reconstruction | None = None
    explained: Tensor | None = None
    if not _separable(leak) or known is None or not (known.differ and known.contradicts):
        found = _counted(attempt(believed))
        explained = _explained(believed, task, found)
        found = _with_rounds(believed, found, explained)
    evidence = _evidence(leak, known, found, explained)
    if found is None or _continues(leak, known, found, explained):
        wanted = leak.records
        if any(one.origin is Origin.CONTRADICTED for one in evidence):
            wanted = None
        found = _Search(believed, task, attempt, wanted).result(found)
    return replace(found, evidence=(*found.evidence, *evidence))


def _separable(leak: GradientLeak) -> bool:
    """Return whether a leak has several equations, and single gradients among them."""
    return len(leak.value) > 1 and not leak.gaps and bool(leak.single.any())


def _believed(leak: GradientLeak, known: InputCounts | None) -> GradientLeak:
    """Return the leak without the declared numbers that the messages contradict."""
    if known is None or not known.contradicts:
        return leak
    if known.crowded:
        return replace(leak, batch=None, records=None)
    if leak.inner == 1:
        return replace(leak, records=None)
    return leak


def _evidence(
    leak: GradientLeak,
    known: InputCounts | None,
    found: Reconstruction | None,
    explained: Tensor | None,
) -> tuple[Evidence, ...]:
    """Return what supports the declared number of records; empty if nothing was examined."""
    if known is not None:
        return (known.evidence,)
    if found is None or explained is None or not leak.steady:
        return ()
    number = counted(len(leak.value), "gradient")
    if not found.rounds:
        return (Evidence("samples", Origin.VERIFIED, f"the inputs reproduce {number}"),)
    reproduced = int(explained.any(1).sum())
    why = f"the same records in all rounds declared, but they reproduce {reproduced} of {number}"
    return (Evidence("samples", Origin.CONTRADICTED, why),)


def _continues(
    leak: GradientLeak, known: InputCounts | None, found: Reconstruction, explained: Tensor | None
) -> bool:
    """Return whether gradients are attacked one by one after all together.

    Either the messages or the declaration say that their records differ, or certified inputs do
    not explain all of them.
    """
    if not _separable(leak) or found.tokens is not None:
        return False
    if not leak.steady:
        return found.certified != leak.records
    if explained is not None:
        return bool(found.rounds)
    return not found.certified and known is not None and known.differ


def _with_rounds(
    leak: GradientLeak, found: Reconstruction, explained: Tensor | None
) -> Reconstruction:
    """Note the rounds of certified inputs, if they were not shown to explain all gradients."""
    if len(leak.value) == 1:
        return replace(found, rounds=())
    if explained is None:
        return found
    if bool((explained.any(1) | inputs_shown.silent(leak)).all()):
        return replace(found, rounds=())
    certified = explained[:, : found.certified].T
    rounds = [tuple(sorted(_rounds(leak, one))) for one in certified]
    rest = [()] * (len(found.x) - found.certified)
    return replace(found, rounds=(*rounds, *rest))


def _rounds(leak: GradientLeak, equations: Tensor) -> list[int]:
    """Return the rounds of some equations, given as (m,) bool."""
    used = leak.combination[equations].count_nonzero(dim=0) > 0
    rounds: list[int] = leak.rounds[used].tolist()
    return rounds


def _explained(leak: GradientLeak, task: Task, found: Reconstruction) -> Tensor | None:
    """Decide which equations certified inputs explain (m, b).

    None if this cannot be tested, or need not be: an attack that reads all equations names no
    rounds.
    """
    if len(leak.value) == 1 or not 0 < found.certified == len(found.x) or not found.rounds:
        return None
    used = inputs_shown.uses(leak, task, found.x)
    if used is not None:
        return used
    if (
        found.y is None
        or len(found.x) != leak.batch
        or task.tokens
        or objectives.incomplete(leak, task)
    ):
        return None
    again = []
    for k in range(len(leak.value)):
        left, noise = objectives.compared(leak.equation(k), task, found.x, found.y)
        again.append(left <= max(REPRODUCED, NOISE * noise))
    return torch.tensor(again)[:, None].expand(-1, len(found.x))


def _counted(found: Reconstruction) -> Reconstruction:
    """Count the inputs of an exact reconstruction as certified one by one."""
    if found.certificate is Certificate.EXACT:
        return replace(found, certified=len(found.x))
    return found


def _rank(found: Reconstruction) -> tuple[int, bool, int, float]:
    some = found.certificate is not Certificate.FAILED
    return found.certified, some, len(found.x), -found.residual


@dataclass
class _Certified:
    """One certified input."""

    x: Tensor  # (*shape)
    width: Tensor | None  # half-widths of the intervals of its values; None if it is exact
    label: Tensor | None
    rounds: set[int]  # those of the gradients that it explains

    def same(self, other: _Certified) -> bool:
        """Return whether two inputs are equal, or cannot be told apart by their intervals."""
        if self.width is None or other.width is None:
            return torch.equal(self.x, other.x)
        return bool(((self.x - other.x).abs() <= self.width + other.width).all())


@dataclass
class _Search:
    """An attack on single gradients, one after the other."""

    leak: GradientLeak  # several gradients of one node
    task: Task
    attempt: Attempt  # runs an exact attack
    wanted: int | None  # number of records; None if it is unknown
    inputs: list[_Certified] = field(default_factory=list)  # each once
    open: int = 0  # number of gradients that certified inputs do not explain entirely
    tried: list[Reconstruction] = field(default_factory=list)  # the results for single gradients

    def result(self, together: Reconstruction | None) -> Reconstruction:
        """Attack the gradients that are not explained yet, and return all inputs.

        `together` is the result for all gradients together, if they were attacked so.
        """
        if together is not None:
            for k in range(proven(together)):
                self._add(together, k, together.rounds[k] if together.rounds else ())
        alone = self.leak.single.nonzero().flatten().tolist()
        silent = inputs_shown.silent(self.leak)
        missed = 0
        for done, k in enumerate(alone):
            step("rounds", done, len(alone))
            equation = self.leak.equation(k)
            if bool(silent[k]) or self._known(equation):
                continue
            patient = self.leak.samples == 1 or missed < PATIENCE
            if self._complete or not patient or expired():
                self.open += 1
                continue
            found = _counted(self.attempt(equation))
            self.tried.append(found)
            self.open += found.certificate not in PROVEN
            missed = 0 if proven(found) else missed + 1
            for place in range(proven(found)):
                self._add(found, place, equation.when)
        step("rounds", len(alone), len(alone))
        return self._reported(together, len(alone))

    @property
    def _complete(self) -> bool:
        return self.wanted is not None and len(self.inputs) >= self.wanted

    def _known(self, equation: GradientLeak) -> bool:
        """Return whether certified inputs explain a gradient; its round is then noted."""
        if not self.inputs:
            return False
        used = inputs_shown.uses(equation, self.task, torch.stack([one.x for one in self.inputs]))
        if used is None or not bool(used.any()):
            return False
        for k in used[0].nonzero().flatten().tolist():
            self.inputs[k].rounds.update(equation.when)
        return True

    def _add(self, found: Reconstruction, place: int, rounds: Sequence[int]) -> None:
        """Add a certified input, or its rounds if it is one of those before it."""
        width = None if found.interval is None else found.interval[place]
        new = _Certified(found.x[place], width, _label(found, place), {*rounds})
        for other in self.inputs:
            if new.same(other):
                other.rounds.update(rounds)
                return
        self.inputs.append(new)

    def _reported(self, together: Reconstruction | None, gradients: int) -> Reconstruction:
        """Return the certified inputs, and after them estimates of the other gradients' inputs."""
        best = max([*self.tried, *([] if together is None else [together])], key=_rank)
        interval = self._interval()
        estimates: list[Reconstruction] = []
        if interval is None:  # a statement about intervals concerns all inputs that are returned
            estimates = self._estimates()
        if not self.inputs and len(estimates) < 2:
            return replace(best, rounds=())
        x = [*(one.x for one in self.inputs), *(one.x[0] for one in estimates)]
        labels = [*(one.label for one in self.inputs), *(_label(one, 0) for one in estimates)]
        rounds = [tuple(sorted(one.rounds)) for one in self.inputs]
        whole = not self.open or self._complete
        certificate = Certificate.APPROXIMATE
        if interval is not None:
            certificate = Certificate.INTERVAL
        elif whole and self.inputs:
            certificate = Certificate.EXACT
        explained = gradients - self.open
        residuals = [one.residual for one in self.tried if proven(one)]
        reasons = [one.note for one in self.tried if one.certificate not in PROVEN]
        note = (
            f"{counted(len(self.inputs), 'different input')} certified, from {explained} of "
            f"{counted(gradients, 'gradient')}, each by itself"
        )
        return replace(
            best,
            x=torch.stack(x),
            y=_labels(labels),
            certificate=certificate,
            residual=max(residuals, default=best.residual),
            note="; ".join([note, *reasons[:1]]),
            certified=sum(one.width is None for one in self.inputs),
            interval=interval,
            choices={},
            rounds=(*rounds, *(() for _ in estimates)),
        )

    def _interval(self) -> Tensor | None:
        """Return the half-widths of all inputs (b, *shape); None if all inputs are exact.

        Those of one gradient hold together at the confidence `SURE`. Those of several are
        widened, so that the probability that any of them is wrong is no larger
        (Bonferroni).
        """
        from scipy.special import ndtri  # slow to import, and inputs on a grid need no quantile

        widths = [one.width for one in self.inputs if one.width is not None]
        if not widths or len(widths) < len(self.inputs):
            return None
        statements = sum(one.interval is not None for one in self.tried)
        tail = (1 - SURE) / (2 * widths[0].numel())
        wider = float(ndtri(tail / max(1, statements)) / ndtri(tail))
        return torch.stack(widths) * wider

    def _estimates(self) -> list[Reconstruction]:
        """Return estimates of single records that are not certified, the best first, each once."""
        if self.leak.samples != 1:
            return []
        kept: list[Reconstruction] = []
        some = [one for one in self.tried if not proven(one) and len(one.x) == 1]
        known = [one.x for one in self.inputs]
        for one in sorted(some, key=lambda one: one.residual):
            room = self.wanted is None or len(known) < self.wanted
            near = any(float((one.x[0] - x).square().mean().sqrt()) < APART for x in known)
            if room and not near and one.certificate is not Certificate.FAILED:
                kept.append(one)
                known.append(one.x[0])
        return kept


def proven(found: Reconstruction) -> int:
    """Return how many leading inputs are exact, or have intervals for their values."""
    if found.certificate is Certificate.INTERVAL and found.interval is not None:
        return len(found.x)
    return found.certified


def _label(found: Reconstruction, place: int) -> Tensor | None:
    return None if found.y is None else found.y[place]


def _labels(labels: Sequence[Tensor | None]) -> Tensor | None:
    """Return labels together, with NaN for those that are unknown; None if all are."""
    known = [label for label in labels if label is not None]
    if not known:
        return None
    if len(known) == len(labels):
        return torch.stack(known)
    none = torch.full_like(known[0], math.nan, dtype=torch.float64)
    return torch.stack([none if label is None else label.to(none) for label in labels])
