"""Whether certified inputs reproduce the messages at the known models: the last condition of all.

The other conditions read the first layer's rows alone, so they believe that these are gradients.
An optimiser that scales every parameter or layer by itself (Adam, Adagrad, LARS), signs of
gradients, and clipping layer by layer all leave rows of rank one that belong to no input.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from leakaudit.core.evidence import Evidence, Origin
from leakaudit.core.reconstruction import Certificate, Reconstruction
from leakaudit.inversion.linear import least_squares
from leakaudit.inversion.search import local_training, objectives, priors

if TYPE_CHECKING:
    from leakaudit.core.leak import GradientLeak
    from leakaudit.tasks.task import Task

SUBJECT = "gradients"

# Part of a tensor's gradient that inputs may leave unexplained: the grid absorbs small errors.
# Programs that are not as declared leave .05 to 1.
CLOSE = 1e-3
# The same if nothing but rounding in float32 leaves it, relative to the whole gradient.
ROUNDING = 1e-5
# Residual that noise explains, in units of this noise.
NOISE = 3.0
# Values within intervals may leave as much as this many half-widths.
WIDTHS = 10.0

# Parameters of a tensor that are compared; more show nothing new.
COLUMNS = 4096
# Numbers that are computed for all equations: about ten seconds.
NUMBERS = 10**10
# Numbers to compare for each one that is fitted, so that a fit says something.
TELLING = 4

COLOURLESS = (
    "black and white pixels do not show that the messages are gradients: signs of gradients look "
    "the same"
)


def confirmed(found: Reconstruction, leak: GradientLeak, task: Task) -> Reconstruction:
    """Withdraw certificates if their inputs, computed again, do not give the messages.

    The evidence says whether this could be tested.
    """
    whole = found.certificate in (Certificate.EXACT, Certificate.INTERVAL)
    proven = len(found.x) if whole else found.certified
    if not proven or task.tokens:
        return found
    allowed = CLOSE
    if found.interval is not None:
        width = float(found.interval.norm() / found.x.norm())
        allowed = min(CLOSE, max(ROUNDING, WIDTHS * width))
    tested: set[int] = set()
    worst = 0.0
    for inputs, left in _unexplained(found, proven, leak, task):
        if not left <= allowed:
            why = f"computed again from these inputs, they are off by {left:.0%}"
            return _withdrawn(found, Evidence(SUBJECT, Origin.CONTRADICTED, why), why)
        worst = max(worst, left)
        tested.update(inputs)
    if tested >= {*range(proven)}:
        why = f"computed again from these inputs, they are off by {worst:.0e}"
        return replace(found, evidence=(*found.evidence, Evidence(SUBJECT, Origin.VERIFIED, why)))
    known = "known" if leak.theta is not None else "unknown"
    why = f"not computed again from these inputs, at {known} models"
    evidence = Evidence(SUBJECT, Origin.DECLARED, why)
    if task.spec.levels and _alone(found, proven, leak) and _colourless(found.x[:proven]):
        return _withdrawn(found, evidence, COLOURLESS)
    return replace(found, evidence=(*found.evidence, evidence))


def _withdrawn(found: Reconstruction, evidence: Evidence, why: str) -> Reconstruction:
    return replace(
        found,
        certificate=Certificate.APPROXIMATE,
        certified=0,
        interval=None,
        note=f"no certificate: {why}; {found.note}",
        evidence=(*found.evidence, evidence),
    )


def _alone(found: Reconstruction, proven: int, leak: GradientLeak) -> bool:
    """Return whether each gradient comes from one input, so that only pixels prove it."""
    if leak.samples == 1 or len(found.x) == 1:
        return True
    rounds = [one for some in found.rounds[:proven] for one in some]
    return bool(rounds) and len(rounds) == len({*rounds})


def _colourless(x: Tensor) -> bool:
    """Return whether some image (b, *shape) consists of black and white pixels only."""
    return bool(((x == 0) | (x == 1)).flatten(1).all(1).any())


def _unexplained(
    found: Reconstruction, proven: int, leak: GradientLeak, task: Task
) -> Iterator[tuple[list[int], float]]:
    """Yield certified inputs, and the part of their gradient that they do not explain."""
    if leak.theta is None or leak.gaps or priors.normalises(task) or task.masked:
        return
    room = NUMBERS
    for k in objectives.clarity(leak).argsort(descending=True).tolist():
        inputs = _behind(found, proven, leak, k)
        equation = leak.equation(k)
        passes = len(equation.rounds) * max(1, len(inputs)) * _outputs(task) * leak.inner
        room -= passes * task.layout.size
        if not inputs or room < 0 or not bool((equation.value != 0).any()):
            continue
        left = (_by_slopes if leak.inner == 1 else _by_local_steps)(equation, task, found.x[inputs])
        if left is not None:
            yield inputs, left


def _behind(found: Reconstruction, proven: int, leak: GradientLeak, k: int) -> list[int]:
    """Return the inputs of equation k; empty if some are not certified or not known."""
    inputs = [*range(len(found.x))]
    if any(found.rounds):
        used = {*leak.equation(k).when}
        inputs = [i for i in inputs if i >= proven or used <= {*found.rounds[i]}]
    several = leak.batch is not None and len(inputs) != leak.batch
    return [] if several or any(i >= proven for i in inputs) else inputs


def _outputs(task: Task) -> int:
    return 1 if task.spec.loss == "binary" else task.spec.classes


def _by_slopes(leak: GradientLeak, task: Task, x: Tensor) -> float | None:
    """Return what is left of one equation (1, c), whatever the slopes of the loss are.

    A gradient is sum_k J_k^T q_k / b, with J_k (K, d) the derivatives of the outputs at input k and
    q_k (K,) the slopes of its loss in the outputs, which clipping may scale. The q_k are fitted,
    those of each model in the equation by themselves, so labels and loss need not be known.
    """
    assert leak.theta is not None
    columns = _compared(leak, task)
    free = len(leak.theta) * (len(x) * _outputs(task) + bool(task.l2))
    if len(columns) < TELLING * free:
        return None
    rows = []
    for weight, theta in zip(leak.combination[0].double(), leak.theta.double(), strict=True):
        theta = theta.requires_grad_()
        with torch.enable_grad():
            out = task.logits(theta, x.double()).flatten()
            for k in range(len(out)):
                (slope,) = torch.autograd.grad(out[k], theta, retain_graph=True)
                rows.append(weight * slope[columns])
        if task.l2:
            rows.append(weight * theta.detach()[columns])
    basis = torch.stack(rows)  # (free, n)
    value = leak.value[0].double()[columns - leak.columns[0]]
    fit = least_squares(basis.T, value[:, None])[:, 0]
    terms = (basis * fit[:, None]).norm(dim=1).max()
    return _largest(leak, task, columns, fit @ basis - value, value, float(terms))


def _by_local_steps(leak: GradientLeak, task: Task, x: Tensor) -> float | None:
    """Return what is left of the sum of local steps on one input, at its best label."""
    momentum = leak.inner_weight not in (None, leak.inner)
    labels = task.spec.loss in ("cross_entropy", "binary")
    if momentum or not labels or len(x) > 1 or local_training.missing(leak, None, 1):
        return None
    if len(leak.rounds) > 1 or leak.theta is None:
        return None
    local = local_training.of(leak, 1, 1)
    columns = _compared(leak, task)
    value = leak.value[0].double()[columns - leak.columns[0]]
    left = []
    for label in range(task.spec.classes):
        y = torch.tensor([label])
        y = y if task.spec.loss == "cross_entropy" else y.double()
        again = local_training.update(task, local, leak.theta[0].double(), x.double(), y, False)
        again = leak.combination[0, 0].double() * again[columns]
        left.append(_largest(leak, task, columns, again - value, value, float(again.norm())))
    return min(left)


def _compared(leak: GradientLeak, task: Task) -> Tensor:
    """Return the columns (n,) of the model to compare: a selection of each tensor that is sent."""
    start, stop = leak.columns
    generator = torch.Generator().manual_seed(0)
    parts = []
    for piece in task.layout.slices.values():
        columns = torch.arange(max(piece.start, start), min(piece.stop, stop))
        if len(columns) and bool((leak.value[0, columns - start] != 0).any()):
            chosen = torch.randperm(len(columns), generator=generator)[:COLUMNS]
            parts.append(columns[chosen.sort().values])
    return torch.cat(parts)


def _largest(
    leak: GradientLeak, task: Task, columns: Tensor, off: Tensor, value: Tensor, terms: float
) -> float:
    """Return the largest part of a tensor's values that is off by more than errors explain."""
    noise = NOISE * float(leak.std[0])
    rounding = ROUNDING * max(float(value.norm()), terms)
    worst = 0.0
    for piece in task.layout.slices.values():
        here = (columns >= piece.start) & (columns < piece.stop)
        size = float(value[here].norm())
        if size:
            left = float(off[here].norm()) - noise * math.sqrt(int(here.sum())) - rounding
            worst = max(worst, left / size)
    return worst
