"""The shape of the house: mapped folders, one direction of imports, a light package, one version, one install command."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

import leakaudit
from leakaudit._util.earlier_names import EARLIER

LEAVES = ("attacks", "victims", "reports")


def imports(file: Path) -> Iterator[str]:
    """Dotted names that a file imports; `from a import b` gives a.b."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def is_in(name: str, package: str) -> bool:
    return name == package or name.startswith(package + ".")


# --- mapped folders ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("leaf", LEAVES)
def test_a_mapped_folder_is_refused_under_its_bare_name(project: Path, leaf: str) -> None:
    found = subprocess.run(
        [sys.executable, "-c", f"import {leaf}"],
        cwd=project,
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 1
    assert (
        f"ImportError: {leaf}/ is the package leakaudit.{leaf}: write 'import leakaudit.{leaf}'"
        in found.stderr
    )


@pytest.mark.parametrize("leaf", LEAVES)
def test_a_mapped_folder_is_imported_as_part_of_the_package(project: Path, leaf: str) -> None:
    assert importlib.import_module(f"leakaudit.{leaf}").__path__ == [str(project / leaf)]


@pytest.mark.parametrize("leaf", LEAVES)
def test_a_mapped_folder_has_no_subfolder(project: Path, leaf: str) -> None:
    assert [
        p.name for p in (project / leaf).iterdir() if p.is_dir() and p.name != "__pycache__"
    ] == []


def test_every_folder_of_the_package_is_listed_for_the_wheel(project: Path) -> None:
    listed = tomllib.loads((project / "pyproject.toml").read_text())["tool"]["setuptools"][
        "packages"
    ]
    folders = {"leakaudit"} | {
        ".".join(p.parent.relative_to(project).parts) for p in (project / "leakaudit").rglob("*.py")
    }
    assert set(listed) == folders | {f"leakaudit.{leaf}" for leaf in LEAVES}


@pytest.mark.parametrize("leaf", LEAVES)
def test_type_checkers_find_a_mapped_folder_by_a_relative_link(project: Path, leaf: str) -> None:
    link = project / ".typings" / "leakaudit" / leaf
    assert link.readlink() == Path("..") / ".." / leaf
    assert link.resolve() == project / leaf


def test_tools_know_all_four_folders_and_outputs_stay_out_of_the_sources(project: Path) -> None:
    tools = tomllib.loads((project / "pyproject.toml").read_text())["tool"]
    assert set(tools["coverage"]["run"]["source"]) == {"leakaudit", *LEAVES}
    assert tools["mypy"]["mypy_path"].endswith(".typings")
    assert set(tools["ruff"]["lint"]["flake8-tidy-imports"]["banned-api"]) >= {
        f"leakaudit.{leaf}" for leaf in LEAVES
    }
    assert "leakaudit-out/" in (project / ".gitignore").read_text().splitlines()


# --- one direction ----------------------------------------------------------------------------------------------------


def test_the_core_names_no_leaf(project: Path) -> None:
    """Except for the package itself, which offers the attacks as values: `la.attacks.DLG`."""
    named = [
        f"{file.relative_to(project)} imports {name}"
        for file in (project / "leakaudit").rglob("*.py")
        if file != project / "leakaudit" / "__init__.py"
        for name in imports(file)
        if any(is_in(name, f"leakaudit.{leaf}") for leaf in LEAVES)
    ]
    assert named == []


@pytest.mark.parametrize("leaf", LEAVES)
def test_leaves_do_not_import_each_other(project: Path, leaf: str) -> None:
    """A file whose name begins with `_` is no leaf but a part of its folder's leaves, and open to them alone."""
    named = [
        f"{leaf}/{file.name} imports {name}"
        for file in (project / leaf).glob("*.py")
        if file.name != "__init__.py"  # which offers the classes of its own folder
        for name in imports(file)
        if any(is_in(name, f"leakaudit.{other}") for other in (*LEAVES, "cli"))
        and not name.startswith(f"leakaudit.{leaf}._")
    ]
    assert named == []


def test_no_attack_names_the_truth(project: Path) -> None:
    """`make lint` checks the rooms; this checks the names that an attack could take from rooms that it may use."""
    sealed = ("Truth", "Trace", "Recorder", "load", "load_truth", "score")
    named = [
        f"attacks/{file.name} imports {name}"
        for file in (project / "attacks").glob("*.py")
        for name in imports(file)
        if name in {f"leakaudit.{s}" for s in sealed}
        or name in ("leakaudit.core.trace.Truth", "leakaudit.core.trace.Trace")
    ]
    assert named == []


def rooms(project: Path) -> list[str]:
    """The layers of the contract of directions, from the highest; neighbours are joined by `|`."""
    tools = tomllib.loads((project / "pyproject.toml").read_text())["tool"]
    direction: list[str] = tools["importlinter"]["contracts"][0]["layers"]
    return direction


def test_the_house_has_fourteen_rooms_and_each_says_its_duty_in_a_sentence(project: Path) -> None:
    doors = {"__main__", "api", "pytest_plugin"}
    flat = {file.stem for file in (project / "leakaudit").glob("*.py")}
    assert flat == doors | {"__init__"}
    named = {name for layer in rooms(project) for name in layer.split(" | ")} - doors
    folders = [file.parent for file in (project / "leakaudit").glob("*/__init__.py")]
    assert {folder.name for folder in folders} == named
    assert len(named) == 14
    for folder in folders:
        duty = ast.get_docstring(ast.parse((folder / "__init__.py").read_text())) or ""
        assert re.fullmatch(r"[A-Z_][^\n]+[.?]", duty), f"{folder.name}: {duty!r}"


def test_nothing_leads_upwards_not_even_a_type(project: Path) -> None:
    """`lint-imports` leaves out what only type checkers import."""
    floor = {
        name: height
        for height, layer in enumerate(reversed(rooms(project)))
        for name in layer.split(" | ")
    }
    upwards = []
    for file in (project / "leakaudit").rglob("*.py"):
        own, *_ = file.relative_to(project / "leakaudit").with_suffix("").parts
        for name in imports(file):
            room = [*name.split("."), ""][1]
            if own == "__init__" or not is_in(name, "leakaudit") or room == own:
                continue
            if room not in floor or floor[room] >= floor[own]:
                upwards.append(f"{file.relative_to(project)} imports {name}")
    assert upwards == []


# --- the package ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "module",
    ["leakaudit", "leakaudit.cli", "leakaudit.attacks", "leakaudit.victims", "leakaudit.reports"],
)
def test_importing_stays_light(module: str) -> None:
    probe = f"import sys, {module}; print(sorted({{'torch', 'numpy', 'skimage', 'scipy', 'rich'}} & set(sys.modules)))"
    assert (
        subprocess.run(
            [sys.executable, "-c", probe], capture_output=True, text=True, check=True
        ).stdout
        == "[]\n"
    )


@pytest.mark.parametrize("name", sorted(set(leakaudit.__all__) - {"__version__"}))
def test_a_public_name_is_found_and_is_no_module(name: str) -> None:
    assert callable(getattr(leakaudit, name))
    assert name in dir(leakaudit)


def test_a_public_name_does_not_hide_behind_a_module_of_the_same_name(project: Path) -> None:
    """`import leakaudit.x` sets the attribute x of the package to the module, whatever x was before."""
    assert [
        n
        for n in leakaudit.__all__
        if (project / "leakaudit" / f"{n}.py").exists() or (project / "leakaudit" / n).is_dir()
    ] == []


@pytest.mark.parametrize(("earlier", "homes"), sorted(EARLIER.items()))
def test_a_module_is_found_by_the_name_that_programs_import(
    earlier: str, homes: tuple[str, ...]
) -> None:
    found = importlib.import_module(f"leakaudit.{earlier}")
    assert getattr(leakaudit, earlier) is found
    for home in homes:
        real = importlib.import_module(f"leakaudit.{home}")
        assert real.__spec__ is not None
        assert real.__spec__.name == f"leakaudit.{home}"
        public = {name for name in vars(real) if not name.startswith("_")}
        assert public
        assert all(getattr(found, name) is getattr(real, name) for name in public)


def test_a_module_below_an_earlier_name_is_the_same_module() -> None:
    earlier = importlib.import_module("leakaudit.bounds.gaussian")
    assert earlier is importlib.import_module("leakaudit.theory.bounds.gaussian")
    with pytest.raises(ModuleNotFoundError, match=r"leakaudit\.theory\.bounds\.nothing"):
        importlib.import_module("leakaudit.bounds.nothing")


def test_an_earlier_name_is_the_first_import_of_a_program() -> None:
    """The names of the documentation, in a process that has imported nothing else."""
    program = (
        "from leakaudit.registry import attack, param, victim\n"
        "from leakaudit.reconstruction import Attack, Batched, Certificate, Reconstruction\n"
        "from leakaudit.victim import Claim, Victim\n"
        "from leakaudit.bounds.gaussian import Gdp\n"
        "from leakaudit import bounds\n"
        "import leakaudit\n"
        "print(Attack is leakaudit.Attack, Victim is leakaudit.Victim, bounds.gaussian.Gdp is Gdp)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout == "True True True\n"


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'leakaudit' has no attribute 'private'"):
        leakaudit.private  # noqa: B018 - the access is the test


def test_a_module_says_what_it_is_for(module_name: str) -> None:
    assert (importlib.import_module(module_name).__doc__ or "").strip()


# --- what is said twice is equal --------------------------------------------------------------------------------------


def test_the_version_is_the_same_everywhere(project: Path) -> None:
    pyproject = tomllib.loads((project / "pyproject.toml").read_text())
    assert pyproject["tool"]["setuptools"]["dynamic"]["version"] == {
        "attr": "leakaudit.core.version.VERSION"
    }
    citation = re.search(r"^version: (\S+)$", (project / "CITATION.cff").read_text(), re.M)
    newest = re.search(r"^## \[(\d\S*)\]", (project / "CHANGELOG.md").read_text(), re.M)
    assert citation is not None
    assert newest is not None
    assert citation[1] == newest[1] == leakaudit.__version__


def test_readme_and_makefile_install_with_the_same_command(project: Path) -> None:
    """`.ci/run` takes the block out of README, so it is the third place that cannot drift."""
    command = 'pip install -c constraints.txt -e ".[dev]"'
    assert (
        f"\npython3.11 -m venv .venv\n.venv/bin/{command}\n" in (project / "README.md").read_text()
    )
    assert f"\n\t$(BIN)/{command}\n" in (project / "Makefile").read_text()


def test_every_dependency_is_pinned_and_none_has_an_upper_limit(project: Path) -> None:
    pins = dict(
        re.findall(r"^([A-Za-z0-9_.-]+)==(\S+)$", (project / "constraints.txt").read_text(), re.M)
    )
    pinned = {re.sub(r"[-_.]+", "-", name).lower() for name in pins}
    parts = tomllib.loads((project / "pyproject.toml").read_text())["project"]
    groups = [parts["dependencies"], *parts["optional-dependencies"].values()]
    wanted = [
        requirement
        for group in groups
        for requirement in group
        if not requirement.startswith("leakaudit[")
    ]
    assert all(re.fullmatch(r"[A-Za-z0-9-]+>=[\d.]+", r) for r in wanted)
    # Flower requires an older rich than the other pins, so tests of frameworks, and of what few
    # users need, have an environment of their own.
    apart = {"flwr", "nvflare", "rouge-score", "mlflow", "wandb", "distributed", "ray"}
    assert {r.split(">=")[0].lower() for r in wanted} - apart <= pinned
    assert not any("+" in version for version in pins.values()), (
        "a local tag such as +cpu is not found on other machines"
    )
