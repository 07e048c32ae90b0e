"""Writing of files: completely or not at all, and readable by their owner only."""

from __future__ import annotations

import errno
import os
import re
import secrets
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from leakaudit._util import marks
from leakaudit.core.errors import LeakauditError

if TYPE_CHECKING:
    import numpy as np

UNFINISHED = ".tmp"  # suffix of files that have not been moved to their final place
PRIVATE = 0o600  # permissions of a file
PRIVATE_FOLDER = 0o700  # permissions of a folder
ARCHIVE = b"PK\x03\x04"  # first bytes of traces, truths and .npz files
_RANDOM = 8  # bytes of the random number in the name of a temporary file
_TEMPORARY = re.compile(rf"\.(.+)\.[0-9a-f]{{{2 * _RANDOM}}}{re.escape(UNFINISHED)}", re.DOTALL)


@contextmanager
def explained(what: str, advice: str = "") -> Iterator[None]:
    """Turn an error of the operating system into one that says what failed, and what to do."""
    try:
        yield
    except OSError as error:
        raise LeakauditError(f"{what}: {error.strerror}{advice}") from None


def mode(path: Path) -> int:
    """Return the permissions of a file to be written or replaced; stricter ones are kept."""
    try:
        return stat.S_IMODE(path.stat().st_mode) & PRIVATE
    except OSError:
        return PRIVATE


def resolved(path: Path) -> Path:
    """Return the absolute path of a file or folder, with all links followed."""
    real = Path(os.path.realpath(path))
    # Links of a loop stay in it, and there are no others.
    if any(place.is_symlink() for place in (real, *real.parents)):
        raise LeakauditError(f"{path}: its symbolic links form a loop")
    return real


def private_folder(path: Path) -> None:
    """Create a folder and those above it, unless they exist; the permissions of others are kept."""
    if path.is_dir():
        return
    if path.parent != path:
        private_folder(path.parent)
    path.mkdir(PRIVATE_FOLDER, exist_ok=True)
    sync_folder(path.parent)


def sync_folder(path: Path) -> None:
    """Wait until the names in a folder are on the disk, so that no failure undoes a renaming."""
    if os.name != "posix":  # other systems cannot open a folder
        return
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    except PermissionError:  # one may write into a folder without being allowed to list it
        return
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # file systems that do not do this
            raise
    finally:
        os.close(fd)


@contextmanager
def replacing(path: Path, durable: bool = True) -> Iterator[BinaryIO]:
    """Write to a temporary file and move it to its final place at the end, or keep the old one.

    Args:
        durable: Whether the file and its name are on the disk at the end, which takes milliseconds.
    """
    # Nobody else can plant a file or a link of this name, and no other process writes to it.
    beside = path.with_name(f".{path.name}.{secrets.token_hex(_RANDOM)}{UNFINISHED}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
    kept = mode(path)
    try:
        private_folder(path.parent)
        try:
            with open(beside, "wb", opener=lambda name, _: os.open(name, flags, kept)) as file:
                yield file
                if durable:
                    file.flush()
                    os.fsync(file.fileno())
            beside.chmod(kept)  # a library that was given the name may have made the file anew
            beside.replace(path)
            if durable:
                sync_folder(path.parent)
        finally:
            beside.unlink(missing_ok=True)
    except OSError as error:
        reason = error.strerror or error
        raise LeakauditError(
            f"cannot write {path}: {reason}; choose another place with --output"
        ) from None


def expect_page(path: Path, *read: Path) -> None:
    """Refuse to replace what was read, or an archive such as a trace, by what people read."""
    if not path.is_file():
        return
    with path.open("rb") as file:
        archive = file.read(len(ARCHIVE)) == ARCHIVE
    if archive or any(one.exists() and path.samefile(one) for one in read):
        kind = "an archive, such as a trace" if archive else "what this command reads"
        raise LeakauditError(f"{path} is {kind}; choose another file with --output")


def write_tensors(path: Path, content: Mapping[str, Any], durable: bool = True) -> None:
    """Write tensors with `torch.save`, atomically."""
    import torch

    with replacing(path, durable) as file:
        try:
            torch.save(content, file)
        except RuntimeError as error:  # torch does not pass on the error of a full disk
            raise OSError(errno.ENOSPC, "the disk is full or does not accept the file") from error


def unfinished(folder: Path) -> dict[Path, str]:
    """Find the files that `replacing` left behind when its process was killed."""
    found = {}
    for path in folder.glob(f".*{UNFINISHED}"):
        name = intended(path)
        if name is not None:
            found[path] = name
    return found


def intended(path: Path) -> str | None:
    """Return the name that a temporary file of `replacing` was to get; None for any other file."""
    match = _TEMPORARY.fullmatch(path.name)
    return None if match is None else match[1]


def write_arrays(file: BinaryIO, arrays: Mapping[str, np.ndarray]) -> None:
    """Write images, texts or labels as .npz, with the mark of personal data."""
    import numpy as np

    # numpy has an argument allow_pickle since 2.1; earlier versions would store it as an array.
    np.savez_compressed(file, **arrays)  # type: ignore[arg-type]
    marks.archive(file)
