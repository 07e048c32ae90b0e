"""Directions of many L-BFGS searches at once, each with its own curvature pairs, in the compact form of Byrd, Nocedal and Schnabel 1994.

With S and Y the last m pairs as columns, R the upper triangle of S^T Y with its diagonal D, and c = s^T y / y^T y of the last pair,
H = c I + [S cY] [[R^-T (D + c Y^T Y) R^-1, -R^-T], [-R^-1, 0]] [S cY]^T (eq. 3.13). All products with S and Y are batched, so a direction
reads each of them twice; the m x m rest is in float64.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

FIRST = 16  # pairs that there is room for at first
LEAST = 1e-10  # cosine between s and y below which a pair would make H singular and is left out


class Memory:
    """The last m pairs of K searches over n variables: s, y (K, r, n), written in turn; sy, yy (K, r, r) their products.

    The room r grows from 16 to m as pairs come, since every direction reads all of it.
    """

    def __init__(self, like: Tensor, m: int) -> None:
        """Start without pairs; like: (K, n)."""
        k, n = like.shape
        self.m, room = m, min(m, FIRST)
        self.s, self.y = like.new_zeros(k, room, n), like.new_zeros(k, room, n)
        self.sy, self.yy = (
            torch.zeros(k, room, room, dtype=torch.float64, device=like.device) for _ in range(2)
        )
        self.count = torch.zeros(k, dtype=torch.long, device=like.device)

    def keep(self, index: Tensor) -> None:
        """Go on with these searches alone."""
        self.s, self.y, self.sy, self.yy, self.count = (
            t[index] for t in (self.s, self.y, self.sy, self.yy, self.count)
        )

    def forget(self, which: Tensor) -> None:
        """Drop all pairs of the searches where `which` (K,) is set."""
        if bool(which.any()):
            self.sy[which], self.yy[which], self.count[which] = 0.0, 0.0, 0

    def update(self, which: Tensor, step: Tensor, change: Tensor, slope: Tensor) -> Tensor:
        """Remember step and change of slope (K, n) where `which` is set and their product is positive; return -H slope (K, n)."""
        product = (step.double() * change.double()).sum(1)
        size = step.double().norm(dim=1) * change.double().norm(dim=1)
        new = (which & (product > LEAST * size)).nonzero().flatten()
        room = self.s.shape[1]
        if room < self.m and len(new) and int(self.count[new].max()) >= room:
            self._grow(min(2 * room, self.m) - room)
        at = self.count[new] % self.m
        self.s[new, at], self.y[new, at] = step[new], change[new]
        both = torch.stack(
            [slope, change], dim=1
        )  # (K, 2, n): one pass over s and y serves the direction and the products
        by_s, by_y = (torch.bmm(both, t.transpose(1, 2)).double() for t in (self.s, self.y))
        self.sy[new, :, at] = by_s[new, 1]
        self.yy[new, :, at] = self.yy[new, at, :] = by_y[new, 1]
        self.count[new] += 1
        return self._direction(slope, by_s[:, 0], by_y[:, 0])

    def _grow(self, more: int) -> None:
        """Make room for more pairs."""
        self.s, self.y = (F.pad(t, (0, 0, 0, more)) for t in (self.s, self.y))
        self.sy, self.yy = (F.pad(t, (0, more, 0, more)) for t in (self.sy, self.yy))

    def _direction(self, slope: Tensor, by_s: Tensor, by_y: Tensor) -> Tensor:
        """Return -H slope from S^T slope and Y^T slope (K, r)."""
        k, m = by_s.shape  # no pair has fallen out while r < m, so that count % r is count % m
        slots, rows = torch.arange(m, device=slope.device), torch.arange(k, device=slope.device)
        used = self.count.clamp_max(m)
        order = (self.count[:, None] - used[:, None] + slots) % m  # oldest first
        there, last = slots < used[:, None], (self.count - 1) % m
        c = torch.where(used > 0, self.sy[rows, last, last] / self.yy[rows, last, last], 1.0)[
            :, None
        ]
        r = self.sy[
            rows[:, None, None], order[:, :, None], order[:, None, :]
        ]  # its lower triangle is not read below
        d = r.diagonal(dim1=1, dim2=2).clone()
        r.diagonal(dim1=1, dim2=2).add_((~there).double())
        a = torch.where(there, by_s.gather(1, order), 0.0)
        u = torch.linalg.solve_triangular(r, a[..., None], upper=True)[..., 0]
        by_slot = torch.zeros_like(u).scatter_(1, order, u)
        b = torch.where(
            there, ((self.yy @ by_slot[..., None])[..., 0] - by_y).gather(1, order), 0.0
        )
        p = torch.linalg.solve_triangular(
            r.transpose(1, 2), (d * u + c * b)[..., None], upper=False
        )[..., 0]
        back = torch.stack([torch.zeros_like(p).scatter_(1, order, p), -c * by_slot], dim=1).to(
            slope
        )
        turned = torch.bmm(back[:, :1], self.s)[:, 0] + torch.bmm(back[:, 1:], self.y)[:, 0]
        return -(c.to(slope) * slope + turned)
