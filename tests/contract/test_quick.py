"""The list of cases that the quick suite leaves out names tests, and is chosen by planted bugs."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import quick


@cache
def functions(file: Path) -> frozenset[str]:
    """Names of the tests in a file, methods with their class."""
    names = set()
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.ClassDef):
            names |= {f"{node.name}::{one.name}" for one in node.body if hasattr(one, "name")}
    return frozenset(names)


def test_every_case_that_is_left_out_belongs_to_a_test(project: Path) -> None:
    gone = []
    for case in quick.left_out():
        file, _, name = case.partition("[")[0].partition("::")
        if not (project / file).is_file() or name not in functions(project / file):
            gone.append(case)
    assert sorted(gone) == [], "remove these lines from tests/left_out.txt, or measure again"


def test_what_catches_bugs_stays_and_the_budget_is_spent_on_cheap_cases() -> None:
    spent = {
        "tests/contract/test_x.py::whole": 50.0,
        "tests/cli/test_x.py::catcher": 40.0,
        "tests/cli/test_x.py::cheap[a]": 1.0,
        "tests/cli/test_x.py::cheap[b]": 2.0,  # worth a half
        "tests/cli/test_x.py::other": 3.0,
    }
    whole, catcher, first, second, other = spent
    kept = {whole, catcher}
    assert quick.staying(spent, {catcher}, 0.0) == kept
    assert quick.staying(spent, {catcher}, 91.0) == kept | {first}
    assert quick.staying(spent, {catcher}, 94.0) == kept | {first, other}
    assert quick.staying(spent, {catcher}, 96.0) == set(spent)
    assert quick.staying(spent, {catcher, second}, 92.0) == kept | {second}
