"""What an audit would do, and how much of it, without a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct, field

from leakaudit import registry
from leakaudit.auditing.levels import Level, attacked, levels
from leakaudit.auditing.plan import AuditPlan
from leakaudit.auditing.where import Where
from leakaudit.results.model import Extended, Free, encoded


class DryPoint(Struct, frozen=True, kw_only=True):
    """One point of the grid.

    Attributes:
        epsilon: In words.
        constants: Of the victim, that were set for it.
        delta: Of every epsilon.
        sensitivity: Of every epsilon.
        exact: By adversary, the worst epsilon of one record; None if a view has none.
        node: By adversary, the worst epsilon of a whole node.
        rounds_priced: The rounds that these epsilons are about.
    """

    epsilon: str
    constants: Mapping[str, Free]
    delta: float
    sensitivity: float
    exact: dict[str, Extended]
    node: dict[str, Extended]
    rounds_priced: int


class DryRun(Struct, frozen=True, kw_only=True):
    """What an audit would do.

    Attributes:
        plan: The audit.
        grid: Its points.
        runs: Number of recordings.
        replays: Number of recordings for replays and canaries.
        attacks: Number of attacks.
        cost_of_an_attack: By name, in words.
        parameters: Size of the model.
    """

    plan: Mapping[str, Free]
    grid: tuple[DryPoint, ...]
    runs: int
    replays: int
    attacks: int
    cost_of_an_attack: dict[str, str] = field(name="cost of an attack")
    parameters: int


def dry(plan: AuditPlan, where: Where) -> DryRun:
    """Return the grid and how much would be done, without a run.

    Args:
        plan: Of the audit.
        where: It would run.

    Returns:
        What an audit would do.
    """
    grid = levels(plan, where.data_root, where.download, where.device)
    nodes = attacked(plan, grid[0].ready)
    views = len(grid) * len(plan.adversaries)
    targets = 0
    for adversary in plan.parsed:
        targets += sum(node not in adversary.corrupt for node in nodes)
    costs = {name: registry.get("attacks", name).cost for name in plan.attacks if name != "auto"}
    return DryRun(
        plan=plan.to_json(),
        grid=tuple(_point(plan, level) for level in grid),
        runs=len(grid) * plan.seeds,
        replays=views * (plan.replays + plan.canary + plan.one_run),
        attacks=len(grid) * plan.seeds * targets * len(plan.attacks),
        cost_of_an_attack=costs,
        parameters=grid[0].ready.task.layout.size,
    )


def _point(plan: AuditPlan, level: Level) -> DryPoint:
    """Return one point of the grid, with the worst epsilon of each adversary."""
    exact = {}
    node = {}
    for adversary in plan.parsed:
        bounds = [view.bound for view in level.seen_by(adversary)]
        exact[str(adversary)] = encoded(_worst([p.epsilon for p in bounds]))
        node[str(adversary)] = encoded(_worst([p.node_epsilon for p in bounds]))
    rounds = level.ready.scenario.rounds
    if level.views:
        rounds = level.views[0].bound.rounds
    return DryPoint(
        epsilon=level.words,
        constants=dict(level.constants),
        delta=level.delta,
        sensitivity=level.sensitivity,
        exact=exact,
        node=node,
        rounds_priced=rounds,
    )


def _worst(epsilons: Sequence[float | None]) -> float | None:
    """Return the largest epsilon, None if a view has none: then no figure bounds them all."""
    found = [e for e in epsilons if e is not None]
    if not found or len(found) < len(epsilons):
        return None
    return max(found)
