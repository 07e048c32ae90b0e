"""What a recording says of its own declarations: the pitfalls of `leakaudit.lint` as rules of a gate."""

from __future__ import annotations

from leakaudit.gate.config import Check
from leakaudit.gate.rules import Rule, Status
from leakaudit.gate.runs import Recorded
from leakaudit.lint import Pitfall, lint
from leakaudit.verdict import Verdict

SEEDS = 19  # the pitfall of a known seed: a gate hands its program the seed, so each would be one


def rules(check: Check, made: Recorded) -> list[Rule]:
    """Lint a recording and its truth; one rule a pitfall that is refuted or unsupported, or one that says that there is none."""
    if check.lint == "off":
        return []
    cell = f"{check.name}/lint"
    found = [p for p in lint(made.trace, made.truth) if p.bad and p.number != SEEDS]
    if not found:
        return [
            Rule(
                "lint",
                cell,
                "",
                Status.OK,
                f"nothing that the recording of seed {made.seed} declares or claims is refuted by it",
            )
        ]
    return [
        Rule(
            "lint",
            cell,
            p.code,
            _status(p, check.lint),
            f"{p.name}, {p.verdict.words}: {p.says}; {p.fix}",
        )
        for p in found
    ]


def _status(found: Pitfall, level: str) -> Status:
    fails = level == "strict" or (level == "error" and found.verdict is Verdict.REFUTED)
    return Status.CONTRADICTED if fails else Status.WARNING
