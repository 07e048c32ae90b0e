"""What epsilon an adversary's view gives, as the budgets on it need it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Epsilon:
    """Epsilon of one record.

    Attributes:
        value: infinite if the view bounds nothing.
        node: to which the record belongs; the worst of all nodes.
    """

    value: float
    node: int


@dataclass(frozen=True)
class Doubt:
    """What epsilon may be instead, as far as the recordings can tell.

    Attributes:
        value: the larger epsilon.
        why: continues a sentence that ends in this value.
    """

    value: float
    why: str


@dataclass(frozen=True)
class Priced:
    """One adversary's view of one check.

    Attributes:
        epsilon: as declared; None if there is none.
        why: why there is none, "" if that is not known.
        node: to which `why` refers, if it names one.
        doubt: None if the recordings hold what `epsilon` relies on.
    """

    epsilon: Epsilon | None = None
    why: str = ""
    node: int | None = None
    doubt: Doubt | None = None
