"""The figure of an audit: curves of every attack, success rates, and their upper limits."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from leakaudit.core.adversary import Adversary
from leakaudit.core.quantities import Data, Place, Quantity, shown
from leakaudit.judging.auditing.evidence import Successes
from leakaudit.judging.auditing.levels import Level
from leakaudit.judging.auditing.measure import ViewMeasurements, promises
from leakaudit.judging.auditing.plan import AuditPlan
from leakaudit.judging.auditing.simulate import SimulationResults
from leakaudit.reporting.figures import plots
from leakaudit.reporting.figures.audit_panels import STYLES
from leakaudit.reporting.figures.plots import Panel, PlotLine, curves
from leakaudit.reporting.results.audit_names import TestName
from leakaudit.scoring import scoring
from leakaudit.theory.bounds.reconstruction import kappa_identification

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Entries of the legend, besides the names of attacks.
RERO = TestName.LIKELIHOOD.value
EXACT = "view bound"
PAPER = "paper's claim"
BLIND = "mean image"
NOTE = "dashed: upper limit of the success rate (reconstruction robustness)"
LOOKS = {
    RERO: plots.LIKELIHOOD,
    EXACT: plots.LIMIT_BY_VIEW,
    PAPER: plots.LIMIT_BY_CLAIM,
    BLIND: plots.BLIND_GUESS,
}


def figure(
    plan: AuditPlan,
    grid: Sequence[Level],
    simulated: SimulationResults,
    measured: Sequence[ViewMeasurements],
) -> Figure:
    """Draw the audit, with the largest epsilon on the right; inf means without noise."""
    order = sorted(range(len(grid)), key=lambda k: grid[k].epsilon or 0.0)
    images = simulated.trace.task.is_image
    points = []
    for k in order:
        points.append("inf" if grid[k].epsilon == math.inf else grid[k].words)
    rows = []
    for adversary in plan.parsed:
        panels = []
        for one in shown(Place.CURVE, data=Data.IMAGES if images else Data.ANY):
            panels.append(_quality(plan, order, simulated, adversary, one))
        panels.append(_identified(plan, grid, order, simulated, adversary))
        panels.append(_likelihood(plan, grid, order, measured, adversary))
        placed = [replace(panel, axis="epsilon", points=tuple(points)) for panel in panels]
        rows.append((f"adversary {adversary}", placed))
    looks = plots.looks_of(plan.attacks, LOOKS)
    return curves(rows, _legend(plan, grid, images), STYLES, NOTE, looks=looks)


def _legend(plan: AuditPlan, grid: Sequence[Level], images: bool) -> dict[str, str]:
    legend = {name: name for name in plan.attacks}
    legend[RERO] = f"{RERO}: {plan.candidates} candidates, {plan.replays} replays"
    legend[EXACT] = "limit by the view bound"
    claims: dict[str, None] = {}
    for level in grid:
        for view in level.views:
            if view.claim:
                claims[view.claim.source] = None
    if claims:
        legend[PAPER] = f"limit by the claim: {', '.join(claims)}"
    if images:
        legend[BLIND] = "blind guess: the mean of the other records"
    return legend


def _quality(
    plan: AuditPlan,
    order: Sequence[int],
    simulated: SimulationResults,
    adversary: Adversary,
    one: Quantity,
) -> Panel:
    lines = []
    for attack in plan.attacks:
        found = [simulated.values(one, k, adversary, attack) for k in order]
        lines += plots.quality(attack, found, one)
    if one.data is Data.IMAGES:
        lines.append(PlotLine(BLIND, "blind", [_blind(simulated, one)] * len(order)))
    return Panel(one.drawn, tuple(lines), cap=plots.cap(one.unit))


def _identified(
    plan: AuditPlan,
    grid: Sequence[Level],
    order: Sequence[int],
    simulated: SimulationResults,
    adversary: Adversary,
) -> Panel:
    """Show how often the first record was identified, with the limits for the same blind chance.

    The share is of all attacked nodes and seeds; those without a result are not identified.
    """
    lines = []
    total = 0  # candidates
    for attack in plan.attacks:
        rates: list[float | None] = []
        for k in order:
            made = simulated.made(k, adversary, attack)
            mine = [o for o in made if o.identified is not None]
            total = max([total, *(o.candidates for o in mine)])
            tried = len(mine) + len(simulated.refused(k, adversary, attack))
            hits = sum(bool(o.identified) for o in mine)
            rates.append(hits / tried if tried else None)
        lines.append(PlotLine(attack, "rate", rates))
    kappa = 1.0
    title = "identified"
    if total:
        kappa = min(1.0, grid[0].ready.scenario.samples / total)
        title = f"identified among {total}"
    return Panel(title, (*lines, *_ceilings(grid, order, adversary, kappa)), low=0.0, high=1.0)


def _likelihood(
    plan: AuditPlan,
    grid: Sequence[Level],
    order: Sequence[int],
    measured: Sequence[ViewMeasurements],
    adversary: Adversary,
) -> Panel:
    by_level = {m.level: m.rero for m in measured if m.adversary == adversary}
    rates: list[float | None] = []
    for k in order:
        rate = None
        if k in by_level and len(by_level[k].drawn):
            rate = by_level[k].hits / len(by_level[k].drawn)
        rates.append(rate)
    candidates = [m.rero.scores.shape[1] for m in measured if len(m.rero.scores)]
    count = max(candidates, default=plan.candidates)
    ceilings = _ceilings(grid, order, adversary, kappa_identification(count))
    lines = (PlotLine(RERO, "rate", rates), *ceilings)
    return Panel(f"identified among {count} by likelihood", lines, low=0.0, high=1.0)


def _ceilings(
    grid: Sequence[Level], order: Sequence[int], adversary: Adversary, kappa: float
) -> list[PlotLine]:
    """Return the largest rates that view bound and claim allow for a blind chance."""
    exact: list[float | None] = []
    paper: list[float | None] = []
    for k in order:
        entry = grid[k].seen_by(adversary)[0]
        # A view without noise has no guarantee and allows any success rate.
        by_view = 1.0 if entry.bound.mu == math.inf else None
        by_claim = None
        for promise in promises(entry, grid[k].delta):
            if promise.empty:
                continue
            ceiling = Successes(0, 0, kappa).ceiling(promise)
            if promise.mu is None:
                by_claim = ceiling
            else:
                by_view = ceiling
        exact.append(by_view)
        paper.append(by_claim)
    return [PlotLine(EXACT, "ceiling", exact), PlotLine(PAPER, "ceiling", paper)]


def _blind(simulated: SimulationResults, one: Quantity) -> float | None:
    """Return the median of a quantity for a blind guess, the mean of all free records."""
    truth = simulated.truth
    if not len(truth.pool):
        return None
    mean = truth.pool.double().mean(0, keepdim=True)
    guess = mean.expand(len(truth.x), *truth.x.shape[1:])
    measure = dict(scoring.measures(Data.IMAGES))[one]
    values = measure(guess, truth.x.double(), data_range=1.0)
    return None if values is None else float(torch.median(values))
