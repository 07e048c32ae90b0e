"""How many samples of each class a batch holds, from the last layer's gradient: the field's methods, one function each, and ours.

A batch of B samples with features h_k and q_k = p_k - e_{y_k} has the last layer's gradients dW = 1/B sum_k q_k h_k^T and
db = 1/B sum_k q_k, so B db = sum_k p_k - n: the counts n are known as soon as the mean of the softmax is. Loss ``binary`` is read as
two classes with logits (0, z).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Generator, Tensor

from leakaudit.errors import AttackError
from leakaudit.inversion.search import priors

if TYPE_CHECKING:
    from leakaudit.leak import GradientLeak
    from leakaudit.tasks.task import Task

ROUNDING = 1e-10  # singular values below this share of the largest one are rounding
TRUST = 0.2  # added to a class's count before it becomes the weight 1/n of what that class says of the common features
STEPS = 30  # of `pooled`; half of each new estimate is taken
DUMMIES = 10  # batches of one class that `dummies` looks at, for each class


@dataclass(frozen=True)
class Head:
    """The last layer. weight (C, H), bias (C,) or None: its gradient; matrix (C, H), shift (C,): its model, None where unknown."""

    weight: Tensor
    bias: Tensor | None = None
    matrix: Tensor | None = None
    shift: Tensor | None = None

    @property
    def classes(self) -> int:
        """Number C of classes."""
        return len(self.weight)

    @property
    def whole(self) -> bool:
        """Whether `ilrg` and `pooled` can read it."""
        return self.bias is not None and self.matrix is not None


def plain(leak: GradientLeak, task: Task, row: int) -> Tensor:
    """Return the gradient (c,) in one plain row of a leak, the mean of a local training's, without weight decay; float64 on the CPU."""
    scale, value = leak.combination[row].double(), leak.value[row].double()
    value = value * float(scale.sum().sign()) / leak.inner
    if task.l2 and leak.theta is not None:
        value = value - task.l2 * (scale.abs().to(leak.theta.double()) @ leak.theta.double())[
            slice(*leak.columns)
        ].to(value)
    return value.cpu()


def part(leak: GradientLeak, task: Task, value: Tensor, name: str | None) -> Tensor | None:
    """Return one parameter of a gradient (c,) in its own shape, None where it is not in the leak's columns."""
    if (
        name is None
        or (at := task.layout.slices[name]).start < leak.columns[0]
        or at.stop > leak.columns[1]
    ):
        return None
    shape = task.layout.shapes[task.layout.names.index(name)]
    return value[at.start - leak.columns[0] : at.stop - leak.columns[0]].reshape(shape)


def of(leak: GradientLeak, task: Task, row: int) -> Head | None:
    """Return the last layer in one plain row of a leak as `plain` has it, None where it is not in there.

    Of a local training, the model in the middle of its way.
    """
    value = plain(leak, task, row)
    if (
        task.last_linear is None
        or task.spec.loss == "squared"
        or (weight := part(leak, task, value, task.last_linear[0])) is None
    ):
        return None
    bias = part(leak, task, value, task.last_linear[1])
    matrix, shift = None, None
    if leak.theta is not None:
        model = leak.theta[int(leak.combination[row].abs().argmax())].double().clone()
        if leak.inner > 1 and leak.step is not None:
            model[slice(*leak.columns)] -= 0.5 * leak.step * leak.inner * value.to(model)
        parts = task.layout.split(model)
        matrix, shift = (parts[n].cpu() if n else None for n in task.last_linear)
    if len(weight) > 1:
        return Head(weight, bias, matrix, shift)
    weight, bias, matrix, shift = (
        _two(t, sign) for t, sign in ((weight, -1), (bias, -1), (matrix, 0), (shift, 0))
    )
    return None if weight is None else Head(weight, bias, matrix, shift)


def by_rows(head: Head) -> Tensor:
    """Classes (C,) whose row of dW has a negative sum; the rule of iDLG (Zhao et al. 2020, eq. 5) for batches, needs h >= 0."""
    return head.weight.sum(1) < 0


def by_bias(head: Head) -> Tensor:
    """Classes (C,) whose entry of db is negative: they are in the batch for any activation; others may be as well."""
    return _bias(head) < 0


def yin(head: Head, batch: int) -> Tensor:
    """Counts (C,), 0 or 1: the classes with the `batch` lowest entries of dW (Yin et al. 2021, GradInversion); no class comes twice."""
    n = torch.zeros(head.classes, dtype=torch.int64)
    n[head.weight.amin(1).argsort()[:batch]] = 1
    return n


def rlg(head: Head) -> Tensor:
    """Classes (C,) that a hyperplane parts from all others in the columns' space of dW (Dang et al. 2021, RLG).

    A linear program a class. No class of the batch is left out; where the batch comes near C others are counted as well.
    """
    from scipy.optimize import linprog

    left, size, _ = torch.linalg.svd(head.weight, full_matrices=False)
    plane = left[:, size > ROUNDING * size[0]].numpy()
    found = []
    for c in range(head.classes):
        above, least = -plane, np.zeros(head.classes)
        above[c], least[c] = plane[c], -1.0
        found.append(
            linprog(
                np.zeros(plane.shape[1]),
                A_ub=above,
                b_ub=least,
                bounds=(None, None),
                method="highs",
            ).status
            == 0
        )
    return torch.tensor(found)


def llg(
    head: Head, batch: int, impact: float | None = None, offset: Tensor | None = None
) -> Tensor:
    """Counts (C,) from the sums g of dW's rows: each sample takes `impact` off the sum of its class (Wainakh et al. 2022, LLG).

    First every class with a negative sum gets one sample, then, with `offset` (C,) taken off the sums, the lowest sum gets the next one
    until there are `batch`. impact: where not given, (1 + 1/C) / B times the negative sums; offset: 0 there. Needs h >= 0.
    """
    g = head.weight.sum(1).clone()
    step = (
        float(g.clamp(max=0).sum()) * (1 + 1 / head.classes) / batch if impact is None else impact
    )
    n = torch.zeros(head.classes, dtype=torch.int64)
    for c in g.argsort()[: min(batch, int((g < 0).sum()))].tolist():
        n[c] += 1
        g[c] -= step
    g = g if offset is None else g - offset
    while int(n.sum()) < batch:
        c = int(g.argmin())
        n[c] += 1
        g[c] -= step
    return n


def dummies(task: Task, theta: Tensor, batch: int, generator: Generator) -> tuple[float, Tensor]:
    """Return impact and offset (C,) for `llg` from batches of uniform noise, each of one class (Wainakh et al. 2022, LLG*).

    theta: (d,) the model. The task must have a last linear layer and cross-entropy.
    """
    columns = task.layout.slices[(task.last_linear or ("",))[0]]
    own, others = [], []
    for c in range(task.spec.classes):
        for _ in range(max(1, DUMMIES // task.spec.classes)):
            x = priors.start(task, batch, generator, "uniform", theta.dtype)
            y = torch.full((batch,), c, device=task.device)
            g = task.gradient(theta, x, y)[columns].reshape(task.spec.classes, -1).sum(1)
            own.append(g[c] / batch)
            others.append(torch.where(torch.arange(len(g), device=g.device) == c, torch.nan, g))
    return float(torch.stack(own).mean()) * (1 + 1 / task.spec.classes), torch.stack(
        others
    ).nanmean(0).cpu()


def ilrg(head: Head, batch: int) -> Tensor:
    """Return counts (C,) in real numbers (Ma et al. 2023, iLRG): features of class c are taken for dW_c / db_c.

    With P the softmax of these features, a row a class, (P^T - I) n = B db and sum n = B give n.
    """
    matrix, shift = _model(head)
    bias = _bias(head)
    p = (head.weight / torch.where(bias == 0, torch.inf, bias)[:, None] @ matrix.T + shift).softmax(
        1
    )
    return _solve(p, batch * bias[:, None], bias.new_tensor([batch]))[:, 0]


def pooled(head: Head, batch: int) -> Tensor:
    """Return counts (C,) in real numbers; ours.

    With P as in iLRG, and D_c the sum of what features of class c differ from the common h, B dW - B db h^T = (P^T - I) D and
    sum_c D_c = 0. All classes together tell h: it makes sum_c |D_c|^2 / n_c least, so that classes that are rare or absent, whose rows
    of dW show h itself, count most. Then P = softmax(W (h + D_c / n_c) + b), and so on until h, D, P and n agree. iLRG divides single
    rows instead, which is wrong where n_c is near B p_c.
    """
    matrix, shift = _model(head)
    bias = _bias(head)
    h = bias @ head.weight / bias.square().sum().clamp_min(torch.finfo(bias.dtype).tiny)
    p = (matrix @ h + shift).softmax(0).expand(head.classes, -1)
    known = batch * torch.cat([head.weight, bias[:, None], bias[:, None]], dim=1)
    total = torch.cat([torch.zeros_like(known[0, :-1]), known.new_tensor([batch])])
    for _ in range(STEPS):
        solved = _solve(p, known, total)
        u, v, n = solved[:, :-2], solved[:, -2], solved[:, -1]
        trust = 1 / (n.clamp_min(0) + TRUST)
        h = (trust * v) @ u / (trust * v.square()).sum().clamp_min(torch.finfo(bias.dtype).tiny)
        apart = torch.where(
            (n > 0.25)[:, None], (u - v[:, None] * h) / n.clamp_min(0.5)[:, None], 0.0
        )
        p = 0.5 * p + 0.5 * ((h + apart) @ matrix.T + shift).softmax(1)
    return _solve(p, known[:, -1:], total[-1:])[:, 0]


def whole(real: Tensor, batch: int) -> Tensor:
    """Return whole counts (C,) that sum to `batch`, nearest to real ones: largest remainders."""
    n = real.double().nan_to_num(0.0).clamp_min(0)
    n = n * (batch / n.sum()) if float(n.sum()) > 0 else torch.full_like(n, batch / len(n))
    k = n.floor()
    k[(n - k).argsort(descending=True, stable=True)[: round(batch - float(k.sum()))]] += 1
    return k.long()


def _model(head: Head) -> tuple[Tensor, Tensor]:
    if head.matrix is None:
        raise AttackError(
            "labels: this method needs the model at which the gradient was taken; use llg"
        )
    return head.matrix, head.matrix.new_zeros(head.classes) if head.shift is None else head.shift


def _bias(head: Head) -> Tensor:
    if head.bias is None:
        raise AttackError("labels: this method needs a bias in the last layer; use llg")
    return head.bias


def _solve(p: Tensor, known: Tensor, total: Tensor) -> Tensor:
    """Return z (C, m) with (P^T - I) z = known (C, m) and sums `total` (m,); the shortest one where several fit best."""
    left = torch.cat([p.T - torch.eye(len(p), dtype=p.dtype), p.new_ones(1, len(p))])
    solution: Tensor = torch.linalg.lstsq(
        left, torch.cat([known, total[None]]), driver="gelsd"
    ).solution  # gelsy differs from call to call
    return solution


def _two(t: Tensor | None, sign: int) -> Tensor | None:
    """One row of loss ``binary`` as two, of which the first is `sign` times it."""
    return None if t is None else torch.cat([sign * t, t])
