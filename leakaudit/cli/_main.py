"""Find the verb, build only its parser, run it, and turn the outcome into an exit code."""

from __future__ import annotations

import argparse
import atexit
import gc
import importlib
import os
import signal
import sys
import threading
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from leakaudit.cli._options import load_torch, loading, mute, plugins, show
from leakaudit.cli._parser import OF_PARSER, Parser, described
from leakaudit.core.errors import INTERRUPTED, LeakauditError, suggest

BROKEN = 4  # exit code of a run that failed before it reached a verdict
LONGEST = 4000  # characters of a message; a choice
# Verbs with an exit code that is a verdict.
JUDGES = ("check", "audit", "reproduce", "doctor", "trace")
# Commands that do without torch; sweep imports it once its workers have begun to do so.
WITHOUT_TORCH = ("list", "config", "sweep", "view", "report", "trace info")
OWN = ("", "-h", "--help", "--version")  # without a verb
DEBUG = "LEAKAUDIT_DEBUG"  # environment variable: print the traceback of a defect
GROUPS = {  # as the help of the program lists them
    "start": ("demo", "record", "tap"),
    "analyse": ("attack", "explain", "bound", "audit", "sweep"),
    "CI": ("init", "check"),
    "results": ("report", "view", "purge"),
    "papers": ("reproduce",),
    "more": ("trace", "list", "doctor", "config"),
}
VERBS = tuple(verb for group in GROUPS.values() for verb in group)
# Old spellings of commands; they are announced and still work.
RENAMED = {
    "baseline diff": "check --diff",
    "baseline show": "check --show",
    "baseline update": "check --update",
    "baseline": "check --show",
    "claims": "reproduce --claims",
    "completion": "config completion",
    "score": "report --rescore",
    "selfcheck": "doctor --statistics",
}

# A process that has imported torch exits 0.6 s sooner without a last garbage collection.
atexit.register(gc.freeze)


class _Version(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        """Exit with code 0."""
        from importlib.metadata import PackageNotFoundError, version

        from leakaudit.core.version import VERSION

        try:
            torch = version("torch")
        except PackageNotFoundError:
            torch = "not installed"
        sys.stdout.write(f"leakaudit {VERSION} (torch {torch})\n")
        parser.exit()


def parser(only: str | None = None, bare: bool = False) -> Parser:
    """Build the parser of one verb, or of all if None; a bare one has no options of verbs.

    Its result has ``run``, the function of the verb.
    """
    top = Parser(
        prog="leakaudit",
        **described(
            "Measures what someone who observes your decentralised training can learn about the "
            "training data. Run 'leakaudit VERB --help' for the options of a command.",
            "leakaudit demo",
            "leakaudit attack trace.pt -o out/",
        ),
    )
    top.add_argument(
        "--version", action=_Version, nargs=0, help="print the versions of leakaudit and torch"
    )
    verbs = top.add_subparsers(dest="verb", metavar="VERB", required=True, parser_class=Parser)
    top._positionals._group_actions.clear()  # the verbs are listed in groups, before the options
    for title, names in GROUPS.items():
        group = top.add_argument_group(title)
        for name in names:
            if only in (None, name):
                importlib.import_module(f"leakaudit.cli.{name}").run.add(verbs, bare)
                group._group_actions.append(verbs._choices_actions[-1])
    top._action_groups.append(top._action_groups.pop(1))
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb with the arguments, those of the process if None, and return its exit code.

    0 to 3 are verdicts, 2 is also invalid input, 4 a run that failed, 130 an interruption.
    """
    given = _renamed(list(sys.argv[1:] if argv is None else argv))
    first = given[0] if given else ""
    args: argparse.Namespace | None = None
    try:
        if first not in VERBS and not first.startswith("-") and first:
            near = suggest(first, VERBS)
            raise LeakauditError(f"there is no command {first!r}{near}; see 'leakaudit --help'")
        bare = first in OWN and len(given) < 2
        args = parser(first if first in VERBS else None, bare).parse_args(given)
        with _terminable():
            code, message = _run(args)
    except LeakauditError as error:
        code, message = error.code, str(error)
    except KeyboardInterrupt:
        args, code, message = None, INTERRUPTED, "interrupted"
    except BrokenPipeError:  # the reader closed the pipe before there was a verdict
        mute()
        return BROKEN if args is not None and args.verb in JUDGES else 0
    except OSError as error:
        code = 2
        message = f"{error.filename}: {error.strerror}" if error.filename else str(error)
    except Exception as error:  # the last handler: a defect must not look like a verdict
        code, message = BROKEN, _defect(error)
    if message:
        from leakaudit.reporting.findings.wording import clean

        # A message may quote a stranger's file, with any characters and of any length.
        sys.stderr.write(f"{_named(args)}: {clean(message)[:LONGEST]}\n")
    return code


def _renamed(given: list[str]) -> list[str]:
    """Return the arguments in today's spelling, and say so if it differs."""
    for old, new in RENAMED.items():
        count = len(old.split())
        if given[:count] == old.split():
            sys.stderr.write(f"leakaudit: '{old}' is now '{new}'\n")
            return [*new.split(), *given[count:]]
    return given


@contextmanager
def _terminable() -> Iterator[None]:
    """Let SIGTERM end a run like Ctrl-C, which removes temporary files with private data."""
    ours = threading.current_thread() is threading.main_thread()
    if not ours or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _named(args: argparse.Namespace | None) -> str:
    """Return the command as it begins a message."""
    return "leakaudit" if args is None else f"leakaudit {_command(args)}"


def _command(args: argparse.Namespace) -> str:
    """Return the verb and its action, if it has one."""
    return " ".join(filter(None, (args.verb, getattr(args, "action", None))))


def _run(args: argparse.Namespace) -> tuple[int, str]:
    """Run the verb; return its exit code and a message, also if other code ends the process."""
    from leakaudit.reporting.rendering import status

    try:
        if not {args.verb, _command(args)} & {*WITHOUT_TORCH}:
            with loading(args):
                load_torch()
        plugins(args)
        code: int = args.run(args)
        show("")
        if (
            "leakaudit.core.mapping" in sys.modules
        ):  # a command that maps nothing does not import it
            sys.modules["leakaudit.core.mapping"].verify()
    except SystemExit as ended:
        if OF_PARSER in getattr(ended, "__notes__", ()):
            raise
        what = f"a plug-in or model called sys.exit({ended.code!r}) when it was imported"
        advice = "there is no verdict; remove that call, or put it under a main guard"
        return BROKEN, f"{what}; {advice}"
    finally:
        status.clear()
    return code, ""


def _defect(error: Exception) -> str:
    """Return one line: that leakaudit itself failed, where, and what to report."""
    if os.environ.get(DEBUG):
        traceback.print_exception(error)
    place = traceback.extract_tb(error.__traceback__)[-1]
    where = f"{Path(place.filename).name}, line {place.lineno}"
    what = f"{type(error).__name__}: {error}"[:300]
    return (
        f"internal error, which is neither a pass nor a leak: {what} ({where}); "
        f"please report it with the traceback that {DEBUG}=1 prints"
    )
