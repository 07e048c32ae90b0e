"""What a gate counts: numbers that grow with what an attack got, one a seed."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from leakaudit.errors import LeakauditError

if TYPE_CHECKING:
    from leakaudit.scoring.scoring import Score

VERSION = 1  # of the definitions below; another one makes a baseline not comparable
AGGREGATES = ("worst", "p95", "mean")
CAP = 200.0  # dB


@dataclass(frozen=True)
class Measure:
    """A number of one run. share: it is the share of the records, else the worst record's. tolerance: growth that is none."""

    unit: str
    share: bool
    tolerance: float
    means: str


BETTER = "0 unless it is nearer than the mean of all other records, which anybody could guess"
MEASURES = {
    "gain": Measure(
        "dB",
        False,
        1.0,
        "20 log10 of how much nearer than that mean the best record was got, from 0 to 200",
    ),
    "psnr": Measure("dB", False, 1.0, f"PSNR of the best record, {BETTER}"),
    "ssim": Measure("", False, 0.05, f"SSIM of the best record, {BETTER}"),
    "recovered": Measure(
        "", False, 0.05, f"1 - |found - true| / |true| of the best record, {BETTER}"
    ),
    "exact": Measure("", True, 0.0, "share of the records that were recovered bit for bit"),
    "identified": Measure(
        "",
        True,
        0.1,
        "share of the records whose reconstruction is nearer to them than to every other record",
    ),
    "labels": Measure("", True, 0.1, "share of the records' labels that were found"),
}


def values(guess: Score, found: Score | None) -> dict[str, list[float]]:
    """Return each measure of every record of a node; guess: the score of the mean of all others; found: None where nothing was.

    What this data has no measure of is left out.
    """
    size = len(guess.matched)
    absent = {name for name in ("psnr", "ssim", "exact") if getattr(guess, name) is None}
    out = {name: [0.0] * size for name in MEASURES if name not in absent}
    if found is None:
        return out
    gains = [
        _gain(g, f)
        for g, f in zip(
            guess.relative_error or (), found.relative_error or (None,) * size, strict=True
        )
    ]
    for name in ("psnr", "ssim"):
        if (column := getattr(found, name)) is not None:
            out[name] = [
                max(0.0, v or 0.0) * (gain > 0) for v, gain in zip(column, gains, strict=True)
            ]
    out["gain"] = gains
    out["recovered"] = [
        max(0.0, 1.0 - (v or 0.0)) * (gain > 0)
        for v, gain in zip(found.relative_error or (None,) * size, gains, strict=True)
    ]
    for name in ("exact", "identified"):
        if (yes := getattr(found, name)) is not None:
            out[name] = [float(bool(v)) for v in yes]
    out["labels"] = [found.labels_found or 0.0] * size
    return out


def _gain(guess: float | None, found: float | None) -> float:
    """Return 20 log10 of the ratio of two errors, from 0 to `CAP`; 0 where nothing was found."""
    if guess is None or found is None or not found < guess:
        return 0.0
    return min(CAP, 20 * math.log10(guess / found)) if found else CAP


def sample(name: str, records: Sequence[float]) -> float:
    """Return the number of one run: the share of its records, or the worst of them."""
    if not records:
        raise LeakauditError(
            f"{name}: expected at least one record of an attacked node in the truth, got none"
        )
    return statistics.fmean(records) if MEASURES[name].share else max(records)


def aggregate(how: str, samples: Sequence[float]) -> float:
    """Return the worst sample, their mean, or the 95th percentile (the smallest one that 95 % do not exceed)."""
    ordered = sorted(samples)
    if how == "mean":
        return statistics.fmean(ordered)
    return ordered[-1] if how == "worst" else ordered[-(len(ordered) * 5 // 100) - 1]


def text(name: str, value: float) -> str:
    """Write a value with its unit."""
    measure = MEASURES.get(name)
    if measure is None:
        return f"{value:.4g}"
    if measure.share:
        return f"{value:.1%}"
    return f"{value:.1f} {measure.unit}" if measure.unit else f"{value:.3f}"
