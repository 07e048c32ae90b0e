"""The content of the page, from the record only: each section as plain values for the template."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from markupsafe import Markup
from msgspec.structs import asdict

from leakaudit.core.verdict import Verdict
from leakaudit.reporting.findings import grading
from leakaudit.reporting.findings.comparison import MEANS, ResultsComparison
from leakaudit.reporting.findings.measured import harm
from leakaudit.reporting.findings.overview import overview
from leakaudit.reporting.findings.shown import DisplayRecord
from leakaudit.reporting.findings.wording import (
    LIMITS,
    NUMBERS,
    certificates,
    not_determined,
    not_understood,
    notes,
    point_of,
    provenance,
    scopes,
    table,
)
from leakaudit.reporting.rendering.html import curves, gated, heat, topology
from leakaudit.reporting.rendering.html.causes import causes
from leakaudit.reporting.rendering.html.exhibit import exhibit
from leakaudit.reporting.rendering.html.shades import STEPS, NetworkScene, step, worst_steps
from leakaudit.reporting.rendering.html.threat import threat
from leakaudit.reporting.results.model import (
    AuditRecord,
    CheckRecord,
    Extended,
    Finding,
    RunRecord,
    VerdictEntry,
    ViewEntry,
    given,
)

# How much of a long record a page shows; all are choices.
WHOLE = 60  # most rows of a table that is shown in one piece
BLOCK = 100  # rows per block of a longer table
WORST = 10  # rows of the block that precedes those blocks
CHANGES = 10 * BLOCK  # rows of a comparison
DRAWN = 4  # adversaries for whom the network is drawn
NOTES = 40  # notes on nodes
FEW = 12  # up to this number, all verdicts are expanded
Row = tuple[str, Sequence[str]]  # level, and cells


def content(shown: DisplayRecord) -> dict[str, object]:
    """Return all variables of ``page.html.j2``."""
    record = shown.record
    headings, rows = table(record.findings)
    scene = gated.scene(record)
    view = overview(record)
    return {
        "title": f"leakaudit: {record.trace.protocol}",
        "source": "results.json",
        "first": view,
        "exhibit": exhibit(shown, view),
        "sections": list(_sections(shown)),
        "against": _against(shown.against),
        "threat": threat(record),
        "networks": _other_networks(record),
        "headings": headings,
        "numbers": [heading in NUMBERS for heading in headings],
        "causes": causes(record.findings),
        "blocks": list(_blocks(record.findings, rows)),
        "gate": gated.tables(record),
        "verdicts": list(_verdicts(record)),
        "panels": curves.panels(record),
        "refusals": curves.refusals(record),
        "views": _views(record),
        "gallery": shown.gallery,
        "passages": shown.passages,
        "methods": _methods(record),
        "by_round": heat.by_round(scene),
        "by_point": heat.by_point(scene),
        "by_adversary": heat.by_adversary(scene),
        "adversaries": heat.adversaries(scene),
        "steps": STEPS,
        "not_determined": not_determined(record.undetermined),
        "not_understood": not_understood(record.undetermined),
        "not_tried": record.not_tried or ["not recorded"],
        "notes": [*scopes(record.findings), *notes(record.findings)][:NOTES],
        "certificates": certificates(record.findings),
        "missing": list(_missing(shown)),
        "provenance": provenance(record),
        "limits": LIMITS,
        "verdict_words": {v.words: v.value for v in Verdict},
        "change_words": MEANS,
    }


def _sections(shown: DisplayRecord) -> Iterator[tuple[str, str]]:
    record = shown.record
    audit = isinstance(record, AuditRecord)
    candidates = (
        ("against", "Comparison", shown.against is not None),
        ("gate", "Limits of the gate", isinstance(record, CheckRecord)),
        ("verdicts", "Verdicts", audit),
        ("checks", "Findings", bool(record.findings)),
        ("pictures", "Images", bool(shown.gallery)),
        ("texts", "Texts", bool(shown.passages)),
        ("who", "Leakage by node", bool(gated.scene(record).shades)),
        ("curves", "Results by epsilon", bool(curves.panels(record))),
        ("claims", "Claims", bool(_views(record))),
        ("threat", "Scope", True),
        ("limits", "Limits of this report", True),
        ("provenance", "Provenance", True),
        ("glossary", "Glossary", True),
    )
    for id, name, there in candidates:
        if there:
            yield id, name


def _verdicts(
    record: RunRecord,
) -> Iterator[tuple[Verdict, grading.Level, bool, Sequence[VerdictEntry]]]:
    """Yield the verdicts of an audit by kind, the most severe first.

    The third value is whether they are expanded: severe ones are, and all if there are few.
    """
    every = record.audit.verdicts if isinstance(record, AuditRecord) else ()
    for name, level in grading.VERDICTS.items():
        some = [one for one in every if one.verdict == name]
        if some:
            yield Verdict[name], level, level == "error" or len(every) <= FEW, some


def _views(record: RunRecord) -> list[tuple[Extended, ViewEntry]]:
    grid = record.audit.grid if isinstance(record, AuditRecord) else ()
    return [(point.epsilon, view) for point in grid for view in point.read_views()]


def _other_networks(record: RunRecord) -> list[tuple[str, Markup]]:
    """The drawings for all adversaries; none if the first screen has the only one."""
    every = list(_networks(record))[:DRAWN]
    return every if len(every) > 1 else []


def _networks(record: RunRecord) -> Iterator[tuple[str, Markup]]:
    """Yield captions and drawings of networks.

    There is one drawing for each adversary, and for a gate one for each adversary in each check.
    An audit has none, because verdicts of different adversaries and points shade its nodes.
    """
    if isinstance(record, AuditRecord):
        return
    if not isinstance(record, CheckRecord):
        yield from _observed(gated.scene(record), "")
        return
    if record.gate.code == 3:
        return
    every = list(gated.checks(record))
    for name, scene in every:
        yield from _observed(scene, f" in check {name}" if len(every) > 1 else "")


def _observed(scene: NetworkScene, where: str) -> Iterator[tuple[str, Markup]]:
    names = dict.fromkeys((*(one.adversary for one in scene.shades), *scene.others))
    for who in list(names)[:DRAWN]:
        steps = worst_steps(one for one in scene.shades if one.adversary == who)
        drawn = topology.network(scene.trace, who, steps)
        if drawn:
            yield f"As observed by the adversary {who}{where}.", drawn


def _blocks(
    findings: Sequence[Finding], rows: Sequence[Sequence[str]]
) -> Iterator[Mapping[str, object]]:
    groups: dict[str, list[int]] = {}
    for k, finding in enumerate(findings):
        groups.setdefault(_group(finding), []).append(k)
    few = len(findings) <= WHOLE
    if not few:
        worst = sorted(
            range(len(findings)),
            key=lambda k: (step(findings[k]), harm(findings[k])),
            reverse=True,
        )
        yield {
            "id": "worst",
            "name": f"the {WORST} worst of {len(findings)}",
            "said": "",
            "open": True,
            "rows": _rows(findings, rows, worst[:WORST]),
        }
    for where, places in groups.items():
        for start in range(0, len(places), BLOCK):
            part = places[start : start + BLOCK]
            name = where
            if len(places) > BLOCK:
                first = findings[part[0]].node
                last = findings[part[-1]].node
                span = f"findings {start + 1} to {start + len(part)}, nodes {first} to {last}"
                name = f"{where}: {span}"
            yield {
                "id": f"block-{part[0]}",
                "name": name,
                "said": _certified([findings[k] for k in part]),
                "open": few,
                "rows": _rows(findings, rows, part),
            }


def _certified(findings: Sequence[Finding]) -> str:
    tally: Counter[str] = Counter()
    for finding in findings:
        tally[finding.certificate.name.lower()] += 1
    return ", ".join(f"{count} {word}" for word, count in tally.most_common())


def _group(finding: Finding) -> str:
    cell = given(finding.cell, None)
    point = f", {point_of(cell.epsilon)}" if cell else ""
    return f"adversary {finding.adversary}{point}"


def _rows(
    findings: Sequence[Finding], rows: Sequence[Sequence[str]], places: Sequence[int]
) -> list[Row]:
    return [(grading.level(findings[k]), rows[k]) for k in places]


def _methods(record: RunRecord) -> list[Mapping[str, object]]:
    known = given(record.attacks, {})
    methods: list[Mapping[str, object]] = []
    for name in dict.fromkeys(finding.attack for finding in record.findings):
        took = [finding.seconds for finding in record.findings if finding.attack == name]
        about = asdict(known[name]) if name in known else {}
        seconds = f"{sum(took):.1f}"
        methods.append({"name": name, **about, "count": len(took), "seconds": seconds})
    return methods


def _against(against: ResultsComparison | None) -> Mapping[str, object] | None:
    if against is None:
        return None
    changed = against.changed
    return {
        "summary": against.summary,
        "changed": changed[:CHANGES],
        "left_out": max(0, len(changed) - CHANGES),
        "same": len(against.rows) - len(changed),
    }


def _missing(shown: DisplayRecord) -> Iterator[str]:
    record = shown.record
    gate = isinstance(record, CheckRecord)
    if not (gate or isinstance(record, AuditRecord)):
        yield (
            "Verdicts on claims: `leakaudit audit scenario.toml` adds verdicts and curves, "
            "`leakaudit bound` shows the view bounds."
        )
    if not gate:
        yield (
            "Controls: `leakaudit check` runs controls every time, "
            "`leakaudit doctor --statistics` tests the estimators."
        )
    if record.findings and not shown.gallery and not shown.passages:
        yield ("Images: `leakaudit report results.json -f html` without --redact adds them.")
    if record.findings and all(finding.scores is None for finding in record.findings):
        yield (
            "Scores: `leakaudit report results.json --rescore --truth trace.truth.pt` "
            "adds PSNR, SSIM and the other metrics."
        )
    if shown.against is None and not gate:
        yield (
            "A comparison: `leakaudit report results.json --against earlier/results.json` "
            "compares these results with earlier ones."
        )
