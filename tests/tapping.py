"""Run programs under the tap, and compare what leaks with the programs' own data."""

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
from leakaudit.capture.tap.messages.layouts import ParameterPlace
from leakaudit.capture.tap.messages.streams import assemble
from leakaudit.core.trace import Trace

OPERATORS = Path(__file__).resolve().parent / "programs" / "torchvision_operators.py"


@dataclass(frozen=True)
class Run:
    """What a tapped program left.

    Attributes:
        code: exit code of the tap.
        folder: where its files are.
        said: what it printed.
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
            words = ("tap", "describe", "trace.tap", "-o", "trace.toml")
            leakaudit(self.folder, *words, check=False)
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
        places = [ParameterPlace(end - size, end) for end, size in zip(ends, sizes, strict=True)]
        found: list[Tensor] = []
        for wire, stream in assemble(logs, places).messages.items():
            if (wire.src, wire.op) == (rank, op):
                found += [message.value for message in stream if message.kept]
        return found

    def pictures(self) -> dict[int, tuple[str, Tensor]]:
        """Return node -> certificate and picture, found without a look at the truth."""
        found = la.attack(la.leaks(self.trace), generator=torch.Generator().manual_seed(0))
        return {one.node: (one.certificate.name, one.x[0]) for one in found}


def leakaudit(
    folder: Path, *words: str, check: bool = True, **more: str
) -> subprocess.CompletedProcess[str]:
    """Run the command in a folder.

    Args:
        folder: the folder.
        words: verb and options.
        check: whether another exit code than 0 is an error.
        more: further environment variables.
    """
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    return subprocess.run(
        [sys.executable, "-m", "leakaudit", *words],
        cwd=folder,
        env={**os.environ, "PATH": path, **more},
        capture_output=True,
        text=True,
        check=check,
        timeout=500,
    )


def tapped(
    folder: Path,
    *command: str,
    options: tuple[str, ...] = (),
    truth: bool = False,
    operators: bool = False,
    **more: str,
) -> Run:
    """Run a program under the tap, and keep its log.

    Args:
        folder: the folder of the program's run.
        command: the program and its arguments.
        options: options of the tap.
        truth: whether the program leaves its records in data.npz.
        operators: whether it may import a torchvision that was built for another torch.
        more: further environment variables.
    """
    if truth:
        options = ("--truth", "data.npz", *options)
    words = ("tap", "--keep", "-o", "trace.pt", *options, "--", *command)
    if operators:
        more = {**more, **_with_operators(folder)}
    done = leakaudit(folder, *words, check=False, **more)
    return Run(done.returncode, folder, done.stdout + done.stderr)


def _with_operators(folder: Path) -> dict[str, str]:
    """Return the environment in which a program can import a torchvision for another torch."""
    site = folder / "site"
    site.mkdir(exist_ok=True)
    shutil.copy(OPERATORS, site / "sitecustomize.py")  # Python runs it before the program
    path = os.pathsep.join([str(site), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {"PYTHONPATH": path, "PYTHONWARNINGS": "ignore"}


def torchrun(program: Path, *options: str, ranks: int = 2) -> tuple[str, ...]:
    """Return the command that starts a program with torchrun.

    Args:
        program: the program.
        options: its arguments.
        ranks: number of processes.
    """
    launcher = (sys.executable, "-m", "torch.distributed.run", "--standalone")
    return (*launcher, "--nproc-per-node", str(ranks), str(program), *options)


def bit_for_bit(run: Run, rounded: bool = False) -> bool:
    """Whether the analytic attack returns every client's picture as it is in the program's data.

    Args:
        run: a run with its truth.
        rounded: whether values are first rounded to k/255.
    """
    truth = np.load(run.folder / "data.npz")
    leaks = la.leaks(la.load(run.folder / "trace.pt"))
    found = la.attack(leaks, generator=torch.Generator().manual_seed(0))
    shown = {one.node: (one.x[0].double(), one.y) for one in found}
    for x, y, node in zip(truth["x"], truth["y"], truth["node"], strict=True):
        value, label = shown[int(node)]
        if rounded:
            value = (value * 255).round() / 255
        same = np.array_equal(value.numpy().astype(np.float32), x)
        if not same or label is None or int(label[0]) != y:
            return False
    return len(shown) == len(truth["x"])


def payloads(trace: Trace) -> dict[tuple[int, int, int], Tensor]:
    """Payload by (round, src, dst)."""
    (m,) = trace.messages
    return {
        (int(m.round[k]), int(m.src[k]), int(m.dst[k])): m.payload[int(m.row[k])]
        for k in range(len(m))
    }
