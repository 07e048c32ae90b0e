"""Labels of a batch whose inputs are known, from the last layer's gradients at known models."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from leakaudit.inversion.exact import first_layer_rows
from leakaudit.inversion.linear import least_squares

if TYPE_CHECKING:
    from leakaudit.core.leak import GradientLeak
    from leakaudit.tasks.task import Task

# The last layer's gradient is sum_t c_t sum_k (p_kt - e_{y_k}) h_kt^T / b, with p the softmax and h
# the features of sample k at model t. Models and inputs determine p and h, so the labels are the
# solution of linear equations, and the correct ones are unit vectors.

# Maximum distance of an entry of a solution from that of a unit vector: half of what would round it
# incorrectly.
UNIT = 0.25

# Number of rows of the leak to use, the largest ones. A choice: without noise, one would suffice.
ROWS = 4


def labels(leak: GradientLeak, task: Task, x: Tensor) -> Tensor | None:
    """Solve for the labels (b,) of known inputs (b, *shape).

    Requires cross-entropy, a last linear layer with bias, single gradients (inner = 1) and all
    samples of the batch, each once. None if the equations do not determine the labels.
    """
    if leak.theta is None or leak.inner > 1 or task.spec.loss != "cross_entropy":
        return None
    layer = task.last_linear
    if layer is None or first_layer_rows.not_leaked(leak, task, layer):
        return None
    weight, bias = (task.layout.slices[n] for n in layer if n)
    start = leak.columns[0]
    if leak.batch is not None and leak.batch != len(x):
        return None
    rows = leak.value.norm(dim=1).topk(min(ROWS, len(leak.value))).indices
    used = leak.combination[rows].count_nonzero(dim=0).nonzero().flatten()
    c = leak.combination[rows][:, used].double()
    theta = leak.theta[used].double()
    classes = task.spec.classes
    probability, feature = _forward(task, theta, x.double(), weight, bias)
    value = leak.value[rows].double()[:, weight.start - start : weight.stop - start]
    value = value - (task.l2 * (c @ theta)[:, weight] if task.l2 else 0.0)
    # With f_k = sum_t c_t h_kt, the remainder of the rows is sum_k e_{y_k} f_k^T.
    explained = torch.einsum("mt,tkc,tkh->mch", c, probability, feature) / len(x)
    left = (explained - value.reshape(len(rows), classes, -1)) * len(x)
    f = torch.einsum("mt,tkh->kmh", c, feature).flatten(1)
    if not bool(f.isfinite().all() and left.isfinite().all()):
        return None  # a saturated output does not reveal the features
    y = least_squares(f.T, left.permute(0, 2, 1).flatten(0, 1))
    best = y.argmax(1)
    off = (y - torch.nn.functional.one_hot(best, classes)).abs().amax()
    return best if float(off) < UNIT else None


def _forward(
    task: Task, theta: Tensor, x: Tensor, weight: slice, bias: slice
) -> tuple[Tensor, Tensor]:
    """Compute the softmax (t, b, C) and the last layer's inputs (t, b, H) at every model.

    The gradient of one sample with label 0 is (p - e_0) h^T for the weights and p - e_0 for the
    bias.
    """
    zero = torch.zeros(1, dtype=torch.long, device=x.device)
    each: list[Tensor] = []
    for w in theta:
        each.append(torch.stack([task.gradient(w, one[None], zero) for one in x]))
    g = torch.stack(each)
    if task.l2:
        g = g - task.l2 * theta[:, None]
    q = g[..., bias]
    matrix = g[..., weight].reshape(*q.shape, -1)
    feature = torch.einsum("tkc,tkch->tkh", q, matrix) / q.square().sum(-1, keepdim=True)
    first = torch.zeros_like(q)
    first[..., 0] = 1
    return q + first, feature
