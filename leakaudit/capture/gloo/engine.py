"""Run a plan in several processes: the parent's side, which starts them and waits for them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from leakaudit._util.own_code import Trust
from leakaudit.capture.gloo import merge, setup
from leakaudit.capture.gloo.board import ProcessBoard
from leakaudit.capture.gloo.scratch import scratch
from leakaudit.capture.gloo.setup import ProcessLayout, Setup
from leakaudit.capture.gloo.threads import run as run_threads
from leakaudit.core import progress, registry
from leakaudit.core.errors import LeakauditError
from leakaudit.protocols import premises
from leakaudit.protocols.recording import Plan, contradictions, opened, public
from leakaudit.traces.recorder import Recorder

POLL = 0.05  # seconds between two checks of the processes: a choice
# Seconds within which all processes must be connected; importing torch on a loaded machine takes
# tens of them.
MEETING = 120.0
MOST = 64  # processes: a choice, each of them holds its own copy of torch
# Multiple of the timeout after which processes without progress are ended: a process needs one
# timeout to give up a silent one, and only then continues.
GRACE = 2.0


# Why processes were stopped.
INTERRUPTED = "the run was interrupted"
FAILED = "another process failed"
HUNG = "it hung and was terminated"


def record(
    plan: Plan,
    path: Path | str | None,
    options: ProcessLayout,
    max_bytes: int = 4_000_000_000,
    private: Mapping[str, Any] | None = None,
    trusted: Trust = False,
    threads: bool = False,
) -> Recorder:
    """Run the plan as processes over 127.0.0.1, and record it as `recording.record` does.

    The trace's provenance lists the faults that occurred, and missing messages
    (`leakaudit.traces.gaps`). Ctrl-C ends all processes and keeps what they have sent.

    Args:
        path: File of the trace; None records in memory.
        max_bytes: Maximum size of the recording in bytes.
        trusted: The ``package.module:factory`` that may execute its code; True for any.
    """
    check(plan, options)
    plan.fit(max_bytes)
    known = public(plan)
    void = contradictions(plan, known)
    # Reject what cannot be recorded before anything runs.
    opened(plan, path, known, max_bytes, private)
    with scratch(path) as folder:
        prepared = setup.prepare(folder, plan, known, options, trusted)
        cut = _threads(prepared) if threads else _run(prepared)
        failed = merge.last_word(folder) or _unwritten(folder)
        logs = merge.read(prepared)
        if not logs.begun:
            _stop(cut)
            raise LeakauditError(
                failed
                or f"the processes could not connect on 127.0.0.1: {cut or _said(folder)}; "
                "see --engine threads"
            )
        engine = {
            "name": "threads" if threads else "gloo",
            "procs": options.procs,
            "place": prepared.place,
            "timeout": options.timeout,
        }
        happened = [str(fault) for fault in options.faults if str(fault) in logs.faults]
        missing = logs.about(cut)
        about = {"engine": engine, "faults": happened, **missing, **premises.provenance(void)}
        recorder = opened(plan, path, known, max_bytes, private, about, void)
        complete = not (missing["missing"] or missing["ended"])
        merge.fill(recorder, logs, complete)
        recorder.close(complete)
    _stop(cut)
    if failed:
        raise LeakauditError(failed)
    return recorder


def check(plan: Plan, options: ProcessLayout) -> None:
    """Reject a plan that cannot be run in these processes."""
    nodes = plan.graph.nodes
    if not plan.victim.separable:
        able = [n for n, kind in registry.everything("victims") if kind.separable]
        raise LeakauditError(
            f"--engine: {plan.scenario.victim} does not run as separate processes; "
            f"use --engine inline, or one of {', '.join(able)}"
        )
    if plan.scenario.curves:
        raise LeakauditError(
            "--engine: curves need all nodes in one process; use --engine inline for --curves"
        )
    if plan.task.device.type != "cpu":
        raise LeakauditError(f"--engine: expected device cpu, got {plan.task.device}")
    most = min(nodes, MOST)
    if not 2 <= options.procs <= most:
        raise LeakauditError(
            f"--procs: expected 2 to {most} processes for {nodes} nodes, got {options.procs}"
        )
    if not 0 < options.timeout <= 86400:
        raise LeakauditError(
            f"--timeout: expected more than 0 and at most 86400 seconds, got {options.timeout:g}"
        )
    for fault in options.faults:
        fault.check(plan.graph, plan.scenario.rounds)
    if options.faults and options.procs != nodes:
        raise LeakauditError(
            f"--fault: expected one process per node (--procs {nodes}), got {options.procs}"
        )


def _threads(prepared: Setup) -> str:
    try:
        run_threads(prepared)
    except KeyboardInterrupt:
        return INTERRUPTED
    return ""


def _run(prepared: Setup) -> str:
    folder = prepared.folder
    options = prepared.options
    command = [sys.executable, "-P", "-m", "leakaudit.capture.gloo.supervisor", str(folder)]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    board = ProcessBoard(folder / "board", options.procs)
    begun = time.monotonic()
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
            progress.step("recording", board.lowest(), prepared.scenario.rounds)
            if any(folder.glob("error*")):
                return FAILED
            if board.started:
                hung = board.stuck(GRACE * options.timeout)
            else:
                hung = time.monotonic() - begun > MEETING
            if hung:
                return HUNG
            time.sleep(POLL)
    except KeyboardInterrupt:
        return INTERRUPTED
    finally:
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.communicate()
    return ""


def _unwritten(folder: Path) -> str:
    for rank, code in sorted(merge.exit_codes(folder).items()):
        if code > 0:
            return f"process {rank}: {_said(folder)}"
    return ""


def _said(folder: Path) -> str:
    file = folder / "stderr"
    if file.is_file():
        for line in reversed(file.read_text(errors="replace").split("\n")):
            if line.strip():
                return line
    return "they ended immediately"


def _stop(cut: str) -> None:
    if cut == INTERRUPTED:
        raise KeyboardInterrupt
