"""Run a program of a user under `leakaudit tap`, in a process of its own, for tests."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import leakaudit as la
from leakaudit.capture.tap.log.reading import read_logs
from leakaudit.capture.tap.messages.layouts import Place
from leakaudit.capture.tap.messages.streams import assemble

OPERATORS = Path(__file__).resolve().parent / "programs" / "torchvision_operators.py"


@dataclass(frozen=True)
class Tapped:
    """What a tapped program left.

    Attributes:
        code: exit code of the tap.
        folder: where its files are.
        said: its standard error.
    """

    code: int
    folder: Path
    said: str

    @property
    def trace(self) -> la.Trace:
        """The trace."""
        return la.load(self.folder / "trace.pt")

    @cached_property
    def description(self) -> dict[str, Any]:
        """The inferred description, also of a trace that was not made."""
        beside = self.folder / "trace.toml"
        if not beside.exists():
            leakaudit(self.folder, "tap", "describe", "trace.tap", "-o", "trace.toml")
        return tomllib.loads(beside.read_text())

    def kept(self, rank: int) -> dict[str, Tensor]:
        """Return what a rank of the program saved itself."""
        found: dict[str, Tensor] = torch.load(self.folder / f"kept{rank}.pt")
        return found

    def sent(self, rank: int, op: str) -> list[Tensor]:
        """Return what a rank sent by one operation, in the model's order of parameters."""
        logs = read_logs(self.folder / "trace.tap")
        noted = (event.notes.get("sizes") for log in logs for event in log.events)
        sizes = next(found for found in noted if found)
        ends = np.cumsum(sizes).tolist()
        places = [Place(end - size, end) for end, size in zip(ends, sizes, strict=True)]
        found: list[Tensor] = []
        for wire, stream in assemble(logs, (*sizes, ends[-1])).messages.items():
            if (wire.src, wire.op) == (rank, op):
                found += [message.value(places) for message in stream]
        return found

    def pictures(self) -> dict[int, tuple[str, Tensor]]:
        """Return node -> certificate and picture, found without a look at the truth."""
        found = la.attack(la.leaks(self.trace), generator=torch.Generator().manual_seed(0))
        return {one.node: (one.certificate.name, one.x[0]) for one in found}


def leakaudit(folder: Path, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
    """Run a command of leakaudit in a folder.

    Args:
        folder: the folder.
        words: the command's arguments.
        more: environment variables.
    """
    site = folder / "site"
    site.mkdir(exist_ok=True)
    shutil.copy(OPERATORS, site / "sitecustomize.py")  # Python runs it before the program
    path = os.pathsep.join([str(site), *filter(None, [os.environ.get("PYTHONPATH")])])
    return subprocess.run(
        [sys.executable, "-m", "leakaudit", *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path, "PYTHONWARNINGS": "ignore", **more},
        capture_output=True,
        text=True,
        timeout=500,
    )


def tap(folder: Path, *command: str, options: tuple[str, ...] = ()) -> Tapped:
    """Tap a program and keep its log.

    Args:
        folder: where it runs.
        command: the program and its arguments.
        options: options of the tap.
    """
    words = ("tap", "--keep", "-o", "trace.pt", *options, "--", *command)
    done = leakaudit(folder, *words)
    return Tapped(done.returncode, folder, done.stdout + done.stderr)


def torchrun(program: Path, *options: str, ranks: int = 2) -> tuple[str, ...]:
    """Return the command that starts a program with torchrun.

    Args:
        program: the program.
        options: its arguments.
        ranks: number of processes.
    """
    launcher = (sys.executable, "-m", "torch.distributed.run", "--standalone")
    return (*launcher, "--nproc-per-node", str(ranks), str(program), *options)
