"""DP-Norm (paper 000): its Theorem 1, its setting of epsilon = 1, the noise of its Table II, and its fixed point."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from leakaudit.adversary import Adversary
from leakaudit.bounds import gaussian
from leakaudit.claims.row import Finding, Row
from leakaudit.claims.runs import protocol, run
from leakaudit.declared import Protocol
from leakaudit.relations import Knowledge, account, drift, know
from leakaudit.task import Problem
from leakaudit.verdict import against

# the paper's setting: R rounds of K steps, d records, batches of B, G = 1
ROUNDS, LOCAL, RECORDS, BATCH, STEP, ALPHA, DELTA = 2000, 10, 4000, 2000, 0.03, 0.2, 1e-3
RING = {"nodes": 6, "graph": "ring", "data": "gaussians", "model": "logistic"}
NOMINAL = (1.0, 0.5, 0.4, 0.25, 0.1, 0.05, 0.02)


def _setting(epsilon: float) -> Protocol:
    settings = {"mu": STEP, "inner": LOCAL, "alpha": ALPHA, "epsilon": epsilon, "delta": DELTA, "batch": BATCH, "records": RECORDS}
    return protocol(victim="dpnorm", rounds=ROUNDS, samples=RECORDS, set=settings, **{**RING, "data": f"gaussians:{6 * RECORDS}"})


def _sensitivity() -> float:
    """Return Delta_2 of Lemma 1: 2 c mu (K / d_i + 1 / B) G, c = 1 + 2 (gamma + 1)."""
    gamma = 1 + ALPHA / (STEP * 2 * LOCAL)
    return 2 * (1 + 2 * (gamma + 1)) * STEP * (LOCAL / RECORDS + 1 / BATCH)


def _levels(nominal: float) -> dict[str, float]:
    """Return the noise of Theorem 1 in both forms, ``printed`` and ``eq8``, in units of Delta_2."""
    made = _setting(nominal)
    claims = made.victim.claims(made.graph, ROUNDS)
    return {"printed" if "printed" in c.source else "eq8": (c.std or 0.0) / _sensitivity() for c in claims}


def _theorem_1() -> tuple[Finding, ...]:
    levels = {nominal: _levels(nominal) for nominal in NOMINAL}
    true = {form: {n: gaussian.epsilon(DELTA, math.sqrt(ROUNDS) / levels[n][form]) for n in NOMINAL} for form in ("printed", "eq8")}
    low = ", ".join(f"{true['printed'][n]:.3f} at {n:g}" for n in NOMINAL if true["printed"][n] > n)
    least = math.sqrt(ROUNDS) / gaussian.least_mu(1.0, DELTA)
    share, used = levels[1.0]["eq8"] / least, max(true["eq8"][n] / n for n in NOMINAL)
    return (
        Finding(
            "as printed, with Lemma 1's sensitivity",
            against(any(true["printed"][n] > n for n in NOMINAL)),
            f"true epsilon {low}",
            {"epsilon": _named(true["printed"])},
        ),
        Finding(
            "in the form of eq. (8), with Lemma 1's sensitivity",
            against(used > 1),
            f"the true epsilon is at most {used:.2f} times the nominal one; at epsilon = 1 the noise is {share:.2f} times what exact "
            f"composition of {ROUNDS} rounds needs",
            {"noise": levels[1.0]["eq8"], "needed": least, "times": share},
        ),
        _in_a_run({n: levels[n]["printed"] for n in NOMINAL}, levels[1.0]["eq8"]),
    )


def _in_a_run(printed: Mapping[float, float], declared: float) -> Finding:
    """Judge the printed noise levels by what a record moves; declared: the level of the view that is computed."""
    view = _own(_setting(1.0))
    mu = drift(view, view.declared.gradients(0), 2 / BATCH, 0.0).mu  # exact where gradients do not react: one noise a message
    reached = {nominal: gaussian.epsilon(DELTA, mu * declared / level) for nominal, level in printed.items()}
    shown = ", ".join(f"{reached[nominal]:.3f} at {nominal:g}" for nominal in NOMINAL[-3:])
    return Finding(
        "as printed, in a run",
        against(any(true > nominal for nominal, true in reached.items())),
        f"Lemma 1 overestimates what a record moves; linear losses with a record in every batch reach epsilon {shown}",
        {"epsilon": _named(reached)},
    )


def _named(values: Mapping[float, float]) -> dict[str, float]:
    return {f"{nominal:g}": value for nominal, value in values.items()}


def _own(made: Protocol) -> Knowledge:
    """Return what an eavesdropper knows of node 0 over all rounds, by relations of the first few that repeat."""
    base = know(made.start, Adversary()).near([0])
    return know(made.continued(base.rows, range(1, made.rounds + 1)), Adversary())


def _claimed_one() -> tuple[Finding, ...]:
    made = _setting(1.0)
    view = _own(made)
    steps = view.declared.gradients(0)
    limit = 1 / ((1 + 2 * (2 + ALPHA / (STEP * 2 * LOCAL))) * LOCAL * STEP)
    found = {}
    for every, name in ((1, "every batch"), (2, "every second batch")):
        moves = [2 / BATCH if k % every == 0 else 0.0 for k in range(len(steps))]
        found[name] = gaussian.epsilon(DELTA, drift(view, steps, moves, limit).mu)
    listed = " or ".join(f"{epsilon:.3f} for a record in {name}" for name, epsilon in found.items())
    says = (
        f"claimed epsilon 1; over {len(steps)} gradients the view is bounded by {listed}, for gradients of a Lipschitz constant of at most "
        f"{limit:.3f}, the theorem's own condition on the step; without it only changes of the whole node are bounded"
    )
    return (Finding("records", against(max(found.values()) > 1), says, {"epsilon": found, "smoothness": limit, "gradients": len(steps)}),)


def _table_2() -> tuple[Finding, ...]:
    rounds, nominal = 20, 1.0
    settings = {"alpha": STEP, "order": "adapt", "noise": "step", "epsilon": nominal, "delta": DELTA, "horizon": rounds}
    made = protocol(victim="dpsgd", rounds=rounds, samples=1, set={**settings, "samples": RECORDS}, **RING)
    view, steps = know(made.whole, Adversary()), made.whole.gradients(0)
    found = {}
    for change, name in ((1, "add or remove"), (2, "replace one")):
        moves = [change / BATCH if k % 2 == 0 else 0.0 for k in range(len(steps))]
        found[name] = gaussian.epsilon(DELTA, account(view, steps, moves).mu)
    listed = ", ".join(f"{epsilon:.2f} ({name})" for name, epsilon in found.items())
    says = f"true epsilon {listed} at a nominal {nominal:g}, delta {DELTA:g}, each record in every second batch, for any R"
    return (Finding("the printed noise", against(min(found.values()) > nominal), says, {"epsilon": found, "nominal": nominal}),)


def _optimum(problem: Problem, weights: Tensor) -> Tensor:
    """Return argmin sum_i weights_i f_i by Newton's method."""
    w, task = problem.task.init(torch.Generator().manual_seed(0)).expand(problem.nodes, -1), problem.task
    for _ in range(30):
        slope = weights @ task.gradients(w, problem.x, problem.y)
        curvature = torch.einsum("n,nij->ij", weights, task.hessians(w, problem.x, problem.y))
        w = (w[0] - torch.linalg.solve(curvature, slope)).expand_as(w)
    return w[0]


def _reached(graph: str, eta: str = "node") -> tuple[float, float]:
    """Return how far the models of ECL end from the optimum, and from the one whose losses are weighted by the degrees."""
    settings = {"sigma": 0.0, "mu": 0.2, "eta": eta, "l2": 0.1}
    done = run(victim="dpnorm", rounds=1500, samples=10, split="classes:1", wires="none", set=settings, **{**RING, "graph": graph})
    model, degrees = done.truth.states["w"][-1], torch.tensor([len(n) for n in done.plan.graph.neighbours], dtype=torch.float64)
    plain, weighted = _optimum(done.problem, torch.ones_like(degrees)), _optimum(done.problem, degrees)
    return float((model - plain).abs().max()), float((model - weighted).abs().max())


def _fixed_point() -> tuple[Finding, ...]:
    (star, weighted), (common, _), (ring, _) = _reached("star"), _reached("star", "common"), _reached("ring")
    star_says = (
        f"the models end {star:.3f} off the optimum, and {weighted:.1e} off argmin sum_i E_i f_i; one eta for all repairs it ({common:.1e})"
    )
    figures = {"off": star, "off_weighted": weighted, "off_common": common}
    return (
        Finding("a star", against(star > 1e-6), star_says, figures),
        Finding("a ring", against(ring > 1e-6), f"the models end {ring:.1e} off the optimum", {"off": ring}),
    )


ROWS = (
    Row(7, "000", "DP-Norm, Theorem 1", "its noise suffices for every epsilon", _theorem_1),
    Row(8, "000", "DP-Norm, Table II, row DP-SGD", "its noise makes DP-SGD (epsilon, delta)-private", _table_2),
    Row(9, "000", "DP-Norm, Algorithm 1", "all nodes reach the consensus optimum where sigma = alpha = 0", _fixed_point),
    Row(15, "000", "DP-Norm, setting of epsilon = 1", "2000 rounds of 10 steps are (1, .001)-private", _claimed_one),
)
