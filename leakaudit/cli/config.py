"""`leakaudit config`: effective settings and their sources, a check, the schema, completion."""

from __future__ import annotations

from pathlib import Path

from leakaudit._util.settings import SETTINGS, resolve
from leakaudit.cli import completion
from leakaudit.cli._commands import SharedOptions, argument, command
from leakaudit.cli._options import TEXT_OR_JSON, show, show_json, show_table
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
    format: str = TEXT_OR_JSON


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
        show_json({name: {"value": v, "source": s} for name, (v, s) in found.items()})
        return 0
    from leakaudit.reporting.rendering.tables import Column

    columns = (Column("setting"), Column("value"), Column("source"), Column("meaning", text=True))
    show_table(columns, [(n, str(v), s, SETTINGS[n].help) for n, (v, s) in found.items()])
    return 0


def _lint(form: str) -> int:
    from leakaudit.judging.gate import tables

    found: dict[str, str | int | None] = {"source": None, "checks": 0, "cells": 0, "seeds": 0}
    said = "all keys are known; no check is configured"
    if tables.present(Path()):
        from leakaudit.judging.gate import judge  # with all that a check runs

        gate = tables.load(Path())
        judge.validate(gate)
        checks = len(gate.checks)
        cells = sum(len(check.cells) for check in gate.checks)
        found = {"source": gate.source, "checks": checks, "cells": cells, "seeds": gate.seeds}
        said = (
            f"{gate.source}: all keys are known; {checks} checks, {cells} cells, {gate.seeds} seeds"
        )
    if form == "json":
        show_json(found)
    else:
        show(f"{said}\n")
    return 0
