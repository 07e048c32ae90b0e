"""Directions of many L-BFGS searches at once, each with its own curvature pairs."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

# The compact form of Byrd, Nocedal and Schnabel 1994. With S and Y the last m pairs as columns, R
# the upper triangle of S^T Y with its diagonal D, and c = s^T y / y^T y of the last pair, the
# inverse Hessian is
#
#     H = c I + [S cY] [[R^-T (D + c Y^T Y) R^-1, -R^-T], [-R^-1, 0]] [S cY]^T    (eq. 3.13).
#
# All products with S and Y are batched, so a direction reads each of them twice; the remaining m x
# m computations are in float64. tests/reference/test_engine.py compares the directions with the
# usual two-loop recursion.

# Initial capacity for pairs; it doubles as pairs are added, because every direction reads all of
# it. A choice.
FIRST = 16

# Cosine between s and y below which a pair is discarded. H is positive definite for any positive
# cosine; this one leaves six digits for R's inverse in float64.
LEAST = 1e-10

BY_SEARCH = ("s", "y", "sy", "yy", "count")  # tensors of a memory with a row per search


class LbfgsMemory:
    """The last m pairs of K searches over n variables, stored cyclically.

    The capacity r grows from 16 to m. s (K, r, n) are steps, y changes of the slope, and sy and
    yy (K, r, r) their products; `count` (K,) includes pairs that were overwritten. Slopes may
    have more digits than the pairs that are kept: a direction need not be exact.
    """

    def __init__(self, like: Tensor, m: int) -> None:
        """Start without pairs; like: (K, n)."""
        k, n = like.shape
        room = min(m, FIRST)
        self.m = m
        self.s = like.new_zeros(k, room, n)
        self.y = like.new_zeros(k, room, n)
        self.sy = torch.zeros(k, room, room, dtype=torch.float64, device=like.device)
        self.yy = torch.zeros(k, room, room, dtype=torch.float64, device=like.device)
        self.count = torch.zeros(k, dtype=torch.long, device=like.device)

    def of_these(self, index: Tensor) -> LbfgsMemory:
        """Return the pairs of some searches."""
        chosen = copy.copy(self)
        for name in BY_SEARCH:
            setattr(chosen, name, getattr(self, name)[index])
        return chosen

    @classmethod
    def joined(cls, parts: Sequence[LbfgsMemory]) -> LbfgsMemory:
        """Return the pairs of at least one memory of equal m and n, one after the other."""
        room = max(part.s.shape[1] for part in parts)
        whole = copy.copy(parts[0])
        grown = [copy.copy(part) for part in parts]
        for part in grown:
            part._grow(room - part.s.shape[1])
        for name in BY_SEARCH:
            setattr(whole, name, torch.cat([getattr(part, name) for part in grown]))
        return whole

    def forget(self, which: Tensor) -> None:
        """Discard all pairs of the searches selected by `which` (K,)."""
        if bool(which.any()):
            self.sy[which] = 0.0
            self.yy[which] = 0.0
            self.count[which] = 0

    def update(self, which: Tensor, step: Tensor, change: Tensor, slope: Tensor) -> Tensor:
        """Store a pair of each search in `which` (K,), and return all directions -H slope (K, n).

        A pair is stored if s^T y is positive.
        """
        product = (step.double() * change.double()).sum(1)
        size = step.double().norm(dim=1) * change.double().norm(dim=1)
        new = (which & (product > LEAST * size)).nonzero().flatten()
        room = self.s.shape[1]
        if room < self.m and len(new) and int(self.count[new].max()) >= room:
            self._grow(min(2 * room, self.m) - room)
        at = self.count[new] % self.m
        self.s[new, at] = step[new].to(self.s)
        self.y[new, at] = change[new].to(self.y)
        # (K, 2, n): one pass over s and y serves the direction and the products.
        both = torch.stack([slope, change], dim=1).to(self.s)
        by_s = torch.bmm(both, self.s.transpose(1, 2)).double()
        by_y = torch.bmm(both, self.y.transpose(1, 2)).double()
        self.sy[new, :, at] = by_s[new, 1]
        self.yy[new, at, :] = by_y[new, 1]
        self.yy[new, :, at] = by_y[new, 1]
        self.count[new] += 1
        return self._direction(slope, by_s[:, 0], by_y[:, 0])

    def _grow(self, more: int) -> None:
        """Increase the capacity."""
        self.s = F.pad(self.s, (0, 0, 0, more))
        self.y = F.pad(self.y, (0, 0, 0, more))
        self.sy = F.pad(self.sy, (0, more, 0, more))
        self.yy = F.pad(self.yy, (0, more, 0, more))

    def _direction(self, slope: Tensor, by_s: Tensor, by_y: Tensor) -> Tensor:
        """Compute -H slope from S^T slope and Y^T slope (K, r), by eq. 3.13 from right to left."""
        k, m = by_s.shape  # no pair is overwritten while r < m, so that count % r is count % m
        slots = torch.arange(m, device=slope.device)
        rows = torch.arange(k, device=slope.device)
        used = self.count.clamp_max(m)
        order = (self.count[:, None] - used[:, None] + slots) % m  # oldest first
        there = slots < used[:, None]
        last = (self.count - 1) % m
        ratio = self.sy[rows, last, last] / self.yy[rows, last, last]
        c = torch.where(used > 0, ratio, 1.0)[:, None]
        # R with a diagonal of ones for missing pairs; its lower triangle is not read below.
        r = self.sy[rows[:, None, None], order[:, :, None], order[:, None, :]]
        d = r.diagonal(dim1=1, dim2=2).clone()
        r.diagonal(dim1=1, dim2=2).add_((~there).double())
        # u = R^-1 S^T slope
        a = torch.where(there, by_s.gather(1, order), 0.0)
        u = torch.linalg.solve_triangular(r, a[..., None], upper=True)[..., 0]
        by_slot = torch.zeros_like(u).scatter_(1, order, u)
        # p = R^-T (D u + c (Y^T Y u - Y^T slope)): the coefficients of S
        gap = (self.yy @ by_slot[..., None])[..., 0] - by_y
        b = torch.where(there, gap.gather(1, order), 0.0)
        right = (d * u + c * b)[..., None]
        p = torch.linalg.solve_triangular(r.transpose(1, 2), right, upper=False)[..., 0]
        # -c u are the coefficients of Y
        by_step = torch.zeros_like(p).scatter_(1, order, p)
        back = torch.stack([by_step, -c * by_slot], dim=1).to(self.s)
        turned = torch.bmm(back[:, :1], self.s)[:, 0] + torch.bmm(back[:, 1:], self.y)[:, 0]
        return -(c.to(slope) * slope + turned.to(slope))
