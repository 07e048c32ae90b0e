"""Recordings of every victim: each has a bound, which absent clients do not lower."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from every_victim import CASES, run

import leakaudit as la
from leakaudit.cli import main
from leakaudit.protocols import recording
from leakaudit.protocols.scenario import Scenario


@pytest.mark.parametrize(("name", "settings"), CASES)
def test_every_recorded_victim_has_a_bound(name: str, settings: dict[str, Any]) -> None:
    trace = run(name, settings, 3).trace
    views = la.bound(
        trace,
        ["eavesdropper", "node:1"],
        nodes=[0],
        sensitivity=1.0,
        options=la.BoundOptions(smoothness=1.0),
    )
    assert len(views) == 2
    assert all(view.bound.mu is None or view.bound.mu >= 0 for view in views)


def test_a_client_that_stays_away_does_not_lower_the_bound_of_another() -> None:
    plan = recording.plan(
        Scenario(
            "fedavg",
            nodes=4,
            graph="star",
            rounds=2,
            data="gaussians",
            model="logistic",
            samples=1,
            set={"clip": 1.0, "sigma": 1.4},
        )
    )
    trace = recording.record(plan, None).trace
    (table,) = trace.messages
    kept = (table.src != 1) | (table.round != 1)
    names = ("round", "src", "dst", "kind", "row", "secure")
    columns = {name: getattr(table, name)[kept] for name in names}
    absent = replace(trace, messages=(replace(table, **columns),))
    (before,) = la.bound(trace, ["node:2"], nodes=[0], sensitivity=2.0)
    (after,) = la.bound(absent, ["node:2"], nodes=[0], sensitivity=2.0)
    assert before.bound.mu is not None
    assert after.bound.mu is None or after.bound.mu > before.bound.mu * 1.1


def test_an_initial_model_of_another_length_does_not_enlarge_the_declared_noise() -> None:
    trace = run("mradmm", {"rate": 1.0}, 2).trace
    longer = replace(trace, public={**trace.public, "w0": torch.zeros(50 * trace.layout.size)})
    with pytest.raises(la.LeakauditError, match="'w0' of the"):
        la.bound(longer, ["eavesdropper"], nodes=[0], sensitivity=1.0)


def test_two_regression_targets_are_no_labels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    data = ["--nodes", "3", "--rounds", "2", "--data", "faces", "--samples", "2"]
    assert main(["record", "dpsgd", *data, "--model", "linear", "-o", "trace.pt", "-q"]) == 0
    assert main(["attack", "trace.pt", "-o", "out", "-q"]) in (0, 1)
    findings = json.loads((tmp_path / "out/results.json").read_text())["findings"]
    assert findings
    assert all(len(one["labels"] or ()) in (0, 2) for one in findings)
