"""Noise that is drawn once and sent twice, by other nodes or much later, or that omits a number."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from torch import Generator, Tensor

import leakaudit as la
from leakaudit.core import registry
from leakaudit.core.trace import Trace, Truth
from leakaudit.judging.lint.checks import lint
from leakaudit.views.conformance import conformance
from leakaudit.views.conformance.case import Case
from leakaudit.views.conformance.draws import judged
from leakaudit.views.conformance.samples import every_draw_of_truth

# The noise (n, d) of all nodes in a round and that of all earlier rounds -> the noise that is sent.
Change = Callable[[Tensor, list[Tensor]], Tensor]
SMALL = la.Scenario(
    "dpsgd", nodes=4, graph="ring", rounds=6, data="faces", model="mlp", samples=1,
    set={"noise": "message", "sigma": 0.5, "order": "adapt", "hidden": 2},
)  # fmt: skip


def recorded(
    change: Change, patch: pytest.MonkeyPatch, scenario: la.Scenario = SMALL
) -> tuple[Trace, Truth]:
    """Record a program whose generator of noise is faulty."""
    victim = registry.get("victims", "dpsgd")
    module = sys.modules[victim.__module__]
    right = module.normal
    sent: list[Tensor] = []

    def normal(model: Tensor, std: float, generator: Generator) -> Tensor:
        sent.append(change(right(model, std, generator).clone(), sent))
        return sent[-1]

    patch.setattr(module, "normal", normal)
    return la.record(scenario)


def replaced(noise: Tensor, sent: list[Tensor], node: int, source: int, lag: int) -> Tensor:
    """Let a node send the noise that another one sent some rounds ago."""
    if len(sent) >= lag:
        noise[node] = sent[-lag][source]
    return noise


def at_the_end(noise: Tensor, sent: list[Tensor]) -> Tensor:
    return replaced(noise, sent, 1, 0, 1) if len(sent) == SMALL.rounds - 1 else noise


def opposite(noise: Tensor, sent: list[Tensor]) -> Tensor:
    if len(sent) >= 2:
        noise[1] = -sent[-2][0]
    return noise


def in_pairs(noise: Tensor, sent: list[Tensor]) -> Tensor:
    return replaced(noise, sent, 9, 9, 1) if len(sent) % 2 else noise


def balanced(noise: Tensor, sent: list[Tensor]) -> Tensor:
    """Noise that sums to zero over the nodes, of the declared size."""
    n = len(noise)
    return (noise - noise.mean(0)) * math.sqrt(n / (n - 1))


def without_a_number(noise: Tensor, sent: list[Tensor]) -> Tensor:
    noise[:, 77] = 0
    return noise


FAULTS: dict[str, tuple[Change, dict[str, Any], int]] = {
    "another node's, a round later": (partial(replaced, node=1, source=0, lag=1), {}, 6),
    "another node's, in the last round": (at_the_end, {}, 6),
    "minus another node's, two rounds later": (opposite, {}, 6),
    "its own, twenty rounds later": (
        partial(replaced, node=2, source=2, lag=20),
        {"rounds": 22},
        6,
    ),
    "one of twelve nodes, twice": (in_pairs, {"nodes": 12}, 6),
    "balanced": (balanced, {}, 6),
    "a number without noise": (without_a_number, {}, 20),
}


@pytest.mark.parametrize("states", [False, True])
def test_right_noise_raises_no_alarm(states: bool, fresh_seed: int) -> None:
    trace, truth = la.record(replace(SMALL, seed=fresh_seed, nodes=12, rounds=22, states=states))
    assert not conformance.examine(trace, truth).sentences
    assert not [one for one in lint(trace, truth) if one.number in (6, 20)]


@pytest.mark.parametrize("states", [False, True])
@pytest.mark.parametrize("fault", FAULTS)
def test_faulty_noise_is_found(fault: str, states: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    change, size, number = FAULTS[fault]
    trace, truth = recorded(change, monkeypatch, replace(SMALL, states=states, **size))
    found = conformance.examine(trace, truth)
    assert [one.about for one in found.deviations] in (["distribution"], ["quiet"])
    assert number in [one.number for one in lint(trace, truth)]


def test_noise_that_is_shorter_than_the_model_belongs_to_no_parameter() -> None:
    """A file may state any length; the columns of a parameter were none, which ended the lint."""
    trace, truth = la.record(replace(SMALL, states=True, seed=2**40))
    noise = every_draw_of_truth(Case(trace, truth))
    width = trace.layout.size
    assert {one.rest.shape[1] for one in noise} == {width}
    for stop in (width // 2, 2 * width):
        assert not list(judged(noise, {"a": slice(0, 1), "b": slice(width, width + stop)}))
