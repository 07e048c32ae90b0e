"""The points of the epsilon grid, with the victim's constants by view bound or paper's formula."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from leakaudit._util.jobs import IN_PROCESS, Pool
from leakaudit.core import registry
from leakaudit.core.adversary import Adversary
from leakaudit.core.errors import LeakauditError
from leakaudit.core.trace import Setting
from leakaudit.judging.auditing.environment import HERE, RunEnvironment
from leakaudit.judging.auditing.plan import AuditPlan
from leakaudit.protocols import calibration, recording
from leakaudit.protocols.calibration import Calibrated, Target
from leakaudit.protocols.declared import Protocol
from leakaudit.protocols.scenario import Scenario
from leakaudit.protocols.victim import Claim
from leakaudit.reporting.findings.wording import short
from leakaudit.tasks.shared import SharedData
from leakaudit.views.accounting import basis as grounds
from leakaudit.views.accounting.adversaries import named
from leakaudit.views.accounting.basis import Basis
from leakaudit.views.accounting.calibration import required_factor
from leakaudit.views.accounting.compare import (
    DELTA,
    AssumedSensitivity,
    Comparison,
    assumed_sensitivity,
    compare,
)
from leakaudit.views.accounting.view_bound import ViewBound, view_bounds

# Relative error up to which the required noise counts as reached: far above the rounding error of a
# view bound, far below the effect of another noise that the constant does not scale. A choice.
REACHED = 1e-6
# Most corrections of a noise: each brings it closer by the share of the noise that the constant
# does not scale (the masks of secure aggregation, for example). A choice.
CORRECTIONS = 30


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
    bare = plan.scenario.without_epsilon()
    base = where.plan(bare if plan.epsilon else plan.scenario, shared)
    nodes = attacked(plan, base)
    points: list[tuple[float | None, Mapping[str, Setting], recording.Plan]] = []
    if not plan.epsilon:
        points.append((None, {}, base))
    for epsilon in sorted(plan.epsilon):  # if time runs out, those that matter have been examined
        constants = _constants(plan, epsilon, base, nodes)
        scenario = replace(bare, set={**_kept(plan, base, constants), **constants})
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


def calibrated(
    where: RunEnvironment, scenario: Scenario, wanted: Target, shared: SharedData | None
) -> recording.Plan:
    """Return the plan with the noise at which the strongest single adversary has an epsilon.

    These adversaries are the eavesdropper on all channels and each curious node.
    """
    scenario.parts()  # it rejects a mechanism without noise
    bare = scenario.without_epsilon()
    bare = replace(bare, set={**bare.set, wanted.constant: 1.0})
    base = where.plan(bare, shared)
    known = registry.parameters(type(base.victim))
    sensitivity = None if "sensitivity" in known else wanted.sensitivity
    plan = AuditPlan(
        bare,
        epsilon=(wanted.epsilon,),
        constant=wanted.constant,
        delta=wanted.delta,
        sensitivity=sensitivity,
        smoothness=wanted.smoothness,
        adversaries=("eavesdropper", *(f"node:{i}" for i in range(base.graph.nodes))),
        table="scenario",
    )
    delta, moved = _assumed(plan, _with(plan, base, 1.0))
    if not moved.known:
        raise LeakauditError(
            f"{scenario.victim}: calibrate=exact needs the largest change of a gradient by one "
            "record, which neither a claim nor a clip states; set sensitivity=… or clip=…"
        )
    found = _exact(plan, wanted.epsilon, base, range(scenario.nodes))
    basis = (
        f"for the strongest view of an eavesdropper or curious node, sensitivity {moved.value:g} "
        f"({moved.origin})"
    )
    if found.of_node:
        helps = all(basis.wants_smoothness for basis in found.of_node)
        without = " without smoothness=…" if helps else ""
        basis += (
            ", of a whole node whose gradients differ by at most the sensitivity at any two "
            f"models; there is no epsilon per record{without}"
        )
    return base.with_noise(
        Calibrated(wanted.epsilon, delta, wanted.constant, found.noise, scenario.calibrate, basis)
    )


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
    if epsilon == math.inf and base.victim.noiseless:
        return dict(base.victim.noiseless)
    if plan.noise == "claim" and "epsilon" in known and epsilon < math.inf:
        # The victim itself computes its noise from an epsilon and a number of rounds.
        constants: dict[str, Setting] = {"epsilon": epsilon}
        if "horizon" in known:
            constants["horizon"] = plan.scenario.rounds
        return constants
    if plan.constant not in known:
        raise LeakauditError(
            f"audit: constant: {plan.scenario.victim} has no parameter {plan.constant!r}; "
            f"it has {', '.join(known)}"
        )
    if epsilon == math.inf:
        return {plan.constant: 0.0}
    if plan.noise != "claim":
        return {plan.constant: _exact(plan, epsilon, base, nodes).noise}
    return {plan.constant: _claimed(plan, epsilon, base)}


def _kept(
    plan: AuditPlan, base: recording.Plan, constants: Mapping[str, Setting]
) -> dict[str, Setting]:
    """Return the constants of the scenario that stay: not the noise in place of an epsilon."""
    instead = {plan.constant} & {base.victim.noise_constant}
    if constants == base.victim.noiseless:
        instead |= {calibration.EPSILON, base.victim.noise_constant}
    kept = {}
    for name, value in plan.scenario.without_epsilon().set.items():
        if name not in constants and name not in instead:
            kept[name] = value
    return kept


def _with(plan: AuditPlan, base: recording.Plan, noise: float) -> Protocol:
    bare = plan.scenario.without_epsilon()
    scenario = replace(bare, set={**bare.set, plan.constant: noise})
    return replace(base, scenario=scenario, victim=scenario.parts()[0]).declared


@dataclass(frozen=True)
class _ExactNoise:
    """The noise at which the worst view has an epsilon."""

    noise: float
    # what the views rest on that have an epsilon of the whole node only, and none of a record
    of_node: tuple[Basis, ...]


def _exact(
    plan: AuditPlan, epsilon: float, base: recording.Plan, nodes: Sequence[int]
) -> _ExactNoise:
    """Return the noise at which the worst view has this epsilon, of a record or else of the node.

    If the constant scales all noise, the factor that one view requires yields it, and another one
    at that noise confirms it; if it scales most noise, more corrections follow.
    """
    first = float(plan.scenario.set.get(plan.constant, 0)) or 1.0
    delta, moved = _assumed(plan, _with(plan, base, first))

    def required(noise: float) -> tuple[float, tuple[Basis, ...]]:
        """Return the largest factor on the noise that a view requires, and `of_node`."""
        made = _with(plan, base, noise)
        factors = []
        of_node = []
        for adversary in plan.parsed:
            mine = [n for n in nodes if n not in adversary.corrupt]
            for one in view_bounds(made, adversary, mine, moved.value, delta, plan.smoothness):
                factor = required_factor(one, epsilon, delta)
                if factor is None or factor == math.inf:
                    why = _unset(one, plan.constant)
                    raise LeakauditError(
                        f"the exact view sets no noise: {adversary} and node {one.node}: {why}"
                    )
                factors.append(factor)
                if one.guarantee is None and one.basis is not None:
                    of_node.append(one.basis)
        return max(factors), tuple(of_node)

    noise = first
    for _ in range(CORRECTIONS):
        ratio, of_node = required(noise)
        if abs(ratio - 1) <= REACHED or not ratio:
            if _assumed(plan, _with(plan, base, noise))[1].value != moved.value:
                raise LeakauditError(
                    f"audit: the claimed sensitivity follows {plan.constant}; set sensitivity, the "
                    "largest change of a gradient, to keep it"
                )
            return _ExactNoise(noise if ratio else 0.0, of_node)
        noise *= ratio
    raise LeakauditError(
        f"constant: {plan.constant} scales too little of the noise, so it cannot set the view bound"
    )


def _unset(one: ViewBound, constant: str) -> str:
    if one.refused:
        return one.refused
    if one.leaking:
        return f"{one.leaking[0]} is sent without noise, so no {constant} gives an epsilon"
    if one.releases or one.node_releases:
        return f"no {constant} gives this epsilon"
    return grounds.STEERED[1]


def _claimed(plan: AuditPlan, epsilon: float, base: recording.Plan) -> float:
    """Return the noise for which the weakest of the paper's claims is this epsilon."""

    def claims(noise: float) -> list[Claim]:
        return _claims(_with(plan, base, noise))

    name = plan.scenario.victim
    noise, _ = calibration.by_claims(epsilon, plan.constant, name, claims)
    return noise
