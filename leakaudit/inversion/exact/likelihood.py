"""How well inputs and activity patterns explain rows whose errors have unit variance: the likelihood of all neurons at once.

With L_g (n, b) the rows of neuron g in coordinates of the inputs' space, and m_k the coordinates of sample k, what the samples A_g that
are active at g leave unexplained is |L_g (1 - P_g)|^2, P_g the projector onto span{m_k : k in A_g}. A sample that is inactive all the
same takes chi^2 with n degrees of freedom off this sum, so it pays for being called active with more than that. Unlike a test of one
dual vector, the sum does not ask of a weak direction that it be told from noise at every neuron by itself.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from leakaudit.inversion.search import optimise

SIGMAS = 3.5  # standard deviations of chi^2 beyond its mean that a sample must explain at a neuron to be active there
SWEEPS = 4  # over all neurons, one change of a pattern each
TURNS = 4  # of patterns and coordinates in turn
SETTLED = 1e-3  # change of the coordinates that ends them
ABOVE = 1.15  # singular values of pure noise stay below this many times sqrt(rows) + sqrt(columns)


@dataclass(frozen=True)
class Fit:
    """Coordinates m (b, b) of the samples, each of length 1, where they are active (G, b), and what that costs."""

    m: Tensor
    active: Tensor
    cost: float


def condensed(rows: Tensor) -> Tensor:
    """Return rows (G, n, b) over the directions in time that hold signal, with errors of unit variance still."""
    groups, n, b = rows.shape
    left, sizes, _ = torch.linalg.svd(rows.transpose(0, 1).flatten(1), full_matrices=False)
    keep = max(min(n, b), int((sizes > ABOVE * (n**0.5 + (groups * b) ** 0.5)).sum()))
    return torch.einsum("gnb,nk->gkb", rows, left[:, :keep])


def penalty(n: int) -> float:
    """What a sample must explain of n rows to be called active."""
    return n + SIGMAS * math.sqrt(2 * n)


def fit(rows: Tensor, m: Tensor, active: Tensor) -> Fit:
    """Settle the patterns of given coordinates m (b, b), starting from `active` (G, b)."""
    m, limit = m / m.norm(dim=1, keepdim=True), penalty(rows.shape[1])
    for _ in range(SWEEPS):
        gain = _explained(rows, m, active)
        differs = (gain > limit) != active
        if not bool(differs.any()):
            break
        sure = torch.where(differs, (gain.clamp_min(1) / limit).log().abs(), -1.0)
        at = torch.nn.functional.one_hot(sure.argmax(1), len(m)).bool() & differs
        active = active ^ at
    cost = float(_unexplained(rows, m, active)) + limit * float(active.sum())
    return Fit(m, active, cost if math.isfinite(cost) else math.inf)


def refined(rows: Tensor, start: Fit, known: Tensor) -> Fit:
    """Move the coordinates to where the rows are explained best, and the patterns with them; the first len(known) (n, b) stay.

    Returns the cheapest that was met, `start` included.
    """
    best = now = (
        start
        if not len(known)
        else fit(rows, torch.cat([known, start.m[len(known) :]]), start.active)
    )
    for _ in range(TURNS):
        fixed, free, active = now.m[: len(known)], now.m[len(known) :], now.active
        if not len(free):
            break
        size = float(rows[0].numel() * len(rows))

        def objective(
            move: Tensor, fixed: Tensor = fixed, active: Tensor = active, size: float = size
        ) -> Tensor:
            m = torch.cat([fixed, move / move.norm(dim=1, keepdim=True)])
            return _unexplained(rows, m, active) / size

        moved = optimise.lbfgs(objective, (free.contiguous(),), 1, what="exact").point[0]
        new = fit(rows, torch.cat([fixed, moved]), active)
        away, now = float((new.m - now.m).norm()), new
        best = new if new.cost < best.cost else best
        if away < SETTLED or bool((new.active == active).all()):
            break
    return best


def _span(m: Tensor, active: Tensor) -> tuple[Tensor, Tensor]:
    """Return active coordinates (G, b, b), zero elsewhere, and their dual vectors within what they span."""
    on = active.to(m.dtype)
    mine = on[:, :, None] * m
    gram = on[:, :, None] * (m @ m.T) * on[:, None] + torch.diag_embed(1 - on)
    solved, _ = torch.linalg.solve_ex(gram, mine)
    return mine, solved


def _unexplained(rows: Tensor, m: Tensor, active: Tensor) -> Tensor:
    """Sum of squares that is left of all rows."""
    mine, dual = _span(m, active)
    return (rows - rows @ dual.mT @ mine).square().sum()


def _explained(rows: Tensor, m: Tensor, active: Tensor) -> Tensor:
    """What every sample explains, or would explain, at every neuron beside the others that are active there; (G, b)."""
    mine, dual = _span(m, active)
    outside = m - (m @ dual.mT) @ mine
    along = torch.where(active[:, :, None], dual, outside)
    along = along / along.norm(dim=2, keepdim=True).clamp_min(torch.finfo(m.dtype).tiny)
    return torch.as_tensor((rows @ along.mT).square().sum(1))
