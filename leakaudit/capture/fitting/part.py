"""A vector of which some columns are recorded, and a sketch of others."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from leakaudit.capture.fitting.sketch import ROWS, WIDTH, ModelSketch


@dataclass(frozen=True)
class FactorDeviation:
    """How a recomputed vector differs from a recorded one, up to one factor."""

    step: float  # the factor, by least squares over the recorded columns
    kept: float  # relative miss of the recorded columns
    rest: float  # relative miss of the sketch of the others


@dataclass(frozen=True)
class RecordedPart:
    """What is recorded of a vector (d,)."""

    kept: Tensor  # (d,) bool, the columns whose numbers are recorded
    # place of a parameter among all -> its columns, for the sketched parameters
    others: Mapping[int, slice]
    sketch: ModelSketch  # the linear map
    total: Tensor  # (ROWS, WIDTH) float64, the sketch of these parameters

    def of(self, vector: Tensor) -> Tensor:
        """Return the sketch (ROWS, WIDTH) of the same parameters of another vector.

        Args:
            vector: (d,).
        """
        total = torch.zeros(ROWS, WIDTH, dtype=torch.float64)
        for place, columns in self.others.items():
            self.sketch.add(total, place, vector[columns])
        return total

    def subtracted_from(self, vector: Tensor) -> RecordedPart:
        """Return the part of a vector (d,) less the recorded one.

        Args:
            vector: (d,), all of whose columns are known.
        """
        return replace(self, total=self.of(vector) - self.total)

    def compare(self, value: Tensor, vector: Tensor) -> FactorDeviation:
        """Compare with a recomputed vector.

        A difference outside the recorded columns shows in the sketch only, so that both have to
        fit. Its miss is relative to the sketch, which is about as long as the sketched numbers.

        Args:
            value: (d,) the recorded columns; others do not matter.
            vector: (d,) the recomputed vector.
        """
        sent = value[self.kept].double()
        again = vector[self.kept].double()
        square = float(again @ again)
        step = float(sent @ again) / square if square else 0.0
        difference = self.total - step * self.of(vector)
        return FactorDeviation(
            step, _miss(sent - step * again, sent), _miss(difference, self.total)
        )


def _miss(difference: Tensor, of: Tensor) -> float:
    """Return the length of a difference, relative to a vector."""
    length = float(difference.norm())
    whole = float(of.norm())
    if whole:
        return length / whole
    return math.inf if length else 0.0
