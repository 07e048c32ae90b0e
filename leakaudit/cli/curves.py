"""`leakaudit trace curves`: loss, accuracy, consensus and norms by round."""

from __future__ import annotations

import sys
from pathlib import Path

from leakaudit.cli._commands import SharedOptions, argument, command, option
from leakaudit.cli._options import say

FORMATS = ("text", "json", "csv")


class _Options(SharedOptions):
    truths: list[Path] = argument(
        "truth file, or a trace with its truth beside it", nargs="+", metavar="FILE"
    )
    format: str = option(
        "format of the output; text shows a selection of rounds, json and csv show all",
        "-f",
        choices=FORMATS,
        default="text",
    )
    output: Path | None = option(
        "draw all runs to this .png, .svg or .pdf file, with one panel per quantity",
        "-o",
        metavar="FILE",
    )


@command(
    "trace curves",
    "print or draw loss, accuracy, consensus and norms by round",
    "Prints loss, accuracy, consensus and norms of each round, of runs that were recorded "
    "with --curves, and what --test measured on held-out records; json and csv also have the "
    "values of each node. Draws several runs in one figure for comparison.",
    "leakaudit trace curves trace.pt",
    "leakaudit trace curves one.pt two.pt -o curves.png",
)
def run(args: _Options) -> int:
    """Print the table, and draw the figure if it was requested."""
    from leakaudit.protocols import training_curves
    from leakaudit.reporting.figures import plots, training_chart
    from leakaudit.traces import trace_file

    if args.output is not None:
        plots.expect_suffix(args.output)
    runs = {}
    drawn = {}
    for path in args.truths:
        truth = path if path.name.endswith(".truth.pt") else trace_file.truth_path(path)
        label = truth.name.removesuffix(".truth.pt")
        label = str(truth) if label in runs else label
        loaded = trace_file.load_truth(truth)
        drawn[label] = training_curves.kept(loaded, str(truth))
        runs[label] = training_curves.kept(loaded, str(truth), nodes=args.format != "text")
    picture = training_chart.chart(drawn) if args.output is not None else None
    sys.stdout.write(
        {
            "text": training_curves.to_text,
            "json": training_curves.to_json,
            "csv": training_curves.to_csv,
        }[args.format](runs)
    )
    if picture is not None and args.output is not None:
        plots.save(picture, args.output)
        say(f"{args.output}: written", args)
    return 0
