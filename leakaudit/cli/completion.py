"""`leakaudit config completion`: the script that completes commands and names in a shell."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from leakaudit.core.errors import LeakauditError

SHELLS = ("bash", "zsh", "tcsh")
# Arguments that take a name, and where its possible values come from; see `_names`.
NAMES = {
    ("record", "victim"): "victims",
    ("attack", "attack"): "attacks",
    ("list", "name"): "all",
    ("", "model"): "models",
    ("", "data"): "data",
    ("", "graph"): "graphs",
    ("", "format"): "reports",
    ("", "adversary"): "adversaries",
}
ADVERSARIES = ("eavesdropper", "node:", "nodes:", "edges:")
DEVICES = ("cpu", "cuda")
PROGRESS = ("auto", "rich", "plain", "none")
# Arguments that take a file although their type is text, and those that take a folder.
FILES = ("truth", "output", "lpips_weights", "what", "results")
FOLDERS = ("data_root",)


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
    for verb, action in _actions(top):
        _describe(verb, action, shtab.FILE, shtab.DIRECTORY)
    return shtab.complete(top, shell=shell).rstrip("\n") + "\n"


def _actions(top: argparse.ArgumentParser, verb: str = "") -> Iterator[tuple[str, argparse.Action]]:
    for action in top._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, sub in action.choices.items():
                yield from _actions(sub, verb or name)
        else:
            yield verb, action


def _describe(verb: str, action: argparse.Action, file: object, folder: object) -> None:
    if isinstance(action.metavar, str) and action.metavar.startswith("PLAN"):
        action.metavar = "PLAN"  # the words of a usage line are no name of a shell variable
    if action.choices is not None or action.nargs == 0:
        return
    group = NAMES.get((verb, action.dest)) or NAMES.get(("", action.dest))
    if group is not None:
        action.choices = _names(group)
    elif action.dest == "device":
        action.choices = DEVICES
    elif action.dest == "progress":
        action.choices = PROGRESS
    elif action.dest in FOLDERS:
        action.complete = folder  # type: ignore[attr-defined]  # read by shtab
    elif action.type is Path or action.metavar == "FILE" or action.dest in FILES:
        action.complete = file  # type: ignore[attr-defined]


def _names(group: str) -> list[str]:
    """Return the names that an argument accepts, without loading what they name."""
    from leakaudit.cli import list as listed
    from leakaudit.core import registry

    if group == "adversaries":
        return list(ADVERSARIES)
    if group == "all":
        return [*registry.names("victims"), *registry.names("attacks"), *registry.names("reports")]
    if group in registry.GROUPS:
        extra = ["auto"] if group == "attacks" else []
        return [*extra, *registry.names(group)]
    names = [str(entry["name"]) for entry in listed.entries(group)]
    return [name for name in names if ":" not in name]  # file:PATH and the like
