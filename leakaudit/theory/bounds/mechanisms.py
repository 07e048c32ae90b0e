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

from leakaudit._util.bisection import crossing
from leakaudit.core.errors import LeakauditError
from leakaudit.theory.bounds.approximate import Approximate, approximate
from leakaudit.theory.bounds.gaussian import Gdp
from leakaudit.theory.bounds.guarantee import Adjacency, at_least_zero

# Width / scale: beyond it, e^-w is below 1e-304, and the truncated moments equal those of Laplace
# noise.
WIDE = 700.0
FLATTEST = 1e3  # scale / std of truncated noise: beyond it, rounding hides that it is not uniform


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

    @classmethod
    def of_std(cls, power: Literal[1, 2], std: float, width: float = math.inf) -> Additive:
        """Return the noise that has this standard deviation, which grows with the scale.

        Args:
            power: 1 or 2, as above.
            std: Standard deviation of a coordinate, above 0.
            width: Above std sqrt(3), that of uniform noise; inf if it is not truncated.
        """
        if width == math.inf:
            return cls(power, std * power / math.sqrt(2))

        def enough(scale: float) -> bool:
            return cls(power, scale, width).std >= std

        if not (std > 0 and enough(std * FLATTEST)):
            raise LeakauditError(
                f"expected a standard deviation above 0 and below {width / math.sqrt(3):g}, that "
                f"of uniform noise, for noise that is truncated at {width:g}, got {std:g}"
            )
        return cls(power, crossing(enough, std / 2, std * FLATTEST, side="above"), width)

    @property
    def std(self) -> float:
        """Standard deviation of a coordinate; without truncation scale sqrt(2) / power."""
        u = self.width / self.scale
        if u > WIDE:
            return self.scale * math.sqrt(2) / self.power
        if self.power == 1:
            variance = 2 - (u * u + 2 * u) / math.expm1(u)
        else:
            variance = 0.5 - u * math.exp(-u * u) / (math.sqrt(math.pi) * math.erf(u))
        return self.scale * math.sqrt(max(0.0, variance))

    def below(self, z: float) -> float:
        """Return the distribution function F(z), precise in the left tail."""
        if z > 0:
            return 1 - self.below(-z)
        if z <= -self.width:
            return 0.0
        u = z / self.scale
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
        likely = 0.0
        missed = 0.0
        if threshold > start:  # at the start, it is exactly 0, which rounding would hide
            missed = self.below(threshold - shift)
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
