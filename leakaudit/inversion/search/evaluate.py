"""Objectives of many problems and their slopes in one call."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from leakaudit.inversion.search.objectives import Gradients
from leakaudit.tasks.task import LOOP_ABOVE

if TYPE_CHECKING:
    from leakaudit.tasks.task import Task

# Small models are evaluated all at once, large ones one after the other: vmap is eight times faster
# for a LeNet, but no faster once a single evaluation keeps the processor busy.

Objective = Callable[[Gradients, tuple[Tensor, ...], tuple[Tensor, ...]], Tensor]

# Maximum number of bytes of one evaluation of several problems.
MEMORY = 512 << 20

# Ratio of the memory of an evaluation to what autograd saves of it, measured on LeNet and ConvNet.
TEMPORARY = 3


@dataclass(frozen=True, eq=False)
class Problems:
    """K problems of one shape, each to be minimised over its own row of a point."""

    task: Task
    # values (k,) of k problems. Its first argument maps models (n, d), x (n, ...) and y (n, ...) to
    # gradients (n, d), differentiably; the others are rows of `given` and of a point.
    objective: Objective
    given: tuple[Tensor, ...]  # tensors (K, ...), one row for each problem
    goal: Tensor  # (K,) objectives that are good enough
    shapes: tuple[torch.Size, ...] = ()  # shapes of a point's tensors, without the first dimension
    chunk: int = 1  # number of problems that are evaluated together; 1 for a loop

    def at(self, start: tuple[Tensor, ...]) -> Problems:
        """Return the problems with shapes, and a chunk that fits the memory of an evaluation."""
        known = replace(self, shapes=tuple(t.shape[1:] for t in start), chunk=1)
        if (self.task.chain is None and self.task.layout.size > LOOP_ABOVE) or len(self) == 1:
            return known
        each = TEMPORARY * known._saved(tuple(t[:1] for t in start))
        return replace(known, chunk=max(1, MEMORY // max(1, each)))

    def __len__(self) -> int:
        """Return the number of problems."""
        return len(self.given[0])

    def to(self, dtype: torch.dtype) -> Problems:
        """Return the problems with all real numbers in another format."""
        given = [t.to(dtype) if t.is_floating_point() else t for t in self.given]
        return replace(self, given=tuple(given))

    def of_these(self, index: Tensor) -> Problems:
        """Return some of the problems."""
        return replace(self, given=tuple(t[index] for t in self.given), goal=self.goal[index])

    def split(self, flat: Tensor) -> tuple[Tensor, ...]:
        """Split points (..., n) into their tensors."""
        parts = flat.split([s.numel() for s in self.shapes], dim=-1)
        pairs = zip(parts, self.shapes, strict=True)
        return tuple(part.reshape(*flat.shape[:-1], *shape) for part, shape in pairs)

    def __call__(self, flat: Tensor) -> tuple[Tensor, Tensor]:
        """Return objectives (K,) and slopes (K, n) at points (K, n)."""
        values: list[Tensor] = []
        slopes: list[Tensor] = []
        for k in range(0, len(flat), self.chunk):
            value, slope = self._some(slice(k, k + self.chunk), flat[k : k + self.chunk])
            values.append(value)
            slopes.append(slope)
        return torch.cat(values), torch.cat(slopes)

    def _some(self, rows: slice, x: Tensor) -> tuple[Tensor, Tensor]:
        """Evaluate some rows together; each value depends on its own row only."""
        x = x.detach().requires_grad_()
        values = self.objective(self.task.again, tuple(t[rows] for t in self.given), self.split(x))
        return values.detach(), torch.autograd.grad(values.sum(), x)[0]

    def _saved(self, point: tuple[Tensor, ...]) -> int:
        """Return the number of bytes that autograd keeps of one evaluation of the first problem."""
        kept: dict[int, int] = {}

        def pack(t: Tensor) -> Tensor:
            kept[t.untyped_storage().data_ptr()] = t.untyped_storage().nbytes()
            return t

        def unpack(t: Tensor) -> Tensor:
            return t

        given = tuple(t[:1] for t in self.given)
        leaves = tuple(t.detach().clone().requires_grad_() for t in point)
        with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
            self.objective(self.task.again, given, leaves)
        return sum(kept.values())
