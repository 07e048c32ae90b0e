"""Local work between two exchanges: gradient steps, with mini-batches, clipping or noise."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Generator, Tensor

from leakaudit.core.errors import LeakauditError
from leakaudit.protocols.batches import chosen
from leakaudit.protocols.optimiser import DeclaredMemory, Optimiser, OptimiserState
from leakaudit.tasks import clipping
from leakaudit.theory.relations import Expression, Relations, Turns, decimal

if TYPE_CHECKING:
    from leakaudit.protocols.running_statistics import RunningStatistics
    from leakaudit.protocols.simulation import Simulation
    from leakaudit.tasks.task import Task


def normal(like: Tensor, std: float, generator: Generator) -> Tensor:
    """Draw normal noise on the CPU, for a tensor on any device."""
    return torch.randn(like.shape, generator=generator, dtype=like.dtype).mul_(std).to(like.device)


@dataclass(frozen=True)
class Steps:
    """`count` steps of an optimiser per round; with SGD, w <- (1 - lr decay) w - lr_t g(w) + n.

    In round t, lr_t = lr / (1 + slow (t - 1)), and n ~ N(0, std^2 I). All records are used in a
    random order, then in another one.
    """

    lr: float  # step size
    count: int = 1  # steps per round
    batch: int = 0  # records per step; 0 uses all
    clip: float = 0.0  # Euclidean norm to which each record's gradient is clipped; 0 for none
    std: float = 0.0  # standard deviation of the noise that a step adds to the model; 0 for none
    slow: float = 0.0  # decrease of the step size from round to round
    optimiser: Optimiser = field(default_factory=Optimiser)  # the optimiser, with its weight decay
    keep: bool = True  # whether the optimiser keeps its memory from round to round
    sigma: float = 0.0  # standard deviation of the noise that is added to each gradient; 0 for none

    def name(self, vector: str, k: int) -> str:
        """Return the name of a vector of step k among the private states, as used in `declare`."""
        return vector if self.count == 1 else f"{vector}.{k}"

    def index(self, k: int) -> int | None:
        """Return the index of vectors of step k; None if it is the only step."""
        return None if self.count == 1 else k

    def turns(self, rounds: int, samples: int) -> Turns | None:
        """Return the gradients of `LocalSteps` that one record can enter, as `Victim.turns`.

        None if that is all or unknown (`samples` is 0), or if the last mini-batch of an order is
        smaller, because its mean then changes by more than the others.
        """
        if not 0 < self.batch < samples or samples % self.batch:
            return None
        parts = samples // self.batch
        last = rounds * self.count
        turns = []
        for at in range(0, last, parts):
            entered = [[step] for step in range(at, min(at + parts, last))]
            if len(entered) < parts:
                entered.append([])
            turns.append(entered)
        return turns

    def declare(
        self,
        p: Relations,
        i: int,
        base: Expression,
        at: Expression | None = None,
        memory: DeclaredMemory | None = None,
    ) -> Expression:
        """Declare the steps of a node in this round.

        Args:
            at: The model at which the first gradient is computed; None for `base`.
            memory: What the optimiser keeps from round to round; None for nothing.
        """
        lr = decimal(self.lr) / (1 + decimal(self.slow) * (p.round - 1))
        if memory is None or not self.keep:
            memory = {}
        point = base if at is None else at
        p.require_room(self.count)
        for k in range(1, self.count + 1):
            index = self.index(k)
            g = p.grad(i, at=point, index=index)
            if self.sigma:
                g = g + p.noise("e", self.sigma, i, index)
            new = self.optimiser.declare(p, memory, i, base, g, lr, index)
            if self.std:
                new = new + p.noise("n", self.std, i, index)
            if k < self.count:
                new = p.state("w", i, k, eq=new)
            base = new
            point = new
        return base


class LocalSteps:
    """The `Steps` of all nodes in one run, stacked.

    Every gradient that differs from the plain gradient over all records is offered to the recorder.
    """

    def __init__(
        self, steps: Steps, sim: Simulation, tracked: RunningStatistics | None = None
    ) -> None:
        self.steps = steps
        self.tracked = tracked
        self.problem = sim.problem
        self.recorder = sim.recorder
        self.generator = sim.generator
        self.whole = not 0 < steps.batch < sim.problem.samples
        self._order = torch.empty(0)
        self._at = sim.problem.samples
        self._memory = OptimiserState()
        self._both = [torch.empty(0), torch.empty(0)]  # alternating buffers for the results

    def __call__(
        self, t: int, base: Tensor, at: Tensor | None = None, some: Tensor | None = None
    ) -> Tensor:
        """Take the steps of a round.

        Args:
            base: The models from which the first step starts, (N, d).
            at: The models at which the first gradients are computed, (N, d); None for `base`.
            some: The nodes (n,) that take steps, each from a new order of its records; all models
                are then (n, d). Their optimisers must not keep a memory.

        Returns:
            The models after the steps, (N, d); the second call after this one overwrites them.
        """
        if some is not None:
            self._at = self.problem.samples
        steps = self.steps
        lr = steps.lr / (1 + steps.slow * (t - 1))
        if not steps.keep:
            self._memory = OptimiserState()
        point = base if at is None else at
        for k in range(1, steps.count + 1):
            x, y = self._records(some)
            g = self._gradients(point, x, y)
            if self.tracked is not None:
                self.tracked.step(t, point, x, some, steps.index(k))
            if not self.whole or steps.clip:
                self._state(steps.name("g", k), t, g, some)
            if steps.sigma:
                noise = normal(g, steps.sigma, self.generator)
                self._state(steps.name("e", k), t, noise, some)
                g = g + noise
            base = steps.optimiser.step(self._memory, lr, base, g)
            if steps.std:
                noise = normal(base, steps.std, self.generator)
                self._state(steps.name("n", k), t, noise, some)
                base.add_(noise)
            point = base
        return base

    def _state(self, name: str, t: int, value: Tensor, some: Tensor | None) -> None:
        self.recorder.state(name, t, of_all(value, some, self.problem.nodes))

    def _records(self, some: Tensor | None) -> tuple[Tensor, Tensor]:
        x, y = (self.problem.x, self.problem.y) if self.whole else self._next()
        return (x, y) if some is None else (x[some], y[some])

    def _gradients(self, w: Tensor, x: Tensor, y: Tensor) -> Tensor:
        if self.steps.clip:
            return clipping.gradients(self.problem.task, w, x, y, self.steps.clip)
        if self._both[0].shape != w.shape:
            dense = torch.contiguous_format
            self._both = [torch.empty_like(w, memory_format=dense) for _ in self._both]
        self._both.reverse()
        if self._both[0] is w:
            self._both.reverse()
        return self.problem.task.gradients(w, x, y, out=self._both[0])

    def _next(self) -> tuple[Tensor, Tensor]:
        """Return the next mini-batch of every node.

        The last one of an order is smaller if the size does not divide the number of records.
        """
        problem = self.problem
        if self._at >= problem.samples:
            drawn = torch.rand((problem.nodes, problem.samples), generator=self.generator)
            self._order = drawn.argsort(1)
            self._at = 0
        start = self._at
        self._at += self.steps.batch
        return chosen(problem, self._order[:, start : self._at])


def of_all(value: Tensor, some: Tensor | None, nodes: int) -> Tensor:
    """Return vectors of some nodes (n, d) as those of all (N, d), NaN for the others."""
    if some is None:
        return value
    every = value.new_full((nodes, value.shape[1]), math.nan)
    every[some] = value
    return every


def least(name: str, **values: float) -> None:
    """Check that constants are finite and at least 0."""
    _within(name, ">=", {k: v for k, v in values.items() if not 0 <= v < math.inf})


def above(name: str, **values: float) -> None:
    """Check that constants are finite and above 0."""
    _within(name, ">", {k: v for k, v in values.items() if not 0 < v < math.inf})


def _within(name: str, sign: str, low: Mapping[str, float]) -> None:
    if low:
        came = ", ".join(map(str, low.values()))
        raise LeakauditError(f"{name}: expected {', '.join(low)} {sign} 0 and finite, got {came}")


def stable(name: str, task: Task, bound: float = 2.0, **steps: float) -> None:
    """Check that gradient descent does not diverge on the task's l2 term for any data."""
    high = {k: v for k, v in steps.items() if v * task.l2 >= bound}
    if high:
        limit = f"{bound / task.l2:g} (= {bound:g} / l2, where the steps begin to diverge)"
        came = ", ".join(f"{v:g}" for v in high.values())
        raise LeakauditError(f"{name}: expected {', '.join(high)} < {limit}, got {came}; lower it")
