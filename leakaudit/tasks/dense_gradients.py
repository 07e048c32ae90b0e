"""Gradients of a fully connected stack for all nodes, written directly into rows of a matrix."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor, nn

from leakaudit.core.trace import Layout
from leakaudit.tasks import sequential
from leakaudit.tasks.activations import ACTIVATIONS

# `vmap(grad)` computes the same numbers, but it makes several passes over memory. Here the product
# of a sample's activation and error is written once, in place (measured: 4x faster for 784-100-10
# with 30 nodes and one sample per node).


# Writes the gradients of every node into its last argument (`_Stack.gradients`).
Formulas: TypeAlias = Callable[
    [Mapping[str, Tensor], Tensor, Callable[[Tensor], Tensor], Mapping[str, Tensor]], None
]


def gradients(module: nn.Module, layout: Layout, inputs: int) -> Formulas | None:
    """Return the formulas of a ``Sequential`` without shared or frozen parameters, or None."""
    found = sequential.trained(module, layout)
    if found is None:
        return None
    parts, blocks = found
    # Nested containers and modules that are used twice are left to vmap, as in all earlier
    # recordings.
    modules = [m for _, m in parts]
    if modules != list(module.children()):
        return None
    if any(sequential.role(m) == "identity" for m in modules):
        return None

    *hidden, last = blocks
    if last.activation is not None:
        return None
    acts = []
    for block in hidden:
        if block.activation is None or ACTIVATIONS[type(block.activation)].slope is None:
            return None
        acts.append(block.activation)

    weights, biases = list[str](), list[str | None]()
    width = inputs
    for block in blocks:
        name, layer = block.name, block.layer
        if not isinstance(layer, nn.Linear) or layer.in_features != width:
            return None  # a convolution, or something between the layers changes the shape
        weights.append(f"{name}.weight")
        biases.append(None if layer.bias is None else f"{name}.bias")
        width = layer.out_features
    return _Stack(tuple(weights), tuple(biases), tuple(acts)).gradients


@dataclass(frozen=True)
class _Stack:
    """Linear, activation, ..., Linear on the flattened input."""

    weights: tuple[str, ...]  # name of each layer's weight
    biases: tuple[str | None, ...]  # name of each layer's bias, None for a layer without one
    acts: tuple[nn.Module, ...]  # the activations between the layers, one fewer than layers

    def gradients(
        self,
        params: Mapping[str, Tensor],
        x: Tensor,
        error: Callable[[Tensor], Tensor],
        out: Mapping[str, Tensor],
    ) -> None:
        """Write the gradients of every node into `out`.

        Args:
            params: Parameters by name, each (N, *shape of the parameter).
            x: Inputs (N, b, p), normalised and flattened.
            error: Maps the outputs (N, b, k) to the derivative of the loss in them.
            out: Views of the memory to fill, in the shapes of `params`.
        """
        # Forward: a_0 = x, z_l = a_{l-1} W_l^T + b_l, a_l = s(z_l); the last layer has no
        # activation.
        kept = [x]
        for i, weight in enumerate(self.weights):
            bias = self.biases[i]
            if bias is None:
                z = kept[-1] @ params[weight].mT
            else:
                z = torch.baddbmm(params[bias].unsqueeze(1), kept[-1], params[weight].mT)
            kept.append(self.acts[i](z) if i < len(self.acts) else z)

        # Backward: delta_l = dL/dz_l, dL/dW_l = delta_l^T a_{l-1}, dL/db_l = the sum of delta_l
        # over samples.
        delta = error(kept.pop())
        for i in reversed(range(len(self.weights))):
            a = kept[i]
            bias = self.biases[i]
            if (
                a.shape[1] == 1
            ):  # one sample: an outer product, which broadcasting writes faster than bmm
                torch.mul(delta.mT, a, out=out[self.weights[i]])
            else:
                torch.bmm(delta.mT, a, out=out[self.weights[i]])
            if bias is not None:
                torch.sum(delta, 1, out=out[bias])
            if i:
                slope = ACTIVATIONS[type(self.acts[i - 1])].slope
                assert slope is not None
                delta = (delta @ params[self.weights[i]]).mul_(slope(a))
