"""The command line: one file a verb; nothing heavy is imported before a verb runs."""

from __future__ import annotations

import argparse
import atexit
import gc
import importlib
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from leakaudit.errors import LeakauditError
from leakaudit.settings import SETTINGS, resolve

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
atexit.register(gc.freeze)  # the end of a process that has torch is .6 s shorter without looking for cycles among its objects


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one line."""

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
    top = Parser(prog="leakaudit", description="What can someone who hears your decentralised training learn about the training data?")
    top.add_argument("--version", action=Version, nargs=0, help="print the versions of leakaudit and torch")
    verbs = top.add_subparsers(dest="verb", metavar="VERB", required=True, parser_class=Parser)
    for name in VERBS:
        importlib.import_module(f"leakaudit.cli.{name}").add(verbs)
    return top


def shared(sub: argparse.ArgumentParser, *names: str) -> None:
    """Add options of `leakaudit.settings`, and those of the terminal."""
    group = sub.add_argument_group("options from flag, LEAKAUDIT_*, leakaudit.toml or pyproject.toml")
    for name in (*names, "progress"):
        flags = ["-o", "--output"] if name == "output" else [f"--{name.replace('_', '-')}"]
        if name == "download":
            group.add_argument(*flags, action="store_const", const=True, default=None, help=SETTINGS[name].help)
        else:
            shown = f"{SETTINGS[name].help} (default {SETTINGS[name].default})"
            group.add_argument(*flags, dest=name, default=None, metavar=name.split("_")[-1].upper(), help=shown)
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
        raise LeakauditError(f"device {device!r} cannot be used: {str(e).splitlines()[0]}") from None
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
    """Run one verb and return the exit code: 0 done, 2 bad input, 130 interrupted."""
    verb = ""
    try:
        args = parser().parse_args(argv)
        verb = f" {args.verb}"
        plugins(args)
        code: int = args.run(args)
        sys.stdout.flush()
        return code
    except LeakauditError as e:
        message = str(e)
    except KeyboardInterrupt:
        sys.stderr.write("leakaudit: interrupted\n")
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as e:
        message = f"{e.filename}: {e.strerror}" if e.filename else str(e)
    sys.stderr.write(f"leakaudit{verb}: {' '.join(message.split())}\n")
    return 2
