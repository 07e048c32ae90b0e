"""Constants of a program, recovered from measured values: programs use round numbers."""

from __future__ import annotations

DIGITS = 17  # give back every float exactly


def shortest(value: float, near: float) -> float:
    """Return a value in the fewest significant digits that agree with a measurement.

    Args:
        value: that was measured.
        near: relative distance within which digits agree.
    """
    for digits in range(1, DIGITS):
        rounded = float(f"{value:.{digits}g}")
        if abs(rounded - value) <= near * abs(value):
            return rounded
    return float(f"{value:.{DIGITS}g}")
