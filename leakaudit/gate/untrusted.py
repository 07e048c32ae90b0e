"""The gate for code of strangers, in a process without network, secrets and files of others.

The program under test, models, plug-ins and the configuration of a pull request can contain any
code. `check` runs all of it in an isolated process, takes over nothing but the record and its
pictures, and believes an exit code only if the record states the same. The isolation protects the
machine and its secrets; a program that is run can still falsify what is measured of itself.
"""

from __future__ import annotations

import json
import os
import site
import stat
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path

from leakaudit._util import forks, sandbox
from leakaudit._util.files import private_folder, replacing
from leakaudit.errors import ProgramError

START = """
from leakaudit.gate import untrusted
words = untrusted.enter()
from leakaudit.cli import main
raise SystemExit(main(words))
"""
# Environment variables that the isolated process receives; all others may hold secrets.
KEPT = ("PATH", "LANG", "LANGUAGE", "TZ", "TERM", "NO_COLOR", "COLUMNS", "CI", "SOURCE_DATE_EPOCH")
LIBRARIES = ("LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "MKL_NUM_THREADS")
PREFIXES = ("LC_", "LEAKAUDIT_")
SYSTEM = ("/usr", "/lib", "/lib32", "/lib64", "/bin", "/sbin", "/etc", "/proc", "/sys", "/nix")
RANDOM = ("/dev/zero", "/dev/random", "/dev/urandom")
SHARED = ("/dev/null", "/dev/shm")
LARGEST = 1 << 34  # bytes of a file; a choice, above the largest recording by default
LARGEST_RESULT = 1 << 28  # bytes of a file that is taken over; a choice
RESULTS = "results.json"
TAKEN = (RESULTS, "leak.png", "leak.npz")  # what a gate writes
VERDICTS = (0, 1, 3)
REFUSED = 2  # exit code of a mistake in the configuration


def check(words: Sequence[str], project: Path, output: Path, dry: bool = False) -> int:
    """Run ``leakaudit check`` in isolation, and take over its record and pictures.

    Args:
        words: Its arguments, without the output folder.
        project: Folder of the configuration and of the program.
        output: The output folder; the isolated process cannot write there.
        dry: Whether it writes an estimate to stdout, and no results.

    Returns:
        Its exit code.

    Raises:
        ProgramError: The exit code is not that of the record.
    """
    with tempfile.TemporaryDirectory(prefix="leakaudit-") as scratch:
        place = Path(scratch).resolve()
        for name in ("home", "tmp", "out"):
            (place / name).mkdir()
        told = {
            "words": ["check", *words, "--output", str(place / "out")],
            "allowed": _plain(_allowed(project, place)),
        }
        for name in TAKEN:
            (output / name).unlink(missing_ok=True)
        with subprocess.Popen(
            [sys.executable, "-P", "-c", START, json.dumps(told)],
            env=_environment(place),
            stdin=subprocess.DEVNULL,
            stdout=None if dry else subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
        ) as process:
            try:
                _relay(process)
                code = process.wait()
            finally:
                process.kill()
        if code not in (*VERDICTS, REFUSED):
            code = ProgramError.code
        if dry or code not in VERDICTS:
            return code
        private_folder(output)
        for name in TAKEN:
            _take(place / "out" / name, output / name)
    if _code(output) != code:
        (output / RESULTS).unlink(missing_ok=True)
        raise ProgramError(
            f"the isolated gate ended with code {code}, but its record does not state this "
            "verdict; nothing was judged"
        )
    return code


def enter() -> list[str]:
    """Isolate this process, which was started for that.

    Returns:
        The arguments of the command that it is to run.
    """
    told = json.loads(sys.argv[1])
    given = told["allowed"]
    paths = {name: [Path(p) for p in given[name]] for name in ("listed", "read", "written")}
    missing = sandbox.enter(sandbox.Allowed(**paths, largest=given["largest"]))
    if missing:
        sys.stderr.write(f"leakaudit check: not isolated on this system: {', '.join(missing)}\n")
        sys.stderr.flush()
    words: list[str] = told["words"]
    sys.argv = ["leakaudit", *words]
    return words


def _plain(allowed: sandbox.Allowed) -> dict[str, object]:
    return {
        name: [str(path) for path in value] if isinstance(value, list) else value
        for name, value in asdict(allowed).items()
    }


def _allowed(project: Path, place: Path) -> sandbox.Allowed:
    """Return what the isolated process may use: Python, the project without .git, and `place`."""
    project = project.resolve()
    python = {sys.prefix, sys.exec_prefix, sys.base_prefix, sys.base_exec_prefix}
    python |= {folder for folder in sys.path if folder and Path(folder).resolve() != project}
    python |= {site.getuserbase(), *_packages()}
    # .git/config may hold the token with which the repository was fetched.
    own = [entry for entry in project.iterdir() if entry.name != ".git"]
    devices = [*map(Path, SHARED), *Path("/dev").glob("nvidia*")]
    return sandbox.Allowed(
        listed=[project],
        read=[*map(Path, (*SYSTEM, *RANDOM, *sorted(python))), *own],
        written=[place, *devices],
        largest=LARGEST,
    )


def _packages() -> set[str]:
    """Return the folders of leakaudit, which are not on Python's path if it is a checkout."""
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
    """Copy the output of the process to stderr, so that it cannot command a terminal or a CI."""
    from leakaudit.results.wording import clean

    assert process.stderr is not None
    while line := process.stderr.readline(1 << 16):
        text = clean(line.decode("utf-8", "replace").rstrip("\r\n"))
        if text.lstrip().startswith("::"):
            text = f"| {text}"
        sys.stderr.write(f"{text}\n")


def _take(source: Path, target: Path) -> None:
    """Copy a regular file of moderate size; whatever else is there is not taken."""
    try:
        handle = os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return
    with os.fdopen(handle, "rb") as file:
        about = os.fstat(handle)
        if not stat.S_ISREG(about.st_mode) or about.st_size > LARGEST_RESULT:
            return
        with replacing(target) as out:
            out.write(file.read(about.st_size))


def _code(output: Path) -> int | None:
    """Return the exit code that a record states; None without a record."""
    from leakaudit.results import model, record_file
    from leakaudit.results.model import CheckRecord

    path = output / RESULTS
    if not path.is_file():
        return None
    record = model.fitted(record_file.read(path), CheckRecord)
    return record.gate.code
