"""Figures of a finding as JSON holds them."""

from __future__ import annotations

import math
from typing import TypeAlias

from leakaudit.trace import Json

# Figures of a finding for programs, by name.
Figures: TypeAlias = dict[str, Json]


def extended(value: float | None) -> float | str | None:
    """Return a number as JSON holds it: infinity is the text ``inf``.

    Args:
        value: May be None, for none.
    """
    if value == math.inf:
        return "inf"
    return value
