"""The one walk over chains of layers: order, roles, and the layer that an activation belongs to."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from leakaudit.tasks import sequential
from leakaudit.tasks.activations import ACTIVATIONS
from leakaudit.tasks.sequential import Role
from leakaudit.tasks.smoothed_relu import Rounding, SmoothedReLU


class Doubled(nn.Linear):
    """A subclass, which may compute anything."""


def roles(*modules: nn.Module) -> list[tuple[str, Role]]:
    return [(n, sequential.role(m)) for n, m in sequential.parts(nn.Sequential(*modules)) or []]


def test_parts_come_in_order_without_containers_and_as_often_as_they_run() -> None:
    act = nn.Tanh()
    inner = nn.Sequential(nn.Linear(4, 3), act, nn.Sequential())
    assert roles(nn.Flatten(), inner, nn.Dropout(), act) == [
        ("0", "flatten"),
        ("1.0", "layer"),
        ("1.1", "activation"),
        ("2", "identity"),
        ("3", "activation"),
    ]


def test_roles_go_by_the_exact_type() -> None:
    unknown = [Doubled(2, 2), nn.GELU(), nn.BatchNorm2d(2), nn.MaxPool2d(2), nn.Conv1d(1, 1, 1)]
    assert [role for _, role in roles(*unknown)] == ["other"] * 5
    assert sequential.parts(nn.Linear(2, 2)) is None
    assert sequential.parts(nn.ModuleList([nn.Linear(2, 2)])) is None


def test_blocks_pair_a_layer_with_the_activation_behind_it() -> None:
    def blocks(*modules: nn.Module) -> list[tuple[str, bool, bool]] | None:
        found = sequential.blocks(sequential.parts(nn.Sequential(*modules)) or [])
        if found is None:
            return None
        return [(b.name, b.activation is not None, b.flat) for b in found]

    chain = (nn.Conv2d(1, 1, 1), nn.Identity(), nn.ReLU(), nn.Flatten(), nn.Linear(4, 2))
    assert blocks(*chain) == [("0", True, False), ("4", False, True)]
    assert blocks() == []
    assert blocks(nn.ReLU(), *chain) is None
    assert blocks(*chain, nn.ReLU(), nn.Tanh()) is None
    assert blocks(nn.Linear(2, 2), nn.GELU()) is None


@pytest.mark.parametrize("kind", ACTIVATIONS, ids=lambda kind: kind.__name__)
def test_the_formulas_of_an_activation_agree_with_autograd_and_with_each_other(
    kind: type[nn.Module],
) -> None:
    formulas = ACTIVATIONS[kind]
    module = SmoothedReLU(Rounding(0.0)) if kind is SmoothedReLU else kind()
    z = torch.linspace(-2.0, 2.0, 41, dtype=torch.float64)[None]
    z = z[z != 0][None].requires_grad_()  # ReLU has no slope at 0
    a = module(z)
    (slope,) = torch.autograd.grad(a.sum(), z, create_graph=True)
    (bend,) = torch.autograd.grad(slope.sum(), z, allow_unused=True, materialize_grads=True)
    z, a, slope = z.detach(), a.detach(), slope.detach()
    if formulas.slope is not None:
        torch.testing.assert_close(formulas.slope(a).to(slope), slope)
    if formulas.bends is not None:
        value, first, second = formulas.bends(module, z)
        torch.testing.assert_close(value, a)
        torch.testing.assert_close(first, slope)
        torch.testing.assert_close(torch.zeros_like(z) if second is None else second, bend)
    if formulas.undo is not None:
        found = formulas.undo(module, a, 0.0)
        torch.testing.assert_close(found.value[found.known], z[found.known], rtol=1e-9, atol=1e-9)
        assert bool((z[~found.known] <= 0).all())
        torch.testing.assert_close(found.slope, slope, rtol=1e-9, atol=1e-9)
        assert float(found.trust.max()) <= 1


def test_every_activation_has_a_formula() -> None:
    for formulas in ACTIVATIONS.values():
        assert formulas.slope or formulas.bends or formulas.undo
