"""The picture of a result: originals over reconstructions, one column an image."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from leakaudit._util.files import replacing
from leakaudit.errors import LeakauditError
from leakaudit.reconstruction import Reconstruction
from leakaudit.results.wording import clean
from leakaudit.scoring.scoring import Score
from leakaudit.trace import Truth

TILE = 104  # pixels that the longer side of a picture gets, about
KEPT = 64_000_000  # bytes of true images beside a result
_GAP, _NEAR, _MARGIN, _LINE, _LEFT, _NARROW = 14, 6, 28, 17, 92, 84
PAPER, INK, QUIET, EDGE, EMPTY = "#fbfbf9", "#1f2328", "#6b7280", "#d5d8dc", "#eceef0"
_WORDS = {"exact": "#b42318", "interval": "#b42318", "approximate": "#9a5b00", "failed": "#6b7280"}


@dataclass(frozen=True)
class Pair:
    """One column: an original and what an attack made of it, both (c, h, w) in [0, 1] with 1 or 3 channels, either may be missing.

    psnr in dB. certificate: ``exact``, ``interval``, ``approximate`` or ``failed``.
    """

    node: int
    original: Tensor | None
    found: Tensor | None
    psnr: float | None
    certificate: str


def pair_up(
    found: Sequence[Reconstruction], scores: Sequence[Score], truth: Truth | None
) -> list[Pair]:
    """Columns of a grid, in the truth's order where there is a truth: a record without reconstruction has an empty place.

    Reconstructions that are no images with 1 or 3 channels are left out.
    """
    out = []
    for one, score in zip(found, scores, strict=True):
        if one.x.ndim != 4 or one.x.shape[1] not in (1, 3):
            continue
        words = [c.name.lower() for c in one.certificates]
        if truth is None:
            out += [
                Pair(one.node, None, x, None, word) for x, word in zip(one.x, words, strict=True)
            ]
            continue
        for i, (x, row) in enumerate(zip(truth.of(one.node)[0], score.matched, strict=True)):
            psnr = (
                None if score.psnr is None or score.psnr[i] is None else float(score.psnr[i] or 0)
            )
            word = one.certificate.name.lower() if row is None else words[row]
            out.append(Pair(one.node, x, None if row is None else one.x[row], psnr, word))
    return out


def save_originals(path: Path, found: Sequence[Reconstruction], truth: Truth | None) -> str | None:
    """Write the true images of the nodes that were attacked, ``node<i>`` (n, c, h, w), and return the file's name.

    They are bytes where the data has the grid k/255. None where there is no truth, no image, or more than `KEPT` bytes of them.
    """
    if truth is None:
        return None
    shown = sorted({one.node for one in found if one.x.ndim == 4 and one.x.shape[1] in (1, 3)})
    arrays = {f"node{n}": _stored(truth.of(n)[0], truth.task.levels) for n in shown}
    if not arrays or sum(a.nbytes for a in arrays.values()) > KEPT:
        return None
    with replacing(path) as file:
        np.savez_compressed(file, allow_pickle=False, **arrays)
    return path.name


def _stored(x: Tensor, levels: int) -> np.ndarray:
    x = x.detach().cpu()
    stored: np.ndarray = (
        (x.double() * 255).round().to(torch.uint8) if levels == 255 else x.float()
    ).numpy()
    return stored


def grid(
    pairs: Sequence[Pair], *, title: str = "", columns: int = 10, limit: int = 96
) -> Image.Image:
    """Draw pairs as columns, in rows of at most `columns`; the picture says so where it stops at `limit` of them.

    Small images are enlarged without smoothing. Raises LeakauditError where there is nothing to draw or it is no image.
    """
    tiles = [(_tile(p.original), _tile(p.found)) for p in pairs[:limit]]
    sizes = [t.size for both in tiles for t in both if t is not None]
    if not sizes:
        raise LeakauditError("picture: expected at least one image, got none")
    layout = _Layout(
        count=len(tiles),
        wide=math.ceil(len(tiles) / math.ceil(len(tiles) / columns)),  # rows of about equal length
        rows=tuple(i for i in (0, 1) if any(both[i] is not None for both in tiles)),
        width=max(_NARROW, *(s[0] for s in sizes)),
        height=max(s[1] for s in sizes),
        head=2 * _LINE if title else 0,
    )
    page = Image.new("RGB", layout.page(foot=_LINE if len(pairs) > limit else 0), PAPER)
    draw = ImageDraw.Draw(page)
    say(draw, (_MARGIN, _MARGIN), _fit(title, page.width - 2 * _MARGIN, 15), 15, INK, "lt")
    for i, (pair, both) in enumerate(zip(pairs, tiles, strict=False)):
        _column(page, draw, layout, i, pair, [both[row] for row in layout.rows])
    if len(pairs) > limit:
        say(
            draw,
            (_MARGIN, page.height - _MARGIN),
            f"{limit} of {len(pairs)} images shown",
            12,
            QUIET,
            "lb",
        )
    return page


def save(image: Image.Image, path: Path) -> None:
    """Write a PNG whole or not at all."""
    with replacing(path) as file:
        image.save(file, format="PNG", optimize=True)


@dataclass(frozen=True)
class _Layout:
    """Where things lie, in pixels. rows: 0 for originals, 1 for reconstructions."""

    count: int
    wide: int
    rows: tuple[int, ...]
    width: int
    height: int
    head: int

    @property
    def band(self) -> int:
        """Height of one row of columns, captions included."""
        return 3 * _LINE + len(self.rows) * (self.height + _NEAR) + _GAP

    def at(self, i: int) -> tuple[int, int]:
        """Upper left corner of a column."""
        return _MARGIN + _LEFT + i % self.wide * (
            self.width + _GAP
        ), _MARGIN + self.head + i // self.wide * self.band

    def page(self, foot: int) -> tuple[int, int]:
        """Size of the picture."""
        wide = 2 * _MARGIN + _LEFT + self.wide * (self.width + _GAP) - _GAP
        return max(wide, 480), 2 * _MARGIN + self.head + math.ceil(
            self.count / self.wide
        ) * self.band - _GAP + foot


def _column(
    page: Image.Image,
    draw: ImageDraw.ImageDraw,
    layout: _Layout,
    i: int,
    pair: Pair,
    images: Sequence[Image.Image | None],
) -> None:
    """Draw one column: the node, its images, their PSNR and certificate, and names of the rows at the left edge."""
    left, top = layout.at(i)
    middle = left + layout.width / 2
    say(draw, (middle, top), f"node {pair.node}", 12, INK)
    top += _LINE + 3
    for row, image in zip(layout.rows, images, strict=True):
        centre = top + layout.height / 2
        if i % layout.wide == 0:
            say(draw, (_MARGIN, centre), ("original", "reconstruction")[row], 12, QUIET, "lm")
        if image is None:
            draw.rectangle(
                (left, top, left + layout.width - 1, top + layout.height - 1), fill=EMPTY
            )
            say(draw, (middle, centre), "not recovered", 12, QUIET, "mm")
        else:
            x, y = (
                left + (layout.width - image.width) // 2,
                top + (layout.height - image.height) // 2,
            )
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
    """Write one line at a place."""
    draw.text(at, text, fill=colour, font=ImageFont.load_default(size=size), anchor=anchor)


def _tile(x: Tensor | None) -> Image.Image | None:
    """An image at about `TILE` pixels: small ones by whole factors without smoothing, large ones shrunk."""
    if x is None:
        return None
    if x.ndim != 3 or x.shape[0] not in (1, 3):
        raise LeakauditError(f"picture: expected images (1 or 3, h, w), got {tuple(x.shape)}")
    values = (
        (torch.nan_to_num(x.detach().cpu().double(), nan=0.5).clamp(0, 1) * 255)
        .round()
        .to(torch.uint8)
    )
    image = Image.fromarray(values.expand(3, -1, -1).permute(1, 2, 0).contiguous().numpy())
    side = max(image.size)
    if side > 1.5 * TILE:
        return image.resize(
            (max(1, image.width * TILE // side), max(1, image.height * TILE // side)),
            Image.Resampling.LANCZOS,
        )
    factor = max(1, round(TILE / side))
    return image.resize((image.width * factor, image.height * factor), Image.Resampling.NEAREST)


def _fit(text: str, width: int, size: int) -> str:
    """Shorten one line to a width in pixels."""
    text, font = clean(text), ImageFont.load_default(size=size)
    while len(text) > 1 and font.getlength(text) > width:
        text = text.rstrip("…")[:-1] + "…"
    return text
