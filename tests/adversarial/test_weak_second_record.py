"""A gradient of two records, one of which hardly counts, is no gradient of one: how small it may be
follows from the precision of the messages.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Generator, Tensor

import leakaudit as la
from leakaudit.capture.tap.guessing.guess import Guess, guess
from leakaudit.capture.tap.log.reading import read_logs
from leakaudit.capture.tap.log.writing import Log
from leakaudit.tasks.task import Task

TASK = Task.build(
    la.TaskSpec("mlp", {"hidden": "12"}, shape=(1, 8, 8), classes=5), dtype=torch.float64
)
SIZES = [part.stop - part.start for part in TASK.layout.slices.values()]
NOTED: dict[str, Any] = {"lane": "model 0", "of": 4, "parameters": [0, 1, 2, 3], "last": True}
RANKS = 3
ALPHA, RHO = 0.03, 0.7


def gradients(w: Tensor, share: float, t: int, seed: int) -> Tensor:
    """The gradients of all ranks; each is of a new record and, with a small share, of another."""
    found: list[Tensor] = []
    for rank in range(RANKS):
        random = Generator().manual_seed(10_000 * seed + 100 * t + rank)
        x = torch.randint(256, (2, 1, 8, 8), generator=random).double() / 255
        y = torch.tensor([rank, rank + 2])
        first, second = (TASK.gradient(w[rank], x[k : k + 1], y[k : k + 1]) for k in (0, 1))
        # The share is that of the sum's length: a record that is classified well has a small one.
        second = second * first.norm() / second.norm()
        found.append((1 - share) * first + share * second)
    return torch.stack(found)


def hooked(logs: list[Log], share: float, dtype: torch.dtype, seed: int) -> None:
    """Gradients that a hook records in a number format."""
    w = TASK.init(Generator().manual_seed(1))
    for t in range(4):
        logs[0].write("model", w.float(), at=t, sizes=SIZES, **NOTED)
        sent = gradients(w.repeat(RANKS, 1), share, t, seed).to(dtype)
        for log, g in zip(logs, sent, strict=True):
            log.write("ddp", g, at=t, sizes=SIZES, **NOTED)
        w = (w - 0.1 * sent.double().mean(0)).float().double()


def dual(logs: list[Log], share: float, dtype: torch.dtype, seed: int) -> None:
    """PDMM on a triangle with theta = 1 and gradient steps."""
    arcs = [(i, j) for i in range(RANKS) for j in range(RANKS) if i != j]
    sign = {(i, j): 1.0 if i < j else -1.0 for i, j in arcs}
    w = TASK.init(Generator().manual_seed(1)).repeat(RANKS, 1)
    z = {arc: torch.zeros(TASK.layout.size, dtype=torch.float64) for arc in arcs}
    for t in range(5):
        held = [torch.stack([sign[a] * z[a] for a in arcs if a[0] == i]) for i in range(RANKS)]
        pull = torch.stack([one.sum(0) for one in held]) + RHO * (RANKS - 1) * w
        w = w - ALPHA * (gradients(w, share, t, seed) + pull)
        sent = {(i, j): (z[i, j] + 2 * RHO * sign[i, j] * w[i]).to(dtype) for i, j in arcs}
        for (i, j), value in sent.items():
            logs[i].write("send", value, peer=j)
        z = {(j, i): value.double() for (i, j), value in sent.items()}


def guessed(folder: Path, kind: str, share: float, dtype: torch.dtype, seed: int) -> Guess:
    logs = [Log(folder, rank, world=RANKS) for rank in range(RANKS)]
    write = {"hook": hooked, "duals": dual}[kind]
    write(logs, share, dtype, seed)
    for log in logs:
        log.close()
    return guess(read_logs(folder), TASK)


def words(found: Guess) -> str:
    return " ".join((*found.evidence, found.said))


@pytest.mark.parametrize(
    ("dtype", "share"),
    [
        (torch.float32, 0.02),
        (torch.float32, 1e-3),
        (torch.float32, 1e-4),
        (torch.float16, 0.02),
        (torch.float16, 3e-3),
        (torch.bfloat16, 0.05),
        (torch.bfloat16, 0.02),
    ],
)
def test_a_second_record_above_rounding_is_never_called_none(
    tmp_path: Path, fresh_seed: int, dtype: torch.dtype, share: float
) -> None:
    found = guessed(tmp_path / "log", "hook", share, dtype, fresh_seed)
    assert "one record each" not in words(found)
    if found.description is not None:
        assert {"batch", "samples"}.isdisjoint(found.description.params)


@pytest.mark.parametrize(
    ("dtype", "limit"),
    [(torch.float64, ""), (torch.float32, ""), (torch.float16, "0.00"), (torch.bfloat16, "0.0")],
)
def test_one_record_is_still_one_in_every_format(
    tmp_path: Path, fresh_seed: int, dtype: torch.dtype, limit: str
) -> None:
    """In a short format it is said how large another record could be without being noticed."""
    found = guessed(tmp_path / "log", "hook", 0.0, dtype, fresh_seed)
    assert found.description is not None
    assert found.description.params["batch"] == 1
    assert "one record each" in words(found)
    assert (f"(another one of less than {limit}" in words(found)) == bool(limit)


@pytest.mark.parametrize(
    ("dtype", "share"), [(torch.float64, 1e-5), (torch.float64, 1e-9), (torch.float32, 1e-4)]
)
def test_duals_of_two_records_name_no_wrong_constants(
    tmp_path: Path, fresh_seed: int, dtype: torch.dtype, share: float
) -> None:
    """alpha = 0.02999 and rho = 0.7002 were written for 0.03 and 0.7, as proved."""
    found = guessed(tmp_path / "log", "duals", share, dtype, fresh_seed)
    assert found.description is None
    assert "to be filled in: params.alpha, params.rho" in found.said


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_duals_of_one_record_name_the_constants(
    tmp_path: Path, fresh_seed: int, dtype: torch.dtype
) -> None:
    found = guessed(tmp_path / "log", "duals", 0.0, dtype, fresh_seed)
    assert found.description is not None
    assert (found.description.params["alpha"], found.description.params["rho"]) == (ALPHA, RHO)
    assert found.description.params["batch"] == 1
