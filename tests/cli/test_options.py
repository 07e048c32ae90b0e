"""Decisions of shared options that other tests only see from afar."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from leakaudit.cli import _options, main, sweep
from leakaudit.core.errors import LeakauditError
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
