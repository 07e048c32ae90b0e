"""The pitfalls of `leakaudit.judging.lint` as rules of a gate."""

from __future__ import annotations

from leakaudit.core.verdict import Verdict
from leakaudit.judging.gate.config import Check
from leakaudit.judging.gate.rule import Rule
from leakaudit.judging.gate.runs import SeedResults
from leakaudit.judging.lint.checks import lint
from leakaudit.reporting.results.model import RuleKind, RuleStatus
from leakaudit.views.conformance import conformance
from leakaudit.views.conformance.pitfall import Pitfall

# The pitfall of a known seed. A gate passes the seed to its program, so every run would have it.
SEEDS = 19
# Pitfalls that are not rules of the lint: the seed, and the recording itself, which the gate
# compares with its declaration on its own (`fidelity`).
LEFT_OUT = (SEEDS, conformance.NUMBER)


def rules(check: Check, made: SeedResults) -> list[Rule]:
    """Return a rule for each refuted or unsupported pitfall, or one if there are none."""
    if check.lint == "off":
        return []
    cell = f"{check.name}/lint"
    found = [one for one in lint(made.trace, made.truth) if one.bad and one.number not in LEFT_OUT]
    if not found:
        says = f"the recording of seed {made.seed} refutes none of its own declarations and claims"
        return [Rule(RuleKind.LINT, cell, "", RuleStatus.OK, says)]
    rules = []
    for one in found:
        status = _status(one, check.lint)
        rules.append(Rule(RuleKind.LINT, cell, one.code, status, _sentence(one)))
    return rules


def _sentence(found: Pitfall) -> str:
    return f"{found.name}, {found.verdict.words}: {found.says}; {found.fix}"


def _status(found: Pitfall, level: str) -> RuleStatus:
    if level == "strict" or (level == "error" and found.verdict is Verdict.REFUTED):
        return RuleStatus.CONTRADICTED
    return RuleStatus.WARNING
