"""How the messages of a trace contradict what a bound assumes, or leave it open."""

from __future__ import annotations

import os
from pathlib import Path

from leakaudit.core.errors import LeakauditError
from leakaudit.core.evidence import Evidence, Origin
from leakaudit.core.trace import Trace
from leakaudit.core.verdict import Verdict
from leakaudit.judging.lint import gradients
from leakaudit.traces import gaps, trace_file
from leakaudit.views.conformance import conformance, equations
from leakaudit.views.conformance.case import Case


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


def doubts(case: Case | None) -> list[Evidence]:
    """Return how a recording contradicts what a bound assumes, and what it leaves open.

    A bound prices the declared protocol with the declared noise, whatever is claimed.

    Args:
        case: The recording; None if there is none (`case_of`).
    """
    if case is None:
        return []
    checks = [conformance.check, equations.check, gradients.check]
    if case.laws:
        from leakaudit.views.conformance import (
            noise,  # slow to import, and most recordings declare none
        )

        checks.insert(1, noise.check)
    wrong: dict[int, Evidence] = {}
    lacking: list[Evidence] = []
    for check in checks:
        for one in check(case):
            if one.verdict is Verdict.REFUTED:
                says = f"{one.name}: {one.says}"
                wrong.setdefault(one.number, Evidence("messages", Origin.CONTRADICTED, says))
            elif one.verdict is Verdict.INCONCLUSIVE and one.number == conformance.NUMBER:
                lacking.append(Evidence("messages", Origin.UNKNOWN, one.says))
    return [*wrong.values(), *lacking]
