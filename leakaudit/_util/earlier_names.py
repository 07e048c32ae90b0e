"""Names of earlier versions: modules that programs still import, and keywords that moved."""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
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

# Public function -> (parameter, class of leakaudit, keywords of earlier versions that it holds).
MOVED: dict[str, tuple[tuple[str, str, tuple[str, ...]], ...]] = {
    "Recorder": (
        (
            "options",
            "RecorderOptions",
            (
                *("layers", "layout", "dtype", "secure_kinds", "keep_states", "keep_curves"),
                *("id", "provenance", "private", "check"),
            ),
        ),
        ("path", "Storage", ("truth", "messages", "rows", "max_bytes", "shard_bytes", "hash")),
    ),
    "bound": (("options", "BoundOptions", ("smoothness", "epsilon", "data_root", "download")),),
    "report": (("options", "ReportOptions", ("location", "width", "color", "verbose")),),
    "sweep": (("executor", "Executor", ("workers", "backend", "address")),),
}


def keywords(name: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Let a public function accept earlier keywords, and say how they are written today."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @wraps(function)
        def called(*args: Any, **given: Any) -> R:
            for parameter, kind, words in MOVED[name]:
                earlier = {word: given.pop(word) for word in words if word in given}
                if not earlier:
                    continue
                if parameter == "path" and len(args) > 1:  # the only one that may have no name
                    given["path"] = args[1]
                    args = args[:1]
                given[parameter] = _today(kind, given.get(parameter), earlier)
                said = ", ".join(f"{word}=..." for word in earlier)
                today = f"{parameter}=leakaudit.{kind}({said})"
                if parameter == "path":
                    today = f"leakaudit.{kind}(path, {said})"
                warnings.warn(f"{name}: write {today}", DeprecationWarning, stacklevel=2)
            return function(*args, **given)

        return cast(Callable[P, R], called)

    return decorate


def _today(kind: str, before: Any, earlier: dict[str, Any]) -> object:
    """Return the value of today that holds earlier keywords, beside what was given in its place."""
    made = getattr(sys.modules["leakaudit"], kind)
    if isinstance(before, made):
        return replace(before, **earlier)
    if kind == "Storage":
        return made(before, **earlier)
    if kind == "Executor":  # of a sweep, which takes one process per processor
        return made.of(**{"workers": None, **earlier}, every_core=True)
    return made(**earlier)


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
