"""Mechanisms whose privacy is known exactly, to audit the auditor with."""

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
    """One coordinate, released in every round under noise of scale 1.

    In round t the record moves it by (-1)^t signal.

    Attributes:
        law: Of the noise.
        signal: mu of one round under Gaussian noise, epsilon under Laplace noise.
        rounds: Number of releases.
        reused: Whether one draw of noise serves all rounds, of which there is an even number then.
        opposite: Whether another record takes the place of the missing one, and moves the release
            the other way.
    """

    law: Law
    signal: float
    rounds: int = 1
    reused: bool = False
    opposite: bool = False

    @property
    def known(self) -> float:
        """Exact mu (Gaussian) or epsilon (Laplace) of all rounds, inf if the noise cancels."""
        if self.reused:
            return math.inf if self.signal else 0.0
        signal = 2 * self.signal if self.opposite else self.signal
        return composed(self.law, signal, self.rounds)

    @property
    def ends(self) -> tuple[float, float]:
        """Means of the score without the record and with it."""
        present = self.rounds * self.signal
        absent = -present if self.opposite else 0.0
        return absent, present

    def scores(self, there: NDArray[np.bool_], generator: np.random.Generator) -> Floats:
        """Return sum_t (-1)^t release_t of independent trials; noise that is used twice cancels.

        Args:
            there: Whether the record is there, by trial, of any shape.
            generator: Source of randomness.

        Returns:
            Scores of the shape of `there`.
        """
        signs = (-1.0) ** np.arange(self.rounds)
        shape = (*there.shape, 1 if self.reused else self.rounds)
        if self.law == "gaussian":
            noise = generator.standard_normal(shape)
        else:
            noise = generator.laplace(size=shape)
        absent = -self.signal if self.opposite else 0.0
        moved = np.where(there, self.signal, absent)[..., None] * signs
        return np.asarray((moved + noise) @ signs)


def composed(law: Law, signal: float, rounds: int) -> float:
    """Return mu or epsilon of several rounds with fresh noise: sqrt(T) mu, exact, or T epsilon.

    Args:
        law: Of the noise.
        signal: mu or epsilon of one round.
        rounds: T.
    """
    if law == "gaussian":
        return signal * math.sqrt(rounds)
    return signal * rounds
