"""The record of an audit: findings, each with its grid point, and verdicts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from leakaudit.core.adversary import Adversary
from leakaudit.core.quantities import Place, shown
from leakaudit.judging.auditing.judge import Test
from leakaudit.judging.auditing.levels import Level
from leakaudit.judging.auditing.plan import AuditPlan
from leakaudit.judging.auditing.simulate import SimulationResults
from leakaudit.reporting.findings import findings
from leakaudit.reporting.findings.wording import audit_headline, worst_leak
from leakaudit.reporting.results import model
from leakaudit.reporting.results.model import (
    VERDICT_NAMES,
    AuditPart,
    AuditPoint,
    AuditRecord,
    CeilingEntry,
    CurvePoint,
    Finding,
    GridPoint,
    PromiseEntry,
    Provenance,
    StoredImages,
    VerdictEntry,
    encoded,
)
from leakaudit.scoring.scoring import definitions

FIGURE = "audit.png"


def build(
    plan: AuditPlan,
    grid: Sequence[Level],
    simulated: SimulationResults,
    judged: Sequence[Test],
    allowed: Iterable[CeilingEntry],
    provenance: Provenance,
    images: Sequence[StoredImages],
    lpips: str,
) -> AuditRecord:
    """Return the record of an audit, without pictures; `images` are those of each outcome."""
    trace = simulated.trace
    found = _findings(grid, simulated, images)
    verdicts = tuple(_verdict(grid, one) for one in judged)
    leak, _ = worst_leak(found, trace.task.shape)
    return AuditRecord(
        schema=model.SCHEMA,
        version=model.VERSION,
        complete=simulated.complete,
        summary=audit_headline(verdicts, leak, simulated.complete),
        trace=findings.trained(trace),
        findings=found,
        undetermined=(),
        not_tried=_left_out(grid, simulated),
        metrics=definitions(trace.task, lpips),
        attacks=findings.attacks_of(found),
        picture=None,
        provenance=provenance,
        audit=AuditPart(
            alpha=plan.alpha,
            delta=grid[0].delta,
            grid=tuple(_point(level) for level in grid),
            curves=tuple(_curves(plan, grid, simulated)),
            ceilings=tuple(allowed),
            verdicts=verdicts,
            figure=FIGURE,
        ),
    )


def _findings(
    grid: Sequence[Level], simulated: SimulationResults, images: Sequence[StoredImages]
) -> tuple[Finding, ...]:
    found = []
    for one, stored in zip(simulated.outcomes, images, strict=True):
        cell = GridPoint(epsilon=encoded(grid[one.level].epsilon), seed=one.seed)
        entry = findings.finding(one.leak, one.found, one.score, stored)
        found.append(replace(entry, cell=cell))
    return tuple(found)


def _left_out(grid: Sequence[Level], simulated: SimulationResults) -> tuple[str, ...]:
    """List what was not attacked, without repetitions for several runs."""
    said = []
    for s in simulated.skipped:
        where = f"{s.attack} at epsilon {grid[s.level].words}, {s.adversary}, node {s.node}"
        said.append(f"{where}: {s.why}")
    return (
        *dict.fromkeys(said),
        "adversaries, attacks and epsilons that are not in the plan",
    )


def _point(level: Level) -> AuditPoint:
    return AuditPoint(
        epsilon=encoded(level.epsilon),
        constants=dict(level.constants),
        views=tuple(view.to_json() for view in level.views),
    )


def _verdict(grid: Sequence[Level], test: Test) -> VerdictEntry:
    promise = None
    if test.promise is not None:
        one = test.promise
        promise = PromiseEntry(
            name=one.name, epsilon=encoded(one.epsilon), delta=one.delta, mu=one.mu
        )
    return VerdictEntry(
        epsilon=encoded(grid[test.level].epsilon),
        adversary=str(test.adversary),
        node=test.node,
        test=str(test.test),
        attack=str(test.attack),
        promise=promise,
        verdict=VERDICT_NAMES[test.verdict],
        says=test.says,
        power=test.power,
        p=test.p,
        level=test.alpha,
        needs=test.needs,
        figures=test.figures or {},
    )


def _curves(
    plan: AuditPlan, grid: Sequence[Level], simulated: SimulationResults
) -> list[CurvePoint]:
    found = []
    for k, level in enumerate(grid):
        for adversary in plan.parsed:
            for attack in plan.attacks:
                found.append(_curve(simulated, k, level, adversary, attack))
    return found


def _curve(
    simulated: SimulationResults, place: int, level: Level, adversary: Adversary, attack: str
) -> CurvePoint:
    measured = {}
    for one in shown(Place.CURVE):
        values = simulated.values(one, place, adversary, attack)
        if values is not None:
            measured[one.key] = values
    return CurvePoint(
        epsilon=encoded(level.epsilon),
        adversary=str(adversary),
        attack=attack,
        attacked=len(simulated.scores(place, adversary, attack)),
        refused=len(simulated.refused(place, adversary, attack)),
        **measured,
    )
