"""A single node, message or draw that is not as declared, among many that are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
from torch import Generator, Tensor

from leakaudit.core.trace import Trace, Truth
from leakaudit.core.verdict import Verdict
from leakaudit.judging.lint.checks import lint
from leakaudit.protocols import local, recording
from leakaudit.protocols.scenario import Scenario
from leakaudit.victims import dpsgd
from leakaudit.views.conformance.conformance import Conformance, examine

Draw = Callable[[Tensor, float, Generator], Tensor]


@dataclass(frozen=True)
class Run:
    trace: Trace
    truth: Truth

    def examined(self) -> Conformance:
        return examine(self.trace, self.truth)


def recorded(victim: str, nodes: int = 5, rounds: int = 5, seed: int = 3, **constants: Any) -> Run:
    scenario = Scenario(
        victim=victim,
        nodes=nodes,
        graph="ring",
        rounds=rounds,
        data=f"gaussians:{4 * nodes}",
        samples=2,
        model="logistic",
        set=constants,
        seed=seed,
    )
    run = recording.record(recording.plan(scenario), None)
    return Run(run.trace, replace(run.truth_record, states={}))


def silenced(monkeypatch: pytest.MonkeyPatch, silent: Callable[[int], list[int]]) -> None:
    """Let nodes send no noise in some rounds: `silent` returns them for each draw."""
    drawn = iter(range(10_000))
    draw: Draw = local.normal

    def without(like: Tensor, std: float, generator: Generator) -> Tensor:
        noise = draw(like, std, generator)
        noise[silent(next(drawn))] = 0
        return noise

    for module in (dpsgd, local):
        monkeypatch.setattr(module, "normal", without)


@pytest.mark.parametrize("rounds", [5, 8, 20])
def test_a_node_without_noise(rounds: int, monkeypatch: pytest.MonkeyPatch) -> None:
    silenced(monkeypatch, lambda _: [1])
    run = recorded("dpsgd", nodes=10, rounds=rounds, sigma=0.5)
    (wrong,) = run.examined().deviations
    assert wrong.about == "quiet"
    assert "node 1 " in wrong.says
    assert [found.code for found in lint(run.trace, run.truth)] == ["P20"]


@pytest.mark.parametrize("nodes", [[2], list(range(10))])
def test_noise_that_ends_during_the_run(nodes: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    silenced(monkeypatch, lambda draw: nodes if draw >= 6 else [])
    run = recorded("dpsgd", nodes=10, rounds=8, sigma=0.5)
    (wrong,) = run.examined().deviations
    assert wrong.about == "quiet"
    assert "P20" in [found.code for found in lint(run.trace, run.truth)]


def test_a_single_message_without_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    silenced(monkeypatch, lambda draw: [2] if draw == 4 else [])
    run = recorded("dpsgd", nodes=10, rounds=8, sigma=0.5)
    (wrong,) = run.examined().deviations
    assert wrong.about == "quiet"


def test_a_node_with_other_records_in_a_large_network() -> None:
    run = recorded("dpsgd", nodes=300, rounds=3)
    assert not run.examined().deviations
    x = run.truth.x.clone()
    of_node = run.truth.node == 17
    x[of_node] = run.truth.x[run.truth.node == 18]
    (wrong,) = Run(run.trace, replace(run.truth, x=x)).examined().deviations
    assert wrong.about == "gradients"
    assert wrong.nodes == (17,)


@pytest.mark.parametrize(
    "victim", ["dpsgd", "dkm", "nids", "dpadmm", "extra", "tracking", "pdmm", "fedavg"]
)
def test_a_message_that_is_changed_by_a_hundredth(victim: str) -> None:
    run = recorded(victim, mechanism="none") if victim == "dkm" else recorded(victim)
    assert not run.examined().deviations
    (block,) = run.trace.messages[:1]
    payload = block.payload.clone()
    at = int((block.round == 3).nonzero()[0])
    payload[block.row[at]] *= 1.01
    changed = replace(
        run.trace, messages=(replace(block, payload=payload), *run.trace.messages[1:])
    )
    assert Run(changed, run.truth).examined().deviations


def test_honest_noise_raises_no_alarm(fresh_seed: int, fresh_cases: Callable[[int], int]) -> None:
    for k in range(fresh_cases(20)):
        victim = ("dpsgd", "pdmm", "dpadmm", "dpnorm")[k % 4]
        noise = {} if victim == "pdmm" else {"sigma": 0.3}
        run = recorded(victim, nodes=8, rounds=6, seed=fresh_seed + k, **noise)
        assert not run.examined().deviations
        found = lint(run.trace, run.truth)
        refuted = {one.code for one in found if one.verdict is Verdict.REFUTED}
        assert not refuted & {"P06", "P10", "P13", "P20", "P22"}
