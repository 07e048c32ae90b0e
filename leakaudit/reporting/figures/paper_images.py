"""Images of a paper's figure: originals above their reconstructions."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias

from PIL import Image

from leakaudit.core.quantities import QUANTITIES
from leakaudit.reporting.figures import plots
from leakaudit.reporting.figures.plots import LETTER, LINE, empty, paged
from leakaudit.reporting.findings.shown import Picture, Section

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Sizes in mm; all of them are choices.
TILE = 15.0  # width of an image
NEAR = 1.0  # between the images of a column
ROW_NAME = 23.0  # width of the names of the rows of images
BESIDE = 1.6  # between columns of images


Band: TypeAlias = tuple[str, Sequence[Picture]]  # title above them, "" for none


def draw(content: Sequence[Section], width: float, highest: float) -> list[Figure]:
    """Draw rows of as many images as fit, on pages of at most `highest` mm (one if infinite)."""
    across = max(1, int((width - ROW_NAME) / (TILE + BESIDE)))
    bands: list[Band] = []
    for section in content:
        title = f"{section.attack}, adversary {section.adversary}"
        if len(section.images) < section.total:
            title += f" ({len(section.images)} of {section.total} images)"
        for start in range(0, len(section.images), across):
            some = section.images[start : start + across]
            bands.append((title if start == 0 else "", some))
    figures = []
    for page in paged(bands, _height, highest):
        high = sum(map(_height, page)) + BESIDE
        figure = empty(width, high)
        figure.set_layout_engine("none")
        top = BESIDE / 2
        for band in page:
            _images(figure, band, width, high, top)
            top += _height(band)
        figures.append(figure)
    return figures


def _image(uri: str) -> Image.Image:
    with Image.open(io.BytesIO(base64.b64decode(uri.partition(",")[2]))) as image:
        return image.convert("RGB")


def _below(tile: Picture) -> str:
    if tile.psnr is None:
        return tile.certificate
    if tile.psnr > plots.PSNR_SHOWN:
        return f"> {plots.PSNR_SHOWN:g} dB"
    return QUANTITIES["psnr"].caption(tile.psnr)


def _rows(tiles: Sequence[Picture]) -> list[str]:
    rows = []
    if any(tile.original is not None for tile in tiles):
        rows.append("original")
    if any(tile.found is not None for tile in tiles):
        rows.append("reconstruction")
    return rows


def _tall(tiles: Sequence[Picture]) -> float:
    ratios = [1.0]
    for tile in tiles:
        for uri in (tile.original, tile.found):
            if uri is not None:
                image = _image(uri)
                ratios.append(image.height / image.width)
    return TILE * min(2.0, max(ratios))


def _height(band: Band) -> float:
    title, tiles = band
    texts = LINE * (2 + bool(title))
    return texts + len(_rows(tiles)) * (_tall(tiles) + NEAR) + 2 * BESIDE


def _images(figure: Figure, band: Band, width: float, high: float, top: float) -> None:
    """Draw one row of images; distances are in mm from the upper left corner."""
    import numpy as np

    title, tiles = band
    rows = _rows(tiles)
    tall = _tall(tiles)
    if title:
        text = plots.said(title, int(width / LETTER))
        figure.text(NEAR / width, 1 - top / high, text, va="top", weight="bold")
        top += LINE + NEAR
    for column, tile in enumerate(tiles):
        left = ROW_NAME + column * (TILE + BESIDE)
        middle = (left + TILE / 2) / width
        letters = int((TILE + BESIDE) / LETTER)
        above = plots.said(tile.owner, letters)
        figure.text(middle, 1 - top / high, above, va="top", ha="center")
        start = top + LINE
        for row in rows:
            uri = tile.original if row == "original" else tile.found
            box = (left / width, 1 - (start + tall) / high, TILE / width, tall / high)
            place = figure.add_axes(box)
            place.set_xticks([])
            place.set_yticks([])
            place.grid(visible=False)
            place.spines[:].set_visible(False)
            if uri is None:
                place.set_facecolor(plots.NO_WEIGHT)
                place.text(0.5, 0.5, "none", transform=place.transAxes, ha="center", va="center")
            else:
                place.imshow(np.asarray(_image(uri)), interpolation="none")
            if column == 0:
                centre = 1 - (start + tall / 2) / high
                figure.text(NEAR / width, centre, row, va="center")
            start += tall + NEAR
        below = plots.said(_below(tile), letters)
        figure.text(middle, 1 - start / high, below, va="top", ha="center")
