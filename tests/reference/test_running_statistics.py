"""Running statistics that travel (`buffers=true`), against torch's own modules."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from convolutional import normalised, normalised_mlp
from torch import Tensor, nn

import leakaudit as la
from leakaudit._util import assignment
from leakaudit.core import registry
from leakaudit.core.trace import Trace, Truth
from leakaudit.protocols import declared, recording, running_statistics
from leakaudit.protocols.declared import protocol_of
from leakaudit.protocols.scenario import Scenario
from leakaudit.tasks import batch_norm
from leakaudit.tasks.task import Task
from leakaudit.theory.relations import Residuals
from leakaudit.views.accounting.view_bound import ViewBound, view_bounds

MLP = "convolutional:normalised_mlp"
SERVER = 3


def run(
    victim: str = "fedsgd",
    model: str = MLP,
    nodes: int = 3,
    rounds: int = 2,
    dtype: str = "float32",
    **constants: Any,
) -> tuple[Trace, Truth]:
    given = {"buffers": True, **constants}
    data = "gaussians" if model == MLP else "faces"
    asked = Scenario(
        victim, nodes, "star", rounds, data, 4, model=model, set=given, dtype=dtype, states=True
    )
    recorder = recording.record(recording.plan(asked, trusted=True), None)
    return recorder.trace, recorder.truth_record


def checked(trace: Trace, truth: Truth) -> Residuals:
    return declared.check(trace, truth, Task.build(trace.task, trusted=True))


def trained(module: nn.Module, task: Task, model: Tensor, x: Tensor) -> dict[str, Tensor]:
    """Return the state of a module that has seen one batch in training mode."""
    for layer in module.modules():
        if isinstance(layer, nn.BatchNorm1d | nn.BatchNorm2d):
            layer.reset_running_stats()
    module.load_state_dict(task.layout.split(model), strict=False)
    with torch.no_grad():
        module.train()(task.normalise(x.to(model)))
    return module.state_dict()


@pytest.mark.parametrize("victim", ["fedsgd", "fedavg"])
@pytest.mark.parametrize("model", [MLP, "convolutional:normalised"])
def test_a_client_sends_the_running_statistics_of_torch(victim: str, model: str) -> None:
    trace, truth = run(victim, model, rounds=1)
    task = Task.build(trace.task, trusted=True)
    view = la.Adversary().view(trace)
    build = normalised_mlp if model == MLP else normalised
    for node in range(3):
        module = build(trace.task.shape, trace.task.classes)
        state = trained(module, task, trace.public["w0"], truth.of(node)[0])
        sent = task.layout.split(view.message(1, node, SERVER, "buffers"))
        for name in batch_norm.normalisations(task):
            assert torch.allclose(sent[f"{name}.weight"], state[f"{name}.running_mean"], atol=1e-6)
            assert torch.allclose(sent[f"{name}.bias"], state[f"{name}.running_var"], atol=1e-6)


@pytest.mark.parametrize("victim", ["fedsgd", "fedavg"])
@pytest.mark.parametrize(("dtype", "error"), [("float32", 2e-5), ("float64", 1e-12)])
def test_the_statistics_of_a_batch_follow_from_running_ones(
    victim: str, dtype: str, error: float
) -> None:
    """mean = (after - (1 - m) before) / m, in every round, for all who observe both."""
    trace, truth = run(victim, dtype=dtype)
    task = Task.build(trace.task, trusted=True)
    view = la.Adversary().view(trace)
    for who in ("eavesdropper", f"node:{SERVER}", f"edges:0-{SERVER},{SERVER}-0"):
        leak = la.leaks(trace, who)[0]
        assert leak.theta is not None
        assert set(leak.statistics) == {1, 2}
        for t, w in zip((1, 2), leak.theta, strict=True):
            (own,) = batch_norm.batch_statistics(task, w, truth.of(0)[0].double()).values()
            (found,) = leak.statistics[t].values()
            before = view.message(t, SERVER, 0, "running").double()
            after = view.message(t, 0, SERVER, "buffers").double()
            by_hand = task.layout.split((after - 0.9 * before) / 0.1)
            for given, true, name in zip(found, own, ("2.weight", "2.bias"), strict=True):
                assert torch.allclose(given, true, rtol=error, atol=error)
                assert torch.allclose(given, by_hand[name], rtol=1e-9, atol=1e-9)


def test_a_curious_client_sees_only_the_mean_of_all() -> None:
    """Of a sum of gradients, the statistics of one node are not those of the batch."""
    trace, _ = run()
    told = {f"statistics.0.1.2.{which}": torch.ones(4) for which in ("mean", "var")}
    leaks = la.leaks(replace(trace, public={**trace.public, **told}), "node:1")
    assert len(leaks) > 0
    assert all(not leak.statistics for leak in leaks)


@pytest.mark.parametrize("given", [{"epochs": 3}, {"batch": 2}])
def test_several_steps_determine_only_a_mixture(given: dict[str, Any]) -> None:
    trace, truth = run("fedavg", **given)
    leak = la.leaks(trace)[0]
    assert leak.statistics == {}
    assert "weighted sum" in leak.scope
    assert checked(trace, truth).skipped == 0


@pytest.mark.parametrize("victim", ["fedsgd", "fedavg"])
@pytest.mark.parametrize("fraction", [1.0, 0.7])
def test_the_declaration_explains_every_message(victim: str, fraction: float) -> None:
    trace, truth = run(victim, rounds=4, dtype="float64", fraction=fraction)
    found = checked(trace, truth)
    assert found.skipped == 0
    assert found.worst < 1e-12
    # Another server sends back the sum.
    table = trace.messages[0]
    down = (table.kind == table.kinds.index("running")) & (table.round == 2)
    payload = table.payload.clone()
    payload[table.row[down].long().unique()] *= 3
    other = replace(trace, messages=(replace(table, payload=payload),))
    with pytest.raises(la.LeakauditError, match="running"):
        checked(other, truth)


def bounds(trace: Trace, who: str) -> list[ViewBound]:
    return list(view_bounds(protocol_of(trace), la.Adversary.parse(who), [0, 2]))


@pytest.mark.parametrize("victim", ["fedsgd", "fedavg"])
@pytest.mark.parametrize("who", ["eavesdropper", f"node:{SERVER}", "node:1", f"edges:0-{SERVER}"])
@pytest.mark.parametrize("rounds", [2, 30])
def test_noise_on_gradients_is_no_bound_on_statistics(victim: str, who: str, rounds: int) -> None:
    trace, _ = run(victim, rounds=rounds, sigma=1.0)
    for bound in bounds(trace, who):
        if bound.node == 2 and who.startswith("edges"):
            continue
        assert bound.refused
        assert "statistics" in bound.refused
        assert bound.guarantee is None
        assert bound.node_guarantee is None
    silent, _ = run(victim, rounds=rounds, sigma=1.0, buffers=False)
    assert any(bound.guarantee is not None for bound in bounds(silent, "eavesdropper"))


def test_layers_that_are_recorded_in_part_have_no_statistics() -> None:
    trace, _ = run(model="convolutional:normalised", nodes=1, rounds=1)
    began = trace.public[running_statistics.START]
    layout = trace.layout
    slices = layout.slices
    for first, last, names in (
        ("0.weight", "1.bias", ["1"]),
        ("1.bias", "4.bias", ["4"]),
        ("9.weight", "9.bias", []),
    ):
        columns = (slices[first].start, slices[last].stop)
        part = slice(*columns)
        found = running_statistics.of_layers(layout, columns, began[part], began[part])
        assert list(found) == names
        assert all(bool((m == 0).all() and (v == 1).all()) for m, v in found.values())


def test_gradinversion_is_nearer_with_the_statistics_of_the_trace() -> None:
    nearest = {}
    for buffers in (True, False):
        trace, truth = run(model="convolutional:normalised", nodes=1, rounds=1, buffers=buffers)
        (leak,) = la.leaks(trace)
        task = Task.build(trace.task, trusted=True)
        attack = registry.configure(
            registry.get("attacks", "gradinversion"), {"steps": 100, "seeds": 1}
        )
        found = attack(leak, task, torch.Generator().manual_seed(0))
        assert ("batch statistics of the trace" in found.note) == buffers
        pairs = assignment.match(found.x, truth.x)
        gaps = (found.x[pairs.found].double() - truth.x[pairs.true]).square().flatten(1).mean(1)
        nearest[buffers] = float((-10 * gaps.log10()).mean())
    assert nearest[True] > nearest[False] + 2
