"""`leakaudit explain`: what an adversary determines of a node, and the formula."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leakaudit.cli._options import say, settings, shared
from leakaudit.cli.listen import listener, listening

if TYPE_CHECKING:
    from leakaudit.extraction.explanation import ExplainedRow, Explanation

NOTE = (
    "g[i,t]: the gradient of node i that round t uses. Formulas are exact; -f json holds them "
    "whole. "
    "What is not determined here is not proved to be private."
)
LONG = 160  # characters of a formula in a table


def add(verbs: Any) -> None:
    """Describe the verb.

    Args:
        verbs: The subparsers of `leakaudit`.
    """
    sub = verbs.add_parser(
        "explain",
        help="what is determined of a node's gradients, by which formula, and how exactly",
    )
    sub.add_argument("trace", type=Path, help="trace file or folder")
    listening(sub)
    sub.add_argument(
        "--node",
        type=int,
        action="append",
        help="node to explain; repeatable (default a line for every node)",
    )
    sub.add_argument(
        "--gradients",
        type=int,
        default=16,
        metavar="N",
        help="gradients of a node that are looked at (default 16)",
    )
    sub.add_argument(
        "-f", "--format", choices=("text", "json"), default="text", help="default text"
    )
    sub.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="FILE",
        help="also draw the combinations over the rounds, as PNG, SVG or PDF by the file's suffix",
    )
    shared(sub, "threads")
    sub.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print a table a node, or a line a node where none is named.

    Args:
        args: The parsed arguments.

    Returns:
        The exit code.
    """
    from leakaudit.extraction import explanation
    from leakaudit.rendering import console
    from leakaudit.traces import trace_file

    if args.output is not None:
        from leakaudit.rendering import plots

        plots.expect_suffix(args.output)
    chosen = settings(args)
    trace = trace_file.load(args.trace)
    with console.shown(chosen.progress):
        found = explanation.explain(trace, listener(args), args.node, args.gradients)
    if args.output is not None:
        from leakaudit.rendering import explanation_chart, plots

        plots.save(explanation_chart.combinations(found), args.output)
        say(f"{args.output}: written", args)
    if args.format == "json":
        sys.stdout.write(json.dumps([e.to_json() for e in found], indent=2) + "\n")
    elif args.node is None:
        for one in found:
            sys.stdout.write(f"{one.summary}\n" + (f"  {one.scope}\n" if one.scope else ""))
    else:
        for one in found:
            _table(one)
    return 0


def _table(one: Explanation) -> None:
    """Print one node's combinations with their formulas."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from leakaudit.rendering import console

    out = console.stdout()
    heading = one.summary
    if one.rows:
        heading += f", as {one.adversary} hears it"
    out.print(Text(heading, style="bold"))
    if one.scope:
        out.print(Text(one.scope))
    if not one.rows:
        return
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("combination", overflow="fold")
    table.add_column("relative noise", overflow="fold", justify="right")
    table.add_column("amplification", overflow="fold", justify="right")
    table.add_column("computed as", overflow="fold")
    for row in one.rows:
        table.add_row(
            row.combination,
            _noise(row),
            f"{row.amplification:.3g}",
            _shortened(row.formula),
        )
    out.print(table)
    out.print(Text(NOTE, style="dim"))


def _noise(row: ExplainedRow) -> str:
    """Return the noise relative to the value, and whether the value is lost in it."""
    relative = f"{row.std / row.size:.1e}" if row.size else "-"
    if row.formal:
        return f"{relative} formal only"
    return relative


def _shortened(formula: str) -> str:
    """Return a formula, cut after a whole term if it is too long for a table."""
    if len(formula) <= LONG:
        return formula
    whole_terms = formula[:LONG].rsplit(" ", 1)[0]
    return f"{whole_terms} …"
