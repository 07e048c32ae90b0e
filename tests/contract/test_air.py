"""The product's code stays as airy as that of its models, and its docstrings are informative."""

from __future__ import annotations

import subprocess
from collections import Counter
from pathlib import Path

import air


def test_the_house_is_airy(project: Path) -> None:
    found: Counter[str] = Counter()
    for files in air.rooms(project).values():
        for file in files:
            found += air.measure(file)
    thousands = found["lines"] / 1000
    dense = {name for name, limit in air.LIMITS.items() if found[name] / thousands > limit}
    assert dense == set()


def test_functions_take_few_parameters(project: Path) -> None:
    files = [file for listed in air.rooms(project).values() for file in listed]
    assert [(file.name, *found) for file in files for found in air.crowded(file)] == []


def test_parameters_are_counted_without_self(tmp_path: Path) -> None:
    file = tmp_path / "crowded.py"
    eight = ", ".join("abcdefgh")
    file.write_text(
        f"def fits({eight}): ...\n"
        f"class Some:\n    def fits(self, {eight}): ...\n"
        f"    async def most(self, {eight}, *, i): ...\n"
        f"def more({eight}, *rest, i=0, **named): ...\n"
    )
    assert set(air.crowded(file)) == {(4, "most", 9), (5, "more", 9)}


def test_public_docstrings_describe_every_argument(project: Path) -> None:
    public = air.public_names(project)
    assert len(public) > 20
    assert {
        (file.name, *found) for file in public for found in air.undocumented(file, public[file])
    } == set()


def test_internal_docstrings_do_not_repeat_names(project: Path) -> None:
    public = air.public_names(project)
    files = [
        file
        for room, listed in air.rooms(project).items()
        if room not in air.LEAVES
        for file in listed
    ]
    shipped = {project / "leakaudit" / name for name in air.SHIPPED}
    repeated = [
        (file.name, *found)
        for file in files
        if file not in shipped
        for found in air.restated(file, public.get(file, set()))
    ]
    assert repeated == []


def test_density_and_weight_are_counted(tmp_path: Path) -> None:
    file = tmp_path / "dense.py"
    file.write_text(
        '"""A module."""\n'
        "a, b = 1, 2\n"
        "c = d = 3\n"
        "e = [x if x else y for x in (1, 2) if (y := x)]  # a comment\n"
        f"f = '{'x' * 100}'\n"
        "\n"
        "def function(argument):\n"
        '    """Do something."""\n'
    )
    found = air.measure(file)
    counted = {"targets": 2, "conditional": 1, "comprehension": 1, "walrus": 1, "wide": 1}
    assert {name: found[name] for name in counted} == counted
    assert found["comment"] == 1
    assert found["docstring words"] == 4
    assert found["tokens"] == 46


def test_missing_and_empty_entries_are_found(tmp_path: Path) -> None:
    file = tmp_path / "documented.py"
    file.write_text(
        "def partly(x, y):\n"
        '    """Do something.\n'
        "\n"
        "    Args:\n"
        "        x: (n, d) inputs.\n"
        '    """\n'
        "def inside(task, models):\n"
        '    """Do something.\n'
        "\n"
        "    Args:\n"
        "        task: The learning task.\n"
        "        models: (n, d) the models.\n"
        '    """\n'
    )
    assert list(air.undocumented(file, {"partly", "inside"})) == [(1, "partly")]
    assert list(air.restated(file, {"partly"})) == [(7, "inside", "task: The learning task.")]


def test_net_lines_count_product_docstrings_and_tests(tmp_path: Path) -> None:
    def git(*words: str) -> None:
        subprocess.run(
            ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b", *words],
            check=True,
        )

    for folder in ("leakaudit", "attacks", "victims", "reports", "tests"):
        (tmp_path / folder).mkdir()
    (tmp_path / "leakaudit/kept.py").write_text('"""Words.\n\nMore.\n"""\na = 1\n')
    (tmp_path / "tests/gone.py").write_text("a = 1\n")
    git("init", "-q")
    git("add", ".")
    git("commit", "-qm", "before")
    (tmp_path / "leakaudit/kept.py").write_text('"""Words."""\na = 1\n')
    (tmp_path / "tests/gone.py").unlink()
    (tmp_path / "attacks/new.py").write_text("b = 2\nc = 3\n")
    git("add", ".")
    assert air.net(tmp_path, "HEAD") == {"product": -1, "docstrings": -3, "tests": -1}
