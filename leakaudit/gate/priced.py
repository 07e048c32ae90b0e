"""Epsilon of an adversary's view, in the form that budgets on epsilon need."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Epsilon:
    """Epsilon of one record.

    Attributes:
        value: epsilon; infinite if the view has no bound.
        node: the node that owns the record; the worst of all nodes.
        sensitivity: largest change of a gradient by one record.
    """

    value: float
    node: int
    sensitivity: float


@dataclass(frozen=True)
class Doubt:
    """A larger epsilon that the recordings cannot exclude.

    Attributes:
        value: the larger epsilon.
        why: the reason; continues a sentence that ends with this value.
    """

    value: float
    why: str


@dataclass(frozen=True)
class Priced:
    """One adversary's view in one check.

    Attributes:
        epsilon: epsilon of the declared protocol; None if there is none.
        why: the reason why there is none, "" if it is not known.
        node: the node that `why` names, if any.
        doubt: None if the recordings support `epsilon`.
    """

    epsilon: Epsilon | None = None
    why: str = ""
    node: int | None = None
    doubt: Doubt | None = None
