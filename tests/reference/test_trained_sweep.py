"""Sweeps that train: curves and bounds of a cell are those of a recording, and tables show them."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from scipy import stats

import leakaudit as la
from leakaudit.core import registry
from leakaudit.core.errors import LeakauditError
from leakaudit.protocols import training_curves
from leakaudit.protocols.scenario import Scenario
from leakaudit.reporting.figures import sweep_figure
from leakaudit.reporting.findings import flat
from leakaudit.reporting.results import model
from leakaudit.reporting.results.cell_files import DONE, CellResult
from leakaudit.runs.sweeping import cells, run
from leakaudit.runs.sweeping.plan import SweepPlan
from leakaudit.runs.sweeping.work import Job

SCENARIO = Scenario(
    victim="dpsgd",
    nodes=4,
    graph="ring",
    rounds=6,
    data="gaussians",
    model="logistic",
    samples=10,
    dtype="float64",
    set={"sigma": 0.2, "noise": "message", "order": "adapt", "clip": 1.0},
    curves=True,
)
PLAN = SweepPlan(SCENARIO, attacks=(), seeds=(0, 1, 2), over={"rounds": (3, 6)})


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> model.SweepRecord:
    folder = tmp_path_factory.mktemp("swept")
    return run.sweep(PLAN, folder, run.SweepOptions(la.Executor())).complete_record()


def test_the_curves_of_a_cell_are_those_of_a_recording() -> None:
    (cell, *_) = cells.expand(replace(PLAN, over={}))
    result = Job()(cell).result
    assert result.status == DONE
    _, truth = la.record(SCENARIO)
    wanted = training_curves.kept(truth, "the run")
    found = result.curves
    assert isinstance(found, dict)
    assert {*found} == {*wanted} - {"seconds"}
    for name, values in found.items():
        column = [math.nan if value is None else value for value in values]
        assert np.array_equal(column, wanted[name].numpy(), equal_nan=True)


def test_an_attacked_cell_has_the_same_curves() -> None:
    (trained, *_) = cells.expand(replace(PLAN, over={}))
    (attacked, *_) = cells.expand(replace(PLAN, over={}, attacks=("analytic",)))
    assert Job()(attacked).result.curves == Job()(trained).result.curves


def test_without_curves_and_bounds_a_cell_is_stored_as_before() -> None:
    plain = replace(SCENARIO, curves=False)
    (cell, *_) = cells.expand(SweepPlan(plain, attacks=("analytic",)))
    result = Job()(cell).result
    stored = model.plain(result)
    assert not {"curves", "bound"} & {*stored}
    assert "bounds" not in stored["config"]  # type: ignore[operator]
    assert msgspec.convert(stored, CellResult) == result


def test_the_bound_of_a_cell_is_that_of_the_worst_view() -> None:
    plan = replace(PLAN, over={}, bounds=True, adversaries=("eavesdropper", "node:1"))
    (cell, *_) = cells.expand(plan)
    bound = Job()(cell).result.bound
    assert not isinstance(bound, msgspec.UnsetType)
    views = la.bound(SCENARIO, ["eavesdropper", "node:1"], delta=float(bound.delta))
    found = [view.bound.epsilon for view in views]
    assert all(epsilon is not None for epsilon in found)
    assert bound.epsilon == pytest.approx(max(epsilon or 0.0 for epsilon in found), rel=1e-9)
    assert bound.holds in ("exact", "at most", "as declared, which the recording contradicts")


def test_a_view_without_a_bound_is_missing_with_its_reason() -> None:
    silent = replace(SCENARIO, set={"sigma": 0.0})
    hidden = replace(silent, victim="dpnorm", set={"epsilon": 1.0}, curves=False)
    (cell, *_) = cells.expand(SweepPlan(hidden, attacks=(), bounds=True))
    bound = Job()(cell).result.bound
    assert not isinstance(bound, msgspec.UnsetType)
    if bound.epsilon is None:
        assert bound.why


def test_a_table_has_the_mean_over_seeds_and_its_interval(swept: model.SweepRecord) -> None:
    table = flat.table(swept, "points")
    rows = table.dicts()
    assert [row["rounds"] for row in rows] == [3, 6]
    each = flat.table(swept, "cells").dicts()
    for row in rows:
        values = [one["loss"] for one in each if one["rounds"] == row["rounds"]]
        numbers = [value for value in values if isinstance(value, float)]
        assert len(numbers) == 3
        low, high = stats.t.interval(0.95, 2, np.mean(numbers), stats.sem(numbers))
        assert row["loss"] == pytest.approx(np.mean(numbers), rel=1e-12)
        assert row["loss_low"] == pytest.approx(max(low, 0.0))  # no loss is below zero
        assert row["loss_high"] == pytest.approx(high)


def test_figure_text_and_latex_show_what_was_trained(swept: model.SweepRecord) -> None:
    (_, panels), *_ = sweep_figure.content(swept.sweep).rows
    assert [panel.title for panel in panels] == ["loss", "accuracy", "consensus"]
    assert "none attacked" in swept.summary
    values = model.plain(swept)
    for form in ("text", "markdown", "latex", "csv", "html"):
        assert "loss" in registry.get("reports", form)(values)
    assert "recovered" not in registry.get("reports", "markdown")(values)


def test_a_record_of_an_earlier_version_is_still_read(swept: model.SweepRecord) -> None:
    values = model.plain(swept)
    part: Any = values["sweep"]
    for one in (*part["cells"], *part["points"]):
        del one["trained"]
    assert model.trained_of(model.of_sweep(values).sweep.points) == ()
    assert "loss" not in registry.get("reports", "csv")(values)


def test_a_sweep_that_would_do_nothing_is_refused() -> None:
    with pytest.raises(LeakauditError, match="curves = true"):
        replace(PLAN, scenario=replace(SCENARIO, curves=False))
    assert replace(PLAN, attacks=("none",)).attacks == ()


def test_results_of_training_do_not_depend_on_processes(tmp_path: Path) -> None:
    for name, executor in (("one", la.Executor()), ("two", la.Executor(workers=2))):
        run.sweep(PLAN, tmp_path / name, run.SweepOptions(executor))
    files = {path.name: path.read_bytes() for path in (tmp_path / "one/cells").iterdir()}
    assert files == {path.name: path.read_bytes() for path in (tmp_path / "two/cells").iterdir()}
    assert len(files) == 6
