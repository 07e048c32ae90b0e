"""Texts that all reports share, composed from the typed record: headline, table cells, limits.

Sentences are never parsed again. Names may come from an untrusted source: `clean` strips whatever
could act on a terminal, and each report escapes them for its own format.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from msgspec import UnsetType

from leakaudit._util.plural import capital, counted, listed
from leakaudit.core.errors import one_line
from leakaudit.core.quantities import MEASURES, Place, Quantity, fallbacks_last, shown, visible
from leakaudit.core.reconstruction import Certificate
from leakaudit.core.verdict import Verdict
from leakaudit.reporting.findings.measured import (
    CERTIFICATE_RANK,
    MaybeColumn,
    count,
    is_identical,
    known,
    nearest,
    values,
    with_missed,
)
from leakaudit.reporting.findings.worst_case import (
    FAILURE,
    RECOVERED,
    who,
    whom,
    worst_case,
)
from leakaudit.reporting.results.audit_names import SENSITIVITY, VIEW
from leakaudit.reporting.results.model import (
    NO_SCORES,
    AuditRecord,
    CellEntry,
    CheckRecord,
    Extended,
    Finding,
    FlagColumn,
    GatePart,
    NodeBest,
    NotTried,
    NumberColumn,
    Provenance,
    RoundSpan,
    RuleEntry,
    RuleKind,
    RuleStatus,
    RunRecord,
    Scores,
    SweepPoint,
    SweptCell,
    Undetermined,
    VerdictEntry,
    decoded,
    given,
)

LIMITS = (
    "A failed attack is not evidence of privacy: "
    "another attack, more rounds or a stronger adversary may succeed.",
    "The certificate states how certain the attack is without access to the truth; "
    "the scores compare the reconstruction with the truth.",
    "This report and the files beside it contain personal data if the training data does.",
)


def limits(*, attacks: bool) -> tuple[str, ...]:
    """Return the limits of a report; those of attacks only if something was attacked."""
    return LIMITS if attacks else LIMITS[2:]


REFUSED = (
    "refused: attacks on a node in one run that returned nothing to score; each record of such a "
    "node counts in every mean with the score of a blind guess (the mean of all other records)."
)
# Columns of the table of findings.
MEASURED = (
    *fallbacks_last(shown(Place.TABLE, "Number")),
    *shown(Place.TABLE, "Flag"),
)
NUMBERS = (
    "node",
    *(one.heading for one in MEASURED if one.kind == "Number"),
    "seconds",
)  # aligned on the right
SPARE = (*(one.heading for one in MEASURED if one.spare), "seconds")  # omitted if there is no room
_ALWAYS = ("node", "attack", "leak (rounds)", "certificate", "label", "seconds")
LABELS_SHOWN = 8  # a choice: as many as fit into a table cell

# Verdicts of an audit, the most severe first.
VERDICT_ORDER = (
    Verdict.REFUTED,
    Verdict.UNSUPPORTED,
    Verdict.INCONCLUSIVE,
    Verdict.NOT_REFUTED,
    Verdict.UNCLAIMED,
)
NO_PROOF = "NOT REFUTED is not a proof of privacy."
# Names of tests that are stored in results files, and what a reader sees instead.
_TEST_WORDS = {VIEW: "view bound against the claim"}


@dataclass(frozen=True)
class _RuleOutcome:
    """An outcome of a rule of a gate, in the words of every report."""

    word: str  # in one to three words; capitals mark what needs attention
    meaning: str  # a part of a sentence


# The vocabulary of a gate: text, Markdown, HTML, JUnit, annotations and SARIF use these words.
OUTCOMES = {
    RuleStatus.OK: _RuleOutcome("ok", "within the limit"),
    RuleStatus.OVER: _RuleOutcome("OVER BUDGET", "over the budget"),
    RuleStatus.REGRESSION: _RuleOutcome("REGRESSION", "increased over the baseline"),
    RuleStatus.CONTRADICTED: _RuleOutcome(
        "NOT AS DECLARED", "the recording contradicts its own declarations"
    ),
    RuleStatus.ACCEPTED: _RuleOutcome(
        "accepted", "over the limit, but accepted until a stated date"
    ),
    RuleStatus.WARNING: _RuleOutcome(
        "warning", "over a budget of level warn, or a warning of the lint"
    ),
    RuleStatus.INCONCLUSIVE: _RuleOutcome(
        "INCONCLUSIVE", "an increase that is not significant; more seeds would decide"
    ),
    RuleStatus.TOO_FEW_SEEDS: _RuleOutcome(
        "TOO FEW SEEDS", "so few seeds cannot show an increase, or what a recording contains"
    ),
    RuleStatus.NOT_COMPARABLE: _RuleOutcome(
        "NOT COMPARABLE", "the baseline is missing or was measured differently"
    ),
    RuleStatus.VOID: _RuleOutcome(
        "CONTROL FAILED", "a control failed, so the gate is inconclusive"
    ),
    RuleStatus.UNTESTED: _RuleOutcome(
        "nothing to score", "nothing to test; does not affect the result"
    ),
}
_UNJUDGED = "CANNOT BE JUDGED"  # a budget that is void: no control has failed
# Severities of checks (`reporting.findings.grading.Level`) in the words of every report. SARIF and
# GitHub annotations have words of their own for them.
SEVERITIES = {"error": "severe", "warning": "to review", "note": "without findings"}


# Names of a gate's kinds of rules; a budget and a comparison are named after what they limit.
_KINDS = {
    RuleKind.LINT: "lint",
    RuleKind.POSITIVE: "control: planted records",
    RuleKind.NEGATIVE: "control: records of other nodes",
    RuleKind.RECORDING: "control: recording",
    RuleKind.ATTACKED: "control: attack",
}
# Outcomes for which a report also states what leaked.
_LEAKED = (RuleStatus.OVER, RuleStatus.REGRESSION, RuleStatus.WARNING, RuleStatus.ACCEPTED)
UNDECIDED = (
    RuleStatus.VOID,
    RuleStatus.NOT_COMPARABLE,
    RuleStatus.TOO_FEW_SEEDS,
    RuleStatus.INCONCLUSIVE,
)
PASS = (
    "A pass means that these attacks stayed within these limits on these seeds; "
    "it is not a proof of privacy."
)
CUT_SHORT = "the run was interrupted"


def clean(text: object) -> str:
    """Return a value as one line of printable text."""
    return one_line(text)


# ---------------------------------------------------------------------------------------------
# Headlines
# ---------------------------------------------------------------------------------------------


def headline(record: RunRecord) -> str:
    """Summarise a record in one sentence, the worst case first."""
    if isinstance(record, AuditRecord):
        leak, _ = worst_leak(record.findings, record.trace.shape)
        return audit_headline(record.audit.verdicts, leak, record.complete)
    if isinstance(record, CheckRecord):
        seeds = record.provenance.seeds.get("count", 0)
        return gate_headline(record.gate, record.complete, seeds)
    return summary(
        record.findings,
        record.undetermined,
        record.not_tried,
        record.trace.shape,
        record.complete,
    )


def summary(
    findings: Sequence[Finding],
    undetermined: Sequence[Undetermined],
    not_tried: Sequence[str],
    shape: Sequence[int],
    complete: bool = True,
) -> str:
    """Return the headline of an attack: the worst case, the nodes, and what was not tried."""
    nodes = len(_owners(findings) | {one.node for one in undetermined})
    unknown = len({one.node for one in undetermined if one.understood is False})
    case = worst_case(findings, undetermined, shape)
    rest = []
    if case.finding is not None:
        rest += [_how(case.finding), *_counts(findings, nodes)]
    if findings and unknown:
        rest.append(f"the messages about {counted(unknown, 'other node')} are not understood")
    if not complete:
        rest.append("the run was interrupted and is incomplete")
    rest.append(f"not tried: {', '.join(not_tried) or 'anything else'}")
    worst = clean(f"{case.says} {case.certainty}")
    more = f"{capital(clean('; '.join(rest)))}."
    return f"{worst} {more}"


def audit_headline(verdicts: Sequence[VerdictEntry], leak: str, complete: bool) -> str:
    """Return the headline of an audit: the claim first, then the worst leak in one sentence."""
    rest = [verdict_counts(verdicts) or "nothing was tested"]
    if not complete:
        rest.append("the run was interrupted and is incomplete")
    worst = worst_verdict(verdicts)
    first = ""
    if worst is not None:
        where = f"{test_words(worst)}, adversary {worst.adversary}, {point_of(worst.epsilon)}"
        first = f"{Verdict[worst.verdict].words}: {where}: {worst.says}. "
    counts = f"{capital('; '.join(rest))}. {NO_PROOF}"
    return f"{first}{clean(leak)} {counts}" if leak else f"{first}{counts}"


def count_verdicts(verdicts: Iterable[VerdictEntry]) -> dict[Verdict, int]:
    """Return the number of verdicts of each kind that occurs, the most severe first."""
    counts = Counter[str](one.verdict for one in verdicts)
    return {verdict: counts[verdict.name] for verdict in VERDICT_ORDER if verdict.name in counts}


def verdict_counts(verdicts: Iterable[VerdictEntry]) -> str:
    """Return the numbers of verdicts in words, such as ``1 REFUTED, 3 NOT REFUTED``."""
    counts = count_verdicts(verdicts)
    return ", ".join(f"{number} {verdict.words}" for verdict, number in counts.items())


def worst_verdict(verdicts: Sequence[VerdictEntry]) -> VerdictEntry | None:
    """Return the first of the most severe verdicts; a test without power is none of them.

    An inconclusive one counts if the view itself has no bound, or if there is no other.
    """
    telling = [one for one in verdicts if one.verdict != "INCONCLUSIVE" or one.test == VIEW]
    telling.sort(key=lambda one: one.test == SENSITIVITY)  # a claim comes before its assumptions
    for verdict in VERDICT_ORDER:
        for one in telling or verdicts:
            if one.verdict == verdict.name:
                return one
    return None


def worst_leak(findings: Sequence[Finding], shape: Sequence[int]) -> tuple[str, Finding | None]:
    """Return what attacks of an audit recovered, at the smallest epsilon at which they did.

    That is one sentence, empty if no attack returned anything, and the finding that shows it best,
    None if nothing was recovered.
    """
    at: dict[float, list[Finding]] = {}
    for one in findings:
        cell = given(one.cell, None)
        if cell is not None:
            at.setdefault(epsilon_order(cell.epsilon), []).append(one)
    for _, some in sorted(at.items()):
        case = worst_case(some, (), shape)
        if case.outcome in RECOVERED and case.finding is not None:
            cell = given(case.finding.cell, None)
            place = point_of(None if cell is None else cell.epsilon)
            return f"{capital(place)}: {case.says}", case.finding
    return "No attack recovered an input at any epsilon." if findings else "", None


def gate_headline(gate: GatePart, complete: bool, seeds: int) -> str:
    """Return the headline of a gate."""
    count = _counted(gate, seeds)
    if gate.code == 1 and gate.rules:
        return _two(_violation(gate.rules[0], gate.cells), count)
    if gate.code == 3:
        return _two(f"The gate is inconclusive: {_undecided(gate.rules, complete)}", count)
    accepted = sum(rule.status is RuleStatus.ACCEPTED for rule in gate.rules)
    increased = sum(rule.status is RuleStatus.INCONCLUSIVE for rule in gate.rules)
    covered = ""
    if accepted:
        covered = f", {accepted} accepted"
    if increased:
        covered += f", {counted(increased, 'increase')} not significant"
    worst = clean(f"No limit is exceeded{covered}: {count}")
    return f"{worst}. {PASS}"


def _violation(rule: RuleEntry, cells: Sequence[CellEntry]) -> str:
    if rule.status is RuleStatus.CONTRADICTED:
        return f"Not as declared: {rule.cell}: {rule.says}"
    meaning = OUTCOMES[rule.status].meaning
    for cell in cells:
        if cell.name == rule.cell and is_reconstruction(rule) and cell.says:
            figures = rule_figures(rule)
            return f"Leak: {cell.says}; {meaning} in {rule.cell}: {figures}"
    return f"Leak: {rule.cell}: {meaning}: {rule.says}"


def _counted(gate: GatePart, seeds: int) -> str:
    idle = sum(rule.status is RuleStatus.UNTESTED for rule in gate.rules)
    rules = counted(len(gate.rules) - idle, "rule")
    count = f"{rules} on {counted(len(gate.cells), 'cell')}, {counted(seeds, 'seed')}"
    if not idle:
        return count
    return f"{count}, {counted(idle, 'control')} with nothing to score"


def _undecided(rules: Sequence[RuleEntry], complete: bool) -> str:
    if not complete:
        return CUT_SHORT
    for rule in rules:
        if rule.status in UNDECIDED:
            return f"{rule.cell}: {rule.says}"
    return ""


def _two(worst: str, count: str) -> str:
    return clean(f"{worst}. {count}.")


def sweep_headline(cells: Sequence[SweptCell], points: Sequence[SweepPoint], missing: int) -> str:
    """Summarise what a sweep found, the worst case first."""
    said = sweep_says(worst_setting(points))
    if points and not any(map(is_attacked, points)):
        return f"{said} Cells: {sweep_counts(cells, missing)}."
    return f"{said} Cells: {sweep_counts(cells, missing)}. {FAILURE}"


def is_attacked(point: SweepPoint) -> bool:
    """Return whether a setting was attacked, and not only trained."""
    return point.attack != "none"


def worst_setting(points: Sequence[SweepPoint]) -> SweepPoint | None:
    """Return the first of the settings at which most was recovered, None if there is none."""
    return max(points, key=_share_recovered, default=None)


def sweep_says(worst: SweepPoint | None) -> str:
    """Describe in one sentence what was recovered at the worst setting of a sweep."""
    if worst is None:
        return "No setting has a result."
    if not is_attacked(worst):
        return "Every setting was trained, and none attacked."
    if not worst.recovered:
        return f"{who(worst.adversary)} recovered no training record at any setting."
    place = ", ".join(f"{axis} = {axis_value(value)}" for axis, value in worst.at.items())
    someone = f"With {place}, {whom(worst.adversary)}" if place else who(worst.adversary)
    share = f"{worst.recovered} of {worst.records}"
    if worst.recovered == worst.records:
        share = f"all {worst.records}" if worst.records > 1 else "the only one"
    how = ""
    if worst.exact == worst.recovered:
        how = " exactly"
    elif worst.exact:
        how = f", {worst.exact} of them exactly"
    what = f"recovered {share} of the attacked training records{how}"
    return f"{someone} {what}, by attack {worst.attack}."


def sweep_counts(cells: Sequence[SweptCell], missing: int) -> str:
    """Count the cells of a sweep by how they ended."""
    failed = sum(cell.status != "done" for cell in cells)
    parts = [f"{len(cells) - failed} with a result"]
    if failed:
        parts.append(f"{failed} failed")
    if missing:
        parts.append(f"{missing} missing (the sweep is incomplete)")
    return ", ".join(parts)


def _share_recovered(point: SweepPoint) -> tuple[float, int]:
    share = point.recovered / point.records if point.records else 0.0
    return share, point.exact


def _how(finding: Finding) -> str:
    leak = f"a {finding.leak.kind}"
    if finding.attack == "none":
        return f"{leak} is determined, but no available attack can use it"
    return f"by {finding.attack} from {leak}"


def _counts(findings: Sequence[Finding], nodes: int) -> list[str]:
    attacked = _owners(findings)
    identical = _identical(findings)
    said = []
    if identical:
        said.append(
            f"a record recovered bit for bit from {len(identical)} of {counted(nodes, 'node')}"
        )
    certificates = []
    for word in CERTIFICATE_RANK:
        count = len(_owners(one for one in findings if one.certificate.name == word))
        if count:
            certificates.append(f"{count} {word.lower()}")
    said.append(
        f"certificates of the {counted(len(attacked), 'node')} attacked: {', '.join(certificates)}"
    )
    if nodes > len(attacked):
        said.append(f"no leak determined for {counted(nodes - len(attacked), 'node')}")
    return said


def _owners(findings: Iterable[Finding]) -> set[int]:
    return {node for one in findings for node in one.nodes}


def _identical(findings: Iterable[Finding]) -> set[int]:
    """The nodes of which a record is known to be recovered bit for bit.

    Of several nodes together, one counts unless all records were recovered.
    """
    found: set[int] = set()
    for one in findings:
        if one.scores is not None and is_identical(one.scores):
            every = all(values(one.scores.exact))
            found.update(one.nodes if every else (one.node,))
    return found


# ---------------------------------------------------------------------------------------------
# Findings
# ---------------------------------------------------------------------------------------------


def outcome(finding: Finding) -> str:
    """Describe what was recovered from one node."""
    scores, certificate = finding.scores, finding.certificate
    if scores is None:
        name = certificate.name.lower()
        return f"certificate {name}: {certificate.sentence}; no truth file: not scored"
    found = nearest(scores)
    if found is not None:
        one, value = found
        near = one.near.format(value)
    elif certificate.name != "FAILED" and scores.labels_found:
        return f"{scores.labels_found:.0%} of the labels and no input recovered"
    elif not isinstance(scores.tokens_found, UnsetType):
        return _set_of_tokens(scores)
    else:
        return "nothing recovered"
    identical = count(scores.exact)
    if identical:
        return f"{identical} of {len(scores.matched)} records recovered bit for bit ({near})"
    return f"reconstructed with {near}"


def _set_of_tokens(scores: Scores) -> str:
    said = f"{scores.tokens_found:.0%} of the different tokens recovered"
    if scores.tokens_wrong:
        return f"{said}, and {counted(scores.tokens_wrong, 'token')} that do not occur"
    return f"{said}, none wrong"


def reconstructed(one: NodeBest | None, adversary: str, attack: str) -> str:
    """Describe what an attack of a gate recovered of one record."""
    if one is None:
        return f"{adversary} reconstructs nothing with the attack {attack}"
    if one.relative_error is None:
        what = f"{one.labels or 0:.0%} of the labels"
        how = ""
    else:
        what = "the training input"
        how = f" with relative error {one.relative_error:.2g}"
    if one.exact:
        how = " bit for bit"
    near = ""
    if one.psnr is not None:
        near = f" ({one.psnr:.1f} dB PSNR)"
    rounds = rounds_in_words(one)
    said = f"{adversary} reconstructs {what} of node {one.node}{how}{near}"
    leak = f"the {one.kind}s of {rounds}"
    return f"{said} with the attack {attack} from {leak} (seed {one.seed})"


def untried(one: NotTried) -> str:
    """Describe what a gate omits, such as ``check main: nodes other than 5, 6``."""
    if not isinstance(one.attack, UnsetType):
        return f"attack {one.attack}"
    if not isinstance(one.adversaries, UnsetType):
        return f"adversaries other than {', '.join(one.adversaries)}"
    if not isinstance(one.nodes, UnsetType):
        return f"check {one.check}: nodes other than {', '.join(map(str, one.nodes))}"
    return f"check {one.check}: more than {given(one.gradients, 0)} gradients"


def measured(measure: str) -> str:
    """Return what a measure of a gate measures."""
    if measure == "epsilon":
        return "epsilon of one record"
    known = MEASURES.get(measure)
    return measure if known is None else known.words


def figure(measure: str, value: float) -> str:
    """Return a value of a measure with its unit, such as ``100.0%`` or ``41.3 dB``."""
    known = MEASURES.get(measure)
    if known is None:
        return f"{value:.4g}"
    if known.share:
        return f"{value:.1%}"
    return f"{value:.1f} {known.unit}" if known.unit else f"{value:.3f}"


def outcome_word(rule: RuleEntry) -> str:
    """Return the outcome of a gate's rule in the words of every report."""
    if rule.kind is RuleKind.BUDGET and rule.status is RuleStatus.VOID:
        return _UNJUDGED
    return OUTCOMES[rule.status].word


def rule_name(rule: RuleEntry) -> str:
    """Return what a rule of a gate tests, such as ``lint P20``."""
    if rule.kind in (RuleKind.BUDGET, RuleKind.BASELINE):
        if not rule.measure:
            return rule.kind.value
        return f"{rule.kind}: {measured(rule.measure)}"
    return f"{_KINDS[rule.kind]} {rule.measure}".strip()


def is_reconstruction(rule: RuleEntry) -> bool:
    """Return whether a rule limits what an attack recovers."""
    limits = rule.kind in (RuleKind.BUDGET, RuleKind.BASELINE)
    return limits and rule.measure != "epsilon"


def rule_figures(rule: RuleEntry) -> str:
    """Return a rule's figures, such as ``labels found: 100.0%, at most 0.0% allowed``."""
    parts = []
    value = decoded(rule.value)
    limit = decoded(rule.limit)
    p = decoded(rule.p)
    if value is not None:
        parts.append(f"{measured(rule.measure)}: {figure(rule.measure, value)}".lstrip(": "))
    if limit is not None:
        parts.append(f"at most {figure(rule.measure, limit)} allowed")
    if p is not None:
        parts.append(f"p = {p:.2g}")
    return ", ".join(parts)


def rule_outcome(rule: RuleEntry, cell: CellEntry | None, pitfall: str | None) -> str:
    """Describe the outcome of a gate's rule from its figures, in less detail than the gate does."""
    if pitfall is not None:
        return pitfall
    said = rule_figures(rule) or OUTCOMES[rule.status].meaning
    if rule.status in _LEAKED and cell and cell.says:
        return f"{said}: {cell.says}"
    return said


# ---------------------------------------------------------------------------------------------
# Tables and lists
# ---------------------------------------------------------------------------------------------


def table(findings: Sequence[Finding]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Return findings as a table."""
    rows = list(map(_cells, findings))
    used = []
    for heading in dict.fromkeys(name for row in rows for name in row):
        if heading in _ALWAYS or any(row[heading] != "-" for row in rows):
            used.append(heading)
    return tuple(used), [tuple(clean(row[heading]) for heading in used) for row in rows]


def by_reason(entries: Iterable[tuple[int, str]]) -> list[str]:
    """Group nodes that have the same reason."""
    nodes: dict[str, dict[int, None]] = {}
    for node, reason in entries:
        if reason:
            nodes.setdefault(clean(reason), {})[node] = None
    said = []
    for reason, some in nodes.items():
        plural = "s" * (len(some) > 1)
        said.append(f"node{plural} {', '.join(map(str, some))}: {reason}")
    return said


def certificates(findings: Iterable[Finding]) -> dict[str, str]:
    """Return what the certificates of findings mean, by their names."""
    meant: dict[str, str] = {}
    for one in findings:
        name = one.certificate.name
        said = meant.setdefault(name.lower(), one.certificate.sentence)
        if said != one.certificate.sentence:
            meant[name.lower()] = Certificate[name].value
    return meant


def notes(findings: Iterable[Finding]) -> list[str]:
    """Return the notes of findings, grouped by note."""
    return by_reason((node, one.note) for one in findings for node in one.nodes)


def not_determined(entries: Iterable[Undetermined]) -> list[str]:
    """Return why no leak is determined for nodes, grouped by reason."""
    return by_reason((one.node, one.reason) for one in entries if one.understood is not False)


def not_understood(entries: Iterable[Undetermined]) -> list[str]:
    """Return why the messages about nodes are not understood, grouped by reason."""
    return by_reason((one.node, one.reason) for one in entries if one.understood is False)


def scopes(findings: Iterable[Finding]) -> list[str]:
    """Return which part of the observed messages leaks are computed from, grouped by node."""
    return by_reason((node, given(one.leak.scope, "")) for one in findings for node in one.nodes)


def provenance(record: RunRecord) -> list[tuple[str, str]]:
    """Return everything that is needed to repeat a run."""
    source, trace = record.provenance, record.trace
    versions = []
    for name, version in source.versions.items():
        versions.append(f"{name} {version or 'absent'}")
    said = {
        "protocol": (
            f"{trace.protocol}, {trace.nodes} nodes, {trace.edges} edges, {trace.rounds} rounds"
        ),
        "data": f"{trace.data or 'unnamed'}, shape {trace.shape}, model {trace.model}",
        "program": _program(source),
        "command": source.command,
        "started": source.started,
        "wall time": f"{source.seconds:.1f} s",
        "versions": ", ".join(versions),
        "torchvision": "shimmed (operators declared, not compiled)" if source.shimmed else "",
        "seeds": ", ".join(f"{name} {seed}" for name, seed in source.seeds.items()),
        "device": f"{source.device}, {counted(source.threads, 'thread')}, {source.platform}",
        "trace": (f"id {source.trace.id or 'none'}, sha256 {source.trace.sha256 or 'not stated'}"),
        "truth": _truth(record),
        "configuration": f"sha256 {source.digest}",
    }
    for name, text in record.metrics.items():
        said[f"metric {name}"] = text
    return [(clean(name), clean(value)) for name, value in said.items() if value]


def _program(source: Provenance) -> str:
    program = given(source.program, None)
    if program is None:
        return ""
    changed = ", with changes that are not committed" if program.changed else ""
    return f"git commit {program.commit}{changed}"


def _truth(record: RunRecord) -> str:
    sha256 = record.provenance.truth.sha256
    if sha256:
        return f"sha256 {sha256}"
    if isinstance(record, AuditRecord | CheckRecord):
        return "recorded in each run and not kept"
    if any(finding.scores is not None for finding in record.findings):
        return "sha256 not stated"
    return "no truth file: not scored"


def refusal(attacked: int | None, refused: int | None) -> str:
    """Return how often an attack returned nothing."""
    if refused is None:
        return "-"
    if not attacked:
        return "not run"
    if not refused:
        return "none"  # "0 of 1" would read as a rate of success
    return f"{refused} of {attacked}"


def point_of(epsilon: Extended) -> str:
    """Name the point of an audit's grid that an entry belongs to, such as ``epsilon 10``."""
    if epsilon is None:
        return "as configured"
    if epsilon == "inf":
        return "no noise (epsilon inf)"
    return f"epsilon {epsilon:g}"


def cell_of(finding: Finding) -> str:
    """Name a finding's point and run in an audit, such as ``epsilon 10, seed 0``."""
    cell = given(finding.cell, None)
    if cell is None:
        return ""
    return f"{point_of(cell.epsilon)}, seed {cell.seed}"


def epsilon_order(epsilon: Extended) -> float:
    """Return epsilon as a number: infinity without noise, 0 for constants as configured."""
    return float(decoded(epsilon) or 0.0)


def epsilon_name(epsilon: Extended) -> str:
    """Return the name of a grid point on the axis of a figure."""
    return "as set" if not epsilon else format(decoded(epsilon), "g")


def grid_epsilon(epsilon: Extended) -> str:
    """Return a point of an audit's grid as a table cell, such as ``10``."""
    if epsilon is None:
        return "as configured"
    if epsilon == "inf":
        return "inf"
    return short(epsilon)


def test_words(one: VerdictEntry) -> str:
    """Return the name of a test as reports show it."""
    return _TEST_WORDS.get(one.test, one.test)


def axis_value(value: object) -> str:
    """Return a value of a sweep's axis in few characters, distinct for distinct values."""
    if isinstance(value, bool):
        return str(value).lower()
    if not isinstance(value, int | float):
        return str(value)
    rounded = short(value)
    if float(rounded) == value:
        return rounded
    return str(value)


def rounds_in_words(span: RoundSpan | NodeBest) -> str:
    """Return rounds with their noun, such as ``rounds 0 to 3``."""
    if span.first == span.last:
        return f"round {span.first}"
    return f"rounds {span.first} to {span.last}"


def span_of(finding: Finding) -> str:
    """Return the rounds of a finding's leak as a table cell, such as ``0-3``."""
    first, last = finding.leak.rounds.first, finding.leak.rounds.last
    return str(first) if first == last else f"{first}-{last}"


def short(value: float) -> str:
    """Return a number in few characters."""
    return f"{value:.4g}".replace("e+0", "e").replace("e+", "e")


def significant(value: float | None, absent: str = "-") -> str:
    """Return a number with four digits."""
    return absent if value is None else f"{value:.4g}"


def _cells(finding: Finding) -> dict[str, str]:
    scores = finding.scores or NO_SCORES
    span = span_of(finding)
    cells = {
        "node": listed(finding.nodes),
        "attack": finding.attack,
        "leak (rounds)": _leak(finding, span),
        "certificate": finding.certificate.name.lower(),
    }
    special = {"label_correct": _labels(finding, scores), "identified": _identified(scores)}
    measured = [one for one in MEASURED if isinstance(getattr(scores, one.key), NumberColumn)]
    numbers = visible(MEASURED, [one.key for one in measured])
    for one in MEASURED:
        column: MaybeColumn = getattr(scores, one.key)
        cell = spread(column, one) if one in numbers else "-"
        if one.kind == "Flag":
            cell = special.get(one.key) or _share(column)
        cells[one.heading] = cell
    cells["seconds"] = f"{finding.seconds:.2f}"
    return cells


def _leak(finding: Finding, span: str) -> str:
    """Name the leak, and the rounds that certified inputs explain if these are not all."""
    rounds = given(finding.rounds, ())[: given(finding.certified, 0)]
    if not rounds or not rounds[0]:
        return f"{finding.leak.kind} {span}"
    if len(rounds) == 1:
        return f"{finding.leak.kind} {listed(rounds[0])} of {span}"
    explained = {each for some in rounds for each in some}
    return f"{finding.leak.kind} {span}, {len(explained)} of {finding.leak.rows} one by one"


def spread(column: MaybeColumn, one: Quantity) -> str:
    """Return a quantity as a table cell."""
    if not isinstance(column, NumberColumn):
        return "-"
    if not known(column):
        return "-"
    found = with_missed(column)
    if len(set(map(one.text, found))) == 1:
        return one.text(found[0])
    middle = "-"
    if column.median is not None:
        middle = one.text(column.median)
    return f"{middle} ({one.text(min(found))} to {one.text(max(found))})"


def _share(column: MaybeColumn) -> str:
    if not isinstance(column, FlagColumn):
        return "-"
    found = column.per_image
    if len(found) != 1:
        return f"{count(column)} of {len(found)}"
    return "yes" if found[0] else "no"


def _labels(finding: Finding, scores: Scores) -> str:
    if finding.labels is None:
        return "-"
    correct = _share(scores.label_correct)
    if len(finding.labels) > 1 and scores.labels_found is not None:
        records = len(scores.matched)
        total = f"{round(scores.labels_found * records)} of {records}"
        if correct == "-":
            return f"{total} as a set"
        return f"{correct} right" + f", {total} as a set" * (total != correct)
    shown = []
    for label in finding.labels[:LABELS_SHOWN]:
        shown.append("?" if label is None else f"{label:g}")
    more = " …" if len(finding.labels) > LABELS_SHOWN else ""
    right = {"yes": ", right", "no": ", wrong"}.get(correct, "")
    return f"{' '.join(shown)}{more}{right}"


def _identified(scores: Scores) -> str:
    share = _share(scores.identified)
    ranks = values(scores.rank)
    if share == "no" and ranks and ranks[0] is not None:
        return f"no (rank {ranks[0]})"
    return share
