"""`leakaudit baseline`: the accepted leakage, with which `leakaudit check` compares."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leakaudit._util import averages
from leakaudit.cli._options import described, formats, say, settings, shared
from leakaudit.cli._options import show as put
from leakaudit.errors import one_line

if TYPE_CHECKING:
    from leakaudit.gate.baseline import Baseline, Change


def add(verbs: Any) -> None:
    """Add the parsers of the verb and its actions."""
    actions = verbs.add_parser(
        "baseline",
        help="update, show or compare the baseline of 'check'",
        **described(
            "Updates, shows or compares the baseline: the committed file with the leakage that "
            "'leakaudit check' accepts.",
            'leakaudit baseline update --reason "first release"',
            "leakaudit baseline diff",
        ),
    ).add_subparsers(dest="action", metavar="ACTION", required=True)
    update = actions.add_parser(
        "update",
        help="run the checks and accept what they measure",
        **described(
            "Runs the checks and accepts the leakage that they measure as the new baseline.",
            'leakaudit baseline update --reason "larger batches"',
            'leakaudit baseline update main --reason "new attack"',
        ),
    )
    update.add_argument(
        "check",
        nargs="*",
        metavar="CHECK",
        help="check of leakaudit.toml to update; the others keep their values (default: all)",
    )
    update.add_argument(
        "--reason",
        required=True,
        metavar="TEXT",
        help="why the new values are acceptable; stored in the baseline",
    )
    show = actions.add_parser(
        "show",
        help="print the mean of every measure in the baseline",
        **described(
            "Prints the mean of every measure in the baseline.",
            "leakaudit baseline show",
            "leakaudit baseline show -f json",
        ),
    )
    diff = actions.add_parser(
        "diff",
        help="print what a later run measured differently",
        **described(
            "Prints which measures of a later run differ from the baseline.",
            "leakaudit baseline diff",
            "leakaudit baseline diff out/results.json -f json",
        ),
    )
    diff.add_argument(
        "other",
        nargs="?",
        type=Path,
        help="results.json of a check, or another baseline (default: results.json in --output)",
    )
    shared(update, "seed", "threads", "max_seconds")
    shared(show)
    shared(diff, "output")
    for sub in (update, show, diff):
        formats(sub)
        sub.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Perform one action."""
    from leakaudit.errors import LeakauditError
    from leakaudit.gate import baseline, files, judge
    from leakaudit.rendering import console

    chosen = settings(args)
    gate = files.configured(Path())
    if (path := gate.baseline_path) is None:
        raise LeakauditError(f"{gate.source}: gate.baseline is empty; set it to the name of a file")
    if args.action == "update":
        with console.shown(chosen.progress, chosen.max_seconds, main="runs"):
            _, before, after = files.update(
                gate.only(args.check), judge.Options(chosen.seed), args.reason
            )
        _write(baseline.changes(before, after), args.format, "no sample changed")
        say(f"{path}: written", args)
    elif args.action == "diff":
        other = files.from_results(args.other or Path(chosen.output) / "results.json")
        _write(baseline.changes(baseline.read(path), other), args.format, "no difference")
    elif args.format == "json":
        put(json.dumps(baseline.means(baseline.read(path)), indent=2) + "\n")
    else:
        _table(baseline.read(path))
    return 0


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
