"""The runner of `make bench`: what it makes of the lines of each benchmark, and that it ends in time whatever a benchmark does."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(scope="module")
def suite(project: Path) -> ModuleType:
    sys.path.insert(0, str(project / "bench"))  # as if it was run
    spec = importlib.util.spec_from_file_location("bench_all", project / "bench" / "_all.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_a_target_is_met_from_its_own_side(suite: ModuleType) -> None:
    (row,) = suite.plain(
        [
            {"bench": "sweep/two-workers", "ratio": 1.71, "unit": "", "target": 1.7},
            {"gate": "unchanged"},
        ]
    )
    assert row.met == "met"
    assert suite.Row("a", 1.69, "", 1.7).met == "missed"
    assert suite.Row("a", 1.2, "", 1.15, suite.MOST).met == "missed"
    assert suite.Row("a", 1.1, "", 1.15, suite.MOST).met == "met"
    assert suite.Row("a", 5.0, "").met == suite.Row("a", None, "", 2).met == ""


def test_victims_want_more_of_the_loop_and_less_of_the_floor(suite: ModuleType) -> None:
    lines = [
        {
            "bench": "pdmm/logistic-100",
            "ratio": 37.4,
            "unit": "times faster than a loop over nodes",
            "target": 10,
        },
        {
            "bench": "pdmm/100 to 1000 nodes",
            "ratio": 0.13,
            "unit": "times the cost of a node-round",
            "target": 1,
        },
        {"bench": "pdmm/mlp-30", "ratio": 2.1, "unit": "times the memory floor", "target": 2},
    ]
    assert [r.met for r in suite.victims(lines)] == ["met", "met", "missed"]


def test_ratios_are_made_of_what_was_measured_side_by_side(suite: ModuleType) -> None:
    lines = [
        {
            "what": "weights of all 100 nodes, own rows, window of 7 rounds, valid in all 200",
            "seconds": 9.0,
            "cpu": 0.5,
        },
        {"what": "the same window of one node, dense singular values", "seconds": 9.0, "cpu": 0.01},
        {"what": "sparse over dense std", "ratio": 1.0 + 1e-12},
        {"what": "DP-Norm mu and certificate, one node", "cpu": 2.3, "rounds": 2000},
        {"what": "DP-Norm mu and certificate, one node", "cpu": 0.05, "rounds": 300},
        {"what": "the same, dense singular values", "cpu": 0.1, "rounds": 300},
    ]
    window, mu, same = suite.relations(lines)
    assert (window.ratio, mu.ratio) == (2.0, 2.0)
    assert same.met == "met"
    assert (
        suite.relations([*lines, {"what": "mu over closed form", "ratio": 1.01}])[2].met == "missed"
    )
    times = [
        {"bench": f"exact/x-{b}", "ratio": 1.0, "unit": "", "target": 1, "cpu_median": t}
        for b, t in ((2, 0.1), (16, 0.9))
    ]
    grown = suite.exact(times)[-1]
    assert (grown.ratio, grown.target, grown.met) == (9.0, 8.0, "missed")
    memory = {"bench": "attacks/dlg-memory", "gb": 0.5, "target": 2}
    none = {
        "bench": "attacks/dlg",
        "ratio": None,
        "unit": "",
        "ratio_of_attempts": 12.0,
        "target": 10,
    }
    assert [r.ratio for r in suite.attacks([memory, none])] == [0.25, None, 12.0]


def test_a_benchmark_that_takes_too_long_is_ended_and_its_lines_are_kept(
    suite: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "slow.py").write_text(
        'import time\nprint(\'{"bench": "slow", "ratio": 3}\', flush=True)\nprint("words", flush=True)\ntime.sleep(900)'
    )
    (tmp_path / "wrong.py").write_text("raise SystemExit(3)")
    monkeypatch.setattr(suite, "HERE", tmp_path)
    lines, how, took = suite.run(suite.Bench("slow", (), 60), 6)
    assert lines == [{"bench": "slow", "ratio": 3}]
    assert how.startswith("ended after")
    assert took < 600, "it was not ended"
    assert suite.run(suite.Bench("wrong", (), 60), 30)[1] == "failed with code 3"


def test_the_whole_ends_in_time_and_writes_what_it_measured(
    suite: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "one.py").write_text(
        'print(\'{"bench": "one", "ratio": 3, "unit": "times", "target": 2}\')'
    )
    (tmp_path / "two.py").write_text("import time\ntime.sleep(900)")
    (tmp_path / "three.py").write_text("")
    monkeypatch.setattr(suite, "HERE", tmp_path)
    monkeypatch.setattr(
        suite, "SUITE", tuple(suite.Bench(n, (), 60) for n in ("one", "two", "three"))
    )
    monkeypatch.setattr(
        sys, "argv", ["_all.py", "-o", str(tmp_path / "out" / "bench.json"), "--seconds", "8"]
    )
    assert suite.main() == 0
    record = json.loads((tmp_path / "out" / "bench.json").read_text())
    assert [r["met"] for r in record["rows"]] == ["met"]
    assert record["benches"][0]["how"] == "done"
    assert record["benches"][2]["how"] == "not run: no time was left"
    assert record["machine"]["cores"] >= 1


def test_what_is_worse_than_the_last_record_is_named_in_the_table_and_at_the_end(
    suite: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "one.py").write_text(
        'print(\'{"bench": "one", "ratio": 3, "unit": "times faster"}\')'
    )
    monkeypatch.setattr(suite, "HERE", tmp_path)
    monkeypatch.setattr(suite, "SUITE", (suite.Bench("one", (), 60),))
    monkeypatch.setattr(sys, "argv", ["_all.py"])
    figures = {"one": {"ratio": 4.5, "unit": "times faster", "target": None, "side": "at least"}}
    about = suite.machine()
    record = suite._history.entry({"machine": about, "rows": []}, "1") | {"figures": figures}
    monkeypatch.setattr(suite._history, "read", lambda: [record])
    assert suite.main() == 0
    row, *end = capsys.readouterr().out.splitlines()
    assert row.split()[:2] == ["one", "3"]
    assert "WORSE: 4.5 -> 3 times faster" in row
    assert "1 figures are worse by more than a quarter than the last record" in end
    assert "worse: one: 4.5 -> 3 times faster" in end


def test_growth_shows_the_exponent_and_where_limits_are_reached(suite: ModuleType) -> None:
    line = {
        "bench": "growth/bound nodes",
        "size": "nodes",
        "sizes": [6, 15],
        "work": 130.0,
        "exponent": 3.1,
        "low": 2.9,
        "high": 3.3,
        "minute": 34.4,
        "hour": 129.2,
        "8 GB": None,
    }
    exponent, work = suite.growth([line])
    assert exponent.ratio == 3.1
    assert exponent.unit == (
        "exponent of the CPU time; 2.90 to 3.30, a minute at 34.4 nodes, an hour at 129 nodes"
    )
    assert (work.name, work.ratio, work.side) == ("growth/bound nodes, 15", 130.0, suite.MOST)


def test_start_up_is_limited_from_above(suite: ModuleType) -> None:
    fast, slow = suite.startup(
        [
            {"bench": "startup/list data", "ratio": 0.4, "unit": "of 0.3 CPU s", "target": 1},
            {"bench": "startup/trace verify", "ratio": 1.3, "unit": "times", "target": 1.2},
        ]
    )
    assert (fast.met, slow.met) == ("met", "missed")


def test_every_script_is_in_the_suite_or_has_a_reason_not_to_be(
    suite: ModuleType, project: Path
) -> None:
    scripts = {p.name for p in (project / "bench").glob("*.py") if not p.name.startswith("_")}
    assert scripts == {f"{b.name}.py" for b in suite.SUITE} | {*suite.LEFT_OUT}
