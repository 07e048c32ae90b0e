"""What a node does alone between two exchanges: gradient steps on all its records or on mini-batches, clipped or noised."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Generator, Tensor

from leakaudit.errors import LeakauditError
from leakaudit.relations import Expression, Relations, Turns, decimal

if TYPE_CHECKING:
    from leakaudit.tasks.task import Problem, Task
    from leakaudit.traces.recorder import Recorder

CLIPPED = 1 << 24  # numbers of the records' own gradients that are held at once


def normal(like: Tensor, std: float, generator: Generator) -> Tensor:
    """Draw noise (N, d) of the generator, which lives on the CPU, for a tensor anywhere."""
    return torch.randn(like.shape, generator=generator, dtype=like.dtype).mul_(std).to(like.device)


@dataclass(frozen=True)
class Steps:
    """w <- (1 - lr decay) w - lr_t g(w) + n, `count` times a round, n ~ N(0, std^2 I).

    lr_t = lr / (1 + slow (t - 1)) in round t. batch: records of a step, 0 for all; a record comes again when all have come, in the
    same order where that is within a round.
    clip: Euclidean norm to which each record's gradient is cut, 0 for none.
    """

    lr: float
    count: int = 1
    batch: int = 0
    clip: float = 0.0
    std: float = 0.0
    decay: float = 0.0
    slow: float = 0.0

    def name(self, vector: str, k: int) -> str:
        """Return the name of a vector of step k among the private states, as `declare` calls it."""
        return vector if self.count == 1 else f"{vector}.{k}"

    def turns(self, rounds: int, samples: int) -> Turns | None:
        """Return which of the gradients of `LocalSteps` a record of a node can enter (`Victim.turns`).

        None if every step takes all records, if their number is not known, or if the last mini-batch of an order is smaller: its
        mean moves by more than that of the others.
        """
        if not 0 < self.batch < samples or samples % self.batch:
            return None
        parts = samples // self.batch
        turns: list[list[list[int]]] = []
        at = parts
        for step in range(rounds * self.count):
            if step % self.count == 0 and at >= parts:  # orders are drawn between rounds only
                turns.append([[] for _ in range(parts)])
                at = 0
            turns[-1][at % parts].append(step)
            at = at % parts + 1
        return turns

    def declare(
        self, p: Relations, i: int, base: Expression, at: Expression | None = None
    ) -> Expression:
        """Return where node i stands after its steps; the first leads from `base` along the gradient at `at`, by default the same."""
        lr = decimal(self.lr) / (1 + decimal(self.slow) * (p.round - 1))
        keep = 1 - decimal(self.lr) * decimal(self.decay)
        for k in range(1, self.count + 1):
            index = None if self.count == 1 else k
            new = keep * base - lr * p.grad(i, at=base if at is None else at, index=index)
            new = new + p.noise("n", self.std, i, index) if self.std else new
            base, at = p.state("w", i, k, eq=new) if k < self.count else new, None
        return base


class LocalSteps:
    """All nodes' `Steps` of one run, stacked; every gradient that is not of all records as they are is offered to the recorder."""

    def __init__(
        self, steps: Steps, problem: Problem, recorder: Recorder, generator: Generator
    ) -> None:
        self.steps, self.problem, self.recorder, self.generator = (
            steps,
            problem,
            recorder,
            generator,
        )
        self.whole = not 0 < steps.batch < problem.samples
        self._order, self._at = torch.empty(0), problem.samples
        self._both = [torch.empty(0), torch.empty(0)]  # results of the last two steps take turns

    def __call__(self, t: int, base: Tensor, at: Tensor | None = None) -> Tensor:
        """Return the models (N, d) after round t's steps; the first leads from `base` along the gradient at `at`.

        The result is overwritten by the second step after it.
        """
        steps = self.steps
        lr, keep = steps.lr / (1 + steps.slow * (t - 1)), 1 - steps.lr * steps.decay
        if not self.whole and self._at >= self.problem.samples:
            shape = self.problem.nodes, self.problem.samples
            self._order, self._at = (
                torch.rand(shape, generator=self.generator).argsort(1).to(base.device),
                0,
            )
        for k in range(1, steps.count + 1):
            g = self._gradients(base if at is None else at)
            if not self.whole or steps.clip:
                self.recorder.state(steps.name("g", k), t, g)
            base, at = torch.add(keep * base if steps.decay else base, g, alpha=-lr, out=g), None
            if steps.std:
                noise = normal(base, steps.std, self.generator)
                self.recorder.state(steps.name("n", k), t, noise)
                base.add_(noise)
        return base

    def _gradients(self, w: Tensor) -> Tensor:
        x, y = (self.problem.x, self.problem.y) if self.whole else self._next()
        if self.steps.clip:
            return clipped(self.problem, w, x, y, self.steps.clip)
        if self._both[0].shape != w.shape:
            self._both = [
                torch.empty_like(w, memory_format=torch.contiguous_format) for _ in self._both
            ]
        self._both.reverse()
        if self._both[0] is w:
            self._both.reverse()
        return self.problem.task.gradients(w, x, y, out=self._both[0])

    def _next(self) -> tuple[Tensor, Tensor]:
        """Return the next mini-batch of every node; the last of an order is smaller where the size does not divide."""
        problem, start = self.problem, 0 if self._at >= self.problem.samples else self._at
        self._at = start + self.steps.batch
        rows = self._order[:, start : self._at]
        nodes = torch.arange(problem.nodes, device=rows.device)[:, None]
        return problem.x[nodes, rows], problem.y[nodes, rows]


def clipped(problem: Problem, w: Tensor, x: Tensor, y: Tensor, bound: float) -> Tensor:
    """Mean over a node's records of their gradients, each cut to norm `bound` (Abadi et al. 2016, Algorithm 1); w (N, d) -> (N, d)."""
    together, total = max(1, CLIPPED // w.numel()), torch.zeros_like(w)
    for at in range(0, x.shape[1], together):
        xs, ys = x[:, at : at + together], y[:, at : at + together]
        size = xs.shape[1]
        g = problem.task.gradients(
            w.repeat_interleave(size, 0), xs.flatten(0, 1)[:, None], ys.flatten(0, 1)[:, None]
        )
        g = g * (bound / g.norm(dim=1, keepdim=True).clamp(min=bound))
        total += g.reshape(len(w), size, -1).sum(1)
    return total / x.shape[1]


def least(name: str, **values: float) -> None:
    """Raise LeakauditError where a value lies below 0 or is infinite; `name` is the victim's."""
    if low := {k: v for k, v in values.items() if not 0 <= v < math.inf}:
        raise LeakauditError(
            f"{name}: expected {', '.join(low)} >= 0 and finite, got {', '.join(map(str, low.values()))}"
        )


def above(name: str, **values: float) -> None:
    """Raise LeakauditError where a value does not lie above 0 or is infinite; `name` is the victim's."""
    if low := {k: v for k, v in values.items() if not 0 < v < math.inf}:
        raise LeakauditError(
            f"{name}: expected {', '.join(low)} > 0 and finite, got {', '.join(map(str, low.values()))}"
        )


def stable(name: str, task: Task, bound: float = 2.0, **steps: float) -> None:
    """Raise LeakauditError where a step times the task's l2 reaches `bound`: gradient descent on the l2 term alone then diverges."""
    if high := {k: v for k, v in steps.items() if v * task.l2 >= bound}:
        limit = f"{bound / task.l2:g} ({bound:g} / l2)"
        raise LeakauditError(
            f"{name}: expected {', '.join(high)} < {limit}, beyond which the steps diverge, got {_listed(high)}; lower it"
        )


def _listed(values: Mapping[str, float]) -> str:
    return ", ".join(f"{v:g}" for v in values.values())


def common(recorder: Recorder, problem: Problem) -> Tensor:
    """Return the common start w0 of all nodes, (N, d)."""
    return recorder.public["w0"].to(problem.x.device).repeat(problem.nodes, 1)


def everybody(p: Relations, nodes: int) -> Mapping[int, Expression]:
    """Declare the common start of all nodes."""
    return dict.fromkeys(range(nodes), p.public("w0"))
