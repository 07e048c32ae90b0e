"""The figure of an audit: quality and success rates with their limits, against epsilon."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from leakaudit._util.plural import named
from leakaudit.core.quantities import Quantity
from leakaudit.reporting.figures import plots
from leakaudit.reporting.figures.curves import CurveFigure
from leakaudit.reporting.findings.measured import with_missed
from leakaudit.reporting.findings.wording import epsilon_name, epsilon_order
from leakaudit.reporting.results import intervals
from leakaudit.reporting.results.audit_names import LIKELIHOOD
from leakaudit.reporting.results.model import (
    AuditPart,
    AuditRecord,
    CeilingEntry,
    CurvePoint,
    NumberColumn,
    Statistics,
    VerdictEntry,
    curves_of,
    given,
    statistics,
)

STYLES = {"median": "median", "best": "best", "mean": "mean"}  # styles and their legend texts
MEDIANS = "median, with the range of the medians of the runs"
BLIND = "blind guess: the mean of the other records"
# What is reached without a view, and what the bounds of views allow, by probability.
ALLOWED = {
    None: BLIND,
    0.5: "exceeded for a given record with probability 0.5 at most, by the weakest view bound",
    0.95: "exceeded for a given record with probability 0.95 at most, by the weakest view bound",
}
RATES = "success rate, with its 95 % Clopper-Pearson interval"


def content(record: AuditRecord) -> CurveFigure:
    """Return the curves of an audit: a row of panels for each adversary."""
    rows: list[plots.Row] = []
    panels: list[plots.Panel] = []
    for adversary, some in views(record):
        if some:
            rows.append((f"adversary {adversary}", some))
            panels += some
    if not panels:
        rows = [("no attack returned a result", [plots.Panel("PSNR, dB", ())])]
    audit = record.audit
    note = "; ".join(unlimited(audit))
    return CurveFigure(rows, legend(audit, panels), styles(panels), looks(audit), note)


def unlimited(audit: AuditPart) -> list[str]:
    """Return where no limit is drawn because only some of the attacked nodes have a bound."""
    points = dict[tuple[str, tuple[int, ...]], dict[str, None]]()
    for one in given(audit.ceilings, ()):
        missing = _unbounded(audit, one)
        if missing:
            where = points.setdefault((one.adversary, tuple(sorted(missing))), {})
            where[epsilon_name(one.epsilon)] = None
    said = []
    for (who, nodes), names in points.items():
        at = f"{who}, epsilon {', '.join(names)}"
        said.append(f"no limit ({at}): {named(nodes)} without a bound; see the table ceilings")
    return said


def _unbounded(audit: AuditPart, one: CeilingEntry) -> set[int]:
    """Return the attacked nodes for whose records a limit does not hold."""
    holding = given(one.nodes, None)
    if holding is None:
        return set()
    attacked = set[int]()
    for point in audit.grid:
        for view in point.read_views():
            if (point.epsilon, view.adversary) == (one.epsilon, one.adversary):
                attacked.update([] if view.node is None else [view.node])
    return attacked - set(holding)


def views(record: AuditRecord) -> list[tuple[str, list[plots.Panel]]]:
    """Return every adversary of an audit with its panels, empty if nothing was measured."""
    audit = record.audit
    points = _points(audit)
    names = tuple(map(epsilon_name, points))
    found = []
    for who in dict.fromkeys(curve.adversary for curve in audit.curves):
        panels = [*_quality(record, points, who), *_success(audit, points, who)]
        of_axis = [replace(panel, axis="epsilon", points=names, numeric=True) for panel in panels]
        found.append((who, of_axis))
    return found


def looks(audit: AuditPart) -> dict[str, plots.LineLook]:
    """Return the colour and marker of every line of an audit, by its name."""
    known = {}
    for one in audit.verdicts:
        if one.promise:
            limit = plots.LIMIT_BY_CLAIM
            if one.promise.of_view:
                limit = plots.LIMIT_BY_VIEW
            known[one.promise.name] = limit
    attacks = dict.fromkeys(curve.attack for curve in audit.curves)
    for one in audit.verdicts:
        if one.number("trials"):
            attacks[one.attack] = None
    if LIKELIHOOD in attacks:
        known[LIKELIHOOD] = plots.LIKELIHOOD
    limits = (plots.BLIND_GUESS, plots.LIMIT_BY_VIEW, plots.LIMIT_RARELY)
    return {**plots.looks_of(attacks, known), **dict(zip(ALLOWED.values(), limits, strict=True))}


def legend(audit: AuditPart, panels: Sequence[plots.Panel]) -> dict[str, str]:
    """Return the text of every line in some panels."""
    limits = {one.promise.name for one in audit.verdicts if one.promise}
    names = dict.fromkeys(line.name for panel in panels for line in panel.lines)
    texts = {name: name for name in names if name not in limits}
    for name in names:
        if name in limits:
            texts[name] = f"at most, by {name}"
    return texts


def styles(panels: Sequence[plots.Panel]) -> dict[str, str]:
    """Return what the styles of lines and their intervals mean, for the legend."""
    used = {line.style for panel in panels for line in panel.lines}
    texts = {style: text for style, text in STYLES.items() if style in used}
    return plots.with_intervals(texts, panels, MEDIANS, RATES)


def _points(audit: AuditPart) -> list[float]:
    points = {epsilon_order(curve.epsilon) for curve in audit.curves}
    return sorted(points | {epsilon_order(verdict.epsilon) for verdict in audit.verdicts})


def _quality(record: AuditRecord, points: Sequence[float], who: str) -> list[plots.Panel]:
    mine = [curve for curve in record.audit.curves if curve.adversary == who]
    panels = []
    for one in curves_of(mine):
        lines = []
        for attack in dict.fromkeys(curve.attack for curve in mine):
            own = [c for c in mine if c.attack == attack]
            lines += _lines(record, attack, own, one, points)
        if lines:
            lines += _allowed(record.audit, points, who, one)
        if lines:
            log = one.is_power
            low = None if log else 0.0
            cap = plots.cap(one.unit)
            panels.append(plots.Panel(one.drawn, tuple(lines), low=low, log=log, cap=cap))
    return panels


def _allowed(
    audit: AuditPart, points: Sequence[float], who: str, one: Quantity
) -> list[plots.PlotLine]:
    """The PSNR or SSIM of a blind guess, and those that a view bound allows."""
    if one.key not in CeilingEntry.__struct_fields__:
        return []
    lines = []
    mine = []
    for each in given(audit.ceilings, ()):
        if each.adversary == who and not _unbounded(audit, each):
            mine.append(each)
    for chance, name in ALLOWED.items():
        at = {epsilon_order(c.epsilon): getattr(c, one.key) for c in mine if c.chance == chance}
        values = [at.get(point) for point in points]
        if any(value is not None for value in values):
            style = "blind" if chance is None else "ceiling"
            lines.append(plots.PlotLine(name, style, values))
    return lines


def _lines(
    record: AuditRecord,
    attack: str,
    curves: Sequence[CurvePoint],
    one: Quantity,
    points: Sequence[float],
) -> list[plots.PlotLine]:
    at: dict[float, Statistics] = {}
    between: dict[float, intervals.Interval | None] = {}
    for curve in curves:
        found = statistics(curve, one)
        if found is not None:
            at[epsilon_order(curve.epsilon)] = found
            between[epsilon_order(curve.epsilon)] = _range(record, curve, one)
    if not at:
        return []
    bars = [between.get(point) for point in points]
    return plots.quality(attack, [at.get(point) for point in points], one, bars)


def _range(record: AuditRecord, curve: CurvePoint, quantity: Quantity) -> intervals.Interval | None:
    """The range of the medians of the runs at one point, None for a single run.

    There is none either if the attack refused nodes, whose blind guesses are part of the median at
    the point but not of the findings.
    """
    if given(curve.refused, 0):
        return None
    runs: dict[int, list[float]] = {}
    for one in record.findings:
        cell = given(one.cell, None)
        if cell is None or one.scores is None or cell.epsilon != curve.epsilon:
            continue
        if (one.attack, one.adversary) != (curve.attack, curve.adversary):
            continue
        column = getattr(one.scores, quantity.key)
        if isinstance(column, NumberColumn):
            runs.setdefault(cell.seed, []).extend(with_missed(column))
    return intervals.of_seeds(runs.values())


def _success(audit: AuditPart, points: Sequence[float], who: str) -> list[plots.Panel]:
    """Measured success rates, with the upper limit that each guarantee implies.

    There is one panel per test. A test with a single trial at every point has no rate.
    """
    tests = [one for one in audit.verdicts if one.adversary == who and one.number("trials")]
    panels = []
    for test in dict.fromkeys(one.test for one in tests):
        mine = [one for one in tests if one.test == test]
        if max(one.number("trials") or 0 for one in mine) < 2:
            continue
        lines = []
        for attack in dict.fromkeys(one.attack for one in mine):
            own = [one for one in mine if one.attack == attack]
            lines.append(_rates(attack, own, points))
        for name in dict.fromkeys(one.promise.name for one in mine if one.promise):
            own = [one for one in mine if one.promise and one.promise.name == name]
            lines.append(_limits(name, own, points))
        panels.append(plots.Panel(f"{test}: success rate", tuple(lines), low=0.0, high=1.0))
    return panels


def _rates(attack: str, tests: Sequence[VerdictEntry], points: Sequence[float]) -> plots.PlotLine:
    """The success rate of one attack; several guarantees are tested with the same counts."""
    rates = {}
    between = {}
    for one in tests:
        hits = int(one.number("hits") or 0)
        trials = int(one.number("trials") or 1)
        rates[epsilon_order(one.epsilon)] = hits / trials
        if trials > 1:
            between[epsilon_order(one.epsilon)] = intervals.of_rate(hits, trials)
    measured = [rates.get(point) for point in points]
    return plots.PlotLine(attack, "rate", measured, [between.get(point) for point in points])


def _limits(name: str, tests: Sequence[VerdictEntry], points: Sequence[float]) -> plots.PlotLine:
    at: dict[float, float] = {}
    for one in tests:
        ceiling = one.number("ceiling")
        if ceiling is not None:
            at[epsilon_order(one.epsilon)] = max(ceiling, at.get(epsilon_order(one.epsilon), 0.0))
    return plots.PlotLine(name, "ceiling", [at.get(point) for point in points])
