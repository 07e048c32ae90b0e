"""The measures of a gate: numbers that grow with what an attack recovers, one per seed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from leakaudit._util import averages
from leakaudit.core.errors import LeakauditError
from leakaudit.core.quantities import MEASURES, QUANTITIES

if TYPE_CHECKING:
    from leakaudit.scoring.scoring import Score

VERSION = 1  # of the definitions below; a baseline of another version is not comparable
AGGREGATES = ("worst", "p95", "mean")
# Largest gain, in dB, so that the mean with an exact recovery is finite. A choice: float64 resolves
# a relative error of 1e-16, which is 320 dB below 1, and float32 one of 6e-8, which is 144 dB.
CAP = 200.0


def values(guess: Score, found: Score | None) -> dict[str, list[float]]:
    """Return one value per record of a node, by measure; absent are those that the data lack.

    `found` is the score of the reconstruction; None if there is none.
    """
    size = len(guess.matched)
    of_best = [name for name in QUANTITIES if QUANTITIES[name].tolerance]
    absent = {name for name in (*of_best, "exact") if getattr(guess, name) is None}
    out = {name: [0.0] * size for name in MEASURES if name not in absent}
    if found is None:
        return out
    nothing = (None,) * size
    errors = found.relative_error or nothing
    guessed = guess.relative_error or ()
    gains = [_gain(g, f) for g, f in zip(guessed, errors, strict=True)]
    out["gain"] = gains
    for name in of_best:
        column = getattr(found, name)
        if column is not None:
            out[name] = _if_nearer([value or 0.0 for value in column], gains)
    out["recovered"] = _if_nearer([1.0 - (error or 0.0) for error in errors], gains)
    for name, matches in (("exact", found.exact), ("identified", found.identified)):
        if matches is not None:
            out[name] = [float(bool(match)) for match in matches]
    out["labels"] = [found.labels_found or 0.0] * size
    return out


def _if_nearer(column: Sequence[float], gains: Sequence[float]) -> list[float]:
    """Return 0 for records that are not closer than a guess, and values of at least 0."""
    return [max(0.0, value) * (gain > 0) for value, gain in zip(column, gains, strict=True)]


def _gain(guess: float | None, found: float | None) -> float:
    """Return 20 log10 of the ratio of two errors, from 0 to `CAP`; 0 if nothing was found."""
    if guess is None or found is None or not found < guess:
        return 0.0
    if not found:
        return CAP
    return min(CAP, 20 * math.log10(guess / found))


def sample(name: str, records: Sequence[float]) -> float:
    """Return the share of a run's records, or the value of the worst one."""
    if not records:
        expected = "expected at least one record of an attacked node in the truth, got none"
        raise LeakauditError(f"{name}: {expected}")
    if MEASURES[name].share:
        return averages.mean(records)
    return max(records)


def aggregate(how: str, samples: Sequence[float]) -> float:
    """Combine the seeds; ``p95`` is the value that 95 % of the samples do not exceed."""
    ordered = sorted(samples)
    if how == "mean":
        return averages.mean(ordered)
    if how == "worst":
        return ordered[-1]
    above = len(ordered) * 5 // 100  # number of samples that may exceed it
    return ordered[-above - 1]
