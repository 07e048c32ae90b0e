"""Plant one bug after the other in a copy of the product, and see whether its tests fail.

    python tests/mutants.py                      all of tests/mutants.toml, a table by room
    python tests/mutants.py theory scoring       the bugs of some rooms
    python tests/mutants.py --only NAME ...      some bugs

A bug is one edit: in `file`, the text `old`, which occurs once, becomes `new`. It is caught if one
of the `tests` fails that `make test` runs of the files named for it: what a developer who changes
that file would run. The exit code is 1 if a room catches a smaller share than `FLOOR`.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent
TABLE = PROJECT / "tests" / "mutants.toml"
LEAVES = ("attacks", "victims", "reports")
FLOOR = 0.9
CHOSEN = "not slow and not browser"  # as make test does
PASSED, FAILED = 0, 1  # exit codes of pytest
TIMEOUT = 600  # seconds; a bug that hangs the tests is caught


@dataclass(frozen=True)
class Bug:
    """One edit of one file, and the test files that guard it."""

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]

    @property
    def room(self) -> str:
        """The room, or the leaf, that the file belongs to."""
        parts = Path(self.file).parts
        return parts[1] if parts[0] == "leakaudit" else parts[0]

    def planted(self) -> str:
        """Return the text of the file with the bug; the old text must occur once."""
        text = (PROJECT / self.file).read_text(encoding="utf-8")
        if text.count(self.old) != 1:
            raise ValueError(
                f"{self.name}: {self.file} has {text.count(self.old)} times {self.old!r}"
            )
        return text.replace(self.old, self.new)


def bugs(table: Path = TABLE) -> list[Bug]:
    """Read the table."""
    rows = tomllib.loads(table.read_text(encoding="utf-8"))
    return [
        Bug(name, row["file"], row["old"], row["new"], tuple(row["tests"]))
        for name, row in rows.items()
    ]


def installed(folder: Path) -> Path:
    """Copy the product into a folder as a wheel would install it, and return the package."""
    package = folder / "leakaudit"
    for source, target in [("leakaudit", package), *((leaf, package / leaf) for leaf in LEAVES)]:
        shutil.copytree(PROJECT / source, target, ignore=shutil.ignore_patterns("__pycache__"))
    return package


def caught(
    bug: Bug, package: Path, options: Sequence[str] = (), more: Mapping[str, str] | None = None
) -> bool:
    """Plant a bug in an installed package, run its tests, and take it out again.

    Pytest gets the options, and `more` in its environment.
    """
    leaf = Path(bug.file).parts[0] in LEAVES
    file = package / bug.file if leaf else package.parent / bug.file
    sound = file.read_text(encoding="utf-8")
    file.write_text(bug.planted(), encoding="utf-8")
    try:
        paths = os.pathsep.join([str(package.parent), str(PROJECT / "tests")])
        environment = {**os.environ, "PYTHONPATH": paths, **(more or {})}
        return _fails([*options, *bug.tests], environment)
    finally:
        file.write_text(sound, encoding="utf-8")


def _fails(given: Sequence[str], environment: Mapping[str, str]) -> bool:
    command = ["-P", "-B", "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-m", CHOSEN]
    try:
        done = subprocess.run(
            [sys.executable, *command, *given],
            cwd=PROJECT,
            env={**environment, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            timeout=TIMEOUT,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return True
    if done.returncode not in (PASSED, FAILED):
        if "ImportError" in done.stdout or "Error" in done.stdout:
            return True  # the bug breaks the import of its tests
        raise RuntimeError(f"pytest {' '.join(given)}: {done.stdout[-500:]}{done.stderr[-500:]}")
    return done.returncode == FAILED


def main() -> int:
    """Plant the bugs, and return 1 if a room catches too few."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("rooms", nargs="*")
    parser.add_argument("--only", nargs="+", default=[])
    given = parser.parse_args()
    chosen = [bug for bug in bugs() if not given.rooms or bug.room in given.rooms]
    chosen = [bug for bug in chosen if not given.only or bug.name in given.only]
    outcomes: dict[str, Counter[bool]] = defaultdict(Counter)
    with tempfile.TemporaryDirectory() as folder:
        package = installed(Path(folder))
        for bug in chosen:
            started = time.perf_counter()
            outcome = caught(bug, package)
            outcomes[bug.room][outcome] += 1
            word = "caught" if outcome else "SURVIVED"
            seconds = time.perf_counter() - started
            sys.stdout.write(f"{word:9s} {bug.room:10s} {bug.name} ({seconds:.0f} s)\n")
            sys.stdout.flush()
    low = 0
    for room, counts in sorted(outcomes.items()):
        share = counts[True] / counts.total()
        low += share < FLOOR
        sys.stdout.write(f"{room:10s} {counts[True]:3d} of {counts.total():3d}\n")
    every = sum(outcomes.values(), Counter())
    sys.stdout.write(f"{'all':10s} {every[True]:3d} of {every.total():3d}\n")
    return int(low > 0 or every[True] < FLOOR * every.total())


if __name__ == "__main__":
    sys.exit(main())
