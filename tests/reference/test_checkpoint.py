"""Runs that are killed and go on: the same findings as without a break, and nothing of another run is ever taken up."""

# JSON is looked up by keys here: a wrong key fails when the test runs.
# mypy: disable-error-code="arg-type, dict-item"

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from leakaudit.cli import main
from leakaudit.core.errors import LeakauditError
from leakaudit.core.progress import remaining
from leakaudit.core.reconstruction import Certificate, Reconstruction
from leakaudit.runs.pipeline import checkpoint, node_groups
from leakaudit.runs.pipeline.checkpoint import Checkpoint
from leakaudit.tasks import data

ATTACK = [
    "attack",
    "trace.pt",
    "--attack",
    "idlg",
    "--set",
    "restarts=1",
    "--gradients",
    "1",
    "-q",
    "-f",
    "json",
]
DRIVER = """
import os, signal, sys
from leakaudit.inversion import attacking
from leakaudit.runs.pipeline import node_groups
from leakaudit.runs.pipeline.checkpoint import Checkpoint
from leakaudit.cli import main

node_groups.TOGETHER = 2
save, searched, saves = Checkpoint.save, attacking.attack_together, []

def killed(self, found):
    save(self, found)
    saves.extend([1] * bool(found))
    if saves and len(saves) == int(sys.argv[1]):
        os.kill(os.getpid(), signal.SIGKILL)

def told(leaks, *rest, **more):
    sys.stderr.write(f"searched {[leak.node for leak in leaks]}\\n")
    return searched(leaks, *rest, **more)

Checkpoint.save, attacking.attack_together = killed, told
sys.exit(main(sys.argv[2:]))
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a trace of five nodes that train a small LeNet with FedSGD, each on one real 8x8 picture."""
    photos = data.load("photos")
    x = (photos.x[::17, 1:2, 12:20, 12:20][:8] * 255).round().byte().permute(0, 2, 3, 1).squeeze(-1)
    np.savez(tmp_path / "data.npz", x=x.numpy(), y=np.arange(8) % 4)
    monkeypatch.chdir(tmp_path)
    record = [
        "record",
        "fedsgd",
        "--nodes",
        "5",
        "--rounds",
        "2",
        "--model",
        "lenet",
        "--data",
        "npz:data.npz",
        "--samples",
        "1",
    ]
    assert main([*record, "--dtype", "float64", "-o", "trace.pt", "-q"]) == 0
    return tmp_path


def driven(kill_at: int, *more: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, "-c", DRIVER, str(kill_at), *ATTACK, *more],
        capture_output=True,
        text=True,
        env=env,
        check=False,
    )


def findings(folder: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((folder / "results.json").read_text())["findings"]
    return [{k: v for k, v in f.items() if k != "seconds"} for f in found]


@pytest.mark.slow
def test_a_run_that_was_killed_goes_on_and_gives_what_one_without_a_break_gives(
    place: Path,
) -> None:
    """Groups of two: killed after the first, after the second, then left to finish."""
    assert driven(0, "-o", "whole").returncode == 0
    for k, left in ((1, ["searched [0, 1]"]), (1, ["searched []", "searched [2, 3]"])):
        cut = driven(k, "-o", "out", "--resume")
        assert cut.returncode == -signal.SIGKILL
        assert cut.stderr.splitlines() == left
        assert not (place / "out/results.json").exists()
    done = driven(0, "-o", "out", "--resume")
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines() == ["searched []", "searched []", "searched [4]"]
    assert findings(place / "out") == findings(place / "whole")
    assert len(findings(place / "out")) == 5
    assert all(f["scores"]["psnr"]["min"] > 40 for f in findings(place / "out"))
    assert not (place / "out" / checkpoint.FOLDER).exists()


def found(node: int, **more: Any) -> Reconstruction:
    x = torch.rand(2, 1, 4, 4, generator=torch.Generator().manual_seed(node))
    own: dict[str, Any] = {
        "y": torch.tensor([1, 3]),
        "certificate": Certificate.APPROXIMATE,
        "residual": 0.1 + node,
        **more,
    }
    return Reconstruction(node, "idlg", x, seconds=1.5, note="a note", **own)


def test_what_is_kept_is_what_was_found(tmp_path: Path) -> None:
    kept = Checkpoint.begin(tmp_path, "k", resume=False)
    assert kept.finished() == {}
    several = [
        found(3),
        found(1, y=None, residual=math.inf, certificate=Certificate.FAILED),
        found(2, certified=1),
    ]
    kept.save(several[:2])
    kept.save(several[2:])
    kept.save([])
    again = Checkpoint.begin(tmp_path, "k", resume=True).finished()
    assert sorted(again) == [1, 2, 3]
    for one in several:
        other = again[one.node]
        assert torch.equal(other.x, one.x)
        assert (other.y is None) == (one.y is None)
        assert other.y is None or torch.equal(other.y, torch.tensor([1, 3]))
        assert all(
            getattr(other, k) == getattr(one, k) for k in (*checkpoint.VALUES, "certificate")
        )
    Checkpoint.begin(tmp_path, "other", resume=False)
    assert not (tmp_path / checkpoint.FOLDER).exists()


def test_another_runs_files_and_damaged_ones_are_refused(tmp_path: Path) -> None:
    kept = Checkpoint.begin(tmp_path, "k", resume=False)
    kept.save([found(3)])
    with pytest.raises(
        LeakauditError, match=r"another trace or with other settings; start again without --resume"
    ):
        Checkpoint.begin(tmp_path, "other", resume=True)
    path = tmp_path / checkpoint.FOLDER / "node3.pt"
    good = torch.load(path)
    changes: list[dict[str, Any]] = [
        {"format": "x"},
        {"version": 2},
        {"meta": "[1]"},
        {"meta": "{"},
        {"tensors": {}},
        {"tensors": 3},
    ]
    for wrong in changes:
        torch.save({**good, **wrong}, path)
        with pytest.raises(LeakauditError, match="start again without --resume"):
            Checkpoint.begin(tmp_path, "k", resume=True)
    path.write_bytes(b"PK no zip")
    with pytest.raises(LeakauditError, match="is rejected"):
        Checkpoint.begin(tmp_path, "k", resume=True)


def test_the_key_follows_what_a_reconstruction_depends_on() -> None:
    about = {"trace": "a", "options": {"seed": 0, "attack": "auto"}}
    assert checkpoint.key(about) == checkpoint.key(json.loads(json.dumps(about)))
    assert checkpoint.key(about) != checkpoint.key({**about, "trace": "b"})
    assert checkpoint.key(about) != checkpoint.key(
        {"trace": "a", "options": {"seed": 1, "attack": "auto"}}
    )


def test_resuming_with_another_seed_is_one_line_and_leaves_the_files(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = Checkpoint.begin(place / "out", "k", resume=False)
    trace.save([found(0)])
    assert main([*ATTACK, "-o", "out", "--resume"]) == 2
    err = capsys.readouterr().err
    assert len(err.strip().splitlines()) == 1
    assert "start again without --resume" in err
    assert (place / "out" / checkpoint.FOLDER / "node0.pt").is_file()


class Clock:
    """Time that passes when it is told to."""

    now = 100.0

    def monotonic(self) -> float:
        return self.now


def test_max_seconds_is_shared_by_the_nodes_left_and_late_ones_are_named(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Node after node (groups of one), by a clock that moves only while an attack runs: the second one takes all that is left."""
    clock, seen = Clock(), []
    monkeypatch.setattr("leakaudit.core.progress.time", clock)
    monkeypatch.setattr(node_groups, "TOGETHER", 1)

    def slow(leak: Any, task: Any, name: str, generator: Any, **settings: Any) -> Reconstruction:
        seen.append(remaining())
        clock.now += [4.0, 36.0, 0.0][min(leak.node, 2)]
        return found(leak.node)

    monkeypatch.setattr("leakaudit.inversion.attacking.attack_one", slow)
    assert main([*ATTACK, "-o", "out", "--max-seconds", "40", "--truth", "none"]) == 3
    record = json.loads(capsys.readouterr().out)
    assert seen == pytest.approx([8.0, 9.0])
    assert [f["node"] for f in record["findings"]] == [0, 1]
    assert "nodes 2, 3, 4 (the time limit --max-seconds was reached)" in record["not_tried"]
    assert not record["complete"]
    kept = sorted(p.name for p in (place / "out" / checkpoint.FOLDER).iterdir())
    assert kept == ["node0.pt"]
