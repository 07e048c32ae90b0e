"""The user's data files: npz, folders of images, LIBSVM text.

Malformed and malicious files are rejected with an error of one line.
"""

from __future__ import annotations

import bz2
import gzip
import warnings
import zlib
from array import array
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, TypeAlias

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from leakaudit._util.untrusted import npz
from leakaudit.core.errors import LeakauditError

LARGEST = 2**31  # maximum bytes that one file may declare, unpacked; a choice
# Numbers that a sparse table may have in any case, and for each of its entries. Choices; news20, a
# table of words in texts, has 3,000 for each entry.
SPARSE = 10_000_000
ZEROS = 10_000
# A compressed text may unpack to this many times its size, or to the harmless number of bytes.
# Choices: numbers shrink to a twentieth at most, and a megabyte of lines is read in two seconds.
TEXT_RATIO = 50
TEXT = 2**20
LONGEST_LINE = 2**24  # maximum bytes of a line of text, and pixels of an image; a choice
SUFFIXES = (".png", ".jpg", ".jpeg")
# Pillow modes with 8 bits per channel, and the mode each is converted to; transparency is dropped.
MODES = {
    "1": "L",
    "L": "L",
    "LA": "L",
    "P": "RGB",
    "PA": "RGB",
    "RGB": "RGB",
    "RGBA": "RGB",
    "CMYK": "RGB",
    "YCbCr": "RGB",
}


# The records x (s, *shape) float32 of a source, images (c, h, w) in [0, 1] or features (p,); their
# targets y (s,), int64 classes 0..C-1 or float32; the names of the classes, which may be empty; 255
# if x is k/255, else 0; and the number of different tokens if x are tokens, else 0.
Records: TypeAlias = tuple[Tensor, Tensor, tuple[str, ...], int, int]


def images(pixels: np.ndarray) -> Tensor:
    """Convert bytes (s, h, w), (s, h, w, c) or (s, p) to float32 k/255, channels first."""
    x = torch.from_numpy(np.ascontiguousarray(pixels)).float().div_(255)
    return x if x.dim() == 2 else _channels_first(x)


def _channels_first(x: Tensor) -> Tensor:
    if x.dim() == 3:
        return x.unsqueeze(1)
    return x.permute(0, 3, 1, 2).contiguous()


def classes(values: np.ndarray) -> tuple[Tensor, tuple[str, ...]]:
    """Map labels (s,) to 0..C-1 in sorted order, and name them unless they already were 0..C-1."""
    found, y = np.unique(values, return_inverse=True)
    same = np.issubdtype(found.dtype, np.integer) and np.array_equal(found, np.arange(len(found)))
    names: tuple[str, ...] = ()
    if not same:
        names = tuple(f"{v:g}" if isinstance(v, np.floating) else str(v) for v in found)
    return torch.from_numpy(y.astype(np.int64)), names


def _targets(values: np.ndarray) -> Tensor:
    """Return regression targets (s,) in float32; those that overflow are infinite."""
    with np.errstate(all="ignore"):  # infinity is rejected with all other non-finite values
        return torch.from_numpy(values.astype(np.float32))


def read_npz(path: Path) -> Records:
    """Read arrays x and y, or x_train and y_train, of an npz file.

    x is uint8 (n, h, w[, c]) images; float (n, h, w[, c]) images in [0, 1]; or (n, p) features,
    k/255 if uint8. y is (n,): integers or text are classes, floats are regression targets.
    """
    with _opened_npz(path) as file:
        names = _training(file)
        if names is None:
            have = ", ".join(file.files)[:80] or "none"
            raise LeakauditError(f"npz {path}: expected arrays x and y, got {have}")
        x, y = _arrays(file, path, *names)
    if y.dtype.kind == "f":
        return _values(x), _targets(y), (), _levels(x), 0
    return _values(x), *classes(y), _levels(x), 0


def read_npz_test(path: Path) -> Records | None:
    """Read arrays x_test and y_test of an npz file; None if it has none.

    Their classes have the numbers of `read_npz`.
    """
    with _opened_npz(path) as file:
        names = _training(file)
        if names is None or not {"x_test", "y_test"} <= set(file.files):
            return None
        x, y = _arrays(file, path, "x_test", "y_test")
        known = np.unique(file[names[1]])  # all different y of the other records
    if y.dtype.kind == "f":
        return _values(x), _targets(y), (), _levels(x), 0
    target = np.searchsorted(known, y).clip(max=len(known) - 1)
    if not np.array_equal(known[target], y):
        raise LeakauditError(f"npz {path}: y_test has classes that y lacks")
    return _values(x), torch.from_numpy(target.astype(np.int64)), (), _levels(x), 0


def read_npz_owners(path: Path, count: int) -> Tensor | None:
    """Read the array owner (n,) of an npz file, as whole numbers; None if it has none."""
    with _opened_npz(path) as file:
        if "owner" not in file.files:
            return None
        found = file["owner"]
    if found.shape != (count,) or found.dtype.kind not in "iuU":
        raise LeakauditError(
            f"npz {path}: expected owner ({count},) of whole numbers or text, one per record, got "
            f"{found.dtype} {found.shape}"
        )
    return torch.from_numpy(np.unique(found, return_inverse=True)[1].astype(np.int64))


def _values(x: np.ndarray) -> Tensor:
    """Return the records of an array of images or features, as float32."""
    if x.dtype == np.uint8:
        return images(x)
    with np.errstate(all="ignore"):  # infinity is rejected with all other non-finite values
        values = torch.from_numpy(np.ascontiguousarray(x, dtype=np.float32))
    return _channels_first(values) if x.ndim > 2 else values


def _levels(x: np.ndarray) -> int:
    return 255 if x.dtype == np.uint8 else 0


@contextmanager
def _opened_npz(path: Path) -> Iterator[npz.Npz]:
    try:
        with npz.Npz(path) as file:
            yield file
    except (OSError, ValueError) as error:
        raise LeakauditError(
            f"npz {path}: cannot be read ({error}); expected a file of numpy.savez with x and y"
        ) from error


def _training(file: npz.Npz) -> tuple[str, str] | None:
    """Return the names of the arrays that are not test arrays."""
    for x, y in (("x", "y"), ("x_train", "y_train")):
        if {x, y} <= set(file.files):
            return x, y
    return None


def _arrays(file: npz.Npz, path: Path, x: str, y: str) -> tuple[np.ndarray, np.ndarray]:
    most = min(LARGEST, npz.unpacked(path.stat().st_size))
    if (size := file.length(x) * 4) > most:
        raise LeakauditError(
            f"npz {path}: {x} has {size} bytes as float32, expected at most {most} from a file of "
            "this size"
        )
    pair = file[x], file[y]
    _check_arrays(*pair, path)
    return pair


def _check_arrays(x: np.ndarray, y: np.ndarray, path: Path) -> None:
    numbers = np.issubdtype(x.dtype, np.number) and x.dtype.kind != "c"
    if x.ndim not in (2, 3, 4) or not numbers or 0 in x.shape:
        raise LeakauditError(
            f"npz {path}: expected numbers x (n, h, w), (n, h, w, c) or (n, p), "
            f"got {x.dtype} {x.shape}"
        )
    if x.ndim == 4 and x.shape[3] not in (1, 3):
        raise LeakauditError(
            f"npz {path}: expected x (n, h, w, c) with 1 or 3 channels last, got {x.shape}"
        )
    if y.ndim != 1 or len(y) != len(x) or y.dtype.kind not in "biufU":
        raise LeakauditError(
            f"npz {path}: expected y ({len(x)},) of numbers or text, one per record of x, "
            f"got {y.dtype} {y.shape}"
        )


def read_folder(folder: Path) -> Records:
    """Read PNG and JPEG files of the same size; each subfolder, or else every image, is a class."""
    if not folder.is_dir():
        raise LeakauditError(f"images:{folder}: no such folder")
    groups = sorted(d for d in folder.iterdir() if d.is_dir() and not d.name.startswith("."))
    files: list[Path] = []
    labels: list[int] = []
    for k, group in enumerate(groups or [folder]):
        own = sorted(f for f in group.iterdir() if f.suffix.lower() in SUFFIXES)
        files.extend(own)
        labels.extend([k] * len(own))
    if not files:
        raise LeakauditError(
            f"images:{folder}: expected {', '.join(SUFFIXES)} files in it or in its subfolders, "
            "found none"
        )
    pixels = _pictures(files, folder)
    y = torch.tensor(labels) if groups else torch.arange(len(files))
    return images(np.stack(pixels)), y, tuple(d.name for d in groups), 255, 0


def _pictures(files: list[Path], folder: Path) -> list[np.ndarray]:
    """Read images of equal size and number of channels; gray becomes colour if any has colour."""
    most = min(LARGEST, npz.unpacked(sum(path.stat().st_size for path in files)))
    pixels: list[np.ndarray] = []
    for path in files:
        pixels.append(_picture(path))
        if pixels[-1].shape[:2] != pixels[0].shape[:2]:
            sizes = " and ".join(f"{p.shape[1]}x{p.shape[0]}" for p in (pixels[-1], pixels[0]))
            raise LeakauditError(
                f"images:{folder}: {path.name} and {files[0].name} have sizes {sizes}; "
                "all sizes must be equal"
            )
        if len(files) * pixels[-1].size * 4 > most:  # as float32
            raise LeakauditError(
                f"images:{folder}: {len(files)} images of this size need more than {most} bytes, "
                "the most for files of their size; use fewer or smaller images"
            )
    if len({p.ndim for p in pixels}) > 1:
        return [p if p.ndim == 3 else np.stack([p] * 3, axis=2) for p in pixels]
    return pixels


def _picture(path: Path) -> np.ndarray:
    try:
        # Pillow warns about parts that are dropped or malformed.
        quiet = warnings.catch_warnings(action="ignore")
        with quiet, Image.open(path, formats=("PNG", "JPEG")) as image:
            if image.width * image.height > LONGEST_LINE:
                raise LeakauditError(
                    f"image {path}: expected at most {LONGEST_LINE} pixels, "
                    f"got {image.width}x{image.height}"
                )
            if image.mode not in MODES:
                raise LeakauditError(
                    f"image {path}: expected 8 bits per channel, got mode {image.mode}; "
                    "convert it first"
                )
            return np.asarray(image.convert(MODES[image.mode]))
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise LeakauditError(f"image {path}: cannot be read ({error})") from error
    except MemoryError as error:  # Pillow allocates what a chunk of the file states as its length
        raise LeakauditError(
            f"image {path}: cannot be read (a part of it states a length beyond the free memory)"
        ) from error


@dataclass(frozen=True, eq=False)
class _Table:
    """Records of a LIBSVM file while it is read; entries that the file omits are zero.

    targets: one per record. rows, columns, values: of each entry, rows from 0 and columns from 1.
    """

    targets: array[float]
    rows: array[int]
    columns: array[int]
    values: array[float]


def read_libsvm(path: Path) -> Records:
    """Read LIBSVM text, ``label index:value ...`` with indices from 1, into dense features.

    The file is plain, .bz2 or .gz. Integer labels become classes 0..C-1 in sorted order; others are
    regression targets.
    """
    found = _table(path)
    columns = np.frombuffer(found.columns, np.int64)
    width = int(columns.max())
    if columns.min() < 1 or len(found.targets) * width * 4 > LARGEST:  # as float32
        raise LeakauditError(
            f"libsvm {path}: expected indices from 1 and at most {LARGEST} bytes as a table, "
            f"got indices {columns.min()} to {columns.max()}"
        )
    numbers = len(found.targets) * width
    if numbers > SPARSE + ZEROS * len(columns):
        raise LeakauditError(
            f"libsvm {path}: an index of {width} makes a table of {numbers} numbers, but the file "
            f"has only {len(columns)} entries; check the indices"
        )
    x = np.zeros((len(found.targets), width), np.float32)
    rows = np.frombuffer(found.rows, np.int64)
    with np.errstate(all="ignore"):  # infinity is rejected with all other non-finite values
        x[rows, columns - 1] = np.frombuffer(found.values, np.float64)
    y = np.frombuffer(found.targets, np.float64)
    if not np.isfinite(y).all():
        raise LeakauditError(
            f"libsvm {path}: record {int(np.argmin(np.isfinite(y)))} has a label "
            "that is not a finite number"
        )
    if not np.array_equal(y, np.round(y)):
        return torch.from_numpy(x), _targets(y), (), 0, 0
    return torch.from_numpy(x), *classes(y), 0, 0


def _table(path: Path) -> _Table:
    found = _Table(array("d"), array("q"), array("q"), array("d"))
    for number, line in enumerate(_lines(path), 1):
        words = line.partition(b"#")[0].split()
        if not words:
            continue
        try:
            found.targets.append(float(words[0]))
            pairs = [w.split(b":") for w in words[1:]]
            found.values.extend(float(v) for _, v in pairs)
            indices = [int(i) for i, _ in pairs]
            found.columns.extend(indices)
        except (ValueError, OverflowError) as error:
            raise LeakauditError(
                f"libsvm {path}, line {number}: expected 'label index:value …', got {line[:60]!r}"
            ) from error
        if len(set(indices)) < len(indices):
            again = Counter(indices).most_common(1)[0][0]
            raise LeakauditError(
                f"libsvm {path}, line {number}: expected each index once, got {again} repeatedly"
            )
        found.rows.extend([len(found.targets) - 1] * len(pairs))
    if not found.columns:
        raise LeakauditError(
            f"libsvm {path}: expected lines 'label index:value …', found none with a value"
        )
    return found


def _lines(path: Path) -> Iterator[bytes]:
    """Yield unpacked lines of a text file; reject overlong lines, and too many bytes."""
    opened: dict[str, Any] = {".bz2": bz2.open, ".gz": gzip.open}
    total = 0
    try:
        most = LARGEST
        if path.suffix in opened:
            most = min(LARGEST, max(TEXT, TEXT_RATIO * path.stat().st_size))
        file: IO[bytes]
        with opened.get(path.suffix, open)(path, "rb") as file:
            while line := file.readline(LONGEST_LINE):
                total += len(line)
                if len(line) == LONGEST_LINE or total > most:
                    raise LeakauditError(
                        f"libsvm {path}: expected lines under {LONGEST_LINE} and a text under "
                        f"{most} bytes, got more"
                    )
                yield line
    except (OSError, EOFError, zlib.error) as error:
        raise LeakauditError(f"libsvm {path}: cannot be read ({error})") from error
