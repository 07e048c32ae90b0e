"""The record of an audit: attack findings as of any attack, each with its place in the grid, and the verdicts beside them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict

from leakaudit.auditing.judge import Judged
from leakaudit.auditing.levels import Level, short
from leakaudit.auditing.plan import AuditPlan
from leakaudit.auditing.promise import Promise
from leakaudit.auditing.simulate import Simulated
from leakaudit.results import findings
from leakaudit.trace import Json
from leakaudit.verdict import Verdict

METRICS = ("psnr", "ssim", "relative_error")
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
    """Return everything that results.json holds."""
    entries = []
    for one, image in zip(simulated.outcomes, images, strict=True):
        cell = {"epsilon": finite(grid[one.level].epsilon), "seed": one.seed}
        entries.append({**findings.finding(one.leak, one.found, one.score, image), "cell": cell})
    left_out = [
        f"{s.attack} at epsilon {grid[s.level].words}, {s.adversary}, node {s.node}: {s.why}"
        for s in simulated.skipped
    ]
    left_out = list(dict.fromkeys(left_out))  # the same in several runs
    left_out += ["adversaries, attacks and epsilons that are not in the plan"]
    record = findings.build(
        simulated.trace,
        entries,
        [],
        left_out,
        provenance,
        lpips=lpips,
        picture=picture,
        complete=simulated.complete,
    )
    verdicts = [_verdict(grid, one) for one in judged]
    delta = grid[0].delta
    return {
        **record,
        "kind": "audit",
        "summary": sentence(verdicts, simulated.complete),
        "audit": {
            "alpha": plan.alpha,
            "delta": delta,
            "grid": [
                {
                    "epsilon": finite(g.epsilon),
                    "constants": dict(g.constants),
                    "views": [v.to_json() for v in g.views],
                }
                for g in grid
            ],
            "curves": _curves(plan, grid, simulated),
            "verdicts": verdicts,
            "figure": figure,
        },
    }


def sentence(verdicts: Sequence[Mapping[str, Json]], complete: bool) -> str:
    """Say the worst first, and how many of each."""
    counts = {v: sum(one["verdict"] == v.name for one in verdicts) for v in ORDER}
    telling = [
        one
        for one in verdicts
        if one["verdict"] != "INCONCLUSIVE" or one["needs"] or one["p"] is None
    ] or verdicts
    some = next((one for v in ORDER for one in telling if one["verdict"] == v.name), None)
    parts = []
    if some is not None:
        where = f"{some['test']} at epsilon {words(some['epsilon'])}, heard by {some['adversary']}"
        parts.append(f"{Verdict[some['verdict']].words}: {where}: {some['says']}")
    parts.append(
        ", ".join(f"{n} {v.words}" for v, n in counts.items() if n) or "nothing was tested"
    )
    parts += [] if complete else ["the run was interrupted and is not complete"]
    return "; ".join(parts) + ". NOT REFUTED is no proof of privacy."


def words(epsilon: Json) -> str:
    """An epsilon of the record, for tables."""
    return "as configured" if epsilon is None else "inf" if epsilon == "inf" else short(epsilon)


def _verdict(grid: Sequence[Level], one: Judged) -> dict[str, Json]:
    t = one.test
    return {
        "epsilon": finite(grid[t.level].epsilon),
        "adversary": t.adversary,
        "node": t.node,
        "test": t.test,
        "attack": t.attack,
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
    found = []
    for k, level in enumerate(grid):
        for who in plan.adversaries:
            for attack in plan.attacks:
                scores = simulated.scores(k, who, attack)
                counts = {
                    "attacked": len(scores),
                    "refused": len(simulated.refused(k, who, attack)),
                }
                images = float(sum(len(score.matched) for score in scores))
                values = {m: simulated.values(m, k, who, attack) for m in METRICS}
                kept = {m: {"images": images, **v} for m, v in values.items() if v is not None}
                found.append(
                    {
                        "epsilon": finite(level.epsilon),
                        "adversary": who,
                        "attack": attack,
                        **counts,
                        **kept,
                    }
                )
    return found


def finite(value: float | None) -> float | str | None:
    """Return the number, or the text ``inf``."""
    return "inf" if value == math.inf else value
