"""The noise in DP-Norm's experiment: as each paper prints it, and as the same exact epsilon
requires.

Exact: the Gaussian-DP parameter mu of an adversary who observes every channel, and its epsilon by
`theory.bounds.gaussian`. One record of one node is replaced; the permutation is public and puts the
record into every second inner step (B = d_i / 2), here the later one of each pair, which has the
larger effect. A record's gradient has norm at most G, so that of a mini-batch changes by at most 2
G / B. The loss is convex and mu <= 2 / L: a gradient step does not increase the distance of two
models. The inner steps of DP-Norm are hidden and without noise; for them, `theory.relations.drift`
with smoothness 0 derives the bound from the victim's own declaration. DP-SGD and DP-ADMM draw noise
in every inner step and reveal the last model of a round: a shift may then be hidden step by step,
in shares a_k that never exceed the shift so far, and mu^2 = sum_k a_k^2 / sigma^2 (Feldman,
Mironov, Talwar, Thakurta 2018; as mu-GDP Bok, Su, Altschuler 2024). `seen` treats all inner models
as observed instead.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate

import torch
from torch import Generator

from leakaudit.core.adversary import Adversary
from leakaudit.core.trace import Graph
from leakaudit.protocols import topology as graphs
from leakaudit.protocols.victim import Victim
from leakaudit.theory.bounds import gaussian
from leakaudit.theory.relations import drift, know
from leakaudit.victims.dpadmm import DPADMM
from leakaudit.victims.dpnorm import DPNorm
from leakaudit.victims.dpsgd import DPSGD

# Rounds after which each further one adds the same to mu^2: a drift decreases by more than half per
# round
SETTLED = 30


@dataclass(frozen=True)
class Setting:
    """Constants of the experiment. lipschitz: G of the exact figures; the printed ones use 1, as
    their paper does.
    """

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
    """Return the noise per coordinate that the papers print for epsilon, as added in
    `_convex.Training`; Theorem 1 as in eq. (8).
    """
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
    """Return the noise per coordinate with this exact epsilon."""
    return _unit(method, alpha, s) / gaussian.least_mu(epsilon, s.delta)


def exact(method: str, alpha: float, sigma: float, s: Setting) -> float:
    """Return the exact epsilon of a noise per coordinate."""
    return gaussian.epsilon(s.delta, _unit(method, alpha, s) / sigma) if sigma else math.inf


def seen(method: str, epsilon: float, s: Setting) -> float:
    """Return the noise per coordinate of DP-SGD or DP-ADMM if an eavesdropper observes every inner
    model, by `theory.relations.drift`.
    """
    return _settled(method, 0.0, s) / gaussian.least_mu(epsilon, s.delta)


@lru_cache
def _unit(method: str, alpha: float, s: Setting) -> float:
    """Return mu for noise of standard deviation 1 per coordinate."""
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
    """Return the shares that hide a shift best: slopes of the largest convex function below the
    running sum of `moved`.
    """
    sums, out = [0.0, *accumulate(moved)], list[float]()
    while (k := len(out)) < len(moved):
        slope, to = min(((sums[j] - sums[k]) / (j - k), -j) for j in range(k + 1, len(sums)))
        out += [slope] * (-to - k)
    return out


@lru_cache
def _settled(method: str, alpha: float, s: Setting) -> float:
    """Return mu for noise of 1 per coordinate by `drift`: over enough rounds to settle,
    extrapolated by the increment per round.
    """
    kept = min(s.rounds, SETTLED if method == "dpnorm" else 2)
    before, now = (_declared(method, alpha, s, rounds) ** 2 for rounds in (kept - 1, kept))
    return math.sqrt(now + (s.rounds - kept) * (now - before))


def _declared(method: str, alpha: float, s: Setting, rounds: int) -> float:
    """Return mu of one node's whole training over a few rounds, from the victim's declaration."""
    if not rounds:
        return 0.0
    p = _victim(method, alpha, s).relations(_ring(s), rounds, {"w0": torch.zeros(1)})
    view = know(p, Adversary())
    if method != "dpnorm":
        view = view.also(p.select("state", name="w"))
    targets, moved = p.gradients(0), 2 * s.lipschitz / s.batch
    return drift(view, targets, [moved if k % 2 else 0.0 for k in range(len(targets))], 0.0)[0]


def _victim(method: str, alpha: float, s: Setting) -> Victim:
    """Return the victim with noise of 1 per coordinate."""
    if method == "dpnorm":
        return DPNorm(mu=s.mu, inner=s.inner, batch=s.batch, alpha=alpha, sigma=1.0)
    if method == "dpsgd":
        return DPSGD(
            alpha=s.mu, steps=s.inner, order="adapt", batch=s.batch, sigma=1.0, noise="step"
        )
    return DPADMM(rho=s.rho, eta=1 / s.mu, steps=s.inner, batch=s.batch, sigma=4 * s.rho + 1 / s.mu)


def _ring(s: Setting) -> Graph:
    return graphs.make("ring", s.nodes, Generator())
