"""Holm's step-down procedure: several tests share one false-positive probability (Holm 1979).

The smallest of m p-values is compared with alpha / m, the next with alpha / (m - 1), up to the
first that is not rejected, however the tests depend on each other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence


def adjusted(p: Sequence[float]) -> list[float]:
    """Return adjusted p-values.

    A hypothesis is rejected at level alpha if its value is at most alpha.
    """
    values = [0.0] * len(p)
    largest = 0.0
    for place, remaining in _ascending(p):
        # The procedure stops at the first value that is not rejected, so no value may be smaller
        # than the previous one.
        largest = max(largest, min(1.0, p[place] * remaining))
        values[place] = largest
    return values


def rejected(p: Sequence[float], alpha: float) -> frozenset[int]:
    """Return the hypotheses that are rejected, with probability alpha of any false rejection.

    This divides alpha whereas `adjusted` multiplies p, so they may differ by a rounding error.
    """
    found = set[int]()
    for place, remaining in _ascending(p):
        if p[place] > alpha / remaining:
            break
        found.add(place)
    return frozenset(found)


def _ascending(p: Sequence[float]) -> Iterator[tuple[int, int]]:
    order = sorted(range(len(p)), key=p.__getitem__)
    for rank, place in enumerate(order):
        yield place, len(p) - rank
