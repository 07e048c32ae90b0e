"""What the figure of an audit shows: the curves of every attack, the rates of success, and the ceilings above them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from PIL import Image

from leakaudit.auditing.evidence import Successes
from leakaudit.auditing.figure import Line, Panel, draw
from leakaudit.auditing.levels import Level
from leakaudit.auditing.measure import RERO, Measured, promises
from leakaudit.auditing.plan import AuditPlan
from leakaudit.auditing.simulate import Simulated
from leakaudit.bounds.reconstruction import kappa_identification
from leakaudit.scoring import metrics

EXACT, PAPER, BLIND = "exact view", "paper's claim", "mean image"
STYLES = ("best", "median", "mean")
SHOWN = 50.0  # dB; more looks the same to an eye


def figure(
    plan: AuditPlan, grid: Sequence[Level], simulated: Simulated, measured: Sequence[Measured]
) -> Image.Image:
    """Draw the audit, the largest epsilon at the right; inf is without noise."""
    order = sorted(range(len(grid)), key=lambda k: grid[k].epsilon or 0.0)
    images = simulated.trace.task.is_image
    legend = {name: name for name in plan.attacks}
    legend |= {RERO: f"{RERO}: {plan.candidates} candidates, {plan.replays} replays"}
    legend |= {EXACT: "ceiling by the exact view"}
    claims = {v.claim.source: None for g in grid for v in g.views if v.claim}
    legend |= {PAPER: f"ceiling by the claim: {', '.join(claims)}"} if claims else {}
    legend |= {BLIND: "a guess that saw nothing: the mean of the other records"} if images else {}
    rows = []
    for who in plan.adversaries:
        shown = ("psnr", "ssim") if images else ("relative_error",)
        panels = [_quality(plan, order, simulated, who, metric) for metric in shown]
        rows.append(
            (
                f"heard by {who}",
                [
                    *panels,
                    _identified(plan, grid, order, simulated, who),
                    _likelihood(plan, grid, order, measured, who),
                ],
            )
        )
    points = [grid[k].words if grid[k].epsilon != math.inf else "inf" for k in order]
    return draw(rows, points, legend)


def _quality(
    plan: AuditPlan, order: Sequence[int], simulated: Simulated, who: str, metric: str
) -> Panel:
    lines, most = [], SHOWN if metric == "psnr" else math.inf
    for attack in plan.attacks:
        found = [simulated.values(metric, k, who, attack) for k in order]
        lines += [
            Line(attack, style, [None if v is None else min(v[style], most) for v in found])
            for style in STYLES
        ]
    if metric != "relative_error":
        lines.append(Line(BLIND, "blind", [_blind(simulated, metric)] * len(order)))
    titles = {
        "psnr": f"PSNR, dB, up to {SHOWN:g}",
        "ssim": "SSIM",
        "relative_error": "relative error",
    }
    return Panel(titles[metric], tuple(lines))


def _identified(
    plan: AuditPlan, grid: Sequence[Level], order: Sequence[int], simulated: Simulated, who: str
) -> Panel:
    """Share of all attacked nodes and seeds whose first record is identified, and the ceilings at the same blind chance.

    A node that was refused is not identified.
    """
    lines, total = [], 0
    for attack in plan.attacks:
        rates: list[float | None] = []
        for k in order:
            mine = [
                o
                for o in simulated.outcomes
                if (o.level, o.adversary, o.attack) == (k, who, attack) and o.identified is not None
            ]
            total = max([total, *(o.candidates for o in mine)])
            tried = len(mine) + len(simulated.refused(k, who, attack))
            rates.append(sum(bool(o.identified) for o in mine) / tried if mine else None)
        lines.append(Line(attack, "rate", rates))
    kappa = min(1.0, grid[0].ready.scenario.samples / total) if total else 1.0
    return Panel(
        f"identified among {total}" if total else "identified",
        (*lines, *_ceilings(grid, order, who, kappa)),
        0.0,
        1.0,
    )


def _likelihood(
    plan: AuditPlan,
    grid: Sequence[Level],
    order: Sequence[int],
    measured: Sequence[Measured],
    who: str,
) -> Panel:
    by_level = {m.level: m.rero for m in measured if m.adversary == who}
    rates = [
        by_level[k].hits / len(by_level[k].drawn)
        if k in by_level and len(by_level[k].drawn)
        else None
        for k in order
    ]
    count = max(
        (m.rero.scores.shape[1] for m in measured if len(m.rero.scores)), default=plan.candidates
    )
    lines = (Line(RERO, "rate", rates), *_ceilings(grid, order, who, kappa_identification(count)))
    return Panel(f"identified among {count} by likelihood", lines, 0.0, 1.0)


def _ceilings(grid: Sequence[Level], order: Sequence[int], who: str, kappa: float) -> list[Line]:
    exact, paper = list[float | None](), list[float | None]()
    for k in order:
        entry = next(v for v in grid[k].views if str(v.listener.adversary) == who)
        said = {
            p.mu is None: Successes(0, 0, kappa).ceiling(p)
            for p in promises(entry, grid[k].delta)
            if not p.empty
        }
        exact.append(said.get(False, 1.0 if entry.price.mu == math.inf else None))
        paper.append(said.get(True))
    return [Line(EXACT, "ceiling", exact), Line(PAPER, "ceiling", paper)]


def _blind(simulated: Simulated, metric: str) -> float | None:
    """Median of a metric for the mean of the records that nobody holds, as a guess of every record."""
    truth = simulated.truth
    if not len(truth.pool):
        return None
    guess = truth.pool.double().mean(0, keepdim=True).expand(len(truth.x), *truth.x.shape[1:])
    values = (metrics.psnr if metric == "psnr" else metrics.ssim)(
        guess, truth.x.double(), data_range=1.0
    )
    return None if values is None else float(torch.median(values))
