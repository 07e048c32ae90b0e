"""Whether one factor relates the gradients of a whole run to recomputed ones, within rounding."""

# A factor that is fitted to the first gradients may hide a misfit: cross-entropy with label
# smoothing e is, at equal outputs, plain cross-entropy times 1 - e. So the model, the loss and the
# factor are proved only if the gradients of single records match from the first round to the last
# as well as rounding allows.

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from leakaudit._util.plural import counted
from leakaudit.capture.fitting import fit
from leakaudit.capture.fitting.sketch import FactorDeviation, deviation
from leakaudit.tasks.task import Task

# Measured with float32: correct models miss by 5 to 42 units of rounding, and label smoothing of
# .02 by 1000 or more. Numbers in a short format were rounded once or twice.
ROUNDINGS = 50
PRODUCTS = 2
OF_MODELS = 8  # roundings of the models between which a step lies, as in `local`
CEILING = 0.01  # no larger miss proves anything: a choice
SMALL = 0.1  # slopes below which rounding may explain more than that: also a choice
VANISHED = 1e-3  # relative size of a gradient below which its slopes are rounded: also a choice
FINE = 1e-4  # if rounding allows more, a factor may hide another loss, and has to be a usual one
HIDDEN = 0.01  # label smoothing that has to be visible: a choice
ROWS = 1e-3  # relative size from which on a row of the first layer counts: also a choice

REASONS = (
    "another loss (label smoothing, a penalty), another activation, dropout or a shorter number "
    "format would explain it"
)


@dataclass(frozen=True)
class _GradientComparison:
    index: int
    factor: float  # by least squares
    miss: float  # relative residual
    allowed: float  # the residual that rounding explains
    seen: float  # the residual that label smoothing of 1 would leave, to the first order
    # label smoothing that explains the gradient up to its rounding, with the factor and the
    # residual that remain; None if none does
    smoothing: tuple[float, float, float] | None = None

    @property
    def fits(self) -> bool:
        return self.miss <= self.allowed


@dataclass(frozen=True)
class Factors:
    """What the gradients of a run show of the model, the loss and the factor."""

    compared: tuple[_GradientComparison, ...]  # gradients of single records
    ranks: int = 1  # number of ranks that programs divide by
    # the round of every gradient of the run; all have to be compared if the factor changes
    rounds: Sequence[int] = ()
    # whether the program clips each gradient, so that every factor is explained
    clipped: bool = False
    steps: bool = False  # whether the factor is a step size, which may have any value

    @cached_property
    def factor(self) -> float:
        """The factor of all gradients: a usual one that is near, or else the median."""
        return self._usual or self._median

    @cached_property
    def _median(self) -> float:
        return float(np.median([one.factor for one in self.compared]))

    @property
    def miss(self) -> float:
        """The largest residual."""
        return max(one.miss for one in self.compared)

    @property
    def spread(self) -> float:
        """The largest relative distance of a factor from the one of all."""
        return max(abs(one.factor / self.factor - 1) for one in self.compared)

    @property
    def proved(self) -> bool:
        """Whether model and loss are proved, with one factor or with that of every round."""
        if not self.compared:
            return False
        return not self.why or self.is_loss_scale

    @property
    def is_loss_scale(self) -> bool:
        """Whether the factor changes by powers of two, and is known in every round."""
        if self.clipped or not self.fits or self._is_constant:
            return False
        return set(self.rounds) <= self.by_round.keys()

    @property
    def fits(self) -> bool:
        """Whether all gradients of single records match, each with a factor of its own."""
        return bool(self.compared) and all(one.fits for one in self.compared)

    @property
    def loss_only(self) -> bool:
        """Whether the model is right, but not the loss, or not the factor."""
        return bool(self.why) and (self.fits or self.smoothing > 0)

    @property
    def which(self) -> str:
        """Which gradients were compared, in words."""
        total = max(len(self.rounds), len(self.compared))
        number = counted(total, "gradient")
        if len(self.compared) < total:
            number = f"{len(self.compared)} of {number}"
        first = min(one.index for one in self.compared)
        last = max(one.index for one in self.compared)
        return f"{number} (rounds {first} to {last})"

    @property
    def coarse(self) -> bool:
        """Whether the numbers are too coarse to tell similar losses apart."""
        return self.allowed > FINE

    @property
    def allowed(self) -> float:
        """The residual that rounding explains, of the gradient that is rounded least."""
        return min(one.allowed for one in self.compared)

    @property
    def smoothing(self) -> float:
        """Label smoothing that explains all gradients; 0 if there is none."""
        found = [one.smoothing for one in self.compared if one.smoothing is not None]
        if not found or len(found) < len(self.compared):
            return 0.0
        first = found[0][0]
        if any(abs(share - first) > HIDDEN * first for share, _, _ in found):
            return 0.0
        return first

    @property
    def by_round(self) -> Mapping[int, float]:
        """Position -> factor, if it changes by powers of two and is the same at all ranks."""
        of_round: dict[int, list[_GradientComparison]] = defaultdict(list)
        for one in self.compared:
            of_round[one.index].append(one)
        found: dict[int, float] = {}
        start = self._start
        for index, some in sorted(of_round.items()):
            times = some[0].factor / start if start else 0.0
            if times <= 0:
                return {}
            power = 2.0 ** round(math.log2(times))
            found[index] = power * start
            if any(not _are_near(one.factor, power * start, one.allowed) for one in some):
                return {}
        return found

    @property
    def runs(self) -> Sequence[tuple[int, float]]:
        """The first round, and every later one in which the factor changes, with the factor."""
        found: list[tuple[int, float]] = []
        for index, factor in self.by_round.items():
            if not found or found[-1][1] != factor:
                found.append((index, factor))
        return found

    @property
    def why(self) -> str:
        """Why nothing is proved; empty if something is, or if nothing could be compared."""
        if not self.compared:
            return ""
        if not self.fits:
            return self._misfit
        if self.clipped:
            return ""
        if not self._is_constant:
            return self._changes
        visible = any(HIDDEN * one.seen > one.allowed for one in self.compared)
        if (visible and not self.coarse) or self._usual:
            return ""
        return (
            f"recomputed gradients match up to {self.miss:.1g}, but only with the factor "
            f"{self.factor:.4g}, which may stand for another loss (label smoothing of "
            f"{abs(1 - abs(self.factor)):.2g}, for example): these messages do not show which"
        )

    @property
    def _misfit(self) -> str:
        wrong = [one for one in self.compared if not one.fits]
        worst = max(wrong, key=lambda one: one.miss / one.allowed)
        number = f"{len(wrong)} of {counted(len(self.compared), 'gradient')} of single records"
        if self.smoothing:
            left = max(one.smoothing[2] for one in self.compared if one.smoothing is not None)
            return (
                f"the loss is cross-entropy with label smoothing of {self.smoothing:.3g}: with it, "
                f"recomputed gradients match up to {left:.1g}, without it they miss by up to "
                f"{self.miss:.2g}; no loss of leakaudit has label smoothing"
            )
        return (
            f"recomputed gradients miss {number} by up to {worst.miss:.1g}, where rounding "
            f"explains {worst.allowed:.1g}: {REASONS}"
        )

    @property
    def _changes(self) -> str:
        low = min(one.factor for one in self.compared)
        high = max(one.factor for one in self.compared)
        said = f"the messages are {low:.6g} to {high:.6g} times the recomputed gradients"
        if self.by_round:
            return f"{said}, in powers of two: a loss scale that changes, as that of GradScaler"
        return f"{said}: class weights, clipping or a step size that changes would explain it"

    @property
    def _is_constant(self) -> bool:
        if not self.factor:
            return False
        return all(_are_near(one.factor, self.factor, one.allowed) for one in self.compared)

    @cached_property
    def _start(self) -> float:
        """The factor of the first gradient; a power of two if one is near."""
        first = self.compared[0]
        power = math.copysign(2.0 ** round(math.log2(abs(first.factor) or 1.0)), first.factor)
        return power if _are_near(first.factor, power, first.allowed) else first.factor

    @cached_property
    def _usual(self) -> float:
        """A power of two, times or divided by the number of ranks or not, that is near; else 0."""
        middle = self._median
        if self.steps or not middle:
            return 0.0
        allowed = self.allowed
        for times in (1.0, float(self.ranks), 1.0 / self.ranks):
            power = times * 2.0 ** round(math.log2(abs(middle) / times))
            if _are_near(abs(middle), power, allowed):
                return math.copysign(power, middle)
        return 0.0


def _are_near(one: float, other: float, allowed: float) -> bool:
    return abs(one - other) <= 2 * allowed * abs(other)


def compare(
    task: Task,
    samples: Iterable[fit.GradientSample],
    ranks: int = 1,
    rounds: Sequence[int] = (),
    clipped: bool = False,
) -> Factors:
    """Compare the gradients of single records among some with recomputed ones."""
    found: list[tuple[float, _GradientComparison]] = []
    steps = False
    for sample in samples:
        steps = sample.base is not None
        one = _compared(task, sample)
        if one is not None:
            found.append((float(sample.value.double().norm()), one))
    largest = max((size for size, _ in found), default=0.0)
    clear = tuple(one for size, one in found if size > VANISHED * largest)
    return Factors(clear, ranks, rounds, clipped, steps)


def _compared(task: Task, sample: fit.GradientSample) -> _GradientComparison | None:
    value = sample.value.double()
    if not sample.thetas or not bool(value.isfinite().all()):
        return None
    rounding = _rounding(task, sample)
    best: _GradientComparison | None = None
    for shown, g, away in fit.recovered(task, sample):
        if not _is_single(task, value, shown[0], rounding):
            return None
        found = _at(task, sample, shown, g, away, rounding)
        if found is None:
            return None
        if best is None or found.miss < best.miss:
            best = found
        if best.miss < fit.RANK_ONE:
            return best
    return best


def _at(
    task: Task,
    sample: fit.GradientSample,
    shown: tuple[Tensor, Tensor],
    g: Tensor,
    found: FactorDeviation,
    rounding: float,
) -> _GradientComparison | None:
    slope = fit.last_bias(task, g)
    if slope is None or not bool(g.any()):
        return None
    if float(slope.norm()) < SMALL and _allowed(rounding, slope) == CEILING:
        return None
    allowed = _allowed(rounding, slope)
    outputs = slope.clone()
    outputs[shown[1]] += 1
    equal = outputs - 1 / len(outputs)
    turned = equal - (equal @ slope) / (slope @ slope) * slope
    seen = float(turned.norm() / slope.norm())
    smoothing = None
    if sample.part is None and found.miss > allowed:
        smoothing = _smoothing(
            task, sample.theta, sample.value.double(), shown[0], outputs, rounding
        )
    return _GradientComparison(sample.index, found.step, found.miss, allowed, seen, smoothing)


def _allowed(rounding: float, slope: Tensor) -> float:
    # A slope is a difference of probabilities, which are rounded like 1.
    return min(rounding * (1 + 1 / float(slope.norm().clamp_min(1e-300))), CEILING)


def _smoothing(
    task: Task, theta: Tensor, value: Tensor, x: Tensor, outputs: Tensor, rounding: float
) -> tuple[float, float, float] | None:
    """Return label smoothing that explains a gradient, its factor and miss; None if none does.

    outputs: (classes,) probabilities, whose distance from the smoothed label is the slope.
    """
    sent = fit.last_bias(task, value)
    if sent is None:
        return None
    classes = len(outputs)
    equal = torch.full_like(outputs, 1 / classes)
    best = (math.inf, 0.0, equal)
    for label in torch.eye(classes, dtype=outputs.dtype):
        columns = torch.stack([outputs - label, outputs - equal], dim=1)
        found = torch.linalg.lstsq(columns, sent[:, None], driver="gelsd").solution[:, 0]
        share = float(found[1] / found.sum())
        miss = float((sent - columns @ found).norm())
        if 0 < share < 1 and miss < best[0]:
            best = (miss, share, (1 - share) * label + share * equal)
    _, share, target = best
    g = fit.recomputed(task, x, target[None], theta)
    if g is None or not share or not bool(g.any()):
        return None
    left = deviation(value, g)
    if left.miss > _allowed(rounding, outputs - target):
        return None
    return share, left.step, left.miss


def _rounding(task: Task, sample: fit.GradientSample) -> float:
    """Return the relative error that a gradient with slopes of size 1 has from its rounding."""
    single = torch.finfo(torch.float32).eps
    format_ = fit.precision(task, sample)
    found = max(ROUNDINGS * single, PRODUCTS * format_ if format_ > single else 0.0)
    if sample.base is not None:
        size = float(sample.theta.double().norm())
        moved = float(sample.value.double().norm().clamp_min(1e-300))
        found += OF_MODELS * max(sample.rounding, single) * size / moved
    return found


def _is_single(task: Task, value: Tensor, x: Tensor, rounding: float) -> bool:
    layer = fit.first_layer(task, value)
    apart = fit.rank_one_miss(task, value, x)
    if layer is None or apart is None:
        return False
    rows = layer[1].abs()
    return int((rows > ROWS * rows.max()).sum()) >= 2 and apart[0] <= rounding * apart[1]


def spread(count: int, most: int) -> Sequence[int]:
    """Return up to `most` positions, from the first to the last of some."""
    chosen = torch.linspace(0, count - 1, min(count, max(1, most))).round().int()
    return [int(k) for k in chosen]
