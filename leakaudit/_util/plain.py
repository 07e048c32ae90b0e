"""Numbers in findings, represented as JSON."""

from __future__ import annotations

import math
from typing import Literal, TypeAlias, TypeVar

from leakaudit.trace import Json

# Numbers of a finding for programs, by name.
Figures: TypeAlias = dict[str, Json]
# To a reader of JSON, 1 and 1.0 are the same number, but their bytes differ; the union keeps each
# number as it was written.
Number: TypeAlias = int | float
# A number, "inf" for infinity, or null; an epsilon of null stands for constants that were left as
# configured.
Extended: TypeAlias = int | float | Literal["inf"] | None

N = TypeVar("N", bound=int | float | None)


def encoded(value: N) -> N | Literal["inf"]:
    """Return a number as JSON: infinity becomes the text ``inf``.

    Args:
        value: The number, or None.

    Returns:
        The same, but the text ``inf`` for infinity.
    """
    if value == math.inf:
        return "inf"
    return value


def decoded(value: Extended) -> Number | None:
    """Return a number of JSON as a number.

    Args:
        value: A number, ``inf`` or None.

    Returns:
        The same, but infinity for the text.
    """
    if value == "inf":
        return math.inf
    return value
