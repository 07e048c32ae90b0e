"""The coverage site: every item of the papers with its command, its state and its last outcome."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from leakaudit._util.files import replacing
from leakaudit._util.plural import counted
from leakaudit.core.trace import Json
from leakaudit.core.verdict import Verdict
from leakaudit.core.version import VERSION
from leakaudit.judging.papers.items import Item
from leakaudit.judging.papers.rules import MEANT, Reproduction
from leakaudit.reporting.findings import grading
from leakaudit.reporting.findings.overview import Overview
from leakaudit.reporting.findings.wording import LIMITS, VERDICT_ORDER
from leakaudit.reporting.rendering import markdown as md
from leakaudit.reporting.rendering.html import rendered
from leakaudit.runs.reproducing.page import PAGE
from leakaudit.runs.reproducing.run import ALIKE, StoredOutcome, stored

NOT_RUN = "not run"
MARKDOWN = "coverage.md"
JSON = "coverage.json"
WORDS = (*(verdict.words for verdict in VERDICT_ORDER), *Reproduction, NOT_RUN)


@dataclass(frozen=True)
class IndexedItem:
    """An item with its last outcome in a folder."""

    item: Item
    outcome: StoredOutcome | None

    @property
    def word(self) -> str:
        """The verdict; that of an item that cannot be run is known without a run."""
        if self.outcome is not None:
            return self.outcome.word
        if self.item.state == "not determined":
            return str(Reproduction.LOST)
        return NOT_RUN

    @property
    def why(self) -> str:
        """The verdict's reason, without its word."""
        if self.outcome is not None:
            return self.outcome.why
        return self.item.missing if self.item.state == "not determined" else ""

    @property
    def level(self) -> grading.Level:
        """How serious the verdict is."""
        return "warning" if self.outcome is None else self.outcome.level

    @property
    def refuted(self) -> bool:
        """Whether one of its claims is refuted, whatever its numbers show."""
        claims = () if self.outcome is None else self.outcome.claims
        return Verdict.REFUTED.name in [row.verdict for row in claims]

    @property
    def deviation(self) -> str:
        """The printed number from which ours is farthest, beside ours."""
        return "" if self.outcome is None else self.outcome.deviation

    @property
    def said(self) -> str:
        """The last outcome in one phrase, with its scale."""
        if self.outcome is None:
            return ""
        return f"{self.outcome.word} ({self.outcome.scale}, {counted(self.outcome.seeds, 'seed')})"

    def to_json(self) -> dict[str, Json]:
        """Return plain values."""
        item = self.item
        last: Json = None
        if self.outcome is not None:
            kept = ("word", "why", "deviation", "scale", "seeds", "complete", "seconds")
            last = {name: getattr(self.outcome, name) for name in kept}
        return {
            "item": item.full_name,
            **{name: getattr(item, name) for name in ("kind", "title", "place", "state")},
            "missing": item.missing if item.state == "not determined" else "",
            "claims": list(item.claims),
            "data": list(item.data),
            "command": f"leakaudit reproduce {item.argument}",
            "last": last,
        }


def entries(items: Sequence[Item], folder: Path) -> list[IndexedItem]:
    """Return items with their last outcomes in a folder."""
    return [IndexedItem(item, stored(folder / item.paper / item.name)) for item in items]


def write(found: Sequence[IndexedItem], folder: Path) -> None:
    """Write index.html, coverage.md and coverage.json."""
    listed = [one.to_json() for one in found]
    texts = {
        PAGE: page(found),
        MARKDOWN: markdown(found),
        JSON: json.dumps(listed, indent=1, ensure_ascii=False) + "\n",
    }
    for name, text in texts.items():
        with replacing(folder / name) as file:
            file.write(text.encode("utf-8", "backslashreplace"))


def markdown(found: Sequence[IndexedItem]) -> str:
    """Return a table for each paper."""
    parts = []
    for paper, some in _by_paper(found).items():
        rows = []
        for one in some:
            said = f"{one.word}: {one.why}" if one.why else one.word
            rows.append([one.item.name, one.item.title, one.item.state, said, one.deviation])
        headings = ["item", "title", "state", "verdict", "largest deviation"]
        parts += [f"## {paper}", md.table(headings, rows)]
    return "\n\n".join(parts) + "\n"


def page(found: Sequence[IndexedItem]) -> str:
    """Render the index."""
    return rendered("coverage.html.j2", _content(found))


def _by_paper(found: Sequence[IndexedItem]) -> dict[str, list[IndexedItem]]:
    papers: dict[str, list[IndexedItem]] = {}
    for one in found:
        papers.setdefault(one.item.paper, []).append(one)
    return papers


def _content(found: Sequence[IndexedItem]) -> Mapping[str, object]:
    shown = [word for word in WORDS if any(one.word == word for one in found)]
    groups = []
    for paper, some in _by_paper(found).items():
        counts = [sum(one.word == word for one in some) for word in shown]
        rows = []
        for one in some:
            rows.append(
                {
                    "name": one.item.name,
                    "title": one.item.title,
                    "page": f"{one.item.full_name}/{PAGE}" if one.outcome is not None else "",
                    "word": one.word,
                    "why": one.why,
                    "deviation": one.deviation,
                    "command": f"leakaudit reproduce {one.item.argument}",
                    "level": one.level,
                }
            )
        groups.append({"name": paper, "counts": counts, "entries": rows})
    meant = {str(word): sentence for word, sentence in MEANT.items() if word in shown}
    meant |= {v.words: v.value for v in VERDICT_ORDER if v.words in shown}
    return {
        "title": "leakaudit: published figures, tables and theorems",
        "source": "leakaudit reproduce --all",
        "first": _first(found),
        "sections": [
            *((f"paper-{name}", name) for name in _by_paper(found)),
            ("limits", "Limits of this report"),
            ("provenance", "Provenance"),
        ],
        "groups": groups,
        "words": shown,
        "meant": meant,
        "limits": LIMITS,
        "provenance": [("leakaudit", VERSION), ("items", str(len(found)))],
    }


def _first(found: Sequence[IndexedItem]) -> Overview:
    ran = [one for one in found if one.outcome is not None]
    alike = sum(one.word in ALIKE for one in found)
    differs = sum(one.word == Reproduction.DIFFERS for one in found)
    refuted = sum(one.refuted for one in found)
    says = (
        f"{alike} of {counted(len(found), 'published item')} come out as published or with the "
        f"same shape, {differs} differ in these runs; of {refuted}, a claim is refuted."
    )
    return Overview(
        topic="Every figure, table, theorem and algorithm of the papers",
        says=says,
        certainty="Each verdict is computed from our own runs; its page has the numbers.",
        level="note",
        badge=f"{len(ran)} run",
        advice=[("Repeat any item by its command.", "leakaudit reproduce PAPER/ITEM")],
        facts=[("items", str(len(found))), ("with an outcome here", str(len(ran)))],
    )
