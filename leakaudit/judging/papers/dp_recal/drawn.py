"""DP-RECAL's items that need little or no training; their formulas are lost, and restated here."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
import torch

from leakaudit.judging.papers.drawing import draws, exact, of_seeds
from leakaudit.judging.papers.measured import MeasuredLine, MeasuredPanel
from leakaudit.judging.papers.runs import finish, fresh, planned
from leakaudit.protocols import recording, topology
from leakaudit.protocols.walk import draw
from leakaudit.theory.bounds import gaussian

BUDGETS = (0.3, 0.1, 0.5, 0.2, 0.4)  # epsilons of successive releases
OUTCOMES = 100_000  # random outcomes at which two likelihoods are compared
DELTA = 1e-3
TAUS = (0.05, 0.1, 0.2, 0.4)
RHOS = (0.001, 0.01, 0.1, 0.5, 1.0, 2.0, 5.0)
ORDERS = (1.5, 2.0, 4.0, 8.0, 16.0)


def largest_loss(epsilons: Sequence[float], moved: Sequence[bool], seed: int) -> float:
    """Return the largest privacy loss at random outcomes of Laplace releases.

    Args:
        epsilons: Of the releases; each has noise of scale 1 / epsilon.
        moved: Whether the other data set moves a release, by 1.
    """
    generator = np.random.default_rng(seed)
    scale = 1 / np.asarray(epsilons)
    outcome = generator.laplace(0, scale, (OUTCOMES, len(scale)))
    loss = (np.abs(outcome - np.asarray(moved)) - np.abs(outcome)) / scale
    return float(loss.sum(1).max())


@draws("dp-recal/proposition1")
def _sequential(scale: str, seeds: Sequence[int]) -> Sequence[MeasuredPanel]:
    counts = [*range(1, len(BUDGETS) + 1)]
    sums = [math.fsum(BUDGETS[:count]) for count in counts]
    attained = [
        [largest_loss(BUDGETS[:count], [True] * count, seed) for count in counts] for seed in seeds
    ]
    lines = [
        exact("sum of the budgets", counts, sums),
        of_seeds("largest loss of Laplace releases", counts, seeds, attained),
    ]
    return [MeasuredPanel("epsilon", "epsilon", "releases", lines)]


@draws("dp-recal/proposition2")
def _parallel(scale: str, seeds: Sequence[int]) -> Sequence[MeasuredPanel]:
    counts = [*range(1, len(BUDGETS) + 1)]
    largest = [max(BUDGETS[:count]) for count in counts]

    def worst(count: int, seed: int) -> float:
        """The record is in one of the parts, and moves only the release from that part."""
        every = [[k == part for k in range(count)] for part in range(count)]
        return max(largest_loss(BUDGETS[:count], moved, seed) for moved in every)

    lines = [
        exact("largest budget", counts, largest),
        of_seeds(
            "largest loss of Laplace releases",
            counts,
            seeds,
            [[worst(count, seed) for count in counts] for seed in seeds],
        ),
    ]
    return [MeasuredPanel("epsilon", "epsilon", "parts of the data", lines)]


@draws("dp-recal/lemma1")
def _activations(scale: str, seeds: Sequence[int]) -> Sequence[MeasuredPanel]:
    count = 200_000 if scale == "paper" else 20_000
    panels = []
    for kind, size in (("star", 5), ("ring", 8), ("rgg", 10)):
        graph = topology.make(kind, size, fresh())
        nodes = [*range(graph.nodes)]
        total = 2 * len(graph.edges)
        shares = []
        for seed in seeds:
            walk = draw(graph, count, fresh(seed), "walk")
            shares.append((torch.bincount(walk, minlength=graph.nodes) / count).tolist())
        lines = [
            exact(f"degree / 2 E, {kind}", nodes, [graph.degree(i) / total for i in nodes]),
            of_seeds(f"share of activations, {kind}", nodes, seeds, shares),
        ]
        panels.append(MeasuredPanel("share", "share of activations", "agent", lines, at=kind))
    return panels


@draws("dp-recal/lemma5")
def _sensitivity(scale: str, seeds: Sequence[int]) -> Sequence[MeasuredPanel]:
    moved, allowed = [], []
    for seed in seeds:
        changes = [_change(tau, seed) for tau in TAUS]
        moved.append([change for change, _ in changes])
        allowed.append([most for _, most in changes])
    lines = [
        of_seeds("change of the state", TAUS, seeds, moved),
        of_seeds("tau_i times the change of the gradient", TAUS, seeds, allowed),
    ]
    title = "change by one replaced record"
    return [MeasuredPanel("moved", title, "tau_i", lines)]


def _change(tau: float, seed: int) -> tuple[float, float]:
    """Replace a record of the first active agent; return what it moves, and Lemma 5's bound."""
    plan = planned(
        victim="recal",
        nodes=8,
        graph="ring",
        rounds=1,
        samples=10,
        seed=seed,
        states=True,
        set={"tau": str(tau), "s": "0.5"},
    )
    rows = plan.rows.clone()
    unused = torch.ones(len(plan.source.x), dtype=torch.bool)
    unused[rows.flatten()] = False
    here = finish(plan)
    active = int(here.trace.public["active"][0])
    rows[active, 0] = unused.nonzero()[0, 0]
    # A run uses up its generators, so the other one needs a plan of its own.
    there = finish(replace(recording.plan(plan.scenario), rows=rows))
    start = here.truth.states["w"][0]
    slopes = [
        done.plan.task.gradients(start, done.problem.x, done.problem.y)[active]
        for done in (here, there)
    ]
    states = [done.truth.states["w"][1, active] for done in (here, there)]
    return float((states[0] - states[1]).norm()), tau * float((slopes[0] - slopes[1]).norm())


@draws("dp-recal/lemma6")
def _divergence(scale: str, seeds: Sequence[int]) -> Sequence[MeasuredPanel]:
    panels = []
    for noise in (0.5, 1.0, 3.0):
        rho = 1 / (2 * noise**2)
        lines = [
            exact(f"rho alpha, sigma = {noise:g}", ORDERS, [rho * a for a in ORDERS]),
            exact(f"integral, sigma = {noise:g}", ORDERS, [renyi(noise, a) for a in ORDERS]),
        ]
        title = "Rényi divergence, Delta = 1"
        at = f"sigma = {noise:g}"
        panels.append(MeasuredPanel("divergence", title, "order alpha", lines, at=at))
    return panels


def renyi(noise: float, order: float) -> float:
    """Return the Rényi divergence of N(0, noise^2) from N(1, noise^2), by the trapezoidal rule."""
    center = 1 - order  # where the integrand p^alpha q^(1 - alpha) is largest
    z = np.linspace(center - 12 * noise, center + 12 * noise, 20_001)
    log_p = -((z) ** 2) / (2 * noise**2)
    log_q = -((z - 1) ** 2) / (2 * noise**2)
    exponent = order * log_p + (1 - order) * log_q
    top = float(exponent.max())
    density = np.exp(exponent - top) / (noise * math.sqrt(2 * math.pi))
    return (math.log(float(np.trapezoid(density, z))) + top) / (order - 1)


@draws("dp-recal/proposition3")
def _conversion(scale: str, seeds: Sequence[int]) -> Sequence[MeasuredPanel]:
    said = [rho + 2 * math.sqrt(rho * math.log(1 / DELTA)) for rho in RHOS]
    true = [gaussian.epsilon(DELTA, math.sqrt(2 * rho)) for rho in RHOS]
    lines = [
        exact("rho + 2 sqrt(rho log(1 / delta))", RHOS, said),
        exact("exact epsilon of Gaussian noise with this rho", RHOS, true),
    ]
    title = f"epsilon at delta = {DELTA:g}"
    return [MeasuredPanel("epsilon", title, "rho", lines, logarithmic=True)]


# --- Tables I to III: what a fixed accuracy takes -------------------------------------------------

PRECISION = 1e-6  # relative error that counts as converged
MOST = 300  # rounds, or activations per agent, until which it is looked for
FEATURES = 8
RECORDS = 20  # of an agent
RIDGE = 0.1
CURVATURE = 2.6  # the largest of an agent's loss, about: 20 records of N(0, 1), 8 features
PENALTIES = (0.1, 0.3, 1.0)  # in units of the largest curvature, like the step sizes below
BATON = 2  # vectors that are passed at once, which Table IV counts as one communication


def _choices(method: str) -> tuple[str, list[Mapping[str, Any]]]:
    """Return the victim of a method, and the step sizes of which it has the best."""
    big = CURVATURE
    if method == "NIDS":
        return "nids", [{"alpha": scale / big} for scale in (0.7, 1.0, 1.4)]
    if method == "EXTRA":
        return "extra", [{"alpha": scale / big} for scale in (0.3, 0.45, 0.6)]
    if method == "ADMM":
        return "pvpadmm", [{"eta": scale * big} for scale in PENALTIES]
    if method == "RW-ADMM":
        return "rwadmm", [{"rho": scale * big} for scale in PENALTIES]
    steps: list[Mapping[str, Any]] = []
    for scale in PENALTIES:  # tau_i (L_i / 2 + 2 s_i) = 0.8
        steps.append({"s": str(scale * big), "tau": str(0.8 / (big * (0.5 + 2 * scale)))})
    return "recal", steps


METHODS = ("RECAL", "RW-ADMM", "ADMM", "EXTRA", "NIDS")


# What it took a method to reach `PRECISION`: `plf` and `messages`, None if it did not.
Needed: TypeAlias = Mapping[str, float | None]


def needed(method: str, graph: str, nodes: int, seed: int) -> Needed:
    """Return what a method takes with the best of its step sizes."""
    victim, choices = _choices(method)
    tried = [_tried(victim, constants, graph, nodes, seed) for constants in choices]
    return min(tried, key=lambda one: math.inf if one["plf"] is None else one["plf"])


def _tried(victim: str, constants: Mapping[str, Any], graph: str, nodes: int, seed: int) -> Needed:
    walks = victim in ("recal", "rwadmm")
    plan = planned(
        victim=victim,
        nodes=nodes,
        graph=graph,
        rounds=MOST * nodes if walks else MOST,
        data=f"regression:{nodes * RECORDS},{FEATURES},0.5",
        samples=RECORDS,
        model="linear",
        seed=seed,
        curves=True,
        wires="none",
        set={**constants, "l2": RIDGE, "bias": False},
    )
    done = finish(plan)
    reached = (done.truth.states["relative_error"] <= PRECISION).nonzero()
    if not len(reached):
        return {"plf": None, "messages": None}
    until = int(reached[0, 0])
    plf = until
    if walks:
        plf = int(torch.bincount(done.trace.public["active"][:until]).max())
    sent = plan.victim.messages(plan.graph, until, plan.graph.edges)
    return {"plf": float(plf), "messages": sent / BATON if victim == "recal" else float(sent)}


def _complexity(graph: str, scale: str, seeds: Sequence[int]) -> Sequence[MeasuredPanel]:
    sizes = (4, 8, 16) if scale == "paper" else (4, 8)
    lines: dict[str, list[MeasuredLine]] = {"plf": [], "messages": []}
    for method in METHODS:
        found = [[needed(method, graph, size, seed) for size in sizes] for seed in seeds]
        for y, made in lines.items():
            runs = [[one[y] for one in row] for row in found]
            made.append(of_seeds(method, sizes, seeds, runs))
    titles = {"plf": "privacy leakage frequency", "messages": "communications"}
    panels = []
    for y, made in lines.items():
        title = f"{titles[y]} until a relative error of {PRECISION:g}"
        panels.append(MeasuredPanel(y, title, "agents", made, logarithmic=True))
    return panels


@draws("dp-recal/table1")
def _complete(scale: str, seeds: Sequence[int]) -> Sequence[MeasuredPanel]:
    return _complexity("complete", scale, seeds)


@draws("dp-recal/table2")
def _circular(scale: str, seeds: Sequence[int]) -> Sequence[MeasuredPanel]:
    return _complexity("ring", scale, seeds)


@draws("dp-recal/table3")
def _general(scale: str, seeds: Sequence[int]) -> Sequence[MeasuredPanel]:
    return _complexity("rgg", scale, seeds)
