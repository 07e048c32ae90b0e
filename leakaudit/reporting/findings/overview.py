"""The first screen of a page: what happened, to whom, how certain it is, and what to do."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from leakaudit._util.plural import capital, counted, named
from leakaudit.core.quantities import MEASURES
from leakaudit.core.verdict import MOST_TRIALS, Holds, Verdict
from leakaudit.reporting.findings import grading
from leakaudit.reporting.findings.measured import harm
from leakaudit.reporting.findings.wording import (
    CUT_SHORT,
    PASS,
    UNDECIDED,
    figure,
    measured,
    point_of,
    rounds_in_words,
    significant,
    test_words,
    verdict_counts,
    worst_leak,
    worst_verdict,
)
from leakaudit.reporting.findings.worst_case import (
    FAILURE,
    WorstCase,
    WorstOutcome,
    is_outsider,
    who,
    whom,
    worst_case,
)
from leakaudit.reporting.results.audit_names import SENSITIVITY, VIEW
from leakaudit.reporting.results.model import (
    AuditRecord,
    CellEntry,
    CheckRecord,
    Finding,
    NodeBest,
    RuleEntry,
    RuleStatus,
    RunRecord,
    VerdictEntry,
    decoded,
    given,
)

MOST = 3  # most recommendations: more are not read
_SCORE = "leakaudit report results.json --rescore --truth trace.truth.pt"
# Severity of the worst case of an attack; everything else is a warning.
_LEVELS: dict[WorstOutcome, grading.Level] = {
    WorstOutcome.EXACT: "error",
    WorstOutcome.INTERVAL: "error",
    WorstOutcome.NOTHING: "note",
    WorstOutcome.NOT_DETERMINED: "note",
    WorstOutcome.NOT_EXAMINED: "note",
}
# Measures of a gate that concern recovered inputs, not labels or epsilon.
_OF_INPUTS = MEASURES.keys() - {"labels"}
# Verdicts as the first words of a sentence.
_AUDITED = {
    Verdict.REFUTED: "A privacy claim is refuted",
    Verdict.UNSUPPORTED: "A privacy claim does not follow from the recorded parameters",
    Verdict.INCONCLUSIVE: "It is undecided whether the privacy claims hold",
    Verdict.NOT_REFUTED: "No privacy claim was refuted by what was tried",
    Verdict.UNCLAIMED: "The protocol claims nothing about what was tested",
}


# What to do, and a command that does it or helps with it ("" for none).
Advice: TypeAlias = tuple[str, str]


@dataclass(frozen=True)
class Overview:
    """The first screen; texts may contain names from the record and are not cleaned."""

    topic: str  # what was examined
    says: str  # the worst case in one sentence
    certainty: str  # how certain it is
    level: grading.Level
    badge: str  # the severity in words
    # who leaks to whom, and the claim beside the exact value: names and values
    facts: Sequence[tuple[str, str]]
    advice: Sequence[Advice]  # what to do, the most important first
    adversary: str = ""  # the adversary of the worst case, "" if there is none
    finding: Finding | None = None  # the finding of the worst case, None if there is none
    partial: str = ""  # a remark if the run is incomplete, "" otherwise


def overview(record: RunRecord) -> Overview:
    """Compose the first screen of a record."""
    if isinstance(record, CheckRecord):
        view = _gate(record)
    elif isinstance(record, AuditRecord):
        view = _audit(record)
    else:
        view = _attack(record)
    if record.complete:
        return view
    return replace(view, partial="The run was interrupted; the results are incomplete.")


def _topic(verb: str, record: RunRecord) -> str:
    trace = record.trace
    data = trace.data or "unnamed data"
    return (
        f"{verb} {trace.protocol}: {counted(trace.nodes, 'node')}, "
        f"{counted(trace.rounds, 'round')}, {trace.model} on {data}"
    )


# ---------------------------------------------------------------------------------------------
# Attack
# ---------------------------------------------------------------------------------------------


def _attack(record: RunRecord) -> Overview:
    case = worst_case(record.findings, record.undetermined, record.trace.shape)
    finding = case.finding
    certainty = case.certainty
    level = _LEVELS.get(case.outcome, "warning")
    badge = case.outcome.value
    doubts = given(record.unclear, ())
    if doubts:
        level = "warning"
        badge = WorstOutcome.CONTRADICTED.value
        certainty = f"The recording is not what it declares: {'; '.join(doubts)}. {certainty}"
    remarks = given(record.unverified, ())
    if remarks:
        certainty = f"{certainty} Not verified: {'; '.join(remarks)}."
    if not record.complete:
        certainty = f"{certainty} The run was interrupted; more may leak."
    adversary = ""
    if finding is not None:
        adversary = finding.adversary
    elif record.undetermined:
        adversary = record.undetermined[0].adversary
    return Overview(
        topic=_topic("Attack on", record),
        says=case.says,
        certainty=certainty,
        level=level,
        badge=badge,
        facts=_attack_facts(record, finding),
        advice=tuple(_attack_advice(record, case))[:MOST],
        adversary=adversary,
        finding=finding,
    )


def _attack_facts(record: RunRecord, finding: Finding | None) -> tuple[tuple[str, str], ...]:
    claim = ("claim", "not part of an attack: `leakaudit bound` compares it with each view")
    if finding is None:
        return (claim,)
    leaking: set[int] = set()
    for one in record.findings:
        if one.adversary == finding.adversary and grading.level(one) == grading.level(finding):
            leaking.update(one.nodes)
    rounds = rounds_in_words(finding.leak.rounds)
    return (
        ("who leaks to whom", f"{named(sorted(leaking))} to {whom(finding.adversary)}"),
        ("how", f"attack {finding.attack}, from the {finding.leak.kind}s of {rounds}"),
        claim,
    )


def _attack_advice(record: RunRecord, case: WorstCase) -> list[Advice]:
    finding = case.finding
    if finding is None or case.outcome is WorstOutcome.NOT_UNDERSTOOD:
        return _advice_without_leak(record)
    advice = []
    if case.outcome is WorstOutcome.CONTRADICTED or given(record.unclear, ()):
        return [
            (
                "Check that the truth file is that of this recording, and that the program records "
                "what it sends.",
                "leakaudit trace lint trace.pt",
            ),
            ("Score the stored results again with the right truth.", _SCORE),
        ]
    if case.outcome in (
        WorstOutcome.EXACT,
        WorstOutcome.INTERVAL,
        WorstOutcome.CLOSE,
        WorstOutcome.RECOGNISABLE,
    ):
        if is_outsider(finding.adversary):
            advice.append(
                (
                    "Encrypt the channels against outsiders. Curious nodes can still read what "
                    "they receive: attack as one of them, too.",
                    "leakaudit attack trace.pt --as node:0",
                )
            )
        advice.append(
            (
                "Add noise to what is sent, and compute the epsilon that it gives.",
                "leakaudit bound trace.pt",
            )
        )
        advice.append(
            ("Make a CI job fail if this leak comes back.", "leakaudit init --run MODULE:FUNCTION"),
        )
        return advice
    if finding.scores is None:
        advice.append(
            (
                "Compare with the originals, if they are available.",
                _SCORE,
            )
        )
    advice.append(
        (
            "Try other attacks and adversaries, such as curious nodes and coalitions.",
            "leakaudit attack trace.pt --as node:0",
        )
    )
    advice.append(
        (
            "Compute the most that this adversary can learn, whatever the attack.",
            "leakaudit bound trace.pt",
        )
    )
    return advice


def _advice_without_leak(record: RunRecord) -> list[Advice]:
    unknown = any(one.understood is False for one in record.undetermined)
    if unknown:
        return [
            (
                "Find out how the messages differ from those that the protocol declares.",
                "leakaudit trace lint trace.pt",
            ),
            (
                "Record the program under the protocol that it runs, or derive its equations.",
                "leakaudit trace equations trace.pt",
            ),
        ]
    return [
        (
            "Try stronger adversaries: curious nodes, and several of them together.",
            "leakaudit attack trace.pt --as nodes:0,1",
        ),
        (
            "See which combinations of messages were considered, and what is missing.",
            "leakaudit explain trace.pt",
        ),
        (
            "Compute the most that this adversary can learn, whatever the attack.",
            "leakaudit bound trace.pt",
        ),
    ]


# ---------------------------------------------------------------------------------------------
# Audit
# ---------------------------------------------------------------------------------------------


def _audit(record: AuditRecord) -> Overview:
    one = worst_verdict(record.audit.verdicts)
    if one is None:
        return Overview(
            _topic("Audit of", record),
            "Nothing was tested.",
            FAILURE,
            "note",
            "Nothing tested",
            (),
            (),
        )
    leak, shown = worst_leak(record.findings, record.trace.shape)
    level = grading.VERDICTS[one.verdict]
    if shown is not None:
        level = grading.most_severe([level, "warning"])
    badge = Verdict[one.verdict].words
    if not record.complete:
        badge = f"{badge}, incomplete"
    place = f"At {point_of(one.epsilon)}, node {one.node} and {whom(one.adversary)}"
    return Overview(
        topic=_topic("Audit of", record),
        says=f"{_AUDITED[Verdict[one.verdict]]}. {leak}".strip(),
        certainty=f"{place}: {one.says}. {_audit_certainty(record, one)}",
        level=level,
        badge=badge,
        facts=_audit_facts(record, one),
        advice=tuple(_audit_advice(one))[:MOST],
        adversary=one.adversary,
        finding=shown or _shown_by(record, one),
    )


def _audit_certainty(record: AuditRecord, one: VerdictEntry) -> str:
    if one.test == VIEW and one.verdict in ("REFUTED", "UNSUPPORTED"):
        return "This is certain: it was computed from the protocol's equations, without statistics."
    if one.verdict == "REFUTED":
        return (
            f"This was measured: a false alarm anywhere in this audit has a probability of at most "
            f"{record.audit.alpha:g}."
        )
    if one.verdict == "INCONCLUSIVE":
        return "Neither a refutation nor a confirmation: nothing follows for privacy."
    if one.verdict == "UNSUPPORTED":
        return "The claim may hold for another reason, but not by the argument that it rests on."
    if one.verdict == "UNCLAIMED":
        return "Without a claim, nothing was confirmed or refuted."
    return "This is not a proof of privacy: another attack or more trials may refute it."


def _audit_facts(record: AuditRecord, one: VerdictEntry) -> tuple[tuple[str, str], ...]:
    facts = [("who leaks to whom", f"node {one.node} to {whom(one.adversary)}")]
    claimed, bounded = _claimed_and_bounded(record, one)
    facts.append(("claimed epsilon", claimed))
    facts.append(("epsilon of the view", bounded))
    facts.append(("verdicts", verdict_counts(record.audit.verdicts)))
    facts.append(("test", test_words(one)))
    return tuple(facts)


def _claimed_and_bounded(record: AuditRecord, one: VerdictEntry) -> tuple[str, str]:
    for other in record.audit.verdicts:
        same = (other.node, other.adversary, other.epsilon) == (
            one.node,
            one.adversary,
            one.epsilon,
        )
        if not same or other.test != VIEW:
            continue
        exact = other.number("exact")
        bounded = significant(exact, "none")
        if exact not in (None, math.inf):
            bounded = Holds.read(other.figures.get("holds")).says(bounded)
        return significant(other.number("claimed"), "none"), bounded
    return "none", "not computed"


def _audit_advice(one: VerdictEntry) -> list[Advice]:
    again = "leakaudit audit scenario.toml -o out/"
    if one.verdict in ("REFUTED", "UNSUPPORTED") and one.test == SENSITIVITY:
        return [  # noise for the assumed sensitivity would not repair it
            ("Do not publish or rely on this claim.", ""),
            ("Clip gradients, or assume the sensitivity that the records reach.", again),
        ]
    if one.verdict in ("REFUTED", "UNSUPPORTED"):
        return [
            ("Do not publish or rely on this claim.", ""),
            (
                "Compute the noise that the claimed epsilon requires.",
                "leakaudit bound scenario.toml",
            ),
            ("Audit again with that noise.", again),
        ]
    if one.verdict == "INCONCLUSIVE":
        text = "Supply what is missing; the verdict names it."
        if one.p is not None:
            text = "Test a smaller epsilon: no feasible number of samples decides about this one."
            if one.needs is not None and one.needs <= MOST_TRIALS:
                text = f"Test with more samples: about {one.needs:,} would decide."
        return [
            (text, again),
            (
                "Until then, rely on the view bound, which needs no samples.",
                "leakaudit bound scenario.toml",
            ),
        ]
    return [
        (
            "Try stronger adversaries, such as coalitions of curious nodes: `adversaries` in "
            "[audit].",
            again,
        ),
        (
            "Keep the result as a limit in CI, so that later changes cannot weaken it.",
            "leakaudit init --run MODULE:FUNCTION",
        ),
    ]


def _shown_by(record: AuditRecord, one: VerdictEntry) -> Finding | None:
    some = []
    for finding in record.findings:
        cell = given(finding.cell, None)
        same = cell is not None and cell.epsilon == one.epsilon
        if same and finding.adversary == one.adversary:
            some.append(finding)
    return max(some, key=harm, default=None)


# ---------------------------------------------------------------------------------------------
# Gate
# ---------------------------------------------------------------------------------------------


def _gate(record: CheckRecord) -> Overview:
    gate = record.gate
    rule = gate.rules[0] if gate.rules else None
    cell = next((one for one in gate.cells if rule is not None and one.name == rule.cell), None)
    if gate.code == 0:
        says, certainty, advice = _passed(record)
    elif gate.code == 3 or rule is None:
        rule = next((one for one in gate.rules if one.status in UNDECIDED), rule)
        says = f"The gate cannot tell whether your program leaks: {_reason(record, rule)}."
        certainty = "Nothing can be concluded until this is repaired."
        advice = _advice_on_doubt(rule)
    else:
        says, certainty = _failed(record, rule, cell)
        advice = _advice_on_leak(record, rule)
    badges: dict[int, tuple[grading.Level, str]] = {
        0: ("note", "Within the limits"),
        1: ("error", "Over the limits"),
        3: ("warning", WorstOutcome.CONTRADICTED.value),
    }
    level, badge = badges[gate.code]
    adversary = cell.adversary if cell is not None else ""
    if not adversary and gate.cells:
        adversary = gate.cells[0].adversary
    return Overview(
        topic=_topic("Gate on", record),
        says=says,
        certainty=certainty,
        level=level,
        badge=badge,
        facts=_gate_facts(record, rule, cell),
        advice=tuple(advice)[:MOST],
        adversary=adversary,
        finding=max(record.findings, key=harm, default=None),
    )


def _passed(record: CheckRecord) -> tuple[str, str, list[Advice]]:
    rules = [rule for rule in record.gate.rules if rule.status is not RuleStatus.UNTESTED]
    accepted = sum(rule.status is RuleStatus.ACCEPTED for rule in rules)
    increased = sum(rule.status is RuleStatus.INCONCLUSIVE for rule in rules)
    if not rules:
        return (
            "No rule was judged, so nothing was tested.",
            PASS,
            [
                (
                    "Add limits: [[budget]] or a baseline in leakaudit.toml.",
                    "leakaudit init --run MODULE:FUNCTION",
                )
            ],
        )
    parts = [f"Your program stays within its limits: {counted(len(rules), 'rule')} judged"]
    if accepted:
        parts.append(f"{accepted} over the limit but accepted")
    if increased:
        parts.append(f"{counted(increased, 'increase')} not significant")
    advice = []
    if increased:
        advice.append(("Use more seeds to decide about the increase.", "leakaudit check"))
    else:
        advice.append(("Nothing has to be done.", ""))
    if record.not_tried:
        advice.append((f"Consider what was not tried: {'; '.join(record.not_tried[-2:])}.", ""))
    return f"{', '.join(parts)}.", PASS, advice


def _failed(record: CheckRecord, rule: RuleEntry, cell: CellEntry | None) -> tuple[str, str]:
    if rule.status is RuleStatus.CONTRADICTED:
        return (
            f"Your program does not do what it declares: {rule.says}.",
            "The recording itself contradicts its declaration.",
        )
    seeds = record.provenance.seeds.get("count", 0)
    if cell is not None and cell.worst is not None and rule.measure in _OF_INPUTS:
        recovered = f"{who(cell.adversary)} {_recovered(cell.worst)}"
        return f"{recovered}, which your limits forbid.", _trials(seeds)
    if rule.measure == "epsilon":
        certainty = "The epsilon was computed from the protocol's equations."
    else:
        certainty = _trials(seeds)
    return f"Your program leaks more than its limits allow: {rule.says}.", certainty


def _recovered(one: NodeBest) -> str:
    if one.exact:
        return f"recovers a training record of node {one.node} bit for bit"
    if one.psnr is not None:
        return f"reconstructs a training image of node {one.node} with {one.psnr:.1f} dB PSNR"
    if one.relative_error is not None:
        return (
            f"reconstructs a training record of node {one.node} with a relative error of "
            f"{one.relative_error:.1e}"
        )
    return f"learns {one.labels or 0:.0%} of the labels of node {one.node}"


def _trials(seeds: int) -> str:
    if not seeds:
        return "This was measured by comparison with the training data of your program."
    return (
        f"This was measured in {counted(seeds, 'recorded run')} of your program, by comparison "
        "with its training data."
    )


def _reason(record: CheckRecord, rule: RuleEntry | None) -> str:
    if not record.complete:
        return CUT_SHORT
    if rule is None:
        return "no rule was judged"
    return f"{rule.cell}: {rule.says}"


def _gate_facts(
    record: CheckRecord, rule: RuleEntry | None, cell: CellEntry | None
) -> tuple[tuple[str, str], ...]:
    gate = record.gate
    facts = []
    if cell is not None and cell.worst is not None:
        nodes = sorted(one.node for one in given(cell.nodes, ()) if one.exact == cell.worst.exact)
        owners = named(nodes or [cell.worst.node])
        facts.append(("who leaks to whom", f"{owners} to {whom(cell.adversary)}"))
    if rule is not None and rule.limit is not None and gate.code == 1:
        value = figure(rule.measure, decoded(rule.value) or 0.0)
        limit = figure(rule.measure, decoded(rule.limit) or 0.0)
        facts.append((measured(rule.measure), f"{value}, at most {limit} allowed"))
    budget = _epsilon_rule(record)
    if budget is not None:
        holds = [one.holds for one in gate.cells if one.name == budget.cell]
        value = significant(decoded(budget.value), "none")
        limit = significant(decoded(budget.limit), "none")
        value = Holds.read(given(holds[0], None) if holds else None).says(value)
        facts.append(("epsilon", f"{value}, limit {limit}"))
    broken = sum(one.status in (RuleStatus.OVER, RuleStatus.REGRESSION) for one in gate.rules)
    contradicted = sum(one.status is RuleStatus.CONTRADICTED for one in gate.rules)
    counts = f"{broken} of {len(gate.rules)} exceeded"
    if contradicted:
        counts = f"{counts}, {contradicted} not as declared"
    facts.append(("limits", counts))
    return tuple(facts)


def _epsilon_rule(record: CheckRecord) -> RuleEntry | None:
    some = [one for one in record.gate.rules if one.measure == "epsilon"]
    return max(some, key=lambda one: decoded(one.value) or 0.0, default=None)


def _advice_on_leak(record: CheckRecord, rule: RuleEntry) -> list[Advice]:
    advice = []
    contradicted = next(
        (one for one in record.gate.rules if one.status is RuleStatus.CONTRADICTED), None
    )
    if contradicted is not None:
        pitfall = given(record.gate.pitfalls, {}).get(contradicted.measure)
        text = "make the program do what it declares"
        if pitfall is not None:
            text = pitfall.fix
        advice.append((f"{capital(text)}.", "leakaudit check"))
    else:
        advice.append(
            (
                "Send less, or add noise to what is sent; then run the gate again.",
                "leakaudit check",
            )
        )
    if rule.status is RuleStatus.REGRESSION or any(
        one.status is RuleStatus.REGRESSION for one in record.gate.rules
    ):
        advice.append(("See what changed since the baseline.", "leakaudit check --diff"))
    advice.append(
        ("If the leak is intended, accept it until a date: [[accept]] in leakaudit.toml.", "")
    )
    return advice


def _advice_on_doubt(rule: RuleEntry | None) -> list[Advice]:
    status = None if rule is None else rule.status
    if status is RuleStatus.TOO_FEW_SEEDS or status is RuleStatus.INCONCLUSIVE:
        return [("Use more seeds: `seeds` in leakaudit.toml.", "leakaudit check")]
    if status is RuleStatus.NOT_COMPARABLE:
        return [("Measure the baseline again and review it.", "leakaudit check --update")]
    return [
        ("Repair what the failed control names, then run the gate again.", "leakaudit check"),
        (
            "If the program's messages are not understood, compare them with its declaration.",
            "leakaudit trace lint trace.pt",
        ),
    ]
