"""The images of a report, as PNG in data URIs: the best, median, worst and some random ones."""

from __future__ import annotations

import base64
import io
import math
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from leakaudit._util.plural import named
from leakaudit._util.untrusted import npz
from leakaudit.core.quantities import QUANTITIES, Place, Quantity, shown
from leakaudit.core.trace import Json
from leakaudit.reporting.findings.measured import of_record
from leakaudit.reporting.findings.shown import Picture, Section
from leakaudit.reporting.findings.wording import cell_of, point_of
from leakaudit.reporting.results import model, record_file
from leakaudit.reporting.results.model import Finding, RunRecord, StoredImages, given

# All of these are choices: how much space images may take on a page.
OTHERS = 6  # candidates that are shown beside an image
EACH = 4  # images of each sort: best, median, worst, random
MOST = 64  # images in the whole report
CONSIDERED = 10_000  # images of a finding without scores, from which those are chosen
PIXELS = 1 << 24  # of an image that is drawn
BUDGET = 500_000  # bytes of PNG in a report
LARGEST = 128  # pixels of the longer side
LEAST = 16  # the same for images that were reduced in size to stay within the budget


@dataclass(frozen=True)
class Entry:
    """One true record of a finding, or one reconstructed image if nothing was scored."""

    finding: Finding
    record: int  # index of the true record, or of the image
    row: int | None  # row of the reconstruction, None if the record was not recovered
    rank: float  # sort key; larger is closer to the truth

    def value(self, one: Quantity) -> float | None:
        """Return one score of this image, None if it was not measured."""
        scores = self.finding.scores
        return None if scores is None else of_record(getattr(scores, one.key), self.record)

    @property
    def captions(self) -> list[str]:
        """What is measured of this image, in words."""
        values = [(one, self.value(one)) for one in shown(Place.IMAGE, "Number")]
        return [one.caption(value) for one, value in values if value is not None]


@dataclass(frozen=True)
class _Drawn:
    """An entry with its images, as bytes."""

    entry: Entry
    place: str
    found: np.ndarray | None
    original: np.ndarray | None
    others: Sequence[np.ndarray]
    candidates: int

    @property
    def images(self) -> list[np.ndarray]:
        """All images that are shown for the entry."""
        some = (self.found, self.original, *self.others)
        return [image for image in some if image is not None]


def with_pictures(results: Mapping[str, Json], folder: Path) -> dict[str, Json]:
    """Add images to a record."""
    sections = sections_of(model.of_run(results), folder)
    return {**results, "gallery": [asdict(section) for section in sections]}


def sections_of(record: RunRecord, folder: Path) -> list[Section]:
    """Choose and read the images of findings."""
    groups: dict[tuple[str, str], list[Entry]] = {}
    totals: Counter[tuple[str, str]] = Counter()
    for finding in record.findings:
        if finding.images:
            key = finding.attack, finding.adversary
            groups.setdefault(key, []).extend(_entries(finding))
            totals[key] += _records(finding)
    room = max(4, MOST // max(1, len(groups)))
    files = _Files(folder, given(record.originals, None), {})
    drawn = []
    for entries in groups.values():
        part = room if len(entries) <= room else min(4 * EACH, room)
        for place, entry in choose(entries, part):
            one = files.drawn(entry, place)
            if one.found is not None or one.original is not None:
                drawn.append(one)
    kept = drawn[:MOST]
    images: list[np.ndarray] = []
    for one in kept:
        images += one.images
    encode = fitting(images)
    pictures: dict[tuple[str, str], list[Picture]] = {}
    for one in kept:
        finding = one.entry.finding
        pictures.setdefault((finding.attack, finding.adversary), []).append(_picture(one, encode))
    sections = []
    for key, some in pictures.items():
        attack, adversary = key
        sections.append(Section(attack=attack, adversary=adversary, total=totals[key], images=some))
    return sections


def choose(entries: Sequence[Entry], room: int) -> list[tuple[str, Entry]]:
    """Choose a quarter of the room each of the best, middle, worst and some random entries."""
    ranked = sorted(entries, key=lambda entry: -entry.rank)
    if len(ranked) <= room:
        alike = len({entry.rank for entry in ranked}) == 1
        found = []
        for k, entry in enumerate(ranked):
            found.append(("" if alike else _place(k, len(ranked)), entry))
        return found
    each = room // 4
    half = (len(ranked) - each) // 2
    chosen = {
        "best": list(range(each)),
        "median": list(range(half, half + each)),
        "worst": list(range(len(ranked) - each, len(ranked))),
    }
    taken: set[int] = set()
    for those in chosen.values():
        taken.update(those)
    left = [k for k in range(len(ranked)) if k not in taken]
    # Seed 0: the same record always gives the same page.
    chosen["random"] = sorted(random.Random(0).sample(left, min(each, len(left))))
    marked = []
    for place, those in chosen.items():
        marked += [(place, ranked[k]) for k in those]
    return marked


def _place(k: int, count: int) -> str:
    if k == 0:
        return "best"
    if k == count - 1:
        return "worst"
    if k == count // 2:
        return "median"
    return ""


def _records(finding: Finding) -> int:
    if finding.scores is None:
        return finding.batch or 1
    return len(finding.scores.matched)


def _entries(finding: Finding) -> list[Entry]:
    """One entry for each true record, in the order of the truth.

    Without scores, there is one entry for each image, in the attack's own order.
    """
    scores = finding.scores
    if scores is None:
        residual = math.inf if finding.residual is None else float(finding.residual)
        count = min(_records(finding), CONSIDERED)
        return [Entry(finding, k, k, -residual) for k in range(count)]
    entries = []
    for k, row in enumerate(scores.matched):
        psnr = of_record(scores.psnr, k)
        entries.append(Entry(finding, k, row, -math.inf if psnr is None else psnr))
    return entries


def _picture(one: _Drawn, encode: Callable[[np.ndarray | None], str | None]) -> Picture:
    entry = one.entry
    finding = entry.finding
    certified = entry.row is not None and entry.row < given(finding.certified, 0)
    return Picture(
        place=one.place,
        at=_point(finding),
        owner=named(finding.nodes),
        record=entry.record,
        of=_records(finding),
        psnr=entry.value(QUANTITIES["psnr"]),
        captions=entry.captions,
        certificate="exact" if certified else finding.certificate.name.lower(),
        found=encode(one.found),
        original=encode(one.original),
        candidates=one.candidates,
        others=[encode(other) for other in one.others],
    )


def _point(finding: Finding) -> str:
    cell = given(finding.cell, None)
    if cell is not None and cell.seed == 0:
        return point_of(cell.epsilon)
    return cell_of(finding)


@dataclass(frozen=True)
class _Files:
    """Arrays of the files beside a record; each file is opened once."""

    folder: Path
    originals: str | None  # name of the file with the true images, None for none
    held: dict[str, Mapping[str, np.ndarray]]  # arrays of the files that have been opened

    def drawn(self, entry: Entry, place: str) -> _Drawn:
        """Read the images of an entry, each of (h, w) or (h, w, 3) bytes."""
        finding = entry.finding
        found = None
        others: list[np.ndarray] = []
        candidates = 0
        if finding.images is not None and entry.row is not None:
            found = image(self.array(finding.images.file, finding.images.x), entry.row)
        if finding.images is not None:
            others, candidates = self.others(finding.images, entry.row)
        return _Drawn(entry, place, found, self.original(entry), others, candidates)

    def original(self, entry: Entry) -> np.ndarray | None:
        """Read the true image; the files beside an audit contain those of its first run only."""
        finding = entry.finding
        cell = given(finding.cell, None)
        later = cell is not None and cell.seed != 0
        if self.originals is None or finding.scores is None or later:
            return None
        # The user may delete the originals; the report then shows only reconstructions.
        if self.originals not in self.held and not (self.folder / self.originals).is_file():
            return None
        key = f"node{finding.node}"
        with self.reading(self.originals, key):
            return image(self.opened(self.originals).get(key), entry.record)

    def others(self, images: StoredImages, row: int | None) -> tuple[list[np.ndarray], int]:
        """Read some other candidates for the reconstructed image, and count all of them."""
        name = given(images.choices, {}).get(str(row))
        if name is None:
            return [], 0
        batch = self.array(images.file, name)
        pictures = [image(batch, place) for place in range(OTHERS)]
        some = [picture for picture in pictures if picture is not None]
        return some, len(batch) if some else 0

    def array(self, name: str, key: str) -> np.ndarray:
        """Return an array that must exist."""
        with self.reading(name, key):
            return self.opened(name)[key]

    def opened(self, name: str) -> Mapping[str, np.ndarray]:
        """Return all arrays of a file."""
        if name not in self.held:
            with npz.Npz(self.folder / name) as file:
                self.held[name] = {each: file[each] for each in file.files}
        return self.held[name]

    def reading(self, name: str, key: str) -> AbstractContextManager[None]:
        what = f"the images {key!r} of the results, could not read them"
        return record_file.reading(self.folder / name, what, "; use --redact to omit images")


def image(batch: np.ndarray | None, row: int) -> np.ndarray | None:
    """Return one image as bytes."""
    if batch is None or batch.ndim != 4 or batch.dtype.kind not in "biuf":
        return None
    count, channels, height, width = batch.shape
    if row >= count or channels not in (1, 3) or not 0 < height * width <= PIXELS:
        return None
    return pixels(batch[row])


def pixels(x: np.ndarray) -> np.ndarray:
    """Return an image (1 or 3, h, w), bytes or in [0, 1], as bytes (h, w) or (h, w, 3)."""
    if x.dtype != np.uint8:
        # NaN is drawn as the middle of the range.
        unit = np.nan_to_num(x.astype(np.float64), nan=0.5).clip(0, 1)
        x = np.round(unit * 255).astype(np.uint8)
    return np.ascontiguousarray(x[0] if len(x) == 1 else x.transpose(1, 2, 0))


def fitting(
    images: Sequence[np.ndarray], budget: int = BUDGET
) -> Callable[[np.ndarray | None], str | None]:
    """Return an encoder with the largest image size at which all images stay within a budget."""
    side = min(LARGEST, max((max(image.shape[:2]) for image in images), default=LARGEST))
    while side > LEAST and sum(len(_png(image, side)) for image in images) > budget:
        side = max(LEAST, int(side / 1.25))  # reduces the area, and roughly the bytes, by a third

    def encode(image: np.ndarray | None) -> str | None:
        if image is None:
            return None
        return "data:image/png;base64," + base64.b64encode(_png(image, side)).decode()

    return encode


def _png(image: np.ndarray, side: int) -> bytes:
    picture = Image.fromarray(image)
    if max(picture.size) > side:
        scale = side / max(picture.size)
        size = max(1, round(picture.width * scale)), max(1, round(picture.height * scale))
        picture = picture.resize(size, Image.Resampling.LANCZOS)
    file = io.BytesIO()
    picture.save(file, format="PNG", optimize=True)
    return file.getvalue()
