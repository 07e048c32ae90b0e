"""A rule: one outcome of a gate, as all its parts hand it on."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, StrEnum


class Status(Enum):
    """The outcome of one rule; the value says what it means for the gate."""

    OK = "within the limit"
    OVER = "over the budget"
    REGRESSION = "grew over the baseline"
    CONTRADICTED = "the recording contradicts what it declares"
    ACCEPTED = "over the limit, and accepted until a date"
    WARNING = "over a budget of level warn, or a warning of the lint"
    INCONCLUSIVE = "too few samples to tell"
    NOT_COMPARABLE = "the baseline was measured in another way, or is not there"
    VOID = "a control failed: the gate cannot tell"
    UNTESTED = "nothing to test: it counts neither for nor against"


class Kind(StrEnum):
    """What a rule tests; the value is its name in the record."""

    BUDGET = "budget"
    BASELINE = "baseline"
    LINT = "lint"
    RECORDING = "recording"
    ATTACKED = "attacked"
    POSITIVE = "positive"
    NEGATIVE = "negative"


# Kinds of rules that tell whether the others can be believed.
CONTROLS = (Kind.POSITIVE, Kind.NEGATIVE, Kind.RECORDING, Kind.ATTACKED)
# Outcomes of a control for which nothing that was measured becomes a baseline.
UNSOUND = (Status.VOID, Status.CONTRADICTED)
FOUND = (Status.OVER, Status.REGRESSION, Status.CONTRADICTED)
CANNOT_TELL = (Status.VOID, Status.NOT_COMPARABLE)


@dataclass(frozen=True)
class Rule:
    """One rule for one cell.

    Attributes:
        kind: what it tests.
        cell: name of a cell, or ``check/lint`` or ``check/recording``.
        measure: name of the measure; of a lint the pitfall's code, of a recording what it is about.
        status: the outcome.
        says: the outcome in words, figures included.
        value: that is compared.
        limit: with which it is compared.
        p: adjusted p-value of a test.
        accepted: id of the acceptance that covers it.
        nodes: numbers of the nodes that the gate itself names in `says`, for whoever renumbers
            nodes. Text that comes from elsewhere (of the lint, of an attack, or of an error) may
            name more.
    """

    kind: Kind
    cell: str
    measure: str
    status: Status
    says: str
    value: float | None = None
    limit: float | None = None
    p: float | None = None
    accepted: str = ""
    nodes: tuple[int, ...] = ()
