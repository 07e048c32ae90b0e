"""Noise mechanisms and what one release with them guarantees: Gaussian, Laplace and their truncated forms.

Additive noise with density C exp(-|z / scale|^power) on [-width, width], the convention of DP-dKM: power 2 has standard deviation
scale / sqrt(2) before truncation. For one coordinate the curve is exact: the likelihood ratio of the noise and its shifted copy
falls in z, so the best test is a threshold. Hence delta(eps) = F(t) - e^eps F(t - shift), F the distribution function of the noise.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from leakaudit.bounds import gaussian
from leakaudit.bounds.approximate import Approximate, approximate
from leakaudit.bounds.gaussian import Gdp
from leakaudit.bounds.guarantee import Adjacency, at_least_zero
from leakaudit.errors import LeakauditError


def sensitivity(clip: float, adjacency: Adjacency, batch: int = 1) -> float:
    """Return how far a sum (batch = 1) or mean over `batch` of gradients moves, each clipped to norm `clip`.

    C / b where a record comes, goes or is emptied, 2 C / b where it is replaced. A mean over a size that depends on the data has no
    such bound. NODE is refused: it needs the number of records (`gaussian.group`).
    """
    if adjacency is Adjacency.NODE:
        raise LeakauditError(
            "expected an adjacency of one record, got NODE; use gaussian.group with the node's number of records"
        )
    if not (clip >= 0 and batch >= 1):
        raise LeakauditError(f"expected clip >= 0 and batch >= 1, got {clip} and {batch}")
    return clip * (2 if adjacency is Adjacency.REPLACE else 1) / batch


def gaussian_release(std: float, sensitivity: float, adjacency: Adjacency) -> Gdp:
    """Return mu-GDP, mu = sensitivity / std, of normal noise on a vector; sensitivity in Euclidean norm under the adjacency."""
    if not at_least_zero("std", std):
        return Gdp(math.inf if at_least_zero("sensitivity", sensitivity) else 0.0, adjacency)
    return Gdp(at_least_zero("sensitivity", sensitivity) / std, adjacency)


def classic_std(epsilon: float, delta: float, sensitivity: float = 1.0) -> float:
    """Return sqrt(2 log(1.25 / delta)) sensitivity / epsilon, proved for epsilon < 1 alone (Dwork, Roth 2014, Theorem A.1).

    Above about epsilon = 9 it is too little noise: at (10, 1e-5) .4845 where .4999 is needed (sensitivity / `gaussian.least_mu`).
    """
    if not (epsilon > 0 and 0 < delta < 1):
        raise LeakauditError(
            f"expected epsilon above 0 and delta between 0 and 1, got {epsilon} and {delta}"
        )
    return math.sqrt(2 * math.log(1.25 / delta)) * sensitivity / epsilon


@dataclass(frozen=True)
class Additive:
    """Independent noise on every coordinate, density C exp(-|z / scale|^power) on [-width, width]; power 1 is Laplace, 2 normal."""

    power: Literal[1, 2]
    scale: float
    width: float = math.inf

    def __post_init__(self) -> None:
        if self.power not in (1, 2) or not (0 < self.scale < math.inf and self.width > 0):
            raise LeakauditError(
                f"expected power 1 or 2, a finite scale above 0 and a width above 0, got {self}"
            )

    def below(self, z: float) -> float:
        """Return F(z), precise in the left tail."""
        if z > 0:
            return 1 - self.below(-z)
        u, w = max(z, -self.width) / self.scale, self.width / self.scale
        if self.power == 1:
            return math.exp(u) * math.expm1(-u - w) / (2 * math.expm1(-w))
        return (math.erfc(-u) - math.erfc(w)) / (2 * math.erf(w))

    def delta(self, epsilon: float, shift: float) -> float:
        """Return the exact delta of one coordinate that moves by `shift`, in either direction, at epsilon >= 0."""
        at_least_zero("epsilon", epsilon)
        if (s := at_least_zero("shift", shift)) == 0:
            return 0.0
        start = s - self.width
        if s == math.inf or start >= self.width:
            return 1.0
        t = max(start, self._crossing(epsilon, s))
        missed = self.below(t - s)
        return max(0.0, self.below(t) - (math.exp(epsilon + math.log(missed)) if missed else 0.0))

    def escape(self, shifts: Iterable[float]) -> float:
        """Return the chance that some coordinate falls where the other data set could not have put it: 1 - prod(1 - F(s_j - width)).

        Such an outcome identifies the data set for certain: a lower bound on delta at every epsilon.
        """
        if self.width == math.inf:
            return 0.0
        outside = [self.delta(math.inf, s) for s in shifts]
        return 1.0 if 1 in outside else -math.expm1(math.fsum(math.log1p(-o) for o in outside))

    def release(self, epsilon: float, shift: float, adjacency: Adjacency) -> Approximate:
        """Return the (epsilon, delta) of one coordinate whose value moves by at most `shift` under the adjacency; delta is exact."""
        return approximate(epsilon, self.delta(epsilon, shift), adjacency)

    def vector(
        self, epsilon: float, l1: float, l2: float, dimensions: int, adjacency: Adjacency
    ) -> Approximate:
        """Return (epsilon, delta) for a vector of sensitivity l1 and l2; inf where unknown (l2 <= l1 <= sqrt(dimensions) l2).

        power 1: max(epsilon, l1 / scale), and the mass outside the common support, which is convex in a shift up to the width and so
        largest in one coordinate: F(l1 - width). power 2: normal noise's delta over the chance (erf(width / scale))^dimensions of the
        box, plus that mass. delta = 1 where l1 > width. Derived here, not in the papers.
        """
        at_least_zero("epsilon", epsilon)
        if dimensions < 1:
            raise LeakauditError(f"expected at least one dimension, got {dimensions}")
        l1, l2 = (
            min(at_least_zero("l1", l1), math.sqrt(dimensions) * at_least_zero("l2", l2)),
            min(l1, l2),
        )
        outside = (
            0.0
            if self.width == math.inf
            else self.below(l1 - self.width)
            if l1 <= self.width
            else 1.0
        )
        if self.power == 1:
            return approximate(max(epsilon, l1 / self.scale), min(1.0, outside), adjacency)
        inside = math.erf(self.width / self.scale) ** dimensions
        normal = gaussian.delta(epsilon, math.sqrt(2) * l2 / self.scale)
        return approximate(
            epsilon, min(1.0, normal / inside + outside) if inside else 1.0, adjacency
        )

    def _crossing(self, epsilon: float, s: float) -> float:
        """Return the largest z at which the density is at least e^epsilon times the one shifted by s."""
        if self.power == 2:
            return (s - epsilon * self.scale * (self.scale / s)) / 2
        return (s - self.scale * epsilon) / 2 if epsilon < s / self.scale else -math.inf


def truncated_laplace(epsilon: float, delta: float, sensitivity: float) -> Additive:
    """Return the noise for one (epsilon, delta)-DP coordinate: scale D/eps on A = D/eps log(1 + (e^eps - 1) / (2 delta)).

    Source: Geng, Ding, Guo, Kumar 2018, for a single real query with 0 < delta < 1/2. For a vector, D is its L1 sensitivity.
    """
    if not (epsilon > 0 and 0 < delta < 0.5 and sensitivity > 0):
        raise LeakauditError(
            f"expected epsilon, sensitivity > 0 and 0 < delta < 1/2, got {epsilon}, {sensitivity} and {delta}"
        )
    scale = sensitivity / epsilon
    return Additive(1, scale, scale * math.log1p(math.expm1(epsilon) / (2 * delta)))


def laplace_moments(noise: Additive) -> tuple[float, float]:
    """Return E|X| and E X^2 of (truncated) Laplace noise: l (1 - w/(e^w - 1)) and l^2 (2 - (w^2 + 2 w)/(e^w - 1)), w = width / l."""
    if noise.power != 1:
        raise LeakauditError(f"expected Laplace noise, power 1, got {noise}")
    scale, w = noise.scale, noise.width / noise.scale
    if w > 700:
        return scale, 2 * scale**2
    return scale * (1 - w / math.expm1(w)), scale**2 * (2 - (w * w + 2 * w) / math.expm1(w))
