"""`leakaudit reproduce`: published figures, tables and theorems, and what papers claim."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from leakaudit.cli._commands import SharedOptions, argument, command, option
from leakaudit.cli._options import (
    INTERRUPTED,
    WORKERS,
    ComputeOptions,
    PageOptions,
    load_torch,
    loading,
    say,
    settings,
)
from leakaudit.core.errors import LeakauditError

if TYPE_CHECKING:
    from rich.text import Text

    from leakaudit.core.verdict import Verdict
    from leakaudit.judging.papers import JudgedClaim, PublishedClaim
    from leakaudit.runs.reproducing.run import Reproduced, ReproductionRun
    from leakaudit.runs.reproducing.site import IndexedItem
    from leakaudit.runs.workers.executor import Executor

NOTE = (
    "NOT REFUTED means that nothing tried here exceeded the claim; this does not prove it. The "
    "first finding of a row concerns the claim as published, the others its variants."
)
STYLES = {"REFUTED": "bold red", "NOT_REFUTED": "green"}
LEVELS = {"error": "bold red", "warning": "yellow", "note": "green"}


class _OutputOptions(PageOptions):
    output: Path | None = option(
        "folder for pages, figures and results, leakaudit-out unless given; with --claims, the "
        "file to write instead of stdout",
        "-o",
        metavar="PATH",
    )


class _CellOptions(ComputeOptions):
    workers: int | None = option(
        WORKERS.format("one per processor; with --claims 0, this process"), metavar="N"
    )

    def every_core(self) -> Executor:
        """Return the executor of cells, by default one process per processor."""
        from leakaudit.runs.workers.executor import Executor

        return Executor.of(self.workers, self.backend, self.address, every_core=True)


class _Options(SharedOptions):
    settings = ("threads", "data_root", "download", "max_seconds")

    items: list[str] = argument(
        "PAPER/ITEM such as thesis/fig5.1, PAPER for all of its items, or a TOML file with an "
        "item; without any, all items are listed",
        nargs="*",
        metavar="ITEM",
        names="items",
    )
    scale: str = option(
        "small: at most about two minutes; paper: the paper's own size, which can take hours: the "
        "number of cells is stated first",
        default="small",
        choices=("small", "paper"),
    )
    seeds: int | None = option("number of seeds (default: that of the item)", metavar="N")
    all: bool = option("run every item, and write an index of all with their verdicts")
    retry_failed: bool = option("run cells that failed earlier once more")
    claims: bool = option("re-evaluate the privacy claims of papers")
    paper: list[str] = option(
        "with --claims: dp-norm, dp-recal, dp-dkm, secured-fl, pdmm-thesis, or other for papers "
        "of other groups; repeatable (default: all)",
        metavar="NAME",
    )
    row: list[int] = option(
        "with --claims: number of a claim; repeatable (default: all)", metavar="N"
    )
    page: _OutputOptions
    computing: _CellOptions


@command(
    "reproduce",
    "reproduce published figures, tables and theorems; re-evaluate privacy claims",
    "Runs published figures, tables and theorems again, and compares the printed numbers with "
    "ours; the same command continues an interrupted run. Without an item, it lists all of them.",
    "leakaudit reproduce thesis/appendix-fig4 -o out/",
    "leakaudit reproduce dp-norm --scale paper --seeds 5",
    "leakaudit reproduce --claims --paper dp-norm",
)
def run(args: _Options) -> int:
    """List items, run them, or evaluate claims."""
    if args.claims:
        if args.items or args.all:
            raise LeakauditError("--claims: expected no items; choose with --paper and --row")
        return _claims(args)
    if args.paper or args.row:
        raise LeakauditError("--paper, --row: expected together with --claims")
    if args.all and args.items:
        raise LeakauditError("--all: expected no items beside it")
    if args.items or args.all:
        return _items(args)
    return _list(args)


# --- items ------------------------------------------------------------------------------------


def _list(args: _Options) -> int:
    from leakaudit.runs.reproducing import site

    with loading(args.given):
        from leakaudit.judging.papers import items
    chosen = settings(args)
    found = site.entries(items.every(), Path(chosen.output))
    form = args.page.format or "text"
    if form == "json":
        _print_json([one.to_json() for one in found])
    elif form == "html":
        _print(site.page(found))
    else:
        _table(found)
    return 0


def _table(found: list[IndexedItem]) -> None:
    from rich.text import Text

    from leakaudit.cli._options import show_table
    from leakaudit.reporting.rendering import console
    from leakaudit.reporting.rendering.tables import Column

    columns = [
        Column("item"),
        Column("kind", spare=True),
        Column("title", text=True),
        Column("state"),
        Column("data", spare=True),
        Column("last outcome"),
    ]
    rows = []
    reasons = []
    for one in found:
        item = one.item
        state = item.state
        if state == "claims":
            state = f"claims {', '.join(map(str, item.claims))}"
        elif state == "not determined":
            reasons.append(f"{item.full_name}, {state}: {item.missing}")
        elif item.data:
            state = "needs data"
        data = ", ".join(item.data)
        rows.append([item.full_name, item.kind, item.title, state, data, one.said])
    show_table(columns, rows)
    for reason in reasons:
        console.stdout().print(Text(reason))


def _items(args: _Options) -> int:
    if args.computing.backend == "process" and args.computing.workers != 0:
        from leakaudit._util import forks

        forks.context()  # it imports torch while this process does
    with loading(args.given):
        load_torch()
    from leakaudit.judging.papers import items
    from leakaudit.reporting.rendering import console
    from leakaudit.runs.reproducing.plan import PAPER, plan
    from leakaudit.runs.reproducing.reproduce import reproduce
    from leakaudit.runs.sweeping.run import SweepOptions

    chosen = settings(args)
    if args.scale == PAPER:
        for item in items.select(args.items):
            if size := plan(item, args.scale, args.seeds).size:
                say(f"{item.full_name}: {size}", args)
    options = SweepOptions(
        args.computing.every_core(),
        again=args.retry_failed,
        data_root=Path(chosen.data_root),
        download=chosen.download,
    )
    with console.shown(chosen.progress, chosen.max_seconds, main="cells"):
        outcome = reproduce(args.items, Path(chosen.output), options, args.scale, args.seeds)
    _show(outcome, args)
    if outcome.interrupted:
        return INTERRUPTED
    # An index of all items contains those that cannot be run here.
    return LeakauditError.code if outcome.blocked and args.items else 0


def _show(outcome: ReproductionRun, args: _Options) -> None:
    from leakaudit.runs.reproducing import page

    found = outcome.found
    form = args.page.format or "text"
    if form == "json":
        _print_json([one.to_json() for one in found])
    elif form == "html" and len(found) == 1:
        _print(page.page(found[0]))
    elif form == "html":
        _print((outcome.folder / page.PAGE).read_text(encoding="utf-8"))
    else:
        for one in found:
            if one.blocked or not one.left:
                _say_item(one)
    written = outcome.folder
    if len(found) == 1:
        written = outcome.place(found[0].item)
    say(f"{written / page.PAGE}: written", args)
    if outcome.left:
        done = f"{outcome.total - outcome.left} of {outcome.total} results are computed"
        say(f"{done}; run the same command again to continue", args)


def _say_item(one: Reproduced) -> None:
    from rich.text import Text

    from leakaudit.judging.papers.rules import in_words
    from leakaudit.reporting.rendering import console
    from leakaudit.reporting.rendering.tables import Column, indented, table

    out = console.stdout()
    width = console.width()
    out.print(Text.assemble((one.item.full_name, "bold"), f": {one.item.title}"))
    out.print(indented(Text(one.sentence, style=LEVELS[one.level]), width))
    if one.judged is None:
        return
    columns = [
        *(Column("quantity"), Column("line"), Column("at"), Column("printed", True)),
        *(Column("ours", True), Column("deviation", True), Column("outcome")),
    ]
    rows = []
    for number in one.judged.numbers:
        printed = number.printed
        deviation = "" if number.deviation is None else f"{number.deviation:+.3g}"
        ours = "missing" if number.ours is None else in_words(number.ours)
        outcome = str(number.outcome)
        value = f"{printed.value:.4g}"
        rows.append([printed.y, number.line, str(printed.x), value, ours, deviation, outcome])
    if rows:
        out.print(table(columns, rows, width))
    for shape in one.judged.shapes:
        text = Text(f"{shape.outcome}: {shape.expected.says} ({shape.found})")
        out.print(indented(text, width))


def _print_json(values: object) -> None:
    from leakaudit.cli._options import show_json

    show_json(values)


def _print(text: str) -> None:
    from leakaudit.cli._options import show

    show(text)


# --- claims -----------------------------------------------------------------------------------


def _claims(args: _Options) -> int:
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
