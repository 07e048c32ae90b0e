"""`leakaudit tap`: record the messages of a program."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leakaudit.cli import tapped
from leakaudit.cli._options import described, say, settings, shared
from leakaudit.errors import LeakauditError, NotUnderstood

if TYPE_CHECKING:
    from leakaudit.capture.tap.messages.description import Description

ACTIONS = ("describe", "merge")
UNDESCRIBED = 3  # exit code if the messages were logged, but could not be interpreted
USAGE = """leakaudit tap [options] -- torchrun --nproc-per-node 4 program.py
       leakaudit tap describe LOG [-o tap.toml] [--model NAME --shape 1,25,25 …]
       leakaudit tap merge LOG --describe tap.toml [-o trace.pt]"""


def add(verbs: Any) -> None:
    """Add the verb's parser; 'describe' and 'merge' have parsers of their own.

    Args:
        verbs: The subparsers of `leakaudit`.
    """
    sub = verbs.add_parser(
        "tap",
        help="record the messages of a torch.distributed, Flower, NVFlare or p2pfl program",
        usage=USAGE,
        **described(
            "Records what a program of torch.distributed, Flower, NVFlare or p2pfl sends, without "
            "a change to the program, and infers what the messages contain. 'describe' and 'merge' "
            "process a log again.",
            "leakaudit tap -o trace.pt -- torchrun --nproc-per-node 4 train.py",
            "leakaudit tap -o trace.pt --describe tap.toml -- python train.py",
        ),
    )
    tapped.written(sub)
    sub.add_argument(
        "--describe",
        type=Path,
        metavar="FILE",
        help="TOML file that describes the messages (default: inferred from the messages)",
    )
    sub.add_argument(
        "--rounds",
        metavar="A:B",
        help="record the content of messages only in rounds A to B - 1 (default: all)",
    )
    sub.add_argument(
        "--ranks",
        metavar="RANKS",
        help="record the content of messages only of these ranks, e.g. 0,2 (default: all)",
    )
    sub.add_argument(
        "--layers",
        metavar="NAMES",
        help="record only these parameters: first, last, or names of modules or parameters "
        "separated by commas, with * for any characters (default: all)",
    )
    sub.add_argument(
        "--receive",
        action="store_true",
        help="record received messages as well, once the program has waited for them",
    )
    sub.add_argument(
        "--keep",
        action="store_true",
        help="keep the raw log (trace.tap/) after the trace is written",
    )
    sub.add_argument(
        "command",
        nargs=argparse.REMAINDER,
        metavar="-- COMMAND",
        help="the program and its arguments, after --",
    )
    shared(sub, "threads", "max_bytes")
    sub.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run the program and write the trace.

    The exit code is the program's, or 3 if its messages need a description.

    Args:
        args: The parsed arguments.

    Returns:
        The exit code.
    """
    if args.command and args.command[0] in ACTIONS:
        return (
            tapped.describe(args.command[1:])
            if args.command[0] == "describe"
            else tapped.merge(args.command[1:])
        )
    command = args.command[1:] if args.command[:1] == ["--"] else args.command
    if not command:
        raise LeakauditError(
            "expected a program after --, for example: leakaudit tap -o trace.pt -- torchrun "
            "--nproc-per-node 4 train.py"
        )
    from leakaudit.capture.tap import launch
    from leakaudit.capture.tap.messages import description

    chosen = settings(args)
    if launch.waits_not(command):
        command = [*command, "--stream"]
        say("leakaudit tap: added --stream, so that 'flwr run' waits for the end of the run", args)
    described = description.read(args.describe) if args.describe else None
    window, ranks = _rounds(args.rounds), _ranks(args.ranks)
    listening = {
        "ranks": ranks,
        "rounds": window,
        "max_bytes": chosen.max_bytes,
        "receive": args.receive,
        "layers": args.layers.split(",") if args.layers else None,
    }
    if described is not None:
        listening |= {
            "sizes": described.sizes,
            "start": described.start,
            "names": described.names,
        }
        _require_layers(listening["layers"], described)
        if args.max_bytes is not None:
            say(f"leakaudit tap: {_need(chosen.max_bytes, described, listening['layers'])}", args)
    folder = tapped.log(args.output)
    launch.prepare(folder)
    try:
        code = launch.run(command, folder, **listening)
    except LeakauditError:
        launch.clear(folder)
        raise
    return _finish(args, chosen, folder, described, code)


def _finish(
    args: argparse.Namespace,
    chosen: argparse.Namespace,
    folder: Path,
    described: Description | None,
    code: int,
) -> int:
    """Make a trace of the log."""
    from leakaudit.capture.tap import launch

    if not any(folder.iterdir()):
        launch.clear(folder)
        if code:
            say(
                f"leakaudit tap: no messages were recorded: the program ended with code {code}",
                args,
            )
            return code
        why = (
            "it sent none by torch.distributed, Flower, NVFlare or p2pfl, its server runs "
            "elsewhere, or its Python ignores PYTHONPATH (-I, -E, -S)"
        )
        raise LeakauditError(f"no messages of the program were recorded: {why}")
    try:
        described = described or _guessed(args, folder)
        if described is None:
            return code or UNDESCRIBED
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


def _guessed(args: argparse.Namespace, folder: Path) -> Description | None:
    """Infer the description and write it beside the trace; None if it is incomplete."""
    from leakaudit._util.files import replacing
    from leakaudit.capture.tap.guessing.guess import guess
    from leakaudit.capture.tap.log.reading import read_logs

    found = guess(read_logs(folder))
    if found.description is None:
        say(f"{folder}: {found.said}; next: leakaudit tap describe {folder} -o tap.toml", args)
        return None
    beside = args.output.with_suffix(".toml")
    if beside.exists() and beside.read_bytes() != found.toml.encode():
        say(f"{beside} exists and differs, so it was kept; inferred: {found.said}", args)
        return found.description
    with replacing(beside) as file:
        file.write(found.toml.encode())
    say(
        f"{beside}: inferred: {found.said}; check it, and pass it with --describe the next time",
        args,
    )
    return found.description


def _require_layers(layers: list[str] | None, described: Description) -> None:
    """Reject a choice of parameters that contains none of the described model."""
    from leakaudit.capture.tap.log.layers import chosen

    places = chosen(described.names, layers)
    if places is not None and not places:
        names = ", ".join(described.names[:8])
        raise LeakauditError(f"--layers: no parameter matches {layers}; the model has {names}")


def _need(max_bytes: float, described: Description, layers: list[str] | None) -> str:
    """Return how many messages fit on the disk, in words."""
    from leakaudit.capture.tap.log.layers import chosen
    from leakaudit.traces.recorder import human

    places = chosen(described.names, layers)
    if places is None:
        places = frozenset(range(len(described.names)))
    numbers = sum(described.sizes[place] for place in places)
    size = 4 * numbers
    return (
        f"a message takes {human(size)} on the disk (float32); {human(max_bytes)} hold "
        f"{int(max_bytes // size)} of all processes together"
    )


def _rounds(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    first, _, stop = text.partition(":")
    try:
        found = int(first or 0), int(stop or 1 << 31)
    except ValueError:
        found = 0, 0
    if ":" not in text or not 0 <= found[0] < found[1]:
        raise LeakauditError(f"--rounds: expected A:B with 0 <= A < B, got {text!r}")
    return found


def _ranks(text: str | None) -> list[int] | None:
    return None if text is None else list(tapped.numbers(text, "--ranks") or ())
