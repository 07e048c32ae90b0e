"""Step size, penalty and model behind the duals of PDMM or ECL, from the messages alone.

With theta = 1 and one gradient step a round, node i sends m_ij(t+1) = m_ji(t) + 2 rho A_ij w_i(t+1), so u = A_ij (m_ij(t+1) - m_ji(t)) is
2 rho w_i, and with S = sum_j A_ij m_ji and d neighbours

    u(t) - u(t+1) = a (g(t) + V(t)),   V = S + d u / 2,   a = 2 rho alpha.

For one record the first layer's block of g = (u(t) - u(t+1)) / a - V has rank one, which for two of its rows is a quadratic equation in
1 / a in every column. rho is then the scale at which the gradient computed anew fits best.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from leakaudit.capture.tap.fit import Fit, Sample, explained, fit
from leakaudit.capture.tap.heard import Heard
from leakaudit.tasks.task import Task

GRID = np.geomspace(1e-3, 1e2, 61)  # penalties that are tried first
FLAT = 1e-4  # miss of the quadratic, relative to its terms, above which no 1 / a is believed
GOLDEN = (math.sqrt(5) - 1) / 2


@dataclass(frozen=True)
class _Move:
    """What one node did in one round: u and its change r = a (g + v)."""

    u: Tensor
    r: Tensor
    v: Tensor

    def gradient(self, inverse: float) -> Tensor:
        """Return g for a value of 1 / a."""
        return inverse * self.r - self.v


@dataclass(frozen=True)
class Solved:
    """fit: of the gradients, whose step is 1 where all is right. sign: -1 where the program's duals have the other sign of ours."""

    fit: Fit
    alpha: float
    rho: float
    sign: int
    samples: tuple[Sample, ...]


def solve(heard: Heard, tasks: Iterable[Task]) -> Solved | None:
    """Return the constants and the model that explain the duals best; None where no model could be tried."""
    moves, best = list(_moves(heard)), None
    for task in tasks if moves else ():
        inverse = _inverse(task, moves[0])
        if inverse is None:
            continue
        for sign in (1, -1):
            rho = _penalty(task, moves[0], inverse, sign)
            samples = tuple(
                Sample(sign * m.gradient(inverse), {"": sign * m.u / (2 * rho)}) for m in moves
            )
            found = fit([task], samples)
            if found is not None and (best is None or found.miss < best.fit.miss):
                best = Solved(replace(found, point=""), 1 / (2 * rho * inverse), rho, sign, samples)
    return best


def _moves(heard: Heard) -> Iterator[_Move]:
    """Yield the third round of every node: its first two models are known by then."""
    for i, near in enumerate(heard.graph.neighbours):
        out = {j: heard.streams.get((i, j, "send"), []) for j in near}
        back = {j: heard.streams.get((j, i, "send"), []) for j in near}
        if not near or min(map(len, (*out.values(), *back.values()))) < 3:
            continue
        if any(s[t].index != t for s in (*out.values(), *back.values()) for t in range(3)):
            continue
        sign = {j: 1.0 if i < j else -1.0 for j in near}
        j = near[0]
        sent, got = ([heard.value(m).double() for m in stream[:3]] for stream in (out[j], back[j]))
        u, after = sign[j] * (sent[1] - got[0]), sign[j] * (sent[2] - got[1])
        pull = torch.stack([sign[k] * heard.value(back[k][1]).double() for k in near]).sum(0)
        yield _Move(u, u - after, pull + len(near) / 2 * u)


def _inverse(task: Task, move: _Move) -> float | None:
    """Return s = 1 / a, which makes |square s^2 - linear s + constant|^2 least over some pairs of rows of the first layer's block.

    None where there is no such layer, or where that is not nearly zero.
    """
    if task.first_linear is None or task.first_linear[1] is None:
        return None
    weight, bias = (task.layout.slices[n] for n in task.first_linear if n)
    rows = bias.stop - bias.start
    (r, rb), (v, vb) = (
        (m[weight].reshape(rows, -1).numpy(), m[bias].numpy()) for m in (move.r, move.v)
    )
    k, others = int(np.abs(rb).argmax()), np.argsort(-np.abs(rb))[1:9]
    square = np.concatenate([r[k] * rb[m] - r[m] * rb[k] for m in others])
    linear = np.concatenate(
        [r[k] * vb[m] + v[k] * rb[m] - r[m] * vb[k] - v[m] * rb[k] for m in others]
    )
    constant = np.concatenate([v[k] * vb[m] - v[m] * vb[k] for m in others])
    slope = [
        4 * square @ square,
        -6 * square @ linear,
        2 * linear @ linear + 4 * square @ constant,
        -2 * linear @ constant,
    ]
    found = []
    for s in np.roots(slope):
        if abs(s.imag) < 1e-6 * abs(s) and s.real > 0:
            terms = s.real**2 * square, s.real * linear, constant
            found.append(
                (
                    np.linalg.norm(terms[0] - terms[1] + terms[2])
                    / max(map(float, map(np.linalg.norm, terms))),
                    float(s.real),
                )
            )
    return min(found)[1] if found and min(found)[0] < FLAT else None


def _penalty(task: Task, move: _Move, inverse: float, sign: int) -> float:
    """Return the rho at which the gradient fits best: a grid, then a golden section."""
    g = sign * move.gradient(inverse)

    def miss(rho: float) -> float:
        found = explained(task, g, sign * move.u / (2 * rho))
        return math.inf if found is None else abs(found[0] - 1) + found[1]

    best = int(np.argmin([miss(float(rho)) for rho in GRID]))
    low, high = math.log(GRID[max(best - 1, 0)]), math.log(GRID[min(best + 1, len(GRID) - 1)])
    for _ in range(60):
        span = GOLDEN * (high - low)
        if miss(math.exp(high - span)) < miss(math.exp(low + span)):
            high = low + span
        else:
            low = high - span
    return math.exp((low + high) / 2)
