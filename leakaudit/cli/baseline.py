"""`leakaudit baseline`: the accepted leakage, with which `leakaudit check` compares."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from leakaudit._util import averages
from leakaudit.cli._commands import Command, SharedOptions, argument, command, option
from leakaudit.cli._options import say, settings, text_or_json
from leakaudit.cli._options import show as put
from leakaudit.cli._parser import described
from leakaudit.errors import LeakauditError, one_line

if TYPE_CHECKING:
    from leakaudit.gate.baseline import Baseline, Change
    from leakaudit.gate.config import Gate


class _Options(SharedOptions):
    format: str = text_or_json()


class _UpdateOptions(_Options):
    settings = ("seed", "threads", "max_seconds")

    check: list[str] = argument(
        "check of leakaudit.toml to update; the others keep their values (default: all)",
        nargs="*",
        metavar="CHECK",
    )
    reason: str = option(
        "why the new values are acceptable; stored in the baseline", required=True, metavar="TEXT"
    )


@command(
    "baseline update",
    "run the checks and accept what they measure",
    "Runs the checks and accepts the leakage that they measure as the new baseline.",
    'leakaudit baseline update --reason "larger batches"',
    'leakaudit baseline update main --reason "new attack"',
)
def update(args: _UpdateOptions) -> int:
    """Measure the leakage, and accept it."""
    from leakaudit.gate import baseline, files, judge
    from leakaudit.rendering import console

    chosen = settings(args)
    gate, path = _configured()
    with console.shown(chosen.progress, chosen.max_seconds, main="runs"):
        _, before, after = files.update(
            gate.only(args.check), judge.Options(chosen.seed), args.reason
        )
    _write(baseline.changes(before, after), args.format, "no sample changed")
    say(f"{path}: written", args)
    return 0


class _ShowOptions(_Options):
    """None of its own."""


@command(
    "baseline show",
    "print the mean of every measure in the baseline",
    "Prints the mean of every measure in the baseline.",
    "leakaudit baseline show",
    "leakaudit baseline show -f json",
)
def show(args: _ShowOptions) -> int:
    """Print the accepted leakage."""
    from leakaudit.gate import baseline

    settings(args)
    _, path = _configured()
    base = baseline.read(path)
    if args.format == "json":
        put(json.dumps(baseline.means(base), indent=2) + "\n")
    else:
        _table(base)
    return 0


class _DiffOptions(_Options):
    settings = ("output",)

    other: Path | None = argument(
        "results.json of a check, or another baseline (default: results.json in --output)",
        nargs="?",
    )


@command(
    "baseline diff",
    "print what a later run measured differently",
    "Prints which measures of a later run differ from the baseline.",
    "leakaudit baseline diff",
    "leakaudit baseline diff out/results.json -f json",
)
def diff(args: _DiffOptions) -> int:
    """Compare the baseline with a later run."""
    from leakaudit.gate import baseline, files

    chosen = settings(args)
    _, path = _configured()
    other = files.from_results(args.other or Path(chosen.output) / "results.json")
    _write(baseline.changes(baseline.read(path), other), args.format, "no difference")
    return 0


run = Command(
    "baseline",
    "update, show or compare the baseline of 'check'",
    described(
        "Updates, shows or compares the baseline: the committed file with the leakage that "
        "'leakaudit check' accepts.",
        'leakaudit baseline update --reason "first release"',
        "leakaudit baseline diff",
    ),
    actions=(update, show, diff),
)


def _configured() -> tuple[Gate, Path]:
    """Return the gate of this folder, and its baseline."""
    from leakaudit.gate import files

    gate = files.configured(Path())
    if gate.baseline_path is None:
        raise LeakauditError(f"{gate.source}: gate.baseline is empty; set it to the name of a file")
    return gate, gate.baseline_path


def _table(base: Baseline) -> None:
    """Print the means of all cells."""
    from leakaudit.rendering import console, tables
    from leakaudit.results import wording

    put(f"{wording.clean(f'updated {base.updated}: {base.reason}')}\n")
    rows = []
    for name, cell in sorted(base.cells.items()):
        means = []
        for measure, samples in sorted(cell.samples.items()):
            means.append(f"{measure} {wording.figure(measure, averages.mean(samples))}")
        rows.append((name, str(len(cell.seeds)), ", ".join(means)))
    columns = (
        tables.Column("cell"),
        tables.Column("seeds", right=True),
        tables.Column("means", text=True),
    )
    console.stdout().print(tables.table(columns, rows, console.width()))


def _write(found: Sequence[Change], form: str, nothing: str) -> None:
    """Print what changed between two baselines."""
    if form == "json":
        put(json.dumps([one.to_json() for one in found], indent=2) + "\n")
        return
    for one in found:
        put(f"{one_line(one)}\n")
    if not found:
        put(f"{nothing}\n")
