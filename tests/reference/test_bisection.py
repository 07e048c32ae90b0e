"""The one bisection, compared with scipy's root finder and with functions made to mislead it."""

import math
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq
from scipy.special import log_ndtr

from leakaudit._util.bisection import (
    arithmetic,
    bracket,
    bracket_integer,
    crossing,
    crossing_integer,
    geometric,
)
from leakaudit.core.errors import LeakauditError

ROOTS: dict[str, tuple[Callable[[float], float], float, float]] = {
    "cubic": (lambda x: x**3 - 2 * x - 5, 2.0, 3.0),
    "log": (lambda x: math.log(x) - 1e-3, 0.5, 30.0),
    "steep": (lambda x: math.exp(50 * x) - 7.0, -3.0, 3.0),
    "normal tail": (lambda x: float(-log_ndtr(-x)) - 200.0, 0.0, 100.0),
    "tiny": (lambda x: x - 3e-290, 0.0, 1e-280),
    "below zero": (lambda x: x + math.pi, -9.0, -1.0),
}


@pytest.mark.parametrize("name", ROOTS)
def test_both_sides_enclose_the_root_that_brentq_finds(name: str) -> None:
    value, low, high = ROOTS[name]
    least = 4 * 2.0**-52  # the finest relative tolerance that brentq takes
    root = float(brentq(value, low, high, xtol=1e-320, rtol=least, maxiter=5000))
    below = crossing(lambda x: value(x) >= 0, low, high, side="below")
    above = crossing(lambda x: value(x) >= 0, low, high, side="above")
    assert value(below) < 0 <= value(above)
    assert above == math.nextafter(below, math.inf)
    # Near its root, "log" is flat to rounding over 1e-13 of the root; brentq may stop anywhere there.
    assert abs(above - root) <= 1e-13 * abs(root)


@settings(derandomize=True, max_examples=300)
@given(
    size=st.floats(1e-30, 1e300),
    sign=st.sampled_from([-1, 1]),
    below=st.floats(1e-6, 1e6),
    above=st.floats(1e-6, 1e6),
)
def test_a_step_is_enclosed_by_neighbouring_floats(
    size: float, sign: int, below: float, above: float
) -> None:
    at = sign * size
    low = at - below * max(1.0, size)
    high = at + above * max(1.0, size)
    under = crossing(lambda x: x >= at, low, high, side="below")
    over = crossing(lambda x: x >= at, low, high, side="above")
    assert over == at
    assert under == math.nextafter(at, -math.inf)


@settings(derandomize=True, max_examples=200)
@given(at=st.floats(1e-12, 1e12), halvings=st.integers(0, 80))
def test_however_early_it_stops_the_side_is_kept(at: float, halvings: int) -> None:
    def holds(x: float) -> bool:
        return x >= at

    for middle in (arithmetic, geometric):
        ends = (1e-13, 1e13)
        above = crossing(holds, *ends, side="above", halvings=halvings, middle=middle)
        below = crossing(holds, *ends, side="below", halvings=halvings, middle=middle)
        assert below < at <= above


def test_a_tolerance_stops_early_and_keeps_the_side() -> None:
    calls = []

    def holds(x: float) -> bool:
        calls.append(x)
        return x >= math.pi

    above = crossing(holds, 0.0, 8.0, side="above", tolerance=1e-3)
    assert 0 <= above - math.pi <= 1e-3 * above
    assert len(calls) == 12  # 8 / 2^12 is the first width below .1 % of pi


def test_a_flat_stretch_gives_the_end_that_the_condition_names() -> None:
    def stairs(x: float) -> float:
        return float(math.floor(x))

    assert crossing(lambda x: stairs(x) >= 3, 0.0, 10.0, side="above") == 3.0
    assert crossing(lambda x: stairs(x) > 3, 0.0, 10.0, side="above") == 4.0
    assert crossing(lambda x: stairs(x) > 3, 0.0, 10.0, side="below") == math.nextafter(4.0, 0.0)


@pytest.mark.parametrize("broken", [math.inf, math.nan])
def test_a_curve_without_values_at_first_is_inverted_all_the_same(broken: float) -> None:
    # A curve that has no value below 1. Comparisons with NaN are false, so NaN is "not yet enough".
    def curve(x: float) -> float:
        return broken if x < 1 else 1 / x

    found = crossing(lambda x: curve(x) <= 0.25, 0.0, 64.0, side="above")
    assert found == 4.0


def test_a_condition_that_never_changes_gives_the_ends() -> None:
    assert crossing(lambda x: False, 1.0, 2.0, side="above") == 2.0
    assert crossing(lambda x: True, 1.0, 2.0, side="below") == 1.0
    assert crossing(lambda x: False, 1.0, 2.0, side="below") == math.nextafter(2.0, 0.0)
    assert crossing(lambda x: True, 1.0, 2.0, side="above") == math.nextafter(1.0, 2.0)


def test_infinite_and_empty_brackets() -> None:
    def refused(x: float) -> bool:
        raise AssertionError("nothing to evaluate")

    assert crossing(refused, 0.0, math.inf, side="above") == math.inf
    assert crossing(refused, 0.0, math.inf, side="below") == 0.0
    assert crossing(refused, -math.inf, math.inf, side="above") == math.inf
    assert crossing(refused, 3.0, 3.0, side="below") == 3.0
    for low, high in ((2.0, 1.0), (math.nan, 1.0), (0.0, math.nan)):
        with pytest.raises(LeakauditError, match="expected low <= high"):
            crossing(refused, low, high, side="above")
    with pytest.raises(LeakauditError, match="expected low < high"):
        crossing_integer(refused, 4, 4)


def test_the_largest_floats_do_not_overflow() -> None:
    most = 1.7e308
    assert arithmetic(1.6e308, most) == pytest.approx(1.65e308)
    found = crossing(lambda x: x >= 1.5e308, 1e308, most, side="above")
    assert found == 1.5e308


@settings(derandomize=True, max_examples=200)
@given(at=st.integers(1, 10**12))
def test_integers_are_found_exactly(at: int) -> None:
    def holds(n: int) -> bool:
        return n >= at

    ends = bracket_integer(holds, most=1 << 41)
    assert ends is not None
    assert ends[0] < at <= ends[1]
    assert crossing_integer(holds, *ends) == at
    # The ends are doubled from 1, and none above `most` is looked at.
    fitting = bracket_integer(holds, most=ends[1])
    assert fitting == ends
    if ends[1] > 1:
        assert bracket_integer(holds, most=ends[1] - 1) is None


def test_brackets_double_until_the_condition_holds_or_floats_end() -> None:
    assert bracket(lambda x: x >= 5) == (4.0, 8.0)
    assert bracket(lambda x: True) == (0.0, 1.0)
    assert bracket(lambda x: x >= 1e308) == (2.0**1023, math.inf)
    low, high = bracket(lambda x: False)
    assert high == math.inf
    assert low == 2.0**1023
