"""The records of a cell, each counted once, although several sums over nodes may contain it."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import UnsetType

from leakaudit.core.quantities import QUANTITIES
from leakaudit.reporting.findings.measured import Record, record_keys, values
from leakaudit.reporting.results.cell_files import CellResult
from leakaudit.reporting.results.model import Number, Scores, given


def recovered(result: CellResult, name: str) -> dict[Record, Number]:
    """Return a metric of every record that was recovered; the best, if several sums contain it."""
    better = QUANTITIES[name].better
    found: dict[Record, Number] = {}
    for node, scores in _scored(result):
        keys = record_keys(scores, node)
        for key, value in zip(keys, values(getattr(scores, name)), strict=False):
            if value is not None and _is_attacked(result, key):
                found[key] = better([value, found.get(key, value)])
    return found


def per_record(result: CellResult, name: str) -> list[Number]:
    """Return a metric of every record; one that was recovered nowhere has that of a blind guess."""
    found = recovered(result, name)
    for node, scores in _scored(result):
        column = getattr(scores, name)
        if isinstance(column, UnsetType):
            continue
        lost = _matched(scores, node, None)
        for key, value in zip(lost, given(column.missed, ()), strict=False):
            if _is_attacked(result, key):
                found.setdefault(key, value)
    return [*found.values()]


def certified(result: CellResult) -> int:
    """Count the records that are certified exact, by their rows: the first of a reconstruction."""
    found: set[Record] = set()
    for one in result.findings:
        if one.scores is not None:
            found.update(_matched(one.scores, one.node, one.certified))
    return sum(_is_attacked(result, key) for key in found)


def _scored(result: CellResult) -> Iterator[tuple[int, Scores]]:
    """Yield the node and the scores of every attack, also of those that returned nothing."""
    for one in result.findings:
        if one.scores is not None:
            yield one.node, one.scores
    yield from zip(map(int, result.reasons), result.refused, strict=True)


def _matched(scores: Scores, node: int, rows: int | None) -> list[Record]:
    """Return the records of the first rows, or with None those without a row."""
    found = []
    for key, row in zip(record_keys(scores, node), scores.matched, strict=True):
        if row is rows is None or (row is not None and rows is not None and row < rows):
            found.append(key)
    return found


def _is_attacked(result: CellResult, record: Record) -> bool:
    """Return whether a record is one of an attacked node: sums contain records of others, too."""
    nodes = result.config.nodes
    return not nodes or record[0] in nodes
