"""Several runs side by side: which of their properties differ, and which are equal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from leakaudit.reporting.viewing.summaries import RunSummary

MOST = 12  # runs side by side; a choice
NONE = "-"  # a property that a run does not have


@dataclass(frozen=True)
class _ComparisonRow:
    """One property of several runs."""

    name: str
    cells: tuple[str, ...]  # its value in each run

    @property
    def differs(self) -> bool:
        """Whether the values differ."""
        return len(set(self.cells)) > 1


@dataclass(frozen=True)
class _ComparisonTable:
    """Several runs side by side."""

    runs: Sequence[RunSummary]
    different: Sequence[_ComparisonRow]  # properties that differ
    equal: Sequence[_ComparisonRow]


def table(runs: Sequence[RunSummary]) -> _ComparisonTable:
    """Compare runs by what the list knows about them."""
    columns = [properties(run) for run in runs]
    names: dict[str, None] = {}
    for column in columns:
        names |= dict.fromkeys(column)
    rows = []
    for name in names:
        cells = tuple(column.get(name) or NONE for column in columns)
        rows.append(_ComparisonRow(name, cells))
    different = [row for row in rows if row.differs]
    equal = [row for row in rows if not row.differs and row.cells[0] != NONE]
    return _ComparisonTable(runs, different, equal)


def properties(run: RunSummary) -> dict[str, str]:
    """Return what is compared."""
    return {
        "summary": run.says,
        "kind": run.kind,
        "protocol": run.protocol,
        "model": run.model,
        "data": run.data,
        "adversaries": ", ".join(run.adversaries),
        "attacks": ", ".join(run.attacks),
        **run.figures,
        "complete": "yes" if run.complete else "no",
        "started": f"{run.minute} UTC",
        "leakaudit": run.version,
        "commit": run.commit,
    }


def in_time(runs: Sequence[RunSummary]) -> tuple[RunSummary, RunSummary] | None:
    """Return the earlier and the later of two runs whose checks can be compared."""
    if len(runs) != 2 or any(run.kind == "sweep" for run in runs):
        return None
    before, now = sorted(runs, key=_started)
    return before, now


def _started(run: RunSummary) -> tuple[str, str]:
    """The start in whole seconds; runs of the same second are in the order of their places."""
    return run.started, run.place
