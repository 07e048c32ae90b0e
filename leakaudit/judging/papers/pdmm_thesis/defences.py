"""The PDMM thesis: what its defences hide and cost, and when QA-PDMM converges."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from leakaudit.core.adversary import Adversary
from leakaudit.core.trace import Graph
from leakaudit.core.verdict import Verdict, against
from leakaudit.judging.papers.pdmm_thesis.claims import THESIS, input_error
from leakaudit.judging.papers.row import Judgement, judges
from leakaudit.judging.papers.runs import (
    EXACT,
    FinishedRun,
    fresh,
    listed,
    planned,
    protocol,
    run,
)
from leakaudit.theory.relations import determined, is_determined, know
from leakaudit.views.extraction import hearing

CELLS = (1e-3, 1e-2, 1e-1)
HEARD = 10  # number of rounds that an eavesdropper observes
STEPS = (2, 5)
ATTACKED = range(4)  # those of the 60 nodes whose inputs are computed
STOPS = (5, 20, 100)
LOST = 0.05  # 3 of 60 samples: the accuracy counts as affected if it is lower by more
CONDITIONS = (1.0, 2.0, 10.0, 100.0)  # beta / m
PENALTY = 0.4
TRIALS = 5
# 2^21 rounds; in the slowest case, each multiplies the error by about 1 - 2e-5.
SQUARINGS = 21
VANISHED = 1e-6


def _trained(rounds: int, **settings: float) -> FinishedRun:
    """Run the thesis' example: logistic regression on a geometric graph of 60 nodes."""
    return run(rounds=rounds, **{**THESIS, "set": {**THESIS["set"], **settings}})


def _inputs(done: FinishedRun) -> float:
    """Return the median relative error of the inputs, from one-step differences."""
    return input_error(done, list(hearing.leaks(done.trace, nodes=ATTACKED, rounds=6)))


@judges(37)
def _quantisation() -> Iterator[Judgement]:
    found = {f"{cell:g}": _inputs(_trained(HEARD, quantize=cell)) for cell in CELLS}
    errors = listed("{1:.2g} with cells of {0}", found)
    yield Judgement(
        "error of the inputs",
        Verdict.UNSUPPORTED,
        "the outcome depends on the width of the cells, which is not in our copy: one-step "
        f"differences of the first {HEARD} rounds give the inputs with a median error of "
        f"{errors}. Small cells leave little for further rounds to improve",
        {"error": found},
    )


def _told(steps: int) -> dict[str, bool]:
    """Return which differences of a node's gradients at the ends of rounds 2 to 4 are determined.

    The first of the `steps` gradients of a round is evaluated at the end of the round before.
    """
    made = protocol(nodes=8, graph="ring", rounds=7, set={"z0": 1.0, "k_max": steps}).whole
    view = know(made, Adversary())
    index = None if steps == 1 else 1
    ends = [made.find("g", 0, t, index) for t in (3, 4, 5)]
    return {
        "two": is_determined(view, ends[0] - ends[2]),
        "one": is_determined(view, ends[0] - ends[1]),
    }


@judges(38)
def _inexact() -> Iterator[Judgement]:
    told = {str(steps): _told(steps) for steps in (1, *STEPS)}
    hidden = [str(steps) for steps in STEPS]
    found = {str(steps): _inputs(_trained(HEARD, k_max=steps)) for steps in STEPS}
    errors = listed("{1:.1e} at k_max = {0}", found)
    where = f"at k_max = {' and '.join(hidden)}"
    yield Judgement(
        "errors in the difference of gradients",
        against(any(told[steps]["two"] or told[steps]["one"] for steps in hidden)),
        f"on a ring of 8 nodes, an eavesdropper that knows all constants determines neither "
        f"the two-step nor the one-step difference of the gradients at the ends of rounds "
        f"{where}; at k_max = 1 it determines both",
        {"determined": told},
    )
    yield Judgement(
        "that it protects inputs",
        against(max(found.values()) < EXACT),
        f"median error of the inputs of an adversary that knows k_max and the step size: {errors}. "
        "The messages give a weighted sum of the gradients of the inner steps, and with one "
        "sample, each of these gradients is a multiple of the same input",
        {"error": found},
    )


def _accuracy(done: FinishedRun) -> float:
    """Return the share of all samples that a model classifies correctly, averaged over nodes."""
    x = done.problem.x.flatten(0, 1)
    y = done.problem.y.flatten(0, 1)
    models = done.truth.states["w"][-1]
    return sum(done.plan.task.accuracy(model, x, y) for model in models) / len(models)


@judges(39)
def _unaffected() -> Iterator[Judgement]:
    whole = _accuracy(_trained(200))
    cells = {f"{cell:g}": _accuracy(_trained(200, quantize=cell)) for cell in CELLS}
    steps = {str(count): _accuracy(_trained(200, k_max=count)) for count in STEPS}
    stops = {str(stop): _accuracy(_trained(stop)) for stop in STOPS}

    at = "{1:.3f} at {0}"
    yield Judgement(
        "quantisation and inexact updates",
        against(min([*cells.values(), *steps.values()]) < whole - LOST),
        f"the training accuracy is {whole:.3f} without them; depending on the width of the "
        f"cells, it is {listed(at, cells)}; depending on k_max, it is {listed(at, steps)}",
        {"undefended": whole, "cells": cells, "k_max": steps, "t_max": stops},
    )
    yield Judgement(
        "early stopping",
        Verdict.UNSUPPORTED,
        f"the thesis does not state t_max; the accuracy is {listed(at, stops)} rounds",
        {"t_max": stops},
    )


@judges(40)
def _against_a_server() -> Iterator[Judgement]:
    rounds = 6
    server = protocol(victim="fedsgd", nodes=5, graph="star", rounds=rounds)
    heard = know(server.whole, Adversary())
    central = len(
        determined(heard, [g for g in server.whole.gradients(0) if g.vector not in heard.known])
    )
    central += sum(g.vector in heard.known for g in server.whole.gradients(0))
    mesh = protocol(nodes=8, graph="ring", rounds=rounds + 1, set={"z0": 1.0})
    gradients = mesh.whole.gradients(0)[:rounds]
    told = determined(know(mesh.whole, Adversary()), gradients)
    differences = all(sum(combination.terms.values()) == 0 for combination in told)
    own = len(told)
    error = _inputs(_trained(HEARD))
    yield Judgement(
        "no more information than with a server (Corollary 1)",
        against(own > central or not differences),
        f"of {rounds} gradients of a node, an eavesdropper determines {central} combinations "
        f"with a server, and with PDMM {own} combinations that are all differences; "
        "differences can be computed from gradients, so they reveal no more",
        {"server": central, "pdmm": own},
    )
    yield Judgement(
        "strictly less in any practical case",
        against(error < EXACT),
        "logistic regression with one sample per node: differences already give the inputs "
        f"with a median error of {error:.1e}, so gradients reveal nothing more about them",
        {"error": error},
    )


def contracts(graph: Graph, curvatures: Tensor, mu: float, rho: float) -> float:
    """Return how much of an error of the models remains after 2^SQUARINGS rounds of QA-PDMM.

    The losses are the scalar quadratics f_i(w) = a_i w^2 / 2, so errors follow the linear map of
    eqs. (4.9) and (4.12) with theta = 1:

        w_i     <- (mu w_i - a_i w_i - sum_j B_{i|j} z_{i|j}) / (mu + rho d_i)
        z_{j|i} <- z_{i|j} + 2 rho B_{i|j} w_i

    Its powers are computed by squaring. Errors of z in the subspace that does not converge keep
    their size; they do not reach the models.

    Args:
        curvatures: The curvatures a_i (N,).
    """
    arcs = {arc: graph.nodes + k for k, arc in enumerate(sorted(graph.arcs))}
    size = graph.nodes + len(arcs)
    models = torch.zeros(graph.nodes, size, dtype=torch.float64)
    for i, near in enumerate(graph.neighbours):
        models[i, i] = mu - curvatures[i]
        for j in near:
            models[i, arcs[i, j]] = -1.0 if i < j else 1.0
        models[i] /= mu + rho * len(near)
    step = torch.zeros(size, size, dtype=torch.float64)
    step[: graph.nodes] = models
    for (i, j), place in arcs.items():
        step[arcs[j, i]] = 2 * rho * (1.0 if i < j else -1.0) * models[i]
        step[arcs[j, i], place] += 1.0
    for _ in range(SQUARINGS):
        step = step @ step
    return float(step[: graph.nodes].abs().max())


@judges(41)
def _quadratic_condition() -> Iterator[Judgement]:
    graph = planned(nodes=8, graph="ring", rounds=1).graph
    random = fresh()
    above = {}
    below = {}
    for condition in CONDITIONS:
        limit = condition**2 / 2  # beta^2 / (2 m) at m = 1
        left = []
        early = []
        for _ in range(TRIALS):
            curvatures = 1 + (condition - 1) * torch.rand(
                graph.nodes, generator=random, dtype=torch.float64
            )
            curvatures[0] = 1.0
            curvatures[1] = condition
            left.append(contracts(graph, curvatures, 1.01 * limit, PENALTY))
            early.append(contracts(graph, curvatures, condition, PENALTY))
        above[f"{condition:g}"] = max(left)
        if condition < limit:
            below[f"{condition:g}"] = max(early)
    shown = listed("{1:.0e} at beta / m = {0}", above)
    worst = max(below, key=float)
    yield Judgement(
        "sufficient: it converges if mu is above beta^2 / (2 m) (Theorem 2)",
        against(not max(above.values()) < VANISHED),
        f"on a ring of 8 nodes, with {TRIALS} sets of quadratics for each beta / m and mu "
        f"1 % above the limit, the share of an error that remains after 2^{SQUARINGS} rounds "
        f"is at most {shown}",
        {"left": above},
    )
    yield Judgement(
        "necessary: mu must be above that limit (section 4.3)",
        against(below[worst] < VANISHED),
        f"at beta / m = {worst} the limit is {float(worst) ** 2 / 2:g} m, but mu = beta = "
        f"{worst} m converges, too: the share of an error that remains is {below[worst]:.0e}",
        {"left": below},
    )
