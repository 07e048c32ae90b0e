"""The fit of `bench/growth.py`: exponents, their intervals, and what the line reaches."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import linregress, t

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))
import growth

SIZES = (8, 16, 32, 64, 128)


def test_a_power_is_found_and_reached_exactly() -> None:
    line = growth.line(SIZES, [0.01 * size**2.5 for size in SIZES])
    assert line.exponent == pytest.approx(2.5)
    assert line.high - line.low < 1e-6
    assert line.reaches(60.0) == pytest.approx((60 / 0.01) ** (1 / 2.5), rel=1e-2)


def test_the_interval_is_that_of_scipy() -> None:
    draw = np.random.default_rng(0)
    seconds = [0.1 * size**1.4 * float(np.exp(0.2 * draw.normal())) for size in SIZES]
    line = growth.line(SIZES, seconds)
    theirs = linregress(np.log(SIZES), np.log(seconds))
    half = t.ppf(0.975, len(SIZES) - 2) * theirs.stderr
    assert line.exponent == pytest.approx(theirs.slope)
    assert (line.low, line.high) == pytest.approx((theirs.slope - half, theirs.slope + half))
    assert line.level == pytest.approx(theirs.intercept)


def test_what_does_not_grow_reaches_nothing() -> None:
    assert growth.line(SIZES, [1.0, 1.1, 0.9, 1.1, 0.95]).reaches(60.0) is None
    assert growth.line(SIZES, [1e-6 * size**0.5 for size in SIZES]).reaches(3600.0) is None


def test_a_line_tells_seconds_memory_and_work() -> None:
    points = {}
    for size in (6, 8, 11, 15):
        seconds = 1e-3 * size**3
        runs = [growth.Point(seconds * 1.5, 10.0 * size, 0.06), growth.Point(seconds, 99, 0.05)]
        points[size] = runs
    found = growth.grown("bound nodes", points)
    assert found["exponent"] == 3.0
    assert found["minute"] == pytest.approx(60_000 ** (1 / 3), abs=0.1)
    assert found["hour"] == pytest.approx(3_600_000 ** (1 / 3), abs=0.1)
    assert found["memory_exponent"] is not None
    assert found["work"] == pytest.approx(15**3 * 1e-3 / 0.05)
    (row,) = growth.table([found]).splitlines()[2:]
    assert row.startswith("| bound nodes | 6, 8, 11, 15 |")


def test_a_call_is_measured_in_its_own_process() -> None:
    point = growth.apart("record batch", growth.CASES["record batch"].sizes[1])
    assert point.seconds > 0
    assert point.yard > 0
