"""A page for a repository, an issue or a pull request."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from urllib.parse import quote

from leakaudit.comparison import lines
from leakaudit.registry import renderer
from leakaudit.trace import Json
from leakaudit.wording import LIMITS, by_reason, clean, provenance, scopes, table


@renderer("markdown")
def render(results: Mapping[str, Json]) -> str:
    """GitHub-flavoured Markdown; names from the trace are escaped, so that they are neither markup, links nor mentions."""
    blocks = ["# What this adversary learns", f"**{escape(results['summary'])}**"]
    if against := results.get("against"):
        blocks += ["## Against the earlier results", _list(lines(against))]
    if results["findings"]:
        headings, rows = table(results)
        blocks += ["## Nodes", _table(headings, rows), _notes(results["findings"])]
    if results["picture"]:
        blocks += [f"![Originals over reconstructions]({quote(results['picture'], safe='')})"]
    if results["undetermined"]:
        blocks += ["## Not determined", _list(by_reason(results["undetermined"], "reason"))]
    blocks += ["## Not tried", _list(results["not_tried"] or ["not recorded"])]
    blocks += ["## Limits", _list(LIMITS)]
    blocks += ["## Provenance", _table(("what", "value"), provenance(results))]
    return "\n\n".join(filter(None, blocks)) + "\n"


def escape(text: object) -> str:
    """Text that Markdown shows as it is, on one line."""
    out = clean(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace("@", "(at)")
    out = re.sub(r"[\\`*_\[\]#|~$]", r"\\\g<0>", out)  # markup anywhere
    out = re.sub(r"(?i)(?<=\bwww)\.|:(?=//)", r"\\\g<0>", out)  # what becomes a link by itself
    return re.sub(r"^(\d{1,9}(?=[.)]( |$))|(?=[-+=]))", r"\1\\", out)  # what begins a list or a heading


def _table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [headings, ["---"] * len(headings), *([escape(cell) for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _list(items: Iterable[str]) -> str:
    return "\n".join(f"- {escape(item)}" for item in items)


def _notes(findings: Sequence[Mapping[str, Json]]) -> str:
    """What the certificates mean, and each finding's own note and formula."""
    meant = {f["certificate"]["name"].lower(): f["certificate"]["sentence"] for f in findings}
    said = [f"certificate {name}: {sentence}" for name, sentence in meant.items()]
    formulas = dict.fromkeys(f"{f['leak']['kind']} got by: {f['leak']['formula']}" for f in findings if f["leak"]["formula"])
    return _list([*said, *formulas, *scopes(findings), *by_reason(findings, "note")])
