"""All checks of a trace: its constants, declared relations and messages, and the truth."""

from __future__ import annotations

from functools import cached_property

from leakaudit.core import registry
from leakaudit.core.progress import step
from leakaudit.core.trace import Trace, Truth
from leakaudit.core.verdict import Verdict
from leakaudit.judging.lint import bounded, claimed, gradients, records, seeds, views, wire
from leakaudit.traces import gaps
from leakaudit.traces.trace_file import same_run
from leakaudit.views.conformance import conformance, equations, noise
from leakaudit.views.conformance.case import Case
from leakaudit.views.conformance.pitfall import Pitfall, order
from leakaudit.views.conformance.samples import estimates

CHECKS = (
    conformance.check,
    records.check,
    equations.check,
    claimed.check,
    bounded.check,
    views.check,
    wire.check,
    noise.check,
    gradients.check,
    seeds.check,
)


class Lint:
    """The checks of one recording."""

    def __init__(self, trace: Trace, truth: Truth | None = None) -> None:
        if truth is not None:
            same_run(trace, truth)
        self._case = Case(gaps.before(trace), truth)

    @cached_property
    def findings(self) -> list[Pitfall]:
        """At most one finding for each pitfall and verdict, the most severe first.

        An empty list is not evidence of privacy.
        """
        found: dict[tuple[int, Verdict], Pitfall] = {}
        for k, check in enumerate(CHECKS):
            step("checks", k, len(CHECKS))
            for pitfall in check(self._case):
                found.setdefault((pitfall.number, pitfall.verdict), pitfall)
        step("checks", len(CHECKS), len(CHECKS))
        return order(list(found.values()))

    @property
    def examined(self) -> bool:
        """Whether anything was compared with what is declared or claimed."""
        case = self._case
        if case.truth is not None or case.claims or (case.laws and estimates(case)):
            return True
        if case.protocol is None:
            return False
        found = equations.examine(case)
        return found is None or found.tested

    @property
    def unexamined(self) -> list[str]:
        """What cannot be examined, and what it would require."""
        trace, truth = self._case.trace, self._case.truth
        found: list[str] = []
        if trace.protocol.startswith(registry.OWN):
            found.append(f"the messages: the protocol {trace.protocol!r} has no declaration")
        else:
            found += conformance.not_compared(self._case)
        records = "gradients of single records against the declared sensitivity (P05)"
        if truth is None:
            found.append(f"the noise, its seed, and {records}: requires --truth")
        elif not truth.states:
            found.append(f"{records}: requires a truth recorded with --states")
        elif ":" in trace.task.model:
            found.append(f"{records}: the model is code of your own, which a lint does not run")
        return [*found, *equations.not_testable(self._case)]


def lint(trace: Trace, truth: Truth | None = None) -> list[Pitfall]:
    """Return the findings of a lint; see `Lint`.

    Args:
        truth: The truth of the same run, or None.
    """
    return Lint(trace, truth).findings
