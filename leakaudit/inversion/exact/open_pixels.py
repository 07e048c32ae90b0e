"""Pixels that few equations show: what remains possible for them on the grid, by exhaustion."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leakaudit.inversion.exact import lattice_points

# Where an image is plain, few outputs of the first convolution are positive, and there are fewer
# equations than pixels. Real numbers then stay open. But pixels are whole levels from 0 to 255, and
# ten equations between twelve of them, each known to 1e-3 of a level, usually have one solution.
#
# The search goes from place to place. A *window* is a few neighbouring positions of the
# convolution. Its m equations A p = y, in units of their errors' standard deviation, leave the true
# levels p of its n unknown pixels in the ellipsoid
#
#     |A p - y|^2 / t^2 + |p - 127.5|^2 / (n 127.5^2) <= 2,
#
# because the norm of the errors is at most t = sqrt(m) + `TAIL`, and pixels are between 0 and 255.
# The projection of the ellipsoid onto some of the pixels contains their true levels, whatever the
# others are. If only one integer point lies in it (`lattice_points`), these levels are proven. They
# are known numbers from then on, and neighbouring windows have fewer unknowns.
#
# By induction, every level that is returned is right if the errors are of the stated size, and if
# no image on the grid has these features, some window contains no integer point
# (`ProvenPixels.fill` is false). Nothing else is assumed: no other sample, no gradient, no prior of
# natural images.

Array = NDArray[np.float64]
Indices = NDArray[np.intp]
Mask = NDArray[np.bool_]
Place = tuple[int, int]

# Maximum norm of the m errors of a window: sqrt(m) and this, in standard deviations. Independent
# Gaussian errors exceed it with probability exp(-18).
TAIL = 6.0

# Maximum part of this that the errors may be seen to use in the end. The rest is margin for errors
# that are neither independent nor Gaussian.
USED = 0.5

# Errors in the rest of an image are taken to be at most this many times the largest ones that are
# seen in its windows without unknown pixels, if there are enough of these. Stated errors include
# what the rounding of models might do, and are often ten times too large.
WORSE = 4.0
ENOUGH = 24
MANY = 24

# Smallest share of the stated errors. Below it, the rounding of float64 would matter.
SHARE = 1e-3

# Number of positions on each side of the one in the middle of a window. Small windows take a tenth
# of the time of wide ones, which come second.
SMALL = 1
WIDE = 2

# Logarithm of an ellipsoid's volume, the expected number of integer points in it by chance, above
# which it is not searched. A few points still prove the pixels in which they agree: at -2, 60
# pixels of a sample with slopes of 1e-7 stayed open, at 0 none.
CROWDED = 1.0

# Maximum number of pixels that are searched together, and of steps of their search.
TOGETHER = 40
MOST = 4000

# What the solution of linear equations may be off by rounding, in levels.
ROUNDING = 1e-6


class _Contradiction(Exception):
    """No image on the grid satisfies the equations."""


@dataclass(frozen=True)
class _Ellipsoid:
    """All p with |factor (p - centre)| <= radius contain the true levels of some pixels."""

    pixels: Indices  # (k,) which ones
    factor: Array  # (k, k) upper triangular
    centre: Array  # (k,) levels
    radius: float  # at least 0

    @property
    def crowd(self) -> float:
        """Logarithm of the volume: how many integer points it contains by chance."""
        k = len(self.centre)
        ball = k / 2 * math.log(math.pi) - math.lgamma(k / 2 + 1)
        size = k * math.log(max(self.radius, np.finfo(np.float64).tiny))
        return ball + size - float(np.log(np.abs(np.diag(self.factor))).sum())

    @property
    def box(self) -> tuple[Array, Array]:
        """The smallest and the largest value (k,) of every coordinate."""
        inverse = np.linalg.inv(self.factor)
        spread = self.radius * np.linalg.norm(inverse, axis=1)
        return self.centre - spread, self.centre + spread


class ProvenPixels:
    """Linear equations between the pixels of an image, and the pixels that they prove.

    Attributes:
        matrix: (m, n) sparse, in levels and in units of the errors' standard deviation.
        right: (m,) right sides in the same units.
        value: (n,) levels of the pixels, valid where `known` (n,).
    """

    def __init__(
        self, matrix: Any, right: Array, place: Indices, pixels: Indices, levels: int
    ) -> None:
        """Begin with no known pixel.

        `place` (m,) has the index of the convolution's position that each equation belongs to, and
        `pixels` (h, w, k) the pixels that each position covers, -1 for those outside the image.
        """
        self.matrix = matrix
        self.right = right
        self.value: Array = np.zeros(matrix.shape[1])
        self.known: Mask = np.zeros(matrix.shape[1], dtype=bool)
        self.levels = levels
        self._place = place
        self._pixels = pixels
        self._share = 1.0  # of the stated errors
        self._shape: Place = (pixels.shape[0], pixels.shape[1])
        order = np.argsort(place, kind="stable")
        ends = np.searchsorted(place[order], np.arange(math.prod(self._shape) + 1))
        self._rows = [order[a:b] for a, b in pairwise(ends.tolist())]

    def weighted(self, matrix: Any, right: Array) -> ProvenPixels:
        """Return the same equations in other units."""
        return ProvenPixels(matrix, right, self._place, self._pixels, self.levels)

    def fill(self) -> bool:
        """Prove as many pixels as possible; False if no image satisfies the equations."""
        try:
            self._sweep()
            seen = self._seen()
            if self.known.all() or len(seen) < ENOUGH:
                return True
            share = max(SHARE, WORSE * max(seen))
            if share < 1:
                self._share *= share
                self._sweep()
        except _Contradiction:
            return False
        return True

    def settle(self) -> bool:
        """Prove those pixels that the equations of a window leave one level each, as `fill`."""
        try:
            self._settle()
        except _Contradiction:
            return False
        return True

    def settled(self) -> Mask:
        """Which equations (m,) have no unknown pixel."""
        unknown: Array = abs(self.matrix) @ (~self.known).astype(np.float64)
        found: Mask = unknown == 0
        return found

    def fits(self) -> bool:
        """Whether the proven levels leave errors of the assumed size in every window."""
        return max(self._seen(fewest=1), default=0.0) <= USED

    def _sweep(self) -> None:
        """Prove pixels one by one, then together."""
        self._settle()
        while not self.known.all():
            if self._search(SMALL):
                continue
            # Without a known pixel to start from, wide windows do not help.
            if not self.known.any() or not self._search(WIDE):
                break

    def _settle(self) -> None:
        for place in self._places():
            if len(self._unknown(place)):
                self._narrow(self._window(place, SMALL))

    def _seen(self, fewest: int = MANY) -> list[float]:
        """Return the errors of windows without unknown pixels, relative to the largest norm."""
        settled = self.settled()
        errors = (self.matrix @ self.value - self.right) / self._share
        shares = []
        for place in self._places():
            rows = self._near_rows(place, SMALL)
            rows = rows[settled[rows]]
            if len(rows) >= fewest:
                norm = float(np.linalg.norm(errors[rows]))
                shares.append(norm / (math.sqrt(len(rows)) + TAIL))
        return shares

    def _search(self, reach: int) -> bool:
        """Search the integer points of one position after the other, the least crowded first."""
        crowds = {place: self._crowd(place, reach) for place in self._places()}
        stale: set[Place] = set()
        progress = False
        while True:
            best = min(crowds, key=lambda place: crowds[place])
            if crowds[best] > CROWDED:
                if not stale:
                    return progress
                # More is known than when these were computed.
                for place in stale:
                    crowds[place] = self._crowd(place, reach)
                stale.clear()
                continue
            if not self._enumerate(best, reach):
                crowds[best] = math.inf
                continue
            progress = True
            if reach == WIDE:
                return True
            near = self._near(best, 1)
            for place in near:
                crowds[place] = self._crowd(place, reach)
            stale.update(self._near(best, 2 * reach))
            stale.difference_update(near)

    def _crowd(self, place: Place, reach: int) -> float:
        """Return how crowded the unknown pixels of a position are; infinity to leave them out."""
        pixels = self._unknown(place)
        if not 0 < len(pixels) <= TOGETHER:
            return math.inf
        return self._window(place, reach, pixels).crowd

    def _enumerate(self, place: Place, reach: int) -> int:
        """Prove pixels of a position by all integer points; return how many."""
        found = self._window(place, reach, self._unknown(place))
        points = lattice_points.inside(found.factor, found.centre, found.radius, MOST)
        if points is None:
            return 0
        points = points[((points >= 0) & (points <= self.levels)).all(axis=1)]
        if not len(points):
            raise _Contradiction
        return self._prove(found.pixels, points.min(axis=0), points.max(axis=0))

    def _narrow(self, found: _Ellipsoid) -> None:
        """Prove the pixels of which one level is left."""
        low, high = found.box
        levels = self.levels
        least = np.ceil(low - ROUNDING).clip(0, None)
        most = np.floor(high + ROUNDING).clip(None, levels)
        if bool((least > most).any()):
            raise _Contradiction
        self._prove(found.pixels, least, most)

    def _prove(self, pixels: Indices, least: Array | Indices, most: Array | Indices) -> int:
        """Accept the pixels whose least level is their largest one; return how many."""
        one = least == most
        self.value[pixels[one]] = least[one]
        self.known[pixels[one]] = True
        return int(one.sum())

    def _window(self, place: Place, reach: int, pixels: Indices | None = None) -> _Ellipsoid:
        """Project the ellipsoid of a window onto some of its unknown pixels (k,), or onto all."""
        rows = self._near_rows(place, reach)
        block = self.matrix[rows]
        covered = np.union1d(block.indices, self._unknown(place) if pixels is None else pixels)
        known = self.known[covered]
        dense = block[:, covered].toarray()
        right = self.right[rows] - dense[:, known] @ self.value[covered[known]]
        free = covered[~known]
        # The pixels of interest come last: there, R of a QR decomposition belongs to them alone.
        mine = np.isin(free, free if pixels is None else pixels)
        order = np.argsort(mine, kind="stable")
        matrix = dense[:, ~known][:, order]
        telling = matrix.any(axis=1)
        return self._projected(matrix[telling], right[telling], free[order], int(mine.sum()))

    def _projected(self, matrix: Array, right: Array, pixels: Indices, count: int) -> _Ellipsoid:
        """Project the ellipsoid of equations (m, n) onto the last pixels."""
        m, n = matrix.shape
        allowed = self._share * (math.sqrt(m) + TAIL)
        half = self.levels / 2
        spread = half * math.sqrt(n)
        system = np.zeros((m + n, n + 1))
        system[:m, :n] = matrix / allowed
        system[:m, n] = right / allowed
        system[m:, :n] = np.eye(n) / spread
        system[m:, n] = half / spread
        r: Array = np.asarray(np.linalg.qr(system, mode="r"), dtype=np.float64)
        squares = 2.0
        if len(r) > n:
            squares -= float(r[n, n] ** 2)
        if squares < 0:
            raise _Contradiction
        factor = r[n - count : n, n - count : n]
        centre: Array = np.linalg.solve(factor, r[n - count : n, n]).astype(np.float64)
        return _Ellipsoid(pixels[n - count :], factor, centre, math.sqrt(squares))

    def _places(self) -> list[Place]:
        return [(i, j) for i in range(self._shape[0]) for j in range(self._shape[1])]

    def _near(self, place: Place, reach: int) -> list[Place]:
        i, j = place
        high, wide = self._shape
        rows = range(max(0, i - reach), min(high, i + reach + 1))
        columns = range(max(0, j - reach), min(wide, j + reach + 1))
        return [(a, b) for a in rows for b in columns]

    def _near_rows(self, place: Place, reach: int) -> Indices:
        wide = self._shape[1]
        return np.concatenate([self._rows[i * wide + j] for i, j in self._near(place, reach)])

    def _unknown(self, place: Place) -> Indices:
        own: Indices = self._pixels[place]
        own = own[own >= 0]
        return own[~self.known[own]]
