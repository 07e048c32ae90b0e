"""A row of the scoreboard: a published claim, its source, and the function that judges it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum

from leakaudit.trace import Json
from leakaudit.verdict import Verdict


class Quality(Enum):
    """How well we know what the paper states; the value is the sentence that a reader sees."""

    READ = "read in the paper's text"
    RECONSTRUCTED = "formulas are lost in our copy of the text, and were reconstructed"
    RECALLED = "recalled from memory; the paper was not at hand"


@dataclass(frozen=True)
class Quote:
    """A few words of a paper, verbatim.

    Attributes:
        place: Section, theorem or equation where they stand.
        text: The words.
    """

    place: str
    text: str

    def to_json(self) -> dict[str, Json]:
        """Return plain values."""
        return {"place": self.place, "text": self.text}


@dataclass(frozen=True)
class Judgement:
    """One statement and what was measured of it.

    Attributes:
        about: What is judged.
        verdict: The outcome.
        says: The outcome in one sentence, figures included.
        figures: The same for programs.
    """

    about: str
    verdict: Verdict
    says: str
    figures: Mapping[str, Json] = field(default_factory=dict)

    def to_json(self) -> dict[str, Json]:
        """Return plain values."""
        return {
            "about": self.about,
            "verdict": self.verdict.name,
            "says": self.says,
            "figures": dict(self.figures),
        }


@dataclass(frozen=True, kw_only=True)
class PublishedClaim:
    """A published claim.

    Attributes:
        number: Place on the scoreboard.
        paper: Name of the paper, ``other`` for papers of other groups.
        source: Paper and theorem.
        claim: What the paper states.
        quality: How well we know it.
        quotes: The paper's own words, empty if the paper was not at hand.
        assumes: What the paper assumes, and what we had to assume to judge it.
        judge: Computes the findings; the first is on the claim as it is published, the others are
            on its variants.
    """

    number: int
    paper: str
    source: str
    claim: str
    quality: Quality
    quotes: tuple[Quote, ...] = ()
    assumes: tuple[str, ...]
    judge: Callable[[], tuple[Judgement, ...]]

    @property
    def command(self) -> str:
        """What repeats this row."""
        return f"leakaudit claims --row {self.number}"


@dataclass(frozen=True)
class JudgedClaim:
    """A row that was judged.

    Attributes:
        row: The claim.
        findings: What was found.
        seconds: Wall-clock time that it took.
    """

    row: PublishedClaim
    findings: tuple[Judgement, ...]
    seconds: float

    @property
    def verdict(self) -> Verdict:
        """That of the claim as it is published."""
        return self.findings[0].verdict

    def to_json(self) -> dict[str, Json]:
        """Return plain values."""
        return {
            "row": self.row.number,
            "paper": self.row.paper,
            "source": self.row.source,
            "claim": self.row.claim,
            "quality": self.row.quality.name.lower(),
            "quotes": list(map(Quote.to_json, self.row.quotes)),
            "assumes": list(self.row.assumes),
            "verdict": self.verdict.name,
            "findings": list(map(Judgement.to_json, self.findings)),
            "command": self.row.command,
            "seconds": round(self.seconds, 2),
        }
