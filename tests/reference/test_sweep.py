"""Sweeps: what a cell is, that it is what the other verbs give, and that parts, kills and workers change nothing."""

# JSON is looked up by keys here: a wrong key fails when the test runs.
# mypy: disable-error-code="arg-type, call-overload, dict-item, index, misc, operator, str-unpack, type-var, union-attr"

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any, cast

import pytest
from msgspec.structs import replace as replace_fields
from records import cell_result, in_a_cell

from leakaudit.cli import main
from leakaudit.core import registry
from leakaudit.core.errors import LeakauditError
from leakaudit.core.quantities import QUANTITIES
from leakaudit.judging.auditing.levels import levels
from leakaudit.judging.auditing.plan import AuditPlan
from leakaudit.protocols.scenario import Scenario
from leakaudit.reporting.findings.wording import axis_value
from leakaudit.reporting.results import record_file
from leakaudit.reporting.results.cell_files import CellResult
from leakaudit.reporting.results.model import (
    NO_SCORES,
    FlagColumn,
    NumberColumn,
    Scores,
    given,
    plain,
)
from leakaudit.reporting.results.provenance import decisive_versions
from leakaudit.runs.reproducing import gather
from leakaudit.runs.sweeping import merge, tables
from leakaudit.runs.sweeping.cells import PlannedCell, expand
from leakaudit.runs.sweeping.plan import SweepPlan
from leakaudit.runs.sweeping.run import SweepOptions, part, sweep
from leakaudit.runs.sweeping.store import Store, StoredPlan
from leakaudit.runs.sweeping.work import Job
from leakaudit.runs.workers.executor import Executor

HERE = SweepOptions(Executor())
ERROR = QUANTITIES["relative_error"]
SMALL = Scenario(
    "dpsgd",
    nodes=3,
    graph="ring",
    rounds=3,
    data="faces",
    model="mlp",
    set={"hidden": 8, "alpha": 0.1},
)


def plan(**changes: Any) -> SweepPlan:
    return replace(
        SweepPlan(
            SMALL,
            attacks=("analytic", "labels"),
            nodes=(0,),
            over={"sigma": (0.0, 0.01)},
            seeds=(0, 1),
        ),
        **changes,
    )


def psnr(scores: Scores | None) -> NumberColumn:
    assert scores is not None
    assert isinstance(scores.psnr, NumberColumn)
    return scores.psnr


def result(store: Store, key: str) -> CellResult:
    found = store.load(key)
    assert found is not None
    return found


def keys(p: SweepPlan) -> list[str]:
    return [cell.key(decisive_versions()) for cell in expand(p)]


# --- the grid ---------------------------------------------------------------------------------------------------------


def test_there_is_one_cell_for_each_attack_adversary_seed_and_place_on_the_axes_that_concern_it() -> (
    None
):
    p = plan(
        attacks=("analytic", "dlg"),
        adversaries=("eavesdropper", "node:1"),
        over={"victim": ("dpsgd", "pdmm"), "samples": (1, 2)},
        own={"dlg": {"steps": (5, 10, 20)}, "pdmm": {"rho": (0.1, 0.2)}},
        scenario=replace(SMALL, set={"hidden": 8}),
        seeds=(3, 4, 9),
    )
    shared, own = 2 * 2 * 3, {"analytic": 1, "dlg": 3}  # adversaries x samples x seeds
    assert len(expand(p)) == sum(
        shared * own[a] * {"dpsgd": 1, "pdmm": 2}[v] for a in own for v in ("dpsgd", "pdmm")
    )
    assert len({*keys(p)}) == len(expand(p))
    one = [c for c in expand(p) if c.at.get("pdmm.rho") == 0.2 and c.at.get("dlg.steps") == 20]
    assert {c.scenario.set["rho"] for c in one} == {0.2}
    assert {c.settings["steps"] for c in one} == {20}
    assert [c.scenario.seed for c in expand(p)] == sorted(
        c.scenario.seed for c in expand(p)
    )  # the whole grid before the next seed


@pytest.mark.parametrize(
    "change",
    [
        {"scenario": replace(SMALL, rounds=4)},
        {"scenario": replace(SMALL, set={"hidden": 9, "alpha": 0.1})},
        {"nodes": (1,)},
        {"gradients": 7},
        {"device": "cuda"},
        {"attacks": ("idlg", "labels")},
        {"adversaries": ("node:1",)},
        {"seeds": (5, 6)},
    ],
)
def test_whatever_a_result_depends_on_changes_its_name(change: dict[str, Any]) -> None:
    before, after = keys(plan()), keys(plan(**change))
    changed = len(before) // 2 if "attacks" in change else len(before)
    assert len({*before} - {*after}) == changed


def test_a_name_depends_on_versions_and_not_on_how_results_are_counted_or_drawn() -> None:
    assert keys(plan(psnr=30.0, figure="sigma")) == keys(plan())
    cell = expand(plan())[0]
    assert cell.key({**decisive_versions(), "torch": "1.0"}) != cell.key(decisive_versions())
    assert cell.key(dict(reversed([*decisive_versions().items()]))) == cell.key(decisive_versions())


def test_more_values_keep_the_names_of_the_cells_that_were_there() -> None:
    assert {*keys(plan())} < {*keys(plan(over={"sigma": (0.0, 0.01, 0.1)}, seeds=(0, 1, 2)))}


def test_a_plan_is_the_same_after_json() -> None:
    p = plan(
        epsilon=(1.0, math.inf), own={"dlg": {"steps": (5,)}}, attacks=("dlg",), over={}, delta=1e-6
    )
    again = tables.of_json(json.loads(json.dumps(tables.to_json(p), allow_nan=False)))
    assert keys(again) == keys(p)
    assert tables.to_json(again) == tables.to_json(p)
    with pytest.raises(LeakauditError, match="expected the plan of a sweep"):
        tables.of_json({"over": {}})


# --- one cell ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [0, 1])
def test_a_cell_is_what_record_and_attack_give(tmp_path: Path, seed: int) -> None:
    chosen = [
        c
        for c in expand(plan())
        if (c.attack, c.at["sigma"], c.scenario.seed) == ("analytic", 0.01, seed)
    ]
    cell = Job().measure(chosen[0])
    (tmp_path / "s.toml").write_text(chosen[0].scenario.to_toml())
    trace = str(tmp_path / "trace.pt")
    assert main(["record", "--scenario", str(tmp_path / "s.toml"), "-o", trace, "-q"]) == 0
    words = ["--attack", "analytic", "--node", "0", "--seed", str(seed), "--gradients", "8"]
    assert main(["attack", trace, *words, "-o", str(tmp_path / "out"), "-q", "-f", "json"]) == 0
    (finding,) = record_file.read(tmp_path / "out" / "results.json")["findings"]
    left_out = ("seconds", "labels", "images", "evidence")
    assert {k: v for k, v in finding.items() if k not in left_out} == plain(cell.findings[0])


def test_an_epsilon_is_set_as_an_audit_sets_it(tmp_path: Path) -> None:
    p = plan(epsilon=(math.inf, 4.0), over={}, attacks=("analytic",), seeds=(0,), sensitivity=2.0)
    found = {str(c.epsilon): Job().measure(c) for c in expand(p)}
    (level,) = levels(AuditPlan(replace(SMALL), epsilon=(4.0,), sensitivity=2.0, nodes=(0,)))
    assert found["inf"].constants == {"sigma": 0.0}
    assert found["4.0"].constants == dict(level.constants)
    assert (psnr(found["inf"].findings[0].scores).min or 0.0) > 100
    assert (psnr(found["4.0"].findings[0].scores).per_image[0] or 0.0) < 20


def test_what_an_attack_cannot_use_is_a_reason_and_no_failure(tmp_path: Path) -> None:
    cell = expand(plan(scenario=replace(SMALL, samples=2), attacks=("rgap",), over={}))[0]
    result = Job().measure(cell)
    assert result.findings == ()
    assert result.records == 2
    assert result.reasons["0"].startswith("rgap: it recovers one sample")


# --- the whole --------------------------------------------------------------------------------------------------------


def test_records_are_counted_from_what_the_scores_say(tmp_path: Path) -> None:
    p = plan()
    assert sweep(p, tmp_path, HERE).troubles == []
    record = record_file.read(tmp_path / "results.json")
    store, keyed = Store(tmp_path), Store(tmp_path).planned().keyed
    for point in record["sweep"]["points"]:
        mine = [
            k for k, c in keyed.items() if (c.attack, dict(c.at)) == (point["attack"], point["at"])
        ]
        cells = [result(store, k) for k in mine]
        found = [psnr(f.scores) for c in cells for f in c.findings]
        values = [v for column in found for v in column.per_image if v is not None]
        every = [*found, *(psnr(s) for c in cells for s in c.refused)]
        counted = values + [v for column in every for v in given(column.missed, ())]
        assert point["records"] == 2
        assert point["recovered"] == sum(v >= 20 for v in values)
        assert ("psnr" in point) == bool(values)
        if values:
            assert len(counted) == 2
            assert (point["psnr"]["best"], point["psnr"]["mean"]) == (
                max(counted),
                pytest.approx(fmean(counted)),
            )
    best = max(record["sweep"]["points"], key=lambda point: point["exact"])
    assert (best["attack"], best["at"], best["exact"]) == ("analytic", {"sigma": 0.0}, 2)
    assert record["complete"]
    assert record["sweep"]["across"] == "sigma"


def test_data_that_are_no_images_count_by_their_ratio_of_signal_to_noise() -> None:
    errors = NumberColumn(per_image=(0.09, 0.11, None), min=0.09, median=0.1, mean=0.1)
    scores = replace_fields(NO_SCORES, relative_error=errors, matched=(0, 1, None))
    made = cell_result(in_a_cell(scores), records=3)
    found = merge.columns(made, 20.0)  # 20 dB are a relative error of 0.1
    assert (found.records, found.recovered) == (3, 1)
    # Found by the fuzzer: the relative error of this ratio is beyond all floats.
    assert merge.columns(made, -1e300).recovered == 2


def test_a_record_of_several_sums_counts_once() -> None:
    def of(owners: tuple[int, ...], *errors: float | None) -> Scores:
        rows = tuple(None if error is None else k for k, error in enumerate(errors))
        missed = (0.9,) * errors.count(None)
        column = NumberColumn(per_image=errors, missed=missed, min=None, median=None, mean=None)
        identified = FlagColumn(per_image=(True,) * len(rows), min=1, median=1, mean=1)
        return replace_fields(
            NO_SCORES, relative_error=column, identified=identified, matched=rows, owners=owners
        )

    sums = [in_a_cell(of((0, 1), 0.0, 0.04)), in_a_cell(of((1, 2), 0.02, None))]
    certified = [replace_fields(sums[0], certified=2), replace_fields(sums[1], certified=1)]
    # The attack on node 2 returned nothing, and another sum contains no record of it either.
    made = cell_result(*certified, records=4, refused={2: of((), None), 3: of((), None)})
    found = merge.columns(made, 20.0)
    assert (found.recovered, found.certified) == (2, 2)
    assert getattr(found, ERROR.key) == (0.0, 0.02, 0.9, 0.9)
    assert gather._certified(made, cast(Any, None)) == 0.5
    assert gather._score(made, "relative_error") == pytest.approx(0.455)
    assert gather._flag(cell_result(*sums, records=3), "identified") == 1.0
    # Records of nodes that were not attacked are not among those that are counted.
    some = merge.columns(cell_result(*certified, nodes=(1,)), 20.0)
    assert (some.recovered, some.certified, getattr(some, ERROR.key)) == (1, 1, (0.02,))


def test_two_values_of_an_axis_have_two_words() -> None:
    values = [0, 1, 0.1, 1e-5, 2.5e-07, 60000, 12345, 12346, 0.12345, 0.12346, True, "ring"]
    assert len({axis_value(v) for v in values}) == len(values)
    assert [axis_value(v) for v in (60000, 1e-5, 0.25)] == ["6e4", "1e-05", "0.25"]


def test_parts_in_several_folders_give_the_same_file_as_one_run(tmp_path: Path) -> None:
    p = plan()
    sweep(p, tmp_path / "one", HERE)
    keyed = StoredPlan(p).keyed
    shares = [{*part(keyed, (i, 3))} for i in (1, 2, 3)]
    assert {*keyed} == set.union(*shares)
    assert sum(map(len, shares)) == len(keyed)
    assert {len(s) for s in shares} == {2, 3}
    folders = [tmp_path / f"part{i}" for i in (1, 2, 3)]
    for i, folder in enumerate(folders, 1):
        assert sweep(p, folder, replace(HERE, shard=(i, 3))).record is None
    merge.write(folders[:2], tmp_path / "some.json")
    some = record_file.read(tmp_path / "some.json")
    assert not some["complete"]
    assert some["sweep"]["missing"] == len(shares[2])
    merge.write(folders, tmp_path / "all.json")
    assert (tmp_path / "all.json").read_bytes() == (tmp_path / "one" / "results.json").read_bytes()
    sweep(plan(gradients=3), tmp_path / "other", HERE)
    with pytest.raises(LeakauditError, match="expected parts of one sweep"):
        merge.write([*folders, tmp_path / "other"], tmp_path / "no.json")


def test_a_second_run_does_what_is_left_and_nothing_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep(plan(seeds=(0,)), tmp_path, HERE)
    before = {f: f.read_bytes() for f in (tmp_path / "cells").iterdir()}
    made = list[PlannedCell]()
    measure = Job.measure

    def counted(job: Job, cell: PlannedCell) -> CellResult:
        made.append(cell)
        return measure(job, cell)

    monkeypatch.setattr(Job, "measure", counted)
    swept = sweep(plan(), tmp_path, HERE)
    assert {c.scenario.seed for c in made} == {1}
    assert (swept.cells, swept.skipped, len(made)) == (8, 4, 4)
    assert {f: f.read_bytes() for f in before} == before
    some = next(iter(before))
    some.write_bytes(before[some][:100])  # damaged from outside
    (tmp_path / "cells" / f".{some.name}.0123456789abcdef.tmp").write_bytes(b"half")
    sweep(plan(), tmp_path, HERE)
    assert len(made) == 5
    assert some.read_bytes() == before[some]
    assert not [*(tmp_path / "cells").glob(".*")]


def test_ctrl_c_keeps_what_is_done_and_says_that_it_is_not_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measure = Job.measure
    count = iter(range(100))

    def three(job: Job, cell: PlannedCell) -> CellResult:
        if next(count) == 3:
            raise KeyboardInterrupt
        return measure(job, cell)

    monkeypatch.setattr(Job, "measure", three)
    swept = sweep(plan(), tmp_path, HERE)
    assert (swept.interrupted, swept.left) == (True, 5)
    assert not record_file.read(tmp_path / "results.json")["complete"]
    assert not sweep(plan(), tmp_path, HERE).left
    whole = (tmp_path / "results.json").read_bytes()
    sweep(plan(), tmp_path / "again", HERE)
    assert (tmp_path / "again" / "results.json").read_bytes() == whole


# --- what goes wrong --------------------------------------------------------------------------------------------------


def test_a_cell_that_raises_is_recorded_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind, call = registry.get("attacks", "analytic"), registry.get("attacks", "analytic").__call__
    monkeypatch.setattr(kind, "__call__", lambda *a: [][1])
    swept = sweep(plan(), tmp_path, HERE)
    assert [why for _, why in swept.troubles] == ["IndexError: list index out of range"] * 4
    record = record_file.read(tmp_path / "results.json")
    assert [c["attack"] for c in record["sweep"]["cells"] if c["status"] == "failed"] == [
        "analytic"
    ] * 4
    assert all(p["attack"] == "labels" for p in record["sweep"]["points"])
    files = [*(tmp_path / "errors").iterdir()]
    assert len(files) == 4
    assert all("IndexError" in f.read_text() for f in files)
    monkeypatch.setattr(kind, "__call__", call)
    assert len(sweep(plan(), tmp_path, HERE).troubles) == 4
    assert sweep(plan(), tmp_path, replace(HERE, again=True)).troubles == []
    assert [*(tmp_path / "errors").iterdir()] == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"attacks": ()}, "expected an attack, or a scenario with curves"),
        ({"attacks": ("analitic",)}, "did you mean 'analytic'"),
        ({"seeds": (1, 1)}, "distinct integers"),
        ({"over": {"sigmma": (1,)}}, "did you mean 'sigma'"),
        (
            {"over": {"victim": ("dpsgd", "pdmm"), "sigma": (0.0,)}},
            r"neither pdmm nor mlp has a parameter .sigma.*\[sweep\.set\.VICTIM\]",
        ),
        ({"over": {"rounds": ("three",)}}, "rounds: expected a whole number, got 'three'"),
        ({"own": {"dgl": {"steps": (1,)}}}, "expected the name of an attack or a victim"),
        ({"own": {"labels": {"stepz": (1,)}}}, "stepz"),
        ({"set": {"pdmm": {"rho": 1}}}, "expected the name of an attack or a victim"),
        ({"epsilon": (-1.0,)}, "sweep: epsilon"),
        ({"noise": "none"}, "sweep: noise"),
        ({"gradients": 0}, "sweep: gradients"),
        ({"figure": "sgma"}, "did you mean 'sigma'"),
        ({"psnr": math.nan}, "psnr"),
        (
            {"attacks": ("auto",), "set": {"auto": {"steps": 3}}},
            "auto: expected no hyper-parameters",
        ),
    ],
)
def test_a_plan_that_cannot_be_used_is_refused_before_anything_runs(
    change: dict[str, Any], words: str
) -> None:
    with pytest.raises(LeakauditError, match=words) as caught:
        expand(plan(**change))
    assert "\n" not in str(caught.value)
