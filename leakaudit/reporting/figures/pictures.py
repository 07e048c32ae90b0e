"""The image of a result: originals above reconstructions, one column per image."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont
from PIL.PngImagePlugin import PngInfo
from torch import Tensor

from leakaudit._util import marks
from leakaudit._util.files import replacing, write_arrays
from leakaudit._util.plural import named
from leakaudit.core.errors import LeakauditError
from leakaudit.core.reconstruction import Reconstruction
from leakaudit.core.trace import Truth
from leakaudit.reporting.findings.wording import clean
from leakaudit.scoring.scoring import Score

TILE = 104  # approximate length of the longer side of an image, in pixels
KEPT = 64_000_000  # most bytes of true images stored beside a result
# Distances in pixels; all of them are choices.
_GAP = 14  # between columns, and below a row of them
_NEAR = 6  # between the images of a column
_MARGIN = 28  # around the picture
_LINE = 17  # height of a line of text
_LEFT = 92  # width of the row labels
_NARROW = 84  # smallest width of a column, so that its captions fit
PAPER = "#fbfbf9"
INK = "#1f2328"
QUIET = "#6b7280"
EDGE = "#d5d8dc"
EMPTY = "#eceef0"
_WORDS = {"exact": "#b42318", "interval": "#b42318", "approximate": "#9a5b00", "failed": "#6b7280"}


@dataclass(frozen=True)
class Pair:
    """One column: an original and its reconstruction."""

    owner: str  # the node that owns the record, or the nodes that may own it
    original: Tensor | None  # (c, h, w) in [0, 1] with 1 or 3 channels, None if it is not known
    found: Tensor | None  # the same for the reconstruction, None if the record was not recovered
    psnr: float | None  # in dB, None if it was not measured
    certificate: str  # `exact`, `interval`, `approximate` or `failed`


def pair_up(
    found: Sequence[Reconstruction],
    scores: Sequence[Score],
    truth: Truth | None,
    own: bool = False,
) -> list[Pair]:
    """Return the columns of a grid, in the order of the truth if it is known.

    A record without a reconstruction has an empty place. Reconstructions that are not images with 1
    or 3 channels are omitted.
    """
    out = []
    for one, score in zip(found, scores, strict=True):
        if not _drawable(one):
            continue
        words = [certificate.name.lower() for certificate in one.certificates]
        if truth is None:
            for image, word in zip(one.x, words, strict=True):
                out.append(Pair(named(one.nodes), None, image, None, word))
            continue
        originals, _ = truth.of(one.node) if own else truth.of(*one.nodes)
        for i, (original, row) in enumerate(zip(originals, score.matched, strict=True)):
            image = None
            word = one.certificate.name.lower()
            if row is not None:
                image = one.x[row]
                word = words[row]
            out.append(Pair(named(one.nodes), original, image, _psnr(score, i), word))
    return out


def _drawable(one: Reconstruction) -> bool:
    return one.x.ndim == 4 and one.x.shape[1] in (1, 3)


def _psnr(score: Score, i: int) -> float | None:
    if score.psnr is None or score.psnr[i] is None:
        return None
    return float(score.psnr[i] or 0)


def save_originals(path: Path, found: Sequence[Reconstruction], truth: Truth | None) -> str | None:
    """Write the true images of the attacked nodes as arrays ``node<i>`` (n, c, h, w).

    They are stored as bytes if the data has the grid k/255. Sequences of tokens (n, length) are
    whole numbers.
    """
    if truth is None:
        return None
    shown = {one.node: one.nodes for one in found if _drawable(one) or truth.task.is_text}
    arrays = {}
    for node in sorted(shown):
        originals, _ = truth.of(*shown[node])
        arrays[f"node{node}"] = _stored(originals, truth.task.levels)
        if truth.task.is_text:
            arrays[f"node{node}"] = arrays[f"node{node}"].astype(np.int64)
    size = sum(array.nbytes for array in arrays.values())
    if not arrays or size > KEPT:
        return None
    with replacing(path) as file:
        write_arrays(file, arrays)
    return path.name


def _stored(x: Tensor, levels: int) -> np.ndarray:
    values = x.detach().cpu()
    if levels == 255:
        values = (values.double() * 255).round().to(torch.uint8)
    else:
        values = values.float()
    stored: np.ndarray = values.numpy()
    return stored


def grid(
    pairs: Sequence[Pair], *, title: str = "", columns: int = 10, limit: int = 96
) -> Image.Image:
    """Draw pairs as columns. Small images are enlarged without smoothing."""
    tiles = [(_tile(pair.original), _tile(pair.found)) for pair in pairs[:limit]]
    sizes: list[tuple[int, int]] = []
    filled = set()
    for both in tiles:
        for row, tile in enumerate(both):
            if tile is not None:
                sizes.append(tile.size)
                filled.add(row)
    if not sizes:
        raise LeakauditError("picture: expected at least one image, got none")
    bands = math.ceil(len(tiles) / columns)
    layout = _Layout(
        count=len(tiles),
        wide=math.ceil(len(tiles) / bands),  # rows of about equal length
        rows=tuple(sorted(filled)),
        width=max(_NARROW, *(width for width, _ in sizes)),
        height=max(height for _, height in sizes),
        head=2 * _LINE if title else 0,
    )
    cut = len(pairs) > limit
    page = Image.new("RGB", layout.page(foot=_LINE if cut else 0), PAPER)
    draw = ImageDraw.Draw(page)
    say(draw, (_MARGIN, _MARGIN), _fit(title, page.width - 2 * _MARGIN, 15), 15, INK, "lt")
    for i, (pair, both) in enumerate(zip(pairs, tiles, strict=False)):
        _column(page, draw, layout, i, pair, [both[row] for row in layout.rows])
    if cut:
        foot = f"{limit} of {len(pairs)} images shown"
        say(draw, (_MARGIN, page.height - _MARGIN), foot, 12, QUIET, "lb")
    return page


def save(image: Image.Image, path: Path) -> None:
    """Write a PNG atomically, with the mark of personal data."""
    about = PngInfo()
    about.add_text(marks.SOFTWARE, marks.PERSONAL)
    with replacing(path) as file:
        image.save(file, format="PNG", optimize=True, pnginfo=about)


@dataclass(frozen=True)
class _Layout:
    """Positions and sizes in pixels."""

    count: int  # number of columns
    wide: int  # number of columns in a row
    rows: tuple[int, ...]  # which images a column has: 0 for originals, 1 for reconstructions
    width: int  # width of a column
    height: int  # height reserved for an image
    head: int  # height of the title

    @property
    def band(self) -> int:
        """Height of one row of columns, including captions."""
        return 3 * _LINE + len(self.rows) * (self.height + _NEAR) + _GAP

    def at(self, i: int) -> tuple[int, int]:
        """Upper left corner of a column."""
        left = _MARGIN + _LEFT + i % self.wide * (self.width + _GAP)
        top = _MARGIN + self.head + i // self.wide * self.band
        return left, top

    def page(self, foot: int) -> tuple[int, int]:
        """Size of the picture."""
        bands = math.ceil(self.count / self.wide)
        width = 2 * _MARGIN + _LEFT + self.wide * (self.width + _GAP) - _GAP
        height = 2 * _MARGIN + self.head + bands * self.band - _GAP + foot
        return max(width, 480), height


def _column(
    page: Image.Image,
    draw: ImageDraw.ImageDraw,
    layout: _Layout,
    i: int,
    pair: Pair,
    images: Sequence[Image.Image | None],
) -> None:
    """Draw one column: the node, its images, their PSNR and certificate.

    The row labels are drawn at the left edge.
    """
    left, top = layout.at(i)
    middle = left + layout.width / 2
    say(draw, (middle, top), pair.owner, 12, INK)
    top += _LINE + 3
    for row, image in zip(layout.rows, images, strict=True):
        centre = top + layout.height / 2
        if i % layout.wide == 0:
            say(draw, (_MARGIN, centre), ("original", "reconstruction")[row], 12, QUIET, "lm")
        if image is None:
            box = (left, top, left + layout.width - 1, top + layout.height - 1)
            draw.rectangle(box, fill=EMPTY)
            say(draw, (middle, centre), "not recovered", 12, QUIET, "mm")
        else:
            x = left + (layout.width - image.width) // 2
            y = top + (layout.height - image.height) // 2
            draw.rectangle((x - 1, y - 1, x + image.width, y + image.height), outline=EDGE)
            page.paste(image, (x, y))
        top += layout.height + _NEAR
    if pair.psnr is not None:
        say(draw, (middle, top), f"{pair.psnr:.1f} dB", 12, INK)
        top += _LINE - 2
    if pair.found is not None:
        say(draw, (middle, top), pair.certificate, 11, _WORDS.get(pair.certificate, QUIET))


def say(
    draw: ImageDraw.ImageDraw,
    at: tuple[float, float],
    text: str,
    size: int,
    colour: str,
    anchor: str = "ma",
) -> None:
    """Draw one line of text."""
    draw.text(at, text, fill=colour, font=ImageFont.load_default(size=size), anchor=anchor)


def _tile(x: Tensor | None) -> Image.Image | None:
    """An image scaled to about `TILE` pixels.

    Small images are enlarged by integer factors without smoothing, large ones are reduced.
    """
    if x is None:
        return None
    if x.ndim != 3 or x.shape[0] not in (1, 3):
        raise LeakauditError(f"picture: expected images (1 or 3, h, w), got {tuple(x.shape)}")
    # NaN is drawn as the middle of the range.
    unit = torch.nan_to_num(x.detach().cpu().double(), nan=0.5).clamp(0, 1)
    values = (unit * 255).round().to(torch.uint8)
    image = Image.fromarray(values.expand(3, -1, -1).permute(1, 2, 0).contiguous().numpy())
    side = max(image.size)
    if side > 1.5 * TILE:
        size = max(1, image.width * TILE // side), max(1, image.height * TILE // side)
        return image.resize(size, Image.Resampling.LANCZOS)
    factor = max(1, round(TILE / side))
    return image.resize((image.width * factor, image.height * factor), Image.Resampling.NEAREST)


def _fit(text: str, width: int, size: int) -> str:
    font = ImageFont.load_default(size=size)
    shown = clean(text)
    while len(shown) > 1 and font.getlength(shown) > width:
        shown = shown.rstrip("…")[:-1] + "…"
    return shown
