"""Trained weights from a .safetensors file: where a run starts in place of a random model.

A file is named as ``FILE.safetensors``, or with its digest, as ``FILE.safetensors@sha256:HEX``.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from leakaudit._util.untrusted import safetensors
from leakaudit.core.errors import LeakauditError, brief, one_line, suggest
from leakaudit.tasks.build_task import BatchNorm, digest

if TYPE_CHECKING:
    from leakaudit.tasks.task import Task

PLACE = re.compile(r"(.+\.safetensors)(?:@sha256:([0-9a-f]{64}))?")
STATISTICS = ("running_mean", "running_var", "num_batches_tracked")
MARK = "@sha256:"
ROOM = 1 << 20  # bytes of the header and of metadata that a file may have besides its numbers
WIDEST = 8  # bytes of a number in float64


@dataclass(frozen=True, eq=False)
class Weights:
    """The contents of a file, for one model."""

    w0: Tensor  # trained parameters (d,), as the task stores them
    constants: Mapping[str, Tensor]  # running statistics and frozen parameters, by name
    sha256: str  # of the file


def pinned(place: str) -> str:
    """Return the name of a file with its digest; the name as it is if the file cannot be read."""
    path, wanted = _parts(place)
    if wanted:
        return place
    try:
        return named(place, digest(path))
    except OSError:
        return place


def named(place: str, sha256: str) -> str:
    """Return the name of a file with a digest."""
    return f"{place.partition(MARK)[0]}{MARK}{sha256}"


def read(place: str, task: Task) -> Weights:
    """Read the parameters of a task's model, as its ``state_dict`` names them.

    Running statistics of layers that normalise with those of the batch are not used.

    Raises:
        LeakauditError: The file cannot be read, is not the one with the digest, or its tensors are
            not those of the model: names, shapes, kind of numbers, or a number that is not finite.
    """
    path, wanted = _parts(place)
    data = _bytes(path, task)
    sha256 = hashlib.sha256(data).hexdigest()
    if wanted not in (None, sha256):
        raise LeakauditError(
            f"weights: {path.name} is another file than expected: its sha256 begins with "
            f"{sha256[:12]}, not with {str(wanted)[:12]}"
        )
    package = safetensors.package()
    try:
        given = package.torch.load(data)
    except Exception as error:  # a damaged file raises anything
        reason = one_line(error)[:200]
        raise LeakauditError(
            f"weights: cannot read {path.name} as .safetensors: {reason}"
        ) from None
    try:
        return fitted(given, task, sha256)
    except LeakauditError as error:
        raise LeakauditError(f"weights: {path.name}: {error}") from None


def is_place(text: str) -> bool:
    """Return whether a text names a .safetensors file, with a digest or without."""
    return PLACE.fullmatch(text) is not None


def _parts(place: str) -> tuple[Path, str | None]:
    found = PLACE.fullmatch(place)
    if found is None:
        raise LeakauditError(
            "weights: expected FILE.safetensors or FILE.safetensors@sha256:HEX, "
            f"got {brief(place, 60)}"
        )
    path = Path(found[1]).expanduser()
    if path.exists() and not path.is_file():
        raise LeakauditError(f"weights: expected a file, got {path.name}, which is none")
    return path, found[2]


def _bytes(path: Path, task: Task) -> bytes:
    """Return the contents of a file that is not much larger than the model."""
    numbers = task.layout.size + sum(value.numel() for value in task.buffers.values())
    # Shared parameters may be stored twice.
    most = 2 * WIDEST * numbers + ROOM
    try:
        size = path.stat().st_size
        if size > most:
            raise LeakauditError(
                f"weights: {path.name} has {size} bytes, but model {task.spec.model!r} needs "
                f"at most {most}"
            )
        return path.read_bytes()
    except OSError as error:
        raise LeakauditError(f"weights: cannot read {path.name}: {error.strerror}") from None


def fitted(given: Mapping[str, Tensor], task: Task, sha256: str = "") -> Weights:
    """Return the weights of a task's model, if the tensors are those of the model.

    Raises:
        LeakauditError: Names, shapes, kind of numbers, or a number that is not finite.
    """
    stored = task.module.state_dict(keep_vars=True)
    fixed = {name for name, value in task.buffers.items() if value.is_floating_point()}
    fixed &= stored.keys()
    w0 = parameters(given, task, {*stored, *_unused(task)})
    for name in sorted(fixed):
        _check(given, name, tuple(stored[name].shape), task.buffers[name].dtype)
    aliases = _aliases(task)
    for name, first in aliases.items():
        if name in given and not torch.equal(given[name], given[first]):
            raise LeakauditError(f"tensors {name!r} and {first!r} are one parameter, but differ")
    constants = {}
    for name in sorted(fixed):
        value = given[name].to(stored[name].dtype)
        if not torch.equal(value, task.buffers[name].cpu()):
            constants[name] = value
    return Weights(w0.to(task.device), constants, sha256)


def parameters(given: Mapping[str, Tensor], task: Task, known: Collection[str]) -> Tensor:
    """Return tensors that have the names of a model's parameters as (d,), in its order.

    Raises:
        LeakauditError: As of `fitted`; also if a name is not known.
    """
    for name in given:
        if name not in known:
            raise LeakauditError(
                f"model {task.spec.model!r} has no tensor {brief(name, 60)}"
                f"{suggest(name, sorted(known))}"
            )
    for name, shape in zip(task.layout.names, task.layout.shapes, strict=True):
        _check(given, name, shape, task.dtype)
    return torch.cat([given[name].detach().flatten().to(task.dtype) for name in task.layout.names])


def _check(
    given: Mapping[str, Tensor], name: str, shape: Sequence[int], dtype: torch.dtype
) -> None:
    if name not in given:
        raise LeakauditError(f"tensor {name!r} {tuple(shape)} is missing")
    value = given[name]
    if tuple(value.shape) != tuple(shape):
        raise LeakauditError(
            f"tensor {name!r}: expected shape {tuple(shape)}, got {tuple(value.shape)}"
        )
    if not value.is_floating_point():
        raise LeakauditError(f"tensor {name!r}: expected floating-point numbers, got {value.dtype}")
    bad = int((~value.to(dtype).isfinite()).sum())
    if bad:
        raise LeakauditError(
            f"tensor {name!r}: {bad} of {value.numel()} numbers are not finite in {dtype}"
        )


def _aliases(task: Task) -> dict[str, str]:
    """Return further names of parameters that several layers share -> their first names."""
    first: dict[int, str] = {}
    found = {}
    for name, parameter in task.module.named_parameters(remove_duplicate=False):
        if first.setdefault(id(parameter), name) != name:
            found[name] = first[id(parameter)]
    return found


def _unused(task: Task) -> list[str]:
    """Return names of running statistics, which a layer may have in other programs only."""
    found = []
    for name, layer in task.module.named_modules():
        if isinstance(layer, BatchNorm):
            found += [f"{name}.{which}" for which in STATISTICS]
    return found
