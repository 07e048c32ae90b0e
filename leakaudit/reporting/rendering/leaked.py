"""The pictures of a gate: for each cell over its limits, the record that was recovered best."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from leakaudit._util.files import private_folder, replacing, write_arrays
from leakaudit._util.untrusted import npz
from leakaudit.core.quantities import QUANTITIES
from leakaudit.core.trace import Json
from leakaudit.reporting.findings.shown import Picture, Section
from leakaudit.reporting.rendering import gallery
from leakaudit.reporting.results import record_file
from leakaudit.reporting.results.model import CellEntry, CheckRecord, given

if TYPE_CHECKING:
    from leakaudit.reporting.figures.pictures import Pair

PICTURE = "leak.png"
ARRAYS = "leak.npz"


def save(pairs: Mapping[str, Pair], folder: Path) -> bool:
    """Draw pairs beside the record of a gate, and remove those of an earlier run."""
    for name in (PICTURE, ARRAYS):
        (folder / name).unlink(missing_ok=True)
    if not pairs:
        return False
    from leakaudit.reporting.figures import pictures  # it imports torch, which a page does not need

    private_folder(folder)
    pictures.save(pictures.grid(list(pairs.values())), folder / PICTURE)
    arrays = {}
    for name, pair in pairs.items():
        for what, image in (("found", pair.found), ("original", pair.original)):
            if image is not None:
                arrays[f"{name} {what}"] = image.detach().cpu().float().numpy()[None]
    with replacing(folder / ARRAYS) as file:
        write_arrays(file, arrays)
    return True


def sections(record: CheckRecord, folder: Path) -> list[dict[str, Json]]:
    """Return the pictures for a page."""
    name = given(record.originals, None)
    if name is None:
        return []
    path = folder / name
    what = "the pictures of the results, could not read them"
    with record_file.reading(path, what), npz.Npz(path) as file:
        arrays = {each: file[each] for each in file.files}
    images = {key: gallery.image(array, 0) for key, array in arrays.items()}
    encode = gallery.fitting([image for image in images.values() if image is not None])
    found = []
    for cell in record.gate.cells:
        picture = encode(images.get(f"{cell.name} found"))
        original = encode(images.get(f"{cell.name} original"))
        if picture is not None:
            section = Section(cell.attack, cell.adversary, 1, [_picture(cell, picture, original)])
            found.append(asdict(section))
    return found


def _picture(cell: CellEntry, found: str, original: str | None) -> Picture:
    worst = cell.worst
    psnr = None
    captions = []
    if worst is not None and worst.psnr is not None:
        psnr = float(worst.psnr)
        captions = [QUANTITIES["psnr"].caption(psnr)]
    return Picture(
        place="",
        at="",
        owner="" if worst is None else f"node {worst.node}",
        record=0,
        of=1,
        psnr=psnr,
        captions=captions,
        certificate="bit for bit" if worst is not None and worst.exact else "",
        found=found,
        original=original,
    )
