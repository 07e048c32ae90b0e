"""`leakaudit report`: convert results.json to another format, or compare it with another."""

from __future__ import annotations

import sys
from pathlib import Path

from leakaudit.cli._commands import Options, argument, command, option
from leakaudit.cli._options import BINARY, say
from leakaudit.errors import LeakauditError

FORMATS = {  # suffix of the output file -> format
    ".html": "html",
    ".htm": "html",
    ".md": "markdown",
    ".txt": "text",
    ".json": "json",
    ".xml": "junit",
    ".sarif": "sarif",
    ".csv": "csv",
    ".tex": "latex",
    ".pdf": "pdf",
    ".svg": "svg",
    ".png": "png",
}


class _Options(Options):
    results: Path = argument(
        "results.json, or the folder with it and its pictures", metavar="RESULTS"
    )
    format: str | None = option(
        "html, markdown, text, json, junit, sarif, github, csv, latex, pdf, svg, png, or a "
        "format of a plug-in (default: according to the name of the output file, otherwise html)",
        "-f",
    )
    output: Path | None = option(
        "file to write; missing folders are created (default: stdout)", "-o", metavar="FILE"
    )
    table: str | None = option(
        "table of csv, latex and json: findings of an attack; verdicts (default), curves, "
        "views or findings of an audit; rules (default) or measures of a check; points (default) "
        "or cells of a sweep",
        metavar="NAME",
    )
    width: str = option(
        "width of pdf, svg and png: column (84 mm), page (174 mm), or a number of millimetres",
        default="page",
        metavar="WIDTH",
    )
    redact: bool = option("remove pictures, labels, notes and paths, and renumber the nodes")
    redact_key: str | None = option(
        "redact as above; reports with the same secret key use the same node numbers",
        metavar="TEXT",
    )
    against: Path | None = option(
        "earlier results.json, or its folder, to compare with", metavar="RESULTS"
    )
    location: str | None = option(
        "file in your repository to which SARIF findings refer (default leakaudit.toml)",
        metavar="FILE",
    )
    plugin: list[str] = option(
        "import a module with your own report formats, from the current folder or installed; "
        "this executes its code; repeatable",
        metavar="MODULE",
    )
    verbose: bool = option(
        "list the rules of a gate that are within their limits, too (text)", "-v"
    )
    quiet: bool = option("write no notes to stderr", "-q")


@command(
    "report",
    "show results as a page, a figure, a table or text, or compare them",
    "Converts the results of an attack, audit, sweep or check to another format, such as "
    "one HTML page, a figure for a paper or a table. Can compare them with earlier "
    "results, and remove personal data.",
    "leakaudit report out/ -o report.html",
    "leakaudit report audit/ -o figure.pdf --width column",
)
def run(args: _Options) -> int:
    """Render the report completely, then write it."""
    from leakaudit import api
    from leakaudit._util.files import replacing
    from leakaudit.rendering import console

    fit: console.Form = {}
    if args.output is None:
        fit = console.fit()
    name = args.format or _format(args.output)
    if name in BINARY and args.output is None and sys.stdout.isatty():
        raise LeakauditError(f"{name} is not text: name a file with -o, or redirect the output")
    shown = api.report(
        args.results,
        name,
        against=args.against,
        redact=args.redact,
        redact_key=args.redact_key,
        location=args.location,
        verbose=args.verbose,
        table=args.table,
        figure_width=args.width,
        **fit,
    )
    page = shown
    if isinstance(page, str):
        page = page.encode("utf-8", "backslashreplace")
    if args.output is None:
        sys.stdout.buffer.write(page)
        return 0
    with replacing(args.output) as file:
        file.write(page)
    say(f"{args.output}: written", args)
    return 0


def _format(output: Path | None) -> str:
    """Return the format that the name of the output file indicates."""
    if output is None or not output.suffix:
        return "html"
    if output.suffix.lower() not in FORMATS:
        raise LeakauditError(
            f"{output}: no format has this suffix (known: {', '.join(FORMATS)}); "
            "choose the format with -f"
        )
    return FORMATS[output.suffix.lower()]
