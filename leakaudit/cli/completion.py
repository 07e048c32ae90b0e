"""`leakaudit config completion`: the script that completes commands and names in a shell."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from leakaudit.cli.list import GROUPS, entries
from leakaudit.core.errors import LeakauditError

SHELLS = ("bash", "zsh", "tcsh")
# The values of what an argument declares as its `names`, besides those of `_names`.
WORDS = {
    "adversaries": ("eavesdropper", "node:", "nodes:", "edges:"),
    "device": ("cpu", "cuda"),
    "progress": ("auto", "rich", "plain", "none"),
}
FILES = ("files", "output", "lpips_weights")  # names that are files, although their type is text


def script(shell: str | None) -> str:
    """Return the script for a shell."""
    if shell is None:
        raise LeakauditError(f"expected one of {', '.join(SHELLS)} after 'config completion'")
    try:
        import shtab
    except ImportError:
        raise LeakauditError(
            "completion needs the package shtab, which was removed; pip install shtab"
        ) from None
    from leakaudit.cli._main import parser

    top = parser()
    for action in _actions(top):
        _describe(action, shtab.FILE, shtab.DIRECTORY)
    return shtab.complete(top, shell=shell).rstrip("\n") + "\n"


def _actions(top: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    for action in top._actions:
        if isinstance(action, argparse._SubParsersAction):
            for sub in action.choices.values():
                yield from _actions(sub)
        else:
            yield action


def _describe(action: argparse.Action, file: object, folder: object) -> None:
    if isinstance(action.metavar, str) and action.metavar.startswith("PLAN"):
        action.metavar = "PLAN"  # the words of a usage line are no name of a shell variable
    if action.choices is not None or action.nargs == 0:
        return
    names = getattr(action, "names", None)
    if names == "data_root":
        action.complete = folder  # type: ignore[attr-defined]  # read by shtab
    elif action.type is Path or action.metavar == "FILE" or names in FILES:
        action.complete = file  # type: ignore[attr-defined]
    elif names in WORDS:
        action.choices = WORDS[names]
    elif names in (*GROUPS, "all"):
        action.choices = _names(names)


def _names(group: str) -> list[str]:
    """Return the names that an argument accepts, without loading what they name."""
    from leakaudit.core import registry

    if group == "all":
        return [*registry.names("victims"), *registry.names("attacks"), *registry.names("reports")]
    if group in registry.GROUPS:
        extra = ["auto"] if group == "attacks" else []
        return [*extra, *registry.names(group)]
    names = [str(entry["name"]) for entry in entries(group)]
    return [name for name in names if ":" not in name]  # file:PATH and the like
