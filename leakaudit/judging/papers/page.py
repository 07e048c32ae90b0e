"""The scoreboard of published claims as an HTML page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from leakaudit._util.plural import counted
from leakaudit.core.verdict import Verdict
from leakaudit.core.version import VERSION
from leakaudit.judging.papers.row import QUALITIES, JudgedClaim
from leakaudit.reporting.findings import grading
from leakaudit.reporting.findings.overview import Overview
from leakaudit.reporting.findings.wording import LIMITS, NO_PROOF, VERDICT_ORDER
from leakaudit.reporting.rendering.html import rendered


def page(claims: Sequence[JudgedClaim]) -> str:
    """Render evaluated claims, at least one."""
    return rendered("claims.html.j2", _content(claims))


def _content(claims: Sequence[JudgedClaim]) -> Mapping[str, object]:
    papers: dict[str, list[JudgedClaim]] = {}
    for one in claims:
        papers.setdefault(one.row.paper, []).append(one)
    shown = [v for v in VERDICT_ORDER if any(one.verdict is v for one in claims)]
    groups = []
    for name, some in papers.items():
        counts = [sum(one.verdict is verdict for one in some) for verdict in shown]
        groups.append({"name": name, "counts": counts, "claims": list(map(_claim, some))})
    seconds = sum(one.seconds for one in claims)
    return {
        "title": "leakaudit: published claims",
        "source": "leakaudit reproduce --claims",
        "first": _first(claims),
        "sections": [
            *((f"paper-{name}", name) for name in papers),
            ("limits", "Limits of this report"),
            ("provenance", "Provenance"),
        ],
        "groups": groups,
        "verdicts": [{"words": v.words, "level": grading.VERDICTS[v.name]} for v in shown],
        "meant": {v.words: v.value for v in shown},
        "limits": LIMITS,
        "provenance": [
            ("leakaudit", VERSION),
            ("evaluated", f"{counted(len(claims), 'claim')} in {seconds:.1f} s"),
        ],
    }


def _first(claims: Sequence[JudgedClaim]) -> Overview:
    counts = {v: sum(one.verdict is v for one in claims) for v in VERDICT_ORDER}
    wrong = [one for one in claims if grading.VERDICTS[one.verdict.name] == "error"]
    worst = next((v for v in VERDICT_ORDER if counts[v]), VERDICT_ORDER[-1])
    refuted = counts[Verdict.REFUTED]
    loose = counts[Verdict.UNSUPPORTED]
    if refuted:
        says = f"{refuted} of {counted(len(claims), 'published claim')} refuted."
        if loose:
            says = f"{says[:-1]}; {loose} more do not follow from their assumptions."
    elif loose:
        says = (
            f"{loose} of {counted(len(claims), 'published claim')} do not follow from their "
            "assumptions."
        )
    else:
        says = f"None of {counted(len(claims), 'published claim')} was refuted."
    papers = dict.fromkeys(one.row.paper for one in wrong)
    advice = [
        ("Do not cite a refuted or unsupported claim as a guarantee.", ""),
        ("Repeat any evaluation by its command.", claims[0].row.command),
        (
            "Compute the epsilon of your own setting instead of taking it from a theorem.",
            "leakaudit bound scenario.toml",
        ),
    ]
    facts = [(v.words, str(counts[v])) for v in VERDICT_ORDER if counts[v]]
    if papers:
        facts.insert(0, ("papers with such a claim", ", ".join(papers)))
    return Overview(
        topic=f"Published privacy claims, {counted(len(claims), 'row')} of the scoreboard",
        says=says,
        certainty=(
            "Every claim was evaluated now, from the protocol's equations or by running it; the "
            f"findings below show the figures. {NO_PROOF}"
        ),
        level=grading.VERDICTS[worst.name],
        badge=worst.words,
        advice=advice,
        facts=facts,
    )


def _claim(one: JudgedClaim) -> Mapping[str, object]:
    known = QUALITIES[one.row.quality] if one.row.quality != "read" else ""
    return {
        "number": one.row.number,
        "source": one.row.source,
        "claim": one.row.claim,
        "known": known,
        "quotes": one.row.quotes,
        "assumes": one.row.assumes,
        "word": one.verdict.words,
        "level": grading.VERDICTS[one.verdict.name],
        "findings": [
            {
                "word": each.verdict.words,
                "level": grading.VERDICTS[each.verdict.name],
                "about": each.about,
                "says": each.says,
            }
            for each in one.findings
        ],
        "command": one.row.command,
    }
