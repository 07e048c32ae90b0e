"""Published claims, each evaluated when it is requested."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Sequence

from leakaudit._util.jobs import IN_PROCESS, Pool
from leakaudit.core.errors import LeakauditError
from leakaudit.core.progress import step
from leakaudit.judging.papers import (
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
from leakaudit.judging.papers.row import JudgedClaim, Judgement, PublishedClaim, Quality, Quote

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
PAPERS = tuple(dict.fromkeys(row.paper for file in FILES for row in file.ROWS))
# Earlier versions used these numbers for the papers; they are still accepted.
NUMBERS = {
    "000": "dp-norm",
    "001": "dp-recal",
    "002": "dp-dkm",
    "003": "secured-fl",
    "004": "pdmm-thesis",
}


def select(
    papers: Collection[str] = (), numbers: Collection[int] = ()
) -> tuple[PublishedClaim, ...]:
    """Return the rows that have the given papers and numbers."""
    wanted = []
    for paper in papers:
        name = paper.lower()
        wanted.append(NUMBERS.get(name, name))
    _refuse_unknown("paper", wanted, PAPERS)
    _refuse_unknown("row", numbers, [row.number for row in ROWS])
    chosen = []
    for row in ROWS:
        if wanted and row.paper not in wanted:
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
                f"{name} {one} does not exist; expected one of {', '.join(map(str, known))}"
            )


def judge(rows: Sequence[PublishedClaim], executor: Pool = IN_PROCESS) -> Iterator[JudgedClaim]:
    """Evaluate the rows, and yield each with its findings, in their order."""
    step("claims", 0, len(rows))
    for k, judged in enumerate(executor.map(_evaluated, rows)):
        yield judged
        step("claims", k + 1, len(rows))


def _evaluated(row: PublishedClaim) -> JudgedClaim:
    """Evaluate one row: the job of `judge`."""
    start = time.perf_counter()
    findings = row.judge()
    return JudgedClaim(row, findings, time.perf_counter() - start)
