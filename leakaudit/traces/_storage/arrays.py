"""Conversion of arrays from any framework that a training program uses."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.dlpack import from_dlpack

from leakaudit.core.errors import LeakauditError

_Integers = np.ndarray[Any, np.dtype[np.int64]]


def tensor(value: Any, what: str) -> Tensor:
    """Return an array as a tensor without a graph; memory is shared if possible.

    Any array of torch, numpy, or with DLPack or ``__array__`` will do.
    """
    if isinstance(value, Tensor):
        return value.detach()
    if hasattr(value, "__dlpack__") and not isinstance(value, np.ndarray):
        # An array on a device that torch does not support is converted through numpy.
        with suppress(BufferError, RuntimeError, TypeError):
            return from_dlpack(value).detach()
    array = _array(value, what)
    if array.dtype.kind not in "fiub" or array.dtype.itemsize > 8:  # torch has no longer numbers
        raise LeakauditError(
            f"{what}: expected an array of real numbers, "
            f"got {type(value).__name__} of {array.dtype}"
        )
    if not (array.flags.writeable and array.dtype.isnative):
        array = array.astype(array.dtype.newbyteorder("="))
    return torch.from_numpy(array)


def integers(value: Any, what: str, stop: int) -> _Integers:
    """Return whole numbers in [0, stop) as a one-dimensional array."""
    if isinstance(value, Tensor):
        array = np.atleast_1d(value.detach().cpu().numpy())
    else:
        array = np.atleast_1d(_array(value, what))
    if array.ndim != 1 or (array.dtype.kind not in "iu" and array.size):
        raise LeakauditError(
            f"{what}: expected a sequence of whole numbers, "
            f"got {array.dtype} of shape {array.shape}"
        )
    if array.size:
        low = int(array.min())
        high = int(array.max())
        if low < 0 or high >= stop:
            wrong = low if low < 0 else high
            raise LeakauditError(f"{what}: expected numbers from 0 to {stop - 1}, got {wrong}")
    return array.astype(np.int64, copy=False)


def _array(value: Any, what: str) -> np.ndarray[Any, Any]:
    try:
        return np.asarray(value)
    except (ValueError, TypeError) as error:
        why = str(error).splitlines()[0]
        raise LeakauditError(
            f"{what}: expected an array of numbers, got {type(value).__name__}: {why}"
        ) from None
