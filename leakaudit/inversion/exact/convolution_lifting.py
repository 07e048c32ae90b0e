"""From what a layer sees to what the layer before it saw, where the gradient leaves some freedom there; linear, and exact.

Between a convolution W, normalisation by the batch and a ReLU, outputs h of two inputs that are both above zero differ by
(h_i - h_j) s = W (a_i - a_j), with one unknown s a channel: its deviation over the layer's own factor. Where a_i - a_j is known up to a
few coefficients, those and the s are the one solution of these equations.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from leakaudit.inversion.exact.convolution_patches import DROP, Layer

ON = 1e-6  # of the largest output; below it an output may be zero
UNKNOWNS = 4_096


def lifted(layer: Layer, basis: Tensor, weight: Tensor, outputs: Tensor) -> Tensor | None:
    """Inputs (b, c, h, w) of a layer less their mean and up to a factor, None where `outputs` do not determine them.

    basis: (n, k), a basis of their differences. weight: of the layer. outputs: (b, c', h', w'), behind normalisation and ReLU, up to a
    factor and to what all have in common, of which each entry is zero once.
    """
    (batch, channels), k = outputs.shape[:2], basis.shape[1]
    if (batch - 1) * k + channels > UNKNOWNS:
        return None
    options = {name: v for name, v in layer.windows.items() if name != "kernel_size"}
    made = F.conv2d(basis.T.reshape(-1, *layer.shape), weight.to(basis), **options)
    if made.shape[1:] != outputs.shape[1:]:
        return None
    made, h = made.flatten(1).T, outputs.flatten(1)
    channel = torch.arange(channels, device=h.device).repeat_interleave(outputs[0, 0].numel())
    on, rows = h > ON * h.max(), []
    for j in range(1, batch):
        both = (on[0] & on[j]).nonzero().flatten()
        row = basis.new_zeros(len(both), (batch - 1) * k + channels)
        row[:, (j - 1) * k : j * k] = made[both]
        row[torch.arange(len(both), device=h.device), (batch - 1) * k + channel[both]] = (
            h[j, both] - h[0, both]
        )
        rows.append(row)
    equations = torch.cat(rows)
    equations = equations[:, equations.abs().sum(0) > 0]
    if len(equations) < equations.shape[1] or equations.shape[1] <= (batch - 1) * k:
        return None
    _, sizes, vectors = torch.linalg.svd(equations, full_matrices=False)
    if float(sizes[-1]) > DROP * float(sizes[-2]):
        return None
    solution = vectors[-1] * vectors[-1, (batch - 1) * k :].sum().sign()
    less = torch.stack(
        [
            basis.new_zeros(len(basis)),
            *(-basis @ part for part in solution[: (batch - 1) * k].split(k)),
        ]
    )
    return (less - less.mean(0)).reshape(batch, *layer.shape)
