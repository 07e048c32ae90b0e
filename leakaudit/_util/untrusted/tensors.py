"""Files of tensors that any program may have written; Python objects in them are never loaded."""

from __future__ import annotations

import pickle
import warnings
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from leakaudit._util.untrusted import npz, safetensors
from leakaudit.core.errors import LeakauditError, one_line

FORMS = (".pt", ".pth", ".bin", ".safetensors", ".npz", ".npy")
NESTED = ("state_dict", "model_state_dict", "model")  # where checkpoints keep the tensors
LONGEST = 200  # characters of a reason


def read(path: Path, most: float, what: str) -> dict[str, Tensor] | list[Tensor]:
    """Read the tensors of a file of at most so many bytes, by name or in their order.

    Raises:
        LeakauditError: It is no such file, is too large, or contains something else than tensors.
    """
    if path.suffix.lower() not in FORMS:
        raise LeakauditError(f"{what}: expected a file {', '.join(FORMS)}, got {path}")
    try:
        if path.exists() and not path.is_file():
            raise LeakauditError(f"{what}: expected a file, got {path}, which is none")
        size = path.stat().st_size
        if size > most:
            raise LeakauditError(
                f"{what}: {path} has {size} bytes, but expected are at most {most:.0f}"
            )
        found = _parsed(path, most)
    except LeakauditError:
        raise
    except pickle.UnpicklingError:
        raise LeakauditError(
            f"{what}: {path}: expected tensors only, got a damaged file or other Python objects, "
            "which are never loaded"
        ) from None
    except OSError as error:
        reason = error.strerror or error
        raise LeakauditError(f"{what}: cannot read {path}: {reason}") from None
    except Exception as error:  # a damaged file raises anything
        reason = one_line(str(error) or type(error).__name__)[:LONGEST]
        raise LeakauditError(f"{what}: cannot read {path}: {reason}") from None
    return _tensors(found, f"{what}: {path}")


def _parsed(path: Path, most: float) -> object:
    suffix = path.suffix.lower()
    if suffix == ".safetensors":
        return safetensors.package().torch.load(path.read_bytes())
    if suffix == ".npz":
        with npz.Npz(path, most) as file:
            return {name: torch.from_numpy(file[name]) for name in file.files}
    if suffix == ".npy":
        with npz.old_headers():
            return torch.from_numpy(np.load(path, allow_pickle=False))
    if zipfile.is_zipfile(path):
        _refuse_compressed(path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.load(path, map_location="cpu", weights_only=True)


def _refuse_compressed(path: Path) -> None:
    """Refuse a compressed archive: torch writes none, and it may unpack to anything."""
    with zipfile.ZipFile(path) as archive:
        if any(entry.compress_type != zipfile.ZIP_STORED for entry in archive.infolist()):
            raise ValueError("it is compressed")


def _tensors(found: object, where: str) -> dict[str, Tensor] | list[Tensor]:
    if isinstance(found, Tensor):
        return [found]
    if isinstance(found, list | tuple) and _are_tensors(found):
        return list(found)
    if isinstance(found, Mapping):
        for name in NESTED:
            if isinstance(found.get(name), Mapping):
                return _tensors(found[name], where)
        if _are_tensors(found.values()) and all(isinstance(name, str) for name in found):
            return dict(found)
    raise LeakauditError(
        f"{where} contains a {type(found).__name__} of something else than tensors; expected a "
        "dictionary of tensors by name, a list of tensors, or one tensor"
    )


def _are_tensors(values: Iterable[object]) -> bool:
    return all(isinstance(value, Tensor) and not value.is_sparse for value in values)
