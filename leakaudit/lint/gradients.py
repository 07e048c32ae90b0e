"""Is the sensitivity enforced? Norms of gradients: from what the trace determines, and record by record where the truth is there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from scipy.stats import chi2
from torch import Tensor

from leakaudit.adversary import Adversary, View
from leakaudit.errors import LeakauditError
from leakaudit.lint import loops
from leakaudit.lint.case import Case
from leakaudit.lint.noise import LEVEL
from leakaudit.lint.pitfall import Pitfall
from leakaudit.lint.quiet import tiny
from leakaudit.lint.samples import of_trace, state
from leakaudit.relations import Relations, Vector, residuals
from leakaudit.relations.estimate import recorded
from leakaudit.tasks.task import Task
from leakaudit.verdict import Verdict

MORE = 1 + 1e-6
GRADIENTS, NUMBERS = (
    200,
    1 << 26,
)  # whose records are differentiated one by one, and numbers that are held for one
NORM = re.compile(r"(?:norm at most|Lipschitz constant) (?:G = )?([0-9.]+(?:e-?[0-9]+)?)")


@dataclass(frozen=True)
class _Bound:
    """The norm that a record's gradient may have, where from, and whether the protocol says that it cuts to it."""

    size: float
    source: str
    cut: bool


def check(case: Case) -> Iterator[Pitfall]:
    """Yield gradients beyond the norm that is declared or assumed, and records that are fewer than the noise reckons with."""
    yield from _records(case)
    if case.protocol is None:
        yield from (
            Pitfall(number, verdict, says)
            for number, verdict, says in loops.odd(case.params)
            if case.claims
        )
        return
    bound = _bound(case)
    if bound is None:
        return
    found = list(_by_record(case, bound)) or list(_by_trace(case, bound))
    yield from found[:1]


def _bound(case: Case) -> _Bound | None:
    if clip := case.number("clip"):
        return _Bound(clip, f"clip={clip:g}", True)
    if case.claims and (lipschitz := case.number("lipschitz")):
        return _Bound(lipschitz, f"lipschitz={lipschitz:g} (assumed by the claim)", False)
    for claim in case.claims:
        for assumed in claim.assumes:
            if "features" not in assumed and (said := NORM.search(assumed)):
                return _Bound(
                    float(said[1].rstrip(".")), f"the claim's assumption ({assumed})", False
                )
    return None


def _verdict(bound: _Bound) -> Verdict:
    return Verdict.REFUTED if bound.cut else Verdict.UNSUPPORTED


def _by_trace(case: Case, bound: _Bound) -> Iterator[Pitfall]:
    """Test |gradient + noise| <= bound + |noise|, by the chi-square law of |noise|^2; a mean of cut gradients is no longer than one."""
    samples = [s for s in of_trace(case) if s.gaussian]
    tests = sum(len(s.std) for s in samples)
    for s in samples:
        over = np.maximum(0.0, s.norm - s.weight * bound.size * MORE) / s.std
        chances = chi2.sf(over**2, s.coordinates)
        k = int(np.argmin(chances))
        if chances[k] < LEVEL / tests:
            noise = float(s.std[k] * np.sqrt(s.coordinates))
            says = (
                f"{s.labels[k]} of node {s.node}, with its noise, has norm {s.norm[k]:.4g}; {bound.source} and noise of about {noise:.3g} "
                f"do not reach that (chance {tiny(float(chances[k]))})"
            )
            figures = {
                "node": s.node,
                "norm": float(s.norm[k]),
                "bound": bound.size,
                "noise": noise,
                "chance": float(chances[k]),
            }
            yield Pitfall(5, _verdict(bound), says, figures)


def _by_record(case: Case, bound: _Bound) -> Iterator[Pitfall]:
    """Take every record's gradient at the models of the run; where the protocol cuts, compare what it used with what it says."""
    if (
        case.truth is None
        or not case.truth.states
        or case.relations is None
        or ":" in case.trace.task.model
    ):
        return
    if not (taken := _taken(case, bound)):
        return
    worst = max(taken, key=lambda t: t.largest)
    figures = {
        "bound": bound.size,
        "largest": worst.largest,
        "gradients": len(taken),
        "at": worst.label,
    }
    if not bound.cut:
        if worst.largest > bound.size * MORE:
            says = f"a record's gradient has norm {worst.largest:.4g} at {worst.label}, beyond {bound.source}: nothing in the run enforces it"
            yield Pitfall(5, Verdict.UNSUPPORTED, says, figures)
        return
    used = max(taken, key=lambda t: t.used)
    if used.used > bound.size * MORE:
        says = f"{used.label} as it was used has norm {used.used:.4g}, beyond {bound.source}"
        yield Pitfall(5, Verdict.REFUTED, says, {**figures, "used": used.used})
    elif (uncut := next((t for t in taken if t.uncut), None)) is not None:
        says = f"{uncut.label} as it was used is the mean of gradients of norm up to {uncut.largest:.4g}, not cut by {bound.source}"
        yield Pitfall(5, Verdict.REFUTED, says, figures)


@dataclass(frozen=True)
class _Taken:
    """A gradient of the run.

    largest: norm of the longest record's. used: norm of the vector that was used, 0 where it was not kept. uncut: whether that is closer
    to the mean of the records' gradients as they are than to that of cut ones.
    """

    label: str
    largest: float
    used: float
    uncut: bool


def _taken(case: Case, bound: _Bound) -> list[_Taken]:
    """Go through the declaration with the recorded states, and take gradients where they were taken."""
    task, read, found = Task.build(case.trace.task), recorded(_everything(case)), list[_Taken]()

    def fetch(vector: Vector) -> Tensor | None:
        if vector.kind in ("message", "public"):
            try:
                return read(vector)
            except LeakauditError:
                return None
        return None if vector.kind == "gradient" else state(case, vector)

    def gradient(vector: Vector, theta: Tensor) -> Tensor:
        x, y = case.truth.of(vector.owner or 0) if case.truth else (torch.empty(0), torch.empty(0))
        theta, used = theta.double(), state(case, vector)
        if len(found) < GRADIENTS and len(x) * theta.numel() <= NUMBERS:
            each = task.gradients(
                theta.expand(len(x), -1).contiguous(), x.double()[:, None], y[:, None]
            )
            found.append(_compared(vector.label, each, used, bound, whole=not case.number("batch")))
        return task.gradients(theta[None], x.double()[None], y[None])[0] if used is None else used

    try:
        residuals(case.relations or Relations(), fetch, float("inf"), gradient)
    except (LeakauditError, RuntimeError, IndexError):
        return []
    return found


def _compared(label: str, each: Tensor, used: Tensor | None, bound: _Bound, whole: bool) -> _Taken:
    """Compare what was used with the records' gradients (b, d). whole: it is of all records."""
    norms = each.norm(dim=1)
    largest, uncut = float(norms.max()), False
    if used is not None and whole and largest > bound.size * MORE:
        cut = (each * torch.clamp(bound.size / norms, max=1.0)[:, None]).mean(0)
        uncut = float((used - each.mean(0)).norm()) < float((used - cut).norm())
    return _Taken(label, largest, 0.0 if used is None else float(used.norm()), uncut)


def _everything(case: Case) -> View:
    return Adversary(corrupt=frozenset(range(case.trace.graph.nodes))).view(case.trace)


def _records(case: Case) -> Iterator[Pitfall]:
    """Compare the records that the noise reckons with, and those that the nodes hold."""
    told = int(case.number("records") or case.number("samples"))
    if case.truth is None or not told or not case.claims:
        return
    fewest = min(case.records.values(), default=told)
    if 0 < fewest < told:
        node = next(i for i, k in case.records.items() if k == fewest)
        says = (
            f"the claim divides by {told} records, and node {node} holds {fewest}: one record moves its mean by "
            f"{told / fewest:.3g} times what is reckoned"
        )
        yield Pitfall(8, Verdict.UNSUPPORTED, says, {"told": told, "held": fewest, "node": node})
