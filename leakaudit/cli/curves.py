"""`leakaudit trace curves`: loss, accuracy, consensus and norms by round."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from leakaudit.cli._options import described, say, shared

FORMATS = ("text", "json", "csv")


def add(actions: Any) -> None:
    """Add the action's parser."""
    sub = actions.add_parser(
        "curves",
        help="print or draw loss, accuracy, consensus and norms by round",
        **described(
            "Prints loss, accuracy, consensus and norms of each round, of runs that were recorded "
            "with --curves. Draws several runs in one figure for comparison.",
            "leakaudit trace curves trace.pt",
            "leakaudit trace curves one.pt two.pt -o curves.png",
        ),
    )
    sub.add_argument(
        "truths",
        type=Path,
        nargs="+",
        metavar="FILE",
        help="truth file, or a trace with its truth beside it",
    )
    sub.add_argument(
        "-f",
        "--format",
        choices=FORMATS,
        default="text",
        help="format of the output; text shows a selection of rounds, json and csv show all "
        "(default text)",
    )
    sub.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="FILE",
        help="draw all runs to this .png, .svg or .pdf file, with one panel per quantity",
    )
    shared(sub)
    sub.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the table, and draw the figure if it was requested."""
    from leakaudit.protocols import training_curves
    from leakaudit.rendering import plots, training_chart
    from leakaudit.traces import trace_file

    if args.output is not None:
        plots.expect_suffix(args.output)
    runs = {}
    for path in args.truths:
        truth = path if path.name.endswith(".truth.pt") else trace_file.truth_path(path)
        label = truth.name.removesuffix(".truth.pt")
        runs[str(truth) if label in runs else label] = training_curves.kept(
            trace_file.load_truth(truth), str(truth)
        )
    picture = None
    if args.output is not None:
        picture = training_chart.chart(runs)
    sys.stdout.write(
        {
            "text": training_curves.to_text,
            "json": training_curves.to_json,
            "csv": training_curves.to_csv,
        }[args.format](runs)
    )
    if picture is not None:
        plots.save(picture, args.output)
        say(f"{args.output}: written", args)
    return 0
