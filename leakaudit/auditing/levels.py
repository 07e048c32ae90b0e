"""The points of the epsilon grid: the victim's constants that give each epsilon, by the exact view or by the paper's formula."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from leakaudit import registry
from leakaudit._util.bisection import crossing, geometric
from leakaudit.accounting.ledger import DELTA, Entry, Moved, assumed, entries
from leakaudit.accounting.listeners import Listener, named
from leakaudit.accounting.pricing import Price, price
from leakaudit.adversary import Adversary
from leakaudit.auditing.plan import AuditPlan
from leakaudit.bounds import gaussian
from leakaudit.errors import LeakauditError
from leakaudit.protocols import recording
from leakaudit.protocols.declared import Protocol
from leakaudit.protocols.scenario import Scenario
from leakaudit.victim import Claim

LOW, HIGH = 1e-9, 1e9  # of the noise constant that is searched


@dataclass(frozen=True)
class Level:
    """One point of the grid.

    epsilon: asked for, None where the scenario's constants were kept. constants: of the victim, that were set for it. ready: the run.
    delta, sensitivity: of every figure here. views: the exact view of each adversary and attacked node, beside the claim.
    """

    epsilon: float | None
    constants: Mapping[str, Any]
    ready: recording.Plan
    delta: float
    sensitivity: float
    views: tuple[Entry, ...] = field(repr=False)

    @property
    def words(self) -> str:
        """For tables and figures."""
        return (
            "as configured"
            if self.epsilon is None
            else "no noise"
            if self.epsilon == math.inf
            else short(self.epsilon)
        )

    def seen_by(self, adversary: str) -> list[Entry]:
        """Return the priced views of one adversary."""
        return [v for v in self.views if str(v.listener.adversary) == adversary]

    def view(self, adversary: str, node: int) -> Entry:
        """Return the exact view of one adversary and node."""
        return next(
            v for v in self.views if str(v.listener.adversary) == adversary and v.price.node == node
        )


def short(epsilon: float) -> str:
    """Write an epsilon in few letters: 8, 0.5, 1e5."""
    return f"{epsilon:.4g}".replace("e+0", "e").replace("e+", "e")


def levels(
    plan: AuditPlan, data_root: Path | None = None, download: bool = False, device: str = "cpu"
) -> list[Level]:
    """Return all points, with their exact views; raises LeakauditError where an epsilon cannot be reached."""

    def ready(scenario: Scenario) -> recording.Plan:
        return recording.plan(scenario, data_root=data_root, download=download, device=device)

    base = ready(plan.scenario)
    nodes = attacked(plan, base)
    points: list[tuple[float | None, Mapping[str, Any], recording.Plan]] = (
        [] if plan.epsilon else [(None, {}, base)]
    )
    for epsilon in plan.epsilon:
        changes = _constants(plan, epsilon, base, nodes)
        rest = {k: v for k, v in plan.scenario.set.items() if k not in ("epsilon", plan.constant)}
        points.append((epsilon, changes, ready(replace(plan.scenario, set={**rest, **changes}))))
    made = [declared(point) for _, _, point in points]
    delta, moved = _assumed(plan, next((m for m in made if _claims(m)), made[0]))
    listeners = [
        one
        for one in named([Adversary.parse(who) for who in plan.adversaries], list(nodes), 0)
        if _apart(one)
    ]
    asked: dict[str, Any] = {"sensitivity": moved, "delta": delta, "smoothness": plan.smoothness}
    return [
        Level(
            epsilon, changes, point, delta, moved.sensitivity, tuple(entries(m, listeners, **asked))
        )
        for (epsilon, changes, point), m in zip(points, made, strict=True)
    ]


def attacked(plan: AuditPlan, ready: recording.Plan) -> Sequence[int]:
    """Return the nodes that are attacked; raises LeakauditError for one that holds no data or is an adversary's own."""
    if missing := [
        n for n in plan.nodes if not (isinstance(n, int) and 0 <= n < ready.scenario.nodes)
    ]:
        raise LeakauditError(
            f"audit: nodes: there is no node {missing[0]} with data; it has 0 to {ready.scenario.nodes - 1}"
        )
    nodes = plan.nodes or tuple(range(ready.scenario.nodes))
    for who in plan.adversaries:
        adversary = Adversary.parse(who)
        adversary.check(ready.graph)
        if own := [n for n in plan.nodes if n in adversary.corrupt]:
            raise LeakauditError(f"audit: nodes: node {own[0]} belongs to adversary {who}")
        if all(n in adversary.corrupt for n in nodes):
            raise LeakauditError(f"audit: adversaries: {who} leaves no node to attack")
    return nodes


def declared(ready: recording.Plan) -> Protocol:
    """Return the protocol of a run, with its schedule."""
    random = recording.generators(
        ready.scenario.seed, "data", "split", "graph", "model", "run", "schedule"
    )
    public = ready.victim.schedule(ready.graph, ready.scenario.rounds, random["schedule"])
    return Protocol(ready.victim, ready.graph, ready.scenario.rounds, public)


def _apart(one: Listener) -> bool:
    return one.node not in one.adversary.corrupt


def _assumed(plan: AuditPlan, made: Protocol) -> tuple[float, Moved]:
    """Return delta and sensitivity: the plan's, else the first claim's, else 1e-5 and that of the declared clip, or 1."""
    claims = _claims(made)
    delta = plan.delta or next((c.delta for c in claims if c.delta), DELTA)
    return delta, replace(assumed(made, claims, plan.sensitivity), comparable=True)


def _claims(made: Protocol) -> list[Claim]:
    """Return the claims of an epsilon."""
    return [
        c for c in made.victim.claims(made.graph, made.rounds, made.public) if c.epsilon is not None
    ]


def _constants(
    plan: AuditPlan, epsilon: float, base: recording.Plan, nodes: Sequence[int]
) -> dict[str, Any]:
    """Return the victim's constants for one epsilon."""
    known = registry.parameters(type(base.victim))
    if plan.constant not in known:
        raise LeakauditError(
            f"audit: constant: {plan.scenario.victim} has no parameter {plan.constant!r}; it has {', '.join(known)}"
        )
    if epsilon == math.inf:
        return {plan.constant: 0.0}
    if plan.noise == "claim" and "epsilon" in known:
        return {
            "epsilon": epsilon,
            **({"horizon": plan.scenario.rounds} if "horizon" in known else {}),
        }
    return {
        plan.constant: _claimed(plan, epsilon, base)
        if plan.noise == "claim"
        else _exact(plan, epsilon, base, nodes)
    }


def _with(plan: AuditPlan, base: recording.Plan, level: float) -> Protocol:
    rest = {k: v for k, v in plan.scenario.set.items() if k != "epsilon"}
    scenario = replace(plan.scenario, set={**rest, plan.constant: level})
    return declared(replace(base, scenario=scenario, victim=scenario.parts()[0]))


def _exact(plan: AuditPlan, epsilon: float, base: recording.Plan, nodes: Sequence[int]) -> float:
    """Return the noise at which the worst view has this epsilon; mu falls as one over it, and the noise found is priced again.

    The epsilon is that of a record; if a view has none, that of the node, which sets a level and promises nothing of records.
    """
    first = float(plan.scenario.set.get(plan.constant, 0)) or 1.0
    delta, moved = _assumed(plan, _with(plan, base, first))
    wanted = gaussian.least_mu(epsilon, delta)

    def worst(level: float) -> float:
        made, mus = _with(plan, base, level), []
        for who in plan.adversaries:
            adversary = Adversary.parse(who)
            mine = [n for n in nodes if n not in adversary.corrupt]
            for one in price(made, adversary, mine, moved.sensitivity, delta, plan.smoothness):
                mu = one.mu if one.mu is not None else one.node_mu
                if mu is None or mu == math.inf:
                    why = _unset(one, plan.constant)
                    raise LeakauditError(
                        f'audit: {who} and node {one.node}: {why}; leave that adversary out, or use noise = "claim"'
                    )
                mus.append(mu)
        return max(mus)

    level = first * worst(first) / wanted
    if level and abs(worst(level) / wanted - 1) > 1e-6:
        raise LeakauditError(
            f"audit: constant: {plan.constant} does not scale all noise, so the exact view cannot be set by it"
        )
    return level


def _unset(one: Price, constant: str) -> str:
    """Say why no noise gives a view an epsilon."""
    if one.refused:
        return one.refused
    if one.leaking:
        return f"{one.leaking[0]} is on the wire without noise, so no {constant} gives an epsilon"
    return "hidden noise steers the models, so there is no epsilon for records or for the node without a smoothness"


def _claimed(plan: AuditPlan, epsilon: float, base: recording.Plan) -> float:
    """Return the least noise for which the paper's strongest claim of the run is this epsilon, by bisection."""

    def claim(level: float) -> float:
        made = _with(plan, base, level)
        said = [c.epsilon for c in _claims(made) if c.epsilon is not None and c.delta]
        if not said:
            raise LeakauditError(
                f'audit: {plan.scenario.victim} claims no epsilon at these constants; use noise = "exact"'
            )
        return min(said)

    if not claim(HIGH) <= epsilon <= claim(LOW):
        raise LeakauditError(
            f"audit: no {plan.constant} between {LOW:g} and {HIGH:g} has the claimed epsilon {epsilon:g}"
        )
    return crossing(
        lambda level: claim(level) <= epsilon, LOW, HIGH, side="above", middle=geometric
    )
