"""Our numbers beside printed ones: intervals, rules and verdicts on made-up numbers."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

import pytest
from scipy import stats

from leakaudit.core.quantities import range_of
from leakaudit.judging.papers import rules
from leakaudit.judging.papers.items import Expected, Item, Place, Printed, Scale
from leakaudit.judging.papers.measured import MeasuredLine, MeasuredPanel, SeedMean, estimate
from leakaudit.judging.papers.rules import Outcome, Reproduction
from leakaudit.reporting.results import intervals
from leakaudit.runs.reproducing.run import _number

Row = Sequence[float | None]


def line(name: str, *runs: Row, exact: bool = False, x: Sequence[Place] = ()) -> MeasuredLine:
    places = tuple(x) or tuple(range(len(runs[0])))
    values = {seed: tuple(run) for seed, run in enumerate(runs)}
    return MeasuredLine(name, places, values, exact)


def panel(*lines: MeasuredLine, y: str = "loss") -> list[MeasuredPanel]:
    return [MeasuredPanel(y, y, "round", tuple(lines))]


def outcome(lines: Sequence[MeasuredLine], rule: str, y: Any = "loss", **more: Any) -> Outcome:
    entries: dict[str, Any] = {"says": "it holds", "rule": rule, "y": y, **more}
    expected = Expected(**entries)
    return rules.tested(expected, panel(*lines, y=y)).outcome


def item(printed: Sequence[Printed] = (), expected: Sequence[Expected] = (), **more: str) -> Item:
    fields: dict[str, Any] = {
        "kind": "figure",
        "title": "t",
        "place": "p",
        "paper": "own",
        "name": "fig1",
        **more,
    }
    fields |= {"printed": tuple(printed), "expected": tuple(expected)}
    return Item(drawn=True, **fields)


def number(value: float = 1.0, tolerance: float = 0.1, **more: object) -> Printed:
    entries = {"line": "a", "y": "loss", "value": value, "tolerance": tolerance, "place": "T"}
    return Printed(**{**entries, **more})  # type: ignore[arg-type]


def mean(values: Sequence[float], exact: bool = False) -> SeedMean:
    found = estimate(dict(enumerate(values)), exact)
    assert found is not None
    return found


FALLS = Expected(says="the loss falls", rule="falls", y="loss")


@pytest.mark.parametrize("values", [(1.0, 2.0), (0.3, 0.1, 0.9, 0.4), (5.0, 5.0, 5.0)])
def test_the_interval_of_a_mean_is_that_of_scipy(values: tuple[float, ...]) -> None:
    found = intervals.of_mean(values)
    assert found is not None
    middle, spread = sum(values) / len(values), stats.sem(values)
    if spread:
        wanted = stats.t.interval(0.95, len(values) - 1, middle, spread)
    else:
        wanted = (middle, middle)
    assert found == pytest.approx(wanted, rel=1e-12)


def test_a_single_value_has_no_interval_and_an_exact_one_is_its_own() -> None:
    assert intervals.of_mean([3.0]) is None
    assert mean([3.0]).interval is None
    assert mean([3.0], exact=True).interval == (3.0, 3.0)
    assert mean([math.inf, math.inf]) == SeedMean(math.inf, (math.inf, math.inf))
    mixed = mean([1.0, math.inf])
    assert math.isnan(mixed.mean)
    assert mixed.interval == (1.0, math.inf)


# --- rules ------------------------------------------------------------------------------------


def test_above_compares_seed_by_seed() -> None:
    # The spread over seeds is far larger than the difference, which is the same for every seed.
    low = line("a", (1.0,), (5.0,), (9.0,))
    high = line("b", (1.2,), (5.2,), (9.21,))
    assert outcome((high, low), "above") is Outcome.HOLDS
    assert outcome((low, high), "above") is Outcome.FAILS
    assert outcome((high, low), "above", by=0.3) is Outcome.FAILS
    assert outcome((high, low), "above", by=0.203) is Outcome.UNDECIDED


def test_equal_lines_are_not_above_each_other() -> None:
    equal = ((1.0,), (1.0,))
    assert outcome((line("a", *equal), line("b", *equal)), "above") is Outcome.FAILS


@pytest.mark.parametrize(
    ("values", "more", "wanted"),
    [
        ((1.0, 0.89), {}, Outcome.HOLDS),
        ((1.0, 0.91), {}, Outcome.UNDECIDED),
        ((1.0, 1.0), {}, Outcome.UNDECIDED),
        ((0.91, 1.0), {}, Outcome.UNDECIDED),
        ((0.89, 1.0), {}, Outcome.FAILS),
        ((-1.0, -1.05), {}, Outcome.UNDECIDED),
        ((1.0, 0.91), {"by": 0.05}, Outcome.HOLDS),  # the item states what is enough
        ((1.0, 0.91), {"by": 0.1}, Outcome.FAILS),
    ],
)
def test_a_small_difference_of_one_seed_decides_nothing(
    values: tuple[float, float], more: dict[str, object], wanted: Outcome
) -> None:
    high, low = values
    assert outcome((line("a", (high,)), line("b", (low,))), "above", **more) is wanted
    falls = line("c", (high, low))
    assert outcome((falls,), "falls", **more) is wanted
    # Two seeds that agree have an interval, and closed forms need none.
    lines = (line("a", (high,), (high,)), line("b", (low,), (low,)))
    assert outcome(lines, "above", **more) is not Outcome.UNDECIDED
    lines = (line("a", (high,), exact=True), line("b", (low,), exact=True))
    assert outcome(lines, "above", **more) is not Outcome.UNDECIDED


def test_an_interval_ends_where_its_quantity_does() -> None:
    values = {0: 1.0, 1: 0.9, 2: 0.98}
    found = estimate(values, exact=False, y="test_accuracy")
    free = estimate(values, exact=False)
    assert found is not None
    assert free is not None
    assert free.ends[1] > 1.0
    assert found.ends == (free.ends[0], 1.0)
    assert estimate({0: 0.0, 1: 1e-3}, False, "loss").ends[0] == 0.0  # type: ignore[union-attr]
    assert range_of("ssim") == (-1.0, 1.0)
    assert range_of("psnr") == (-math.inf, math.inf)


def test_a_chain_of_lines_is_above_one_by_one() -> None:
    a, b, c = line("a", (3.0,)), line("b", (2.0,)), line("c", (1.0,))
    assert outcome((a, b, c), "above") is Outcome.HOLDS
    assert outcome((a, c, b), "above") is Outcome.FAILS


def test_every_and_any_look_at_all_places_in_common() -> None:
    a, b = line("a", (3.0, 0.0, 3.0)), line("b", (1.0, 1.0, 1.0))
    assert outcome((a, b), "above") is Outcome.HOLDS
    assert outcome((a, b), "above", x="every") is Outcome.FAILS
    assert outcome((a, b), "above", x="any") is Outcome.HOLDS
    assert outcome((b, a), "above", x="any") is Outcome.HOLDS
    assert outcome((line("a", (0.0, 0.0)), line("b", (1.0, 1.0))), "above", x="any") is (
        Outcome.FAILS
    )
    # A round that no seed evaluated is no place.
    a, b = line("a", (3.0, None, 3.0)), line("b", (1.0, 1.0, 1.0))
    assert outcome((a, b), "above", x="every") is Outcome.HOLDS


@pytest.mark.parametrize(
    ("run", "rule", "more", "wanted"),
    [
        ((3.0, 2.0, 1.0), "falls", {}, Outcome.HOLDS),
        ((3.0, 2.0, 1.0), "falls", {"by": 2.5}, Outcome.FAILS),
        ((3.0, 2.0, 1.0), "rises", {}, Outcome.FAILS),
        ((3.0, 1.0, 2.0), "rises", {"between": (1, 2)}, Outcome.HOLDS),
        ((None, 1.0, 2.0), "rises", {}, Outcome.HOLDS),
        ((3.0, 9.0, 3.1), "flat", {"by": 0.11}, Outcome.HOLDS),
        ((3.0, 9.0, 3.2), "flat", {"by": 0.1}, Outcome.FAILS),
        ((3.0, 0.5, 3.0), "reaches", {"value": 0.5}, Outcome.HOLDS),
        ((3.0, 0.5, 3.0), "reaches", {"value": 0.4}, Outcome.FAILS),
        ((3.0, 2.0, 0.5), "reaches", {"value": 0.5, "x": 1}, Outcome.FAILS),
        ((0.1, 0.8, 0.3), "reaches", {"value": 0.8}, Outcome.HOLDS),
        ((0.1, 0.8, 0.3), "within", {"value": 0.3, "by": 0.0}, Outcome.HOLDS),
        ((0.1, 0.8, 0.3), "within", {"value": 0.3, "by": 0.01, "x": 1}, Outcome.FAILS),
        ((3.0, 2.0, None), "falls", {}, Outcome.MISSING),
        ((3.0, 2.0, 1.0), "within", {"value": 1.0, "x": 7}, Outcome.MISSING),
        ((3.0, 3.0), "flat", {"between": (1, "last")}, Outcome.MISSING),
        ((3.0, 2.0, math.inf), "falls", {"y": "epsilon"}, Outcome.FAILS),
        ((math.inf, 2.0, 1.0), "falls", {"y": "epsilon"}, Outcome.HOLDS),
        ((3.0, 2.0, math.inf), "rises", {"y": "epsilon"}, Outcome.HOLDS),
        ((3.0, 2.0, -math.inf), "falls", {"y": "epsilon"}, Outcome.MISSING),
    ],
)
def test_rules_of_a_single_line(
    run: Row, rule: str, more: dict[str, object], wanted: Outcome
) -> None:
    assert outcome((line("a", run),), rule, **more) is wanted


def test_lines_within_each_other_and_their_ratio() -> None:
    a, b = line("a", (1.0,)), line("b", (1.05,))
    assert outcome((a, b), "within", by=0.06) is Outcome.HOLDS
    assert outcome((a, b), "within", by=0.04) is Outcome.FAILS
    assert outcome((b, a), "ratio", by=1.04) is Outcome.HOLDS
    assert outcome((b, a), "ratio", by=1.06) is Outcome.FAILS
    assert outcome((line("a", (1.0,)), line("b", (0.0,))), "ratio", by=5) is Outcome.HOLDS
    assert outcome((line("a", (0.0,)), line("b", (0.0,))), "ratio", by=5) is Outcome.MISSING


def test_infinite_values_on_both_sides_tell_nothing() -> None:
    infinite = (line("a", (math.inf,)), line("b", (math.inf,)))
    assert outcome(infinite, "above", "epsilon") is Outcome.MISSING


def test_a_closed_form_is_compared_with_every_seed() -> None:
    limit = line("limit", (1.0,), exact=True)
    assert outcome((line("a", (1.2,), (1.3,), (1.25,)), limit), "above") is Outcome.HOLDS
    assert outcome((limit, line("limit 2", (0.5,), exact=True)), "above") is Outcome.HOLDS


def test_a_seed_that_is_missing_is_no_number() -> None:
    a, b = line("a", (3.0,), (None,)), line("b", (1.0,), (1.0,))
    assert outcome((a, b), "above") is Outcome.MISSING
    of_others = Expected(says="it falls", rule="falls", y="loss", lines=("c",))
    assert rules.tested(of_others, panel(line("a", (3.0,)))).outcome is Outcome.MISSING


# --- printed numbers --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("runs", "wanted"),
    [
        (((1.05,),), Outcome.HOLDS),
        (((1.15,),), Outcome.FAILS),
        (((1.04,), (1.05,), (1.06,)), Outcome.HOLDS),
        (((1.29,), (1.30,), (1.31,)), Outcome.FAILS),
        # The interval contains the printed number, but it is wider than the tolerance.
        (((0.5,), (1.0,), (1.5,)), Outcome.UNDECIDED),
        (((1.0,), (None,)), Outcome.MISSING),
        (((1.0,), (math.inf,)), Outcome.MISSING),
        (((math.inf,),), Outcome.MISSING),
    ],
)
def test_a_printed_number_is_compared_with_the_interval(
    runs: tuple[Row, ...], wanted: Outcome
) -> None:
    found = rules.compared(number(), panel(line("a", *runs)))
    assert found.outcome is wanted
    assert (found.ours is None) == (wanted is Outcome.MISSING)


def test_numbers_that_json_lacks_are_stored_as_none() -> None:
    mixed = panel(line("a", (1.0,), (math.inf,)), y="epsilon")
    (one,) = rules.judge(item([number(y="epsilon")]), mixed, "paper", ()).numbers
    assert one.outcome is Outcome.UNDECIDED
    stored = _number(one)
    assert stored["ours"] is stored["deviation"] is None
    assert stored["interval"] == [1.0, "inf"]
    json.dumps(stored, allow_nan=False)
    (one,) = rules.judge(item([number(math.inf)]), panel(line("a", (1.0,))), "paper", ()).numbers
    json.dumps(_number(one), allow_nan=False)


def test_an_infinite_epsilon_is_reproduced_by_an_infinite_one() -> None:
    infinite = panel(line("a", (math.inf,)), y="epsilon")
    found = rules.compared(number(math.inf, y="epsilon"), infinite)
    assert (found.outcome, found.deviation) == (Outcome.HOLDS, 0.0)
    assert rules.compared(number(1.0, y="epsilon"), infinite).outcome is Outcome.FAILS


# --- verdicts ---------------------------------------------------------------------------------

RISES: tuple[Row, ...] = ((1.0, 2.0), (1.0, 2.1), (1.0, 1.9))
TWO = ((2.0, 1.01), (2.0, 1.02))
ONE = ((2.0, 1.01),)


@pytest.mark.parametrize(
    ("runs", "printed", "more", "scale", "word", "why"),
    [
        (TWO, [number()], {}, "paper", Reproduction.REPRODUCED, "1 printed number, 2 seeds"),
        (TWO, [number()], {}, "small", Reproduction.REPRODUCED, "1 printed number"),
        (TWO, [number()], {"small": "less"}, "small", Reproduction.SAME_SHAPE, "small scale: less"),
        (TWO, [number()], {"small": "less"}, "paper", Reproduction.REPRODUCED, "paper's size"),
        (ONE, [number()], {}, "paper", Reproduction.SAME_SHAPE, "one seed has no interval"),
        (TWO, [], {}, "paper", Reproduction.SAME_SHAPE, "prints no number"),
        (TWO, [number(figure=True)], {}, "paper", Reproduction.SAME_SHAPE, "read off a picture"),
        (
            TWO,
            [number(), number(figure=True)],
            {"stand_in": "faces"},
            "paper",
            Reproduction.SAME_SHAPE,
            "faces",
        ),
        (TWO, [number(3.0)], {}, "paper", Reproduction.DIFFERS, "printed 3, ours 1.015"),
        (
            TWO,
            [number(scale="paper", value=3.0)],
            {},
            "small",
            Reproduction.SAME_SHAPE,
            "no number",
        ),
        (ONE, [number(3.0)], {"small": "less"}, "small", Reproduction.DIFFERS, "1 seed, small"),
        (
            ((2.0, 0.5), (2.0, 1.5)),
            [number()],
            {},
            "paper",
            Reproduction.UNDECIDED,
            "our seeds do not tell: run more",
        ),
        (
            ((2.0, 1.0), (2.0, None)),
            [number()],
            {},
            "paper",
            Reproduction.UNDECIDED,
            "a result is missing",
        ),
        (((1.0, 2.0),), [], {}, "paper", Reproduction.DIFFERS, "in these runs: the loss falls"),
        (RISES, [], {}, "paper", Reproduction.DIFFERS, "it is not true that the loss falls"),
        (RISES, [], {"small": "less"}, "small", Reproduction.DIFFERS, "not seen in these runs"),
        (RISES, [], {"stand_in": "b for a"}, "paper", Reproduction.DIFFERS, "not seen in these"),
    ],
)
def test_a_verdict_is_no_stronger_than_its_weakest_input(
    runs: tuple[Row, ...],
    printed: list[Printed],
    more: dict[str, str],
    scale: Scale,
    word: Reproduction,
    why: str,
) -> None:
    judged = rules.judge(item(printed, [FALLS], **more), panel(line("a", *runs)), scale, ())
    assert judged.word is word
    assert why in judged.why


def test_a_failed_cell_is_named_and_forbids_the_best_word() -> None:
    lines = panel(line("a", *TWO))
    judged = rules.judge(item([number()], [FALLS]), lines, "paper", ["seed 3: it diverged"])
    assert judged.word is Reproduction.SAME_SHAPE
    assert "seed 3: it diverged" in judged.why


def test_a_failure_is_stated_although_others_are_missing() -> None:
    missing = Expected(says="it rises", rule="rises", y="accuracy")
    rises = line("a", (1.0, 2.0))
    judged = rules.judge(item([], [FALLS, missing]), panel(rises), "paper", ())
    assert judged.word is Reproduction.DIFFERS
    assert [one.outcome for one in judged.shapes] == [Outcome.FAILS, Outcome.MISSING]


def test_nothing_to_compare_is_no_success() -> None:
    judged = rules.judge(item(), panel(line("a", *TWO)), "paper", ())
    assert judged.word is Reproduction.UNDECIDED


def test_an_exact_item_needs_no_seeds() -> None:
    lines = panel(line("a", (1.0,), exact=True))
    judged = rules.judge(item([number()]), lines, "paper", ())
    assert judged.word is Reproduction.REPRODUCED


def test_best_is_the_largest_value_of_each_seed() -> None:
    lines = [line("a", (0.1, 0.9, None, 0.5), (0.2, 0.3, 0.7, 0.6)), line("b", (0.5,), (0.5,))]
    found = rules.compared(number(0.8, 1.3, x="best"), panel(*lines))
    assert found.ours is not None
    assert found.ours.mean == pytest.approx(0.8)
    assert found.outcome is Outcome.HOLDS
    assert outcome(lines, "above", x="best", by=-1.0) is Outcome.HOLDS
    empty = rules.compared(number(0.8, 1.0, x="best"), panel(line("a", (0.1,), (None,))))
    assert empty.outcome is Outcome.MISSING


# --- results that are missing, diverge, or are too large ---------------------------------------


def planned(name: str, *runs: Row) -> MeasuredLine:
    values = {seed: tuple(run) for seed, run in enumerate(runs)}
    return MeasuredLine(name, tuple(range(len(runs[0]))), values, planned=True)


def test_a_cell_without_a_result_is_no_place_to_skip() -> None:
    # One seed: the cell of the first place failed.
    a, b = planned("a", (None, 2.0, 2.0)), planned("b", (1.0, 1.0, 1.0))
    assert outcome((a, b), "above", x="every") is Outcome.MISSING
    assert outcome((a, b), "above") is Outcome.HOLDS
    assert outcome((planned("a", (None, 0.5, 0.4)),), "falls") is Outcome.MISSING
    assert outcome((planned("a", (None, 0.5, 0.4)),), "reaches", value=0.1) is Outcome.MISSING
    assert outcome((planned("a", (None, 0.5, 0.4)),), "reaches", value=0.4) is Outcome.HOLDS
    best = number(0.9, 0.1, x="best")
    found = rules.compared(best, panel(planned("a", (0.5, None, 0.4), (0.5, 0.9, 0.4))))
    assert found.outcome is Outcome.MISSING


def test_a_run_that_diverged_is_missing_and_not_left_out() -> None:
    # After the first round, one line has no value.
    a, b = line("a", (3.0, None, None)), line("b", (1.0, 1.0, 1.0))
    assert outcome((a, b), "above", x="every") is Outcome.MISSING
    gone = line("a", (1.0, math.nan), (1.0, math.nan))
    assert rules.compared(number(0.5), panel(gone)).outcome is Outcome.MISSING
    assert outcome((line("a", (math.nan, 0.2)),), "reaches", value=0.2) is Outcome.HOLDS


@pytest.mark.parametrize("gone", [math.inf, -math.inf, math.nan])
def test_a_run_that_diverged_is_no_evidence(gone: float) -> None:
    a, b = line("a", (3.0, gone)), line("b", (1.0, 1.0))
    for rule in ("above", "ratio", "within"):
        for pair in ((a, b), (b, a)):
            assert outcome(pair, rule, by=0.5) is Outcome.MISSING
    for rule in ("rises", "falls", "flat"):
        assert outcome((a,), rule) is Outcome.MISSING
    assert outcome((a, b), "above", x="every") is Outcome.MISSING
    nowhere = (line("a", (1.0, gone)), line("b", (1.0, 1.0)))
    assert outcome(nowhere, "above", x="any") is Outcome.MISSING
    assert outcome((a,), "within", value=3.0, x="best") is Outcome.MISSING
    found = rules.compared(number(x="best"), panel(a))
    assert found.outcome is Outcome.MISSING
    assert "ours is missing (a run diverged)" in found.says


def test_reaching_is_in_the_direction_that_a_quantity_has() -> None:
    start = MeasuredLine("a", (0, 1), {0: (0.95, 0.97)})
    reaches = Expected(says="it", rule="reaches", y="accuracy", value=0.9)
    accuracy = [MeasuredPanel("accuracy", "accuracy", "round", (start,))]
    assert rules.tested(reaches, accuracy).outcome is Outcome.HOLDS
    # Nodes that start equal, and move apart, do not come together by passing the value.
    apart = MeasuredLine("a", (0, 1), {0: (0.2, 5.0)})
    reaches = Expected(says="it", rule="reaches", y="consensus", value=0.1)
    consensus = [MeasuredPanel("consensus", "consensus", "round", (apart,))]
    assert rules.tested(reaches, consensus).outcome is Outcome.FAILS


def test_a_level_has_no_change() -> None:
    level = MeasuredLine("a", (), {0: (1.0,), 1: (1.0,)})
    for rule in ("flat", "falls", "rises"):
        assert outcome((level,), rule) is Outcome.MISSING


def test_numbers_whose_squares_overflow_have_a_mean_and_an_interval() -> None:
    small = mean([1.0, 3.0, 2.5])
    huge = mean([1e300, 3e300, 2.5e300])
    assert small.interval is not None
    assert huge.interval is not None
    assert huge.mean == pytest.approx(small.mean * 1e300, rel=1e-12)
    assert huge.interval == pytest.approx([end * 1e300 for end in small.interval], rel=1e-12)
    assert mean([1.7e308, 1.7e308]) == SeedMean(1.7e308, (1.7e308, 1.7e308))
    assert mean([1.7e308, -1.7e308]).ends == (-math.inf, math.inf)


def test_more_seeds_are_advised_only_if_ours_disagree() -> None:
    split = panel(line("a", (1.0, 0.0), (0.0, 1.0)))
    later = Expected(says="the loss falls", rule="falls", y="loss", scale="paper")
    other = Expected(says="the loss falls", rule="falls", y="loss", lines=("b",))
    assert rules.judge(item(expected=[FALLS]), split, "small", []).seeds_disagree
    for expected in ([later], [FALLS, other]):
        found = rules.judge(item(expected=expected, small="short"), split, "small", [])
        assert found.word is Reproduction.UNDECIDED
        assert not found.seeds_disagree
