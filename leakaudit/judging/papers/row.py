"""A published claim, its source, and the function that evaluates it."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from leakaudit.core.trace import Json
from leakaudit.core.verdict import Verdict

HERE = Path(__file__).parent
PAPERS = ("dp-norm", "dp-recal", "dp-dkm", "secured-fl", "pdmm-thesis", "other")
CLAIMS = "claims.toml"

# How a claim is known -> the sentence that a reader sees.
QUALITIES = {
    "read": "read in the paper's text",
    "reconstructed": "formulas are lost in our copy of the text, and were reconstructed",
    "recalled": "recalled from memory; the paper was not available",
}


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
    quality: str  # how the claim is known, a key of `QUALITIES`
    # the paper's own words with their place, empty if the paper was not available
    quotes: tuple[Mapping[str, str], ...] = ()
    assumes: tuple[str, ...]  # assumptions of the paper, and those that the evaluation adds
    judge: Judge

    @property
    def command(self) -> str:
        """The command that reproduces this row."""
        return f"leakaudit reproduce --claims --row {self.number}"


def published() -> Iterator[PublishedClaim]:
    """Yield the claims of all papers; the modules of their functions must be imported."""
    for paper in PAPERS:
        text = (folder(paper) / CLAIMS).read_text(encoding="utf-8")
        for entry in tomllib.loads(text)["claim"]:
            assert entry["quality"] in QUALITIES, entry["quality"]
            entry["quotes"] = tuple(entry.get("quotes", ()))
            entry["assumes"] = tuple(entry["assumes"])
            yield PublishedClaim(judge=_JUDGES[entry["number"]], paper=paper, **entry)


def folder(paper: str) -> Path:
    """Return the folder of a paper: its claims, and its items."""
    return HERE / paper.replace("-", "_")


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
            "quality": self.row.quality,
            "quotes": [dict(quote) for quote in self.row.quotes],
            "assumes": list(self.row.assumes),
            "verdict": self.verdict.name,
            "findings": list(map(Judgement.to_json, self.findings)),
            "command": self.row.command,
            "seconds": round(self.seconds, 2),
        }
