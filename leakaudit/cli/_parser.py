"""How help is laid out, and how errors are worded."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NoReturn

from leakaudit.core.errors import suggest

EXAMPLES = "examples:"  # heading of the examples below the options
OF_PARSER = "help, a version or an error of a parser"  # the note of its SystemExit


class _Help(argparse.HelpFormatter):
    def _fill_text(self, text: str, width: int, indent: str) -> str:
        if text.startswith(EXAMPLES):
            return text
        return super()._fill_text(text, width, indent)


class Parser(argparse.ArgumentParser):
    """A parser whose help begins with what it does, and whose errors are one line."""

    def __init__(self, **given: Any) -> None:
        """Accept whole option names only: ``--node`` must not be taken for ``--nodes``."""
        super().__init__(**{"allow_abbrev": False, **given})

    def format_help(self) -> str:
        """Return the description, the usage, the options and the examples."""
        formatter = self._get_formatter()
        formatter.add_text(self.description)
        formatter.add_usage(self.usage, self._actions, self._mutually_exclusive_groups)
        for group in self._action_groups:
            formatter.start_section(group.title)
            formatter.add_text(group.description)
            formatter.add_arguments(group._group_actions)
            formatter.end_section()
        formatter.add_text(self.epilog)
        return formatter.format_help()

    def parse_known_args(  # type: ignore[override]  # typeshed has overloads for other namespaces
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Report unknown options first: a missing argument may follow from one."""
        given = sys.argv[1:] if args is None else args
        self._reject_unknown(self._own_words(given))
        found, rest = super().parse_known_args(args, namespace)
        if self._subparsers is None:
            self._reject_unknown(rest)
        return found, rest

    def _own_words(self, args: Sequence[str]) -> Iterator[str]:
        """Yield the words of this parser, not of a verb or a program."""
        program = any(action.nargs == argparse.REMAINDER for action in self._actions)
        if program and "--" not in args:
            return
        for word in args:
            if word == "--" or (self._subparsers is not None and not word.startswith("-")):
                return
            yield word

    def _reject_unknown(self, words: Iterable[str]) -> None:
        import difflib  # needed after a mistake only

        for word in words:
            name = word.partition("=")[0]
            if word.startswith("--") and name not in self._option_string_actions:
                near = difflib.get_close_matches(name, self._option_string_actions, n=1)
                hint = f"; did you mean {near[0]}?" if near else ""
                self.error(f"there is no option {name}{hint}")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Suggest a name that is similar to one that is not among the choices."""
        if action.choices is not None and value not in action.choices:
            what = "/".join(action.option_strings) or action.metavar or action.dest
            near = suggest(str(value), map(str, action.choices))
            raise argparse.ArgumentError(None, f"{what}: there is no {value!r}{near}")

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        """Print the message to stderr and end; any other SystemExit is of loaded code."""
        if message:
            sys.stderr.write(message)
        ended = SystemExit(status)
        ended.add_note(OF_PARSER)
        raise ended

    def error(self, message: str) -> NoReturn:
        """Exit with code 2."""
        self.exit(2, f"{self.prog}: {message}; see '{self.prog} --help'\n")


def described(about: str, *examples: str) -> dict[str, Any]:
    """Return what the help of a verb shows around its options."""
    lines = [EXAMPLES, *(f"  {example}" for example in examples)]
    return {"description": about, "epilog": "\n".join(lines), "formatter_class": _Help}
