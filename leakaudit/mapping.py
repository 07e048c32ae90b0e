"""Memory of mapped files: pages that were read are given back, so that it does not grow with them.

A page of a mapped file that was read stays in the memory of the process until the operating system
needs it for something else, so a program that reads a file of 200 GB in pieces appears to use as
much memory as the machine has. Pages that were changed in memory are never dropped.
"""

from __future__ import annotations

import contextlib
import mmap
import weakref
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from torch import Tensor

PAGEOUT = 21  # an advice of madvise, Linux 5.4; Python has no name for it
# Bytes below which nothing is given back, because the call costs more than the memory. A choice.
SMALL = 1 << 16

_maps: weakref.WeakValueDictionary[int, mmap.mmap] = weakref.WeakValueDictionary()


def register(data: mmap.mmap) -> None:
    """Note a mapped file whose pages `release` may give back.

    Args:
        data: The map.
    """
    _maps[np.frombuffer(data, np.uint8).ctypes.data] = data


def release(read: Tensor) -> None:
    """Give back the pages of a tensor that was read, if it lies in a mapped file.

    Its values stay the same: they are read from the file again when they are used again.

    Args:
        read: A contiguous tensor; any other one is left alone.
    """
    size = read.numel() * read.element_size()
    if size < SMALL or not read.is_contiguous() or read.device.type != "cpu":
        return
    at = read.data_ptr()
    for start, data in list(_maps.items()):
        if not start <= at < start + len(data):
            continue
        first = at - start
        page = first - first % mmap.PAGESIZE
        with contextlib.suppress(OSError):  # other systems and older kernels do without
            data.madvise(PAGEOUT, page, first + size - page)
        return
