"""The page of an item: the verdict first, then the figure, the numbers, and how to repeat it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from markupsafe import Markup

from leakaudit._util import separated
from leakaudit._util.files import private_folder, replacing
from leakaudit._util.plural import capital, counted
from leakaudit.core.version import VERSION
from leakaudit.judging.papers.items import LAST, ROUND, TERMS, Place
from leakaudit.judging.papers.measured import MeasuredPanel
from leakaudit.judging.papers.rules import (
    ComparedNumber,
    Judged,
    Outcome,
    in_words,
    where,
)
from leakaudit.reporting.figures import curves, paper, plots
from leakaudit.reporting.findings import grading
from leakaudit.reporting.findings.overview import Advice, Overview
from leakaudit.reporting.findings.wording import limits
from leakaudit.reporting.rendering import latex
from leakaudit.reporting.rendering.html import rendered
from leakaudit.reporting.rendering.html.inline import inline
from leakaudit.runs.reproducing import picture
from leakaudit.runs.reproducing.plan import PAPER, data_root, plan
from leakaudit.runs.reproducing.run import LINES, RECORD, ClaimRow, Reproduced, words

PAGE = "index.html"
PLACES = 12  # most places of a table of values
LEVELS: Mapping[Outcome, grading.Level] = {
    Outcome.HOLDS: "note",
    Outcome.FAILS: "error",
    Outcome.UNDECIDED: "warning",
    Outcome.MISSING: "warning",
}
COLUMNS = ("what", "where", "printed", "tolerance", "ours", "low", "high", "deviation", "outcome")


def write(found: Reproduced, folder: Path) -> None:
    """Write the page of an item and the files beside it."""
    private_folder(folder)
    for name, text in files(found).items():
        path = folder / name
        private_folder(path.parent)
        with replacing(path) as file:
            file.write(text.encode("utf-8", "backslashreplace"))
    if found.panels:
        content = _drawn(found)
        title = f"{found.item.full_name}: {found.item.title}"
        for suffix in ("pdf", "png"):
            paper.save(content, folder / f"figure.{suffix}", paper.WIDTHS["page"], title)


def files(found: Reproduced) -> dict[str, str]:
    """Return the text files of an item by name."""
    record = json.dumps(found.to_json(), indent=1, ensure_ascii=False, allow_nan=False)
    made = {PAGE: page(found), RECORD: f"{record}\n"}
    if found.panels:
        rows = []
        for y, line, place, values in picture.rows(found.panels):
            rows.append([y, line, place, *values])
        made["figure.csv"] = separated.text(("quantity", "line", "x", "mean", "low", "high"), rows)
    if found.judged is not None and found.judged.numbers:
        table = [_row(one) for one in found.judged.numbers]
        made["table.csv"] = separated.text(COLUMNS, table)
        made["table.tex"] = _latex(found)
    for name, text in _lines(found):
        made[name] = text
    return made


def _lines(found: Reproduced) -> list[tuple[str, str]]:
    """Return the file of each line, for `leakaudit sweep`."""
    made = []
    for k, line in enumerate(found.plan.lines, 1):
        plain = re.sub(r"[^A-Za-z0-9]+", "-", line.name).strip("-").lower()
        made.append((f"{LINES}/{k:02}-{plain}.toml", line.toml))
    return made


def _what(one: ComparedNumber) -> str:
    return f"{one.printed.y}, {one.line}{where(one.printed.x)}"


def _row(one: ComparedNumber) -> list[separated.Cell]:
    printed = one.printed
    ours: list[separated.Cell] = [None, None, None]
    if one.ours is not None:
        low, high = one.ours.interval or (None, None)
        ours = [one.ours.mean, low, high]
    numbers = [printed.value, printed.tolerance, *ours, one.deviation]
    return [_what(one), printed.place, *numbers, str(one.outcome)]


def _latex(found: Reproduced) -> str:
    assert found.judged is not None
    rows = []
    for one in found.judged.numbers:
        shown = _shown(one)
        cells = [_what(one), *(str(shown[key]) for key in ("printed", "ours", "interval"))]
        rows.append([latex.escape(cell) for cell in (*cells, shown["deviation"])])
    item = found.item
    caption = latex.escape(f"{item.title} ({item.paper}, {item.place}): {found.sentence}")
    headings = ["", "printed", "ours", r"95\,\% interval", "deviation"]
    return latex.table(headings, "lrrrr", rows, caption, f"tab:{item.paper}-{item.name}")


def _shown(one: ComparedNumber) -> dict[str, object]:
    interval = ""
    if one.ours is not None and one.ours.interval is not None:
        interval = f"[{one.ours.interval[0]:.4g}, {one.ours.interval[1]:.4g}]"
    missing = f"missing: {one.why}" if one.ours is None else ""
    return {
        "what": _what(one),
        "place": one.printed.place,
        "printed": f"{one.printed.value:.4g}",
        "tolerance": f"{one.printed.tolerance:.4g}",
        "ours": missing if one.ours is None else f"{one.ours.mean:.4g}",
        "interval": interval,
        "deviation": "" if one.deviation is None else f"{one.deviation:+.4g}",
        "outcome": str(one.outcome),
        "level": LEVELS[one.outcome],
    }


def page(found: Reproduced) -> str:
    """Render the page of an item."""
    return rendered("item.html.j2", _content(found))


def _content(found: Reproduced) -> Mapping[str, object]:
    item = found.item
    judged = found.judged
    shapes = []
    if judged is not None:
        for shape in judged.shapes:
            says, level = shape.expected.says, LEVELS[shape.outcome]
            shapes.append(
                {"says": says, "outcome": shape.outcome, "found": shape.found, "level": level}
            )
    values = _values(found.panels)
    sections = []
    if found.panels:
        sections.append(("figure", item.place))
    if judged is not None and (judged.numbers or judged.shapes):
        sections.append(("numbers", _compared(judged)))
    if values:
        sections.append(("values", "Values"))
    if found.claims:
        sections.append(("claims", "Claims"))
    sections += [("paper", "The paper"), ("repeat", "Run it yourself")]
    sections += [("limits", "Limits"), ("provenance", "Provenance")]
    return {
        "title": f"leakaudit: {item.full_name}",
        "source": found.command,
        "first": _first(found),
        "sections": sections,
        "place": item.place,
        "title_of_item": item.title,
        "figure": _figure(found),
        "numbers": [] if judged is None else [_shown(one) for one in judged.numbers],
        "shapes": shapes,
        "compared": "" if judged is None else _compared(judged),
        "values": values,
        "claims": [_claim(row) for row in found.claims],
        "troubles": found.troubles,
        "quotes": item.quotes,
        "lost": item.lost,
        "undetermined": item.undetermined,
        "chosen": item.chosen,
        "note": capital(item.note),
        "terms": TERMS.get(item.paper, {}),
        "command": found.command,
        "files": _files(found),
        "lines": _lines(found),
        "limits": limits(attacks=found.plan.attacks),
        "attacked": found.plan.attacks,
        "provenance": _provenance(found),
    }


def _compared(judged: Judged) -> str:
    """Return the heading of the comparisons."""
    return "Printed and ours" if judged.numbers else "What the paper shows"


def _drawn(found: Reproduced) -> curves.CurveFigure:
    return picture.content(found.panels, len(found.plan.seeds), own_size=found.plan.own_size)


def _figure(found: Reproduced) -> Markup | None:
    if not found.panels:
        return None
    drawn = curves.on_screen(_drawn(found))
    said = "; ".join(panel.name for panel in found.panels)
    return inline(plots.svg(drawn, "item"), f"{found.item.title}: {said}", {})


def _files(found: Reproduced) -> list[tuple[str, str]]:
    made = []
    if found.panels:
        made += [
            ("figure.pdf", "the figure for a paper"),
            ("figure.png", "the figure"),
            ("figure.csv", "all values of the figure with their intervals"),
        ]
    if found.judged is not None and found.judged.numbers:
        made += [
            ("table.csv", "printed numbers beside ours"),
            ("table.tex", "the same for LaTeX"),
        ]
    made.append((RECORD, "the outcome for programs"))
    for line, (name, _) in zip(found.plan.lines, _lines(found), strict=True):
        root = data_root(found.item, [line])
        made.append((name, f"{line.name}, also by: leakaudit sweep {name}{root}"))
    return made


def _values(panels: Sequence[MeasuredPanel]) -> Mapping[str, object] | None:
    """Return a table of the last values, or of all places of an axis if these are few."""
    headings: list[str] = []
    cells: dict[str, dict[str, str]] = {}
    for panel in panels:
        places = _table_places(panel)
        for line in panel.lines:
            row = cells.setdefault(line.shown, {})
            for heading, place in places:
                k = line.index(place)
                headings.append(heading)
                ours = None if k is None else panel.estimate(line, k)
                row[heading] = "-" if ours is None else in_words(ours)
    if not cells:
        return None
    headings = list(dict.fromkeys(headings))
    rows = [(name, [row.get(h, "") for h in headings]) for name, row in cells.items()]
    seeds = max(len(line.runs) for panel in panels for line in panel.lines)
    over = "mean over seeds, with its 95 % interval" if seeds > 1 else picture.SINGLE
    note = f"{over}; all values are in figure.csv"
    return {"headings": headings, "rows": rows, "note": note}


def _table_places(panel: MeasuredPanel) -> list[tuple[str, Place]]:
    """Return the places of a table of values, with their headings."""
    longest = max(panel.lines, key=lambda line: len(line.x), default=None)
    if longest is None or not longest.x:
        return [(panel.name, LAST)]
    name = f"{panel.name}, {panel.across or panel.axis}"
    if panel.axis == ROUND or len(longest.x) > PLACES:
        return [(f"{name} {longest.x[-1]}", LAST)]
    return [(f"{name} {place}", place) for place in longest.x]


def _claim(row: ClaimRow) -> Mapping[str, object]:
    findings = []
    for one in row.findings:
        level = grading.VERDICTS[one.verdict]
        findings.append(
            {"word": words(one.verdict), "level": level, "about": one.about, "says": one.says}
        )
    return {
        "row": row.row,
        "source": row.source,
        "claim": row.claim,
        "word": words(row.verdict),
        "level": grading.VERDICTS[row.verdict],
        "findings": findings,
        "command": row.command,
    }


def _first(found: Reproduced) -> Overview:
    item = found.item
    advice: list[Advice] = []
    judged = found.judged
    known = item.numbers("paper") or item.shapes("paper")
    if found.blocked:
        advice.append(("Provide what is missing.", found.command))
    elif not found.plan.own_size and judged is not None and known:
        paper = plan(item, PAPER)
        text = "Run it at the paper's own size."
        if paper.size:
            text = f"Run it at the paper's own size: {paper.size}; here {found.plan.size}."
        command = f"leakaudit reproduce {item.argument} --scale paper"
        advice.append((text, f"{command}{data_root(item, paper.lines)}"))
    if judged is not None and judged.seeds_disagree:
        seeds = max(3, 2 * len(found.plan.seeds))
        advice.append(("Run more seeds.", found.command_with(seeds)))
    facts = [
        ("published as", f"{item.paper}, {item.place}"),
        ("size", "the paper's own" if found.plan.own_size else f"small: {item.small}"),
        ("seeds", str(len(found.plan.seeds))),
        ("seconds", f"{found.seconds:.1f}"),
    ]
    if item.stand_in:
        facts.append(("stand-in", item.stand_in))
    certainty = ""
    if found.judged is not None:
        certainty = f"{capital(found.judged.meant)}."
    partial = ""
    if found.left:
        partial = f"{counted(found.left, 'result')} missing; the same command continues."
    return Overview(
        topic=f"{item.full_name}: {item.title}",
        says=found.sentence,
        certainty=certainty,
        level=found.level,
        badge=found.word,
        advice=advice,
        facts=facts,
        partial=partial,
    )


def _provenance(found: Reproduced) -> list[tuple[str, str]]:
    versions = ", ".join(f"{name} {v or 'absent'}" for name, v in found.versions.items())
    seeds = ", ".join(map(str, found.plan.seeds))
    return [
        ("leakaudit", VERSION),
        ("versions", versions),
        ("seeds", seeds),
        ("seconds", f"{found.seconds:.1f}"),
    ]
