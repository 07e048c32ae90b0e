"""One audit, from its file to a folder with results.json, the figure, pictures and a report."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from leakaudit import registry
from leakaudit._util.files import replacing
from leakaudit.adversary import Adversary
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
from leakaudit.rendering import pictures
from leakaudit.results import provenance, record_file
from leakaudit.scoring import lpips_weights
from leakaudit.trace import Json

FIGURE, PICTURE = "audit.png", "reconstructions.png"


@dataclass(frozen=True)
class Where:
    """Where data come from, and what the machine gives. max_seconds: for attacks and replays together, 0 for no limit."""

    data_root: Path | None = None
    download: bool = False
    device: str = "cpu"
    max_seconds: float = 0.0
    lpips_weights: str = "auto"


def dry(plan: AuditPlan, where: Where) -> dict[str, Json]:
    """Return the grid and how much would be done, without a run."""
    grid = levels(plan, where.data_root, where.download, where.device)
    nodes, cells = attacked(plan, grid[0].ready), len(grid) * len(plan.adversaries)
    hit = sum(n not in Adversary.parse(who).corrupt for who in plan.adversaries for n in nodes)
    kinds = {name: registry.get("attacks", name).cost for name in plan.attacks if name != "auto"}
    return {
        "plan": plan.to_json(),
        "grid": [
            {
                "epsilon": g.words,
                "constants": dict(g.constants),
                "delta": g.delta,
                "sensitivity": g.sensitivity,
                "exact": {
                    who: record.finite(_worst([v.price.epsilon for v in g.seen_by(who)]))
                    for who in plan.adversaries
                },
                "node": {
                    who: record.finite(_worst([v.price.node_epsilon for v in g.seen_by(who)]))
                    for who in plan.adversaries
                },
                "rounds_priced": g.views[0].price.rounds_priced
                if g.views
                else g.ready.scenario.rounds,
            }
            for g in grid
        ],
        "runs": len(grid) * plan.seeds,
        "replays": cells * (plan.replays + plan.canary + plan.one_run),
        "attacks": len(grid) * plan.seeds * hit * len(plan.attacks),
        "cost of an attack": kinds,
        "parameters": grid[0].ready.task.layout.size,
    }


def audit(plan: AuditPlan, folder: Path, where: Where) -> tuple[dict[str, Json], bool]:
    """Run an audit and write results.json, audit.png, reconstructions.npz and .png and report.md; says whether it is complete.

    Ctrl-C and max_seconds end the work and keep what was found, marked as not complete.
    Raises LeakauditError, with nothing written, for a plan, data or folder that cannot be used.
    """
    started, clock = datetime.now(UTC), time.perf_counter()
    with writable(folder):
        with watching(seconds=where.max_seconds or None):
            grid = levels(plan, where.data_root, where.download, where.device)
            nodes = attacked(plan, grid[0].ready)
            simulated = simulate(plan, grid, nodes, where.device)
            measured, whole = _measured(plan, grid, nodes) if simulated.complete else ([], False)
            simulated = replace(simulated, complete=whole)
        judged = [
            *static(grid, measured),
            *judge(cases(plan, grid, simulated, measured), plan.alpha),
        ]
        made = [o.found for o in simulated.outcomes]
        images = record_file.save_reconstructions(folder / "reconstructions.npz", made)
        pictures.save(figure(plan, grid, simulated, measured), folder / FIGURE)
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
        found["originals"] = pictures.save_originals(
            folder / "originals.npz", made, simulated.truth
        )  # of the first run
        page = registry.get("reports", "markdown")
        with replacing(folder / "report.md") as file:
            file.write(markdown(found, page(found)).encode())
        found = record_file.sealed(found, folder)
        record_file.write(folder / "results.json", found)
    return found, simulated.complete


def _measured(
    plan: AuditPlan, grid: Sequence[Level], nodes: Sequence[int]
) -> tuple[list[Measured], bool]:
    """Return what the replays gave, and whether all were made; Ctrl-C gives up on them and keeps the attacks."""
    try:
        return measure(plan, grid, nodes), not expired()
    except KeyboardInterrupt:
        return [], False


def _worst(epsilons: Sequence[float | None]) -> float | None:
    """Return the largest epsilon, None if a view has none: then no figure bounds them all."""
    found = [e for e in epsilons if e is not None]
    return max(found) if found and len(found) == len(epsilons) else None


def _picture(grid: Sequence[Level], simulated: Simulated, folder: Path) -> str | None:
    """Draw what came back of the first node in the first run, one column a point of the grid and attack; return the file's name."""
    first = [
        o
        for o in simulated.outcomes
        if o.seed == 0 and o.adversary == simulated.outcomes[0].adversary
    ]
    mine = [o for o in first if o.found.node == first[0].found.node]
    pairs = []
    for one in mine:
        shown = pictures.pair_up([one.found], [one.score], simulated.truth)[:1]
        pairs += [(p, f"{one.attack}, {grid[one.level].words}") for p in shown]
    if not any(p.found is not None for p, _ in pairs):
        return None
    where = f"node {first[0].found.node}, heard by {first[0].adversary}"
    labels = "; ".join(label for _, label in pairs)
    pictures.save(
        pictures.grid([p for p, _ in pairs], title=f"{where}: {labels}"), folder / PICTURE
    )
    return PICTURE
