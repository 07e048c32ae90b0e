"""A published claim, its source, and the function that evaluates it."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from enum import Enum
from pathlib import Path
from typing import TypeAlias

from leakaudit.core.trace import Json
from leakaudit.core.verdict import Verdict

CLAIMS = Path(__file__).with_name("claims.toml")


class Quality(Enum):
    """How the claim is known; the value is the sentence that a reader sees."""

    READ = "read in the paper's text"
    RECONSTRUCTED = "formulas are lost in our copy of the text, and were reconstructed"
    RECALLED = "recalled from memory; the paper was not available"


@dataclass(frozen=True)
class Quote:
    """A few words of a paper, verbatim."""

    place: str  # section, theorem or equation
    text: str  # the quoted words


@dataclass(frozen=True)
class Judgement:
    """One statement and the outcome of its evaluation."""

    about: str
    verdict: Verdict
    says: str  # the outcome in words, including the measurements
    figures: Mapping[str, Json] = field(default_factory=dict)  # the measurements for programs

    def to_json(self) -> dict[str, Json]:
        """Return plain values."""
        return {
            "about": self.about,
            "verdict": self.verdict.name,
            "says": self.says,
            "figures": dict(self.figures),
        }


# Computes the findings; the first concerns the claim as published, the others its variants.
Judge: TypeAlias = Callable[[], Iterator[Judgement]]
_JUDGES: dict[int, Judge] = {}  # by number of the claim


def judges(number: int) -> Callable[[Judge], Judge]:
    """Mark the function that evaluates a claim of ``claims.toml``."""

    def marked(judge: Judge) -> Judge:
        _JUDGES[number] = judge
        return judge

    return marked


@dataclass(frozen=True, kw_only=True)
class PublishedClaim:
    """A published claim."""

    number: int
    paper: str  # name of the paper, `other` for papers of other groups
    source: str  # paper and theorem
    claim: str  # what the paper states
    quality: Quality  # how the claim is known
    quotes: tuple[Quote, ...] = ()  # the paper's own words, empty if the paper was not available
    assumes: tuple[str, ...]  # assumptions of the paper, and those that the evaluation adds
    judge: Judge

    @property
    def command(self) -> str:
        """The command that reproduces this row."""
        return f"leakaudit reproduce --claims --row {self.number}"


def published() -> Iterator[PublishedClaim]:
    """Yield the claims of ``claims.toml``; the modules of their functions must be imported."""
    for entry in tomllib.loads(CLAIMS.read_text(encoding="utf-8"))["claim"]:
        entry["quality"] = Quality[entry["quality"].upper()]
        entry["quotes"] = tuple(Quote(**quote) for quote in entry.get("quotes", ()))
        entry["assumes"] = tuple(entry["assumes"])
        yield PublishedClaim(judge=_JUDGES[entry["number"]], **entry)


@dataclass(frozen=True)
class JudgedClaim:
    """A claim with its findings."""

    row: PublishedClaim
    findings: tuple[Judgement, ...]
    seconds: float  # wall-clock time of the evaluation

    def __repr__(self) -> str:
        """The source and the verdict."""
        return f"JudgedClaim({self.row.number}, {self.row.source!r:.100}, {self.verdict.words})"

    def _repr_html_(self) -> str:
        """The claim above its findings, for notebooks."""
        from leakaudit.reporting.rendering import cards  # only needed if a notebook asks for it

        rows = [(one.verdict.words, one.about, one.says) for one in self.findings]
        lead = [self.row.claim]
        return cards.card(self.row.source, lead, ("verdict", "statement", "evidence"), rows)

    @property
    def verdict(self) -> Verdict:
        """The verdict on the claim as published."""
        return self.findings[0].verdict

    def to_json(self) -> dict[str, Json]:
        """Return plain values."""
        return {
            "row": self.row.number,
            "paper": self.row.paper,
            "source": self.row.source,
            "claim": self.row.claim,
            "quality": self.row.quality.name.lower(),
            "quotes": [asdict(quote) for quote in self.row.quotes],
            "assumes": list(self.row.assumes),
            "verdict": self.verdict.name,
            "findings": list(map(Judgement.to_json, self.findings)),
            "command": self.row.command,
            "seconds": round(self.seconds, 2),
        }
