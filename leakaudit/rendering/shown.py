"""The input of a report: the record, and what the command line adds to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from leakaudit.results import model
from leakaudit.results.comparison import Against, read_against
from leakaudit.results.model import RunRecord
from leakaudit.trace import Json


@dataclass(frozen=True)
class Picture:
    """One image of a gallery.

    Attributes:
        place: ``best``, ``median``, ``worst`` or ``random``; "" if the image is none of these or
            all images are equally good.
        at: Point of an audit's grid in words, "" for other records.
        owner: The node that owns the record, or the nodes that may own it.
        record: Index of the record.
        of: Number of records of that owner.
        psnr: In dB, None if it was not measured.
        ssim: Structural similarity.
        lpips: Perceptual distance.
        certificate: Name of the certificate in lower case.
        found: The reconstruction as a data URI, None if there is none.
        original: The same for the true image.
        candidates: Number of other images that explain the leak equally well.
        others: Data URIs of some of these.
    """

    place: str
    at: str
    owner: str
    record: int
    of: int
    psnr: float | None
    ssim: float | None
    lpips: float | None
    certificate: str
    found: str | None
    original: str | None
    candidates: int = 0
    others: Sequence[str | None] = ()


@dataclass(frozen=True)
class Section:
    """The images of one attack by one adversary.

    Attributes:
        attack: Name of the attack.
        adversary: The adversary.
        total: Number of all images.
        images: The images that are shown.
    """

    attack: str
    adversary: str
    total: int
    images: Sequence[Picture]


@dataclass(frozen=True)
class Passage:
    """One recovered sequence of tokens, as text.

    Attributes:
        attack: Name of the attack.
        adversary: The adversary.
        owner: The node that owns the record, or the nodes that may own it.
        record: Index of the record.
        certificate: Name of the certificate in lower case.
        found: The reconstruction, None if the record was not recovered.
        original: The true text, None if it is not known.
    """

    attack: str
    adversary: str
    owner: str
    record: int
    certificate: str
    found: str | None
    original: str | None


@dataclass(frozen=True)
class Shown:
    """A record as a report shows it.

    Attributes:
        record: The record.
        against: Comparison with an earlier record, None for none.
        gallery: Images, empty if they are omitted.
        location: File in the repository that SARIF points at, None if it is not specified.
        passages: Sequences of tokens, empty if there are none or they are omitted.
        prefix: Folder of the repository that the paths of a record are relative to, "" for its
            root.
    """

    record: RunRecord
    against: Against | None = None
    gallery: Sequence[Section] = field(default_factory=tuple)
    location: str | None = None
    passages: Sequence[Passage] = field(default_factory=tuple)
    prefix: str = ""

    @classmethod
    def of(cls, results: Mapping[str, Json]) -> Shown:
        """Convert the JSON values that a report receives.

        Args:
            results: A record, to which ``against`` (`leakaudit.results.comparison.compare`),
                ``gallery`` (`leakaudit.rendering.gallery.with_pictures`), ``passages``
                (`leakaudit.rendering.passages.with_passages`), ``location`` and ``prefix`` may have
                been added.

        Returns:
            The record and its additions as types.
        """
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
