"""What a report is made of: the record, and what the command line adds to it."""

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
        place: ``best``, ``median``, ``worst`` or ``random``; "" if the gallery shows all or they
            are alike.
        at: Point of an audit's grid in words, "" elsewhere.
        node: Whose record.
        record: Which of them.
        of: Number of records of that node.
        psnr: In dB, None if it was not measured.
        ssim: Structural similarity.
        lpips: Perceptual distance.
        certificate: Word of the certificate.
        found: The reconstruction as a data URI, None if there is none.
        original: The same of the true image.
        candidates: How many other images explain the leak as well.
        others: Data URIs of some of them.
    """

    place: str
    at: str
    node: int
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
        attack: What attacked.
        adversary: Who hears.
        total: Number of images, of which some are shown.
        images: Those that are shown.
    """

    attack: str
    adversary: str
    total: int
    images: Sequence[Picture]


@dataclass(frozen=True)
class Shown:
    """A record as a report shows it.

    Attributes:
        record: The record.
        against: Comparison with an earlier one, None for none.
        gallery: Pictures, none if they are left out.
        location: File of the repository that SARIF points at, None if it is not named.
    """

    record: RunRecord
    against: Against | None = None
    gallery: Sequence[Section] = field(default_factory=tuple)
    location: str | None = None

    @classmethod
    def of(cls, results: Mapping[str, Json]) -> Shown:
        """Read the JSON values that a report is given.

        Args:
            results: A record, to which ``against`` (`leakaudit.results.comparison.compare`),
                ``gallery`` (`leakaudit.rendering.gallery.with_pictures`) and ``location`` may have
                been added.

        Returns:
            The same as types.
        """
        location = results.get("location")
        if not isinstance(location, str) or not location:
            location = None
        return cls(
            record=model.of_run(results),
            against=read_against(results),
            gallery=model.fitted(results.get("gallery") or [], list[Section]),
            location=location,
        )
