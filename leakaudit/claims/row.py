"""A row of the scoreboard: a published claim, and the function that judges it by computing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from leakaudit.trace import Json
from leakaudit.verdict import Verdict

Figures = Mapping[str, Json]


@dataclass(frozen=True)
class Finding:
    """One statement and what was measured of it.

    about: what is judged. says: the outcome in one sentence, figures included. figures: the same for programs.
    """

    about: str
    verdict: Verdict
    says: str
    figures: Figures = field(default_factory=dict)

    def to_json(self) -> dict[str, Json]:
        """Plain values."""
        return {"about": self.about, "verdict": self.verdict.name, "says": self.says, "figures": dict(self.figures)}


@dataclass(frozen=True)
class Row:
    """A published claim.

    number: of the scoreboard. paper: 000 to 004, ``other`` for papers of other groups. source: paper and theorem. claim: what it says.
    judge: computes the findings; the first is on the claim as it is published, the others on its variants.
    """

    number: int
    paper: str
    source: str
    claim: str
    judge: Callable[[], tuple[Finding, ...]]

    @property
    def command(self) -> str:
        """What repeats this row."""
        return f"leakaudit claims --row {self.number}"


@dataclass(frozen=True)
class Judged:
    """A row with what was found, and the seconds that it took."""

    row: Row
    findings: tuple[Finding, ...]
    seconds: float

    @property
    def verdict(self) -> Verdict:
        """That of the claim as it is published."""
        return self.findings[0].verdict

    def to_json(self) -> dict[str, Json]:
        """Plain values."""
        return {
            "row": self.row.number,
            "paper": self.row.paper,
            "source": self.row.source,
            "claim": self.row.claim,
            "verdict": self.verdict.name,
            "findings": [f.to_json() for f in self.findings],
            "command": self.row.command,
            "seconds": round(self.seconds, 2),
        }
