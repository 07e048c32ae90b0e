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

    Args:
        results: A record of any kind.
        table: One of `reporting.findings.flat.NAMES`; None for the first of the kind of record.

    Returns:
        A header and one line per row. If there are no rows, or some are missing because the run is
        incomplete, the first cell of a last line says so. Names from the trace cannot act as
        formulas.

    Raises:
        LeakauditError: This kind of record has no such table.
    """
    record = model.of_any(results)
    made = flat.table(record, table)
    rows = made.rows
    remark = flat.remark(record, made)
    if remark:
        rows = (*rows, (remark, *[None] * (len(made.columns) - 1)))
    return separated.text(made.columns, rows)
