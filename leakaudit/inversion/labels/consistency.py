"""The label of one input, from equations alone: by sign from a gradient, by consistency from differences."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from leakaudit.inversion.labels import label_signs

if TYPE_CHECKING:
    from leakaudit.leak import GradientLeak
    from leakaudit.tasks.task import Task

CLEAR = 1e-2  # the least singular value must stay this far below the next, else the label is not claimed


def label(leak: GradientLeak, task: Task, x: Tensor) -> Tensor | None:
    """Return the label (1,) of a single known input x (1, *shape), None where the leak does not settle it.

    With the models known, the label whose gradients fit; else what the last layer's rows say.
    """
    if task.spec.loss != "cross_entropy":
        return None
    if leak.theta is not None and leak.inner == 1:
        return _by_candidates(leak, task, x)
    return label_signs.from_gradient(leak, task) if leak.is_plain else _by_differences(leak, task)


def _by_candidates(leak: GradientLeak, task: Task, x: Tensor) -> Tensor | None:
    """Try every class on the strongest row of the leak; a wrong one misses by the size of a gradient."""
    row = int(leak.value.norm(dim=1).argmax())
    used = leak.combination[row].nonzero().flatten()
    if leak.theta is None:
        return None
    value, models, misfit = leak.value[row].double(), leak.theta[used].double(), []
    for c in range(task.spec.classes):
        y = torch.tensor([c], device=x.device)
        g = torch.stack([task.gradient(w, x.double(), y) for w in models])
        misfit.append(
            float((leak.combination[row, used].to(g) @ g[:, slice(*leak.columns)] - value).norm())
        )
    best, second = sorted(misfit)[:2]
    return torch.tensor([misfit.index(best)]) if best < 0.5 * second else None


def _by_differences(leak: GradientLeak, task: Task) -> Tensor | None:
    """Read q = p - e_y of the last layer off its differences; its sign is the label."""
    if task.last_linear is None or task.last_linear[1] is None:
        return None
    weight, bias = (task.layout.slices[n] for n in task.last_linear if n)
    start, stop = leak.columns
    if weight.start < start or bias.stop > stop:
        return None
    b = leak.value[:, bias.start - start : bias.stop - start].double()
    w = (
        leak.value[:, weight.start - start : weight.stop - start]
        .double()
        .reshape(len(b), b.shape[1], -1)
    )
    q = residual_from_differences(torch.linalg.pinv(leak.combination.double()), w, b)
    return None if q is None else label_signs.from_bias(q)


def residual_from_differences(inverse: Tensor, weight: Tensor, bias: Tensor) -> Tensor | None:
    """Return q = p - e_y (C,) of the first gradient of one sample, from combinations of last-layer gradients alone.

    inverse: (T, m) pseudo-inverse of the combination; weight: (m, C, H); bias: (m, C). Relative to the first gradient,
    round t shows b^t = q^t - q and M^t = q^t h^{tT} - q h^T. The columns of M^t lie in span{b^t, q}: q is the one direction
    v that all these planes share, and its length kappa follows from the columns' coordinates in b^t and v, alpha = h^t
    and beta = kappa (h^t - h). Four classes at least: the q sum to zero, and planes in a plane say nothing.
    None where the planes do not meet in one line.
    """
    if bias.shape[1] < 4:
        return None
    m = torch.einsum("tm,mch->tch", inverse, weight)
    b = inverse @ bias
    m, b = (m - m[:1])[1:], (b - b[:1])[1:]
    left, size, _ = torch.linalg.svd(m, full_matrices=False)
    left, size = left[:, :, :2], size[:, :2]
    if not bool((size > 0).all()) or len(m) < 2:
        return None
    trust = (size[:, 1] / size[:, 1].max()) ** 2
    outside = torch.eye(m.shape[1], dtype=m.dtype) - left @ left.mT
    values, vectors = torch.linalg.eigh((trust[:, None, None] * outside).sum(0))
    if values[0] > CLEAR * values[1]:
        return None
    v = vectors[:, 0]
    coordinates = torch.linalg.lstsq(
        torch.stack([b, v.expand_as(b)], dim=2), m, driver="gelsd"
    ).solution  # (T, 2, H)
    best = trust.topk(2).indices
    alpha, beta = (
        coordinates[best[0], 0] - coordinates[best[1], 0],
        coordinates[best[0], 1] - coordinates[best[1], 1],
    )
    q: Tensor = (alpha @ beta) / (alpha @ alpha).clamp_min(torch.finfo(m.dtype).tiny) * v
    return q
