"""The points of the epsilon grid, with the victim's constants by view bound or paper's formula."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from leakaudit._util.bisection import crossing, geometric
from leakaudit._util.jobs import IN_PROCESS, Pool
from leakaudit.core import registry
from leakaudit.core.adversary import Adversary
from leakaudit.core.errors import LeakauditError
from leakaudit.core.trace import Setting
from leakaudit.judging.auditing.plan import AuditPlan
from leakaudit.protocols import recording
from leakaudit.protocols.declared import Protocol
from leakaudit.protocols.scenario import Scenario
from leakaudit.protocols.victim import Claim
from leakaudit.reporting.findings.wording import short
from leakaudit.tasks.shared import SharedData
from leakaudit.views.accounting.adversaries import named
from leakaudit.views.accounting.calibration import required_factor
from leakaudit.views.accounting.compare import (
    DELTA,
    AssumedSensitivity,
    Comparison,
    assumed_sensitivity,
    compare,
)
from leakaudit.views.accounting.view_bound import ViewBound, view_bounds

# Range in which the noise constant is searched, a choice: outside it, the noise of gradients with a
# norm near 1 is negligible, or hides them completely.
LOW = 1e-9
HIGH = 1e9
# Relative error up to which the required noise counts as reached: far above the rounding error of a
# view bound, far below the effect of another noise that the constant does not scale. A choice.
REACHED = 1e-6


@dataclass(frozen=True)
class RunEnvironment:
    """Where an audit finds its data, and where it computes."""

    data_root: Path | None = None  # folder of data sets; None for the default one
    download: bool = False  # whether missing data may be downloaded
    device: str = "cpu"  # device on which runs and attacks compute
    max_seconds: float = 0.0  # time limit for attacks and replays together, 0 for no limit

    def plan(self, scenario: Scenario, shared: SharedData) -> recording.Plan:
        """Prepare the recording of a scenario."""
        return recording.plan(
            scenario,
            data_root=self.data_root,
            download=self.download,
            device=self.device,
            shared=shared,
        )


HERE = RunEnvironment()


@dataclass(frozen=True)
class Level:
    """One point of the grid."""

    epsilon: float | None  # the requested epsilon; None if the scenario's constants were kept
    constants: Mapping[str, Setting]  # constants of the victim that were set for it
    ready: recording.Plan  # the plan of its run
    delta: float  # delta of all values of this point
    sensitivity: float  # sensitivity that all values of this point assume
    # the view bound of each adversary and attacked node, with the claim
    views: tuple[Comparison, ...] = field(repr=False)

    @property
    def words(self) -> str:
        """Its name in tables and figures."""
        return in_words(self.epsilon)

    def seen_by(self, adversary: Adversary) -> list[Comparison]:
        """Return the view bounds of one adversary."""
        return [view for view in self.views if view.threat.adversary == adversary]

    def view(self, adversary: Adversary, node: int) -> Comparison:
        """Return the view bound of one adversary and node."""
        return next(view for view in self.seen_by(adversary) if view.bound.node == node)


def in_words(epsilon: float | None) -> str:
    """Return the name of a point; None keeps the scenario's constants."""
    if epsilon is None:
        return "as configured"
    return "no noise" if epsilon == math.inf else short(epsilon)


def levels(
    plan: AuditPlan,
    where: RunEnvironment = HERE,
    executor: Pool = IN_PROCESS,
    shared: SharedData | None = None,
) -> list[Level]:
    """Return all points, with their view bounds; `shared` has what was loaded before."""
    shared = shared or SharedData()
    base = where.plan(plan.scenario, shared)
    nodes = attacked(plan, base)
    points: list[tuple[float | None, Mapping[str, Setting], recording.Plan]] = []
    if not plan.epsilon:
        points.append((None, {}, base))
    for epsilon in plan.epsilon:
        constants = _constants(plan, epsilon, base, nodes)
        replaced = ("epsilon", plan.constant)
        kept = {k: v for k, v in plan.scenario.set.items() if k not in replaced}
        scenario = replace(plan.scenario, set={**kept, **constants})
        points.append((epsilon, constants, where.plan(scenario, shared)))
    protocols = [point.declared for _, _, point in points]
    # The whole grid uses the delta and the sensitivity of the first point that has a claim.
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
                executor=executor,
            )
        )
        found.append(Level(asked, chosen, point, delta, moved.value, views))
    return found


def attacked(plan: AuditPlan, ready: recording.Plan) -> Sequence[int]:
    """Return the nodes that are attacked."""
    total = ready.scenario.nodes
    for node in plan.nodes:
        if not (isinstance(node, int) and 0 <= node < total):
            raise LeakauditError(
                f"audit: nodes: node {node} does not exist (nodes with data: 0 to {total - 1})"
            )
    nodes = plan.nodes or tuple(range(total))
    for adversary in plan.parsed:
        adversary.check(ready.graph)
        if own := [n for n in plan.nodes if n in adversary.corrupt]:
            raise LeakauditError(
                f"audit: nodes: expected nodes that no adversary controls, but {adversary} "
                f"controls node {own[0]}"
            )
        if all(n in adversary.corrupt for n in nodes):
            raise LeakauditError(f"audit: adversaries: {adversary} leaves no node to attack")
    return nodes


def _assumed(plan: AuditPlan, made: Protocol) -> tuple[float, AssumedSensitivity]:
    """Return delta and sensitivity: of the plan, else of the first claim.

    Otherwise delta is 1e-5, and the sensitivity that of the declared clip, without which every mu
    is a multiple of it.
    """
    claims = _claims(made)
    delta = plan.delta or next((c.delta for c in claims if c.delta), DELTA)
    return delta, replace(assumed_sensitivity(made, claims, plan.sensitivity), comparable=True)


def _claims(made: Protocol) -> list[Claim]:
    """Return the claims that state an epsilon."""
    claims = made.victim.claims(made.graph, made.rounds, made.public)
    return [c for c in claims if c.epsilon is not None]


def _constants(
    plan: AuditPlan, epsilon: float, base: recording.Plan, nodes: Sequence[int]
) -> dict[str, Setting]:
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
    # The victim itself computes its noise from an epsilon and a number of rounds.
    constants: dict[str, Setting] = {"epsilon": epsilon}
    if "horizon" in known:
        constants["horizon"] = plan.scenario.rounds
    return constants


def _with(plan: AuditPlan, base: recording.Plan, noise: float) -> Protocol:
    rest = {k: v for k, v in plan.scenario.set.items() if k != "epsilon"}
    scenario = replace(plan.scenario, set={**rest, plan.constant: noise})
    return replace(base, scenario=scenario, victim=scenario.parts()[0]).declared


def _exact(plan: AuditPlan, epsilon: float, base: recording.Plan, nodes: Sequence[int]) -> float:
    """Return the noise at which the worst view has this epsilon, of a record or else of the node.

    If the constant scales all noise, the factor that one view requires yields it; another one at
    that noise checks that it does.
    """
    first = float(plan.scenario.set.get(plan.constant, 0)) or 1.0
    delta, moved = _assumed(plan, _with(plan, base, first))

    def required(noise: float) -> float:
        """Return the largest factor on the noise that a view requires."""
        made = _with(plan, base, noise)
        factors = []
        for adversary in plan.parsed:
            mine = [n for n in nodes if n not in adversary.corrupt]
            for one in view_bounds(made, adversary, mine, moved.value, delta, plan.smoothness):
                factor = required_factor(one, epsilon, delta)
                if factor is None or factor == math.inf:
                    why = _unset(one, plan.constant)
                    raise LeakauditError(
                        f"audit: {adversary} and node {one.node}: {why}; "
                        'omit that adversary, or use noise = "claim"'
                    )
                factors.append(factor)
        return max(factors)

    noise = first * required(first)
    if noise and abs(required(noise) - 1) > REACHED:
        raise LeakauditError(
            f"audit: constant: {plan.constant} does not scale all noise, "
            "so it cannot be used to set the view bound"
        )
    return noise


def _unset(one: ViewBound, constant: str) -> str:
    if one.refused:
        return one.refused
    if one.leaking:
        return f"{one.leaking[0]} is sent without noise, so no {constant} gives an epsilon"
    if one.releases or one.node_releases:
        return f"no {constant} gives this epsilon"
    return (
        "hidden noise influences the models, "
        "so there is no epsilon per record or per node without a smoothness"
    )


def _claimed(plan: AuditPlan, epsilon: float, base: recording.Plan) -> float:
    """Return the smallest noise for which the paper's strongest claim is this epsilon."""

    def claim(noise: float) -> float:
        made = _with(plan, base, noise)
        said = [c.epsilon for c in _claims(made) if c.epsilon is not None and c.delta]
        if not said:
            raise LeakauditError(
                f"audit: {plan.scenario.victim} claims no epsilon for these constants; "
                'use noise = "exact"'
            )
        return min(said)

    if not claim(HIGH) <= epsilon <= claim(LOW):
        raise LeakauditError(
            f"audit: epsilon: expected an epsilon that the paper claims for some {plan.constant} "
            f"between {LOW:g} and {HIGH:g}, got {epsilon:g}"
        )
    return crossing(
        lambda level: claim(level) <= epsilon, LOW, HIGH, side="above", middle=geometric
    )
