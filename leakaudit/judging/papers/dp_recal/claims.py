"""DP-RECAL: privacy budgets, the unprotected message, activations, convergence and its tables.

The formulas are lost in our copy; the protocol's docstring says how they were reconstructed.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import torch

from leakaudit._util.plain import Figures, encoded
from leakaudit.core.adversary import Adversary
from leakaudit.core.verdict import Verdict, against
from leakaudit.judging.papers.row import Judgement, judges
from leakaudit.judging.papers.runs import attained_mu, optimum, planned, protocol, run
from leakaudit.protocols.declared import Protocol
from leakaudit.theory.bounds import gaussian
from leakaudit.theory.relations import know
from leakaudit.views.extraction import hearing

ROUNDS = 160
NODES = 8
ALPHA = 0.01
TAU = 0.2  # step size
SIGMA = 0.4  # standard deviation of the first noise
DECAY = 0.97  # R, the factor by which its variance changes from one activation to the next


def _declared(**settings: object) -> Protocol:
    noise = {"tau": str(TAU), "sigma": SIGMA, "decay": DECAY, **settings}
    return protocol(
        victim="recal",
        nodes=NODES,
        graph="ring",
        rounds=ROUNDS,
        set=noise,
    )


def _busiest(made: Protocol) -> tuple[int, int]:
    """Return the node that is active most often, and how often."""
    counts = torch.bincount(made.public["active"][:-1], minlength=NODES)
    return int(counts.argmax()), int(counts.max())


def _mu(made: Protocol) -> float:
    """Return the mu of the busiest node for an outsider on all channels."""
    return attained_mu(know(made.whole, Adversary()), made.whole.gradients(_busiest(made)[0]), 1.0)


def _against_claim(about: str, **settings: object) -> Judgement:
    """Compare the epsilon of the busiest node with Theorem 4.

    Its activations are the PLF (privacy leakage frequency).
    """
    made = _declared(**settings)
    (claim,) = made.victim.claims(made.graph, ROUNDS, made.public)
    mu = _mu(made)
    node, plf = _busiest(made)
    claimed = claim.epsilon or math.inf
    delta = claim.delta or 0.0
    true = gaussian.epsilon(delta, mu)
    says = (
        f"at a PLF of {plf}, Theorem 4 claims ({claimed:.4g}, {delta:g}); in the view, linear "
        f"losses attain mu = {mu:.4g} and epsilon = {true:.4g}"
    )
    figures: Figures = {
        "plf": plf,
        "mu": encoded(mu),
        "epsilon": encoded(true),
        "claimed_epsilon": claimed,
        "node": node,
    }
    return Judgement(about, against(true > claimed), says, figures)


def _recovered() -> float:
    """Return the largest relative error of the gradients that noise on lam does not hide."""
    done = run(
        victim="recal",
        nodes=NODES,
        graph="ring",
        rounds=ROUNDS,
        set={"sigma": 0.5, "noise_on": "lam"},
    )
    node = int(torch.bincount(done.trace.public["active"][:-1]).argmax())
    leak = hearing.leaks(done.trace, nodes=[node])[0]
    x, y = done.truth.of(node)
    exact = [k for k in range(len(leak.std)) if float(leak.std[k]) < 1e-6]
    at = [t for t, i in enumerate(done.trace.public["active"][:-1].tolist()) if i == node]
    true = torch.stack(
        [
            done.plan.task.gradient(done.truth.states["w"][t, node], x.double(), y)
            for t in at[: leak.combination.shape[1]]
        ]
    )
    error = leak.value[exact] - leak.combination[exact] @ true
    return float(error.abs().max() / true.abs().max()) if len(exact) else 1.0


@judges(10)
def _theorem_4() -> Iterator[Judgement]:
    error = _recovered()
    active = _against_claim("noise on lam", noise_on="lam")
    full = _against_claim("noise on lam", noise_on="lam", baton="full")
    reading = "if the noise were on lam"
    yield _against_claim("noise on x, the reading under which the sensitivity is tau_i C")
    yield Judgement(
        reading,
        _unless(active),
        f"{active.says}; in a run with noise of .5, the gradients are recovered with an error of "
        f"{error:.1e}",
        {**active.figures, "relative_error": error},
    )
    yield Judgement(
        f"{reading}, and the baton added up s_i x_i", _unless(full), full.says, full.figures
    )


def _unless(variant: Judgement) -> Verdict:
    """Return UNSUPPORTED, not REFUTED: the paper may not mean this reading of lost formulas."""
    return Verdict.UNSUPPORTED if variant.verdict is Verdict.REFUTED else variant.verdict


@judges(22)
def _theorem_1() -> Iterator[Judgement]:
    made = _declared()
    counts = torch.bincount(made.public["active"][:-1], minlength=NODES)
    view = know(made.whole, Adversary())
    exact = [attained_mu(view, made.whole.gradients(node), 1.0) ** 2 / 2 for node in range(NODES)]
    # In zCDP (zero-concentrated differential privacy), the activation of a node after c others has
    # rho = (tau C)^2 / (2 sigma^2 R^c). A node has the sum over its activations, and the network
    # has the largest of these sums.
    single = [(TAU / SIGMA) ** 2 / 2 / DECAY**c for c in range(int(counts.max()))]
    said = [sum(single[: int(count)]) for count in counts]
    exceeded = any(true > claim * (1 + 1e-8) for true, claim in zip(exact, said, strict=True))
    order = sorted(range(NODES), key=lambda node: (int(counts[node]), exact[node]))
    rising = all(exact[a] <= exact[b] * (1 + 1e-8) for a, b in itertools.pairwise(order))
    listed = ", ".join(f"{exact[node]:.2f} for {int(counts[node])}" for node in order)
    yield Judgement(
        "the budget is the largest sum over an agent's activations",
        against(exceeded),
        f"a ring of {NODES}, {ROUNDS} activations: in zCDP, the exact view has a rho of at "
        f"most {max(exact):.4f}, and the sums are at most {max(said):.4f}",
        {"exact": exact, "said": said},
    )
    yield Judgement(
        "fewer activations, a lower budget",
        against(not rising),
        f"rho by number of activations: {listed}; here all agents have the same step size and "
        "the same noise",
        {"activations": list(map(int, counts))},
    )


@judges(27)
def _second_message() -> Iterator[Judgement]:
    def exact(**settings: object) -> tuple[float, float]:
        """Return mu of the busiest node for both messages, and for its noisy states only."""
        made = _declared(**settings)
        _, times = _busiest(made)
        alone = math.sqrt(sum((TAU / SIGMA) ** 2 / DECAY**c for c in range(times)))
        return _mu(made), alone

    both, alone = exact()
    other, _ = exact(noise_on="lam")
    yield Judgement(
        "noise on x",
        against(both > alone * (1 + 1e-8)),
        f"both messages together have mu = {both:.4f}, and the noisy states by themselves "
        f"have {alone:.4f}: the second message adds nothing",
        {"both": both, "alone": alone},
    )
    yield Judgement(
        "if the noise were on lam",
        Verdict.UNSUPPORTED if other > alone * (1 + 1e-8) else Verdict.NOT_REFUTED,
        f"both messages together have mu = {other:.4f}: the other one contains x without noise",
        {"both": encoded(other)},
    )


def _schedule(activation: str, graph: str, rounds: int) -> list[int]:
    made = protocol(
        victim="recal",
        nodes=NODES,
        graph=graph,
        rounds=rounds,
        set={"activation": activation},
    )
    active: list[int] = made.public["active"].tolist()
    return active


def _far(active: list[int]) -> int:
    """Count the moves to a node that is not a neighbour on the ring."""
    return sum((b - a) % NODES not in (1, NODES - 1) for a, b in itertools.pairwise(active))


@judges(11)
def _activation() -> Iterator[Judgement]:
    rounds = 400
    share = (NODES - 2) / NODES
    walk = _far(_schedule("walk", "ring", rounds))
    free = _far(_schedule("iid", "complete", rounds))
    log_chance = rounds * math.log10(1 - share)
    spread = math.sqrt(rounds * share * (1 - share))
    independent = walk > 0 or log_chance > math.log10(ALPHA)
    yield Judgement(
        "a walk to neighbours",
        Verdict.NOT_REFUTED if independent else Verdict.UNSUPPORTED,
        f"of {rounds} moves of a walk on a ring of {NODES}, {walk} lead to a node that is not a "
        f"neighbour. With independent draws, about {rounds * share:.0f} would, and none would with "
        f"probability 1e{log_chance:.0f}. Given the last active agent, most agents cannot be "
        "active next, so results for independent draws do not apply; the evidence for "
        "convergence is empirical",
        {"moves": walk, "log10_chance": log_chance},
    )
    yield Judgement(
        "independent draws on a complete graph",
        against(abs(free - rounds * share) > 4 * spread),
        f"{free} of {rounds} moves lead to a node that is not a neighbour on the ring, which is "
        f"{abs(free - rounds * share) / spread:.1f} standard deviations from the expected "
        f"{rounds * share:.0f}",
        {"moves": free},
    )


RING = {"graph": "ring", "samples": 10, "wires": "none"}
ACTIVATIONS = 4000
CLOSE = 1e-6
SUMMABLE = 0.9
PLF = 300  # privacy leakage frequency: activations of the busiest node in Table IV


def _errors(at: tuple[int, ...], **settings: float) -> list[float]:
    """Return how far the models are from the optimum after given numbers of activations."""
    chosen = {"tau": "0.2", "s": "0.5", "l2": 0.1, **settings}
    done = run(victim="recal", nodes=NODES, rounds=max(at), set=chosen, **RING)
    models = done.truth.states["w"]
    best = optimum(done.problem)
    return [float((models[k] - best).abs().max()) for k in at]


@judges(23)
def _convergence() -> Iterator[Judgement]:
    at = (0, 1000, ACTIVATIONS)
    errors = _errors(at, sigma=0.1, decay=SUMMABLE)
    listed = ", ".join(f"{error:.1e} after {k}" for k, error in zip(at, errors, strict=True))
    yield Judgement(
        "noise that decays",
        against(errors[-1] > CLOSE),
        f"on a ring of {NODES}, with a variance of R = {SUMMABLE:g} times the previous one, the "
        f"models differ from the optimum by {listed} activations",
        {"errors": errors},
    )


@judges(24)
def _linear() -> Iterator[Judgement]:
    # Linear convergence has about the same slope in each interval. The walk is random, so half of
    # the first slope is enough.
    at = (500, 1000, 2000, 3000)
    errors = _errors(at)
    slopes = [
        math.log(late / early) / (b - a)
        for a, b, early, late in zip(at, at[1:], errors, errors[1:], strict=False)
    ]
    slowing = any(later > 0.5 * slopes[0] for later in slopes[1:])
    listed = ", ".join(f"{slope:.4f}" for slope in slopes)
    yield Judgement(
        "without noise",
        against(slowing),
        f"on a ring of {NODES}, the logarithm of the error changes by {listed} per activation "
        f"between {', '.join(map(str, at))} activations",
        {"errors": errors, "slopes": slopes},
    )


@judges(25)
def _orders() -> Iterator[Judgement]:
    yield Judgement(
        "lower PLF and fewer communications than other methods",
        Verdict.UNSUPPORTED,
        "the entries of Tables I to III are lost in our copy of the text. They are orders of "
        "growth whose constants depend on step sizes and conditioning, so no run on one "
        "network could refute them",
    )


@judges(26)
def _communications() -> Iterator[Judgement]:
    plan = planned(victim="recal", nodes=NODES, rounds=8 * PLF, graph="ring")
    made = plan.declared
    active = made.public["active"][:-1]
    counts = torch.nn.functional.one_hot(active, NODES).cumsum(0)
    busiest = counts.amax(1)
    moves = int((busiest < PLF).sum()) + 1  # activations until a node has been active PLF times
    gossip = planned(victim="nids", nodes=NODES, rounds=PLF, graph="ring")
    broadcasts = gossip.victim.messages(gossip.graph, PLF, gossip.graph.edges)
    vectors = moves * (plan.victim.messages(plan.graph, 8 * PLF, plan.graph.edges) // (8 * PLF))
    most = int(busiest[-1])
    yield Judgement(
        "better accuracy at the same budget",
        Verdict.INCONCLUSIVE,
        "the budget, the noise and the step sizes of Tables IV and V are lost, and no models "
        "are trained on their four data sets here",
    )
    yield Judgement(
        "fewer communications at PLF 300",
        against(moves >= broadcasts),
        f"a walk on a ring of {NODES} passes the baton {moves} times until a node has been "
        f"active {PLF} times; NIDS sends {broadcasts} messages in {PLF} rounds. The baton "
        f"consists of two vectors, so {vectors} vectors are sent",
        {"passes": moves, "vectors": vectors, "nids": broadcasts},
    )
    yield Judgement(
        "2400 communications at PLF 300",
        Verdict.UNSUPPORTED,
        f"this requires all {NODES} nodes to be active equally often; 2400 activations of this "
        f"walk have a PLF of {most}",
        {"plf": most},
    )
