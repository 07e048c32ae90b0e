"""The gate for code of strangers, in a process without network, secrets and files of others.

`check` takes over nothing but the record and its pictures, and believes an exit code only if the
record states it. A program can still falsify what is measured of itself.
"""

from __future__ import annotations

import json
import os
import select
import signal
import site
import stat
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TextIO

from leakaudit._util import forks
from leakaudit._util.files import private_folder, replacing
from leakaudit._util.isolation import sandbox, scratch
from leakaudit.core.errors import PROGRAM_FAILED, LeakauditError

START = """
from leakaudit.judging.gate import untrusted
words = untrusted.enter()
from leakaudit.cli import main
raise SystemExit(main(words))
"""
# Environment variables that the isolated process receives; all others may hold secrets.
KEPT = ("PATH", "LANG", "LANGUAGE", "TZ", "TERM", "NO_COLOR", "COLUMNS", "CI", "SOURCE_DATE_EPOCH")
LIBRARIES = ("LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "MKL_NUM_THREADS")
PREFIXES = ("LC_", "LEAKAUDIT_")
SYSTEM = ("/usr", "/lib", "/lib32", "/lib64", "/bin", "/sbin", "/proc", "/sys", "/nix")
# What programs read in /etc, where keys and hashes of passwords are, too.
SETTINGS = (
    *("ld.so.cache", "ld.so.conf", "ld.so.conf.d", "alternatives", "nsswitch.conf", "localtime"),
    *("passwd", "group", "hosts", "host.conf", "os-release", "timezone", "locale.alias"),
    *("ssl/certs", "ssl/openssl.cnf", "pki/tls/certs", "pki/ca-trust", "crypto-policies"),
    *("fonts", "mime.types", "python3", "python3.11", "python3.12", "python3.13", "python3.14"),
)
RANDOM = ("/dev/zero", "/dev/random", "/dev/urandom")
SHARED = ("/dev/null", "/dev/shm")
GIT = ".git"
TOLD = "told.json"  # what the isolated process is to do
WRITTEN = ("home", "tmp", "out")  # folders of the isolated process
PATIENCE = 1.0  # seconds for the rest of its output after its end
LONGEST = 1 << 16  # bytes of a line
LARGEST = 1 << 34  # bytes of a file; a choice, above the largest recording by default
LARGEST_RESULT = 1 << 28  # bytes of a file that is taken over; a choice
RESULTS = "results.json"
TAKEN = (RESULTS, "leak.png", "leak.npz")  # what a gate writes
VERDICTS = (0, 1, 3)
REFUSED = 2  # exit code of a mistake in the configuration


def check(words: Sequence[str], project: Path, output: Path, dry: bool = False) -> int:
    """Run ``leakaudit check`` in isolation, and take over its record and pictures."""
    with scratch.folder() as place:
        for name in (*WRITTEN, "taken"):
            (place / name).mkdir()
        told = {
            "words": ["check", *words, "--output", str(place / "out")],
            "allowed": _allowed(project, place),
        }
        # It may be longer than an argument.
        (place / TOLD).write_text(json.dumps(told, default=str))
        for name in TAKEN:
            (output / name).unlink(missing_ok=True)
        made = os.open(place / "out", scratch.FOLDER)  # whatever has this name later
        try:
            code = _run(place, dry)
            for name in TAKEN:
                _take(made, name, place / "taken")
        finally:
            os.close(made)
        if code not in (*VERDICTS, REFUSED):
            code = PROGRAM_FAILED
        if dry or code not in VERDICTS:
            return code
        if _code(place / "taken") != code:
            raise LeakauditError(
                f"the isolated gate ended with code {code}, but its record does not state this "
                "verdict; nothing was judged",
                code=PROGRAM_FAILED,
            )
        _keep(place / "taken", output)
    return code


def _run(place: Path, dry: bool) -> int:
    """Run the isolated process, relay what it says, and return its exit code."""
    with subprocess.Popen(
        [sys.executable, "-P", "-c", START, str(place / TOLD)],
        env=_environment(place),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE if dry else subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        bufsize=0,
        start_new_session=True,
    ) as process:
        try:
            _relay(process)
            return process.wait()
        finally:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.kill()


def enter() -> list[str]:
    """Isolate this process, which was started for that."""
    told = json.loads(Path(sys.argv[1]).read_text())
    paths = {name: [Path(p) for p in some] for name, some in told["allowed"].items()}
    missing = sandbox.enter(**paths, largest=LARGEST)
    if missing:
        sys.stderr.write(f"leakaudit check: not isolated on this system: {', '.join(missing)}\n")
        sys.stderr.flush()
    words: list[str] = told["words"]
    sys.argv = ["leakaudit", *words]
    return words


def _allowed(project: Path, place: Path) -> dict[str, Sequence[Path]]:
    """Return what `sandbox.enter` allows: Python, the project without .git, and `place`."""
    project = project.resolve()
    listed, read = _without_git(project)
    for path in _python():
        more_listed, more_read = _without_git(path)
        listed += more_listed
        read += more_read
    read += [*map(Path, (*SYSTEM, *RANDOM)), *(Path("/etc", name) for name in SETTINGS)]
    devices = [*map(Path, SHARED), *Path("/dev").glob("nvidia*")]
    written = [*(place / name for name in WRITTEN), *devices]
    return {"listed": listed, "read": read, "written": written}


def _python() -> list[Path]:
    """Return the folders of Python and its packages outside `SYSTEM`, none with the home folder."""
    given = {sys.prefix, sys.exec_prefix, sys.base_prefix, sys.base_exec_prefix, *sys.path}
    given |= {site.getusersitepackages(), *_packages()}
    home = Path.home().resolve()
    folders = {Path(name).resolve() for name in given if name}
    return sorted(
        folder
        for folder in folders
        if not home.is_relative_to(folder)
        and not any(folder.is_relative_to(system) for system in SYSTEM)
    )


def _without_git(top: Path) -> tuple[list[Path], list[Path]]:
    """Return the folders to list, and what to read: all but .git, at any depth.

    A .git may hold the token with which the repository was fetched. Links would allow what they
    lead to, so they are left out.
    """
    entries: dict[Path, list[os.DirEntry[str]]] = {}  # by folder
    holding: set[Path] = set()  # folders with a .git somewhere below them
    waiting = [top]
    while waiting:
        folder = waiting.pop()
        entries[folder] = _entries(folder)
        waiting += [Path(entry) for entry in entries[folder] if _is_folder(entry)]
        if any(entry.name == GIT for entry in entries[folder]):
            holding |= {folder, *folder.parents}
    listed: list[Path] = []
    read: list[Path] = []
    waiting = [top]
    while waiting:
        folder = waiting.pop()
        if folder not in holding:
            read.append(folder)
            continue
        listed.append(folder)
        own = [entry for entry in entries[folder] if entry.name != GIT]
        waiting += [Path(entry) for entry in own if _is_folder(entry)]
        read += [Path(entry) for entry in own if not _is_folder(entry)]
    return listed, read


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    """Return what a folder contains, without links; nothing if it cannot be read."""
    try:
        with os.scandir(folder) as entries:
            return [entry for entry in entries if not entry.is_symlink()]
    except OSError:
        return []


def _is_folder(entry: os.DirEntry[str]) -> bool:
    return entry.name != GIT and entry.is_dir(follow_symlinks=False)


def _packages() -> set[str]:
    """Return the folders of leakaudit; those of a checkout are not on Python's path."""
    found = set()
    for name in ("leakaudit", "leakaudit.attacks", "leakaudit.victims", "leakaudit.reports"):
        spec = find_spec(name)
        found |= set((spec.submodule_search_locations or ()) if spec else ())
    return found


def _environment(place: Path) -> dict[str, str]:
    kept = {
        name: value
        for name, value in os.environ.items()
        if name in (*KEPT, *LIBRARIES) or name.startswith(PREFIXES)
    }
    return kept | {
        "HOME": str(place / "home"),
        "TMPDIR": str(place / "tmp"),
        "PYTHONUSERBASE": site.getuserbase(),
        "PYTHONDONTWRITEBYTECODE": "1",
        forks.ISOLATED: "1",
        **forks.SAFE_PATH,
    }


def _relay(process: subprocess.Popen[bytes]) -> None:
    """Copy the output of the process, so that it cannot command a terminal or a CI.

    Programs that outlive the process and hold its output are not waited for.
    """
    streams = {process.stderr: sys.stderr, process.stdout: sys.stdout}
    targets = {source.fileno(): target for source, target in streams.items() if source}
    rest = dict.fromkeys(targets, b"")
    waiting = list(targets)
    ended = float("inf")
    while waiting and time.monotonic() < ended + PATIENCE:
        ready, _, _ = select.select(waiting, [], [], PATIENCE / 10)
        if process.poll() is not None:
            ended = min(ended, time.monotonic())
        for source in ready:
            came = os.read(source, LONGEST)
            if not came:
                waiting.remove(source)
            *lines, rest[source] = (rest[source] + came).split(b"\n")
            if len(rest[source]) > LONGEST:
                lines.append(rest[source])
                rest[source] = b""
            _show(lines, targets[source])
    for source, target in targets.items():
        _show([rest[source]] if rest[source] else [], target)


def _show(lines: Sequence[bytes], target: TextIO) -> None:
    """Write lines that no CI takes for commands."""
    from leakaudit.reporting.findings.wording import clean

    for line in lines:
        text = clean(line.decode("utf-8", "replace").rstrip("\r"))
        target.write(f"{text}\n")


def _take(folder: int, name: str, taken: Path) -> None:
    """Copy a regular file of moderate size; one with a second name may be somebody else's."""
    try:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
        handle = os.open(name, flags, dir_fd=folder)
    except OSError:
        return
    with os.fdopen(handle, "rb") as file:
        about = os.fstat(handle)
        if stat.S_ISREG(about.st_mode) and about.st_nlink == 1 and about.st_size <= LARGEST_RESULT:
            (taken / name).write_bytes(file.read(about.st_size))


def _keep(taken: Path, output: Path) -> None:
    private_folder(output)
    for name in TAKEN:
        if (taken / name).is_file():
            with replacing(output / name) as out:
                out.write((taken / name).read_bytes())


def _code(folder: Path) -> int | None:
    from leakaudit.reporting.results import model, record_file
    from leakaudit.reporting.results.model import CheckRecord

    path = folder / RESULTS
    if not path.is_file():
        return None
    record = model.fitted(record_file.read(path), CheckRecord)
    return record.gate.code
