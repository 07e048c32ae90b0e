"""Constants that the tap fits to the first rounds are verified over the run, or are not known."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Generator, Tensor

import leakaudit as la
from leakaudit.capture.tap import merge
from leakaudit.capture.tap.guessing.guess import Guess, guess
from leakaudit.capture.tap.log.reading import RankLog, read_logs
from leakaudit.capture.tap.log.writing import Log
from leakaudit.capture.tap.messages import wires
from leakaudit.tasks.task import Task

TASK = Task.build(la.TaskSpec("mlp", {"hidden": "12"}, shape=(1, 8, 8), classes=5))
SIZES = [part.stop - part.start for part in TASK.layout.slices.values()]
NOTED: dict[str, Any] = {"lane": "model 0", "of": 4, "parameters": [0, 1, 2, 3], "last": True}
RATE = 0.1
Loss = Callable[[Tensor, Tensor], Tensor]


def smoothed(share: float) -> Loss:
    return lambda out, y: F.cross_entropy(out, y, label_smoothing=share)


def weighted(out: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(out, y, weight=torch.tensor([1.0, 2, 3, 4, 5]), reduction="sum")


def ran(
    folder: Path,
    rounds: int,
    loss: Loss = F.cross_entropy,
    scale: Callable[[int], float] = lambda t: 1.0,
    half: bool = False,
    rate: Callable[[int], float] = lambda t: RATE,
) -> tuple[RankLog, ...]:
    """The log of two ranks with a hook, each of which trains on one record.

    scale: the factor of what travels in a round; half: whether gradients are computed in bfloat16;
    rate: the step size of a round.
    """
    logs = [Log(folder, rank, world=2) for rank in range(2)]
    random = Generator().manual_seed(3)
    x = torch.randint(256, (2, 1, 8, 8), generator=random) / 255
    w = TASK.init(random)
    for t in range(rounds):
        logs[0].write("model", w, at=t, sizes=SIZES, **NOTED)
        sent: list[Tensor] = []
        for rank, log in enumerate(logs):
            theta = w.clone().requires_grad_()
            value = loss(TASK.logits(theta, x[rank : rank + 1]), torch.tensor([rank + 1]))
            (g,) = torch.autograd.grad(value, theta)
            if half:
                g = g.bfloat16().float()
            sent.append(g)
            log.write("ddp", g * scale(t), at=t, sizes=SIZES, **NOTED)
        w = w - rate(t) * torch.stack(sent).mean(0)
    for log in logs:
        log.close()
    return read_logs(folder)


def words(found: Guess) -> str:
    return " ".join(found.evidence)


@pytest.mark.parametrize("share", [0.02, 0.1])
@pytest.mark.parametrize("rounds", [1, 6])
def test_label_smoothing_is_no_factor(tmp_path: Path, share: float, rounds: int) -> None:
    """The factor 1 / (1 - share) absorbed it: step sizes and decay were wrong and VERIFIED."""
    found = guess(ran(tmp_path / "log", rounds, smoothed(share)))
    assert "correct" not in words(found)
    assert f"label smoothing of {share:g}" in words(found)
    assert "to be filled in: model.loss" in found.said
    assert found.description is None


def test_class_weights_are_no_factor(tmp_path: Path) -> None:
    found = guess(ran(tmp_path / "log", 4, weighted))
    assert found.description is None
    assert "times the recomputed gradients: class weights" in words(found)


def doubling(t: int) -> float:
    """A loss scale that doubles after every third round, as that of GradScaler."""
    return math.ldexp(1024.0, t // 3)


def test_a_loss_scale_that_grows_is_undone_in_every_round(tmp_path: Path) -> None:
    """That of the first rounds was written for all: step sizes halved, later gradients doubled."""
    logs = ran(tmp_path / "log", 8, scale=doubling)
    found = guess(logs)
    assert found.description is not None
    assert "a loss scale that changes" in words(found)
    assert found.description.scale == 1 / 1024
    assert found.description.scales == {4: 1 / 2048, 7: 1 / 4096}
    merge.write(wires.plan(found.description, logs), logs, tmp_path / "scaled.pt")
    trace = la.load(tmp_path / "scaled.pt")
    assert trace.params["lr"] == RATE


def test_a_factor_that_changes_later_than_the_first_rounds_is_seen(tmp_path: Path) -> None:
    found = guess(ran(tmp_path / "log", 9, scale=lambda t: 3.0 if t == 8 else 1.0))
    assert found.description is None
    assert "1 to 3 times the recomputed gradients" in words(found)


@pytest.mark.parametrize("factor", [1.0, 64.0, 0.5, -20.0, 0.0437])
def test_a_constant_factor_is_still_explained(tmp_path: Path, factor: float) -> None:
    found = guess(ran(tmp_path / "log", 6, scale=lambda t: factor))
    assert "model, loss and step are correct" in words(found)
    assert found.description is not None
    assert found.description.scale == pytest.approx(1 / factor, rel=1e-5)


def test_a_short_number_format_is_called_that(tmp_path: Path) -> None:
    found = guess(ran(tmp_path / "log", 4, half=True))
    assert found.description is not None
    assert "as far as this number format shows" in words(found)
    assert found.description.scale == 1
    blurred = guess(ran(tmp_path / "blurred", 4, smoothed(0.1), half=True))
    assert "correct" not in words(blurred)
    assert blurred.description is None or blurred.description.scale == 1


@pytest.mark.parametrize("last", [RATE, RATE / 10])
def test_a_step_size_that_changes_late_is_not_called_constant(tmp_path: Path, last: float) -> None:
    """A schedule lowers it after ten rounds; it was fitted to the first eight."""
    logs = ran(tmp_path / "log", 14, rate=lambda t: RATE if t < 10 else last)
    found = guess(logs)
    assert found.description is not None
    plan = wires.plan(found.description, logs)
    if last == RATE:
        assert plan.description.params["lr"] == RATE
    else:
        assert plan.description.params["server"] == "unknown"
        assert "lr" not in plan.description.params
        assert any("not the step of round 11" in note for note in plan.notes)


@pytest.mark.parametrize("last", [RATE, RATE / 10])
@pytest.mark.parametrize("rounds", [14, 60])
def test_a_step_size_of_nodes_that_changes_late_is_not_called_constant(
    tmp_path: Path, last: float, rounds: int
) -> None:
    """Nodes average models and take a step each; the constants were fitted to six rounds."""
    folder = tmp_path / "log"
    logs = [Log(folder, rank, world=3) for rank in range(3)]
    random = Generator().manual_seed(3)
    x = torch.randint(256, (3, 1, 1, 8, 8), generator=random) / 255
    y = torch.arange(3)[:, None]
    w = TASK.init(random).repeat(3, 1)
    for t in range(rounds):
        for rank, log in enumerate(logs):
            for other in {0, 1, 2} - {rank}:
                log.write("send", w[rank], peer=other)
        rate = RATE if t < 10 else last
        w = w.mean(0, keepdim=True) - rate * TASK.gradients(w, x, y)
    for log in logs:
        log.close()
    found = guess(read_logs(folder))
    if last == RATE:
        assert found.description is not None
        assert found.description.params["alpha"] == RATE
    else:
        assert found.description is None
        assert "params.alpha" in found.said
        assert "not step 11" in words(found)
