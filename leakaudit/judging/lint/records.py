"""Do the gradients show more records than declared, or other ones in every round?

The rank of determined gradients is a lower bound on their number (`inversion.inputs_shown`).
"""

from __future__ import annotations

from collections.abc import Iterator

from leakaudit.core.adversary import Adversary
from leakaudit.core.errors import LeakauditError
from leakaudit.core.verdict import Verdict
from leakaudit.inversion import inputs_shown
from leakaudit.tasks.task import Task
from leakaudit.views.conformance import conformance
from leakaudit.views.conformance.case import Case
from leakaudit.views.conformance.pitfall import Pitfall
from leakaudit.views.conformance.samples import NODES, ROUNDS
from leakaudit.views.extraction import hearing
from leakaudit.views.extraction.deduction import Deduction


def check(case: Case) -> Iterator[Pitfall]:
    """Yield a finding if gradients contradict the declared number of records."""
    first, stop = case.trace.columns
    if case.protocol is None or stop == first or ":" in case.trace.task.model:
        return
    try:
        task = Task.build(case.trace.task)
        deduction = Deduction(case.trace, Adversary())
        nodes = [node for node in case.holders if deduction.base.gradients(node)]
    except LeakauditError:
        return
    every = max(1, -(-len(nodes) // NODES))
    for node in nodes[::every]:
        try:
            leaks = hearing.deduce(deduction, [node], ROUNDS)
        except LeakauditError:
            continue
        for leak in leaks:
            shown = inputs_shown.shown(leak, task)
            if shown is not None and shown.contradicts:
                says = (
                    f"{shown.evidence.detail}; the program uses more records, other ones in every "
                    "round, or changes them before it uses them (augmentation)"
                )
                figures = {"node": node, "each": shown.each, "together": shown.together}
                yield Pitfall(conformance.NUMBER, Verdict.REFUTED, says, figures)
                return
