"""Is the sensitivity enforced? Norms of gradients in the trace, and of single records."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from leakaudit._util.plain import Figures
from leakaudit.core.errors import LeakauditError
from leakaudit.core.verdict import Verdict
from leakaudit.protocols.declared import everything
from leakaudit.tasks import clipping
from leakaudit.tasks.task import Task
from leakaudit.theory.relations import Relations, Vector, residuals
from leakaudit.theory.relations.estimate import recorded
from leakaudit.views.conformance import loops
from leakaudit.views.conformance.case import Case
from leakaudit.views.conformance.pitfall import MORE, Pitfall, chance_text
from leakaudit.views.conformance.samples import LEVEL, estimates, state

GRADIENTS = 200  # number of gradients computed record by record: a choice that limits the time
NUMBERS = 1 << 26  # numbers of the records' gradients in memory at once: 512 MiB


@dataclass(frozen=True)
class _Bound:
    """The largest norm that a record's gradient may have."""

    size: float  # the largest norm
    source: str  # where the bound comes from
    clipped: bool  # whether the protocol declares that it clips to this norm

    @property
    def broken(self) -> Verdict:
        if self.clipped:
            return Verdict.REFUTED
        return Verdict.UNSUPPORTED


def check(case: Case) -> Iterator[Pitfall]:
    """Yield gradients beyond the declared or assumed norm, and nodes with too few records."""
    yield from _records(case)
    if case.protocol is None:
        if case.claims:
            yield from loops.uncovered(case.params)
        return
    bound = _bound(case)
    if bound is None:
        return
    found = list(_by_record(case, bound)) or list(_by_trace(case, bound))
    yield from found[:1]


def _bound(case: Case) -> _Bound | None:
    """Return the norm that the constants declare or a claim assumes; None if there is none."""
    clip = case.number("clip")
    if clip:
        return _Bound(clip, f"clip={clip:g}", clipped=True)
    lipschitz = case.number("lipschitz")
    if case.claims and lipschitz:
        source = f"lipschitz={lipschitz:g} (assumed by the claim)"
        return _Bound(lipschitz, source, clipped=False)
    for claim in case.claims:
        assumed = claim.gradient_norm
        if assumed is not None:
            return _Bound(assumed.limit, f"the claim's assumption ({assumed})", clipped=False)
    return None


def _by_trace(case: Case, bound: _Bound) -> Iterator[Pitfall]:
    """Test |gradient + noise| <= bound + |noise|, by the chi-square law of |noise|^2.

    The mean of clipped gradients is not longer than the longest of them.
    """
    from scipy.special import chdtrc  # slow to import

    samples = [sample for sample in estimates(case) if sample.gaussian]
    tests = sum(len(sample.std) for sample in samples)
    for sample in samples:
        longest = sample.weight * bound.size * MORE
        over = np.maximum(0.0, sample.norm - longest) / sample.std
        chances = chdtrc(sample.coordinates, over**2)
        k = int(np.argmin(chances))
        chance = float(chances[k])
        if not chance < LEVEL / tests:
            continue
        noise = float(sample.std[k] * np.sqrt(sample.coordinates))
        says = (
            f"{sample.labels[k]} of node {sample.node}, with its noise, has norm "
            f"{sample.norm[k]:.4g}; {bound.source} and noise of about {noise:.3g} "
            f"do not explain this (chance {chance_text(chance)})"
        )
        figures: Figures = {
            "node": sample.node,
            "norm": float(sample.norm[k]),
            "bound": bound.size,
            "noise": noise,
            "chance": chance,
        }
        yield Pitfall(5, bound.broken, says, figures)


@dataclass(frozen=True)
class _Taken:
    """A gradient of the run, compared with the gradients of single records."""

    label: str
    largest: float  # norm of the longest gradient of a record
    used: float  # norm of the vector that the run used; 0 if it was not kept
    # whether that vector is closer to the mean of the records' gradients than to the mean of the
    # clipped ones
    unclipped: bool


def _by_record(case: Case, bound: _Bound) -> Iterator[Pitfall]:
    """Compute every record's gradient at the models of the run.

    If the protocol clips, compare the vectors that it used with what it declares.
    """
    if case.truth is None or not case.truth.states or case.relations is None:
        return
    if ":" in case.trace.task.model:  # package.module:factory, which a lint must not run
        return
    taken = _taken(case, bound)
    if not taken:
        return
    worst = max(taken, key=lambda one: one.largest)
    figures: Figures = {
        "bound": bound.size,
        "largest": worst.largest,
        "gradients": len(taken),
        "at": worst.label,
    }
    if not bound.clipped:
        if worst.largest > bound.size * MORE:
            says = (
                f"a record's gradient has norm {worst.largest:.4g} at {worst.label}, "
                f"beyond {bound.source}: nothing in the run enforces this bound"
            )
            yield Pitfall(5, Verdict.UNSUPPORTED, says, figures)
        return
    longest = max(taken, key=lambda one: one.used)
    if longest.used > bound.size * MORE:
        says = (
            f"{longest.label}, as the run used it, has norm {longest.used:.4g}, "
            f"beyond {bound.source}"
        )
        yield Pitfall(5, Verdict.REFUTED, says, {**figures, "used": longest.used})
        return
    for one in taken:
        if one.unclipped:
            says = (
                f"{one.label}, as the run used it, is the mean of gradients with norms of up to "
                f"{one.largest:.4g}, which were not clipped in spite of {bound.source}"
            )
            yield Pitfall(5, Verdict.REFUTED, says, figures)
            return


def _taken(case: Case, bound: _Bound) -> list[_Taken]:
    """Evaluate the declaration with the recorded states, and compare each gradient in it."""
    task = Task.build(case.trace.task)
    read = recorded(everything(case.trace))
    found: list[_Taken] = []

    def fetch(vector: Vector) -> Tensor | None:
        if vector.kind == "gradient":
            return None
        if vector.kind not in ("message", "public"):
            return state(case, vector)
        try:
            return read(vector)
        except LeakauditError:
            return None

    def gradient(vector: Vector, theta: Tensor) -> Tensor:
        x = torch.empty(0)
        y = torch.empty(0)
        if case.truth:
            x, y = case.truth.of(vector.owner or 0)
        theta = theta.double()
        used = state(case, vector)
        if len(found) < GRADIENTS and len(x) * theta.numel() <= NUMBERS:
            points = theta.expand(len(x), -1).contiguous()
            each = task.gradients(points, x.double()[:, None], y[:, None])
            whole = not case.number("batch")
            found.append(_compared(vector.label, each, used, bound, whole))
        if used is not None:
            return used
        clip = bound.size if bound.clipped else 0.0
        return clipping.gradients(task, theta[None], x.double()[None], y[None], clip)[0]

    try:
        residuals(case.relations or Relations(), fetch, float("inf"), gradient)
    except (LeakauditError, RuntimeError, IndexError):
        return []
    return found


def _compared(label: str, each: Tensor, used: Tensor | None, bound: _Bound, whole: bool) -> _Taken:
    """Compare the vector that was used with the records' gradients.

    Args:
        each: Gradients of the node's records (b, d).
        used: The vector that was used (d,); None if it was not kept.
    """
    norms = each.norm(dim=1)
    largest = float(norms.max())
    if used is None:
        return _Taken(label, largest, 0.0, unclipped=False)
    unclipped = False
    if whole and largest > bound.size * MORE:
        shares = torch.clamp(bound.size / norms, max=1.0)
        clipped = (each * shares[:, None]).mean(0)
        unclipped = float((used - each.mean(0)).norm()) < float((used - clipped).norm())
    return _Taken(label, largest, float(used.norm()), unclipped)


def _records(case: Case) -> Iterator[Pitfall]:
    told = int(case.number("records") or case.number("samples"))
    if case.truth is None or not told or not case.claims:
        return
    fewest = min(case.records.values(), default=told)
    if not 0 < fewest < told:
        return
    node = next(i for i, count in case.records.items() if count == fewest)
    says = (
        f"the claim divides by {told} records, but node {node} holds only {fewest}: "
        f"one record moves its mean by {told / fewest:.3g} times what the claim assumes"
    )
    yield Pitfall(8, Verdict.UNSUPPORTED, says, {"told": told, "held": fewest, "node": node})
