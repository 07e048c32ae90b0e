"""Mechanisms with exactly known privacy, for auditing the auditor."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

Law: TypeAlias = Literal["gaussian", "laplace"]
Floats: TypeAlias = NDArray[np.float64]


@dataclass(frozen=True)
class Mechanism:
    """One coordinate, released in every round t under noise of scale 1, moved by (-1)^t signal."""

    law: Law
    signal: float  # mu of one round under Gaussian noise, epsilon under Laplace noise
    rounds: int = 1  # number of releases of the coordinate
    # whether all rounds use the same draw of noise; `rounds` must then be even
    reused: bool = False
    # whether another record takes the place of a missing one, and moves the release the other way
    opposite: bool = False

    @property
    def known(self) -> float:
        """Exact mu (Gaussian) or epsilon (Laplace) of all rounds together; inf if noise cancels."""
        if self.reused:
            return math.inf if self.signal else 0.0
        times = 2 if self.opposite else 1
        return composed(self.law, self.signal * times, self.rounds)

    @property
    def ends(self) -> tuple[float, float]:
        """Means of the score without the record and with it."""
        far = self.rounds * self.signal
        if self.opposite:
            return -far, far
        return 0.0, far

    def scores(self, there: NDArray[np.bool_], generator: np.random.Generator) -> Floats:
        """Return sum_t (-1)^t release_t of independent trials; reused noise cancels."""
        signs = (-1.0) ** np.arange(self.rounds)
        draws = 1 if self.reused else self.rounds
        shape = (*there.shape, draws)
        if self.law == "gaussian":
            noise = generator.standard_normal(shape)
        else:
            noise = generator.laplace(size=shape)
        absent = -self.signal if self.opposite else 0.0
        moved = np.where(there, self.signal, absent)[..., None] * signs
        return np.asarray((moved + noise) @ signs)


def composed(law: Law, signal: float, rounds: int) -> float:
    """Return the exact privacy of several rounds with fresh noise."""
    if law == "gaussian":
        return signal * math.sqrt(rounds)
    return signal * rounds
