"""`leakaudit config`: effective settings and their sources, a check, the schema, completion."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from leakaudit._util.settings import SETTINGS, resolve
from leakaudit.cli import completion
from leakaudit.cli._commands import SharedOptions, argument, command
from leakaudit.cli._options import show, text_or_json
from leakaudit.cli.completion import SHELLS
from leakaudit.core.errors import LeakauditError


class _Options(SharedOptions):
    settings = tuple(name for name in SETTINGS if name != "progress")

    action: str = argument(
        "show: print all settings; lint: check that every key of leakaudit.toml and "
        "pyproject.toml is known; schema: print the JSON schema of leakaudit.toml, for editors; "
        "completion: print the script that completes commands, options and names in a shell",
        choices=("show", "lint", "schema", "completion"),
    )
    shell: str | None = argument(
        'shell of the completion; put eval "$(leakaudit config completion bash)" into ~/.bashrc, '
        "or the same for zsh into ~/.zshrc after compinit",
        nargs="?",
        choices=SHELLS,
    )
    format: str = text_or_json()


@command(
    "config",
    "show the settings and their sources, check leakaudit.toml, complete commands in a shell",
    "Shows the value of every setting and where it comes from, checks leakaudit.toml, or prints "
    "the JSON schema of that file or the script for the completion of commands in your shell.",
    "leakaudit config show",
    "leakaudit config lint -f json",
    "leakaudit config completion bash",
)
def run(args: _Options) -> int:
    """Print what the action names."""
    if args.action == "schema":
        from leakaudit.judging.gate.tables import SCHEMA

        show(SCHEMA.read_text(encoding="utf-8"))
        return 0
    if args.action == "completion":
        show(completion.script(args.shell))
        return 0
    if args.shell is not None:
        raise LeakauditError(f"{args.shell}: only after 'config completion'")
    found = resolve(vars(args.given))
    if args.action == "lint":
        return _lint(args.format)
    if args.format == "json":
        sys.stdout.write(
            json.dumps({n: {"value": v, "source": s} for n, (v, s) in found.items()}, indent=2)
            + "\n"
        )
        return 0
    from leakaudit.reporting.rendering import console
    from leakaudit.reporting.rendering.tables import Column, table

    columns = (
        Column("setting"),
        Column("value"),
        Column("source"),
        Column("meaning", text=True),
    )
    rows = [(n, str(v), source, SETTINGS[n].help) for n, (v, source) in found.items()]
    console.stdout().print(table(columns, rows, console.width()))
    return 0


def _lint(form: str) -> int:
    from leakaudit.judging.gate import tables

    if not tables.present(Path()):
        if form == "json":
            found = {"source": None, "checks": 0, "cells": 0, "seeds": 0}
            show(json.dumps(found, indent=2) + "\n")
        else:
            show("all keys are known; no check is configured\n")
        return 0
    from leakaudit.judging.gate import judge  # with all that a check runs

    gate = tables.load(Path())
    judge.validate(gate)
    cells = sum(len(check.cells) for check in gate.checks)
    if form == "json":
        counts = {"checks": len(gate.checks), "cells": cells, "seeds": gate.seeds}
        show(json.dumps({"source": gate.source, **counts}, indent=2) + "\n")
        return 0
    show(
        f"{gate.source}: all keys are known; {len(gate.checks)} checks, {cells} cells, "
        f"{gate.seeds} seeds\n"
    )
    return 0
