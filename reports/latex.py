"""One table of the results for a paper, in LaTeX with booktabs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from leakaudit.core.quantities import QUANTITIES, Place, shown, visible
from leakaudit.core.registry import renderer
from leakaudit.core.trace import Json
from leakaudit.reporting.figures import plots
from leakaudit.reporting.findings import flat
from leakaudit.reporting.findings.wording import axis_value, short
from leakaudit.reporting.findings.worst_case import refuted
from leakaudit.reporting.rendering import latex
from leakaudit.reporting.results import model
from leakaudit.reporting.results.model import Record, RunRecord, SweepRecord

EPSILON = r"$\varepsilon$"
FORMS = {"share": ".2f", "value": ".4g"}  # formats of numbers


class _Column(NamedTuple):
    """One column of a table of `leakaudit.reporting.findings.flat`."""

    key: str  # its name there
    heading: str  # as LaTeX
    # "text", "number", "epsilon", "dB", "power" (of ten), a format or one of `FORMS`
    kind: str = "text"
    which: str = ""  # statistic that the heading names, "" for none


def _metrics(*statistics: str) -> tuple[_Column, ...]:
    found = []
    for one in shown(Place.PAPER, "Number"):
        name = f"{one.words} ({one.unit})" if one.unit else one.words
        kind = "power" if one.is_power else one.form
        if one.unit == "dB":
            kind = "dB"
        for which in statistics:
            found.append(_Column(f"{one.key}_{which}", name, kind, which))
    return tuple(found)


_EPSILON = _Column("epsilon", EPSILON, "epsilon")
_ATTACK = (_Column("attack", "attack"), _Column("adversary", "adversary"))
_SEED = _Column("seed", "seed", "number")
_NODE = _Column("node", "node", "number")
_RECORDS = _Column("records", "records", "number")
_VALUE = _Column("value", "value", "value")
_P = _Column("p", "$p$", "power")
_VERDICT = _Column("verdict", "verdict")
COLUMNS = {
    "findings": (
        *(_EPSILON, _SEED, _NODE._replace(key="all_nodes"), *reversed(_ATTACK)),
        *(_Column("certificate", "certificate"), _RECORDS, _Column("exact", "identical", "number")),
        *_metrics("best", "median"),
    ),
    "curves": (_EPSILON, *reversed(_ATTACK), *_metrics("best", "median", "mean")),
    "verdicts": (
        *(_EPSILON, _Column("adversary", "adversary"), _Column("test", "test")),
        *(_Column("attack", "attack"), _Column("guarantee", "guarantee")),
        *(_Column("rate", "success rate", "share"), _Column("ceiling", "limit", "share")),
        *(_P, _VERDICT),
    ),
    "ceilings": (
        *(_EPSILON, _Column("adversary", "adversary"), _Column("chance", "probability", "share")),
        *(_Column("psnr", "PSNR, dB", "value"), _Column("ssim", "SSIM", "value")),
        _Column("nodes", "nodes"),
    ),
    "views": (
        *(_EPSILON, _NODE, _Column("adversary", "adversary"), _Column("mu", r"$\mu$", "value")),
        _Column("view_epsilon", r"$\varepsilon$ of the view", "epsilon"),
        _Column("holds", "which is"),
        *(_Column("claimed_epsilon", r"$\varepsilon$ claimed", "epsilon"), _VERDICT),
    ),
    "rules": (
        *(_Column("kind", "rule"), _Column("cell", "check"), _Column("measure", "measure")),
        *(_VALUE, _Column("limit", "limit", "value"), _P, _Column("status", "status")),
    ),
    "measures": (_Column("cell", "check"), _Column("measure", "measure"), _SEED, _VALUE),
    "points": (
        *(*_ATTACK, _Column("seeds", "seeds", "number"), _RECORDS),
        *(_Column("share", "recovered", "share"), *_metrics("best", "median")),
    ),
    "cells": (
        *(*_ATTACK, _SEED, _RECORDS, _Column("recovered", "recovered", "number")),
        *_metrics("best", "median"),
    ),
}
ABOUT = {
    "findings": "Reconstructions",
    "curves": "Quality of the reconstructions",
    "verdicts": "Verdicts of the audit",
    "ceilings": "What view bounds allow attacks to reach",
    "views": "View bounds and claims",
    "rules": "Rules of the privacy gate",
    "measures": "Measurements of the privacy gate",
    "points": "Results of the sweep",
    "cells": "Results of each run of the sweep",
}
RATES = r"Brackets: 95\,\% Clopper-Pearson interval of a rate."
MEDIANS = "Brackets after a median: range of the medians of the seeds."
MEANS = r"Brackets after another number: 95\,\% interval of the mean over seeds."
CAPPED = rf"A PSNR above {plots.PSNR_SHOWN:g}\,dB is given as $>${plots.PSNR_SHOWN:g}."


@renderer("latex")
def render(results: Mapping[str, Json], table: str | None = None) -> str:
    """Return a table environment that needs booktabs, and longtable if it is long."""
    record = model.of(results)
    made = flat.table(record, table)
    rows = made.dicts()
    trained: list[_Column] = []
    if isinstance(record, SweepRecord):
        for name in model.trained_of(record.sweep.points):
            trained.append(_Column(name, latex.escape(name.replace("_", " ")), "value"))
    chosen = _shown(made, rows, trained)
    shared = _shared(rows)
    columns = []
    for one in chosen:
        if one.key not in shared:
            columns.append(one)
    cells = []
    for row in rows:
        cells.append([_cell(row, column) for column in columns])
    heads = [", ".join(filter(None, (one.heading, one.which))) for one in columns]
    form = "".join("l" if one.kind == "text" else "r" for one in columns)
    said = [_about(record, made.name), *shared.values(), *_definitions(rows, columns)]
    remark = flat.remark(record, made)
    if remark:
        said.append(latex.escape(remark))
    why = refuted(record) if isinstance(record, RunRecord) else ""
    if why:
        said.append(latex.escape(why))
    caption = " ".join(said)
    return latex.table(heads, form, cells, caption, f"tab:{made.name}-{_digest(record)[:6]}")


def _digest(record: Record) -> str:
    if isinstance(record, RunRecord):
        return record.provenance.digest
    return record.sweep.digest


def _shown(
    made: flat.FlatTable, rows: Sequence[flat.Row], trained: Sequence[_Column]
) -> list[_Column]:
    axes: list[_Column] = []
    if made.name in ("points", "cells"):
        for name in made.columns[: made.columns.index("attack")]:
            heading = latex.escape(name.removeprefix("axis_"))
            words = any(isinstance(row[name], str) for row in rows)
            kind = "text" if words else "epsilon"
            axes.append(_Column(name, EPSILON if name == "epsilon" else heading, kind))
    kept: list[_Column] = []
    single = []  # metrics of which all statistics are equal
    for one in (*axes, *COLUMNS[made.name], *trained):
        values = [row.get(one.key) for row in rows]
        if rows and all(value is None for value in values):
            continue
        middle = one.key.replace("_best", "_median")
        if rows and middle != one.key and values == [row.get(middle) for row in rows]:
            single.append(middle)
            continue
        if one.key in single:
            one = one._replace(which="")
        kept.append(one)
    medians = {f"{one.key}_median": one.key for one in shown(Place.PAPER, "Number")}
    known = [medians[one.key] for one in kept if one.key in medians]
    hidden = {QUANTITIES[name] for name in known} - set(visible(QUANTITIES.values(), known))
    return [one for one in kept if not one.key.startswith(tuple(row.key for row in hidden))]


def _shared(rows: Sequence[flat.Row]) -> dict[str, str]:
    """What all rows have in common, for the caption instead of a column."""
    found = {}
    adversaries = {row.get("adversary") for row in rows}
    if len(adversaries) == 1 and len(rows) > 1:
        (who,) = adversaries
        if who is not None:
            found["adversary"] = f"Adversary: {latex.escape(who)}."
    return found


def _about(record: Record, name: str) -> str:
    about = ABOUT[name]
    if isinstance(record, RunRecord):
        trace = record.trace
        what = f"{latex.escape(trace.protocol)} on {latex.escape(trace.data)}"
        about += f": {what}, model {latex.escape(trace.model)}, {trace.nodes} nodes"
    if isinstance(record, SweepRecord):
        about += f"; recovered: {record.sweep.psnr:g}\\,dB or more"
    return f"{about}."


def _definitions(rows: Sequence[flat.Row], columns: Sequence[_Column]) -> list[str]:
    keys = [column.key for column in columns]
    found = []
    if any(_between(row, key) and key in ("rate", "share") for row in rows for key in keys):
        found.append(RATES)
    if any(_between(row, key) and key.endswith("_median") for row in rows for key in keys):
        found.append(MEDIANS)
    others = [key for key in keys if key not in ("rate", "share") and not key.endswith("_median")]
    if any(_between(row, key) for row in rows for key in others):
        found.append(MEANS)
    for column in columns:
        values = [row.get(column.key) for row in rows]
        if column.kind == "dB" and any(map(_is_capped, values)):
            found.append(CAPPED)
            break
    return found


def _between(row: flat.Row, key: str) -> tuple[float, float] | None:
    low = row.get(f"{key}_low")
    high = row.get(f"{key}_high")
    if isinstance(low, int | float) and isinstance(high, int | float):
        return low, high
    return None


def _is_capped(value: flat.Cell) -> bool:
    return isinstance(value, int | float) and value > plots.PSNR_SHOWN


def _cell(row: flat.Row, column: _Column) -> str:
    text = _value(row.get(column.key), column.kind)
    between = _between(row, column.key)
    if between is None or (column.kind == "dB" and all(map(_is_capped, between))):
        return text
    low, high = (_value(end, column.kind) for end in between)
    return f"{text} [{low}, {high}]"


def _value(value: flat.Cell, kind: str) -> str:
    if value is None:
        return "--"
    if isinstance(value, bool | str):
        return latex.escape(axis_value(value))
    if math.isinf(value):
        return r"$\infty$" if value > 0 else r"$-\infty$"
    if kind == "dB":
        if _is_capped(value):
            return rf"$>${plots.PSNR_SHOWN:g}"
        return _minus(f"{value:.1f}")
    if kind in ("epsilon", "power", "number"):
        return _power(value, kind)
    return _minus(f"{value:{FORMS.get(kind, kind)}}")


def _power(value: float, kind: str) -> str:
    text = f"{value:.1e}" if kind == "power" and 0 < abs(value) < 1e-3 else short(value)
    digits, _, exponent = text.partition("e")
    if not exponent:
        return _minus(digits)
    power = rf"10^{{{int(exponent)}}}"
    if digits == "1":
        return f"${power}$"
    return rf"${digits} \cdot {power}$"


def _minus(text: str) -> str:
    return f"${text}$" if text.startswith("-") else text
