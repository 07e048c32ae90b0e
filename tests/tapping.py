"""Run programs under the tap, and compare what leaks with the programs' own data."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

import leakaudit as la
from leakaudit.trace import Trace


@dataclass(frozen=True)
class Run:
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
    def description(self) -> dict[str, Any]:
        """The inferred description, also of a trace that was not made."""
        beside = self.folder / "trace.toml"
        if not beside.exists():
            leakaudit(self.folder, "tap", "describe", "trace.tap", "-o", "trace.toml")
        return tomllib.loads(beside.read_text())


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


def tapped(folder: Path, *command: str, truth: bool = False, **more: str) -> Run:
    """Run a program under the tap.

    Args:
        folder: the folder of the program's run.
        command: the program and its arguments.
        truth: whether the program leaves its records in data.npz.
        more: further environment variables.
    """
    given = ("--truth", "data.npz") if truth else ()
    done = leakaudit(
        folder, "tap", "--keep", "-o", "trace.pt", *given, "--", *command, check=False, **more
    )
    return Run(done.returncode, folder, done.stderr)


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


def payloads(trace: Trace) -> dict[tuple[int, int, int], torch.Tensor]:
    """Payload by (round, src, dst)."""
    (m,) = trace.messages
    return {
        (int(m.round[k]), int(m.src[k]), int(m.dst[k])): m.payload[int(m.row[k])]
        for k in range(len(m))
    }
