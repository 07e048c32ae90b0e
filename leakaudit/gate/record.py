"""A run of a gate as plain values: results.json of kind ``check``, and its summary."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import fmean

from leakaudit import registry
from leakaudit.adversary import Adversary
from leakaudit.errors import LeakauditError
from leakaudit.gate import measures
from leakaudit.gate.baseline import rounded
from leakaudit.gate.cells import Cell, Worst
from leakaudit.gate.config import Acceptance, Check, Gate
from leakaudit.gate.judge import Judged
from leakaudit.gate.rule import CANNOT_TELL, FOUND, Kind, Rule, Status
from leakaudit.gate.rules import whom
from leakaudit.gate.runs import values
from leakaudit.lint import NAMES
from leakaudit.results import provenance
from leakaudit.results.findings import finite
from leakaudit.results.record_file import SCHEMA, VERSION
from leakaudit.results.wording import clean
from leakaudit.scoring import scoring
from leakaudit.trace import Json

WORDS = {0: "pass", 1: "leak", 3: "cannot tell"}
LIMIT = (
    "A pass means that these attacks stayed within these limits on these seeds; "
    "it is no proof of privacy."
)
# Outcomes from the worst to the best, as a reader sees them.
_ORDER = (
    *FOUND,
    *CANNOT_TELL,
    Status.INCONCLUSIVE,
    Status.WARNING,
    Status.ACCEPTED,
    Status.OK,
    Status.UNTESTED,
)
_CODES = {f"P{number:02d}": named for number, named in NAMES.items()}  # pitfall -> its name and fix


@dataclass(frozen=True)
class NotTried:
    """Something that the configuration leaves out.

    Attributes:
        says: in words.
        nodes: numbers of the nodes that it names.
    """

    says: str
    nodes: tuple[int, ...] = ()


def build(judged: Judged) -> dict[str, Json]:
    """Return results.json.

    Args:
        judged: a run of a gate.

    Raises:
        LeakauditError: nothing was recorded.
    """
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
        "not_tried": [one.says for one in not_tried(judged.gate)],
        "metrics": {
            **{name: measure.means for name, measure in measures.MEASURES.items()},
            **scoring.definitions(trace.task),
        },
        "picture": None,
        "location": judged.gate.source,
        "gate": {
            "code": judged.code,
            "verdict": WORDS[judged.code],
            "strict": judged.options.strict,
            "cells": [_cell(cell, judged) for cell in judged.cells],
            "rules": list(map(_rule, ordered(judged.rules))),
            "networks": dict(judged.networks),
            "pitfalls": _pitfalls(judged.rules),
            "acceptances": dict(judged.acceptances),
            "stale": list(judged.stale),
        },
        "provenance": origin,
    }


def not_tried(gate: Gate) -> list[NotTried]:
    """Return what the configuration leaves out: attacks, adversaries, nodes and gradients.

    Args:
        gate: its checks.
    """
    used = {attack for check in gate.checks for attack in check.attacks}
    left_out: list[NotTried] = []
    if "auto" not in used:
        unused = [name for name in registry.names("attacks") if name not in used]
        left_out += [NotTried(f"attack {name}") for name in unused]
    left_out.append(_other_adversaries(gate.checks))
    for check in gate.checks:
        if check.nodes is not None:
            numbers = ", ".join(map(str, check.nodes))
            says = f"check {check.name}: other nodes than {numbers}"
            left_out.append(NotTried(says, check.nodes))
    for check in gate.checks:
        if check.gradients is not None:
            left_out.append(NotTried(f"check {check.name}: more than {check.gradients} gradients"))
    return left_out


def _other_adversaries(checks: Sequence[Check]) -> NotTried:
    tried = dict.fromkeys(who for check in checks for who in check.adversaries)
    nodes = {node for who in tried for node in Adversary.parse(who).corrupt}
    return NotTried(f"other adversaries than {', '.join(tried)}", tuple(sorted(nodes)))


# --- configuration --------------------------------------------------------------------------------


def settings(gate: Gate, seed: int) -> dict[str, Json]:
    """Return the effective configuration as plain values.

    Args:
        gate: the configuration.
        seed: the first one.
    """
    return {
        "seeds": gate.seeds,
        "alpha": gate.alpha,
        "baseline": gate.baseline,
        "compare": list(gate.compare),
        "tolerance": dict(gate.tolerance),
        "seed": seed,
        "checks": list(map(_check, gate.checks)),
        "budgets": [asdict(budget) for budget in gate.budgets],
        "accepted": list(map(_acceptance, gate.accepted)),
    }


def _check(check: Check) -> dict[str, Json]:
    return {
        "name": check.name,
        "gradients": check.gradients,
        "sensitivity": check.sensitivity,
        "delta": check.delta,
        "smoothness": check.smoothness,
        "lint": check.lint,
        "timeout": check.timeout,
        "adversaries": list(check.adversaries),
        "attacks": list(check.attacks),
        "secure": list(check.secure),
        "undetermined": list(check.undetermined),
        "nodes": None if check.nodes is None else list(check.nodes),
        "set": {attack: dict(values) for attack, values in check.set.items()},
        **values(check),
    }


def _acceptance(acceptance: Acceptance) -> dict[str, Json]:
    return {**asdict(acceptance), "expires": acceptance.expires.isoformat()}


# --- sentences ------------------------------------------------------------------------------------


def ordered(rules: Sequence[Rule]) -> list[Rule]:
    """Return rules, the worst first.

    Args:
        rules: in any order, which rules of one status keep.
    """
    rank = {status: place for place, status in enumerate(_ORDER)}
    return sorted(rules, key=lambda rule: rank[rule.status])


def summary(judged: Judged) -> str:
    """Return one sentence on what the gate found, the worst case first.

    Args:
        judged: a run of a gate.
    """
    rules = ordered(judged.rules)
    count = _count(judged)
    if judged.code == 1 and rules:
        worst = rules[0]
        if worst.status is Status.CONTRADICTED:
            return clean(f"Not as declared: {worst.cell}: {worst.says}. {count}.")
        return clean(f"Leak: {worst.cell}: {worst.status.value}: {worst.says}. {count}.")
    if judged.code == 3:
        return clean(f"The gate cannot tell: {_why_not(judged, rules)}. {count}.")
    accepted = sum(rule.status is Status.ACCEPTED for rule in rules)
    also = f", {accepted} accepted" if accepted else ""
    return clean(f"Nothing over the limits{also}: {count}. {LIMIT}")


def _count(judged: Judged) -> str:
    """Say how many rules were judged, on how many cells and seeds."""
    idle = sum(rule.status is Status.UNTESTED for rule in judged.rules)
    judging = len(judged.rules) - idle
    count = f"{judging} rules on {len(judged.cells)} cells, {judged.gate.seeds} seeds"
    if not idle:
        return count
    plural = "s" if idle != 1 else ""
    return f"{count}, {idle} control{plural} with nothing to score"


def _why_not(judged: Judged, rules: Sequence[Rule]) -> str:
    """Say why the gate cannot tell."""
    if not judged.complete:
        return "the run was cut short"
    for rule in rules:
        if rule.status in (*CANNOT_TELL, Status.INCONCLUSIVE):
            return f"{rule.cell}: {rule.says}"
    return ""


# --- the record's own values ----------------------------------------------------------------------


def _pitfalls(rules: Sequence[Rule]) -> dict[str, Json]:
    """Return the name and the fix of each pitfall that the lint or a recording shows."""
    shown = {rule.measure for rule in rules if rule.kind in (Kind.LINT, Kind.RECORDING)}
    found: dict[str, Json] = {}
    for code in sorted(shown & _CODES.keys()):
        name, fix = _CODES[code]
        found[code] = {"name": name, "fix": fix}
    return found


def _cell(cell: Cell, judged: Judged) -> dict[str, Json]:
    priced = judged.priced.get((cell.check.name, cell.who))
    epsilon = None
    if priced is not None and priced.epsilon is not None:
        epsilon = _number(priced.epsilon.value)
    return {
        "name": cell.name,
        "check": cell.check.name,
        "adversary": cell.who,
        "attack": cell.attack,
        "digest": cell.digest(),
        "seeds": list(cell.seeds),
        "measures": {name: _column(samples) for name, samples in cell.samples.items()},
        "epsilon": epsilon,
        "rounds_priced": judged.rounds.get(cell.check.name),
        "worst": None if cell.worst is None else _worst(cell.worst),
        "nodes": [_worst(one) for _, one in sorted(cell.nodes.items())],
        "says": whom(cell),
        "reasons": {str(node): reason for node, reason in sorted(cell.reasons.items())},
        "seconds": cell.seconds,
    }


def _column(samples: Sequence[float]) -> dict[str, Json]:
    return {
        "samples": list(map(rounded, samples)),
        "mean": fmean(samples),
        "worst": max(samples),
    }


def _worst(one: Worst) -> dict[str, Json]:
    return {
        key: finite(value) if isinstance(value, float) else value
        for key, value in asdict(one).items()
    }


def _rule(rule: Rule) -> dict[str, Json]:
    return {
        "kind": rule.kind.value,
        "cell": rule.cell,
        "measure": rule.measure,
        "says": rule.says,
        "accepted": rule.accepted,
        "value": _number(rule.value),
        "limit": _number(rule.limit),
        "p": _number(rule.p),
        "status": rule.status.name,
    }


def _number(value: float | None) -> float | str | None:
    """Return a number as JSON can hold it."""
    return "inf" if value == math.inf else value
