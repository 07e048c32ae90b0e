"""What images look like before anything is known of them: smoothness, the box of pixel values, where a search starts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import torch
from torch import Generator, Tensor

if TYPE_CHECKING:
    from leakaudit.task import Task

Start = Literal["uniform", "normal"]


def total_variation(x: Tensor, rounding: float = 0.0) -> Tensor:
    """Mean absolute difference of horizontal plus of vertical neighbours; x: (b, c, h, w), 0 for other shapes.

    rounding: e in sqrt(d^2 + e^2), which makes the absolute value smooth for L-BFGS. Anisotropic, as in Geiping et al. 2020.
    """
    if x.dim() != 4:
        return x.new_zeros(())
    sides = [d for d in (x.diff(dim=-1), x.diff(dim=-2)) if d.numel()]
    parts = [(d.square() + rounding**2).sqrt().mean() if rounding else d.abs().mean() for d in sides]
    return torch.stack(parts).sum() if parts else x.new_zeros(())


def boxed(task: Task, x: Tensor) -> Tensor:
    """Clamp images to [0, 1], the range of pixels in the data's units; other inputs stay as they are."""
    return x.clamp(0, 1) if task.spec.is_image else x


def start(task: Task, batch: int, generator: Generator, kind: Start, dtype: torch.dtype) -> Tensor:
    """Draw the inputs (batch, *shape) that a search starts from, in the data's units.

    kind: ``uniform`` in [0, 1], or ``normal`` with mean 0 and deviation 1, as Zhu et al. 2019 do.
    """
    draw = torch.rand if kind == "uniform" else torch.randn
    return draw(batch, *task.spec.shape, generator=generator, dtype=dtype, device=generator.device).to(task.device)
