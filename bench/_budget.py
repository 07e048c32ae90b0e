"""The noise of DP-Norm's experiment: as each paper prints it, and what the same exact epsilon asks of every method.

Exact: the mu of Gaussian differential privacy of one who hears every wire, and its epsilon by `bounds.gaussian`. One record of one node
is replaced; the permutation is public and puts it into every second inner step (B = d_i / 2), here the later of each two, which counts
more. A record's gradient is at most G in norm, so that a mini-batch's moves by 2 G / B. The loss is convex and mu <= 2 / L: a gradient
step does not move two models apart. For DP-Norm, whose inner steps are hidden and without noise, `relations.drift` with smoothness 0
says what follows, from the victim's own declaration. DP-SGD and DP-ADMM draw noise at every inner step and show the last model of a
round: a shift may then be hidden step by step, in shares a_k that never exceed what has moved so far, and mu^2 = sum_k a_k^2 / sigma^2
(Feldman, Mironov, Talwar, Thakurta 2018; as mu-GDP Bok, Su, Altschuler 2024). `seen` counts all inner models as seen instead.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate

import torch
from torch import Generator

from leakaudit.adversary import Adversary
from leakaudit.bounds import gaussian
from leakaudit.protocols import topology as graphs
from leakaudit.relations import drift, know
from leakaudit.trace import Graph
from leakaudit.victim import Victim
from leakaudit.victims.dpadmm import DPADMM
from leakaudit.victims.dpnorm import DPNorm
from leakaudit.victims.dpsgd import DPSGD

SETTLED = 30  # rounds after which each further one adds the same to mu^2: a drift is carried over by less than a half a round


@dataclass(frozen=True)
class Setting:
    """Constants of the experiment. lipschitz: G of the exact figures; the printed ones take 1, as their paper does."""

    nodes: int = 6
    rounds: int = 2000
    inner: int = 10
    batch: int = 2000
    records: int = 4000
    mu: float = 0.03
    rho: float = 1e-4
    delta: float = 1e-3
    lipschitz: float = math.sqrt(2)


def printed(method: str, alpha: float, epsilon: float, s: Setting) -> float:
    """Return the noise that the papers print for epsilon, per coordinate, where `_convex.Training` adds it; Theorem 1 as in eq. (8)."""
    if method == "dpnorm":
        norm = DPNorm(
            mu=s.mu,
            inner=s.inner,
            batch=s.batch,
            alpha=alpha,
            epsilon=epsilon,
            delta=s.delta,
            records=s.records,
        )
        return float(norm.schedule(_ring(s), s.rounds, Generator())["sigma"][0])
    if method == "dpsgd":
        sgd = DPSGD(
            alpha=s.mu,
            steps=s.inner,
            noise="step",
            epsilon=epsilon,
            delta=s.delta,
            horizon=s.rounds,
        )
        return sgd.std(s.records)
    admm = DPADMM(
        rho=s.rho,
        eta=1 / s.mu,
        steps=s.inner,
        epsilon=epsilon,
        delta=s.delta,
        horizon=s.rounds,
        records=s.records,
    )
    return admm.noise / (4 * s.rho + 1 / s.mu)


def equal(method: str, alpha: float, epsilon: float, s: Setting) -> float:
    """Return the noise per coordinate whose exact epsilon is this one."""
    return _unit(method, alpha, s) / gaussian.least_mu(epsilon, s.delta)


def exact(method: str, alpha: float, sigma: float, s: Setting) -> float:
    """Return the exact epsilon of a noise per coordinate."""
    return gaussian.epsilon(s.delta, _unit(method, alpha, s) / sigma) if sigma else math.inf


def seen(method: str, epsilon: float, s: Setting) -> float:
    """Return the noise per coordinate of DP-SGD or DP-ADMM where an outsider is taken to see every inner model, by `relations.drift`."""
    return _settled(method, 0.0, s) / gaussian.least_mu(epsilon, s.delta)


@lru_cache
def _unit(method: str, alpha: float, s: Setting) -> float:
    """Return mu at a noise of 1 per coordinate."""
    if method == "dpnorm":
        return _settled(method, alpha, s)
    step = s.mu if method == "dpsgd" else 1 / (4 * s.rho + 1 / s.mu)
    return (
        step
        * 2
        * s.lipschitz
        / s.batch
        * math.sqrt(s.rounds * sum(a * a for a in shares([k % 2 for k in range(s.inner)])))
    )


def shares(moved: Sequence[float]) -> list[float]:
    """Return the shares of a shift that hide it best: slopes of the largest convex function below the running sum of `moved`."""
    sums, out = [0.0, *accumulate(moved)], list[float]()
    while (k := len(out)) < len(moved):
        slope, to = min(((sums[j] - sums[k]) / (j - k), -j) for j in range(k + 1, len(sums)))
        out += [slope] * (-to - k)
    return out


@lru_cache
def _settled(method: str, alpha: float, s: Setting) -> float:
    """Return mu at a noise of 1 by `drift`: of so many rounds as settle, continued by what each further round adds."""
    kept = min(s.rounds, SETTLED if method == "dpnorm" else 2)
    before, now = (_declared(method, alpha, s, rounds) ** 2 for rounds in (kept - 1, kept))
    return math.sqrt(now + (s.rounds - kept) * (now - before))


def _declared(method: str, alpha: float, s: Setting, rounds: int) -> float:
    """Return mu of one node's whole training over a few rounds, by the victim's declaration."""
    if not rounds:
        return 0.0
    p = _victim(method, alpha, s).relations(_ring(s), rounds, {"w0": torch.zeros(1)})
    view = know(p, Adversary())
    if method != "dpnorm":
        view = view.also(p.select("state", name="w"))
    targets, moved = p.gradients(0), 2 * s.lipschitz / s.batch
    return drift(view, targets, [moved if k % 2 else 0.0 for k in range(len(targets))], 0.0).mu


def _victim(method: str, alpha: float, s: Setting) -> Victim:
    """Return the victim whose noise per coordinate is 1."""
    if method == "dpnorm":
        return DPNorm(mu=s.mu, inner=s.inner, batch=s.batch, alpha=alpha, sigma=1.0)
    if method == "dpsgd":
        return DPSGD(
            alpha=s.mu, steps=s.inner, order="adapt", batch=s.batch, sigma=1.0, noise="step"
        )
    return DPADMM(rho=s.rho, eta=1 / s.mu, steps=s.inner, batch=s.batch, sigma=4 * s.rho + 1 / s.mu)


def _ring(s: Setting) -> Graph:
    return graphs.make("ring", s.nodes, Generator())
