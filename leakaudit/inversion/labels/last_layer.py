"""What the last layer reveals about one sample: its label and its features, exactly."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from leakaudit.inversion.labels import label_signs
from leakaudit.inversion.search.feature_inversion import Features

if TYPE_CHECKING:
    from leakaudit.inversion.search.objectives import Target
    from leakaudit.tasks.task import Task

# One difference of two gradients is sufficient.
#
# Under cross-entropy, the gradient of a last linear layer (W, b) is q h^T and q, with h the
# features that the layer receives and q = softmax(W h + b) - e_y. A row of a leak gives
#
#     D = c1 q1 h1^T + c2 q2 h2^T    and    beta = c1 q1 + c2 q2.
#
# D has rank two, so in the plane of its columns c1 q1 = s beta + r beta', with beta' orthogonal to
# beta, and only s and r are unknown. Because the models are known, the two softmax equations
# determine s, r and the label, and therefore h1 and h2.
#
# For each label, a grid over (s, r) is searched for local minima of a smooth misfit, between
# logarithms of probabilities and logits; these are refined by least squares, and then again with a
# sharp misfit, between the probabilities. The label with by far the smallest misfit is correct.

# Number of directions of c1 q1 in the plane to examine; only those with one negative entry are
# searched, often a narrow sector.
DIRECTIONS = 20_000

# Number of directions, and of lengths, in the search for one label.
GRID = 48

# Number of its local minima to refine, the lowest ones.
STARTS = 6

# Lengths are evenly spaced in log odds, from -12 to 12: probabilities of the label from 6e-6 to 1 -
# 6e-6.
ODDS = 12

# Minimum value of probabilities, so that their logarithm is finite.
SMALL = 1e-12

# Maximum relative misfit of the equations: that of wrong labels is 1e-2 to 1, that of float32
# messages up to 1e-2.
FITS = 2e-2

# Maximum ratio of the misfit to that of the next label. Above it, no label is reported.
CLEAR = 0.1

# Maximum relative misfit of a row that a single gradient explains.
ALONE = 1e-6

# If a gradient is below this share of the other one, it does not reveal its features.
VANISHED = 1e-4

# Precision of the least squares, that of float64, and maximum number of evaluations of each.
PRECISION = 1e-15
EVALUATIONS = 300

# Replaces a misfit that is not finite.
NOT_FINITE = 1e6

Array = NDArray[np.float64]
Found = tuple[int, dict[int, Tensor]]  # label, and features (H,) by gradient


def solve(target: Target, task: Task) -> tuple[int, Features] | None:
    """Solve for label and features of a single sample, if the rows determine them.

    It uses plain rows and rows of two gradients, and requires cross-entropy, three classes, and
    a last linear layer with bias in the leak.
    """
    if task.last_linear is None or task.last_linear[1] is None:
        return None
    if task.spec.loss != "cross_entropy" or task.spec.classes < 3:
        return None
    if any(c.start < target.columns.start or c.stop > target.columns.stop for c in _columns(task)):
        return None
    found: dict[int, Tensor] = {}
    labels: set[int] = set()
    combination = target.combination.double().cpu()
    for coefficients, value in zip(combination, _without_decay(target, task), strict=True):
        used = coefficients.nonzero().flatten().tolist()
        got = _row(coefficients[used], value, target.theta[used].double().cpu(), task)
        if got is None:
            continue
        label, features = got
        labels.add(label)
        for k, h in features.items():
            found.setdefault(used[k], h)
    if len(labels) != 1:
        return None
    order = sorted(found)
    every = torch.stack([found[t] for t in order]).to(target.value)
    return labels.pop(), (target.theta[order], every)


def _row(c: Tensor, value: Tensor, theta: Tensor, task: Task) -> Found | None:
    """Read one row (d,) of one or two gradients, with coefficients c at models theta."""
    weight, bias = _columns(task)
    d = value[weight.start : weight.stop].reshape(-1, _width(task))
    beta = value[bias.start : bias.stop]
    if not bool(beta.any()) or len(c) > 2:
        return None
    heads: list[tuple[Tensor, Tensor]] = []
    for w in theta:
        matrix = w[weight.start : weight.stop].reshape(d.shape)
        heads.append((matrix, w[bias.start : bias.stop]))
    single = _single(c, d, beta, heads)
    if single or len(c) < 2:
        return single
    return _Pair.of(c, d, beta, heads).solve()


def _single(c: Tensor, d: Tensor, beta: Tensor, heads: list[tuple[Tensor, Tensor]]) -> Found | None:
    """Read a row that one gradient explains because the other one vanishes: D = c q h^T."""
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
    """One row of two gradients.

    Its features lie on a line: h1 = base + u step and h2 = base - v step, with u = (1 - s) / r
    and v = s / r.
    """

    c: Tensor  # (2,) coefficients
    beta: Tensor  # (C,)
    turned: Tensor  # (C,) beta' in the plane
    plane: Tensor  # (C, 2) orthonormal columns that span it
    base: Tensor  # (H,)
    step: Tensor  # (H,)
    at: Tensor  # (2, C) logits of both models at `base`
    along: Tensor  # (2, C) logits along `step`

    @classmethod
    def of(cls, c: Tensor, d: Tensor, beta: Tensor, heads: list[tuple[Tensor, Tensor]]) -> _Pair:
        """Decompose D into base = s h1 + (1 - s) h2 and step = r (h1 - h2)."""
        plane = torch.linalg.svd(d, full_matrices=False).U[:, :2]
        b = plane.T @ beta
        turned = torch.stack([-b[1], b[0]])
        rows = plane.T @ d
        base = b @ rows / b.square().sum()
        step = turned @ rows / b.square().sum()
        at = torch.stack([w @ base + shift for w, shift in heads])
        along = torch.stack([w @ step for w, _ in heads])
        return cls(c, beta, plane @ turned, plane, base, step, at, along)

    def solve(self) -> Found | None:
        """Search with each label, and return the best one if it is clear."""
        best = sorted((self._label(y) for y in range(len(self.beta))), key=lambda found: found[0])
        misfit, label, (u, v) = best[0]
        if not misfit <= min(FITS, CLEAR * best[1][0]):
            return None
        size = self._residuals(self.beta.new_tensor([u, v]), label).norm(dim=1)
        h = (self.base + u * self.step, self.base - v * self.step)
        return label, {k: h[k] for k in range(2) if size[k] > VANISHED * size.max()}

    def _label(self, y: int) -> tuple[float, int, tuple[float, float]]:
        """Return misfit, label and (u, v) of the best solution with label y."""
        size = self.beta.square().sum()
        best = (math.inf, y, (0.0, 0.0))
        mild = partial(self._by_logits, y=y)
        sharp = partial(self._by_probabilities, y=y)
        for start in self._starts(y):
            a, _ = _refine(mild, start)
            q = self.plane @ torch.from_numpy(a).to(self.beta)
            s = float(q @ self.beta / size)
            r = float(q @ self.turned / size)
            if r:
                w, misfit = _refine(sharp, np.array([(1 - s) / r, s / r]))
                found = (misfit / float(size.sqrt()), y, (float(w[0]), float(w[1])))
                best = min(best, found)
        return best

    def _starts(self, y: int) -> list[Array]:
        """Return local minima on a grid of c1 q1 = plane @ a with y as the only negative entry."""
        angle = torch.linspace(0, 2 * math.pi, DIRECTIONS + 1, dtype=self.beta.dtype)[:-1]
        ray = torch.stack([angle.cos(), angle.sin()], dim=1)
        q = ray @ self.plane.T * self.c[0].sign()
        inside = (q > 0).sum(1).eq(q.shape[1] - 1).logical_and(q[:, y] < 0).nonzero().flatten()
        if not len(inside):
            return []
        inside = inside[torch.linspace(0, len(inside) - 1, min(GRID, len(inside))).long()]
        lengths = torch.linspace(-ODDS, ODDS, GRID, dtype=q.dtype, device=q.device).sigmoid()
        longest = self.c[0].abs() / -q[inside, y]  # where the label's probability is 0
        a = ray[inside, None] * longest[:, None, None] * lengths[:, None]
        misfit = self._by_logits(a, y).norm(dim=-1)
        low = (F.max_pool2d(-misfit[None, None], 3, 1, 1)[0, 0] == -misfit).nonzero()
        order = misfit[low[:, 0], low[:, 1]].argsort()[:STARTS]
        return [a[i, j].numpy() for i, j in low[order].tolist()]

    def _by_logits(self, a: Tensor, y: int) -> Tensor:
        """Return the smooth misfit of c1 q1 = plane @ a: log p compared with the logits.

        The unknown step along `along` and the unknown constant are projected out.
        """
        q = a @ self.plane.T
        both = torch.stack([q / self.c[0], (self.beta - q) / self.c[1]], dim=-2)
        p = both + F.one_hot(torch.tensor(y), q.shape[-1]).to(q)
        gap = p.clamp_min(SMALL).log() - self.at
        gap = gap - gap.mean(-1, keepdim=True)
        along = F.normalize(self.along - self.along.mean(-1, keepdim=True), dim=-1)
        return (gap - (gap * along).sum(-1, keepdim=True) * along).flatten(-2)

    def _by_probabilities(self, w: Tensor, y: int) -> Tensor:
        """Return the sharp misfit (2C,) of the q of both gradients for w = (u, v)."""
        q = self._residuals(w, y)
        first = (w[1] * self.plane @ (self.plane.T @ self.beta) + self.turned) / (w[0] + w[1])
        return torch.cat([q[0] - first, q[1] - (self.beta - first)])

    def _residuals(self, w: Tensor, y: int) -> Tensor:
        """Return c1 q1 and c2 q2 (2, C), as the models give them at w = (u, v)."""
        logits = self.at + torch.stack([w[0], -w[1]])[:, None] * self.along
        label = F.one_hot(torch.tensor(y), logits.shape[-1]).to(w)
        return (logits.softmax(-1) - label) * self.c[:, None]


def _refine(misfit: Callable[[Tensor], Tensor], start: Array) -> tuple[Array, float]:
    """Solve least squares with Levenberg-Marquardt over two numbers of any magnitude."""
    from scipy.optimize import least_squares  # its import takes longer than most attacks

    scale: Array = np.abs(start) + np.finfo(np.float64).tiny

    def scaled(p: Array) -> Array:
        left: Array = np.nan_to_num(
            misfit(torch.from_numpy(p * scale)).numpy(),
            nan=NOT_FINITE,
            posinf=NOT_FINITE,
            neginf=-NOT_FINITE,
        )
        return left

    found = least_squares(
        scaled,
        start / scale,
        method="lm",
        xtol=PRECISION,
        ftol=PRECISION,
        gtol=PRECISION,
        max_nfev=EVALUATIONS,
    )
    solution: Array = found.x * scale
    return solution, math.sqrt(2 * found.cost)


def _columns(task: Task) -> tuple[slice, slice]:
    weight, bias = task.last_linear or ("", None)
    return task.layout.slices[weight], task.layout.slices[bias or weight]


def _width(task: Task) -> int:
    weight = (task.last_linear or ("",))[0]
    return task.layout.shapes[task.layout.names.index(weight)][1]


def _without_decay(target: Target, task: Task) -> Tensor:
    """Return rows (m, d) of the flat gradient, without weight decay, in float64 on the CPU."""
    decay = task.l2 * (target.combination @ target.theta)[:, target.columns]
    rows = torch.zeros(len(target.value), task.layout.size, dtype=torch.float64)
    rows[:, target.columns] = (target.value - decay).double().cpu()
    return rows
