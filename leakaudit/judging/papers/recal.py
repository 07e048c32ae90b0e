"""DP-RECAL: privacy budgets, the unprotected message, and the distribution of activations.

The budgets are those of Theorems 1 and 4, which depend on the numbers of activations.

The formulas of the paper are lost in our copy of its text. What is judged here was reconstructed;
the docstring of the protocol describes how.
"""

from __future__ import annotations

import itertools
import math

import torch

from leakaudit._util.plain import Figures, encoded
from leakaudit.core.adversary import Adversary
from leakaudit.core.verdict import Verdict, against
from leakaudit.judging.papers.row import Judgement, Quote
from leakaudit.judging.papers.runs import attained_mu, protocol, run
from leakaudit.judging.papers.sources import recal_row
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
        data="gaussians",
        model="logistic",
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
    """Compare the epsilon of the busiest node with Theorem 4 at the schedule's PLF.

    The PLF (privacy leakage frequency) is the number of activations of the busiest node.
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
    """Return the largest error of the gradients that are recovered if the noise is on lam.

    The error is relative to the largest entry of the gradients of the node.
    """
    settings = {"sigma": 0.5, "noise_on": "lam"}
    done = run(
        victim="recal",
        nodes=NODES,
        graph="ring",
        rounds=ROUNDS,
        data="gaussians",
        model="logistic",
        set=settings,
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


def _theorem_4() -> tuple[Judgement, ...]:
    error = _recovered()
    active = _against_claim("noise on lam", noise_on="lam")
    full = _against_claim("noise on lam", noise_on="lam", baton="full")
    says = (
        f"{active.says}; in a run with noise of .5, the gradients are recovered with an error of "
        f"{error:.1e}"
    )
    figures: Figures = {**active.figures, "relative_error": error}
    reading = "if the noise were on lam"
    return (
        _against_claim("noise on x, the reading under which the sensitivity is tau_i C"),
        Judgement(reading, _unless(active), says, figures),
        Judgement(
            f"{reading}, and the baton added up s_i x_i", _unless(full), full.says, full.figures
        ),
    )


def _unless(variant: Judgement) -> Verdict:
    """Return UNSUPPORTED if a reading that the lost formulas allow exceeds the claim.

    It is not REFUTED, because the paper may not mean this reading.
    """
    return Verdict.UNSUPPORTED if variant.verdict is Verdict.REFUTED else variant.verdict


def _theorem_1() -> tuple[Judgement, ...]:
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
    return (
        Judgement(
            "the budget is the largest sum over an agent's activations",
            against(exceeded),
            f"a ring of {NODES}, {ROUNDS} activations: in zCDP, the exact view has a rho of at "
            f"most {max(exact):.4f}, and the sums are at most {max(said):.4f}",
            {"exact": exact, "said": said},
        ),
        Judgement(
            "fewer activations, a lower budget",
            against(not rising),
            f"rho by number of activations: {listed}; here all agents have the same step size and "
            "the same noise",
            {"activations": list(map(int, counts))},
        ),
    )


def _second_message() -> tuple[Judgement, ...]:
    def exact(**settings: object) -> tuple[float, float]:
        """Return mu of the busiest node for both messages, and mu for only its noisy states."""
        made = _declared(**settings)
        _, times = _busiest(made)
        alone = math.sqrt(sum((TAU / SIGMA) ** 2 / DECAY**c for c in range(times)))
        return _mu(made), alone

    both, alone = exact()
    other, _ = exact(noise_on="lam")
    return (
        Judgement(
            "noise on x",
            against(both > alone * (1 + 1e-8)),
            f"both messages together have mu = {both:.4f}, and the noisy states by themselves "
            f"have {alone:.4f}: the second message adds nothing",
            {"both": both, "alone": alone},
        ),
        Judgement(
            "if the noise were on lam",
            Verdict.UNSUPPORTED if other > alone * (1 + 1e-8) else Verdict.NOT_REFUTED,
            f"both messages together have mu = {other:.4f}: the other one contains x without noise",
            {"both": encoded(other)},
        ),
    )


def _schedule(activation: str, graph: str, rounds: int) -> list[int]:
    settings = {"activation": activation}
    made = protocol(
        victim="recal",
        nodes=NODES,
        graph=graph,
        rounds=rounds,
        data="gaussians",
        model="logistic",
        set=settings,
    )
    active: list[int] = made.public["active"].tolist()
    return active


def _far(active: list[int]) -> int:
    """Count the moves to a node that is not a neighbour on the ring."""
    return sum((b - a) % NODES not in (1, NODES - 1) for a, b in itertools.pairwise(active))


def _activation() -> tuple[Judgement, ...]:
    rounds = 400
    share = (NODES - 2) / NODES
    walk = _far(_schedule("walk", "ring", rounds))
    free = _far(_schedule("iid", "complete", rounds))
    log_chance = rounds * math.log10(1 - share)
    spread = math.sqrt(rounds * share * (1 - share))
    independent = walk > 0 or log_chance > math.log10(ALPHA)
    says = (
        f"of {rounds} moves of a walk on a ring of {NODES}, {walk} lead to a node that is not a "
        f"neighbour. With independent draws, about {rounds * share:.0f} would, and none would with "
        f"probability 1e{log_chance:.0f}. Given the last active agent, most agents cannot be "
        "active next, so results for independent draws do not apply; the evidence for "
        "convergence is empirical"
    )
    about = (
        f"{free} of {rounds} moves lead to a node that is not a neighbour on the ring, which is "
        f"{abs(free - rounds * share) / spread:.1f} standard deviations from the expected "
        f"{rounds * share:.0f}"
    )
    return (
        Judgement(
            "a walk to neighbours",
            Verdict.NOT_REFUTED if independent else Verdict.UNSUPPORTED,
            says,
            {"moves": walk, "log10_chance": log_chance},
        ),
        Judgement(
            "independent draws on a complete graph",
            against(abs(free - rounds * share) > 4 * spread),
            about,
            {"moves": free},
        ),
    )


LOST = f"the protocol is reconstructed: noise on x, tau = {TAU:g}, sigma = {SIGMA:g}, R = {DECAY:g}"
RECORD = "a record changes a gradient by at most C"

ROWS = (
    recal_row(
        number=10,
        source="DP-RECAL, Theorem 4",
        claim="(epsilon, delta) follows from the largest number of activations of a node (PLF)",
        quotes=(
            Quote(
                "Remark 2",
                "Theorem 4 reveals the quantitative relationship between the privacy "
                "budget and PLF for DP-RECAL.",
            ),
        ),
        assumes=(LOST, RECORD, "the order of activations is public"),
        judge=_theorem_4,
    ),
    recal_row(
        number=11,
        source="DP-RECAL, Lemmas 1 and 2",
        claim="passing the baton is a randomised block-coordinate method",
        quotes=(
            Quote(
                "after Lemma 2",
                "Therefore, Lemmas 1 and 2 indicate that the relay mechanism can be taken "
                "as a special example of the randomized block-coordinate method [34, 35].",
            ),
            Quote(
                "section III-B",
                "In addition, this process can be considered as a Markov chain, since the "
                "baton passing of each iteration is controlled by only one agent and "
                "independent of past information.",
            ),
        ),
        assumes=(
            "the cited method (recalled) draws blocks independently of the past",
            "Assumption 2: the next agent is uniform among the neighbours",
        ),
        judge=_activation,
    ),
    recal_row(
        number=22,
        source="DP-RECAL, Theorem 1",
        claim=(
            "the budget is the largest sum of an agent's budgets; a lower PLF means a lower budget"
        ),
        quotes=(
            Quote(
                "section II-D",
                "It is clear from Proposition 1 and 2 that the less PLF the "
                "differentially private algorithm has, the less privacy is compromised.",
            ),
            Quote(
                "abstract",
                "To further improve the algorithm security from the design perspective of "
                "decentralized optimization algorithms, we introduce a new measure: "
                "Privacy Leakage Frequency (PLF), which reveals the relationship between "
                "communication and privacy leakage of algorithms, showing that lower PLF "
                "corresponds to lower privacy budgets.",
            ),
        ),
        assumes=(
            LOST,
            RECORD,
            "budgets are zCDP, as in section V",
            "agents with equal activation counts have equal budgets",
        ),
        judge=_theorem_1,
    ),
    recal_row(
        number=27,
        source="DP-RECAL, section III-D",
        claim="with noise on one of the passed variables, the other message needs no protection",
        quotes=(
            Quote(
                "section III-D",
                "It is obvious that Gaussian noise is coupled into the update of when is "
                "perturbed, so no additional protection is required for the passing of .",
            ),
        ),
        assumes=(LOST, RECORD, "no regulariser", "the names of both variables are lost"),
        judge=_second_message,
    ),
)
