"""`leakaudit report`: results.json in another form, alone or compared with earlier results."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from leakaudit.cli._options import say


def add(verbs: Any) -> None:
    """Describe the verb.

    Args:
        verbs: The subparsers of `leakaudit`.
    """
    sub = verbs.add_parser(
        "report",
        help=(
            "results.json as HTML, Markdown, JUnit, SARIF, text or annotations; compared with "
            "earlier results"
        ),
    )
    sub.add_argument(
        "results",
        type=Path,
        metavar="RESULTS",
        help="results.json, or the folder that holds it with its pictures",
    )
    sub.add_argument(
        "-f",
        "--format",
        default="html",
        help="html (default), markdown, text, json, junit, sarif, github, or a plugin's",
    )
    sub.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="FILE",
        help="file to write, its folder included (default: stdout)",
    )
    sub.add_argument(
        "--redact",
        action="store_true",
        help="no pictures, labels, notes or paths, and nodes under other numbers",
    )
    sub.add_argument(
        "--redact-key",
        metavar="TEXT",
        help="redact, with the same node numbers wherever this secret is used",
    )
    sub.add_argument(
        "--against",
        type=Path,
        metavar="RESULTS",
        help="earlier results.json, or its folder, to compare with",
    )
    sub.add_argument(
        "--location",
        metavar="FILE",
        help="file of your repository that SARIF points at (default leakaudit.toml)",
    )
    sub.add_argument(
        "--plugin",
        action="append",
        default=[],
        metavar="MODULE",
        help=(
            "module of your own with reports, of the current folder or installed; its code runs; "
            "repeatable"
        ),
    )
    sub.add_argument("-q", "--quiet", action="store_true", help="no notes on stderr")
    sub.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Render, and then write all of it or nothing.

    Args:
        args: The parsed arguments.

    Returns:
        The exit code.
    """
    from leakaudit import api
    from leakaudit._util.files import replacing

    shown = api.report(
        args.results,
        args.format,
        against=args.against,
        redact=args.redact,
        redact_key=args.redact_key,
        location=args.location,
    )
    page = shown.encode("utf-8", "backslashreplace")
    if args.output is None:
        sys.stdout.buffer.write(page)
        return 0
    with replacing(args.output) as file:
        file.write(page)
    say(f"{args.output}: written", args)
    return 0
