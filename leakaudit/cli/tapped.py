"""`leakaudit tap describe` and `merge`: describe an existing log, and make a trace of it."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from leakaudit.cli._commands import Options, SharedOptions, argument, command, option
from leakaudit.cli._options import ModelOptions, say, settings, show, size_of, trusting
from leakaudit.core.errors import LeakauditError

if TYPE_CHECKING:
    from leakaudit.capture.tap.guessing.guess import Guess
    from leakaudit.capture.tap.log.reading import RankLog
    from leakaudit.capture.tap.merge import Truth
    from leakaudit.capture.tap.messages.description import MessageDescription
    from leakaudit.core.trace import Trace
    from leakaudit.tasks.task import Task


# Said of an inferred description if another one exists beside the trace.
DIFFERS = "{} exists and differs, so it was kept; inferred: {}"


class _Quiet(Protocol):
    quiet: bool


class TraceOptions(Options):
    """The trace to write, and its truth."""

    output: Path = option(
        "trace file to write; replaces an existing one",
        "-o",
        default=Path("trace.pt"),
    )
    truth: Path | None = option(
        "file .npz with the records x, y, node of all nodes, for scoring attacks", metavar="FILE"
    )

    def records(self, shape: tuple[int, ...], nodes: int) -> Truth | None:
        """Return the records of all nodes, if their file is given."""
        from leakaudit.capture.tap import merge

        if not self.truth:
            return None
        return merge.read_truth(self.truth, shape, nodes)


class _DescribeOptions(SharedOptions):
    settings = ("threads",)

    log: Path = argument("folder of the log (trace.tap)")
    output: Path | None = option("TOML file to write (default: stdout)", "-o", metavar="FILE")
    described: ModelOptions
    set: list[str] = option("set an argument of the model; repeatable", metavar="NAME=VALUE")


@command(
    "tap describe",
    "infer what the messages of a log contain",
    "Infers what the messages of a log contain, and writes a description of them that you can "
    "complete.",
    "leakaudit tap describe trace.tap -o tap.toml",
    "leakaudit tap describe trace.tap --model mlp --shape 1,25,25 --classes 10",
)
def describe(args: _DescribeOptions) -> int:
    """Infer a description of a log, and write it."""
    from leakaudit.cli.record import pairs

    settings(args)
    from leakaudit._util.files import replacing
    from leakaudit.capture.tap.log import finder
    from leakaudit.capture.tap.log.reading import read_logs
    from leakaudit.tasks.task import Task

    spec = args.described.spec(pairs(args.set))
    task = None if spec is None else Task.build(spec, trusted=True)
    assumed = ""
    folder = _folder(args.log)
    logs = read_logs(folder)
    if spec is None and (folder / finder.FACTS).is_file():
        beside = folder if args.output is None else args.output
        task, assumed = saved_model(args, folder, beside.with_name(f"{folder.stem}.pt"))
    found = infer(args, logs, task, assumed, given=spec is not None)
    if args.output is None:
        show(found.toml)
    else:
        with replacing(args.output) as file:
            file.write(found.toml.encode())
    say(f"{args.output or 'description'}: {found.said}", args)
    for line in found.evidence:
        say(f"  {line}", args)
    if found.advice:
        say(found.advice, args)
    if args.output is not None:
        trace = folder.with_suffix(".pt")
        then = "" if found.description is not None else "fill it in, then "
        say(f"next: {then}leakaudit tap merge {folder} --describe {args.output} -o {trace}", args)
    return 0


def saved_model(args: _Quiet, folder: Path, trace: Path) -> tuple[Task | None, str]:
    """Copy the program's model from a log beside a trace.

    Returns its task, if it can be used, and why its loss is not known, or empty.
    """
    from leakaudit.capture.tap import saved

    task, assumed, said = saved.take(folder, trace)
    for line in said:
        say(f"leakaudit tap: {line}", args)
    return task, assumed


def infer(
    args: _Quiet,
    logs: Sequence[RankLog],
    task: Task | None,
    assumed: str = "",
    given: bool = False,
) -> Guess:
    """Infer what messages contain; given: whether the user named the model, which must fit."""
    from leakaudit.capture.tap.guessing.guess import guess
    from leakaudit.capture.tap.messages import states

    known = logs if task is None else states.only_trained(logs, task.layout.names)
    try:
        return guess(known, task, assumed=assumed)
    except LeakauditError as error:
        if task is None or given:
            raise
        say(f"leakaudit tap: the program's model does not fit the messages: {error}", args)
        return guess(logs)


class _MergeOptions(SharedOptions):
    settings = ("threads", "max_bytes")

    log: Path = argument("folder of the log (trace.tap)")
    describe: Path = option("TOML file that describes the messages", required=True, metavar="FILE")
    written: TraceOptions
    trust_model: bool | str = trusting("description")


@command(
    "tap merge",
    "make a trace of a log",
    "Makes a trace of a log that was kept, with a description of its messages.",
    "leakaudit tap merge trace.tap --describe tap.toml",
    "leakaudit tap merge trace.tap --describe tap.toml --truth data.npz",
)
def merge(args: _MergeOptions) -> int:
    """Make a trace of an existing log."""
    chosen = settings(args)
    from leakaudit.capture.tap.messages import description

    write(args, chosen, _folder(args.log), description.read(args.describe, args.trust_model))
    return 0


class _Tracing(Protocol):
    written: TraceOptions
    quiet: bool

    @property
    def describe(self) -> Path | None: ...


def keep_inferred(args: _Tracing, found: Guess) -> tuple[Path, bool]:
    """Write an inferred description beside the trace, unless it differs from one there.

    Returns the file, and whether it has this description.
    """
    from leakaudit._util.files import replacing

    beside = args.written.output.with_suffix(".toml")
    text = found.toml.encode()
    if beside.exists():
        return beside, beside.read_bytes() == text
    with replacing(beside) as file:
        file.write(text)
    return beside, True


def write(
    args: _Tracing,
    chosen: argparse.Namespace,
    folder: Path,
    described: MessageDescription,
    code: int = 0,
) -> None:
    """Write the trace; report its size and what is missing."""
    from leakaudit.capture.tap import merge
    from leakaudit.reporting.rendering import console
    from leakaudit.reporting.results import provenance
    from leakaudit.tasks import remarks

    plan, logs = merge.planned(folder, described, declared=bool(args.describe))
    truth = args.written.records(described.task.spec.shape, plan.graph.nodes)
    command = provenance.command()
    with console.shown(chosen.progress):
        trace = merge.write(plan, logs, args.written.output, code, truth, chosen.max_bytes, command)
    share = f"the tap took {merge.facts(trace).share:.1%} of the processes' time"
    say(f"{args.written.output}: {trace.protocol}, {size_of(trace)}; {share}", args)
    for line in (*merge.warnings(trace), *remarks.of(described.task)):
        say(f"leakaudit tap: {line}", args)
    for reason in unclear(trace, args):
        sys.stderr.write(f"leakaudit tap: not as described: {reason}\n")
    for part, path in merge.others(plan, args.written.output):
        with console.shown(chosen.progress):
            merge.write(part, logs, path, code, truth, chosen.max_bytes, command)
        names = ", ".join(part.names(part.columns))
        say(f"{path}: the same messages, of which it contains {names}", args)


def unclear(trace: Trace, args: _Tracing) -> list[str]:
    """Return how a new recording differs from its description.

    Without a declaration, the next command is stated.
    """
    from leakaudit.core import registry
    from leakaudit.traces import trace_file
    from leakaudit.views.conformance import conformance

    if trace.protocol.startswith(registry.OWN):
        next = f"leakaudit trace equations {args.written.output}"
        say(f"{trace.protocol} is not declared; next: {next}", args)
        return []
    truth = None
    if args.written.truth:
        truth = trace_file.load_truth(trace_file.truth_path(args.written.output))
    try:
        return conformance.examine(trace, truth).sentences
    except LeakauditError as error:  # messages of the first round are missing
        return [str(error)]


def log(trace: Path) -> Path:
    """Return the folder of the raw log of a trace."""
    if not trace.name:
        raise LeakauditError(f"-o: expected the name of a trace file, got {str(trace)!r}")
    return trace.with_name(f"{trace.name.removesuffix('.pt')}.tap")


def _folder(given: Path) -> Path:
    """Return the folder of a log, also for the trace beside it."""
    if given.suffix == ".pt":
        return log(given)
    return given
