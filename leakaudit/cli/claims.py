"""`leakaudit claims`: published claims, each judged by computing now."""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING, Any

from leakaudit.cli._options import settings, shared

if TYPE_CHECKING:
    from rich.text import Text

    from leakaudit.papers import JudgedClaim, PublishedClaim
    from leakaudit.verdict import Verdict

NOTE = (
    "NOT REFUTED means that nothing tried here exceeded the claim; it is no proof. A row begins "
    "with the claim as it is published."
)
STYLES = {"REFUTED": "bold red", "NOT_REFUTED": "green"}


def add(verbs: Any) -> None:
    """Describe the verb.

    Args:
        verbs: The subparsers of `leakaudit`.
    """
    sub = verbs.add_parser(
        "claims",
        help=(
            "judge published claims by computing: verdict, evidence, and the command that repeats "
            "it"
        ),
    )
    sub.add_argument(
        "--paper",
        action="append",
        default=[],
        help="000 DP-Norm, 001 DP-RECAL, 002 DP-dKM, 003 SecureD-FL, 004 PDMM, other; repeatable",
    )
    sub.add_argument(
        "--row",
        type=int,
        action="append",
        default=[],
        metavar="N",
        help="row of the scoreboard; repeatable (default all)",
    )
    sub.add_argument(
        "-f", "--format", choices=("text", "json"), default="text", help="default text"
    )
    shared(sub, "threads")
    sub.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Judge the rows that are asked for and print them.

    Args:
        args: The parsed arguments.

    Returns:
        The exit code.
    """
    from leakaudit.papers import judge, select
    from leakaudit.rendering import console

    chosen = settings(args)
    rows = select(args.paper, args.row)
    with console.shown(chosen.progress):
        found = list(judge(rows))
    if args.format == "json":
        sys.stdout.write(json.dumps([one.to_json() for one in found], indent=2) + "\n")
    else:
        _write(found)
    return 0


def _write(found: list[JudgedClaim]) -> None:
    from rich.padding import Padding
    from rich.text import Text

    from leakaudit.rendering import console

    out = console.stdout()
    for one in found:
        out.print(
            Text.assemble((f"{one.row.number:>2}  {one.row.source}", "bold"), f": {one.row.claim}")
        )
        for line in _origin(one.row):
            out.print(Padding(Text(line, style="dim"), (0, 0, 0, 4)))
        for finding in one.findings:
            out.print(
                Padding(
                    Text.assemble(_verdict(finding.verdict), f"  {finding.about}: {finding.says}"),
                    (0, 0, 0, 4),
                )
            )
        out.print(
            Padding(Text(f"{one.row.command}  ({one.seconds:.1f} s)", style="dim"), (0, 0, 1, 4))
        )
    out.print(Text(NOTE, style="dim"))


def _origin(row: PublishedClaim) -> list[str]:
    """Return two lines: how well the claim is known, with its words, and what is assumed."""
    quoted = "; ".join(f'"{quote.text}" ({quote.place})' for quote in row.quotes)
    known = f"{row.quality.name.lower()}: {quoted}" if quoted else row.quality.value
    return [known, f"assumes: {'; '.join(row.assumes)}"]


def _verdict(verdict: Verdict) -> Text:
    from rich.text import Text

    return Text(verdict.words, style=STYLES.get(verdict.name, "yellow"))
