"""`leakaudit record --engine gloo`: real processes that are killed, interrupted and misused."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from leakaudit.capture.gloo import setup
from leakaudit.capture.gloo.engine import MEETING
from leakaudit.capture.gloo.scratch import clear, scratch
from leakaudit.capture.gloo.setup import Setup
from leakaudit.capture.tap import launch
from leakaudit.capture.tap.log.reading import read_logs
from leakaudit.cli import main
from leakaudit.traces import gaps, trace_file

BASE = [
    "record",
    "dpsgd",
    "--nodes",
    "4",
    "--graph",
    "ring",
    "--data",
    "gaussians",
    "--model",
    "logistic",
    "--samples",
    "4",
]
LONG = 600.0  # seconds within which something must have happened
HOLD = 3599.0  # seconds of a late node that stand for "until the test says so"
GATED = f"""
import time
from pathlib import Path

sleep = time.sleep

def held(seconds):
    while seconds == {HOLD} and not Path("go").exists():
        sleep(0.01)
    if seconds != {HOLD}:
        sleep(seconds)

time.sleep = held
"""


def until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + LONG
    while not holds():
        assert time.monotonic() < end, "it never happened"
        time.sleep(0.02)


def pids(folder: Path) -> dict[int, int]:
    """Process of each rank, as its log says."""
    lines = [path.read_text().split("\n")[0] for path in folder.glob(".gloo-*/rank*.jsonl")]
    return {head["rank"]: head["pid"] for head in map(json.loads, filter(None, lines))}


def round_of(folder: Path, rank: int) -> int:
    (path,) = folder.glob(f".gloo-*/rank{rank}.0.jsonl")
    ended = [
        json.loads(line)["round"]
        for line in path.read_text().split("\n")[:-1]
        if '"op":"round"' in line
    ]
    return max(ended, default=0)


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return False
    return state != "Z"


class Started:
    """A recording that stays in round 5 until the test has done what it wants, however long that
    takes on a busy machine.
    """

    def __init__(self, folder: Path, *more: str) -> None:
        command = [
            sys.executable,
            "-m",
            "leakaudit",
            *BASE,
            "--rounds",
            "8",
            "--engine",
            "gloo",
            "-o",
            str(folder / "t.pt"),
        ]
        command += ["--fault", f"late:0@5:{HOLD:g}", *more]
        (folder / "hooks").mkdir()
        (folder / "hooks" / "sitecustomize.py").write_text(GATED)
        environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder / "hooks"), *sys.path])}
        self.folder = folder
        self.run = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=folder,
            env=environ,
        )
        until(lambda: self.run.poll() is not None or self.ready)
        assert self.run.poll() is None, self.run.communicate()
        self.pids = pids(folder)

    @property
    def ready(self) -> bool:
        """Whether every process has ended round 4."""
        return len(pids(self.folder)) == 4 and all(
            round_of(self.folder, rank) >= 4 for rank in range(4)
        )

    def end(self) -> tuple[int, str]:
        """Let the run go on, and return its code and what it said."""
        (self.folder / "go").touch()
        _, errors = self.run.communicate(timeout=LONG)
        return self.run.returncode, errors


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Callable[..., Started]]:
    made: list[Started] = []

    def start(*more: str) -> Started:
        made.append(Started(tmp_path, *more))
        return made[-1]

    yield start
    for one in made:
        one.run.kill()
        one.run.communicate()


@pytest.mark.slow
def test_a_killed_process_leaves_a_trace_that_names_the_missing_rounds(
    started: Callable[..., Started], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one = started()
    os.kill(one.pids[2], signal.SIGKILL)
    code, errors = one.end()
    assert code == 0, errors
    assert re.search(
        r"missing: messages 'w' 2 -> [13] of rounds [567] to 8: "
        r"their sender's process had terminated",
        errors,
    )
    assert main(["trace", "verify", str(tmp_path / "t.pt"), "-f", "json"]) == 0
    missing = json.loads(capsys.readouterr().out)["missing"]
    assert re.fullmatch(
        r"messages 'w' 2 -> [13] of rounds [567] to 8: their sender's process had terminated",
        missing[0],
    )
    assert re.fullmatch(r"node 2 ended after round [45]: killed by signal 9", missing[-1])
    trace = trace_file.load(tmp_path / "t.pt")
    assert (trace.rounds, trace.complete) == (8, False)
    assert gaps.sound(trace) in (4, 5, 6)
    assert (
        main(
            [
                "attack",
                str(tmp_path / "t.pt"),
                "-o",
                str(tmp_path / "out"),
                "--node",
                "0",
                "--attack",
                "labels",
                "-q",
            ]
        )
        == 0
    )
    found = json.loads((tmp_path / "out" / "results.json").read_text())["findings"]
    assert found
    assert all(
        f["leak"]["rounds"]["last"] <= 6
        and "are missing, so only rounds up to" in f["leak"]["scope"]
        for f in found
    )


@pytest.mark.slow
def test_a_frozen_process_is_given_up_and_ended(
    started: Callable[..., Started], tmp_path: Path
) -> None:
    one = started(
        "--timeout", "12"
    )  # a process that computes for 12 s in one round would be given up too
    os.kill(one.pids[2], signal.SIGSTOP)
    code, errors = one.end()
    assert code == 0, errors
    until(lambda: not any(map(alive, one.pids.values())))
    said = gaps.sentences(trace_file.load(tmp_path / "t.pt"))
    assert any(
        re.fullmatch(r"messages 'w' 2 -> 1 of rounds [567] to 8: not received in time", s)
        for s in said
    ), said
    assert any(
        re.fullmatch(r"node 2 ended after round [45]: it hung and was terminated", s) for s in said
    ), said


@pytest.mark.slow
def test_an_interrupted_run_leaves_its_trace_and_no_process(
    started: Callable[..., Started], tmp_path: Path
) -> None:
    one = started()
    one.run.send_signal(signal.SIGINT)
    code, errors = one.end()
    assert (code, errors.splitlines()[-1]) == (130, "leakaudit: interrupted")
    until(lambda: not any(map(alive, one.pids.values())))
    trace = trace_file.load(tmp_path / "t.pt")
    assert trace.rounds in (4, 5)  # node 2, which does not hear node 0, may end round 5
    assert not trace.complete
    assert gaps.sentences(trace)[-1] == f"nothing was sent in rounds {trace.rounds + 1} to 8"
    assert list(tmp_path.glob(".gloo-*")) == []


@pytest.mark.slow
def test_no_process_outlives_the_one_that_started_it(started: Callable[..., Started]) -> None:
    one = started()
    supervisor = int(Path(f"/proc/{one.pids[0]}/stat").read_text().rsplit(")", 1)[1].split()[1])
    one.run.kill()
    until(lambda: not any(map(alive, [supervisor, *one.pids.values()])))


@pytest.mark.slow
@pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGTERM])
def test_a_run_that_is_killed_leaves_no_folder(
    started: Callable[..., Started], tmp_path: Path, ending: signal.Signals
) -> None:
    one = started()
    assert len(list(tmp_path.glob(".gloo-*"))) == 1
    one.run.send_signal(ending)
    one.run.communicate(timeout=LONG)
    assert one.run.returncode in (-ending, 130)
    until(lambda: not list(tmp_path.glob(".gloo-*")))
    until(lambda: not any(map(alive, one.pids.values())))


def test_the_folder_of_a_killed_run_is_removed_by_the_next(tmp_path: Path) -> None:
    """The supervisor may be killed too, or may not have run yet; a run that lives keeps its own."""
    program = "import os, sys\nfrom leakaudit.capture.gloo.scratch import scratch\n"
    program += "with scratch(sys.argv[1]):\n    os.kill(os.getpid(), 9)"
    output = tmp_path / "t.pt"
    subprocess.run([sys.executable, "-c", program, str(output)], check=False)
    (left,) = tmp_path.glob(".gloo-*")
    (left / "data0.pt").touch()
    with scratch(output) as first:
        assert not left.exists()
        with scratch(output) as second:
            assert first.is_dir()
            assert second.is_dir()
        assert list(tmp_path.glob(".gloo-*")) == [first]
    assert not list(tmp_path.glob(".gloo-*"))


def test_a_folder_that_another_run_removes_at_once_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Path] = []
    mkdtemp = tempfile.mkdtemp

    def removed(**options: Any) -> str:
        made.append(Path(mkdtemp(**options)))
        if len(made) == 1:
            clear(tmp_path)
            assert not made[0].exists()
        return str(made[-1])

    monkeypatch.setattr(tempfile, "mkdtemp", removed)
    with scratch(tmp_path / "t.pt") as folder:
        assert folder == made[1]
        assert folder.is_dir()


@pytest.mark.slow
def test_a_disk_that_fails_before_the_processes_meet_ends_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that cannot begin would be awaited by the others for two minutes."""
    prepare = setup.prepare

    def prepared(folder: Path, *arguments: Any) -> Setup:
        (folder / "rank1.0.jsonl").mkdir()  # so that no file of this name can be created
        return prepare(folder, *arguments)

    monkeypatch.setattr(setup, "prepare", prepared)
    begun = time.monotonic()
    words = [*BASE, "--rounds", "2", "--engine", "gloo", "-o", str(tmp_path / "t.pt")]
    assert main(words) == 2
    assert time.monotonic() - begun < MEETING
    assert len(capsys.readouterr().err.strip().splitlines()) == 1
    assert not list(tmp_path.glob(".gloo-*"))


@pytest.mark.slow
def test_the_error_of_a_process_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A Newton step whose matrix is singular fails in the process that takes it."""
    arguments = [
        "record",
        "pdmm",
        *BASE[2:],
        "--engine",
        "gloo",
        "--set",
        "update=exact",
        "--set",
        "rho=1e-30",
        "-o",
        str(tmp_path / "t.pt"),
    ]
    assert main(arguments) == 2
    errors = capsys.readouterr().err.splitlines()
    assert re.fullmatch(
        r"leakaudit record: process \d: .*(singular|did not converge).*", errors[-1]
    )
    assert list(tmp_path.glob(".gloo-*")) == []


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (
            ["--procs", "4"],
            "--procs: only for nodes in several processes or threads; add --engine gloo or --engine threads",
        ),
        (["--fault", "stop:1@2"], "--fault: only for nodes in several processes"),
        (
            ["--procs", "0", "--timeout", "0"],
            "--procs, --timeout: only for nodes in several processes",
        ),
        (
            ["--engine", "gloo", "--procs", "5"],
            "--procs: expected 2 to 4 processes for 4 nodes, got 5",
        ),
        (
            ["--engine", "gloo", "--procs", "1"],
            "--procs: expected 2 to 4 processes for 4 nodes, got 1",
        ),
        (["--engine", "gloo", "--timeout", "-1"], "--timeout: expected more than 0"),
        (["--engine", "gloo", "--fault", "stop"], "--fault: expected stop:NODE@ROUND"),
        (
            ["--engine", "gloo", "--fault", "drop:0-2@3"],
            "--fault drop:0-2@3: the run has no such channel",
        ),
        (
            ["--engine", "gloo", "--procs", "2", "--fault", "stop:1@2"],
            "--fault: expected one process per node (--procs 4), got 2",
        ),
        (["--engine", "gloo", "--curves"], "--engine: curves need all nodes in one process"),
    ],
)
def test_wrong_use_is_one_line_and_writes_nothing(
    options: list[str], text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*BASE, "-o", str(tmp_path / "t.pt"), *options]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert text in line
    assert list(tmp_path.iterdir()) == []


def test_a_victim_that_is_not_separable_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        main(["record", "fedsgd", *BASE[2:], "--engine", "gloo", "-o", str(tmp_path / "t.pt")]) == 2
    )
    (line,) = capsys.readouterr().err.splitlines()
    assert (
        "fedsgd does not run as separate processes; use --engine inline, or one of choco, dkm, dpadmm, "
        in line
    )
    assert list(tmp_path.iterdir()) == []


def test_threads_take_the_same_faults(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, scope = (
        str(tmp_path / "t.pt"),
        "messages of round 3 are missing, so only rounds up to 2 are used",
    )
    assert (
        main(
            [
                *BASE,
                "--rounds",
                "6",
                "--engine",
                "threads",
                "--fault",
                "drop:0-1@3",
                "--fault",
                "stop:1@0",
                "--states",
                "-o",
                path,
            ]
        )
        == 0
    )
    errors = capsys.readouterr().err
    assert "missing: messages 'w' 0 -> 1 of round 3: lost in transit" in errors
    assert "--fault stop:1@0: did not occur, because node 1 did not complete round 0" in errors
    assert main(["trace", "verify", path, "--relations", "-f", "json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["missing"] == ["messages 'w' 0 -> 1 of round 3: lost in transit"]
    assert facts["relations"]["scope"] == scope
    assert main(["bound", path, "--node", "0", "-f", "json"]) == 0
    assert all(entry["rounds_priced"] == 6 for entry in json.loads(capsys.readouterr().out)), (
        "the lost message is priced as well"
    )


@pytest.mark.slow
def test_the_trace_is_what_a_tap_hears_on_the_wires(tmp_path: Path) -> None:
    """An independent witness: the tap that listens to ProcessGroup.send in each process, which
    knows nothing of rounds and nodes.
    """
    command = [
        sys.executable,
        "-m",
        "leakaudit",
        "record",
        "pdmm",
        *BASE[2:],
        "--rounds",
        "5",
        "--engine",
        "gloo",
    ]
    assert launch.run([*command, "-o", str(tmp_path / "t.pt"), "-q"], tmp_path / "heard") == 0
    trace = trace_file.load(tmp_path / "t.pt")
    (m,) = trace.messages
    sent: dict[tuple[int, int], list[Tensor]] = {arc: [] for arc in trace.graph.arcs}
    for src, dst, row in zip(m.src.tolist(), m.dst.tolist(), m.row.tolist(), strict=True):
        sent[src, dst].append(m.payload[row])
    heard: dict[tuple[int, int], list[Tensor]] = {arc: [] for arc in trace.graph.arcs}
    for log in read_logs(tmp_path / "heard"):
        for event in log.events:
            if event.dtype == "float32" and event.peer is not None:
                heard[log.rank, event.peer].append(log.tensor(event)[0])
    assert [len(v) for v in heard.values()] == [6] * 8
    assert all(
        torch.equal(a, b) for arc in sent for a, b in zip(sent[arc], heard[arc], strict=True)
    )
