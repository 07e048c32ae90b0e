"""Dual vectors from few rounds: draw neurons at random."""

from __future__ import annotations

import math

import torch
from torch import Generator, Tensor

from leakaudit.core.progress import expired
from leakaudit.inversion.exact.activation_patterns import Dual, Groups

# With fewer rounds than active samples, the rows of a neuron do not span the space of those
# samples, and its null space contains more than dual vectors: walks (`activation_patterns`) do not
# succeed. But if one sample k is inactive at several neurons, its dual vector q_k solves all their
# rows together, and b - 1 independent rows determine it. The method: draw enough neurons for b - 1
# rows, solve for the vector along which these rows vanish, and count the other neurons whose rows
# also vanish there. For a vector that results from a wrong draw, no other neuron vanishes.
#
# Dimitrov et al. 2024 (SPEAR) draw b - 1 single rows of one gradient. A neuron that is observed
# over n rounds provides n rows at once, so only about (b - 1) / n neurons must agree, whatever
# combinations of gradients the rounds contain. If a sample is inactive at a neuron with probability
# a, one draw succeeds with probability about a^((b - 1) / n).
#
# `DRAWS`, `VANISHES`, `EXTRA` and `KEPT` were changed by factors of four and more, for batches of 4
# and 6 in 3 and 4 rounds of Fashion-MNIST. Every image was recovered bit for bit each time.

# Draws per batch. A choice: this number of systems keeps the processor busy without much memory.
DRAWS = 2048

# Part of a neuron's orthonormalised rows along a candidate below which they vanish there. For a
# vector that is unrelated to the neuron, this part is about sqrt(n / b).
VANISHES = 1e-3

# Number of neurons beyond those drawn that must agree before a candidate is refitted on all rows.
EXTRA = 2

# Number of neurons per draw beyond which drawing is hopeless: if a sample is inactive at half of
# the neurons, 2^-18 of the draws succeed, one in 128 batches.
DEEPEST = 18

# Number of candidates that are refitted per batch of draws.
KEPT = 8

# From this number of samples, fewer batches are drawn, because the time for each grows with b^3.
LARGE = 24


def sample(groups: Groups, duals: list[Dual], batches: int, generator: Generator) -> list[Dual]:
    """Add duals found by drawing neurons, until `batches` of draws in a row have no success.

    Nothing is drawn if there are as many rounds as samples, because walks then suffice, or if
    draws are hopeless (`DEEPEST`).
    """
    b = groups.batch
    n = groups.right.shape[1]
    full = (groups.rank == n).nonzero().flatten()
    need = -(-(b - 1) // n)
    if b < 2 or need > DEEPEST or len(full) < need + EXTRA or n >= b:
        return duals
    # (G, n, b) orthonormal rows, in coordinates of equal size
    rows = torch.linalg.qr((groups.right / groups.scale).mT).Q.mT
    batches = math.ceil(batches * min(1.0, LARGE / b) ** 3)
    pool = list(duals)
    fails = 0
    while fails < batches and len(duals) < b and not expired():
        fails += 1
        for q in _draw(rows, full, need, generator):
            unscaled = q / groups.scale
            dual = groups.refined(unscaled / unscaled.norm(), duals, generator, relative=False)
            if dual is None or groups.holds(dual, pool):
                continue
            pool.append(dual)
            better = groups.independent(pool)
            if len(better) > len(duals):
                fails = 0
            duals = better
    return duals


def _draw(rows: Tensor, full: Tensor, need: int, generator: Generator) -> Tensor:
    """Return the best candidates (k, b) of one batch of draws from orthonormal rows (G, n, b).

    At least `EXTRA` neurons beyond those drawn vanish along each.
    """
    groups, n, b = rows.shape
    chance = torch.rand(DRAWS, len(full), generator=generator, dtype=rows.dtype)
    drawn = full[chance.topk(need, dim=1).indices]
    # b - 1 rows vanish along q; a random last row determines its length.
    system = rows[drawn].flatten(1, 2)[:, : b - 1]
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
