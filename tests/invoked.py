"""Calls of the command line that several test modules share."""

from __future__ import annotations

from pathlib import Path

import pytest

from leakaudit.cli import main

PROJECT = Path(__file__).resolve().parent.parent
RECORD = [
    "record",
    "pdmm",
    "--nodes",
    "4",
    "--graph",
    "ring",
    "--rounds",
    "6",
    "--model",
    "mlp",
    "--set",
    "hidden=32",
    "-q",
]

# A sweep of eight small cells, and a gate whose noise hides everything from its attack.
SWEEP = """
[scenario]
victim = "dpsgd"
nodes = 3
graph = "ring"
rounds = 3
data = "faces"
model = "mlp"

[scenario.set]
hidden = 8

[sweep]
attacks = ["analytic", "labels"]
seeds = 2
nodes = [0]

[sweep.over]
sigma = [0.0, 0.01]
"""
GATE = """
[gate]
seeds = 6
alpha = 0.05
compare = ["gain", "exact"]
[check.ring]
attacks = ["exact"]
set.exact.visits = 2
[check.ring.scenario]
victim = "dpsgd"
nodes = 3
graph = "ring"
rounds = 3
model = "logistic"
set = { order = "adapt", noise = "message", sigma = 0.5 }
[[budget]]
measure = "exact"
most = 0.0
"""


def _times() -> dict[Path, int]:
    """Return when each file was changed; links that lead nowhere are left out."""
    return {p: p.stat().st_mtime_ns for p in Path().rglob("*") if p.exists()}


def refused(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    """Run a call that must fail: code 2, one line on stderr, nothing on stdout, and no file of the
    current folder changed. Other tests write in the project's folder, so it cannot be that one.
    """
    assert Path.cwd() != PROJECT, "the test has to work in a folder of its own"
    capsys.readouterr()
    before = _times()
    try:
        code = main([*argv])
    except SystemExit as e:
        code = int(str(e.code))
    out, err = capsys.readouterr()
    assert code == 2
    assert out == ""
    lines = err.strip().splitlines()
    assert len(lines) == 1, err
    assert "Traceback" not in err
    assert _times() == before, "a file was left behind or changed"
    return lines[0]
