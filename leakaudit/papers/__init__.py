"""The scoreboard: published claims, each judged by computing at the moment it is asked for."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Sequence

from leakaudit.errors import LeakauditError
from leakaudit.papers import (
    averaging,
    defences,
    dkm,
    dkmtheory,
    dpnorm,
    ecl,
    others,
    pdmm,
    recal,
    relay,
    secured,
    tabletwo,
)
from leakaudit.papers.row import JudgedClaim, Judgement, PublishedClaim, Quality, Quote
from leakaudit.progress import step

__all__ = [
    "PAPERS",
    "ROWS",
    "JudgedClaim",
    "Judgement",
    "PublishedClaim",
    "Quality",
    "Quote",
    "judge",
    "select",
]

FILES = (
    dpnorm,
    tabletwo,
    ecl,
    recal,
    relay,
    dkm,
    dkmtheory,
    secured,
    averaging,
    pdmm,
    defences,
    others,
)
ROWS: tuple[PublishedClaim, ...] = tuple(
    sorted((row for file in FILES for row in file.ROWS), key=lambda row: row.number)
)
PAPERS = tuple(sorted({row.paper for row in ROWS}))


def select(
    papers: Collection[str] = (), numbers: Collection[int] = ()
) -> tuple[PublishedClaim, ...]:
    """Return the rows of some papers and numbers.

    Args:
        papers: names of papers, all if empty.
        numbers: of rows, all if empty.

    Returns:
        The rows that have one of the papers and one of the numbers, by number.

    Raises:
        LeakauditError: a paper or a number is not on the scoreboard.
    """
    _refuse_unknown("paper", papers, PAPERS)
    _refuse_unknown("row", numbers, [row.number for row in ROWS])
    chosen = []
    for row in ROWS:
        if papers and row.paper not in papers:
            continue
        if numbers and row.number not in numbers:
            continue
        chosen.append(row)
    return tuple(chosen)


def _refuse_unknown(
    name: str, asked: Collection[str] | Collection[int], known: Collection[str] | Collection[int]
) -> None:
    for one in asked:
        if one not in known:
            raise LeakauditError(
                f"there is no {name} {one} on the scoreboard; it has {', '.join(map(str, known))}"
            )


def judge(rows: Sequence[PublishedClaim]) -> Iterator[JudgedClaim]:
    """Yield each row with its findings, computed now.

    Args:
        rows: As from `select`.
    """
    for k, row in enumerate(rows):
        step("claims", k, len(rows))
        start = time.perf_counter()
        findings = row.judge()
        yield JudgedClaim(row, findings, time.perf_counter() - start)
    step("claims", len(rows), len(rows))
