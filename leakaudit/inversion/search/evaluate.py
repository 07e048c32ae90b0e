"""Objectives of many problems and their slopes in one call: all at once where the model is small, one after the other where it is large."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from leakaudit.inversion.search.objectives import Gradients
from leakaudit.tasks.task import LOOP_ABOVE

if TYPE_CHECKING:
    from leakaudit.tasks.task import Task

Objective = Callable[[Gradients, tuple[Tensor, ...], tuple[Tensor, ...]], Tensor]
MEMORY = 512 << 20  # bytes that one evaluation of several problems may take
TEMPORARY = (
    3  # bytes of an evaluation over those that autograd saves of it, measured on LeNet and ConvNet
)


@dataclass(frozen=True, eq=False)
class Problems:
    """K problems of one shape: minimise each entry of ``objective(gradients, given, point)`` (k,) over its own row of the point.

    gradients: (thetas (n, d), x (n, ...), y (n, ...)) -> (n, d), differentiable. given: tensors (K, ...), one row a problem. goal: (K,)
    objectives that are good enough. shapes: of a point's tensors. chunk: problems that are evaluated together, 1 for a loop.
    """

    task: Task
    objective: Objective
    given: tuple[Tensor, ...]
    goal: Tensor
    shapes: tuple[torch.Size, ...] = ()
    chunk: int = 1

    def at(self, start: tuple[Tensor, ...]) -> Problems:
        """Return the same with shapes, and with the chunk by what one evaluation takes; start: a point of each, tensors (K, ...)."""
        known = replace(self, shapes=tuple(t.shape[1:] for t in start), chunk=1)
        if (self.task.chain is None and self.task.layout.size > LOOP_ABOVE) or len(self) == 1:
            return known
        return replace(
            known,
            chunk=max(1, MEMORY // max(1, TEMPORARY * known._saved(tuple(t[:1] for t in start)))),
        )

    def __len__(self) -> int:
        """Number of problems."""
        return len(self.given[0])

    def to(self, dtype: torch.dtype) -> Problems:
        """Return the same with all real numbers in another format."""
        return replace(
            self, given=tuple(t.to(dtype) if t.is_floating_point() else t for t in self.given)
        )

    def of_these(self, index: Tensor) -> Problems:
        """Return some of them."""
        return replace(self, given=tuple(t[index] for t in self.given), goal=self.goal[index])

    def split(self, flat: Tensor) -> tuple[Tensor, ...]:
        """Points (..., n) as their tensors."""
        parts = flat.split([s.numel() for s in self.shapes], dim=-1)
        return tuple(
            p.reshape(*flat.shape[:-1], *s) for p, s in zip(parts, self.shapes, strict=True)
        )

    def __call__(self, flat: Tensor) -> tuple[Tensor, Tensor]:
        """Objectives (K,) and slopes (K, n) at points (K, n)."""
        starts = range(0, len(flat), self.chunk)
        found = [self._some(slice(k, k + self.chunk), flat[k : k + self.chunk]) for k in starts]
        return torch.cat([f for f, _ in found]), torch.cat([g for _, g in found])

    def _some(self, rows: slice, x: Tensor) -> tuple[Tensor, Tensor]:
        x = x.detach().requires_grad_()
        values = self.objective(self.task.again, tuple(t[rows] for t in self.given), self.split(x))
        return values.detach(), torch.autograd.grad(values.sum(), x)[0]

    def _saved(self, point: tuple[Tensor, ...]) -> int:
        """Bytes that autograd keeps of one evaluation of the first problem."""
        kept: dict[int, int] = {}

        def pack(t: Tensor) -> Tensor:
            kept[t.untyped_storage().data_ptr()] = t.untyped_storage().nbytes()
            return t

        unpack: Callable[[Any], Any] = lambda t: t  # noqa: E731
        with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
            self.objective(
                self.task.again,
                tuple(t[:1] for t in self.given),
                tuple(t.detach().clone().requires_grad_() for t in point),
            )
        return sum(kept.values())
