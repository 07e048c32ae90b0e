"""Static lint of a trace: the pitfalls of docs/lint.md, each found by a check on parameters, relations, messages or the truth."""

from __future__ import annotations

from leakaudit.lint import bounded, gradients, noise, promises, seeds, views, wire
from leakaudit.lint.case import Case
from leakaudit.lint.pitfall import NAMES, Pitfall, order
from leakaudit.progress import step
from leakaudit.trace import Trace, Truth
from leakaudit.traces import gaps
from leakaudit.traces.trace_file import same_run

__all__ = ["NAMES", "Case", "Pitfall", "lint"]

CHECKS = (
    promises.check,
    bounded.check,
    views.check,
    wire.check,
    noise.check,
    gradients.check,
    seeds.check,
)


def lint(trace: Trace, truth: Truth | None = None) -> list[Pitfall]:
    """Return what is found, the gravest first, one finding of a kind and verdict; nothing found proves nothing.

    truth: of the same run; it adds record-wise norms, the noise itself and its seed. Raises LeakauditError where it is of another run, and
    where messages of the first round are missing; later rounds than the first gap are left out.
    """
    if truth is not None:
        same_run(trace, truth)
    case, found = Case(gaps.before(trace), truth), list[Pitfall]()
    for k, check in enumerate(CHECKS):
        step("checks", k, len(CHECKS))
        for one in check(case):
            if not any(one.number == p.number and one.verdict is p.verdict for p in found):
                found.append(one)
    step("checks", len(CHECKS), len(CHECKS))
    return order(found)
