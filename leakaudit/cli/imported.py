"""`leakaudit trace import`: make a trace of messages that any program wrote in the wire format."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from leakaudit.cli import tapped
from leakaudit.cli._commands import SharedOptions, argument, command, option
from leakaudit.cli._options import INCONCLUSIVE, say, settings, size_of, trusting
from leakaudit.cli.tapped import TraceOptions
from leakaudit.core.errors import LeakauditError

if TYPE_CHECKING:
    from leakaudit.capture.tap.guessing.guess import Guess
    from leakaudit.capture.tap.log.reading import RankLog
    from leakaudit.capture.tap.messages.description import MessageDescription
    from leakaudit.capture.wire.folder import Folder


class _Options(SharedOptions):
    settings = ("threads", "max_bytes")

    folder: Path = argument("folder with messages.jsonl")
    describe: Path | None = option(
        "TOML file that describes the messages (default: inferred from the messages)",
        metavar="FILE",
    )
    trust_model: bool | str = trusting("description")
    written: TraceOptions


@command(
    "trace import",
    "make a trace of messages that a program wrote in the wire format",
    "Makes a trace of messages that any program, in any language, wrote in the wire "
    "format: lines of JSON beside files of numbers (docs/wire.md).",
    "leakaudit trace import messages/ -o trace.pt",
    "leakaudit trace import messages/ --describe trace.toml -o trace.pt",
)
def run(args: _Options) -> int:
    """Read the messages and write the trace."""
    chosen = settings(args)
    from leakaudit.capture.tap.log.reading import read_logs
    from leakaudit.capture.tap.messages import description
    from leakaudit.capture.wire import folder, to_log

    if not args.written.output.name:
        raise LeakauditError(
            f"-o: expected the name of a trace file, got {str(args.written.output)!r}"
        )
    given = description.read(args.describe, args.trust_model) if args.describe else None
    messages = folder.read(args.folder, chosen.max_bytes)
    beside = args.written.output.parent if args.written.output.parent.is_dir() else None
    with tempfile.TemporaryDirectory(prefix=".import-", dir=beside) as scratch:
        extra = to_log.write(messages, Path(scratch), given)
        logs = read_logs(scratch)
        guessed = None
        if given is None:
            guessed = _inferred(messages, logs)
            if guessed.description is None:
                _ask(args, guessed)
                return INCONCLUSIVE
            given = guessed.description
        unclear = _write(args, chosen, messages, logs, given)
        if guessed is not None:
            beside, kept = tapped.keep_inferred(args, guessed)
            if kept:
                say(f"{beside}: inferred: {guessed.said}; check it", args)
            else:
                say(tapped.DIFFERS.format(beside, guessed.said), args)
    skipped = (*messages.skipped, *extra)
    if skipped:
        say(f"not part of the model, and left out: {', '.join(skipped[:10])}", args)
    for reason in unclear:
        sys.stderr.write(f"leakaudit trace import: not as described: {reason}\n")
    return INCONCLUSIVE if unclear else 0


def _inferred(messages: Folder, logs: Sequence[RankLog]) -> Guess:
    from leakaudit.capture.tap.guessing.guess import guess, unknown

    several = messages.ambiguous
    if several is None:
        return guess(logs, named=any(message.payload.names for message in messages.messages))
    return unknown(
        f"{several.where}: a second message of its round on its channel, so the kinds of "
        "messages have to be described",
        len({message.line.round for message in messages.messages}),
    )


def _ask(args: _Options, found: Guess) -> None:
    """Write an incomplete description beside the trace, and say what to do."""
    beside, kept = tapped.keep_inferred(args, found)
    next = f"complete it, and run: leakaudit trace import {args.folder} --describe {beside}"
    if not kept:
        next = f"it exists and was kept; {next}"
    say(f"{beside}: {found.said}; {next}", args)
    if found.advice:
        say(found.advice, args)


def _write(
    args: _Options,
    chosen: argparse.Namespace,
    messages: Folder,
    logs: Sequence[RankLog],
    used: MessageDescription,
) -> list[str]:
    """Write the trace; report its size, what is proved, and what is missing."""
    from leakaudit.capture.tap import merge
    from leakaudit.capture.tap.guessing import confirm, observed
    from leakaudit.capture.tap.messages import wires
    from leakaudit.capture.wire import to_log
    from leakaudit.reporting.rendering import console
    from leakaudit.reporting.results import provenance

    plan = wires.plan(used, logs)
    seen = observed.collect(logs, used.task, used.places)
    to_log.check_complete(messages, seen, used)
    to_log.check_kinds(messages, plan)
    wrong = confirm.contradictions(used, logs) if args.describe else []
    if wrong:
        raise LeakauditError(f"the description is wrong: {'; '.join(wrong)}")
    truth = args.written.records(used.task.spec.shape, plan.graph.nodes)
    with console.shown(chosen.progress):
        trace = merge.write(
            plan, logs, args.written.output, 0, truth, chosen.max_bytes, provenance.command()
        )
    say(f"{args.written.output}: {trace.protocol}, {size_of(trace)}", args)
    why = confirm.doubt(used, logs)
    if why:
        say(f"not confirmed: {why}", args)
    else:
        say("recomputed gradients confirm the model and the order of its parameters", args)
    for line in merge.warnings(trace):
        say(f"leakaudit trace import: {line}", args)
    for file, why in messages.cut.items():
        say(f"leakaudit trace import: {file}: {why}, so the trace is incomplete", args)
    return tapped.unclear(trace, args)
