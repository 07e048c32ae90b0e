"""Running attacks on leaks: one attack, by name or as an object, or the strongest that fits."""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Generator

from leakaudit._util import declarations, large_blocks
from leakaudit.core import registry
from leakaudit.core.errors import AttackError, LeakauditError
from leakaudit.core.leak import GradientLeak, Leaks
from leakaudit.core.progress import expired, sharing, step
from leakaudit.core.reconstruction import Certificate, Reconstruction, Reconstructions
from leakaudit.inversion import recomputed, round_by_round
from leakaudit.inversion.attack import Attack, Batched, Selective, failed, withdrawn
from leakaudit.inversion.round_by_round import PROVEN, proven
from leakaudit.inversion.search import objectives
from leakaudit.tasks.task import LOOP_ABOVE, Task

# ``auto`` tries all attacks in order, exact ones first, and returns for each leak the first
# reconstruction that did not fail. If all attacks fail, it returns the best of their results.
#
# An exact attack may also return an estimate: inputs that it could not prove. If these do not
# reproduce the gradients, the next attack by optimisation is tried as well, and its result is
# returned if it does.

# Relative misfit of the gradients below which inputs reproduce them. A choice: searches that have
# found the inputs reach 3e-5, and those that have not stay above 1e-2.
CLOSE = 1e-3
# No certificate holds if masks of dropout are not known: its conditions compare the leak with
# gradients that are computed again, or assume that the first layer received the input itself, and
# dropout before it passes on the input with some of its values set to zero, the others enlarged.
MASKED = (
    "the model may draw random masks in training, which are not known "
    '(state dropout = "eval" if it did not)'
)
# Sizes of messages that attacks read: beyond them, squares leave the range of numbers.
SMALLEST = 1e-100
LARGEST = 1e100
# Numbers in the inputs of one node: a choice, 512 MB in float64. A search keeps several copies.
LARGEST_BATCH = 1 << 26


def attack(
    leaks: Leaks,
    name: str | Attack = "auto",
    *,
    generator: Generator,
    task: Task | None = None,
    **settings: Any,
) -> Reconstructions:
    """Run one attack on all leaks, or on each leak the strongest attack that fits (``auto``).

    The task is only needed if the model is the user's own ``package.module:factory``:
    Task.build(leaks.task, trusted=True).
    """
    _expect(leaks, generator)
    task = task or Task.build(leaks.task)
    found = Reconstructions()
    for k, leak in enumerate(leaks):
        step("leaks", k, len(leaks))
        found.append(attack_one(leak, task, name, generator, **settings))
    step("leaks", len(leaks), len(leaks))
    return found


def _expect(leaks: object, generator: object) -> None:
    """Reject arguments that are often mistaken, before they cause an error of torch."""
    if not isinstance(leaks, Leaks):
        raise LeakauditError(
            f"leaks: expected what an adversary learns, got {type(leaks).__name__}; "
            "write la.attack(la.leaks(trace), ...)"
        )
    if not isinstance(generator, Generator):
        raise LeakauditError(
            f"generator: expected a torch.Generator, got {generator!r:.40}; "
            "write generator=torch.Generator().manual_seed(0)"
        )


def attack_one(
    leak: GradientLeak, task: Task, name: str | Attack, generator: Generator, **settings: Any
) -> Reconstruction:
    """Attack one leak; `auto` tries exact attacks first, then iterative ones, until one fits."""
    if name == "auto":
        return next(attack_together([leak], task, name, [generator], **settings)).found
    _require_room(leak, task)
    start = time.perf_counter()
    if isinstance(name, str):
        chosen = _configured(name, settings)
    elif settings:
        raise LeakauditError(
            f"the attack is an object, not a name; pass {', '.join(settings)} to its constructor"
        )
    else:
        chosen = name
        name = type(chosen).__name__
    _check(chosen, name, leak, task)
    size = float(leak.value.abs().max()) if leak.value.numel() else 0.0
    if 0 < size < SMALLEST or LARGEST < size < math.inf:
        why = f"the largest number is {size:.0e}, whose square is beyond the range of numbers"
        return replace(failed(name, leak, task, why), others=leak.others)
    with large_blocks.kept(task.layout.size):
        if chosen.exact:
            found = round_by_round.attack(leak, task, lambda some: chosen(some, task, generator))
        else:
            found = chosen(leak, task, generator)
        found = recomputed.confirmed(_supported(found, leak, task), leak, task)
    return replace(found, seconds=time.perf_counter() - start, others=leak.others)


def _supported(found: Reconstruction, leak: GradientLeak, task: Task) -> Reconstruction:
    """Withdraw certificates that rest on what is not known: masks, or errors of an estimate."""
    why = leak.estimate or (MASKED if task.masked else "")
    if why and (found.certified or found.certificate in PROVEN):
        return withdrawn(found, why)
    return found


def estimator(name: str, settings: Mapping[str, Any]) -> str:
    """Return the estimator of leaks that an attack asks for; empty for the relations' values."""
    if name == "auto":
        return ""
    return _configured(name, settings).estimator


def _require_room(leak: GradientLeak, task: Task) -> None:
    """Reject a number of records that no memory holds; it is a number in a stranger's file."""
    records = max(leak.batch or 1, leak.records or 1)
    inputs = records * math.prod(task.spec.shape)
    if inputs > LARGEST_BATCH:
        raise LeakauditError(
            f"node {leak.node}: the recording declares {records} records of shape "
            f"{tuple(task.spec.shape)}, which is {inputs} numbers; an attack can search for at "
            f"most {LARGEST_BATCH}"
        )


def _check(chosen: Attack, name: str, leak: GradientLeak, task: Task) -> None:
    why = _refusal(chosen, leak, task)
    if why:
        raise AttackError(f"node {leak.node}: attack {name} cannot use this leak: {why}")


def _refusal(chosen: Attack, leak: GradientLeak, task: Task) -> str | None:
    """Return why an attack cannot use a leak; None if it can."""
    if task.tokens and not chosen.tokens:
        return (
            "it recovers numbers, but the inputs of the model are tokens; use sequences or tokens"
        )
    readable = chosen.incomplete
    if leak.training is not None:
        readable = chosen.changes
    if leak.gaps and not readable:
        return leak.gaps
    return chosen.refuses(leak, task)


@dataclass(frozen=True)
class FinalReconstruction:
    """One of several leaks, with its final reconstruction."""

    place: int  # index of the leak
    found: Reconstruction
    # whether it was searched in one batch with other leaks; it then depends on them, up to rounding
    together: bool
    late: bool  # whether its time limit had expired


def attack_together(
    leaks: Sequence[GradientLeak],
    task: Task,
    name: str,
    generators: Sequence[Generator],
    **settings: Any,
) -> Iterator[FinalReconstruction]:
    """Attack several leaks, each with its own generator, as `attack_one` does.

    `Batched` attacks process the leaks in one batch if the model is small. Other attacks
    process them one after the other, and divide the remaining time among them.
    """
    for leak in leaks:
        _require_room(leak, task)
    if name != "auto":
        chosen = _configured(name, settings)
        for leak in leaks:
            _check(chosen, name, leak, task)
        yield from _run(chosen, range(len(leaks)), leaks, task, generators)
        return
    if settings:
        raise LeakauditError(
            f"auto has no settings, got {', '.join(settings)}; name the attack to configure"
        )
    left = {k: _Course() for k in range(len(leaks))}
    for known, candidate in in_order():
        fits: list[int] = []
        for k, course in left.items():
            if course.late and not candidate.quick:
                continue
            why = _why_not(candidate, leaks[k], task)
            if why:
                course.reasons.append(f"{known}: {why}")
                if candidate.exact and _is_meant(candidate, leaks[k], task):
                    course.prevented[why].append(known)
            else:
                fits.append(k)
        for settled in _run(candidate, fits, leaks, task, generators):
            course = left[settled.place]
            course.add(settled, candidate.exact)
            if course.ends(candidate.exact, leaks[settled.place], task):
                yield left.pop(settled.place).end(settled.place, leaks, task)
        if not left:  # before the next attack is imported
            return
    for k, course in left.items():
        yield course.end(k, leaks, task)


def _why_not(candidate: Attack, leak: GradientLeak, task: Task) -> str | None:
    """Explain why `auto` skips an attack; None if it does not."""
    why = _refusal(candidate, leak, task)
    if not why and isinstance(candidate, Selective):
        return candidate.idle(leak, task)
    return why


def _is_meant(candidate: Attack, leak: GradientLeak, task: Task) -> bool:
    """Return whether an attack is made for the inputs of a model, and for gaps if there are any."""
    return candidate.tokens == task.tokens and candidate.incomplete <= (leak.seen is not None)


@dataclass
class _Course:
    """The progress of `auto` for one leak."""

    best: Reconstruction | None = None  # the best reconstruction so far
    reasons: list[str] = field(default_factory=list)  # why attacks were skipped
    tried: list[str] = field(default_factory=list)  # attacks that ran
    # why exact attacks were skipped or proved nothing -> their names
    prevented: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    seconds: float = 0.0  # total time of all attacks
    together: bool = False  # whether any attack searched the leak in one batch with others
    late: bool = False  # whether the time limit had expired after the last attack
    # whether the best inputs are an estimate that does not reproduce the gradients
    loose: bool = False

    def add(self, settled: FinalReconstruction, exact: bool) -> None:
        """Keep the better reconstruction.

        A failed attack does not replace inputs that an earlier one found. A search replaces
        the estimate of an exact attack only if it fits closely. Labels replace the inputs of a
        search that failed because time was over.
        """
        found = settled.found
        is_last = self.late
        self.tried.append(found.attack)
        self.late = settled.late
        self.seconds += found.seconds
        self.together = self.together or settled.together
        if exact and found.note and not proven(found):
            self.prevented[found.note].append(found.attack)
        if self.best is None:
            self.best = found
            return
        if found.certificate is Certificate.FAILED:
            return
        has_inputs = len(found.x) or not len(self.best.x)
        if not has_inputs and not is_last:
            return
        if exact or not self.loose or found.residual < CLOSE:
            self.best = found
            self.loose = False

    def ends(self, exact: bool, leak: GradientLeak, task: Task) -> bool:
        """Whether no further attack is necessary."""
        if self.best is None or self.best.certificate is Certificate.FAILED:
            return False
        if exact:
            self.loose = _is_loose(self.best, leak, task)
        return self.late or not (exact and self.loose)

    def end(self, place: int, leaks: Sequence[GradientLeak], task: Task) -> FinalReconstruction:
        """Return the result to report."""
        found = self.best
        if found is None:
            why = "no attack can use this leak. " + "; ".join(self.reasons)
            found = replace(failed("none", leaks[place], task, why), others=leaks[place].others)
        note = found.note
        if self.loose:
            note = f"not confirmed: the gradients were not reproduced from these inputs; {note}"
        if self.best is not None and not proven(found):
            others = {why: who for why, who in self.prevented.items() if found.attack not in who}
            said = "; ".join(f"{', '.join(who)}: {why}" for why, who in others.items())
            note = "; ".join(filter(None, (note, said and f"no exact recovery by {said}")))
        done = replace(found, seconds=self.seconds, note=note, tried=tuple(self.tried))
        return FinalReconstruction(place, done, self.together, self.late)


def _is_loose(found: Reconstruction, leak: GradientLeak, task: Task) -> bool:
    """Return whether inputs are unproven and do not reproduce the gradients.

    A search may then help, unless the models are unknown.
    """
    if found.certificate is not Certificate.APPROXIMATE or found.certified:
        return False
    if objectives.missing(leak, None):
        return False
    if found.y is None or len(found.x) != leak.batch:
        return True
    left, noise = objectives.compared(leak, task, found.x, found.y)
    return left > max(CLOSE, 2 * noise)


def _run(
    chosen: Attack,
    places: Sequence[int],
    leaks: Sequence[GradientLeak],
    task: Task,
    generators: Sequence[Generator],
) -> Iterator[FinalReconstruction]:
    """Run one attack on the leaks with the given indices."""
    if isinstance(chosen, Batched) and len(places) > 1 and task.layout.size <= LOOP_ABOVE:
        start = time.perf_counter()
        some = [leaks[k] for k in places]
        for at, found in chosen.many(some, task, [generators[k] for k in places]):
            # The leaks share their evaluations, so each is assigned a part of the time so far.
            seconds = (time.perf_counter() - start) / len(places)
            others = leaks[places[at]].others
            supported = _supported(found, some[at], task)
            timed = replace(supported, seconds=seconds, others=others)
            yield FinalReconstruction(places[at], timed, together=True, late=expired())
        return
    for n, k in enumerate(places):
        with sharing(len(places) - n):
            found = attack_one(leaks[k], task, chosen, generators[k])
            settled = FinalReconstruction(k, found, together=False, late=expired())
        yield settled


def in_order() -> Iterator[tuple[str, Attack]]:
    """Yield all attacks with their default settings, exact ones first, then by rank.

    The file of an attack is only loaded when the attack is due: `auto` often ends with the
    first.
    """
    known = []
    for name in registry.names("attacks"):
        if registry.unloaded("attacks", name) is None:
            _configured(name, {})  # rejects a plug-in's class that is not an attack
        said = declarations.of("attacks", name, ("exact", "rank")).attributes
        known.append((not said["exact"], said["rank"], name))
    for _, _, name in sorted(known):
        yield name, _configured(name, {})


def _configured(name: str, settings: Mapping[str, Any]) -> Attack:
    """Create a registered attack from its settings; reject a class that is not an attack."""
    kind = registry.get("attacks", name)
    if not (isinstance(kind, type) and issubclass(kind, Attack)):
        raise LeakauditError(
            f"attack {name!r}: expected a subclass of leakaudit.Attack, got {kind!r}"
        )
    return registry.configure(kind, dict(settings))
