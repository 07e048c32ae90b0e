"""Traversal of a plain `nn.Sequential`: its parts, and its layers with their activations.

Closed formulas exist only for chains of layers, and each accepts different chains. The role of a
module is decided here, in one place, by its exact type, because a subclass may compute anything.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum

from torch import nn

from leakaudit.core.trace import Layout
from leakaudit.tasks.activations import ACTIVATIONS


class ModuleRole(Enum):
    """The effect of a module on the values that pass through it."""

    LAYER = "a linear layer or a convolution"
    ACTIVATION = "an activation of the table"
    FLATTEN = "another shape for the same values"
    IDENTITY = "nothing, in evaluation mode"
    OTHER = "anything else"


ROLES: dict[type[nn.Module], ModuleRole] = {
    nn.Linear: ModuleRole.LAYER,
    nn.Conv2d: ModuleRole.LAYER,
    nn.Flatten: ModuleRole.FLATTEN,
    nn.Identity: ModuleRole.IDENTITY,
    nn.Dropout: ModuleRole.IDENTITY,
    nn.Dropout2d: ModuleRole.IDENTITY,
    **dict.fromkeys(ACTIVATIONS, ModuleRole.ACTIVATION),
}


@dataclass(frozen=True, eq=False)
class ChainModule:
    """One module of a chain."""

    name: str  # the module's qualified name, which prefixes the names of its parameters
    module: nn.Module
    role: ModuleRole


@dataclass(frozen=True, eq=False)
class _ActivatedLayer:
    """A layer with weights and the activation that follows it."""

    layer: ChainModule
    activation: nn.Module | None  # the activation's module, None if there is none
    flat: bool  # whether an `nn.Flatten` comes before the layer


def parts(module: nn.Module) -> list[ChainModule] | None:
    """List the modules of a plain ``Sequential`` in order, including those of nested ones.

    A module that is used twice is listed twice. None if the module is not a ``Sequential``.
    """
    if type(module) is not nn.Sequential:
        return None
    found = []
    for name, inner in module.named_modules(remove_duplicate=False):
        if type(inner) is not nn.Sequential:
            role = ROLES.get(type(inner), ModuleRole.OTHER)
            found.append(ChainModule(name, inner, role))
    return found


def blocks(chain: Iterable[ChainModule]) -> list[_ActivatedLayer] | None:
    """Pair every layer with the activation that follows it.

    None if a part has another role, or if an activation does not follow a layer.
    """
    found: list[_ActivatedLayer] = []
    flat = False
    for part in chain:
        if part.role is ModuleRole.LAYER:
            found.append(_ActivatedLayer(part, None, flat))
        elif part.role is ModuleRole.ACTIVATION:
            if not found or found[-1].activation is not None:
                return None
            found[-1] = replace(found[-1], activation=part.module)
        elif part.role is ModuleRole.FLATTEN:
            flat = True
        elif part.role is ModuleRole.OTHER:
            return None
    return found


def trained(
    module: nn.Module, layout: Layout
) -> tuple[list[ChainModule], list[_ActivatedLayer]] | None:
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
