"""The tables of leakaudit.toml, or of ``[tool.leakaudit]``, as a gate.

The classes in `leakaudit.gate.config` are the schema. Each value of a table is decoded by msgspec
as the type of its field, strictly: text is not read as a number, and true is not 1. msgspec's own
messages name types ("Expected `array`, got `str`"), so a value that cannot be decoded is reported
with the words of `_EXPECTED` instead.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, replace
from datetime import date
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TypeVar, get_type_hints

import msgspec

from leakaudit._util import toml_file
from leakaudit._util.settings import TABLES
from leakaudit.errors import LeakauditError, suggest
from leakaudit.gate.config import Acceptance, Budget, Check, Gate

FILES = ("leakaudit.toml", "pyproject.toml")

T = TypeVar("T", Check, Budget, Acceptance, Gate)
Table = Mapping[str, object]

# Fields that are no keys of a table: they come from the table's own name, from other tables, or
# from the file.
_OURS = ("name", "checks", "budgets", "accepted", "folder", "source")
# What a value of a field should be, as a reader would call it.
_EXPECTED: dict[object, str] = {
    str: "text",
    int: "a whole number",
    int | None: "a whole number",
    float: "a number",
    float | None: "a number",
    date: "a date like 2030-01-31, without quotes",
    tuple[str, ...]: "a list of words",
    tuple[int, ...] | None: "a list of node numbers",
    str | Mapping[str, object]: "a file name or a table",
    Mapping[str, int | float]: "a table",
    Mapping[str, Mapping[str, object]]: "a table",
}
# The same of what is in a table that holds one kind of value.
_INSIDE: dict[object, str] = {
    Mapping[str, int | float]: "a table of numbers",
    Mapping[str, Mapping[str, object]]: "a table of tables",
}


def load(folder: Path) -> Gate:
    """Read the gate of a folder, from leakaudit.toml if it has a table, else from pyproject.toml.

    Args:
        folder: of the configuration.

    Raises:
        LeakauditError: no check is configured, a key is unknown (with the nearest one), or a value
            is of another type.
    """
    for name in FILES:
        found = _tables(folder / name)
        if found:
            return parse(found, folder, name)
    hint = "'leakaudit init' writes a first leakaudit.toml"
    raise LeakauditError(f"no check is configured in {folder.resolve()}: {hint}")


def present(folder: Path) -> bool:
    """Return whether a folder's configuration has one of the gate's tables.

    Args:
        folder: of the configuration.
    """
    return any(_tables(folder / name) for name in FILES)


def parse(tables: Table, folder: Path, source: str) -> Gate:
    """Turn the tables gate, check, budget and accept into a gate.

    Args:
        tables: by name.
        folder: of the configuration.
        source: name of its file, for messages.

    Raises:
        LeakauditError: as `load`.
    """
    top = toml_file.table(tables, "gate", what=source)
    checks = _checks(tables, source)
    budgets = _all(Budget, tables, "budget", source)
    accepted = _all(Acceptance, tables, "accept", source)
    gate = replace(
        _build(Gate, top, f"{source}: gate"),
        checks=checks,
        budgets=budgets,
        accepted=accepted,
        folder=folder,
        source=source,
    )
    cells = [cell for check in checks for cell in check.cells]
    for budget in budgets:
        _fits(budget.cells, cells, source)
    recordings = [f"{check.name}/{kind}" for check in checks for kind in ("lint", "recording")]
    for acceptance in accepted:
        _fits(acceptance.cells, [*cells, *recordings], source)
    return gate


def _tables(path: Path) -> Table:
    """Return the gate's tables of a file; none if there is no such file."""
    if not path.is_file():
        return {}
    values: Table = toml_file.read(path, path.name)
    if path.name == "pyproject.toml":
        values = toml_file.table(values, "tool", "leakaudit", what=path.name)
    return {key: value for key, value in values.items() if key in TABLES}


def _checks(tables: Table, source: str) -> tuple[Check, ...]:
    """Read the tables ``[check.NAME]``."""
    found: Table = toml_file.table(tables, "check", what=source)
    if not found:
        raise LeakauditError(f"{source}: expected at least one table [check.NAME]")
    checks = []
    for name, value in found.items():
        where = f"{source}: check.{name}"
        checks.append(_build(Check, {"name": name, **_table(value, where)}, where))
    return tuple(checks)


def _all(kind: type[T], tables: Table, name: str, source: str) -> tuple[T, ...]:
    """Read the tables ``[[name]]``."""
    found = tables.get(name, [])
    where = f"{source}: {name}"
    if not isinstance(found, list):
        raise LeakauditError(f"{where}: expected tables [[{name}]], got {found!r:.60}")
    return tuple(_build(kind, _table(value, where), where) for value in found)


def _build(kind: type[T], values: Table, where: str) -> T:
    """Build a value from a table.

    Raises:
        LeakauditError: a key is unknown or missing, or a value is of another type.
    """
    types = _types(kind)
    known = [name for name in types if name not in _OURS]
    for key in values:
        if key not in known and key != "name":
            raise LeakauditError(f"{where}: unknown key {key!r}{suggest(key, known)}")
    read = {
        key: _read(value, types.get(key, str), f"{where}: {key}") for key, value in values.items()
    }
    missing = [key for key in _needed(kind) if key not in read]
    if missing or not read.keys() <= types.keys():
        raise LeakauditError(f"{where}: expected the keys {', '.join(missing)}")
    # Each value was decoded as the type of its own field, which no annotation can say.
    make: Callable[..., T] = kind  # type: ignore[explicit-any]
    return make(**read)


def _types(kind: type[T]) -> dict[str, object]:
    """Return the type of each field, as a file may give it: a function can only be named."""
    types: dict[str, object] = get_type_hints(kind)
    if kind is Check:
        types["run"] = str
    return types


def _needed(kind: type[T]) -> list[str]:
    """Return the fields without a default."""
    return [
        one.name
        for one in fields(kind)
        if one.default is MISSING and one.default_factory is MISSING
    ]


def _read(value: object, kind: object, where: str) -> object:
    """Decode one value; lists become tuples, and whole numbers real ones if expected."""
    try:
        decoded: object = msgspec.convert(value, kind, builtin_types=(date,))
    except msgspec.ValidationError:
        expected = _EXPECTED[kind]
        if isinstance(value, Mapping):
            expected = _INSIDE.get(kind, expected)
        raise LeakauditError(f"{where}: expected {expected}, got {value!r:.60}") from None
    return decoded


def _table(value: object, where: str) -> Table:
    if not isinstance(value, Mapping):
        raise LeakauditError(f"{where}: expected a table, got {value!r:.60}")
    return value


def _fits(pattern: str, cells: list[str], source: str) -> None:
    """Reject a glob that matches no cell: a budget on it would never be tested."""
    if any(fnmatchcase(cell, pattern) for cell in cells):
        return
    near = difflib.get_close_matches(pattern, cells, n=1, cutoff=0.5)
    if near:
        hint = f"; did you mean {near[0]!r}?"
    else:
        hint = f" (cells: {', '.join(cells)})"
    raise LeakauditError(f"{source}: cells = {pattern!r} fits no cell{hint}")
