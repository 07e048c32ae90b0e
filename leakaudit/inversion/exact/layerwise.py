"""What the gradient of one sample says of each layer's input, from the last layer down (Zhu and Blaschko 2021, R-GAP).

With d the slope of the loss in a layer's output and h its input, a linear layer has dL/dW = d h^T, and a convolution's dL/dW is linear
in h too: the same matrix M(d) for every channel. So h is known in the row space of M(d), wholly where its rank is the number of pixels.
The layer's output is known as well (R-GAP's weight constraints), of ReLU where it is positive, and often fills what M(d) leaves open.
Then the activation before it is undone and d taken one layer further.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from leakaudit.tasks.layer_chain import Layer, Output, before

CUT = 1e-6  # singular values this small beside the largest say nothing, nor do those below 100 times the leak's error
UNKNOWN = (
    2500  # most unknowns that are left to one dense system of outputs: ten seconds on one core
)
ROWS = 3  # of it, most times as many as unknowns


@dataclass(frozen=True, eq=False)
class Relations:
    """What is known around one layer with weights.

    layer: the layer, at place `at` of the chain. basis: (r, n) orthonormal, directions of a channel of its input that are known, or None
    for all. seen: (r, c), the channels' parts in them, or the input itself. output: what is known of its output.
    """

    layer: Layer
    at: int
    basis: Tensor | None
    seen: Tensor
    output: Output

    def __str__(self) -> str:
        """Numbers that are known of how many, for a note."""
        return f"{self.layer.name}: rank {self.seen.numel()} of {math.prod(self.layer.shape)}, {int(self.output.known.sum())} outputs"

    def solve(self) -> Tensor | None:
        """Input of the layer where linear equations settle it, None where they do not (or where they are too many)."""
        if self.basis is None:
            return self.seen
        base, missing = self.basis.T @ self.seen, self.basis.shape[1] - len(self.basis)
        if missing == 0:
            return base.T.reshape(self.layer.shape)
        unknown = missing * base.shape[1]
        if isinstance(self.layer.module, nn.Linear) or unknown > min(
            UNKNOWN, int(self.output.known.sum())
        ):
            return None
        free = torch.linalg.qr(self.basis.T, mode="complete").Q[:, len(self.basis) :]
        found = self._rest(base, free)
        return None if found is None else (base + free @ found).T.reshape(self.layer.shape)

    def _rest(self, base: Tensor, free: Tensor) -> Tensor | None:
        """Coordinates (n - r, c) in the open directions of which the output is what is known; None where they are not unique."""
        missing, channels = free.shape[1], base.shape[1]
        rows = self.output.known.flatten().nonzero().flatten()
        rows = rows[:: max(1, len(rows) // (ROWS * missing * channels))]
        weight, bias = self.layer.parameters["weight"], self.layer.parameters.get("bias")
        pictures = free.T.reshape(missing, 1, *self.layer.shape[1:])
        columns = torch.cat(
            [
                self.layer.convolved(pictures, weight[:, k : k + 1]).flatten(1)[:, rows]
                for k in range(channels)
            ]
        )
        at = self.layer.convolved(base.T.reshape(1, *self.layer.shape), weight)[0]
        gap = (
            self.output.value - at if bias is None else self.output.value - at - bias[:, None, None]
        )
        trust = self.output.trust.flatten()[rows]
        q, upper = torch.linalg.qr((columns * trust).T)
        sizes = upper.diagonal().abs()
        if float(sizes.min()) < CUT * float(sizes.max()):
            return None
        rest: Tensor = torch.linalg.solve_triangular(
            upper, (q.T @ (trust * gap.flatten()[rows]))[:, None], upper=True
        )
        return rest.reshape(channels, missing).T

    def misfit(self, h: Tensor) -> Tensor:
        """Relative squared error of what the gradient says plus that of the output, for an input h (1, *shape) of the layer."""
        part = h[0] if self.basis is None else self.basis @ h[0].reshape(self.seen.shape[1], -1).T
        out, known = self.layer(h)[0], self.output.known
        wrong = self.output.trust * torch.where(known, out - self.output.value, out.relu())
        right = torch.where(known, self.output.trust * self.output.value, 0)
        tiny = torch.finfo(h.dtype).tiny
        total: Tensor = (part - self.seen).square().sum() / self.seen.square().sum().clamp_min(tiny)
        return total + wrong.square().sum() / right.square().sum().clamp_min(tiny)


def descend(
    chain: list[Layer], slopes: Mapping[str, Tensor], error: float
) -> tuple[Tensor | None, list[Relations]]:
    """Go down from the last layer as long as the equations settle a layer's input.

    slopes: gradient of each parameter. error: of them, relative. Returns the input of the chain, None where a layer's equations do not
    settle its own, and what is known around each layer that was met, the one that stopped it last.
    """
    held: list[Relations] = []
    k, d = len(chain) - 1, slopes[f"{chain[-1].name}.bias"]
    h = d @ slopes[f"{chain[-1].name}.weight"] / d.square().sum()
    while True:
        k, output, d = before(chain, k, h, chain[k].back(d), error)
        if k < 0:
            return output.value, held
        relations, error = _relations(
            chain[k], k, slopes[f"{chain[k].name}.weight"], output, d, error
        )
        held.append(relations)
        if (solved := relations.solve()) is None:
            return None, held
        h = solved


def _relations(
    layer: Layer, at: int, weight: Tensor, output: Output, d: Tensor, error: float
) -> tuple[Relations, float]:
    """Return what a layer's gradient (weight) and output say, d being the loss's slope in the output.

    error: of d, relative. Returns also how large an error of the input that makes, relative.
    """
    dense = isinstance(layer.module, nn.Linear)
    if not bool(d.any()):
        n = math.prod(layer.shape[0 if dense else 1 :])
        return Relations(
            layer, at, d.new_zeros(0, n), d.new_zeros(0, 1 if dense else layer.shape[0]), output
        ), error
    if dense:
        return Relations(layer, at, None, d @ weight / d.square().sum(), output), error
    m = matrix(layer, d)
    u, s, v = torch.linalg.svd(m, full_matrices=False)
    r = int((s > max(CUT, 100 * error) * s[0]).sum())
    rows = weight.permute(0, 2, 3, 1).reshape(len(m), -1)  # (o k k, c)
    return Relations(layer, at, v[:r], (u[:, :r].T @ rows) / s[:r, None], output), error * float(
        s[0] / s[r - 1]
    )


def matrix(layer: Layer, d: Tensor) -> Tensor:
    """M(d) (o k k, pixels): what a channel of a convolution's input is multiplied by in the gradient of the weights; d: (o, h, w)."""
    m, (high, wide) = layer.module, layer.shape[1:]
    assert isinstance(m, nn.Conv2d)
    sides = layer.parameters["weight"].shape[2:]
    out = d.new_zeros(d.shape[0], *sides, high * wide)
    for u in range(sides[0]):
        for v in range(sides[1]):
            y, x = (
                _met(n, k, m, a, d.device)
                for a, (n, k) in enumerate(zip(d.shape[1:], (u, v), strict=True))
            )
            inside = ((y >= 0) & (y < high))[:, None] & ((x >= 0) & (x < wide))
            out[:, u, v, (y[:, None] * wide + x)[inside]] = d[:, inside]
    return out.flatten(0, 2)


def _met(n: int, k: int, m: nn.Conv2d, side: int, device: torch.device) -> Tensor:
    """Rows (or columns) of the input that entry k of the kernel meets at n rows of the output."""
    return (
        torch.arange(n, device=device) * m.stride[side]
        + k * m.dilation[side]
        - int(m.padding[side])
    )
