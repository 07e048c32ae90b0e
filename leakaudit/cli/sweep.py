"""`leakaudit sweep`: attacks x victims x settings x seeds, in parallel and resumable."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from leakaudit.cli._commands import SharedOptions, argument, command, option
from leakaudit.cli._options import (
    FIGURE,
    INCONCLUSIVE,
    INTERRUPTED,
    PRINTED,
    WORKERS,
    ComputeOptions,
    draw_figure,
    expect_figure,
    load_torch,
    loading,
    say,
    settings,
    show_json,
    show_record,
    trusting,
)
from leakaudit.core.errors import LeakauditError

if TYPE_CHECKING:
    from leakaudit.reporting.results.model import SweepRecord
    from leakaudit.runs.sweeping.run import SweepOptions, SweepOutcome
    from leakaudit.runs.workers.executor import Executor

TOLD = 10  # largest number of cells without a result that are listed


class _CellOptions(ComputeOptions):
    workers: int | None = option(WORKERS.format("one per processor"), metavar="N")

    def executor(self) -> Executor:
        """Return the executor that the options choose."""
        from leakaudit.runs.workers.executor import Executor

        return Executor.of(self.workers, self.backend, self.address, every_core=True)


class _Options(SharedOptions):
    settings = ("seed", "device", "output", "data_root", "download", "max_seconds")

    what: list[str] = argument(
        "TOML file with a scenario and a table [sweep]; or the word merge and the folders of "
        "the parts",
        nargs="+",
        metavar="PLAN | merge DIR",
        names="files",
    )
    format: list[str] | None = PRINTED
    computing: _CellOptions
    shard: str = option(
        "run only the I-th of N parts, for job arrays; combine the parts with 'leakaudit "
        "sweep merge'",
        default="1/1",
        metavar="I/N",
    )
    retry_failed: bool = option("run cells that failed earlier once more")
    dry_run: bool = option(
        "print the number of cells, how many are done, and an estimate of the time left"
    )
    trust_model: bool | str = trusting("plan")
    figure: Path | None = FIGURE


@command(
    "sweep",
    "run combinations of attacks, victims, settings and seeds in parallel",
    "Runs every combination of attacks, victims, settings and seeds in a plan on all "
    "cores, and tabulates the results. The same command continues an interrupted sweep.",
    "leakaudit sweep plan.toml -o sweep/",
    "leakaudit sweep merge part1/ part2/ -o results.json",
)
def run(args: _Options) -> int:
    """Run a sweep, or merge its parts; 3 if a cell failed or is missing."""
    merging = args.what[0] == "merge"
    computing = args.computing
    spread = computing.backend == "process" and computing.workers != 0
    if spread and not (merging or args.dry_run):
        from leakaudit._util import forks

        forks.context()  # it imports torch while this process does
    with loading(args.given):
        load_torch()
    from leakaudit.reporting.rendering import console
    from leakaudit.runs.sweeping import tables
    from leakaudit.runs.sweeping.dry_run import dry
    from leakaudit.runs.sweeping.run import SweepOptions, sweep

    expect_figure(args.figure)
    if merging:
        return _merge(args)
    if len(args.what) > 1:
        raise LeakauditError(
            f"expected one plan, got {' '.join(args.what)}; to combine parts, run leakaudit sweep "
            "merge DIR ..."
        )
    chosen = settings(args)
    plan = replace(tables.load(Path(args.what[0])), device=str(chosen.device))
    if args.given.seed is not None:
        plan = tables.with_seed(plan, chosen.seed)
    options = SweepOptions(
        computing.executor(),
        _shard(args.shard),
        args.retry_failed,
        Path(chosen.data_root),
        chosen.download,
        args.trust_model,
    )
    folder = Path(chosen.output)
    if args.figure is not None and options.shard[1] > 1:
        raise LeakauditError(
            "--figure: a single part has no figure; use the option with leakaudit sweep merge"
        )
    if args.dry_run:
        show_json(dry(plan, folder, options))
        return 0
    with console.shown(chosen.progress, chosen.max_seconds, main="cells"):
        swept = sweep(plan, folder, options)
    _tell(swept, folder, options, args)
    if swept.record is not None:
        _show(swept.record, args)
    if swept.interrupted:
        return INTERRUPTED
    return INCONCLUSIVE if swept.troubles or swept.left else 0


def _tell(swept: SweepOutcome, folder: Path, options: SweepOptions, args: _Options) -> None:
    for words, why in swept.troubles[:TOLD]:
        say(f"{words}: {why}", args)
    if len(swept.troubles) > TOLD:
        say(f"{len(swept.troubles) - TOLD} more cells have no result", args)
    before = f", {swept.skipped} of them before" if swept.skipped else ""
    say(f"{folder}: {swept.cells - swept.left} of {swept.cells} cells{before}", args)
    if swept.left:
        say(f"{swept.left} cells are left; run the same command again to continue", args)
    if options.shard[1] > 1:
        say(
            f"part {options.shard[0]} of {options.shard[1]}; when all are complete, run: "
            "leakaudit sweep merge DIR ... -o results.json",
            args,
        )


def _merge(args: _Options) -> int:
    from leakaudit.runs.sweeping import merge

    if len(args.what) < 2:
        raise LeakauditError("sweep merge: expected the folders of the parts")
    output = args.given.output
    path = merge.beside(Path(settings(args).output if output is None else output))
    found = merge.write([Path(folder) for folder in args.what[1:]], path)
    _show(found, args)
    say(
        f"{path}: {len(found.sweep.cells)} cells, {found.sweep.missing} missing; "
        f"{merge.FIGURE}, {merge.REPORT}",
        args,
    )
    failed = any(cell.status != "done" for cell in found.sweep.cells)
    return INCONCLUSIVE if failed or found.sweep.missing else 0


def _shard(text: str) -> tuple[int, int]:
    try:
        i, n = map(int, text.split("/"))
    except ValueError:
        raise LeakauditError(f"--shard: expected I/N, such as 2/8, got {text!r}") from None
    return i, n


def _show(found: SweepRecord, args: _Options) -> None:
    from leakaudit.reporting.results import model

    for name in args.format or ["text"]:
        show_record(model.plain(found), name)
    draw_figure(args.figure, found, args)
