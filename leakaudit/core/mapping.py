"""Mapped files: their memory does not grow, and a file that is truncated is noticed.

What is gone of a truncated file reads as zeros, also on Linux, which would end the process
(SIGBUS), so whoever uses what was read checks that it was there: `release` after every block,
`verify` before results are written.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import math
import mmap
import os
import platform
import signal
import sys
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from leakaudit.core.errors import LeakauditError

if TYPE_CHECKING:
    from torch import Tensor

PAGEOUT = 21  # an advice of madvise, Linux 5.4; Python has no name for it
# Bytes below which nothing is given back, because the call costs more than the memory. A choice.
SMALL = 1 << 16

# Systems on which the layouts below hold, for glibc and for musl.
SUPPORTED = sys.platform == "linux" and platform.machine() in ("x86_64", "aarch64")

_ADDRESS = 16  # position of si_addr in siginfo_t
_SIGINFO = 4  # SA_SIGINFO
_FIXED = 0x10  # MAP_FIXED: in place of what is mapped there


@dataclass
class _File:
    path: str
    start: int  # address of its first byte
    size: int  # number of bytes that are mapped
    needed: int = 0  # number of bytes that it must keep as long as it is mapped
    # tensors that a program still has, and how many bytes each of them needs
    used: list[tuple[weakref.ref[Tensor], int]] = field(default_factory=list)
    told: bool = False  # whether an error was raised about it

    def __contains__(self, address: int) -> bool:
        return self.start <= address < self.start + self.size

    def stop(self) -> int:
        self.used = [(tensor, stop) for tensor, stop in self.used if tensor() is not None]
        return max([self.needed, *(stop for _, stop in self.used)])


_lost: list[LeakauditError] = []  # what was found about files that nobody uses any more
# By the address of the first byte. It is copied in one step before it is gone through, because
# other threads open and close files meanwhile; the dictionaries of weakref cannot be copied so.
_files: dict[int, tuple[weakref.ref[mmap.mmap], _File]] = {}


def register(data: mmap.mmap, path: str | os.PathLike[str]) -> None:
    """Note a mapped file whose pages `release` may give back."""
    start = ctypes.addressof(ctypes.c_char.from_buffer(data))
    gone = weakref.ref(data, lambda _: _files.pop(start, None))
    _files[start] = gone, _File(str(path), start, len(data))
    _survive()


def use(*read: Tensor) -> None:
    """Note the contiguous tensors that a program needs: `verify` fails if a file loses them.

    The file of a recording becomes smaller when it ends, so only these count; it is checked once
    more when nobody has a tensor of it any more.
    """
    for tensor in read:
        if tensor.numel() and tensor.device.type == "cpu":
            found = _around(tensor.data_ptr())
            if found is not None:
                data, file = found
                stop = _stop(file, tensor)
                file.used.append((weakref.ref(tensor), stop))
                weakref.finalize(tensor, _last_look, weakref.ref(data), file, stop)


def need(data: mmap.mmap, stop: int) -> None:
    """Note the number of bytes that a file must keep as long as it is mapped."""
    for mapped, file in _open():
        if mapped is data:
            file.needed = max(file.needed, stop)


def verify() -> None:
    """Raise LeakauditError if a mapped file was truncated, so that zeros may have been read.

    This is said once about a file that nobody uses any more.
    """
    if any(_left(data) < file.stop() for data, file in _open()):
        gc.collect()  # nobody may use what is truncated any more
    for data, file in _open():
        _check(data, file, file.stop())
    if _lost:
        first = _lost[0]
        _lost.clear()
        raise first


def release(read: Tensor) -> None:
    """Give back the pages of a tensor in a mapped file; they are read again when needed."""
    size = read.numel() * read.element_size()
    if size < SMALL or not read.is_contiguous() or read.device.type != "cpu":
        return
    found = _around(read.data_ptr())
    if found is None:
        return
    data, file = found
    first = read.data_ptr() - file.start
    page = first - first % mmap.PAGESIZE
    with contextlib.suppress(OSError):  # other systems and older kernels do without
        data.madvise(PAGEOUT, page, first + size - page)
    _check(data, file, _stop(file, read))


def _stop(file: _File, read: Tensor) -> int:
    return read.data_ptr() - file.start + read.numel() * read.element_size()


def _check(data: mmap.mmap, file: _File, stop: int) -> None:
    left = _left(data)
    if left < stop:
        file.told = True
        raise LeakauditError(
            f"{file.path} was truncated while it was read: {left} of {file.size} bytes are left; "
            "copy the file again, and repeat the command"
        )


def _last_look(data: weakref.ref[mmap.mmap], file: _File, stop: int) -> None:
    """Check a file after its last use; the error waits for `verify`."""
    mapped = data()
    if mapped is not None and not file.told:
        try:
            _check(mapped, file, stop)
        except LeakauditError as error:
            _lost.append(error)


def _left(data: mmap.mmap) -> float:
    """Return the present size of a mapped file in bytes, infinite after the map was closed."""
    try:
        return data.size()
    except ValueError:
        return math.inf


def _open() -> Iterator[tuple[mmap.mmap, _File]]:
    for known, file in list(_files.values()):
        data = known()
        if data is not None:
            yield data, file


def _around(address: int) -> tuple[mmap.mmap, _File] | None:
    for data, file in _open():
        if address in file:
            return data, file
    return None


_Handler = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)


class _Action(ctypes.Structure):
    _fields_ = (
        ("handler", ctypes.c_void_p),
        ("mask", ctypes.c_byte * 128),
        ("flags", ctypes.c_int),
        ("restorer", ctypes.c_void_p),
    )


_kept: list[Any] = []  # what the operating system refers to; it must not be collected


def _survive() -> None:
    """Handle SIGBUS, once for the life of the process; elsewhere than on Linux, do nothing.

    A handler of `signal.signal` runs only after the instruction that failed, which never ends. This
    one is called by the operating system, maps zeros in place of what is gone, and returns. The
    signal is raised by reading memory, never inside an allocator or a lock, so the handler may call
    Python. A fault at any other address is left to whoever handled the signal before.
    """
    if not SUPPORTED or _kept:
        return
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    before = _Action()

    def handle(number: int, info: int, _: int) -> None:
        address = ctypes.c_void_p.from_address(info + _ADDRESS).value or 0
        if not _zeros(libc, address):
            libc.sigaction(number, ctypes.byref(before), None)

    handler = _Handler(handle)
    action = _Action(handler=ctypes.cast(handler, ctypes.c_void_p).value, flags=_SIGINFO)
    if libc.sigaction(signal.SIGBUS, ctypes.byref(action), ctypes.byref(before)) == 0:
        _kept.extend((handler, before))


def _zeros(libc: ctypes.CDLL, address: int) -> bool:
    """Map zeros from the page of an address to the end of its map; return whether it was done."""
    try:
        found = _around(address)
    except Exception:  # the fault would be repeated for ever
        return False
    if found is None:
        return False
    _, file = found
    page = address - address % mmap.PAGESIZE
    protection = mmap.PROT_READ | mmap.PROT_WRITE
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _FIXED
    given: int = libc.mmap(page, file.start + file.size - page, protection, flags, -1, 0)
    return given == page
