"""Several local steps between two messages: how many of which size explain what a client sent.

Plain SGD on one record moves the first fully connected layer by sum_k delta_k x^T, which has rank
one as a single gradient has: the record is known whatever the number of steps is. The steps
recomputed at this record must then end where the client did.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from leakaudit.capture.tap.fitting import fit
from leakaudit.errors import LeakauditError
from leakaudit.tasks.task import Task

MOST = 10  # steps to try: a choice that bounds the time
TURNS = 8  # corrections of the step size by the secant method; six reach the rounding
# Measured on examples/flower/faces.py (float32): the correct training misses by less than the
# rounding below, another number of steps by 1e-2, and two records that look like one by 5e-3.
ROUNDINGS = 8  # of the models, that an answer may miss by
FLOOR = 1e-5  # relative miss that is allowed whatever the rounding is: a choice
CEILING = 0.01  # and one that is not
CLEARER = 5  # times that another number of steps must miss by
SAME = 0.01  # relative distance of a client's step size from that of another


@dataclass(frozen=True)
class LocalFit:
    """Local training that explains the samples.

    Attributes:
        task: the model.
        steps: number of steps on one record.
        lr: their size.
        miss: the largest relative distance of a recomputed answer.
    """

    task: Task
    steps: int
    lr: float
    miss: float


def tolerance(sample: fit.GradientSample, point: str) -> float:
    """Return the relative miss that the rounding of the models explains.

    Args:
        sample: what a client subtracted from the server's model.
        point: name of the theta from which it started.
    """
    # Models travel in float32; what travels in float64 is more accurate still.
    rounding = torch.finfo(torch.float32).eps * sample.thetas[point].norm()
    relative = float(ROUNDINGS * rounding / sample.value.norm().clamp_min(1e-300))
    return min(max(FLOOR, relative), CEILING)


def several(
    tasks: Iterable[Task], samples: Sequence[fit.GradientSample], point: str
) -> LocalFit | None:
    """Return the number and size of steps that explain all samples; None if none does clearly.

    Args:
        tasks: models to try.
        samples: what clients subtracted from the server's model.
        point: name of the theta from which they started.
    """
    if not samples:
        return None
    longest = max(samples, key=lambda sample: float(sample.value.norm()))
    allowed = tolerance(longest, point)
    tried: list[LocalFit] = []
    for task in tasks:
        for steps in range(1, MOST + 1):
            found = fitted(task, longest, point, steps)
            if found is None:
                break
            tried.append(found)
            if any(one.miss < allowed and one.steps < steps for one in tried):
                break  # one more was tried, too
    tried.sort(key=lambda one: one.miss)
    if len(tried) < 2 or tried[0].miss > allowed or tried[1].miss < CLEARER * allowed:
        return None
    best = tried[0]
    worst = best.miss
    for sample in samples:
        run = _Training.of(best.task, sample, point)
        if run is None:
            return None
        miss = run.miss(best.lr, best.steps)
        if miss > tolerance(sample, point):
            return None
        worst = max(worst, miss)
    return LocalFit(best.task, best.steps, best.lr, worst)


def is_step(found: fit.ModelFit, samples: Sequence[fit.GradientSample]) -> bool:
    """Return whether all samples are gradients of one record, up to one factor.

    Args:
        found: the model and factor that explain half of the samples.
        samples: what clients sent.
    """
    for sample in samples:
        one = fit.explained(found.task, sample.value, sample.thetas[found.point])
        if one is None or one[1] > tolerance(sample, found.point):
            return False
        if abs(one[0] - found.step) > SAME * abs(found.step):
            return False
    return True


def fitted(task: Task, sample: fit.GradientSample, point: str, steps: int) -> LocalFit | None:
    """Return the best step size for a number of steps; None if the model does not allow it.

    Args:
        task: the model.
        sample: what a client subtracted from the server's model.
        point: name of the theta from which it started.
        steps: number of steps on one record.
    """
    run = _Training.of(task, sample, point)
    if run is None:
        return None
    square = float(run.value @ run.value)
    first = run.moved(1.0, 1)
    lr = math.sqrt(square / float((first @ first).clamp_min(1e-300))) / steps
    before = 0.0
    excess_before = -1.0
    for _ in range(TURNS):
        excess = float(run.value @ run.moved(lr, steps)) / square - 1
        if excess == excess_before or not math.isfinite(excess):
            break
        slope = (excess - excess_before) / (lr - before)
        before = lr
        excess_before = excess
        lr = lr - excess / slope
        if lr == before:
            break
    miss = run.miss(lr, steps)
    if not (math.isfinite(miss) and lr > 0):
        return None
    return LocalFit(task, steps, lr, miss)


@dataclass(frozen=True)
class _Training:
    """Training on the record that an answer reveals.

    Attributes:
        task: the model.
        value: (d,) what the client subtracted from the server's model.
        theta: (d,) the server's model.
        x: (1, *shape) the record.
        y: (1,) its label.
    """

    task: Task
    value: Tensor
    theta: Tensor
    x: Tensor
    y: Tensor

    @classmethod
    def of(cls, task: Task, sample: fit.GradientSample, point: str) -> _Training | None:
        """Return the training behind a sample; None if the model does not reveal the record."""
        value = sample.value.double()
        x = fit.record(task, value)
        if x is None or task.spec.loss != "cross_entropy":
            return None
        if task.last_linear is None or task.last_linear[1] is None:
            return None
        y = value[task.layout.slices[task.last_linear[1]]].argmin().reshape(1)
        try:
            task.gradient(sample.thetas[point].double(), x, y)
        except (RuntimeError, LeakauditError):
            return None
        return cls(task, value, sample.thetas[point].double(), x, y)

    def moved(self, lr: float, steps: int) -> Tensor:
        """Return what some steps of SGD subtract."""
        w = self.theta
        for _ in range(steps):
            w = w - lr * self.task.gradient(w, self.x, self.y)
        return self.theta - w

    def miss(self, lr: float, steps: int) -> float:
        """Return how far these steps end from the client's answer, relative to its move."""
        apart = self.value - self.moved(lr, steps)
        return float(apart.norm() / self.value.norm().clamp_min(1e-300))
