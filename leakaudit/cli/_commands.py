"""How commands are declared: the words and the options of each, once.

A command is a function of a value of a class of `Options`, whose fields are an `option`, an
`argument`, or another such class.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import NoneType
from typing import Any, Self, get_args, get_origin, get_type_hints

from leakaudit._util.settings import SETTINGS, boolean
from leakaudit.cli._parser import Parser, described
from leakaudit.core.errors import LeakauditError


def option(help: str, *flags: str, **how: Any) -> Any:
    """Declare an option: a field ``max_bytes`` is set by ``--max-bytes`` unless flags name it."""
    return {"help": help, "flags": flags, **how}


def argument(help: str, **how: Any) -> Any:
    """Declare a positional argument."""
    return {"help": help, "flags": None, **how}


class Options:
    """A record of options; a dataclass would take a tenth of the time of a parser."""

    settings: tuple[str, ...] = ()  # those of `SETTINGS` besides `progress`

    @classmethod
    def add(cls, parser: argparse.ArgumentParser) -> None:
        """Add the options to a parser."""
        for name, kind, how in cls._declared():
            if how:
                _add(parser, name, kind, **how)
            elif kind is argparse.Namespace:
                _add_settings(parser, cls.settings)
            else:
                kind.add(parser)

    @classmethod
    def read(cls, given: argparse.Namespace) -> Self:
        """Return what a command line gives."""
        made = cls()
        for name, kind, how in cls._declared():
            if how:
                value = getattr(given, name)
            else:
                value = given if kind is argparse.Namespace else kind.read(given)
            setattr(made, name, value)
        return made

    def refuse(self, why: str) -> None:
        """Reject options of this record that differ from their defaults."""
        flags = list(self._given())
        if flags:
            raise LeakauditError(f"{', '.join(flags)}: {why}")

    def _given(self) -> Iterator[str]:
        """Yield the flags of options that differ from their defaults."""
        for name, _, how in self._declared():
            value = getattr(self, name)
            if isinstance(value, Options):
                yield from value._given()
            elif value not in (None, False, [], how.get("default")):
                yield f"--{name.replace('_', '-')}"

    @classmethod
    def _declared(cls) -> Iterator[tuple[str, Any, Mapping[str, Any]]]:
        """Yield name, type and declaration of each field, its bases' last."""
        kinds = get_type_hints(cls)
        owners = [cls, *reversed(cls.__mro__[1:-2])]
        for name in dict.fromkeys(name for owner in owners for name in owner.__annotations__):
            yield name, kinds[name], getattr(cls, name, {})


class SharedOptions(Options):
    """The options that most commands share."""

    given: argparse.Namespace  # the whole command line, with the flags of settings
    plugin: list[str] = option(
        "import a module with your own victims, attacks or reports, from the current folder or "
        "installed; this executes its code. A protocol file (.toml) is read without executing "
        "code; repeatable",
        metavar="MODULE",
    )
    quiet: bool = option("write no progress and no notes to stderr", "-q")


@dataclass
class Command:
    """A command: its words, and what runs it."""

    name: str  # with the verb of an action, such as ``trace info``
    help: str  # its line in the list of commands
    words: dict[str, Any]  # what its own help shows around the options
    run: Callable[[Any], int] | None = None  # None if it has actions
    actions: tuple[Command, ...] = ()

    def add(self, commands: Any, bare: bool = False) -> None:
        """Add its parser to others; a bare one has no options."""
        parser = commands.add_parser(self.name.split()[-1], help=self.help, **self.words)
        if not bare:
            self._fill(parser)

    def parser(self) -> Parser:
        """Return a parser of its own, for an action of a verb that takes a program."""
        parser = Parser(prog=f"leakaudit {self.name}", **self.words)
        self._fill(parser)
        return parser

    def _fill(self, parser: argparse.ArgumentParser) -> None:
        run = self.run
        if run is None:
            actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
            for action in self.actions:
                action.add(actions)
            return
        options: type[Options] = get_type_hints(run)["args"]
        options.add(parser)
        parser.set_defaults(run=lambda given: run(options.read(given)))


def command(
    name: str, help: str, about: str, *examples: str, **how: Any
) -> Callable[[Callable[[Any], int]], Command]:
    """Declare what a function runs."""
    return partial(Command, name, help, {**described(about, *examples), **how})


def _add(
    parser: argparse._ActionsContainer,
    name: str,
    hint: Any,
    flags: tuple[str, ...] | None,
    **how: Any,
) -> None:
    """Add one option; its type says how words are read, and its help names the default."""
    kinds = get_args(hint)
    optional = NoneType in kinds
    kind = kinds[0] if optional else hint
    if get_origin(kind) is list:
        (kind,) = get_args(kind)
        if "nargs" not in how:
            how = {"action": "append", "default": None if optional else [], **how}
    if kind is bool:
        how |= {"action": "store_const", "const": True} if optional else {"action": "store_true"}
    elif kind in (int, float, Path):
        how.setdefault("type", kind)
    if how.get("default") and "(default" not in how["help"]:
        how["help"] += f" (default {how['default']})"
    names = how.pop("names", None)
    if flags is None:
        action = parser.add_argument(name, **how)
    else:
        if not any(flag.startswith("--") for flag in flags):
            flags = (*flags, f"--{name.replace('_', '-')}")
        action = parser.add_argument(*flags, dest=name, **how)
    action.names = names  # type: ignore[attr-defined]  # read by completion


def _add_settings(parser: argparse.ArgumentParser, names: tuple[str, ...]) -> None:
    """Add settings, which the environment and files can set as well."""
    group = parser.add_argument_group(
        "shared options",
        "LEAKAUDIT_* variables, leakaudit.toml and pyproject.toml can set most of these as well.",
    )
    for name in (*names, "progress"):
        setting = SETTINGS[name]
        flags = ("-o",) if name == "output" else ()
        if setting.read is boolean:
            _add(group, name, bool | None, flags, help=setting.help)
            continue
        words = f"{setting.help} (default {setting.default})"
        metavar = name.split("_")[-1].upper()
        _add(group, name, str, flags, help=words, metavar=metavar, names=name)
