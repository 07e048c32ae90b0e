"""A gate as text for a terminal, and as Markdown for the summary of a job.

Rules with the same cause, such as several limits on one attack, form a block below what leaked.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from rich.console import RenderableType
from rich.text import Text

from leakaudit._util.plural import counted
from leakaudit.reporting.findings.grading import RULES
from leakaudit.reporting.findings.wording import (
    clean,
    figure,
    gate_headline,
    is_reconstruction,
    measured,
    outcome_word,
    rule_name,
)
from leakaudit.reporting.rendering import markdown as md
from leakaudit.reporting.rendering.console import printed
from leakaudit.reporting.rendering.tables import Column, indented, table
from leakaudit.reporting.results.model import (
    CellEntry,
    CheckRecord,
    Extended,
    GatePart,
    RuleEntry,
    RuleKind,
    RuleStatus,
    decoded,
    given,
)

STYLES = {"error": "bold red", "warning": "yellow", "note": "green"}
VERBOSE = "-v lists them"  # option of `leakaudit check` and `leakaudit report`
# Outcomes that need nobody's attention; a terminal counts them.
_FINE = (RuleStatus.OK, RuleStatus.UNTESTED)
# Outcomes whose figures do not say everything, so that the sentence follows.
_EXPLAINED = (RuleStatus.TOO_FEW_SEEDS, RuleStatus.ACCEPTED, RuleStatus.INCONCLUSIVE)
_LIMITS = (RuleKind.BUDGET, RuleKind.BASELINE)
_INDENT = 2
_COLUMNS = (
    Column("outcome"),
    Column("measure", text=True),
    Column("measured", right=True),
    Column("allowed", right=True),
    Column("p", right=True, spare=True),
)


def text(
    record: CheckRecord, width: int | None = None, verbose: bool = False
) -> list[RenderableType]:
    """Return the summary, then one block per cause, the most severe first."""
    gate = record.gate
    parts: list[RenderableType] = [Text(clean(record.summary), style="bold"), Text()]
    parts += _blocks(gate, width, _FINE)
    fine = [rule for rule in gate.rules if rule.status in _FINE]
    if verbose:
        parts += _listed(fine)
    elif fine:
        parts.append(Text(_count(fine), style="green"))
    parts += map(Text, _notes(record))
    return parts


def markdown(record: CheckRecord) -> str:
    """Return the summary, what leaked, and the rules as a Markdown page."""
    gate = record.gate
    rows = []
    for rule in gate.rules:
        what = rule_name(rule)
        if not says_all(rule):
            what = _said(rule).plain
        rows.append((outcome_word(rule), rule.cell, what, *figures(rule)))
    headings = ("outcome", "cell", "rule", "measured", "allowed", "p")
    parts = [
        f"# Leakage gate: {gate.verdict}",
        f"**{md.escape(record.summary)}**",
        md.items(leaks(gate)),
        md.table(headings, rows),
        md.items(_notes(record)),
    ]
    return "\n\n".join(filter(None, parts)) + "\n"


def leaks(gate: GatePart) -> list[str]:
    """Return what the attacks recovered that exceeds a limit, once per cell."""
    cells = _cells(gate)
    found = []
    for cell, rules in _causes(gate, _FINE):
        leak = _leak(rules, cells.get(cell))
        if leak:
            found.append(f"{cell}: {leak}")
    return found


def says_all(rule: RuleEntry) -> bool:
    """Return whether the figures of a rule say everything, beside what leaked from its cell."""
    known = is_reconstruction(rule) and rule.value is not None
    return known and rule.status not in _EXPLAINED


def failure(gate: GatePart, complete: bool, seeds: int) -> str:
    """Return the message of a failed test: the summary, then the rules that are violated."""
    summary = Text(gate_headline(gate, complete, seeds))
    blocks = _blocks(gate, None, (*_FINE, RuleStatus.ACCEPTED))
    return printed([summary, Text(), *blocks], None, False).rstrip("\n")


# --- blocks -----------------------------------------------------------------------------------


def _blocks(
    gate: GatePart, width: int | None, omitted: Sequence[RuleStatus]
) -> Iterator[RenderableType]:
    cells = _cells(gate)
    for name, rules in _causes(gate, omitted):
        cell = cells.get(name)
        yield _heading(name, cell)
        leak = _leak(rules, cell)
        if leak:
            yield indented(Text(leak), width, _INDENT)
        rows = []
        for rule in rules:
            if is_reconstruction(rule) and rule.value is not None:
                rows.append((_word(rule), measured(rule.measure), *figures(rule)))
        if rows:
            limit = None if width is None else width - _INDENT
            columns = _COLUMNS if any(row[-1] for row in rows) else _COLUMNS[:-1]
            yield _shifted(table(columns, [row[: len(columns)] for row in rows], limit))
        yield from _sentences(rules, width)
        yield Text()


def _causes(
    gate: GatePart, omitted: Sequence[RuleStatus]
) -> Iterator[tuple[str, Sequence[RuleEntry]]]:
    """Yield the rules of each cell, or of a check's lint or recording, with its name.

    The names follow the most severe rule of each.
    """
    found: dict[str, list[RuleEntry]] = {}
    for rule in gate.rules:
        if rule.status not in omitted:
            found.setdefault(rule.cell, []).append(rule)
    yield from found.items()


def _cells(gate: GatePart) -> Mapping[str, CellEntry]:
    return {cell.name: cell for cell in gate.cells}


def _heading(name: str, cell: CellEntry | None) -> Text:
    heading = Text(clean(name), style="bold")
    if cell is not None:
        said = f"check {cell.check}, adversary {cell.adversary}, attack {cell.attack}"
        heading.append(f"  ({clean(said)})", style="not bold dim")
    return heading


def _leak(rules: Iterable[RuleEntry], cell: CellEntry | None) -> str:
    if cell is None or not any(is_reconstruction(rule) for rule in rules):
        return ""
    return clean(cell.says)


def _sentences(rules: Iterable[RuleEntry], width: int | None) -> Iterator[RenderableType]:
    explained = set()
    for rule in rules:
        if is_reconstruction(rule) and rule.value is not None:
            key = (rule.status, rule.accepted)
            if rule.status not in _EXPLAINED or key in explained:
                continue
            explained.add(key)
        yield indented(_sentence(rule), width, _INDENT)


def _listed(rules: Iterable[RuleEntry]) -> Iterator[RenderableType]:
    for rule in rules:
        yield _sentence(rule, f"{clean(rule.cell)}: ")


def _sentence(rule: RuleEntry, cell: str = "") -> Text:
    return _word(rule).append(f"  {cell}").append_text(_said(rule))


def _said(rule: RuleEntry) -> Text:
    """What a rule tests and its outcome; a sentence about a limit names its measure itself."""
    name = rule_name(rule)
    if rule.kind in _LIMITS:
        name = rule.kind.value
    return Text(f"{name}: {clean(rule.says)}")


def _word(rule: RuleEntry) -> Text:
    style = STYLES[RULES.get(rule.status, "note")]
    if rule.status is RuleStatus.UNTESTED:
        style = "dim"
    return Text.assemble((outcome_word(rule), style))


def figures(rule: RuleEntry) -> tuple[str, str, str]:
    """Return the value, the limit and the p-value of a rule with their units."""
    p = decoded(rule.p)
    return (
        _figure(rule.measure, rule.value),
        _figure(rule.measure, rule.limit),
        "" if p is None else f"{p:.2g}",
    )


def _figure(measure: str, value: Extended) -> str:
    number = decoded(value)
    return "" if number is None else figure(measure, number)


def _shifted(lines: Text) -> Text:
    shifted = [Text(" " * _INDENT).append_text(line) for line in lines.split("\n")]
    return Text("\n").join(shifted)


# --- what is not a block ----------------------------------------------------------------------


def _count(fine: Sequence[RuleEntry]) -> str:
    idle = sum(rule.status is RuleStatus.UNTESTED for rule in fine)
    said = []
    if len(fine) > idle:
        said.append(f"{counted(len(fine) - idle, 'rule')} within the limits")
    if idle:
        said.append(f"{counted(idle, 'control')} with nothing to score")
    return f"{', '.join(said)} ({VERBOSE})"


def _notes(record: CheckRecord) -> Iterator[str]:
    for acceptance, state in record.gate.acceptances.items():
        if state == "expired":
            yield f"acceptance {clean(acceptance)} has expired"
        elif state == "unused":
            yield f"acceptance {clean(acceptance)} is not used by any rule"
    for name in record.gate.stale:
        yield f"the baseline contains {clean(name)}, which is no longer measured"
    for cell in record.gate.cells:
        if cell.reasons:
            node, reason = next(iter(cell.reasons.items()))
            count = len(cell.reasons)
            yield clean(f"{cell.name}: {count} nodes not attacked, e.g. node {node}: {reason}")
    for remark in given(record.gate.remarks, ()):
        yield clean(remark)
    if not record.complete:
        yield "the run was interrupted: not every seed was tried"
