"""What the last layer says of one sample: its label and its features, exactly, even from one difference of two gradients.

Under cross-entropy the gradient of a last linear layer (W, b) is q h^T and q, with h the features that the layer sees and
q = softmax(W h + b) - e_y. A row of a leak gives D = c1 q1 h1^T + c2 q2 h2^T and beta = c1 q1 + c2 q2. D has rank two, so in the
plane of its columns c1 q1 = s beta + r beta', with beta' at a right angle to beta, and only s and r are unknown. As the models are
known, the two softmax equations settle them and the label, and with them h1 and h2.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from scipy.optimize import least_squares
from torch import Tensor

from leakaudit.inversion.labels import label_signs
from leakaudit.inversion.search.feature_inversion import Known

if TYPE_CHECKING:
    from leakaudit.inversion.search.objectives import Target
    from leakaudit.tasks.task import Task

DIRECTIONS = 20_000  # of c1 q1 in the plane; those with one negative entry are searched
GRID = 48  # directions and lengths that a search for one label looks at
STARTS = 6  # of its local minima, refined
SMALL = 1e-12  # probabilities are taken for at least this
FITS = 2e-2  # largest relative misfit of the equations: wrong labels miss by 1e-2 to 1, float32 wires by up to 1e-2
CLEAR = 0.1  # largest share of the next label's misfit; above it the label is not claimed
ALONE = 1e-6  # relative misfit of a row that one gradient makes alone
VANISHED = 1e-4  # a gradient this small beside its partner does not show its features

Array = NDArray[np.float64]
Found = tuple[int, dict[int, Tensor]]  # label, and features (H,) by gradient


def solve(target: Target, task: Task) -> Known | None:
    """Return label and features of a single sample, None where the rows do not settle them.

    Reads plain rows and rows of two gradients; needs cross-entropy, three classes, a last linear layer with a bias in the leak.
    """
    if (
        task.last_linear is None
        or task.last_linear[1] is None
        or task.spec.loss != "cross_entropy"
        or task.spec.classes < 3
    ):
        return None
    if any(c.start < target.columns.start or c.stop > target.columns.stop for c in _columns(task)):
        return None
    found: dict[int, Tensor] = {}
    said: set[int] = set()
    for coefficients, value in zip(
        target.combination.double().cpu(), _without_decay(target, task), strict=True
    ):
        used = coefficients.nonzero().flatten().tolist()
        got = _row(coefficients[used], value, target.theta[used].double().cpu(), task)
        if got is not None:
            said.add(got[0])
            found = {**{used[k]: h for k, h in got[1].items()}, **found}
    if len(said) != 1:
        return None
    order = sorted(found)
    return Known(
        said.pop(), target.theta[order], torch.stack([found[t] for t in order]).to(target.value)
    )


def _row(c: Tensor, value: Tensor, theta: Tensor, task: Task) -> Found | None:
    """Return what one row of one or two gradients says."""
    weight, bias = _columns(task)
    d, beta = (
        value[weight.start : weight.stop].reshape(-1, _width(task)),
        value[bias.start : bias.stop],
    )
    if not bool(beta.any()) or len(c) > 2:
        return None
    heads = [
        (w[weight.start : weight.stop].reshape(d.shape), w[bias.start : bias.stop]) for w in theta
    ]
    return _single(c, d, beta, heads) or (
        _Pair.of(c, d, beta, heads).solve() if len(c) == 2 else None
    )


def _single(c: Tensor, d: Tensor, beta: Tensor, heads: list[tuple[Tensor, Tensor]]) -> Found | None:
    """Return label and features where one gradient makes the whole row: D = c q h^T, and the others vanish."""
    h = beta @ d / beta.square().sum()
    for k, (weight, bias) in enumerate(heads):
        q = beta / c[k]
        label = label_signs.from_bias(q)
        if label is not None:
            expected = (weight @ h + bias).softmax(0) - F.one_hot(label[0], len(q)).to(q)
            if float((expected - q).norm()) < ALONE * float(q.norm()):
                return int(label), {k: h}
    return None


@dataclass(frozen=True)
class _Pair:
    """One row of two gradients: h1 = base + u step, h2 = base - v step, with u = (1 - s)/r and v = s/r.

    c: (2,). beta, turned: (C,), beta and beta' in the plane. plane: (C, 2) orthonormal. base, step: (H,). at, along: (2, C) logits of
    both models at `base` and along `step`.
    """

    c: Tensor
    beta: Tensor
    turned: Tensor
    plane: Tensor
    base: Tensor
    step: Tensor
    at: Tensor
    along: Tensor

    @classmethod
    def of(cls, c: Tensor, d: Tensor, beta: Tensor, heads: list[tuple[Tensor, Tensor]]) -> _Pair:
        """Split D into base = s h1 + (1 - s) h2 and step = r (h1 - h2)."""
        plane = torch.linalg.svd(d, full_matrices=False).U[:, :2]
        b = plane.T @ beta
        turned, rows = torch.stack([-b[1], b[0]]), plane.T @ d
        base, step = b @ rows / b.square().sum(), turned @ rows / b.square().sum()
        at = torch.stack([w @ base + shift for w, shift in heads])
        along = torch.stack([w @ step for w, _ in heads])
        return cls(c, beta, plane @ turned, plane, base, step, at, along)

    def solve(self) -> Found | None:
        """Search each label, take the best one where it is clear; features of a vanishing gradient are left out."""
        best = sorted((self._label(y) for y in range(len(self.beta))), key=lambda found: found[0])
        misfit, label, (u, v) = best[0]
        if not misfit <= min(FITS, CLEAR * best[1][0]):
            return None
        size = self._residuals(self.beta.new_tensor([u, v]), label).norm(dim=1)
        h = (self.base + u * self.step, self.base - v * self.step)
        return label, {k: h[k] for k in range(2) if size[k] > VANISHED * size.max()}

    def _label(self, y: int) -> tuple[float, int, tuple[float, float]]:
        """Return misfit, label and (u, v) of the best solution with label y."""
        size, best = self.beta.square().sum(), (math.inf, y, (0.0, 0.0))
        for start in self._starts(y):
            a, _ = _refine(lambda p: self._by_logits(p, y), start)
            q = self.plane @ torch.from_numpy(a).to(self.beta)
            s, r = float(q @ self.beta / size), float(q @ self.turned / size)
            if r:
                w, misfit = _refine(
                    lambda p: self._by_probabilities(p, y), np.array([(1 - s) / r, s / r])
                )
                best = min(best, (misfit / float(size.sqrt()), y, (float(w[0]), float(w[1]))))
        return best

    def _starts(self, y: int) -> list[Array]:
        """Local minima over a grid of c1 q1 = plane @ a whose entries are negative at y alone."""
        angle = torch.linspace(0, 2 * math.pi, DIRECTIONS + 1, dtype=self.beta.dtype)[:-1]
        ray = torch.stack([angle.cos(), angle.sin()], dim=1)
        q = ray @ self.plane.T * self.c[0].sign()
        inside = (q > 0).sum(1).eq(q.shape[1] - 1).logical_and(q[:, y] < 0).nonzero().flatten()
        if not len(inside):
            return []
        inside = inside[torch.linspace(0, len(inside) - 1, min(GRID, len(inside))).long()]
        lengths = torch.linspace(-12, 12, GRID, dtype=q.dtype, device=q.device).sigmoid()
        a = ray[inside, None] * (self.c[0].abs() / -q[inside, y])[:, None, None] * lengths[:, None]
        misfit = self._by_logits(a, y).norm(dim=-1)
        low = (F.max_pool2d(-misfit[None, None], 3, 1, 1)[0, 0] == -misfit).nonzero()
        order = misfit[low[:, 0], low[:, 1]].argsort()[:STARTS]
        return [a[i, j].numpy() for i, j in low[order].tolist()]

    def _by_logits(self, a: Tensor, y: int) -> Tensor:
        """Misfit (..., 2C) of log p against the logits, the unknown step along `along` and the constant projected out; mild in a."""
        q = a @ self.plane.T
        p = torch.stack([q / self.c[0], (self.beta - q) / self.c[1]], dim=-2) + F.one_hot(
            torch.tensor(y), q.shape[-1]
        ).to(q)
        gap = p.clamp_min(SMALL).log() - self.at
        gap = gap - gap.mean(-1, keepdim=True)
        along = F.normalize(self.along - self.along.mean(-1, keepdim=True), dim=-1)
        return (gap - (gap * along).sum(-1, keepdim=True) * along).flatten(-2)

    def _by_probabilities(self, w: Tensor, y: int) -> Tensor:
        """Misfit (2C,) of both gradients' q for w = (u, v); sharp."""
        q = self._residuals(w, y)
        first = (w[1] * self.plane @ (self.plane.T @ self.beta) + self.turned) / (w[0] + w[1])
        return torch.cat([q[0] - first, q[1] - (self.beta - first)])

    def _residuals(self, w: Tensor, y: int) -> Tensor:
        """Return c1 q1 and c2 q2 (2, C), as the models see them at w = (u, v)."""
        logits = self.at + torch.stack([w[0], -w[1]])[:, None] * self.along
        return (logits.softmax(-1) - F.one_hot(torch.tensor(y), logits.shape[-1]).to(w)) * self.c[
            :, None
        ]


def _refine(misfit: Callable[[Tensor], Tensor], start: Array) -> tuple[Array, float]:
    """Least squares by Levenberg-Marquardt over two numbers of any size; the solution and the norm of what is left."""
    scale: Array = np.abs(start) + np.finfo(np.float64).tiny

    def scaled(p: Array) -> Array:
        left: Array = np.nan_to_num(
            misfit(torch.from_numpy(p * scale)).numpy(), nan=1e6, posinf=1e6, neginf=-1e6
        )
        return left

    found = least_squares(
        scaled, start / scale, method="lm", xtol=1e-15, ftol=1e-15, gtol=1e-15, max_nfev=300
    )
    solution: Array = found.x * scale
    return solution, math.sqrt(2 * found.cost)


def _columns(task: Task) -> tuple[slice, slice]:
    """Columns of the last layer's weights and bias."""
    weight, bias = task.last_linear or ("", None)
    return task.layout.slices[weight], task.layout.slices[bias or weight]


def _width(task: Task) -> int:
    """Number H of features."""
    return task.layout.shapes[task.layout.names.index((task.last_linear or ("",))[0])][1]


def _without_decay(target: Target, task: Task) -> Tensor:
    """Rows (m, d) of the flat gradient in float64 on the CPU, zero outside the leak's columns, without what weight decay adds."""
    rows = torch.zeros(len(target.value), task.layout.size, dtype=torch.float64)
    rows[:, target.columns] = (
        (target.value - task.l2 * (target.combination @ target.theta)[:, target.columns])
        .double()
        .cpu()
    )
    return rows
