"""Exact elimination of rows that are added one after another, against ranks over the rationals."""

from __future__ import annotations

import random

import pytest
from sympy import Matrix

from leakaudit.theory.relations.modular import PRIMES, Row, Staircase

COLUMNS = 9


def dense(rows: list[Row]) -> Matrix:
    return Matrix([[row.get(k, 0) for k in range(COLUMNS)] for row in rows])


def drawn(source: random.Random) -> Row:
    columns = source.sample(range(COLUMNS), source.choice([1, 2, 2, 3]))
    return {k: source.choice([-2, -1, 1, 2, 3]) for k in columns}


@pytest.mark.parametrize("seed", range(20))
def test_a_row_holds_if_it_does_not_add_to_the_rank(seed: int) -> None:
    source = random.Random(seed)
    stairs = Staircase(PRIMES[0])
    added: list[Row] = []
    for _ in range(COLUMNS):
        for row in (drawn(source) for _ in range(4)):
            follows = bool(added) and dense([*added, row]).rank() == dense(added).rank()
            assert stairs.holds(row) == follows
        added.append(drawn(source))
        stairs.add(added[-1])
    single = {k for k in range(COLUMNS) if dense([*added, {k: 1}]).rank() == dense(added).rank()}
    assert stairs.found <= single


def test_what_follows_from_a_column_is_removed_as_well() -> None:
    """With x0 - x1, x1 - x2, ..., the first column determines all others."""
    stairs = Staircase(PRIMES[0])
    for k in range(COLUMNS - 1):
        stairs.add({k: 1, k + 1: -1})
    assert not stairs.found
    stairs.add({0: 1})
    assert stairs.found == set(range(COLUMNS))
    assert all(len(row) == 1 for row in stairs.pivots.values())
