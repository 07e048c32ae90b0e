"""The points of the epsilon grid.

For each epsilon, the victim's constants that give it, by the exact view or by the paper's formula.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from leakaudit import registry
from leakaudit._util.bisection import crossing, geometric
from leakaudit.accounting.adversaries import named
from leakaudit.accounting.compare import (
    DELTA,
    AssumedSensitivity,
    Comparison,
    assumed_sensitivity,
    compare,
)
from leakaudit.accounting.view_bound import ViewBound, view_bounds
from leakaudit.adversary import Adversary
from leakaudit.auditing.plan import AuditPlan
from leakaudit.bounds import gaussian
from leakaudit.errors import LeakauditError
from leakaudit.protocols import recording
from leakaudit.protocols.declared import Protocol
from leakaudit.protocols.scenario import Scenario
from leakaudit.victim import Claim

# Range of the noise constant that is searched, a choice: beyond it, gradients of a norm near 1 are
# as good as without noise, or drowned in it.
LOW = 1e-9
HIGH = 1e9
# Relative error up to which the mu that was asked for counts as reached: far above the rounding of
# an exact view, far below the effect of a second noise that the constant does not scale. A choice.
REACHED = 1e-6


@dataclass(frozen=True)
class Level:
    """One point of the grid.

    Attributes:
        epsilon: As asked for; None if the scenario's constants were kept.
        constants: Of the victim, that were set for it.
        ready: The plan of its run.
        delta: Of every figure here.
        sensitivity: Of every figure here.
        views: The exact view of each adversary and attacked node, beside the claim.
    """

    epsilon: float | None
    constants: Mapping[str, Any]
    ready: recording.Plan
    delta: float
    sensitivity: float
    views: tuple[Comparison, ...] = field(repr=False)

    @property
    def words(self) -> str:
        """For tables and figures."""
        if self.epsilon is None:
            return "as configured"
        return "no noise" if self.epsilon == math.inf else short(self.epsilon)

    def seen_by(self, adversary: Adversary) -> list[Comparison]:
        """Return the exact views of one adversary.

        Args:
            adversary: One of the plan's.
        """
        return [view for view in self.views if view.threat.adversary == adversary]

    def view(self, adversary: Adversary, node: int) -> Comparison:
        """Return the exact view of one adversary and node.

        Args:
            adversary: One of the plan's.
            node: One of the nodes that are attacked.
        """
        return next(view for view in self.seen_by(adversary) if view.bound.node == node)


def short(epsilon: float) -> str:
    """Write an epsilon in few letters: 8, 0.5, 1e5.

    Args:
        epsilon: Finite.
    """
    return f"{epsilon:.4g}".replace("e+0", "e").replace("e+", "e")


def levels(
    plan: AuditPlan, data_root: Path | None = None, download: bool = False, device: str = "cpu"
) -> list[Level]:
    """Return all points, with their exact views.

    Args:
        plan: Of the audit.
        data_root: Folder of data sets; None for the default one.
        download: Whether missing data may be downloaded.
        device: Where runs compute.

    Raises:
        LeakauditError: An epsilon cannot be reached.
    """

    def ready(scenario: Scenario) -> recording.Plan:
        return recording.plan(scenario, data_root=data_root, download=download, device=device)

    base = ready(plan.scenario)
    nodes = attacked(plan, base)
    points: list[tuple[float | None, Mapping[str, Any], recording.Plan]] = []
    if not plan.epsilon:
        points.append((None, {}, base))
    for epsilon in plan.epsilon:
        constants = _constants(plan, epsilon, base, nodes)
        replaced = ("epsilon", plan.constant)
        kept = {k: v for k, v in plan.scenario.set.items() if k not in replaced}
        scenario = replace(plan.scenario, set={**kept, **constants})
        points.append((epsilon, constants, ready(scenario)))
    protocols = [declared(point) for _, _, point in points]
    # One delta and one sensitivity for the whole grid, of the first point that has a claim.
    claiming = next((protocol for protocol in protocols if _claims(protocol)), protocols[0])
    delta, moved = _assumed(plan, claiming)
    threats = []
    for one in named(plan.parsed, list(nodes), 0):
        if one.node not in one.adversary.corrupt:
            threats.append(one)
    found = []
    for (asked, chosen, point), protocol in zip(points, protocols, strict=True):
        views = tuple(
            compare(
                protocol,
                threats,
                sensitivity=moved,
                delta=delta,
                smoothness=plan.smoothness,
            )
        )
        found.append(Level(asked, chosen, point, delta, moved.value, views))
    return found


def attacked(plan: AuditPlan, ready: recording.Plan) -> Sequence[int]:
    """Return the nodes that are attacked.

    Args:
        plan: Of the audit.
        ready: Of any of its runs.

    Raises:
        LeakauditError: A node holds no data or is an adversary's own.
    """
    total = ready.scenario.nodes
    for node in plan.nodes:
        if not (isinstance(node, int) and 0 <= node < total):
            raise LeakauditError(
                f"audit: nodes: there is no node {node} with data; it has 0 to {total - 1}"
            )
    nodes = plan.nodes or tuple(range(total))
    for adversary in plan.parsed:
        adversary.check(ready.graph)
        if own := [n for n in plan.nodes if n in adversary.corrupt]:
            raise LeakauditError(f"audit: nodes: node {own[0]} belongs to adversary {adversary}")
        if all(n in adversary.corrupt for n in nodes):
            raise LeakauditError(f"audit: adversaries: {adversary} leaves no node to attack")
    return nodes


def declared(ready: recording.Plan) -> Protocol:
    """Return the protocol of a run, with its schedule.

    Args:
        ready: The plan of the run.
    """
    random = recording.generators(
        ready.scenario.seed, "data", "split", "graph", "model", "run", "schedule"
    )
    public = ready.victim.schedule(ready.graph, ready.scenario.rounds, random["schedule"])
    return Protocol(ready.victim, ready.graph, ready.scenario.rounds, public)


def _assumed(plan: AuditPlan, made: Protocol) -> tuple[float, AssumedSensitivity]:
    """Return delta and sensitivity.

    The plan's, else the first claim's, else 1e-5 and that of the declared clip, or 1.
    """
    claims = _claims(made)
    delta = plan.delta or next((c.delta for c in claims if c.delta), DELTA)
    return delta, replace(assumed_sensitivity(made, claims, plan.sensitivity), comparable=True)


def _claims(made: Protocol) -> list[Claim]:
    """Return the claims of an epsilon."""
    claims = made.victim.claims(made.graph, made.rounds, made.public)
    return [c for c in claims if c.epsilon is not None]


def _constants(
    plan: AuditPlan, epsilon: float, base: recording.Plan, nodes: Sequence[int]
) -> dict[str, Any]:
    """Return the victim's constants for one epsilon."""
    known = registry.parameters(type(base.victim))
    if plan.constant not in known:
        raise LeakauditError(
            f"audit: constant: {plan.scenario.victim} has no parameter {plan.constant!r}; "
            f"it has {', '.join(known)}"
        )
    if epsilon == math.inf:
        return {plan.constant: 0.0}
    if plan.noise != "claim":
        return {plan.constant: _exact(plan, epsilon, base, nodes)}
    if "epsilon" not in known:
        return {plan.constant: _claimed(plan, epsilon, base)}
    # The victim computes its noise from an epsilon itself, over the rounds that it is told.
    constants: dict[str, Any] = {"epsilon": epsilon}
    if "horizon" in known:
        constants["horizon"] = plan.scenario.rounds
    return constants


def _with(plan: AuditPlan, base: recording.Plan, noise: float) -> Protocol:
    """Return the protocol with another value of the noise constant."""
    rest = {k: v for k, v in plan.scenario.set.items() if k != "epsilon"}
    scenario = replace(plan.scenario, set={**rest, plan.constant: noise})
    return declared(replace(base, scenario=scenario, victim=scenario.parts()[0]))


def _exact(plan: AuditPlan, epsilon: float, base: recording.Plan, nodes: Sequence[int]) -> float:
    """Return the noise at which the worst view has this epsilon.

    The mu of a view falls as one over the noise, if the constant scales all of it. So one view at
    any noise gives the noise that is needed; the view at that noise is computed again, which shows
    whether the constant does scale all noise.

    The epsilon is that of a record; if a view has none, that of the node, which sets a level and
    promises nothing about records.
    """
    first = float(plan.scenario.set.get(plan.constant, 0)) or 1.0
    delta, moved = _assumed(plan, _with(plan, base, first))
    wanted = gaussian.least_mu(epsilon, delta)

    def worst(noise: float) -> float:
        made = _with(plan, base, noise)
        mus = []
        for adversary in plan.parsed:
            mine = [n for n in nodes if n not in adversary.corrupt]
            for one in view_bounds(made, adversary, mine, moved.value, delta, plan.smoothness):
                mu = one.mu if one.mu is not None else one.node_mu
                if mu is None or mu == math.inf:
                    why = _unset(one, plan.constant)
                    raise LeakauditError(
                        f"audit: {adversary} and node {one.node}: {why}; "
                        'leave that adversary out, or use noise = "claim"'
                    )
                mus.append(mu)
        return max(mus)

    noise = first * worst(first) / wanted
    if noise and abs(worst(noise) / wanted - 1) > REACHED:
        raise LeakauditError(
            f"audit: constant: {plan.constant} does not scale all noise, "
            "so the exact view cannot be set by it"
        )
    return noise


def _unset(one: ViewBound, constant: str) -> str:
    """Say why no noise gives a view an epsilon."""
    if one.refused:
        return one.refused
    if one.leaking:
        return f"{one.leaking[0]} is on the wire without noise, so no {constant} gives an epsilon"
    return (
        "hidden noise steers the models, "
        "so there is no epsilon for records or for the node without a smoothness"
    )


def _claimed(plan: AuditPlan, epsilon: float, base: recording.Plan) -> float:
    """Return the least noise for which the paper's strongest claim of the run is this epsilon.

    By bisection of the logarithm of the noise.
    """

    def claim(noise: float) -> float:
        made = _with(plan, base, noise)
        said = [c.epsilon for c in _claims(made) if c.epsilon is not None and c.delta]
        if not said:
            raise LeakauditError(
                f"audit: {plan.scenario.victim} claims no epsilon at these constants; "
                'use noise = "exact"'
            )
        return min(said)

    if not claim(HIGH) <= epsilon <= claim(LOW):
        raise LeakauditError(
            f"audit: no {plan.constant} between {LOW:g} and {HIGH:g} "
            f"has the claimed epsilon {epsilon:g}"
        )
    return crossing(
        lambda level: claim(level) <= epsilon, LOW, HIGH, side="above", middle=geometric
    )
