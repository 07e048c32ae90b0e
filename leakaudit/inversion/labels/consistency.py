"""Labels of inputs with known pixels, from equations only."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from leakaudit.inversion.exact import first_layer_rows
from leakaudit.inversion.labels import label_signs
from leakaudit.inversion.linear import least_squares, positive

if TYPE_CHECKING:
    from leakaudit.core.leak import GradientLeak
    from leakaudit.tasks.task import Task

# If the models are known, every label is tried. Otherwise, the signs of the last bias's gradient
# reveal it, which can also be computed from differences of gradients (`residual_from_differences`).

# Maximum ratio of the smallest eigenvalue to the next. Above it, the planes do not intersect in one
# line, and no label is reported.
CLEAR = 1e-2

# Maximum ratio of the misfit of the best label to that of the next, for the label to be reported.
# The misfit of a wrong one is of the size of a gradient.
BETTER = 0.5

# The last layer's gradient is sum_t c_t sum_k (p_kt - e_{y_k}) h_kt^T / b, with p the softmax and h
# the features of sample k at model t. Models and inputs determine p and h, so the labels are the
# solution of linear equations, and the correct ones are unit vectors.

# Maximum distance of an entry of a solution from that of a unit vector: half of what would round it
# incorrectly.
UNIT = 0.25

# Number of rows of the leak to use, the largest ones. A choice: without noise, one would suffice.
ROWS = 4


def label(leak: GradientLeak, task: Task, x: Tensor) -> Tensor | None:
    """Find the label (1,) of a single known input; None if the leak does not determine it.

    If the models are known, it is the one whose gradients fit; otherwise, the one that the last
    layer's rows reveal.
    """
    if task.spec.loss != "cross_entropy":
        return None
    if leak.theta is not None and leak.inner == 1:
        return _by_candidates(leak, task, x)
    if leak.is_plain:
        return label_signs.from_gradient(leak, task)
    return _by_differences(leak, task)


def _by_candidates(leak: GradientLeak, task: Task, x: Tensor) -> Tensor | None:
    """Try every class on the strongest row of the leak."""
    assert leak.theta is not None
    row = int(leak.value.norm(dim=1).argmax())
    used = leak.combination[row].nonzero().flatten()
    value = leak.value[row].double()
    models = leak.theta[used].double()
    misfit: list[float] = []
    for c in range(task.spec.classes):
        y = torch.tensor([c], device=x.device)
        g = torch.stack([task.gradient(w, x.double(), y) for w in models])
        found = leak.combination[row, used].to(g) @ g[:, slice(*leak.columns)]
        misfit.append(float((found - value).norm()))
    best, second = sorted(misfit)[:2]
    return torch.tensor([misfit.index(best)]) if best < BETTER * second else None


def _by_differences(leak: GradientLeak, task: Task) -> Tensor | None:
    """Read the label from the sign of q = p - e_y, which follows from differences."""
    layer = task.last_linear
    if layer is None or first_layer_rows.not_leaked(leak, task, layer):
        return None
    rows = first_layer_rows.entries(leak.value.double(), leak, task, layer)
    inverse = torch.linalg.pinv(leak.combination.double())
    q = residual_from_differences(inverse, rows[..., :-1], rows[..., -1])
    return None if q is None else label_signs.from_bias(q)


def residual_from_differences(inverse: Tensor, weight: Tensor, bias: Tensor) -> Tensor | None:
    """Compute q = p - e_y of the first gradient from combinations of last-layer gradients.

    Relative to the first gradient, round t gives b^t = q^t - q and M^t = q^t h^{tT} - q h^T.
    The columns of M^t lie in span{b^t, q}: q is the one direction v that all these planes
    share, and its length kappa follows from the columns' coordinates in b^t and v, alpha = h^t
    and beta = kappa (h^t - h). At least four classes are necessary: the q sum to zero, so with
    three, all planes coincide and reveal nothing. `inverse` (T, m) is the combination's
    pseudo-inverse. None if the planes do not intersect in one line.
    """
    if bias.shape[1] < 4:
        return None
    m = torch.einsum("tm,mch->tch", inverse, weight)
    b = inverse @ bias
    m = (m - m[:1])[1:]
    b = (b - b[:1])[1:]
    left, size, _ = torch.linalg.svd(m, full_matrices=False)
    left = left[:, :, :2]
    size = size[:, :2]
    if not bool((size > 0).all()) or len(m) < 2:
        return None
    # v minimises its part outside all planes; the weight of a plane reflects how clear its second
    # direction is.
    trust = (size[:, 1] / size[:, 1].max()) ** 2
    outside = torch.eye(m.shape[1], dtype=m.dtype) - left @ left.mT
    values, vectors = torch.linalg.eigh((trust[:, None, None] * outside).sum(0))
    if values[0] > CLEAR * values[1]:
        return None
    v = vectors[:, 0]
    planes = torch.stack([b, v.expand_as(b)], dim=2)
    coordinates = least_squares(planes, m)  # (T, 2, H)
    # The difference of two rounds eliminates the unknown h: alpha = h^t - h^s, and beta is kappa
    # times it.
    first, second = trust.topk(2).indices
    alpha = coordinates[first, 0] - coordinates[second, 0]
    beta = coordinates[first, 1] - coordinates[second, 1]
    q: Tensor = (alpha @ beta) / positive(alpha @ alpha) * v
    return q


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
