"""What is not the core can be removed: a folder is deleted, one line names it no more."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

PROJECT = Path(__file__).resolve().parents[2]
LEAVES = ("attacks", "victims", "reports")


class Periphery(NamedTuple):
    """A folder that nothing in the core imports, and the line that offers it."""

    folder: str
    file: str
    line: str
    without: str
    verb: str = ""  # module of the command that shows it


PERIPHERY = {
    "viewer": Periphery(
        "reporting/viewing",
        "cli/_main.py",
        '"results": ("report", "view", "purge"),',
        '"results": ("report", "purge"),',
        "leakaudit.cli.view",
    ),
    "trackers": Periphery(
        "reporting/trackers", "__init__.py", '    "log_to": "api",\n', "", "leakaudit.api"
    ),
    "processes": Periphery(
        "capture/gloo",
        "cli/record.py",
        'choices=("inline", "gloo", "threads")',
        'choices=("inline",)',
    ),
    "equation discovery": Periphery(
        "capture/equations",
        "cli/trace.py",
        "lint.run, equations.run)",
        "lint.run)",
        "leakaudit.cli.equations",
    ),
    "clusters": Periphery(
        "runs/clusters",
        "runs/workers/executor.py",
        "BACKENDS = (PROCESS, *ELSEWHERE)",
        "BACKENDS = (PROCESS,)",
    ),
}

# What the core does, in a package from which something was removed.
WORK = """
import importlib, pkgutil, sys
from pathlib import Path
import leakaudit
from leakaudit.cli import main

assert Path(leakaudit.__file__).is_relative_to(Path.cwd()), leakaudit.__file__
for module in pkgutil.walk_packages(leakaudit.__path__, "leakaudit."):
    if module.name not in {without!r} and not module.name.endswith("__main__"):
        importlib.import_module(module.name)
small = ["--nodes", "4", "--graph", "ring", "--rounds", "4", "--data", "faces", "--model", "mlp"]
assert main(["record", "pdmm", "-o", "trace.pt", *small]) == 0
assert main(["attack", "trace.pt", "-o", "out"]) == 0
assert main(["bound", "trace.pt"]) == 0
assert main(["bound", "trace.pt", "--workers", "2", "--node", "0"]) == 0
assert main(["report", "out", "-o", "report.html"]) == 0
assert main(["trace", "info", "trace.pt"]) == 0
assert main(["list", "attacks"]) == 0
assert "exact" in Path("report.html").read_text()
"""


def removed(names: list[str], folder: Path) -> None:
    """Install the package into a folder without some of its periphery, and let the core work."""
    ignored = shutil.ignore_patterns("__pycache__")
    package = folder / "leakaudit"
    shutil.copytree(PROJECT / "leakaudit", package, ignore=ignored)
    for leaf in LEAVES:
        shutil.copytree(PROJECT / leaf, package / leaf, ignore=ignored)
    for name in names:
        part = PERIPHERY[name]
        shutil.rmtree(package / part.folder)
        file = package / part.file
        text = file.read_text(encoding="utf-8")
        assert text.count(part.line) == 1, f"{part.file} has no such line: {part.line}"
        file.write_text(text.replace(part.line, part.without), encoding="utf-8")
    verbs = {PERIPHERY[name].verb for name in names}
    done = subprocess.run(
        [sys.executable, "-P", "-c", WORK.format(without=verbs)],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]


def test_the_core_works_without_its_periphery(tmp_path: Path) -> None:
    removed(list(PERIPHERY), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", PERIPHERY)
def test_each_part_can_be_removed_alone(name: str, tmp_path: Path) -> None:
    removed([name], tmp_path)
