"""From the features of a batch back to its pixels, through all convolutions at once."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from leakaudit.core.progress import expired, step
from leakaudit.inversion.exact.chain_pieces import (
    ComposedFunction,
    Piece,
    input_slopes,
    weight_gradient,
)
from leakaudit.inversion.exact.pixel_grid import PixelGrid
from leakaudit.inversion.linear import positive
from leakaudit.tasks.activations import ACTIVATIONS, Inverse

# `peel` takes one layer off after the other, and needs enough equations for each of them. But what
# is unknown in the middle of a network is not free: it is a function of the pixels. Taken as a
# whole, the unknowns are the pixels only, and every positive feature is an equation.
#
# 1. **Equations.** A positive feature of sample k is the value of the output before the last ReLU.
#    One that is zero bounds it from above. A feature behind a sigmoid or tanh is always an
#    equation. If all samples are there, so are the slopes of the loss in their features, and the
#    gradient of the last convolution is an equation as well: sum_k d_k * h_k, with d_k the slopes
#    in its outputs, which are known, and h_k its inputs. Every other known model that saw the
#    images adds equations (`ChainSystem`).
# 2. **Search.** With ReLU, all of this is piecewise linear in the pixels. Levenberg-Marquardt
#    linearises it at the current images and solves for a step by conjugate gradients. Its damping
#    follows the residual: steps are short as long as many ReLUs are guessed wrongly. Where it ends
#    between pieces, it goes on after a small random change.
# 3. **Proof.** The image is rounded to the grid and must give the features again. Then `unique`
#    shows that no change of the image, of one pixel or of many, keeps them on this linear piece.
#    Images on other pieces remain possible. They would have to fulfil more equations than
#    they have pixels by coincidence, each to many digits, but they are not excluded one by one.
#    Such images are therefore certified only if all of the batch are found and the whole gradient
#    is theirs.

# Maximum number of steps. With twice as many equations as pixels in a batch, ten are usual.
STEPS = 400

# Damping, relative to the strength of the equations and to the squared relative residual. A choice:
# with the residual itself, the search finds about as many images. If the damping only reacts to
# failures, the search ends between pieces far more often.
DAMPING = 1.0

# Iterations of conjugate gradients for a step, and the relative residual at which they end.
ITERATIONS = 40
SOLVED = 1e-2

# If the residual of no image has fallen by this factor in some steps, the search is between pieces.
# It goes on after a random change of this many levels, with more exact steps, a few times.
PROGRESS = 0.8
PATIENCE = 8
KICK = 8.0
KICKS = 5
MOST = 320

# Factor by which the residual of some image falls in a good step, if there are no pieces.
HALF = 0.5

# Relative residual below which images are rounded and compared.
CLOSE = 0.03

# A feature below this many errors cannot be told from zero.
ZERO = 20.0

# The largest difference of a feature, in errors, up to which features count as reproduced, and the
# same for the root mean square of all features.
FITS = 8.0
USUAL = 2.0

# Outputs of inner ReLUs below this share of their root mean square count as inactive where
# uniqueness is examined: it must not rest on an output that another image may switch off unnoticed.
FAINT = 1e-4

# Two images that reproduce m features differ by at most 2 USUAL sqrt(m) errors in them. Any change
# must exceed this, with some margin.
SHOWS = 2.5 * USUAL

# Number of equations per pixel that uniqueness requires.
ENOUGH = 1.1

# Directions and steps of the inverse iteration that finds the weakest change of the images, and
# iterations of conjugate gradients for each step.
PROBES = 3
WEAKER = 5
LONGEST = 1000

# Relative residual of an inverse iteration above which nothing is concluded from it.
SETTLED = 0.05

# Features of a model up to which the matrix of its equations is computed for that. A choice: it has
# 20 MB for images of CIFAR-10, and conjugate gradients take ten times as long.
DENSE = 1000


@dataclass(frozen=True, eq=False)
class ChainEquations:
    """What is known about the outputs of one model's chain for several samples."""

    chain: ComposedFunction
    values: Tensor  # (b, m) features
    error: Tensor  # (b,) errors of the features, relative to the largest one of each sample
    level: Tensor  # (1, *shape) one level, in the units of the network
    # (o, c, k, k) gradient of the last convolution's weights, summed over the samples; None if it
    # is not used
    gradient: Tensor | None = None
    slopes: Tensor | None = None  # (b, m) slopes of the loss in the features, with a gradient
    accuracy: float = 0.0  # error of the whole gradient, a norm

    @property
    def joint(self) -> bool:
        """Whether the samples have equations in common."""
        return self.gradient is not None

    @property
    def deviation(self) -> Tensor:
        """(b, 1) error of a feature."""
        return (self.error * self.values.abs().amax(1))[:, None]

    @property
    def shown(self) -> Tensor:
        """(b, m) whether a feature shows the output before the last activation.

        It does so if it is certainly not zero (ReLU), or certainly not at a limit (sigmoid,
        tanh).
        """
        if self.rectified:
            return self.values.abs() > ZERO * self.deviation
        return self.before.slope > ZERO * self.deviation

    @property
    def rectified(self) -> bool:
        """Whether a feature of zero is only a bound, as behind a ReLU."""
        return self.chain.last is None or isinstance(self.chain.last, nn.ReLU)

    @property
    def before(self) -> Inverse:
        """The outputs before the last activation."""
        if self.chain.last is None:
            one = torch.ones_like(self.values)
            return Inverse(self.values, one > 0, one, one)
        undo = ACTIVATIONS[type(self.chain.last)].undo
        assert undo is not None  # all activations of a chain have one
        return undo(self.chain.last, self.values, 0.0)

    @property
    def count(self) -> Tensor:
        """(b,) number of equations of each sample, with its part of those in common."""
        common = 0 if self.gradient is None else self.gradient.numel()
        return self.shown.sum(1).to(self.values) + common / len(self.values)

    def of(self, some: Tensor) -> ChainEquations:
        """Return the equations of some samples, by bool (b,) or index (k,).

        They must have none in common with others.
        """
        return replace(self, values=self.values[some], error=self.error[some])

    def predicted(self, x: Tensor) -> Tensor:
        """Return the features (b, m) of images (b, *shape), as the network receives them."""
        out = self.chain.piece(x).out
        if self.chain.last is None:
            return out
        features: Tensor = self.chain.last(out)
        return features

    def reproduced(self, x: Tensor) -> Tensor:
        """Return which images (b, *shape) have these features, up to errors."""
        away = (self.predicted(x) - self.values) / self.deviation
        usual = away.square().mean(1).sqrt() < USUAL
        return usual & (away.abs().amax(1) < FITS)

    def linearised(self, x: Tensor, faint: float = 0.0) -> _LinearisedModel:
        """Linearise the equations at some images, each sample's features with norm 1."""
        piece = self.chain.piece(x, faint)
        shown = self.shown
        before = self.before
        # An error of a feature is one of slope^-1 in the output before it.
        weight = shown * before.slope
        size = 1 / (weight * before.value).norm(dim=1, keepdim=True)
        least = ZERO * self.deviation
        above = torch.zeros_like(piece.out)
        if self.rectified:
            above = torch.where(shown, above, (piece.out - least).clamp_min(0))
        rest = (weight * (piece.out - before.value) + above) * size
        rows = (weight + (above > 0)) * size
        slopes = common = None
        scale = 0.0
        if self.gradient is not None and self.slopes is not None:
            # sum_k d_k * h_k = gradient, with d_k the slopes in the last convolution's outputs
            d = self.slopes * before.slope
            if isinstance(self.chain.last, nn.ReLU):
                d = self.slopes * (shown | ((piece.out > 0) & (piece.out <= least)))
            slopes = piece.back(d)[1]
            scale = math.sqrt(len(x) / float(self.gradient.square().sum()))
            got = weight_gradient(self.chain.convolutions[-1], piece.inputs, slopes)
            common = (got - self.gradient) * scale
        return _LinearisedModel(self, piece, rest, rows, slopes, common, scale)


@dataclass(frozen=True, eq=False)
class _LinearisedModel:
    """One model's equations, linearised at some images, as functions of their levels."""

    equations: ChainEquations
    piece: Piece  # the linear piece of the chain
    rest: Tensor  # (b, m) what the outputs differ from the features
    rows: Tensor  # (b, m) weight of each feature; 0 if it holds anyway
    slopes: Tensor | None  # in the last convolution's outputs, if the equations have its gradient
    common: Tensor | None  # difference of this gradient from the known one
    scale: float  # weight of the gradient

    @property
    def misfit(self) -> Tensor:
        """(b,) squared relative residual, with the samples' average of that in common."""
        each = self.rest.square().sum(1)
        if self.common is not None:
            each = each + self.common.square().sum() / len(each)
        return each

    def normal(self, v: Tensor) -> Tensor:
        """Apply J^T J to changes (b, *shape) in levels, with J the matrix of the equations."""
        level = self.equations.level
        out, changes = self.piece.along(v * level)
        more = None
        if self.slopes is not None:
            last = self.equations.chain.convolutions[-1]
            more = self._pulled(weight_gradient(last, changes, self.slopes) * self.scale)
        return self.piece.back(self.rows.square() * out, more)[0] * level

    def downhill(self) -> Tensor:
        """Return -J^T r, with r the residual."""
        more = None if self.common is None else self._pulled(self.common)
        found = self.piece.back(self.rows * self.rest, more)[0]
        return -found * self.equations.level

    def in_errors(self) -> _LinearisedModel:
        """Return what is known, in units of its error: no bounds of features that are zero."""
        own = self.equations
        rows = torch.where(own.shown, own.before.slope / own.deviation, 0.0)
        return replace(self, rows=rows, scale=1 / own.accuracy if own.joint else 0.0)

    def _pulled(self, weight: Tensor) -> Tensor:
        """Return the slopes in the last convolution's inputs, given those in its gradient."""
        assert self.slopes is not None
        last = self.equations.chain.convolutions[-1]
        return input_slopes(last, self.slopes, weight) * self.scale


@dataclass(frozen=True, eq=False)
class ChainSystem:
    """The equations of the same samples at one or several models."""

    parts: tuple[ChainEquations, ...]  # the equations at each model

    @property
    def joint(self) -> bool:
        """Whether the samples have equations in common."""
        return any(one.joint for one in self.parts)

    @property
    def smooth(self) -> bool:
        """Whether there is no ReLU, so that the equations have no pieces."""
        chains = [one.chain for one in self.parts]
        every = [one.last for one in chains] + [k.module for one in chains for k in one.layers]
        return not any(isinstance(m, nn.ReLU) for m in every)

    @property
    def level(self) -> Tensor:
        """(1, *shape) one level, in the units of the network."""
        return self.parts[0].level

    @property
    def per_pixel(self) -> float:
        """Number of equations per unknown pixel, of the sample that has the fewest."""
        count = torch.stack([one.count for one in self.parts]).sum(0)
        return float(count.min()) / math.prod(self.parts[0].chain.layers[0].shape)

    def of(self, some: Tensor) -> ChainSystem:
        """Return the equations of some samples (b,); of all if they have equations in common."""
        if self.joint:
            return self
        return ChainSystem(tuple(one.of(some) for one in self.parts))

    def reproduced(self, x: Tensor) -> Tensor:
        """Return which images (b, *shape) have these features at all models, up to errors."""
        return torch.stack([one.reproduced(x) for one in self.parts]).all(0)

    def linearised(self, x: Tensor, faint: float = 0.0) -> _LinearSystem:
        """Linearise the equations at some images, each sample's features of a model with norm 1."""
        parts = [one.linearised(x, faint) for one in self.parts]
        return _LinearSystem(parts, self.joint, torch.ones(len(x), dtype=x.dtype))


@dataclass(frozen=True, eq=False)
class _LinearSystem:
    """The sum of linearised equations."""

    parts: list[_LinearisedModel]  # the equations at each model
    joint: bool  # whether the samples have equations in common
    moving: Tensor  # (b,) 0 for images that are known, 1 for others

    @property
    def misfit(self) -> Tensor:
        """(b,) relative residual; the same for all samples if they have equations in common."""
        each = torch.stack([one.misfit for one in self.parts]).mean(0)
        if self.joint:
            each = each.mean().expand(len(each))
        return each.sqrt()

    def normal(self, v: Tensor) -> Tensor:
        """Apply J^T J to changes (b, *shape) in levels, with J the matrix of all equations."""
        found = torch.stack([one.normal(v) for one in self.parts]).sum(0)
        return found * _spread(self.moving, v)

    def downhill(self) -> Tensor:
        """Return -J^T r, with r the residual."""
        found = torch.stack([one.downhill() for one in self.parts]).sum(0)
        return found * _spread(self.moving, found)

    def solved(self, right: Tensor, shift: Tensor, most: int, tolerance: float) -> Tensor:
        """Solve (J^T J + shift) v = right by conjugate gradients, with a shift (b,) per sample."""
        v = torch.zeros_like(right)
        left = right
        p = right
        size = self.product(left, left)
        start = size
        added = _spread(shift, right)
        for _ in range(most):
            if bool((size <= tolerance**2 * start).all()):
                break
            moved = self.normal(p) + added * p
            length = _spread(size / positive(self.product(p, moved)), p)
            v = v + length * p
            left = left - length * moved
            again = self.product(left, left)
            p = left + _spread(again / positive(size), p) * p
            size = again
        return v

    def product(self, v: Tensor, w: Tensor) -> Tensor:
        """Return inner products (b,), of all samples together if they have common equations."""
        each = (v * w).flatten(1).sum(1)
        if self.joint:
            return each.sum().expand(len(each))
        return each


def solve(
    equations: ChainSystem, start: Tensor, grid: PixelGrid, steps: int = STEPS
) -> tuple[Tensor, Tensor]:
    """Search for images with given features, from images (b, *shape) in the network's units.

    Returns images in these units, on the grid if they reproduce their features, and which do
    (b,).
    """
    x = _rounded(start, grid)
    done = equations.reproduced(x)
    x = torch.where(_spread(done, x), x, start)
    strength = _strength(equations.linearised(start), start)
    best = torch.full_like(strength, math.inf)
    iterations = ITERATIONS
    waited = 0
    kicks = 0
    generator = torch.Generator().manual_seed(0)
    for _ in range(steps):
        step("images", int(done.sum()), len(done))
        if bool(done.all()) or expired():
            break
        # Images that are found stay as they are. Others with which they have equations in common
        # need them.
        used = ~done | equations.joint
        line = equations.of(used).linearised(x[used])
        line = replace(line, moving=(~done[used]).to(x))
        misfit = line.misfit
        shift = DAMPING * misfit.square() * strength[used]
        change = line.solved(line.downhill(), shift, iterations, SOLVED)
        x = x.clone()
        x[used] = _inside(x[used] + change * equations.level, grid)
        if bool((misfit < CLOSE).any()):
            near = _rounded(x, grid)
            done = done | equations.reproduced(near)
            x[done] = near[done]
        waited = 0 if bool((misfit < PROGRESS * best[used]).any()) else waited + 1
        # Smooth equations have no pieces: if a step gains little, it was not solved well enough.
        alone = equations.smooth and not equations.joint
        if alone and not bool((misfit < HALF * best[used]).any()):
            iterations = min(2 * iterations, MOST)
        best[used] = torch.minimum(best[used], misfit)
        if waited > PATIENCE:
            if kicks == KICKS or equations.smooth:
                break
            kicks += 1
            waited = 0
            iterations = min(2 * iterations, MOST)
            noise = torch.randn(x.shape, generator=generator, dtype=x.dtype)
            kicked = _inside(x + KICK * noise * equations.level, grid)
            x = torch.where(_spread(done, x), x, kicked)
            best.fill_(math.inf)
    return torch.where(_spread(done, x), _rounded(x, grid), x), done


def unique(equations: ChainSystem, x: Tensor) -> Tensor:
    """Return for which images (b, *shape) no other of the same linear piece has these features.

    Let J be the derivative of the shown features, each divided by its error, in the levels of
    the pixels. Two images on the grid differ by a vector of whole numbers, so by at least 1,
    and their features by at least the smallest singular value of J. If both reproduce m
    features, with a root mean square of `USUAL` errors, the difference is at most 2 `USUAL`
    sqrt(m), which a larger singular value excludes. Inverse iteration finds the smallest one,
    from several random directions. If the samples have equations in common, the same holds for
    all images together.
    """
    if equations.per_pixel < ENOUGH:
        return torch.zeros(len(x), dtype=torch.bool)
    line = equations.linearised(x, FAINT)
    line = replace(line, parts=[one.in_errors() for one in line.parts])
    count = torch.stack([one.shown.sum(1) for one in equations.parts]).sum(0).to(x)
    if equations.joint:
        count = count.sum().expand(len(x))
    limit = SHOWS * count.sqrt()
    if not equations.joint and max(one.values.shape[1] for one in equations.parts) <= DENSE:
        every = zip(x, limit, strict=True)
        return torch.tensor([_exceeds(equations, k, one, at) for k, (one, at) in enumerate(every)])
    return weakest(line, x, limit) > limit


def _exceeds(equations: ChainSystem, k: int, x: Tensor, limit: Tensor) -> bool:
    """Return whether the smallest singular value for image k exceeds a limit.

    It does if J^T J - limit^2 is positive definite, that is, has a Cholesky factor.
    """
    normal = -(limit**2) * torch.eye(x.numel(), dtype=x.dtype)
    chosen = torch.tensor([k])
    for part in equations.parts:
        own = part.of(chosen)
        rows = torch.where(own.shown, own.before.slope / own.deviation, 0.0)[0]
        # One copy of the image for each feature gives all derivatives at once.
        piece = own.chain.piece(x.expand(len(rows), *x.shape), FAINT)
        matrix = (piece.back(rows.diag())[0] * own.level).flatten(1)
        normal += matrix.T @ matrix
    return int(torch.linalg.cholesky_ex(normal).info) == 0


def weakest(line: _LinearSystem, like: Tensor, floor: Tensor) -> Tensor:
    """Return the smallest singular value (b,) of linearised equations, if it exceeds a floor (b,).

    It is 0 if conjugate gradients do not converge.
    """
    found = torch.full_like(floor, math.inf)
    # Well below the floor, so that it hardly changes what exceeds it.
    shift = (floor / 4).square()
    for seed in range(PROBES):
        generator = torch.Generator().manual_seed(seed)
        v = torch.randn(like.shape, generator=generator, dtype=like.dtype)
        settled = torch.ones_like(found, dtype=torch.bool)
        for _ in range(WEAKER):
            w = line.solved(v, shift, LONGEST, SOLVED)
            left = line.normal(w) + _spread(shift, w) * w - v
            settled &= line.product(left, left) < SETTLED**2 * line.product(v, v)
            v = w / _spread(line.product(w, w).sqrt(), w)
        size = line.product(v, line.normal(v)).clamp_min(0).sqrt()
        found = torch.minimum(found, torch.where(settled, size, 0.0))
    return found


def _strength(line: _LinearSystem, like: Tensor) -> Tensor:
    """Return the mean strength (b,) of J^T J in a random direction."""
    v = torch.randn(like.shape, generator=torch.Generator().manual_seed(0), dtype=like.dtype)
    moved = line.normal(v)
    return (line.product(moved, moved) / line.product(v, v)).sqrt()


def _inside(x: Tensor, grid: PixelGrid) -> Tensor:
    """Move pixels into the range of the data."""
    flat = x.flatten(1)
    low = -grid.mean / grid.std
    high = (1 - grid.mean) / grid.std
    return flat.clamp(low, high).reshape(x.shape)


def _rounded(x: Tensor, grid: PixelGrid) -> Tensor:
    """Round images to the grid, in the units of the network."""
    return grid.rounded(x.flatten(1)).reshape(x.shape)


def _spread(one: Tensor, like: Tensor) -> Tensor:
    """Give one value per sample (b,) the number of dimensions of images."""
    return one.reshape(-1, *[1] * (like.dim() - 1))
