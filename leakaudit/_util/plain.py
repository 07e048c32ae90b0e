"""Numbers in findings, represented as JSON."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal, TypeAlias, TypeGuard, TypeVar

if TYPE_CHECKING:
    from leakaudit.core.trace import Json

# Numbers of a finding for programs, by name.
Figures: TypeAlias = "dict[str, Json]"
# JSON readers treat 1 and 1.0 as the same number, but their bytes differ; the union preserves each
# number as it was written.
Number: TypeAlias = int | float
# A number, "inf" for infinity, or null. An epsilon of null means that the constants were used as
# configured.
Extended: TypeAlias = int | float | Literal["inf"] | None

N = TypeVar("N", bound=int | float | None)


def is_number(value: object) -> TypeGuard[int | float]:
    """Return whether a value is a number that is finite as a float, and not a Boolean."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def encoded(value: N) -> N | Literal["inf"]:
    """Return a number as JSON: infinity becomes the text ``inf``."""
    if value == math.inf:
        return "inf"
    return value


def decoded(value: Extended) -> Number | None:
    """Return a number in JSON as a number: the text ``inf`` becomes infinity."""
    if value == "inf":
        return math.inf
    return value
