"""The git commit of a folder, for the provenance of what was run from it."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from msgspec import Struct

SECONDS = 5.0  # time limit of one call of git; a choice
_COMMIT = re.compile(r"[0-9a-f]{40}([0-9a-f]{24})?")
# Settings of the repository must not execute a command.
_INERT = ("-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null")


class Revision(Struct, frozen=True, forbid_unknown_fields=True):
    """The state of a work tree.

    Attributes:
        commit: The git commit that was checked out, 40 or 64 hexadecimal digits.
        changed: Whether tracked files differed from the commit.
    """

    commit: str
    changed: bool


def revision(folder: Path) -> Revision | None:
    """Return the commit that is checked out in a folder, if there is one.

    Call this only for a folder whose program is executed anyway.
    """
    commit = _git(folder, "rev-parse", "HEAD")
    if commit is None or not is_commit(commit.strip()):
        return None
    status = _git(folder, "status", "--porcelain", "--untracked-files=no")
    if status is None:
        return None
    return Revision(commit.strip(), bool(status.strip()))


def is_commit(text: object) -> bool:
    """Return whether a value is the full name of a commit."""
    return isinstance(text, str) and _COMMIT.fullmatch(text) is not None


def _git(folder: Path, *words: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", *_INERT, *words],
            cwd=folder,
            capture_output=True,
            check=True,
            text=True,
            timeout=SECONDS,
        )
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
        return None
    return done.stdout
