"""`leakaudit tap`: record the messages of a program."""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from leakaudit.cli import tapped
from leakaudit.cli._commands import SharedOptions, argument, command, option
from leakaudit.cli._options import INCONCLUSIVE, numbers, say, settings, trusting, window
from leakaudit.cli.tapped import TraceOptions
from leakaudit.core.errors import LeakauditError, NotUnderstood

if TYPE_CHECKING:
    from leakaudit.capture.tap.messages.description import MessageDescription
    from leakaudit.tasks.task import Task

ACTIONS = {"describe": tapped.describe, "merge": tapped.merge}

USAGE = """leakaudit tap [options] -- torchrun --nproc-per-node 4 program.py
       leakaudit tap describe LOG [-o tap.toml] [--model NAME --shape 1,25,25 …]
       leakaudit tap merge LOG --describe tap.toml [-o trace.pt]"""


class _Options(SharedOptions):
    settings = ("seed", "threads", "max_bytes")

    written: TraceOptions
    describe: Path | None = option(
        "TOML file that describes the messages (default: inferred from the messages)",
        metavar="FILE",
    )
    trust_model: bool | str = trusting("description")
    rounds: str | None = option(
        "record the content of messages only in rounds A to B - 1 (default: all)", metavar="A:B"
    )
    ranks: str | None = option(
        "record the content of messages only of these ranks, e.g. 0,2 (default: all)",
        metavar="RANKS",
    )
    layers: str | None = option(
        "record only these parameters, separated by commas: first, last, or names of modules "
        "or parameters, with * for any characters; sketch adds a sketch of the others, and all "
        "records everything (default: all; first,last,sketch above 1,000,000 parameters)",
        metavar="NAMES",
    )
    model_from: str | None = option(
        "save the model that the program trains beside the trace, as a torch.export program "
        "that runs without the program's code, and use it in the description",
        choices=("program",),
    )
    receive: bool = option("record received messages as well, once the program has waited for them")
    keep: bool = option("keep the raw log (trace.tap/) after the trace is written")
    command: list[str] = argument(
        "the program and its arguments, after --", nargs=argparse.REMAINDER, metavar="-- COMMAND"
    )


@command(
    "tap",
    "record the messages of a torch.distributed, Flower, NVFlare or p2pfl program",
    "Records what a program of torch.distributed, Flower, NVFlare or p2pfl sends, without "
    "a change to the program, and infers what the messages contain. 'describe' and 'merge' "
    "process a log again.",
    "leakaudit tap -o trace.pt -- torchrun --nproc-per-node 4 train.py",
    "leakaudit tap -o trace.pt --describe tap.toml -- python train.py",
    usage=USAGE,
)
def run(args: _Options) -> int:
    """Run the program and write the trace; 3 if its messages need a description."""
    if args.command and args.command[0] in ACTIONS:
        args.given.action = args.command[0]  # for messages
        given = ACTIONS[args.command[0]].parser().parse_args(args.command[1:])
        code: int = given.run(given)
        return code
    command = args.command[1:] if args.command[:1] == ["--"] else args.command
    if not command:
        raise LeakauditError(
            "expected a program after --, for example: leakaudit tap -o trace.pt -- torchrun "
            "--nproc-per-node 4 train.py"
        )
    from leakaudit.capture.tap import launch
    from leakaudit.capture.tap.messages import description
    from leakaudit.traces.recorder import human

    chosen = settings(args)
    if launch.waits_not(command):
        command = [*command, "--stream"]
        say("leakaudit tap: added --stream, so that 'flwr run' waits for the end of the run", args)
    described = None
    if args.describe:
        described = description.read(args.describe, args.trust_model)
    folder = tapped.log(args.written.output)
    rounds = window(args.rounds)
    ranks = _ranks(args.ranks)
    layers = _layers(args.layers)
    limit, why = _limit(chosen.max_bytes, folder)
    listening = {
        "ranks": ranks,
        "rounds": None if rounds is None else (rounds.start, rounds.stop),
        "max_bytes": limit,
        "receive": args.receive,
        "layers": layers,
        "seed": chosen.seed,
        "quiet": args.quiet,
        "model": args.model_from is not None,
    }
    if described is not None:
        listening |= described.listening
    said = _choice(layers) if described is None else _need(limit, described, layers)
    with launch.owned(folder):
        launch.prepare(folder)
        say(f"leakaudit tap: at most {human(limit)} of messages are recorded ({why}): {said}", args)
        try:
            code = launch.run(command, folder, **listening)
        except LeakauditError:
            launch.clear(folder)
            raise
        return _finish(args, chosen, folder, described, code)


def _finish(
    args: _Options,
    chosen: argparse.Namespace,
    folder: Path,
    described: MessageDescription | None,
    code: int,
) -> int:
    from leakaudit.capture.tap import launch

    if not launch.recorded(folder):
        launch.clear(folder)
        if code:
            say(
                f"leakaudit tap: no messages were recorded: the program ended with code {code}",
                args,
            )
            return code
        raise LeakauditError(f"no messages of the program were recorded: {launch.SILENT}")
    try:
        task, assumed = _model(args, folder)
        described = described or _guessed(args, folder, task, assumed)
        if described is None:
            return code or INCONCLUSIVE
        tapped.write(args, chosen, folder, described, code)
    except NotUnderstood as error:
        raise NotUnderstood(f"{error}; the log is kept in {folder}") from None
    except LeakauditError as error:
        # The class of the error determines the exit code.
        raise type(error)(
            f"{error}; the log is kept: leakaudit tap merge {folder} --describe FILE"
        ) from None
    if not args.keep:
        launch.clear(folder)
    return code


def _model(args: _Options, folder: Path) -> tuple[Task | None, str]:
    """Save the program's model beside the trace, if the user asks for it.

    Returns its task, if there is one, and why its loss is not known, or empty.
    """
    if args.model_from is None:
        return None, ""
    return tapped.saved_model(args, folder, args.written.output)


def _guessed(
    args: _Options, folder: Path, task: Task | None, assumed: str
) -> MessageDescription | None:
    """Infer the description and write it beside the trace; None if incomplete."""
    from leakaudit.capture.tap.log.reading import read_logs

    found = tapped.infer(args, read_logs(folder), task, assumed)
    if found.description is None:
        say(f"{folder}: {found.said}; next: leakaudit tap describe {folder} -o tap.toml", args)
        if found.advice:
            say(f"leakaudit tap: {found.advice}", args)
        return None
    beside, kept = tapped.keep_inferred(args, found)
    said = tapped.DIFFERS.format(beside, found.said)
    if kept:
        next = "check it, and pass it with --describe the next time"
        said = f"{beside}: inferred: {found.said}; {next}"
    say(said, args)
    return found.description


def _layers(text: str | None) -> list[str] | None:
    from leakaudit.capture.tap.log.layers import SKETCH

    if text is None:
        return None
    found = [word.strip() for word in text.split(",")]
    if set(found) == {SKETCH}:
        raise LeakauditError(
            "--layers sketch: a sketch verifies other parameters and is nothing to attack; "
            "name some to record, e.g. --layers first,last,sketch"
        )
    return found


def _limit(max_bytes: int, folder: Path) -> tuple[int, str]:
    """Return the limit on messages, and where it comes from; the trace takes as much again."""
    existing = next(parent for parent in folder.absolute().parents if parent.exists())
    free = shutil.disk_usage(existing).free // 2
    if free < max_bytes:
        return free, "half of the free space of the disk"
    return max_bytes, "--max-bytes"


def _choice(layers: list[str] | None) -> str:
    from leakaudit.capture.tap.log.layers import LARGE

    if layers is not None:
        return f"of each model, these parameters: {', '.join(layers)}"
    return (
        f"of models with more than {LARGE:,} parameters, the first and the last layer and a sketch "
        "of the others (--layers all records everything)"
    )


def _need(limit: int, described: MessageDescription, layers: list[str] | None) -> str:
    """Return what is recorded of a described model, which may not be nothing."""
    from leakaudit.capture.tap.log import layers as choice
    from leakaudit.traces.recorder import human

    whole = described.sizes[-1]
    selection = choice.select(described.names, described.sizes[:-1], layers)
    if selection is not None and not selection.kept:
        names = ", ".join(described.names[:8])
        raise LeakauditError(f"--layers: no parameter matches {layers}; the model has {names}")
    size = 4 * (whole if selection is None else selection.numbers)
    return (
        f"{choice.described(selection, whole)}; a message takes {human(size)} on the disk "
        f"(float32); {human(limit)} hold {int(limit // size)} of all processes together"
    )


def _ranks(text: str | None) -> list[int] | None:
    return None if text is None else list(numbers(text, "--ranks") or ())
