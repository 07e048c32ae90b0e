"""R-GAP: the algebra of each layer against autograd and numpy, and how strong the attack is."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from leakaudit.attacks import rgap
from leakaudit.attacks.rgap import _on_grid
from leakaudit.core import registry
from leakaudit.core.errors import AttackError
from leakaudit.core.leak import GradientLeak
from leakaudit.core.reconstruction import Certificate, Reconstruction
from leakaudit.core.trace import TaskSpec
from leakaudit.tasks import data, layer_chain
from leakaudit.tasks.layer_chain import Layer
from leakaudit.tasks.task import Task

D = torch.float64
HERE = __name__


def leaky(shape: tuple[int, ...], outputs: int) -> nn.Module:
    """Two convolutions with LeakyReLU, the second one with an odd kernel, no bias and a dilation."""
    first, second = (
        nn.Conv2d(shape[0], 12, 3, 1, 1),
        nn.Conv2d(12, 12, (3, 2), 1, (2, 1), dilation=2, bias=False),
    )
    act = nn.LeakyReLU(0.2)  # one module, used twice
    return nn.Sequential(
        first, act, nn.Sequential(second, act), nn.Flatten(), nn.Linear(12 * shape[1] ** 2, outputs)
    )


def strange(kind: str) -> Any:
    """Build a network that cannot be taken apart, for one reason."""

    def build(shape: tuple[int, ...], outputs: int) -> nn.Module:
        middle: dict[str, list[nn.Module]] = {
            "pool": [nn.Conv2d(shape[0], 4, 3, 1, 1), nn.MaxPool2d(2), nn.ReLU()],
            "groups": [nn.Conv2d(shape[0], 4, 1), nn.Conv2d(4, 4, 3, 2, 1, groups=2), nn.ReLU()],
            "twice": [nn.Conv2d(shape[0], 4, 3, 2, 1), nn.Tanh(), nn.ReLU()],
        }
        linear = nn.Linear(4 * (shape[1] // 2) ** 2, outputs)
        return nn.Sequential(*middle[kind], nn.Flatten(), linear)

    return build


pool, groups, twice = strange("pool"), strange("groups"), strange("twice")


def pictures(side: int, channels: int = 1) -> Tensor:
    """Middles of photographs."""
    middle = slice(16 - side // 2, 16 + side // 2)
    return (data.load("photos").x[3::17, :channels, middle, middle].double() * 255).round() / 255


def case(
    model: str, args: dict[str, Any], x: Tensor, seed: int = 0, loss: str = "cross_entropy"
) -> tuple[Task, GradientLeak, Tensor]:
    """One gradient of one picture, and its label or targets."""
    classes = {"cross_entropy": 5, "binary": 2, "squared": 1}[loss]
    spec = TaskSpec(
        model,
        args,
        loss=loss,
        shape=tuple(x.shape[1:]),
        classes=classes,
        mean=(0.5,),
        std=(0.5,),
        levels=255,
    )
    task = Task.build(
        replace(spec, mean=(0.5,) * x.shape[1], std=(0.5,) * x.shape[1]), dtype=D, trusted=True
    )
    y = torch.tensor([0.7]) if loss == "squared" else torch.tensor([1])
    theta = task.init(torch.Generator().manual_seed(seed))
    value = task.gradient(theta, x, y)[None]
    one, zero = torch.ones(1, 1, dtype=D), torch.zeros(1, dtype=D)
    return (
        task,
        GradientLeak(
            0, torch.zeros(1), one, value, zero, (0, task.layout.size), theta=theta[None], batch=1
        ),
        y,
    )


def attacked(task: Task, leak: GradientLeak, **settings: Any) -> Reconstruction:
    found: Reconstruction = registry.configure(registry.get("attacks", "rgap"), settings)(
        leak, task, torch.Generator().manual_seed(0)
    )
    return found


def psnr(found: Tensor, x: Tensor) -> float:
    return -10 * math.log10(float((found - x).square().mean()) + 1e-30)


# --- algebra --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kernel", "stride", "padding", "dilation"),
    [(3, 1, 1, 1), (5, 2, 2, 1), ((3, 2), (1, 2), (0, 1), 1), (3, 2, 1, 2), (1, 1, 0, 1)],
)
def test_a_convolution_s_gradient_is_its_matrix_times_the_input(
    kernel: Any, stride: Any, padding: Any, dilation: Any
) -> None:
    g = torch.Generator().manual_seed(0)
    module = nn.Conv2d(3, 4, kernel, stride, padding, dilation).double()
    h = torch.randn(1, 3, 9, 8, generator=g, dtype=D, requires_grad=True)
    layer = Layer("here", module, dict(module.named_parameters()), (3, 9, 8))
    out = module(h)
    d = torch.randn(out.shape[1:], generator=g, dtype=D)
    weight, slope = torch.autograd.grad(out, [module.weight, h], d[None])
    found = (
        (rgap.matrix(layer, d) @ h.detach()[0].flatten(1).T)
        .reshape(4, *module.kernel_size, 3)
        .permute(0, 3, 1, 2)
    )
    assert torch.allclose(found, weight, rtol=1e-12, atol=1e-12)
    assert torch.allclose(layer.back(d), slope[0], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("model", "args"),
    [("lenet", {"act": a}) for a in ("sigmoid", "tanh", "relu")] + [(f"{HERE}:leaky", {})],
)
def test_relations_hold_at_the_true_activations_alone(model: str, args: dict[str, Any]) -> None:
    x = pictures(8)[:1]
    task, leak, _ = case(model, args, x)
    assert leak.theta is not None
    layers = layer_chain.layers(task, leak.theta[0])
    h, held = rgap.descend(layers, task.layout.split(leak.value[0]), 1e-12)
    assert h is not None
    assert len(held) == sum(isinstance(m.module, nn.Conv2d) for m in layers)
    for relations in held:
        true = layer_chain.run(layers[: relations.at], (x - 0.5) / 0.5)
        assert float(relations.misfit(true)) < 1e-16
        other = layer_chain.run(layers[: relations.at], (pictures(8)[1:2] - 0.5) / 0.5)
        assert float(relations.misfit(other)) > 1e-3
        solved = relations.solve()
        assert solved is not None
        assert torch.allclose(solved, true[0], atol=1e-8)


def test_the_rank_in_the_note_is_that_of_the_equations() -> None:
    x = pictures(12)[:1]
    task, leak, _ = case("convnet", {"width": 4}, x)
    assert leak.theta is not None
    layers = layer_chain.layers(task, leak.theta[0])
    parts = task.layout.split(leak.value[0])
    h3 = layer_chain.run(layers[:-1], (x - 0.5) / 0.5)[0].reshape(8, 3, 3)
    d3 = (task.layout.split(leak.theta[0])["fc.weight"].T @ parts["fc.bias"]).reshape(8, 3, 3) * (
        h3 > 0
    )
    rank = int(np.linalg.matrix_rank(rgap.matrix(layers[4], d3).numpy()))
    assert rank < 36  # pixels of the third convolution's input
    found = attacked(task, leak, steps=1, restarts=1)
    assert (
        f"conv3: rank {8 * rank} of {8 * 36}, {int((h3 > 0).sum())} outputs; L-BFGS" in found.note
    )
    assert found.certificate is not Certificate.EXACT


# --- the attack -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "args"),
    [("lenet", {"act": "sigmoid"}), ("lenet", {"act": "relu"}), (f"{HERE}:leaky", {}), ("mlp", {})],
)
def test_layers_with_enough_equations_give_the_picture_bit_by_bit(
    model: str, args: dict[str, Any]
) -> None:
    for k in range(3):
        x = pictures(8)[k : k + 1]
        task, leak, y = case(model, args, x, k)
        for sent in (leak, replace(leak, value=leak.value.float())):
            found = attacked(task, sent)
            assert torch.equal(found.x, x)
            assert found.certificate is Certificate.EXACT
            assert found.y is not None
            assert torch.equal(found.y, y)


@pytest.mark.parametrize(
    ("loss", "l2"), [("binary", 0.0), ("squared", 0.0), ("cross_entropy", 0.1)]
)
def test_any_loss_and_weight_decay(loss: str, l2: float) -> None:
    x = pictures(8)[2:3]
    task, leak, y = case("mlp", {"hidden": "20,10", "l2": l2}, x, loss=loss)
    found = attacked(task, leak)
    assert torch.equal(found.x, x)
    assert found.certificate is Certificate.EXACT
    assert found.y is not None
    assert torch.allclose(found.y.double().flatten(), y.double(), atol=1e-8)


@pytest.mark.slow
def test_where_equations_are_missing_the_layers_below_fill_them_in() -> None:
    better = 0
    for k in range(10):
        x = pictures(16, 3)[k : k + 1]
        task, leak, y = case("convnet", {}, x, k)
        found = attacked(task, leak)
        assert found.certificate is not Certificate.EXACT
        assert found.y is not None
        assert torch.equal(found.y, y)
        better += psnr(found.x, x) > 25
    assert better >= 8


def test_a_dead_layer_is_no_error() -> None:
    x = pictures(8)[:1]
    task, leak, y = case("convnet", {"width": 4}, x)
    assert leak.theta is not None
    theta = leak.theta.clone()
    theta[0, task.layout.slices["conv3.bias"]] = -100
    value = task.gradient(theta[0], x, y)[None]
    found = attacked(task, replace(leak, theta=theta, value=value), steps=1, restarts=1)
    assert bool(found.x.isfinite().all())
    assert found.certificate is not Certificate.EXACT


def test_what_cannot_be_taken_apart_is_said() -> None:
    x = pictures(8)[:1]
    task, leak, _ = case("lenet", {}, x)
    two = leak.value.expand(2, -1).clone()
    difference = replace(
        leak,
        rounds=torch.zeros(2),
        combination=torch.tensor([[1.0, -1.0]], dtype=D),
        value=two[:1],
        theta=torch.zeros(2, task.layout.size),
    )
    for wrong, words in (
        (difference, "use differential"),
        (replace(leak, batch=2), "recovers one sample"),
        (replace(leak, theta=None), "requires the models"),
        (
            replace(leak, value=leak.value[:, 3:], columns=(3, task.layout.size)),
            "gradients of all layers",
        ),
        (replace(leak, value=leak.value.abs()), "do not show a single label"),
    ):
        with pytest.raises(AttackError, match=words):
            attacked(task, wrong)
    for model, words in (
        ("pool", "MaxPool2d"),
        ("groups", "groups"),
        ("twice", "activation follows"),
    ):
        task, leak, _ = case(f"{HERE}:{model}", {}, x)
        with pytest.raises(AttackError, match=words):
            attacked(task, leak)
    task, leak, _ = case("resnet10", {"bn": "eval"}, pictures(16, 3)[:1])
    with pytest.raises(AttackError, match="not a plain chain of layers"):
        attacked(task, leak)


@pytest.mark.parametrize(("away", "snapped"), [(0.1, True), (0.15, False)])
def test_only_images_near_the_grid_are_snapped(away: float, snapped: bool) -> None:
    """All pixels are 100 levels and `away` of one; the limit of the root mean square is .12."""
    task = Task.build(TaskSpec("mlp", shape=(1, 4, 4), levels=255), dtype=D)
    x = torch.full((1, 1, 4, 4), (100 + away) / 255, dtype=D)
    found, _ = _on_grid(task, x, lambda _: 0.0)
    wanted = torch.full_like(x, 100 / 255) if snapped else x
    torch.testing.assert_close(found, wanted)
