"""Decisions of shared options that other tests only see from afar."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from leakaudit.cli import _options, bound, main, record, sweep
from leakaudit.cli._main import parser
from leakaudit.core.errors import LeakauditError
from leakaudit.core.verdict import Verdict
from leakaudit.judging import selfcheck
from leakaudit.runs.sweeping import merge


def test_reasons_make_a_result_inconclusive(capsys: pytest.CaptureFixture[str]) -> None:
    assert _options.concluded([], "text") == 0
    assert _options.concluded(["no truth"], "text") == _options.INCONCLUSIVE == 3
    assert capsys.readouterr().out == "INCONCLUSIVE: no truth\n"
    assert _options.concluded(["no truth"], "json") == 3
    assert capsys.readouterr() == ("", "INCONCLUSIVE: no truth\n")


def test_half_of_the_available_memory_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "MemTotal: 4000 kB\nMemFree: 500 kB\nMemAvailable: 1000 kB\n"
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: text)
    assert _options.half_of_free() == 1000 * 1024 // 2


def test_the_statistics_of_the_doctor_have_these_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[object, ...]] = []

    def noted(*given: object) -> None:
        asked.append(given)
        raise LeakauditError("enough")

    monkeypatch.setattr(selfcheck, "check", noted)
    assert main(["doctor", "--statistics", "-q"]) == 2
    assert asked == [(1000, 1000, 0.05, 0)]


@pytest.mark.parametrize(
    ("text", "rounds"), [("0:11", range(11)), (":3", range(3)), ("2:", range(2, 100))]
)
def test_a_window_holds_its_first_round_and_not_its_last(text: str, rounds: range) -> None:
    window = _options.window(text)
    assert window is not None
    assert range(100)[window.start : window.stop] == rounds


@pytest.mark.parametrize(("statuses", "missing", "code"), [("d", 0, 0), ("df", 0, 3), ("d", 1, 3)])
def test_a_merged_sweep_without_all_results_is_inconclusive(
    statuses: str, missing: int, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = {"d": "done", "f": "failed"}
    cells = [SimpleNamespace(status=words[one]) for one in statuses]
    made = SimpleNamespace(sweep=SimpleNamespace(cells=cells, missing=missing))
    monkeypatch.setattr(merge, "write", lambda *_: made)
    monkeypatch.setattr(sweep, "_show", lambda *_: None)
    assert main(["sweep", "merge", "a", "b", "-q", "-o", "out.json"]) == code


def test_explain_reads_up_to_16_gradients() -> None:
    assert parser("explain").parse_args(["explain", "trace.pt"]).gradients == 16


@pytest.mark.parametrize(
    ("count", "said"), [(3, "without noise: a, b, c"), (4, "without noise: a, b, c and 1 more")]
)
def test_three_leaking_combinations_are_listed(count: int, said: str) -> None:
    found = SimpleNamespace(
        refused="",
        leaking=("a", "b", "c", "d")[:count],
        unit=None,
        guarantee=None,
        mu=None,
        node_mu=None,
        node_epsilon=None,
    )
    one = SimpleNamespace(bound=found, claim=None, verdict=Verdict.UNCLAIMED)
    assert bound._what(cast(Any, one)) == said


def test_settings_are_numbers_where_they_are_written_as_such() -> None:
    found = record.pairs(["a=3", "b=0.5", "c=ring", "d=true", "e=1e-3", "f=x=y"])
    assert found == {"a": 3, "b": 0.5, "c": "ring", "d": True, "e": 1e-3, "f": "x=y"}
    assert [type(value) for value in found.values()] == [int, float, str, bool, float, str]


@pytest.mark.parametrize("suffix", [".html", ".htm"])
def test_a_page_is_html(suffix: str) -> None:
    _options.expect_format("html", Path("report").with_suffix(suffix))
    with pytest.raises(LeakauditError, match="whose suffix stands for html"):
        _options.expect_format("markdown", Path("report").with_suffix(suffix))
