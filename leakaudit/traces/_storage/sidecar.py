"""The sha256 next to a file, in the format of sha256sum.

Nothing else detects a changed byte in a tensor (`leakaudit._util.untrusted.archive`).
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from leakaudit._util.files import explained, replacing
from leakaudit.core.errors import LeakauditError
from leakaudit.core.progress import step

AUTOMATIC = 1 << 30  # bytes below which a reader always compares: a choice, a second or two
LARGE = 4 << 30  # bytes above which a writer hashes only on request: a choice
CHUNK = 1 << 20
_LINE = re.compile(rb"\\?([0-9a-f]{64})\b")  # sha256sum marks unusual file names with a backslash
_LINE_BYTES = 4096


def beside(path: Path) -> Path:
    """Return the path of the sha256 of a file."""
    return path.with_name(path.name + ".sha256")


def digest(path: Path) -> str:
    """Return the sha256 of a file, read in pieces."""
    sha = hashlib.sha256()
    piece = memoryview(bytearray(CHUNK))
    done = 0
    with explained(f"cannot read {path}"), path.open("rb", buffering=0) as file:
        size = path.stat().st_size
        while count := file.readinto(piece):
            sha.update(piece[:count])
            done += count
            step("hashing", done, size)
    return sha.hexdigest()


def recorded(path: Path) -> str | None:
    """Return the sha256 that is stored next to a file; None if there is none."""
    with explained(f"cannot read {beside(path)}"):
        try:
            with beside(path).open("rb") as file:
                text = file.read(_LINE_BYTES)
        except FileNotFoundError:
            return None
    match = _LINE.match(text)
    if match is None:
        raise LeakauditError(
            f"{beside(path)} does not contain a sha256; if you trust the trace, "
            "remove this file and use 'leakaudit trace verify --write'"
        )
    return match[1].decode()


def write(path: Path) -> str:
    """Hash a file and write the result next to it."""
    sha = digest(path)
    with replacing(beside(path)) as file:
        file.write(f"{sha}  {path.name}\n".encode())
    return sha


def check(path: Path, verify: bool | None) -> None:
    """Compare a file with the sha256 next to it.

    If `verify` is None, only if there is one and the file is small.
    """
    if verify is False or not path.is_file():
        return
    expected = recorded(path)
    if expected is None and verify:
        raise LeakauditError(
            f"{path} has no sha256 next to it; if you trust the file, "
            "write one with 'leakaudit trace verify --write'"
        )
    if expected is not None and (verify or path.stat().st_size < AUTOMATIC):
        compare(path, expected)


def compare(path: Path, expected: str) -> None:
    """Reject a file that does not have the expected sha256."""
    if digest(path) != expected:
        raise LeakauditError(
            f"{path} was changed after it was recorded: it does not match its sha256; "
            "obtain it again from its source"
        )
