"""The attack, the victim and the report that the pages write pass what a contribution must pass."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import mutants
import pytest

PROJECT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^```\{code-block\} python\n:caption: (\w+\.py)\n(.*?)^```", re.M | re.S)
# page -> the folder that its file belongs to, the test of every file there, most imports of ours
PAGES = {
    "add-an-attack.md": ("attacks", "test_attacks.py", 8),
    "add-a-victim.md": ("victims", "test_victims.py", 10),
    "reports.md": ("reports", "test_formats.py", 2),
}


def example(page: str) -> tuple[str, str]:
    """Return the name and the text of the file that a page writes."""
    [(name, text)] = BLOCK.findall((PROJECT / "docs" / page).read_text(encoding="utf-8"))
    return name, text


def run(*command: str, **more: str) -> str:
    """Run a command in the project and return what it prints; it must succeed."""
    done = subprocess.run(
        [sys.executable, "-P", "-B", "-m", *command],
        cwd=PROJECT,
        env=os.environ | more,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    return done.stdout


@pytest.mark.parametrize("page", PAGES)
def test_an_example_passes_the_contract(page: str, tmp_path: Path) -> None:
    folder, contract, _ = PAGES[page]
    name, text = example(page)
    (mutants.installed(tmp_path) / folder / name).write_text(text, encoding="utf-8")
    test = f"tests/contract/{contract}"
    chosen = ("pytest", "-q", "-p", "no:cacheprovider", "-k", name.removesuffix(".py"), test)
    said = run(*chosen, PYTHONPATH=str(tmp_path))
    passed = re.search(r"(\d+) passed", said)
    assert passed is not None
    assert int(passed[1]) >= 4


@pytest.mark.parametrize("page", PAGES)
def test_an_example_is_clean_and_imports_few_names(page: str, tmp_path: Path) -> None:
    folder, _, most = PAGES[page]
    name, text = example(page)
    imported = re.findall(r"^from leakaudit\S* import (.+)$", text, re.M)
    assert 0 < sum(len(names.split(",")) for names in imported) <= most
    file = tmp_path / folder / name
    file.parent.mkdir()
    file.write_text(text, encoding="utf-8")
    settings = str(PROJECT / "pyproject.toml")
    run("ruff", "check", "--no-cache", "--config", settings, str(file))
    run("ruff", "format", "--check", "--no-cache", "--config", settings, str(file))


@pytest.mark.slow
def test_the_examples_have_the_right_types(tmp_path: Path) -> None:
    for part in ("leakaudit", *mutants.LEAVES, ".typings"):
        shutil.copytree(PROJECT / part, tmp_path / part, symlinks=True)
    shutil.copy(PROJECT / "pyproject.toml", tmp_path)
    for page, (folder, _, _) in PAGES.items():
        name, text = example(page)
        (tmp_path / folder / name).write_text(text, encoding="utf-8")
    settings = str(tmp_path / "pyproject.toml")
    files = [str(tmp_path / folder) for folder, _, _ in PAGES.values()]
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--config-file", settings, *files],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:]
