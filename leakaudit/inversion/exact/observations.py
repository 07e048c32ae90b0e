"""What was observed of a batch, by which its inputs are judged."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Generator, Tensor

from leakaudit.inversion.exact import first_layer_rows
from leakaudit.inversion.exact.pixel_errors import Estimates
from leakaudit.inversion.exact.pixel_grid import PixelGrid

if TYPE_CHECKING:
    from leakaudit.core.leak import GradientLeak
    from leakaudit.inversion.exact.first_layer_rows import Span
    from leakaudit.tasks.task import Task


# Minimum number of rounds of a window. In a single round, there is no noise over time.
SHORTEST = 2


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

    def lengths(self, most: int) -> list[int]:
        """Return lengths of windows: all rounds, half of them, a quarter, and so on."""
        rounds = len(self.stack)
        return [rounds // 2**k for k in range(most) if not k or rounds // 2**k >= SHORTEST]

    def windows(self, length: int) -> list[Tensor]:
        """Return the rows, whitened over windows of some rounds."""
        rounds = len(self.stack)
        if length == rounds:
            return [self.white]
        windows = [slice(a, a + length) for a in range(0, rounds - length + 1, length)]
        return [first_layer_rows.whiten(self.stack, self.leak, one) for one in windows]

    def estimates(self, rows: Tensor) -> Estimates:
        """Estimate the inputs (b, p + 1) again, from observed entries."""
        if self.observed is None:
            return estimates(self.leak, self.stack, self.white, rows)
        return Estimates.observed(*self.observed, rows, self.stack)


def estimates(leak: GradientLeak, stack: Tensor, white: Tensor, rows: Tensor) -> Estimates:
    """Estimate inputs (b, p + 1) again from all rows of a leak."""
    return Estimates.of(white, rows, stack, leak.wire, first_layer_rows.fresh(leak))
