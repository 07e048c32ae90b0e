"""Which inputs are active at which neuron, found by a walk down the lattice of null spaces.

With L_g (n, b) the rows of neuron g over a window of rounds, in coordinates of the space that the inputs span, L_g = Delta_g M and
X = M R. A sample k that is inactive at g through the window has a zero column in Delta_g. Its dual vector q_k (M q_k = e_k) then
solves L_g q_k = 0, so null(L_g) = span{q_k : k inactive at g} where the rounds are many enough, and intersections of null spaces are
spans of intersections of these sets: a walk down to one dimension finds one sample.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from leakaudit.progress import expired

SOFT = 20.0  # singular values this far above noise count half
NULL = 6e-3  # soft projection below which a direction counts as noise
TIGHTER = (
    1e-4,
    1e-6,
)  # levels that are tried next, since rows of few rounds are nearly orthogonal to many directions
ZERO = 5.0  # a zero column has a norm below this many times that of noise
OVER = 1.2  # zero rows needed, in units of the unknowns of a dual vector
ALONE = 10.0  # the next direction's singular value must be this many times the noise
NEW = 0.02  # least part of a dual vector outside those that are known, in scaled coordinates
SAME = 0.999  # cosine of two estimates of one dual vector
FEW = 2  # groups that single a dual out, and are not trusted
LOOK = 48  # neurons that one step of a walk looks at
STEPS = 30  # of one walk


@dataclass(frozen=True)
class Dual:
    """A dual vector q (b,), the groups (G,) where its sample is inactive, and their rank in all.

    doubt: 0 where many groups single it out, 1 where it is known only up to multiples of others, 2 where one or two groups alone
    single it out, which combinations of duals can also reach at a neuron that fired for a few rounds.
    """

    vector: Tensor
    zero: Tensor
    rank: float
    doubt: int = 0


@dataclass(frozen=True)
class Groups:
    """All neurons' rows over windows of rounds.

    rows: (G, n, b), errors of standard deviation `noise` (G,), independent. right: (G, min(n, b), b) and sizes: (G, min(n, b)), their
    singular value decompositions. soft: (G, b, b) projectors on what is above noise. rank, null: (G,) dimensions that are clearly
    above noise and within it. scale: (b,) relative sizes of the coordinates.
    """

    rows: Tensor
    noise: Tensor
    right: Tensor
    sizes: Tensor
    soft: Tensor
    rank: Tensor
    null: Tensor
    scale: Tensor

    @classmethod
    def of(cls, rows: Tensor, noise: Tensor) -> Groups:
        """Decompose every group; those that hold noise alone are left out."""
        n, b = rows.shape[1:]
        _, sizes, right = torch.linalg.svd(rows, full_matrices=False)
        level = SOFT * noise[:, None] * (n**0.5 + b**0.5)
        weight = sizes.square() / (sizes.square() + level.square())
        keep = sizes[:, 0] > level[:, 0]
        rows, noise, sizes, right, weight = (
            rows[keep],
            noise[keep],
            sizes[keep],
            right[keep],
            weight[keep],
        )
        soft = (right.mT * weight[:, None]) @ right
        gram = (
            torch.linalg.svdvals(torch.linalg.qr(rows.flatten(0, 1)).R)
            if len(rows)
            else rows.new_ones(b)
        )
        null = b - (weight > NULL).sum(1)
        return cls(
            rows,
            noise,
            right,
            sizes,
            soft,
            (weight > 0.5).sum(1),
            null,
            gram[:b] / gram[0].clamp_min(1e-300),
        )

    def __len__(self) -> int:
        """Number of groups G."""
        return len(self.rows)

    @property
    def batch(self) -> int:
        """Number of unknown samples b."""
        return self.rows.shape[2]

    def zero_at(self, q: Tensor) -> Tensor:
        """Tell at which groups (G,) a dual vector (b,) is zero."""
        return self.sizes_at(q[:, None])[:, 0] < ZERO

    def sizes_at(self, q: Tensor) -> Tensor:
        """Norms (G, k) of the groups' rows along q (b, k), in units of what noise would give."""
        found: Tensor = (self.rows @ q).norm(dim=1) / (
            self.noise[:, None] * self.rows.shape[1] ** 0.5 * q.norm(dim=0)
        )
        return found

    def refined(
        self, q: Tensor, known: list[Dual], generator: Generator, relative: bool
    ) -> Dual | None:
        """Refit q on the rows where it is zero; None where those do not hold one direction or, if relative, one beside known ones."""
        size = ((self.soft @ q) @ q) / (q @ q)
        for level in (NULL, *TIGHTER):
            zero, again = size < level, torch.zeros_like(size, dtype=torch.bool)
            for _ in range(3):
                if (fitted := self._fitted(zero, known, generator, relative)) is None:
                    break
                again = self.zero_at(fitted.vector)
                if bool((again == zero).all()):
                    return fitted
                zero = again
        return None

    def _fitted(
        self, zero: Tensor, known: list[Dual], generator: Generator, relative: bool
    ) -> Dual | None:
        """Return the one direction where the rows of some groups vanish."""
        b, rank = self.batch, float(self.rank[zero].sum())
        if rank < b - 1:
            return None
        sizes, right = self._zero_rows(zero, generator)
        near = int((sizes < ALONE * self.noise[zero].mean() * (rank**0.5 + b**0.5)).sum())
        if near == 1:
            few = b > 1 and int((self.sizes_at(right[b - 2][:, None])[zero, 0] > ZERO).sum()) <= FEW
            return Dual(right[-1], zero, rank, 2 if few or rank < OVER * (b - 1) + 1 else 0)
        inside = [d.vector for d in known if bool(d.zero[zero].all())]
        if not relative or near < 2 or len(inside) != near - 1:
            return None
        space = right[b - near :].T
        away = torch.linalg.qr(space.T @ torch.stack(inside, dim=1)).Q
        return Dual(space @ torch.linalg.svd(away, full_matrices=True).U[:, -1], zero, rank, 1)

    def _zero_rows(
        self, zero: Tensor, generator: Generator, enough: float = 6.0
    ) -> tuple[Tensor, Tensor]:
        """Singular values (b,) and right vectors (b, b) of some groups that have a zero, enough of them to be overdetermined."""
        places = zero.nonzero().flatten()
        order = places[torch.randperm(len(places), generator=generator)]
        used = order[: int((self.rank[order].cumsum(0) < enough * self.batch).sum()) + 1]
        parts = (self.sizes[used, :, None] * self.right[used]).flatten(0, 1)
        _, sizes, right = torch.linalg.svd(torch.linalg.qr(parts).R, full_matrices=True)
        if len(sizes) < self.batch:
            sizes = torch.cat([sizes, sizes.new_zeros(self.batch - len(sizes))])
        return sizes, right

    def walk(self, start: int, known: list[Dual], generator: Generator) -> Tensor:
        """Go from a group's null space down to fewer and fewer dimensions, keeping one that no known dual explains; returns (b, d)."""
        zeros = (
            torch.stack([d.zero for d in known])
            if known
            else torch.zeros(0, len(self), dtype=torch.bool)
        )
        space = torch.linalg.eigh(self.soft[start])[1][:, : int(self.null[start])]
        inside = zeros[:, start].clone()
        for _ in range(STEPS):
            d = space.shape[1]
            if d == 1:
                break
            order = torch.randperm(len(self), generator=generator)
            for some in (order[:LOOK], order[LOOK:]):
                meets = space.T @ self.soft[some] @ space
                null = (torch.linalg.eigvalsh(meets) < NULL).sum(1)
                left = null - (inside[:, None] & zeros[:, some]).sum(0)
                fits = ((left > 0) & (null < d)).nonzero().flatten()
                if len(fits):
                    break
            if not len(fits):
                break
            pick = fits[torch.multinomial(left[fits].double() / null[fits], 1, generator=generator)]
            space = space @ torch.linalg.eigh(meets[pick[0]])[1][:, : int(null[pick])]
            inside = inside & zeros[:, some[pick[0]]]
        return _without(space, [d.vector for d, i in zip(known, inside.tolist(), strict=True) if i])

    def search(
        self,
        visits: int,
        generator: Generator,
        relative: bool = False,
        known: list[Dual] | None = None,
    ) -> list[Dual]:
        """Walk until every null dimension is explained, or `visits` walks in a row found nothing new; returns independent duals."""
        if self.batch == 1:
            one = self.rows.new_ones(1)
            return [Dual(one, self.zero_at(one), 0.0)]
        pool = list(known or [])
        found, fails = self.independent(pool), 0
        seen = torch.zeros(len(self), dtype=torch.float64)
        while fails < visits and len(self) and not expired():
            explained = (
                torch.stack([d.zero for d in found]).sum(0)
                if found
                else torch.zeros_like(self.null)
            )
            need = (self.null - explained).clamp_min(0).double()
            weight = (need > 0) / (1 + seen) / self.null.clamp_min(1).double().sqrt()
            if not float(weight.sum()) > 0:
                break
            start = int(torch.multinomial(weight, 1, generator=generator))
            seen[start] += 1
            space = self.walk(start, found, generator)
            fails += 1
            if (
                space.shape[1] > 1
                or (dual := self.refined(space[:, 0], found, generator, relative)) is None
            ):
                continue
            if not self.holds(dual, pool):
                pool.append(dual)
                better = self.independent(pool)
                if sum(d.rank for d in better) > sum(d.rank for d in found):
                    fails = 0
                found = better
        return found

    def holds(self, dual: Dual, pool: list[Dual]) -> bool:
        """Whether a dual is in a pool already."""
        return any(
            float((dual.vector @ d.vector).abs()) > SAME and bool((d.zero == dual.zero).all())
            for d in pool
        )

    def independent(self, pool: list[Dual]) -> list[Dual]:
        """Choose independent duals greedily, those that are zero at the most rows first: combinations of duals are zero at fewer."""
        chosen: list[Dual] = []
        basis = self.scale.new_zeros(self.batch, 0)
        for dual in sorted(pool, key=lambda d: (d.doubt, -d.rank)):
            q = dual.vector * self.scale
            rest = q - basis @ (basis.T @ q)
            rest = rest - basis @ (basis.T @ rest)
            if float(rest.norm()) > NEW * float(q.norm()):
                chosen.append(dual)
                basis = torch.cat([basis, (rest / rest.norm())[:, None]], dim=1)
        return chosen


def _without(space: Tensor, inside: list[Tensor]) -> Tensor:
    """Leave known directions out of a space (b, d)."""
    if not inside or space.shape[1] == 1:
        return space
    known = torch.linalg.qr(space.T @ torch.stack(inside, dim=1)).Q
    rest: Tensor = space @ torch.linalg.svd(known, full_matrices=True).U[:, known.shape[1] :]
    return rest
