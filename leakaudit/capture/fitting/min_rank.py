"""The combination of vectors that leaves only gradients of a few records."""

# In the block of the first fully connected layer, weights beside bias, a gradient of b records has
# rank b at most: it is a sum of b products delta_k [x_k 1]. A combination
#
#     D_t(c) = M_t - sum_k c_k F_kt
#
# of a message and what preceded it therefore has rank b if it leaves nothing but gradients of b
# records. Finding c is the problem MinRank. If D = U S V^T and U', V' span what is beyond the first
# b singular vectors, then U'^T (D - sum_k dc_k F_k) V' is, to first order, what remains beyond rank
# b after a change dc. Its least squares are the steps of Newton's method here.
#
# Rounding decides what counts as nothing: the entries of M_t and F_kt are rounded to the number
# format of the messages, so what remains beyond rank b cannot be smaller than
#
#     floor_t = eps sqrt(|M_t|^2 + sum_k c_k^2 |F_kt|^2),
#
# and should not be much larger. It also determines how accurately c is known.

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

STEPS = 15  # of Newton's method; from a good start, five are enough
SETTLED = 1e-12  # change of the coefficients below which they no longer move
SIDE = 16  # rows and columns of the sketch on which coefficients are searched: a choice
SPARE = 2  # rows and columns beyond the rank that are required for it to be evidence
# What remained beyond the right rank was .2 to .6 of the floor in the bundled protocols; that of
# wrong combinations was 30 or more. The exact value in between is a choice.
FLOORS = 3.0
CLEAR = 30.0  # floors above which a singular value is not rounding: a choice
LAST_PLACES = 10.0  # units of rounding to which a coefficient is known at best: a choice
WIDE = 6.0  # standard deviations within which a coefficient is looked for: a choice
# Chance that a random number is as near to a fraction as simple as the one that is named.
CHANCE = 0.01
SMALLEST = 1e-12  # the least information about a direction, so that nothing is divided by zero
DECIMALS = 6
LARGEST = 60  # denominator


@dataclass(frozen=True)
class Blocks:
    """The blocks of one node."""

    target: np.ndarray  # (T, H, p) float64, the messages M_t
    terms: np.ndarray  # (T, K, H, p) float64, what may be subtracted
    eps: float  # distance from 1 to the next number in the number format of the messages

    def left(self, c: np.ndarray) -> np.ndarray:
        """Return D_t(c), (T, H, p), for coefficients (K,)."""
        rest: np.ndarray = self.target - np.einsum("k,tkhp->thp", c, self.terms)
        return rest

    def floors(self, c: np.ndarray) -> np.ndarray:
        """Return the size (T,) of rounding errors in D_t(c), for coefficients (K,)."""
        squares = np.square(self.target).sum((1, 2))
        squares = squares + np.square(self.terms).sum((2, 3)) @ np.square(c)
        sizes: np.ndarray = self.eps * np.sqrt(squares)
        return sizes

    def rounds(self, some: slice) -> Blocks:
        """Return the blocks of some rounds."""
        return Blocks(self.target[some], self.terms[some], self.eps)

    def sketched(self, seed: int = 0) -> Blocks:
        """Return random combinations of rows and columns, which have the same rank."""
        rng = np.random.default_rng(seed)
        _, rows, columns = self.target.shape
        left = _orthogonal(rng, rows)
        right = _orthogonal(rng, columns)
        target = np.einsum("ah,thp,pb->tab", left.T, self.target, right, optimize=True)
        terms = np.einsum("ah,tkhp,pb->tkab", left.T, self.terms, right, optimize=True)
        return Blocks(target, terms, self.eps)


def _orthogonal(rng: np.random.Generator, size: int) -> np.ndarray:
    """Return orthogonal columns (size, at most SIDE), scaled to keep norms on average."""
    drawn = rng.standard_normal((size, min(size, SIDE)))
    columns: np.ndarray = np.linalg.qr(drawn)[0] * np.sqrt(size / drawn.shape[1])
    return columns


def informative(blocks: Blocks, rank: int) -> bool:
    """Return whether the blocks are large enough for a rank to say something."""
    _, rows, columns = blocks.target.shape
    return bool(min(rows, columns) >= rank + SPARE)


def miss(blocks: Blocks, c: np.ndarray, rank: int) -> float:
    """Return the largest norm beyond a rank, with coefficients (K,), in units of rounding."""
    sizes = np.linalg.svd(blocks.left(c), compute_uv=False)
    beyond = np.sqrt(np.square(sizes[:, rank:]).sum(1))
    return float((beyond / blocks.floors(c)).max())


def is_clear(blocks: Blocks, c: np.ndarray, rank: int) -> bool:
    """Return whether the singular values up to the rank, which may be 0, exceed rounding."""
    if rank == 0:
        return True
    sizes = np.linalg.svd(blocks.left(c), compute_uv=False)[:, rank - 1]
    return bool((sizes > CLEAR * blocks.floors(c)).all())


def fit(
    blocks: Blocks, rank: int, starts: Sequence[np.ndarray]
) -> tuple[np.ndarray, np.ndarray] | None:
    """Return the coefficients (K,) with which every block has at most this rank, or None.

    With them, the distances (K,) within which the exact values lie.
    """
    if not informative(blocks, rank):
        return None
    if not blocks.terms.shape[1]:
        nothing = np.zeros(0)
        return (nothing, nothing) if miss(blocks, nothing, rank) < FLOORS else None
    small = blocks.sketched()
    for start in starts:
        c, covariance = _newton(small, rank, start)
        if miss(small, c, rank) <= FLOORS and miss(blocks, c, rank) < FLOORS:
            width = WIDE * np.sqrt(np.diag(covariance))
            return c, np.maximum(width, LAST_PLACES * blocks.eps)
    return None


def _newton(blocks: Blocks, rank: int, start: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return coefficients and their covariance, after steps that reduce what is beyond a rank."""
    c = start.astype(float)
    entries = blocks.target[0].size
    for _ in range(STEPS):
        # Rounding errors of the entries have this standard deviation.
        size = blocks.floors(c) / np.sqrt(entries)
        u, _, vh = np.linalg.svd(blocks.left(c))
        left = u[:, :, rank:]
        right = vh[:, rank:, :]
        now = np.einsum("tma,tmp,tbp->tab", left, blocks.left(c), right, optimize=True)
        slopes = np.einsum("tma,tkmp,tbp->tabk", left, blocks.terms, right, optimize=True)
        scale = size[:, None, None]
        matrix = (slopes / scale[..., None]).reshape(-1, len(c))
        change = np.linalg.lstsq(matrix, (now / scale).ravel(), rcond=None)[0]
        c = c + change
        normal = matrix.T @ matrix
        if np.abs(change).max(initial=0.0) < SETTLED:
            break
    values, vectors = np.linalg.eigh(normal)
    # A direction in which nothing changes is not determined.
    inverse = (vectors / np.maximum(values, SMALLEST)) @ vectors.T
    return c, inverse


def simplest(value: float, width: float) -> Fraction | None:
    """Return the simplest fraction or decimal near a measured value; None if none stands out."""
    # Among numbers between 0 and 1, about .3 q^2 are fractions with denominators up to q, and 10^d
    # are decimals of d digits. A number that is this near to one of them by chance is rare only if
    # they are few.
    if not np.isfinite(value) or not np.isfinite(width):
        return None
    if abs(value) <= width:
        return Fraction(0) if width < CHANCE else None
    options: list[tuple[float, Fraction]] = []
    for q in range(1, LARGEST + 1):
        options.append((max(1.0, 0.3 * q**2), Fraction(round(value * q), q)))
    for digits in range(1, DECIMALS + 1):
        options.append((10.0**digits, Fraction(round(value * 10**digits), 10**digits)))
    for count, found in sorted(options, key=lambda one: one[0]):
        if found and abs(float(found) - value) <= width:
            return found if 2 * width * count < CHANCE else None
    return None
