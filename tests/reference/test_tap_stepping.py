"""The optimiser behind models and gradients: named by its constants, or said not to be known."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch import Tensor, nn, optim

from leakaudit.capture.fitting import stepping
from leakaudit.capture.fitting.stepping import OptimiserFamily
from leakaudit.protocols.optimiser import Optimiser

Make = Callable[[Iterable[nn.Parameter]], optim.Optimizer]


def flat(tensors: Iterable[Tensor]) -> Tensor:
    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors]).clone()


def trained(
    make: Make, rounds: int, clip: float = 0.0, cosine: bool = False, seed: int = 0
) -> stepping.ModelMoves:
    """A program of torch.optim: a small network on four records, in float32."""
    generator = torch.Generator().manual_seed(seed)
    network = nn.Sequential(nn.Linear(100, 16), nn.Tanh(), nn.Linear(16, 10))
    for parameter in network.parameters():
        parameter.data = 0.1 * torch.randn(parameter.shape, generator=generator)
    x = torch.rand(4, 100, generator=generator)
    y = torch.randint(10, (4,), generator=generator)
    optimiser = make(network.parameters())
    schedule = optim.lr_scheduler.CosineAnnealingLR(optimiser, 20) if cosine else None
    models = []
    gradients = []
    for _ in range(rounds):
        models.append(flat(network.parameters()))
        optimiser.zero_grad()
        nn.functional.cross_entropy(network(x), y).backward()
        gradients.append(flat(p.grad for p in network.parameters() if p.grad is not None))
        if clip:
            nn.utils.clip_grad_norm_(network.parameters(), clip)
        optimiser.step()
        if schedule is not None:
            schedule.step()
    after = [*models[1:], flat(network.parameters())]
    moves = [a.double() - b.double() for a, b in zip(models, after, strict=True)]
    return stepping.observed(models, moves, gradients, torch.finfo(torch.float32).eps)


def with_(kind: Callable[..., optim.Optimizer], lr: float, **constants: Any) -> Make:
    return lambda parameters: kind(parameters, lr=lr, **constants)


NAMED = [
    (with_(optim.SGD, 0.1), "sgd, step size 0.1"),
    (with_(optim.SGD, 0.1, weight_decay=5e-4), "sgd, step size 0.1, weight decay 0.0005"),
    (with_(optim.SGD, 0.05, momentum=0.9), "sgd, step size 0.05, momentum 0.9"),
    (
        with_(optim.SGD, 0.05, momentum=0.85, weight_decay=1e-3),
        "sgd, step size 0.05, momentum 0.85, weight decay 0.001",
    ),
    (
        with_(optim.SGD, 0.05, momentum=0.9, nesterov=True, weight_decay=1e-4),
        "sgd, step size 0.05, Nesterov momentum 0.9, weight decay 0.0001",
    ),
    (with_(optim.Adam, 0.001), "adam, step size 0.001"),
    (with_(optim.Adam, 0.002, weight_decay=1e-3), "adam, step size 0.002, weight decay 0.001"),
    (with_(optim.AdamW, 0.001), "adamw, step size 0.001, weight decay 0.01"),
    (with_(optim.Adagrad, 0.01), "adagrad, step size 0.01"),
]


@pytest.mark.parametrize(("make", "text"), NAMED, ids=[text for _, text in NAMED])
def test_an_optimiser_is_named_with_its_constants(make: Make, text: str) -> None:
    found = stepping.identify(trained(make, 6))
    assert found is not None
    assert found.text == text


def test_gradients_of_one_length_hide_no_optimiser() -> None:
    """Whatever was sent has one norm, to the last bit: vectors that differ in their signs only."""
    generator = torch.Generator().manual_seed(0)
    length = torch.rand(200, generator=generator)
    w = nn.Parameter(torch.zeros(200))
    optimiser = optim.SGD([w], lr=0.05, momentum=0.9)
    models, gradients = [], []
    for _ in range(6):
        models.append(w.detach().clone())
        w.grad = torch.where(torch.rand(200, generator=generator) < 0.5, length, -length)
        gradients.append(w.grad.clone())
        optimiser.step()
    after = [*models[1:], w.detach()]
    moves = [a.double() - b.double() for a, b in zip(models, after, strict=True)]
    observed = stepping.observed(models, moves, gradients, torch.finfo(torch.float32).eps)
    assert observed.norms.unique().numel() == 1
    found = stepping.identify(observed)
    assert found is not None
    assert found.text == "sgd, step size 0.05, momentum 0.9"


UNKNOWN = {
    "rmsprop": with_(optim.RMSprop, 0.001),
    "nadam": with_(optim.NAdam, 0.001),
    "adamax": with_(optim.Adamax, 0.001),
    "rprop": with_(optim.Rprop, 0.001),
    "adadelta": with_(optim.Adadelta, 1.0),
    "dampening": with_(optim.SGD, 0.1, momentum=0.9, dampening=0.5),
    "other averages": with_(optim.Adam, 0.001, betas=(0.8, 0.99)),
}


@pytest.mark.parametrize("rounds", [2, 3, 6])
@pytest.mark.parametrize("name", UNKNOWN)
def test_an_optimiser_that_is_not_known_gets_no_other_name(name: str, rounds: int) -> None:
    assert stepping.identify(trained(UNKNOWN[name], rounds)) is None


@pytest.mark.parametrize("rounds", [2, 3, 4])
@pytest.mark.parametrize(("make", "text"), NAMED, ids=[text for _, text in NAMED])
def test_few_rounds_give_the_right_name_or_none(make: Make, text: str, rounds: int) -> None:
    found = stepping.identify(trained(make, rounds, seed=1))
    assert found is None or found.text == text


def test_a_schedule_is_seen_and_no_constant_step_size_is_claimed() -> None:
    found = stepping.identify(trained(with_(optim.SGD, 0.1, momentum=0.9), 6, cosine=True))
    assert found is not None
    assert found.rate is None
    assert found.text.startswith("sgd, step size 0.1, 0.0994, 0.0976")
    assert found.optimiser.momentum == 0.9


def test_clipping_is_named_if_some_gradients_are_clipped() -> None:
    norms = trained(with_(optim.SGD, 0.2), 6).norms
    clip = float(norms.median())
    clip = float(f"{clip:.2g}")
    found = stepping.identify(trained(with_(optim.SGD, 0.2), 6, clip=clip))
    assert found is not None
    assert found.clip == pytest.approx(clip, rel=1e-3)
    assert found.rate == 0.2


def test_if_all_gradients_are_clipped_only_the_product_is_known() -> None:
    found = stepping.identify(trained(with_(optim.SGD, 0.1), 6, clip=0.1))
    assert found is not None
    assert found.rate is None
    assert "step size times clipping norm 0.01" in found.text


def test_one_move_proves_nothing() -> None:
    assert stepping.identify(trained(with_(optim.SGD, 0.1), 1)) is None


@pytest.mark.parametrize(
    ("moves", "fitted"), [(2, 1), (3, 2), (4, 2), (5, 3), (stepping.MOST, stepping.MOST - 2)]
)
def test_two_moves_are_held_back_where_there_are_four(moves: int, fitted: int) -> None:
    assert stepping._fitted_of(moves) == fitted


def of_norms(*norms: float) -> stepping.ModelMoves:
    """Gradients along the first of two coordinates, of models at 0."""
    gradients = torch.tensor([[norm, 0.0] for norm in norms], dtype=torch.float64)
    nothing = torch.zeros_like(gradients)
    return stepping.ModelMoves(nothing, gradients, gradients, gradients.norm(dim=1), 1e-5)


def test_only_gradients_above_the_norm_are_clipped() -> None:
    found = stepping._directions(of_norms(1.0, 2.0, 4.0), Optimiser(), 2.0, False)
    assert found[:, 0].tolist() == [1.0, 2.0, 2.0]


@pytest.mark.parametrize(("other", "named"), [(6.5e-6, False), (6.0e-6, True)])
def test_an_optimiser_with_more_constants_must_miss_by_a_third(
    other: float, named: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The simpler one misses by 1.9e-5, below twice the rounding of 1e-5."""
    simple, larger = OptimiserFamily(), OptimiserFamily(("momentum",))
    misses = {simple: 1.9e-5, larger: other}
    monkeypatch.setattr(stepping, "_families", lambda _: [simple, larger])
    monkeypatch.setattr(
        stepping,
        "_fitted",
        lambda moves, family, _: stepping.Stepping(Optimiser(), (0.1,) * 4, misses[family]),
    )
    found = stepping.identify(of_norms(1.0, 2.0, 3.0, 4.0))
    assert found is not None
    assert found.miss == misses[larger if named else simple]
