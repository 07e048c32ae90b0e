"""What `leakaudit tap` does with a log that is there: describe it, and make a trace of it."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from leakaudit.cli._options import Parser, say, settings, shared, trust
from leakaudit.errors import LeakauditError

if TYPE_CHECKING:
    from leakaudit.capture.tap.description import Description


def written(sub: argparse.ArgumentParser) -> None:
    """Add what says where a trace goes, and where its truth comes from.

    Args:
        sub: The verb's parser.
    """
    sub.add_argument(
        "-o", "--output", type=Path, default=Path("trace.pt"), help="trace file (default trace.pt)"
    )
    sub.add_argument(
        "--truth",
        type=Path,
        metavar="FILE",
        help=".npz that holds all nodes' records x, y, node, to score attacks against",
    )


def describe(argv: list[str]) -> int:
    """Write a description to start from.

    Args:
        argv: The arguments after ``tap describe``.

    Returns:
        The exit code.
    """
    from leakaudit.cli.record import pairs

    sub = Parser(
        prog="leakaudit tap describe",
        description="Guess what a log's messages are, and write a description to start from.",
    )
    sub.add_argument("log", type=Path, help="folder of the log (trace.tap)")
    sub.add_argument("-o", "--output", type=Path, help="TOML file to write (default: stdout)")
    sub.add_argument(
        "--model",
        help="model that was trained: a name of 'leakaudit list models', or package.module:factory",
    )
    sub.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="an argument of the model; repeatable",
    )
    sub.add_argument("--shape", help="shape of one input, e.g. 1,25,25")
    sub.add_argument("--classes", type=int, help="number of classes")
    sub.add_argument(
        "--loss",
        default="cross_entropy",
        help="cross_entropy, binary or squared (default cross_entropy)",
    )
    shared(sub, "threads")
    args = sub.parse_args(argv)
    settings(args)
    trust(args.model is not None)
    from leakaudit._util.files import replacing
    from leakaudit.capture.tap.guess import guess, named
    from leakaudit.capture.tap.reading import read_logs

    task = named(
        args.model, pairs(args.set), numbers(args.shape, "--shape"), args.classes, args.loss
    )
    found = guess(read_logs(_folder(args.log)), task)
    if args.output is None:
        sys.stdout.write(found.toml)
    else:
        with replacing(args.output) as file:
            file.write(found.toml.encode())
    say(f"{args.output or 'description'}: {found.said}", args)
    for line in found.evidence:
        say(f"  {line}", args)
    return 0


def merge(argv: list[str]) -> int:
    """Make a trace of a log that was kept.

    Args:
        argv: The arguments after ``tap merge``.

    Returns:
        The exit code.
    """
    sub = Parser(
        prog="leakaudit tap merge", description="Make a trace of a log, as a description says."
    )
    sub.add_argument("log", type=Path, help="folder of the log (trace.tap)")
    sub.add_argument(
        "--describe",
        type=Path,
        required=True,
        metavar="FILE",
        help="TOML that says what the messages are",
    )
    written(sub)
    shared(sub, "threads", "max_bytes")
    args = sub.parse_args(argv)
    chosen = settings(args)
    from leakaudit.capture.tap import description

    write(args, chosen, _folder(args.log), description.read(args.describe))
    return 0


def write(
    args: argparse.Namespace,
    chosen: argparse.Namespace,
    folder: Path,
    described: Description,
    code: int = 0,
) -> None:
    """Write the trace, and say what it holds and lacks.

    Args:
        args: The parsed arguments; those of `written` are read.
        chosen: The effective settings.
        folder: Of the log.
        described: What its messages are.
        code: Exit code of the program.
    """
    from leakaudit.capture.tap import merge, wires
    from leakaudit.capture.tap.reading import read_logs
    from leakaudit.rendering import console
    from leakaudit.results import provenance

    logs = wires.latest(read_logs(folder))
    plan = wires.plan(described, logs)
    truth = None
    if args.truth:
        truth = merge.read_truth(args.truth, described.task.spec.shape, plan.graph.nodes)
    with console.shown(chosen.progress):
        trace = merge.write(
            plan, logs, args.output, code, truth, chosen.max_bytes, provenance.command()
        )
    size = (
        f"{trace.graph.nodes} nodes, {len(trace.graph.edges)} edges, {trace.rounds} rounds, "
        f"{len(trace)} messages"
    )
    share = merge.facts(trace).share
    say(
        f"{args.output}: {trace.protocol}, {size}; the tap took {share:.1%} of the processes' time",
        args,
    )
    for line in merge.warnings(trace):
        say(f"leakaudit tap: {line}", args)


def log(trace: Path) -> Path:
    """Return where the raw log of a trace is.

    Args:
        trace: The trace file.

    Returns:
        The log's folder, beside it.

    Raises:
        LeakauditError: `trace` has no file name.
    """
    if not trace.name:
        raise LeakauditError(f"expected the name of a trace file, got {str(trace)!r}")
    return trace.with_name(f"{trace.name.removesuffix('.pt')}.tap")


def _folder(given: Path) -> Path:
    """Return the log that is meant, if somebody names the trace beside it."""
    if given.suffix == ".pt":
        return log(given)
    return given


def numbers(text: str | None, flag: str) -> tuple[int, ...] | None:
    """Read whole numbers joined by commas.

    Args:
        text: The numbers; None if not given.
        flag: The option, for the message.

    Returns:
        The numbers; None if not given.

    Raises:
        LeakauditError: One of them is not a whole number.
    """
    if text is None:
        return None
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise LeakauditError(
            f"{flag}: expected whole numbers joined by commas, got {text!r}"
        ) from None
