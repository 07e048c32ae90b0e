"""The two optional imports that need care, both lazy: torchvision beside a CPU torch, and lpips."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType

import torch

from leakaudit.errors import LeakauditError

_BROKEN = "operator torchvision::nms does not exist"
_SCHEMAS = ("nms", "qnms")
_kept: list[torch.library.Library] = []  # a schema lives as long as its library object


def torchvision() -> ModuleType:
    """Return torchvision; if it was built for another torch, with two operator schemas declared.

    A torchvision whose compiled operators do not load raises ``operator torchvision::nms does not
    exist`` on import. Once the schemas exist, models, data sets and transforms work; `ops.nms` and
    detection models do not.

    Raises:
        LeakauditError: torchvision is absent, or broken in another way.
    """
    return _load("torchvision")


def lpips() -> ModuleType:
    """Return lpips, which imports torchvision and therefore needs the same care."""
    _load("torchvision")
    return _load("lpips")


def shimmed() -> bool:
    """Tell whether torchvision runs with declared schemas, for the provenance of a result."""
    return bool(_kept) and "torchvision" in sys.modules


def _load(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise LeakauditError(
            f"{name} is needed here and cannot be imported ({error}); "
            f"install it with 'pip install {name}'"
        ) from error
    except RuntimeError as error:
        if _kept or str(error) != _BROKEN:
            raise LeakauditError(
                f"{name} does not fit torch {torch.__version__}: {error}"
            ) from error
    # What the failed import left behind would hide the second attempt.
    for key in list(sys.modules):
        if key.partition(".")[0] == "torchvision":
            del sys.modules[key]
    library = torch.library.Library("torchvision", "DEF")
    for schema in _SCHEMAS:
        library.define(f"{schema}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _kept.append(library)
    return _load(name)
