"""Some wires, some rounds, some nodes: what leaks there, and estimates of rounds that repeat."""

from __future__ import annotations

import runpy
from fractions import Fraction as Q
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from leakaudit.core.adversary import Adversary
from leakaudit.theory.relations import Relations, estimate, is_determined, know, steady

HELP: dict[str, Any] = runpy.run_path(str(Path(__file__).with_name("test_relations_estimate.py")))


@pytest.mark.parametrize(
    ("update", "theta", "share", "wires", "broken"),
    [
        ("gradient", Q(1), 0.7, 18, 6),
        ("gradient", Q(1), 0.5, 12, 3),
        ("gradient", Q(1), 0.4, 8, 0),
        ("exact", Q(1, 2), 0.5, 12, 9),
    ],
)
def test_some_wires_are_enough_to_break_some_nodes(
    update: str, theta: Q, share: float, wires: int, broken: int
) -> None:
    near, rounds = HELP["network"](), 20
    sent, gradients = HELP["Logistic"]().run(near, rounds, update, float(theta))
    draw = np.random.default_rng(4)
    tapped = frozenset((i, j) for i in near for j in near[i] if draw.random() < share)
    p = Relations()
    HELP["DECLARED"]["pdmm"](p, near, rounds, theta=theta, update=update, alpha=Q(1, 50))
    k, first = know(p, Adversary(hears=tapped)), 10 if update == "exact" else 11
    wanted = [p.find("g", i, first) - p.find("g", i, first + 1) for i in near]
    leaking = [e for e in wanted if is_determined(k, e)]
    assert (len(tapped), len(leaking)) == (wires, broken)
    if leaking:
        truth = torch.from_numpy(np.stack([HELP["combine"](e, gradients) for e in leaking]))
        found = estimate(k, leaking)
        assert (
            float((found.apply(lambda v: torch.from_numpy(sent[v.label])) - truth).abs().max())
            < 1e-10
        )
        assert (
            float(
                (found.apply(lambda v: torch.from_numpy(sent[v.label]).float()) - truth).abs().max()
            )
            < 1e-4
        )


def test_rounds_that_repeat_have_equal_estimates() -> None:
    near = HELP["network"]()
    sent, gradients = HELP["Logistic"]().run(near, 14, "gradient", 0.5)
    p = Relations()
    HELP["DECLARED"]["pdmm"](p, near, 14, theta=Q(1, 2), alpha=Q(1, 50))
    assert steady(p) == range(2, 15)  # round 1 starts from vectors of round 0, which stay
    k = know(p, Adversary())
    std = []
    for by in (0, 5):
        wanted = p.find("g", 0, 5 + by) - p.find("g", 0, 6 + by)
        found = estimate(k.within(range(2 + by, 9 + by)).near([0]), [wanted])
        std.append(found.std[0])
        truth = torch.from_numpy(HELP["combine"](wanted, gradients))
        read = found.apply(lambda v: torch.from_numpy(sent[v.label]))
        assert float((read[0] - truth).abs().max()) < 1e-10
    assert std[1] == pytest.approx(std[0], rel=1e-6)


def test_a_protocol_that_changes_does_not_repeat() -> None:
    p = Relations()
    x = p.secret("x", 0)
    for t in p.rounds(6):
        x = p.state("x", 0, eq=(1 if t < 4 else 2) * x - p.grad(0, at=x))
        p.send(0, 1, x, "x")
    assert steady(p) == range(4, 7)
    assert steady(Relations()) == range(0)
