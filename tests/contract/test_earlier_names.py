"""Programs that were written for an earlier version run, and are told how to write it today."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest
import torch

import leakaudit as la
from leakaudit._util import earlier_names
from leakaudit.runs.sweeping.run import every_core

GROUPS = [(name, *group) for name, groups in earlier_names.MOVED.items() for group in groups]


@pytest.mark.parametrize(("name", "parameter", "kind", "words"), GROUPS)
def test_an_earlier_keyword_is_a_field_of_today(
    name: str, parameter: str, kind: str, words: tuple[str, ...]
) -> None:
    taken = inspect.signature(getattr(la, name)).parameters
    assert parameter in taken
    assert not {*words} & {*taken}
    assert {*words} <= {*inspect.signature(getattr(la, kind)).parameters}


def described(**given: Any) -> dict[str, Any]:
    return {
        "protocol": "fedsgd",
        "task": la.TaskSpec("logistic", shape=(3,), classes=2),
        "graph": la.Graph(2, ((0, 1),)),
        "params": {"lr": 0.1, "samples": 1},
        "rounds": 1,
        **given,
    }


def test_a_recorder_takes_earlier_keywords(tmp_path: Path) -> None:
    path = tmp_path / "trace.pt"
    with pytest.warns(DeprecationWarning, match=r"write options=leakaudit.RecorderOptions\(dtype"):
        recorder = la.Recorder(path, **described(dtype=torch.float64))
    assert recorder.dtype == torch.float64
    about = described(messages=9, max_bytes=1.0)
    with (
        pytest.warns(DeprecationWarning, match=r"leakaudit.Storage\(path, messages=\.\.\., max_b"),
        pytest.raises(la.LeakauditError, match="max_bytes allows 1 byte"),
    ):
        la.Recorder(None, **about)


def test_an_earlier_keyword_beside_a_value_of_today_is_added_to_it() -> None:
    storage = la.Storage(None, messages=9)
    with (
        pytest.warns(DeprecationWarning, match="write leakaudit.Storage"),
        pytest.raises(la.LeakauditError, match="max_bytes allows 1 byte"),
    ):
        la.Recorder(storage, **described(max_bytes=1.0))


def test_a_sweep_without_a_number_of_workers_still_takes_every_processor() -> None:
    chosen = earlier_names._today("Executor", None, {"backend": "loky"})
    assert chosen == la.Executor.of(None, "loky")
    assert earlier_names._today("Executor", None, {"workers": None}) == every_core()


def test_the_warning_names_the_line_of_the_program(tmp_path: Path) -> None:
    for call in (
        lambda: la.bound(tmp_path / "none.pt", epsilon=1.0),  # type: ignore[call-arg]
        lambda: la.sweep(tmp_path / "none.toml", workers=0),  # type: ignore[call-arg]
        lambda: la.report(tmp_path / "none.json", width=80),  # type: ignore[call-overload]
    ):
        with (
            pytest.warns(DeprecationWarning, match="write ") as warned,
            pytest.raises(la.LeakauditError),
        ):
            call()
        assert warned[0].filename == __file__


def test_an_unknown_keyword_is_still_unknown() -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'column'"):
        la.Recorder(None, column=(0, 3))  # type: ignore[call-arg]
