"""Safe reading of a .pt file from an untrusted source: all of it is checked, none of it executed.

`torch.load(weights_only=True)` does not reject an archive or an index that exhausts the memory, so
torch never receives the file. `outline` does without torch, which is slow to import.
"""

from __future__ import annotations

import io
import math
import mmap
import os
import pickle
import pickletools
import stat
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeGuard

import numpy as np

from leakaudit._util.files import explained
from leakaudit._util.untrusted.archive import FileFault, Record, directory, refuse, short
from leakaudit.core import mapping
from leakaudit.core.errors import LeakauditError

if TYPE_CHECKING:
    from torch import Tensor


class _NumberType(NamedTuple):
    name: str
    itemsize: int  # bytes of one number


STORAGES = {
    "HalfStorage": _NumberType("float16", 2),
    "BFloat16Storage": _NumberType("bfloat16", 2),
    "FloatStorage": _NumberType("float32", 4),
    "DoubleStorage": _NumberType("float64", 8),
    "ByteStorage": _NumberType("uint8", 1),
    "CharStorage": _NumberType("int8", 1),
    "ShortStorage": _NumberType("int16", 2),
    "IntStorage": _NumberType("int32", 4),
    "LongStorage": _NumberType("int64", 8),
    "BoolStorage": _NumberType("bool", 1),
}
_CONTAINERS = (
    "PROTO STOP MARK EMPTY_DICT EMPTY_LIST EMPTY_TUPLE TUPLE TUPLE1 TUPLE2 TUPLE3 "
    "SETITEM SETITEMS APPEND APPENDS"
)
_VALUES = "NONE NEWTRUE NEWFALSE BININT BININT1 BININT2 LONG1 BINFLOAT BINUNICODE"
_MEMO = "BINPUT LONG_BINPUT BINGET LONG_BINGET"
_TENSORS = "GLOBAL REDUCE BINPERSID"
OPCODES = frozenset(f"{_CONTAINERS} {_VALUES} {_MEMO} {_TENSORS}".split())

# Limits on the contents of an index, choices far above what a trace needs: that of a small trace
# has 1,400 bytes and 340 steps, and only public tensors and states add to it.
MAX_INDEX = 8 << 20  # bytes
MAX_STEPS = 50_000
MAX_DEPTH = 8
MAX_INT = 1 << 48

# Map without reserving memory, so that a file may be larger than the memory. Python has a name for
# this flag since 3.13.
_LINUX_NORESERVE = 0x4000 if sys.platform == "linux" else 0
NORESERVE = getattr(mmap, "MAP_NORESERVE", _LINUX_NORESERVE)


@dataclass(frozen=True)
class _MappedTensor:
    """A tensor of a file, whose bytes are mapped copy-on-write, but have not been read."""

    dtype: str  # name of the type of its numbers
    shape: tuple[int, ...]  # its shape
    data: mmap.mmap
    start: int  # position of its first byte in the file

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        """Return a numpy array; numpy has no bfloat16."""
        count = math.prod(self.shape)
        flat = np.empty(0, self.dtype)
        if count:
            flat = np.frombuffer(self.data, self.dtype, count, self.start)
            mapping.need(self.data, self.start + flat.nbytes)
        return np.array(flat.reshape(self.shape), dtype, copy=copy)

    def tensor(self) -> Tensor:
        import torch

        kind = getattr(torch, self.dtype)
        count = math.prod(self.shape)
        if not count:
            return torch.empty(self.shape, dtype=kind)
        flat = torch.frombuffer(self.data, dtype=kind, count=count, offset=self.start)
        return flat.view(self.shape)


class _Store(NamedTuple):
    dtype: _NumberType
    key: str
    numel: int


class _Shell(NamedTuple):
    store: _Store
    offset: int
    shape: tuple[int, ...]


def read(path: Path) -> dict[str, Any]:
    """Return the file's dictionary: plain values, and tensors that are mapped copy-on-write.

    Memory and time do not depend on the size of the tensors.
    """
    tree: dict[str, Any] = _tensors(outline(path))
    return tree


def outline(path: Path) -> dict[str, Any]:
    """Return the file's dictionary as `read` does, with tensors that have not been read."""
    with explained(f"cannot read {path}"):
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # a named pipe must not block
        try:
            return _read(fd, path)
        except FileFault as why:
            raise LeakauditError(f"{path} is rejected: {why}") from None
        finally:
            os.close(fd)


def _read(fd: int, path: Path) -> dict[str, Any]:
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode):
        refuse("it is not a regular file")
    if status.st_size == 0:
        refuse("the file is empty")
    records = directory(fd, status.st_size)
    order = records.get("byteorder")
    if order is not None:
        said = os.pread(fd, min(order.size, 16), order.start)
        if said != sys.byteorder.encode():
            refuse(f"it was not written on a {sys.byteorder}-endian machine")
    size = records["data.pkl"].size
    if size > MAX_INDEX:
        refuse(f"its index takes {size} bytes (maximum {MAX_INDEX})")
    tree = _parse(os.pread(fd, size, records["data.pkl"].start))
    try:
        data = mmap.mmap(
            fd,
            status.st_size,
            flags=mmap.MAP_PRIVATE | NORESERVE,
            prot=mmap.PROT_READ | mmap.PROT_WRITE,
        )
    except ValueError:  # there are fewer bytes than a moment ago
        refuse("it was truncated while it was read")
    mapping.register(data, path)
    built = _Builder(records, data).build(tree, 0)
    if not isinstance(built, dict):
        refuse("it does not contain a dictionary of named values")
    return built


def _tensors(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {key: _tensors(part) for key, part in tree.items()}
    if isinstance(tree, list):
        return [_tensors(part) for part in tree]
    return tree.tensor() if isinstance(tree, _MappedTensor) else tree


def _parse(index: bytes) -> Any:
    """Return the index with a `_Shell` for every tensor.

    Every opcode is checked before any is executed, and the unpickler can call only `_NAMES`.
    """
    try:
        end = 0
        for count, (op, arg, at) in enumerate(pickletools.genops(index)):
            _allow(op.name, arg, count)
            end = (at or 0) + 1
        if index[end:].strip(b"\0"):
            refuse("there are data after its index")
        return _Unpickler(io.BytesIO(index)).load()
    except FileFault:
        raise
    except Exception:  # a damaged pickle raises anything
        refuse("its index is damaged")


def _allow(opcode: str, arg: Any, count: int) -> None:
    if opcode not in OPCODES:
        refuse(f"its index uses {opcode}, which a trace does not need")
    if opcode == "GLOBAL" and arg not in _NAMES:
        refuse(
            f"its index names {short(arg)}; "
            "a trace contains only plain tensors and values, and no code"
        )
    if count > MAX_STEPS or ("PUT" in opcode and arg > MAX_STEPS):
        refuse("its index has too many parts")


def _shell(
    store: object,
    offset: object,
    shape: object,
    stride: object,
    _gradient: object,
    _hooks: object,
    *_: object,
) -> _Shell:
    """Replaces `torch._utils._rebuild_tensor_v2`."""
    odd = "its index describes a tensor differently from torch"
    if not isinstance(store, _Store) or not _is_count(offset):
        refuse(odd)
    if not isinstance(shape, tuple) or not isinstance(stride, tuple):
        refuse(odd)
    if len(shape) != len(stride) or len(shape) > MAX_DEPTH:
        refuse(odd)
    if not all(map(_is_count, (*shape, *stride))):
        refuse(odd)
    numel = math.prod(shape)
    if offset + numel > store.numel:
        refuse(f"a tensor of shape {shape} has more numbers than the file contains")
    # Contiguous: the last axis has stride 1, and each other one the product of the lengths after
    # it. Axes of length 1, and tensors without numbers, may have any strides.
    step = 1
    for length, jump in zip(reversed(shape), reversed(stride), strict=True):
        if numel and length != 1 and jump != step:
            refuse(f"a tensor of shape {shape} is not contiguous")
        step *= length
    return _Shell(store, offset, shape)


def _is_count(value: object) -> TypeGuard[int]:
    return type(value) is int and 0 <= value < MAX_INT


def _no_hooks() -> None:
    """Replaces the empty `collections.OrderedDict` that follows every tensor."""


_NAMES: dict[str, Any] = {
    "torch._utils _rebuild_tensor_v2": _shell,
    "collections OrderedDict": _no_hooks,
    **{f"torch {name}": dtype for name, dtype in STORAGES.items()},
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        return _NAMES[f"{module} {name}"]

    def persistent_load(self, described: Any) -> _Store:
        kind, dtype, key, _, numel = described
        sound = kind == "storage" and isinstance(dtype, _NumberType) and type(key) is str
        if not sound or not _is_count(numel):
            refuse("its index describes a storage differently from torch")
        return _Store(dtype, key, numel)


class _Builder:
    """Finds the bytes of every shell in the mapped file.

    It counts its steps, because a small index can share its parts endlessly.
    """

    def __init__(self, records: dict[str, Record], data: mmap.mmap) -> None:
        self.records = records
        self.data = data
        self.steps = 0

    def build(self, value: Any, depth: int) -> Any:
        self.steps += 1
        if self.steps > MAX_STEPS or depth > MAX_DEPTH:
            refuse("its values are nested too deeply, or repeat endlessly")
        if isinstance(value, _Shell):
            return self._tensor(value)
        if isinstance(value, dict):
            if not all(type(key) is str for key in value):
                refuse("a dictionary in it has keys that are not text")
            return {key: self.build(part, depth + 1) for key, part in value.items()}
        if isinstance(value, list) or type(value) is tuple:
            return [self.build(part, depth + 1) for part in value]
        if value is not None and type(value) not in (bool, int, float, str):
            refuse("it contains something other than plain values and tensors")
        return value

    def _tensor(self, shell: _Shell) -> _MappedTensor:
        dtype, key, numel = shell.store
        record = self.records.get(f"data/{key}")
        if record is None or numel * dtype.itemsize > record.size:
            refuse(f"record {short(key)} is too small for the stated {numel} numbers")
        if record.start % dtype.itemsize:
            refuse(f"record {short(key)} is not aligned")
        start = record.start + shell.offset * dtype.itemsize
        return _MappedTensor(dtype.name, shell.shape, self.data, start)
