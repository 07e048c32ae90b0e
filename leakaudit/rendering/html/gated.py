"""A gate on the page: its rules by kind, and what each node gave away in each check."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TypedDict

from msgspec.structs import asdict

from leakaudit.rendering.html.shades import Scene, Shade, shaded, shaded_best
from leakaudit.results import grading
from leakaudit.results.grading import CONTROLS
from leakaudit.results.model import CheckRecord, RuleEntry, RunRecord, given

# Rules of a kind that are all shown; of more, those within their limits are folded. A choice.
FEW = 8
KINDS = {"Budgets and baseline": ("budget", "baseline"), "Lint": ("lint",), "Controls": CONTROLS}
MEANT = {
    "Budgets and baseline": "",
    "Lint": "Each check's first recording, against what it declares and claims itself.",
    "Controls": (
        "The recording, which must be of the declared protocol and of its own truth; "
        "planted leaks, which each attack must solve; "
        "and scores against the records of others, which may match by chance only."
    ),
}


class Group(TypedDict):
    """Rules of some kinds, for the template.

    Attributes:
        name: Heading.
        meant: What the rules test, "" if the heading tells.
        rules: Those that are shown at once.
        fine: Those within their limits, folded.
        counted: Whether any rule has a value, a limit or a p-value.
        count: Number of all.
    """

    name: str
    meant: str
    rules: list[Mapping[str, object]]
    fine: list[Mapping[str, object]]
    counted: bool
    count: int


def tables(record: RunRecord) -> Mapping[str, object] | None:
    """Return a gate's rules by kind, and what was accepted.

    Args:
        record: Any record.

    Returns:
        What the template shows; None for a record that is not a gate's.
    """
    if not isinstance(record, CheckRecord):
        return None
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
        "acceptances": list(gate.acceptances.items()),
    }


def _group(name: str, some: list[RuleEntry]) -> Group:
    rules: list[Mapping[str, object]] = []
    fine: list[Mapping[str, object]] = []
    for rule in some:
        level = grading.RULES.get(rule.status, "note")
        word = rule.status.replace("_", " ").lower()
        row = {**asdict(rule), "word": word, "level": level}
        if level == "note" and len(some) > FEW:
            fine.append(row)
        else:
            rules.append(row)
    counted = any((r.value, r.limit, r.p) != (None, None, None) for r in some)
    return Group(
        name=name, meant=MEANT[name], rules=rules, fine=fine, counted=counted, count=len(some)
    )


def checks(record: CheckRecord) -> Iterator[tuple[str, Scene]]:
    """Yield what the nodes gave away in each check.

    Args:
        record: Of a gate.

    Yields:
        Name of the check, and its network.
    """
    for name, network in given(record.gate.networks, {}).items():
        shades: list[Shade] = []
        others: list[str] = []
        for cell in record.gate.cells:
            if cell.check == name:
                for one in given(cell.nodes, ()):
                    shades.append(shaded_best(one, cell.adversary))
                others += [cell.adversary] * len(cell.reasons)
        yield name, Scene(network, tuple(shades), tuple(others))


def scene(record: RunRecord) -> Scene:
    """Return what the nodes gave away.

    Args:
        record: Any record.

    Returns:
        Of a gate the check that the worst rule is of, of another record everything.
    """
    if isinstance(record, CheckRecord):
        every = dict(checks(record))
        first = _worst_check(record, every)
        if first is not None:
            return every[first]
    return Scene(
        record.trace,
        tuple(map(shaded, record.findings)),
        tuple(one.adversary for one in record.undetermined),
    )


def _worst_check(record: CheckRecord, every: Mapping[str, Scene]) -> str | None:
    """The check of the first rule; the first check if that rule is of none."""
    gate = record.gate
    if gate.rules:
        name = gate.rules[0].cell
        for check in every:
            # Of a cell, or of a recording as a whole: "check/lint".
            cells = {cell.name for cell in gate.cells if cell.check == check}
            if name in cells or name in (f"{check}/lint", f"{check}/recording"):
                return check
    return next(iter(every), None)
