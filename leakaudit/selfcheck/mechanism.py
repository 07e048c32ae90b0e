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
    """One coordinate, released in every round under noise of scale 1; in round t the record moves it by (-1)^t signal.

    signal: mu of one round under Gaussian noise, epsilon under Laplace noise. reused: one draw of
        noise serves all rounds, of which
    there is an even number. opposite: without the record there is another one in its place, which
    moves the release the other way.
    """

    law: Law
    signal: float
    rounds: int = 1
    reused: bool = False
    opposite: bool = False

    @property
    def known(self) -> float:
        """Exact mu (Gaussian) or epsilon (Laplace) of all rounds together, inf where noise cancels."""
        if self.reused:
            return math.inf if self.signal else 0.0
        return composed(self.law, self.signal * (2 if self.opposite else 1), self.rounds)

    @property
    def ends(self) -> tuple[float, float]:
        """Means of the score without the record and with it."""
        far = self.rounds * self.signal
        return (-far if self.opposite else 0.0, far)

    def scores(self, there: NDArray[np.bool_], generator: np.random.Generator) -> Floats:
        """Return sum_t (-1)^t release_t of independent trials, of the shape of `there`: noise that is used twice cancels."""
        signs = (-1.0) ** np.arange(self.rounds)
        shape = (*there.shape, 1 if self.reused else self.rounds)
        noise = (
            generator.standard_normal(shape)
            if self.law == "gaussian"
            else generator.laplace(size=shape)
        )
        absent = -self.signal if self.opposite else 0.0
        moved = np.where(there, self.signal, absent)[..., None] * signs
        return np.asarray((moved + noise) @ signs)


def composed(law: Law, signal: float, rounds: int) -> float:
    """Return mu or epsilon of several rounds with fresh noise: sqrt(T) mu, exact, and T epsilon."""
    return signal * (math.sqrt(rounds) if law == "gaussian" else rounds)
