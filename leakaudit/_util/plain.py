"""Numbers in findings, represented as JSON."""

from __future__ import annotations

import math
from typing import TypeAlias

from leakaudit.trace import Json

# Numbers of a finding for programs, by name.
Figures: TypeAlias = dict[str, Json]


def extended(value: float | None) -> float | str | None:
    """Return a number as JSON: infinity becomes the text ``inf``.

    Args:
        value: The number, or None.
    """
    if value == math.inf:
        return "inf"
    return value
