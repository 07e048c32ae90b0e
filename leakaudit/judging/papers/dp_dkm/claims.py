"""DP-dKM: truncated noise, sensitivity (Theorem 1), generalisation, composition and mixing."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch

from leakaudit._util.bisection import crossing, geometric
from leakaudit._util.plain import Figures
from leakaudit.core.trace import Graph
from leakaudit.core.verdict import Verdict, against
from leakaudit.judging.papers.row import Judgement, judges
from leakaudit.judging.papers.runs import finish, fresh, listed, planned, run
from leakaudit.protocols import recording
from leakaudit.protocols.mixing import matrix, metropolis
from leakaudit.theory.bounds import gaussian
from leakaudit.theory.bounds.approximate import approximate
from leakaudit.theory.bounds.composition import compose
from leakaudit.theory.bounds.empirical import lower, upper
from leakaudit.theory.bounds.guarantee import Adjacency
from leakaudit.theory.bounds.mechanisms import Additive, truncated_laplace

ALPHA = 0.01
SETTINGS = ((0.5, 1e-3), (1.0, 1e-3), (0.5, 1e-5), (2.0, 1e-3))
DRAWS = 40_000
AT_ONCE = 2_000
SIZES = (10, 100, 1000)


def _theorem_6(epsilon: float, delta: float, times: float = 1.0) -> Additive:
    """Return the noise of Theorem 6 for a sensitivity of 1.

    It has sigma^2 = times / epsilon, and the A for which [A - 1, A] has probability delta.
    """
    scale = math.sqrt(times / epsilon)

    def enough(width: float) -> bool:
        return Additive(2, scale, width).delta(math.inf, 1.0) <= delta

    return Additive(2, scale, crossing(enough, 0.5, 500.0, side="above"))


def _enough(epsilon: float, delta: float) -> float:
    """Return the factor on the printed variance that achieves (epsilon, delta)."""

    def kept(times: float) -> bool:
        return _theorem_6(epsilon, delta, times).delta(epsilon, 1.0) <= delta * (1 + 1e-6)

    return crossing(kept, 1.0, 1e3, side="above", halvings=50, middle=geometric)


def _measured(epsilon: float, delta: float) -> float:
    """Return a lower limit on delta, at confidence 1 - ALPHA, from the noise that a run draws.

    The event is z <= 0 for one data set, and z + 1 <= 0 for the other.
    """
    done = run(
        victim="dkm",
        nodes=10,
        graph="ring",
        rounds=700,
        wires="none",
        set={
            "mechanism": "truncated_gaussian",
            "epsilon": epsilon,
            "delta": delta,
            "sensitivity": 1.0,
        },
    )
    z = done.truth.states["n"][1:].flatten()
    mine = z[::2]
    other = z[1::2]
    seen = int((mine <= 0).sum())
    moved = int((other + 1 <= 0).sum())
    return lower(seen, len(mine), ALPHA / 2) - math.exp(epsilon) * upper(
        moved, len(other), ALPHA / 2
    )


@judges(2)
def _truncated_gaussian() -> Iterator[Judgement]:
    table = []
    for epsilon, delta in SETTINGS:
        noise = _theorem_6(epsilon, delta)
        true = noise.delta(epsilon, 1.0)
        times = _enough(epsilon, delta)
        table.append(
            {
                "epsilon": epsilon,
                "delta": delta,
                "A": noise.width,
                "true_delta": true,
                "needed_variance": times,
            }
        )
    first = table[0]
    measured = _measured(*SETTINGS[0])
    beyond = all(t["true_delta"] > t["delta"] for t in table)
    yield Judgement(
        "one coordinate",
        against(beyond and measured > SETTINGS[0][1]),
        f"at a claimed (.5, .001), the true delta is {first['true_delta']:.3f}, by integration; "
        f"the noise of a run shows at least {measured:.3f} at confidence {1 - ALPHA:g}. The ratio "
        "of the densities stays below e^epsilon only if A <= Delta, but the theorem's A is "
        f"{first['A']:.2f} Delta; {first['needed_variance']:.1f} times the variance would suffice",
        {"table": table, "measured_delta": measured},
    )


def _vector_delta(noise: Additive, epsilon: float, size: int) -> tuple[float, float]:
    """Return an estimate of delta = E[(1 - e^(epsilon - loss))+], and Hoeffding's lower limit.

    The shift has Euclidean length 1 and is equal in all coordinates.
    """
    random = fresh(size)
    shift = 1 / math.sqrt(size)
    total = 0.0
    edge = noise.width / noise.scale
    for _ in range(DRAWS // AT_ONCE):
        sides = torch.rand(AT_ONCE, size, generator=random, dtype=torch.float64).mul_(2).sub_(1)
        z = torch.log1p(sides.abs() * math.expm1(-edge)).mul_(-noise.scale).mul_(sides.sign())
        moved = z - shift
        loss = ((moved.abs() - z.abs()) / noise.scale).sum(1)
        loss[(moved.abs() > noise.width).any(1)] = math.inf
        total += float((1 - torch.exp(epsilon - loss)).clamp(min=0).sum())
    return total / DRAWS, total / DRAWS - math.sqrt(math.log(len(SIZES) / ALPHA) / (2 * DRAWS))


@judges(3)
def _truncated_laplace() -> Iterator[Judgement]:
    epsilon = 0.5
    delta = 1e-3
    noise = truncated_laplace(epsilon, delta, 1.0)
    single = noise.delta(epsilon, 1.0)
    found = {size: _vector_delta(noise, epsilon, size) for size in SIZES}
    support = noise.escape([1.0] * 1000)
    deltas = listed("{1[0]:.3f} for {0}", found)
    limits = listed("{1[1]:.3f}", found)
    yield Judgement(
        "vectors with a Euclidean bound",
        against(min(v[1] for v in found.values()) > delta),
        f"the claimed delta is {delta:g} at epsilon {epsilon:g}; for a shift of Euclidean length "
        f"1, it is {deltas} coordinates (at least {limits} at confidence {1 - ALPHA:g}), and for a "
        f"shift of 1 in each of 1000 coordinates, it is {support:.3f}",
        {
            "delta": {str(k): v[0] for k, v in found.items()},
            "lower": {str(k): v[1] for k, v in found.items()},
            "support": support,
        },
    )
    yield Judgement(
        "one coordinate",
        against(single > delta * (1 + 1e-9)),
        f"the true delta is {single:.6f} at a claimed {delta:g}; the claim also holds for vectors "
        "if Delta is their L1 sensitivity",
        {"true_delta": single},
    )


def sensitivity(graph: Graph, alphas: Sequence[float], records: int) -> float:
    """Return the bound of Theorem 1 for B = 1, with Metropolis weights.

    2 sum_k alpha_k / (N M) + 4 sum_k (1 + 2 alpha_k) sum_{j<k} alpha_j lambda^{k-1-j}, for the
    relaxations alpha_k of all iterations and N records an agent.
    """
    weights = matrix(metropolis(graph), torch.zeros(0, dtype=torch.float64))
    mixing = float(torch.linalg.eigvalsh(weights)[:-1].abs().max())  # lambda
    past = far = 0.0
    for alpha in alphas:
        far += (1 + 2 * alpha) * past
        past = mixing * past + alpha
    return 2 * sum(alphas) / (records * graph.nodes) + 4 * far


@judges(12)
def _sensitivity() -> Iterator[Judgement]:
    rounds = 40
    alpha = 0.1
    records = 20
    plan = planned(
        victim="dkm",
        nodes=5,
        graph="ring",
        rounds=rounds,
        samples=records,
        states=True,
        set={"alpha": alpha, "gamma": 0.1, "records": records},
    )
    rows = plan.rows.clone()
    rows[0, 0] = next(
        int(k)
        for k in torch.arange(len(plan.source.x))
        if int(k) not in set(rows.flatten().tolist())
    )
    here = finish(plan)
    there = finish(replace(recording.plan(plan.scenario), rows=rows))
    w = here.truth.states["w"]
    other = there.truth.states["w"]
    steps = (
        torch.stack([plan.task.gradients(m, here.problem.x, here.problem.y) for m in w[:-1]])
        .mul(0.1)
        .norm(dim=2)
    )
    bound = float(steps.max())
    theorem = bound * sensitivity(plan.graph, [alpha] * rounds, records)
    total = alpha * rounds
    moved = float((w[-1].mean(0) - other[-1].mean(0)).norm())
    trivial = 2 * bound * total
    shown = float((w[1:] - other[1:]).norm(dim=2).max())
    yield Judgement(
        "the final average",
        against(moved > theorem),
        f"replacing one record moved it by {moved:.2e}; the theorem allows {theorem:.3f}, and the "
        f"trivial bound 2 B sum alpha is {trivial:.3f}: the theorem's bound is "
        f"{theorem / trivial:.1f} times as large",
        {
            "theorem": theorem,
            "trivial": trivial,
            "measured": moved,
            "broadcast": shown,
            "B": bound,
        },
    )
    yield Judgement(
        "the broadcasts",
        Verdict.UNCLAIMED,
        f"the same record moved one broadcast by {shown:.2e}, {shown / moved:.1f} times as far; "
        "the theorem does not concern broadcasts",
        {"broadcast": shown},
    )


# Constants of the paper's experiments.
EPSILON = 0.5
DELTA = 1e-3
AGENTS = 5
RECORDS = 100
LOSS = 10.0  # R, the bound on the loss: our choice
ITEMS = 10**6  # number of values that a record can take
SURE = 1 + 1e-9  # factor above a claim that rounding cannot explain


def bound(epsilon: float, delta: float, agents: int, loss: float) -> float:
    """Return the right side of Theorem 2 as printed: (1 - e^-epsilon) R + e^-epsilon M delta."""
    return -math.expm1(-epsilon) * loss + math.exp(-epsilon) * agents * delta


def memorised(delta: float, loss: float, items: int, records: int) -> float:
    """Return the exact generalisation gap of an algorithm that is (0, delta)-private.

    With probability delta it returns an x that is 1 for the values in its data, of `items` equally
    likely ones; otherwise x = 0. The loss R (1 - x_value) is linear in x, and the gap is delta R
    times the share of values not in the data, on average (1 - 1/items)^records.
    """
    return delta * loss * math.exp(records * math.log1p(-1 / items))


@judges(28)
def _generalisation() -> Iterator[Judgement]:
    gap = memorised(DELTA, LOSS, ITEMS, AGENTS * RECORDS)
    allowed = bound(0.0, DELTA, AGENTS, LOSS)
    repaired = LOSS * DELTA  # R delta in place of M delta, at epsilon = 0
    # For any (epsilon, delta)-private algorithm: exchanging a record for a fresh one moves an
    # expectation in [0, R] by at most R times this.
    farthest = LOSS * (math.expm1(EPSILON) + 2 * DELTA) / (math.exp(EPSILON) + 1)
    usual = bound(EPSILON, DELTA, AGENTS, LOSS)
    until = -math.log1p(-(gap - allowed) / (LOSS - allowed))  # the epsilon of equal bound and gap
    yield Judgement(
        "as printed, for losses up to R, which exceeds the number of agents M",
        against(gap > allowed * SURE),
        f"M = {AGENTS}, N = {RECORDS}, delta = {DELTA:g}, R = {LOSS:g}: memorising with "
        f"probability delta is (0, delta)-private and has a gap of {gap:.5f}, but the bound "
        f"tends to {allowed:.5f} as epsilon falls to 0. The term M delta does not scale with "
        f"R; this example exceeds the bound only if epsilon is below about {until:.1e}",
        {"gap": gap, "allowed": allowed, "below_epsilon": until},
    )
    yield Judgement(
        "with R delta in place of M delta",
        against(gap > repaired * SURE),
        f"the gap is again {gap:.5f}, and the bound is {repaired:.5f}",
        {"gap": gap, "allowed": repaired},
    )
    yield Judgement(
        "at the paper's epsilon and delta",
        against(farthest > usual * SURE),
        f"at ({EPSILON:g}, {DELTA:g}), no algorithm has a gap above "
        f"R (e^epsilon - 1 + 2 delta) / (e^epsilon + 1) = {farthest:.2f}, and the bound is "
        f"{usual:.2f}",
        {"farthest": farthest, "allowed": usual},
    )


@judges(29)
def _finite_sample() -> Iterator[Judgement]:
    def margin(delta: float, loss: float) -> tuple[float, float]:
        """Return P[L <= empirical L + a] and Theorem 3's claim of it, at the worst a."""
        largest = loss * math.exp(
            AGENTS * RECORDS * math.log1p(-1 / ITEMS)
        )  # the gap if the data are memorised
        pairs = []
        for step in range(1, 200):
            a = largest * step / 200
            pairs.append((1 - delta, (a - AGENTS * delta) / (a + loss)))
        return min(pairs, key=lambda pair: pair[0] - pair[1])

    usual = [margin(delta, LOSS) for delta in (DELTA, 0.1, 0.5)]
    shown = ", ".join(f"{true:.3f} ({said:.3f} claimed)" for true, said in usual)
    true, said = margin(0.9, 20 * LOSS)
    yield Judgement(
        "delta up to 1/2",
        against(any(true < said for true, said in usual)),
        f"if an algorithm memorises with probability {DELTA:g}, .1 or .5, its true loss is at "
        f"most a above the empirical one, for the worst a, with probability {shown}",
        {"true": [true for true, _ in usual], "promised": [said for _, said in usual]},
    )
    yield Judgement(
        "delta above 1/2, as printed for any delta",
        against(true * SURE < said),
        f"delta = .9, R = {20 * LOSS:g}: the probability is {true:.2f}, but {said:.2f} is "
        "claimed, because of the same term M delta as in Theorem 2",
        {"true": true, "promised": said},
    )


def composed(epsilons: Sequence[float], deltas: Sequence[float]) -> tuple[float, float]:
    """Return the weakest guarantee that Theorem 4 can give for several agents.

    It has the sum of the epsilons and the largest delta' = 1 - prod(1 - e^(-a_m) q_m) + 1 - prod(1
    - q_m) with q_m = delta_m / (1 + e^epsilon_m): a_m = 0 gives an upper bound, whatever the tilde
    over delta meant that our copy has lost.
    """
    logarithms = []
    for epsilon, delta in zip(epsilons, deltas, strict=True):
        logarithms.append(math.log1p(-delta / (1 + math.exp(epsilon))))
    lost = -math.expm1(math.fsum(logarithms))
    return math.fsum(epsilons), 2 * lost


def _two_agents() -> Judgement:
    """Judge two agents that iterate twice with W = 1/2 and linear losses.

    A record moves T(x) - x of its agent by 1 / alpha. The broadcasts of agent 1 are hidden by its
    own noise (2.5) in both rounds, and in the second also by half of agent 2's (125), which the
    broadcasts of agent 2 reveal.
    """
    low = 2.5
    high = 125.0
    share = 0.5

    def own(std: float, other: float) -> float:
        """Return mu of an agent's record, given only its own broadcasts."""
        return math.hypot(1 / std, 1 / math.hypot(std, share * other))

    def passed(std: float, other: float) -> float:
        """Return mu of an agent's record, given only the other's broadcasts.

        The second of them contains half of this agent's first.
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
        f"two agents, two rounds, Gaussian noise of {low:g} and {high:g}: the agents are "
        f"({epsilons[0]:g}, {deltas[0]:.1e})- and ({epsilons[1]:g}, {deltas[1]:.1e})-private by "
        f"themselves; together they reach delta {true:.1e} at epsilon {total:g}, but the theorem "
        f"allows at most {promised:.1e}: one agent's broadcasts remove the other's noise"
    )
    figures: Figures = {
        "marginal": marginal,
        "joint": joint,
        "deltas": deltas,
        "true_delta": true,
        "claimed_delta": promised,
    }
    return Judgement("two iterating agents", against(true > promised * SURE), says, figures)


@judges(30)
def _composition() -> Iterator[Judgement]:
    total, promised = composed([EPSILON] * AGENTS, [DELTA] * AGENTS)
    released = [approximate(EPSILON, DELTA, Adjacency.REPLACE)] * AGENTS
    # Kairouz, Oh, Viswanath 2015: randomised response that leaks with probability delta attains
    # the optimal composition.
    true = compose(released).delta(total)
    alone, single = composed([EPSILON], [DELTA])
    yield _two_agents()
    yield Judgement(
        "independent releases",
        against(true > promised * SURE and single < DELTA),
        f"{AGENTS} independent ({EPSILON:g}, {DELTA:g})-private releases of one record reach "
        f"delta {true:.6f} at epsilon {total:g}, but the theorem allows at most {promised:.6f}; "
        f"for one agent it claims ({alone:g}, {single:.6f}), which is less than the "
        f"({EPSILON:g}, {DELTA:g}) that it assumes",
        {"true_delta": true, "claimed_delta": promised, "claimed_of_one": single},
    )


@judges(31)
def _mixed_noise() -> Iterator[Judgement]:
    size = 10
    plan = planned(victim="dkm", nodes=AGENTS, graph="ring", rounds=1)
    mixing = matrix(metropolis(plan.graph), torch.zeros(0, dtype=torch.float64))
    eigenvalues = torch.linalg.eigvalsh(mixing)
    second = float(eigenvalues[:-1].abs().max())

    def norms(std: float, mean: float) -> tuple[float, float]:
        """Return E|W N|_F^2 of independent noise, and Theorem 5's bound.

        W preserves the mean, which is the same for all agents.
        """
        exact = size * (std**2 * float(eigenvalues.square().sum()) + mean**2 * AGENTS)
        return exact, size * (std**2 + mean**2) * ((AGENTS - 1) * second**2 + 1)

    moved, allowed = norms(1.0, 1.0)
    centred, enough = norms(1.0, 0.0)
    yield Judgement(
        "noise with a mean, as printed",
        against(moved > allowed * SURE),
        f"on a ring of {AGENTS} in {size} dimensions, with mean 1 and variance 1, the noise "
        f"contributes {moved:.2f}, and the bound is {allowed:.2f}. W does not damp a mean that "
        "all agents share",
        {"exact": moved, "bound": allowed, "lambda": second},
    )
    yield Judgement(
        "noise of mean zero, as it is used",
        against(centred > enough * SURE),
        f"the noise contributes {centred:.2f}, and the bound is {enough:.2f}",
        {"exact": centred, "bound": enough},
    )
