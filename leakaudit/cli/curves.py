"""`leakaudit trace curves`: loss, accuracy, consensus and norms of runs, round by round."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from leakaudit.cli._options import say, shared
from leakaudit.errors import LeakauditError

FORMATS = ("text", "json", "csv")


def add(actions: Any) -> None:
    """Describe the action.

    Args:
        actions: The subparsers of `leakaudit trace`.
    """
    sub = actions.add_parser(
        "curves", help="loss, accuracy, consensus and norms of runs recorded with --curves"
    )
    sub.add_argument(
        "truths",
        type=Path,
        nargs="+",
        metavar="FILE",
        help="truth file, or a trace whose truth stands beside it",
    )
    sub.add_argument(
        "-f",
        "--format",
        choices=FORMATS,
        default="text",
        help="default text, which shows some rounds; the others show all",
    )
    sub.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="PNG",
        help="draw all runs over each other, one panel a quantity",
    )
    shared(sub)
    sub.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the table, and draw the figure where one was asked for.

    Args:
        args: The parsed arguments.

    Returns:
        The exit code.
    """
    from leakaudit.protocols import training_curves
    from leakaudit.rendering import line_plot, pictures
    from leakaudit.traces import trace_file

    if args.output is not None and args.output.suffix.lower() != ".png":
        raise LeakauditError(
            f"--output: expected a name that ends in .png, got {str(args.output)!r}"
        )
    runs = {}
    for path in args.truths:
        truth = path if path.name.endswith(".truth.pt") else trace_file.truth_path(path)
        label = truth.name.removesuffix(".truth.pt")
        runs[str(truth) if label in runs else label] = training_curves.kept(
            trace_file.load_truth(truth), str(truth)
        )
    picture = None if args.output is None else line_plot.chart(runs)
    sys.stdout.write(
        {
            "text": training_curves.to_text,
            "json": training_curves.to_json,
            "csv": training_curves.to_csv,
        }[args.format](runs)
    )
    if picture is not None:
        pictures.save(picture, args.output)
        say(f"{args.output}: written", args)
    return 0
