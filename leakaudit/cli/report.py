"""`leakaudit report`: convert results.json, compare it with another, or score it again."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leakaudit.cli._commands import Options, SharedOptions, argument, command, option
from leakaudit.cli._options import (
    BINARY,
    INCONCLUSIVE,
    SUFFIXES,
    expect_format,
    expect_text,
    load_torch,
    loading,
    say,
    settings,
    show_record,
    write_page,
)
from leakaudit.core.errors import LeakauditError

if TYPE_CHECKING:
    from leakaudit.reporting.results.model import AttackRecord


class _RescoreOptions(Options):
    metric: list[str] = option(
        "metric to compute again; repeatable; the others keep their values (default: all)",
        metavar="NAME",
    )
    truth: Path | None = option(
        "truth file to score with (default: the file that the results name)", metavar="FILE"
    )


class _ConvertOptions(Options):
    table: str | None = option(
        "table of csv, latex and json: findings of an attack; verdicts (default), curves, "
        "views or findings of an audit; rules (default) or measures of a check; points (default) "
        "or cells of a sweep",
        metavar="NAME",
    )
    width: str | None = option(
        "width of pdf, svg and png: column (84 mm), page (174 mm), or a number of millimetres "
        "(default page)",
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


class _Options(SharedOptions):
    settings = ("lpips_weights", "threads")

    results: Path = argument(
        "results.json, or the folder with it and its pictures", metavar="RESULTS"
    )
    format: str | None = option(
        "html, markdown, text, json, junit, sarif, github, csv, latex, pdf, svg, png, or a "
        "format of a plug-in (default: according to the name of the output file, otherwise html)",
        "-f",
        names="reports",
    )
    output: Path | None = option(
        "file to write; missing folders are created (default: stdout)", "-o", metavar="FILE"
    )
    rescore: bool = option(
        "score the stored reconstructions again and replace the results, or write them to the "
        "folder -o, without repeating the attack"
    )
    rescored: _RescoreOptions
    converted: _ConvertOptions
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
    "show results as a page, a figure, a table or text, compare them, or score them again",
    "Converts the results of an attack, audit, sweep or check to another format, such as "
    "one HTML page, a figure for a paper or a table. Can compare them with earlier results, remove "
    "personal data, and score stored reconstructions again.",
    "leakaudit report out/ -o report.html",
    "leakaudit report audit/ -o figure.pdf --width column",
    "leakaudit report out/ --rescore --truth trace.truth.pt",
)
def run(args: _Options) -> int:
    """Render the report completely, then write it."""
    if args.rescore:
        args.converted.refuse("not with --rescore")
        with loading(args.given):
            load_torch()
        return _rescore(args)
    args.rescored.refuse("only with --rescore")
    from leakaudit import api
    from leakaudit.reporting.rendering import console

    fit: dict[str, Any] = {}
    if args.output is None:
        fit = console.fit()
    name = args.format or _format(args.output)
    expect_format(name, args.output)
    if name in BINARY and args.output is None and sys.stdout.isatty():
        raise LeakauditError(f"{name} is not text: name a file with -o, or redirect the output")
    page = api.report(
        args.results,
        name,
        against=args.converted.against,
        redact=args.converted.redact,
        redact_key=args.converted.redact_key,
        table=args.converted.table,
        figure_width=args.converted.width,
        options=api.ReportOptions(args.converted.location, verbose=args.verbose, **fit),
    )
    write_page(page, args.output, args, api.file_of(args.results))
    return 0


def _rescore(args: _Options) -> int:
    """Score again, write the results and print the table; return 3 if inconclusive."""
    from leakaudit.api import RECORD, file_of
    from leakaudit.reporting.findings import worst_case
    from leakaudit.reporting.rendering import console
    from leakaudit.reporting.results import model, output_folder, record_file
    from leakaudit.runs.pipeline import output, rescoring
    from leakaudit.scoring import lpips_weights
    from leakaudit.traces import trace_file
    from leakaudit.traces._storage import sidecar

    chosen = settings(args)
    form = args.format or "text"
    expect_text(form)
    rescoring.check(args.rescored.metric)
    source = file_of(args.results)
    record = rescoring.one_truth(record_file.read(source))
    path = args.rescored.truth or _named(record)
    truth, sha256 = trace_file.load_truth(path), sidecar.digest(path)
    rescoring.same_recording(record, truth, sha256)
    weights, sentence = lpips_weights.find(chosen.lpips_weights, truth.task.shape)
    folder = args.output or source.parent
    with console.shown(chosen.progress), output_folder.ready(folder):
        made, found, scores = rescoring.rescore(
            record,
            source.parent,
            truth,
            metrics=args.rescored.metric,
            weights=weights,
            lpips=sentence,
            truth_sha256=sha256,
            truth_path=path,
        )
        if lost := rescoring.missing(scores, args.rescored.metric):
            reason = made.metrics.get(lost[0], "this data has none")
            raise LeakauditError(
                f"{lost[0]} could not be computed for any record: {reason}; nothing was written"
            )
        made = output.write(folder, made, found, scores, truth)
    show_record(model.plain(made), form)
    say(f"{folder / RECORD}: scored again; no attack was run", args)
    return 0 if worst_case.conclusive(made) else INCONCLUSIVE


def _named(record: AttackRecord) -> Path:
    """Return the truth file that the results were scored with."""
    from leakaudit.reporting.results.model import given

    name = given(record.provenance.truth.path, None)
    if name is None:
        raise LeakauditError("the results do not name a truth file; specify it with --truth FILE")
    if not Path(name).is_file():
        raise LeakauditError(
            f"the truth file {name}, which these results name, does not exist; specify it with "
            "--truth FILE"
        )
    return Path(name)


def _format(output: Path | None) -> str:
    if output is None or not output.suffix:
        return "html"
    if output.suffix.lower() not in SUFFIXES:
        raise LeakauditError(
            f"{output}: no format has this suffix (known: {', '.join(SUFFIXES)}); "
            "choose the format with -f"
        )
    return SUFFIXES[output.suffix.lower()][0]
