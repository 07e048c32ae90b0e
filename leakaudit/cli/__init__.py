"""The command line: one file a verb; nothing heavy is imported before a verb runs."""

from __future__ import annotations

import argparse
import atexit
import gc
import importlib
import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from leakaudit._util.settings import SETTINGS, resolve
from leakaudit.errors import LeakauditError

BROKEN, INTERRUPTED = 4, 130  # exit codes: a run that broke and so judged nothing, and Ctrl-C
JUDGES = ("check", "audit", "claims", "selfcheck", "trace")  # verbs whose code is a verdict
DEBUG = "LEAKAUDIT_DEBUG"  # environment variable: print the traceback of a defect
VERBS = (
    "record",
    "attack",
    "explain",
    "bound",
    "audit",
    "sweep",
    "claims",
    "check",
    "baseline",
    "report",
    "score",
    "trace",
    "tap",
    "selfcheck",
    "list",
    "demo",
    "doctor",
    "config",
    "init",
)
atexit.register(
    gc.freeze
)  # the end of a process that has torch is .6 s shorter without looking for cycles among its objects


class Told(SystemExit):
    """A parser has printed help, a version or what is wrong with the arguments; any other SystemExit is of code that was loaded."""


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one line."""

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        """Print the message to stderr and end, in a way that tells this end from one by loaded code."""
        if message:
            sys.stderr.write(message)
        raise Told(status)

    def error(self, message: str) -> NoReturn:
        """Exit with code 2."""
        self.exit(2, f"{self.prog}: {message}; see '{self.prog} --help'\n")


class Version(argparse.Action):
    """Print our version and torch's, without importing torch."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        """Exit with code 0."""
        from importlib.metadata import PackageNotFoundError, version

        from leakaudit import __version__

        try:
            torch = version("torch")
        except PackageNotFoundError:
            torch = "not installed"
        sys.stdout.write(f"leakaudit {__version__} (torch {torch})\n")
        parser.exit()


def parser() -> Parser:
    """Build the whole parser; each verb adds its own part."""
    top = Parser(
        prog="leakaudit",
        description="What can someone who hears your decentralised training learn about the training data?",
    )
    top.add_argument(
        "--version", action=Version, nargs=0, help="print the versions of leakaudit and torch"
    )
    verbs = top.add_subparsers(dest="verb", metavar="VERB", required=True, parser_class=Parser)
    for name in VERBS:
        importlib.import_module(f"leakaudit.cli.{name}").add(verbs)
    return top


def shared(sub: argparse.ArgumentParser, *names: str) -> None:
    """Add options of `leakaudit._util.settings`, and those of the terminal."""
    group = sub.add_argument_group(
        "options from flag, LEAKAUDIT_*, leakaudit.toml or pyproject.toml"
    )
    for name in (*names, "progress"):
        flags = ["-o", "--output"] if name == "output" else [f"--{name.replace('_', '-')}"]
        if name == "download":
            group.add_argument(
                *flags, action="store_const", const=True, default=None, help=SETTINGS[name].help
            )
        else:
            shown = f"{SETTINGS[name].help} (default {SETTINGS[name].default})"
            group.add_argument(
                *flags, dest=name, default=None, metavar=name.split("_")[-1].upper(), help=shown
            )
    sub.add_argument(
        "--plugin",
        action="append",
        default=[],
        metavar="MODULE",
        help="module of your own with victims, attacks or reports, of the current folder or installed; its code runs; repeatable",
    )
    sub.add_argument("-q", "--quiet", action="store_true", help="no progress, no notes on stderr")


def plugins(args: argparse.Namespace) -> None:
    """Import what `--plugin` names."""
    if getattr(args, "plugin", None):
        from leakaudit.registry import add_plugins

        add_plugins(args.plugin)


def settings(args: argparse.Namespace) -> argparse.Namespace:
    """Return the effective settings of a call, and apply those of the tensor library; import its plugins."""
    plugins(args)
    values = {name: value for name, (value, _) in resolve(vars(args)).items()}
    if args.quiet:
        values["progress"] = "none"
    import torch

    torch.set_num_threads(max(1, values["threads"]))
    device = str(values["device"])
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as e:
        raise LeakauditError(
            f"device {device!r} cannot be used: {str(e).splitlines()[0]}"
        ) from None
    return argparse.Namespace(**values)


def trust(given: bool) -> bool:
    """Return whether a model's own code may run; where it may, modules of the current folder can be imported."""
    if given and "" not in sys.path:
        sys.path.insert(0, "")
    return given


def say(text: str, args: argparse.Namespace) -> None:
    """Write a note to stderr."""
    if not args.quiet:
        sys.stderr.write(text.rstrip("\n") + "\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb and return its exit code.

    0 to 3 are the verb's own verdicts, 2 also stands for bad input, 4 for a run that broke: a program under test that did not end
    with a recording, or a defect of leakaudit itself. 130: interrupted. A run that broke is never 0 or 1, which are verdicts.

    Args:
        argv: the arguments; those of the process where None.
    """
    verb = ""
    try:
        args = parser().parse_args(argv)
        verb = f" {args.verb}"
        code, message = _run(args)
    except LeakauditError as e:
        code, message = e.code, str(e)
    except KeyboardInterrupt:
        verb, code, message = "", INTERRUPTED, "interrupted"
    except BrokenPipeError:  # the reader of stdout left before the verb came to its verdict
        _mute()
        return BROKEN if verb.strip() in JUDGES else 0
    except OSError as e:
        code, message = 2, f"{e.filename}: {e.strerror}" if e.filename else str(e)
    except Exception as e:  # the last handler: a defect must not look like a verdict
        code, message = BROKEN, _defect(e)
    if message:
        sys.stderr.write(f"leakaudit{verb}: {' '.join(message.split())}\n")
    return code


def _run(args: argparse.Namespace) -> tuple[int, str]:
    """Run the verb; returns its code, and what to say of it: a plugin or a model's code that ends the process did not judge anything."""
    try:
        plugins(args)
        code: int = args.run(args)
        show("")
    except Told:
        raise
    except SystemExit as e:
        what = f"code that it loaded called sys.exit({e.code!r})"
        return BROKEN, f"{what}; nothing was judged: remove that call, or put it under a main guard"
    return code, ""


def show(text: str) -> None:
    """Write to stdout, at once; a reader that left does not change the verb's code."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        _mute()


def _mute() -> None:
    """Drop what nobody reads any more, so that the end of the process does not try to write it."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _defect(error: Exception) -> str:
    """Say in one line that leakaudit broke, where, and what to report; the whole traceback on request."""
    if os.environ.get(DEBUG):
        traceback.print_exception(error)
    place = traceback.extract_tb(error.__traceback__)[-1]
    what = f"{type(error).__name__}: {error}"[:300]
    told = f"set {DEBUG}=1 and report the traceback that it prints"
    return f"leakaudit itself broke, which is neither a pass nor a leak: {what} ({Path(place.filename).name}, line {place.lineno}); {told}"
