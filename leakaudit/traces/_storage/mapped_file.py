"""A .pt file that is laid out with holes of zeros, and then filled in place through a memory map.

`torch.save` stores records uncompressed, as in memory, so a process that is killed loses nothing.
The large tensor comes last, so that it can be truncated to the part that was used.
"""

from __future__ import annotations

import errno
import io
import math
import mmap
import os
import pickle
import secrets
import shutil
import sys
import zlib
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import torch
from torch import Tensor

from leakaudit._util import files
from leakaudit._util.untrusted.archive import ArchiveWriter, Record
from leakaudit._util.untrusted.safe_reader import STORAGES
from leakaudit.core import mapping
from leakaudit.core.errors import LeakauditError

# Number of bytes for which blocks and pages are allocated in advance, which doubles the speed.
AHEAD = 32 << 20
BEHIND = 32 << 20  # number of bytes whose memory is released at once: a choice, as AHEAD
COPY = 1 << 20  # number of bytes copied at a time
POPULATE_WRITE = 23  # an advice of madvise, Linux 5.14; Python has no name for it
_STORAGE = {getattr(torch, dtype.name): getattr(torch, name) for name, dtype in STORAGES.items()}
_REBUILD: Callable[..., Tensor] = torch._utils._rebuild_tensor_v2

Tree = Mapping[str, Any]


def hole(*shape: int, dtype: torch.dtype) -> Tensor:
    """Return a tensor that stands for zeros, which take no space before they are written."""
    return torch.empty(shape, dtype=dtype, device="meta")


class MemoryFile:
    """The same as `MapFile`, without a file; memory that is never written is never used."""

    def __init__(self, tree: Tree) -> None:
        self.tree = _replace(tree, _allocated)

    def publish(self) -> None:
        """Make the file available under its name."""

    def reserve(self, stop: int) -> None:
        """Ensure that the first `stop` bytes of the last leaf can be written."""

    def take(self, other: MemoryFile, stop: int) -> None:
        """Copy the first `stop` bytes of the last leaf of another file."""
        mine = _last_leaf(self.tree).view(-1).view(torch.uint8)
        theirs = _last_leaf(other.tree).view(-1).view(torch.uint8)
        mine[:stop] = theirs[:stop]

    def release(self, stop: int) -> None:
        """Release the memory of the first `stop` bytes of the last leaf."""

    def finish(self, rows: int) -> None:
        """Truncate the last leaf and write no more."""

    def discard(self) -> None:
        """Give up before `publish`."""


class MapFile(MemoryFile):
    """The tensors of a new .pt file, which has a temporary name until `publish`.

    Args:
        tree: Dictionaries of plain values, tensors (copied) and holes, the last of which
            is the large one.
    """

    def __init__(self, path: Path, tree: Tree) -> None:
        self.path = path
        self._plan = _replace(tree, lambda leaf: hole(*leaf.shape, dtype=leaf.dtype))
        self._temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.new")
        laid = _lay_out(self._plan)
        self._index_size = laid.index_size
        self._last = laid.tensors[-1]
        self._size = size = laid.writer.at + len(laid.tail)
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        with files.explained(f"cannot write {path}", "; choose another path"):
            self._fd = os.open(self._temporary, flags, files.mode(path))
        try:
            os.ftruncate(self._fd, size)
            if sys.platform == "linux":
                # All but the last leaf is certain to be written, so its blocks are allocated now.
                os.posix_fallocate(self._fd, 0, self._last.start)
            laid.writer.write(self._fd)
            os.pwrite(self._fd, laid.tail, laid.writer.at)
            self._map = mmap.mmap(self._fd, size)
            mapping.register(self._map, path)
        except OSError as error:
            self.discard()
            raise LeakauditError(
                f"cannot write {path} ({laid.writer.at} bytes): {error.strerror}"
            ) from None
        records = iter(laid.tensors)
        self.tree = _replace(tree, lambda leaf: self._view(leaf, next(records).start))
        # Number of bytes of the last leaf that have blocks, and whose memory has been released.
        self._ready = 0
        self._released = 0

    def _view(self, leaf: Tensor, start: int) -> Tensor:
        count = math.prod(leaf.shape)
        if not count:
            return torch.empty(leaf.shape, dtype=leaf.dtype)
        flat = torch.frombuffer(self._map, dtype=leaf.dtype, count=count, offset=start)
        view = flat.view(leaf.shape)
        return view if leaf.is_meta else view.copy_(leaf)

    def publish(self) -> None:
        """Replace whatever exists at `path`."""
        try:
            os.replace(self._temporary, self.path)
        except OSError as error:
            self.discard()
            raise LeakauditError(
                f"cannot write {self.path}: {error.strerror}; choose another path"
            ) from None

    def reserve(self, stop: int) -> None:
        """Allocate disk blocks for the first `stop` bytes of the last leaf."""
        if stop <= self._ready:
            return
        self._whole()
        free = self._ready + shutil.disk_usage(self.path.parent).free
        stop = max(stop, min(self._ready + AHEAD, self._last.size, free))
        if free < stop:  # writing to the map of a full disk would kill the process
            self._no_room()
        start, length = _pages(self._last.start + self._ready, self._last.start + stop)
        try:
            if sys.platform == "linux":
                os.posix_fallocate(self._fd, start, length)
                self._map.madvise(POPULATE_WRITE, start, length)
        except OSError as error:  # other file systems and older kernels work without it
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                self._no_room()
        self._ready = stop

    def _whole(self) -> None:
        if os.fstat(self._fd).st_size < self._size:
            raise LeakauditError(
                f"{self.path} was truncated while it was written; keep others away from it, and "
                "record again"
            )

    def _no_room(self) -> NoReturn:
        raise LeakauditError(
            f"the disk of {self.path} is full; what was recorded so far can be read"
        )

    def take(self, other: MemoryFile, stop: int) -> None:
        """Copy through the operating system, which is faster than through the two maps."""
        assert isinstance(other, MapFile)
        try:
            for at in range(0, stop, COPY):
                piece = os.pread(other._fd, min(COPY, stop - at), other._last.start + at)
                os.pwrite(self._fd, piece, self._last.start + at)
        except OSError:
            self._no_room()
        self._ready = stop
        self._released = stop

    def release(self, stop: int) -> None:
        """Release written pages from this process; the operating system writes them out later."""
        if stop - self._released < BEHIND:
            return
        start, length = _pages(self._last.start + self._released, self._last.start + stop)
        self._map.madvise(mmap.MADV_DONTNEED, start, length)
        self._released = stop

    def finish(self, rows: int) -> None:
        """Truncate the last leaf in place, write everything to the disk, and close.

        An archive is read from the directory at its end. So one for the shorter tensor is written
        into the unused part of that tensor, then headers of the same size, and the file is
        truncated after it: a reader finds a valid file at every moment. If that does not fit, the
        file keeps its length.
        """
        last = _last_leaf(self._plan)
        cut = hole(rows, *last.shape[1:], dtype=last.dtype)
        shorter = _replace(self._plan, lambda leaf: cut if leaf is last else leaf)
        laid = _lay_out(shorter, self._index_size)
        size = laid.writer.at + len(laid.tail)
        room = self._last.start + self._last.size
        try:
            self._whole()
            if laid.index_size == self._index_size and size <= room:
                os.pwrite(self._fd, laid.tail, laid.writer.at)
                laid.writer.write(self._fd)
                os.ftruncate(self._fd, size)
            os.fsync(self._fd)
            files.sync_folder(self.path.parent)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                self._no_room()
            raise LeakauditError(
                f"cannot write {self.path}: {error.strerror}; what was recorded may be damaged"
            ) from None
        finally:
            os.close(self._fd)
            self._fd = -1

    def discard(self) -> None:
        """Remove the temporary file."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        self._temporary.unlink(missing_ok=True)


class _Store(NamedTuple):
    """A record of the archive, pickled as torch pickles its storages."""

    key: str
    leaf: Tensor


class _Pickler(pickle.Pickler):
    """Pickles holes in the way that `torch.save` pickles tensors."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, protocol=2)
        self.stores: list[_Store] = []

    def persistent_id(self, obj: Any) -> Any:
        if not isinstance(obj, _Store):
            return None
        return ("storage", _STORAGE[obj.leaf.dtype], obj.key, "cpu", obj.leaf.numel())

    def reducer_override(self, obj: Any) -> Any:
        if not isinstance(obj, Tensor):
            return NotImplemented
        self.stores.append(_Store(str(len(self.stores)), obj))
        shape = tuple(obj.shape)
        return _REBUILD, (self.stores[-1], 0, shape, obj.stride(), False, OrderedDict())


class _Laid(NamedTuple):
    writer: ArchiveWriter  # contains its records
    tail: bytes  # the bytes that follow them
    index_size: int  # size of the index in bytes
    tensors: list[Record]  # the records of tensors, in the order of the leaves of the tree


def _lay_out(plan: Tree, index_size: int = 0) -> _Laid:
    """Lay out the file of a tree of holes.

    The index is padded to `index_size`, so that records keep their positions if a shape is shorter.
    """
    out = io.BytesIO()
    pickler = _Pickler(out)
    pickler.dump(plan)
    small = {
        "data.pkl": out.getvalue().ljust(index_size, b"\0"),
        "version": b"3\n",
        "byteorder": sys.byteorder.encode(),
    }
    writer = ArchiveWriter()
    for name, data in small.items():
        writer.add(name, len(data), data)
    tensors = [writer.add(f"data/{key}", leaf.nbytes) for key, leaf in pickler.stores]
    checksums = {name: zlib.crc32(data) for name, data in small.items()}
    return _Laid(writer, writer.directory(checksums), len(small["data.pkl"]), tensors)


def _allocated(leaf: Tensor) -> Tensor:
    return torch.zeros(leaf.shape, dtype=leaf.dtype) if leaf.is_meta else leaf.clone()


def _replace(tree: Tree, new: Callable[[Any], Any]) -> dict[str, Any]:
    """Copy the dictionaries of `tree` with new(leaf) for every tensor and hole, in order."""
    copy: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping):
            copy[key] = _replace(value, new)
        elif isinstance(value, Tensor):
            copy[key] = new(value)
        else:
            copy[key] = value
    return copy


def _leaves(tree: Tree) -> Iterator[Any]:
    for value in tree.values():
        if isinstance(value, Mapping):
            yield from _leaves(value)
        elif isinstance(value, Tensor):
            yield value


def _last_leaf(tree: Tree) -> Any:
    return [*_leaves(tree)][-1]


def _pages(start: int, stop: int) -> tuple[int, int]:
    start -= start % mmap.PAGESIZE
    return start, stop - start
