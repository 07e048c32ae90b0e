"""Exact recovery of one input from the first fully connected layer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import leakaudit as la
from leakaudit.core import registry
from leakaudit.core.leak import GradientLeak
from leakaudit.core.reconstruction import Certificate, Reconstruction
from leakaudit.inversion.labels.consistency import residual_from_differences
from leakaudit.protocols import recording
from leakaudit.protocols.scenario import Scenario
from leakaudit.scoring.scoring import Score

Attacked = tuple[list[Reconstruction], list[Score]]


def attacked(scenario: Scenario, nodes: range | None = None) -> Attacked:
    plan = recording.plan(scenario)
    recorder = recording.record(plan, None)
    leaks = la.leaks(recorder.trace, nodes=nodes)
    found = la.attack(leaks, generator=torch.Generator().manual_seed(0))
    return found, la.score(found, recorder.truth_record)


def lowest_psnr(scores: list[Score]) -> float:
    values = [s.statistics("psnr")["min"] for s in scores]
    assert None not in values
    return min(v for v in values if v is not None)


def faces(**changes: Any) -> Scenario:
    settings = {"hidden": 64, **changes.pop("set", {})}
    return Scenario(
        **{"nodes": 6, "rounds": 10, "data": "faces", "model": "mlp", "set": settings, **changes}
    )


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"theta": 0.5},
        {"update": "quadratic"},
        {"k_max": 3},
        {"z0": 1.0},
        {"differential": False},
    ],
)
def test_every_face_and_label_comes_back_bit_for_bit(dtype: str, settings: dict[str, Any]) -> None:
    found, scores = attacked(faces(dtype=dtype, set=settings), range(3))
    assert len(found) == 3
    assert all(f.attack == "analytic" and f.certificate is Certificate.EXACT for f in found)
    assert all(
        s.exact == (True,) and s.label_correct == (True,) and s.identified == (True,)
        for s in scores
    )
    assert lowest_psnr(scores) >= 60


@pytest.mark.parametrize("victim", ["fedsgd", "fedavg", "fedsplit"])
def test_protocols_with_a_server_too(victim: str) -> None:
    found, scores = attacked(faces(victim=victim), range(3))
    assert len(found) == 3
    assert all(s.exact == (True,) and s.label_correct == (True,) for s in scores)


def test_before_snapping_float32_is_above_120_db() -> None:
    """The grid is not needed: without it (levels = 0) the raw recovery stands."""
    plan = recording.plan(faces())
    recorder = recording.record(plan, None)
    trace = replace(recorder.trace, task=replace(recorder.trace.task, levels=0))
    found = la.attack(la.leaks(trace), "analytic", generator=torch.Generator().manual_seed(0))
    scores = la.score(found, recorder.truth_record)
    assert lowest_psnr(scores) > 120


@pytest.mark.parametrize("rounds", [5, 20, pytest.param(100, marks=pytest.mark.slow)])
def test_early_stopping_is_no_defence(rounds: int) -> None:
    """Yu 2023, chapter 6: 60 nodes, one sample each, logistic regression in the plane; the paper stops at t_max. Every fourth node."""
    settings = {"rho": 0.1, "alpha": 0.2, "z0": 1.0}  # converges with up to 30 neighbours
    scenario = Scenario(
        nodes=60, rounds=rounds, data="gaussians", model="logistic", set=settings, dtype="float64"
    )
    found, scores = attacked(scenario, range(0, 60, 4))
    errors = torch.tensor([s.relative_error or (1.0,) for s in scores])
    assert len(found) == 15
    assert float(errors.median()) < 1e-8
    assert all(s.psnr is None and s.ssim is None for s in scores)


def planted(
    task: la.Task, x: Tensor, y: Tensor, rounds: int = 8, noise: float = 0.0, seed: int = 0
) -> GradientLeak:
    """One-step differences of the gradients along a drifting model, as autograd gives them."""
    g = torch.Generator().manual_seed(seed)
    theta = task.init(g).double()
    models = torch.stack(
        [
            theta + 0.05 * t * torch.randn(len(theta), generator=g, dtype=torch.float64)
            for t in range(rounds)
        ]
    )
    one = torch.eye(rounds - 1, rounds, dtype=torch.float64)
    combination = one - one.roll(1, dims=1)
    value = combination @ torch.stack([task.gradient(m, x.double(), y) for m in models])
    value = value + noise * torch.randn(value.shape, generator=g, dtype=torch.float64)
    std = torch.full((rounds - 1,), noise, dtype=torch.float64)
    return GradientLeak(0, torch.arange(rounds), combination, value, std, (0, task.layout.size))


def mlp(classes: int = 10, levels: int = 255) -> la.Task:
    return la.Task.build(
        la.TaskSpec(
            "mlp",
            {"hidden": 32},
            shape=(1, 8, 8),
            classes=classes,
            mean=(0.5,),
            std=(0.5,),
            levels=levels,
        )
    )


def test_a_batch_of_two_is_never_called_exact() -> None:
    task, generator = mlp(), torch.Generator().manual_seed(0)
    attack = registry.get("attacks", "analytic")()
    for seed in range(10):
        x = torch.randint(256, (2, 1, 8, 8), generator=generator) / 255
        found = attack(planted(task, x, torch.tensor([1, 2]), seed=seed), task, generator)
        assert found.certificate is not Certificate.EXACT


@pytest.mark.parametrize(
    ("noise", "certificate"),
    [(1e-9, Certificate.EXACT), (0.02, Certificate.APPROXIMATE), (10.0, Certificate.FAILED)],
)
def test_the_certificate_follows_the_noise(noise: float, certificate: Certificate) -> None:
    task, generator = mlp(), torch.Generator().manual_seed(0)
    x = torch.randint(256, (1, 1, 8, 8), generator=generator) / 255
    attack = registry.get("attacks", "analytic")()
    leak = planted(task, x, torch.tensor([3]), noise=noise)
    found = attack(replace(leak, batch=1), task, generator)
    assert found.certificate is certificate
    if certificate is Certificate.EXACT:
        assert torch.equal((found.x * 255).round(), (x * 255).round())
        # Two images that differ by a level in one pixel would look the same in this noise.
        assert attack(leak, task, generator).certificate is Certificate.APPROXIMATE


def test_labels_from_differences_alone() -> None:
    """100 of 100 labels without the models, where the last layer has four classes or more; no claim below."""
    generator, right = torch.Generator().manual_seed(1), 0
    attack = registry.get("attacks", "analytic")()
    task = mlp(classes=10)
    for seed in range(100):
        x = torch.randint(256, (1, 1, 8, 8), generator=generator) / 255
        y = torch.randint(10, (1,), generator=generator)
        found = attack(planted(task, x, y, seed=seed), task, generator)
        right += int(found.y is not None and int(found.y) == int(y))
    assert right == 100
    few = mlp(classes=3)
    assert attack(planted(few, x, torch.tensor([1])), few, generator).y is None


def test_the_shared_direction_is_the_residual_itself() -> None:
    """p - e_y of the first round to 1e-9, sign and length included."""
    g = torch.Generator().manual_seed(0)
    q = torch.stack(
        [torch.softmax(torch.randn(10, generator=g, dtype=torch.float64), 0) for _ in range(6)]
    )
    q[:, 4] -= 1
    h = torch.rand(6, 20, generator=g, dtype=torch.float64)
    one = torch.eye(5, 6, dtype=torch.float64)
    combination = one - one.roll(1, dims=1)
    weight = torch.einsum("mt,tc,th->mch", combination, q, h)
    found = residual_from_differences(torch.linalg.pinv(combination), weight, combination @ q)
    assert found is not None
    assert torch.allclose(found, q[0], atol=1e-9)


def test_what_it_refuses() -> None:
    generator = torch.Generator().manual_seed(0)
    attack = registry.get("attacks", "analytic")()
    lenet = la.Task.build(la.TaskSpec("lenet", shape=(1, 28, 28), classes=10))
    leak = planted(mlp(), torch.rand(1, 1, 8, 8), torch.tensor([0]))
    with pytest.raises(la.LeakauditError, match="not fully connected"):
        attack(leak, lenet, generator)


def test_gradients_of_zero_fail_in_words() -> None:
    task, generator = mlp(), torch.Generator().manual_seed(0)
    leak = planted(task, torch.rand(1, 1, 8, 8), torch.tensor([3]))
    found = registry.get("attacks", "analytic")()(
        replace(leak, value=leak.value * 0), task, generator
    )
    assert found.certificate is Certificate.FAILED
    assert "vanish" in found.note


def test_gradients_of_two_samples_are_refused() -> None:
    task = mlp()
    attack = registry.get("attacks", "analytic")()
    leak = planted(task, torch.zeros(1, 1, 8, 8), torch.tensor([3]))
    assert attack.refuses(replace(leak, batch=1), task) is None
    said = attack.refuses(replace(leak, batch=2), task)
    assert said == "it recovers a single input, but each gradient comes from 2 samples"


@pytest.mark.parametrize(
    ("numbers", "rounds"), [(None, ()), (1, ((0, 1),)), (2 * 32 * 65, ((0, 1, 2),))]
)
def test_the_numbers_that_it_may_use_limit_the_rounds(
    numbers: int | None, rounds: tuple[tuple[int, ...], ...]
) -> None:
    """Each equation combines two rounds and has 32 rows of 64 weights and a bias."""
    task, generator = mlp(), torch.Generator().manual_seed(0)
    settings = {} if numbers is None else {"numbers": numbers}
    x = torch.randint(256, (1, 1, 8, 8), generator=generator) / 255
    leak = planted(task, x, torch.tensor([3]))
    found = registry.get("attacks", "analytic")(**settings)(leak, task, generator)
    assert found.rounds == rounds
