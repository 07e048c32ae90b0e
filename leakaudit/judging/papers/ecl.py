"""DP-Norm as an optimiser: its limit, its rate, and the effect of noise on its norms."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor

from leakaudit._util.plain import Figures
from leakaudit.core.verdict import Verdict, against
from leakaudit.judging.papers.dpnorm import RING
from leakaudit.judging.papers.row import Judgement, Quote
from leakaudit.judging.papers.runs import FinishedRun, optimum, run
from leakaudit.judging.papers.sources import dpnorm_row

ROUNDING = 1e-6
STOPS = (100, 400, 1600)


def _reached(graph: str, eta: str = "node") -> tuple[float, float]:
    """Return how far the final models are from the optimum, and from that of weighted losses.

    The weights are the degrees. Without noise, DP-Norm is ECL (edge-consensus learning).
    """
    settings = {"sigma": 0.0, "mu": 0.2, "eta": eta, "l2": 0.1}
    done = run(
        victim="dpnorm",
        rounds=1500,
        samples=10,
        split="classes:1",
        wires="none",
        set=settings,
        **{**RING, "graph": graph},
    )
    model = done.truth.states["w"][-1]
    degrees = torch.tensor([len(n) for n in done.plan.graph.neighbours], dtype=torch.float64)
    plain = optimum(done.problem)
    weighted = optimum(done.problem, degrees)
    return float((model - plain).abs().max()), float((model - weighted).abs().max())


def _fixed_point() -> tuple[Judgement, ...]:
    ring, _ = _reached("ring")
    star, weighted = _reached("star")
    common, _ = _reached("star", "common")
    says = (
        f"the final models differ by {star:.3f} from the optimum, and by {weighted:.1e} from "
        "argmin sum_i E_i f_i; the paper assumes equal degrees. With one eta for all nodes, they "
        f"differ by only {common:.1e} from the optimum"
    )
    figures: Figures = {"off": star, "off_weighted": weighted, "off_common": common}
    return (
        Judgement(
            "equal degrees (a ring)",
            against(ring > ROUNDING),
            f"the final models differ by {ring:.1e} from the optimum",
            {"off": ring},
        ),
        Judgement("unequal degrees (a star)", Verdict.UNCLAIMED, says, figures),
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


def _rate() -> tuple[Judgement, ...]:
    settings = {"sigma": 0.0, "mu": 0.2, "inner": 1, "l2": 0.01}
    done = run(
        victim="dpnorm",
        rounds=max(STOPS),
        samples=10,
        split="classes:1",
        wires="none",
        set=settings,
        **RING,
    )
    found = {stop: _divergence(done, stop) for stop in STOPS}
    # Eq. (9) allows 1/R + E/(N R) + 1/sqrt(B R) for K = 1: the slowest term falls by a factor of
    # sqrt(4) from one stop to the next.
    slower = any(
        found[late] > found[early] / (late / early) ** 0.5 for early, late in pairwise(STOPS)
    )
    listed = ", ".join(f"{value:.1e} at R = {stop}" for stop, value in found.items())
    return (
        Judgement(
            "without noise (epsilon infinite)",
            against(slower),
            "logistic regression on a ring of 6, with one class per node and K = 1: the divergence "
            f"is {listed}; eq. (9) allows it to fall only as 1 / sqrt(R)",
            {"divergence": {str(stop): value for stop, value in found.items()}},
        ),
        Judgement(
            "the terms in epsilon",
            Verdict.UNSUPPORTED,
            "eq. (9) gives only the order, without the constants, the logarithms and the "
            "appropriate mu, and the proof is in a supplement that was not available",
        ),
    )


def _norms() -> tuple[Judgement, ...]:
    def dual(sigma: float, alpha: float) -> list[float]:
        """Return the norm of the dual messages after 200 and 800 rounds.

        Each is the root mean square over the last quarter of these rounds.
        """
        settings = {"sigma": sigma, "alpha": alpha, "mu": 0.05, "inner": 2, "l2": 0.1}
        done = run(
            victim="dpnorm", rounds=800, samples=10, curves=True, wires="none", set=settings, **RING
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
    figures: Figures = {
        "quiet": noiseless,
        "plain": plain,
        "louder": doubled,
        "damped": damped,
        "growth": growth,
    }
    return (
        Judgement(
            "noise raises the norm, alpha > 0 lowers it",
            against(not noiseless[1] < plain[1] < doubled[1] or damped[1] >= plain[1]),
            f"norm of the dual messages at alpha = 0: {shown}; {damped[1]:.2f} at alpha = .2 and "
            f"sigma = {sigma:g}",
            figures,
        ),
        Judgement(
            "growth with the rounds",
            Verdict.UNCLAIMED,
            f"from round 200 to 800, the norm at alpha = 0 grows by a factor of {growth:.2f}: with "
            "a strongly convex loss, it levels off",
            {"growth": growth},
        ),
    )


REGULAR = Quote(
    "section V-C", "In this subsection, $E_i = E_j$ is assumed for simple presentation."
)

ROWS = (
    dpnorm_row(
        number=9,
        source="DP-Norm, Algorithm 1 and Theorem 2",
        claim="all nodes reach the consensus optimum if sigma = alpha = 0 and degrees are equal",
        quotes=(
            Quote(
                "section V-C",
                "The following theorem shows that the primal model and dual variables "
                "reach their stationary point $(\\mathbf{w}_i^*, \\lambda_{ij}^*)$ of (5) "
                "by investigating addition of $\\sum_{i \\in \\mathcal{N}} "
                "D_{f_i}(\\mathbf{w}_i^r, \\mathbf{w}_i^*)$ and $\\sum_{i \\in "
                "\\mathcal{N}} \\sum_{j \\in \\mathcal{E}_i} \\|\\lambda_{ij}^r - "
                "\\lambda_{ij}^*\\|^2$ with scaling.",
            ),
            REGULAR,
        ),
        assumes=("convex losses", "all nodes have the same number of neighbours"),
        judge=_fixed_point,
    ),
    dpnorm_row(
        number=17,
        source="DP-Norm, Theorem 2, eq. (9)",
        claim="the divergence from the optimum falls at the rate of eq. (9)",
        quotes=(
            Quote(
                "Theorem 2",
                "Then, when $\\alpha \\leq \\mathcal{O}(E/(NL))$, with an appropriate "
                "choice of μ and $\\eta_i := 1/(\\mu E_i K)$, it holds that "
                "$$\\begin{aligned} & \\frac{1}{N} \\sum_{i \\in \\mathcal{N}} "
                "\\mathbb{E}[D_{f_i}(\\mathbf{w}_i^{\\text{out}}, \\mathbf{w}_i^*)] + "
                "\\frac{\\alpha}{N} \\sum_{i \\in \\mathcal{N}} \\sum_{j \\in "
                "\\mathcal{E}_i} \\mathbb{E}\\|\\lambda_{ij}^{\\text{out}} - "
                "\\lambda_{ij}^*\\|^2 \\\\ & \\leq \\tilde{\\mathcal{O}} "
                "\\left(\\frac{1}{KR} + \\frac{E}{NR} + \\frac{1}{\\sqrt{BKR}} + "
                "\\frac{\\sqrt{p}}{d_{\\min}\\varepsilon} + "
                "\\frac{\\sqrt{p}}{KB\\varepsilon} \\right).",
            ),
            REGULAR,
        ),
        assumes=(
            "(A1) to (A3), convex losses, equal degrees",
            "judged at sigma = alpha = 0, full batches, K = 1, mu = .2",
        ),
        judge=_rate,
    ),
    dpnorm_row(
        number=20,
        source="DP-Norm, section IV-A and appendix A-B, Figure 4",
        claim="noise makes norms explode at alpha = 0, and alpha > 0 mitigates it",
        quotes=(
            Quote(
                "appendix A-B",
                "In contrast, as shown in Fig. 4(M4a)-(M4b) for DP-Norm ($\\alpha > 0$), "
                "the denoising process in the DP-Norm mitigated explosive norm increase "
                "compared with DP-Norm without normalization.",
            ),
        ),
        assumes=(
            "judged on logistic regression on a ring of 6 with l2 = .1, not on the paper's data",
        ),
        judge=_norms,
    ),
)
