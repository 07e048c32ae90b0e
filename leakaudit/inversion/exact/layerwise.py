"""What the gradient of one sample says of each layer's input, from the last layer down: R-GAP.

Zhu and Blaschko 2021. Let d be the slope of the loss in a layer's output and h the layer's input.

* A linear layer has dL/dW = d h^T, so h = d^T dL/dW / |d|^2 exactly.
* A convolution's dL/dW is linear in h too: the same matrix M(d) for every channel (`matrix`). So h
  is known in the row space of M(d), and wholly if the rank of M(d) is the number of pixels: the
  paper's gradient constraints.
* The layer's output is known as well, from the layer above: of ReLU where it is positive. W h + b
  equal to it often fills what M(d) leaves open: the paper's weight constraints.

Then the activation before the layer is undone, d is taken one layer further, and so on down to the
input of the network. Where the equations of a layer leave something open, the descent stops, and
what is known there is returned for a search (attacks/rgap.py).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from leakaudit.tasks.layer_chain import Layer, Output, before

# Singular values this small beside the largest say nothing. Errors of 1e-16 in float64 grow to
# 1e-10 of the input at this point, and those of the next layers with them.
CUT = 1e-6

# Neither do those below this many times the leak's own relative error: what they add is then known
# to a per cent at least.
NOISE = 100

# Most unknowns that are left to one dense system of outputs: ten seconds on one core.
UNKNOWN = 2500

# Rows of that system, in units of its unknowns, at the most. A choice: more rows average more.
ROWS = 3


@dataclass(frozen=True, eq=False)
class LayerRelations:
    """What is known around one layer with weights.

    Attributes:
        layer: The layer.
        at: Its place in the chain.
        basis: (r, n) orthonormal, directions of a channel of its input that are known, or None for
            all.
        seen: (r, c) the channels' parts in them, or the input itself.
        output: What is known of its output.
    """

    layer: Layer
    at: int
    basis: Tensor | None
    seen: Tensor
    output: Output

    def __str__(self) -> str:
        """Numbers that are known of how many, for a note."""
        return (
            f"{self.layer.name}: rank {self.seen.numel()} of {math.prod(self.layer.shape)}, "
            f"{int(self.output.known.sum())} outputs"
        )

    def solve(self) -> Tensor | None:
        """Solve for the layer's input.

        Returns:
            The input, or None if linear equations do not settle it, or if they are too many.
        """
        if self.basis is None:
            return self.seen
        base = self.basis.T @ self.seen
        missing = self.basis.shape[1] - len(self.basis)
        if missing == 0:
            return base.T.reshape(self.layer.shape)
        unknown = missing * base.shape[1]
        few = unknown <= min(UNKNOWN, int(self.output.known.sum()))
        if isinstance(self.layer.module, nn.Linear) or not few:
            return None
        free = torch.linalg.qr(self.basis.T, mode="complete").Q[:, len(self.basis) :]
        found = self._rest(base, free)
        if found is None:
            return None
        whole: Tensor = (base + free @ found).T
        return whole.reshape(self.layer.shape)

    def _rest(self, base: Tensor, free: Tensor) -> Tensor | None:
        """Solve for what the gradient leaves open, from the layer's known outputs.

        Args:
            base: (n, c) the known part of the input.
            free: (n, n - r) the open directions of a channel.

        Returns:
            Coordinates (n - r, c) in them, or None if they are not unique.
        """
        missing = free.shape[1]
        channels = base.shape[1]
        rows = self.output.known.flatten().nonzero().flatten()
        rows = rows[:: max(1, len(rows) // (ROWS * missing * channels))]
        weight = self.layer.parameters["weight"]
        bias = self.layer.parameters.get("bias")
        # Column (k, i) of the system: what open direction i in channel k makes of the outputs.
        pictures = free.T.reshape(missing, 1, *self.layer.shape[1:])
        columns = []
        for k in range(channels):
            made = self.layer.convolved(pictures, weight[:, k : k + 1])
            columns.append(made.flatten(1)[:, rows])
        at = self.layer.convolved(base.T.reshape(1, *self.layer.shape), weight)[0]
        gap = self.output.value - at
        if bias is not None:
            gap = gap - bias[:, None, None]
        trust = self.output.trust.flatten()[rows]
        q, upper = torch.linalg.qr((torch.cat(columns) * trust).T)
        sizes = upper.diagonal().abs()
        if float(sizes.min()) < CUT * float(sizes.max()):
            return None
        right = (q.T @ (trust * gap.flatten()[rows]))[:, None]
        rest: Tensor = torch.linalg.solve_triangular(upper, right, upper=True)
        return rest.reshape(channels, missing).T

    def misfit(self, h: Tensor) -> Tensor:
        """Measure how badly an input fits the gradient and the output.

        Args:
            h: (1, *shape) input of the layer.

        Returns:
            The relative squared error of what the gradient says plus that of the output. A ReLU's
            output that is not known is only known not to be positive.
        """
        if self.basis is None:
            part = h[0]
        else:
            part = self.basis @ h[0].reshape(self.seen.shape[1], -1).T
        out = self.layer(h)[0]
        known = self.output.known
        wrong = self.output.trust * torch.where(known, out - self.output.value, out.relu())
        right = torch.where(known, self.output.trust * self.output.value, 0)
        tiny = torch.finfo(h.dtype).tiny
        total: Tensor = (part - self.seen).square().sum() / self.seen.square().sum().clamp_min(tiny)
        return total + wrong.square().sum() / right.square().sum().clamp_min(tiny)


def descend(
    chain: list[Layer], slopes: Mapping[str, Tensor], error: float
) -> tuple[Tensor | None, list[LayerRelations]]:
    """Go down from the last layer as long as the equations settle a layer's input.

    Args:
        chain: All layers in order; the last one is linear with a bias.
        slopes: Gradient of each parameter by name.
        error: Relative error of the gradients.

    Returns:
        The input of the chain, or None if a layer's equations do not settle its own; and what is
        known around each layer that was met, the one that stopped it last.
    """
    held: list[LayerRelations] = []
    k = len(chain) - 1
    # The slope of the last output is the gradient of its bias.
    d = slopes[f"{chain[-1].name}.bias"]
    h = d @ slopes[f"{chain[-1].name}.weight"] / d.square().sum()
    while True:
        k, output, d = before(chain, k, h, chain[k].back(d), error)
        if k < 0:
            return output.value, held
        weight = slopes[f"{chain[k].name}.weight"]
        relations, error = _relations(chain[k], k, weight, output, d, error)
        held.append(relations)
        solved = relations.solve()
        if solved is None:
            return None, held
        h = solved


def _relations(
    layer: Layer, at: int, weight: Tensor, output: Output, d: Tensor, error: float
) -> tuple[LayerRelations, float]:
    """Collect what a layer's gradient and output say.

    Args:
        layer: The layer.
        at: Its place in the chain.
        weight: Gradient of its weights.
        output: What is known of its output.
        d: The loss's slope in the output.
        error: Relative error of d.

    Returns:
        The relations, and how large an error of the input that makes, relative.
    """
    dense = isinstance(layer.module, nn.Linear)
    if not bool(d.any()):
        # The gradient vanishes and says nothing.
        n = math.prod(layer.shape[0 if dense else 1 :])
        channels = 1 if dense else layer.shape[0]
        nothing = LayerRelations(layer, at, d.new_zeros(0, n), d.new_zeros(0, channels), output)
        return nothing, error
    if dense:
        return LayerRelations(layer, at, None, d @ weight / d.square().sum(), output), error
    m = matrix(layer, d)
    u, s, v = torch.linalg.svd(m, full_matrices=False)
    r = int((s > max(CUT, NOISE * error) * s[0]).sum())
    rows = weight.permute(0, 2, 3, 1).reshape(len(m), -1)  # (o k k, c)
    found = LayerRelations(layer, at, v[:r], (u[:, :r].T @ rows) / s[:r, None], output)
    return found, error * float(s[0] / s[r - 1])


def matrix(layer: Layer, d: Tensor) -> Tensor:
    """Build M(d), by which a channel of a convolution's input is multiplied in the gradient.

    Row (o, u, v) holds d_o at the pixels that entry (u, v) of the kernel meets.

    Args:
        layer: A convolution.
        d: (o, h, w) the loss's slope in its output.

    Returns:
        (o k k, pixels).
    """
    m = layer.module
    assert isinstance(m, nn.Conv2d)
    high, wide = layer.shape[1:]
    tall, broad = layer.parameters["weight"].shape[2:]
    out = d.new_zeros(d.shape[0], tall, broad, high * wide)
    for u in range(tall):
        for v in range(broad):
            y = _met(d.shape[1], u, m, 0, d.device)
            x = _met(d.shape[2], v, m, 1, d.device)
            inside = ((y >= 0) & (y < high))[:, None] & ((x >= 0) & (x < wide))
            out[:, u, v, (y[:, None] * wide + x)[inside]] = d[:, inside]
    return out.flatten(0, 2)


def _met(n: int, k: int, m: nn.Conv2d, side: int, device: torch.device) -> Tensor:
    """Rows (or columns) of the input that entry k of the kernel meets at n rows of the output."""
    first = torch.arange(n, device=device) * m.stride[side]
    return first + k * m.dilation[side] - int(m.padding[side])
