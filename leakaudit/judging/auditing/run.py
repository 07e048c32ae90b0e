"""An audit, from its plan to a folder with results.json, the figure, images and a report."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from msgspec import structs

from leakaudit._util.jobs import IN_PROCESS, Pool
from leakaudit.core.progress import expired, step, watching
from leakaudit.judging.auditing import record
from leakaudit.judging.auditing.blind import Blind, ceilings
from leakaudit.judging.auditing.environment import RunEnvironment
from leakaudit.judging.auditing.judge import judge
from leakaudit.judging.auditing.levels import Level, attacked, levels
from leakaudit.judging.auditing.measure import ViewMeasurements, cases, measure, static
from leakaudit.judging.auditing.plan import AuditPlan
from leakaudit.judging.auditing.simulate import SimulationResults, simulate
from leakaudit.reporting.figures import audit_panels, curves, pictures, plots
from leakaudit.reporting.results import provenance, record_file
from leakaudit.reporting.results.model import AuditRecord
from leakaudit.reporting.results.output_folder import ready as writable
from leakaudit.scoring import lpips_weights

PICTURE = "reconstructions.png"


def audit(
    plan: AuditPlan, folder: Path, where: RunEnvironment, executor: Pool = IN_PROCESS
) -> AuditRecord:
    """Run an audit and write results.json, audit.png, reconstructions.npz and .png and report.md.

    Ctrl-C and max_seconds end the work; the results so far are kept, marked as incomplete.
    """
    started = datetime.now(UTC)
    clock = time.perf_counter()
    with writable(folder):
        with watching(seconds=where.max_seconds or None):
            grid = levels(plan, where, executor)
            nodes = attacked(plan, grid[0].ready)
            step("stages", 0, 2)
            simulated = simulate(plan, grid, nodes, where.device, executor)
            step("stages", 1, 2)
            measured: list[ViewMeasurements] = []
            whole = False
            if simulated.complete:
                measured, whole = _measured(plan, grid, nodes, executor)
            step("stages", 2, 2)
            simulated = replace(simulated, complete=whole)
        blind = Blind.of(grid[0].ready)
        tested = judge(cases(plan, grid, simulated, measured, blind), plan.alpha)
        judged = [*static(grid, measured), *tested]
        made = [o.found for o in simulated.outcomes]
        images = record_file.save_reconstructions(folder / "reconstructions.npz", made)
        origin = provenance.collect(
            simulated.trace,
            settings=plan.to_json(),
            seeds={"scenario": plan.scenario.seed},
            device=where.device,
            started=started,
            seconds=time.perf_counter() - clock,
        )
        _, sentence = lpips_weights.find("off", simulated.trace.task.shape)
        void = any(one.over(grid) for one in measured)  # a bound rests on a wrong sensitivity
        allowed = ceilings(plan, grid, blind, simulated.truth, void=void)
        found = record.build(plan, grid, simulated, judged, allowed, origin, images, sentence)
        chart = curves.on_screen(audit_panels.content(found))
        plots.save(chart, folder / record.FIGURE)
        found = structs.replace(
            found,
            picture=_picture(grid, simulated, folder),
            originals=pictures.save_originals(folder / "originals.npz", made, simulated.truth),
        )
        return record_file.keep(found, folder)


def _measured(
    plan: AuditPlan, grid: Sequence[Level], nodes: Sequence[int], executor: Pool
) -> tuple[list[ViewMeasurements], bool]:
    """Return the replays, and whether they are complete; Ctrl-C keeps only the attacks."""
    try:
        return measure(plan, grid, nodes, executor), not expired()
    except KeyboardInterrupt:
        return [], False


def _picture(grid: Sequence[Level], simulated: SimulationResults, folder: Path) -> str | None:
    """Draw the first node of the first run, one column per attack and point."""
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
    where = f"node {first.found.node}, adversary {first.adversary}"
    title = f"{where}: {'; '.join(label for _, label in pairs)}"
    pictures.save(pictures.grid([shown for shown, _ in pairs], title=title), folder / PICTURE)
    return PICTURE
