"""The accepted leakage, with which `leakaudit check` compares: update, compare and show it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from leakaudit._util import averages
from leakaudit.cli._commands import Options, SharedOptions, option
from leakaudit.cli._options import say, settings, show, show_json, show_table
from leakaudit.core.errors import LeakauditError, one_line

if TYPE_CHECKING:
    from leakaudit.judging.gate.baseline import Baseline, BaselineChange
    from leakaudit.judging.gate.config import Gate


class BaselineOptions(Options):
    """What is done with the baseline, in place of a check."""

    update: bool = option(
        "run the checks and accept the leakage that they measure as the new baseline"
    )
    reason: str | None = option(
        "with --update: why the new values are acceptable; stored in the baseline", metavar="TEXT"
    )
    diff: str | None = option(
        "print which measures of a later run differ from the baseline: of the results.json of a "
        "check, or of another baseline (default: results.json in --output)",
        nargs="?",
        const="",
        metavar="RESULTS",
    )
    show: bool = option("print the mean of every measure in the baseline")


def run(asked: BaselineOptions, names: list[str], form: str, args: SharedOptions) -> int:
    """Update, compare or show the baseline."""
    from leakaudit.judging.gate import baseline, files, judge
    from leakaudit.reporting.rendering import console

    chosen = settings(args)
    gate, path = _configured()
    if asked.update:
        if not asked.reason:
            raise LeakauditError(
                "--update: expected --reason TEXT, why the new values are acceptable"
            )
        with console.shown(chosen.progress, chosen.max_seconds, main="runs"):
            _, before, after = files.update(
                gate.only(names), judge.GateOptions(chosen.seed), asked.reason
            )
        _write(baseline.changes(before, after), form, "no sample changed")
        say(f"{path}: written", args)
    elif asked.diff is not None:
        other = files.from_results(Path(asked.diff or Path(chosen.output) / "results.json"))
        _write(baseline.changes(baseline.read(path), other), form, "no difference")
    elif form == "json":
        show_json(baseline.means(baseline.read(path)))
    else:
        _table(baseline.read(path))
    return 0


def _configured() -> tuple[Gate, Path]:
    from leakaudit.judging.gate import files

    gate = files.configured(Path())
    if gate.baseline_path is None:
        raise LeakauditError(f"{gate.source}: gate.baseline is empty; set it to the name of a file")
    return gate, gate.baseline_path


def _table(base: Baseline) -> None:
    from leakaudit.reporting.findings import wording
    from leakaudit.reporting.rendering.tables import Column

    show(f"{wording.clean(f'updated {base.updated}: {base.reason}')}\n")
    rows = []
    for name, cell in sorted(base.cells.items()):
        means = []
        for measure, samples in sorted(cell.samples.items()):
            means.append(f"{measure} {wording.figure(measure, averages.mean(samples))}")
        rows.append((name, str(len(cell.seeds)), ", ".join(means)))
    columns = (Column("cell"), Column("seeds", right=True), Column("means", text=True))
    show_table(columns, rows)


def _write(found: Sequence[BaselineChange], form: str, nothing: str) -> None:
    if form == "json":
        show_json([one.to_json() for one in found])
        return
    for one in found:
        show(f"{one_line(one)}\n")
    if not found:
        show(f"{nothing}\n")
