"""Inputs of the last layer from its softmax, and images from the features of several rounds."""

from __future__ import annotations

from typing import Any

import lookalikes
import pytest
import torch
from planted import check, faces, leak_of
from torch import Generator, Tensor

from leakaudit.attacks import Cone
from leakaudit.core.leak import GradientLeak
from leakaudit.core.trace import TaskSpec
from leakaudit.inversion.exact import last_layer
from leakaudit.tasks import layer_chain
from leakaudit.tasks.task import Task

CLASSES = 40


def task_of(model: str = "lenet", classes: int = CLASSES, **args: Any) -> Task:
    spec = TaskSpec(
        model, args, shape=(1, 25, 25), classes=classes, mean=(0.5,), std=(0.25,), levels=255
    )
    return Task.build(spec, dtype=torch.float64)


def models(task: Task, count: int) -> list[Tensor]:
    return [task.init(Generator().manual_seed(k)).double() for k in range(count)]


def rounds(
    task: Task, x: Tensor, y: Tensor, thetas: list[Tensor], dtype: torch.dtype = torch.float64
) -> GradientLeak:
    """The gradients of one batch at several models."""
    each = [leak_of(task, x, y, dtype, [one]) for one in thetas]
    theta = torch.cat([one.theta for one in each if one.theta is not None])
    return GradientLeak(
        **{
            **vars(each[0]),
            "rounds": torch.arange(1, len(each) + 1),
            "combination": torch.eye(len(each), dtype=torch.float64),
            "value": torch.cat([one.value for one in each]),
            "std": torch.cat([one.std for one in each]),
            "theta": theta,
        }
    )


def found_inputs(
    task: Task, x: Tensor, y: Tensor, dtype: torch.dtype
) -> tuple[Tensor, Tensor] | None:
    """Features that are found, and the true ones (b, n)."""
    theta = task.init(Generator().manual_seed(1)).to(dtype)
    weight, bias = (task.layout.slices[name] for name in task.last_linear or () if name)
    gradient = task.gradient(theta, x.to(dtype), y).double()
    theta = theta.double()

    def rows(flat: Tensor) -> Tensor:
        return torch.cat([flat[weight].reshape(task.spec.classes, -1), flat[bias][:, None]], dim=1)

    basis = torch.linalg.svd(rows(gradient), full_matrices=False)[2][: len(x)]
    wire = torch.finfo(dtype).eps
    noise = 8 * wire * float(gradient.square().mean().sqrt())
    found = last_layer.inputs(
        rows(gradient), rows(theta), basis, noise, wire, Generator().manual_seed(2)
    )
    true = layer_chain.run(layer_chain.layers(task, theta)[:-1], task.normalise(x)).flatten(1)
    return None if found is None else ((found[0] @ basis)[:, :-1], true)


@pytest.mark.parametrize("act", ["sigmoid", "tanh"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_features_without_zeros_follow_from_the_softmax(act: str, dtype: torch.dtype) -> None:
    """Also those of two samples of one label."""
    task = task_of("convnet" if act == "tanh" else "lenet", act=act)
    x = faces(6, seed=1)
    pair = found_inputs(task, x, torch.tensor([3, 7, 7, 20, 31, 39]), dtype)
    assert pair is not None
    found, true = pair
    away = (found[:, None] - true).square().mean(2).sqrt()
    assert sorted(away.argmin(1).tolist()) == list(range(6))
    assert float(away.amin(1).max()) < (1e-11 if dtype is torch.float64 else 1e-4)


def test_a_batch_with_too_few_classes_is_refused() -> None:
    task = task_of(classes=10)
    x = faces(6, seed=1)
    said = Cone().refuses(leak_of(task, x, torch.arange(6), torch.float64), task)
    assert said is not None
    assert "10 classes are too few for 6 samples" in said


def test_slopes_of_another_model_are_not_explained() -> None:
    task = task_of()
    x = faces(4, seed=2)
    leak = leak_of(task, x, torch.arange(4), torch.float64)
    assert leak.theta is not None
    wrong = GradientLeak(**{**vars(leak), "theta": leak.theta * 1.01})
    found = Cone()(wrong, task, Generator().manual_seed(0))
    assert not found.certified


def test_lenet_with_sigmoids_is_read_from_two_rounds() -> None:
    """588 features of each image and round, 625 pixels."""
    task = task_of()
    x = faces(2, seed=3)
    y = torch.tensor([5, 5])
    leak = rounds(task, x, y, models(task, 2))
    found = Cone()(leak, task, Generator().manual_seed(2))
    check(found, x, y)


@pytest.mark.slow
def test_sixteen_images_behind_lenet() -> None:
    """In double precision; docs/cone.md states what single precision reaches."""
    task = task_of(classes=100)
    x = faces(16, seed=16)
    y = torch.randint(0, 100, (16,), generator=Generator().manual_seed(16))
    leak = rounds(task, x, y, models(task, 4))
    found = Cone()(leak, task, Generator().manual_seed(2))
    check(found, x, y)


@pytest.mark.slow
def test_lenet_with_relu_is_read_from_several_rounds() -> None:
    """Rays of each round; about a third of 588 features are positive."""
    task = task_of(act="relu")
    x = faces(4, seed=4)
    y = torch.arange(4)
    found = Cone()(rounds(task, x, y, models(task, 6)), task, Generator().manual_seed(2))
    check(found, x, y)


@pytest.mark.slow
def test_the_same_model_twice_tells_nothing_new() -> None:
    """Twice the equations, but not twice as many independent ones."""
    task = task_of()
    x = faces(2, seed=5)
    leak = rounds(task, x, torch.arange(2), models(task, 1) * 2)
    assert not Cone()(leak, task, Generator().manual_seed(2)).certified


@pytest.mark.slow
@pytest.mark.parametrize("family", sorted(lookalikes.FAMILIES))
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_similar_images_are_never_called_exact_wrongly(family: str, dtype: torch.dtype) -> None:
    task = task_of()
    g = Generator().manual_seed(6)
    x = lookalikes.FAMILIES[family](faces(3, seed=6) * 255, g).round().clamp(0, 255) / 255
    leak = rounds(task, x, torch.arange(3), models(task, 2), dtype)
    found = Cone()(leak, task, Generator().manual_seed(2))
    count = lookalikes.claimed(found, x, family)
    assert not count.false, count.cases
