"""Items of DP-Norm, DP-RECAL and DP-dKM that functions compute, against other computations."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import integrate
from torch import Generator

from leakaudit.judging.papers import drawing, items, rules
from leakaudit.judging.papers.dp_dkm import claims as dkm
from leakaudit.judging.papers.dp_norm import drawn as norm
from leakaudit.judging.papers.dp_norm.claims import ALPHA, BATCH, LOCAL, RECORDS, STEP
from leakaudit.judging.papers.dp_recal import drawn as recal
from leakaudit.protocols import topology
from leakaudit.protocols.mixing import matrix, metropolis


def judged(name: str, scale: str = "small", seeds: tuple[int, ...] = (0, 1)) -> rules.Judged:
    (item,) = items.select([name])
    return rules.judge(item, drawing.function_of(item)(scale, seeds), scale, ())


# --- DP-Norm --------------------------------------------------------------------------------------


@pytest.mark.parametrize("alpha", [0.0, ALPHA])
def test_a_record_moves_algorithm_1_as_far_as_drawn(alpha: float) -> None:
    """Algorithm 1, lines 10 to 13, of a node with two neighbours whose messages are given."""
    draw = np.random.default_rng(0)
    eta = 1 / (STEP * 2 * LOCAL)
    gamma = 1 + alpha * eta
    rounds = 4
    received = draw.normal(size=(rounds, 2))  # sum_j A' z, the same for both data sets
    slopes = draw.uniform(-1, 1, RECORDS)  # constant gradients of the records, of norm at most 1
    order = np.argsort(draw.uniform(size=RECORDS))
    last = order[-1]
    slopes[last] = 1.0
    models = []
    for sign in (1, -1):
        slopes[last] = sign
        w = 0.0
        kept = []
        for z in received:
            for k in range(LOCAL):
                start = k % (RECORDS // BATCH) * BATCH
                g = slopes[order[start : start + BATCH]].mean()
                pull = STEP * eta / gamma * z.sum()
                w = gamma / (gamma + eta * STEP * 2) * (w - STEP * g + pull)
            kept.append(w)
        models.append(kept)
    far = np.abs(np.array(models[0]) - np.array(models[1]))
    assert far == pytest.approx(norm.moved(alpha, rounds), rel=1e-9)


@pytest.mark.parametrize("name", ["dp-norm/lemma1", "dp-norm/table1"])
def test_norm_items_hold(name: str) -> None:
    found = judged(name)
    assert found.word == rules.Reproduction.SAME_SHAPE
    assert all(shape.outcome == rules.Outcome.HOLDS for shape in found.shapes)


# --- DP-RECAL -------------------------------------------------------------------------------------


@pytest.mark.parametrize("noise", [0.5, 2.0])
@pytest.mark.parametrize("order", [1.5, 4.0, 12.0])
def test_the_divergence_of_two_gaussians(noise: float, order: float) -> None:
    def density(z: float) -> float:
        log_p = -(z**2) / (2 * noise**2)
        log_q = -((z - 1) ** 2) / (2 * noise**2)
        return math.exp(order * log_p + (1 - order) * log_q) / (noise * math.sqrt(2 * math.pi))

    top = 1 - order
    area, _ = integrate.quad(density, top - 10 * noise, top + 10 * noise, epsabs=0, limit=200)
    assert recal.renyi(noise, order) == pytest.approx(math.log(area) / (order - 1), rel=1e-8)
    assert recal.renyi(noise, order) == pytest.approx(order / (2 * noise**2), rel=1e-9)


def test_the_largest_loss_of_laplace_noise() -> None:
    assert recal.largest_loss([0.5], [True], 0) == pytest.approx(0.5)
    assert recal.largest_loss([0.5, 0.25], [True, False], 0) == pytest.approx(0.5)
    assert recal.largest_loss([0.5, 0.25], [False, False], 0) == 0


@pytest.mark.parametrize(
    "name", ["proposition1", "proposition2", "proposition3", "lemma1", "lemma5", "lemma6"]
)
def test_recal_items_hold(name: str) -> None:
    found = judged(f"dp-recal/{name}", seeds=(0,))
    assert found.word == rules.Reproduction.SAME_SHAPE
    assert all(shape.outcome == rules.Outcome.HOLDS for shape in found.shapes)


def test_what_a_method_takes_is_counted_until_it_has_converged() -> None:
    found = recal.needed("NIDS", "ring", 4, 0)
    assert found["plf"] is not None
    # Both directions of four channels; the first round of NIDS sends nothing.
    assert found["messages"] == (found["plf"] - 1) * 8
    walk = recal.needed("RECAL", "ring", 4, 0)
    assert walk["plf"] is not None
    assert walk["messages"] is not None
    assert (
        walk["plf"] >= walk["messages"] / 4
    )  # the busiest of four agents, a baton for each activation


# --- DP-dKM ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["complete", "ring", "star"])
def test_the_bound_of_theorem_1_is_its_double_sum(kind: str) -> None:
    graph = topology.make(kind, 5, Generator())
    weights = matrix(metropolis(graph), torch.zeros(0, dtype=torch.float64))
    values = sorted(map(abs, torch.linalg.eigvalsh(weights).tolist()))
    mixing = values[-2]
    alphas = [0.5 / (1 + k) for k in range(9)]
    total = 2 * sum(alphas) / (100 * 5)
    for k, alpha in enumerate(alphas):
        inner = sum(alphas[j] * mixing ** (k - 1 - j) for j in range(k))
        total += 4 * (1 + 2 * alpha) * inner
    assert dkm.sensitivity(graph, alphas, 100) == pytest.approx(total, rel=1e-12)


@pytest.mark.slow
def test_the_forward_operator_solves_the_problem_of_the_network() -> None:
    operators = judged("dp-dkm/table1", seeds=(0,))
    outcomes = {shape.expected.says: shape.outcome for shape in operators.shapes}
    forward = [outcome for says, outcome in outcomes.items() if says.startswith("forward solves")]
    assert forward == [rules.Outcome.HOLDS] * 2


def test_the_bound_grows_with_the_agents_of_a_ring() -> None:
    found = judged("dp-dkm/table2")
    assert found.word == rules.Reproduction.DIFFERS
    failed = [s.expected.lines[0] for s in found.shapes if s.outcome == rules.Outcome.FAILS]
    assert failed == ["ring", "star"]
