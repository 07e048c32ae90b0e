"""Read literals from the source of our own files, whose import takes ten times as long.

For a value that is not a literal, and every plug-in, the class is imported.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import tokenize
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from leakaudit.core import registry

# Decorators that register a victim, an attack or a report, and bases that declare nothing.
REGISTERS = ("victim", "attack", "renderer")
EMPTY_BASES = ("ABC", "Protocol", "object")


class _NotLiteral(Exception):
    """A value cannot be determined without running the file."""


@dataclass(frozen=True)
class Parameter:
    """The declaration of one hyper-parameter."""

    default: Any  # MISSING if it has none
    help: str = ""  # its meaning and unit
    symbol: str = ""  # the paper's symbol
    choices: tuple[str, ...] = ()  # the allowed words; () if it accepts other values


@dataclass(frozen=True)
class _Declaration:
    attributes: Mapping[str, Any]  # values of the requested class variables
    parameters: Mapping[str, Parameter]  # the hyper-parameters by name
    note: str  # first line of the docstring


def everything(group: str, wanted: Sequence[str] = ()) -> Iterator[tuple[str, _Declaration]]:
    """Read the declarations of a group, with their names."""
    for name in registry.names(group):
        yield name, of(group, name, wanted)


def of(group: str, name: str, wanted: Sequence[str] = ()) -> _Declaration:
    """Read the declaration of one victim, attack or renderer."""
    module = registry.unloaded(group, name)
    if module is not None:
        try:
            return read(module, name, tuple(wanted))
        except _NotLiteral:
            pass
    return of_loaded(registry.get(group, name), wanted)


@cache
def read(module: str, name: str, wanted: tuple[str, ...]) -> _Declaration:
    """Read what one of our own files registers."""
    for node in _tree(module).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and _registers(node, name):
            return _declaration(module, node, wanted)
    raise _NotLiteral(f"{module}: expected a class or function registered as {name!r}")


def of_loaded(thing: Any, wanted: Sequence[str]) -> _Declaration:
    """Return the declaration of a loaded class or function."""
    parameters = {}
    if isinstance(thing, type):
        for key, field in registry.parameters(thing).items():
            parameters[key] = Parameter(
                field.default,
                field.metadata.get("help", ""),
                field.metadata.get("symbol", ""),
                _choices_of(thing, key),
            )
    attributes = {key: getattr(thing, key) for key in wanted}
    return _Declaration(attributes, parameters, _first_line(thing.__doc__))


def _choices_of(kind: type, key: str) -> tuple[str, ...]:
    try:
        return registry.choices(kind, key)
    except NameError:  # a plug-in's annotation uses a name that only type checkers import
        return ()


def table(module: str, name: str) -> dict[str, Any]:
    """Read a module's dictionary with text keys; a value that is not a literal is None."""
    try:
        entries = _entries(module, name)
    except _NotLiteral:
        return dict(getattr(importlib.import_module(module), name))
    found = {}
    for key, value in entries.items():
        try:
            found[key] = _literal(value)
        except _NotLiteral:
            found[key] = None
    return found


def classes(module: str, name: str, wanted: Sequence[str] = ()) -> dict[str, _Declaration]:
    """Read the declarations of the classes in a module's dictionary."""
    found = {}
    try:
        for key, value in _entries(module, name).items():
            if not isinstance(value, ast.Name):
                raise _NotLiteral(f"{module}: {name}: expected the name of a class for {key!r}")
            found[key] = _declaration(module, _class(module, value.id), wanted)
    except _NotLiteral:
        kinds = getattr(importlib.import_module(module), name)
        return {key: of_loaded(kind, wanted) for key, kind in kinds.items()}
    return found


@cache
def _tree(module: str) -> ast.Module:
    spec = importlib.util.find_spec(module)
    file = (spec and spec.origin) or ""
    if Path(file).suffix != ".py":
        raise _NotLiteral(f"{module}: it has no source")
    try:
        with tokenize.open(file) as opened:
            source = opened.read()
    except OSError:  # installed without sources
        raise _NotLiteral(f"{module}: it has no source") from None
    return ast.parse(source, filename=file)


def _registers(node: ast.ClassDef | ast.FunctionDef, name: str) -> bool:
    for decorator in node.decorator_list:
        if not (isinstance(decorator, ast.Call) and isinstance(decorator.func, ast.Name)):
            continue
        given = [arg.value for arg in decorator.args if isinstance(arg, ast.Constant)]
        if decorator.func.id in REGISTERS and given == [name]:
            return True
    return False


def _declaration(
    module: str, node: ast.ClassDef | ast.FunctionDef, wanted: Sequence[str]
) -> _Declaration:
    note = _first_line(ast.get_docstring(node, clean=False))
    if isinstance(node, ast.FunctionDef):
        return _Declaration({}, {}, note)
    attributes, fields = _body(module, node)
    missing = [key for key in wanted if key not in attributes]
    if missing:
        raise _NotLiteral(f"{module}: {node.name}: expected {', '.join(missing)}")
    values = {key: _literal(attributes[key]) for key in wanted}
    parameters = {key: _parameter(field) for key, field in fields.items()}
    return _Declaration(values, parameters, note)


def _body(module: str, node: ast.ClassDef) -> tuple[dict[str, ast.expr], dict[str, ast.AnnAssign]]:
    """Return a dataclass's class variables and fields, those of its bases first."""
    attributes: dict[str, ast.expr] = {}
    fields: dict[str, ast.AnnAssign] = {}
    for base in node.bases:
        if not isinstance(base, ast.Name):
            raise _NotLiteral(f"{module}: {node.name}: expected the name of a base class")
        if base.id not in EMPTY_BASES:
            home = _home(module, base.id)
            inherited, more = _body(home, _class(home, base.id))
            attributes |= inherited
            fields |= more
    for statement in node.body:
        if isinstance(statement, ast.Assign):  # a field has an annotation
            for target in statement.targets:
                if isinstance(target, ast.Name):
                    attributes[target.id] = statement.value
        elif isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            if not _is_class_variable(statement.annotation):
                fields[statement.target.id] = statement
            elif statement.value is not None:
                attributes[statement.target.id] = statement.value
    return attributes, fields


def _is_class_variable(annotation: ast.expr) -> bool:
    if isinstance(annotation, ast.Subscript):
        annotation = annotation.value
    return isinstance(annotation, ast.Name) and annotation.id == "ClassVar"


def _class(module: str, name: str) -> ast.ClassDef:
    for node in _tree(module).body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            return node
    raise _NotLiteral(f"{module}: expected a class {name}")


def _home(module: str, name: str) -> str:
    for node in _tree(module).body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            return module
        if not isinstance(node, ast.ImportFrom) or node.module is None:
            continue
        if any(alias.name == name and alias.asname is None for alias in node.names):
            return node.module
    raise _NotLiteral(f"{module}: expected that it defines or imports {name}")


def _entries(module: str, name: str) -> dict[str, ast.expr]:
    assigned = None
    for node in _tree(module).body:
        if isinstance(node, ast.Assign):
            targets = node.targets
        elif isinstance(node, ast.AnnAssign):
            targets = [node.target]
        else:
            continue
        if any(isinstance(target, ast.Name) and target.id == name for target in targets):
            assigned = node.value
    if not isinstance(assigned, ast.Dict):
        raise _NotLiteral(f"{module}: expected a dictionary {name}")
    found = {}
    for key, value in zip(assigned.keys, assigned.values, strict=True):
        if key is None:  # **others
            raise _NotLiteral(f"{module}: {name}: expected no other dictionary in it")
        found[str(_literal(key))] = value
    return found


def _parameter(field: ast.AnnAssign) -> Parameter:
    """Read a field with a literal or `registry.param` of literals as its value."""
    choices = _choices(field.annotation)
    value = field.value
    if value is None:
        return Parameter(MISSING, choices=choices)
    if not isinstance(value, ast.Call):
        return Parameter(_literal(value), choices=choices)
    if not (isinstance(value.func, ast.Name) and value.func.id == "param"):
        raise _NotLiteral(f"line {value.lineno}: expected param(...) or a literal")
    given = [_literal(arg) for arg in value.args]
    if value.keywords or len(given) not in (2, 3):
        raise _NotLiteral(f"line {value.lineno}: expected two or three positional arguments")
    symbol = given[2] if len(given) == 3 else ""
    return Parameter(given[0], given[1], symbol, choices)


def _choices(annotation: ast.expr) -> tuple[str, ...]:
    if not isinstance(annotation, ast.Subscript) or not isinstance(annotation.value, ast.Name):
        return ()
    if annotation.value.id != "Literal":
        return ()
    words = _literal(annotation.slice)
    return words if isinstance(words, tuple) else (words,)


def _literal(node: ast.expr) -> Any:
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError):
        raise _NotLiteral(f"line {node.lineno}: expected a literal") from None


def _first_line(doc: str | None) -> str:
    return (doc or "").split("\n")[0]
