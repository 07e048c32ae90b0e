"""`leakaudit baseline`: what `leakaudit check` compares with."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from leakaudit.cli._options import say, settings, shared


def add(verbs: Any) -> None:
    """Describe the verb and its actions.

    Args:
        verbs: The subparsers of `leakaudit`.
    """
    actions = verbs.add_parser(
        "baseline", help="update, show or compare what 'check' compares with"
    ).add_subparsers(dest="action", metavar="ACTION", required=True)
    update = actions.add_parser("update", help="run the checks and accept what they measure")
    update.add_argument(
        "check",
        nargs="*",
        metavar="CHECK",
        help="a check of leakaudit.toml (default all); the others stay as they are",
    )
    update.add_argument(
        "--reason", required=True, metavar="TEXT", help="why; it goes into the file"
    )
    show = actions.add_parser("show", help="means of all cells")
    diff = actions.add_parser("diff", help="what a later run measured otherwise")
    diff.add_argument(
        "other",
        nargs="?",
        type=Path,
        help="results.json of a check, or another baseline (default: that of --output)",
    )
    shared(update, "seed", "threads", "max_seconds")
    shared(show)
    shared(diff, "output")
    for sub in (update, show, diff):
        sub.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Do one action.

    Args:
        args: The parsed arguments.

    Returns:
        The exit code.
    """
    from leakaudit.errors import LeakauditError
    from leakaudit.gate import baseline, files, judge
    from leakaudit.rendering import console

    chosen = settings(args)
    gate = files.configured(Path())
    if (path := gate.baseline_path) is None:
        raise LeakauditError(f"{gate.source}: gate: baseline is empty: nothing is compared with")
    if args.action == "update":
        with console.shown(chosen.progress, chosen.max_seconds):
            _, before, after = files.update(
                gate.only(args.check), judge.Options(chosen.seed), args.reason
            )
        sys.stdout.write(baseline.difference(before, after) or "no sample changed\n")
        say(f"{path}: written", args)
    elif args.action == "show":
        sys.stdout.write(baseline.shown(baseline.read(path)))
    else:
        other = files.from_results(args.other or Path(chosen.output) / "results.json")
        sys.stdout.write(baseline.difference(baseline.read(path), other) or "no difference\n")
    return 0
