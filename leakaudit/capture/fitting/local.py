"""Several local steps between two messages: how many of which kind explain what a client sent."""

# SGD on one record moves the first fully connected layer by sum_k c_k delta_k x^T, which has rank
# one as a single gradient has, with momentum as well; weight decay adds a multiple of the server's
# model. So the record is known whatever the number of steps is. The steps recomputed at this record
# must then end where the client did.

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
import torch
from scipy.optimize import least_squares
from torch import Tensor

from leakaudit.capture.fitting import fit
from leakaudit.capture.fitting.fit import PLAIN, ModelFit
from leakaudit.capture.fitting.rank_one import undecayed
from leakaudit.capture.fitting.stepping import DIGITS, OUTSIDE, WORSE, OptimiserFamily
from leakaudit.protocols.optimiser import Optimiser, OptimiserState
from leakaudit.tasks.task import Task

MOST = 10  # steps to try: a choice that bounds the time
TURNS = 8  # corrections of the step size by the secant method; six reach the rounding
COORDINATES = 1024  # that momentum and decay are fitted to: also a choice
EVALUATIONS = 20  # for each fit; ten suffice from a start that is near
NEAR = 0.3  # miss at which a fit is not continued: Adam's steps miss by .8
# Values from which the constants are fitted: those of most programs.
STARTS = {"momentum": 0.9, "decay": 1e-3}
SCALINGS = 3  # of the step size before a fit: also a choice
UNLIKE = 3.0  # times that a model must miss by to be dropped: also a choice
# Measured on examples/flower/faces.py (float32): the correct training misses by less than the
# rounding below, another number of steps by 1e-2, and two records that look like one by 5e-3.
ROUNDINGS = 8  # of the models, that an answer may miss by
FLOOR = 1e-5  # relative miss that is allowed whatever the rounding is: a choice
# And one that is not: a step size that is 2 % too large hides label smoothing of .02 up to 1e-3.
CEILING = 1e-4
CLEARER = 5  # times that another number of steps must miss by
SAME = 0.01  # relative distance of a client's step size from that of another

# A gradient near Adam's epsilon, 1e-8, moves less, and there are some in most networks.
SOME = 0.2  # share of coordinates that may move less than the others do: a choice
TINY = 0.05  # relative size of a move that is rounding or AdamW's weight decay: also a choice


def tolerance(sample: fit.GradientSample) -> float:
    """Return the relative miss that the rounding of the models explains."""
    return min(max(FLOOR, _rounding(sample)), CEILING)


def _rounding(sample: fit.GradientSample) -> float:
    # Models travel in float32; what travels in float64 is more accurate still.
    rounding = torch.finfo(torch.float32).eps * sample.theta.norm()
    return float(ROUNDINGS * rounding / sample.value.norm().clamp_min(1e-300))


def is_step(found: fit.ModelFit, samples: Sequence[fit.GradientSample]) -> bool:
    """Return whether all samples are gradients of one record, up to one factor."""
    for sample in samples:
        one = fit.explained(found.task, sample)
        if one is None or one.miss > tolerance(sample):
            return False
        if abs(one.step - found.step) > SAME * abs(found.step):
            return False
    return True


def several(tasks: Iterable[Task], samples: Sequence[fit.GradientSample]) -> ModelFit | None:
    """Return the steps that explain all samples; None if none do clearly."""
    # Plain steps are tried first, then weight decay or momentum, then both. What is found for the
    # longest sample must predict the others.
    if not samples:
        return None
    longest = max(samples, key=lambda sample: float(sample.value.norm()))
    allowed = tolerance(longest)
    models = list(tasks)
    for families in FAMILIES:
        tried: list[ModelFit] = []
        for family in families:
            tried.extend(_fits(models, longest, family, allowed))
        best = _clearest(tried, allowed)
        if best is not None:
            return of_all(best, samples)
        models = _possible(models, tried)
    return None


def _possible(tasks: Sequence[Task], tried: Sequence[ModelFit]) -> list[Task]:
    """Return the models that come near the sample: a wrong activation misses by far more."""
    least = min((one.miss for one in tried), default=math.inf)
    limit = min(UNLIKE * least, NEAR)
    near = {id(one.task) for one in tried if one.miss <= limit}
    return [task for task in tasks if id(task) in near]


def sign_step(samples: Sequence[fit.GradientSample]) -> float | None:
    """Return the distance by which every coordinate that moves has moved; None if they differ."""
    # The first step of Adam, RMSprop or Adagrad leaves only the sign of each coordinate of the
    # gradient. Adam's next steps hardly differ if the gradient does not.
    sizes: list[float] = []
    for sample in samples:
        moved = sample.value.double().abs()
        moved = moved[moved > TINY * moved.max()]
        size = float(moved.median())
        # Coordinates whose gradient is not much larger than Adam's epsilon move less.
        low, high = np.quantile(moved.numpy(), (SOME, 1.0))
        if low < (1 - SAME) * size or high > (1 + SAME) * size:
            return None
        sizes.append(size)
    if not sizes or max(sizes) > (1 + SAME) * min(sizes):
        return None
    return sizes[0]


def _clearest(tried: Iterable[ModelFit], allowed: float) -> ModelFit | None:
    """Return the only fit that explains the sample; None without one, or without another."""
    ordered = sorted(tried, key=lambda one: one.miss)
    if len(ordered) < 2 or ordered[0].miss > allowed or ordered[1].miss < CLEARER * allowed:
        return None
    return ordered[0]


def of_all(found: ModelFit, samples: Iterable[fit.GradientSample]) -> ModelFit | None:
    """Return the fit with its largest miss; None if it does not explain every sample."""
    # Answers that moved by hardly more than their rounding show nothing.
    worst = found.miss
    for sample in samples:
        if _rounding(sample) > CEILING:
            continue
        run = _Training.of(found.task, sample, bool(found.optimiser.decay))
        if run is None:
            return None
        miss = run.miss(found.optimiser, found.step, found.steps)
        if miss > tolerance(sample):
            return None
        worst = max(worst, miss)
    return replace(found, spread=worst, miss=worst)


# By the number of constants. Two that explain an answer equally well are not told apart: two steps
# with Nesterov momentum are, with other constants, two steps with momentum.
FAMILIES = (
    (OptimiserFamily(),),
    (
        OptimiserFamily(("decay",)),
        OptimiserFamily(("momentum",)),
        OptimiserFamily(("momentum",), nesterov=True),
    ),
    (
        OptimiserFamily(("momentum", "decay")),
        OptimiserFamily(("momentum", "decay"), nesterov=True),
    ),
)


def _fits(
    tasks: Iterable[Task],
    sample: fit.GradientSample,
    family: OptimiserFamily,
    allowed: float,
) -> Iterator[ModelFit]:
    """Yield fits for every model and number of steps, up to one more than explains the sample."""
    # Momentum does not change a single step.
    least = 2 if "momentum" in family.names else 1
    explained = math.inf  # least number of steps that do
    for task, steps in product(tasks, range(least, MOST + 1)):
        if steps > explained + 1:
            continue
        run = _Training.of(task, sample, "decay" in family.names)
        found = None if run is None else run.best(steps, family)
        if found is None:
            continue
        yield found
        if found.miss < allowed:
            explained = min(explained, steps)


@dataclass(frozen=True)
class _Training:
    task: Task
    point: str  # name of the server's model
    value: Tensor  # (d,) what the client subtracted from it
    theta: Tensor  # (d,) the server's model
    x: Tensor  # (1, *shape) the record
    y: Tensor  # (1,) its label

    @classmethod
    def of(cls, task: Task, sample: fit.GradientSample, decayed: bool) -> _Training | None:
        value = sample.value.double()
        theta = sample.theta.double()
        shown = undecayed(task, value, theta) if decayed else value
        found = fit.labelled(task, shown)
        if found is None or fit.recomputed(task, *found, theta) is None:
            return None
        apart = fit.rank_one_miss(task, shown, found[0])
        if apart is None or not apart[0] < fit.RANK_ONE * apart[1]:
            return None
        return cls(task, sample.point, value, theta, *found)

    def moved(self, optimiser: Optimiser, lr: float, steps: int) -> Tensor:
        memory = OptimiserState()
        w = self.theta
        for _ in range(steps):
            w = optimiser.step(memory, lr, w, self.task.gradient(w, self.x, self.y))
        return self.theta - w

    def miss(self, optimiser: Optimiser, lr: float, steps: int) -> float:
        apart = self.value - self.moved(optimiser, lr, steps)
        return float(apart.norm() / self.value.norm().clamp_min(1e-300))

    def best(self, steps: int, family: OptimiserFamily) -> ModelFit | None:
        return self.fitted(steps, family) if family.names else self.plain(steps)

    def plain(self, steps: int) -> ModelFit | None:
        """Return the best step size of plain SGD, by the secant method; None if there is none."""
        square = float(self.value @ self.value)
        lr = self._first_rate(steps)
        before = 0.0
        excess_before = -1.0
        for _ in range(TURNS):
            excess = float(self.value @ self.moved(PLAIN, lr, steps)) / square - 1
            if excess == excess_before or not math.isfinite(excess):
                break
            slope = (excess - excess_before) / (lr - before)
            before = lr
            excess_before = excess
            lr = lr - excess / slope
            if lr == before:
                break
        return self._fit(PLAIN, lr, steps)

    def fitted(self, steps: int, family: OptimiserFamily) -> ModelFit | None:
        """Return the best constants of a family, by least squares; None if none come near."""
        some = self.value.abs().topk(min(COORDINATES, len(self.value))).indices
        wanted = self.value[some]

        def residual(values: np.ndarray) -> np.ndarray:
            optimiser = family.at(values[1:].tolist())
            if optimiser is None:
                return np.full(len(some), OUTSIDE)
            apart = wanted - self.moved(optimiser, float(values[0]), steps)[some]
            relative: np.ndarray = (apart / wanted.norm()).nan_to_num(OUTSIDE).numpy()
            return relative

        start = self._start(family, steps)
        if start is None or np.linalg.norm(residual(start)) > NEAR:
            return None
        found = least_squares(residual, start, x_scale=start, max_nfev=EVALUATIONS, xtol=1e-12)
        return self._simplest(family, found.x.tolist(), steps)

    def _simplest(
        self, family: OptimiserFamily, values: Sequence[float], steps: int
    ) -> ModelFit | None:
        best = self._at(family, values, steps)
        if best is None:
            return None
        for digits in range(1, DIGITS):
            fewer = self._at(family, [float(f"{value:.{digits}g}") for value in values], steps)
            if fewer is not None and fewer.miss < max(WORSE * best.miss, FLOOR / 2):
                return fewer
        return best

    def _start(self, family: OptimiserFamily, steps: int) -> np.ndarray | None:
        """Return usual constants, with a step size at which the steps have the right length."""
        constants = [STARTS[name] for name in family.names]
        optimiser = family.at(constants)
        if optimiser is None:
            return None
        lr = self._first_rate(steps)
        for _ in range(SCALINGS):
            lr *= float(self.value.norm() / self.moved(optimiser, lr, steps).norm())
        return np.array([lr, *constants])

    def _at(self, family: OptimiserFamily, values: Sequence[float], steps: int) -> ModelFit | None:
        optimiser = family.at(values[1:])
        return None if optimiser is None else self._fit(optimiser, values[0], steps)

    def _first_rate(self, steps: int) -> float:
        """Return the step size of plain SGD if all gradients were equal to the first one."""
        first = self.task.gradient(self.theta, self.x, self.y)
        return float(self.value.norm() / first.norm().clamp_min(1e-300)) / steps

    def _fit(self, optimiser: Optimiser, lr: float, steps: int) -> ModelFit | None:
        miss = self.miss(optimiser, lr, steps)
        if not (math.isfinite(miss) and lr > 0):
            return None
        return ModelFit(self.task, self.point, lr, miss, miss, steps, optimiser)
