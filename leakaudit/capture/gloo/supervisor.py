"""The parent of a run's processes: it imports once, and forks each of them.

python -m leakaudit.capture.gloo.supervisor FOLDER

Standard input is a pipe to which nothing is written. When its other end closes, because the process
that started the run has ended, all processes end.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import sys
import threading
from pathlib import Path

import torch

from leakaudit.capture.gloo import process
from leakaudit.capture.gloo.board import ProcessBoard
from leakaudit.capture.gloo.setup import Setup


def main(folder: Path) -> int:
    """Start all processes and write how each ended to ``ended``, one line per process."""
    torch.set_num_threads(1)
    setup = Setup.read(folder)
    setup.scenario.parts()  # imports the victims, once for all processes
    board = ProcessBoard(folder / "board", setup.options.procs)
    ranks: dict[int, int] = {}  # by process id
    for rank in range(setup.options.procs):
        pid = os.fork()
        if pid == 0:
            threading.Thread(target=_die_with_parent, daemon=True).start()
            code = 1
            try:
                code = process.run(setup, rank)
            finally:
                os._exit(code)
        ranks[pid] = rank
    with (folder / "ended").open("a", encoding="utf-8") as ended:
        while ranks:
            pid, status = os.waitpid(-1, 0)
            code = os.waitstatus_to_exitcode(status)
            rank = ranks.pop(pid)
            ended.write(json.dumps({"rank": rank, "pid": pid, "code": code}) + "\n")
            ended.flush()
            if not board.connected(rank) and not _abandoned():
                return 1  # the others would wait for it; whoever started us ends them
    if _abandoned():  # nobody will read the logs, which contain private data
        shutil.rmtree(folder, ignore_errors=True)
    return 0


def _abandoned() -> bool:
    """Return whether the process that started the run has ended, so that its pipe is closed."""
    return bool(select.select([sys.stdin.fileno()], [], [], 0)[0])


def _die_with_parent() -> None:
    os.read(sys.stdin.fileno(), 1)
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
