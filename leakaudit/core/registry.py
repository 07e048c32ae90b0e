"""Victims, attacks and report formats by name; the core refers to none of them directly.

A leaf is one file, which decorates a class or function with `@victim`, `@attack` or `@renderer` and
the name of the file. Others register through entry points, LEAKAUDIT_PLUGINS or `--plugin`, never
through a configuration file: importing one executes code.
"""

from __future__ import annotations

import importlib
import inspect
import math
import os
import pkgutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, Field, field, fields, is_dataclass
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from leakaudit.core.errors import LeakauditError, suggest

T = TypeVar("T")
GROUPS = ("victims", "attacks", "reports")
OWN = "own:"  # prefix of the name of an undeclared protocol in a recording
FILE = ".toml"  # end of the name of a protocol file
TEXT = "protocol_file"  # key in the provenance of a trace: the text of its protocol file
READER = "leakaudit.protocols.equations.file"  # reads protocol files; a leaf of the core
# Sizes of a constant or hyper-parameter other than 0: far from the ends of float32, so that
# protocols and attacks can multiply it by a few units, or divide by it. Choices.
SMALLEST_SETTING = 1e-30
LARGEST_SETTING = 1e30
PLUGINS = "LEAKAUDIT_PLUGINS"  # modules, separated by commas; child processes find them too
_found: dict[str, dict[str, Any]] = {group: {} for group in GROUPS}
_files: dict[str, str] = {}  # path of a protocol file -> name of its victim


def _decorator(group: str) -> Callable[[str], Callable[[T], T]]:
    def named(name: str) -> Callable[[T], T]:
        def keep(thing: T) -> T:
            other = _found[group].get(name)
            if other is not None and other.__module__ != getattr(thing, "__module__", None):
                raise LeakauditError(
                    f"two {group} are called {name!r}: {other.__module__} and {thing.__module__}"
                )
            _found[group][name] = thing
            _explain(thing)
            return thing

        return keep

    return named


def _explain(thing: Any) -> None:
    """Add the help texts of the hyper-parameters to the docstring of a class, for ``help()``."""
    known = parameters(thing) if isinstance(thing, type) else {}
    helps = {name: f.metadata.get("help") for name, f in known.items()}
    lines = [f"    {name}: {text}." for name, text in helps.items() if text]
    own = inspect.cleandoc(getattr(thing, "__doc__", None) or "")
    if lines and "Attributes:" not in own:
        thing.__doc__ = "\n".join([own, "", "Attributes:", *lines])


victim = _decorator("victims")
attack = _decorator("attacks")
renderer = _decorator("reports")


def add_plugins(modules: Iterable[str]) -> None:
    """Import modules and register what they decorate, in child processes too.

    Args:
        modules: Names of installed modules or modules of the current folder; or paths of protocol
            files, which end in ``.toml``.
    """
    modules = [os.path.abspath(name) if name.endswith(FILE) else name for name in modules]
    for name in modules:
        _forget(name)
    _import(modules)
    os.environ[PLUGINS] = ",".join(dict.fromkeys([*_told(), *modules]))


@contextmanager
def without_plugins() -> Iterator[None]:
    """Import no plug-in that the environment names, for a process that must not run their code."""
    told = os.environ.pop(PLUGINS, None)
    try:
        yield
    finally:
        if told is not None:
            os.environ[PLUGINS] = told


def _told() -> list[str]:
    return [name for name in os.environ.get(PLUGINS, "").split(",") if name]


def _import(modules: Iterable[str]) -> None:
    for name in modules:
        if name.endswith(FILE):
            _read_file(name)
            continue
        if name in sys.modules:
            continue
        if "" not in sys.path:
            sys.path.append("")
        importlib.invalidate_caches()
        try:
            importlib.import_module(name)
        except Exception as e:  # code of a user may raise anything
            expected = "expected a module of the current folder or an installed one"
            raise LeakauditError(
                f"plugin {name!r}: {expected}; importing it raised {type(e).__name__}: {e}"
            ) from e


def _read_file(path: str) -> None:
    """Register the victim of a protocol file, unless it is registered already."""
    if _files.get(path) in _found["victims"]:
        return
    kind = importlib.import_module(READER).load(path)
    name = kind.definition.name
    if name in _known("victims"):
        raise LeakauditError(
            f"protocol {path}: another victim is called {name!r}; choose another name"
        )
    _files[path] = name
    _found["victims"][name] = kind


def _forget(path: str) -> None:
    """Forget a protocol file, so that it is read again: it may have been edited."""
    if path in _files:
        _found["victims"].pop(_files.pop(path), None)


def names(group: str) -> list[str]:
    """Return the sorted names of a group. Plug-ins are imported, bundled files are not.

    Args:
        group: One of `GROUPS`.
    """
    _import(_told())
    return sorted(_known(group))


def _known(group: str) -> set[str]:
    return {*_own(group), *_found[group], *(entry.name for entry in _installed(group))}


def _own(group: str) -> list[str]:
    package = importlib.import_module(f"leakaudit.{group}")
    return [m.name for m in pkgutil.iter_modules(package.__path__) if not m.name.startswith("_")]


def _installed(group: str) -> tuple[EntryPoint, ...]:
    return _entry_points(group, tuple((folder, _changed(folder)) for folder in sys.path))


# Reading the metadata of all distributions takes 8 ms, and every name of a table needs it.
@cache
def _entry_points(group: str, path: tuple[tuple[str, int], ...]) -> tuple[EntryPoint, ...]:
    """Return the entry points of a group; the modification times of the folders are cache keys."""
    return tuple(entry_points(group=f"leakaudit.{group}"))


def _changed(folder: str) -> int:
    try:
        return os.stat(folder or ".").st_mtime_ns
    except OSError:
        return 0


def unloaded(group: str, name: str) -> str | None:
    """Return the module of a bundled file; None if it is loaded or belongs to a plug-in.

    Args:
        group: One of `GROUPS`.
        name: A registered name.
    """
    if name in _found[group] or any(entry.name == name for entry in _installed(group)):
        return None
    return f"leakaudit.{group}.{name}" if name in _own(group) else None


def get(group: str, name: str) -> Any:
    """Load one victim, attack or renderer; the error of an unknown name suggests a similar one.

    Args:
        group: One of `GROUPS`.
        name: Its registered name; for a victim, also the path of a protocol file.
    """
    if group == "victims" and name.endswith(FILE):
        return importlib.import_module(READER).load(name)
    return _named(group, name)


def _named(group: str, name: str) -> Any:
    if name not in _found[group]:
        if group == "victims" and name.startswith(OWN):
            says = (
                f"the protocol {name!r} has no declaration, so nothing can be deduced from its "
                "messages"
            )
            raise LeakauditError(
                f"{says}; declare it in one file (docs/protocol-file.md, docs/add-a-victim.md), or "
                "record a declared protocol"
            )
        if name not in names(group):
            where = f"see 'leakaudit list {group}', or name the module that has it with --plugin"
            raise LeakauditError(
                f"there is no {group[:-1]} {name!r}{suggest(name, names(group))}; {where}"
            )
        for entry in _installed(group):
            if entry.name == name:
                _found[group][name] = entry.load()
        if name not in _found[group]:
            importlib.import_module(f"leakaudit.{group}.{name}")
    return _found[group][name]


def of_trace(protocol: str, provenance: Mapping[str, Any]) -> Any:
    """Return the victim of a trace: a registered one, otherwise that of the text in the trace.

    The user's own file has precedence. A trace comes from a stranger, so that what it names is
    never read from this machine's files.

    Args:
        protocol: The protocol that the trace names.
        provenance: The provenance of the trace.
    """
    text = provenance.get(TEXT)
    if not isinstance(text, str) or protocol in names("victims"):
        return _named("victims", protocol)
    try:
        kind = importlib.import_module(READER).victim(text)
    except LeakauditError as error:
        raise LeakauditError(f"the protocol file in the trace: {error}") from None
    if kind.definition.name != protocol:
        raise LeakauditError(
            f"the trace names the protocol {protocol!r}, but carries the protocol file of "
            f"{kind.definition.name!r}"
        )
    return kind


def everything(group: str) -> Iterator[tuple[str, Any]]:
    """Load all of a group, by name.

    Args:
        group: One of `GROUPS`.
    """
    for name in names(group):
        yield name, get(group, name)


def param(default: Any, help: str, symbol: str = "") -> Any:
    """Declare a hyper-parameter: a field of a dataclass.

    Args:
        default: Its value if none is given.
        help: Its meaning and unit.
        symbol: Its symbol in the paper.
    """
    return field(default=default, metadata={"help": help, "symbol": symbol})


def parameters(kind: type) -> dict[str, Field[Any]]:
    """Return the hyper-parameters of a victim or an attack: fields by name.

    Args:
        kind: Its class.
    """
    return {f.name: f for f in fields(kind) if f.init} if is_dataclass(kind) else {}


@cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)


def choices(kind: type, name: str) -> tuple[str, ...]:
    """Return the words that a hyper-parameter accepts; () if it accepts other values.

    Args:
        kind: Class of the victim or attack.
        name: The hyper-parameter.
    """
    hint = _hints(kind)[name]
    return get_args(hint) if get_origin(hint) is Literal else ()


def values(thing: Any) -> dict[str, Any]:
    """Return the hyper-parameters of a victim or an attack, by name, as files store them.

    Args:
        thing: The victim or attack.
    """
    return {name: written(getattr(thing, name)) for name in parameters(type(thing))}


def written(value: Any) -> Any:
    """Return a hyper-parameter as files store it: the numbers of a list separated by commas.

    Args:
        value: Its value in Python.
    """
    if not isinstance(value, list | tuple):
        return value
    return ",".join(str(number).removesuffix(".0") for number in value)


def configure(kind: type[T], settings: dict[str, Any]) -> T:
    """Build a victim or an attack from settings; raises LeakauditError if they do not fit.

    Args:
        kind: Its class.
        settings: Values by name; text is read as the field's type, and 3,1,4 as a list.
    """
    of: type = kind
    name = kind.__name__.removeprefix("_")  # classes of models are private
    known, hints, read = parameters(kind), _hints(of), {}
    for key, value in settings.items():
        if key not in known:
            raise LeakauditError(f"{name} has no parameter {key!r}{suggest(key, known)}")
        if get_origin(hints[key]) is Sequence:
            read[key] = _list(known[key], value, *get_args(hints[key]))
        else:
            read[key] = _read(key, value, hints[key])
    for key, f in known.items():
        if f.default is MISSING and f.default_factory is MISSING and key not in read:
            raise LeakauditError(f"{name} needs {key}=…: {f.metadata.get('help', '')}")
    try:
        return kind(**read)
    except (TypeError, ArithmeticError) as error:  # values that are too large, or not comparable
        raise LeakauditError(f"{name}: the given values do not fit together ({error})") from error


def _list(one: Field[Any], value: Any, kind: type) -> tuple[Any, ...]:
    parts = value
    if value is None or value == "":
        parts = []
    elif isinstance(value, str):
        parts = value.split(",")
    elif not isinstance(value, list | tuple):
        parts = [value]
    wanted = "whole numbers" if kind is int else "finite numbers"
    refusal = LeakauditError(
        f"{one.name}: expected {wanted} joined by commas, or a list of them "
        f"({one.metadata['help']}), got {value!r}"
    )
    if not all(type(part) in (str, int, float) for part in parts):  # a bool is not a number
        raise refusal
    try:
        return tuple(_read(one.name, part, kind) for part in parts)
    except LeakauditError:
        raise refusal from None


def _read(key: str, value: Any, hint: Any) -> Any:
    """Convert one setting to the annotated type; a number is 0 or far from the ends of float32."""
    options = [a for a in get_args(hint) if a is not type(None)]
    if get_origin(hint) is not None and all(isinstance(o, str) for o in options):  # Literal
        if value not in options:
            raise LeakauditError(f"{key}: expected one of {', '.join(options)}, got {value!r}")
        return value
    if any(value in get_args(one) for one in options if get_origin(one) is Literal):
        return value  # one of the words beside the numbers
    if value is None or (value in ("none", "") and len(get_args(hint)) > len(options)):
        return None
    target = options[0] if options else hint
    try:
        if target is bool:
            return {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}[
                str(value).lower()
            ]
        if target in (int, float):
            size = abs(float(value))
            if not math.isfinite(size) or (target is int and size % 1):
                raise ValueError
            if size and not SMALLEST_SETTING <= size <= LARGEST_SETTING:
                raise LeakauditError(
                    f"{key}: expected 0 or a number from {SMALLEST_SETTING:g} to "
                    f"{LARGEST_SETTING:g} in size, got {value!r:.40}"
                )
        return target(float(value)) if target is int else target(value)
    except (ValueError, KeyError, TypeError, OverflowError):
        wanted = "a finite number" if target is float else getattr(target, "__name__", target)
        raise LeakauditError(f"{key}: expected {wanted}, got {value!r}") from None
