"""What was observed of a batch, by which its inputs are judged."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Generator, Tensor

from leakaudit.inversion.exact import first_layer_rows
from leakaudit.inversion.exact.pixel_errors import Estimates
from leakaudit.inversion.exact.pixel_grid import PixelGrid

if TYPE_CHECKING:
    from leakaudit.core.leak import GradientLeak
    from leakaudit.inversion.exact.first_layer_rows import Span
    from leakaudit.tasks.task import Task


@dataclass(frozen=True)
class BatchObservations:
    """The observations by which a batch is judged."""

    leak: GradientLeak  # source of the rows
    task: Task
    stack: Tensor  # (m, H, p + 1) rows of the first layer
    white: Tensor  # the same rows, whitened over all rounds
    span: Span
    grid: PixelGrid
    generator: Generator  # divides neurons into parts
    # if only some entries were observed: the whitened rows, and a mask (H, p + 1) of these entries.
    # The other rows above are then completed, and no evidence for pixels.
    observed: tuple[Tensor, Tensor] | None = None

    def estimates(self, rows: Tensor) -> Estimates:
        """Estimate the inputs (b, p + 1) again, from observed entries."""
        if self.observed is None:
            return estimates(self.leak, self.stack, self.white, rows)
        return Estimates.observed(*self.observed, rows, self.stack)

    def stored(self, x: Tensor) -> Tensor:
        """Return the inputs as the first layer received them, followed by a 1.

        The program may have stored k/levels in full or rounded it to float32. The version that lies
        closer to the space of the rows is returned.

        Args:
            x: (n, p) on the grid.

        Returns:
            (n, p + 1).
        """
        basis = self.span.basis
        versions = torch.stack([self.grid.rows(x), self.grid.rows(x.float().to(x))])
        off = (versions - versions @ basis.T @ basis).norm(dim=2)
        better = (off[0] < off[1])[:, None]
        return torch.where(better, versions[0], versions[1])


def estimates(leak: GradientLeak, stack: Tensor, white: Tensor, rows: Tensor) -> Estimates:
    """Estimate inputs (b, p + 1) again from all rows of a leak.

    Args:
        stack: (m, H, p + 1) rows of the first layer.
    """
    return Estimates.of(white, rows, stack, leak.wire, first_layer_rows.fresh(leak))
