"""Shared fixtures: one thread, seeded generators, external data, and the list of modules."""

from __future__ import annotations

import importlib
import os
import pkgutil
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import quick
import torch
from invoked import PROJECT, RECORD

from leakaudit.cli import main
from leakaudit.core import registry

PACKAGES = ("leakaudit", "leakaudit.attacks", "leakaudit.victims", "leakaudit.reports")

torch.set_num_threads(1)

# A shell ignores Ctrl-C in what it starts in the background; programs that tests interrupt would
# inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)


def module_names() -> list[str]:
    """Return every module of the package. The mapped folders are not its subfolders, so they are
    listed separately.
    """
    found = set(PACKAGES)
    for package in PACKAGES:
        folders = importlib.import_module(package).__path__
        found |= {module.name for module in pkgutil.walk_packages(folders, package + ".")}
    started_by_others = {"leakaudit.__main__", "leakaudit.capture.tap.site.sitecustomize"}
    return sorted(found - started_by_others)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test with an argument `module_name` once per module."""
    if "module_name" in metafunc.fixturenames:
        metafunc.parametrize("module_name", module_names())


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the cases that the quick suite leaves to the full run; see tests/quick.py."""
    left_out = quick.left_out()
    for item in items:
        if item.nodeid in left_out:
            item.add_marker(pytest.mark.slow)


@pytest.fixture(autouse=True)
def no_protocol_file_stays() -> Iterator[None]:
    """Forget the protocol files that a test registered; other tests may use their names."""
    yield
    for path in list(registry._files):
        registry._forget(path)


@pytest.fixture(scope="session")
def project() -> Path:
    """Return the folder with pyproject.toml."""
    return PROJECT


@pytest.fixture(scope="session")
def shared_data() -> Callable[[str], Path]:
    """`shared_data(name)`: a file or folder outside the project; skips the test, naming the file,
    if it is missing.
    """
    root = Path(os.environ.get("LEAKAUDIT_TEST_DATA") or PROJECT.parent / "shared" / "data")

    def find(name: str) -> Path:
        if not (root / name).exists():
            pytest.skip(
                f"{name} is missing (LEAKAUDIT_TEST_DATA names the folder that contains it)"
            )
        return root / name

    return find


@pytest.fixture(scope="session")
def fresh_seed() -> int:
    """Seed of the random cases in tests/adversarial; print it in a failure message, so that the
    case can be reproduced.

    `make test` draws the same few cases each time. `make selfcheck` and nightly runs use other
    seeds and more cases: ``LEAKAUDIT_FRESH_SEED=20261122 LEAKAUDIT_FRESH_CASES=200 pytest
    tests/adversarial``.
    """
    return int(os.environ.get("LEAKAUDIT_FRESH_SEED", "0"))


@pytest.fixture(scope="session")
def fresh_cases() -> Callable[[int], int]:
    """`fresh_cases(n)`: the number of random cases of a test, n unless LEAKAUDIT_FRESH_CASES sets
    another number.
    """

    def number(usual: int) -> int:
        return int(os.environ.get("LEAKAUDIT_FRESH_CASES", usual))

    return number


@pytest.fixture(scope="session")
def paper() -> Callable[[str], str]:
    """`paper("003")`: the text of a paper outside the project; skips the test if it is missing."""
    root = (
        Path(os.environ.get("LEAKAUDIT_TEST_DATA") or PROJECT.parent / "shared" / "data").parent
        / "papers"
    )

    def read(number: str) -> str:
        found = sorted(root.glob(f"{number}_*.txt"))
        if not found:
            pytest.skip(
                f"the text of paper {number} is missing (expected in a folder papers beside the one that LEAKAUDIT_TEST_DATA names)"
            )
        return found[0].read_text()

    return read


@pytest.fixture
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the test's temporary folder the current one."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def generator() -> torch.Generator:
    """Return a new generator with seed 0."""
    return torch.Generator().manual_seed(0)


@pytest.fixture(scope="session")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the trace of `invoked.RECORD`, its truth and their sha256; tests must not change
    them.
    """
    trace = tmp_path_factory.mktemp("recorded") / "trace.pt"
    assert main([*RECORD, "-o", str(trace)]) == 0
    return trace


@pytest.fixture
def place(tmp_path: Path, recorded: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Change to a temporary working folder with a copy of that trace."""
    shutil.copytree(recorded.parent, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path
