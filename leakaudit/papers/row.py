"""A row of the scoreboard: a published claim, its source, and the function that judges it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum

from msgspec import Struct

from leakaudit.results.model import VERDICT_NAMES, Free, VerdictName
from leakaudit.verdict import Verdict


class Quality(Enum):
    """How well we know what the paper states; the value is the sentence that a reader sees."""

    READ = "read in the paper's text"
    RECONSTRUCTED = "formulas are lost in our copy of the text, and were reconstructed"
    RECALLED = "recalled from memory; the paper was not at hand"


class Quote(Struct, frozen=True):
    """A few words of a paper, verbatim.

    Attributes:
        place: Section, theorem or equation where they stand.
        text: The words.
    """

    place: str
    text: str


class FindingEntry(Struct, frozen=True, kw_only=True):
    """A finding as it is printed for programs.

    Attributes:
        about: What is judged.
        verdict: Name of the outcome.
        says: The outcome in one sentence.
        figures: What was measured, by name; each judge has its own.
    """

    about: str
    verdict: VerdictName
    says: str
    figures: dict[str, Free]


class JudgedEntry(Struct, frozen=True, kw_only=True):
    """A row that was judged, as it is printed for programs.

    Attributes:
        row: Place on the scoreboard.
        paper: As in `ClaimRow`, like the next five.
        source: Paper and theorem.
        claim: What the paper states.
        quality: How well we know it.
        quotes: The paper's own words.
        assumes: What is assumed.
        verdict: Name of the outcome for the claim as it is published.
        findings: What was found.
        command: What repeats this row.
        seconds: Wall-clock time.
    """

    row: int
    paper: str
    source: str
    claim: str
    quality: str
    quotes: tuple[Quote, ...]
    assumes: tuple[str, ...]
    verdict: VerdictName
    findings: tuple[FindingEntry, ...]
    command: str
    seconds: float


@dataclass(frozen=True)
class ClaimFinding:
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
    figures: Mapping[str, Free] = field(default_factory=dict)

    def entry(self) -> FindingEntry:
        """Return it as it is printed for programs."""
        return FindingEntry(
            about=self.about,
            verdict=VERDICT_NAMES[self.verdict],
            says=self.says,
            figures=dict(self.figures),
        )


@dataclass(frozen=True, kw_only=True)
class ClaimRow:
    """A published claim.

    Attributes:
        number: Place on the scoreboard.
        paper: 000 to 004, ``other`` for papers of other groups.
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
    judge: Callable[[], tuple[ClaimFinding, ...]]

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

    row: ClaimRow
    findings: tuple[ClaimFinding, ...]
    seconds: float

    @property
    def verdict(self) -> Verdict:
        """That of the claim as it is published."""
        return self.findings[0].verdict

    def entry(self) -> JudgedEntry:
        """Return it as it is printed for programs."""
        return JudgedEntry(
            row=self.row.number,
            paper=self.row.paper,
            source=self.row.source,
            claim=self.row.claim,
            quality=self.row.quality.name.lower(),
            quotes=self.row.quotes,
            assumes=self.row.assumes,
            verdict=VERDICT_NAMES[self.verdict],
            findings=tuple(finding.entry() for finding in self.findings),
            command=self.row.command,
            seconds=round(self.seconds, 2),
        )
