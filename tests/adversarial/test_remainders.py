"""A small difference between messages and the gradients of the truth is measured and explained."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import leakaudit as la
from leakaudit.judging.lint.checks import lint
from leakaudit.protocols.recording import plan, record
from leakaudit.protocols.scenario import Scenario
from leakaudit.views.conformance.pitfall import Pitfall

NODES, RECORDS, ROUNDS = 2, 3, 3
SHAPE, CLASSES, HIDDEN = (1, 8, 8), 4, 16
STAR = la.Graph(NODES + 1, tuple((i, NODES) for i in range(NODES)))


def trained(
    folder: Path, factor: float = 1.0, l2: float = 0.0, noise: float = 0.0, wrong: bool = False
) -> list[Pitfall]:
    """Record a FedSGD program in float32, whose gradients torch computes, and lint it."""
    random = torch.Generator().manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, CLASSES))
    x = torch.rand(NODES, RECORDS, *SHAPE, generator=random)
    y = torch.randint(CLASSES, (NODES, RECORDS), generator=random)
    weights: list[Tensor] = list(net.parameters())
    with torch.no_grad():
        for weight in weights:
            weight.copy_(0.3 * torch.randn(weight.shape, generator=random))

    def flat(parts: list[Tensor]) -> Tensor:
        return torch.cat([part.detach().flatten() for part in parts])

    with la.Recorder(
        folder / "run.pt",
        protocol="fedsgd",
        task=la.TaskSpec("mlp", {"hidden": HIDDEN}, shape=SHAPE, classes=CLASSES),
        graph=STAR,
        params={"lr": 0.1},
        rounds=ROUNDS,
        public={"w0": flat(weights)},
    ) as recorder:
        for t in range(1, ROUNDS + 1):
            w = flat(weights)
            recorder.send(round=t, src=NODES, dst=list(range(NODES)), kind="w", value=w)
            sent = []
            for i in range(NODES):
                labels = (y[i] + 1) % CLASSES if wrong else y[i]
                loss = functional.cross_entropy(net(x[i]), labels)
                g = factor * flat(list(torch.autograd.grad(loss, weights))) + l2 * w
                g += noise * g.norm() / len(g) ** 0.5 * torch.randn(g.shape, generator=random)
                sent.append(g)
                recorder.send(round=t, src=i, dst=NODES, kind="g", value=g)
            mean = torch.stack(sent).mean(0)
            with torch.no_grad():
                for weight, step in zip(
                    weights, mean.split([one.numel() for one in weights]), strict=True
                ):
                    weight -= 0.1 * step.view_as(weight)
        for i in range(NODES):
            recorder.truth(node=i, x=x[i], y=y[i])
    return lint(la.load(folder / "run.pt"), la.load_truth(folder / "run.truth.pt"))


def numbers(found: list[Pitfall]) -> list[int]:
    """Return the numbers of the findings about the recording itself."""
    return [one.number for one in found if one.number in (22, 23)]


def test_an_honest_program_has_no_remainder(tmp_path: Path) -> None:
    """Another implementation of the same gradients differs by rounding only."""
    assert numbers(trained(tmp_path)) == []


@pytest.mark.parametrize("l2", [5e-4, 1e-4, -2e-4])
def test_an_undeclared_l2_term(tmp_path: Path, l2: float) -> None:
    """It is found, with its weight, far below the tolerance of the comparison."""
    (found,) = [one for one in trained(tmp_path, l2=l2) if one.number == 23]
    assert f"{l2:.1g}" in found.says or f"{l2:.3g}" in found.says
    assert "times the models" in found.says
    assert not found.bad


@pytest.mark.parametrize("factor", [0.999, 1.01])
def test_a_scaled_loss(tmp_path: Path, factor: float) -> None:
    """So is a factor of the loss."""
    (found,) = [one for one in trained(tmp_path, factor=factor) if one.number == 23]
    assert f"a factor of {factor:g} of the gradients explains" in found.says


def test_both_together(tmp_path: Path) -> None:
    """Two causes are told apart."""
    (found,) = [one for one in trained(tmp_path, factor=0.99, l2=1e-3) if one.number == 23]
    assert "a factor of 0.99 of the gradients and 0.001 times the models" in found.says


def test_a_large_factor_is_refuted_and_named(tmp_path: Path) -> None:
    """Half a loss contradicts the declaration, which is told what would explain it."""
    (found,) = [one for one in trained(tmp_path, factor=0.5) if one.number == 22]
    assert "a factor of 0.5 of the gradients explains 100 %" in found.says


def test_what_nothing_explains(tmp_path: Path) -> None:
    """No cause is invented: neither for random errors nor for the labels of other records."""
    (found,) = [one for one in trained(tmp_path, noise=0.01) if one.number == 23]
    assert "neither a factor nor a multiple of the models explains it" in found.says
    (found,) = [one for one in trained(tmp_path, wrong=True) if one.number == 22]
    assert "explains" not in found.says


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    ("victim", "constants"),
    [
        ("fedavg", {"epochs": 3}),
        ("fedsgd", {"momentum": 0.9, "decay": 0.01}),
        ("dpsgd", {"steps": 2, "clip": 1.0}),
        ("pdmm", {}),
        ("tracking", {}),
        ("nids", {}),
        ("extra", {}),
        ("gossip", {}),
        ("choco", {"compress": "none"}),
    ],
)
def test_bundled_protocols_have_none(victim: str, constants: dict[str, float], dtype: str) -> None:
    """Rounding of long runs is not taken for a remainder."""
    scenario = Scenario(
        victim=victim, nodes=4, graph="ring", rounds=8, samples=2, dtype=dtype, set=constants
    )
    made = record(plan(scenario), None)
    assert numbers(lint(made.trace, made.truth_record)) == []
