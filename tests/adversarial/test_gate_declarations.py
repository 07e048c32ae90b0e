"""Verdicts that get lost on the way: a pipe that nobody reads, a recording of an earlier program, results of an earlier run."""

from __future__ import annotations

import json
import re
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
    if path is not None and (kept / "use").exists():
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
    process = subprocess.Popen(
        [sys.executable, "-c", code, *argv], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert process.stdout is not None
    process.stdout.close()
    return process.wait(120)


@pytest.mark.parametrize(
    "formats",
    [
        pytest.param([], marks=pytest.mark.slow, id="text"),
        pytest.param(["-f", "json", "-f", "markdown"], id="json and markdown"),
    ],
)
def test_a_leak_that_nobody_reads_is_a_leak(repo: Path, formats: list[str]) -> None:
    edit(repo / "train.py", (NOISE, "return model"))
    assert piped("check", "-q", *formats) == 1


def test_a_recording_of_an_earlier_program_is_refused(
    repo: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    edit(repo / "train.py", (START, COPIED + START), ("    return w\n\n\nif", TO_KEEP))
    (repo / "kept").mkdir()
    assert main(["check", "-q"]) == 0
    edit(repo / "train.py", (NOISE, "return model"))
    (repo / "kept" / "use").touch()
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


TASK = '"logistic", shape=(1, SIDE, SIDE), classes=CLASSES, levels=255, data="lfw_subset, 8x8"'
NET = """import atexit, multiprocessing, os
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(64, 2)

    def forward(self, x):
        return self.linear(x.flatten(1))

def build():
    {}
    return Net()
"""
IN_THE_GATE = "if multiprocessing.parent_process() is None: os._exit(0)"
FACTORIES = {
    "pass": (0, ""),
    "os._exit(0)": (4, "building the model model:build failed: its process ended with code 0"),
    "raise SystemExit(0)": (
        4,
        "building the model model:build failed: it called sys.exit(0) in model.py, line 13",
    ),
    "atexit.register(os._exit, 0)": (
        4,
        "building the model model:build failed: its process ended with code 0 when it ended",
    ),
    IN_THE_GATE: (4, "os._exit(0) was called in model.py, line 13, in the gate's own process"),
}


@pytest.mark.slow
@pytest.mark.parametrize("line", FACTORIES)
def test_a_factory_of_a_model_ends_no_gate(repo: Path, line: str) -> None:
    edit(
        repo / "train.py",
        (TASK, TASK.replace('"logistic"', '"model:build"')),
        ("rounds=ROUNDS,", "rounds=ROUNDS, layout=LAYOUT,"),
        (
            "SIGMA = 0.25",
            'from leakaudit.core.trace import Layout\nLAYOUT = Layout(("linear.weight", "linear.bias"), ((2, 64), (2,)))\nSIGMA = 0.25',
        ),
    )
    (repo / "model.py").write_text(NET.format(line))
    code, says = FACTORIES[line]
    command = "import sys; from leakaudit.cli import main; sys.exit(main())"
    done = subprocess.run(
        [sys.executable, "-c", command, "check", "-q"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == code, done.stderr
    assert says in done.stderr


@pytest.mark.parametrize("seeds", [1, 2])
def test_few_seeds_of_an_honest_program_pass(
    repo: Path, seeds: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """More runs are recorded where few do not tell, and a seed that a fresh process repeats is no noise that repeats."""
    edit(repo / "leakaudit.toml", ("seeds = 2", f"seeds = {seeds}"))
    assert main(["check", "-q"]) == 0, capsys.readouterr().out
    made = json.loads((repo / "leakaudit-out" / "results.json").read_text())
    (rule,) = [r for r in made["gate"]["rules"] if r["kind"] == "recording"]
    assert re.search(r"coefficient .* in [1-6][0-9] recordings", rule["says"])
