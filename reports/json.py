"""The record itself, or one of its tables, for use by programs."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping

from leakaudit.core.registry import renderer
from leakaudit.core.trace import Json
from leakaudit.reporting.findings import flat
from leakaudit.reporting.results import model


@renderer("json")
def render(results: Mapping[str, Json], table: str | None = None) -> str:
    """Return a record, or one of its tables, as indented JSON in ASCII."""
    if table is None:
        return json.dumps(results, indent=2, allow_nan=False) + "\n"
    rows = []
    for row in flat.table(model.of(results), table).dicts():
        rows.append({name: _finite(cell) for name, cell in row.items()})
    return json.dumps(rows, indent=2, allow_nan=False) + "\n"


def _finite(cell: flat.Cell) -> flat.Cell:
    if isinstance(cell, float) and math.isinf(cell):
        return "inf"
    return cell
