"""Records with equal slopes look like one input, their mean, which no network received. And what is
certified is reported as it is.
"""

# JSON is looked up by keys here: a wrong key fails when the test runs.
# mypy: disable-error-code="arg-type, index"

from __future__ import annotations

import json
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import strange_batches
import torch
from torch import Generator, Tensor

import leakaudit as la
from leakaudit.capture.tap.guessing.guess import guess
from leakaudit.capture.tap.log.reading import read_logs
from leakaudit.capture.tap.log.writing import Log
from leakaudit.cli import main
from leakaudit.core.evidence import Origin
from leakaudit.core.reconstruction import Certificate
from leakaudit.inversion import inputs_shown
from leakaudit.inversion.exact import separation
from leakaudit.tasks.task import Task

D = torch.float64
SIDE = 6
REGRESSION = la.TaskSpec("logistic", shape=(1, SIDE, SIDE), classes=5, levels=255)
NETWORK = la.TaskSpec("mlp", {"hidden": 16}, shape=(1, SIDE, SIDE), classes=5, levels=255)


# --- the principle --------------------------------------------------------------------


def model(spec: la.TaskSpec, name: str, x: Tensor) -> tuple[Task, Tensor]:
    """A model that was drawn at random, or that makes some records look alike."""
    task = Task.build(spec, dtype=D)
    theta = task.init(Generator().manual_seed(3)).to(D)
    first = task.layout.slices[task.first_linear[0]]
    weight = theta[first].reshape(-1, SIDE * SIDE)
    a = torch.randn(len(weight), 3, generator=Generator().manual_seed(4), dtype=D)
    a -= a.mean(0)  # as slopes of a softmax
    others = torch.rand(3, SIDE, SIDE, generator=Generator().manual_seed(5), dtype=D)
    changed = {
        "random": weight,
        "trained": weight + a[:, :1] @ x[None],
        "zeros": 0 * weight,
        "of the input": a[:, :1] @ x[None],
        "of symmetric inputs": a @ (others + others.flip(2)).flatten(1),
        "symmetric": weight + weight.unflatten(1, (SIDE, SIDE)).flip(2).flatten(1),
        "blind to a pixel": weight * (torch.arange(SIDE * SIDE) != 7),
    }
    theta[first] = changed[name].flatten()
    return task, theta


@pytest.mark.parametrize("spec", [REGRESSION, NETWORK], ids=["regression", "network"])
@pytest.mark.parametrize(
    "name",
    [
        "random",
        "trained",
        "zeros",
        "of the input",
        "of symmetric inputs",
        "symmetric",
        "blind to a pixel",
    ],
)
def test_only_a_model_that_was_drawn_at_random_separates_records(
    spec: la.TaskSpec, name: str
) -> None:
    picture = torch.rand(SIDE, SIDE, generator=Generator().manual_seed(6), dtype=D)
    x = (picture + picture.flip(1)).flatten() / 2  # the mean of a picture and its mirror image
    task, theta = model(spec, name, x)
    row = torch.cat([x, x.new_ones(1)])[None]
    assert separation.separates(task, theta, row) == (name in ("random", "trained"))
    # Noise in what is known of a model does not make it look random.
    noisy = theta + 1e-3 * torch.randn(len(theta), generator=Generator().manual_seed(7), dtype=D)
    if name not in ("random", "trained", "symmetric", "blind to a pixel"):
        assert not separation.separates(task, noisy, row, error=1e-3)


def test_an_unknown_model_separates_records_by_its_hidden_neurons_only() -> None:
    row = torch.ones(1, SIDE * SIDE + 1, dtype=D)
    for spec in (REGRESSION, NETWORK):
        task = Task.build(spec, dtype=D)
        assert separation.separates(task, None, row) == (spec is NETWORK)


def test_slopes_of_two_classes_are_multiples_of_each_other() -> None:
    task = Task.build(la.TaskSpec("logistic", shape=(8,), classes=2), dtype=D)
    row = torch.ones(1, 9, dtype=D)
    assert not separation.separates(task, task.init(Generator().manual_seed(0)).to(D), row)


@pytest.mark.parametrize("zeros", [False, True])
def test_the_rank_verifies_no_declaration_at_models_that_do_not_separate(zeros: bool) -> None:
    task = Task.build(REGRESSION, dtype=D)
    theta = task.init(Generator().manual_seed(1)).to(D) * (not zeros)
    x = torch.rand(1, 1, SIDE, SIDE, generator=Generator().manual_seed(2), dtype=D)
    leak = plain(task, theta, task.gradient(theta, x, torch.tensor([2])), 1)
    shown = inputs_shown.shown(leak, task)
    assert shown is not None
    assert shown.evidence.origin is (Origin.DECLARED if zeros else Origin.VERIFIED)


def plain(task: Task, theta: Tensor, value: Tensor, declared: int | None) -> la.GradientLeak:
    """One gradient at a known model."""
    return la.GradientLeak(
        node=0,
        rounds=torch.tensor([1]),
        combination=torch.ones(1, 1, dtype=D),
        value=value[None],
        std=torch.full((1,), 1e-9, dtype=D),
        columns=(0, task.layout.size),
        theta=theta[None],
        batch=declared,
        records=declared,
    )


# --- attacks --------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [0, 1])
def test_a_mean_of_mirror_images_is_not_exact(seed: int) -> None:
    count = strange_batches.drawn("mirror pairs at a softmax regression", seed)
    assert (count.records, count.exact) == (6, 0)


def test_one_record_at_a_random_start_is_exact() -> None:
    count = strange_batches.drawn("a softmax regression", 0)
    assert (count.records, count.exact, count.false) == (3, 3, 0)


def table(declared: int | None) -> la.Reconstruction:
    """A row of a standardised table behind one gradient, declared as a picture of 2 x 3."""
    spec = la.TaskSpec("logistic", shape=(1, 2, 3), classes=4)
    task = Task.build(spec, dtype=D)
    theta = task.init(Generator().manual_seed(1)).to(D)
    x = torch.tensor([[[[-1.5, 0.2, 3.0], [0.7, -0.4, 1.0]]]], dtype=D)
    value = task.gradient(theta, x, torch.tensor([2]))
    leak = plain(task, theta, value, declared)
    found = la.attacks.Analytic()(leak, task, Generator().manual_seed(0))
    if declared is not None:
        assert found.interval is not None
        assert bool(((found.x - x).abs() <= found.interval).all())
    return found


def test_an_interval_outside_the_range_of_pixels_is_kept_and_contradicts_pictures() -> None:
    found = table(1)
    assert found.certificate is Certificate.INTERVAL
    shape = next(one for one in found.evidence if one.subject == "shape")
    assert shape.origin is Origin.CONTRADICTED
    assert "3 of 6 values lie outside [0, 1]" in shape.detail


def test_an_estimate_is_shown_within_the_range_of_pixels() -> None:
    found = table(None)
    assert found.certificate is Certificate.APPROXIMATE
    assert 0 <= float(found.x.min()) <= float(found.x.max()) <= 1


# --- the tap --------------------------------------------------------------------------


def drafted(
    folder: Path, w: Tensor, data: Sequence[tuple[Tensor, Tensor]], rounds: int = 6
) -> dict[str, Any]:
    """What the tap infers of a softmax regression by DistributedDataParallel."""
    inputs = data[0][0].shape[1]
    task = Task.build(la.TaskSpec("logistic", shape=(inputs,), classes=5))
    logs = [Log(folder, k, world=len(data)) for k in range(len(data))]
    about: dict[str, Any] = {"lane": "model 0", "of": 2, "parameters": [0, 1], "last": True}
    about["sizes"] = [part.stop - part.start for part in task.layout.slices.values()]
    for t in range(rounds):
        logs[0].write("model", w, at=t, **about)
        sent = []
        for log, (x, y) in zip(logs, data, strict=True):
            g = task.gradients(w[None], x[None], y[None])[0]
            log.write("ddp", g, at=t, **about)
            sent.append(g)
        w = w - 0.1 * torch.stack(sent).mean(0)
    for log in logs:
        log.close()
    return tomllib.loads(guess(read_logs(folder)).toml)


def start(inputs: int) -> Tensor:
    return Task.build(la.TaskSpec("logistic", shape=(inputs,), classes=5)).init(
        Generator().manual_seed(0)
    )


def test_the_tap_takes_no_mean_for_a_record(tmp_path: Path) -> None:
    """Equal slopes in all rounds: a picture and its mirror image, from zeros."""
    random = Generator().manual_seed(0)
    halves = torch.randint(64, (2, 1, SIDE, SIDE), generator=random) * 4 / 255
    data = []
    for rank, half in enumerate(halves):
        data.append((torch.cat([half, half.flip(2)]).flatten(1), torch.tensor([rank, rank])))
    w = start(SIDE * SIDE)
    params = drafted(tmp_path / "pairs", 0 * w, data)["params"]
    assert not {"samples", "batch"} & params.keys()
    one = [(x[:1], y[:1]) for x, y in data]
    assert drafted(tmp_path / "one", w, one)["params"]["samples"] == 1


def test_the_tap_takes_no_mean_of_a_class_for_a_record(tmp_path: Path) -> None:
    """One class per rank, 16 records each: at zeros, all records of a class have equal slopes."""
    random = Generator().manual_seed(0)
    data = [(torch.randn(16, 20, generator=random), torch.full((16,), rank)) for rank in range(2)]
    params = drafted(tmp_path, 0 * start(20), data, rounds=1)["params"]
    assert not {"samples", "batch"} & params.keys()


def test_the_tap_takes_no_table_for_pictures(tmp_path: Path) -> None:
    random = Generator().manual_seed(0)
    data = [(torch.randn(1, 12, generator=random), torch.tensor([rank])) for rank in range(2)]
    assert drafted(tmp_path / "table", start(12), data)["model"]["shape"] == [12]
    data = [(torch.randint(256, (1, 36), generator=random) / 255, y) for _, y in data]
    assert drafted(tmp_path / "pixels", start(36), data)["model"]["shape"] == [1, 6, 6]


# --- reports --------------------------------------------------------------------------


def test_a_truth_that_refutes_every_certificate_leaves_nothing_to_conclude(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The certificates are made wrong here, by the fault that is mended."""
    monkeypatch.setattr(separation, "separated", lambda leak, task, rows: True)
    monkeypatch.chdir(tmp_path)
    case = strange_batches.FAMILIES["mirror pairs at a softmax regression"](
        np.random.default_rng(0)
    )
    strange_batches.recorded(case, 0, Path("trace.pt"))
    assert main(["attack", "trace.pt", "-o", "out", "-q"]) == 3
    assert "none of them equals its original" in capsys.readouterr().out
    shown = {}
    for name in ("junit", "latex", "sarif"):
        assert main(["report", "out", "-f", name]) == 0
        shown[name] = capsys.readouterr().out
    error = ElementTree.fromstring(shown["junit"]).find("testsuite/testcase/error")
    assert error is not None
    assert "nothing can be concluded" in error.get("message", "")
    assert "nothing can be concluded" in shown["latex"]
    run = json.loads(shown["sarif"])["runs"][0]
    assert run["invocations"][0]["executionSuccessful"] is False
    assert main(["report", "out", "--rescore", "--truth", "trace.truth.pt", "-q"]) == 3
