"""The product's code stays as airy as the packages that we take as models, and lists every argument."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import air


def test_the_house_is_airy(project: Path) -> None:
    found: Counter[str] = Counter()
    missing: list[str] = []
    for files in air.rooms(project).values():
        for file in files:
            found += air.measure(file)
            missing += [f"{file.name}:{line} {name}" for line, name in air.without_args(file)]
    assert missing == []
    thousands = found["lines"] / 1000
    dense = {name for name, limit in air.LIMITS.items() if found[name] / thousands > limit}
    assert dense == set()


def test_density_is_counted(tmp_path: Path) -> None:
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
    assert list(air.without_args(file)) == [(7, "function")]
