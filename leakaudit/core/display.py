"""What a notebook does with a value: it displays a card, and makes a data frame of a record.

`leakaudit/__init__.py` sets the functions, which are imported when a notebook asks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pandas import DataFrame

card: Callable[[object], str] = repr
frame: Callable[[Any, str | None], DataFrame]


class CardDisplay:
    """A value that notebooks display as a card, and everything else by its short `repr`."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        return card(self)
