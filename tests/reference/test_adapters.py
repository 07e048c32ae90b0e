"""Batches behind low-rank adapters of a first layer."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Generator, Tensor

import leakaudit as la
from leakaudit.core.leak import GradientLeak
from leakaudit.core.reconstruction import Certificate
from leakaudit.core.trace import TaskSpec
from leakaudit.inversion.attacking import attack_one
from leakaudit.inversion.exact import adapter_batch, first_layer_rows
from leakaudit.tasks import low_rank
from leakaudit.tasks.task import Task

D = torch.float64


def built(classes: int = 10, **args: str | int | float | bool) -> Task:
    spec = TaskSpec(
        "adapters:mlp",
        args,
        shape=(1, 12, 12),
        classes=classes,
        mean=(0.4,),
        std=(0.3,),
        levels=255,
    )
    return Task.build(spec, dtype=D, trusted=True)


def batch(b: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    g = Generator().manual_seed(seed)
    x = torch.randint(256, (b, 1, 12, 12), generator=g).to(D) / 255
    return x, torch.randint(10, (b,), generator=g)


def descended(
    task: Task, x: Tensor, y: Tensor, steps: int = 2, dtype: torch.dtype = D
) -> GradientLeak:
    """The gradients of some steps of gradient descent."""
    theta = task.init(Generator().manual_seed(0)).to(dtype)
    values, thetas = [], []
    for _ in range(steps):
        thetas.append(theta)
        values.append(task.gradient(theta, x.to(dtype), y))
        theta = theta - 0.1 * values[-1]
    value = torch.stack(values)
    precision = torch.finfo(dtype).eps
    return GradientLeak(
        0,
        torch.arange(1, steps + 1),
        torch.eye(steps, dtype=dtype),
        value,
        precision / 3 * value.double().square().mean(1).sqrt(),
        (0, task.layout.size),
        theta=torch.stack(thetas),
        batch=len(x),
        records=len(x),
        wire=precision,
    )


def exact(leak: GradientLeak, task: Task) -> la.Reconstruction:
    return attack_one(leak, task, "exact", Generator().manual_seed(0))


def same(found: Tensor, x: Tensor) -> bool:
    """Whether two batches are equal, in any order."""
    off = (found[:, None].double() - x[None]).flatten(2).abs().amax(2)
    return len(found) == len(x) and bool((off.amin(0) < 1e-7).all() & (off.amin(1) < 1e-7).all())


@pytest.mark.parametrize(
    ("act", "trained", "bias", "scale"),
    [("relu", "first", True, 2.0), ("gelu", "all", True, 0.5), ("tanh", "head", False, 16.0)],
)
def test_as_many_records_as_the_rank_less_one_come_back(
    act: str, trained: str, bias: bool, scale: float
) -> None:
    task = built(rank=4, act=act, trained=trained, bias=bias, scale=scale)
    x, y = batch(3)
    found = exact(descended(task, x, y), task)
    assert found.certificate is Certificate.EXACT, found.note
    assert same(found.x, x)
    assert found.y is not None
    assert sorted(found.y.tolist()) == sorted(y.tolist())


def test_messages_in_float32_suffice() -> None:
    task = built(rank=4, act="gelu")
    x, y = batch(2)
    found = exact(descended(task, x, y, dtype=torch.float32), task)
    assert found.certificate is Certificate.EXACT, found.note
    assert same(found.x, x)


def test_records_without_a_grid_get_intervals() -> None:
    task = built(rank=4, act="relu")
    task = replace(task, spec=replace(task.spec, levels=0))
    x, y = batch(2)
    x = x + 1e-3 * torch.rand(x.shape, generator=Generator().manual_seed(1), dtype=D)
    found = exact(descended(task, x, y), task)
    assert found.certificate is Certificate.INTERVAL, found.note
    assert found.interval is not None
    off = (found.x[:, None].double() - x[None]).abs()
    inside = (off <= found.interval[:, None]).flatten(2).all(2)
    assert bool(inside.any(1).all() & inside.any(0).all())


def test_the_first_step_shows_nothing() -> None:
    task = built(rank=4)
    x, y = batch(2)
    found = exact(descended(task, x, y, steps=1), task)
    assert found.certificate is Certificate.FAILED
    assert "B is zero before the first step" in found.note


def test_more_records_than_the_rank_shows_are_refused() -> None:
    task = built(rank=4)
    x, y = batch(4)
    why = adapter_batch.missing(descended(task, x, y), task)
    assert why is not None
    assert "comes from 4 records, and an adapter of rank 4 shows the space of at most 3" in why


def test_equal_records_and_an_unknown_number_are_not_certified() -> None:
    task = built(rank=8)
    x, y = batch(3)
    twice = torch.cat([x, x[:1]])
    found = exact(descended(task, twice, torch.cat([y, y[:1]])), task)
    assert not found.certified
    unknown = replace(descended(task, x, y), batch=None, records=None)
    found = exact(unknown, task)
    assert not found.certified
    assert same(found.x.double(), x)
    assert "batch size is not stated" in found.note


def test_a_gradient_of_another_program_is_not_certified() -> None:
    """Clipping by itself is a shorter gradient; signs and masks are others."""
    task = built(rank=4, act="gelu")
    leak = descended(task, *batch(2))
    halves = torch.ones(task.layout.size, dtype=D)
    halves[task.layout.slices["1.A"]] = 0.5
    for value in (leak.value.sign(), leak.value * halves, 0.5 * leak.value):
        assert not exact(replace(leak, value=value), task).certified


def test_rounds_with_different_records_are_attacked_one_by_one() -> None:
    task = built(rank=4, act="gelu")
    x, y = batch(6)
    parts = [descended(task, x[k : k + 2], y[k : k + 2]).equation(1) for k in (0, 2, 4)]
    assert all(part.theta is not None for part in parts)
    leak = replace(
        parts[0],
        rounds=torch.arange(1, 4),
        combination=torch.eye(3, dtype=D),
        value=torch.cat([part.value for part in parts]),
        std=torch.cat([part.std for part in parts]),
        theta=torch.cat([part.theta for part in parts if part.theta is not None]),
        records=None,
    )
    found = exact(leak, task)
    assert found.certified == 6, found.note
    assert same(found.x, x)


def test_what_an_adapter_is_follows_from_its_gradients() -> None:
    def of(name: str) -> low_rank.Adapter | None:
        spec = TaskSpec(f"adapters:{name}", {}, shape=(1, 12, 12))
        return Task.build(spec, dtype=D, trusted=True).adapter

    found = of("turned")
    assert found is not None
    assert (found.weight, found.down, found.up) == ("1.kernel", "1.low", "1.high")
    assert found.turned == {"1.kernel", "1.low", "1.high"}
    assert math.isclose(found.scale, 3)
    assert found.bias is None
    assert of("late") is None
    assert of("two_layers") is None
    named = built().adapter
    assert named is not None
    assert named.bias == "1.base.bias"


def test_the_rows_of_a_are_in_the_space_of_the_inputs() -> None:
    task = built(rank=6)
    x, y = batch(3)
    rows = first_layer_rows.of_inputs(descended(task, x, y), task)[1]
    inside = torch.linalg.qr(task.normalise(x).flatten(1).T).Q
    assert float((rows - rows @ inside @ inside.T).norm() / rows.norm()) < 1e-12


@pytest.mark.parametrize("classes", [2, 3])
def test_two_lengths_of_a_record_are_not_told_apart_with_two_classes(classes: int) -> None:
    """With two classes, the slopes of a record show its length in one equation with two roots."""
    task = built(classes, rank=4, bias=False)
    x, y = batch(1, seed=1)
    found = exact(descended(task, x, y % classes), task)
    assert (found.certificate is Certificate.EXACT) is (classes > 2), found.note
    if classes == 2:
        assert "inputs of two lengths may fit" in found.note


def test_a_class_that_never_occurs_confirms_no_length() -> None:
    """A third output that softmax ignores leaves the equations of two classes."""
    task = built(3, rank=4, bias=False)
    x, y = batch(1, seed=1)
    bias = task.buffers["3.bias"].clone()
    bias[2] = -60
    task = replace(task, buffers={**task.buffers, "3.bias": bias})
    found = exact(descended(task, x, y % 2), task)
    assert same(found.x, x)
    assert found.certificate is Certificate.APPROXIMATE
    assert "an input of another length could have the same gradients" in found.note
