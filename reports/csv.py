"""One table of the results as comma-separated values, for spreadsheets and programs."""

from __future__ import annotations

from collections.abc import Mapping

from leakaudit._util import separated
from leakaudit.core.registry import renderer
from leakaudit.core.trace import Json
from leakaudit.reporting.findings import flat
from leakaudit.reporting.results import model


@renderer("csv")
def render(results: Mapping[str, Json], table: str | None = None) -> str:
    """Return a table as RFC 4180 describes it.

    No name acts as a formula. If rows are missing, the first cell of a last line says so.
    """
    record = model.of(results)
    made = flat.table(record, table)
    rows = made.rows
    remark = flat.remark(record, made)
    if remark:
        rows = (*rows, (remark, *[None] * (len(made.columns) - 1)))
    return separated.text(made.columns, rows)
