"""All samples of a batch, by what known models say about their slopes in a first layer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Generator, Tensor
from torch.func import grad, vmap

from leakaudit.core.progress import expired, step
from leakaudit.inversion import linear
from leakaudit.inversion.linear import positive
from leakaudit.tasks import losses
from leakaudit.tasks.smoothed_relu import SHARPER, Rounding

if TYPE_CHECKING:
    from leakaudit.tasks.task import Task

# A layer's gradient is Delta X: X (b, p) are its inputs, and column k of Delta (H, b) has the
# slopes of sample k. With an orthonormal basis R of the rows, X = T R and Delta X = D R, so that
# D = Delta T is known and T (b, b) is not. If the model is known, the slopes of sample k are a
# function of its row u_k of T, up to its label, and they lie in the column space of D: H - b
# equations for b unknowns. Levenberg-Marquardt solves them for every label, from many starts.
#
# 1. **Duals.** A solution with slopes d gives the dual vector q with D q = d. As D T^-1 = Delta,
#    the duals of all samples are the columns of T^-1, up to their lengths. Slopes behind ReLU
#    depend on u_k only through the outputs and the signs of the neurons, so u_k itself may stay
#    open until all duals are found.
# 2. **Deflation.** u_j is orthogonal to the duals of all other samples. Those that were found
#    leave a smaller space for the others, in which none is found twice.
# 3. **Lengths.** With all duals, every u_k is known up to its length, which is the one at which the
#    model gives slopes of the right size.
#
# ReLUs are rounded in the search, as in `smoothed_relu`: the slopes of exact ones are constant
# nearly everywhere. Several widths are tried, because narrow ones find samples that wide ones do
# not, and the reverse.

# Starts for each label, steps of each, and rounds of starts without a new sample after which the
# search ends. A choice.
STARTS = 16
STEPS = 40
PATIENCE = 10
TOGETHER = 2**23  # numbers of derivatives that are computed at once, 64 MB
# Largest distance of a start from the centre, in units of the usual one.
FAR = 2.0
# First widths of rounded ReLUs, in units of the neurons' root mean square.
WIDTHS = (0.5, 0.15, 0.05, 0.015)
# Steps with the exact activation in the end.
LAST = 10
# Factor of the damping after a step that fails, and its largest value: usual choices.
FAILS = (5.0, 1e8)
# Part of slopes outside the column space that their computation explains; what noise explains is
# added.
LEAST = 1e-8
# The same in multiples of the precision in which the program computed them.
COMPUTED = 32.0
# The same, at most, for slopes that are hardly larger than rounding: other inputs leave more.
LOOSE = 1e-2
# Size of the part of a dual outside the others from which it is another one.
APART = 1e-3
# Lengths that are tried first, in units of the usual one.
LENGTHS = torch.logspace(-1, 1, 41)


@dataclass(frozen=True, eq=False)
class Layer:
    """A first layer at one model, as a function of coordinates u (b,) of its input u R."""

    logits: Callable[[Task, Tensor], Tensor]  # from a shift (H,) of its output at `origin`
    weight: Tensor  # (H, b) W R^T
    origin: Tensor  # (b,)

    def slopes(self, task: Task, u: Tensor, labels: Tensor) -> Tensor:
        """Return the slopes (n, H) of the loss of samples (n, b)."""
        found: Tensor = vmap(grad(self._loss(task)))((u - self.origin) @ self.weight.T, labels)
        return found

    def moved(self, task: Task, u: Tensor, labels: Tensor, directions: Tensor) -> Tensor:
        """Return derivatives (n, H, c) of the slopes along directions (b, c) of u."""
        slopes = grad(self._loss(task))

        # The derivative of the slopes is the Hessian of a loss, which is symmetric.
        def along(shift: Tensor, label: Tensor, way: Tensor) -> Tensor:
            found: Tensor = grad(lambda at: (slopes(at, label) * way).sum())(shift)
            return found

        every = vmap(vmap(along, (None, None, 1), out_dims=1), (0, 0, None))
        shifts = (u - self.origin) @ self.weight.T
        found: Tensor = every(shifts, labels, self.weight @ directions)
        return found

    def _loss(self, task: Task) -> Callable[[Tensor, Tensor], Tensor]:
        def loss(shift: Tensor, label: Tensor) -> Tensor:
            return losses.mean_loss(task.spec.loss, self.logits(task, shift), label[None])

        return loss


@dataclass(frozen=True, eq=False)
class _Search:
    task: Task
    smooth: Task  # with rounded ReLUs
    rounding: Rounding
    layer: Layer
    inside: Tensor  # (H, b) D
    inverse: Tensor  # (b, H) pseudo-inverse of D
    outside: Tensor  # (H, H - b) orthonormal complement of its columns
    close: float  # part of true slopes outside the column space, at most
    rounded: float  # precision of the probabilities
    labels: Tensor  # all labels
    centre: Tensor  # (b,) around which samples are sought
    size: float  # their usual distance from it

    def all(self, generator: Generator) -> tuple[Tensor, Tensor]:
        """Find as many duals (b, n) as possible, with unit lengths, and labels (n,)."""
        b = self.inside.shape[1]
        duals = self.inside.new_zeros(b, 0)
        labels = self.labels[:0]
        missed = trial = 0
        while duals.shape[1] < b and missed < PATIENCE and not expired():
            step("samples", duals.shape[1], b)
            before = duals.shape[1]
            duals, labels = self._more(duals, labels, WIDTHS[trial % len(WIDTHS)], generator)
            missed = 0 if duals.shape[1] > before else missed + 1
            trial += 1
        step("samples", duals.shape[1], b)
        return duals, labels

    def _more(
        self, duals: Tensor, labels: Tensor, width: float, generator: Generator
    ) -> tuple[Tensor, Tensor]:
        known = duals.shape[1]
        free = torch.linalg.qr(duals, mode="complete").Q[:, known:]
        starts = torch.randn(STARTS, free.shape[1], generator=generator, dtype=free.dtype)
        sizes = FAR * torch.rand(STARTS, 1, generator=generator, dtype=free.dtype)
        starts = starts / positive(starts.norm(dim=1, keepdim=True)) * sizes
        starts = self.centre @ free + self.size * starts
        every = self.labels.repeat_interleave(STARTS)
        starts = starts.repeat(len(self.labels), 1)
        room = max(1, TOGETHER // (len(self.inside) * free.shape[1]))
        for some, chosen in zip(starts.split(room), every.split(room), strict=True):
            u = self._solved(some, free, chosen, width)
            slopes = self.layer.slopes(self.task, u, chosen)
            size = slopes.norm(dim=1)
            # A probability near 1, minus 1, has no relative precision.
            rounded = self.rounded * size.max() / positive(size)
            allowed = rounded.clamp(self.close, max(self.close, LOOSE))
            good = (slopes @ self.outside).norm(dim=1) <= allowed * size
            good &= size > 0
            found = self.inverse @ slopes[good].T
            together = torch.cat([duals, found / positive(found.norm(dim=0))], dim=1)
            names = torch.cat([labels, chosen[good]])
            kept = linear.independent(together.T, APART, len(duals))[0]
            duals, labels = together[:, kept], names[kept]
        return duals, labels

    def _solved(self, starts: Tensor, free: Tensor, labels: Tensor, width: float) -> Tensor:
        """Search for samples (n, b) whose slopes have no part outside the column space."""
        at = starts
        smooth = self.smooth is not self.task
        damping = at.new_full((len(at),), linear.DAMPING)
        for k in range(STEPS):
            if smooth:  # every width has a landscape of its own
                self.rounding.share = width * SHARPER ** -(k / STEPS)
                damping = damping.clamp_max(linear.DAMPING)
            at, damping = self._stepped(self.smooth, at, free, labels, damping)
        self.rounding.share = 0.0
        for _ in range(LAST if smooth else 0):
            at, damping = self._stepped(self.smooth, at, free, labels, damping)
        return at @ free.T

    def _stepped(
        self, task: Task, at: Tensor, free: Tensor, labels: Tensor, damping: Tensor
    ) -> tuple[Tensor, Tensor]:
        slopes = self.layer.slopes(task, at @ free.T, labels)
        size = positive(slopes.norm(dim=1, keepdim=True))
        unit = slopes / size
        left = unit @ self.outside
        moved = self.layer.moved(task, at @ free.T, labels, free) / size[:, :, None]
        moved = moved - unit[:, :, None] * (unit[:, None] @ moved)
        matrix = self.outside.T @ moved
        normal = matrix.mT @ matrix
        strength = positive(normal.diagonal(dim1=1, dim2=2).mean(1))
        one = torch.eye(normal.shape[1], dtype=normal.dtype)
        shifted = normal + (damping * strength)[:, None, None] * one
        change = torch.linalg.solve_ex(shifted, matrix.mT @ left[:, :, None])[0][:, :, 0]
        new = at - change.nan_to_num()
        again = self.layer.slopes(task, new @ free.T, labels)
        again = again / positive(again.norm(dim=1, keepdim=True))
        better = (again @ self.outside).norm(dim=1) < left.norm(dim=1)
        at = torch.where(better[:, None], new, at)
        damping = torch.where(better, linear.SUCCEEDS * damping, FAILS[0] * damping)
        return at, damping.clamp(linear.LEAST, FAILS[1])

    def scaled(self, duals: Tensor, labels: Tensor) -> Tensor:
        """Return the samples (b, b) of all duals (b, b), each with the length that fits best."""
        rays = torch.linalg.inv(duals)
        wanted = (self.inside @ duals).T  # (b, H), the slopes times the length
        usual = self.size / rays.norm(dim=1)

        def residual(length: Tensor) -> Tensor:
            return length * self.layer.slopes(self.task, length * rays, labels) - wanted

        def stepped(length: Tensor, value: Tensor, damping: Tensor) -> Tensor:
            many = length * rays
            slopes = self.layer.slopes(self.task, many, labels)
            moved = self.layer.moved(self.task, many, labels, rays.T)
            own = moved.diagonal(dim1=0, dim2=2).T
            way = slopes + length * own
            change = (way * value).sum(1) / positive(way.square().sum(1) * (1 + damping))
            return length - change.nan_to_num()[:, None]

        starts = [usual[:, None] * length for length in LENGTHS.tolist()]
        left = torch.stack([residual(start).square().sum(1) for start in starts])
        best = torch.stack(starts)[left.argmin(0), torch.arange(len(rays))]
        best = linear.descended(best, residual, stepped, STEPS, FAILS)[0]
        found: Tensor = best * rays
        return found


def samples(
    task: Task,
    layer: Layer,
    inside: Tensor,
    close: float,
    precision: float,
    centre: Tensor,
    size: float,
    generator: Generator,
) -> tuple[Tensor, Tensor] | None:
    """Find all samples (b, b) behind D (H, b), and their labels; None if some are missing.

    `close` is the part of true slopes that noise moves out of the column space, and `precision`
    that of the program's numbers. Samples are sought
    around `centre` (b,), at distances of about `size`.
    """
    rounding = Rounding(WIDTHS[0])
    outside = torch.linalg.qr(inside, mode="complete").Q[:, inside.shape[1] :]
    labels = torch.arange(task.spec.classes)
    if task.spec.loss == "binary":
        labels = labels.to(inside)
    search = _Search(
        task,
        task.rounded(rounding),
        rounding,
        layer,
        inside,
        torch.linalg.pinv(inside),
        outside,
        LEAST + close + COMPUTED * precision,
        precision,
        labels,
        centre,
        size,
    )
    duals, labels = search.all(generator)
    if duals.shape[1] < len(duals):
        return None
    return search.scaled(duals, labels), labels
