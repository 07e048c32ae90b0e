"""Closed formulas of gradients and of their slopes against autograd in float64, and which networks they are for."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Generator, Tensor, nn

from leakaudit.core.errors import LeakauditError
from leakaudit.core.trace import Layout, TaskSpec
from leakaudit.tasks.chain_gradients import Formulas, gradients
from leakaudit.tasks.smoothed_relu import Rounding, SmoothedReLU
from leakaudit.tasks.task import Task

D = torch.float64
IMAGE = (3, 12, 9)


def made(*modules: nn.Module) -> nn.Module:
    return nn.Sequential(OrderedDict((f"m{k}", m) for k, m in enumerate(modules)))


def layout(module: nn.Module) -> Layout:
    return Layout(
        tuple(n for n, _ in module.named_parameters()),
        tuple(tuple(p.shape) for p in module.parameters()),
    )


def dilated() -> nn.Module:
    """Every second pixel of a kernel of 3x2, different strides and pads a side, no bias, an activation after the flattening."""
    first = nn.Conv2d(3, 4, (3, 2), stride=(2, 1), padding=(1, 2), dilation=(2, 1), bias=False)
    return made(
        first,
        nn.Tanh(),
        nn.Conv2d(4, 5, 3, padding=1),
        nn.Flatten(),
        nn.Sigmoid(),
        nn.Linear(300, 6),
        nn.Linear(6, 4, bias=False),
    )


def agree(task: Task, x: Tensor, y: Tensor) -> None:
    """Gradients and the slopes of a function of them, by `again` and by two passes of autograd."""
    g = Generator().manual_seed(3)
    thetas = torch.stack([task.init(g) for _ in x])
    r = torch.randn(thetas.shape, generator=g, dtype=D)
    wanted = (
        [x.requires_grad_(), y.requires_grad_()] if y.is_floating_point() else [x.requires_grad_()]
    )
    together = task.again(thetas, x, y)
    apart = torch.stack(
        [task.gradient(*one, create_graph=True) for one in zip(thetas, x, y, strict=True)]
    )
    torch.testing.assert_close(together, apart, rtol=1e-10, atol=1e-13)
    slopes = [
        torch.autograd.grad((found * r).sum() + found.square().sum(), wanted)
        for found in (together, apart)
    ]
    for mine, theirs in zip(*slopes, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("soft", [True, False])
@pytest.mark.parametrize("act", ["relu", "sigmoid", "tanh"])
@pytest.mark.parametrize(
    ("model", "args"), [("lenet", {}), ("convnet", {"width": 3}), ("mlp", {"hidden": "7,5"})]
)
def test_formulas_give_what_two_passes_of_autograd_give(
    model: str, args: dict[str, Any], act: str, soft: bool
) -> None:
    g = Generator().manual_seed(0)
    task = Task.build(
        TaskSpec(
            model,
            {**args, "act": act},
            shape=IMAGE,
            classes=4,
            mean=(0.5, 0.4, 0.3),
            std=(0.2, 0.3, 0.4),
        ),
        dtype=D,
    )
    assert task.chain is not None
    x = torch.rand(3, 2, *IMAGE, generator=g, dtype=D)
    agree(
        task,
        x,
        torch.rand(3, 2, 4, generator=g, dtype=D)
        if soft
        else torch.randint(4, (3, 2), generator=g),
    )


@pytest.mark.parametrize(("loss", "outputs"), [("binary", 2), ("squared", 1), ("squared", 3)])
def test_every_loss_and_the_penalty_of_a_model(loss: Any, outputs: int) -> None:
    g = Generator().manual_seed(1)
    spec = TaskSpec(
        "mlp", {"hidden": "6", "act": "tanh", "l2": 0.3}, loss=loss, shape=(5,), classes=outputs
    )
    y = (
        torch.rand(4, 2, generator=g, dtype=D)
        if loss == "binary" or outputs == 1
        else torch.randn(4, 2, outputs, generator=g, dtype=D)
    )
    agree(Task.build(spec, dtype=D), torch.randn(4, 2, 5, generator=g, dtype=D), y)


@pytest.mark.parametrize(
    ("model", "args"),
    [("lenet", {"act": "relu"}), ("convnet", {"width": 3}), ("mlp", {"hidden": "7,5"})],
)
def test_rounded_networks_have_the_same_two_ways_and_end_at_the_network_itself(
    model: str, args: dict[str, Any]
) -> None:
    g = Generator().manual_seed(4)
    sharp = Task.build(TaskSpec(model, args, shape=IMAGE, classes=4), dtype=D)
    rounding = Rounding(0.8)
    task = sharp.rounded(rounding)
    assert task.chain is not None
    x, y = torch.rand(3, 2, *IMAGE, generator=g, dtype=D), torch.randint(4, (3, 2), generator=g)
    agree(task, x, y)
    thetas = torch.stack([sharp.init(g) for _ in x])
    apart = list[float]()
    for done in (0, 1, 4):
        rounding.at(done)
        apart.append(float((task.again(thetas, x, y) - sharp.again(thetas, x, y)).detach().norm()))
    assert apart[0] > 10 * apart[1] > 1e3 * apart[2]


def test_a_rounded_unit_is_squareplus_of_its_own_width() -> None:
    z = torch.randn(2, 3, 5, dtype=D, generator=Generator().manual_seed(5))
    unit = SmoothedReLU(Rounding(0.3))
    values, first, second = unit.bends(z)
    for k in range(2):
        one = z[k].clone().requires_grad_()
        e = 0.3 * z[k].square().mean().sqrt()
        torch.testing.assert_close(unit(one), 0.5 * (one + (one.square() + e**2).sqrt()))
        (slope,) = torch.autograd.grad(unit(one).sum(), one, create_graph=True)
        (bend,) = torch.autograd.grad(slope.sum(), one)
        torch.testing.assert_close((values[k], first[k], second[k]), (unit(one), slope, bend))
    assert all(bool(t.isfinite().all()) for t in unit.bends(torch.zeros(1, 3)))
    with pytest.raises(LeakauditError, match="at least 0, got -1"):
        Rounding(-1)


def test_networks_without_relu_are_left_as_they_are_and_shortcuts_are_rounded() -> None:
    rounding = Rounding(0.5)
    smooth = Task.build(TaskSpec("lenet", shape=(3, 16, 16), classes=4))
    assert smooth.rounded(rounding) is smooth
    task = Task.build(TaskSpec("resnet10", shape=(3, 16, 16), classes=4)).rounded(rounding)
    kinds = {type(m) for m in task.module.modules()}
    assert SmoothedReLU in kinds
    assert nn.ReLU not in kinds


def test_kernels_strides_pads_and_layers_without_bias_or_activation() -> None:
    g = Generator().manual_seed(2)
    torch.manual_seed(0)
    module = dilated().double()
    own = layout(module)
    chain = gradients(module, own, IMAGE)
    assert chain is not None
    base = Task.build(TaskSpec("logistic", shape=(2,), classes=4), dtype=D)
    task = replace(base, module=module, layout=own, chain=chain)
    thetas = torch.randn(2, own.size, generator=g, dtype=D) / 3
    x, y = (
        torch.rand(2, 3, *IMAGE, generator=g, dtype=D).requires_grad_(),
        torch.randint(4, (2, 3), generator=g),
    )
    together = task.again(thetas, x, y)
    apart = torch.stack(
        [task.gradient(*one, create_graph=True) for one in zip(thetas, x, y, strict=True)]
    )
    torch.testing.assert_close(together, apart, rtol=1e-10, atol=1e-13)
    mine, theirs = (torch.autograd.grad(found.square().sum(), x)[0] for found in (together, apart))
    torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-11)


def test_other_networks_are_left_to_autograd() -> None:
    def chain(*modules: nn.Module) -> Formulas | None:
        module = made(*modules)
        return gradients(module, layout(module), IMAGE)

    end = (nn.Flatten(), nn.Linear(432, 2))
    assert chain(nn.Conv2d(3, 4, 3, padding=1), nn.Dropout(), *end) is not None
    assert chain(nn.Conv2d(3, 4, 3, padding=1), nn.GELU(), *end) is None
    assert chain(nn.Conv2d(3, 4, 3, padding="same"), *end) is None
    assert chain(nn.Conv2d(3, 4, 3, padding=1, padding_mode="circular"), *end) is None
    assert chain(nn.Conv2d(3, 3, 3, padding=1, groups=3), nn.Flatten(), nn.Linear(324, 2)) is None
    assert chain(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.Tanh(), *end) is None
    assert chain(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), *end) is None
    assert chain(nn.ReLU(), nn.Flatten(), nn.Linear(324, 2)) is None
    assert chain(nn.Conv2d(3, 4, 3, padding=1)) is None
    assert chain(*end, nn.Sigmoid()) is None
    assert chain(nn.Flatten(), nn.Linear(324, 4), shared := nn.Linear(4, 4), shared) is None
    frozen = made(nn.Flatten(), nn.Linear(324, 4), nn.Linear(4, 2))
    whole = layout(frozen)
    assert gradients(frozen, Layout(whole.names[:2], whole.shapes[:2]), IMAGE) is None
    assert Task.build(TaskSpec("resnet10", shape=(3, 16, 16), classes=4)).chain is None
