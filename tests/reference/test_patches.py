"""What a convolution's gradient shows of its inputs, against the inputs themselves, and the batches that GradInversion makes of it."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from leakaudit._util import assignment
from leakaudit.attacks.gradinversion import PART, GradInversion, _of_layer
from leakaudit.core import registry
from leakaudit.core.leak import GradientLeak
from leakaudit.core.reconstruction import Certificate
from leakaudit.core.trace import TaskSpec
from leakaudit.inversion import attacking
from leakaudit.inversion.exact import convolution_patches
from leakaudit.inversion.search import objectives, priors
from leakaudit.tasks import batch_norm, data
from leakaudit.tasks.task import Task

D = torch.float64


def _network(shape: tuple[int, ...], outputs: int, act: type[nn.Module], *widths: int) -> nn.Module:
    layers: list[nn.Module] = []
    for k, (before, after) in enumerate(pairwise((shape[0], *widths))):
        layers += [
            nn.Conv2d(before, after, 3, 2 if k and before < after else 1, 1, bias=False),
            nn.BatchNorm2d(after),
            act(),
        ]
    return nn.Sequential(
        *layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(widths[-1], outputs)
    )


def relu(shape: tuple[int, ...], outputs: int) -> nn.Module:
    return _network(shape, outputs, nn.ReLU, 16, 24, 80)


def longer(shape: tuple[int, ...], outputs: int) -> nn.Module:
    return _network(shape, outputs, nn.ReLU, 16, 24, 80, 80)


def deeper(shape: tuple[int, ...], outputs: int) -> nn.Module:
    return _network(shape, outputs, nn.ReLU, 16, 24, 40, 96)


def tanh(shape: tuple[int, ...], outputs: int) -> nn.Module:
    return _network(shape, outputs, nn.Tanh, 16, 24, 80)


def held(
    side: int = 13, batch: int = 3, act: str = "relu", bn: str = "train"
) -> tuple[Task, Tensor, Tensor, Tensor, Tensor]:
    """Task, model, faces, labels and gradient."""
    spec = TaskSpec(
        f"{__name__}:{act}",
        {"bn": bn},
        shape=(1, side, side),
        classes=6,
        mean=(0.5,),
        std=(0.5,),
        levels=255,
    )
    task = Task.build(spec, dtype=D, trusted=True)
    theta, x = (
        task.init(torch.Generator().manual_seed(1)),
        data.load("faces").x[:batch, :, 6 : 6 + side, 6 : 6 + side].double(),
    )
    y = torch.tensor([4, 0, 2, 2, 5])[:batch]
    return task, theta, x, y, task.gradient(theta, x, y)


def told(task: Task, theta: Tensor, x: Tensor) -> priors.Statistics:
    return {
        n: (m.detach(), v.detach())
        for n, (m, v) in batch_norm.batch_statistics(task, theta, x).items()
    }


def as_leak(task: Task, theta: Tensor, gradient: Tensor, batch: int) -> GradientLeak:
    one, whole = torch.ones(1, 1, dtype=D), (0, task.layout.size)
    return GradientLeak(
        0,
        torch.zeros(1),
        one,
        gradient[None],
        torch.zeros(1, dtype=D),
        whole,
        theta=theta[None],
        batch=batch,
    )


@pytest.mark.parametrize(
    ("batch", "wire", "error"),
    [(2, D, 1e-12), (3, D, 1e-12), (3, torch.float32, 1e-6), (5, D, 1e-12)],
)
def test_the_inputs_of_a_layer_come_from_its_gradient_alone(
    batch: int, wire: torch.dtype, error: float
) -> None:
    task, theta, x, _, gradient = held(batch=batch)
    found = convolution_patches.read(
        task, theta, -3 * gradient.to(wire), slice(0, task.layout.size), batch
    )
    assert found is not None
    assert (found.layer.name, found.before) == ("6", ())
    true = batch_norm.inputs(task, theta, x, ["6"])["6"]
    true = (true - true.mean(0)) / (true - true.mean(0)).norm()
    pairs = assignment.match(found.x, true)
    assert float((found.x[pairs.found] - true[pairs.true]).norm()) < error
    assert float(found.misfit({"6": true[pairs.true][pairs.found.argsort()]})) < error
    assert float(found.layer.outside(batch_norm.inputs(task, theta, x, ["6"])["6"])) < error
    other = batch_norm.inputs(
        task, theta, torch.rand(x.shape, generator=torch.Generator().manual_seed(0), dtype=D), ["6"]
    )["6"]
    assert float(found.layer.outside(other)) > 0.1
    assert float(found.misfit({"6": other})) > 0.3


def test_what_does_not_show_its_inputs_is_left_alone() -> None:
    task, theta, x, y, gradient = held()
    everything = slice(0, task.layout.size)
    noise = torch.randn(gradient.shape, generator=torch.Generator().manual_seed(0), dtype=D)
    assert (
        convolution_patches.read(
            task, theta, gradient + 1e-2 * gradient.abs().mean() * noise, everything, 3
        )
        is None
    )
    assert convolution_patches.read(task, theta, gradient, everything, 4) is None, (
        "the batch is another one"
    )
    assert (
        convolution_patches.read(task, theta, task.gradient(theta, x[:1], y[:1]), everything, 1)
        is None
    ), "one input has no differences"
    last = slice(task.layout.slices["7.weight"].start, task.layout.size)
    assert convolution_patches.read(task, theta, gradient[last], last, 3) is None, (
        "the layer is not among the columns"
    )
    others: list[dict[str, Any]] = [{"act": "tanh"}, {"bn": "eval"}, {"side": 12}]
    for changes in others:
        task, theta, _, _, gradient = held(**changes)
        assert (
            convolution_patches.read(task, theta, gradient, slice(0, task.layout.size), 3) is None
        ), changes


@pytest.mark.parametrize(("wire", "error"), [(D, 1e-12), (torch.float32, 1e-6)])
def test_a_stride_over_an_even_side_is_settled_by_the_layer_behind_it(
    wire: torch.dtype, error: float
) -> None:
    task, theta, x, _, gradient = held(side=12, act="longer")
    everything = slice(0, task.layout.size)
    (first, second) = convolution_patches._layers(task, theta, gradient, everything, 3)
    basis = convolution_patches._basis(first, 3)
    assert basis is not None
    assert ((first.name, second.name), basis.shape[1]) == (("6", "9"), 2 * 9), (
        "two differences, moved to nine places"
    )
    found = convolution_patches.read(task, theta, gradient.to(wire), everything, 3)
    assert found is not None
    assert found.layer.name == "6"
    true = batch_norm.inputs(task, theta, x, ["6"])["6"]
    true = (true - true.mean(0)) / (true - true.mean(0)).norm()
    pairs = assignment.match(found.x, true)
    assert float((found.x[pairs.found] - true[pairs.true]).norm()) < error
    other = torch.rand(3, 80, 3, 3, generator=torch.Generator().manual_seed(0), dtype=D)
    weight = task.layout.split(theta)["6.weight"]
    assert convolution_patches.lifted(first, basis, weight, other - other.amin(0)) is None


def test_a_forward_pass_ends_at_the_layer_asked_for_and_statistics_that_are_missing_do_not_count() -> (
    None
):
    task, theta, x, _, _ = held()
    before = [len(layer._forward_pre_hooks) for layer in task.module.modules()]
    assert list(batch_norm.inputs(task, theta, x, ["7", "3", "1"], last="3")) == ["1", "3"]
    assert [len(layer._forward_pre_hooks) for layer in task.module.modules()] == before
    known = told(task, theta, x)
    own = told(task, theta, x.flip(3) ** 2)
    both = [float(priors.apart({n: own[n]}, known)) for n in ("1", "4")]
    assert float(priors.apart({n: own[n] for n in ("1", "4")}, known)) == pytest.approx(
        (10 * both[0] + both[1]) / 11, rel=1e-12
    )


def test_auto_leaves_gradinversion_out_where_it_has_no_statistics(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    task, theta, x, _, gradient = held()
    leak, quick = as_leak(task, theta, gradient, 3), GradInversion(steps=2, seeds=1)
    assert any(name == "gradinversion" for name, _ in attacking.in_order())
    for chosen, runs in ((quick, False), (replace(quick, statistics=told(task, theta, x)), True)):
        monkeypatch.setattr(
            attacking, "in_order", lambda chosen=chosen: iter([("gradinversion", chosen)])
        )
        monkeypatch.setattr(registry, "configure", lambda kind, settings, chosen=chosen: chosen)
        found = attacking.attack_one(leak, task, "auto", torch.Generator().manual_seed(0))
        assert (found.attack == "gradinversion") is runs
        assert ("gradinversion: no batch statistics are known" in found.note) is not runs
    monkeypatch.undo()
    assert (
        attacking.attack_one(
            leak, task, "gradinversion", torch.Generator(), steps=2, seeds=1
        ).attack
        == "gradinversion"
    )


def mean_psnr(found: Tensor, x: Tensor) -> float:
    """Mean over the images, each with its partner."""
    pairs = assignment.match(found, x)
    return float(
        (
            -10 * (found[pairs.found].double() - x[pairs.true]).square().flatten(1).mean(1).log10()
        ).mean()
    )


def test_a_layer_that_fits_makes_images_approximate_where_statistics_and_gradient_agree() -> None:
    task, theta, x, _, gradient = held()
    leak, known, other = (
        as_leak(task, theta, gradient, 3),
        told(task, theta, x),
        data.load("faces").x[40:43, :, 6:19, 6:19].double(),
    )
    attack = GradInversion(steps=60, seeds=1, statistics=known)
    found = attack(leak, task, torch.Generator().manual_seed(0))
    assert found.certificate is Certificate.APPROXIMATE
    assert mean_psnr(found.x, x) > 40
    assert found.y is not None
    kept = float((task.gradient(theta, found.x, found.y) - gradient).norm() / gradient.norm())
    assert objectives.FIT < kept < PART
    assert f"(whole gradient: {kept:.2g})" in found.note
    assert found.residual < objectives.FIT
    for wrong in (
        replace(attack, statistics=None),
        replace(attack, statistics=told(task, theta, other), steps=200),
    ):
        found = wrong(leak, task, torch.Generator().manual_seed(0))
        assert found.certificate is Certificate.FAILED
        assert mean_psnr(found.x, x) < 25


def test_what_a_layer_and_the_statistics_each_tell_of_images() -> None:
    task, theta, x, _, gradient = held()
    shown = convolution_patches.read(task, theta, gradient, slice(0, task.layout.size), 3)
    assert shown is not None
    known, other = told(task, theta, x), data.load("faces").x[40:43, :, 6:19, 6:19].double()
    left = partial(_of_layer, task, theta, shown, known)
    assert left(x) < 1e-12
    assert left(x[[2, 0, 1]]) < 1e-12, "the order does not count"
    assert left(other) > 1
    assert left(x * torch.nan) == math.inf
    faint = 0.8 * x + 0.1
    assert _of_layer(task, theta, shown, None, x) == math.inf
    assert (
        shown.residual(batch_norm.inputs(task, theta, faint, [shown.layer.name])[shown.layer.name])
        < left(faint) / 5
    )


def test_images_that_fit_a_layer_and_not_the_gradient_have_failed() -> None:
    """Four photographs at 20 dB: in colour the inputs of the fourth layer leave much open."""
    spec = TaskSpec(
        f"{__name__}:deeper",
        {"bn": "train"},
        shape=(3, 25, 25),
        classes=6,
        mean=(0.5,) * 3,
        std=(0.5,) * 3,
        levels=255,
    )
    task = Task.build(spec, dtype=D, trusted=True)
    theta, x = (
        task.init(torch.Generator().manual_seed(1)),
        data.load("photos").x[[56, 73, 90, 107], :, 4:29, 4:29].double(),
    )
    gradient = task.gradient(theta, x, torch.tensor([4, 0, 2, 2]))
    attack = GradInversion(steps=300, seeds=1, statistics=told(task, theta, x))
    found = attack(as_leak(task, theta, gradient, 4), task, torch.Generator().manual_seed(0))
    shown = convolution_patches.read(task, theta, gradient, slice(0, task.layout.size), 4)
    assert shown is not None
    assert _of_layer(task, theta, shown, attack.statistics, found.x) < objectives.FIT
    assert mean_psnr(found.x, x) < 22
    assert found.certificate is Certificate.FAILED
    assert found.residual > PART


def test_three_faces_come_back_bit_for_bit_with_their_labels() -> None:
    task, theta, x, y, gradient = held()
    attack = GradInversion(steps=600, seeds=1, statistics=told(task, theta, x))
    found = attack(as_leak(task, theta, gradient, 3), task, torch.Generator().manual_seed(0))
    assert "the inputs of layer 6" in found.note
    assert found.y is not None
    pairs = assignment.match(found.x, x)
    assert found.y[pairs.found].tolist() == y.tolist()
    assert float((found.x[pairs.found] - x).abs().max()) < 1e-6
    assert found.certificate is Certificate.APPROXIMATE
    assert found.residual < 1e-5


@pytest.mark.slow
def test_it_is_ahead_of_inverting_gradients_at_the_same_evaluations_and_the_best_weight_of_each() -> (
    None
):
    task, theta, x, _, gradient = held(batch=4)
    leak, known = as_leak(task, theta, gradient, 4), told(task, theta, x)
    ours, theirs = [], []
    for tv in (0.03, 0.3):
        attack = GradInversion(steps=300, seeds=1, tv=tv, statistics=known)
        ours.append(mean_psnr(attack(leak, task, torch.Generator().manual_seed(0)).x, x))
        other = attacking.attack_one(
            leak, task, "inverting", torch.Generator().manual_seed(0), steps=300, tv=tv
        )
        theirs.append(mean_psnr(other.x, x))
    assert max(ours) > max(theirs) + 10, (ours, theirs)
