"""Inputs of the last layer of any kind, by what the softmax says about them.

The method was developed for leakaudit.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from leakaudit.core.progress import expired, step
from leakaudit.inversion import linear
from leakaudit.inversion.linear import positive

# `extreme_rays` needs zeros. Features behind a sigmoid, tanh or an average have none. But if the
# loss is cross-entropy, the slopes in the outputs of the last layer are a known function of its
# inputs: with weights W, bias c and label y_k, those of sample k are
#
#     d_k = softmax(W phi_k + c) - e_{y_k}.
#
# The layer's gradient is sum_k d_k [phi_k 1] / b. If there are more classes than samples, its row
# space is that of the b samples, and its column space is that of their slopes. So sample k is a
# point of the row space, b - 1 unknowns, whose slopes for some label lie in the column space, one
# equation for each of the other dimensions. Levenberg-Marquardt solves them for every label at
# once, from several averages of the samples, which are the rows of classes that no sample has.
#
# 1. **False solutions.** Far away, the softmax is e_y for some label, and the slopes vanish. What
#    is compared is therefore the part of the slopes outside the column space, relative to all of
#    them.
# 2. **Several samples of one label.** Such a search may end at the same one every time. Samples
#    that are found are subtracted from the gradient, and what is left has a smaller row and column
#    space.
# 3. **Precision.** In the end, all samples together must give the gradient. Gauss-Newton steps
#    minimise the difference, and its normal equations state the error of every sample.

# Starts of a search, steps of each, and searches without a new sample after which it ends. A
# choice: 16 images behind LeNet or ConvNet take two or three searches of a second each.
STARTS = 12
STEPS = 60
PATIENCE = 3

# Factor of the damping after a step that fails, relative to the mean square of the equations, and
# its largest value. Usual choices.
FAILS = (5.0, 1e8)

# The part of slopes outside the column space that their computation explains, relative to these
# slopes: that of float64, or multiples of the precision in which the softmax was computed.
LEAST = 1e-10
COMPUTED = 32.0

# The same after samples were subtracted that are not polished yet. It only selects candidates.
LATER = 1e-3

# All samples together give the gradient if what is left is below this many standard deviations.
FITS = 8.0

# Searches from other starts if they do not.
TRIALS = 3

# Factor of the errors that the normal equations state. They assume independent errors, but those of
# the softmax are common to a sample's whole row. Up to 4 was observed in float32, less in float64.
DEPENDENT = 4.0

# Two solutions of one label may be the same if their slopes differ by less than this, relative to
# their size.
SAME = 0.02

# Largest number of entries of the normal equations' matrix for all samples, 400 MB. A choice.
LARGEST = 5e7

# Gauss-Newton steps for all samples together; they converge quadratically from what was found.
POLISH = 4


# Equations per unknown that a sample needs, so that a solution is no coincidence.
ENOUGH = 2


def too_large(batch: int | None, classes: int) -> bool:
    """Return whether a batch has too few equations, or too many unknowns.

    Slopes add up to zero, so they have one dimension fewer than there are classes.
    """
    if batch is None:
        return False
    unknown = batch - 1
    return classes - 1 - batch < ENOUGH * unknown or classes * batch**3 > LARGEST


def inputs(
    rows: Tensor, weight: Tensor, basis: Tensor, noise: float, wire: float, generator: Generator
) -> tuple[Tensor, Tensor] | None:
    """Find all samples behind the gradient of a last layer with softmax and cross-entropy.

    `rows` and `weight` (C, n + 1) have a column for the bias; `basis` (b, n + 1) is the space
    of the samples. Returns the samples (b, b) in it, with a last entry of 1, and the deviation
    (b,) of their features; None if some are missing, or do not give the gradient.
    """
    batch = len(basis)
    least = max(LEAST, COMPUTED * wire)
    inside = batch * rows @ basis.T
    search = _Search(inside, weight @ basis.T, basis[:, -1], batch * noise, least)
    for _ in range(TRIALS):
        rays, labels = search.all(generator)
        if len(rays) == batch:
            found = search.polished(rays, labels, basis.shape[1])
            if found is not None:
                return found
    return None


@dataclass(frozen=True)
class _Search:
    """The gradient of a last layer in the basis of its samples."""

    inside: Tensor  # (C, b) sum of d_k a_k^T over the samples a_k
    weight: Tensor  # (C, b) weights and bias, applied to a sample
    one: Tensor  # (b,) what is 1 for every sample
    noise: float  # standard deviation of an entry of `inside`
    least: float  # relative error of slopes that their computation explains

    def slopes(self, rays: Tensor, labels: Tensor) -> Tensor:
        """Return the slopes (k, C) of samples (k, b)."""
        chosen = torch.nn.functional.one_hot(labels, len(self.weight))
        return (rays @ self.weight.T).softmax(1) - chosen

    def all(self, generator: Generator) -> tuple[Tensor, Tensor]:
        """Find samples (k, b) and their labels (k,), as many as possible."""
        batch = len(self.one)
        rays = self.one.new_zeros(0, batch)
        labels = torch.zeros(0, dtype=torch.long)
        missed = 0
        while len(rays) < batch and missed < PATIENCE and not expired():
            step("samples", len(rays), batch)
            more, of = self.more(rays, labels, generator)
            missed = 0 if len(more) else missed + 1
            rays = torch.cat([rays, more])
            labels = torch.cat([labels, of])
        step("samples", len(rays), batch)
        return rays, labels

    def more(self, rays: Tensor, labels: Tensor, generator: Generator) -> tuple[Tensor, Tensor]:
        """Find samples (m, b) and labels (m,) in what those found so far leave of the gradient."""
        left = self.inside - self.slopes(rays, labels).T @ rays
        count = len(self.one) - len(rays)
        columns, sizes, space = torch.linalg.svd(left)
        outside = columns[:, count:]
        space = space[:count]
        # What the errors of the gradient move slopes out of their space, relative to these slopes.
        tilt = self.noise * math.sqrt(len(left)) / float(sizes[count - 1])
        every = torch.arange(len(left))
        found = rays[:0]
        names = labels[:0]
        off = left.new_zeros(0)
        for start in self._starts(left @ space.T, space @ self.one, generator):
            if len(found) >= count:
                break
            ray = self._solved(start, space, outside, every)
            slopes = self.slopes(ray, every)
            away = (slopes @ outside).norm(dim=1) / slopes.norm(dim=1)
            good = away < (LATER if len(rays) else tilt + self.least)
            off, order = torch.cat([off, away[good]]).sort()
            found = torch.cat([found, ray[good]])[order]
            names = torch.cat([names, every[good]])[order]
            different = self._different(found, names)
            off, found, names = off[different], found[different], names[different]
        return found[:count], names[:count]

    def _different(self, rays: Tensor, labels: Tensor) -> list[int]:
        """Return which samples (k, b) differ from all those before them.

        Samples of one label with nearly the same slopes may be one. If they are not, the
        other one is found after the first was subtracted.
        """
        slopes = self.slopes(rays, labels)
        chosen: list[int] = []
        for k, one in enumerate(slopes):
            near = (slopes[chosen] - one).norm(dim=1) < SAME * one.norm()
            if not bool((near & (labels[chosen] == labels[k])).any()):
                chosen.append(k)
        return chosen

    def _starts(self, left: Tensor, one: Tensor, generator: Generator) -> Tensor:
        """Return averages (m, q) of the samples, from rows (C, q) of what is left.

        The row of a class that no sample has contains the samples with positive weights.
        Other starts are random averages of these.
        """
        sums = left @ one
        rows = left[sums > 0] / sums[sums > 0][:, None]
        if not len(rows):
            rows = (one / one.square().sum())[None]
        weights = torch.randn(STARTS, len(rows), generator=generator, dtype=rows.dtype)
        weights = weights / math.sqrt(len(rows))
        mean = rows.mean(0)
        wide = mean + weights @ (rows - mean)
        best = sums[sums > 0].argsort(descending=True)[: STARTS // 2]
        return torch.cat([rows[best], wide[len(best) :]])

    def _solved(self, start: Tensor, space: Tensor, outside: Tensor, labels: Tensor) -> Tensor:
        """Search from `start` (q,) for a sample (k, b) of each label with no slopes outside.

        `space` (q, b) has orthonormal rows; slopes have no part in `outside` (C, m).
        """
        one = space @ self.one
        # All directions that keep the last entry 1.
        free = torch.linalg.qr(one[:, None], mode="complete").Q[:, 1:].T @ space
        ray = (start @ space).expand(len(labels), -1)
        if not len(free):
            return ray
        weight = self.weight @ free.T
        identity = torch.eye(len(free), dtype=ray.dtype)

        def residual(ray: Tensor) -> Tensor:
            return self.slopes(ray, labels) @ outside

        def stepped(ray: Tensor, value: Tensor, damping: Tensor) -> Tensor:
            p = (ray @ self.weight.T).softmax(1)
            # d softmax / d logit = diag(p) - p p^T
            moved = p[:, :, None] * (weight - (p @ weight)[:, None])
            matrix = outside.T @ moved  # (k, m, q - 1)
            normal = matrix.mT @ matrix
            strength = positive(normal.diagonal(dim1=1, dim2=2).mean(1))
            shifted = normal + (damping * strength)[:, None, None] * identity
            change = torch.linalg.solve_ex(shifted, matrix.mT @ value[:, :, None])[0][:, :, 0]
            there: Tensor = ray - change.nan_to_num() @ free
            return there

        return linear.descended(ray, residual, stepped, STEPS, FAILS)[0]

    def polished(self, rays: Tensor, labels: Tensor, entries: int) -> tuple[Tensor, Tensor] | None:
        """Solve for all samples (b, b) together; None if they do not give the gradient."""
        b = len(rays)
        free = torch.linalg.qr(self.one[:, None], mode="complete").Q[:, 1:]  # (b, b - 1)
        # A single sample is the whole row space; nothing about it is unknown.
        for _ in range(POLISH if b > 1 else 0):
            matrix = self._derivative(rays, labels, free)
            left = (self.inside - self.slopes(rays, labels).T @ rays).flatten()
            change = torch.linalg.lstsq(matrix, left[:, None]).solution
            rays = rays + change.reshape(b, b - 1) @ free.T
        left = self.inside - self.slopes(rays, labels).T @ rays
        usual = float(left.square().mean().sqrt())
        size = float(self.inside.square().mean().sqrt())
        if not usual < FITS * self.noise + self.least * size:
            return None
        # The noise is stated, but what is left shows it as well.
        noise = max(self.noise, usual)
        if b == 1:
            return rays, rays.new_zeros(1)
        matrix = self._derivative(rays, labels, free)
        inverse = torch.linalg.inv(torch.linalg.qr(matrix).R)
        variance = noise**2 * inverse.square().sum(1).reshape(b, b - 1).sum(1)
        return rays, DEPENDENT * (variance / entries).sqrt()

    def _derivative(self, rays: Tensor, labels: Tensor, free: Tensor) -> Tensor:
        """Return the derivative (C b, b (b - 1)) of sum_k d_k a_k^T in all samples."""
        b = len(rays)
        p = (rays @ self.weight.T).softmax(1)
        weight = self.weight @ free
        moved = p[:, :, None] * (weight - (p @ weight)[:, None])  # (k, C, b - 1)
        of_slopes = torch.einsum("kcj,ki->cikj", moved, rays)
        of_rays = torch.einsum("kc,ij->cikj", self.slopes(rays, labels), free)
        return (of_slopes + of_rays).reshape(-1, b * (b - 1))
