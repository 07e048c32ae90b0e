"""The privacy gate of this program, as a test."""

from __future__ import annotations

from typing import Any


def test_an_eavesdropper_gets_no_more_than_the_budget_and_the_baseline(leakage: Any) -> None:
    """Run the check ``ring`` of leakaudit.toml."""
    leakage.check("ring")
