"""One audit, from its file to a folder with results.json, the figure, pictures and a report."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from leakaudit import registry
from leakaudit._util.files import replacing
from leakaudit.auditing import record
from leakaudit.auditing.judge import judge
from leakaudit.auditing.levels import Level, attacked, levels
from leakaudit.auditing.measure import Measured, cases, measure, static
from leakaudit.auditing.panels import figure
from leakaudit.auditing.plan import AuditPlan
from leakaudit.auditing.simulate import Simulated, simulate
from leakaudit.auditing.words import markdown
from leakaudit.pipeline.attack_run import ready as writable
from leakaudit.progress import expired, watching
from leakaudit.rendering import pictures, plots
from leakaudit.results import provenance, record_file
from leakaudit.scoring import lpips_weights
from leakaudit.trace import Json

FIGURE = "audit.png"
PICTURE = "reconstructions.png"


@dataclass(frozen=True)
class Where:
    """Where data come from, and what the machine gives.

    Attributes:
        data_root: Folder of data sets; None for the default one.
        download: Whether missing data may be downloaded.
        device: Where runs and attacks compute.
        max_seconds: For attacks and replays together, 0 for no limit.
    """

    data_root: Path | None = None
    download: bool = False
    device: str = "cpu"
    max_seconds: float = 0.0


def dry(plan: AuditPlan, where: Where) -> dict[str, Json]:
    """Return the grid and how much would be done, without a run.

    Args:
        plan: Of the audit.
        where: It would run.
    """
    grid = levels(plan, where.data_root, where.download, where.device)
    nodes = attacked(plan, grid[0].ready)
    views = len(grid) * len(plan.adversaries)
    targets = 0
    for adversary in plan.parsed:
        targets += sum(node not in adversary.corrupt for node in nodes)
    costs = {name: registry.get("attacks", name).cost for name in plan.attacks if name != "auto"}
    return {
        "plan": plan.to_json(),
        "grid": [_point(plan, level) for level in grid],
        "runs": len(grid) * plan.seeds,
        "replays": views * (plan.replays + plan.canary + plan.one_run),
        "attacks": len(grid) * plan.seeds * targets * len(plan.attacks),
        "cost of an attack": costs,
        "parameters": grid[0].ready.task.layout.size,
    }


def _point(plan: AuditPlan, level: Level) -> dict[str, Json]:
    """Return one point of the grid, with the worst epsilon of each adversary."""
    exact: dict[str, Json] = {}
    node: dict[str, Json] = {}
    for adversary in plan.parsed:
        bounds = [view.bound for view in level.seen_by(adversary)]
        exact[str(adversary)] = record.finite(_worst([p.epsilon for p in bounds]))
        node[str(adversary)] = record.finite(_worst([p.node_epsilon for p in bounds]))
    rounds = level.ready.scenario.rounds
    if level.views:
        rounds = level.views[0].bound.rounds
    return {
        "epsilon": level.words,
        "constants": dict(level.constants),
        "delta": level.delta,
        "sensitivity": level.sensitivity,
        "exact": exact,
        "node": node,
        "rounds_priced": rounds,
    }


def _worst(epsilons: Sequence[float | None]) -> float | None:
    """Return the largest epsilon, None if a view has none: then no figure bounds them all."""
    found = [e for e in epsilons if e is not None]
    if not found or len(found) < len(epsilons):
        return None
    return max(found)


def audit(
    plan: AuditPlan, folder: Path, where: Where, figure_file: Path | None = None
) -> tuple[dict[str, Json], bool]:
    """Run an audit and write results.json, audit.png, reconstructions.npz and .png and report.md.

    Ctrl-C and max_seconds end the work and keep what was found, marked as not complete.

    Args:
        plan: Of the audit.
        folder: Where files are written.
        where: It runs.
        figure_file: Where the figure goes beside audit.png, as PNG, SVG or PDF by its suffix.

    Returns:
        The record, and whether it is complete.

    Raises:
        LeakauditError: With nothing written, if the plan, the data or the folder cannot be used.
    """
    started = datetime.now(UTC)
    clock = time.perf_counter()
    with writable(folder):
        with watching(seconds=where.max_seconds or None):
            grid = levels(plan, where.data_root, where.download, where.device)
            nodes = attacked(plan, grid[0].ready)
            simulated = simulate(plan, grid, nodes, where.device)
            measured: list[Measured] = []
            whole = False
            if simulated.complete:
                measured, whole = _measured(plan, grid, nodes)
            simulated = replace(simulated, complete=whole)
        tested = judge(cases(plan, grid, simulated, measured), plan.alpha)
        judged = [*static(grid, measured), *tested]
        made = [o.found for o in simulated.outcomes]
        images = record_file.save_reconstructions(folder / "reconstructions.npz", made)
        chart = figure(plan, grid, simulated, measured)
        plots.save(chart, folder / FIGURE)
        if figure_file is not None:
            plots.save(chart, figure_file)
        drawn = _picture(grid, simulated, folder)
        origin = provenance.collect(
            simulated.trace,
            settings=plan.to_json(),
            seeds={"scenario": plan.scenario.seed},
            device=where.device,
            command=provenance.command(),
            started=started,
            seconds=time.perf_counter() - clock,
        )
        _, sentence = lpips_weights.find("off", simulated.trace.task.shape)
        found = record.build(
            plan,
            grid,
            simulated,
            judged,
            origin,
            images,
            lpips=sentence,
            picture=drawn,
            figure=FIGURE,
        )
        # The originals are those of the first run.
        originals = pictures.save_originals(folder / "originals.npz", made, simulated.truth)
        found["originals"] = originals
        page = registry.get("reports", "markdown")
        with replacing(folder / "report.md") as file:
            file.write(markdown(found, page(found)).encode())
        found = record_file.sealed(found, folder)
        record_file.write(folder / "results.json", found)
    return found, simulated.complete


def _measured(
    plan: AuditPlan, grid: Sequence[Level], nodes: Sequence[int]
) -> tuple[list[Measured], bool]:
    """Return what the replays gave, and whether all were made.

    Ctrl-C gives up on the replays and keeps the attacks.
    """
    try:
        return measure(plan, grid, nodes), not expired()
    except KeyboardInterrupt:
        return [], False


def _picture(grid: Sequence[Level], simulated: Simulated, folder: Path) -> str | None:
    """Draw what came back of the first node in the first run.

    There is one column for each point of the grid and attack.

    Returns:
        The file's name; None if nothing came back.
    """
    first = None
    pairs = []
    for one in simulated.outcomes:
        if one.seed != 0 or one.adversary != simulated.outcomes[0].adversary:
            continue
        first = first or one
        if one.found.node != first.found.node:
            continue
        label = f"{one.attack}, {grid[one.level].words}"
        for shown in pictures.pair_up([one.found], [one.score], simulated.truth)[:1]:
            pairs.append((shown, label))
    if first is None or not any(shown.found is not None for shown, _ in pairs):
        return None
    where = f"node {first.found.node}, heard by {first.adversary}"
    title = f"{where}: {'; '.join(label for _, label in pairs)}"
    pictures.save(pictures.grid([shown for shown, _ in pairs], title=title), folder / PICTURE)
    return PICTURE
