"""Verdicts that get lost on the way: a pipe that nobody reads, a recording of an earlier program, results of an earlier run."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from leakaudit.cli import main

NOISE = "return model + SIGMA * rng.normal(size=model.shape)"
START = "    rng = np.random.default_rng(seed)\n"
COPIED = """    kept = Path(__file__).with_name("kept")
    if path is not None and (kept / f"{seed}.trace.pt").exists():
        for name in ("trace.pt", "trace.truth.pt"):
            (Path(path).parent / name).write_bytes((kept / f"{seed}.{name}").read_bytes())
        return None
"""
TO_KEEP = """    for name in ("trace.pt", "trace.truth.pt"):
        (kept / f"{seed}.{name}").write_bytes((Path(path).parent / name).read_bytes())
    return w


if"""


@pytest.fixture
def repo(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    unwanted = shutil.ignore_patterns("__pycache__", "leakaudit-out")
    copy = shutil.copytree(project / "examples" / "ci-repo", tmp_path / "repo", ignore=unwanted)
    monkeypatch.chdir(copy)
    edit(copy / "leakaudit.toml", ("seeds = 16", "seeds = 2"))
    return copy


def edit(file: Path, *edits: tuple[str, str]) -> None:
    text = file.read_text()
    for old, new in edits:
        assert text.count(old) == 1, (old, text.count(old))
        text = text.replace(old, new)
    file.write_text(text)


def piped(*argv: str) -> int:
    """Run the command line with a stdout whose reader is gone; returns its code."""
    code = "import sys; from leakaudit.cli import main; sys.exit(main(sys.argv[1:]))"
    process = subprocess.Popen([sys.executable, "-c", code, *argv], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert process.stdout is not None
    process.stdout.close()
    return process.wait(120)


def test_a_leak_that_nobody_reads_is_a_leak(repo: Path) -> None:
    edit(repo / "train.py", (NOISE, "return model"))
    assert piped("check", "-q") == 1
    assert piped("check", "-q", "-f", "json", "-f", "markdown") == 1


def test_a_recording_of_an_earlier_program_is_refused(repo: Path, capsys: pytest.CaptureFixture[str]) -> None:
    edit(repo / "train.py", (START, COPIED + START), ("    return w\n\n\nif", TO_KEEP))
    (repo / "kept").mkdir()
    assert main(["check", "-q"]) == 0
    edit(repo / "train.py", (NOISE, "return model"))
    time.sleep(3.1)  # a recording's time is of whole seconds, and the clock has another
    assert main(["check", "-q"]) == 4
    assert "before run was called with seed 0; record every call anew" in capsys.readouterr().err


def test_a_run_that_broke_leaves_no_verdict_of_an_earlier_one(repo: Path) -> None:
    made = repo / "leakaudit-out" / "results.json"
    assert main(["check", "-q"]) == 0
    assert json.loads(made.read_text())["gate"]["verdict"] == "pass"
    edit(repo / "train.py", (START, f"    raise KeyError('x')\n{START}"))
    assert main(["check", "-q"]) == 4
    assert not made.exists()
