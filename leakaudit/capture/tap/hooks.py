"""Wait for torch.distributed to be imported, then listen to it; installed in every process of a tapped program by `site/sitecustomize`."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any, cast

VARIABLE = "LEAKAUDIT_TAP"  # of the environment: JSON of what `capture.Capture` takes


def install() -> None:
    """Listen to this process as the environment says."""
    from leakaudit.capture.tap.capture import Capture

    capture = Capture(**json.loads(os.environ[VARIABLE]))

    def group(module: ModuleType) -> None:
        from leakaudit.capture.tap import group

        group.listen(module, capture)

    def ddp(module: ModuleType) -> None:
        from leakaudit.capture.tap import ddp

        ddp.listen(module, capture)

    sys.meta_path.insert(
        0, _After({"torch.distributed": group, "torch.nn.parallel.distributed": ddp})
    )


class _After:
    """An importer that finds nothing itself, and calls a function with a module once that module has been executed."""

    def __init__(self, waiting: dict[str, Callable[[ModuleType], None]]) -> None:
        self.waiting = waiting

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        then = self.waiting.pop(name, None)
        if then is None:
            return None
        spec = find_spec(name)
        if spec is not None and spec.loader is not None:
            spec.loader = cast(Any, _Loader(spec.loader, then))
        return spec


class _Loader:
    """A loader that does what the one behind it does, and calls a function at the end."""

    def __init__(self, real: Any, then: Callable[[ModuleType], None]) -> None:
        self.real, self.then = real, then

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        found: ModuleType | None = self.real.create_module(spec)
        return found

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self.real
        if module.__spec__ is not None:
            module.__spec__.loader = self.real
        self.real.exec_module(module)
        try:
            self.then(module)
        except Exception as error:
            sys.stderr.write(f"leakaudit tap: {module.__name__} is not tapped: {error}\n")

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)
