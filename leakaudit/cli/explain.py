"""`leakaudit explain`: which gradients an adversary can compute, and by which formula."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from leakaudit.cli._commands import SharedOptions, command, option
from leakaudit.cli._options import (
    TEXT_OR_JSON,
    TRACE,
    ListenerOptions,
    concluded,
    say,
    settings,
    show,
    show_json,
    show_table,
)
from leakaudit.core.errors import LeakauditError

if TYPE_CHECKING:
    from leakaudit.core.trace import Trace
    from leakaudit.views.extraction.explanation import ExplainedRow, Explanation

NOTE = (
    "g[i,t] is the gradient of node i in round t. The formulas are exact; -f json prints them in "
    "full. A gradient that is not determined here is not proved to be private."
)
LONG = 160  # largest number of characters of a formula in a table


class _Options(SharedOptions):
    settings = ("threads",)

    trace: Path = TRACE
    listener: ListenerOptions
    node: list[int] | None = option(
        "node to explain in detail; repeatable (default: one summary line for every node)"
    )
    gradients: int = option("maximum number of gradients per node", default=16, metavar="N")
    format: str = TEXT_OR_JSON
    output: Path | None = option(
        "draw the combinations by round to this .png, .svg or .pdf file", "-o", metavar="FILE"
    )


@command(
    "explain",
    "show which gradients an adversary can compute, and by which formula",
    "Shows which combinations of a node's gradients follow from the messages that an "
    "adversary observes, by which formula, and how accurately.",
    "leakaudit explain trace.pt",
    "leakaudit explain trace.pt --as node:1 --node 2 -o rows.png",
)
def run(args: _Options) -> int:
    """Print a table for each named node, or one line for every node."""
    from leakaudit.reporting.rendering import console
    from leakaudit.traces import trace_file
    from leakaudit.views.conformance import conformance
    from leakaudit.views.extraction import explanation, hearing
    from leakaudit.views.extraction.deduction import Deduction

    if args.output is not None:
        from leakaudit.reporting.figures import plots

        plots.expect_suffix(args.output)
    chosen = settings(args)
    trace = trace_file.load(args.trace)
    adversary = args.listener.parse()
    with console.shown(chosen.progress):
        found = explanation.explain(trace, adversary, args.node, args.gradients)
        checked = conformance.examine(trace, None, adversary)
    found = [_limited(one, checked.rest.sentences) for one in found]
    unclear = checked.unclear(determined=all(one.rows for one in found))
    unclear += [one.reason for one in found if not one.understood]
    if not any(one.rows or not one.understood for one in found):
        nodes = args.node or hearing.targets(trace, adversary)
        unclear += Deduction(trace, adversary).unexamined(nodes)
    unclear = list(dict.fromkeys(unclear))
    for line in _of_model(trace):
        say(f"MODEL: {line}", args)
    if args.output is not None:
        from leakaudit.reporting.figures import explanation_chart, plots

        plots.save(explanation_chart.combinations(found), args.output)
        say(f"{args.output}: written", args)
    if args.format == "json":
        show_json([{**one.to_json(), "unclear": unclear} for one in found])
    elif args.node is None:
        for one in found:
            show(f"{one.summary}\n" + (f"  {one.scope}\n" if one.scope else ""))
    else:
        for one in found:
            _table(one)
    return concluded(unclear, args.format)


def _limited(one: Explanation, uncompared: list[str]) -> Explanation:
    """Add which rounds were not compared with the declaration."""
    return replace(one, scope="; ".join(filter(None, [one.scope, *uncompared])))


def _of_model(trace: Trace) -> tuple[str, ...]:
    """Return what a program beside a trace means for attacks."""
    if not trace.task.is_program:
        return ()
    from leakaudit.tasks import remarks
    from leakaudit.tasks.task import Task

    try:
        return remarks.of(Task.build(trace.task))
    except LeakauditError as error:
        return (str(error),)


def _table(one: Explanation) -> None:
    from rich.text import Text

    from leakaudit.reporting.rendering import console
    from leakaudit.reporting.rendering.tables import Column

    out = console.stdout()
    heading = one.summary
    if one.rows:
        heading += f", as observed by the adversary {one.adversary}"
    out.print(Text(heading, style="bold"))
    if one.scope:
        out.print(Text(one.scope))
    if not one.rows:
        return
    columns = (
        Column("combination"),
        Column("relative noise", right=True),
        Column("amplification", right=True),
        Column("computed as", text=True),
    )
    cells = []
    for row in one.rows:
        amplification = f"{row.amplification:.3g}"
        cells.append((row.combination, _noise(row), amplification, _shortened(row.formula)))
    show_table(columns, cells)
    out.print(Text(NOTE, style="dim"))


def _noise(row: ExplainedRow) -> str:
    """Return the relative noise, with a mark if it hides the value."""
    relative = f"{row.std / row.size:.1e}" if row.size else "-"
    if row.formal:
        return f"{relative} (formal only)"
    return relative


def _shortened(formula: str) -> str:
    """Cut a formula after a whole term if it is too long for a table."""
    if len(formula) <= LONG:
        return formula
    whole_terms = formula[:LONG].rsplit(" ", 1)[0]
    return f"{whole_terms} …"
