"""Labels of a batch whose inputs are known, from the last layer's gradients at known models.

The last layer shows sum_t c_t sum_k (p_kt - e_{y_k}) h_kt^T / b. Models and inputs give p and h, so the labels are the solution of
linear equations, and the right ones come out as unit vectors.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from leakaudit.leak import GradientLeak
    from leakaudit.tasks.task import Task

UNIT = 0.25  # how far a solution may be from a unit vector
ROWS = 4  # rows of the leak that are used


def labels(leak: GradientLeak, task: Task, x: Tensor) -> Tensor | None:
    """Return the labels (b,) of known inputs x (b, *shape), None where the models are not known or the equations do not settle them.

    Needs cross-entropy, a last linear layer with a bias, single gradients (inner = 1) and all samples of the batch, each once.
    """
    if (
        leak.theta is None
        or leak.inner > 1
        or task.spec.loss != "cross_entropy"
        or task.last_linear is None
        or task.last_linear[1] is None
    ):
        return None
    weight, bias = (task.layout.slices[n] for n in task.last_linear if n)
    if (
        leak.columns[0] > weight.start
        or leak.columns[1] < bias.stop
        or (leak.batch is not None and leak.batch != len(x))
    ):
        return None
    rows = leak.value.norm(dim=1).topk(min(ROWS, len(leak.value))).indices
    used = leak.combination[rows].count_nonzero(dim=0).nonzero().flatten()
    c = leak.combination[rows][:, used].double()
    theta, classes = leak.theta[used].double(), task.spec.classes
    probability, feature = _forward(task, theta, x.double(), weight, bias)
    decay = task.l2 * (c @ theta)[:, weight] if task.l2 else 0.0
    value = (
        leak.value[rows].double()[:, weight.start - leak.columns[0] : weight.stop - leak.columns[0]]
        - decay
    )
    explained = torch.einsum("mt,tkc,tkh->mch", c, probability, feature) / len(x)
    left = (explained - value.reshape(len(rows), classes, -1)) * len(x)  # sum_k e_{y_k} f_k^T
    f = torch.einsum("mt,tkh->kmh", c, feature).flatten(1)
    if not bool(f.isfinite().all() and left.isfinite().all()):
        return None  # a saturated output shows no feature
    y = torch.linalg.lstsq(f.T, left.permute(0, 2, 1).flatten(0, 1), driver="gelsd").solution
    best = y.argmax(1)
    off = (y - torch.nn.functional.one_hot(best, classes)).abs().amax()
    return best if float(off) < UNIT else None


def _forward(
    task: Task, theta: Tensor, x: Tensor, weight: slice, bias: slice
) -> tuple[Tensor, Tensor]:
    """Return p (t, b, C) and the last layer's inputs (t, b, H): the gradient of one sample with label 0 is (p - e_0) h^T and p - e_0."""
    zero = torch.zeros(1, dtype=torch.long, device=x.device)
    g = torch.stack([torch.stack([task.gradient(w, one[None], zero) for one in x]) for w in theta])
    if task.l2:
        g = g - task.l2 * theta[:, None]
    q = g[..., bias]
    matrix = g[..., weight].reshape(*q.shape, -1)
    feature = torch.einsum("tkc,tkch->tkh", q, matrix) / q.square().sum(-1, keepdim=True)
    first = torch.zeros_like(q)
    first[..., 0] = 1
    return q + first, feature
