"""How the messages of a trace contradict what a bound assumes."""

from __future__ import annotations

import os
from pathlib import Path

from leakaudit.errors import LeakauditError
from leakaudit.lint import conformance, equations, gradients
from leakaudit.lint.case import Case
from leakaudit.lint.pitfall import Pitfall
from leakaudit.trace import Trace
from leakaudit.traces import gaps, trace_file
from leakaudit.verdict import Verdict


def case_of(source: Trace | str | os.PathLike[str]) -> Case | None:
    """Return a recording up to its first incomplete round, with the truth beside its file.

    Returns:
        None for a scenario, and for a recording whose first round is incomplete.
    """
    truth = None
    if not isinstance(source, Trace):
        path = Path(source)
        if path.suffix == ".toml":
            return None
        source = trace_file.load(path)
        beside = trace_file.truth_path(path)
        if beside.is_file():
            truth = trace_file.load_truth(beside)
            trace_file.same_run(source, truth, advice=f"replace {beside}, or move it elsewhere")
    try:
        return Case(gaps.before(source), truth)
    except LeakauditError:
        return None


def contradictions(case: Case | None) -> list[str]:
    """Return how a recording differs from what it declares, and from what a bound assumes.

    Args:
        case: The recording; None if there is none (`case_of`).
    """
    if case is None:
        return []
    return [f"{one.name}: {one.says}" for one in assumed(case)]


def assumed(case: Case) -> list[Pitfall]:
    """Return how the messages contradict what a bound assumes, whatever is claimed.

    A bound prices the declared protocol with the declared noise.
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
