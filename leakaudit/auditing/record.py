"""The record of an audit.

Attack findings as of any attack, each with its place in the grid, and the verdicts beside them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict

from leakaudit.adversary import Adversary
from leakaudit.auditing.judge import Judged
from leakaudit.auditing.levels import Level, short
from leakaudit.auditing.plan import AuditPlan
from leakaudit.auditing.promise import Promise
from leakaudit.auditing.simulate import Simulated
from leakaudit.results import findings
from leakaudit.trace import Json
from leakaudit.verdict import Verdict

METRICS = ("psnr", "ssim", "relative_error")
# The worst first.
ORDER = (
    Verdict.REFUTED,
    Verdict.UNSUPPORTED,
    Verdict.INCONCLUSIVE,
    Verdict.NOT_REFUTED,
    Verdict.UNCLAIMED,
)


def build(
    plan: AuditPlan,
    grid: Sequence[Level],
    simulated: Simulated,
    judged: Sequence[Judged],
    provenance: Mapping[str, Json],
    images: Sequence[Mapping[str, str | None]],
    *,
    lpips: str,
    picture: str | None,
    figure: str | None,
) -> dict[str, Json]:
    """Return everything that results.json holds.

    Args:
        plan: Of the audit.
        grid: Its points.
        simulated: What attacks found.
        judged: All verdicts.
        provenance: Of the audit.
        images: Where the images of each outcome are stored.
        lpips: Why LPIPS was not computed, or by which weights.
        picture: File name of the picture of reconstructions; None if there is none.
        figure: File name of the figure; None if there is none.
    """
    entries = []
    for one, image in zip(simulated.outcomes, images, strict=True):
        cell = {"epsilon": finite(grid[one.level].epsilon), "seed": one.seed}
        entries.append({**findings.finding(one.leak, one.found, one.score, image), "cell": cell})
    record = findings.build(
        simulated.trace,
        entries,
        [],
        _left_out(grid, simulated),
        provenance,
        lpips=lpips,
        picture=picture,
        complete=simulated.complete,
    )
    verdicts = [_verdict(grid, one) for one in judged]
    return {
        **record,
        "kind": "audit",
        "summary": sentence(verdicts, simulated.complete),
        "audit": {
            "alpha": plan.alpha,
            "delta": grid[0].delta,
            "grid": [_point(level) for level in grid],
            "curves": _curves(plan, grid, simulated),
            "verdicts": verdicts,
            "figure": figure,
        },
    }


def _left_out(grid: Sequence[Level], simulated: Simulated) -> list[str]:
    """Say what was not attacked; the same in several runs is said once."""
    said = []
    for s in simulated.skipped:
        where = f"{s.attack} at epsilon {grid[s.level].words}, {s.adversary}, node {s.node}"
        said.append(f"{where}: {s.why}")
    return [
        *dict.fromkeys(said),
        "adversaries, attacks and epsilons that are not in the plan",
    ]


def _point(level: Level) -> dict[str, Json]:
    return {
        "epsilon": finite(level.epsilon),
        "constants": dict(level.constants),
        "views": [view.to_json() for view in level.views],
    }


def sentence(verdicts: Sequence[Mapping[str, Json]], complete: bool) -> str:
    """Summarise the verdicts: the worst in words, and how many of each.

    Args:
        verdicts: As the record holds them.
        complete: Whether all was done.
    """
    counts = {v: sum(one["verdict"] == v.name for one in verdicts) for v in ORDER}
    # A test that allows every success is inconclusive with any number of trials: it tells least.
    telling = []
    for one in verdicts:
        inconclusive = one["verdict"] == Verdict.INCONCLUSIVE.name
        if not inconclusive or one["needs"] or one["p"] is None:
            telling.append(one)
    worst = _worst(telling or verdicts)
    parts = []
    if worst is not None:
        test = f"{worst['test']} at epsilon {words(worst['epsilon'])}"
        where = f"{test}, heard by {worst['adversary']}"
        parts.append(f"{Verdict[worst['verdict']].words}: {where}: {worst['says']}")
    counted = ", ".join(f"{n} {v.words}" for v, n in counts.items() if n)
    parts.append(counted or "nothing was tested")
    if not complete:
        parts.append("the run was interrupted and is not complete")
    return "; ".join(parts) + ". NOT REFUTED is no proof of privacy."


def _worst(verdicts: Sequence[Mapping[str, Json]]) -> Mapping[str, Json] | None:
    """Return the first of the worst verdicts, None if there is no verdict."""
    for verdict in ORDER:
        for one in verdicts:
            if one["verdict"] == verdict.name:
                return one
    return None


def words(epsilon: Json) -> str:
    """Return an epsilon of the record, for tables.

    Args:
        epsilon: A number, ``inf``, or None if the scenario's own constants were kept.
    """
    if epsilon is None:
        return "as configured"
    return "inf" if epsilon == "inf" else short(epsilon)


def _verdict(grid: Sequence[Level], one: Judged) -> dict[str, Json]:
    t = one.test
    return {
        "epsilon": finite(grid[t.level].epsilon),
        "adversary": str(t.adversary),
        "node": t.node,
        "test": str(t.test),
        "attack": str(t.attack),
        "promise": None if t.promise is None else _promise(t.promise),
        "verdict": one.verdict.name,
        "says": one.says,
        "power": one.power,
        "p": one.p,
        "level": one.alpha,
        "needs": one.needs,
        "figures": t.figures,
    }


def _promise(promise: Promise) -> dict[str, Json]:
    return {**asdict(promise), "epsilon": finite(promise.epsilon)}


def _curves(plan: AuditPlan, grid: Sequence[Level], simulated: Simulated) -> list[dict[str, Json]]:
    """Return the metrics of every cell of the grid."""
    found = []
    for k, level in enumerate(grid):
        for adversary in plan.parsed:
            for attack in plan.attacks:
                cell: dict[str, Json] = {
                    "epsilon": finite(level.epsilon),
                    "adversary": str(adversary),
                    "attack": attack,
                }
                found.append({**cell, **_curve(simulated, k, adversary, attack)})
    return found


def _curve(simulated: Simulated, level: int, adversary: Adversary, attack: str) -> dict[str, Json]:
    """Return how many nodes were attacked in a cell, and the metrics that it has."""
    scores = simulated.scores(level, adversary, attack)
    found: dict[str, Json] = {
        "attacked": len(scores),
        "refused": len(simulated.refused(level, adversary, attack)),
    }
    images = float(sum(len(score.matched) for score in scores))
    for metric in METRICS:
        values = simulated.values(metric, level, adversary, attack)
        if values is not None:
            found[metric] = {"images": images, **values}
    return found


def finite(value: float | None) -> float | str | None:
    """Return the number, or the text ``inf``.

    Args:
        value: A number; None stays None.
    """
    return "inf" if value == math.inf else value
