"""The tensors of a message, in one of three kinds of files: raw, .npy or .safetensors."""

from __future__ import annotations

import math
import os
import stat
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from leakaudit._util import files
from leakaudit._util.untrusted import npz, safetensors
from leakaudit.capture.tap.log.writing import DTYPES
from leakaudit.capture.tap.messages.streams import FLOATS
from leakaudit.capture.wire.lines import NAME, MessageLine, require_name
from leakaudit.core.errors import LeakauditError, suggest

SAFETENSORS = ".safetensors"
NUMPY = ".npy"
NEAR = 300  # characters of a suggestion or reason: a file may hold thousands of names
SAFETENSORS_FLOATS = {  # their names in the format -> ours
    "F16": "float16",
    "BF16": "bfloat16",
    "F32": "float32",
    "F64": "float64",
}


class IncompletePayload(LeakauditError):
    """A payload is missing or shorter than its line states, as if the program had been killed."""


@dataclass(frozen=True)
class Payload:
    """Where the tensors of a message are, and their form."""

    path: Path
    names: tuple[str, ...]  # names of the tensors; empty if they have none
    shapes: tuple[tuple[int, ...], ...]  # shapes of the tensors
    dtypes: tuple[str, ...]  # number formats of the tensors
    offset: int = 0  # offset of the first tensor in a raw file, else 0
    # tensors of a .safetensors file that do not hold floating-point numbers
    skipped: tuple[str, ...] = ()

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        total = 0
        for shape, dtype in zip(self.shapes, self.dtypes, strict=True):
            total += math.prod(shape) * DTYPES[dtype]
        return total

    @property
    def form(self) -> tuple[tuple[str, ...], tuple[tuple[int, ...], ...]]:
        """Names and shapes, in which messages of one kind must agree."""
        return self.names, self.shapes

    def read(self) -> list[Tensor]:
        """Read the tensors."""
        if self.path.suffix == SAFETENSORS:
            tensors = _read_safetensors(self)
        elif self.path.suffix == NUMPY:
            array = np.ascontiguousarray(_numpy(self.path))
            tensors = [torch.from_numpy(array.copy())]
        else:
            tensors = _read_raw(self)
        for place, tensor in enumerate(tensors):
            if not bool(torch.isfinite(tensor).all()):
                what = self.names[place] if self.names else f"number {place + 1}"
                bad = int((~torch.isfinite(tensor)).sum())
                raise LeakauditError(
                    f"tensor {what}: {bad} of {tensor.numel()} numbers are NaN or infinite; "
                    "stop recording when training diverges"
                )
        return tensors


def find(folder: Path, line: MessageLine) -> Payload:
    """Find the tensors of a message without reading them."""
    path = _inside(folder, line.file)
    if path.suffix not in (SAFETENSORS, NUMPY):
        return _raw(path, line)
    for key in ("offset", "dtype", "shapes"):
        if getattr(line, key) is not None:
            raise LeakauditError(f"{key}: a {path.suffix} file states it itself; leave it out")
    if path.suffix == NUMPY:
        return _of_numpy(path, line)
    return _of_safetensors(path, line)


def _inside(folder: Path, name: str) -> Path:
    given = Path(name)
    outside = LeakauditError(
        f"file: {name!r:.60} is not inside the folder; name a file relative to it, without '..'"
    )
    if given.is_absolute() or ".." in given.parts:
        raise outside
    path = folder / given
    try:
        real = files.resolved(path)
        if not real.is_relative_to(files.resolved(folder)):
            raise outside
        status = os.stat(real)
    except FileNotFoundError:
        raise IncompletePayload(f"file: {name!r:.60} does not exist") from None
    except OSError as error:
        raise LeakauditError(f"file: cannot read {name!r:.60}: {error.strerror}") from None
    if not stat.S_ISREG(status.st_mode):
        raise LeakauditError(f"file: {name!r:.60} is not a regular file")
    return path


def _raw(path: Path, line: MessageLine) -> Payload:
    """Return the tensors of a raw file: little-endian numbers, one tensor after the other."""
    if line.dtype is None or line.shapes is None:
        raise LeakauditError(
            "dtype and shapes: both are needed for a raw file (other files: .npy, .safetensors)"
        )
    if line.dtype not in FLOATS:
        raise LeakauditError(f"dtype: unsupported {line.dtype!r:.40}{suggest(line.dtype, FLOATS)}")
    if line.names and len(line.names) != len(line.shapes):
        raise LeakauditError(
            f"names: expected one for each of the {len(line.shapes)} shapes, got {len(line.names)}"
        )
    dtypes = (line.dtype,) * len(line.shapes)
    found = Payload(path, line.names, line.shapes, dtypes, line.offset or 0)
    size = path.stat().st_size
    if found.offset + found.nbytes > size:
        raise IncompletePayload(
            f"shapes: {found.nbytes} bytes from offset {found.offset} on exceed "
            f"{line.file} ({size} bytes)"
        )
    return found


def _read_raw(payload: Payload) -> list[Tensor]:
    tensors = []
    with payload.path.open("rb") as file:
        file.seek(payload.offset)
        for shape, dtype in zip(payload.shapes, payload.dtypes, strict=True):
            data = bytearray(math.prod(shape) * DTYPES[dtype])
            if file.readinto(data) < len(data):
                raise LeakauditError("the file became shorter while it was read")
            tensors.append(torch.frombuffer(data, dtype=getattr(torch, dtype)).reshape(shape))
    return tensors


def _numpy(path: Path) -> np.ndarray:
    """Return the array of a .npy file, mapped rather than read; nothing is unpickled."""
    try:
        with npz.old_headers():
            found: np.ndarray = np.load(path, mmap_mode="r", allow_pickle=False)
    except Exception as error:  # a damaged file may raise anything
        raise IncompletePayload(
            f"file: cannot read {path.name} as .npy: {_first_line(error)}"
        ) from None
    if not isinstance(found, np.ndarray):
        raise LeakauditError(f"file: {path.name} is an archive; expected one array")
    return found


def _of_numpy(path: Path, line: MessageLine) -> Payload:
    array = _numpy(path)
    dtype = str(array.dtype)
    if dtype not in FLOATS or not array.dtype.isnative:
        raise LeakauditError(
            f"file: {path.name} holds {dtype}; expected little-endian float16, float32 or float64 "
            "(bfloat16: write a raw file)"
        )
    if not array.size:
        raise LeakauditError(f"file: {path.name} holds an empty array")
    if len(line.names) > 1:
        raise LeakauditError(f"names: a .npy file holds one tensor, got {len(line.names)} names")
    return Payload(path, line.names, (array.shape,), (dtype,))


def _of_safetensors(path: Path, line: MessageLine) -> Payload:
    """Return the named tensors of a file; by default all with floating-point numbers, by name."""
    package = safetensors.package()
    shapes: dict[str, tuple[int, ...]] = {}
    formats: dict[str, str] = {}
    try:
        with package.safe_open(path, framework="pt") as file:
            for name in sorted(file.keys()):
                part = file.get_slice(name)
                shapes[name] = tuple(part.get_shape())
                formats[name] = str(part.get_dtype())
    except (OSError, package.SafetensorError) as error:
        raise IncompletePayload(
            f"file: cannot read {path.name} as .safetensors: {_first_line(error)}"
        ) from None
    for name in shapes:
        require_name("names", name, NAME)
    skipped = [name for name, format in formats.items() if format not in SAFETENSORS_FLOATS]
    wanted = line.names or tuple(name for name in shapes if name not in skipped)
    for name in wanted:
        if name not in shapes:
            raise LeakauditError(
                f"names: {path.name} has no tensor {name!r:.60}{suggest(name, shapes)[:NEAR]}"
            )
        if name in skipped:
            raise LeakauditError(
                f"names: tensor {name!r:.60} holds {formats[name]}, not floating-point numbers"
            )
        if not math.prod(shapes[name]):
            raise LeakauditError(f"names: tensor {name!r:.60} is empty")
    if not wanted:
        raise LeakauditError(f"file: {path.name} holds no floating-point tensor")
    return Payload(
        path=path,
        names=wanted,
        shapes=tuple(shapes[name] for name in wanted),
        dtypes=tuple(SAFETENSORS_FLOATS[formats[name]] for name in wanted),
        skipped=tuple(skipped),
    )


def _read_safetensors(payload: Payload) -> list[Tensor]:
    package = safetensors.package()
    try:
        with package.safe_open(payload.path, framework="pt") as file:
            return [file.get_tensor(name) for name in payload.names]
    except (OSError, package.SafetensorError) as error:
        raise LeakauditError(
            f"file: cannot read {payload.path.name} as .safetensors: {_first_line(error)}"
        ) from None


def _first_line(error: Exception) -> str:
    lines = str(error).splitlines()
    first = lines[0][:NEAR] if lines else type(error).__name__
    return first.encode("unicode_escape").decode()  # it may repeat what the file contains
