"""A rule: one outcome of a gate, as all its parts hand it on."""

from __future__ import annotations

from dataclasses import dataclass

from leakaudit.results.model import RuleKind, RuleStatus

# Kinds of rules that tell whether the others can be believed.
CONTROLS = (RuleKind.POSITIVE, RuleKind.NEGATIVE, RuleKind.RECORDING, RuleKind.ATTACKED)
# Outcomes of a control for which nothing that was measured becomes a baseline.
UNSOUND = (RuleStatus.VOID, RuleStatus.CONTRADICTED)
FOUND = (RuleStatus.OVER, RuleStatus.REGRESSION, RuleStatus.CONTRADICTED)
CANNOT_TELL = (RuleStatus.VOID, RuleStatus.NOT_COMPARABLE)


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

    kind: RuleKind
    cell: str
    measure: str
    status: RuleStatus
    says: str
    value: float | None = None
    limit: float | None = None
    p: float | None = None
    accepted: str = ""
    nodes: tuple[int, ...] = ()
