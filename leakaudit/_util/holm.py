"""Holm's step-down procedure: several tests share one false-positive probability (Holm 1979).

Testing m hypotheses at level alpha / m each (Bonferroni) keeps the probability of any false
rejection at alpha or below, however the tests depend on each other. Holm's procedure keeps the same
guarantee and rejects more. It visits the p-values in ascending order: the smallest is compared with
alpha / m, the next with alpha / (m - 1), and so on. It stops at the first one that is not rejected,
because only the hypotheses that are still open can be true.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence


def adjusted(p: Sequence[float]) -> list[float]:
    """Return adjusted p-values.

    A hypothesis is rejected at level alpha if its adjusted value is at most alpha.
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
    """Return the hypotheses that are rejected at a given level.

    This divides alpha whereas `adjusted` multiplies p, so the two may differ if p * m and alpha
    differ by a rounding error.

    Args:
        alpha: probability of at least one false rejection, over all hypotheses.
    """
    found = set[int]()
    for place, remaining in _ascending(p):
        if p[place] > alpha / remaining:
            break
        found.add(place)
    return frozenset(found)


def _ascending(p: Sequence[float]) -> Iterator[tuple[int, int]]:
    """Yield the index of each p-value, smallest first, and the number of open hypotheses."""
    order = sorted(range(len(p)), key=p.__getitem__)
    for rank, place in enumerate(order):
        yield place, len(p) - rank
