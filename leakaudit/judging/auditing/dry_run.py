"""What an audit would do, and at which cost, without running it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from leakaudit.core import registry
from leakaudit.core.trace import Json
from leakaudit.core.verdict import Holds
from leakaudit.judging.auditing.environment import RunEnvironment
from leakaudit.judging.auditing.levels import Level, attacked, in_words, levels
from leakaudit.judging.auditing.plan import AuditPlan
from leakaudit.reporting.results.model import encoded
from leakaudit.tasks.shared import SharedData
from leakaudit.views.accounting.compare import Comparison

# A dry run computes epsilon for at most so many messages, counted once for every attacked node,
# adversary and point: about half a minute for D-PSGD. A choice.
PRICED = 200_000


# What a point has beside its name if the plan is too large for a dry run to compute epsilon.
UNPRICED: Mapping[str, Json] = {
    "constants": {},
    "delta": None,
    "sensitivity": None,
    "record": {},
    "holds": {},
    "node_at_most": {},
    "rounds_priced": 0,
}


def dry(plan: AuditPlan, where: RunEnvironment) -> dict[str, Json]:
    """Return the grid, the numbers of recordings, replays and attacks, and what an attack costs."""
    shared = SharedData()
    base = where.plan(plan.scenario, shared)
    nodes = attacked(plan, base)
    targets = 0
    for adversary in plan.parsed:
        targets += sum(node not in adversary.corrupt for node in nodes)
    points = len(plan.epsilon) or 1
    views = points * len(plan.adversaries)
    omitted = _too_large(len(base.graph.arcs) * plan.scenario.rounds * targets * points)
    if omitted:
        names = map(in_words, plan.epsilon or (None,))
        grid = [{"epsilon": name, **UNPRICED} for name in names]
    else:
        grid = [_point(plan, level) for level in levels(plan, where, shared=shared)]
    costs = {name: registry.get("attacks", name).cost for name in plan.attacks if name != "auto"}
    return {
        "plan": plan.to_json(),
        "grid": grid,
        "omitted": omitted,
        "runs": points * plan.seeds,
        "replays": views * (plan.replays + plan.canary + plan.one_run),
        "attacks": points * plan.seeds * targets * len(plan.attacks),
        "cost of an attack": costs,
        "parameters": base.task.layout.size,
    }


def _too_large(messages: int) -> str:
    if messages <= PRICED:
        return ""
    return (
        f"this plan has up to {messages:,} messages, counted for every attacked node, adversary "
        f"and point; a dry run computes epsilon for at most {PRICED:,}. "
        "The audit itself and leakaudit bound compute it for more"
    )


def _point(plan: AuditPlan, level: Level) -> dict[str, Json]:
    """Return one point; by adversary, the worst epsilon of a record, and at most of a node.

    None if a view has none.
    """
    record = {}
    holds = {}
    node = {}
    for adversary in plan.parsed:
        who = str(adversary)
        views = level.seen_by(adversary)
        worst = _worst([view.bound.epsilon for view in views])
        record[who] = encoded(worst)
        holds[who] = str(Holds.NONE)
        if worst is not None:
            holds[who] = str(max(views, key=_severity).holds)
        node[who] = encoded(_worst([view.bound.node_epsilon for view in views]))
    rounds = level.ready.scenario.rounds
    if level.views:
        rounds = level.views[0].bound.rounds
    return {
        "epsilon": level.words,
        "constants": level.constants,
        "delta": level.delta,
        "sensitivity": level.sensitivity,
        "record": record,
        "holds": holds,
        "node_at_most": node,
        "rounds_priced": rounds,
    }


def _severity(view: Comparison) -> tuple[float, bool]:
    """Sort key: the largest epsilon last, and of equal ones what is not exact."""
    return view.bound.epsilon or 0.0, view.holds is not Holds.EXACT


def _worst(epsilons: Sequence[float | None]) -> float | None:
    """Return the largest epsilon; None if a view has none, because no number then bounds all."""
    found = [e for e in epsilons if e is not None]
    if not found or len(found) < len(epsilons):
        return None
    return max(found)
