"""The table of planted bugs is alive: each can be planted, and its tests exist; see mutants.py."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

import mutants
import pytest

PROJECT = Path(__file__).resolve().parents[2]
BUGS = mutants.bugs()


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_bug_can_be_planted(bug: mutants.Bug) -> None:
    planted = bug.planted()
    sound = (PROJECT / bug.file).read_text(encoding="utf-8")
    assert ast.dump(ast.parse(planted)) != ast.dump(ast.parse(sound))
    assert bug.tests
    assert all((PROJECT / file.partition("::")[0]).is_file() for file in bug.tests)


def test_every_room_has_bugs() -> None:
    counts = Counter(bug.room for bug in BUGS)
    assert len(BUGS) >= 100
    assert set(counts) >= {"theory", "views", "inversion", "scoring", "judging", "reporting"}
    assert set(counts) >= {"tasks", "traces", "protocols", "capture", "runs", "cli", "core"}
    assert set(counts) >= {*mutants.LEAVES, "_util"}


def test_a_bug_that_no_test_sees_survives(tmp_path: Path) -> None:
    bug = mutants.Bug(
        "a docstring",
        "leakaudit/scoring/metrics.py",
        '"""Peak signal-to-noise ratio',
        '"""Peak signal to noise ratio',
        ("tests/reference/test_bisection.py",),
    )
    assert not mutants.caught(bug, mutants.installed(tmp_path))
