"""Numbers from whatever framework a training loop uses."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.dlpack import from_dlpack

from leakaudit.errors import LeakauditError

_Integers = np.ndarray[Any, np.dtype[np.int64]]


def tensor(value: Any, what: str) -> Tensor:
    """Return an array of torch, numpy or anything with DLPack or ``__array__`` as a tensor without a graph; what: its name in errors."""
    if isinstance(value, Tensor):
        return value.detach()
    if hasattr(value, "__dlpack__") and not isinstance(value, np.ndarray):
        with suppress(
            BufferError, RuntimeError, TypeError
        ):  # a device that torch does not know: by way of numpy
            return from_dlpack(value).detach()
    array = _array(value, what)
    if array.dtype.kind not in "fiub":
        raise LeakauditError(
            f"{what}: expected an array of real numbers, got {type(value).__name__} of {array.dtype}"
        )
    return torch.from_numpy(
        array
        if array.flags.writeable and array.dtype.isnative
        else array.astype(array.dtype.newbyteorder("="))
    )


def integers(value: Any, what: str, stop: int) -> _Integers:
    """Return whole numbers in [0, stop) as one axis; raises LeakauditError for others."""
    array = np.atleast_1d(
        value.detach().cpu().numpy() if isinstance(value, Tensor) else _array(value, what)
    )
    if array.ndim != 1 or (array.dtype.kind not in "iu" and array.size):
        raise LeakauditError(
            f"{what}: expected whole numbers in a row, got {array.dtype} of shape {array.shape}"
        )
    if array.size and not 0 <= (low := int(array.min())) <= (high := int(array.max())) < stop:
        raise LeakauditError(
            f"{what}: there is no {low if low < 0 else high}; expected 0 to {stop - 1}"
        )
    return array.astype(np.int64, copy=False)


def _array(value: Any, what: str) -> np.ndarray[Any, Any]:
    try:
        return np.asarray(value)
    except (ValueError, TypeError) as error:
        raise LeakauditError(
            f"{what}: expected an array of numbers, got {type(value).__name__}: {str(error).splitlines()[0]}"
        ) from None
