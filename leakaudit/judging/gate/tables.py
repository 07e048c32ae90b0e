"""A gate from the tables of leakaudit.toml, or of ``[tool.leakaudit]``.

The classes in `judging.gate.config` define the schema; ``schema.json``, for editors, is generated
from them.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Annotated

from msgspec import Meta

from leakaudit._util import config
from leakaudit._util.forms import form
from leakaudit._util.settings import TABLES
from leakaudit.core.errors import LeakauditError
from leakaudit.judging.gate.config import Acceptance, Budget, Check, Gate

FILES = ("leakaudit.toml", "pyproject.toml")
SCHEMA = Path(__file__).with_name("schema.json")  # JSON schema of leakaudit.toml

GATE = form(Gate, "checks", "budgets", "accepted", "folder", "source")
# In a file, a function can only be given by name.
CHECK = form(
    Check,
    "name",
    run=str,
    scenario=Annotated[str | Mapping[str, object], Meta(description="a file name or a table")],
)
BUDGET = form(Budget)
ACCEPTANCE = form(Acceptance)


def load(folder: Path) -> Gate:
    """Read the gate of a folder, from leakaudit.toml if it has tables, otherwise pyproject.toml."""
    for name in FILES:
        found = _tables(folder / name)
        if found.values:
            return parse(found, folder)
    hint = "'leakaudit init --run MODULE:FUNCTION' creates a leakaudit.toml"
    raise LeakauditError(f"no check is configured in {folder.resolve()}: {hint}")


def present(folder: Path) -> bool:
    """Return whether a folder's configuration has one of the gate's tables."""
    return any(_tables(folder / name).values for name in FILES)


def parse(file: config.ConfigTable, folder: Path) -> Gate:
    """Convert the tables gate, check, budget and accept to a gate."""
    gate = file.table("gate").named("gate").decode(GATE, Gate)
    checks = _checks(file)
    budgets = [one.named("budget").decode(BUDGET, Budget) for one in file.tables("budget")]
    accepted = [one.named("accept").decode(ACCEPTANCE, Acceptance) for one in file.tables("accept")]
    cells = [cell for check in checks for cell in check.cells]
    for budget, table in zip(budgets, file.tables("budget"), strict=True):
        _fits(budget.cells, cells, table)
    recordings = [f"{check.name}/{kind}" for check in checks for kind in ("lint", "recording")]
    for acceptance, table in zip(accepted, file.tables("accept"), strict=True):
        _fits(acceptance.cells, [*cells, *recordings], table)
    return replace(
        gate,
        checks=checks,
        budgets=tuple(budgets),
        accepted=tuple(accepted),
        folder=folder,
        source=file.file,
    )


def _tables(path: Path) -> config.ConfigTable:
    file = config.read_if_any(path)
    if path.name == "pyproject.toml":
        file = file.table("tool", "leakaudit")
    return file.only(*TABLES)


def _checks(file: config.ConfigTable) -> tuple[Check, ...]:
    found = file.table("check").values
    if not found:
        raise file.error("expected at least one table [check.NAME]")
    checks = []
    for name, values in found.items():
        if not isinstance(values, Mapping):
            says = f"check.{name}: expected a table, got {values!r:.60}"
            raise file.error(says, "check", name)
        table = file.table("check", name).named(f"check.{name}")
        checks.append(table.decode(CHECK, partial(Check, name)))
    return tuple(checks)


def _fits(pattern: str, cells: list[str], table: config.ConfigTable) -> None:
    """Reject a glob that matches no cell: its budget would never be tested."""
    if any(fnmatchcase(cell, pattern) for cell in cells):
        return
    near = difflib.get_close_matches(pattern, cells, n=1, cutoff=0.5)
    if near:
        hint = f"; did you mean {near[0]!r}?"
    else:
        hint = f" (cells: {', '.join(cells)})"
    raise table.error(f"cells = {pattern!r} matches no cell{hint}", "cells")
