"""Epsilon of an adversary's view, in the form that budgets on epsilon need."""

from __future__ import annotations

from dataclasses import dataclass

from leakaudit.core.verdict import Holds


@dataclass(frozen=True)
class Epsilon:
    """Epsilon of one record."""

    value: float  # epsilon; infinite if the view has no bound
    node: int  # the node that owns the record; the worst of all nodes
    sensitivity: float  # largest change of a gradient by one record
    holds: Holds = Holds.AT_MOST


@dataclass(frozen=True)
class LargerEpsilon:
    """A larger epsilon that the recordings cannot exclude."""

    value: float  # the larger epsilon
    why: str  # the reason; continues a sentence that ends with this value


@dataclass(frozen=True)
class PricedView:
    """One adversary's view in one check."""

    epsilon: Epsilon | None = None  # epsilon of the declared protocol; None if there is none
    why: str = ""  # the reason why there is none, "" if it is not known
    node: int | None = None  # the node that `why` names, if any
    doubt: LargerEpsilon | None = None  # none if the recordings support `epsilon`
