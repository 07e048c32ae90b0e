"""Lazy imports of two optional packages: torchvision, also with a CPU build of torch, and lpips."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType

import torch

from leakaudit.core.errors import LeakauditError

_BROKEN = "operator torchvision::nms does not exist"
_SCHEMAS = ("nms", "qnms")
_kept: list[torch.library.Library] = []  # a schema exists as long as its library object


def torchvision() -> ModuleType:
    """Return torchvision; declare two operator schemas if it was built for another torch.

    A torchvision whose compiled operators do not load raises ``operator torchvision::nms does not
    exist`` on import. Once the schemas exist, models, data sets and transforms work; `ops.nms` and
    detection models do not.
    """
    return _load("torchvision")


def lpips() -> ModuleType:
    """Return lpips, which imports torchvision and therefore may need the same schemas."""
    _load("torchvision")
    return _load("lpips")


def shimmed() -> bool:
    """Return whether torchvision runs with declared schemas, for the provenance of a result."""
    return bool(_kept) and "torchvision" in sys.modules


def _load(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise LeakauditError(
            f"{name} is required and cannot be imported ({error}); "
            f"install it with 'pip install {name}'"
        ) from error
    except RuntimeError as error:
        if _kept or str(error) != _BROKEN:
            raise LeakauditError(
                f"{name} is not compatible with torch {torch.__version__}: {error}"
            ) from error
    # Remove what the failed import left behind, so that a second attempt imports again.
    for key in list(sys.modules):
        if key.partition(".")[0] == "torchvision":
            del sys.modules[key]
    library = torch.library.Library("torchvision", "DEF")
    for schema in _SCHEMAS:
        library.define(f"{schema}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _kept.append(library)
    return _load(name)
