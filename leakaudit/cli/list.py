"""`leakaudit list`: what there is."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from leakaudit.cli._options import say, shared

GROUPS = ("victims", "attacks", "reports", "models", "data", "graphs")


def add(verbs: Any) -> None:
    """Describe the verb.

    Args:
        verbs: The subparsers of `leakaudit`.
    """
    sub = verbs.add_parser(
        "list", help="list victims, attacks, reports, models, data sets or graphs"
    )
    sub.add_argument("what", choices=GROUPS)
    sub.add_argument(
        "-f", "--format", choices=("text", "json"), default="text", help="default text"
    )
    shared(sub)
    sub.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print one table.

    Args:
        args: The parsed arguments.

    Returns:
        The exit code.
    """
    rows = _rows(args.what)
    if args.format == "json":
        sys.stdout.write(json.dumps(rows, indent=2) + "\n")
        return 0
    if args.what == "victims":  # their parameters have a table of their own
        rows = [{k: v for k, v in row.items() if k not in ("server", "parameters")} for row in rows]
        say("parameters: leakaudit record NAME --help", args)
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in rows[0]:
        table.add_column(column, no_wrap=column == "name", overflow="fold")
    for row in rows:
        table.add_row(
            *(
                ", ".join(f"{k}={v}" for k, v in cell.items())
                if isinstance(cell, dict)
                else str(cell)
                for cell in row.values()
            )
        )
    Console(file=sys.stdout, highlight=False).print(table)
    return 0


def _rows(what: str) -> list[dict[str, Any]]:
    if what == "models":
        from leakaudit.tasks import models

        return models.table()
    if what in ("data", "graphs"):
        from leakaudit.protocols import topology
        from leakaudit.tasks import data

        if what == "data":
            return [{"name": name, "note": note} for name, note in data.NAMES.items()]
        return [{"name": name} for name in [*topology.KINDS, "file:PATH"]]
    from leakaudit import registry

    rows = []
    for name, thing in registry.everything(what):
        row: dict[str, Any] = {"name": name}
        if what == "victims":
            row |= {
                "leaks": thing.leaks_what,
                "claims": thing.claims_what,
                "server": thing.centralised,
                "paper": thing.paper,
            }
        elif what == "attacks":
            row |= {
                "exact": thing.exact,
                "reads": thing.reads,
                "cost": thing.cost,
                "paper": thing.paper,
            }
        else:
            row |= {"note": (thing.__doc__ or "").split("\n")[0]}
        parameters = registry.parameters(thing) if isinstance(thing, type) else {}
        rows.append(
            row | {"parameters": {k: registry.written(f.default) for k, f in parameters.items()}}
        )
    return rows
