"""Trained weights from a file: where a run starts, and which files are rejected."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec import UnsetType
from safetensors.torch import save_file
from torch import Tensor, nn

import leakaudit as la
from leakaudit.cli._main import main
from leakaudit.core.errors import LeakauditError
from leakaudit.inversion.search import priors
from leakaudit.protocols import recording
from leakaudit.protocols.scenario import Scenario
from leakaudit.runs.sweeping import run
from leakaudit.runs.sweeping.plan import SweepPlan
from leakaudit.runs.sweeping.store import StoredPlan
from leakaudit.tasks.task import Task
from leakaudit.traces import convert

SMALL = Scenario(
    "fedsgd", 2, "star", 2, "gaussians:50", 3, model="mlp", set={"hidden": (4,)}, curves=True
)
RESNET = Scenario("fedsgd", 1, "star", 1, "faces", 2, model="resnet10", set={"bn": "eval"})
Change = Callable[[dict[str, Tensor]], Any]


def saved(path: Path, model: nn.Module, seed: int = 0) -> dict[str, Tensor]:
    """Save the state of a model as if it had been trained: no number is that of a new model."""
    random = torch.Generator().manual_seed(seed)
    state = {}
    for name, value in model.state_dict().items():
        noise = torch.rand(value.shape, generator=random)
        state[name] = value + 0.1 + 0.1 * noise if value.is_floating_point() else value + 7
    save_file(state, path)
    return state


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "trained.safetensors"
    saved(path, recording.plan(SMALL).task.module)
    return path


def test_a_run_starts_from_the_parameters_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "trained.safetensors"
    task = recording.plan(SMALL).task
    state = saved(file, task.module)
    scenario = replace(SMALL, weights=str(file))
    trace, truth = la.record(scenario, tmp_path / "trace.pt")
    expected = torch.cat([state[name].flatten() for name in task.layout.names])
    assert torch.equal(trace.public["w0"], expected)
    first = trace.messages[0]
    sent = first.payload[first.row[(first.round == 1) & (first.src == 2)].long()]
    assert torch.equal(sent, expected.expand(2, -1))  # the server sends it to both clients
    sha256 = hashlib.sha256(file.read_bytes()).hexdigest()
    read = la.load(tmp_path / "trace.pt")
    assert read.provenance["weights"] == {"sha256": sha256}
    assert str(tmp_path) not in str(read.provenance)
    told: Any = truth.provenance["scenario"]
    assert told["weights"] == f"{file}@sha256:{sha256}"
    random, _ = la.record(SMALL)
    assert not torch.equal(random.public["w0"], expected)
    assert "weights" not in random.provenance


def test_the_gradients_of_the_trained_model_leak_at_it(file: Path) -> None:
    trace, truth = la.record(replace(SMALL, weights=str(file), samples=1))
    task = Task.build(trace.task, dtype=torch.float64)
    (leak, _) = la.leaks(trace)
    assert leak.theta is not None
    assert torch.equal(leak.theta[0].float(), trace.public["w0"])
    g = task.gradient(leak.theta[0], truth.x[:1].double(), truth.y[:1])
    assert torch.allclose(leak.value[0].double(), g, rtol=1e-4, atol=1e-6)


def test_another_file_than_the_one_of_the_digest_is_rejected(file: Path) -> None:
    plan = recording.plan(replace(SMALL, weights=str(file)))
    pinned = plan.scenario
    assert pinned.pinned() == pinned
    assert torch.equal(
        recording.public(recording.plan(pinned))["w0"], plan.start(torch.Generator())
    )
    saved(file, plan.task.module, seed=1)
    with pytest.raises(LeakauditError, match=r"trained\.safetensors is another file than expected"):
        recording.plan(pinned)
    assert recording.plan(replace(SMALL, weights=str(file))).scenario != pinned


def test_running_statistics_of_a_trained_model_travel_with_the_trace(tmp_path: Path) -> None:
    file = tmp_path / "resnet.safetensors"
    scenario = replace(RESNET, weights=str(file))
    state = saved(file, recording.plan(RESNET).task.module)
    trace, truth = la.record(scenario, tmp_path / "trace.pt")
    plan = recording.plan(scenario)
    torch_model = plan.task.module
    torch_model.load_state_dict(state)
    x = truth.x
    with torch.no_grad():
        expected = torch_model.eval()(plan.task.normalise(x))
    convert.convert(tmp_path / "trace.pt", tmp_path / "trace.npz")
    convert.convert(tmp_path / "trace.npz", tmp_path / "again.pt")
    for read in (trace, la.load(tmp_path / "trace.pt"), la.load(tmp_path / "again.pt")):
        task = Task.build(read.task)
        assert torch.allclose(task.logits(read.public["w0"], x), expected, atol=1e-5)
        known = priors.running_statistics(task)
        assert known is not None
        assert torch.equal(known["bn1"][1], state["bn1.running_var"])
    fresh = Task.build(recording.plan(RESNET).task.spec)
    assert not torch.allclose(fresh.logits(trace.public["w0"], x), expected, atol=1e-2)


def test_the_state_of_another_program_may_have_running_statistics_that_are_not_used(
    tmp_path: Path,
) -> None:
    file = tmp_path / "resnet.safetensors"
    saved(file, recording.plan(RESNET).task.module)
    plan = recording.plan(replace(RESNET, set={}, weights=str(file)))
    assert not plan.task.spec.constants
    assert plan.trained is not None


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda s: s.pop("layer2.bias"), r"tensor 'layer2\.bias' \(2,\) is missing"),
        (lambda s: s.update(layer9=torch.ones(1)), "model 'mlp' has no tensor .*layer9"),
        (
            lambda s: s.update({"layer1.bias": torch.ones(5)}),
            r"'layer1\.bias': expected shape \(4,\), got \(5,\)",
        ),
        (
            lambda s: s.update({"layer1.bias": torch.ones(4, dtype=torch.int32)}),
            r"'layer1\.bias': expected floating-point numbers, got torch\.int32",
        ),
        (
            lambda s: s["layer1.bias"].fill_(torch.nan),
            r"'layer1\.bias': 4 of 4 numbers are not finite",
        ),
        (
            lambda s: s.update({"layer1.bias": torch.full((4,), 1e300, dtype=torch.float64)}),
            r"'layer1\.bias': 4 of 4 numbers are not finite in torch\.float32",
        ),
        (lambda s: s.update(huge=torch.ones(1 << 20)), "bytes, but model 'mlp' needs at most"),
    ],
)
def test_tensors_that_are_not_those_of_the_model(file: Path, change: Change, says: str) -> None:
    state = saved(file, recording.plan(SMALL).task.module)
    change(state)
    save_file(state, file)
    with pytest.raises(LeakauditError, match=rf"^weights: trained\.safetensors.*{says}"):
        recording.plan(replace(SMALL, weights=str(file)))


@pytest.mark.parametrize("end", [0, 7, 40, -1])
def test_damaged_files_are_one_line(
    file: Path, end: int, capsys: pytest.CaptureFixture[str]
) -> None:
    file.write_bytes(file.read_bytes()[:end])
    told = ["record", "fedsgd", "--data", "gaussians:50", "--model", "mlp", "--set", "hidden=4"]
    assert main([*told, "--weights", str(file), "-o", str(file.parent / "t.pt")]) == 2
    said = capsys.readouterr().err
    assert "weights: cannot read trained.safetensors as .safetensors" in said
    assert "Traceback" not in said


def test_places_that_cannot_be_read() -> None:
    with pytest.raises(LeakauditError, match=r"weights: expected FILE\.safetensors"):
        replace(SMALL, weights="model.pt")
    missing = replace(SMALL, weights="missing.safetensors")
    assert missing.pinned() == missing
    with pytest.raises(LeakauditError, match=r"cannot read missing\.safetensors: No such file"):
        recording.plan(missing)


def test_what_is_no_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.safetensors")
    (tmp_path / "folder.safetensors").mkdir()
    for place in tmp_path.iterdir():
        with pytest.raises(LeakauditError, match=r"weights: expected a file, got \w+\.safetens"):
            replace(SMALL, weights=str(place)).pinned()


def test_constants_of_a_strangers_trace_are_checked() -> None:
    trace, _ = la.record(RESNET)
    for name, value, says in (
        ("bn1.running_mean", torch.ones(3), r"shape \(64,\), got"),
        ("bn1.running_var", -torch.ones(64), "variances >= 0"),
        ("bn1.running_mean", torch.full((64,), 1e300, dtype=torch.float64), "finite numbers in"),
        ("bn1.other", torch.ones(3), "has no constant 'bn1.other'"),
    ):
        hostile = replace(trace, public={**trace.public, f"constants.{name}": value})
        with pytest.raises(LeakauditError, match=says):
            Task.build(hostile.task)


def test_a_resumed_sweep_notices_that_the_file_changed(file: Path, tmp_path: Path) -> None:
    plan = SweepPlan(replace(SMALL, weights=str(file)), attacks=(), seeds=(0,))
    options = run.SweepOptions(la.Executor())
    folder = tmp_path / "swept"
    first = run.sweep(plan, folder, options)
    again = run.sweep(plan, folder, options)
    assert (first.skipped, again.skipped) == (0, 1)
    saved(file, recording.plan(SMALL).task.module, seed=1)
    third = run.sweep(plan, folder, options)
    assert third.skipped == 0
    losses = []
    for swept in (first, third):
        (point,) = swept.complete_record().sweep.points
        assert not isinstance(point.trained, UnsetType)
        losses.append(point.trained["loss"].mean)
    assert losses[0] != losses[1]


def test_files_are_an_axis_of_a_sweep(file: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.safetensors"
    saved(other, recording.plan(SMALL).task.module, seed=2)
    plan = SweepPlan(SMALL, attacks=(), seeds=(0,), over={"weights": (str(file), str(other))})
    cells = list(StoredPlan(plan).keyed.values())
    digests = {cell.scenario.weights.partition("@sha256:")[2] for cell in cells}
    assert digests == {hashlib.sha256(path.read_bytes()).hexdigest() for path in (file, other)}
