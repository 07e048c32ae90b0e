"""DP-Norm as an optimiser: its limit, its rate, and the effect of noise on its norms."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import torch
from torch import Tensor

from leakaudit.core.verdict import Verdict, against
from leakaudit.judging.papers.dp_norm.claims import RING
from leakaudit.judging.papers.row import Judgement, judges
from leakaudit.judging.papers.runs import FinishedRun, listed, optimum, run

ROUNDING = 1e-6
STOPS = (100, 400, 1600)


def _reached(graph: str, eta: str = "node") -> tuple[float, float]:
    """Return how far the final models are from the optimum, and from that with degrees as weights.

    Without noise, DP-Norm is ECL (edge-consensus learning).
    """
    done = run(
        victim="dpnorm",
        rounds=1500,
        samples=10,
        split="classes:1",
        wires="none",
        set={"sigma": 0.0, "mu": 0.2, "eta": eta, "l2": 0.1},
        **{**RING, "graph": graph},
    )
    model = done.truth.states["w"][-1]
    degrees = torch.tensor([len(n) for n in done.plan.graph.neighbours], dtype=torch.float64)
    plain = optimum(done.problem)
    weighted = optimum(done.problem, degrees)
    return float((model - plain).abs().max()), float((model - weighted).abs().max())


@judges(9)
def _fixed_point() -> Iterator[Judgement]:
    ring, _ = _reached("ring")
    star, weighted = _reached("star")
    common, _ = _reached("star", "common")
    yield Judgement(
        "equal degrees (a ring)",
        against(ring > ROUNDING),
        f"the final models differ by {ring:.1e} from the optimum",
        {"off": ring},
    )
    yield Judgement(
        "unequal degrees (a star)",
        Verdict.UNCLAIMED,
        f"the final models differ by {star:.3f} from the optimum, and by {weighted:.1e} from "
        "argmin sum_i E_i f_i; the paper assumes equal degrees. With one eta for all nodes, they "
        f"differ by only {common:.1e} from the optimum",
        {"off": star, "off_weighted": weighted, "off_common": common},
    )


def _divergence(done: FinishedRun, rounds: int) -> float:
    """Return (1/N) sum_i D_{f_i}(w_i^out, w*), the left side of eq. (9) at alpha = 0.

    w_i^out is the mean of the models of the first `rounds` rounds.
    """
    problem = done.problem
    best = optimum(problem).expand(problem.nodes, -1)
    out = done.truth.states["w"][:rounds].mean(0)

    def losses(models: Tensor) -> Tensor:
        return problem.task.losses(models, problem.x, problem.y)

    slope = problem.task.gradients(best, problem.x, problem.y)
    return float((losses(out) - losses(best) - (slope * (out - best)).sum(1)).mean())


@judges(17)
def _rate() -> Iterator[Judgement]:
    done = run(
        victim="dpnorm",
        rounds=max(STOPS),
        samples=10,
        split="classes:1",
        wires="none",
        set={"sigma": 0.0, "mu": 0.2, "inner": 1, "l2": 0.01},
        **RING,
    )
    found = {stop: _divergence(done, stop) for stop in STOPS}
    # Eq. (9) allows 1/R + E/(N R) + 1/sqrt(B R) for K = 1: the slowest term falls by a factor of
    # sqrt(4) from one stop to the next.
    slower = any(
        found[late] > found[early] / (late / early) ** 0.5 for early, late in pairwise(STOPS)
    )
    values = listed("{1:.1e} at R = {0}", found)
    yield Judgement(
        "without noise (epsilon infinite)",
        against(slower),
        "logistic regression on a ring of 6, with one class per node and K = 1: the divergence "
        f"is {values}; eq. (9) allows it to fall only as 1 / sqrt(R)",
        {"divergence": {str(stop): value for stop, value in found.items()}},
    )
    yield Judgement(
        "the terms in epsilon",
        Verdict.UNSUPPORTED,
        "eq. (9) gives only the order, without the constants, the logarithms and the "
        "appropriate mu, and the proof is in a supplement that was not available",
    )


@judges(20)
def _norms() -> Iterator[Judgement]:
    def dual(sigma: float, alpha: float) -> list[float]:
        """Return the norm of the dual messages after 200 and 800 rounds.

        Each is the root mean square over the last quarter of these rounds.
        """
        done = run(
            victim="dpnorm",
            rounds=800,
            samples=10,
            curves=True,
            wires="none",
            set={"sigma": sigma, "alpha": alpha, "mu": 0.05, "inner": 2, "l2": 0.1},
            **RING,
        )
        norm = done.truth.states["norm_dual"]
        return [float(norm[stop * 3 // 4 : stop].square().mean().sqrt()) for stop in (200, 800)]

    sigma = 0.1
    noiseless = dual(0.0, 0.0)
    plain = dual(sigma, 0.0)
    damped = dual(sigma, 0.2)
    doubled = dual(2 * sigma, 0.0)
    shown = (
        f"{noiseless[1]:.2f} without noise, {plain[1]:.2f} with sigma = {sigma:g}, "
        f"{doubled[1]:.2f} "
        "with twice that"
    )
    growth = plain[1] / plain[0]
    yield Judgement(
        "noise raises the norm, alpha > 0 lowers it",
        against(not noiseless[1] < plain[1] < doubled[1] or damped[1] >= plain[1]),
        f"norm of the dual messages at alpha = 0: {shown}; {damped[1]:.2f} at alpha = .2 and "
        f"sigma = {sigma:g}",
        {
            "quiet": noiseless,
            "plain": plain,
            "louder": doubled,
            "damped": damped,
            "growth": growth,
        },
    )
    yield Judgement(
        "growth with the rounds",
        Verdict.UNCLAIMED,
        f"from round 200 to 800, the norm at alpha = 0 grows by a factor of {growth:.2f}: with "
        "a strongly convex loss, it levels off",
        {"growth": growth},
    )
