"""Traversal of a plain `nn.Sequential`: its parts, and its layers with their activations."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

from torch import nn

from leakaudit.core.trace import Layout
from leakaudit.tasks.activations import ACTIVATIONS

# Closed formulas exist only for chains of layers, and each accepts different chains. The role of a
# module is decided here, in one place, by its exact type, because a subclass may compute anything.


# The effect of a module on the values that pass through it: a linear layer or a convolution, an
# activation of the table, another shape for the same values, nothing in evaluation mode, or other.
Role = Literal["layer", "activation", "flatten", "identity", "other"]
Part = tuple[str, nn.Module]  # a module of a chain, with its qualified name

ROLES: dict[type[nn.Module], Role] = {
    nn.Linear: "layer",
    nn.Conv2d: "layer",
    nn.Flatten: "flatten",
    nn.Identity: "identity",
    nn.Dropout: "identity",
    nn.Dropout2d: "identity",
    **dict.fromkeys(ACTIVATIONS, "activation"),
}


def role(module: nn.Module) -> Role:
    """Return the role of a module by its exact type."""
    return ROLES.get(type(module), "other")


@dataclass(frozen=True, eq=False)
class _ActivatedLayer:
    """A layer with weights and the activation that follows it."""

    name: str  # the layer's qualified name, which prefixes those of its parameters
    layer: nn.Module
    activation: nn.Module | None  # the activation's module, None if there is none
    flat: bool  # whether an `nn.Flatten` comes before the layer


def parts(module: nn.Module) -> list[Part] | None:
    """List the modules of a plain ``Sequential`` in order, including those of nested ones.

    A module that is used twice is listed twice. None if the module is not a ``Sequential``.
    """
    if type(module) is not nn.Sequential:
        return None
    every = module.named_modules(remove_duplicate=False)
    return [part for part in every if type(part[1]) is not nn.Sequential]


def blocks(chain: Iterable[Part]) -> list[_ActivatedLayer] | None:
    """Pair every layer with the activation that follows it.

    None if a part has another role, or if an activation does not follow a layer.
    """
    found: list[_ActivatedLayer] = []
    flat = False
    for name, module in chain:
        kind = role(module)
        if kind == "layer":
            found.append(_ActivatedLayer(name, module, None, flat))
        elif kind == "activation":
            if not found or found[-1].activation is not None:
                return None
            found[-1] = replace(found[-1], activation=module)
        elif kind == "flatten":
            flat = True
        elif kind == "other":
            return None
    return found


def trained(module: nn.Module, layout: Layout) -> tuple[list[Part], list[_ActivatedLayer]] | None:
    """Return `parts` and `blocks` of a module without shared or frozen parameters, or None."""
    chain = parts(module)
    names = [n for n, _ in module.named_parameters(remove_duplicate=False)]
    if chain is None or names != list(layout.names):
        return None
    layers = blocks(chain)
    return (chain, layers) if layers else None


def plain(convolution: nn.Conv2d) -> bool:
    """Return whether a convolution has one group, and zero padding of explicit size."""
    return (
        convolution.groups == 1
        and convolution.padding_mode == "zeros"
        and not isinstance(convolution.padding, str)
    )
