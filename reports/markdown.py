"""A page for a repository, an issue or a pull request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from urllib.parse import quote

from leakaudit.registry import renderer
from leakaudit.rendering import gate_text
from leakaudit.rendering import markdown as md
from leakaudit.rendering.shown import Shown
from leakaudit.results.comparison import lines
from leakaudit.results.model import CheckRecord, Finding
from leakaudit.results.wording import LIMITS, not_determined, notes, provenance, scopes, table
from leakaudit.trace import Json


@renderer("markdown")
def render(results: Mapping[str, Json]) -> str:
    """Write GitHub-flavoured Markdown.

    Args:
        results: A record.

    Returns:
        A page; names from the trace are escaped, so that they are neither markup, links nor
        mentions.
    """
    shown = Shown.of(results)
    record = shown.record
    if isinstance(record, CheckRecord):
        return gate_text.markdown(record)
    blocks = ["# What this adversary learns", f"**{md.escape(record.summary)}**"]
    if shown.against:
        blocks += ["## Against the earlier results", md.items(lines(shown.against))]
    if record.findings:
        blocks += ["## Nodes", md.table(*table(record.findings)), _notes(record.findings)]
    if record.picture:
        blocks.append(f"![Originals over reconstructions]({quote(record.picture, safe='')})")
    if record.undetermined:
        blocks += ["## Not determined", md.items(not_determined(record.undetermined))]
    blocks += ["## Not tried", md.items(record.not_tried or ["not recorded"])]
    blocks += ["## Limits", md.items(LIMITS)]
    blocks += ["## Provenance", md.table(("what", "value"), provenance(record))]
    return "\n\n".join(filter(None, blocks)) + "\n"


def _notes(findings: Sequence[Finding]) -> str:
    """What the certificates mean, and each finding's own note and formula."""
    meant = {}
    formulas = []
    for one in findings:
        meant[one.certificate.name.lower()] = one.certificate.sentence
        if one.leak.formula:
            formulas.append(f"{one.leak.kind} got by: {one.leak.formula}")
    certificates = [f"certificate {name}: {sentence}" for name, sentence in meant.items()]
    once = [*certificates, *dict.fromkeys(formulas)]
    return md.items([*once, *scopes(findings), *notes(findings)])
