"""Which inputs are active at which neuron, by descending through the lattice of null spaces."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Generator, Tensor

from leakaudit.core.progress import expired
from leakaudit.inversion.linear import edge, independent, singular_values

# Let L_g (n, b) be the rows of neuron g over a window of rounds, in coordinates of the space that
# the b inputs span. Then L_g = Delta_g M, where row k of M holds the coordinates of input k, and
# column k of Delta_g the slopes of sample k at this neuron over time. If a ReLU is inactive for
# sample k throughout the window, this column is zero.
#
# **Dual vectors.** Let q_k be the vector with M q_k = e_k. Then L_g q_k is column k of Delta_g: the
# rows vanish along q_k if and only if sample k is inactive at g. All dual vectors together are the
# inverse of M, so they determine the inputs (`duals_to_inputs`).
#
# **The lattice.** If there are at least as many rounds as active samples,
#
#     null(L_g) = span{q_k : k inactive at g}.
#
# The intersection of the null spaces of several neurons is the span of the dual vectors of those
# samples that are inactive at all of these neurons. A walk starts in the null space of one neuron
# and intersects it with those of others until one dimension is left: the dual vector of a single
# sample. No combinatorial search over activity patterns (2^b per neuron) is needed; every step is
# linear algebra.
#
# **Directed walks.** Walks that end at a sample found before are useless. Each sample found
# explains one null dimension at every neuron where it is inactive. A walk therefore only visits
# neurons that leave it at least one dimension that the found samples do not explain.
#
# **False duals.** A combination of several dual vectors can vanish at a few neurons by coincidence.
# It vanishes at fewer neurons than its parts, so duals are chosen greedily by the rank of the rows
# where they vanish (`Groups.independent`), which is the greedy algorithm of a matroid.
#
# **Relative duals.** If sample j is inactive at every neuron where sample k is, no intersection
# contains q_k without q_j, so q_k is known only up to multiples of q_j. This does not affect x_k,
# because row k of the inverse does not change, but it adds a multiple of x_k to x_j
# (`duals_to_inputs` removes it).
#
# Rows are never multiplied to form Gram matrices before their null space is computed: that would
# square their condition number and lose half the digits of float64.
#
# **Sensitivity.** Each constant below except `ENOUGH` was changed by a factor of two to three in
# both directions, for recordings of 8 to 40 rounds of Fashion-MNIST in batches of 4 to 16, float32
# and float64, 128 and 256 neurons; `NULL`, `TIGHTER`, `OVER` and `FEW` also for 3 and 4 rounds.
# Every image was recovered bit for bit each time, unless the constant's comment states otherwise.

# The soft projector on a neuron's rows weights a singular value s by s^2 / (s^2 + (SOFT noise)^2).
SOFT = 20.0

# Part of a unit vector, measured by that projector, below which the vector lies in the null space.
# Together with `SOFT`, this corresponds to singular values below sqrt(NULL) SOFT = 1.5 times the
# largest one of noise.
NULL = 6e-3

# Smaller parts to try if that gives no consistent set of neurons: rows of few rounds are nearly
# orthogonal to many directions by chance, and only smaller parts distinguish these from true zeros.
# Without them, no image of a batch of 4 is recovered from 3 rounds.
TIGHTER = (1e-4, 1e-6)

# Along a dual vector, a neuron's rows are zero if their norm is below this many times that of
# noise. Inactive neurons have been observed at 0.8 to 1.5, active ones at 800 and more (float32, 32
# samples).
ZERO = 5.0

# Minimum rank of the zero rows of a dual vector with b - 1 unknowns, in units of b - 1, to be
# trusted.
OVER = 1.2

# Minimum of the second smallest singular value of a dual's zero rows, in units of the largest one
# of noise. Below it, the dual is not the only direction where the rows vanish.
ALONE = 10.0

# Minimum part of a dual vector outside the span of those already chosen, in scaled coordinates.
NEW = 0.02

# Cosine above which two vectors with the same zeros are estimates of one dual vector (2.6 degrees).
SAME = 0.999

# A dual that at most this many groups single out is not trusted. A combination of duals can vanish
# at one or two neurons that are active in only a few rounds.
FEW = 2

# Number of neurons that a step of a walk examines before it examines all others. Only saves time.
LOOK = 48

# Maximum number of steps of a walk. Each removes at least one dimension, so only batches larger
# than 30 whose walks lose one dimension at a time reach it.
STEPS = 30

# Number of zero rows used to fit a dual vector, in units of the batch. More take time and gain
# little.
ENOUGH = 6.0

# Confidence in a dual vector: 0, many groups single it out; 1, it is known only up to multiples of
# others; 2, only one or two groups single it out.
Doubt = Literal[0, 1, 2]
SOLID: Doubt = 0
RELATIVE: Doubt = 1
WEAK: Doubt = 2


@dataclass(frozen=True)
class Dual:
    """A dual vector and where it vanishes."""

    vector: Tensor  # (b,) the vector q
    zero: Tensor  # (G,) bool, the groups where its sample is inactive
    rank: float  # rank of the rows of these groups, summed over the groups
    # `SOLID` if many groups single it out, `RELATIVE` if it is known only up to multiples of
    # others, `WEAK` if only one or two groups single it out, which combinations of duals can also
    # achieve at a neuron that is active in few rounds
    doubt: Doubt = SOLID


@dataclass(frozen=True)
class Groups:
    """The rows of all neurons over windows of rounds; a group is one neuron in one window."""

    rows: Tensor  # (G, n, b) with independent errors
    noise: Tensor  # (G,) standard deviation of these errors
    right: Tensor  # (G, min(n, b), b) right singular vectors of the rows
    sizes: Tensor  # (G, min(n, b)) their singular values
    soft: Tensor  # (G, b, b) soft projectors onto what is above the noise
    rank: Tensor  # (G,) number of dimensions that are clearly above the noise
    null: Tensor  # (G,) number of dimensions that are within the noise
    scale: Tensor  # (b,) relative sizes of the coordinates

    @classmethod
    def of(cls, rows: Tensor, noise: Tensor) -> Groups:
        """Decompose rows (G, n, b) with errors of deviation (G,); omit groups of noise only."""
        n, b = rows.shape[1:]
        _, sizes, right = torch.linalg.svd(rows, full_matrices=False)
        level = SOFT * noise[:, None] * edge(n, b)
        weight = sizes.square() / (sizes.square() + level.square())
        keep = sizes[:, 0] > level[:, 0]
        rows = rows[keep]
        right = right[keep]
        weight = weight[keep]
        if len(rows):
            overall = singular_values(rows.flatten(0, 1))
        else:
            overall = rows.new_ones(b)
        return cls(
            rows=rows,
            noise=noise[keep],
            right=right,
            sizes=sizes[keep],
            soft=(right.mT * weight[:, None]) @ right,
            rank=(weight > 0.5).sum(1),
            null=b - (weight > NULL).sum(1),
            scale=overall[:b] / overall[0].clamp_min(1e-300),
        )

    def __len__(self) -> int:
        """Return the number of groups G."""
        return len(self.rows)

    @property
    def batch(self) -> int:
        """The number of unknown samples b."""
        return self.rows.shape[2]

    def zero_at(self, q: Tensor) -> Tensor:
        """Decide for each group (G,) whether its rows vanish along a vector (b,)."""
        return self.sizes_at(q[:, None])[:, 0] < ZERO

    def sizes_at(self, q: Tensor) -> Tensor:
        """Return |L_g q| / (noise_g sqrt(n) |q|) (G, k) for vectors (b, k), about 1 if inactive."""
        by_noise = self.noise[:, None] * self.rows.shape[1] ** 0.5 * q.norm(dim=0)
        found: Tensor = (self.rows @ q).norm(dim=1) / by_noise
        return found

    def refined(
        self, q: Tensor, known: list[Dual], generator: Generator, relative: bool
    ) -> Dual | None:
        """Refit a candidate q (b,) on the rows where it is zero, until these no longer change.

        None if they do not determine one direction, or one besides known ones if
        `relative`.
        """
        size = ((self.soft @ q) @ q) / (q @ q)
        for level in (NULL, *TIGHTER):
            zero = size < level
            # Three refits; the second usually only confirms the first.
            for _ in range(3):
                fitted = self._fitted(zero, known, generator, relative)
                if fitted is None:
                    break
                again = self.zero_at(fitted.vector)
                if bool((again == zero).all()):
                    return fitted
                zero = again
        return None

    def _fitted(
        self, zero: Tensor, known: list[Dual], generator: Generator, relative: bool
    ) -> Dual | None:
        """Return the single direction along which the rows of some groups (G,) vanish."""
        b = self.batch
        rank = float(self.rank[zero].sum())
        if rank < b - 1:
            return None
        sizes, right = self._zero_rows(zero, generator)
        noise = self.noise[zero].mean() * edge(rank, b)
        near = int((sizes < ALONE * noise).sum())
        if near == 1:
            # Groups with a signal along the second smallest direction are the ones that exclude it.
            few = b > 1 and int((self.sizes_at(right[b - 2][:, None])[zero, 0] > ZERO).sum()) <= FEW
            scarce = rank < OVER * (b - 1) + 1
            return Dual(right[-1], zero, rank, WEAK if few or scarce else SOLID)
        # The remaining directions are those of known samples that are inactive there too, plus one.
        inside = [d.vector for d in known if bool(d.zero[zero].all())]
        if not relative or near < 2 or len(inside) != near - 1:
            return None
        space = right[b - near :].T
        others = torch.linalg.qr(space.T @ torch.stack(inside, dim=1)).Q
        outside = torch.linalg.svd(others, full_matrices=True).U[:, -1]
        return Dual(space @ outside, zero, rank, RELATIVE)

    def _zero_rows(self, zero: Tensor, generator: Generator) -> tuple[Tensor, Tensor]:
        """Return singular values (b,) and right vectors (b, b) of enough rows of some groups."""
        places = zero.nonzero().flatten()
        order = places[torch.randperm(len(places), generator=generator)]
        used = order[: int((self.rank[order].cumsum(0) < ENOUGH * self.batch).sum()) + 1]
        parts = (self.sizes[used, :, None] * self.right[used]).flatten(0, 1)
        _, sizes, right = torch.linalg.svd(torch.linalg.qr(parts).R, full_matrices=True)
        if len(sizes) < self.batch:
            sizes = torch.cat([sizes, sizes.new_zeros(self.batch - len(sizes))])
        return sizes, right

    def walk(self, start: int, known: list[Dual], generator: Generator) -> Tensor:
        """Descend from a group's null space to fewer dimensions: (b, d) orthonormal columns.

        A dimension is kept that no known dual explains. If one sample was isolated, d = 1.
        """
        if known:
            zeros = torch.stack([d.zero for d in known])
        else:
            zeros = torch.zeros(0, len(self), dtype=torch.bool)
        space = torch.linalg.eigh(self.soft[start])[1][:, : int(self.null[start])]
        inside = zeros[:, start].clone()  # known samples that are inactive at all groups so far
        for _ in range(STEPS):
            d = space.shape[1]
            if d == 1:
                break
            order = torch.randperm(len(self), generator=generator)
            for some in (order[:LOOK], order[LOOK:]):
                # Dimensions of the intersection with each group's null space, ...
                meets = space.T @ self.soft[some] @ space
                null = (torch.linalg.eigvalsh(meets) < NULL).sum(1)
                # ... and how many of them no known sample explains.
                left = null - (inside[:, None] & zeros[:, some]).sum(0)
                fits = ((left > 0) & (null < d)).nonzero().flatten()
                if len(fits):
                    break
            if not len(fits):
                break
            share = left[fits].double() / null[fits]
            pick = fits[torch.multinomial(share, 1, generator=generator)]
            space = space @ torch.linalg.eigh(meets[pick[0]])[1][:, : int(null[pick])]
            inside = inside & zeros[:, some[pick[0]]]
        remaining = [d.vector for d, i in zip(known, inside.tolist(), strict=True) if i]
        return _without(space, remaining)

    def search(
        self,
        visits: int,
        generator: Generator,
        relative: bool = False,
        known: list[Dual] | None = None,
    ) -> list[Dual]:
        """Walk until all null dimensions are explained, or `visits` walks in a row add no dual."""
        if self.batch == 1:
            one = self.rows.new_ones(1)
            return [Dual(one, self.zero_at(one), 0.0)]
        pool = list(known or [])
        found = self.independent(pool)
        fails = 0
        seen = torch.zeros(len(self), dtype=torch.float64)  # walks that started at each group
        while fails < visits and len(self) and not expired():
            weight = self._starts(found, seen)
            if not float(weight.sum()) > 0:
                break
            start = int(torch.multinomial(weight, 1, generator=generator))
            seen[start] += 1
            space = self.walk(start, found, generator)
            fails += 1
            if space.shape[1] > 1:
                continue
            dual = self.refined(space[:, 0], found, generator, relative)
            if dual is None or self.holds(dual, pool):
                continue
            pool.append(dual)
            better = self.independent(pool)
            if sum(d.rank for d in better) > sum(d.rank for d in found):
                fails = 0
            found = better
        return found

    def _starts(self, found: list[Dual], seen: Tensor) -> Tensor:
        """Return weights (G,) of groups to start from: those with unexplained null dimensions.

        Small null spaces lead down in fewer steps, and groups that were tried led to
        nothing new. The form of both factors is a choice.
        """
        if found:
            explained = torch.stack([d.zero for d in found]).sum(0)
        else:
            explained = torch.zeros_like(self.null)
        need = (self.null - explained).clamp_min(0).double()
        return (need > 0) / (1 + seen) / self.null.clamp_min(1).double().sqrt()

    def holds(self, dual: Dual, pool: list[Dual]) -> bool:
        """Check whether a pool contains a dual: the same zeros, and nearly the same direction."""
        return any(
            float((dual.vector @ d.vector).abs()) > SAME and bool((d.zero == dual.zero).all())
            for d in pool
        )

    def independent(self, pool: list[Dual]) -> list[Dual]:
        """Choose independent duals greedily, those that are zero at the most rows first.

        Independence is a matroid, so the greedy choice has the largest total rank of all
        bases.
        """
        if not pool:
            return []
        best = sorted(pool, key=lambda d: (d.doubt, -d.rank))
        # Scaled, because directions in which the batch is weak have large duals.
        scaled = torch.stack([d.vector for d in best]) * self.scale
        return [best[k] for k in independent(scaled, NEW, len(best))[0]]


def _without(space: Tensor, inside: list[Tensor]) -> Tensor:
    """Remove known directions from a space (b, d)."""
    if not inside or space.shape[1] == 1:
        return space
    known = torch.linalg.qr(space.T @ torch.stack(inside, dim=1)).Q
    outside = torch.linalg.svd(known, full_matrices=True).U[:, known.shape[1] :]
    rest: Tensor = space @ outside
    return rest
