"""The history of benchmarks: what is kept of a run, what counts as worse, and the plots."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))
import _history


def result(**ratios: float | None) -> dict[str, Any]:
    """What bench/_all.py writes for some figures of the benchmark `victims`."""
    rows = [
        {
            "name": f"victims/{name}",
            "ratio": ratio,
            "unit": "times faster" if name.startswith("fast") else "of the floor",
            "target": 2.0 if name == "floor" else None,
            "side": "at most" if name in ("floor", "work") else "at least",
            "met": "",
        }
        for name, ratio in ratios.items()
    ]
    machine = {
        "cores": 2,
        "model": "a",
        "python": "3.11",
        "torch": "2.13.0",
        "load": 0.1,
        "started": "2030-01-02T03:04:05+00:00",
    }
    return {"machine": machine, "rows": rows}


def test_a_run_keeps_its_figures_and_where_they_were_measured() -> None:
    kept = _history.entry(result(fast=10.0, none=None), "abc")
    assert kept["machine"] == "2 processors, a"
    assert kept["commit"] == "abc"
    assert kept["figures"] == {
        "victims/fast": {
            "ratio": 10.0,
            "unit": "times faster",
            "target": None,
            "side": "at least",
        }
    }


@pytest.mark.parametrize(
    ("before", "now", "named"),
    [
        ({"fast": 10.0}, {"fast": 7.9}, [("victims/fast", "10 -> 7.9 times faster")]),
        ({"fast": 10.0}, {"fast": 8.1}, []),
        ({"fast": 10.0}, {"fast": 20.0}, []),
        ({"floor": 1.0}, {"floor": 1.3}, [("victims/floor", "1 -> 1.3 of the floor")]),
        ({"floor": 1.0}, {"floor": 0.5}, []),
        ({"work": 4.0}, {"work": 5.2}, [("victims/work", "4 -> 5.2 of the floor")]),
        ({"work": 4.0}, {"work": 4.9}, []),
        ({"share": 1.0}, {"share": 0.1}, []),  # neither direction is better
        ({"other": 1.0}, {"fast": 0.1}, []),
    ],
)
def test_what_became_worse_is_named(
    before: dict[str, float], now: dict[str, float], named: list[tuple[str, str]]
) -> None:
    old = _history.entry(result(**before), "1")
    new = _history.entry(result(**now), "2")
    assert list(_history.worse(new, [old])) == named


@pytest.mark.parametrize("key", ["machine", "python", "torch"])
def test_other_machines_and_versions_are_not_compared(key: str) -> None:
    old = _history.entry(result(fast=10.0), "1")
    new = _history.entry(result(fast=1.0), "2")
    assert list(_history.worse(new, [{**old, key: "another"}])) == []
    without = {name: value for name, value in old.items() if name != key}
    assert list(_history.worse(new, [without])) == []


def test_a_figure_is_compared_with_the_last_run_that_has_it() -> None:
    runs = [_history.entry(result(fast=f), "1") for f in (30.0, 10.0)]
    runs.append(_history.entry(result(floor=1.0), "2"))
    (named,) = _history.worse(_history.entry(result(fast=7.0), "3"), runs)
    assert named == ("victims/fast", "10 -> 7 times faster")


def test_every_figure_has_a_panel_and_missing_runs_are_gaps() -> None:
    runs = [
        _history.entry(result(fast=10.0, floor=1.0), "1111111"),
        _history.entry(result(fast=12.0), "2222222"),
    ]
    ((name, image),) = _history.pictures(runs)
    assert name == "victims"
    assert image.startswith("<svg")
    for text in ("fast", "floor", "1111111", "2222222", "target"):
        assert text in image


def test_the_history_of_the_project_can_be_drawn() -> None:
    runs = _history.read()
    assert runs
    assert [run["started"] for run in runs] == sorted(run["started"] for run in runs)
    assert {name for name, _ in _history.pictures(runs)} >= {"pdmm", "attacks", "relations"}
