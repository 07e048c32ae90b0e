"""A rule: one outcome of a gate, in the form that all its parts exchange."""

from __future__ import annotations

from dataclasses import dataclass

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
