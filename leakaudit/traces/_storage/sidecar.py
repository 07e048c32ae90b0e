"""The sha256 beside a file, in the format of sha256sum: the only thing that notices a flipped byte in a tensor."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from leakaudit.errors import LeakauditError
from leakaudit.progress import step

AUTOMATIC = 1 << 30  # bytes below which a reader compares unasked
LARGE = 4 << 30  # bytes above which a writer hashes only when asked
CHUNK = 1 << 20


def beside(path: Path) -> Path:
    """Return where the sha256 of `path` stands."""
    return path.with_name(path.name + ".sha256")


def digest(path: Path) -> str:
    """Hash a file in pieces; raises LeakauditError where it cannot be read."""
    sha, piece, done = hashlib.sha256(), memoryview(bytearray(CHUNK)), 0
    try:
        with path.open("rb", buffering=0) as file:
            size = path.stat().st_size
            while count := file.readinto(piece):
                sha.update(piece[:count])
                done += count
                step("hashing", done, size)
    except OSError as error:
        raise LeakauditError(f"cannot read {path}: {error.strerror}") from None
    return sha.hexdigest()


def recorded(path: Path) -> str | None:
    """Return the sha256 that stands beside `path`, None where there is none; raises LeakauditError where it is not one."""
    try:
        with beside(path).open("rb") as file:
            text = file.read(4096)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise LeakauditError(f"cannot read {beside(path)}: {error.strerror}") from None
    if (match := re.match(rb"\\?([0-9a-f]{64})\b", text)) is None:
        raise LeakauditError(
            f"{beside(path)} holds no sha256; if you trust the trace, remove it and use 'leakaudit trace verify --write'"
        )
    return match[1].decode()


def write(path: Path) -> str:
    """Hash `path`, write the result beside it and return it."""
    sha = digest(path)
    try:
        beside(path).write_text(f"{sha}  {path.name}\n", encoding="utf-8")
    except OSError as error:
        raise LeakauditError(f"cannot write {beside(path)}: {error.strerror}") from None
    return sha


def check(path: Path, verify: bool | None) -> None:
    """Compare `path` with the sha256 beside it; verify: None where there is one and the file is small, True always, False never."""
    if verify is False or not path.is_file():
        return
    expected = recorded(path)
    if expected is None and verify:
        raise LeakauditError(
            f"{path} has no sha256 beside it; if you trust it, write one with 'leakaudit trace verify --write'"
        )
    if expected is not None and (verify or path.stat().st_size < AUTOMATIC):
        compare(path, expected)


def compare(path: Path, expected: str) -> None:
    """Raise LeakauditError unless the file hashes to `expected`."""
    if digest(path) != expected:
        raise LeakauditError(
            f"{path} was changed after it was recorded: it does not match its sha256; get it again where it was made"
        )
