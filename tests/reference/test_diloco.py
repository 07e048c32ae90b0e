"""DiLoCo: equal to the paper's equations with torch's own optimisers, and what its changes tell."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Generator, Tensor

import leakaudit as la
from leakaudit.attacks import Sequences, Tokens
from leakaudit.cli import main
from leakaudit.core.trace import Training
from leakaudit.inversion.exact import row_moves
from leakaudit.protocols import recording
from leakaudit.tasks.task import Task
from leakaudit.traces.recorder import Recorder

SMALL: dict[str, Any] = {"width": 32, "depth": 1, "inner": 20, "batch": 1}


def scenario(seed: int = 0, data: str = "text:8", **changes: Any) -> la.Scenario:
    constants = changes.pop("set", {})
    values = {"nodes": 1, "rounds": 1, "samples": 20, "model": "gpt", **changes}
    return la.Scenario(victim="diloco", data=data, seed=seed, set={**SMALL, **constants}, **values)


@cache
def recorded(seed: int = 0, constants: tuple[tuple[str, Any], ...] = (), **more: Any) -> Recorder:
    return recording.record(recording.plan(scenario(seed, set=dict(constants), **more)), None)


def read(run: Recorder, adversary: la.Adversary | None = None) -> list[la.Reconstruction]:
    leaks = la.leaks(run.trace, adversary)
    return la.attack(leaks, "tokens", generator=Generator().manual_seed(0))


def occurring(run: Recorder, node: int) -> Tensor:
    tokens: Tensor = run.truth_record.of(node)[0].long().unique()
    return tokens


@pytest.mark.parametrize("bits", [0, 8])
def test_it_is_torchs_adamw_inside_and_nesterov_outside(bits: int) -> None:
    """Full batches in float64, three rounds; the inner optimiser keeps its averages."""
    run = recording.record(
        recording.plan(
            la.Scenario(
                victim="diloco",
                nodes=3,
                rounds=3,
                data="gaussians",
                samples=4,
                model="logistic",
                dtype="float64",
                states=True,
                set={"bits": bits, "inner": 5, "lr": 0.02, "decay": 0.1},
            )
        ),
        None,
    )
    task, truth = Task.build(run.trace.task), run.truth_record
    outer = torch.nn.Parameter(run.public["w0"].clone())
    server = torch.optim.SGD([outer], lr=0.7, momentum=0.9, nesterov=True)
    inner = [torch.nn.Parameter(outer.detach().clone()) for _ in range(3)]
    adams = [torch.optim.AdamW([w], lr=0.02, weight_decay=0.1) for w in inner]
    for t in range(1, 4):
        changes = []
        for i, (w, adam) in enumerate(zip(inner, adams, strict=True)):
            w.data = outer.data.clone()
            for _ in range(5):
                w.grad = task.gradient(w.detach(), *truth.of(i))
                adam.step()
            change = outer.data - w.data
            for columns in task.layout.slices.values() if bits else ():
                cell = change[columns].abs().max() / 127
                change[columns] = (change[columns] / cell).round() * cell
            changes.append(change)
        outer.grad = torch.stack(changes).mean(0)
        server.step()
        torch.testing.assert_close(truth.states["w"][t, 0], outer.data, atol=1e-12, rtol=1e-9)


@pytest.mark.parametrize("seed", [0, *(pytest.param(k, marks=pytest.mark.slow) for k in (1, 2, 3))])
@pytest.mark.parametrize(
    "constants",
    [{}, {"bits": 0}, {"bits": 4}, {"bits": 2}, {"decay": 0.0}, {"decay": 10.0}, {"lr": 1e-5}],
    ids=str,
)
def test_no_token_is_named_wrongly_and_missing_ones_are_said(
    constants: dict[str, Any], seed: int
) -> None:
    run = recorded(seed, tuple(constants.items()))
    (found,) = read(run)
    assert found.tokens is not None
    assert torch.isin(found.tokens, occurring(run, 0)).all()
    if "not known" not in found.note:
        assert torch.equal(found.tokens, occurring(run, 0))
    (score,) = la.score(found, run.truth_record)
    assert score.tokens_wrong == 0
    if not constants:
        assert score.tokens_found == 1.0


def test_float64_and_one_step_as_well() -> None:
    for run in (recorded(dtype="float64"), recorded(0, (("inner", 1), ("batch", 20)))):
        (found,) = read(run)
        assert found.tokens is not None
        assert torch.equal(found.tokens, occurring(run, 0))
        assert "were not moved" in found.note


def test_a_limit_on_changes_is_none_on_the_steps_behind_them() -> None:
    """A large model allows few gradients in memory; a change is one vector, whatever its steps."""
    (leak,) = la.leaks(recorded().trace, rounds=4)
    assert leak.training is not None
    assert leak.training.steps == 20


def test_a_client_subtracts_its_own_change() -> None:
    """The server's step is linear: of two clients, one knows the change of the other."""
    run = recorded(nodes=2, rounds=3)
    (found,) = read(run, la.Adversary.parse("node:0"))
    assert found.node == 1
    assert found.tokens is not None
    assert torch.isin(found.tokens, occurring(run, 1)).all()


def test_tied_embeddings_are_refused_in_one_line() -> None:
    run = recorded(0, (("tied", True),))
    task = Task.build(run.trace.task)
    (leak,) = la.leaks(run.trace)
    said = Tokens().refuses(leak, task)
    assert said is not None
    assert "tied" in said
    assert "\n" not in said


def test_attacks_on_gradients_do_not_read_changes() -> None:
    run = recorded()
    (leak,) = la.leaks(run.trace)
    assert leak.kind == "change"
    assert "what 20 steps of adamw changed" in str(
        Sequences().refuses(leak, Task.build(run.trace.task))
    )


TRAINING = Training("adamw", 20, 1e-3, 0.01, 8)


def test_what_cannot_be_decided_is_not_known() -> None:
    g = Generator().manual_seed(0)
    weights = 0.02 * torch.randn(30, 16, generator=g, dtype=torch.float64)
    cell = 1e-3 / 127
    kept = (1 - 1e-5) ** 20
    change = (1 - kept) * weights
    change[3] += 1e-3 * torch.randn(16, generator=g, dtype=torch.float64).sign()
    change[3, 0] = 127 * cell
    sent = (change / cell).round() * cell
    sent[3] = sent[3].clamp(-127 * cell, 127 * cell)

    def decided(one: Tensor) -> tuple[Tensor, str]:
        found = row_moves.decide(one, weights, TRAINING, wire=1e-7, noise=0.0, before=0)
        assert not isinstance(found, str)
        return found

    def doubt(one: Tensor, training: Training = TRAINING) -> str:
        found = row_moves.decide(one, weights, training, wire=1e-7, noise=0.0, before=0)
        assert isinstance(found, str)
        return found

    assert decided(sent)[0].tolist() == [3]
    assert "multiples of a common step" in doubt(sent + 0.3 * cell * weights)
    shrunk = (1 - kept) * weights
    coarse = float(shrunk.abs().max()) / 127
    assert "rounding explains" in doubt((shrunk / coarse).round() * coarse)
    assert "not the stated one" in doubt(sent, Training("adamw", 20, 1e-3, 100.0, 8))
    # A step that is larger than twice the least move hides a token.
    wide = torch.zeros_like(sent)
    wide[3] = 127 * 2e-3
    assert "not known whether 29 others" in decided(wide)[1]


@pytest.mark.parametrize("steps", [1, 7, 10, 100, 500])
def test_the_least_move_is_that_of_torch(steps: int) -> None:
    """Of one gradient in the last step, the whole move; earlier ones move further."""
    weights = torch.nn.Parameter(torch.zeros(2, dtype=torch.float64))
    adam = torch.optim.AdamW([weights], lr=1e-3, weight_decay=0.0)
    for k in range(steps):
        weights.grad = torch.tensor([1.0, -3.0], dtype=torch.float64) * float(k == steps - 1)
        adam.step()
    last = Training("adamw", 1, 1e-3, 0.0, 8)
    moved = float(weights.detach().abs().min())
    assert row_moves.smallest_move(last, steps - 1) == pytest.approx(moved, rel=1e-6)
    every = Training("adamw", steps, 1e-3, 0.0, 8)
    assert row_moves.smallest_move(every, 0) <= moved * (1 + 1e-6)


def test_the_command_scores_the_set(tmp_path: Path) -> None:
    la.record(scenario(), tmp_path / "trace.pt")
    assert main(["attack", str(tmp_path / "trace.pt"), "-o", str(tmp_path / "out"), "-q"]) == 0
    record = json.loads((tmp_path / "out" / "results.json").read_text())
    (finding,) = record["findings"]
    assert finding["attack"] == "tokens"
    assert finding["leak"]["kind"] == "change"
    assert finding["scores"]["tokens_found"] == 1.0
    assert finding["scores"]["tokens_wrong"] == 0
    assert "100% of them, none of them wrong" in record["summary"]
    again = tmp_path / "again"
    truth = str(tmp_path / "trace.truth.pt")
    assert (
        main(
            ["report", str(tmp_path / "out"), "--rescore", "--truth", truth, "-o", str(again), "-q"]
        )
        == 0
    )
    rescored = json.loads((again / "results.json").read_text())
    assert rescored["findings"][0]["scores"] == finding["scores"]
