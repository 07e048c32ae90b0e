"""How well inputs and activity patterns explain rows with white noise."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from leakaudit.inversion.linear import edge, positive
from leakaudit.inversion.search import batched_search

# Let L_g (n, b) be the rows of neuron g in coordinates of the inputs' space, with errors of unit
# variance, and m_k the coordinates of sample k. If the samples A_g are active at g, the rows lie in
# span{m_k : k in A_g} up to noise, and the unexplained part is
#
#     |L_g (1 - P_g)|^2,    P_g the projector onto that span.
#
# Minus twice the logarithm of the Gaussian likelihood is the sum of this over all neurons.
# Declaring another sample active always lowers it: a sample that is actually inactive reduces the
# sum by a chi^2 with n degrees of freedom. Each active sample therefore adds a penalty larger than
# that, n + 3.5 sqrt(2 n) (`penalty`), which is model selection with a threshold on false alarms.
#
# Unlike a test of one dual vector, the sum does not require that a weak direction can be
# distinguished from noise at every single neuron: evidence from all neurons adds up.
#
# Patterns and coordinates are determined alternately: for given coordinates, each neuron changes
# one sample at a time (`fit`); for given patterns, L-BFGS moves the coordinates (`refined`).

# A sample counts as active if it explains this many standard deviations of chi^2 more than its
# mean. Noise exceeds this with a probability of 0.5 % for n = 8 and of 0.2 % for n = 40. Measured
# as in `noisy_duals`: from 2 to 5, the median PSNR changes by at most 1 dB.
SIGMAS = 3.5

# Sweeps over all neurons, with one change of each pattern per sweep. Starts are correct except for
# one or two samples at most neurons; the loop ends when nothing changes.
SWEEPS = 4

# Alternations between patterns and coordinates. As with the sweeps, most end earlier.
TURNS = 4

# Change of the coordinates (unit vectors) below which the alternation ends.
SETTLED = 1e-3

# Singular values of pure noise stay below this many times their edge, sqrt(rows) + sqrt(columns).
ABOVE = 1.15


@dataclass(frozen=True)
class SampleFit:
    """Samples and their activity, and how badly they explain the rows."""

    m: Tensor  # (b, b) coordinates of the samples, each of length 1
    active: Tensor  # (G, b) bool, where they are active
    # the unexplained part, plus a penalty for each active sample; infinite if not finite
    cost: float


def condensed(rows: Tensor) -> Tensor:
    """Keep the directions in time of rows (G, n, b) that contain signal: (G, k, b), k <= n."""
    groups, n, b = rows.shape
    left, sizes, _ = torch.linalg.svd(rows.transpose(0, 1).flatten(1), full_matrices=False)
    keep = max(min(n, b), int((sizes > ABOVE * edge(n, groups * b)).sum()))
    return torch.einsum("gnb,nk->gkb", rows, left[:, :keep])


def penalty(n: int) -> float:
    """Return what a sample must explain in the n rows of a neuron to count as active.

    chi^2 with n degrees of freedom has mean n and variance 2 n.
    """
    return n + SIGMAS * math.sqrt(2 * n)


def fit(rows: Tensor, m: Tensor, active: Tensor) -> SampleFit:
    """Determine the patterns (G, b) for coordinates (b, b) of any length.

    In each sweep, every neuron changes the one sample whose activity is most clearly wrong.
    """
    m = m / m.norm(dim=1, keepdim=True)
    limit = penalty(rows.shape[1])
    for _ in range(SWEEPS):
        gain = _explained(rows, m, active)
        differs = (gain > limit) != active
        if not bool(differs.any()):
            break
        sure = torch.where(differs, (gain.clamp_min(1) / limit).log().abs(), -1.0)
        at = torch.nn.functional.one_hot(sure.argmax(1), len(m)).bool() & differs
        active = active ^ at
    cost = float(_unexplained(rows, m, active)) + limit * float(active.sum())
    return SampleFit(m, active, cost if math.isfinite(cost) else math.inf)


def refined(rows: Tensor, start: SampleFit, known: Tensor) -> SampleFit:
    """Move the coordinates to explain the rows best, except the first `known` ones (k, b)."""
    best = start
    if len(known):
        best = fit(rows, torch.cat([known, start.m[len(known) :]]), start.active)
    now = best
    for _ in range(TURNS):
        fixed = now.m[: len(known)]
        free = now.m[len(known) :]
        active = now.active
        if not len(free):
            break
        size = float(rows[0].numel() * len(rows))

        def objective(
            move: Tensor, fixed: Tensor = fixed, active: Tensor = active, size: float = size
        ) -> Tensor:
            m = torch.cat([fixed, move / move.norm(dim=1, keepdim=True)])
            return _unexplained(rows, m, active) / size

        moved = batched_search.lbfgs(objective, (free,), 1, what="exact").point[0]
        new = fit(rows, torch.cat([fixed, moved]), active)
        away = float((new.m - now.m).norm())
        now = new
        if new.cost < best.cost:
            best = new
        if away < SETTLED or bool((new.active == active).all()):
            break
    return best


def _span(m: Tensor, active: Tensor) -> tuple[Tensor, Tensor]:
    """Return active coordinates (G, b, b), zero elsewhere, and their dual vectors in their span.

    Inactive samples have a 1 on the diagonal of the Gram matrix, so that one batched solve
    serves patterns of every size.
    """
    on = active.to(m.dtype)
    mine = on[:, :, None] * m
    gram = on[:, :, None] * (m @ m.T) * on[:, None] + torch.diag_embed(1 - on)
    solved, _ = torch.linalg.solve_ex(gram, mine)
    return mine, solved


def _unexplained(rows: Tensor, m: Tensor, active: Tensor) -> Tensor:
    """Return the remaining sum of squares; the projector onto the span is dual^T mine."""
    mine, dual = _span(m, active)
    return (rows - rows @ dual.mT @ mine).square().sum()


def _explained(rows: Tensor, m: Tensor, active: Tensor) -> Tensor:
    """Return what each sample explains, or would explain, at each neuron (G, b).

    An active sample explains the part of the rows along its dual vector within the span, an
    inactive one the part along its component outside the span.
    """
    mine, dual = _span(m, active)
    outside = m - (m @ dual.mT) @ mine
    along = torch.where(active[:, :, None], dual, outside)
    along = along / positive(along.norm(dim=2, keepdim=True))
    return torch.as_tensor((rows @ along.mT).square().sum(1))
