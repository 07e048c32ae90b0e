"""Published claims, each evaluated when it is requested."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Sequence

from leakaudit._util.jobs import IN_PROCESS, Pool
from leakaudit.core.errors import LeakauditError
from leakaudit.core.progress import step
from leakaudit.judging.papers.dp_dkm import claims as _dkm  # noqa: F401 - these register the
from leakaudit.judging.papers.dp_norm import claims as _norm  # noqa: F401 - functions of claims
from leakaudit.judging.papers.dp_norm import ecl as _ecl  # noqa: F401
from leakaudit.judging.papers.dp_norm import table2 as _table2  # noqa: F401
from leakaudit.judging.papers.dp_recal import claims as _recal  # noqa: F401
from leakaudit.judging.papers.other import claims as _other  # noqa: F401
from leakaudit.judging.papers.pdmm_thesis import claims as _thesis  # noqa: F401
from leakaudit.judging.papers.pdmm_thesis import defences as _defences  # noqa: F401
from leakaudit.judging.papers.row import (
    PAPERS,
    JudgedClaim,
    Judgement,
    PublishedClaim,
    published,
)
from leakaudit.judging.papers.secured_fl import claims as _secured  # noqa: F401

__all__ = [
    "PAPERS",
    "ROWS",
    "JudgedClaim",
    "Judgement",
    "PublishedClaim",
    "judge",
    "select",
]

ROWS = tuple(sorted(published(), key=lambda row: row.number))
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
    """Return the rows with the given papers and numbers; by default, all."""
    wanted = []
    for paper in papers:
        name = paper.lower()
        wanted.append(NUMBERS.get(name, name))
    _refuse_unknown("paper", wanted, PAPERS)
    _refuse_unknown("row", numbers, [row.number for row in ROWS])
    of_papers = [row for row in ROWS if row.paper in wanted or not wanted]
    return tuple(row for row in of_papers if row.number in numbers or not numbers)


def _refuse_unknown(name: str, asked: Collection[object], known: Collection[object]) -> None:
    for one in asked:
        if one not in known:
            raise LeakauditError(
                f"{name} {one} does not exist; expected one of {', '.join(map(str, known))}"
            )


def judge(rows: Sequence[PublishedClaim], executor: Pool = IN_PROCESS) -> Iterator[JudgedClaim]:
    """Evaluate the rows, and yield each with its findings, in order."""
    step("claims", 0, len(rows))
    for k, judged in enumerate(executor.map(_evaluated, rows)):
        yield judged
        step("claims", k + 1, len(rows))


def _evaluated(row: PublishedClaim) -> JudgedClaim:
    start = time.perf_counter()
    findings = tuple(row.judge())
    return JudgedClaim(row, findings, time.perf_counter() - start)
