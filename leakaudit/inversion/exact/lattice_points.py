"""All integer points of an ellipsoid: a search that also proves that there is only one."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

# The points p with |R (p - c)| <= r are found by walking through the coordinates from the last to
# the first (Fincke and Pohst 1985). If the ellipsoid is long and thin, as those of badly determined
# pixels are, almost every partial walk ends in nothing, unless the basis of the integers is changed
# to one in which the ellipsoid is nearly round (Lenstra, Lenstra and Lovasz 1982, `reduced`).

Array = NDArray[np.float64]
Integers = NDArray[np.int64]

# Lovasz's constant. A choice: anything from 0.5 to 1 gives a reduced basis.
SHORTER = 0.9

# Largest part of a basis vector along an earlier one: a half, and some rounding.
LONGEST = 0.51

# Maximum number of exchanges of a reduction, per dimension squared. Those of real pixels need less.
EXCHANGES = 40


# What a radius is enlarged by, relative to it, for the rounding of float64.
EDGE = 1e-9


def reduced(r: Array) -> tuple[Array, Integers]:
    """Change the basis of the integers so that an ellipsoid becomes nearly round.

    For an upper triangular R (n, n), returns another one and a unimodular T: |R T z| is the
    length of z in it.
    """
    n = len(r)
    r = r.copy()
    turn = np.eye(n, dtype=np.int64)
    k = 1
    for _ in range(EXCHANGES * n * n):
        if k >= n:
            break
        _subtract(r, turn, k, k - 1)
        rotated = math.hypot(r[k - 1, k], r[k, k])
        if rotated < math.sqrt(SHORTER) * abs(r[k - 1, k - 1]):
            _exchange(r, turn, k)
            k = max(1, k - 1)
            continue
        _shorten(r, turn, k)
        k += 1
    return r, turn


def _shorten(r: Array, turn: Integers, k: int) -> None:
    """Subtract the basis vectors before k from it until all parts are at most a half."""
    half = LONGEST * np.abs(np.diag(r)[:k])
    while True:
        long = np.flatnonzero(np.abs(r[:k, k]) > half)
        if not len(long):
            break
        _subtract(r, turn, k, int(long[-1]))


def _subtract(r: Array, turn: Integers, k: int, j: int) -> None:
    """Subtract a multiple of basis vector j from basis vector k."""
    times = round(float(r[j, k] / r[j, j]))
    if times:
        r[: j + 1, k] -= times * r[: j + 1, j]
        turn[:, k] -= times * turn[:, j]


def _exchange(r: Array, turn: Integers, k: int) -> None:
    """Exchange basis vectors k - 1 and k, and make R upper triangular again."""
    r[:, [k - 1, k]] = r[:, [k, k - 1]]
    turn[:, [k - 1, k]] = turn[:, [k, k - 1]]
    length = math.hypot(r[k - 1, k - 1], r[k, k - 1])
    cosine = r[k - 1, k - 1] / length
    sine = r[k, k - 1] / length
    rotation = np.array([[cosine, sine], [-sine, cosine]])
    r[k - 1 : k + 1, k - 1 :] = rotation @ r[k - 1 : k + 1, k - 1 :]
    r[k, k - 1] = 0.0


def inside(r: Array, centre: Array, radius: float, most: int) -> Integers | None:
    """Return all integer points (k, n) with |R (p - centre)| <= radius; None if unfinished."""
    n = len(r)
    basis, turn = reduced(r)
    # A centre moved by a whole number keeps the coordinates of the new basis small.
    whole = np.rint(centre)
    shift = np.linalg.solve(turn.astype(np.float64), centre - whole)
    found: list[Integers] = []
    steps = 0
    # Rounding must not lose a point at the end.
    start = (radius * (1 + EDGE)) ** 2
    pending: list[tuple[int, Array, float]] = [(n, np.zeros(n), start)]
    while pending:
        at, z, left = pending.pop()
        if at == 0:
            found.append(turn @ np.rint(z).astype(np.int64) + whole.astype(np.int64))
            continue
        at -= 1
        own = float(basis[at, at])
        middle = float(shift[at] - basis[at, at + 1 :] @ (z[at + 1 :] - shift[at + 1 :]) / own)
        reach = math.sqrt(left) / abs(own)
        first = math.ceil(middle - reach)
        last = math.floor(middle + reach)
        steps += max(1, last - first + 1)
        if steps > most:
            return None
        for value in range(first, last + 1):
            again = z.copy()
            again[at] = value
            rest = left - (own * (value - middle)) ** 2
            pending.append((at, again, max(rest, 0.0)))
    return np.array(found, dtype=np.int64).reshape(len(found), n)
