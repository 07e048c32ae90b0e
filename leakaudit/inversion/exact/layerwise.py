"""What the gradient of one sample reveals about each layer's input, from the last layer: R-GAP."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from leakaudit.inversion.exact.chain_pieces import places
from leakaudit.inversion.linear import positive
from leakaudit.tasks.activations import Inverse
from leakaudit.tasks.layer_chain import Layer, before

# Zhu and Blaschko 2021. Let d be the slope of the loss in a layer's output and h the layer's input.
#
# * A linear layer has dL/dW = d h^T, so h = d^T dL/dW / |d|^2 exactly.
# * The dL/dW of a convolution is linear in h, too: the same matrix M(d) for every channel
#   (`matrix`). Therefore h is known in the row space of M(d), and completely if the rank of M(d)
#   equals the number of pixels: the paper's gradient constraints.
# * The layer's output is known as well, from the layer above: for ReLU, where it is positive. That
#   W h + b equals it often determines what M(d) leaves open: the paper's weight constraints.
#
# Then the activation before the layer is inverted, d is propagated one layer further, and so on
# down to the input of the network. If the equations of a layer are not sufficient, the descent
# stops and returns what is known there for a search (attacks/rgap.py).

# Singular values below this share of the largest contain no information. Errors of 1e-16 in float64
# grow to 1e-10 of the input at this point, and further in the next layers.
CUT = 1e-6

# The same applies to singular values below this multiple of the leak's own relative error: what the
# others contribute is known to within one per cent.
NOISE = 100

# Maximum number of unknowns of one dense system of outputs: ten seconds on one core.
UNKNOWN = 2500

# Maximum number of rows of that system, in units of its unknowns. A choice: more rows average more.
ROWS = 3


@dataclass(frozen=True, eq=False)
class LayerRelations:
    """What is known around one layer with weights."""

    layer: Layer
    at: int  # its index in the chain
    # (r, n) orthonormal, the known directions of a channel of its input, or None for all
    basis: Tensor | None
    seen: Tensor  # (r, c) the channels' components along them, or the input itself
    output: Inverse  # what is known about its output, and the slope of the loss in it

    def __str__(self) -> str:
        """Describe how many numbers are known, for a note."""
        return (
            f"{self.layer.name}: rank {self.seen.numel()} of {math.prod(self.layer.shape)}, "
            f"{int(self.output.known.sum())} outputs"
        )

    def solve(self) -> Tensor | None:
        """Solve for the layer's input; None if it is not determined, or has too many unknowns."""
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
        """Solve for what the gradient leaves open, by known outputs: (n - r, c) along `free`."""
        missing = free.shape[1]
        channels = base.shape[1]
        rows = self.output.known.flatten().nonzero().flatten()
        rows = rows[:: max(1, len(rows) // (ROWS * missing * channels))]
        weight = self.layer.parameters["weight"]
        bias = self.layer.parameters.get("bias")
        # Column (k, i) of the system: the outputs caused by open direction i in channel k.
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
        """Measure how badly an input (1, *shape) fits the gradient and the output."""
        if self.basis is None:
            part = h[0]
        else:
            part = self.basis @ h[0].reshape(self.seen.shape[1], -1).T
        out = self.layer(h)[0]
        known = self.output.known
        wrong = self.output.trust * torch.where(known, out - self.output.value, out.relu())
        right = torch.where(known, self.output.trust * self.output.value, 0)
        total: Tensor = (part - self.seen).square().sum() / positive(self.seen.square().sum())
        return total + wrong.square().sum() / positive(right.square().sum())


def descend(
    chain: list[Layer], slopes: Mapping[str, Tensor], error: float
) -> tuple[Tensor | None, list[LayerRelations]]:
    """Descend from the last layer, linear with bias, as long as equations determine the inputs.

    Returns the input of the chain, None if it is not determined; and what is known around each
    layer visited, ending with the one that stopped the descent.
    """
    held: list[LayerRelations] = []
    k = len(chain) - 1
    # The slope of the last output is the gradient of its bias.
    d = slopes[f"{chain[-1].name}.bias"]
    h = d @ slopes[f"{chain[-1].name}.weight"] / d.square().sum()
    while True:
        k, output = before(chain, k, h, chain[k].back(d), error)
        if k < 0:
            return output.value, held
        weight = slopes[f"{chain[k].name}.weight"]
        relations, error = _relations(chain[k], k, weight, output, error)
        held.append(relations)
        solved = relations.solve()
        if solved is None:
            return None, held
        h = solved
        d = output.slope


def _relations(
    layer: Layer, at: int, weight: Tensor, output: Inverse, error: float
) -> tuple[LayerRelations, float]:
    """Collect what is known from a layer's gradient and output, and the error of its input."""
    d = output.slope
    dense = isinstance(layer.module, nn.Linear)
    if not bool(d.any()):
        # The gradient vanishes and contains no information.
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
    """Build M(d), which multiplies a channel of a convolution's input in the gradient.

    Row (o, u, v) contains d_o, for slopes d (o, h, w) in the outputs, at the pixels that entry
    (u, v) of the kernel is applied to.
    """
    m = layer.module
    assert isinstance(m, nn.Conv2d)
    pixels = math.prod(layer.shape[1:])
    entries = places(m, (1, *layer.shape[1:])).T.to(d.device)  # (k k, positions)
    out = d.new_zeros(len(d), len(entries), pixels + 1)
    # What is outside the image goes into the last column, which is left out.
    column = (entries % (pixels + 1)).expand(len(d), -1, -1)
    out.scatter_(2, column, d.flatten(1)[:, None].expand_as(column))
    return out[:, :, :-1].flatten(0, 1)
