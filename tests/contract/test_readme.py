"""The README's own code, run as it stands."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

import leakaudit as la
from leakaudit.cli import main


def test_every_python_block_runs(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["record", "pdmm", "-o", "trace.pt", "--nodes", "4", "--set", "hidden=32", "-q"]) == 0
    blocks = re.findall(r"```python\n(.*?)```", (project / "README.md").read_text(), re.S)
    assert len(blocks) == 2
    for block in blocks:
        exec(compile(block, "README.md", "exec"), {})
    assert capsys.readouterr().out.count("(200.0,) (True,)") == 2
    assert main(["attack", "own.pt", "-o", "out", "-q", "-f", "json"]) == 0
    found = la.score(la.attack(la.leaks(la.load("own.pt")), generator=torch.Generator().manual_seed(0)), la.load_truth("own.truth.pt"))
    assert len(found) == 3
    assert all((score.statistics("relative_error")["mean"] or 1.0) < 1e-5 for score in found)
    assert all(score.label_correct == (True,) for score in found)


def test_every_shell_command_is_understood(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each `leakaudit` line of the README runs and ends with code 0."""
    monkeypatch.chdir(tmp_path)
    lines = re.findall(r"^(?:\.venv/bin/)?leakaudit (.*?)(?:\s+#.*)?$", (project / "README.md").read_text(), re.M)
    assert len(lines) >= 5
    for line in lines:
        assert main([*line.split(), *(["-q"] if not line.startswith(("list", "config")) else [])]) == 0, line
