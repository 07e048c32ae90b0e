"""`leakaudit trace lint`: the pitfalls that a trace shows."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leakaudit.cli._options import settings, shared

if TYPE_CHECKING:
    from collections.abc import Sequence

    from leakaudit.lint import Pitfall

NOTE = "Nothing found is no proof: a trace cannot show every pitfall (docs/lint.md)."


def add(actions: Any) -> None:
    """Describe the action.

    Args:
        actions: The subparsers of `leakaudit trace`.
    """
    sub = actions.add_parser(
        "lint",
        help="pitfalls that a trace shows: what is declared and claimed against what was recorded",
    )
    sub.add_argument("trace", type=Path, help="trace file or folder")
    sub.add_argument(
        "--truth",
        type=Path,
        metavar="FILE",
        help="also check record-wise norms, the noise itself and its seed (default none)",
    )
    sub.add_argument(
        "--strict",
        action="store_true",
        help="exit code 1 where something is REFUTED or UNSUPPORTED",
    )
    sub.add_argument(
        "-f", "--format", choices=("text", "json"), default="text", help="default text"
    )
    shared(sub, "threads")
    sub.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the findings.

    Args:
        args: The parsed arguments.

    Returns:
        The exit code.
    """
    from leakaudit.lint import lint
    from leakaudit.rendering import console
    from leakaudit.traces import trace_file

    chosen = settings(args)
    with console.shown(chosen.progress):
        truth = None if args.truth in (None, Path("none")) else trace_file.load_truth(args.truth)
        found = lint(trace_file.load(args.trace), truth)
    if args.format == "json":
        sys.stdout.write(json.dumps([p.to_json() for p in found], indent=2) + "\n")
    else:
        _write(found)
    return 1 if args.strict and any(p.bad for p in found) else 0


def _write(found: Sequence[Pitfall]) -> None:
    from rich.padding import Padding
    from rich.text import Text

    from leakaudit.cli.claims import STYLES
    from leakaudit.rendering import console

    out = console.stdout()
    for p in found:
        style = STYLES.get(p.verdict.name, "bold red" if p.bad else "yellow")
        out.print(Text.assemble((p.verdict.words, style), f"  {p.code} {p.name}: {p.says}"))
        out.print(Padding(Text(p.fix, style="dim"), (0, 0, 0, 4)))
    out.print(Text(f"{len(found)} found. {NOTE}", style="dim"))
