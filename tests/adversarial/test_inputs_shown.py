"""What attacks return and say if the description of a recording is not what the program did."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Generator, Tensor

import leakaudit as la
from leakaudit.core.evidence import Origin
from leakaudit.core.reconstruction import Certificate, Reconstruction
from leakaudit.core.trace import Trace
from leakaudit.inversion import inputs_shown
from leakaudit.judging.lint.checks import lint

NODES = 3
ROUNDS = 6
SHAPE = (1, 8, 8)
Use = Callable[[int, int, Tensor, Generator], Tensor]


def fresh(node: int, step: int, own: Tensor, draws: Generator) -> Tensor:
    """A new record in every step."""
    return torch.randint(256, own.shape, generator=draws) / 255


def same(node: int, step: int, own: Tensor, draws: Generator) -> Tensor:
    """The same record in every step."""
    return own


def mirrored(node: int, step: int, own: Tensor, draws: Generator) -> Tensor:
    """One record, mirrored in every second step."""
    return own.flip(-1) if step % 2 else own


def recorded(
    use: Use,
    *,
    said: int = 1,
    used: int = 1,
    dtype: torch.dtype = torch.float32,
    shape: tuple[int, ...] = SHAPE,
    sigma: float = 0.0,
) -> tuple[Trace, list[list[Tensor]]]:
    """FedSGD with known models, described as `said` records per node; returns what was used."""
    draws = Generator().manual_seed(3)
    spec = la.TaskSpec("mlp", {"hidden": 48}, shape=shape, classes=4, levels=255)
    task = la.Task.build(spec)
    graph = la.Graph(NODES + 1, tuple((k, NODES) for k in range(NODES)))
    own = torch.randint(256, (NODES, used, *shape), generator=draws) / 255
    if shape[0] == 2:
        own[:, :, 1] = 1  # a constant second channel
    y = torch.randint(4, (NODES, used), generator=draws)
    model = (0.2 * torch.randn(task.layout.size, generator=draws)).to(dtype)
    received: list[list[Tensor]] = [[] for _ in range(NODES)]
    recorder = la.Recorder(
        None,
        protocol="fedsgd",
        task=spec,
        graph=graph,
        params={"lr": 0.1, "samples": said},
        public={"w0": model},
        rounds=ROUNDS,
        options=la.RecorderOptions(dtype=dtype),
    )
    with recorder:
        for node in range(NODES):
            recorder.truth(node=node, x=own[node][:said], y=y[node][:said])
        for step in range(1, ROUNDS + 1):
            recorder.send(round=step, src=NODES, dst=list(range(NODES)), kind="w", value=model)
            gradients = []
            for node in range(NODES):
                x = use(node, step, own[node], draws)
                received[node].append(x)
                gradient = task.gradient(model.double(), x.double(), y[node])
                gradient = gradient + sigma * torch.randn(len(gradient), generator=draws)
                gradients.append(gradient.to(dtype))
                recorder.send(round=step, src=node, dst=NODES, kind="g", value=gradients[-1])
            model = model - 0.1 * torch.stack(gradients).mean(0)
    return recorder.trace, received


def attacked(trace: Trace, name: str = "auto") -> list[Reconstruction]:
    """Attack all nodes as an eavesdropper."""
    return list(la.attack(la.leaks(trace), name, generator=Generator().manual_seed(0)))


def certified(found: Reconstruction, received: list[Tensor]) -> int:
    """Number of inputs called exact; each must be one of those that the network received."""
    every = torch.cat(received).double()
    exact = 0
    for x, certificate in zip(found.x, found.certificates, strict=True):
        if certificate is Certificate.EXACT:
            exact += 1
            assert float((every - x.double()).abs().flatten(1).amax(1).min()) < 0.1 / 255
    return exact


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_new_record_in_every_step(dtype: torch.dtype) -> None:
    trace, received = recorded(fresh, dtype=dtype)
    for found in attacked(trace):
        own = received[found.node]
        assert certified(found, own) == len(found.x) == ROUNDS
        assert found.evidence[0].origin is Origin.CONTRADICTED
        for x, rounds in zip(found.x, found.rounds, strict=True):
            assert len(rounds) == 1
            assert torch.allclose(x, own[rounds[0] - 1][0].to(x), atol=1e-6)
    (pitfall,) = [one for one in lint(trace) if one.number == 22]
    assert f"{ROUNDS} gradients of node 0 contain {ROUNDS} different inputs" in pitfall.says


def test_views_of_one_record_are_all_returned() -> None:
    trace, received = recorded(mirrored)
    for found in attacked(trace):
        assert certified(found, received[found.node]) == len(found.x) == 2
        explained = [each for rounds in found.rounds for each in rounds]
        assert sorted(explained) == list(range(1, ROUNDS + 1))


def test_one_record_is_verified_and_not_contradicted() -> None:
    trace, received = recorded(same)
    for found in attacked(trace):
        assert certified(found, received[found.node]) == 1
        assert found.rounds == ()
        assert found.evidence[0].origin is Origin.VERIFIED
    assert not [one for one in lint(trace) if one.number == 22]


def test_a_batch_that_is_larger_than_described() -> None:
    trace, received = recorded(same, said=1, used=2)
    for leak in la.leaks(trace):
        shown = inputs_shown.shown(leak, la.Task.build(trace.task))
        assert shown is not None
        assert shown.crowded
        assert not shown.differ
    for found in attacked(trace, "exact"):
        certified(found, received[found.node])


@pytest.mark.parametrize("sigma", [1e-6, 1e-4, 1e-2])
def test_noise_that_nobody_described_is_no_other_record(sigma: float) -> None:
    trace, received = recorded(same, sigma=sigma)
    for leak in la.leaks(trace):
        shown = inputs_shown.shown(leak, la.Task.build(trace.task))
        assert shown is None or not shown.contradicts
    for found in attacked(trace, "analytic"):
        certified(found, received[found.node])


def test_float64_messages_that_hold_the_gradients_themselves() -> None:
    trace, received = recorded(same, dtype=torch.float64)
    for name in ("analytic", "exact"):
        for found in attacked(trace, name):
            assert certified(found, received[found.node]) == 1


@pytest.mark.parametrize("used", [1, 2])
def test_a_constant_channel(used: int) -> None:
    trace, received = recorded(same, said=used, used=used, dtype=torch.float64, shape=(2, 8, 8))
    for found in attacked(trace, "exact"):
        assert certified(found, received[found.node]) == used


def test_an_estimate_under_noise_states_its_error() -> None:
    from leakaudit.protocols import recording
    from leakaudit.protocols.scenario import Scenario

    constants = {"order": "adapt", "sigma": 0.0009, "clip": 1.0, "hidden": 16}
    case = Scenario(
        victim="dpsgd",
        nodes=4,
        graph="ring",
        rounds=4,
        data="faces",
        samples=1,
        model="mlp",
        set=constants,
    )
    made = recording.record(recording.plan(case), None)
    for found in attacked(made.trace, "analytic"):
        truth = made.truth_record.of(found.node)[0]
        error = float((found.x - truth).square().mean().sqrt())
        assert found.certificate is Certificate.APPROXIMATE
        expected = float(found.note.split("expected error ")[1].split()[0])
        assert 0.4 < error / expected < 2.5


@pytest.mark.parametrize("unknown", ["batch", "samples", None])
def test_a_bound_without_a_known_batch_is_at_most(unknown: str | None) -> None:
    """A tap says so in the trace; mini-batches are then priced as if each had the record."""
    from leakaudit.protocols import recording
    from leakaudit.protocols.scenario import Scenario

    constants = {"sigma": 1.0, "clip": 1.0, "hidden": 8}
    case = Scenario("fedsgd", 3, "star", 4, "faces", samples=2, model="mlp", set=constants)
    trace = recording.record(recording.plan(case), None).trace
    if unknown:
        said = {"evidence": {unknown: [Origin.UNKNOWN.name, "8 gradients show 4 records each"]}}
        trace = replace(trace, provenance={**trace.provenance, **said})
    (view,) = la.bound(trace, [la.Adversary()], nodes=[0])
    assert view.bound.mu is not None
    assert 0 < view.bound.mu < math.inf
    assert view.bound.every_batch is (unknown is not None)


@pytest.mark.parametrize("dead", [0, 3])
def test_a_gradient_that_vanishes_hides_no_other_record(dead: int) -> None:
    trace, _ = recorded(fresh)
    (leak, *_) = la.leaks(trace)
    value = leak.value.clone()
    value[dead] = 0
    shown = inputs_shown.shown(replace(leak, value=value), la.Task.build(trace.task))
    assert shown is not None
    assert shown.clear
    assert (shown.gradients, shown.each, shown.together) == (ROUNDS - 1, 1, ROUNDS - 1)


def test_gradients_under_unknown_noise_are_not_called_clear() -> None:
    trace, _ = recorded(same, sigma=1e-3)
    (leak, *_) = la.leaks(trace)
    shown = inputs_shown.shown(leak, la.Task.build(trace.task))
    assert shown is not None
    assert not shown.clear
