"""MNIST and Fashion-MNIST in the idx files in which they are published, packed or not."""

from __future__ import annotations

import gzip
import math
import zlib
from pathlib import Path
from typing import IO, Any

import numpy as np

from leakaudit._util.untrusted import npz
from leakaudit.core.errors import LeakauditError

# Normalised names of the folders in which either may lie; the first is the one of torchvision.
FOLDERS = {"mnist": ("MNIST",), "fashion": ("FashionMNIST", "fashion")}
LABELS = {
    "mnist": (
        *("0 - zero", "1 - one", "2 - two", "3 - three", "4 - four"),
        *("5 - five", "6 - six", "7 - seven", "8 - eight", "9 - nine"),
    ),
    "fashion": (
        *("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"),
        *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
    ),
}
# The first labels of the published files. Both data sets have files of the same names, and a folder
# with the other one would be read without a complaint.
FIRST = {
    "train": {"mnist": (5, 0, 4, 1, 9, 2, 1, 3), "fashion": (9, 0, 0, 3, 0, 2, 7, 2)},
    "t10k": {"mnist": (7, 2, 1, 0, 4, 1, 4, 9), "fashion": (9, 2, 1, 1, 6, 1, 4, 6)},
}
TITLES = {"mnist": "MNIST", "fashion": "Fashion-MNIST"}


def read(name: str, root: Path, part: str) -> tuple[np.ndarray, np.ndarray] | None:
    """Read images (n, h, w) and labels (n,), both uint8; None if there are no such files.

    Args:
        name: ``mnist`` or ``fashion``.
        root: The folder of the files, or one above it.
        part: ``train`` or ``t10k``, the test set.

    Raises:
        LeakauditError: A file is damaged, or is the one of the other data set.
    """
    for folder in _folders(name, root):
        pixels = _file(folder, f"{part}-images", 3)
        labels = _file(folder, f"{part}-labels", 1)
        if pixels is None or labels is None:
            continue
        x, y = _array(pixels, 3), _array(labels, 1)
        if len(x) != len(y):
            raise LeakauditError(
                f"{name}: {pixels.name} has {len(x)} images, but {labels.name} {len(y)} labels"
            )
        for other, first in FIRST[part].items():
            if other != name and tuple(y[: len(first)].tolist()) == first:
                raise LeakauditError(
                    f"{name}: the files in {folder} are those of {TITLES[other]}; use --data "
                    f"{other}, or another --data-root"
                )
        return x, y
    return None


def _folders(name: str, root: Path) -> list[Path]:
    """Return where the files may lie: subfolders of the data set's name first, then the root."""
    known = [_plain(title) for title in FOLDERS[name]]
    found = []
    if root.is_dir():
        found = [
            one for one in sorted(root.iterdir()) if one.is_dir() and _plain(one.name) in known
        ]
    return [place for folder in [*found, root] for place in (folder / "raw", folder)]


def _plain(name: str) -> str:
    return "".join(filter(str.isalnum, name.lower()))


def _file(folder: Path, stem: str, axes: int) -> Path | None:
    for dash in "-.":
        for ending in ("", ".gz"):
            path = folder / f"{stem}{dash}idx{axes}-ubyte{ending}"
            if path.is_file():
                return path
    return None


def _array(path: Path, axes: int) -> np.ndarray:
    """Read an idx file of bytes: two zeros, 8, the number of axes, their lengths, the bytes."""
    opened: Any = gzip.open if path.suffix == ".gz" else open
    try:
        file: IO[bytes]
        with opened(path, "rb") as file:
            head = file.read(4 + 4 * axes)
            sides = tuple(np.frombuffer(head[4:], ">u4").tolist()) if len(head) % 4 == 0 else ()
            count = math.prod(sides)
            if head[:4] != bytes([0, 0, 8, axes]) or len(sides) != axes:
                raise LeakauditError(f"{path}: expected an idx file of bytes with {axes} axes")
            if count > npz.unpacked(path.stat().st_size):
                raise LeakauditError(f"{path}: declares {count} bytes, too many for its size")
            body = file.read(count + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise LeakauditError(f"{path}: cannot be read ({error})") from error
    if len(body) != count:
        raise LeakauditError(f"{path}: expected {count} bytes after its head, got another number")
    return np.frombuffer(bytearray(body), np.uint8).reshape(sides)  # a copy, to be writable
