"""Optimisers of local training: equal to torch.optim, declared as they run, and what they leak."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

import leakaudit as la
from leakaudit.protocols import declared, recording
from leakaudit.errors import LeakauditError
from leakaudit.protocols.optimiser import Memory, Optimiser

OPTIMISERS = {
    "plain": (Optimiser(), torch.optim.SGD, {}),
    "decay": (Optimiser(decay=0.01), torch.optim.SGD, {"weight_decay": 0.01}),
    "momentum": (
        Optimiser(momentum=0.9, decay=0.01),
        torch.optim.SGD,
        {"momentum": 0.9, "weight_decay": 0.01},
    ),
    "nesterov": (
        Optimiser(momentum=0.8, nesterov=True),
        torch.optim.SGD,
        {"momentum": 0.8, "nesterov": True},
    ),
    "adam": (Optimiser("adam", decay=0.01), torch.optim.Adam, {"weight_decay": 0.01}),
    "adamw": (Optimiser("adamw", decay=0.01), torch.optim.AdamW, {"weight_decay": 0.01}),
    "adagrad": (Optimiser("adagrad", decay=0.01), torch.optim.Adagrad, {"weight_decay": 0.01}),
}


@pytest.mark.parametrize("name", OPTIMISERS)
def test_the_steps_are_those_of_torch(name: str) -> None:
    ours, theirs, constants = OPTIMISERS[name]
    generator = torch.Generator().manual_seed(0)
    w = torch.randn(3, 7, generator=generator, dtype=torch.float64)
    expected = [torch.nn.Parameter(row.clone()) for row in w]
    optimisers = [theirs([row], lr=0.03, **constants) for row in expected]
    memory = Memory()
    for _ in range(6):
        g = torch.randn(3, 7, generator=generator, dtype=torch.float64)
        for row, optimiser, gradient in zip(expected, optimisers, g, strict=True):
            row.grad = gradient.clone()
            optimiser.step()
        w = ours.step(memory, 0.03, w, g)
        torch.testing.assert_close(
            w, torch.stack([row.data for row in expected]), atol=1e-14, rtol=1e-12
        )


def scenario(
    victim: str, constants: dict[str, Any], dtype: str = "float64", **more: Any
) -> la.Scenario:
    return la.Scenario(
        victim=victim,
        nodes=4,
        graph="star" if victim != "dpsgd" else "ring",
        rounds=5,
        data="faces",
        samples=2,
        model="mlp",
        dtype=dtype,
        states=True,
        set={"hidden": 8, **constants},
        **more,
    )


LINEAR: list[dict[str, Any]] = [
    {"momentum": 0.9},
    {"momentum": 0.9, "nesterov": True, "decay": 0.01},
]
CLIENTS = [
    ("fedavg", {"epochs": 3}),
    ("fedavg", {"batch": 1, "keep": True}),
    ("dpsgd", {"steps": 2}),
]
RUNS = [
    *((v, {**a, **b}) for (v, a), b in itertools.product(CLIENTS, LINEAR)),
    *(("dpsgd", {"order": "adapt", **b}) for b in LINEAR),
    *(("fedsgd", b) for b in (*LINEAR, {"clip": 0.5, "sigma": 0.1})),
    ("fedavg", {"clip": 0.5, "sigma": 0.1, "epochs": 2, "momentum": 0.9}),
    ("dpsgd", {"sigma": 0.2, "momentum": 0.9, "own": "plain"}),
]


@pytest.mark.parametrize(("victim", "constants"), RUNS)
def test_the_declaration_describes_the_run(victim: str, constants: dict[str, Any]) -> None:
    recorder = recording.record(recording.plan(scenario(victim, constants)), None)
    found = declared.check(recorder.trace, recorder.truth_record)
    assert found.skipped == 0
    assert found.checked >= 15
    assert found.worst < 1e-12
