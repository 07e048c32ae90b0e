"""A gate that cannot tell says so: planted gradients are those of autograd, and a broken or cheating attack fails its control."""

# JSON is looked up by keys here: a wrong key fails when the test runs.
# mypy: disable-error-code="union-attr"

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as Tree

import pytest
import torch
from torch import Generator, Tensor

import leakaudit as la
from leakaudit.core.leak import GradientLeak
from leakaudit.core.reconstruction import Certificate, Reconstruction
from leakaudit.core.registry import get
from leakaudit.core.trace import Truth
from leakaudit.judging.gate import controls, judge
from leakaudit.judging.gate import record as record_of
from leakaudit.judging.gate.cells import GateCell, attack_all
from leakaudit.judging.gate.config import Budget, Check, Gate
from leakaudit.judging.gate.runs import SeedResults, ready
from leakaudit.reporting.results import model
from leakaudit.reporting.results.model import RuleStatus
from leakaudit.tasks.task import Task

FEDSGD = {"victim": "fedsgd", "nodes": 3, "rounds": 2, "model": "logistic", "data": "faces"}
QUIET = Gate((Check("fed", scenario=FEDSGD, attacks=("analytic",)),), seeds=2, baseline="")


@pytest.fixture(scope="module")
def run() -> SeedResults:
    return ready(QUIET.checks[0], Path())(0)


def attacked(run: SeedResults, attack: str = "analytic") -> GateCell:
    cell = GateCell(QUIET.checks[0], "eavesdropper", attack)
    attack_all([cell], run)
    return cell


def patched(monkeypatch: pytest.MonkeyPatch, made: Any, name: str = "analytic") -> None:
    monkeypatch.setattr(get("attacks", name), "__call__", made)


# --- the planted leak -------------------------------------------------------------------------------------------------


def test_planted_gradients_are_those_of_autograd_at_the_models_of_the_leak(
    run: SeedResults,
) -> None:
    like = attacked(run).leak
    assert like is not None
    leak, truth = controls.planted(like, run, 0)
    assert like.theta is not None
    assert torch.equal(leak.combination, like.combination)
    assert not any(bool((truth.x[0] == x).all()) for x in run.truth.x)
    net = torch.nn.Linear(625, 100).double()
    (mean,), (std,) = run.task.spec.mean, run.task.spec.std
    for theta, value in zip(like.theta.double(), leak.value, strict=True):
        for p, part in zip(net.parameters(), run.task.layout.split(theta).values(), strict=True):
            p.data = part.clone()
        loss = torch.nn.functional.cross_entropy(
            net(((truth.x.double() - mean) / std).flatten(1)), truth.y
        )
        expected = torch.cat(
            [g.flatten() for g in torch.autograd.grad(loss, list(net.parameters()))]
        )
        assert torch.allclose(
            value.double(), expected, rtol=0, atol=1e-6 * float(expected.abs().max())
        )


def test_the_planted_record_is_scored_among_all_records(run: SeedResults) -> None:
    _, truth = controls.planted(None, run, 2)
    everything = torch.cat([run.truth.x, run.truth.pool])
    assert truth.node.tolist() == [2]
    assert len(truth.x) + len(truth.pool) == len(everything) == 100
    assert torch.equal(truth.of(2)[0], run.truth.pool[:1])


@pytest.mark.parametrize("attack", ["analytic", "exact", "labels"])
def test_exact_attacks_pass_their_controls(run: SeedResults, attack: str) -> None:
    cell = attacked(run, attack)
    assert controls.positive(cell, run, (0, 1, 2)).status is RuleStatus.OK
    tested = controls.negative(cell)
    assert tested.status is (
        RuleStatus.UNTESTED if attack == "labels" else RuleStatus.OK
    )  # labels alone can be scored against no other record


def test_what_is_planted_differs_in_record_and_label(run: SeedResults) -> None:
    made = [controls.planted(None, run, 0, number)[1] for number in range(controls.MOST)]
    assert len({tuple(truth.x.flatten().tolist()) for truth in made}) == controls.MOST
    assert {int(truth.y) for truth in made} <= set(range(100))
    assert len({int(truth.y) for truth in made}) > 5
    for truth in made:
        assert not any(bool((truth.x[0] == x).all()) for x in truth.pool)


def test_differences_are_planted_where_the_leak_holds_differences() -> None:
    scenario = {
        "victim": "pdmm",
        "nodes": 4,
        "graph": "ring",
        "rounds": 8,
        "model": "logistic",
        "data": "faces",
    }
    run = ready(Check("p", scenario=scenario), Path())(0)
    cell = attacked(run)
    assert cell.leak is not None
    assert not cell.leak.is_plain
    leak, _ = controls.planted(cell.leak, run, 0)
    assert leak.theta is None
    found = controls.positive(cell, run, (0,))
    assert found.status is RuleStatus.OK, found.says


def test_an_adversary_that_learns_nothing_still_has_its_attack_tested(run: SeedResults) -> None:
    empty = GateCell(QUIET.checks[0], "node:1", "analytic")
    attack_all([empty], run)
    assert empty.found == []
    assert set(empty.reasons) == {0, 2}
    assert all(s == [0.0] for s in empty.samples.values())
    assert controls.positive(empty, run, (0, 2)).status is RuleStatus.OK


def test_a_negative_control_without_a_reconstruction_is_no_pass() -> None:
    """Labels alone: nothing can be scored against other records. The rule says so, and is not counted; the planted leaks still guard."""
    gate = Gate(
        (Check("fed", scenario=FEDSGD, attacks=("labels",)),),
        (Budget("labels", 1.0),),
        seeds=2,
        baseline="",
    )
    judged = judge.run(gate, None, strict=True)
    assert {r.kind: r.status for r in judged.rules if r.kind in ("positive", "negative")} == {
        "positive": RuleStatus.OK,
        "negative": RuleStatus.UNTESTED,
    }
    made = model.plain(record_of.build(judged))
    assert judged.code == 0
    assert made["summary"].startswith(
        "No limit is exceeded: 4 rules on 1 cell, 2 seeds, 1 control with nothing to score. "
    )
    (case,) = Tree.fromstring(get("reports", "junit")(made)).findall(".//testcase[skipped]")
    assert case.attrib["name"] == "fed/eavesdropper/labels: control: records of other nodes"
    text = get("reports", "text")(made, verbose=True)
    assert "nothing to score  fed/eavesdropper/labels: control: records of other nodes" in text


def test_where_a_program_gives_nothing_away_planted_reconstructions_are_scored(
    run: SeedResults,
) -> None:
    """The negative control of an adversary that learns nothing rests on what was planted, and fails where both plants give one record."""
    empty = GateCell(QUIET.checks[0], "node:1", "analytic")
    attack_all([empty], run)
    assert controls.negative(empty).status is RuleStatus.UNTESTED
    assert controls.positive(empty, run, (0, 2)).status is RuleStatus.OK
    assert (empty.found, len(empty.planted)) == ([], 2)
    assert controls.negative(empty).status is RuleStatus.OK
    (first, _), (_, truth) = empty.planted
    empty.planted[1] = (replace(first, node=0), truth)
    assert controls.negative(empty).status is RuleStatus.VOID


# --- broken attacks ---------------------------------------------------------------------------------------------------


def noise(self: Any, leak: GradientLeak, task: Task, generator: Generator) -> Reconstruction:
    x = torch.rand(1, *task.spec.shape, generator=generator)
    return Reconstruction(
        leak.node, "analytic", x, torch.zeros(1, dtype=torch.int64), Certificate.EXACT, 0.0
    )


def nothing(self: Any, leak: GradientLeak, task: Task, generator: Generator) -> Reconstruction:
    return Reconstruction(
        leak.node, "analytic", torch.empty(0, *task.spec.shape), None, Certificate.FAILED, 1.0
    )


@pytest.mark.parametrize("broken", [noise, nothing])
def test_a_broken_attack_gives_code_3_and_never_0(
    monkeypatch: pytest.MonkeyPatch, broken: Any
) -> None:
    gate = Gate(QUIET.checks, (Budget("exact", 1.0), Budget("psnr", 500.0)), seeds=2, baseline="")
    assert judge.run(gate, None).code == 0
    patched(monkeypatch, broken)
    for seed in range(0, 20, 2):
        judged = judge.run(gate, None, seed)
        assert judged.code == 3
        assert [r.kind for r in judged.rules if r.status is RuleStatus.VOID] == ["positive"]


@pytest.mark.parametrize(
    "guess",
    [lambda g: torch.zeros(1, dtype=torch.int64), lambda g: torch.randint(2, (1,), generator=g)],
)
def test_labels_that_are_guessed_fail_the_planted_leaks(
    monkeypatch: pytest.MonkeyPatch, guess: Any
) -> None:
    """With two classes a guess is right every other time, and ten in a row once in a thousand."""

    def guessed(self: Any, leak: GradientLeak, task: Task, generator: Generator) -> Reconstruction:
        return Reconstruction(
            leak.node,
            "labels",
            torch.empty(0, *task.spec.shape),
            guess(generator),
            Certificate.EXACT,
            0.0,
        )

    patched(monkeypatch, guessed, "labels")
    two = {**FEDSGD, "data": "gaussians:20"}
    gate = Gate(
        (Check("fed", scenario=two, attacks=("labels",)),),
        (Budget("labels", 1.0),),
        seeds=1,
        baseline="",
    )
    assert [judge.run(gate, None, seed).code for seed in range(20)] == [3] * 20


def test_an_attack_that_cannot_use_the_leak_gives_code_3() -> None:
    scenario = {**FEDSGD, "model": "lenet"}
    judged = judge.run(
        Gate((Check("conv", scenario=scenario, attacks=("analytic",)),), seeds=2),
        None,
    )
    assert judged.code == 3
    assert any("the first layer of lenet is not fully connected" in r.says for r in judged.rules)


def test_an_attack_that_returns_one_record_whatever_leaks_fails_both_controls(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It holds one node's record: that node is recovered bit for bit, and so is it from the gradients of all others."""
    kept: list[Tensor] = []
    honest = get("attacks", "analytic").__call__

    def memorised(
        self: Any, leak: GradientLeak, task: Task, generator: Generator
    ) -> Reconstruction:
        kept.append(honest(self, leak, task, generator).x)
        return Reconstruction(leak.node, "analytic", kept[0], None, Certificate.EXACT, 0.0)

    patched(monkeypatch, memorised)
    gate = Gate(QUIET.checks, (Budget("exact", 0.0),), seeds=2, baseline="")
    judged = judge.run(gate, None)
    assert {r.kind for r in judged.rules if r.status is RuleStatus.VOID} == {"positive", "negative"}
    assert judged.code == 3


def test_matches_by_chance_alone_pass_the_negative_control(run: SeedResults) -> None:
    """Of 200 guesses at 100 candidates, two hits are chance and twenty are not."""
    others = torch.cat([run.truth.pool, run.truth.x])

    def guessed(hits: int) -> GateCell:
        cell = GateCell(QUIET.checks[0], "eavesdropper", "analytic")
        for k in range(200):
            own, pool = others[[k % 100]], torch.cat([others[: k % 100], others[k % 100 + 1 :]])
            truth = Truth(
                "t",
                run.truth.task,
                own,
                torch.zeros(1, dtype=torch.int64),
                torch.zeros(1),
                torch.zeros(1),
                pool,
            )
            after = others[[(k + 1) % 100]]
            x = (after if k < hits else others[[(k + 50) % 100]]).clone() + 0.004
            cell.found.append((Reconstruction(0, "a", x, None, Certificate.FAILED, 1.0), truth))
        return cell

    assert controls.negative(guessed(2)).status is RuleStatus.OK
    refused = controls.negative(guessed(20))
    assert refused.status is RuleStatus.VOID
    assert "20 of 200 identified (chance level 0.01)" in refused.says


# --- programs ---------------------------------------------------------------------------------------------------------


def record(seed: int, path: Path, truth: bool = True) -> None:
    """FedSGD of one client in numpy's stead: one gradient."""
    task = la.TaskSpec("logistic", shape=(4,), classes=2)
    x = torch.rand(1, 4, generator=torch.Generator().manual_seed(seed))
    built = la.Task.build(task)
    with la.Recorder(
        path,
        protocol="fedsgd",
        task=task,
        graph=la.Graph(2, ((0, 1),)),
        params={"lr": 0.1},
        rounds=1,
    ) as recorder:
        w = torch.zeros(built.layout.size)
        recorder.send(1, 1, 0, "w", w)
        recorder.send(1, 0, 1, "g", built.gradient(w, x, torch.tensor([1])))
        if truth:
            recorder.truth(0, x, torch.tensor([1]))


def test_a_function_of_the_test_is_a_program_too(tmp_path: Path) -> None:
    gate = Gate(
        (Check("own", record, attacks=("analytic",)),),
        (Budget("gain", 20.0),),
        seeds=3,
        folder=tmp_path,
    )
    judged = judge.run(gate, None)
    assert judged.code == 1
    (over,) = [r for r in judged.rules if r.status is RuleStatus.OVER]
    assert "eavesdropper reconstructs the training input of node 0" in over.says


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda seed, path: None, "run wrote no trace"),
        (lambda seed, path: record(seed, path, truth=False), "run wrote no truth"),
        (lambda seed: None, r"expected a function of \(seed, path\)"),
    ],
)
def test_a_program_that_records_nothing_is_refused(function: Any, message: str) -> None:
    with pytest.raises(la.LeakauditError, match=message):
        judge.run(Gate((Check("own", function),), seeds=1), None)


def test_epsilon_is_that_of_the_exact_view() -> None:
    from leakaudit.protocols.declared import protocol_of
    from leakaudit.views.accounting.view_bound import view_bounds

    constants = {"sigma": 0.5, "noise": "message", "order": "adapt", "alpha": 0.1}
    scenario = {
        "victim": "dpsgd",
        "nodes": 3,
        "graph": "ring",
        "rounds": 3,
        "model": "logistic",
        "data": "gaussians:20",
        "set": constants,
    }
    check = Check("eps", scenario=scenario, attacks=("labels",), sensitivity=0.2, delta=1e-4)
    trace = ready(check, Path())(0).trace
    worst = max(
        p.epsilon or 0.0
        for p in view_bounds(protocol_of(trace), la.Adversary(), range(3), 0.2, 1e-4)
    )
    for most, code in ((worst * 1.001, 0), (worst * 0.999, 1)):
        judged = judge.run(Gate((check,), (Budget("epsilon", most),), seeds=1, baseline=""), None)
        epsilon = judged.priced["eps", "eavesdropper"].epsilon
        assert epsilon is not None
        assert epsilon == pytest.approx(worst)
        assert judged.code == code, [r.says for r in judged.rules]
