"""DP-RECAL: whether it converges (Theorems 2 and 3), and what its tables compare.

The formulas are lost in our copy; the protocol's docstring says how they were reconstructed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch

from leakaudit.core.verdict import Verdict, against
from leakaudit.judging.papers.row import Judgement, judges
from leakaudit.judging.papers.runs import declared, optimum, planned, run

NODES = 8
RING = {"graph": "ring", "samples": 10, "wires": "none"}
ACTIVATIONS = 4000
CLOSE = 1e-6
DECAY = 0.9
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
    errors = _errors(at, sigma=0.1, decay=DECAY)
    listed = ", ".join(f"{error:.1e} after {k}" for k, error in zip(at, errors, strict=True))
    yield Judgement(
        "noise that decays",
        against(errors[-1] > CLOSE),
        f"on a ring of {NODES}, with a variance of R = {DECAY:g} times the previous one, the "
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
    made = declared(plan)
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
