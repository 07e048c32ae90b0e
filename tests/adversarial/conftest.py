"""What the red team's tests share: where the random cases come from.

Every test here tries to make one of leakaudit's statements false. Most of them also draw new cases. `make test` draws the same few
cases each time; `make selfcheck` and the nightly job set another seed and more cases:

    LEAKAUDIT_FRESH_SEED=20261122 LEAKAUDIT_FRESH_CASES=200 pytest tests/adversarial
"""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest


@pytest.fixture(scope="session")
def fresh_seed() -> int:
    """Seed of the random cases; print it in a failure's message, so that the case can be drawn again."""
    return int(os.environ.get("LEAKAUDIT_FRESH_SEED", "0"))


@pytest.fixture(scope="session")
def fresh_cases() -> Callable[[int], int]:
    """`fresh_cases(n)`: how many random cases a test draws, n unless LEAKAUDIT_FRESH_CASES asks for another number."""

    def number(usual: int) -> int:
        return int(os.environ.get("LEAKAUDIT_FRESH_CASES", usual))

    return number
