"""Images from features through several convolutions at once, and what may be called exact."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import lookalikes
import pytest
import torch
from planted import check, faces, leak_of
from torch import Generator, Tensor, nn

from leakaudit.attacks import Cone
from leakaudit.core.trace import TaskSpec
from leakaudit.inversion.exact import chain_pieces, whole_chain
from leakaudit.inversion.exact.chain_pieces import ComposedFunction
from leakaudit.inversion.exact.pixel_grid import PixelGrid
from leakaudit.inversion.exact.whole_chain import ChainEquations, ChainSystem
from leakaudit.protocols.scenario import Scenario
from leakaudit.tasks import layer_chain
from leakaudit.tasks.layer_chain import Layer
from leakaudit.tasks.models import MODELS
from leakaudit.tasks.task import Task


def task_of(model: str, **args: Any) -> Task:
    own = model if model in MODELS else f"convolutional:{model}"
    spec = TaskSpec(own, args, shape=(1, 25, 25), classes=10, mean=(0.5,), std=(0.25,), levels=255)
    return Task.build(spec, dtype=torch.float64, trusted=True)


def convolutions(task: Task, theta: Tensor) -> list[Layer]:
    """The layers before the first linear one."""
    chain = layer_chain.layers(task, theta)
    at = [isinstance(layer.module, nn.Linear) for layer in chain].index(True)
    return chain_pieces.folded(chain[:at])


def equations(task: Task, x: Tensor, error: float = 1e-9) -> ChainEquations:
    """The features of images."""
    theta = task.init(Generator().manual_seed(0))
    chain = convolutions(task, theta)
    values = layer_chain.run(chain, task.normalise(x)).flatten(1)
    whole = ComposedFunction.of(chain)
    assert isinstance(whole, ComposedFunction)
    grid = PixelGrid.of(task)
    level = (1 / (grid.levels * grid.std)).reshape(1, *task.spec.shape)
    errors = torch.full((len(x),), error, dtype=torch.float64)
    return ChainEquations(whole, values, errors, level)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_two_convolutions_that_cannot_be_peeled_are_solved_at_once(dtype: torch.dtype) -> None:
    task = task_of("cnn", channels=(16, 64), hidden=(48,))
    x = faces(6, seed=1)
    y = torch.arange(6)
    found = Cone()(leak_of(task, x, y, dtype), task, Generator().manual_seed(2))
    check(found, x, y)


@pytest.mark.parametrize("model", [pytest.param("averaging", marks=pytest.mark.slow), "normalised"])
def test_average_pooling_and_batch_normalisation_are_part_of_the_chain(model: str) -> None:
    args = {"bn": "eval"} if model == "normalised" else {}
    task = task_of(model, **args)
    x = faces(4, seed=2)
    y = torch.arange(4)
    found = Cone()(leak_of(task, x, y, torch.float64), task, Generator().manual_seed(2))
    check(found, x, y)


def test_the_gradient_of_the_last_convolution_joins_all_samples() -> None:
    """ConvNet has hardly more positive features than pixels, and one linear layer of rank 9."""
    task = task_of("convnet")
    x = faces(5, seed=3)
    y = torch.arange(5)
    found = Cone()(leak_of(task, x, y, torch.float64), task, Generator().manual_seed(2))
    check(found, x, y)


@pytest.mark.parametrize(
    ("model", "args", "why"),
    [
        ("maximum", {}, "MaxPool2d"),
        ("normalised", {}, "statistics of the batch"),
        ("normalised", {"bn": "train"}, "bn=eval"),
    ],
)
def test_what_depends_on_unknown_choices_is_refused(
    model: str, args: dict[str, str], why: str
) -> None:
    task = task_of(model, **args)
    leak = leak_of(task, faces(2, seed=1), torch.arange(2), torch.float64)
    said = Cone().refuses(leak, task)
    assert said is not None
    assert why in said
    assert "\n" not in said


def test_a_folded_convolution_is_the_same_function() -> None:
    task = task_of("normalised", bn="eval")
    theta = task.init(Generator().manual_seed(1))
    x = task.normalise(faces(2, seed=4))
    whole = layer_chain.layers(task, theta)
    at = [isinstance(layer.module, nn.Linear) for layer in whole].index(True)
    folded = chain_pieces.folded(whole[:at])
    assert len(folded) == at - 2
    assert torch.allclose(layer_chain.run(whole[:at], x), layer_chain.run(folded, x), atol=1e-12)


def test_both_directions_of_a_piece_agree_with_automatic_differentiation() -> None:
    task = task_of("averaging")
    x = task.normalise(faces(2, seed=5))
    chain = equations(task, faces(2, seed=5)).chain
    piece = chain.piece(x)
    g = Generator().manual_seed(0)
    v = torch.randn(x.shape, generator=g, dtype=x.dtype)
    d = torch.randn(piece.out.shape, generator=g, dtype=x.dtype)
    pulled = torch.func.vjp(lambda z: chain.piece(z).out, x)[1](d)[0]
    assert torch.allclose(piece.back(d)[0], pulled, atol=1e-12)
    along = (piece.along(v)[0] * d).sum()
    assert torch.allclose(along, (v * pulled).sum(), rtol=1e-10)


def test_the_weakest_change_is_that_of_the_whole_matrix() -> None:
    task = task_of("cnn", channels=(16, 64), hidden=(48,))
    x = faces(1, seed=6)
    known = equations(task, x)
    line = ChainSystem((known,)).linearised(task.normalise(x))
    line = replace(line, parts=[replace(line.parts[0], rows=known.shown.to(x))])
    pixels = math.prod(task.spec.shape)
    every = torch.eye(pixels, dtype=x.dtype).reshape(pixels, 1, *task.spec.shape)
    rows = [line.parts[0].piece.along(one * known.level)[0][0] for one in every]
    matrix = torch.stack(rows, dim=1)[known.shown[0]]
    smallest = torch.linalg.svdvals(matrix)[-1]
    got = whole_chain.weakest(line, x, 0.1 * smallest.reshape(1))
    assert 0.99 * smallest <= got[0] <= 1.2 * smallest


def test_an_image_with_an_invisible_part_is_not_unique() -> None:
    """Where all outputs of the first layer are negative, pixels may change unseen."""
    task = task_of("cnn", channels=(16, 64), hidden=(48,))
    x = faces(2, seed=7)
    known = equations(task, x)
    clear = whole_chain.unique(ChainSystem((known,)), task.normalise(x))
    assert clear.all()
    first = known.chain.layers[0]
    dark = {"weight": first.parameters["weight"], "bias": first.parameters["bias"] - 0.6}
    blind = replace(known.chain, layers=[replace(first, parameters=dark), *known.chain.layers[1:]])
    values = blind.piece(task.normalise(x)).out.relu()
    assert float((values > 0).double().mean()) > 0.2
    seen = replace(known, chain=blind, values=values)
    assert not whole_chain.unique(ChainSystem((seen,)), task.normalise(x)).any()


@pytest.mark.parametrize(
    ("model", "args"),
    [
        ("cnn", {"channels": "16,64", "hidden": 48}),
        pytest.param("convnet", {}, marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("dtype", ["float64", pytest.param("float32", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "family",
    [
        "binary",
        *[pytest.param(name, marks=pytest.mark.slow) for name in sorted(lookalikes.FAMILIES)],
    ],
)
def test_similar_images_are_never_called_exact_wrongly(
    family: str, dtype: str, model: str, args: dict[str, Any]
) -> None:
    case = Scenario(
        victim="fedsgd",
        nodes=2,
        rounds=1,
        data="faces",
        samples=3,
        model=model,
        set=args,
        seed=4,
        dtype=dtype,
    )
    count = lookalikes.attacked(case, family, 4, attack="cone")
    assert count.images
    assert not count.false, count.cases
