"""The evidence on the first screen of a page: an image or a text, and the network."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from markupsafe import Markup

from leakaudit._util.plural import named
from leakaudit.core.verdict import Verdict
from leakaudit.reporting.findings import grading
from leakaudit.reporting.findings.overview import Overview
from leakaudit.reporting.findings.shown import DisplayRecord, Passage, Picture
from leakaudit.reporting.findings.wording import point_of
from leakaudit.reporting.findings.worst_case import RECOGNISABLE, WorstOutcome, whom
from leakaudit.reporting.rendering.html import gated, topology
from leakaudit.reporting.rendering.html.shades import STEPS, Shade, worst_steps
from leakaudit.reporting.results.model import AuditRecord, CheckRecord, Finding, RunRecord, given

# How the verdicts of an audit shade a node: the same colours as for what was recovered.
_LEVELS = {"error": len(STEPS) - 1, "warning": 2, "note": 0}
# Under an inconclusive headline, a node is never shown as if the leak were established.
_UNDECIDED = 2


def exhibit(shown: DisplayRecord, view: Overview) -> dict[str, object]:
    """Choose what shows the worst case of an attack, an audit or a gate."""
    pair = _picture(shown, view.finding)
    return {
        "pair": pair,
        "found_word": "" if pair is None else _found_word(pair),
        "texts": None if pair is not None else _passage(shown, view.finding),
        "network": _network(shown.record, view),
        "caption": _caption(shown.record, view),
    }


def _found_word(pair: Picture) -> str:
    """What the reconstruction is called."""
    recognisable = pair.psnr is not None and pair.psnr >= RECOGNISABLE
    return "recovered" if recognisable or pair.certificate == "exact" else "reconstruction"


def _picture(shown: DisplayRecord, finding: Finding | None) -> Picture | None:
    if isinstance(shown.record, CheckRecord):
        # One image for each cell over its limits; the closest one may be a plain one.
        every = [one for section in shown.gallery for one in section.images]
        return max((one for one in every if one.found is not None), key=_closeness, default=None)
    if finding is None:
        return None
    cell = given(finding.cell, None)
    point = "" if cell is None else point_of(cell.epsilon)
    own = []
    for section in shown.gallery:
        if not _same(section.attack, section.adversary, finding):
            continue
        for one in section.images:
            # An image of another point of an audit's grid would not show this verdict.
            if one.found is not None and one.owner == named(finding.nodes) and one.at == point:
                own.append(one)
    return max(own, key=_closeness, default=None)


def _closeness(one: Picture) -> tuple[bool, float]:
    exact = one.certificate in ("exact", "bit for bit")
    return exact, -1.0 if one.psnr is None else one.psnr


def _passage(shown: DisplayRecord, finding: Finding | None) -> Passage | None:
    found = [one for one in shown.passages if one.found is not None]
    if finding is not None:
        own = [one for one in found if _same(one.attack, one.adversary, finding)]
        found = own or found
    return max(found, key=lambda one: one.certificate == "exact", default=None)


def _same(attack: str, adversary: str, finding: Finding) -> bool:
    return (attack, adversary) == (finding.attack, finding.adversary)


def _network(record: RunRecord, view: Overview) -> Markup | None:
    if not view.adversary:
        return None
    if isinstance(record, AuditRecord):
        steps, words = _verdicts(record, view.adversary)
        return topology.network(record.trace, view.adversary, steps, words)
    scene = gated.scene(record)
    shades = [one for one in scene.shades if one.adversary == view.adversary]
    steps = worst_steps(shades)
    if _is_undecided(view):
        capped = {node: min(step, _UNDECIDED) for node, step in steps.items()}
        words = dict.fromkeys(capped, "not decided")
        return topology.network(scene.trace, view.adversary, capped, words)
    return topology.network(scene.trace, view.adversary, steps, rounds=_rounds(shades))


def _is_undecided(view: Overview) -> bool:
    return view.badge == WorstOutcome.CONTRADICTED.value


def _rounds(shades: Iterable[Shade]) -> Mapping[int, Sequence[tuple[int, int]]]:
    """For each node, the last round and the step of each of its leaks."""
    rounds: dict[int, list[tuple[int, int]]] = {}
    for one in shades:
        rounds.setdefault(one.node, []).append((max(0, one.last), one.step))
    return rounds


def _verdicts(record: AuditRecord, adversary: str) -> tuple[dict[int, int], dict[int, str]]:
    steps: dict[int, int] = {}
    words: dict[int, str] = {}
    for one in record.audit.verdicts:
        if one.adversary != adversary:
            continue
        step = _LEVELS[grading.VERDICTS[one.verdict]]
        if step > steps.get(one.node, -1):
            steps[one.node] = step
            words[one.node] = Verdict[one.verdict].words
    return steps, words


def _caption(record: RunRecord, view: Overview) -> str:
    shade = "red, recovered exactly"
    if isinstance(record, AuditRecord):
        shade = "red, refuted or unsupported; light, undecided"
    elif _is_undecided(view):
        shade = "light, undecided"
    return f"Thick lines: observed by {whom(view.adversary)}. Shade of a node: {shade}."
