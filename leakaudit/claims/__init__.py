"""The scoreboard: published claims, each judged by computing at the moment it is asked for."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Sequence

from leakaudit.claims import dkm, dpnorm, others, pdmm, recal, secured
from leakaudit.claims.row import Finding, Judged, Row
from leakaudit.errors import LeakauditError
from leakaudit.progress import step

__all__ = ["PAPERS", "ROWS", "Finding", "Judged", "Row", "judge", "select"]

ROWS: tuple[Row, ...] = tuple(
    sorted((row for paper in (secured, dkm, pdmm, dpnorm, recal, others) for row in paper.ROWS), key=lambda row: row.number)
)
PAPERS = tuple(sorted({row.paper for row in ROWS}))


def select(papers: Collection[str] = (), numbers: Collection[int] = ()) -> tuple[Row, ...]:
    """Return the rows of these papers and these numbers, all where none are named; raises LeakauditError for what is not there."""
    for name, asked, known in (("paper", papers, PAPERS), ("row", numbers, [row.number for row in ROWS])):
        if missing := [a for a in asked if a not in known]:
            raise LeakauditError(f"there is no {name} {missing[0]} on the scoreboard; it has {', '.join(map(str, known))}")
    return tuple(row for row in ROWS if (not papers or row.paper in papers) and (not numbers or row.number in numbers))


def judge(rows: Sequence[Row]) -> Iterator[Judged]:
    """Yield each row with its findings, computed now."""
    for k, row in enumerate(rows):
        step("claims", k, len(rows))
        start = time.perf_counter()
        findings = row.judge()
        yield Judged(row, findings, time.perf_counter() - start)
    step("claims", len(rows), len(rows))
