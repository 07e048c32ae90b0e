"""Names of earlier versions: modules that programs still import, and keywords that moved."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence
from functools import wraps
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, ParamSpec, TypeVar, cast

P = ParamSpec("P")
R = TypeVar("R")

# Name in the documentation of an earlier version -> the modules that hold what it held.
EARLIER = {
    "adversary": ("core.adversary",),
    "bounds": ("theory.bounds",),
    "claim": ("core.claim",),
    "progress": ("core.progress",),
    "reconstruction": ("core.reconstruction", "inversion.attack"),
    "registry": ("core.registry",),
    "relations": ("theory.relations",),
    "victim": ("protocols.victim",),
}

# Public function -> keyword of an earlier version -> how it is written today.
KEYWORDS: dict[str, dict[str, str]] = {"Recorder": {}, "bound": {}, "report": {}, "sweep": {}}


def _moved(function: str, today: str, *keywords: str) -> None:
    """Note keywords that moved; in what is written today, {} stands for the keyword."""
    KEYWORDS[function].update({keyword: today.format(keyword) for keyword in keywords})


_moved(
    "Recorder",
    "options=leakaudit.RecorderOptions({}=...)",
    *("layers", "layout", "dtype", "secure_kinds", "keep_states", "keep_curves"),
    *("id", "provenance", "private", "check"),
)
_moved(
    "Recorder",
    "leakaudit.Recorder(leakaudit.Storage(path, {}=...), ...)",
    *("truth", "messages", "rows", "max_bytes", "shard_bytes", "hash"),
)
_moved("Recorder", "options=leakaudit.RecorderOptions(layers=StoredColumns(...))", "columns")
_moved(
    "bound",
    "options=leakaudit.BoundOptions({}=...)",
    *("smoothness", "epsilon", "data_root", "download"),
)
_moved(
    "report",
    "options=leakaudit.ReportOptions({}=...)",
    *("location", "width", "color", "verbose"),
)
_moved("sweep", "executor=leakaudit.Executor({}=...)", "workers", "backend", "address")


def keywords(name: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Let a public function with earlier keywords say how they are written today."""
    moved = KEYWORDS[name]

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @wraps(function)
        def checked(*args: P.args, **given: P.kwargs) -> R:
            for word in moved.keys() & given.keys():
                raise TypeError(f"{name} has no argument {word}; write {moved[word]}")
            return function(*args, **given)

        return checked

    return decorate


def install() -> None:
    """Let earlier names be imported, before a folder that an old checkout left is found."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


class _Finder:
    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        top, _, below = name.partition(".")
        first, dot, rest = below.partition(".")
        if top != "leakaudit" or first not in EARLIER:
            return None
        homes = [f"leakaudit.{home}{dot}{rest}" for home in EARLIER[first]]
        return ModuleSpec(name, cast(Any, _Loader(homes)))


class _Loader:
    """Loads the module itself if there is one, so that its classes exist once."""

    def __init__(self, homes: Sequence[str]) -> None:
        self.homes = homes
        self.own: ModuleSpec | None = None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        if len(self.homes) > 1:
            return ModuleType(spec.name)
        module = importlib.import_module(self.homes[0])
        self.own = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        if len(self.homes) == 1:
            module.__spec__ = self.own  # which the import system has replaced
            return
        for home in self.homes:
            for name, value in vars(importlib.import_module(home)).items():
                if not name.startswith("_"):
                    setattr(module, name, value)
