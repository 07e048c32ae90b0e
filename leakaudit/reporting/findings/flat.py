"""Tables of a record for programs: CSV, LaTeX, JSON and data frames.

A cell is a number, a word, true, false or empty, and infinity is a number.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from msgspec import Struct, UnsetType

from leakaudit.core.errors import LeakauditError
from leakaudit.core.quantities import Place, Quantity, shown
from leakaudit.reporting.findings.measured import best, count
from leakaudit.reporting.findings.wording import clean, test_words
from leakaudit.reporting.results import intervals
from leakaudit.reporting.results.model import (
    NO_SCORES,
    AuditPart,
    AuditRecord,
    CheckRecord,
    ClaimEntry,
    Finding,
    FlagColumn,
    Free,
    GatePart,
    NumberColumn,
    Record,
    Scores,
    Statistics,
    SweepPart,
    SweepRecord,
    SweptCell,
    TrainedStatistics,
    decoded,
    fitted,
    given,
    kind_of,
    records_at,
    statistics,
    summary,
    swept,
)

if TYPE_CHECKING:
    from pandas import DataFrame

    from leakaudit.scoring.scoring import Score

Cell: TypeAlias = str | int | float | bool | None
Row: TypeAlias = dict[str, Cell]

NAMES = {  # tables of each kind of record, the default first
    "attack": ("findings",),
    "audit": ("verdicts", "curves", "ceilings", "views", "findings"),
    "check": ("rules", "measures"),
    "sweep": ("points", "cells"),
}
EXTENDED = ("epsilon", "mu", "value", "limit", "p")  # fields that may be infinite
COUNTS = (  # numbers that a test of an audit may have counted or computed
    *("kappa", "ceiling", "true_positives", "positives", "false_positives", "negatives"),
    *("canaries", "guesses", "right", "mu", "node_mu", "exact", "claimed", "ratio"),
    *("moved", "assumed"),
)


@dataclass(frozen=True)
class FlatTable:
    """One table."""

    name: str
    columns: tuple[str, ...]  # names of the columns
    rows: tuple[tuple[Cell, ...], ...]  # one cell per column in each row

    def dicts(self) -> list[Row]:
        """Return each row as a dictionary by column."""
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]


def table(record: Record, name: str | None = None) -> FlatTable:
    """Return one table of a record, by default the first of `NAMES` of its kind."""
    if isinstance(record, CheckRecord):
        return of_gate(record.gate, name)
    chosen = _chosen(kind_of(record), name)
    if isinstance(record, SweepRecord):
        return _of_cells(record.sweep) if chosen == "cells" else _of_points(record.sweep)
    if isinstance(record, AuditRecord) and chosen != "findings":
        made = {
            "verdicts": _of_verdicts,
            "curves": _of_curves,
            "ceilings": _of_ceilings,
            "views": _of_views,
        }
        return made[chosen](record.audit)
    return of_findings(record.findings)


def remark(record: Record, made: FlatTable) -> str:
    """Return what a table does not show: why it has no rows, or that others are missing."""
    if not made.rows:
        return clean(f"No rows: {record.summary}")
    return "" if record.complete else clean(f"Incomplete: {record.summary}")


def _chosen(kind: str, name: str | None) -> str:
    if name is None:
        return NAMES[kind][0]
    if name not in NAMES[kind]:
        known = ", ".join(NAMES[kind])
        raise LeakauditError(
            f"--table: expected one of {known} for the results of '{kind}', got {name!r}"
        )
    return name


def frame(made: FlatTable) -> DataFrame:
    """Return a table as a data frame of pandas."""
    try:
        import pandas
    except ImportError:
        raise LeakauditError("data frames need pandas: pip install 'leakaudit[pandas]'") from None
    columns = {}
    for k, column in enumerate(made.columns):
        columns[column] = [row[k] for row in made.rows]
    return pandas.DataFrame(columns)


def of_rows(name: str, rows: Sequence[Row], columns: Iterable[str] = ()) -> FlatTable:
    """Return rows with equal keys as a table."""
    names = tuple(rows[0]) if rows else tuple(columns)
    return FlatTable(name, names, tuple(tuple(row.values()) for row in rows))


# ---------------------------------------------------------------------------------------------
# Findings
# ---------------------------------------------------------------------------------------------


def of_findings(findings: Iterable[Finding]) -> FlatTable:
    """Return one row per finding."""
    return of_rows("findings", list(map(_finding, findings)), FINDING)


def _finding(one: Finding) -> Row:
    leak = one.leak
    return {
        **_picked(given(one.cell, None), "epsilon", "seed"),
        "node": one.node,
        "all_nodes": _joined(one.nodes),
        **_picked(one, "adversary", "attack"),
        "leak": leak.kind,
        "first_round": leak.rounds.first,
        "last_round": leak.rounds.last,
        "rows": leak.rows,
        "noise_std": leak.std,
        "certificate": one.certificate.name.lower(),
        **_picked(one, "certified", "batch"),
        **scored(one.scores),
        **_picked(one, "residual", "seconds"),
        "formula": leak.formula,
        "note": one.note,
    }


def of_scores(scores: Iterable[Score]) -> FlatTable:
    """Return one row per score."""
    rows: list[Row] = []
    for one in scores:
        stored = one.to_json()
        found = None if stored is None else fitted(stored, Scores)
        row: Row = {"node": one.node, "attack": one.attack}
        rows.append({**row, **scored(found), "note": one.note})
    return of_rows("scores", rows, ("node", "attack", *scored(None), "note"))


def scored(scores: Scores | None) -> Row:
    """Return the cells of a score."""
    row: Row = {"records": None, "recovered": None}
    if scores is not None:
        matched = scores.matched
        row = {"records": len(matched), "recovered": len(matched) - matched.count(None)}
    held = scores or NO_SCORES
    for one in shown(Place.COLUMN, "Flag"):
        column = getattr(held, one.key)
        row[one.key] = count(column) if isinstance(column, FlagColumn) else None
    row["labels_found"] = held.labels_found
    for one in shown(Place.COLUMN, "Number"):
        row.update(_metric(one, getattr(held, one.key)))
    return row


def _metric(one: Quantity, column: NumberColumn | UnsetType) -> Row:
    row: Row = dict.fromkeys(f"{one.key}_{which}" for which in ("best", "median", "mean"))
    if isinstance(column, NumberColumn):
        three = (best(column, one.better), column.median, column.mean)
        row.update(zip(row, three, strict=True))
    return row


FINDING = (
    *("epsilon", "seed", "node", "all_nodes", "adversary", "attack", "leak", "first_round"),
    *("last_round", "rows", "noise_std", "certificate", "certified", "batch"),
    *scored(None),
    *("residual", "seconds", "formula", "note"),
)


# ---------------------------------------------------------------------------------------------
# Audits
# ---------------------------------------------------------------------------------------------


def _of_verdicts(audit: AuditPart) -> FlatTable:
    rows: list[Row] = []
    for one in audit.verdicts:
        row = _picked(one, "epsilon", "adversary", "node")
        row.update({"test": test_words(one), "attack": one.attack, "guarantee": None})
        if one.promise is not None:
            row["guarantee"] = one.promise.name
        for name, value in _picked(one.promise, "epsilon", "delta", "mu").items():
            row[f"guarantee_{name}"] = value
        row["verdict"] = one.verdict
        hits = one.number("hits")
        trials = one.number("trials")
        row.update({"hits": hits, "trials": trials, **_rate("rate", hits, trials)})
        for name in COUNTS:
            row[name] = one.number(name)
        holds = one.figures.get("holds")
        row["holds"] = holds if isinstance(holds, str) else None
        row.update(_picked(one, "p", "level", "needs"))
        row.update({"reason": one.says, "power": one.power})
        rows.append(row)
    return of_rows("verdicts", rows, ("epsilon", "adversary", "node", "test", "attack", "verdict"))


def _of_curves(audit: AuditPart) -> FlatTable:
    rows: list[Row] = []
    for curve in audit.curves:
        row = _picked(curve, "epsilon", "adversary", "attack", "attacked", "refused")
        row["records"] = records_at(curve)
        for one in shown(Place.CURVE):
            row.update(_statistics(one.key, statistics(curve, one)))
        rows.append(row)
    return of_rows("curves", rows, ("epsilon", "adversary", "attack"))


def _of_ceilings(audit: AuditPart) -> FlatTable:
    columns = ("epsilon", "adversary", "chance", "psnr", "ssim", "nodes")
    rows = []
    for one in given(audit.ceilings, ()):
        rows.append({**_picked(one, *columns), "nodes": _joined(given(one.nodes, ()))})
    return of_rows("ceilings", rows, columns)


def _of_views(audit: AuditPart) -> FlatTable:
    rows: list[Row] = []
    for point in audit.grid:
        for view in point.read_views():
            exact = view.epsilon if view.exact is None else view.exact
            claim = view.claim or ClaimEntry()
            rows.append(
                {
                    "epsilon": decoded(point.epsilon),
                    **_picked(view, "node", "adversary", "mu"),
                    "view_epsilon": decoded(exact),
                    "holds": view.holds,
                    "claim": claim.source,
                    "claimed_epsilon": decoded(claim.epsilon),
                    "verdict": view.verdict,
                    "reason": view.why,
                }
            )
    return of_rows("views", rows, ("epsilon", "node", "adversary"))


# ---------------------------------------------------------------------------------------------
# Gates
# ---------------------------------------------------------------------------------------------


def of_gate(gate: GatePart, name: str | None = None) -> FlatTable:
    """Return one table of a gate."""
    if _chosen("check", name) == "measures":
        return _of_measures(gate)
    return _of_rules(gate)


def _of_rules(gate: GatePart) -> FlatTable:
    rows: list[Row] = []
    for rule in gate.rules:
        rows.append(
            {
                "kind": rule.kind.value,
                "cell": rule.cell,
                "measure": rule.measure,
                "status": rule.status.value,
                **_picked(rule, "value", "limit", "p", "accepted"),
                "nodes": _joined(given(rule.nodes, ())),
                "reason": rule.says,
            }
        )
    return of_rows("rules", rows, ("kind", "cell", "measure", "status", "value", "limit"))


def _of_measures(gate: GatePart) -> FlatTable:
    rows: list[Row] = []
    for cell in gate.cells:
        for name, column in cell.measures.items():
            for k, value in enumerate(column.samples):
                rows.append(
                    {
                        "cell": cell.name,
                        **_picked(cell, "check", "adversary", "attack"),
                        "measure": name,
                        "seed": cell.seeds[k] if k < len(cell.seeds) else None,
                        "value": value,
                    }
                )
    return of_rows("measures", rows, ("cell", "check", "adversary", "attack", "measure", "value"))


# ---------------------------------------------------------------------------------------------
# Sweeps
# ---------------------------------------------------------------------------------------------


def _of_points(sweep: SweepPart) -> FlatTable:
    runs = runs_of(sweep)
    rows: list[Row] = []
    every_trained = dict.fromkeys(n for p in sweep.points for n in given(p.trained, {}))
    for point in sweep.points:
        cells = runs.get(place(point.adversary, point.attack, point.at), ())
        between = intervals.of_rate(point.recovered, point.records) if point.cells > 1 else None
        share = point.recovered / point.records if point.records else None
        counted: Row = {
            **_picked(point, "attack", "adversary"),
            "seeds": point.cells,
            **_picked(point, "attacked", "refused", "records", "recovered"),
            "share": share,
            **_ends("share", between),
            **_picked(point, "exact", "certified", "labels_found"),
        }
        for one in shown(Place.CURVE):
            name = one.key
            counted.update(_statistics(name, statistics(point, one)))
            values = [swept(cell.columns, one) for cell in cells]
            between = None
            # If nothing was returned, the values are those of blind guesses.
            if counted[f"{name}_median"] is not None:
                between = intervals.of_seeds(values)
            counted.update(_ends(f"{name}_median", between))
        for name in every_trained:
            counted.update(_trained(name, given(point.trained, {}).get(name)))
        rows.append({**_axes(sweep, point.at, counted), **counted})
    return of_rows("points", rows, (*sweep.axes, "attack", "adversary"))


def _trained(name: str, values: TrainedStatistics | None) -> Row:
    """Return the cells of a quantity of the training: its mean, and the ends of the interval."""
    if values is None:
        return {name: None, f"{name}_low": None, f"{name}_high": None}
    ends = {f"{name}_low": decoded(values.low), f"{name}_high": decoded(values.high)}
    return {name: decoded(values.mean), **ends}


def _of_cells(sweep: SweepPart) -> FlatTable:
    rows: list[Row] = []
    every_trained = dict.fromkeys(n for c in sweep.cells for n in given(c.trained, {}))
    for cell in sweep.cells:
        held = cell.columns
        counted: Row = {
            **_picked(cell, "attack", "adversary", "seed", "status"),
            **_picked(held, "attacked", "refused"),
            "records": cell.records,
            **_picked(held, "recovered", "exact", "certified"),
        }
        for one in shown(Place.CURVE):
            values = swept(held, one) if given(held.returned, 0) else ()
            counted.update(_statistics(one.key, summary(values, one)))
        for name in every_trained:
            counted[name] = decoded(given(cell.trained, {}).get(name))
        counted["reason"] = cell.says
        rows.append({**_axes(sweep, cell.at, counted), **counted})
    return of_rows("cells", rows, (*sweep.axes, "attack", "adversary", "seed", "status"))


def runs_of(sweep: SweepPart) -> dict[str, list[SweptCell]]:
    """Return the cells with a result at each point of a sweep."""
    runs: dict[str, list[SweptCell]] = {}
    for cell in sweep.cells:
        if cell.status == "done":
            runs.setdefault(place(cell.adversary, cell.attack, cell.at), []).append(cell)
    return runs


def place(adversary: str, attack: str, at: Mapping[str, Free]) -> str:
    """Return a point of a sweep as a key, the same for its cells."""
    settings = sorted((name, repr(value)) for name, value in at.items())
    return repr((adversary, attack, settings))


def _axes(sweep: SweepPart, at: Mapping[str, Free], others: Mapping[str, Cell]) -> Row:
    row: Row = {}
    for name in sweep.axes:
        column = f"axis_{name}" if name in others else name
        row[column] = _plain(at.get(name))
    return row


# ---------------------------------------------------------------------------------------------
# Cells
# ---------------------------------------------------------------------------------------------


def _picked(one: Struct | None, *names: str) -> Row:
    row: Row = {}
    for name in names:
        value = None if one is None else given(getattr(one, name), None)
        row[name] = decoded(value) if name in EXTENDED else value
    return row


def _joined(nodes: Iterable[int]) -> str:
    return " ".join(map(str, nodes))


def _plain(value: Free) -> Cell:
    if value == "inf":
        return float("inf")
    if value is None or isinstance(value, str | int | float):
        return value
    return repr(value)


def _rate(name: str, hits: Cell, trials: Cell) -> Row:
    rate = None
    between = None
    if isinstance(hits, int) and isinstance(trials, int) and trials > 0:
        rate = hits / trials
        between = intervals.of_rate(hits, trials)
    return {name: rate, **_ends(name, between)}


def _ends(name: str, interval: intervals.Interval | None) -> Row:
    low, high = interval or (None, None)
    return {f"{name}_low": low, f"{name}_high": high}


def _statistics(name: str, values: Statistics | None) -> Row:
    row: Row = {}
    for which in ("best", "median", "mean"):
        row[f"{name}_{which}"] = None
        if values is not None:
            row[f"{name}_{which}"] = getattr(values, which)
    return row
