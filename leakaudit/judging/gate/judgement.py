"""What a run of a gate measured, and how it was judged."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING

from leakaudit.judging.gate import baseline
from leakaudit.judging.gate.baseline import CellMeasurements
from leakaudit.judging.gate.cells import GateCell
from leakaudit.judging.gate.config import Gate
from leakaudit.judging.gate.rule import PricedView, Rule
from leakaudit.judging.gate.runs import SeedResults
from leakaudit.reporting.results.model import AcceptanceState, ExitCode, TraceSummary

if TYPE_CHECKING:
    from pandas import DataFrame

View = tuple[str, str]  # name of a check, and an adversary in the words of the configuration


@dataclass(frozen=True)
class GateOptions:
    """Options of a run of a gate."""

    seed: int = 0
    strict: bool = False  # whether an increase that is not significant leads to code 3
    # the date with which the expiry of acceptances is compared; None for the current date in UTC
    today: date | None = None


@dataclass
class GateResults:
    """The results of a run of a gate."""

    gate: Gate
    options: GateOptions
    # cells that were attacked with at least one seed
    cells: list[GateCell] = field(default_factory=list)
    # epsilon in each view, if a budget limits it
    priced: dict[View, PricedView] = field(default_factory=dict)
    # check -> number of rounds that its epsilon covers
    rounds: dict[str, int] = field(default_factory=dict)
    rules: list[Rule] = field(default_factory=list)
    # id -> `used`, `unused` or `expired`
    acceptances: dict[str, AcceptanceState] = field(default_factory=dict)
    # cells of the baseline that are no longer measured
    stale: list[str] = field(default_factory=list)
    # what a reader should know that does not affect the result
    remarks: list[str] = field(default_factory=list)
    first: SeedResults | None = None
    # check -> the training and the network, as stored in the record
    networks: dict[str, TraceSummary] = field(default_factory=dict)
    complete: bool = True  # whether every seed was tried
    interrupted: bool = False  # whether Ctrl-C ended the run
    code: ExitCode = 3
    started: datetime = field(default_factory=lambda: datetime.now(UTC))  # time of the start
    seconds: float = 0.0

    def __repr__(self) -> str:
        """The exit code and how much was judged."""
        cut = "" if self.complete else ", not complete"
        return f"Judged(code {self.code}, {len(self.rules)} rules, {len(self.cells)} cells{cut})"

    def _repr_html_(self) -> str:
        """The card of its record, for notebooks."""
        from leakaudit.judging.gate import record
        from leakaudit.reporting.rendering import cards

        return cards.html(self if self.first is None else record.build(self))

    def to_pandas(self, table: str | None = None) -> DataFrame:
        """Return a table of the results as a data frame: ``rules`` (default) or ``measures``."""
        from leakaudit.judging.gate import record
        from leakaudit.reporting.findings import flat

        return flat.frame(flat.of_gate(record.part(self), table))

    @property
    def blocks(self) -> dict[str, CellMeasurements]:
        """Name of a cell -> what a baseline stores about it."""
        return {
            cell.name: baseline.block(cell.check.name, cell.digest(), cell.seeds, cell.samples)
            for cell in self.cells
        }
