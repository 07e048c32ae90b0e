"""What every registered victim promises, as a table over the registry."""

from __future__ import annotations

from dataclasses import FrozenInstanceError

import numpy as np
import pytest
import torch

import leakaudit as la
from leakaudit import declared, recording, registry
from leakaudit.scenario import Scenario

VICTIMS = registry.names("victims")


WALKS = ("recal", "rwadmm")  # one node at a time: not every wire is used, not every node takes a gradient
SILENT = ("single",)
FITS: dict[str, dict[str, object]] = {"secured": {"graph": "complete", "nodes": 9}}


def scenario(name: str, **changes: object) -> Scenario:
    values: dict[str, object] = {
        "nodes": 4,
        "graph": "ring",
        "rounds": 5,
        "data": "gaussians",
        "model": "logistic",
        **FITS.get(name, {}),
        **changes,
    }
    return Scenario(victim=name, **values)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", VICTIMS)
def test_it_is_a_value_that_says_what_it_is(name: str) -> None:
    kind = registry.get("victims", name)
    assert kind.paper
    assert kind.leaks_what
    assert isinstance(kind.centralised, bool)
    assert all(f.metadata["help"] for f in registry.parameters(kind).values())
    with pytest.raises(FrozenInstanceError):
        kind().paper = "another"


@pytest.mark.parametrize("name", VICTIMS)
def test_equal_seeds_record_equal_messages_and_leave_global_state_alone(name: str) -> None:
    before = torch.get_rng_state(), repr(np.random.get_state())  # noqa: NPY002
    first, second, other = (recording.record(recording.plan(scenario(name, seed=s, states=True)), None) for s in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), before[0])
    assert repr(np.random.get_state()) == before[1]  # noqa: NPY002
    assert torch.equal(first.trace.messages[0].payload, second.trace.messages[0].payload)
    models = [r.truth_record.states["w"].nan_to_num() for r in (first, second, other)]
    assert torch.equal(models[0], models[1])
    assert not torch.equal(models[0], models[2])


@pytest.mark.parametrize("name", VICTIMS)
def test_it_sends_as_many_messages_as_it_announced(name: str) -> None:
    plan = recording.plan(scenario(name))
    trace = recording.record(plan, None).trace
    assert len(trace) == plan.victim.messages(plan.graph, 5, plan.wires)
    assert trace.rounds == 5
    used = {(int(s), int(d)) for s, d in zip(trace.messages[0].src, trace.messages[0].dst, strict=True)}
    assert used <= set(plan.graph.arcs)
    assert name in (*WALKS, *SILENT) or used == set(plan.graph.arcs)


@pytest.mark.parametrize("name", VICTIMS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_declaration_describes_the_run(name: str, dtype: str) -> None:
    """Every relation on messages, private states and gradients by autograd; none is left out."""
    recorder = recording.record(recording.plan(scenario(name, dtype=dtype, states=True, samples=4)), None)
    found = declared.check(recorder.trace, recorder.truth_record)
    assert found.checked >= 5
    assert found.skipped == 0


@pytest.mark.parametrize("name", VICTIMS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_wire_has_the_dtype_that_was_asked_for(name: str, dtype: str) -> None:
    assert recording.record(recording.plan(scenario(name, dtype=dtype)), None).trace.dtype == getattr(torch, dtype)


@pytest.mark.parametrize("name", VICTIMS)
def test_nobody_learns_nothing_and_says_why(name: str) -> None:
    trace = recording.record(recording.plan(scenario(name)), None).trace
    leaks = la.leaks(trace, la.Adversary(hears="none"))
    assert len(leaks) == 0
    assert set(leaks.undetermined) == set(range(int(scenario(name).nodes)))
    assert name in SILENT or any("not heard" in why for why in leaks.undetermined.values())
    assert all("not heard" in why or "no gradients" in why or "does not determine" in why for why in leaks.undetermined.values())


@pytest.mark.parametrize("name", VICTIMS)
def test_training_lowers_the_loss(name: str) -> None:
    plan = recording.plan(scenario(name, rounds=60, samples=5, states=True))
    truth = recording.record(plan, None).truth_record
    task, x, y = plan.task, truth.x, truth.y
    w = truth.states["w"]
    start, end = (float(task.loss(w[t].mean(0), x, y)) for t in (0, w.isfinite().all(dim=2).all(dim=1).nonzero().max()))
    assert end < 0.9 * start


def test_wrong_constants_are_refused() -> None:
    for name, key, value in (("pdmm", "theta", 0.0), ("pdmm", "rho", -1.0), ("pdmm", "k_max", 0), ("fedsplit", "rho", 0.0)):
        with pytest.raises(la.LeakauditError, match=name):
            registry.configure(registry.get("victims", name), {key: value})
    with pytest.raises(la.LeakauditError, match="convex"):
        recording.record(recording.plan(scenario("pdmm", data="faces", model="mlp", set={"update": "exact"})), None)


@pytest.mark.parametrize("name", VICTIMS)
def test_nothing_recorded_still_trains(name: str) -> None:
    recorder = recording.record(recording.plan(scenario(name, wires="none", states=True)), None)
    assert len(recorder.trace) == 0
    assert recorder.truth_record.states["w"].shape[0] >= 5
