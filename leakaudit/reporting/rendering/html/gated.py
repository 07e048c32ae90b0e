"""A gate on the page: its rules by kind, and what was recovered from each node in each check."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain
from typing import TypedDict

from leakaudit.reporting.findings import grading
from leakaudit.reporting.findings.grading import CONTROLS
from leakaudit.reporting.findings.wording import outcome_word, rule_name
from leakaudit.reporting.rendering.html.shades import NetworkScene, Shade, shaded, shaded_best
from leakaudit.reporting.results.model import CheckRecord, RuleEntry, RunRecord, given

# Up to this number of rules of a kind, all are expanded; otherwise, those within their limits are
# collapsed. A choice.
FEW = 8
KINDS = {"Budgets and baseline": ("budget", "baseline"), "Lint": ("lint",), "Controls": CONTROLS}
MEANT = {
    "Budgets and baseline": "",
    "Lint": "The first recording of each check, compared with what it declares and claims.",
    "Controls": (
        "The recording, which must follow the declared protocol and match its truth; "
        "planted leaks, which each attack must solve; "
        "and scores against the records of other nodes, which may match only by chance."
    ),
}


class _RuleGroup(TypedDict):
    """Rules of some kinds, for the template."""

    name: str
    meant: str  # what the rules test, "" if the heading is clear
    rules: list[Mapping[str, object]]
    fine: list[Mapping[str, object]]  # the rules within their limits, collapsed
    counted: bool  # whether any rule has a value, a limit or a p-value
    count: int  # number of all rules


def tables(record: RunRecord) -> Mapping[str, object] | None:
    """Return a gate's rules by kind, and what was accepted."""
    if not isinstance(record, CheckRecord):
        return None
    from leakaudit.reporting.rendering import (
        gate_text,  # imports rich, which other pages do without
    )

    gate = record.gate
    groups = []
    for name, kinds in KINDS.items():
        some = [rule for rule in gate.rules if rule.kind in kinds]
        if some:
            groups.append(_group(name, some))
    return {
        "verdict": gate.verdict,
        "stale": gate.stale,
        "groups": groups,
        "leaks": gate_text.leaks(gate),
        "acceptances": list(gate.acceptances.items()),
    }


def _group(name: str, some: list[RuleEntry]) -> _RuleGroup:
    from leakaudit.reporting.rendering import gate_text

    rules: list[Mapping[str, object]] = []
    fine: list[Mapping[str, object]] = []
    for rule in some:
        level = grading.RULES.get(rule.status, "note")
        word = outcome_word(rule)
        value, limit, p = gate_text.figures(rule)
        row = {
            "word": word,
            "level": level,
            "cell": rule.cell,
            "name": rule_name(rule),
            "value": value,
            "limit": limit,
            "p": p,
            "says": "" if gate_text.says_all(rule) else rule.says,
            "accepted": rule.accepted,
        }
        if level == "note" and len(some) > FEW:
            fine.append(row)
        else:
            rules.append(row)
    counted = any((r.value, r.limit, r.p) != (None, None, None) for r in some)
    return _RuleGroup(
        name=name, meant=MEANT[name], rules=rules, fine=fine, counted=counted, count=len(some)
    )


def checks(record: CheckRecord) -> Iterator[tuple[str, NetworkScene]]:
    """Yield what was recovered from the nodes in each check."""
    for name, network in given(record.gate.networks, {}).items():
        shades: list[Shade] = []
        others: list[str] = []
        for cell in record.gate.cells:
            if cell.check == name:
                for one in given(cell.nodes, ()):
                    shades.append(shaded_best(one, cell.adversary))
                others += [cell.adversary] * len(cell.reasons)
        yield name, NetworkScene(network, tuple(shades), tuple(others))


def scene(record: RunRecord) -> NetworkScene:
    """Return what was recovered from the nodes."""
    if isinstance(record, CheckRecord):
        every = dict(checks(record))
        first = _worst_check(record, every)
        if first is not None:
            return every[first]
    return NetworkScene(
        record.trace,
        tuple(chain.from_iterable(map(shaded, record.findings))),
        tuple(one.adversary for one in record.undetermined),
    )


def _worst_check(record: CheckRecord, every: Mapping[str, NetworkScene]) -> str | None:
    gate = record.gate
    if gate.rules:
        name = gate.rules[0].cell
        for check in every:
            # The name of a cell, or of a rule about a whole recording, such as "check/lint".
            cells = {cell.name for cell in gate.cells if cell.check == check}
            if name in cells or name in (f"{check}/lint", f"{check}/recording"):
                return check
    return next(iter(every), None)
