"""Step size, penalty and model behind the duals of PDMM or ECL, from the messages only."""

# With theta = 1 and one gradient step per round, node i sends
#
#     m_ij(t+1) = m_ji(t) + 2 rho A_ij w_i(t+1),
#
# so u = A_ij (m_ij(t+1) - m_ji(t)) is 2 rho w_i, and with S = sum_j A_ij m_ji and d neighbours
#
#     u(t) - u(t+1) = a (g(t) + V(t)),   V = S + d u / 2,   a = 2 rho alpha.
#
# All terms except a and g follow from the messages. For one record, the first layer's block of g =
# (u(t) - u(t+1)) / a - V has rank one, which for two of its rows is a quadratic equation in 1 / a
# in every column. rho is then the scale at which the recomputed gradient fits best.

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from leakaudit.capture.fitting.fit import GradientSample, ModelFit, explained, fit
from leakaudit.capture.fitting.rank_one import rank_one_scale
from leakaudit.capture.tap.guessing.observed import ChannelVectors
from leakaudit.capture.tap.messages.streams import LoggedMessage
from leakaudit.tasks.task import Task

# Penalties to try first, in steps of 21 %: a choice that golden sections refine.
GRID = np.geomspace(1e-3, 1e2, 61)
GOLDEN = (math.sqrt(5) - 1) / 2
# Measured on examples/tap/ecl.py with float32 messages: the miss is 1e-7 for one record and
# 1e-3 for two.
FLAT = 1e-4  # miss of the rank-one condition above which every 1 / a is rejected
SECTIONS = 60  # golden sections: they shrink the interval by .618^60 = 3e-13
# A gradient is what is left of terms that are larger, so that their rounding counts. In units of
# it, correct constants miss by .1 to .4, and with a second record of 1e-4 by 20 (float32).
ROUNDINGS = 4.0
CEILING = 0.01  # no larger miss proves anything: a choice


@dataclass(frozen=True)
class _Move:
    u: Tensor  # (d,) 2 rho times its model
    r: Tensor  # (d,) change of u in the round, a (g + v)
    v: Tensor  # (d,) pull of its neighbours
    node: int
    round: int  # the round, from 0
    rounding: float  # norm of the rounding error of u, relative to u

    def gradient(self, inverse: float) -> Tensor:
        return inverse * self.r - self.v

    def error(self, inverse: float) -> float:
        size = inverse * float(self.u.norm()) + float(self.v.norm())
        return self.rounding * size / float(self.gradient(inverse).norm())


@dataclass(frozen=True)
class DualSolution:
    """The constants and the model behind duals."""

    fit: ModelFit  # the fit of the gradients; its step is 1 if everything is correct
    alpha: float  # step size
    rho: float
    sign: int  # -1 if the program's duals have the opposite sign of ours
    samples: tuple[GradientSample, ...]
    rounding: float  # largest rounding error of a gradient, relative to it

    @property
    def proved(self) -> bool:
        """Whether recomputed gradients equal those of the messages, within rounding."""
        allowed = min(ROUNDINGS * self.rounding, CEILING)
        return max(self.fit.miss, abs(self.fit.step - 1)) < allowed


def solve(seen: ChannelVectors, tasks: Iterable[Task]) -> DualSolution | None:
    """Return the constants and the model that explain the duals best; None if none was tried."""
    moves = list(_moves(seen))
    if not moves:
        return None
    best: DualSolution | None = None
    for task in tasks:
        inverse = rank_one_scale(task, moves[0].r, moves[0].v, FLAT)
        if inverse is None:
            continue
        for sign in (1, -1):
            rho = _penalty(task, moves[0], inverse, sign)
            samples = tuple(_sample(move, inverse, sign, rho) for move in moves)
            found = fit([task], samples)
            if found is not None and (best is None or found.miss < best.fit.miss):
                alpha = 1 / (2 * rho * inverse)
                error = max(move.error(inverse) for move in moves)
                best = DualSolution(replace(found, point=""), alpha, rho, sign, samples, error)
    return best


def _sample(move: _Move, inverse: float, sign: int, rho: float) -> GradientSample:
    model = sign * move.u / (2 * rho)
    return GradientSample(sign * move.gradient(inverse), {"": model}, None, move.node, move.round)


def _moves(seen: ChannelVectors) -> Iterator[_Move]:
    """Yield moves of every node: in its third round, its last one and the one between them."""
    # Its first two models are known by the third round.
    for i, near in enumerate(seen.graph.neighbours):
        out, back, rounds = seen.around(i)
        streams = [*out.values(), *back.values()]
        if rounds < 3:
            continue
        if any(stream[t].index != t for stream in streams for t in range(rounds)):
            continue
        sign = {j: 1.0 if i < j else -1.0 for j in near}  # A_ij
        for t in sorted({1, (rounds - 1) // 2, rounds - 2}):
            # u can be read on any channel of the node; S needs all of them.
            j = near[0]
            u = sign[j] * (out[j][t].value.double() - back[j][t - 1].value.double())
            after = sign[j] * (out[j][t + 1].value.double() - back[j][t].value.double())
            pull = torch.stack([sign[k] * back[k][t].value.double() for k in near]).sum(0)
            yield _Move(u, u - after, pull + len(near) / 2 * u, i, t, _rounding(out[j][t]))


def _rounding(message: LoggedMessage) -> float:
    """Return the distance from 1 to the next number of a message, or of float32 in float64."""
    value = message.value
    if torch.equal(value.float().to(value.dtype), value):
        return max(torch.finfo(torch.float32).eps, torch.finfo(message.dtype).eps)
    return torch.finfo(message.dtype).eps


def _penalty(task: Task, move: _Move, inverse: float, sign: int) -> float:
    """Return the rho at which the gradient fits best: a grid, then golden sections of log rho."""

    def miss(rho: float) -> float:
        found = explained(task, _sample(move, inverse, sign, rho))
        return math.inf if found is None else abs(found.step - 1) + found.miss

    best = int(np.argmin([miss(float(rho)) for rho in GRID]))
    low = math.log(GRID[max(best - 1, 0)])
    high = math.log(GRID[min(best + 1, len(GRID) - 1)])
    for _ in range(SECTIONS):
        span = GOLDEN * (high - low)
        if miss(math.exp(high - span)) < miss(math.exp(low + span)):
            high = low + span
        else:
            low = high - span
    return math.exp((low + high) / 2)
