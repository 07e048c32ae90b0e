"""The exact privacy loss of noise on single numbers, composed numerically.

The loss of a release is log p(z) / p(z - shift). Losses of independent releases add, so that their
distributions convolve, also if a release is chosen by the results of earlier ones (Sommer, Meiser,
Mohammadi 2019). Each distribution is put on a grid by moving the probability of an interval to its
two ends such that both data sets keep theirs (Doroshenko et al. 2022, connect the dots): this never
makes a delta smaller. Truncated noise also has outcomes that identify the data set: losses of
infinity, which are kept apart.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.special import erf, erfc, logsumexp

from leakaudit.theory.bounds.guarantee import (
    Adjacency,
    Guarantee,
    at_least_zero,
    greatest_power,
    least_epsilon,
    probability,
)
from leakaudit.theory.bounds.mechanisms import Additive

Floats = NDArray[np.float64]

POINTS = 1 << 18  # of the grid on which losses are added: 2 MB, .05 s; a choice
SAMPLES = 1 << 12  # intervals with which the range of the sum is estimated; a choice
TAIL = -35.0  # logarithm of the probability beyond the grid, 6e-16 on each side
DEVIATIONS = 10.0  # of normal noise, beyond which its loss counts as infinite: probability 1e-23
# More than the tails and the rounding of the Fourier transforms, in units of delta; the rounding
# grows with the number of releases.
ROUNDING = 1e-12
MANY = 1000


@dataclass(frozen=True)
class Losses(Guarantee):
    """Releases of single numbers with additive noise; a delta is at most 1e-12 too large.

    Attributes:
        releases: (noise, largest change of the number, how often) of each kind of release.
        adjacency: The pairs of data sets that the changes compare.
        least: Whether to round to the other side, so that the changes attain every value.
    """

    releases: tuple[tuple[Additive, float, int], ...]
    adjacency: Adjacency
    least: bool = False

    def delta(self, epsilon: float) -> float:
        """Upper bound on the smallest delta, over both directions, which are equal."""
        at_least_zero("epsilon", epsilon)
        rest = 0.0
        if epsilon < math.inf:
            losses, above, discounted = self._table
            k = int(np.searchsorted(losses, epsilon, side="right"))
            if k < len(losses):  # sum over losses l above epsilon of p (1 - e^(epsilon - l))
                rest = above[k] - math.exp(epsilon - losses[k]) * discounted[k]
        rounding = ROUNDING * (1 + sum(times for _, _, times in self.releases) / MANY)
        total = self.lost + (1 - self.lost) * max(0.0, rest)
        if self.least:
            return max(0.0, total - rounding)
        return min(1.0, total + rounding)

    def epsilon(self, delta: float) -> float:
        """Inverse of `delta`; inf below the probability of an outcome that identifies the data."""
        return least_epsilon(self.delta, probability("delta", delta))

    def power(self, false_positives: float) -> float:
        """The bound of `guarantee.greatest_power`."""
        return greatest_power(self.delta, false_positives)

    def plus(self, other: Losses) -> Losses:
        """The releases of both."""
        count: Counter[tuple[Additive, float]] = Counter()
        for noise, shift, times in self.releases + other.releases:
            count[noise, shift] += times
        kinds = tuple((*one, times) for one, times in count.items())
        return Losses(kinds, self.adjacency, self.least or other.least)

    @cached_property
    def lost(self) -> float:
        """The probability that some outcome identifies the data set: 1 - prod (1 - q_i)."""
        total = 0.0
        for noise, shift, times in self.releases:
            identified = noise.delta(math.inf, shift)
            if identified == 1:
                return 1.0
            total += times * math.log1p(-identified)
        return -math.expm1(total)

    @cached_property
    def _table(self) -> tuple[Floats, Floats, Floats]:
        """Losses l above 0 (m,), sums of their p from each on, and sums of p e^(l_k - l)."""
        moving = [one for one in self.releases if one[1] > 0]
        if not moving or self.lost == 1:
            return np.zeros(0), np.zeros(0), np.zeros(0)
        half = POINTS // 2
        step = _range(moving) / half
        spectrum: NDArray[np.complex128] = np.ones(half + 1, np.complex128)
        for noise, shift, times in moving:
            losses, chance = _on_grid(noise, shift, step, least=self.least)
            places = np.rint(losses / step).astype(np.int64) % POINTS
            circle = np.zeros(POINTS)
            np.add.at(circle, places, chance)
            spectrum *= np.fft.rfft(circle) ** times
        total = np.fft.irfft(spectrum, POINTS)[:half].clip(min=0)
        losses = step * np.arange(half, dtype=np.float64)
        above = np.cumsum(total[::-1])[::-1]
        return losses, above, _discounted(total, step)


def _discounted(chance: Floats, step: float) -> Floats:
    """Return d_k = sum_(j >= k) p_j e^(-step (j - k))."""
    from scipy.signal import lfilter  # slow to import

    back = lfilter([1.0], [1.0, -math.exp(-step)], chance[::-1])
    return np.asarray(back[::-1])


def _range(releases: Sequence[tuple[Additive, float, int]]) -> float:
    """Return a loss that the sum exceeds, or falls below its negative, with probability e^TAIL.

    It is Chernoff's bound at the best of some exponents, and at most the sum of the largest losses.
    """
    coarse: list[tuple[Floats, Floats, int]] = []
    most = 0.0
    for noise, shift, times in releases:
        largest = _largest(noise, shift)
        losses, chance = _on_grid(noise, shift, largest / (SAMPLES // 2))
        coarse.append((losses, chance, times))
        most += largest * times * (1 + 4 / SAMPLES)
    best = most
    for exponent in np.geomspace(1e-3 / most, 1e3 / most * len(releases) + 1e3, 200):
        logarithm = 0.0
        for losses, chance, times in coarse:
            moments = [logsumexp(sign * exponent * losses, b=chance) for sign in (1, -1)]
            logarithm += times * float(max(moments))
        best = min(best, (logarithm - TAIL) / float(exponent))
    return best * (1 + 4 / SAMPLES)


def _largest(noise: Additive, shift: float) -> float:
    """Return the largest finite loss, or that of the last deviation of normal noise."""
    if noise.power == 1:
        return min(shift, 2 * noise.width - shift) / noise.scale
    edge = min(noise.width, shift + DEVIATIONS * noise.scale)
    return (2 * edge - shift) * shift / noise.scale**2


def _on_grid(
    noise: Additive, shift: float, step: float, *, least: bool = False
) -> tuple[Floats, Floats]:
    """Return losses (m,), multiples of a step, and their probabilities (m,) if no loss is inf."""
    count = max(1, math.ceil(_largest(noise, shift) / step))
    ends: Floats = step * np.arange(-count, count + 1, dtype=np.float64)
    start = shift - noise.width
    # The loss falls with z: it exceeds an end below its threshold.
    z = np.clip(_thresholds(noise, shift, ends), start, noise.width)
    if noise.width == math.inf:
        here = _below(noise, z)
    else:
        here = _below(noise, z) - noise.below(start)
    there = _below(noise, z - shift)
    # The ends hold everything: losses beyond them have no, or for normal noise a tiny, probability.
    here[0] = 1 - noise.below(start)
    here[-1] = 0.0
    there[-1] = 0.0
    mine = np.maximum(here[:-1] - here[1:], 0) / here[0]
    other = np.maximum(there[:-1] - there[1:], 0) / here[0]
    if least:  # every loss is rounded down
        return ends, np.append(mine, 0.0)
    # mine = low + high, other = low e^-l + high e^-(l + step)
    with np.errstate(divide="ignore", over="ignore"):
        scaled = np.exp(np.log(other) + ends[:-1])
    high = np.clip((mine - scaled) / -math.expm1(-step), 0, mine)
    chance = np.zeros(len(ends))
    chance[1:] += high
    chance[:-1] += mine - high
    return ends, chance


def _thresholds(noise: Additive, shift: float, losses: Floats) -> Floats:
    """Return the largest z (m,) with a loss of at least each of some losses (m,)."""
    if noise.power == 2:
        return np.asarray((shift - losses * noise.scale * (noise.scale / shift)) / 2)
    most = shift / noise.scale
    z = (shift - losses * noise.scale) / 2
    return np.where(losses >= most, -math.inf, np.where(losses < -most, math.inf, z))


def _below(noise: Additive, z: Floats) -> Floats:
    """Return the distribution function at several z (m,): `Additive.below`."""
    w = noise.width / noise.scale
    u = np.minimum(np.abs(z), noise.width) / noise.scale
    if noise.power == 1:
        cut = math.exp(-w)  # e^-u - e^-w is e^-u without truncation, also at an infinite z
        tail = np.maximum(np.exp(-u) - cut, 0) / (2 * -math.expm1(-w))
    else:
        tail = (erfc(u) - math.erfc(w)) / (2 * erf(w))
    return np.where(z > 0, 1 - tail, tail)
