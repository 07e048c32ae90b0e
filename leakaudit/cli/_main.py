"""Find the verb, build its parser only, run it, and turn every end into an exit code."""

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

from leakaudit.cli._options import Parser, Told, mute, plugins, show
from leakaudit.errors import LeakauditError

BROKEN = 4  # exit code of a run that broke, and so judged nothing
INTERRUPTED = 130  # exit code after Ctrl-C
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

# A process that has torch ends .6 s sooner if it does not look for cycles among its objects.
atexit.register(gc.freeze)


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


def parser(only: str | None = None) -> Parser:
    """Build the parser.

    Args:
        only: The verb whose part is built; all if None. A call needs no other verb's options,
            nor the modules that describe them.

    Returns:
        A parser whose result has ``run``, the verb's function.
    """
    top = Parser(
        prog="leakaudit",
        description=(
            "What can someone who hears your decentralised training learn about the training data?"
        ),
    )
    top.add_argument(
        "--version", action=Version, nargs=0, help="print the versions of leakaudit and torch"
    )
    verbs = top.add_subparsers(dest="verb", metavar="VERB", required=True, parser_class=Parser)
    for name in VERBS:
        if only in (None, name):
            importlib.import_module(f"leakaudit.cli.{name}").add(verbs)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb and return its exit code.

    0 to 3 are the verb's own verdicts, 2 also stands for bad input, 4 for a run that broke: a
    program under test that did not end with a recording, or a defect of leakaudit itself. 130:
    interrupted. A run that broke is never 0 or 1, which are verdicts.

    Args:
        argv: The arguments; those of the process if None.

    Returns:
        The exit code.
    """
    given = list(sys.argv[1:] if argv is None else argv)
    first = given[0] if given else ""
    verb = ""
    try:
        args = parser(first if first in VERBS else None).parse_args(given)
        verb = f" {args.verb}"
        code, message = _run(args)
    except LeakauditError as error:
        code, message = error.code, str(error)
    except KeyboardInterrupt:
        verb, code, message = "", INTERRUPTED, "interrupted"
    except BrokenPipeError:  # the reader of stdout left before the verb came to its verdict
        mute()
        return BROKEN if verb.strip() in JUDGES else 0
    except OSError as error:
        code = 2
        message = f"{error.filename}: {error.strerror}" if error.filename else str(error)
    except Exception as error:  # the last handler: a defect must not look like a verdict
        code, message = BROKEN, _defect(error)
    if message:
        sys.stderr.write(f"leakaudit{verb}: {' '.join(message.split())}\n")
    return code


def _run(args: argparse.Namespace) -> tuple[int, str]:
    """Run the verb; return its code and a message.

    A plugin or a model's code that ends the process did not judge anything.
    """
    try:
        plugins(args)
        code: int = args.run(args)
        show("")
    except Told:
        raise
    except SystemExit as ended:
        what = f"code that it loaded called sys.exit({ended.code!r})"
        advice = "nothing was judged: remove that call, or put it under a main guard"
        return BROKEN, f"{what}; {advice}"
    return code, ""


def _defect(error: Exception) -> str:
    """Say in one line that leakaudit broke, where, and what to report.

    The whole traceback is printed if the environment asks for it.
    """
    if os.environ.get(DEBUG):
        traceback.print_exception(error)
    place = traceback.extract_tb(error.__traceback__)[-1]
    where = f"{Path(place.filename).name}, line {place.lineno}"
    what = f"{type(error).__name__}: {error}"[:300]
    return (
        f"leakaudit itself broke, which is neither a pass nor a leak: {what} ({where}); "
        f"set {DEBUG}=1 and report the traceback that it prints"
    )
