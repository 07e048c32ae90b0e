"""`leakaudit reproduce`: re-evaluate what papers claim."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leakaudit.cli._commands import SharedOptions, command, option
from leakaudit.cli._options import ComputeOptions, PageOptions, settings

if TYPE_CHECKING:
    from rich.text import Text

    from leakaudit.core.verdict import Verdict
    from leakaudit.judging.papers import JudgedClaim, PublishedClaim

NOTE = (
    "NOT REFUTED means that nothing tried here exceeded the claim; this does not prove it. The "
    "first finding of a row concerns the claim as published, the others its variants."
)
STYLES = {"REFUTED": "bold red", "NOT_REFUTED": "green"}


class _Options(SharedOptions):
    settings = ("threads",)

    claims: bool = option("re-evaluate the privacy claims of papers", required=True)
    paper: list[str] = option(
        "dp-norm, dp-recal, dp-dkm, secured-fl, pdmm-thesis, or other for papers of other "
        "groups; repeatable (default: all)",
        metavar="NAME",
    )
    row: list[int] = option("number of a claim; repeatable (default: all)", metavar="N")
    page: PageOptions
    computing: ComputeOptions


@command(
    "reproduce",
    "re-evaluate published privacy claims",
    "Re-evaluates published privacy claims: computes a verdict for each, prints the "
    "evidence, and names the command that reproduces it.",
    "leakaudit reproduce --claims --paper dp-norm",
    "leakaudit reproduce --claims --row 7 --row 10 -f json",
    "leakaudit reproduce --claims -o claims.html",
)
def run(args: _Options) -> int:
    """Evaluate the requested claims and print the findings."""
    from leakaudit.judging.papers import judge, select
    from leakaudit.reporting.rendering import console

    chosen = settings(args)
    form = args.page.form()
    rows = select(args.paper, args.row)
    executor = args.computing.executor()
    with console.shown(chosen.progress, main="claims"):
        found = list(judge(rows, executor))
    if form == "json":
        args.page.write_json([one.to_json() for one in found], args)
    elif form == "html":
        from leakaudit.judging.papers.page import page

        args.page.write(page(found), args)
    else:
        _write(found)
    return 0


def _write(found: list[JudgedClaim]) -> None:
    from rich.text import Text

    from leakaudit.reporting.rendering import console
    from leakaudit.reporting.rendering.tables import indented

    out = console.stdout()
    width = console.width()
    for one in found:
        number = f"{one.row.number:>2}  {one.row.source}"
        out.print(Text.assemble((number, "bold"), f": {one.row.claim}"))
        for line in _origin(one.row):
            out.print(indented(Text(line, style="dim"), width))
        for finding in one.findings:
            verdict = _verdict(finding.verdict)
            said = Text.assemble(verdict, f"  {finding.about}: {finding.says}")
            out.print(indented(said, width))
        last = f"{one.row.command}  ({one.seconds:.1f} s)"
        out.print(indented(Text(last, style="dim"), width))
        out.print()
    out.print(Text(NOTE, style="dim"))


def _origin(row: PublishedClaim) -> list[str]:
    """Return two lines: how the claim is known, and what it assumes."""
    from leakaudit.judging.papers.row import QUALITIES

    quoted = "; ".join(f'"{quote["text"]}" ({quote["place"]})' for quote in row.quotes)
    known = f"{row.quality}: {quoted}" if quoted else QUALITIES[row.quality]
    return [known, f"assumes: {'; '.join(row.assumes)}"]


def _verdict(verdict: Verdict) -> Text:
    from rich.text import Text

    return Text(verdict.words, style=STYLES.get(verdict.name, "yellow"))
