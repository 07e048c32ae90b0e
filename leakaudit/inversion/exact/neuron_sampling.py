"""Dual vectors where rounds are few: draw neurons at random and hope that one sample is inactive at all of them.

Dimitrov et al. 2024 (SPEAR) draw single rows of one gradient; a neuron seen over n rounds gives n rows at once, so that about b/n
neurons must agree, whatever combinations of gradients the rounds show.
"""

from __future__ import annotations

import math

import torch
from torch import Generator, Tensor

from leakaudit.inversion.exact.activation_patterns import Dual, Groups
from leakaudit.progress import expired

DRAWS = 2048  # at once
VANISHES = 1e-3  # part of a neuron's rows along a dual vector that counts as none
EXTRA = 2  # neurons beyond those drawn that must agree before a candidate is refitted
DEEPEST = 18  # neurons that must agree, beyond which drawing is hopeless
KEPT = 8  # candidates of one batch of draws that are refitted
LARGE = 24  # samples from which on fewer batches are drawn: one costs b^3


def sample(groups: Groups, duals: list[Dual], batches: int, generator: Generator) -> list[Dual]:
    """Add duals from `batches` batches of draws in a row without success, fewer above `LARGE`; stops early where all b are found."""
    b, n = groups.batch, groups.right.shape[1]
    full = (groups.rank == n).nonzero().flatten()
    need = -(-(b - 1) // n)
    if b < 2 or need > DEEPEST or len(full) < need + EXTRA or n >= b:
        return duals
    rows = torch.linalg.qr(
        (groups.right / groups.scale).mT
    ).Q.mT  # (G, n, b), for q in coordinates of equal size
    batches = math.ceil(batches * min(1.0, LARGE / b) ** 3)
    pool, fails = list(duals), 0
    while fails < batches and len(duals) < b and not expired():
        fails += 1
        for q in _draw(rows, full, need, generator):
            away = q / groups.scale
            dual = groups.refined(away / away.norm(), duals, generator, relative=False)
            if dual is not None and not groups.holds(dual, pool):
                pool.append(dual)
                better = groups.independent(pool)
                fails = 0 if len(better) > len(duals) else fails
                duals = better
    return duals


def _draw(rows: Tensor, full: Tensor, need: int, generator: Generator) -> Tensor:
    """Return the best candidates (k, b) of one batch of draws."""
    groups, n, b = rows.shape
    order = (
        torch.rand(DRAWS, len(full), generator=generator, dtype=rows.dtype)
        .topk(need, dim=1)
        .indices
    )
    system = rows[full[order]].flatten(1, 2)[:, : b - 1]
    last = torch.randn(DRAWS, 1, b, generator=generator, dtype=rows.dtype)
    target = torch.zeros(b, 1, dtype=rows.dtype)
    target[-1] = 1
    q, info = torch.linalg.solve_ex(torch.cat([system, last], dim=1), target.expand(DRAWS, b, 1))
    q = q[(info == 0) & q.isfinite().all(1)[:, 0], :, 0]
    q = q / q.norm(dim=1, keepdim=True)
    size = (q @ rows.flatten(0, 1).T).reshape(len(q), groups, n).square().sum(2)
    agree = (size < VANISHES**2).sum(1)
    best = agree.topk(min(KEPT, len(q))).indices
    found: Tensor = q[best[agree[best] >= need + EXTRA]]
    return found
