"""The number of samples of each class in a batch, from the last layer's gradient."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Generator, Tensor

from leakaudit.core.errors import AttackError
from leakaudit.inversion.linear import least_squares, positive
from leakaudit.inversion.search import priors

if TYPE_CHECKING:
    from leakaudit.core.leak import GradientLeak
    from leakaudit.tasks.task import Task

# A batch of B samples with features h_k and q_k = p_k - e_{y_k} has the last layer's gradients dW =
# 1/B sum_k q_k h_k^T and db = 1/B sum_k q_k. Therefore B db = sum_k p_k - n: the counts n follow
# once the mean of the softmax is known. This file contains the published methods, one function
# each, and one developed for leakaudit (`pooled`). Loss ``binary`` is treated as two classes with
# logits (0, z).

# Singular values below this share of the largest are rounding errors in float64.
ROUNDING = 1e-10

# Value added to a class's count n before its information about the common features is weighted by
# 1/n. A choice: an absent class has five times the weight of one with a sample.
TRUST = 0.2

# Iterations of `pooled`, each of which uses half of the new estimate: 2^-30 of the initial error
# remains.
STEPS = 30

# A class with a count above this has its own features, and counts below `ONE` are replaced by it as
# divisors: estimates for absent classes are near 0, those for others near 1 or more.
PRESENT = 0.25
ONE = 0.5

# Number of batches of one class that `dummies` evaluates, in total for all classes; at least one
# each.
DUMMIES = 10


@dataclass(frozen=True)
class LastLayer:
    """The last layer."""

    weight: Tensor  # (C, H) gradient of its weights
    bias: Tensor | None = None  # (C,) gradient of its bias, or None
    matrix: Tensor | None = None  # (C, H) its weights; None if unknown
    shift: Tensor | None = None  # (C,) its bias; None if unknown

    @property
    def classes(self) -> int:
        """The number C of classes."""
        return len(self.weight)

    @property
    def whole(self) -> bool:
        """Whether `ilrg` and `pooled` can use this layer."""
        return self.bias is not None and self.matrix is not None


def plain(leak: GradientLeak, task: Task, row: int) -> Tensor:
    """Return the gradient (c,) in one plain row, without weight decay, in float64 on the CPU.

    For a local training, it is the weighted mean of the steps.
    """
    scale = leak.combination[row].double()
    steps = leak.inner if leak.inner_weight is None else leak.inner_weight
    value = leak.value[row].double() * float(scale.sum().sign()) / steps
    if task.l2 and leak.theta is not None:
        model = scale.abs().to(leak.theta.double()) @ leak.theta.double()
        value = value - task.l2 * model[slice(*leak.columns)].to(value)
    return value.cpu()


def part(leak: GradientLeak, task: Task, value: Tensor, name: str | None) -> Tensor | None:
    """Return one parameter of a gradient (c,) in its own shape; None if it has not leaked."""
    if name is None:
        return None
    at = task.layout.slices[name]
    start, stop = leak.columns
    if at.start < start or at.stop > stop:
        return None
    shape = task.layout.shapes[task.layout.names.index(name)]
    return value[at.start - start : at.stop - start].reshape(shape)


def of(leak: GradientLeak, task: Task, row: int) -> LastLayer | None:
    """Return the last layer in one plain row of a leak; None if the row does not contain it."""
    value = plain(leak, task, row)
    if task.last_linear is None or task.spec.loss == "squared":
        return None
    weight = part(leak, task, value, task.last_linear[0])
    if weight is None:
        return None
    bias = part(leak, task, value, task.last_linear[1])
    matrix: Tensor | None = None
    shift: Tensor | None = None
    if leak.theta is not None:
        model = leak.theta[int(leak.combination[row].abs().argmax())].double().clone()
        if leak.inner > 1 and leak.step is not None:
            model[slice(*leak.columns)] -= 0.5 * leak.step * leak.inner * value.to(model)
        parts = task.layout.split(model)
        matrix, shift = (parts[n].cpu() if n else None for n in task.last_linear)
    if len(weight) > 1:
        return LastLayer(weight, bias, matrix, shift)
    # Logits (0, z): the first class has no parameters; its gradient is that of the second, negated.
    return LastLayer(torch.cat([-weight, weight]), _two(bias, -1), _two(matrix, 0), _two(shift, 0))


def by_rows(head: LastLayer) -> Tensor:
    """Find classes (C,) whose row of dW has a negative sum (Zhao et al. 2020, eq. 5); h >= 0."""
    return head.weight.sum(1) < 0


def by_bias(head: LastLayer) -> Tensor:
    """Find classes (C,) with a negative entry of db; others may be in the batch as well."""
    return _bias(head) < 0


def yin(head: LastLayer, batch: int) -> Tensor:
    """Count 1 for the classes with the lowest entries of dW (Yin et al. 2021, GradInversion)."""
    n = torch.zeros(head.classes, dtype=torch.int64)
    n[head.weight.amin(1).argsort()[:batch]] = 1
    return n


def rlg(head: LastLayer) -> Tensor:
    """Find classes that a hyperplane separates from all others (Dang et al. 2021, RLG).

    One linear program per class: is there a vector v with plane_c v <= -1 and plane_i v >= 0
    for all others, in dW's column space? No class of the batch is missed; if the batch size
    approaches C, other classes are included as well.
    """
    from scipy.optimize import linprog

    left, size, _ = torch.linalg.svd(head.weight, full_matrices=False)
    plane = left[:, size > ROUNDING * size[0]].numpy()
    found: list[bool] = []
    for c in range(head.classes):
        above = -plane
        least = np.zeros(head.classes)
        above[c] = plane[c]
        least[c] = -1.0
        program = linprog(
            np.zeros(plane.shape[1]),
            A_ub=above,
            b_ub=least,
            bounds=(None, None),
            method="highs",
        )
        found.append(program.status == 0)
    return torch.tensor(found)


def llg(
    head: LastLayer, batch: int, impact: float | None = None, offset: Tensor | None = None
) -> Tensor:
    """Count with the sums g of dW's rows (Wainakh et al. 2022, LLG), for features h >= 0.

    Each sample reduces the sum of its class by `impact`, (1 + 1/C) / B times the negative sums
    by default. First, every class with a negative sum is assigned one sample. Then, after
    subtracting `offset` (C,) from the sums, the lowest sum is assigned the next sample until
    there are `batch`.
    """
    g = head.weight.sum(1).clone()
    step = impact
    if step is None:
        step = float(g.clamp(max=0).sum()) * (1 + 1 / head.classes) / batch
    n = torch.zeros(head.classes, dtype=torch.int64)
    for c in g.argsort()[: min(batch, int((g < 0).sum()))].tolist():
        n[c] += 1
        g[c] -= step
    if offset is not None:
        g = g - offset
    while int(n.sum()) < batch:
        c = int(g.argmin())
        n[c] += 1
        g[c] -= step
    return n


def dummies(task: Task, theta: Tensor, batch: int, generator: Generator) -> tuple[float, Tensor]:
    """Estimate impact and offset of `llg` from batches of noise, each of one class (LLG*)."""
    columns = task.layout.slices[(task.last_linear or ("",))[0]]
    classes = task.spec.classes
    own: list[Tensor] = []
    others: list[Tensor] = []
    for c in range(classes):
        for _ in range(max(1, DUMMIES // classes)):
            x = priors.start(task, batch, generator, "uniform", theta.dtype)
            y = torch.full((batch,), c, device=task.device)
            g = task.gradient(theta, x, y)[columns].reshape(classes, -1).sum(1)
            own.append(g[c] / batch)
            mine = torch.arange(len(g), device=g.device) == c
            others.append(torch.where(mine, torch.nan, g))
    impact = float(torch.stack(own).mean()) * (1 + 1 / classes)
    return impact, torch.stack(others).nanmean(0).cpu()


def ilrg(head: LastLayer, batch: int) -> Tensor:
    """Count (C,), not in whole numbers, with features of each class (Ma et al. 2023, iLRG).

    Features of class c are estimated as dW_c / db_c. With P the softmax of these features, one
    row per class, (P^T - I) n = B db and sum n = B determine n.
    """
    matrix, shift = _model(head)
    bias = _bias(head)
    features = head.weight / torch.where(bias == 0, torch.inf, bias)[:, None]
    p = (features @ matrix.T + shift).softmax(1)
    return _solve(p, batch * bias[:, None], bias.new_tensor([batch]))[:, 0]


def pooled(head: LastLayer, batch: int) -> Tensor:
    """Count (C,) with features that all classes determine jointly; developed for leakaudit.

    With P as in iLRG, and D_c the total deviation of the features of class c from the common h,
    B dW - B db h^T = (P^T - I) D and sum_c D_c = 0. All classes together determine h: it
    minimises sum_c |D_c|^2 / n_c, so that classes that are rare or absent, whose rows of dW
    reveal h itself, have the largest weight. Then P = softmax(W (h + D_c / n_c) + b), and so on
    until h, D, P and n agree. iLRG instead divides single rows, which is wrong if n_c is close
    to B p_c.
    """
    matrix, shift = _model(head)
    bias = _bias(head)
    h = bias @ head.weight / positive(bias.square().sum())
    p = (matrix @ h + shift).softmax(0).expand(head.classes, -1)
    # Three right-hand sides at once: D = u - v h^T is linear in h, and n has the same equations as
    # v.
    known = batch * torch.cat([head.weight, bias[:, None], bias[:, None]], dim=1)
    total = torch.cat([torch.zeros_like(known[0, :-1]), known.new_tensor([batch])])
    for _ in range(STEPS):
        solved = _solve(p, known, total)
        u = solved[:, :-2]
        v = solved[:, -2]
        n = solved[:, -1]
        trust = 1 / (n.clamp_min(0) + TRUST)
        h = (trust * v) @ u / positive((trust * v.square()).sum())
        own = (u - v[:, None] * h) / n.clamp_min(ONE)[:, None]
        apart = torch.where((n > PRESENT)[:, None], own, 0.0)
        p = 0.5 * p + 0.5 * ((h + apart) @ matrix.T + shift).softmax(1)
    return _solve(p, known[:, -1:], total[-1:])[:, 0]


def whole(real: Tensor, batch: int) -> Tensor:
    """Round counts so that they sum to the batch: the method of largest remainders."""
    n = real.double().nan_to_num(0.0).clamp_min(0)
    if float(n.sum()) > 0:
        n = n * (batch / n.sum())
    else:
        n = torch.full_like(n, batch / len(n))
    k = n.floor()
    missing = round(batch - float(k.sum()))
    k[(n - k).argsort(descending=True, stable=True)[:missing]] += 1
    return k.long()


def _model(head: LastLayer) -> tuple[Tensor, Tensor]:
    """Return weights and bias of the last layer; a bias of zero if it has none."""
    if head.matrix is None:
        raise AttackError(
            "labels: this method requires the model at which the gradient was computed; use llg"
        )
    if head.shift is None:
        return head.matrix, head.matrix.new_zeros(head.classes)
    return head.matrix, head.shift


def _bias(head: LastLayer) -> Tensor:
    if head.bias is None:
        raise AttackError("labels: this method requires a last layer with bias; use llg")
    return head.bias


def _solve(p: Tensor, known: Tensor, total: Tensor) -> Tensor:
    """Solve (P^T - I) z = known (C, m) with sums `total` (m,); the shortest z if several fit."""
    left = torch.cat([p.T - torch.eye(len(p), dtype=p.dtype), p.new_ones(1, len(p))])
    right = torch.cat([known, total[None]])
    return least_squares(left, right)


def _two(t: Tensor | None, sign: int) -> Tensor | None:
    """Convert one row of loss ``binary`` into two, the first of which is `sign` times it."""
    return None if t is None else torch.cat([sign * t, t])
