"""A run of a gate as plain values: results.json of kind ``check``, and the lines that a reader sees first."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from statistics import fmean

from leakaudit import provenance, scoring
from leakaudit.errors import LeakauditError
from leakaudit.findings import finite
from leakaudit.gate import measures
from leakaudit.gate.baseline import rounded
from leakaudit.gate.cells import Cell
from leakaudit.gate.config import Gate
from leakaudit.gate.judge import Judged
from leakaudit.gate.rules import CANNOT_TELL, FOUND, Rule, Status, whom
from leakaudit.gate.runs import values
from leakaudit.results import SCHEMA, VERSION
from leakaudit.trace import Json
from leakaudit.wording import clean

WORDS = {0: "pass", 1: "leak", 3: "cannot tell"}
LIMIT = "A pass means that these attacks stayed within these limits on these seeds; it is no proof of privacy."


def build(judged: Judged) -> dict[str, Json]:
    """Return results.json; raises LeakauditError where nothing was recorded."""
    if judged.first is None:
        raise LeakauditError("the run ended before the first recording; give it more --max-seconds")
    trace = judged.first.trace
    origin = provenance.collect(
        trace,
        settings=settings(judged.gate, judged.options.seed),
        seeds={"first": judged.options.seed, "count": judged.gate.seeds},
        device="cpu",
        command=provenance.command(),
        started=judged.started,
        seconds=judged.seconds,
    )
    return {
        "schema": SCHEMA,
        "version": VERSION,
        "kind": "check",
        "complete": judged.complete,
        "summary": summary(judged),
        "trace": {
            "protocol": trace.protocol,
            "nodes": trace.graph.nodes,
            "edges": len(trace.graph.edges),
            "rounds": trace.rounds,
            "data": trace.task.data,
            "model": trace.task.model,
            "shape": list(trace.task.shape),
            "classes": trace.task.classes,
        },
        "findings": [],
        "undetermined": [],
        "not_tried": ["attacks, adversaries and nodes that the configuration does not name"],
        "metrics": {**{n: m.means for n, m in measures.MEASURES.items()}, **scoring.definitions(trace.task)},
        "picture": None,
        "location": judged.gate.source,
        "gate": {
            "code": judged.code,
            "verdict": WORDS[judged.code],
            "strict": judged.options.strict,
            "cells": [_cell(c, judged.epsilon.get(f"{c.check.name}/{c.who}", (None, 0))[0]) for c in judged.cells],
            "rules": [_rule(r) for r in ordered(judged.rules)],
            "acceptances": dict(judged.acceptances),
            "stale": list(judged.stale),
        },
        "provenance": origin,
    }


def settings(gate: Gate, seed: int) -> dict[str, Json]:
    """Return the effective configuration as plain values."""
    checks = []
    for check in gate.checks:
        plain = {k: getattr(check, k) for k in ("name", "gradients", "sensitivity", "delta")}
        lists = {"adversaries": list(check.adversaries), "attacks": list(check.attacks), "nodes": check.nodes and list(check.nodes)}
        checks.append({**plain, **lists, "set": {k: dict(v) for k, v in check.set.items()}, **values(check, gate.folder)})
    accepted = [{**asdict(a), "expires": a.expires.isoformat()} for a in gate.accepted]
    rest = {k: getattr(gate, k) for k in ("seeds", "alpha", "baseline")} | {
        "compare": list(gate.compare),
        "tolerance": dict(gate.tolerance),
    }
    return {**rest, "seed": seed, "checks": checks, "budgets": [asdict(b) for b in gate.budgets], "accepted": accepted}


def ordered(rules: list[Rule]) -> list[Rule]:
    """Return the rules, the worst first."""
    rank = {s: k for k, s in enumerate((*FOUND, *CANNOT_TELL, Status.INCONCLUSIVE, Status.WARNING, Status.ACCEPTED, Status.OK))}
    return sorted(rules, key=lambda r: rank[r.status])


def summary(judged: Judged) -> str:
    """Say in one sentence what the gate found, the worst case first."""
    worst = ordered(judged.rules)[0] if judged.rules else None
    count = f"{len(judged.rules)} rules on {len(judged.cells)} cells, {judged.gate.seeds} seeds"
    if judged.code == 1 and worst is not None:
        return clean(f"Leak: {worst.cell}: {worst.status.value}: {worst.says}. {count}.")
    if judged.code == 3:
        cut = "the run was cut short" if not judged.complete else ""
        why = next((f"{r.cell}: {r.says}" for r in ordered(judged.rules) if r.status in (*CANNOT_TELL, Status.INCONCLUSIVE)), cut)
        return clean(f"The gate cannot tell: {cut or why}. {count}.")
    accepted = sum(r.status is Status.ACCEPTED for r in judged.rules)
    return clean(f"Nothing over the limits{f', {accepted} accepted' if accepted else ''}: {count}. {LIMIT}")


def _cell(cell: Cell, epsilon: float | None) -> dict[str, Json]:
    columns = {n: {"samples": [rounded(v) for v in s], "mean": fmean(s), "worst": max(s)} for n, s in cell.samples.items()}
    worst = None if cell.worst is None else {k: finite(v) if isinstance(v, float) else v for k, v in asdict(cell.worst).items()}
    return {
        "name": cell.name,
        "check": cell.check.name,
        "adversary": cell.who,
        "attack": cell.attack,
        "digest": cell.digest(),
        "seeds": list(cell.seeds),
        "measures": columns,
        "epsilon": "inf" if epsilon == float("inf") else epsilon,
        "worst": worst,
        "says": whom(cell),
        "reasons": {str(n): r for n, r in sorted(cell.reasons.items())},
        "seconds": cell.seconds,
    }


def _rule(rule: Rule) -> dict[str, Json]:
    plain: Mapping[str, Json] = {k: getattr(rule, k) for k in ("kind", "cell", "measure", "says", "accepted")}
    numbers = {k: "inf" if v == float("inf") else v for k in ("value", "limit", "p") for v in (getattr(rule, k),)}
    return {**plain, **numbers, "status": rule.status.name}
