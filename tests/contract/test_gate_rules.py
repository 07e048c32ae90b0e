"""What a gate makes of its numbers: budgets, growth, acceptances, exit codes, and a baseline that
is whole or as it was.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from msgspec import UNSET
from msgspec.structs import replace
from scipy.stats import binom, fisher_exact

from leakaudit.core.errors import LeakauditError
from leakaudit.judging.gate import baseline, compare, files, judge, measures, record, rules
from leakaudit.judging.gate.baseline import Baseline, CellMeasurements
from leakaudit.judging.gate.cells import GateCell
from leakaudit.judging.gate.config import Acceptance, Budget, Check, Gate
from leakaudit.judging.gate.rule import PricedView, Rule
from leakaudit.reporting.findings.wording import untried
from leakaudit.reporting.results.model import NodeBest, NotTried, RuleKind, RuleStatus
from leakaudit.scoring.scoring import Score

WORST = NodeBest(
    seed=3,
    node=2,
    psnr=31.0,
    relative_error=0.02,
    exact=False,
    labels=1.0,
    kind="gradient",
    first=0,
    last=5,
    formula="g = w",
)


def cell(seeds: int = 8, **samples: float | list[float]) -> GateCell:
    made = GateCell(Check("ring", "m:f"), "node:1", "analytic", list(range(seeds)), worst=WORST)
    made.samples = {m: list(v) if isinstance(v, list) else [v] * seeds for m, v in samples.items()}
    return made


def base(of: GateCell, digest: str | None = None, **samples: float) -> Baseline:
    block = CellMeasurements(
        of.check.name,
        digest or of.digest(),
        tuple(of.seeds),
        {m: (v,) * len(of.seeds) for m, v in samples.items()},
    )
    return Baseline({of.name: block}, "because", "2030-01-01", {})


def rule(
    kind: str = "budget",
    status: RuleStatus = RuleStatus.OK,
    name: str = "ring/node:1/analytic",
    value: float = 1.0,
) -> Rule:
    return Rule(RuleKind(kind), name, "psnr", status, "says", value, 0.5)


@pytest.mark.parametrize("before", ["default", "error"])
def test_a_run_lets_torch_repeat_itself_and_puts_its_choice_back(before: str) -> None:
    torch.set_deterministic_debug_mode(before)
    try:
        with judge._deterministic():
            assert torch.are_deterministic_algorithms_enabled()
            assert torch.is_deterministic_algorithms_warn_only_enabled()
        assert torch.get_deterministic_debug_mode() == {"default": 0, "error": 2}[before]
    finally:
        torch.set_deterministic_debug_mode("default")


# --- measures ---------------------------------------------------------------------------------------------------------


def score(**columns: Any) -> Score:
    return Score(0, "a", matched=(0, 1), labels_found=columns.pop("labels_found", None), **columns)


def test_what_is_no_better_than_the_mean_of_the_others_counts_as_nothing() -> None:
    guess = score(
        relative_error=(0.5, 0.2), psnr=(12.0, 20.0), ssim=(0.1, 0.5), exact=(False, False)
    )
    found = score(
        relative_error=(0.05, 0.3),
        psnr=(32.0, 16.5),
        ssim=(0.9, 0.4),
        exact=(True, False),
        identified=(True, True),
    )
    got = measures.values(guess, found)
    assert got["gain"] == pytest.approx([20.0, 0.0])
    assert got["psnr"] == [32.0, 0.0]
    assert got["ssim"] == [0.9, 0.0]
    assert got["recovered"] == pytest.approx([0.95, 0.0])
    assert (got["exact"], got["identified"], got["labels"]) == ([1.0, 0.0], [1.0, 1.0], [0.0, 0.0])
    assert all(column == [0.0, 0.0] for column in measures.values(guess, None).values())


def test_data_without_pictures_or_a_grid_has_no_such_measures() -> None:
    guess = score(relative_error=(0.5, 0.5))
    assert set(measures.values(guess, None)) == {"gain", "recovered", "identified", "labels"}
    perfect = measures.values(guess, score(relative_error=(0.0, None), labels_found=0.5))
    assert (perfect["gain"], perfect["recovered"], perfect["labels"]) == (
        [measures.CAP, 0.0],
        [1.0, 0.0],
        [0.5, 0.5],
    )


def test_a_sample_is_the_worst_record_or_the_share_of_them() -> None:
    assert measures.sample("psnr", [3.0, 9.0]) == 9.0
    assert measures.sample("exact", [1.0, 0.0, 0.0, 0.0]) == 0.25
    with pytest.raises(LeakauditError, match="at least one record"):
        measures.sample("psnr", [])


def test_aggregates_of_twenty_samples() -> None:
    samples = [float(v) for v in range(1, 21)]
    assert [measures.aggregate(how, samples) for how in measures.AGGREGATES] == [20.0, 19.0, 10.5]
    assert measures.aggregate("p95", samples[:19]) == 19.0


# --- budgets ----------------------------------------------------------------------------------------------------------


def test_the_message_of_a_budget_says_what_leaked_from_whom_to_whom() -> None:
    (found,) = rules.budgets(cell(psnr=30.0), [Budget("psnr", 25.0)])
    assert (found.status, found.value, found.limit) == (RuleStatus.OVER, 30.0, 25.0)
    assert found.says == (
        "PSNR of the best record: 30.0 dB with the worst seed, at most 25.0 dB allowed: nodes:1 reconstructs the training input of node 2 with relative error 0.02 (31.0 dB PSNR) "
        "with the attack analytic from the gradients of rounds 0 to 5 (seed 3)"
    )


def test_the_last_budget_that_fits_holds() -> None:
    budgets = [
        Budget("psnr", 25.0),
        Budget("psnr", 50.0, cells="ring/*"),
        Budget("psnr", 1.0, cells="other/*"),
    ]
    assert [r.status for r in rules.budgets(cell(psnr=30.0), budgets)] == [RuleStatus.OK]
    assert [
        r.status
        for r in rules.budgets(cell(psnr=30.0), [*budgets, Budget("psnr", 1.0, level="warn")])
    ] == [RuleStatus.WARNING]
    assert rules.budgets(cell(psnr=30.0), [*budgets, Budget("psnr", 1.0, level="off")]) == []


def test_a_budget_at_its_limit_holds_and_the_aggregate_decides() -> None:
    one = cell(exact=[0.0] * 7 + [1.0])
    assert rules.budgets(one, [Budget("exact", 1.0)])[0].status is RuleStatus.OK
    assert rules.budgets(one, [Budget("exact", 0.5)])[0].status is RuleStatus.OVER
    assert rules.budgets(one, [Budget("exact", 0.5, aggregate="mean")])[0].status is RuleStatus.OK


def test_a_budget_that_cannot_be_judged_is_no_pass() -> None:
    (found,) = rules.budgets(cell(gain=0.0), [Budget("psnr", 25.0)])
    assert found.status is RuleStatus.VOID
    assert rules.code([found], True, False) == 3
    (found,) = rules.budgets(cell(gain=0.0), [Budget("epsilon", 8.0)], None)
    assert found.status is RuleStatus.VOID


def test_epsilon_has_a_budget_too() -> None:
    assert [
        rules.budgets(cell(), [Budget("epsilon", 8.0)], PricedView(e, (3,), 1.0))[0].status
        for e in (7.9, 8.1, float("inf"))
    ] == [
        RuleStatus.OK,
        RuleStatus.OVER,
        RuleStatus.OVER,
    ]


def test_the_nodes_that_a_sentence_names_are_there_as_numbers() -> None:
    gate = Gate((Check("main", "m:f", adversaries=("eavesdropper", "node:1"), nodes=(5, 6)),))
    assert [one for one in record.not_tried(gate) if one.attack is UNSET] == [
        NotTried(check="", adversaries=("eavesdropper", "node:1")),
        NotTried(check="main", nodes=(5, 6)),
    ]
    assert [untried(one) for one in record.not_tried(gate)][-2:] == [
        "adversaries other than eavesdropper, node:1",
        "check main: nodes other than 5, 6",
    ]
    over, within = (rules.budgets(cell(psnr=30.0), [Budget("psnr", most)]) for most in (25.0, 35.0))
    assert (over[0].nodes, within[0].nodes) == ((1, 2), ())
    unattacked = cell(psnr=0.0)
    unattacked.reasons = {7: "nothing", 4: "no gradient"}
    (found,) = rules.attacked([unattacked])
    assert ("node 4: no gradient" in found.says, found.nodes) == (True, (1, 4))
    priced = PricedView(9.0, (3,), 1.0)
    (found,) = rules.budgets(cell(), [Budget("epsilon", 8.0)], priced)
    assert found.nodes == (1, 3)


# --- growth -----------------------------------------------------------------------------------------------------------


def statuses(of: GateCell, against: Baseline, **gate: Any) -> list[RuleStatus]:
    return [
        r.status for r in rules.growth([of], against, Gate(alpha=0.01, compare=("gain",), **gate))
    ]


def test_growth_beyond_the_tolerance_is_a_regression_and_less_is_none() -> None:
    one = cell(gain=5.0)
    assert statuses(one, base(one, gain=3.0)) == [RuleStatus.REGRESSION]
    assert statuses(one, base(one, gain=4.0)) == [RuleStatus.OK]  # the tolerance is 1 dB
    assert statuses(one, base(one, gain=3.0), tolerance={"gain": 2.5}) == [RuleStatus.OK]
    assert statuses(one, base(one, gain=9.0)) == [RuleStatus.OK]


@pytest.mark.parametrize("gain", [1.2345649, 31.415949, 123.45649])
def test_a_tolerance_of_zero_raises_no_alarm_for_the_rounding_of_the_baseline(gain: float) -> None:
    """Each sample is stored smaller than it is, by almost half a unit of its sixth digit."""
    one = cell(gain=gain)
    stored = baseline.block("ring", one.digest(), one.seeds, one.samples)
    assert stored.samples["gain"][0] < gain
    same = Baseline({one.name: stored})
    assert statuses(one, same, tolerance={"gain": 0}) == [RuleStatus.OK]
    unit = 10 ** (len(str(int(gain))) - 6)  # of the last digit that is stored
    grown = cell(gain=gain + 2 * unit)
    assert statuses(grown, same, tolerance={"gain": 0}) == [RuleStatus.REGRESSION]


def test_too_few_seeds_are_inconclusive_and_say_how_many_would_do() -> None:
    few = cell(seeds=4, gain=5.0)
    (found,) = rules.growth([few], base(few, gain=0.0), Gate(alpha=0.01, compare=("gain",)))
    assert found.status is RuleStatus.TOO_FEW_SEEDS
    assert "1 comparison requires seeds >= 7 at alpha 0.01" in found.says
    assert (rules.code([found], True, False), rules.code([found], True, True)) == (3, 3)


def test_two_seeds_are_remarked_even_if_nothing_increased() -> None:
    """No p-value of two paired seeds is below 1/4, whatever they are."""
    few = cell(seeds=2, gain=0.0)
    gate = Gate(alpha=0.01, compare=("gain",), seeds=2)
    assert [r.status for r in rules.growth([few], base(few, gain=0.0), gate)] == [RuleStatus.OK]
    (remark,) = rules.few_seeds([few], base(few, gain=0.0), gate)
    assert remark == (
        "with 2 seeds and 1 comparison, no increase over the baseline can be significant: "
        "no p-value can be below 0.25 (alpha 0.01); set seeds >= 7"
    )
    enough = cell(seeds=7, gain=0.0)
    assert (
        rules.few_seeds([enough], base(enough, gain=0.0), Gate(alpha=0.01, compare=("gain",))) == []
    )
    assert rules.few_seeds([few], Baseline({}), gate) == [], "nothing is compared"


def test_an_increase_that_is_not_significant_is_inconclusive_only_if_strict() -> None:
    """Ten seeds could show an increase, but half of these decreased as much."""
    one = cell(seeds=10, gain=[1.5, -1.0] * 5)
    gate = Gate(alpha=0.01, compare=("gain",), tolerance={"gain": 0})
    (found,) = rules.growth([one], base(one, gain=0.0), gate)
    assert found.status is RuleStatus.INCONCLUSIVE
    assert (rules.code([found], True, False), rules.code([found], True, True)) == (0, 3)


def labels(found: Sequence[float], before: Sequence[float], **gate: Any) -> RuleStatus:
    """Compare the shares of labels that were found of four records, with other seeds."""
    one = cell(seeds=len(found), labels=list(found))
    one.records = 4
    other = CellMeasurements(
        "ring", one.digest(), tuple(range(100, 100 + len(before))), {"labels": tuple(before)}
    )
    (rule,) = rules.growth([one], Baseline({one.name: other}), Gate(compare=("labels",), **gate))
    return rule.status


def test_labels_that_guesses_find_more_often_do_not_make_a_gate_inconclusive() -> None:
    """40 of 64 after 32 of 64 happens to one honest program in twenty."""
    half = (0.5,) * 16
    assert labels((0.75, 0.5) * 8, half) is RuleStatus.OK
    assert labels((1.0,) * 16, half) is RuleStatus.REGRESSION
    assert labels((1.0, 0.75) * 8, half) is RuleStatus.REGRESSION
    # Half of the seeds reveal all labels, more than chance explains, but not their mean by .3.
    assert labels((1.0, 0.5) * 8, (0.25,) * 16, tolerance={"labels": 0.45}) is not RuleStatus.OK
    # With two seeds, not even all labels could be told from guesses.
    assert labels((1.0, 0.75), half) in (RuleStatus.INCONCLUSIVE, RuleStatus.TOO_FEW_SEEDS)


@pytest.mark.parametrize("classes", [2, 10])
def test_chance_makes_a_gate_inconclusive_in_one_run_of_1000(classes: int, fresh_seed: int) -> None:
    """The probability is summed over all counts of an honest program, not sampled."""
    trials, level = 64, rules.CHANCE
    counts = np.arange(trials + 1)
    of = binom.pmf(counts, trials, 1 / classes)
    told = [
        [compare.chance((new, trials), (old, trials)) <= level for old in counts.tolist()]
        for new in counts.tolist()
    ]
    assert 0 < of @ np.array(told, float) @ of <= level
    # A rise from a half to nine tenths is found in nine of ten runs.
    risen = binom.pmf(counts, trials, 0.9)
    assert risen @ np.array(told, float) @ binom.pmf(counts, trials, 0.5) > 0.9


@pytest.mark.parametrize(
    ("new", "old"), [((5, 8), (3, 9)), ((0, 4), (2, 4)), ((4, 4), (0, 60)), ((7, 7), (5, 5))]
)
def test_the_test_of_two_binomials_is_that_of_fisher(
    new: tuple[int, int], old: tuple[int, int]
) -> None:
    table = [[k, n - k] for k, n in (new, old)]
    expected = fisher_exact(table, alternative="greater").pvalue
    assert compare.chance(new, old) == pytest.approx(expected)


def test_other_seeds_may_differ_by_chance_and_the_same_seeds_may_not() -> None:
    gains = [0.0, 8.0, 1.0, 7.0, 2.0, 9.0, 3.0, 6.0] * 2
    more = [gain + 1.5 for gain in gains]
    one = cell(seeds=16, gain=more)
    other = CellMeasurements("ring", one.digest(), tuple(range(100, 116)), {"gain": tuple(gains)})
    gate = Gate(compare=("gain",))
    (rule,) = rules.growth([one], Baseline({one.name: other}), gate)
    assert rule.status is RuleStatus.OK
    assert "other seeds differ as much by chance" in rule.says
    same = CellMeasurements("ring", one.digest(), tuple(one.seeds), {"gain": tuple(gains)})
    (rule,) = rules.growth([one], Baseline({one.name: same}), gate)
    assert rule.status is RuleStatus.REGRESSION
    bits = cell(seeds=16, exact=[0.0] * 15 + [0.25])
    other = CellMeasurements("ring", bits.digest(), tuple(range(100, 116)), {"exact": (0.0,) * 16})
    (rule,) = rules.growth([bits], Baseline({bits.name: other}), Gate(compare=("exact",)))
    assert rule.status is RuleStatus.INCONCLUSIVE


def test_all_comparisons_share_alpha() -> None:
    """Eight seeds prove one comparison at .01, since 2^-8 < .01, and not four of them."""
    one = cell(gain=5.0, psnr=5.0, exact=0.0, labels=0.0)
    against = base(one, gain=0.0, psnr=0.0, exact=0.0, labels=0.0)
    alone = rules.growth([one], against, Gate(alpha=0.01, compare=("gain",)))
    both = rules.growth(
        [one], against, Gate(alpha=0.01, compare=("gain", "psnr", "exact", "labels"))
    )
    assert [r.status for r in alone] == [RuleStatus.REGRESSION]
    assert [r.status for r in both] == [
        RuleStatus.TOO_FEW_SEEDS,
        RuleStatus.TOO_FEW_SEEDS,
        RuleStatus.OK,
        RuleStatus.OK,
    ]


def test_other_seeds_are_compared_as_independent_samples() -> None:
    one = cell(gain=[5.0, 5.5, 6.0, 6.5, 7.0, 7.5, 8.0, 8.5])
    other = CellMeasurements(
        "ring",
        one.digest(),
        tuple(range(100, 108)),
        {"gain": (0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5)},
    )
    (found,) = rules.growth([one], Baseline({one.name: other}), Gate(alpha=0.01, compare=("gain",)))
    assert found.status is RuleStatus.REGRESSION
    assert "8 new and 8 old seeds" in found.says


def test_another_way_of_measuring_is_never_compared() -> None:
    one = cell(gain=0.0)
    for against in (base(one, digest="0" * 64, gain=0.0), Baseline(), base(one, psnr=0.0)):
        found = rules.growth([one], against, Gate(alpha=0.01, compare=("gain",)))
        assert [r.status for r in found] == [RuleStatus.NOT_COMPARABLE]
        assert "leakaudit check --update --reason TEXT" in found[0].says
        assert rules.code(found, True, False) == 3


def test_the_digest_depends_on_how_is_measured_and_not_on_what() -> None:
    plain = cell()
    assert plain.digest() == GateCell(Check("other", "x:y"), "nodes:1", "analytic").digest()
    for check, who, attack in (
        (Check("ring", "m:f"), "node:2", "analytic"),
        (Check("ring", "m:f"), "node:1", "exact"),
        (Check("ring", "m:f", nodes=(0,)), "node:1", "analytic"),
        (Check("ring", "m:f", gradients=3), "node:1", "analytic"),
        (
            Check("ring", "m:f", attacks=("analytic",), set={"analytic": {"numbers": 5}}),
            "node:1",
            "analytic",
        ),
    ):
        assert GateCell(check, who, attack).digest() != plain.digest()


# --- acceptances and codes --------------------------------------------------------------------------------------------


def acceptance(**changes: Any) -> Acceptance:
    values: dict[str, Any] = {
        "id": "a",
        "reason": "known",
        "owner": "me",
        "expires": date(2030, 6, 30),
        "cells": "ring/*",
    }
    return Acceptance(**{**values, **changes})


def test_an_acceptance_holds_until_its_date_and_up_to_its_value() -> None:
    found = [rule(status=RuleStatus.OVER, value=1.0)]
    last, next_day = date(2030, 6, 30), date(2030, 7, 1)
    out, state = rules.accept(found, [acceptance()], last)
    assert (out[0].status, out[0].accepted, state) == (RuleStatus.ACCEPTED, "a", {"a": "used"})
    assert rules.code(out, True, True) == 0
    out, state = rules.accept(found, [acceptance()], next_day)
    assert (out[0].status, state) == (RuleStatus.OVER, {"a": "expired"})
    assert "acceptance a of me expired on 2030-06-30" in out[0].says
    for other in (acceptance(most=0.9), acceptance(cells="other/*"), acceptance(measure="exact")):
        out, state = rules.accept(found, [other], last)
        assert (out[0].status, state) == (RuleStatus.OVER, {"a": "unused"})


def test_controls_cannot_be_accepted() -> None:
    out, _ = rules.accept(
        [rule("positive", RuleStatus.VOID)], [acceptance(cells="*")], date(2030, 1, 1)
    )
    assert out[0].status is RuleStatus.VOID


@pytest.mark.parametrize(
    ("found", "complete", "code"),
    [
        ([rule()], True, 0),
        ([rule(status=RuleStatus.WARNING)], True, 0),
        ([rule()], False, 3),
        ([rule("positive", RuleStatus.VOID)], True, 3),
        ([rule(status=RuleStatus.OVER)], True, 1),
        ([rule("baseline", RuleStatus.REGRESSION)], False, 1),
        ([rule(status=RuleStatus.OVER), rule("positive", RuleStatus.VOID)], True, 3),
        ([rule(status=RuleStatus.OVER), rule("negative", RuleStatus.VOID)], True, 3),
        (
            [
                rule(status=RuleStatus.OVER),
                rule("positive", RuleStatus.VOID, name="ring/node:1/other"),
            ],
            True,
            1,
        ),
    ],
)
def test_exit_codes(found: list[Rule], complete: bool, code: int) -> None:
    assert rules.code(found, complete, False) == code


# --- the baseline's file ----------------------------------------------------------------------------------------------


def example(**changes: Any) -> Baseline:
    block = CellMeasurements("ring", "ab" * 32, (0, 1), {"psnr": (1.5, 2.0), "exact": (0.0, 1.0)})
    return Baseline(
        {"ring/eavesdropper/exact": block, **changes},
        "first",
        "2030-01-31T00:00:00+00:00",
        {"torch": "2.13.0"},
    )


def test_a_baseline_is_json_with_sorted_keys_and_one_line_a_measure(tmp_path: Path) -> None:
    example().write(tmp_path / "b.json")
    text = (tmp_path / "b.json").read_text()
    assert baseline.read(tmp_path / "b.json") == example()
    values = json.loads(text)
    assert text.splitlines().count('        "psnr": [1.5, 2.0]') == 1

    def keys(found: Mapping[str, Any]) -> None:
        assert list(found) == sorted(found)
        for inner in found.values():
            if isinstance(inner, dict):
                keys(inner)

    keys(values)
    assert values["reason"] == "first"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"leakaudit.baseline"', '"other"', "format"),
        ("[1.5, 2.0]", "[1.5]", "expected one sample per seed, 2 per measure"),
        ("[1.5, 2.0]", "[1.5, NaN]", "expected a finite number"),
        ("[0, 1]", '["0", 1]', "seeds"),
        ("{", "", "Extra data"),
    ],
)
def test_a_damaged_baseline_is_refused(tmp_path: Path, old: str, new: str, message: str) -> None:
    (tmp_path / "b.json").write_text(example().text().replace(old, new, 1))
    with pytest.raises(LeakauditError, match=message):
        baseline.read(tmp_path / "b.json")


def test_a_run_replaces_the_cells_of_its_checks_and_knows_which_are_stale(tmp_path: Path) -> None:
    block = example().cells["ring/eavesdropper/exact"]
    checks = {
        "ring/node:1/exact": "ring",
        "ring-2/eavesdropper/exact": "ring-2",
        "wide/eavesdropper/exact": "wide",
    }
    names = tuple(checks)
    added = {name: replace(block, check=check) for name, check in checks.items()}
    example(**added).write(tmp_path / "b.json")
    old = baseline.read(tmp_path / "b.json")
    assert {name: cell.check for name, cell in old.cells.items()} == {
        "ring/eavesdropper/exact": "ring",
        **checks,
    }
    gate = Gate((Check("ring", "m:f", attacks=("exact",)),))
    judged = judge.GateResults(gate)
    judge.conclude(judged, old)
    assert judged.stale == ["ring/node:1/exact"]
    assert set(judge.update(judged, old, "why").cells) == set(names[1:])


def test_a_baseline_of_many_cells_is_known_as_one(tmp_path: Path) -> None:
    block = CellMeasurements("ring", "ab" * 32, (0, 1), {"psnr": (1.5, 2.0)})
    large = example(**{f"ring/node:{node}/exact": block for node in range(200)})
    large.write(tmp_path / "b.json")
    assert files.from_results(tmp_path / "b.json") == large


def test_a_baseline_changes_for_a_reason_and_keeps_other_cells() -> None:
    new = {
        "ring/eavesdropper/labels": CellMeasurements("ring", "cd" * 32, (0,), {"labels": (0.5,)})
    }
    with pytest.raises(LeakauditError, match="--reason TEXT"):
        example().merged(new, "  ", {})
    merged = example().merged(new, "labels too", {"torch": "3"})
    assert set(merged.cells) == {"ring/eavesdropper/exact", "ring/eavesdropper/labels"}
    assert merged.reason == "labels too"


def test_a_difference_names_what_changed() -> None:
    more = CellMeasurements("ring", "ab" * 32, (0, 1), {"psnr": (2.5, 3.0), "exact": (0.0, 1.0)})

    def lines(old: Baseline, new: Baseline) -> list[str]:
        return [said for said, _ in baseline.changes(old, new)]

    assert lines(example(), example()) == []
    assert lines(example(), example(**{"ring/eavesdropper/exact": more})) == [
        "~ ring/eavesdropper/exact psnr: 1.8 dB -> 2.8 dB"
    ]
    assert lines(example(), Baseline()) == ["- ring/eavesdropper/exact"]
    assert lines(Baseline(), example()) == ["+ ring/eavesdropper/exact"]
    other = CellMeasurements("ring", "cd" * 32, more.seeds, more.samples)
    (found,) = lines(example(), Baseline({"ring/eavesdropper/exact": other}))
    assert "not comparable" in found
