"""What the parts of a gate exchange: rules, each one outcome, and the epsilon of a view."""

from __future__ import annotations

from dataclasses import dataclass

from leakaudit.core.verdict import Holds
from leakaudit.reporting.results.model import RuleKind, RuleStatus

# Kinds of rules that decide whether the others can be trusted.
CONTROLS = (RuleKind.POSITIVE, RuleKind.NEGATIVE, RuleKind.RECORDING, RuleKind.ATTACKED)
# Outcomes of a control for which a measurement must not become a baseline.
UNSOUND = (RuleStatus.VOID, RuleStatus.CONTRADICTED, RuleStatus.TOO_FEW_SEEDS)
FOUND = (RuleStatus.OVER, RuleStatus.REGRESSION, RuleStatus.CONTRADICTED)
CANNOT_TELL = (RuleStatus.VOID, RuleStatus.NOT_COMPARABLE, RuleStatus.TOO_FEW_SEEDS)


@dataclass(frozen=True)
class Rule:
    """One rule for one cell."""

    kind: RuleKind  # what it tests
    cell: str  # name of a cell, or `check/lint` or `check/recording`
    # name of the measure; for the lint the pitfall's code, for a recording its subject
    measure: str
    status: RuleStatus
    says: str  # the outcome in words, including figures
    value: float | None = None
    limit: float | None = None
    p: float | None = None  # adjusted p-value of a test
    accepted: str = ""  # id of the acceptance that covers it
    # numbers of the nodes that the gate itself names in `says`, needed to renumber nodes. Text from
    # other sources (the lint, an attack or an error) may name further nodes.
    nodes: tuple[int, ...] = ()


@dataclass(frozen=True)
class PricedView:
    """Epsilon of one record in one adversary's view, for budgets on epsilon."""

    # epsilon of the declared protocol, infinite if the view has no bound; None if there is none
    epsilon: float | None = None
    # the node that owns the record, the worst of all; without an epsilon the one that `why` names
    nodes: tuple[int, ...] = ()
    sensitivity: float = 0.0  # largest change of a gradient by one record
    holds: Holds = Holds.AT_MOST
    why: str = ""  # the reason why there is no epsilon, "" if it is not known
    doubted: float | None = None  # a larger epsilon that the recordings cannot exclude, if any
    doubt: str = ""  # why they cannot; continues a sentence that ends with this value
