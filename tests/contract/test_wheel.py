"""The built wheel holds the whole package under one name, and works outside the checkout."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
SOURCES = ("leakaudit", "attacks", "victims", "reports")


@pytest.fixture(scope="module")
def wheel(project: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy of the sources, so that nothing is left in the checkout."""
    copy = tmp_path_factory.mktemp("checkout")
    for folder in SOURCES:
        shutil.copytree(
            project / folder, copy / folder, ignore=shutil.ignore_patterns("__pycache__")
        )
    for file in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(project / file, copy)
    build = [
        sys.executable,
        "-m",
        "build",
        "--wheel",
        "--no-isolation",
        "--outdir",
        str(copy / "dist"),
        str(copy),
    ]
    done = subprocess.run(build, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (found,) = (copy / "dist").glob("*.whl")
    return found


def test_every_module_is_in_it_and_nothing_beside_the_package(project: Path, wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if ".dist-info/" not in name}
    expected = {"leakaudit/py.typed"}
    for suffix in ("json", "j2", "css", "js"):
        expected |= {
            file.relative_to(project).as_posix()
            for file in (project / "leakaudit").rglob(f"*.{suffix}")
        }
    for folder in SOURCES:
        prefix = "" if folder == "leakaudit" else "leakaudit/"
        expected |= {
            prefix + file.relative_to(project).as_posix()
            for file in (project / folder).rglob("*.py")
        }
    assert held == expected


def test_it_carries_its_licence_and_command(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        read = {
            Path(name).name: archive.read(name).decode()
            for name in archive.namelist()
            if ".dist-info/" in name
        }
    assert "Apache License" in read["LICENSE"]
    assert "leakaudit = leakaudit.cli:main" in read["entry_points.txt"]
    assert "License-Expression: Apache-2.0" in read["METADATA"]


def test_it_is_imported_from_outside_the_checkout(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    probe = (
        f"import sys; sys.path.insert(0, {str(tmp_path / 'site')!r})\n"
        "from leakaudit.core import registry\n"
        "for group in registry.GROUPS:\n"
        "    for name, thing in registry.everything(group):\n"
        "        print(sys.modules[thing.__module__].__file__)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", probe], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout
    assert all(line.startswith(str(tmp_path / "site")) for line in done.stdout.splitlines())
