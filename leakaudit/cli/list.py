"""`leakaudit list`: what there is."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import MISSING
from typing import Any

from leakaudit.cli._options import say, shared

GROUPS = ("victims", "attacks", "reports", "models", "data", "graphs")
# Columns of a table, and the class variables that are shown in them.
COLUMNS = {
    "victims": {
        "leaks": "leaks_what",
        "claims": "claims_what",
        "server": "centralised",
        "paper": "paper",
    },
    "attacks": {"exact": "exact", "reads": "reads", "cost": "cost", "paper": "paper"},
    "reports": {},
}


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
        return _models()
    from leakaudit._util import declarations

    if what == "data":
        names = declarations.table("leakaudit.tasks.data", "NAMES")
        return [{"name": name, "note": note} for name, note in names.items()]
    if what == "graphs":
        kinds = declarations.table("leakaudit.protocols.topology", "KINDS")
        return [{"name": name} for name in [*kinds, "file:PATH"]]
    rows = []
    columns = COLUMNS[what]
    for name, declared in declarations.everything(what, tuple(columns.values())):
        row: dict[str, Any] = {"name": name}
        for column, attribute in columns.items():
            row[column] = declared.attributes[attribute]
        if what == "reports":
            row["note"] = declared.note
        row["parameters"] = {key: p.default for key, p in declared.parameters.items()}
        rows.append(row)
    return rows


def _models() -> list[dict[str, Any]]:
    """Return name, arguments with their defaults, and note of every model."""
    from leakaudit._util import declarations

    rows = []
    models = declarations.classes("leakaudit.tasks.models", "MODELS", ("note",))
    for name, declared in models.items():
        args = []
        for key, parameter in declared.parameters.items():
            default = "" if parameter.default is MISSING else parameter.default
            args.append(f"{key}={default}")
        rows.append({"name": name, "args": ", ".join(args), "note": declared.attributes["note"]})
    return rows
