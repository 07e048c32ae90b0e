"""Several local steps of an optimiser from torch.optim, which are named rightly or not at all."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest
import torch
from torch import Generator, Tensor, optim

import leakaudit as la
from leakaudit.capture.fitting import local
from leakaudit.capture.fitting.fit import GradientSample, ModelFit
from leakaudit.tasks.task import Task

CLIENTS = 3
Build = Callable[[Iterable[Tensor]], optim.Optimizer]


def task(act: str) -> Task:
    args = {"hidden": "32", "act": act}
    return Task.build(la.TaskSpec("mlp", args, shape=(1, 8, 8), classes=10))


TRAINED = task("relu")
MODELS = [TRAINED, task("tanh"), task("sigmoid")]


def answers(build: Build, steps: int, count: int = 1) -> list[GradientSample]:
    """What clients subtract from the server's model in some steps on their records."""
    random = Generator().manual_seed(3)
    theta = TRAINED.init(Generator().manual_seed(1))
    found = []
    for client in range(CLIENTS):
        x = torch.randint(0, 256, (count, 1, 8, 8), generator=random).float() / 255
        w = theta.clone().requires_grad_(True)
        chosen = build([w])
        for _ in range(steps):
            w.grad = TRAINED.gradient(w.detach(), x, torch.tensor([client] * count))
            chosen.step()
        found.append(GradientSample(theta.double() - w.detach().double(), {"down": theta}))
    return found


def named(found: ModelFit | None) -> tuple[object, ...] | None:
    if found is None:
        return None
    sgd = found.optimiser
    return (found.steps, found.step, sgd.momentum, sgd.nesterov, sgd.decay)


@pytest.mark.parametrize(
    ("steps", "momentum", "decay"),
    [
        (2, 0.5, 0.0),
        (5, 0.9, 0.0),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in [
                (2, 0.9, 0.0),
                (3, 0.9, 5e-4),
                (5, 0.5, 0.0),
                (5, 0.9, 5e-4),
                (8, 0.9, 5e-4),
            ]
        ),
    ],
)
def test_momentum_and_decay_are_named(steps: int, momentum: float, decay: float) -> None:
    def build(w: Iterable[Tensor]) -> optim.Optimizer:
        return optim.SGD(w, lr=0.01, momentum=momentum, weight_decay=decay)

    found = local.several(MODELS, answers(build, steps))
    expected: tuple[object, ...] = (steps, 0.01, momentum, False, decay)
    if steps == 2 and momentum < 0.63:
        # Two steps with Nesterov momentum m, m^2 / (1 + m) = momentum, end at the same model.
        assert named(found) is None
        return
    assert named(found) == expected
    assert found is not None
    assert found.task is TRAINED
    assert found.miss < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("steps", [3, 5])
@pytest.mark.parametrize("decay", [0.0, 5e-3])
def test_nesterov_momentum_is_named(steps: int, decay: float) -> None:
    def build(w: Iterable[Tensor]) -> optim.Optimizer:
        return optim.SGD(w, lr=0.02, momentum=0.9, nesterov=True, weight_decay=decay)

    found = local.several(MODELS, answers(build, steps))
    assert named(found) == (steps, 0.02, 0.9, True, decay)


def test_two_steps_of_nesterov_momentum_are_not_told_from_momentum() -> None:
    def build(w: Iterable[Tensor]) -> optim.Optimizer:
        return optim.SGD(w, lr=0.01, momentum=0.9, nesterov=True)

    assert local.several(MODELS, answers(build, 2)) is None


OTHERS: dict[str, Build] = {
    "dampening": lambda w: optim.SGD(w, lr=0.02, momentum=0.9, dampening=0.5),
    "adam": lambda w: optim.Adam(w, lr=1e-3),
    "adamw": lambda w: optim.AdamW(w, lr=1e-3),
    "rmsprop": lambda w: optim.RMSprop(w, lr=1e-3),
    "adagrad": lambda w: optim.Adagrad(w, lr=1e-2),
    "rprop": lambda w: optim.Rprop(w, lr=1e-3),
}


@pytest.mark.parametrize(
    "name", [pytest.param("dampening", marks=pytest.mark.slow), "adam", "rprop"]
)
def test_other_optimisers_are_not_named(name: str) -> None:
    assert local.several(MODELS, answers(OTHERS[name], 5)) is None


@pytest.mark.slow
def test_a_momentum_that_clients_keep_is_not_named() -> None:
    def kept(w: Iterable[Tensor]) -> optim.Optimizer:
        chosen = optim.SGD(w, lr=0.01, momentum=0.9)
        for one in w:
            chosen.state[one]["momentum_buffer"] = torch.full_like(one, 1e-3)
        return chosen

    assert local.several(MODELS, answers(kept, 3)) is None


def test_two_records_are_not_named() -> None:
    def build(w: Iterable[Tensor]) -> optim.Optimizer:
        return optim.SGD(w, lr=0.01, momentum=0.9)

    assert local.several(MODELS, answers(build, 3, count=2)) is None


@pytest.mark.parametrize(
    ("name", "size"),
    [("adam", 1e-3), ("adamw", 1e-3), ("adagrad", 1e-2), ("rmsprop", 1e-2), ("rprop", 1e-3)],
)
def test_a_first_step_that_shows_only_signs_is_recognised(name: str, size: float) -> None:
    moved = local.sign_step(answers(OTHERS[name], 1))
    assert moved == pytest.approx(size, rel=1e-2)


@pytest.mark.parametrize("steps", [1, 3])
def test_steps_of_sgd_are_no_sign_steps(steps: int) -> None:
    assert local.sign_step(answers(lambda w: optim.SGD(w, lr=0.1), steps)) is None


def test_two_steps_of_adam_may_look_like_one_of_twice_the_size() -> None:
    assert local.sign_step(answers(OTHERS["adam"], 2)) == pytest.approx(2e-3, rel=1e-2)
