"""The pictures of a report: the best, median, worst and some random images of every attack, as PNG in data URIs."""

from __future__ import annotations

import base64
import io
import math
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from leakaudit.errors import LeakauditError
from leakaudit.results.wording import said_of
from leakaudit.trace import Json

OTHERS = 6  # candidates that are shown beside an image
EACH, MOST = 4, 64  # pictures a place (best, median, worst, random), and in the whole report
BUDGET = 500_000  # bytes of PNG in a report
LARGEST, LEAST = 128, 16  # pixels of the longer side


@dataclass(frozen=True)
class Entry:
    """One true record of one finding, or one image found where nothing was scored. psnr: dB; rank: larger is closer."""

    finding: Mapping[str, Json]
    record: int
    row: int | None
    rank: float

    def value(self, metric: str) -> Json:
        """Return one score of this image, None where it was not measured."""
        column = (self.finding["scores"] or {}).get(metric)
        return None if column is None else column["per_image"][self.record]


def with_pictures(results: Mapping[str, Json], folder: Path) -> dict[str, Json]:
    """Return the record with ``gallery``, a list of sections that `leakaudit.rendering.html` draws; the files stand in `folder`.

    A section has ``attack``, ``adversary``, ``total`` and ``images``: ``place`` (best, median, worst or random), ``at`` (point of a
    grid), ``node``, ``record``, ``of`` (records of that node), ``psnr``, ``ssim``, ``lpips``, ``certificate``, and data URIs ``found``
    and ``original``, None where there is none, ``candidates``, how many images explain the leak as well as ``found``, and ``others``,
    data URIs of some of them.
    Raises LeakauditError for a file of pictures that cannot be read.
    """
    groups: dict[tuple[str, str], list[Entry]] = {}
    for finding in results["findings"]:
        if finding.get("images"):
            groups.setdefault((finding["attack"], finding["adversary"]), []).extend(
                _entries(finding)
            )
    room = max(4, MOST // max(1, len(groups)))
    chosen = {
        key: choose(entries, room if len(entries) <= room else min(4 * EACH, room))
        for key, entries in groups.items()
    }
    files = _Files(folder, results.get("originals"))
    drawn = [
        (key, place, one, *files.both(one), files.others(one))
        for key, some in chosen.items()
        for place, one in some
    ]
    shown = [d for d in drawn if d[3] is not None or d[4] is not None][:MOST]
    encode = fitting(
        [image for d in shown for image in (d[3], d[4], *d[5][:OTHERS]) if image is not None]
    )
    sections: dict[tuple[str, str], dict[str, Any]] = {}
    for key, place, one, found, original, others in shown:
        section = sections.setdefault(
            key, {"attack": key[0], "adversary": key[1], "total": len(groups[key]), "images": []}
        )
        candidates = {
            "candidates": len(others),
            "others": [encode(other) for other in others[:OTHERS]],
        }
        section["images"].append(
            {**_shown(place, one, encode(found), encode(original)), **candidates}
        )
    return {**results, "gallery": list(sections.values())}


def choose(entries: Sequence[Entry], room: int) -> list[tuple[str, Entry]]:
    """Return closest, middle, farthest and random entries, each once, a quarter of `room` of each; all if they fit, unmarked if alike."""
    ranked = sorted(entries, key=lambda e: -e.rank)
    if len(ranked) <= room:
        alike = len({e.rank for e in ranked}) == 1
        return [("" if alike else _place(k, len(ranked)), e) for k, e in enumerate(ranked)]
    each = room // 4
    half = (len(ranked) - each) // 2
    fixed = {
        "best": range(each),
        "median": range(half, half + each),
        "worst": range(len(ranked) - each, len(ranked)),
    }
    taken = {k for places in fixed.values() for k in places}
    left = [k for k in range(len(ranked)) if k not in taken]
    drawn = sorted(random.Random(0).sample(left, min(each, len(left))))
    return [
        (place, ranked[k]) for place, places in {**fixed, "random": drawn}.items() for k in places
    ]


def _place(k: int, count: int) -> str:
    return "best" if k == 0 else "worst" if k == count - 1 else "median" if k == count // 2 else ""


def _entries(finding: Mapping[str, Json]) -> Iterable[Entry]:
    """One entry a true record, in the truth's order; without scores one an image, closest first by the attack's own order."""
    scores = finding["scores"]
    if scores is None:
        yield from (Entry(finding, k, k, -_residual(finding)) for k in range(finding["batch"] or 1))
        return
    near = scores.get("psnr", {}).get("per_image") or [None] * len(scores["matched"])
    for k, (row, psnr) in enumerate(zip(scores["matched"], near, strict=True)):
        yield Entry(finding, k, row, -math.inf if psnr is None else psnr)


def _residual(finding: Mapping[str, Json]) -> float:
    return math.inf if finding["residual"] is None else float(finding["residual"])


def _shown(place: str, one: Entry, found: str | None, original: str | None) -> dict[str, Json]:
    certified = one.row is not None and one.row < one.finding.get("certified", 0)
    word = "exact" if certified else str(one.finding["certificate"]["name"]).lower()
    values = {m: one.value(m) for m in ("psnr", "ssim", "lpips")}
    return {
        "place": place,
        "at": said_of(one.finding["cell"]).removesuffix(", seed 0")
        if "cell" in one.finding
        else "",
        "node": one.finding["node"],
        "record": one.record,
        "of": len(one.finding["scores"]["matched"])
        if one.finding["scores"]
        else one.finding["batch"] or 1,
        **values,
        "certificate": word,
        "found": found,
        "original": original,
    }


class _Files:
    """Arrays of the files beside a record, each file opened once."""

    def __init__(self, folder: Path, originals: str | None) -> None:
        self.folder, self.originals, self.held = (
            folder,
            originals,
            dict[str, Mapping[str, np.ndarray]](),
        )

    def both(self, one: Entry) -> tuple[np.ndarray | None, np.ndarray | None]:
        """Return the image found and the original, (h, w) or (h, w, 3) bytes each."""
        images = one.finding["images"]
        found = (
            None if one.row is None else _image(self._array(images["file"], images["x"]), one.row)
        )
        first = (
            one.finding.get("cell", {}).get("seed", 0) == 0
        )  # the originals are those of the first run
        if self.originals is None or one.finding["scores"] is None or not first:
            return found, None
        return found, _image(
            self._array(self.originals, f"node{one.finding['node']}", absent=True), one.record
        )

    def others(self, one: Entry) -> list[np.ndarray]:
        """Return other candidates for the image found, bytes as in `both`."""
        images = one.finding["images"]
        name = images.get("choices", {}).get(str(one.row))
        if name is None:
            return []
        batch = self._array(images["file"], name)
        pictures = [_image(batch, row) for row in range(0 if batch is None else len(batch))]
        return [picture for picture in pictures if picture is not None]

    def _array(self, name: str, key: str, absent: bool = False) -> np.ndarray | None:
        try:
            if name not in self.held:
                if absent and not (self.folder / name).is_file():
                    return None  # originals may be deleted, the report then shows reconstructions alone
                with np.load(self.folder / name, allow_pickle=False) as file:
                    self.held[name] = {k: file[k] for k in file.files}
            return self.held[name].get(key) if absent else self.held[name][key]
        except (OSError, ValueError, TypeError, KeyError) as error:
            message = f"{self.folder / name}: expected the pictures {key!r} of the results: {str(error)[:200]}; use --redact to leave them out"
            raise LeakauditError(message) from None


def _image(batch: np.ndarray | None, row: int) -> np.ndarray | None:
    """Return one image as bytes, None where there is none or it is no image with 1 or 3 channels."""
    if batch is None or batch.ndim != 4 or batch.shape[1] not in (1, 3) or row >= len(batch):
        return None
    x = batch[row]
    if x.dtype != np.uint8:
        x = np.round(np.nan_to_num(x.astype(np.float64), nan=0.5).clip(0, 1) * 255).astype(np.uint8)
    return np.ascontiguousarray(x[0] if len(x) == 1 else x.transpose(1, 2, 0))


def fitting(images: Sequence[np.ndarray]) -> Callable[[np.ndarray | None], str | None]:
    """Return an encoder at the largest side at which all images together stay within `BUDGET`."""
    side = min(LARGEST, max((max(image.shape[:2]) for image in images), default=LARGEST))
    while side > LEAST and sum(len(_png(image, side)) for image in images) > BUDGET:
        side = max(LEAST, int(side / 1.25))
    return lambda image: (
        None
        if image is None
        else "data:image/png;base64," + base64.b64encode(_png(image, side)).decode()
    )


def _png(image: np.ndarray, side: int) -> bytes:
    picture = Image.fromarray(image)
    if max(picture.size) > side:
        scale = side / max(picture.size)
        picture = picture.resize(
            (max(1, round(picture.width * scale)), max(1, round(picture.height * scale))),
            Image.Resampling.LANCZOS,
        )
    file = io.BytesIO()
    picture.save(file, format="PNG", optimize=True)
    return file.getvalue()
