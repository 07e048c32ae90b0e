"""The input of a report: the record, and what the command line adds to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from leakaudit.core.trace import Json
from leakaudit.reporting.findings.comparison import ResultsComparison, read_against
from leakaudit.reporting.results import model
from leakaudit.reporting.results.model import RunRecord


@dataclass(frozen=True)
class Picture:
    """One image of a gallery."""

    # `best`, `median`, `worst` or `random`; "" if the image is none of these or all images are
    # equally good
    place: str
    at: str  # point of an audit's grid in words, "" for other records
    owner: str  # the node that owns the record, or the nodes that may own it
    record: int
    of: int  # number of records of that owner
    psnr: float | None  # in dB, None if it was not measured
    captions: Sequence[str]  # its quality, one quantity each
    certificate: str  # name of the certificate in lower case
    found: str | None  # the reconstruction as a data URI, None if there is none
    original: str | None  # the same for the true image
    candidates: int = 0  # number of other images that explain the leak equally well
    others: Sequence[str | None] = ()  # data URIs of some of these


@dataclass(frozen=True)
class Section:
    """The images of one attack by one adversary."""

    attack: str
    adversary: str
    total: int  # number of all images
    images: Sequence[Picture]


@dataclass(frozen=True)
class Passage:
    """One recovered sequence of tokens, as text."""

    attack: str
    adversary: str
    owner: str  # the node that owns the record, or the nodes that may own it
    record: int
    certificate: str  # name of the certificate in lower case
    found: str | None  # the reconstruction, None if the record was not recovered
    original: str | None  # the true text, None if it is not known


@dataclass(frozen=True)
class DisplayRecord:
    """A record as a report shows it."""

    record: RunRecord
    against: ResultsComparison | None = None  # comparison with an earlier record, None for none
    gallery: Sequence[Section] = field(default_factory=tuple)  # images, empty if they are omitted
    # file in the repository that SARIF points at, None if it is not specified
    location: str | None = None
    # sequences of tokens, empty if there are none or they are omitted
    passages: Sequence[Passage] = field(default_factory=tuple)
    # folder of the repository that the paths of a record are relative to, "" for its root
    prefix: str = ""

    @classmethod
    def of(cls, results: Mapping[str, Json]) -> DisplayRecord:
        """Convert the JSON values that a report receives."""
        location = results.get("location")
        if not isinstance(location, str) or not location:
            location = None
        return cls(
            record=model.of_run(results),
            against=read_against(results),
            gallery=model.fitted(results.get("gallery") or [], list[Section]),
            location=location,
            prefix=str(results.get("prefix") or ""),
            passages=model.fitted(results.get("passages") or [], list[Passage]),
        )
