"""Decentralised least squares on a ring from second moments: the methods of DP-RECAL's Table IV.

Models are (N, p, G): nodes, features, choices of the step size, which run simultaneously. A step
costs one product with each node's (p, p) matrix, for any number of records. The methods are the
victims recal, extra, nids, pvpadmm (perturb=none), dpadmmserver, rwadmm and mradmm with exact
updates. If a noise level per release is given, noise is Gaussian on the model wherever it is used,
or on the gradient. Each method yields (PLF, models) after an activation or round.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Generator, Tensor

from leakaudit.protocols import topology as graphs
from leakaudit.protocols.walk import draw

Steps = Iterator[tuple[int, Tensor]]
SAFE = 0.95  # fraction of the largest step size that a theorem allows


@dataclass(frozen=True)
class Quadratic:
    """f_i(w) = w' h_i w / 2 - c_i' w and a common l1 |w|_1.

    h: (N, p, p). c: (N, p, 1). best: (p, 1) minimiser of sum_i f_i + l1 |w|_1. change: (N, 1, 1),
    the change of a node's gradient by one record, to which the noise of a release is scaled. level:
    noise relative to the change that it hides, 0 without noise.
    """

    h: Tensor
    c: Tensor
    best: Tensor
    change: Tensor
    values: Tensor  # eigenvalues (N, p, 1) and eigenvectors (N, p, p) of h
    vectors: Tensor
    l1: float = 0.0
    level: float = 0.0

    @classmethod
    def of(cls, x: Tensor, y: Tensor, condition: float, l1: float = 0.0) -> Quadratic:
        """Build from records (N, m, p) and targets (N, m), with a ridge of the largest curvature
        over `condition`.

        l1 is a fraction of the smallest weight with a minimiser of zero.
        """
        count, eye = x.shape[1], torch.eye(x.shape[2]).to(x)
        h, c = x.mT @ x / count, x.mT @ y[:, :, None] / count
        h = h + torch.linalg.matrix_norm(h, 2).max() / condition * eye
        values, vectors = torch.linalg.eigh(h)
        weight = l1 * float(c.sum(0).abs().max())
        best = _minimiser(h.sum(0), c.sum(0), weight)
        slopes = (x @ best - y[:, :, None]).abs()[:, :, 0] * x.norm(dim=2)
        return cls(
            h,
            c,
            best,
            (2 * slopes.amax(1) / count)[:, None, None],
            values[:, :, None],
            vectors,
            weight,
        )

    @property
    def smooth(self) -> Tensor:
        """Return the largest curvature of every node, (N, 1, 1)."""
        return self.values[:, -1:]

    def error(self, w: Tensor) -> Tensor:
        """Return |w - best| / |best| over all nodes together, (G,)."""
        relative: Tensor = (w - self.best).norm(dim=(0, 1)) / (self.best.norm() * math.sqrt(len(w)))
        return relative

    def gradient(self, w: Tensor) -> Tensor:
        """Return all nodes' gradients of f."""
        return self.h @ w - self.c

    def solve(self, right: Tensor, weight: Tensor) -> Tensor:
        """Return the w with h_i w + weight w = right, for all nodes."""
        return self.vectors @ ((self.vectors.mT @ right) / (self.values + weight))

    def one(self, i: int) -> Quadratic:
        """Return node i's part."""
        parts = {n: getattr(self, n)[i : i + 1] for n in ("h", "c", "change", "values", "vectors")}
        return replace(self, **parts)


def recal(q: Quadratic, scale: Tensor, plf: int, generator: Generator, decay: float = 1.0) -> Steps:
    """RECAL, s_i = scale L_i, largest tau_i and beta; the variance of noise on x changes by `decay`
    per activation of a node.
    """
    s = scale * q.smooth
    tau, beta = SAFE / (q.smooth / 2 + 2 * s), SAFE / (2 * s.sum(0))
    y = q.best.new_zeros(q.best.shape[0], len(scale))
    x, lam, total, active = y.repeat(len(q.h), 1, 1), y.repeat(len(q.h), 1, 1), y, [0] * len(q.h)
    std = q.level * tau * q.change * _first(decay, plf)
    for i in _walk(len(q.h), plf, generator):
        old, before, node = x[i].clone(), lam[i].clone(), q.one(i)
        dual = before + s[i] * (old - y)
        new = _shrink(y + beta * (total + dual - before), beta * q.l1)
        x[i] = (
            old
            - tau[i] * (node.gradient(old[None])[0] + dual)
            + _noise(std[i] * decay ** (active[i] / 2), y, generator)
        )
        lam[i], y = dual + s[i] * (x[i] - old - new + y), new
        total = total + lam[i] - before
        active[i] += 1
        yield max(active), x


def extra(q: Quadratic, scale: Tensor, plf: int, generator: Generator) -> Steps:
    """(PG-)EXTRA with alpha = scale (1 + smallest eigenvalue of W) / L."""
    alpha = scale * (2 / 3) / q.smooth.max()
    w = torch.zeros(len(q.h), q.best.shape[0], len(scale)).to(q.best)
    z, half, last = w.clone(), torch.zeros_like(w), torch.zeros_like(w)
    for t in range(1, plf + 1):
        g, mixed = q.gradient(w), _mix(w)
        z = z + mixed - half - alpha * (g - last)
        half, last = (mixed + w) / 2, g
        w = _shrink(z, alpha * q.l1 / len(q.h)) + _noise(q.level * alpha * q.change, w, generator)
        yield t, w


def nids(q: Quadratic, scale: Tensor, plf: int, generator: Generator) -> Steps:
    """NIDS with step size scale / L_i for every node."""
    a = scale / q.smooth
    pull = a / (2 * a.amax(0))
    w = torch.zeros(len(q.h), q.best.shape[0], len(scale)).to(q.best)
    before, last, z = w, torch.zeros_like(w), w
    for t in range(1, plf + 1):
        g = q.gradient(w)
        m = 2 * w - before - a * (g - last)
        z = z - w + m - pull * (m - _mix(m)) if t > 1 else w - a * g
        before, last = w, g
        w = _shrink(z, a * q.l1 / len(q.h)) + _noise(q.level * a * q.change, w, generator)
        yield t, w


def admm(q: Quadratic, scale: Tensor, plf: int, generator: Generator) -> Steps:
    """Decentralised ADMM with exact updates, eta = scale L; noise is the primal perturbation."""
    eta = scale * q.smooth.mean()
    std = q.level * q.change / (4 * eta + q.values[:, :1])
    w = torch.zeros(len(q.h), q.best.shape[0], len(scale)).to(q.best)
    lam = w
    for t in range(1, plf + 1):
        w = q.solve(q.c + eta * (2 * w + _around(w)) - 2 * lam, 4 * eta)
        w = w + _noise(std, w, generator)
        lam = lam + eta / 2 * (2 * w - _around(w))
        yield t, w


def server(q: Quadratic, scale: Tensor, plf: int, generator: Generator) -> Steps:
    """DP-ADMM with a server (victim dpadmmserver), step sizes eta_k = 1 / (L sqrt k), rho = scale
    L; noise in units of the gradient.
    """
    rho = scale * q.smooth.mean()
    v = torch.zeros(len(q.h), q.best.shape[0], len(scale)).to(q.best)
    w, gam = v[:1], torch.zeros_like(v)
    for k in range(1, plf + 1):
        slope = q.smooth.max() * k**0.5
        g = q.gradient(v) + _noise(q.level * q.change, v, generator)
        v = (slope * v + rho * w + gam - g) / (rho + slope)
        w = (v - gam / rho).mean(0, keepdim=True)
        gam = gam - rho * (v - w)
        yield k, v


def rwadmm(q: Quadratic, scale: Tensor, plf: int, generator: Generator) -> Steps:
    """RW-ADMM with exact updates, rho = scale L, theta = 1/2; z of the arcs to the next node and to
    the previous one.
    """
    rho, count = scale * q.smooth.mean(), len(q.h)
    std = q.level * q.change / (2 * rho + q.values[:, :1])
    w = torch.zeros(count, q.best.shape[0], len(scale)).to(q.best)
    z, active = torch.zeros(2, *w.shape).to(w), [0] * count
    for i in _walk(count, plf, generator):
        ends = [
            ((i + 1) % count, 1.0 if i < count - 1 else -1.0),
            ((i - 1) % count, 1.0 if i == 0 else -1.0),
        ]
        pull = sum(sign * z[k, i] for k, (_, sign) in enumerate(ends))
        moved = q.one(i).solve((q.c[i] - pull)[None], 2 * rho)[0]
        w[i] = moved + _noise(std[i], moved, generator)
        for k, (j, sign) in enumerate(ends):
            z[1 - k, j] = (z[1 - k, j] + z[k, i]) / 2 + rho * sign * w[i]
        active[i] += 1
        yield max(active), w


def mradmm(q: Quadratic, scale: Tensor, plf: int, generator: Generator) -> Steps:
    """MR-ADMM, eta = theta = scale L, gamma = L: every second round computes no gradient; noise is
    added to the objective's slope.
    """
    eta, gamma = scale * q.smooth.mean(), q.smooth.max()
    w = torch.zeros(len(q.h), q.best.shape[0], len(scale)).to(q.best)
    lam = w
    for t in range(1, plf + 1):
        pull = eta * (2 * w + _around(w)) - 2 * lam
        w = q.solve(q.c + pull - _noise(q.level * q.change, w, generator), 4 * eta)
        known = pull - 4 * eta * w
        lam = lam + eta / 2 * (2 * w - _around(w))
        w = w - (known + 2 * lam + eta * (2 * w - _around(w))) / (4 * eta + gamma)
        lam = lam + eta / 2 * (2 * w - _around(w))
        yield t, w


def _minimiser(h: Tensor, c: Tensor, l1: float) -> Tensor:
    """Return argmin w'hw/2 - c'w + l1 |w|_1 by accelerated proximal steps with restarts; c (p,
    1).
    """
    w: Tensor = torch.linalg.solve(h, c)
    if not l1:
        return w
    step, v, pace = 1 / torch.linalg.matrix_norm(h, 2), w, 1.0
    for _ in range(100_000):
        new = _shrink(v - step * (h @ v - c), step * l1)
        if torch.equal(new, w):
            break
        turned = float(((v - new) * (new - w)).sum()) > 0
        pace, old = (1.0, 1.0) if turned else ((1 + (1 + 4 * pace * pace) ** 0.5) / 2, pace)
        v, w = new + (old - 1) / pace * (new - w), new
    return w


def _first(decay: float, plf: int) -> float:
    """Return the first noise relative to R = 1 for the same sum of 1 / variance over `plf`
    activations.
    """
    return math.sqrt(sum(decay**-k for k in range(plf)) / plf)


def _walk(nodes: int, plf: int, generator: Generator) -> Iterator[int]:
    """Yield the nodes of a random walk on the ring until a node would exceed `plf` activations."""
    count, at = (
        [0] * nodes,
        draw(graphs.make("ring", nodes, generator), 3 * nodes * plf, generator, "walk").tolist(),
    )
    for i in at:
        count[i] += 1
        if count[i] > plf:
            return
        yield i


def _noise(std: Tensor, like: Tensor, generator: Generator) -> Tensor | float:
    return (
        std * torch.randn((*like.shape[:-1], 1), generator=generator, dtype=like.dtype)
        if bool(std.any())
        else 0.0
    )


def _shrink(v: Tensor, by: Tensor) -> Tensor:
    return v.sign() * (v.abs() - by).clamp_min(0)


def _mix(w: Tensor) -> Tensor:
    return (w + _around(w)) / 3


def _around(w: Tensor) -> Tensor:
    return w.roll(1, 0) + w.roll(-1, 0)
