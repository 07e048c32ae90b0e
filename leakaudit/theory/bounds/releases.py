"""Noisy releases of vectors of which only a norm of the change is known, composed one by one.

The guarantee covers the worst change s within the norms, which each release may choose anew by the
results of earlier ones. Numbers (one coordinate) are exact (`losses`). For vectors:

1. Truncated noise is dominated by untruncated noise together with an outcome that identifies the
   data set with probability q, that of the values which are impossible for the other data set, for
   a change h of one coordinate. It follows for every symmetric log-concave density p. Let F be its
   distribution function before truncation, c = F(h - width), a = F(-width), y = e^epsilon, and
   delta the curve without truncation. If the best threshold is on the common support, the
   truncated curve is (delta + a (y - 1)) / (1 - 2 a), and q = (c - a) / (1 - 2 a); the statement
   is then delta <= (c - a y) / (c + a). The difference of both sides is concave in y, and not
   negative at the ends of this range: at y = 1 it is F(-width) / F(h - width) <= F(-h/2) / F(h/2),
   true since log F is concave; at the largest y = p(h - width) / p(-width), delta = c - a y >= 0
   and c + a <= 1 for h <= 2 width. For larger y, the truncated curve is q. The curves of both
   directions are equal.
2. Domination is kept by composition (Zhu, Dong, Wang 2022, Theorem 10). The outcomes of all
   coordinates identify with probability 1 - prod (1 - q(|s_j|)).
3. Untruncated normal noise is mu-GDP with mu = sqrt(2) |s|_2 / scale, whatever the direction.
4. Untruncated Laplace noise has Renyi divergences that add over coordinates; as a function of the
   square of a change they are concave, so that under |s|_2 the worst change is equal in all d
   coordinates. Concave: the derivative of (a - 1) R_a with respect to h^2 is proportional to (1 -
   e^-w) / (w (a + (a - 1) e^-w)) with w = (2 a - 1) h, whose logarithmic derivative is at most 1 /
   sinh(w) - 1 / w < 0.

The sum over coordinates of a function of |s_j| is bounded by its concave envelope, as a function of
the summand of each norm (`_most`). Our own derivation, except where a source is named.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.special import erf, erfc

from leakaudit.core.errors import LeakauditError
from leakaudit.theory.bounds.gaussian import Gdp
from leakaudit.theory.bounds.guarantee import (
    Adjacency,
    Guarantee,
    at_least_zero,
    least_epsilon,
    probability,
)
from leakaudit.theory.bounds.losses import Losses
from leakaudit.theory.bounds.mechanisms import Additive
from leakaudit.theory.bounds.renyi import Rdp

Floats = NDArray[np.float64]

ORDERS = tuple(float(1 + order) for order in np.geomspace(1e-2, 1e7, 181))  # 20 per factor of ten
# Changes of a coordinate at which the envelope is evaluated, and the smallest of them relative to
# an equal share: together they overestimate a sum by about .1 %. Choices.
CHANGES = 20_000
SMALLEST = 1e-4
ROUNDING = 1e-15  # relative, of the logarithm of a sum
SLOPES = 60  # steps of the search for the best tangent; any tangent gives a valid bound


@dataclass(frozen=True)
class Release:
    """One kind of release: a vector with independent noise on each coordinate.

    Attributes:
        noise: The noise of a coordinate.
        dimensions: Number of coordinates d.
        l2: Largest Euclidean norm of the change between neighbouring data sets; inf if unknown.
        l1: Largest sum of absolute values of the change; inf if unknown.
        linf: Largest change of a coordinate; inf if unknown.
        times: How often such a release is made.
    """

    noise: Additive
    dimensions: int
    l2: float = math.inf
    l1: float = math.inf
    linf: float = math.inf
    times: int = 1

    def __post_init__(self) -> None:
        for name in ("l2", "l1", "linf"):
            at_least_zero(name, getattr(self, name))
        if self.dimensions < 1 or self.times < 1:
            raise LeakauditError(
                f"expected at least one coordinate and one release, got {self.dimensions} and "
                f"{self.times}"
            )

    @property
    def largest(self) -> float:
        """The largest change of a coordinate."""
        return min(self.l2, self.l1, self.linf)

    @property
    def euclidean(self) -> float:
        """The largest Euclidean norm that all norms together allow."""
        both = math.inf
        if max(self.l1, self.linf) < math.inf:
            both = math.sqrt(self.l1 * self.linf)  # |s|_2^2 <= |s|_1 |s|_inf
        return min(self.l2, self.l1, both, math.sqrt(self.dimensions) * self.linf)

    @property
    def taxicab(self) -> float:
        """The largest sum of absolute values that all norms together allow."""
        d = self.dimensions
        return min(self.l1, math.sqrt(d) * self.l2, d * self.linf)


@dataclass(frozen=True)
class Escaping(Guarantee):
    """A guarantee that fails with some probability: the outcome then identifies the data set.

    Attributes:
        inner: The guarantee otherwise.
        lost: The probability that it fails.
        most: Largest privacy loss otherwise; inf if it is not bounded.
        adjacency: The pairs of data sets that the guarantee compares.
    """

    inner: Guarantee
    lost: float
    most: float
    adjacency: Adjacency

    def delta(self, epsilon: float) -> float:
        """The failure, and the delta of `inner` otherwise."""
        at_least_zero("epsilon", epsilon)
        if epsilon >= self.most:
            return self.lost
        return min(1.0, self.lost + (1 - self.lost) * self.inner.delta(epsilon))

    def epsilon(self, delta: float) -> float:
        """Inverse of `delta`; inf below the probability of a failure."""
        return least_epsilon(self.delta, probability("delta", delta))

    def power(self, false_positives: float) -> float:
        """A failure is recognised without an error; the false positives are spent otherwise."""
        probability("the false positive rate", false_positives)
        if self.lost == 1:
            return 1.0
        rest = min(1.0, false_positives / (1 - self.lost))
        return min(1.0, self.lost + (1 - self.lost) * self.inner.power(rest))

    def plus(self, other: Escaping) -> Escaping:
        """Both parts composed: one of two releases fails unless neither does."""
        lost = 1 - (1 - self.lost) * (1 - other.lost)
        inner = self.inner.plus(other.inner)
        return Escaping(inner, lost, self.most + other.most, self.adjacency)


@lru_cache(maxsize=64)  # many views of a node have the same releases
def composed(releases: tuple[Release, ...], adjacency: Adjacency) -> Guarantee:
    """Return the guarantee of all releases together, the later ones chosen by earlier results.

    Exact for single numbers, and for vectors with normal noise and a Euclidean norm; otherwise an
    upper bound.

    Args:
        releases: At least one.
        adjacency: The pairs of data sets that the norms compare.
    """
    if not releases:
        raise LeakauditError("expected at least one release to compose, got none")
    normal = all(one.noise.power == 2 and one.noise.width == math.inf for one in releases)
    if not normal and all(one.dimensions == 1 for one in releases):
        kinds = tuple((one.noise, one.largest, one.times) for one in releases)
        return Losses(kinds, adjacency)
    if any(one.largest == math.inf for one in releases):
        return Gdp(math.inf, adjacency)
    squares = []
    laplace = []
    for one in releases:
        if one.noise.power == 2:
            squares += [one.times * 2 * (one.euclidean / one.noise.scale) ** 2]
        elif one.largest:
            laplace.append(one)
    inner: Guarantee = Gdp(math.sqrt(math.fsum(squares)), adjacency)
    if normal:
        return inner
    if laplace:
        inner = Rdp(_divergences(laplace, math.fsum(squares)), adjacency, ORDERS)
    kept = math.fsum(one.times * _escape(one) for one in releases)
    most = math.fsum(one.times * _largest_loss(one) for one in releases)
    return Escaping(inner, -math.expm1(-kept), most, adjacency)


def _largest_loss(release: Release) -> float:
    """Return an upper bound on the loss of an outcome that is possible for both data sets."""
    noise = release.noise
    if not release.largest:
        return 0.0
    if noise.power == 1:
        return release.taxicab / noise.scale
    # sum_j (2 width |s_j| - s_j^2) / scale^2
    return 2 * noise.width * release.taxicab / noise.scale**2


def _divergences(laplace: Sequence[Release], squared_mu: float) -> tuple[float, ...]:
    """Return the Renyi divergences at `ORDERS` of Laplace noise and of normal noise together."""
    total = np.array(ORDERS) * squared_mu / 2
    for one in laplace:
        # Concave in the square: worst if equal under |s|_2. It also grows with each change, and is
        # at most the largest loss.
        equal = min(one.euclidean / math.sqrt(one.dimensions), one.linf)
        most = one.dimensions * _laplace_divergences(equal / one.noise.scale)
        most = np.minimum(most, _largest_loss(one))
        if one.l1 < math.inf:
            most = np.minimum(most, _by_l1(one))
        total += one.times * most
    return tuple(map(float, total))


def _by_l1(release: Release) -> Floats:
    """Return the largest sums of divergences at `ORDERS` under |s|_1 and |s|_inf.

    R_a(h) / h grows up to some h and falls beyond it; the sum is at most |s|_1 times its largest
    value, which is searched on a grid and rounded up.
    """
    changes = release.largest * np.geomspace(1e-6, 1, 400)
    # R_a(h) <= a h^2 / 2
    steepest = np.array(ORDERS) * float(changes[0]) / 2 / release.noise.scale**2
    for low, high in itertools.pairwise(map(float, changes)):
        steepest = np.maximum(steepest, _laplace_divergences(high / release.noise.scale) / low)
    return release.taxicab * steepest


def _laplace_divergences(change: float) -> Floats:
    """Return R_a at `ORDERS` of Laplace noise of scale 1 that moves by h (Mironov 2017, table II).

    Rounding is large where (a - 1) h is small; a h^2 / 2 is an upper bound (Bun, Steinke 2016).
    """
    a = np.array(ORDERS)
    logarithms = np.logaddexp(
        np.log(a / (2 * a - 1)) + (a - 1) * change, np.log((a - 1) / (2 * a - 1)) - a * change
    )
    exact = (np.maximum(logarithms, 0) + ROUNDING * (1 + (a - 1) * change)) / (a - 1)
    return np.asarray(np.minimum(exact, np.minimum(a * change**2 / 2, change)))


def _escape(release: Release) -> float:
    """Return the largest -log prob of no outcome that identifies: sum_j -log F(width - |s_j|)."""
    noise = release.noise
    if noise.width == math.inf or not release.largest:
        return 0.0

    def hidden(change: Floats) -> Floats:
        with np.errstate(divide="ignore"):
            return np.asarray(-np.log1p(-_identified(noise, change)))

    return _most(hidden, release)


def _identified(noise: Additive, change: Floats) -> Floats:
    """Return q (m,) = F(h - width), the probability of outcomes beyond the other support."""
    w = noise.width / noise.scale
    u = np.minimum(change / noise.scale, 2 * w)
    if noise.power == 1:
        near = np.exp(np.minimum(u, w) - w) * -np.expm1(-np.minimum(u, w))
        far = 1 - np.exp(w - np.maximum(u, w)) * -np.expm1(np.maximum(u, w) - 2 * w)
        half = -2 * math.expm1(-w)
        return np.where(u <= w, near / half, np.minimum(1.0, 1 + (far - 1) / half))
    return np.asarray(np.minimum(1.0, (erfc(w - u) - math.erfc(w)) / (2 * erf(w))))


def _most(value: Callable[[Floats], Floats], release: Release) -> float:
    """Return an upper bound on sum_j value(|s_j|), for a non-decreasing function with value(0) = 0.

    Every line l + m k that is above the function of the summand k of a norm (h for |s|_1, h^2 for
    |s|_2) bounds the sum by d l + m sum k. Each interval has the value at its upper end.
    """
    d = release.dimensions
    whole = release.largest
    bounds = [float(value(np.array([whole]))[0]) * d]
    for power, total in ((1, release.taxicab), (2, release.euclidean**2)):
        share = total / d
        smallest = min(whole, SMALLEST * share ** (1 / power))
        upper = smallest * (whole / smallest) ** np.linspace(0, 1, CHANGES)
        values = value(upper)
        if not np.isfinite(values).all():
            continue
        lower = np.concatenate([[0.0], upper[:-1]]) ** power
        bounds.append(d * _envelope(lower, values, share))
    return min(bounds)


def _envelope(at: Floats, values: Floats, where: float) -> float:
    """Return the concave envelope of points (m,) at a place, from above: the best tangent.

    min over m >= 0 of max_i (values_i - m at_i) + m where, a convex function of the slope m.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        steepest = float(np.nanmax(np.where(at > 0, (values - values[0]) / at, 0.0)))
    low = 0.0
    high = max(steepest, 0.0)

    def above(slope: float) -> float:
        return float((values - slope * at).max()) + slope * where

    best = min(above(low), above(high))
    for _ in range(SLOPES):
        left = low + (high - low) / 3
        right = high - (high - low) / 3
        at_left = above(left)
        at_right = above(right)
        best = min(best, at_left, at_right)
        if at_left <= at_right:
            high = right
        else:
            low = left
    return best
