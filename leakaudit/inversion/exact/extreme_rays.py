"""Samples as extreme rays of a cone: what non-negative inputs reveal about the rows of a layer.

The method was developed for leakaudit. Dimitrov et al. 2024 (SPEAR) use zeros of D, not those of
the inputs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Generator, Tensor

from leakaudit.core.progress import expired, step

# A gradient of a linear layer with bias is D [X 1], one row per neuron and one column per input.
# Its row space is that of the b inputs, but its basis R is arbitrary: sample k is u_k R for an
# unknown u_k. If inputs are never negative (they come out of a ReLU, or are pixels), every u_k lies
# in the cone
#
#     {u : u R >= 0}.
#
# Input j is zero for some samples. There, u_k R touches the boundary of the cone, and a sample
# whose zeros no mixture of samples shares is an *extreme ray*: its zeros determine it. Roughly half
# of the outputs of a ReLU are zero, thousands of columns, where b - 1 determine a ray. Pixels are
# also at most 1, which adds the columns 1 - x.
#
# A linear program finds an extreme ray: minimise a positive combination of the columns, with a
# normalisation q u = 1. If q is orthogonal to all rays found so far, these are not among the
# possible solutions, so every program finds a new one (`rays`). What it finds need not be a sample:
# a cone has many rays with b - 1 zeros by chance. Those are recognised, because they have few zeros
# (`ConvexCone.firm`) or do not lie on the grid of pixels, and another program is solved.

Array = NDArray[np.float64]

# An entry is zero if it is below this many standard deviations of its error.
ZERO = 6.0

# Error of an entry of u @ columns that float64 leaves, relative to |u|: u is a null vector of its
# zeros, with an error of 2e-16 times their condition number.
LEAST = 1e-14

# Tolerance of linear programs, relative to the largest entry: what is below it may be zero. HiGHS
# meets conditions up to 1e-7.
SOLVED = 1e-6

# Number of conditions with which a linear program starts, per unknown, and maximum number of
# violated ones that are added at a time. A choice: programs with all conditions take five times as
# long for 8192 features of 64 samples.
FIRST = 24
MORE = 8

# Times the violated conditions are added before a solution is taken as it is.
REPAIRS = 12

# A ray that is not accepted is improved at most this many times, by a program whose weights prefer
# entries that are nearly zero (Candes et al. 2008).
SPARSER = 8

# Entries from this share of the largest one count as different from zero in these weights.
NEARLY = 0.02

# A zero set determines a ray if its columns have rank b - 1 by singular values above this multiple
# of their noise.
SEEN = 6.0

# Number of parts into which a zero set is divided, each of which must determine the ray. A zero by
# coincidence lies in one part only.
PARTS = 3

# Maximum number of times that the zero set of a ray is determined again from the polished ray.
POLISH = 4

# Programs without a new ray after which the search ends. A choice: of 64 samples, the last ones
# take up to ten.
PATIENCE = 40

# Share of the rays found that a direction avoids after every second failure.
AVOIDED = 0.8

# Largest power of exponentially distributed weights.
UNEVEN = 3


@dataclass(frozen=True)
class ConvexCone:
    """All u with u @ columns >= 0, and u @ one = 1 for the samples among them."""

    columns: Array  # (b, n) conditions
    one: Array  # (b,) the column that is 1 for every sample
    # (b,) singular values that belong to the coordinates. The error of u @ columns has standard
    # deviation noise * |u / sizes| in every entry.
    sizes: Array
    noise: float  # standard deviation of the rows' errors

    @classmethod
    def of(cls, columns: Tensor, one: Tensor, sizes: Tensor, noise: float) -> ConvexCone:
        """Leave out the columns that are zero for all samples."""
        told = (columns * sizes[:, None]).norm(dim=0) > ZERO * noise * len(sizes) ** 0.5
        return cls(_array(columns[:, told]), _array(one), _array(sizes), noise)

    def error(self, u: Array) -> float:
        """Return the standard deviation of an entry of u @ columns."""
        of_rows = self.noise * float(np.linalg.norm(u / self.sizes))
        return max(of_rows, LEAST * float(np.linalg.norm(u)))

    def firm(self, u: Array, rng: np.random.Generator) -> bool:
        """Check whether zeros of a ray (b,) determine it, even without one of `PARTS` parts.

        Equal columns are one witness: they vanish together.
        """
        b = len(u)
        if b == 1:
            return True
        zeros = self.columns[:, np.abs(u @ self.columns) < ZERO * self.error(u)]
        direction = rng.standard_normal(b)
        zeros = zeros[:, _distinct(direction @ zeros, ZERO * self.error(direction))]
        if zeros.shape[1] < PARTS * (b - 1):
            return False
        order = rng.permutation(zeros.shape[1])
        for part in np.array_split(order, PARTS):
            whitened = zeros[:, part] * self.sizes[:, None]
            strength = np.linalg.svd(whitened, compute_uv=False)
            edge = self.noise * (np.sqrt(b) + np.sqrt(len(part)))
            if not strength[b - 2] > SEEN * edge:
                return False
        return True


def random(generator: Generator) -> np.random.Generator:
    """Return a generator of numpy whose seed comes from a generator of torch."""
    seed = torch.randint(2**31, (), generator=generator, device=generator.device)
    return np.random.default_rng(int(seed))


def rays(
    cone: ConvexCone,
    wanted: int,
    accepts: Callable[[Array], bool],
    generator: Generator,
) -> Array:
    """Find the samples among the extreme rays of a cone: (k, b) with u @ one = 1, k <= wanted."""
    rng = random(generator)
    found: list[Array] = []
    missed = 0
    while len(found) < wanted and missed < PATIENCE and not expired():
        step("rays", len(found), wanted)
        u = _sample(cone, found, missed, accepts, rng)
        if u is None or _known(u, found, cone):
            missed += 1
            continue
        found.append(u)
        missed = 0
    step("rays", len(found), wanted)
    return np.array(found).reshape(len(found), len(cone.one))


def _sample(
    cone: ConvexCone,
    found: list[Array],
    missed: int,
    accepts: Callable[[Array], bool],
    rng: np.random.Generator,
) -> Array | None:
    # After every second failure, the direction avoids only some of the rays found, for variety.
    """Solve programs from one random start until a ray is accepted; None if none is."""
    avoided = [u for u in found if missed % 2 == 0 or rng.random() < AVOIDED]
    direction = _direction(cone, avoided, rng)
    if direction is None:
        return None
    # The more failures, the more uneven the weights.
    uneven = rng.exponential(size=cone.columns.shape[1]) ** min(missed, UNEVEN)
    weights = cone.columns @ uneven
    u = _vertex(cone, weights, direction, rng)
    if u is None:
        u = _vertex(cone, weights, -direction, rng)
    for _ in range(SPARSER):
        if u is None or not float(cone.one @ u) > 0:
            return None
        ray = _polished(cone, u / (cone.one @ u))
        if ray is not None and accepts(ray):
            return ray
        entries = (u / (cone.one @ u)) @ cone.columns
        near = NEARLY * entries.max()
        better = _vertex(cone, cone.columns @ (1 / (entries.clip(0) + near)), cone.one, rng)
        if better is None or np.allclose(better, u / (cone.one @ u), rtol=1e-6, atol=0):
            return None
        u = better
    return None


def _direction(cone: ConvexCone, avoided: list[Array], rng: np.random.Generator) -> Array | None:
    """Return a direction in which some new sample has a component, and no avoided ray has.

    It is a column, drawn by its energy outside the avoided rays, without their part; None if
    all energies are 0, or beyond all floats.
    """
    rest = cone.columns
    if avoided:
        basis = np.linalg.qr(np.array(avoided).T)[0]
        rest = rest - basis @ (basis.T @ rest)
    energy = np.square(rest).sum(0)
    total = float(energy.sum())
    if not 0 < total < np.inf:
        return None
    chosen: Array = rest[:, rng.choice(len(energy), p=energy / total)]
    return chosen


def _vertex(
    cone: ConvexCone, weights: Array, direction: Array, rng: np.random.Generator
) -> Array | None:
    """Minimise weights @ u over the cone with direction @ u = 1; None if there is no solution.

    Most conditions hold by themselves, so the program starts with some, and violated ones
    follow.
    """
    from scipy.optimize import linprog  # slow to import

    b, n = cone.columns.shape
    used = np.arange(n)
    if n > 2 * FIRST * b:
        used = rng.choice(n, FIRST * b, replace=False)
    scale = float(np.abs(direction).max())
    weights = weights / np.abs(weights).max()
    for _ in range(REPAIRS):
        solved = linprog(
            weights,
            A_ub=-cone.columns[:, used].T,
            b_ub=np.zeros(len(used)),
            A_eq=direction[None] / scale,
            b_eq=[1.0],
            bounds=(None, None),
            method="highs-ds",
        )
        if solved.x is None:
            return None
        entries = solved.x @ cone.columns
        violated = entries < -SOLVED * np.abs(entries).max()
        if not violated.any():
            break
        worst = np.argsort(entries)[: MORE * b]
        used = np.union1d(used, worst[violated[worst]])
    vertex: Array = solved.x
    return vertex


def _polished(cone: ConvexCone, u: Array) -> Array | None:
    """Determine a ray again from its zeros only; None if these do not determine a ray of the cone.

    It is the left null vector of the columns Z where it vanishes, of rank b - 1. A program
    meets conditions up to 1e-7, so what it shows as zero may be a small entry, which would move
    the ray by far more than rounding. So columns weigh the less the larger their entry still is
    (iteratively reweighted least squares).
    """
    b = len(u)
    if b == 1:
        return u
    limit = max(ZERO * cone.error(u), SOLVED * float(np.abs(u @ cone.columns).max()))
    near = cone.columns[:, np.abs(u @ cone.columns) < limit]
    for _ in range(POLISH):
        weights = 1 / np.abs(u @ near).clip(ZERO * cone.error(u))
        heavier = _annihilator(cone, near * (weights / weights.max(initial=0.0)))
        if heavier is None:
            return None
        u = heavier
    for _ in range(POLISH):
        limit = ZERO * cone.error(u)
        again = _annihilator(cone, cone.columns[:, np.abs(u @ cone.columns) < limit])
        if again is None:
            return None
        settled = np.allclose(again, u, rtol=0, atol=1e-14 * float(np.abs(u).max()))
        u = again
        if settled:
            break
    limit = ZERO * cone.error(u)
    inside = float((u @ cone.columns).min()) > -2 * max(limit, 1e-12)
    return u if inside else None


def _annihilator(cone: ConvexCone, zeros: Array) -> Array | None:
    """Return the u (b,) with u @ zeros = 0 and u @ one = 1; None if there is none."""
    if zeros.shape[1] < len(zeros) - 1:
        return None
    corner = np.linalg.qr(zeros.T, mode="r")
    last: Array = np.linalg.svd(corner)[2][-1]
    if not abs(float(cone.one @ last)) > 0:
        return None
    found: Array = last / (cone.one @ last)
    return found


def _known(u: Array, found: list[Array], cone: ConvexCone) -> bool:
    """Whether a ray was found before, up to errors."""
    entries = u @ cone.columns
    for other in found:
        apart = float(np.abs(entries - other @ cone.columns).max())
        if apart < 2 * max(ZERO * cone.error(u), SOLVED * float(entries.max())):
            return True
    return False


def _distinct(projected: Array, near: float) -> NDArray[np.intp]:
    """Choose columns of which no two are equal, given a random projection (n,) of each.

    Different columns may have nearly equal projections and count as one, never the reverse.
    """
    order = np.argsort(projected)
    floor = 1e-12 * float(np.abs(projected).max(initial=0.0))
    jumps = np.diff(projected[order], prepend=-np.inf) > max(near, floor)
    return order[jumps]


def _array(x: Tensor) -> Array:
    found: Array = x.detach().cpu().double().numpy()
    return found
