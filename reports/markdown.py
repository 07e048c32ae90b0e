"""A page for a repository, an issue or a pull request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from urllib.parse import quote

from leakaudit.registry import renderer
from leakaudit.rendering import markdown as md
from leakaudit.results.comparison import lines
from leakaudit.results.wording import LIMITS, by_reason, provenance, scopes, table
from leakaudit.trace import Json


@renderer("markdown")
def render(results: Mapping[str, Json]) -> str:
    """GitHub-flavoured Markdown; names from the trace are escaped, so that they are neither markup, links nor mentions."""
    blocks = ["# What this adversary learns", f"**{md.escape(results['summary'])}**"]
    if against := results.get("against"):
        blocks += ["## Against the earlier results", md.items(lines(against))]
    if results["findings"]:
        headings, rows = table(results)
        blocks += ["## Nodes", md.table(headings, rows), _notes(results["findings"])]
    if results["picture"]:
        blocks += [f"![Originals over reconstructions]({quote(results['picture'], safe='')})"]
    if results["undetermined"]:
        blocks += ["## Not determined", md.items(by_reason(results["undetermined"], "reason"))]
    blocks += ["## Not tried", md.items(results["not_tried"] or ["not recorded"])]
    blocks += ["## Limits", md.items(LIMITS)]
    blocks += ["## Provenance", md.table(("what", "value"), provenance(results))]
    return "\n\n".join(filter(None, blocks)) + "\n"


def _notes(findings: Sequence[Mapping[str, Json]]) -> str:
    """What the certificates mean, and each finding's own note and formula."""
    meant = {f["certificate"]["name"].lower(): f["certificate"]["sentence"] for f in findings}
    said = [f"certificate {name}: {sentence}" for name, sentence in meant.items()]
    formulas = dict.fromkeys(
        f"{f['leak']['kind']} got by: {f['leak']['formula']}"
        for f in findings
        if f["leak"]["formula"]
    )
    return md.items([*said, *formulas, *scopes(findings), *by_reason(findings, "note")])
