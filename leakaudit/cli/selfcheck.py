"""`leakaudit selfcheck`: false alarms and power of the estimators where the truth is known."""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING, Any

from leakaudit.cli._options import settings, shared

if TYPE_CHECKING:
    from collections.abc import Sequence

    from leakaudit.selfcheck import ErrorRate


def add(verbs: Any) -> None:
    """Describe the verb.

    Args:
        verbs: The subparsers of `leakaudit`.
    """
    sub = verbs.add_parser(
        "selfcheck", help="audit the auditor: false alarms and power of the estimators, with limits"
    )
    sub.add_argument(
        "--runs", type=int, default=1000, help="audits of each mechanism (default 1000)"
    )
    sub.add_argument(
        "--trials",
        type=int,
        default=1000,
        help="trials of an audit on each side, or canaries of one run (default 1000)",
    )
    sub.add_argument(
        "--alpha",
        type=float,
        default=0.05,
        help="false alarms that an audit may raise (default .05)",
    )
    sub.add_argument("--seed", type=int, default=0, help="of the draws (default 0)")
    sub.add_argument(
        "-f", "--format", choices=("text", "json"), default="text", help="default text"
    )
    shared(sub, "threads")
    sub.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print a line for each estimator and mechanism.

    1 if a rate is not shown to be within its limit.

    Args:
        args: The parsed arguments.

    Returns:
        The exit code.
    """
    from leakaudit.rendering import console
    from leakaudit.results import model
    from leakaudit.selfcheck import check

    chosen = settings(args)
    with console.shown(chosen.progress):
        rows = list(check(args.runs, args.trials, args.alpha, args.seed))
    ok = all(row.ok for row in rows)
    if args.format == "json":
        asked = {"runs": args.runs, "trials": args.trials, "alpha": args.alpha, "seed": args.seed}
        found = {**asked, "ok": ok, "rows": [model.plain(row.entry()) for row in rows]}
        sys.stdout.write(json.dumps(found, indent=2) + "\n")
    else:
        _write(rows)
    return 0 if ok else 1


def _write(rows: Sequence[ErrorRate]) -> None:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from leakaudit.rendering import console

    out = console.stdout()
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in (
        "estimator",
        "claim",
        "rounds",
        "known",
        "claimed",
        "refuted",
        "limits",
        "allowed",
        "",
    ):
        table.add_column(name, justify="left" if name in ("estimator", "claim", "") else "right")
    for row in rows:
        low, high = row.limits
        allowed = f">= {row.allowed:g}" if row.planted else f"<= {row.allowed:g}"
        numbers = (
            str(row.rounds),
            f"{row.known:.4g}",
            f"{row.claimed:.4g}",
            f"{row.rate:.3f}",
            f"{low:.3f} to {high:.3f}",
            allowed,
        )
        verdict = Text("ok", style="green") if row.ok else Text("OUTSIDE", style="bold red")
        table.add_row(row.estimator, row.planted or "true", *numbers, verdict)
    out.print(table)
    out.print(Text(_note(rows), style="dim"))


def _note(rows: Sequence[ErrorRate]) -> str:
    """Say what the rates are of, and what to do about one that is not within its limit."""
    first = rows[0]
    said = (
        f"refuted: share of {first.runs} audits at level {first.alpha:g}, false alarms where the "
        "claim is true and power where a mistake "
        "makes it false. limits: Clopper and Pearson's, each at confidence .95."
    )
    if all(row.ok for row in rows):
        return said
    proved = any(row.limits[0] > row.alpha for row in rows if not row.planted)
    return f"{said} " + (
        "A rate of false alarms is above alpha beyond doubt: an estimator is wrong."
        if proved
        else (
            "A rate outside may be chance: more --runs narrow its limits, more --trials raise the "
            "power."
        )
    )
