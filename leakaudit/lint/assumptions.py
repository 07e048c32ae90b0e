"""How the messages of a trace contradict what a bound assumes."""

from __future__ import annotations

from leakaudit.lint import conformance, equations, gradients
from leakaudit.lint.case import Case
from leakaudit.lint.pitfall import Pitfall
from leakaudit.verdict import Verdict


def assumed(case: Case) -> list[Pitfall]:
    """Return how the messages contradict what a bound assumes, whatever is claimed.

    A bound prices the declared protocol with the declared noise.

    Args:
        case: A trace without gaps, and its truth if there is one.
    """
    checks = [conformance.check, equations.check, gradients.check]
    if case.laws:
        from leakaudit.lint import noise  # slow to import, and most recordings declare none

        checks.insert(1, noise.check)
    found: dict[int, Pitfall] = {}
    for check in checks:
        for pitfall in check(case):
            if pitfall.verdict is Verdict.REFUTED:
                found.setdefault(pitfall.number, pitfall)
    return list(found.values())
