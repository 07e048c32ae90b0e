"""The losses, and their derivatives with respect to the model's outputs."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from leakaudit.core.errors import LeakauditError

LOSSES = ("cross_entropy", "binary", "squared", "next_token")
NEXT_TOKEN = "next_token"


def mean_loss(loss: str, out: Tensor, y: Tensor) -> Tensor:
    """Return the mean loss over a batch.

    Args:
        loss: One of `LOSSES`; ``squared`` is half the squared error, summed over outputs;
            ``next_token`` is the mean cross-entropy over all positions of all records.
        out: Outputs (b, k), and (b, length, k) for ``next_token``; k is 1 for ``binary``.
        y: Labels (b,) int64 or (b, k) soft for ``cross_entropy``, (b,) in [0, 1] for ``binary``,
            (b,) or (b, k) floats for ``squared``, and `next_tokens` for ``next_token``.
    """
    if loss == NEXT_TOKEN:
        return F.cross_entropy(out.flatten(0, -2), y.flatten().long())
    if loss == "cross_entropy":
        return F.cross_entropy(out, y.to(out.dtype) if y.is_floating_point() else y.long())
    if loss == "binary":
        return F.binary_cross_entropy_with_logits(out.squeeze(-1), y.to(out.dtype))
    return 0.5 * (out - _targets(out, y)).square().sum(-1).mean()


def _targets(out: Tensor, y: Tensor) -> Tensor:
    """Return real targets in the shape of a model's outputs."""
    if y.numel() != out.numel():
        raise LeakauditError(
            f"loss 'squared': expected {out.shape[-1]} targets for each record, as many as the "
            f"model has outputs, got {y.numel() // max(1, math.prod(out.shape[:-1]))}"
        )
    return y.to(out.dtype).reshape(out.shape)


def next_tokens(x: Tensor, y: Tensor) -> Tensor:
    """Return the targets (b, length): the token at the next position, and y at the last."""
    return torch.cat([x[:, 1:].long(), y.long().unsqueeze(1)], dim=1)


def correct(loss: str, out: Tensor, x: Tensor, y: Tensor, labels: str = "classes") -> Tensor:
    """Return which labels a model's outputs name, (b,) bool; (b, length) for ``next_token``.

    Args:
        labels: What real targets stand for: ``signs`` or ``one-hot``.
    """
    if labels == "signs":
        return (out.squeeze(-1) > 0) == (y > 0)
    if loss == "binary":
        return (out.squeeze(-1) > 0) == (y > 0.5)
    if loss == NEXT_TOKEN:
        return out.argmax(-1) == next_tokens(x, y)
    return out.argmax(-1) == (y.argmax(-1) if y.is_floating_point() else y)


def output_slope(loss: str, out: Tensor, y: Tensor) -> Tensor:
    """Return the derivative (N, b, k) of each node's `mean_loss` in its outputs (N, b, k)."""
    b = out.shape[1]
    if loss == "binary":
        return (out.sigmoid() - y.to(out.dtype).unsqueeze(-1)).div_(b)
    if loss == "squared":
        return (out - _targets(out, y)).div_(b)
    if y.is_floating_point():
        # Soft labels need not sum to 1: d/dz of -sum_k y_k log softmax(z)_k is softmax(z) sum_k
        # y_k - y.
        soft = y.to(out.dtype)
        return (out.softmax(-1) * soft.sum(-1, keepdim=True) - soft).div_(b)
    probabilities = out.softmax(-1)
    minus_one = probabilities.new_full((*y.shape, 1), -1.0)
    return probabilities.scatter_add(-1, y.long().unsqueeze(-1), minus_one).div_(b)
