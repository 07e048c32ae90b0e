"""A run of a gate as plain values: results.json of kind ``check``, and the lines that a reader sees first."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from statistics import fmean

from leakaudit import registry
from leakaudit.errors import LeakauditError
from leakaudit.gate import measures
from leakaudit.gate.baseline import rounded
from leakaudit.gate.cells import Cell, Worst
from leakaudit.gate.config import Gate
from leakaudit.gate.judge import Judged
from leakaudit.gate.rules import CANNOT_TELL, FOUND, Rule, Status, whom
from leakaudit.gate.runs import values
from leakaudit.lint import NAMES
from leakaudit.results import provenance
from leakaudit.results.findings import finite
from leakaudit.results.record_file import SCHEMA, VERSION
from leakaudit.results.wording import clean
from leakaudit.scoring import scoring
from leakaudit.trace import Json

WORDS = {0: "pass", 1: "leak", 3: "cannot tell"}
LIMIT = "A pass means that these attacks stayed within these limits on these seeds; it is no proof of privacy."


def build(judged: Judged) -> dict[str, Json]:
    """Return results.json; raises LeakauditError where nothing was recorded."""
    if judged.first is None:
        raise LeakauditError("the run was interrupted before the first recording")
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
        "trace": next(iter(judged.networks.values())),
        "findings": [],
        "undetermined": [],
        "not_tried": _not_tried(judged),
        "metrics": {
            **{n: m.means for n, m in measures.MEASURES.items()},
            **scoring.definitions(trace.task),
        },
        "picture": None,
        "location": judged.gate.source,
        "gate": {
            "code": judged.code,
            "verdict": WORDS[judged.code],
            "strict": judged.options.strict,
            "cells": [_cell(c, judged) for c in judged.cells],
            "rules": [_rule(r) for r in ordered(judged.rules)],
            "networks": dict(judged.networks),
            "pitfalls": {
                c: dict(zip(("name", "fix"), NAMES[int(c[1:])], strict=True))
                for c in sorted(_codes(judged))
            },
            "acceptances": dict(judged.acceptances),
            "stale": list(judged.stale),
        },
        "provenance": origin,
    }


def _not_tried(judged: Judged) -> list[str]:
    """Say what the configuration leaves out: attacks by name, adversaries and nodes in words."""
    checks = judged.gate.checks
    used = {attack for check in checks for attack in check.attacks}
    out = [
        f"attack {name}"
        for name in registry.names("attacks")
        if name not in used and "auto" not in used
    ]
    out += [
        f"other adversaries than {', '.join(dict.fromkeys(who for check in checks for who in check.adversaries))}"
    ]
    out += [
        f"check {c.name}: other nodes than {', '.join(map(str, c.nodes))}"
        for c in checks
        if c.nodes is not None
    ]
    return out + [
        f"check {c.name}: more than {c.gradients} gradients"
        for c in checks
        if c.gradients is not None
    ]


def settings(gate: Gate, seed: int) -> dict[str, Json]:
    """Return the effective configuration as plain values."""
    checks = []
    for check in gate.checks:
        plain = {
            k: getattr(check, k)
            for k in ("name", "gradients", "sensitivity", "delta", "smoothness", "lint", "timeout")
        }
        lists = {
            k: list(getattr(check, k)) for k in ("adversaries", "attacks", "secure", "undetermined")
        }
        nodes = check.nodes and list(check.nodes)
        checks.append(
            {
                **plain,
                **lists,
                "nodes": nodes,
                "set": {k: dict(v) for k, v in check.set.items()},
                **values(check, gate.folder),
            }
        )
    accepted = [{**asdict(a), "expires": a.expires.isoformat()} for a in gate.accepted]
    rest = {k: getattr(gate, k) for k in ("seeds", "alpha", "baseline")} | {
        "compare": list(gate.compare),
        "tolerance": dict(gate.tolerance),
    }
    return {
        **rest,
        "seed": seed,
        "checks": checks,
        "budgets": [asdict(b) for b in gate.budgets],
        "accepted": accepted,
    }


_REST = (Status.INCONCLUSIVE, Status.WARNING, Status.ACCEPTED, Status.OK, Status.UNTESTED)


def ordered(rules: list[Rule]) -> list[Rule]:
    """Return the rules, the worst first."""
    rank = {s: k for k, s in enumerate((*FOUND, *CANNOT_TELL, *_REST))}
    return sorted(rules, key=lambda r: rank[r.status])


def summary(judged: Judged) -> str:
    """Say in one sentence what the gate found, the worst case first."""
    worst = ordered(judged.rules)[0] if judged.rules else None
    idle = sum(r.status is Status.UNTESTED for r in judged.rules)
    count = (
        f"{len(judged.rules) - idle} rules on {len(judged.cells)} cells, {judged.gate.seeds} seeds"
    )
    count += f", {idle} control{'s' * (idle != 1)} with nothing to score" if idle else ""
    if judged.code == 1 and worst is not None:
        if worst.status is Status.CONTRADICTED:
            return clean(f"Not as declared: {worst.cell}: {worst.says}. {count}.")
        return clean(f"Leak: {worst.cell}: {worst.status.value}: {worst.says}. {count}.")
    if judged.code == 3:
        cut = "the run was cut short" if not judged.complete else ""
        why = next(
            (
                f"{r.cell}: {r.says}"
                for r in ordered(judged.rules)
                if r.status in (*CANNOT_TELL, Status.INCONCLUSIVE)
            ),
            cut,
        )
        return clean(f"The gate cannot tell: {cut or why}. {count}.")
    accepted = sum(r.status is Status.ACCEPTED for r in judged.rules)
    return clean(
        f"Nothing over the limits{f', {accepted} accepted' if accepted else ''}: {count}. {LIMIT}"
    )


def _codes(judged: Judged) -> set[str]:
    """Return the pitfalls that are rules, of the lint and of the recordings."""
    known = {f"P{number:02d}" for number in NAMES}
    return {r.measure for r in judged.rules if r.kind in ("lint", "recording")} & known


def _cell(cell: Cell, judged: Judged) -> dict[str, Json]:
    epsilon, _ = judged.epsilon.get(f"{cell.check.name}/{cell.who}", (None, 0))
    columns = {
        n: {"samples": [rounded(v) for v in s], "mean": fmean(s), "worst": max(s)}
        for n, s in cell.samples.items()
    }
    return {
        "name": cell.name,
        "check": cell.check.name,
        "adversary": cell.who,
        "attack": cell.attack,
        "digest": cell.digest(),
        "seeds": list(cell.seeds),
        "measures": columns,
        "epsilon": "inf" if epsilon == float("inf") else epsilon,
        "rounds_priced": judged.rounds.get(cell.check.name),
        "worst": None if cell.worst is None else _worst(cell.worst),
        "nodes": [_worst(one) for _, one in sorted(cell.nodes.items())],
        "says": whom(cell),
        "reasons": {str(n): r for n, r in sorted(cell.reasons.items())},
        "seconds": cell.seconds,
    }


def _worst(one: Worst) -> dict[str, Json]:
    return {k: finite(v) if isinstance(v, float) else v for k, v in asdict(one).items()}


def _rule(rule: Rule) -> dict[str, Json]:
    plain: Mapping[str, Json] = {
        k: getattr(rule, k) for k in ("kind", "cell", "measure", "says", "accepted")
    }
    numbers = {
        k: "inf" if v == float("inf") else v
        for k in ("value", "limit", "p")
        for v in (getattr(rule, k),)
    }
    return {**plain, **numbers, "status": rule.status.name}
