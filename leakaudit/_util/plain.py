"""Plain values: what JSON can hold."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TypeAlias

Plain: TypeAlias = "bool | int | float | str | Sequence[Plain] | Mapping[str, Plain] | None"

# Figures of a finding for programs, by name.
Figures: TypeAlias = dict[str, Plain]


def extended(value: float | None) -> float | str | None:
    """Return a number as JSON holds it: infinity is the text ``inf``.

    Args:
        value: May be None, for none.
    """
    if value == math.inf:
        return "inf"
    return value
