"""Features of samples whose slopes are a small part of a gradient, after the others are known."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from leakaudit.inversion.linear import least_squares

# A trained network has small losses, and their slopes may differ by a factor of 1e5 within a batch.
# In float32, rounding is 1e-7 of an entry, so that an average over all entries hardly shows a
# sample whose slopes are 1e-5 of the others'. But rounding is relative to the terms of each entry,
#
#     G_hj = sum_k D_hk F_kj,    standard deviation  u (sum_k D_hk^2 F_kj^2)^(1/2),
#
# and there are entries in which the weak sample is alone: neurons h that the ReLU switches off for
# the others, or features j that the others do not have. There, the weak sample is as precise as
# any.
#
# The samples that were proven have known features, up to the rounding of the sender. It is an error
# of its own for each feature, the same in all rows, so it is solved for as well: counted as noise
# of every entry, it would hide weak samples where the others cover them. D and the features of the
# weak samples follow from weighted least squares, with weights from this error model, both at once
# (`_solve_both`). What remains free after that is how much of the others a sample contains, which
# its zeros determine (`_cleaned`), and its size, which only the bias of the linear layer shows,
# where nothing is alone. The bias of the convolution before it determines the size (`peel.sized`).

# Rounding of the proven samples' features by the sender, relative to their largest one and in units
# of the number format: sums of 27 products in float32 were off by 0.2 on average.
BLURRED = 0.25

# Rounding of one term, in units of the number format: half a unit at most.
HALF = 0.5

# An entry is zero if it is below this many standard deviations.
ZERO = 6.0

# Slopes of a sample are zeros of a ReLU if they are below `ZERO` standard deviations while nearly
# all others are above this many.
CLEAR = 100.0

# Share of these others that may lie below.
FEW = 0.1

# Maximum number of turns, and relative change of the features at which they end.
TURNS = 40
SETTLED = 1e-8

# Reweighted least squares that remove the other samples from a weak one, for each turn.
CLEANED = 5

# Maximum root mean square of the residual in units of the error model. It is 0.6 for gradients of
# automatic differentiation in float32; a larger one shows that the model does not hold.
EXPLAINED = 2.0

# Residual from which an entry counts as one of this size: single entries between zero and rounding.
OUTLIER = 100.0

# Standard deviations that are reported, in units of those that the residual shows.
CAUTION = 2.0

# Standard deviation of what no entry shows: more than any feature, and finite.
UNSEEN = 1e15

# Maximum number of conjugate gradients of a turn, and the square of the relative error at which
# they end.
GRADIENTS = 100
SOLVED = 1e-10

# Number of columns of the rows that are processed together, which bounds the memory.
COLUMNS = 1024

# Smallest entries' error, relative to that of a typical entry of a weak sample.
FLOOR = 1e-3


@dataclass
class _State:
    """D and F of G = D F, and what is known about their errors."""

    slopes: Tensor  # (H, b) D
    live: Tensor  # (H, b) which slopes may differ from zero
    features: Tensor  # (b, n + 1) F, with a 1 for the bias
    deviation: Tensor  # (b, n + 1) standard deviations of F
    weak: Tensor  # (b,) bool, which samples are refined
    wire: float  # relative rounding error of the number format

    @property
    def blurred(self) -> Tensor:
        """The standard deviations (b, n + 1) of the proven features."""
        return self.deviation * (~self.weak)[:, None]

    def variance(self, deviation: Tensor | None = None) -> Tensor:
        """Return the variance (H, n + 1) of G around D F, with errors of F (b, n + 1)."""
        squares = self.slopes.square()
        rounding = (HALF * self.wire) ** 2 * (squares @ self.features.square())
        weak = squares[:, self.weak].mean(0) @ self.features[self.weak].square().mean(1)
        floor = (FLOOR * self.wire) ** 2 * weak
        if deviation is None:
            return rounding + floor
        return rounding + squares @ deviation.square() + floor


def refined(
    rows: Tensor,
    features: Tensor,
    deviation: Tensor,
    known: dict[int, Tensor],
    wire: float,
    noise: float,
) -> tuple[Tensor, Tensor] | None:
    """Determine the features of the samples that are not known again.

    `rows` (H, n + 1) is the gradient of a linear layer and its bias, `features` (b, n) are
    estimates with errors of `deviation` (b,), and `noise` is that of the rows, as an average.
    Returns the other samples (w, n), up to a factor near 1 each, and deviations (w, n); None if
    the rows do not agree with the error model.
    """
    state = _begin(rows, features, deviation, known, wire, noise)
    if not len(known) or not bool(state.weak.any()):
        return None
    first = deviation[state.weak]
    for _ in range(TURNS):
        before = state.features
        _solve_slopes(state, rows)
        _solve_both(state, rows)
        _solve_features(state, rows)
        _cleaned(state, first)
        moved = (state.features - before).abs().amax(1) / state.features.amax(1)
        if not bool(moved.isfinite().all()):
            return None
        if float(moved.max()) < SETTLED:
            break
    # Slopes that belong to the cleaned features.
    _solve_slopes(state, rows)
    variance = state.variance(state.deviation)
    squares = (rows - state.slopes @ state.features).square() / variance
    residual = float(squares.clamp_max(OUTLIER**2).mean().sqrt())
    if not residual < EXPLAINED:
        return None
    deviation = CAUTION * residual * state.deviation[state.weak, :-1]
    return state.features[state.weak, :-1], deviation


def _begin(
    rows: Tensor,
    features: Tensor,
    deviation: Tensor,
    known: dict[int, Tensor],
    wire: float,
    noise: float,
) -> _State:
    """Start with unweighted least squares."""
    all_one = torch.cat([features, features.new_ones(len(features), 1)], dim=1)
    inverse = torch.linalg.pinv(all_one)
    slopes = rows @ inverse
    error = noise * inverse.norm(dim=0)
    live = torch.ones_like(slopes, dtype=torch.bool)
    spread = deviation[:, None].expand_as(all_one).clone()
    weak = torch.ones(len(features), dtype=torch.bool)
    for k, values in known.items():
        weak[k] = False
        all_one[k, :-1] = values
        spread[k] = BLURRED * wire * values.max() * (all_one[k] > 0)
        size = slopes[:, k].abs() / error[k]
        on = size > ZERO
        # Where zeros and slopes cannot be told apart, all slopes stay free.
        if bool((size[on] < CLEAR).double().mean() < FEW):
            live[:, k] = on
    spread[:, -1] = 0
    return _State(slopes * live, live, all_one, spread, weak, wire)


def _solve_slopes(state: _State, rows: Tensor) -> None:
    """Determine D from F, row by row."""
    weight = 1 / state.variance(state.deviation)
    right = (weight * rows) @ state.features.T * state.live
    state.slopes = (_of_rows(state, weight) @ right[:, :, None])[:, :, 0]


def _of_rows(state: _State, weight: Tensor) -> Tensor:
    """Return the inverse (H, b, b) of the normal equations of each row's slopes."""
    b = len(state.features)
    pairs = (state.features[:, None] * state.features[None]).reshape(b * b, -1)
    mask = state.live.to(weight)
    normal = (weight @ pairs.T).reshape(-1, b, b)
    return _inverse(normal * mask[:, :, None] * mask[:, None, :])


def _solve_both(state: _State, rows: Tensor) -> None:
    """Determine D together with the weak part of F, by one Gauss-Newton step.

    Solving for D and F in turn hardly changes errors of both that belong together: of rows that
    are clean in different columns, or of multiples of a sample within another one. So F is
    eliminated, column by column, and conjugate gradients solve for D.
    """
    d = state.slopes[:, state.weak]
    f = state.features
    weight = 1 / state.variance(state.blurred)
    pairs = (d[:, :, None] * d[:, None, :]).reshape(len(d), -1)
    inverse = _inverse((weight.T @ pairs).reshape(-1, d.shape[1], d.shape[1]))
    inverse[-1] = 0  # the bias, whose feature is 1
    alone = _of_rows(state, weight)

    def down(weighted: Tensor) -> Tensor:
        """Return the slope of the squared errors in D, whatever F is."""
        of_features = (inverse @ (weighted.T @ d)[:, :, None])[:, :, 0]
        return ((weighted - weight * (d @ of_features.T)) @ f.T) * state.live

    left = down(weight * (rows - state.slopes @ f))
    step = torch.zeros_like(state.slopes)
    enough = SOLVED * float((left * (alone @ left[:, :, None])[:, :, 0]).sum())
    ahead = torch.zeros_like(left)
    before = math.inf
    for _ in range(GRADIENTS):
        near = (alone @ left[:, :, None])[:, :, 0]
        size = float((near * left).sum())
        if not size > enough:
            break
        ahead = near + size / before * ahead
        before = size
        curve = down(weight * (ahead @ f))
        length = size / float((ahead * curve).sum())
        step += length * ahead
        left = left - length * curve
    state.slopes = state.slopes + step


def _solve_features(state: _State, rows: Tensor) -> None:
    """Determine the weak part of F from D, column by column."""
    known = ~state.weak
    weight = 1 / state.variance()
    left = rows - state.slopes[:, known] @ state.features[known]
    parts = []
    for columns in torch.arange(rows.shape[1]).split(COLUMNS):
        parts.append(_column_equations(state, weight[:, columns], left[:, columns], columns))
    normal, right = (torch.cat(some) for some in zip(*parts, strict=True))
    values, deviation = _solved(normal, right)
    scale = values[-1]
    state.features = state.features.clone()
    state.features[state.weak] = (values / scale).T
    state.deviation = state.deviation.clone()
    state.deviation[state.weak] = (deviation / scale.abs()).T
    state.deviation[:, -1] = 0


def _column_equations(
    state: _State, weight: Tensor, left: Tensor, columns: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the normal equations of the weak features in some columns: (n, w, w) and (n, w).

    The error of a proven feature enters all entries of its column, each by its own slope. It is
    known up to its size, so it is one more unknown with an expected size of 1, and eliminated.
    """
    known = ~state.weak
    d = state.slopes
    b = d.shape[1]
    pairs = (d[:, :, None] * d[:, None, :]).reshape(len(d), b * b)
    normal = (weight.T @ pairs).reshape(-1, b, b)
    right = (weight * left).T @ d
    size = state.deviation[known][:, columns].T
    blurred = normal[:, known][:, :, known] * size[:, :, None] * size[:, None, :]
    blurred.diagonal(dim1=1, dim2=2).add_(1)
    both = normal[:, known][:, :, state.weak] * size[:, :, None]
    part = (right[:, known] * size)[:, :, None]
    solved = torch.cholesky_solve(torch.cat([both, part], dim=2), torch.linalg.cholesky(blurred))
    away = both.mT @ solved
    own = normal[:, state.weak][:, :, state.weak] - away[:, :, :-1]
    return own, right[:, state.weak] - away[:, :, -1]


def _cleaned(state: _State, wide: Tensor) -> None:
    """Remove the other samples from the weak ones, so that their zeros are zeros.

    Columns in which a sample is nearly zero determine the multiples of the others to subtract,
    by reweighted least squares: a small entry that is not zero has little weight in the end.
    """
    tiny = torch.finfo(state.features.dtype).eps
    for k, first in zip(state.weak.nonzero().flatten().tolist(), wide.tolist(), strict=True):
        mine = state.features[k]
        error = state.deviation[k].clamp_min(tiny * float(mine.max()))
        near = mine.abs() < ZERO * error.clamp_min(first)
        near[-1] = False
        others = torch.arange(len(state.features)) != k
        columns = state.features[others][:, near].T
        part = columns.new_zeros(columns.shape[1])
        for _ in range(CLEANED):
            left = (mine[near] - columns @ part).abs()
            weight = (error[near] * torch.maximum(left, error[near])).rsqrt()[:, None]
            part = least_squares(weight * columns, weight[:, 0] * mine[near])
        clean = mine - part @ state.features[others]
        state.features[k] = (clean / clean[-1]).clamp_min(0)


def _inverse(normal: Tensor) -> Tensor:
    """Invert small normal equations (m, k, k), of which some may be empty."""
    size = normal.diagonal(dim1=1, dim2=2).sqrt()
    inverse_size = torch.where(size > 0, 1 / size, torch.zeros_like(size))
    both = inverse_size[:, :, None] * inverse_size[:, None, :]
    found: Tensor = torch.linalg.pinv(normal * both, hermitian=True) * both
    return found


def _solved(normal: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    """Solve many small normal equations, and return the deviations of the solutions."""
    inverse = _inverse(normal)
    solution = (inverse @ right[:, :, None])[:, :, 0]
    spread = inverse.diagonal(dim1=1, dim2=2).clamp_min(0).sqrt()
    # An unknown without any equation may be anything.
    unseen = normal.diagonal(dim1=1, dim2=2) <= 0
    return solution, torch.where(unseen, torch.full_like(spread, UNSEEN), spread)
