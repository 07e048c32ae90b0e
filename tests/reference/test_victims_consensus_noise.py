"""Noise of D-PSGD, EXTRA, gossip and Muffliato: what the engine predicts, what a view allows, and what papers claim."""

from __future__ import annotations

import math
import runpy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import brentq
from scipy.stats import norm

import leakaudit as la
from leakaudit.core import registry
from leakaudit.core.trace import Graph
from leakaudit.theory.relations import Expression, Relations, account, determined, estimate, know
from leakaudit.theory.relations.estimate import recorded

RUNS: dict[str, Any] = runpy.run_path(str(Path(__file__).with_name("test_victims_consensus.py")))
train, relations, gradient, miss, curious = (
    RUNS[n] for n in ("train", "relations", "gradient", "miss", "curious")
)
declare, RING = RUNS["declare"], RUNS["RING"]
SIX = Graph(6, tuple(sorted((min(i, (i + 1) % 6), max(i, (i + 1) % 6)) for i in range(6))))


def test_noise_of_d_psgd_is_what_the_engine_predicts() -> None:
    run = train("dpsgd", 15, alpha=0.1, sigma=0.05)
    p, truth = relations(run), run.truth_record
    g = p.gradients(0)
    wanted = [*g, sum(g) / 15]
    k = know(p, la.Adversary(), own=False)
    found = estimate(k, [e for e in wanted if isinstance(e, Expression)], rounding=0)
    assert found.std[:15] == pytest.approx(0.5)
    assert found.std[15] == pytest.approx(0.129, abs=5e-4)
    exact = found.apply(recorded(la.Adversary().view(run.trace)))[:15] - torch.stack(
        [gradient(run, 0, t) for t in range(15)]
    )
    np.testing.assert_allclose(exact.numpy(), -truth.states["xi"][1:, 0].numpy() / 0.1, atol=1e-10)


def test_noise_of_extra_stays_one_fresh_draw_on_every_gradient() -> None:
    run = train("extra", 40, alpha=0.1, sigma=0.01, noise="message")
    (leak,) = la.leaks(run.trace, nodes=[3])
    assert leak.std.numpy() == pytest.approx(np.full(40, 0.1))
    error = leak.value - torch.stack([gradient(run, 3, t) for t in leak.theta_rounds.tolist()])
    np.testing.assert_allclose(
        error.numpy(), -run.truth_record.states["xi"][1:, 3].numpy() / 0.1, atol=1e-9
    )


def epsilon(mu: float, delta: float) -> float:
    def excess(e: float) -> float:
        return float(norm.cdf(mu / 2 - e / mu) - math.exp(e) * norm.cdf(-mu / 2 - e / mu)) - delta

    return float(brentq(excess, 1e-9, 50))


def mu_of(
    p: Relations, node: int, limits: float | Sequence[float], adversary: la.Adversary | None = None
) -> float:
    return account(
        know(p, adversary or la.Adversary()), p.gradients(node), limits, certify=False
    ).mu


def test_the_mu_of_d_psgd_with_and_without_noise_on_the_own_model() -> None:
    assert mu_of(declare("dpsgd", SIX, 6, alpha=0.1, sigma=0.05), 0, 1.0) == pytest.approx(
        4.8990, abs=5e-5
    )
    assert mu_of(declare("dpsgd", SIX, 10, alpha=0.1, sigma=0.3), 0, 1.0) == pytest.approx(
        1.054, abs=5e-4
    )
    own = declare("dpsgd", SIX, 10, alpha=0.1, sigma=0.3, own="plain")
    assert mu_of(own, 0, 1.0) == pytest.approx(1.5104, abs=5e-5)
    tap = la.Adversary(hears=frozenset({(3, 2), (3, 4)}))
    for adversary, published in (
        (curious(1), 1.273),
        (curious(3), 0.448),
        (tap, 0.264),
    ):  # there the common start has noise, too
        assert published < mu_of(own, 0, 1.0, adversary) < 1.02 * published


def test_the_printed_noise_of_table_ii_is_too_little() -> None:
    kind = registry.get("victims", "dpsgd")
    for mu, eps, sigma in ((0.03, 1.0, 0.0028), (0.03, 0.5, 0.0056), (0.1, 1.0, 0.0093)):
        printed = kind(alpha=mu, steps=10, epsilon=eps, noise="step", horizon=2000, samples=4000)
        (claim,) = printed.claims(RING, 2000)
        assert (claim.epsilon, claim.delta, claim.rounds) == (eps, 1e-3, 2000)
        assert claim.std == pytest.approx(sigma, abs=6e-5)
    constants: dict[str, Any] = {
        "alpha": 0.03,
        "epsilon": 1.0,
        "noise": "step",
        "horizon": 6,
        "samples": 4000,
    }
    full = declare("dpsgd", RING, 6, steps=2, order="adapt", **constants)
    assert epsilon(mu_of(full, 0, 2 / 4000), 1e-3) == pytest.approx(
        2.245, abs=5e-3
    )  # replace one, every record in every step
    half = declare(
        "dpsgd", RING, 6, order="adapt", **constants
    )  # B = d / 2: a record is in every second step
    for change, true in ((1, 1.48), (2, 3.44)):
        assert epsilon(
            mu_of(half, 0, [change / 2000 * (t % 2) for t in range(6)]), 1e-3
        ) == pytest.approx(true, abs=5e-3)


def test_the_pairwise_formula_of_muffliato_is_exceeded_by_far_pairs() -> None:
    kind = registry.get("victims", "muffliato")
    victim = kind(
        lr=0.5, clip=1.0, sigma=math.sqrt(0.5), gossips=4
    )  # (2 lr clip)^2 / (2 sigma^2) = 1
    said = victim.pairwise(RING, 4)
    assert said[0, [1, 2, 3, 4]] == pytest.approx([2.27, 0.806, 0.116, 0.0142], rel=5e-3)
    np.testing.assert_allclose(said.sum(1), 4 * 2)  # T d_v
    p = victim.relations(RING, 4, {})
    exact = [
        mu_of(p, u, 2.0, curious(0)) ** 2 / 2 for u in (1, 2, 3, 4)
    ]  # mu^2 / 2 = rho, (2 lr clip / sigma)^2 / 2 = 1
    assert exact == pytest.approx([1.0] * 4, rel=1e-6)
    assert sum(exact) + sum(exact[:3]) <= said[0].sum() + 1e-9  # the mean over pairs holds
    claims = victim.claims(RING, 4)
    assert [c.promise.split(",")[-1].strip() for c in claims[:4]] == [
        f"{h} hops away" for h in (1, 2, 3, 4)
    ]
    assert [c.epsilon for c in claims[:4]] == sorted((c.epsilon for c in claims[:4]), reverse=True)
    rho = 0.0142
    assert claims[3].epsilon == pytest.approx(rho + 2 * math.sqrt(rho * math.log(1e3)), rel=5e-3)
    assert claims[4].epsilon is None
    assert kind(clip=0.0).claims(RING, 4) == ()


def test_noise_once_gossip_shows_every_start_vector_to_one_node() -> None:
    p = declare("gossip", RING, 4, lr=0.5, sigma=0.5)
    for u in (1, 2, 4):
        assert mu_of(p, u, 1.0, curious(0)) == pytest.approx(1.0, abs=1e-6)
    tap = la.Adversary(hears=frozenset({(0, 1)}))
    assert mu_of(p, 4, 1.0, tap) == pytest.approx(0, abs=1e-6)
    assert mu_of(p, 4, 1.0) == pytest.approx(1.0, abs=1e-6)


@pytest.mark.parametrize(
    ("dtype", "limit"), [(torch.float64, 1e-13), (torch.float32, 1e-4)], ids=["float64", "float32"]
)
def test_node_0_decodes_the_farthest_node(dtype: torch.dtype, limit: float) -> None:
    quiet = train("gossip", 4, lr=0.5, dtype=dtype)
    rounds, error = miss(quiet, curious(0), node=4)
    assert rounds == [0]
    assert error < limit
    noisy = train("gossip", 4, lr=0.5, sigma=5.0, dtype=dtype)
    k = know(relations(noisy), curious(0), own=False)
    (row,) = determined(k, k.declared.gradients(4), up_to_noise=True)
    assert not determined(k, k.declared.gradients(4))
    found = estimate(k, [row], rounding=1e-7)
    got = found.apply(recorded(curious(0).view(noisy.trace)))[0]
    start = noisy.truth_record.states["xi"][1, 4].double() - 0.5 * gradient(
        noisy, 4, 0
    )  # y^0 of node 4, w0 = 0
    assert float((-0.5 * got - start).abs().max()) < limit
    assert found.std[0] == pytest.approx(10.0, rel=1e-6)
