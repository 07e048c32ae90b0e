"""One process of a run: its nodes, from the first exchange to the last."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import cast

import torch

from leakaudit._util.files import replacing
from leakaudit.capture.gloo import local
from leakaudit.capture.gloo.board import DONE, WORKING, ProcessBoard
from leakaudit.capture.gloo.mail import ProcessConnections
from leakaudit.capture.gloo.node import MessageTimeout, NodeRecorder, Transport
from leakaudit.capture.gloo.setup import Setup
from leakaudit.capture.tap.log.writing import Log
from leakaudit.core.errors import LeakauditError
from leakaudit.traces.recorder import Recorder


def run(setup: Setup, rank: int) -> int:
    """Run the nodes of one process; an error is written to ``error<rank>`` as one line."""
    try:
        task = task_of(setup)
        with Log(setup.folder, rank, engine="gloo", nodes=setup.here(rank)) as log:
            mail = ProcessConnections(setup.folder, rank, setup.options.procs, task.dtype)
            reached = serve(setup, rank, task, mail, log)
            mail.close(setup.options.timeout, reached)
    except Exception as error:
        failed(setup.folder, rank, error)
        return 1
    return 0


def task_of(setup: Setup) -> local.LocalTask:
    """Build the task of a run."""
    dtype = getattr(torch, setup.scenario.dtype)
    task = local.LocalTask.build(setup.spec, dtype=dtype, trusted=setup.trusted)
    return cast(local.LocalTask, task)


def die() -> None:
    """End this process like a crash."""
    os.kill(os.getpid(), signal.SIGKILL)


def serve(
    setup: Setup,
    rank: int,
    task: local.LocalTask,
    mail: Transport,
    log: Log,
    stop: Callable[[], None] = die,
) -> int:
    """Run the victim for the nodes of one process that is connected to the others."""
    board = ProcessBoard(setup.folder / "board", setup.options.procs)
    board.tell(rank, WORKING)
    victim, _ = setup.scenario.parts()
    x, y = setup.data(rank)
    problem = local.problem(task, setup.graph.nodes, setup.here(rank), x, y)
    recorder = NodeRecorder(setup, rank, mail, log, board, stop)
    try:
        victim.run(
            problem,
            setup.graph,
            setup.scenario.rounds,
            cast(Recorder, recorder),
            setup.generator(),
            setup.wires,
        )
    except MessageTimeout as why:
        log.write("silence", None, why=str(why))
    board.tell(rank, DONE)
    return recorder.reached


def failed(folder: Path, rank: int, error: Exception) -> None:
    """Write an error as one line, for the parent process."""
    text = str(error) if isinstance(error, LeakauditError) else f"{type(error).__name__}: {error}"
    line = " ".join(text.split())
    try:
        with replacing(folder / f"error{rank}") as file:
            file.write(line.encode())
    except LeakauditError:  # the disk itself may be what failed
        sys.stderr.write(f"{line}\n")
