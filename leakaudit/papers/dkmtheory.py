"""DP-dKM: generalisation, composition and the noise of the mixing step.

These are Theorems 2 and 3, Theorem 4 and Theorem 5.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from leakaudit._util.plain import Figures
from leakaudit.bounds import gaussian
from leakaudit.bounds.approximate import approximate
from leakaudit.bounds.composition import compose
from leakaudit.bounds.guarantee import Adjacency
from leakaudit.papers.row import Judgement, Quote
from leakaudit.papers.runs import planned
from leakaudit.papers.sources import dkm_row
from leakaudit.protocols.mixing import matrix, metropolis
from leakaudit.verdict import against

# Of the paper's experiments.
EPSILON = 0.5
DELTA = 1e-3
AGENTS = 5
RECORDS = 100
LOSS = 10.0  # R: bound on the loss, of our own choice
ITEMS = 10**6  # values that a record can take
SURE = 1 + 1e-9  # a claim is exceeded by more than rounding


def bound(epsilon: float, delta: float, agents: int, loss: float) -> float:
    """Return the right side of Theorem 2 as printed: (1 - e^-epsilon) R + e^-epsilon M delta.

    Args:
        epsilon: Of the algorithm's privacy.
        delta: Of the algorithm's privacy.
        agents: M.
        loss: R, the bound on the loss.
    """
    return -math.expm1(-epsilon) * loss + math.exp(-epsilon) * agents * delta


def memorised(delta: float, loss: float, items: int, records: int) -> float:
    """Return the exact generalisation gap of an algorithm that is (0, delta)-private.

    Records are uniform on `items` values. With chance delta the algorithm returns x = 1 on the
    values in its data and 0 elsewhere, else x = 0. The loss R (1 - x_value) is linear in x and lies
    in [0, R] on [0, 1]^items. What it returns depends on the data with chance delta only, so the
    total variation between any two data sets is at most delta. If it memorises, the empirical loss
    is 0 and the true loss is R times the share of values that are not in the data, on average
    (1 - 1/items)^records.

    Args:
        delta: chance of memorising.
        loss: R.
        items: values that a record can take.
        records: in the data of all agents, M N.

    Returns:
        E[L - empirical L].
    """
    return delta * loss * math.exp(records * math.log1p(-1 / items))


def _generalisation() -> tuple[Judgement, ...]:
    gap = memorised(DELTA, LOSS, ITEMS, AGENTS * RECORDS)
    allowed = bound(0.0, DELTA, AGENTS, LOSS)
    repaired = LOSS * DELTA  # R delta in place of M delta, at epsilon = 0
    # any (epsilon, delta) algorithm: exchanging a record with a fresh one moves an expectation in
    # [0, R] by at most R times this
    farthest = LOSS * (math.expm1(EPSILON) + 2 * DELTA) / (math.exp(EPSILON) + 1)
    usual = bound(EPSILON, DELTA, AGENTS, LOSS)
    until = -math.log1p(-(gap - allowed) / (LOSS - allowed))  # where the bound reaches the gap
    return (
        Judgement(
            "as printed, for losses up to R above the number of agents M",
            against(gap > allowed * SURE),
            f"M = {AGENTS}, N = {RECORDS}, delta = {DELTA:g}, R = {LOSS:g}: memorising with "
            f"chance delta is (0, delta)-private and has a gap of {gap:.5f}, where the bound "
            f"tends to {allowed:.5f} as epsilon falls to 0. The term M delta does not scale with "
            f"R; this example exceeds the bound only for epsilon below about {until:.1e}",
            {"gap": gap, "allowed": allowed, "below_epsilon": until},
        ),
        Judgement(
            "with R delta in place of M delta",
            against(gap > repaired * SURE),
            f"the same gap of {gap:.5f} against {repaired:.5f}",
            {"gap": gap, "allowed": repaired},
        ),
        Judgement(
            "at the paper's epsilon and delta",
            against(farthest > usual * SURE),
            f"({EPSILON:g}, {DELTA:g}): no algorithm has a gap above R (e^epsilon - 1 + 2 delta) "
            f"/ (e^epsilon + 1) = {farthest:.2f}, the bound is {usual:.2f}",
            {"farthest": farthest, "allowed": usual},
        ),
    )


def _finite_sample() -> tuple[Judgement, ...]:
    def margin(delta: float, loss: float) -> tuple[float, float]:
        """Return the chance that L <= empirical L + a, and that of Theorem 3, at the worst a."""
        largest = loss * math.exp(
            AGENTS * RECORDS * math.log1p(-1 / ITEMS)
        )  # the gap if the data are memorised
        pairs = []
        for step in range(1, 200):
            a = largest * step / 200
            pairs.append((1 - delta, (a - AGENTS * delta) / (a + loss)))
        return min(pairs, key=lambda pair: pair[0] - pair[1])

    usual = [margin(delta, LOSS) for delta in (DELTA, 0.1, 0.5)]
    shown = ", ".join(f"{true:.3f} against {said:.3f}" for true, said in usual)
    true, said = margin(0.9, 20 * LOSS)
    return (
        Judgement(
            "delta up to 1/2",
            against(any(true < said for true, said in usual)),
            f"memorising with probability {DELTA:g}, .1 and .5: a probability of {shown} claimed",
            {"true": [true for true, _ in usual], "promised": [said for _, said in usual]},
        ),
        Judgement(
            "delta above 1/2, as printed for any delta",
            against(true * SURE < said),
            f"delta = .9, R = {20 * LOSS:g}: a probability of {true:.2f}, claimed is {said:.2f}, "
            "by the same M delta as in Theorem 2",
            {"true": true, "promised": said},
        ),
    )


def composed(epsilons: Sequence[float], deltas: Sequence[float]) -> tuple[float, float]:
    """Return the largest guarantee that Theorem 4 can give for several agents.

    That is its epsilon_1, the sum, and the largest delta' over all allowed a_m:
    delta' = 1 - prod(1 - e^(-a_m) q_m) + 1 - prod(1 - q_m) with q_m = delta_m / (1 + e^epsilon_m).
    It falls in every a_m, so a_m = 0 is an upper value. Nothing in it depends on the lost tilde of
    delta.

    Args:
        epsilons: Of each agent's privacy.
        deltas: Of each agent's privacy.
    """
    logarithms = []
    for epsilon, delta in zip(epsilons, deltas, strict=True):
        logarithms.append(math.log1p(-delta / (1 + math.exp(epsilon))))
    lost = -math.expm1(math.fsum(logarithms))
    return math.fsum(epsilons), 2 * lost


def _two_agents() -> Judgement:
    """Judge two agents that iterate twice with W = 1/2.

    A record moves T(x) - x of its agent by a vector of length 1 / alpha.

    What agent 1 broadcasts is hidden by its own noise (standard deviation 2.5) in both rounds, in
    the second also by half of agent 2's (standard deviation 125), which agent 1's broadcasts do not
    show and agent 2's do. Linear losses have T(x) - x constant.
    """
    low = 2.5
    high = 125.0
    share = 0.5

    def own(std: float, other: float) -> float:
        """Return mu of an agent's own record in only its own two broadcasts."""
        return math.hypot(1 / std, 1 / math.hypot(std, share * other))

    def passed(std: float, other: float) -> float:
        """Return mu of its record in only the other agent's broadcasts.

        Half of its first one arrives in the other's second.
        """
        return share / math.hypot(share * std, other)

    marginal = [
        max(own(low, high), passed(high, low)),
        max(own(high, low), passed(low, high)),
    ]
    joint = math.sqrt(2) / low
    epsilons = [1.0, 0.05]
    deltas = [gaussian.delta(epsilon, mu) for epsilon, mu in zip(epsilons, marginal, strict=True)]
    total, promised = composed(epsilons, deltas)
    true = gaussian.delta(total, joint)
    says = (
        f"two agents, two rounds, Gaussian noise of {low:g} and {high:g}: agent by agent "
        f"({epsilons[0]:g}, {deltas[0]:.1e}) and ({epsilons[1]:g}, {deltas[1]:.1e}), together "
        f"delta {true:.1e} at {total:g} where the theorem says at most {promised:.1e}: one "
        "agent's broadcasts remove the other's noise"
    )
    figures: Figures = {
        "marginal": marginal,
        "joint": joint,
        "deltas": deltas,
        "true_delta": true,
        "claimed_delta": promised,
    }
    return Judgement("two agents of the iteration", against(true > promised * SURE), says, figures)


def _composition() -> tuple[Judgement, ...]:
    total, promised = composed([EPSILON] * AGENTS, [DELTA] * AGENTS)
    released = [approximate(EPSILON, DELTA, Adjacency.REPLACE)] * AGENTS
    # Kairouz, Oh, Viswanath 2015: randomised response that leaks with chance delta reaches the
    # optimal composition
    true = compose(released).delta(total)
    alone, single = composed([EPSILON], [DELTA])
    says = (
        f"{AGENTS} independent ({EPSILON:g}, {DELTA:g}) releases of one record reach delta "
        f"{true:.6f} at epsilon {total:g}, the theorem says at most {promised:.6f}; of one agent "
        f"it says ({alone:g}, {single:.6f}), less than the ({EPSILON:g}, {DELTA:g}) that it "
        "starts from"
    )
    figures: Figures = {"true_delta": true, "claimed_delta": promised, "claimed_of_one": single}
    return (
        _two_agents(),
        Judgement(
            "independent releases",
            against(true > promised * SURE and single < DELTA),
            says,
            figures,
        ),
    )


def _mixed_noise() -> tuple[Judgement, ...]:
    size = 10
    plan = planned(
        victim="dkm", nodes=AGENTS, graph="ring", rounds=1, data="gaussians", model="logistic"
    )
    mixing = matrix(metropolis(plan.graph), torch.zeros(0, dtype=torch.float64))
    eigenvalues = torch.linalg.eigvalsh(mixing)
    second = float(eigenvalues[:-1].abs().max())

    def norms(std: float, mean: float) -> tuple[float, float]:
        """Return E|W N|_F^2 of independent noise, and Theorem 5's bound.

        W keeps the mean, which is alike for all agents.
        """
        exact = size * (std**2 * float(eigenvalues.square().sum()) + mean**2 * AGENTS)
        return exact, size * (std**2 + mean**2) * ((AGENTS - 1) * second**2 + 1)

    moved, allowed = norms(1.0, 1.0)
    centred, enough = norms(1.0, 0.0)
    return (
        Judgement(
            "noise with a mean, as printed",
            against(moved > allowed * SURE),
            f"a ring of {AGENTS} in {size} dimensions, mean 1 and variance 1: {moved:.2f}, the "
            f"bound says {allowed:.2f}. A mean that all agents share passes through W undamped",
            {"exact": moved, "bound": allowed, "lambda": second},
        ),
        Judgement(
            "noise without a mean, as it is used",
            against(centred > enough * SURE),
            f"{centred:.2f} against {enough:.2f}",
            {"exact": centred, "bound": enough},
        ),
    )


ROWS = (
    dkm_row(
        number=28,
        source="DP-dKM, Theorem 2",
        claim=(
            "the generalisation error of a private algorithm is at most (1 - e^-epsilon) R + "
            "e^-epsilon M delta"
        ),
        quotes=(Quote("Theorem 2", "e^{-\\epsilon})R + e^{-\\epsilon}M\\delta"),),
        assumes=(
            "(2) the loss lies in [0, R], for some R > 0",
            "the algorithm is (epsilon, delta)-private over all M N records",
        ),
        judge=_generalisation,
    ),
    dkm_row(
        number=29,
        source="DP-dKM, Theorem 3",
        claim=(
            "the true loss exceeds the empirical one by more than a with at most the chance that "
            "it prints"
        ),
        quotes=(Quote("Theorem 3", "\\text{ for any } \\epsilon > 0"),),
        assumes=(
            "as Theorem 2",
            "its epsilon is two numbers: the privacy and the accuracy a, which the print does not "
            "tell apart",
        ),
        judge=_finite_sample,
    ),
    dkm_row(
        number=30,
        source="DP-dKM, Theorem 4",
        claim=(
            "agents that are (epsilon_m, delta_m)-private are together (epsilon', delta')-private"
        ),
        quotes=(Quote("Theorem 4", "generated by the specific stochastic algorithm with K steps"),),
        assumes=(
            "an agent's guarantee is that of its own iterates",
            "the largest delta' that any a_m allows, epsilon_1 for epsilon'",
        ),
        judge=_composition,
    ),
    dkm_row(
        number=31,
        source="DP-dKM, Theorem 5",
        claim=(
            "Gaussian noise of mean mu enters the next iterate with at most p (sigma^2 + mu^2) "
            "((M - 1) lambda^2 + 1)"
        ),
        quotes=(Quote("Theorem 5", "follows a Gaussian distribution with mean"),),
        assumes=("every agent and coordinate draws its noise independently",),
        judge=_mixed_noise,
    ),
)
