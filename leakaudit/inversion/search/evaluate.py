"""Objectives of many problems and their slopes in one call."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from leakaudit.inversion.search.optimise import Point

# Maximum number of bytes of one evaluation of several problems.
MEMORY = 512 << 20

# Ratio of the memory of an evaluation to what autograd saves of it, measured on LeNet and ConvNet.
TEMPORARY = 3


@dataclass(frozen=True, eq=False)
class Problems:
    """K problems of one shape, each to be minimised over its own row of a point."""

    # values (k,) of k problems, given their rows of `given` and of a point
    objective: Callable[[Point, Point], Tensor]
    given: Point  # tensors (K, ...), one row for each problem
    goal: Tensor  # (K,) objectives that are good enough
    # whether several are evaluated together; large ones keep the processor busy one by one
    vectorised: bool = False
    shapes: tuple[torch.Size, ...] = ()  # shapes of a point's tensors, without the first dimension
    chunk: int = 1  # number of problems that are evaluated together; 1 for a loop

    @classmethod
    def single(cls, objective: Callable[..., Tensor], start: Point, goal: float = 0.0) -> Problems:
        """Return one problem: to minimise a scalar of the tensors of a point."""

        def value(_: Point, point: Point) -> Tensor:
            return objective(*(t[0] for t in point))[None]

        goals = torch.tensor([goal], dtype=torch.float64, device=start[0].device)
        return cls(value, (), goals).at(tuple(t[None] for t in start))

    def at(self, start: Point) -> Problems:
        """Return the problems with shapes, and a chunk that fits the memory of an evaluation."""
        known = replace(self, shapes=tuple(t.shape[1:] for t in start), chunk=1)
        if not self.vectorised or len(self) == 1:
            return known
        each = TEMPORARY * known._saved(tuple(t[:1] for t in start))
        return replace(known, chunk=max(1, MEMORY // max(1, each)))

    def __len__(self) -> int:
        """Return the number of problems."""
        return len(self.goal)

    def to(self, dtype: torch.dtype) -> Problems:
        """Return the problems with all real numbers in another format."""
        given = [t.to(dtype) if t.is_floating_point() else t for t in self.given]
        return replace(self, given=tuple(given))

    def of_these(self, index: Tensor) -> Problems:
        """Return some of the problems."""
        return replace(self, given=tuple(t[index] for t in self.given), goal=self.goal[index])

    def split(self, flat: Tensor) -> Point:
        """Split points (..., n) into their tensors."""
        parts = flat.split([s.numel() for s in self.shapes], dim=-1)
        pairs = zip(parts, self.shapes, strict=True)
        return tuple(part.reshape(*flat.shape[:-1], *shape) for part, shape in pairs)

    def __call__(self, flat: Tensor) -> tuple[Tensor, Tensor]:
        """Return objectives (K,) and slopes (K, n) at points (K, n)."""
        values: list[Tensor] = []
        slopes: list[Tensor] = []
        for k in range(0, len(flat), self.chunk):
            rows = slice(k, k + self.chunk)
            x = flat[rows].detach().requires_grad_()
            found = self.objective(tuple(t[rows] for t in self.given), self.split(x))
            values.append(found.detach())
            slopes.append(torch.autograd.grad(found.sum(), x)[0])
        return torch.cat(values), torch.cat(slopes)

    def _saved(self, point: Point) -> int:
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
            self.objective(given, leaves)
        return sum(kept.values())
