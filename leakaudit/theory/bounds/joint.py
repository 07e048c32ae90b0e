"""An exact test of a guarantee by both error rates of a guess jointly."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln, ndtr, ndtri, xlog1py, xlogy

from leakaudit._util.bisection import crossing
from leakaudit.core.errors import LeakauditError
from leakaudit.theory.bounds.approximate import Approximate
from leakaudit.theory.bounds.gaussian import Gdp
from leakaudit.theory.bounds.guarantee import Guarantee

# A guarantee bounds the true positive rate p of every guess by its false positive rate q: p <= g(q)
# = 1 - f(q), where f is its trade-off curve. n_1 trials with the record yield x true positives, n_0
# trials without it y false positives; both counts are binomial. Separate confidence limits for p
# and q meet only in a corner: the level of that test is 30 to 70 times below alpha. Here, one
# statistic orders all outcomes (x, y), and its p-value is the largest probability, over all (p, q)
# that the guarantee allows, of an outcome at least as extreme: the level is alpha, up to
# discreteness.
#
# The statistic is a squared distance from what is allowed: S(x, y) = min over points (p, q) of the
# curve of z_x^2 + z_y^2, where z_x is the normal deviate of P[Bin(n_1, p) >= x] and z_y that of
# P[Bin(n_0, q) <= y], 0 if that probability exceeds one half. Exact tails give the distance the
# same meaning along the whole curve: a likelihood ratio would overrate "no false positive" at rates
# around 2 / n_0, which has probability e^-2.
#
# S increases with x and decreases with y, so the rejection probability increases with p and
# decreases with q. Its largest value therefore lies on the curve p = g(q), and on a piece a <= q <=
# b of it is at most its value at (g(b), a): the largest of these over all pieces is a certified
# upper bound, and the pieces are so short that little is lost.

Floats = NDArray[np.float64]
Places = NDArray[np.int64]

# Most trials on one side; time and memory grow as their power 1.5, here to about 4 s and 150 MB.
LARGEST = 5_000
# Pieces that are first examined together; a choice, near the square root of the number of pieces
# for 100 trials.
BLOCK = 16
ROWS = 1 << 16  # probabilities that are kept at once: as many as fit into a processor cache
ROUNDING = 1e-9  # more than the rounding error of a sum over 5,000 outcomes, 5,000 * 1e-16
CLOSE = 1e-9  # relative distance up to which two statistics count as equal
TINY = 1e-300  # smaller tails are replaced by this, so that their deviates stay finite

# Pieces per square root of trials. In the arcsine scale, which has length pi / 2, a count's
# standard deviation is 1 / (2 sqrt(n)): a piece is pi / 200 of them long, which costs about 3 % of
# p.
FINE = 200

# The search in `perfect`: parts into which every remaining piece is cut, most rounds, and number of
# pieces at which it ends. Each round makes the pieces 8 times shorter; 30 rounds are never reached,
# because the bound is then closer than CLOSE, or there are too many pieces.
PARTS = 8
ROUNDS = 30
MANY = 20_000


@dataclass(frozen=True)
class JointTest:
    """The test of one guarantee for fixed numbers of trials.

    A guess is "present" or not; true positives are among the trials with the record, false
    positives among those without.

    Attributes:
        guarantee: Its curve bounds both directions, like all curves of this package.
        positives: Trials with the record, n_1 >= 1.
        negatives: Trials without it, n_0 >= 1.
    """

    guarantee: Guarantee
    positives: int
    negatives: int

    def __post_init__(self) -> None:
        for trials in (self.positives, self.negatives):
            if not 1 <= trials <= LARGEST:
                raise LeakauditError(
                    f"expected 1 to {LARGEST} trials on each side, "
                    f"got {self.positives} and {self.negatives}"
                )

    def p_value(self, true_positives: int, false_positives: int) -> float:
        """Return an upper bound on the probability of counts at least as extreme."""
        if (true_positives, false_positives) == (self.positives, 0):
            return perfect(self.guarantee, self.positives, self.negatives)
        level = self.statistic(true_positives, false_positives)
        if level <= 0:
            return 1.0
        return self._largest(self._region(level))

    def refutes(self, true_positives: int, false_positives: int, alpha: float) -> bool:
        """Return whether `p_value` is at most alpha, by the table of `least_hits`."""
        return bool(true_positives >= self.least_hits(alpha)[false_positives])

    def least_hits(self, alpha: float) -> Places:
        """Return the rejection region (n_0 + 1,) at level alpha.

        For each number of false positives, it is the smallest number of true positives that refutes
        the guarantee, n_1 + 1 if none does.
        """
        if alpha in self._regions:
            return self._regions[alpha]
        most = self.statistic(self.positives, 0)
        if most <= 0 or self._exceeds(self._region(most), alpha):
            least = np.full(self.negatives + 1, self.positives + 1, dtype=np.int64)
            if perfect(self.guarantee, self.positives, self.negatives) <= alpha:
                least[0] = self.positives
        else:
            level = crossing(
                lambda s: not self._exceeds(self._region(s), alpha),
                0.0,
                most,
                side="above",
                halvings=math.ceil(-math.log2(CLOSE)),
            )
            least = self._region(level)
        self._regions[alpha] = least
        return least

    def power(
        self, alpha: float, true_positive_rates: Floats, false_positive_rates: Floats
    ) -> Floats:
        """Return the exact probability (m,) of a refutation at alpha, for error rates (m,)."""
        return self._chance(self.least_hits(alpha), true_positive_rates, false_positive_rates)

    def statistic(self, true_positives: int, false_positives: int) -> float:
        """Return S(x, y), 0 if the observed rates are themselves allowed."""
        at_x, at_y = self._squares
        return float((at_x[:, true_positives] + at_y[:, false_positives]).min())

    @cached_property
    def _regions(self) -> dict[float, Places]:
        return {}

    @cached_property
    def _nodes(self) -> tuple[Floats, Floats]:
        """The ends of the pieces: false positive rates q, and the greatest true positive rates.

        q ascends from 0 to 1. The arcsine of the square root of a count's rate has the same
        standard deviation everywhere, 1 / (2 sqrt(n)). The nodes are those of an equidistant grid
        in it for q, and of one for p, so that no piece is long in either.
        """
        own = _arcsine_grid(self.negatives)
        # The curve is symmetric: the smallest q that allows a power p is 1 - g(1 - p). It is used
        # only to place nodes, so rounding is harmless.
        mirrored = 1 - ceiling(self.guarantee, 1 - _arcsine_grid(self.positives))
        q = np.unique(np.concatenate([own, mirrored]).clip(0.0, 1.0))
        return q, ceiling(self.guarantee, q)

    @cached_property
    def _squares(self) -> tuple[Floats, Floats]:
        """Squares z_x^2 (K, n_1 + 1) and z_y^2 (K, n_0 + 1) at every BLOCK-th node of the curve."""
        q, p = self._nodes
        at = np.unique(np.append(np.arange(0, len(q), BLOCK), len(q) - 1))
        at_x = _deviations(p[at], self.positives, above=True)
        at_y = _deviations(q[at], self.negatives, above=False)
        return at_x, at_y

    def _region(self, level: float) -> Places:
        """Return all outcomes with S >= level, as the smallest x for every y."""
        at_x, at_y = self._squares
        least = np.zeros(self.negatives + 1, dtype=np.int64)
        for row_x, row_y in zip(at_x, at_y, strict=True):
            enough = np.searchsorted(row_x, level * (1 - CLOSE) - row_y)
            np.maximum(least, enough, out=least)
        return least

    def _largest(self, least: Places) -> float:
        """Return the largest rejection probability of a region over the null, rounded up."""
        sure, whole = self._coarse(least)
        return min(1.0, self._fine(least, whole >= sure) * (1 + ROUNDING))

    def _exceeds(self, least: Places, alpha: float) -> bool:
        """Return whether `_largest` of a region exceeds alpha, computing no more than needed."""
        allowed = alpha / (1 + ROUNDING)
        sure, whole = self._coarse(least)
        if sure > allowed or whole.max() <= allowed:
            return bool(sure > allowed)
        return self._fine(least, whole > allowed) > allowed

    def _coarse(self, least: Places) -> tuple[float, Floats]:
        """Return a rejection probability that is attained, and an upper bound for every block."""
        q, p = self._nodes
        starts, stops = self._blocks
        reached = self._chance(least, p[starts], q[starts]).max()
        return float(reached), self._chance(least, p[stops], q[starts])

    def _fine(self, least: Places, blocks: NDArray[np.bool_]) -> float:
        """Return the largest bound over all pieces of the chosen blocks (B,)."""
        q, p = self._nodes
        first = np.flatnonzero(blocks[np.arange(len(q) - 1) // BLOCK])
        return float(self._chance(least, p[first + 1], q[first]).max())

    @cached_property
    def _blocks(self) -> tuple[Places, Places]:
        last = len(self._nodes[0]) - 1
        starts = np.arange(0, last, BLOCK)
        return starts, np.minimum(starts + BLOCK, last)

    def _chance(self, least: Places, p: Floats, q: Floats) -> Floats:
        """Return P[x >= least(y)] (m,) for true and false positive rates p, q (m,)."""
        # `least` increases with y, so only the first few y can refute.
        telling = int((least <= self.positives).sum())
        out = np.empty(len(p))
        rows = max(1, ROWS // (self.positives + telling + 2))
        for at in range(0, len(p), rows):
            part = slice(at, at + rows)
            tails = _upper_tails(_chances(p[part], self.positives, self.positives + 1))
            some = _chances(q[part], self.negatives, telling)
            out[part] = (some * tails[:, least[:telling]]).sum(1)
        return out


@lru_cache(maxsize=8)
def joint_test(guarantee: Guarantee, positives: int, negatives: int) -> JointTest:
    """Return the test of a guarantee; its tables are cached for the next call.

    Args:
        guarantee: The guarantee.
        positives: Trials with the record.
        negatives: Trials without it.
    """
    return JointTest(guarantee, positives, negatives)


@lru_cache(maxsize=1024)
def perfect(guarantee: Guarantee, positives: int, negatives: int) -> float:
    """Return the p-value of no error in any trial: sup over q of g(q)^n_1 (1 - q)^n_0, rounded up.

    It supports any number of trials. The logarithm is concave in q because g is; on a piece a <= q
    <= b, the value is at most g(b)^n_1 (1 - a)^n_0. Pieces that cannot contain the largest value
    are discarded and the others divided, until the bound and the largest value agree or there are
    many pieces: p is then up to .1 % too large with 100,000 trials on each side.

    Args:
        guarantee: The guarantee.
        positives: Trials with the record.
        negatives: Trials without it.
    """
    if not (positives and negatives):
        return 1.0
    # Fine at both ends in the arcsine scale, and down to the smallest rates in a logarithmic scale.
    q = np.sin(np.linspace(0, math.pi / 2, 1025)) ** 2
    q = np.unique(np.concatenate([q, np.geomspace(1e-300, 1, 1025), [0.0]]))
    low = q[:-1]
    high = q[1:]
    for _ in range(ROUNDS):
        ends = ceiling(guarantee, high)
        inside = ceiling(guarantee, low)
        bound = xlogy(positives, ends) + xlog1py(negatives, -low)
        best = (xlogy(positives, inside) + xlog1py(negatives, -low)).max()
        if bound.max() - best < CLOSE or len(low) > MANY:
            break
        kept = bound >= best
        parts = np.linspace(low[kept], high[kept], PARTS + 1)
        low = parts[:-1].ravel()
        high = parts[1:].ravel()
    return min(1.0, math.exp(float(bound.max())) * (1 + ROUNDING))


def ceiling(guarantee: Guarantee, q: Floats) -> Floats:
    """Return the greatest true positive rates (m,) that a guarantee allows: `Guarantee.power`.

    Args:
        guarantee: mu-GDP and a single (epsilon, delta) are evaluated for all rates at once.
        q: (m,) False positive rates.
    """
    if isinstance(guarantee, Gdp):
        return np.asarray(np.maximum(q, ndtr(ndtri(q) + guarantee.mu)))
    terms = guarantee.terms if isinstance(guarantee, Approximate) else ()
    if len(terms) == 1 and terms[0][2] == 1:
        epsilon, delta, _ = terms[0]
        with np.errstate(divide="ignore"):
            steep = np.exp(np.minimum(epsilon + np.log(q), 1.0)) + delta
        flat = 1 - math.exp(-epsilon) * (1 - delta - q)
        return np.maximum(q, np.minimum(np.minimum(steep, flat), 1.0))
    return np.array([guarantee.power(float(rate)) for rate in q])


def _arcsine_grid(trials: int) -> Floats:
    """Return rates from 0 to 1: FINE equidistant arcsines per root of trials, and small ones."""
    count = max(64, math.ceil(FINE * math.sqrt(trials)))
    grid: Floats = np.sin(np.linspace(0, math.pi / 2, count + 1)) ** 2
    # Below one expected count, the arcsine grid is coarse in a logarithmic scale.
    few = np.geomspace(1e-6 / trials, 1 / trials, 64)
    return np.concatenate([grid, few, 1 - few])


def _deviations(rates: Floats, trials: int, *, above: bool) -> Floats:
    """Return z^2 (K, n + 1) of all counts under all rates, of P[Bin >= k] or of P[Bin <= k]."""
    chances = _chances(rates, trials, trials + 1)
    if above:
        tails = _upper_tails(chances)
    else:
        tails = np.cumsum(chances, axis=1)
    return np.asarray(np.square(ndtri(tails.clip(TINY, 0.5))))


def _upper_tails(chances: Floats) -> Floats:
    """Return sums of the last chances (m, n) of each row, the smallest chances first."""
    return np.cumsum(chances[:, ::-1], axis=1)[:, ::-1]


def _chances(rates: Floats, trials: int, count: int) -> Floats:
    """Return P[Bin(trials, rate) = k] (m, count) for k = 0 to count - 1."""
    k = np.arange(count)
    ways = gammaln(trials + 1) - gammaln(k + 1) - gammaln(trials - k + 1)
    rate = rates[:, None]
    return np.asarray(np.exp(ways + xlogy(k, rate) + xlog1py(trials - k, -rate)))
