"""Let programs import a torchvision that was built for another torch.

Such a torchvision fails on `import` because two of its operators are missing. Lightning imports it
through torchmetrics without using it. Declaring the operators first is enough.
"""

import importlib.util
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType

SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)


class _BeforeTorchvision:
    """An importer that finds nothing itself, and declares the operators before torchvision runs."""

    def find_spec(
        self, name: str, path: object = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != "torchvision":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec("torchvision")
        if spec is not None and not _has_operators(spec):
            import torch

            library = torch.library.Library("torchvision", "DEF")
            for schema in SCHEMAS:
                library.define(schema)
            self.library = library  # the operators live as long as this object
            sys.meta_path.append(self)  # keeps it alive
        return None


def _has_operators(spec: ModuleSpec) -> bool:
    """Return whether the extension of torchvision loads with the installed torch."""
    import os

    import torch

    folder = os.path.dirname(str(spec.origin))
    for file in ("_C.so", "_C.pyd"):
        path = os.path.join(folder, file)
        if os.path.exists(path):
            try:
                torch.ops.load_library(path)
            except OSError:
                return False
            return True
    return False


sys.meta_path.insert(0, _BeforeTorchvision())
