"""The tables of leakaudit.toml, or of ``[tool.leakaudit]``, as a gate: every key known, every value of its type."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import MISSING, fields, replace
from datetime import date
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from leakaudit._util import toml_file
from leakaudit._util.settings import TABLES
from leakaudit.errors import LeakauditError, suggest
from leakaudit.gate.config import Acceptance, Budget, Check, Gate

FILES = ("leakaudit.toml", "pyproject.toml")
_OURS = (
    "name",
    "checks",
    "budgets",
    "accepted",
    "folder",
    "source",
)  # fields that are no keys of a table


def load(folder: Path) -> Gate:
    """Read the gate of a folder, from leakaudit.toml where it has one of the tables, else from pyproject.toml.

    Raises LeakauditError for an unknown key, with the nearest one, a value of another type, or where no check is configured.
    """
    for name in FILES:
        found = _tables(folder / name)
        if found:
            return parse(found, folder, name)
    raise LeakauditError(
        f"no check is configured in {folder.resolve()}: 'leakaudit init' writes a first leakaudit.toml"
    )


def present(folder: Path) -> bool:
    """Whether a folder's configuration has one of the gate's tables."""
    return any(_tables(folder / name) for name in FILES)


def parse(tables: Mapping[str, Any], folder: Path, source: str) -> Gate:
    """Turn the tables gate, check, budget and accept into a gate."""
    top = toml_file.table(tables, "gate", what=source)
    checks = toml_file.table(tables, "check", what=source)
    if not checks:
        raise LeakauditError(f"{source}: expected at least one table [check.NAME]")
    made = tuple(
        _build(Check, {"name": k, **_named(v, f"{source}: check.{k}")}, f"{source}: check.{k}")
        for k, v in checks.items()
    )
    budgets = tuple(
        _build(Budget, _named(v, f"{source}: budget"), f"{source}: budget")
        for v in _list(tables, "budget", source)
    )
    accepted = tuple(
        _build(Acceptance, _named(v, f"{source}: accept"), f"{source}: accept")
        for v in _list(tables, "accept", source)
    )
    rest = {
        "checks": made,
        "budgets": budgets,
        "accepted": accepted,
        "folder": folder,
        "source": source,
    }
    cells = [cell for check in made for cell in check.cells]
    gate: Gate = replace(_build(Gate, top, f"{source}: gate"), **rest)
    for budget in budgets:
        _fits(budget.cells, cells, source)
    for one in accepted:
        _fits(
            one.cells,
            [*cells, *(f"{check.name}/{one}" for check in made for one in ("lint", "recording"))],
            source,
        )
    return gate


def _tables(path: Path) -> dict[str, Any]:
    values = toml_file.read(path, path.name) if path.is_file() else {}
    ours = (
        toml_file.table(values, "tool", "leakaudit", what=path.name)
        if path.name == "pyproject.toml"
        else values
    )
    return {k: v for k, v in ours.items() if k in TABLES}


def _build(kind: type[Any], values: Mapping[str, Any], where: str) -> Any:
    """Build a value from a table; raises LeakauditError for an unknown or missing key and a value of another type."""
    known = {f.name: f for f in fields(kind) if f.name not in _OURS}
    for key in values:
        if key not in known and key != "name":
            raise LeakauditError(f"{where}: unknown key {key!r}{suggest(key, known)}")
    read = {
        key: _read(value, str(known[key].type) if key in known else "str", f"{where}: {key}")
        for key, value in values.items()
    }
    try:
        return kind(**read)
    except TypeError:
        raise LeakauditError(
            f"{where}: expected the keys {', '.join(k for k in _needed(kind) if k not in values)}"
        ) from None


def _needed(kind: type[Any]) -> list[str]:
    return [f.name for f in fields(kind) if f.default is MISSING and f.default_factory is MISSING]


def _read(value: Any, hint: str, where: str) -> Any:
    """Check one value against the annotation of its field; lists become tuples and whole numbers real ones."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if hint.startswith("tuple[str"):
        ok, words = (
            isinstance(value, list) and all(isinstance(v, str) for v in value),
            "a list of words",
        )
        value = tuple(value) if ok else value
    elif hint.startswith("tuple[int"):
        ok, words = (
            isinstance(value, list)
            and all(isinstance(v, int) and not isinstance(v, bool) for v in value),
            "a list of node numbers",
        )
        value = tuple(value) if ok else value
    elif hint.startswith("float"):
        ok, words, value = number, "a number", float(value) if number else value
    elif hint.startswith("int"):
        ok, words = number and isinstance(value, int), "a whole number"
    elif hint == "date":
        ok, words = isinstance(value, date), "a date like 2030-01-31, without quotes"
    elif hint.startswith("Mapping"):
        ok, words = isinstance(value, Mapping), "a table"
    elif hint.startswith("str |"):
        ok, words = isinstance(value, str | Mapping), "a file name or a table"
    else:
        ok, words = hint != "str" or isinstance(value, str), "text"
    if not ok:
        raise LeakauditError(f"{where}: expected {words}, got {value!r:.60}")
    return value


def _list(tables: Mapping[str, Any], name: str, source: str) -> list[Any]:
    found = tables.get(name, [])
    if not isinstance(found, list):
        raise LeakauditError(f"{source}: {name}: expected tables [[{name}]], got {found!r:.60}")
    return found


def _named(value: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise LeakauditError(f"{where}: expected a table, got {value!r:.60}")
    return value


def _fits(pattern: str, cells: list[str], source: str) -> None:
    """Refuse a glob that names no cell: a budget on it would never be tested."""
    if not any(fnmatchcase(cell, pattern) for cell in cells):
        near = difflib.get_close_matches(pattern, cells, n=1, cutoff=0.5)
        hint = f"; did you mean {near[0]!r}?" if near else f" (cells: {', '.join(cells)})"
        raise LeakauditError(f"{source}: cells = {pattern!r} fits no cell{hint}")
