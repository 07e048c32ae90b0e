"""Recovery of a program's constants from measured values: programs use round numbers."""

from __future__ import annotations

DIGITS = 17  # reproduce every float exactly


def shortest(value: float, near: float) -> float:
    """Return a value with the fewest significant digits that agree with a measurement."""
    for digits in range(1, DIGITS):
        rounded = float(f"{value:.{digits}g}")
        if abs(rounded - value) <= near * abs(value):
            return rounded
    return float(f"{value:.{DIGITS}g}")
