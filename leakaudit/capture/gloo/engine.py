"""Run a plan as processes, from the side that starts them and waits."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from leakaudit import progress, registry
from leakaudit.capture.gloo import merge, setup
from leakaudit.capture.gloo.board import Board
from leakaudit.capture.gloo.setup import Options, Setup
from leakaudit.capture.gloo.threads import run as run_threads
from leakaudit.errors import LeakauditError
from leakaudit.protocols.recording import Plan, opened, public
from leakaudit.traces.recorder import Recorder

POLL = 0.05  # seconds
MEETING = 120.0  # seconds in which all processes must have met
MOST = 64
GRACE = 2.0  # times the timeout, after which processes that do nothing new are ended
INTERRUPTED = "the run was interrupted"


def record(
    plan: Plan,
    path: Path | str | None,
    options: Options,
    max_bytes: int = 4_000_000_000,
    private: Mapping[str, Any] | None = None,
    trusted: bool = False,
    threads: bool = False,
) -> Recorder:
    """Run the plan as processes over 127.0.0.1 and record it as `recording.record` does; returns the closed recorder.

    threads: run threads of this process instead, without gloo.
    The faults that happened, and what is missing because a process ended, was late or lost a message, stand in the trace's provenance
    (`leakaudit.traces.gaps`). Ctrl-C ends all processes and leaves what they sent.
    Raises LeakauditError, before anything is written, where the plan cannot be run so, and where a process fails.
    """
    check(plan, options)
    plan.fit(max_bytes)
    known = public(plan)
    opened(
        plan, path, known, max_bytes, private
    )  # refuses what cannot be recorded, before anything runs
    beside = None if path is None else Path(path).parent
    try:
        folder = Path(tempfile.mkdtemp(prefix=".gloo-", dir=beside))
    except OSError as error:
        raise LeakauditError(
            f"cannot write beside {path}: {error.strerror}; choose another output"
        ) from None
    try:
        setup.write(folder, plan, known, options, trusted)
        cut = _threads(folder) if threads else _run(folder, plan, options)
        failed, place = merge.last_word(folder), options.place(plan.graph.nodes)
        try:
            logs = merge.Logs.read(folder, place)
        except LeakauditError:
            logs = merge.Logs({}, {}, place)
        if not logs.begun:
            _stop(cut)
            raise LeakauditError(
                failed
                or f"the processes did not meet on 127.0.0.1: {cut or _said(folder)}; see --engine threads"
            )
        engine = {
            "name": "threads" if threads else "gloo",
            "procs": options.procs,
            "place": place,
            "timeout": options.timeout,
        }
        happened = [str(fault) for fault in options.faults if str(fault) in logs.faults]
        about = {"engine": engine, "faults": happened, **logs.about(plan.scenario.rounds, cut)}
        recorder = opened(plan, path, known, max_bytes, private, about)
        complete = not (about["missing"] or about["ended"])
        merge.fill(recorder, logs, complete)
        recorder.close(complete)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    _stop(cut)
    if failed:
        raise LeakauditError(failed)
    return recorder


def check(plan: Plan, options: Options) -> None:
    """Raise LeakauditError where the plan cannot be run as these processes."""
    nodes, name = plan.graph.nodes, plan.scenario.victim
    if not plan.victim.separable:
        able = [n for n, kind in registry.everything("victims") if kind.separable]
        raise LeakauditError(
            f"--engine: {name} does not run as separate processes; use --engine inline, or one of {', '.join(able)}"
        )
    if plan.scenario.curves:
        raise LeakauditError(
            "--engine: curves are about all nodes at once; use --engine inline for --curves"
        )
    if plan.task.device.type != "cpu":
        raise LeakauditError(f"--engine: expected device cpu, got {plan.task.device}")
    if not 2 <= options.procs <= min(nodes, MOST):
        raise LeakauditError(
            f"--procs: expected 2 to {min(nodes, MOST)} processes for {nodes} nodes, got {options.procs}"
        )
    if not 0 < options.timeout <= 86400:
        raise LeakauditError(
            f"--timeout: expected more than 0 and at most 86400 seconds, got {options.timeout:g}"
        )
    for fault in options.faults:
        fault.check(plan.graph, plan.scenario.rounds)
    if options.faults and options.procs != nodes:
        raise LeakauditError(
            f"--fault: expected a process for every node, so --procs {nodes}, got {options.procs}"
        )


def _threads(folder: Path) -> str:
    """Run all processes as threads, to the same end as `_run`."""
    try:
        run_threads(Setup.read(folder))
    except KeyboardInterrupt:
        return INTERRUPTED
    return ""


def _run(folder: Path, plan: Plan, options: Options) -> str:
    """Start the processes and wait until they have ended; returns why they were ended, empty where they did so themselves."""
    command = [sys.executable, "-P", "-m", "leakaudit.capture.gloo.supervisor", str(folder)]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    board, begun = Board(folder / "board", options.procs), time.monotonic()
    with (folder / "stderr").open("wb") as errors:
        child = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            env=env,
            start_new_session=True,
        )
    try:
        while child.poll() is None:
            progress.step("recording", board.lowest(), plan.scenario.rounds)
            if any(folder.glob("error*")):
                return "another process failed"
            if (
                board.stuck(GRACE * options.timeout)
                if board.started
                else time.monotonic() - begun > MEETING
            ):
                return "it hung, and was given up"
            time.sleep(POLL)
    except KeyboardInterrupt:
        return INTERRUPTED
    finally:
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.communicate()
    return ""


def _said(folder: Path) -> str:
    """Return the last line that the processes wrote to stderr."""
    lines = (
        (folder / "stderr").read_text(errors="replace").split("\n")
        if (folder / "stderr").is_file()
        else []
    )
    return next((line for line in reversed(lines) if line.strip()), "they ended at once")


def _stop(cut: str) -> None:
    if cut == INTERRUPTED:
        raise KeyboardInterrupt
