"""`leakaudit sweep`: attack x victim x epsilon x any setting x seed, in parallel and resumable."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leakaudit.cli._options import say, settings, shared, trust
from leakaudit.errors import LeakauditError

if TYPE_CHECKING:
    from leakaudit.sweeping.run import Options, Swept

UNSETTLED, INTERRUPTED = 3, 130
TOLD = 10  # cells without a result that are named


def add(verbs: Any) -> None:
    """Describe the verb.

    Args:
        verbs: The subparsers of `leakaudit`.
    """
    sub = verbs.add_parser(
        "sweep",
        help="attack x victim x epsilon x any setting x seed, in parallel, resumed after a kill",
    )
    sub.add_argument(
        "what",
        nargs="+",
        metavar="PLAN | merge DIR",
        help="TOML file with a scenario and a table [sweep]; or: merge and folders of parts",
    )
    sub.add_argument(
        "-f",
        "--format",
        action="append",
        choices=("text", "json", "markdown"),
        help="what goes to stdout (default text)",
    )
    sub.add_argument(
        "--workers",
        type=int,
        metavar="N",
        help="processes, one thread each; 0 works in this one (default: one a processor)",
    )
    sub.add_argument(
        "--backend",
        default="process",
        metavar="NAME",
        help="process (default), joblib, or joblib:NAME, such as dask or ray",
    )
    sub.add_argument(
        "--shard",
        default="1/1",
        metavar="I/N",
        help="do the I-th of N parts, for job arrays; then: sweep merge DIR ...",
    )
    sub.add_argument(
        "--retry-failed", action="store_true", help="try cells that failed before once more"
    )
    sub.add_argument(
        "--dry-run",
        action="store_true",
        help="print the number of cells, what is done, and the time left by what was timed",
    )
    sub.add_argument(
        "--trust-model",
        action="store_true",
        help="let a model package.module:factory of the plan run its code",
    )
    sub.add_argument(
        "--figure",
        type=Path,
        metavar="FILE",
        help="also draw the figure to FILE: .png, .svg or .pdf (besides sweep.png)",
    )
    shared(sub, "seed", "device", "output", "data_root", "download", "max_seconds")
    sub.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Sweep or merge; 3 where a cell failed or is missing, 130 after Ctrl-C.

    Args:
        args: The parsed arguments.

    Returns:
        The exit code.
    """
    if (
        args.what[0] != "merge"
        and args.backend == "process"
        and args.workers != 0
        and not args.dry_run
    ):
        from leakaudit._util import forks

        forks.context()  # it imports torch while this process does
    from leakaudit.rendering import console, plots
    from leakaudit.sweeping import tables
    from leakaudit.sweeping.run import Options, dry, sweep

    if args.figure is not None:
        plots.expect_suffix(args.figure, "--figure")
    if args.what[0] == "merge":
        return _merge(args)
    if len(args.what) > 1:
        raise LeakauditError(
            f"expected one plan, got {' '.join(args.what)}; to put parts together: leakaudit sweep "
            "merge DIR ..."
        )
    chosen = settings(args)
    plan = tables.with_device(tables.load(Path(args.what[0])), str(chosen.device))
    plan = plan if args.seed is None else tables.with_seed(plan, chosen.seed)
    rest = (
        args.workers,
        args.backend,
        _shard(args.shard),
        args.retry_failed,
        Path(chosen.data_root),
        chosen.download,
    )
    options, folder = Options(*rest, trust(args.trust_model)), Path(chosen.output)
    if args.figure is not None and options.shard[1] > 1:
        raise LeakauditError("--figure: one part has no figure; name it to leakaudit sweep merge")
    if args.dry_run:
        sys.stdout.write(json.dumps(dry(plan, folder, options), indent=2) + "\n")
        return 0
    with console.shown(chosen.progress, chosen.max_seconds):
        swept = sweep(plan, folder, options)
    _tell(swept, folder, options, args)
    if swept.results is not None:
        _print(swept.results, args)
        _draw(swept.results, args)
    if swept.interrupted:
        return INTERRUPTED
    return UNSETTLED if swept.troubles or swept.left else 0


def _tell(swept: Swept, folder: Path, options: Options, args: argparse.Namespace) -> None:
    for words, why in swept.troubles[:TOLD]:
        say(f"{words}: {why}", args)
    if len(swept.troubles) > TOLD:
        say(f"{len(swept.troubles) - TOLD} more cells have no result", args)
    before = f", {swept.skipped} of them before" if swept.skipped else ""
    say(f"{folder}: {swept.cells - swept.left} of {swept.cells} cells{before}", args)
    if swept.left:
        say(f"{swept.left} cells are left; the same command goes on", args)
    if options.shard[1] > 1:
        say(
            (
                f"part {options.shard[0]} of {options.shard[1]}; when all are there: leakaudit "
                "sweep merge DIR ... -o results.json"
            ),
            args,
        )


def _merge(args: argparse.Namespace) -> int:
    from leakaudit.sweeping import merge

    if len(args.what) < 2:
        raise LeakauditError("sweep merge: expected the folders of the parts")
    path = merge.beside(Path(settings(args).output if args.output is None else args.output))
    found = merge.write([Path(folder) for folder in args.what[1:]], path)
    _print(found, args)
    _draw(found, args)
    say(
        (
            f"{path}: {len(found['sweep']['cells'])} cells, {found['sweep']['missing']} missing; "
            f"{merge.FIGURE}, {merge.REPORT}"
        ),
        args,
    )
    failed = any(cell["status"] != "done" for cell in found["sweep"]["cells"])
    return UNSETTLED if failed or found["sweep"]["missing"] else 0


def _draw(found: dict[str, Any], args: argparse.Namespace) -> None:
    """Draw the figure once more, to the file that --figure names."""
    if args.figure is None:
        return
    from leakaudit.rendering import plots
    from leakaudit.sweeping import panels

    plots.save(panels.figure(found), args.figure)
    say(f"{args.figure}: written", args)


def _shard(text: str) -> tuple[int, int]:
    try:
        i, n = map(int, text.split("/"))
    except ValueError:
        raise LeakauditError(f"--shard: expected I/N, such as 2/8, got {text!r}") from None
    return i, n


def _print(found: dict[str, Any], args: argparse.Namespace) -> None:
    from leakaudit.rendering import console
    from leakaudit.sweeping import words

    for name in args.format or ["text"]:
        if name == "json":
            sys.stdout.write(
                json.dumps(found, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
            )
        elif name == "markdown":
            sys.stdout.write(words.markdown(found))
        else:
            sys.stdout.write(words.text(found, **console.fit()))
