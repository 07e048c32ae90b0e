"""Reading of .npz files of strangers: nothing is unpickled, and sizes are checked beforehand."""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any
from zipfile import ZipFile

if TYPE_CHECKING:  # records of figures are read without numpy
    import numpy as np

# A file may unpack to this many times its size, or to the harmless number of bytes. Both are
# choices: numbers of images and weights rarely shrink to a tenth.
RATIO = 100
HARMLESS = 1 << 28
LARGEST = 1 << 32  # bytes that any file may unpack to; a choice
ENDING = ".npy"


def unpacked(size: int) -> int:
    """Return to how many bytes a compressed file of a size may unpack."""
    return min(LARGEST, max(HARMLESS, RATIO * size))


@contextmanager
def old_headers() -> Iterator[None]:
    """Read arrays without numpy's warning that Python 2 wrote a header."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Reading `.npy` or `.npz` file", UserWarning)
        yield


@contextmanager
def _damage(name: str) -> Iterator[None]:
    """Turn whatever a damaged entry raises into a ValueError with its name."""
    try:
        yield
    except OSError:
        raise
    except Exception as error:
        raise ValueError(f"array {name[:80]!r}: {str(error)[:200]}") from None


class Npz:
    """An open .npz file; its arrays are read one at a time.

    Args:
        most: Bytes to which it may unpack; None for `unpacked` of its size.
    """

    def __init__(self, path: Path, most: float | None = None) -> None:
        if most is None:
            most = unpacked(path.stat().st_size)
        try:
            self._archive = ZipFile(path)
        except OSError:
            raise
        except Exception as error:  # a damaged archive raises anything
            raise ValueError(str(error)) from None
        entries = self._archive.infolist()
        self.size = sum(entry.file_size for entry in entries)
        if self.size > most:
            self._archive.close()
            raise ValueError(f"it unpacks to {self.size} bytes, expected at most {most}")
        self.files = [entry.filename.removesuffix(ENDING) for entry in entries]

    def __enter__(self) -> Npz:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        self._archive.close()

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self.files:
            raise KeyError(name)
        with _damage(name):
            return self._read(name)

    def length(self, name: str) -> int:
        """Return how many numbers an array declares; none of them is read."""
        with _damage(name):
            shape, _ = self._header(name)
        return math.prod(shape)

    def _header(self, name: str) -> tuple[tuple[int, ...], np.dtype[Any]]:
        import numpy as np

        with self._archive.open(name + ENDING) as file:
            header: Any = np.lib.format.read_array_header_2_0
            if np.lib.format.read_magic(file) == (1, 0):
                header = np.lib.format.read_array_header_1_0
            with old_headers():
                shape, _, dtype = header(file)
        return shape, dtype

    def _read(self, name: str) -> np.ndarray:
        import numpy as np

        held = self._archive.getinfo(name + ENDING).file_size
        shape, dtype = self._header(name)
        if dtype.hasobject:
            raise ValueError("it holds pickled Python objects, which are never loaded")
        size = math.prod(shape) * dtype.itemsize
        if size > held:
            raise ValueError(f"it declares {size} bytes, expected at most {held}")
        with self._archive.open(name + ENDING) as file, old_headers():
            read: np.ndarray = np.lib.format.read_array(file, allow_pickle=False)
        if dtype.kind == "U" and read.size:
            # A str with a character beyond Unicode cannot be made; numpy reads it all the same.
            codes = np.frombuffer(read.tobytes(), np.dtype("u4").newbyteorder(dtype.byteorder))
            if (codes > sys.maxunicode).any():
                raise ValueError("it has text with characters beyond Unicode")
        return read
