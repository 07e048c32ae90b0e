"""Numbers that occur more than once: in another order, with other signs, or on a lattice."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.float64]
Places: TypeAlias = NDArray[np.int64]
Where: TypeAlias = Literal["anywhere", "in one draw", "in one coordinate", "in two draws"]

# From the most specific cause: a lattice, a draw that is sent again, and then anything else.
WHERE: tuple[Where, ...] = ("in one draw", "in two draws", "in one coordinate", "anywhere")
# Two independent continuous numbers are almost never equal. Numbers of noise are equal in size if a
# draw is sent again, whatever was done to its order and signs, if numbers are taken from a table,
# and if they lie on a lattice, such as that of bfloat16. The test needs no idea of how.
#
# If x has a density of at most f, it lies within t of one of k earlier numbers with a probability
# of at most 2 t f k, whatever these are. The numbers that do are therefore at most as many as
# independent events with these probabilities, whose sum L is at most their expected number, and
# P[at least m of them] <= exp(m - L - m log(m / L)) for m > L (Chernoff). The size of a normal
# number has a density of at most sqrt(2 / pi), and an unknown shift does not increase it.

DENSITY = math.sqrt(2 / math.pi)  # of |x|, at 0
# Distances within which numbers count as equal: the first one in rounding errors of a number, so
# that the grid of the messages adds at most a quarter to the probability, and each following one
# relative to the one before. All are choices, also how many there are, and at most how many pairs
# of numbers are expected within a distance (a second).
NEAR = 4.0
WIDER = 8.0
SCALES = 4
MOST = 1 << 22


@dataclass(frozen=True)
class _Numbers:
    """Sizes of numbers of several draws."""

    size: Floats  # (n,) their sizes, by draw
    draw: Places  # (n,) the draw of each
    coordinate: Places  # (n,) the coordinate of each
    rounding: float  # bound of the rounding error of each
    density: float  # bound of the density of a size

    def within(self, distance: float) -> float:
        """Return a bound of the probability that a number is this close to an earlier one."""
        return 2 * self.density * (distance + self.rounding)


# More equal numbers than independent ones have: which numbers were compared with each other, or the
# two draws if only two were; how many of them equal an earlier one; how many were compared; and a
# bound of the expected count.
TiedNumbers: TypeAlias = tuple[Where | tuple[int, int], int, int, float]


def equal(
    size: Floats,
    draw: Places,
    coordinate: Places,
    rounding: float,
    level: float,
    density: float = DENSITY,
) -> TiedNumbers | None:
    """Return the first excess of equal sizes of numbers (n,), ordered by draw, or None."""
    numbers = _Numbers(size, draw, coordinate, rounding, density)
    each = level / (len(WHERE) * SCALES)
    for distance in _distances(numbers):
        first, second = _pairs(numbers.size, distance)
        for tie in _excesses(numbers, first, second, distance, each):
            return tie
    return None


def log_chance(count: float, expected: float) -> float:
    """Return a bound of the log probability of at least `count` events.

    Args:
        expected: bound of their expected number; each is independent of the others, or at most as
            likely whatever the others are.
    """
    if count <= expected:
        return 0.0
    if not expected:
        return -math.inf
    return count - expected - count * math.log(count / expected)


def _distances(numbers: _Numbers) -> Iterator[float]:
    """Yield distances within which few enough pairs of independent numbers are expected."""
    distance = NEAR * numbers.rounding
    for _ in range(SCALES):
        if numbers.within(distance) * len(numbers.size) ** 2 / 2 > MOST:
            return
        yield distance
        distance *= WIDER


def _pairs(size: Floats, distance: float) -> tuple[Places, Places]:
    """Return pairs of numbers that are this close: the earlier and the later of each.

    On a coarse lattice there are too many, and only some are returned.
    """
    order = np.argsort(size, kind="stable")
    ordered = size[order]
    first: list[Places] = []
    second: list[Places] = []
    found = 0
    for apart in range(1, len(size)):
        near = np.flatnonzero(ordered[apart:] - ordered[:-apart] <= distance)
        found += len(near)
        if not len(near) or found > 2 * MOST:
            break
        one, other = order[near], order[near + apart]
        first.append(np.minimum(one, other))
        second.append(np.maximum(one, other))
    if not first:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    return np.concatenate(first), np.concatenate(second)


def _excesses(
    numbers: _Numbers, first: Places, second: Places, distance: float, level: float
) -> Iterator[TiedNumbers]:
    within = numbers.within(distance)
    groups = {
        "in one draw": numbers.draw,
        "in one coordinate": numbers.coordinate,
        "anywhere": np.zeros_like(numbers.draw),
    }
    for where in WHERE:
        if where == "in two draws":
            yield from _in_two_draws(numbers, first, second, within, level)
            continue
        group = groups[where]
        count = len(np.unique(second[group[first] == group[second]]))
        _, sizes = np.unique(group, return_counts=True)
        expected = within * float((sizes * (sizes - 1.0)).sum()) / 2
        if log_chance(count, expected) < math.log(level):
            yield where, count, len(group), expected


def _in_two_draws(
    numbers: _Numbers, first: Places, second: Places, within: float, level: float
) -> Iterator[TiedNumbers]:
    one, other = numbers.draw[first], numbers.draw[second]
    apart = one != other
    draws, sizes = np.unique(numbers.draw, return_counts=True)
    if len(draws) < 2 or not apart.any():
        return
    # Numbers are ordered by draw, so that the later number of a pair is of the later draw.
    many = int(draws.max()) + 1
    pair = one[apart] * many + other[apart]
    hits = np.unique(np.stack([pair, second[apart]]), axis=1)[0]
    keys, counts = np.unique(hits, return_counts=True)
    size_of = dict(zip(draws.tolist(), sizes.tolist(), strict=True))
    tests = len(draws) * (len(draws) - 1) / 2
    for at in np.argsort(-counts)[:1]:
        earlier, later = divmod(int(keys[at]), many)
        expected = within * size_of[earlier] * size_of[later]
        if log_chance(int(counts[at]), expected) < math.log(level / tests):
            yield (earlier, later), int(counts[at]), size_of[later], expected
