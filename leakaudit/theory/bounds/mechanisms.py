"""Noise mechanisms and the guarantee of one release with each of them.

Additive noise has the density C exp(-|z / scale|^power) on [-width, width], the convention of
DP-dKM: power 2 has standard deviation scale / sqrt(2) before truncation. For one coordinate, the
curve is exact: the likelihood ratio of the noise and its shifted copy decreases in z, so the best
test is a threshold. Hence delta(eps) = F(t) - e^eps F(t - shift), where F is the distribution
function of the noise.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from leakaudit.core.errors import LeakauditError
from leakaudit.theory.bounds import gaussian
from leakaudit.theory.bounds.approximate import Approximate, approximate
from leakaudit.theory.bounds.gaussian import Gdp
from leakaudit.theory.bounds.guarantee import Adjacency, at_least_zero

# Width / scale: beyond it, e^-w is below 1e-304, and the truncated moments equal those of Laplace
# noise.
WIDE = 700.0


def sensitivity(clip: float, adjacency: Adjacency, batch: int = 1) -> float:
    """Return the largest change of a sum or mean of clipped gradients.

    It is C / b if a record is added, removed or emptied, and 2 C / b if it is replaced. A mean over
    a number of records that depends on the data has no such bound.

    Args:
        clip: C, the largest norm of one gradient.
        adjacency: Of one record. NODE is rejected: it needs the number of records
            (`gaussian.group`).
        batch: b, the fixed number by which the sum is divided; 1 for the sum.
    """
    if adjacency is Adjacency.NODE:
        raise LeakauditError(
            "expected an adjacency of one record, got NODE; "
            "use gaussian.group with the node's number of records"
        )
    if not (clip >= 0 and batch >= 1):
        raise LeakauditError(f"expected clip >= 0 and batch >= 1, got {clip} and {batch}")
    return clip * (2 if adjacency is Adjacency.REPLACE else 1) / batch


def gaussian_release(std: float, sensitivity: float, adjacency: Adjacency) -> Gdp:
    """Return mu-GDP, mu = sensitivity / std, of normal noise on a vector.

    Args:
        std: Per coordinate, at least 0.
        sensitivity: Euclidean norm of the largest change under the adjacency.
        adjacency: The pairs of data sets that are compared.
    """
    at_least_zero("std", std)
    at_least_zero("sensitivity", sensitivity)
    if std:
        return Gdp(sensitivity / std, adjacency)
    return Gdp(math.inf if sensitivity else 0.0, adjacency)


def classic_std(epsilon: float, delta: float, sensitivity: float = 1.0) -> float:
    """Return sqrt(2 log(1.25 / delta)) sensitivity / epsilon, proved only for epsilon < 1.

    Source: Dwork, Roth 2014, Theorem A.1. Above about epsilon = 9 it is too little noise: at (10,
    1e-5) .4845 instead of .4999 (sensitivity / `gaussian.least_mu`).

    Args:
        epsilon: Above 0.
        delta: Above 0 and below 1.
        sensitivity: In Euclidean norm.
    """
    if not (epsilon > 0 and 0 < delta < 1):
        raise LeakauditError(
            f"expected epsilon above 0 and delta between 0 and 1, got {epsilon} and {delta}"
        )
    return math.sqrt(2 * math.log(1.25 / delta)) * sensitivity / epsilon


@dataclass(frozen=True)
class Additive:
    """Independent noise on every coordinate.

    Its density is C exp(-|z / scale|^power) on [-width, width].

    Attributes:
        power: 1 is Laplace, 2 normal.
        scale: Above 0 and finite.
        width: Above 0; inf for noise that is not truncated.
    """

    power: Literal[1, 2]
    scale: float
    width: float = math.inf

    def __post_init__(self) -> None:
        if self.power not in (1, 2) or not (0 < self.scale < math.inf and self.width > 0):
            raise LeakauditError(
                f"expected power 1 or 2, a finite scale above 0 and a width above 0, got {self}"
            )

    def below(self, z: float) -> float:
        """Return the distribution function F(z), precise in the left tail."""
        if z > 0:
            return 1 - self.below(-z)
        u = max(z, -self.width) / self.scale
        w = self.width / self.scale
        if self.power == 1:
            return math.exp(u) * math.expm1(-u - w) / (2 * math.expm1(-w))
        return (math.erfc(-u) - math.erfc(w)) / (2 * math.erf(w))

    def delta(self, epsilon: float, shift: float) -> float:
        """Return the exact delta of one coordinate that changes by `shift`, in either direction."""
        at_least_zero("epsilon", epsilon)
        at_least_zero("shift", shift)
        if shift == 0:
            return 0.0
        # The support of the shifted copy is [start, shift + width]; a value below its start
        # identifies the data set.
        start = shift - self.width
        if shift == math.inf or start >= self.width:
            return 1.0
        threshold = max(start, self._crossing(epsilon, shift))
        missed = self.below(threshold - shift)
        likely = 0.0
        if missed:
            likely = math.exp(epsilon + math.log(missed))  # e^eps F(t - shift), without overflow
        return max(0.0, self.below(threshold) - likely)

    def escape(self, shifts: Iterable[float]) -> float:
        """Return the probability of an outcome that is impossible for the other data set.

        It is 1 - prod(1 - F(s_j - width)) for changes s_j >= 0 of the coordinates. Such an outcome
        identifies the data set, so this is a lower bound on delta at every epsilon.
        """
        if self.width == math.inf:
            return 0.0
        outside = [self.delta(math.inf, s) for s in shifts]
        if 1 in outside:
            return 1.0
        return -math.expm1(math.fsum(math.log1p(-o) for o in outside))

    def release(self, epsilon: float, shift: float, adjacency: Adjacency) -> Approximate:
        """Return the exact (epsilon, delta) of one coordinate that changes by at most `shift`."""
        return approximate(epsilon, self.delta(epsilon, shift), adjacency)

    def vector(
        self, epsilon: float, l1: float, l2: float, dimensions: int, adjacency: Adjacency
    ) -> Approximate:
        """Return (epsilon, delta) for a vector: our own derivation, not from the papers.

        power 1: max(epsilon, l1 / scale), and the mass outside the common support, which is convex
        in a shift up to the width and therefore largest if one coordinate has the whole shift: F(l1
        - width). power 2: the delta of normal noise divided by the probability (erf(width /
        scale))^dimensions of the box, plus that mass. delta = 1 if l1 > width. An unknown
        sensitivity is inf, since l2 <= l1 <= sqrt(dimensions) l2.
        """
        at_least_zero("epsilon", epsilon)
        if dimensions < 1:
            raise LeakauditError(f"expected at least one dimension, got {dimensions}")
        at_least_zero("l1", l1)
        at_least_zero("l2", l2)
        least_l1 = min(l1, math.sqrt(dimensions) * l2)
        least_l2 = min(l1, l2)
        outside = 0.0
        if self.width < math.inf:
            outside = self.below(least_l1 - self.width) if least_l1 <= self.width else 1.0
        if self.power == 1:
            return approximate(max(epsilon, least_l1 / self.scale), min(1.0, outside), adjacency)
        inside = math.erf(self.width / self.scale) ** dimensions
        if not inside:
            return approximate(epsilon, 1.0, adjacency)
        normal = gaussian.delta(epsilon, math.sqrt(2) * least_l2 / self.scale)
        return approximate(epsilon, min(1.0, normal / inside + outside), adjacency)

    def _crossing(self, epsilon: float, shift: float) -> float:
        """Return the largest z at which the density is at least e^epsilon times the shifted one."""
        if self.power == 2:
            # |z - s|^2 - |z|^2 = eps scale^2, solved for z
            return (shift - epsilon * self.scale * (self.scale / shift)) / 2
        if epsilon < shift / self.scale:
            # |z - s| - |z| = eps scale, between 0 and s
            return (shift - self.scale * epsilon) / 2
        return -math.inf


def truncated_laplace(epsilon: float, delta: float, sensitivity: float) -> Additive:
    """Return truncated Laplace noise that makes one coordinate (epsilon, delta)-DP.

    Its scale is D/eps, on A = D/eps log(1 + (e^eps - 1) / (2 delta)). Source: Geng, Ding, Guo,
    Kumar 2018, for a single real query with 0 < delta < 1/2.

    Args:
        epsilon: Above 0.
        delta: Above 0 and below 1/2.
        sensitivity: D, above 0; for a vector in the L1 norm.
    """
    if not (epsilon > 0 and 0 < delta < 0.5 and sensitivity > 0):
        raise LeakauditError(
            "expected epsilon, sensitivity > 0 and 0 < delta < 1/2, "
            f"got {epsilon}, {sensitivity} and {delta}"
        )
    scale = sensitivity / epsilon
    return Additive(1, scale, scale * math.log1p(math.expm1(epsilon) / (2 * delta)))
