"""`leakaudit config`: effective settings and their sources, a check, and a schema for editors."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from leakaudit._util.settings import SETTINGS, resolve
from leakaudit.cli._options import shared, show


def add(verbs: Any) -> None:
    """Describe the verb.

    Args:
        verbs: The subparsers of `leakaudit`.
    """
    sub = verbs.add_parser(
        "config",
        help="show effective settings and their sources, check the configuration, print its schema",
    )
    sub.add_argument(
        "action",
        choices=("show", "lint", "schema"),
        help=(
            "show settings; lint: every key of leakaudit.toml or pyproject.toml is known; "
            "schema: the JSON schema of leakaudit.toml, for editors"
        ),
    )
    sub.add_argument(
        "-f", "--format", choices=("text", "json"), default="text", help="default text"
    )
    shared(sub, *(n for n in SETTINGS if n != "progress"))
    sub.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print one line a setting, what was checked, or the schema.

    Args:
        args: The parsed arguments.

    Returns:
        The exit code.
    """
    if args.action == "schema":
        from leakaudit.gate.tables import SCHEMA

        show(SCHEMA.read_text(encoding="utf-8"))
        return 0
    found = resolve(vars(args))
    if args.action == "lint":
        return _lint()
    if args.format == "json":
        sys.stdout.write(
            json.dumps({n: {"value": v, "source": s} for n, (v, s) in found.items()}, indent=2)
            + "\n"
        )
        return 0
    for name, (value, source) in found.items():
        sys.stdout.write(f"{name:14} {value!s:16} {source:16} {SETTINGS[name].help}\n")
    return 0


def _lint() -> int:
    from leakaudit.gate import tables

    if not tables.present(Path()):
        sys.stdout.write("every key is known; no check is configured\n")
        return 0
    from leakaudit.gate import judge  # with all that a check runs

    gate = tables.load(Path())
    judge.validate(gate)
    cells = sum(len(check.cells) for check in gate.checks)
    sys.stdout.write(
        f"{gate.source}: every key is known; {len(gate.checks)} checks, {cells} cells, "
        f"{gate.seeds} seeds\n"
    )
    return 0
