"""Words that all reports share, made only from the typed record: headline, table cells, limits.

Names in a trace come from strangers: `clean` strips what could act on a terminal, and each report
escapes for its own format. A sentence is made here from fields and never taken apart again; a
caller that needs a part of one asks for that part.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from msgspec import UnsetType

from leakaudit.results.model import (
    NO_SCORES,
    AuditRecord,
    CellEntry,
    CheckRecord,
    Column,
    Extended,
    Finding,
    FlagColumn,
    GatePart,
    NodeBest,
    NotTried,
    NumberColumn,
    RuleEntry,
    RuleStatus,
    RunRecord,
    Scores,
    Undetermined,
    VerdictEntry,
    decoded,
    given,
)
from leakaudit.trace import Json
from leakaudit.verdict import Verdict

LIMITS = (
    "An attack that fails proves nothing: "
    "another attack, more rounds or a stronger adversary may succeed.",
    "The certificate says how sure the attack is without knowing the truth; "
    "the scores compare with the truth file.",
    "This report and the files beside it hold personal data if the training data does.",
)
REFUSED = (
    "refused: nodes, once a run, that gave nothing to score; "
    "their records count in every mean as the mean of all other records."
)
HEADINGS = (
    "node",
    "attack",
    "leak of rounds",
    "certificate",
    "PSNR dB",
    "SSIM",
    "LPIPS",
    "rel. error",
    "identical",
    "label",
    "identified",
    "seconds",
)
_ALWAYS = ("node", "attack", "leak of rounds", "certificate", "label", "seconds")
_RANK = {"EXACT": 3, "INTERVAL": 2, "APPROXIMATE": 1, "FAILED": 0}
LABELS_SHOWN = 8  # a choice: what fits a cell of a table

MaybeColumn: TypeAlias = Column | UnsetType | None  # None or absent: not measured

# Verdicts of an audit, the worst first.
VERDICT_ORDER = (
    Verdict.REFUTED,
    Verdict.UNSUPPORTED,
    Verdict.INCONCLUSIVE,
    Verdict.NOT_REFUTED,
    Verdict.UNCLAIMED,
)
NO_PROOF = "NOT REFUTED is no proof of privacy."

# What the status of a rule of a gate means for the gate.
STATUS_WORDS = {
    RuleStatus.OK: "within the limit",
    RuleStatus.OVER: "over the budget",
    RuleStatus.REGRESSION: "grew over the baseline",
    RuleStatus.CONTRADICTED: "the recording contradicts what it declares",
    RuleStatus.ACCEPTED: "over the limit, and accepted until a date",
    RuleStatus.WARNING: "over a budget of level warn, or a warning of the lint",
    RuleStatus.INCONCLUSIVE: "too few samples to tell",
    RuleStatus.NOT_COMPARABLE: "the baseline was measured in another way, or is not there",
    RuleStatus.VOID: "a control failed: the gate cannot tell",
    RuleStatus.UNTESTED: "nothing to test: it counts neither for nor against",
}
# Outcomes for which a reader wants to know what leaked.
_LEAKED = (RuleStatus.OVER, RuleStatus.REGRESSION, RuleStatus.WARNING, RuleStatus.ACCEPTED)
_UNDECIDED = (RuleStatus.VOID, RuleStatus.NOT_COMPARABLE, RuleStatus.INCONCLUSIVE)
PASS = (
    "A pass means that these attacks stayed within these limits on these seeds; "
    "it is no proof of privacy."
)
CUT_SHORT = "the run was cut short"


@dataclass(frozen=True)
class Headline:
    """The summary of a record, and its two parts.

    Attributes:
        text: The summary as it is stored.
        worst: The worst case, a sentence.
        rest: How much was counted, and what was not tried; "" if there is no more.
    """

    text: str
    worst: str
    rest: str


def clean(text: object) -> str:
    """Make one line of printable text.

    Args:
        text: Anything.

    Returns:
        Its text, where control, format and direction characters have become spaces.
    """
    printable = [" " if unicodedata.category(c)[0] in "CZ" else c for c in str(text)]
    return " ".join("".join(printable).split())


# ---------------------------------------------------------------------------------------------
# Headlines
# ---------------------------------------------------------------------------------------------


def headline(record: RunRecord) -> Headline:
    """Say in one sentence what a record holds, the worst case first.

    Args:
        record: Of an attack, an audit or a gate.

    Returns:
        The sentence, without remarks on what is not verified.
    """
    if isinstance(record, AuditRecord):
        return audit_headline(record.audit.verdicts, record.complete)
    if isinstance(record, CheckRecord):
        seeds = record.provenance.seeds.get("count", 0)
        return gate_headline(record.gate, record.complete, seeds)
    return attack_headline(
        record.findings, record.undetermined, record.not_tried, complete=record.complete
    )


def summary(
    findings: Sequence[Finding],
    undetermined: Sequence[Undetermined],
    not_tried: Sequence[str],
    complete: bool = True,
) -> str:
    """Say in one sentence what an attack found.

    Args:
        findings: What came out.
        undetermined: Nodes of which nothing is determined.
        not_tried: What was left out, in words.
        complete: Whether the run came to its end.

    Returns:
        The worst case first, then how many nodes, then what was not tried.
    """
    return attack_headline(findings, undetermined, not_tried, complete=complete).text


def attack_headline(
    findings: Sequence[Finding],
    undetermined: Sequence[Undetermined],
    not_tried: Sequence[str],
    *,
    complete: bool,
) -> Headline:
    """Return the headline of an attack.

    Args:
        findings: As in `summary`.
        undetermined: As in `summary`.
        not_tried: As in `summary`.
        complete: As in `summary`.

    Returns:
        The worst case, and the rest.
    """
    nodes = len({one.node for one in findings} | {one.node for one in undetermined})
    rest = []
    if findings:
        top = max(findings, key=harm)
        worst = f"worst case: node {top.node}, {outcome(top)}, {_how(top)}"
        rest += _counts(findings, nodes)
    else:
        worst = (
            f"no gradient of {_count(nodes)} looked at is determined by what was tried, "
            "which proves nothing about other attacks"
        )
    if not complete:
        rest.append("the run was interrupted and is not complete")
    rest.append(f"not tried: {', '.join(not_tried) or 'anything else'}")
    text = _capital(clean("; ".join([worst, *rest])))
    return Headline(
        text=f"{text}.",
        worst=_sentence(_capital(clean(worst))),
        rest=f"{_capital(clean('; '.join(rest)))}.",
    )


def audit_headline(verdicts: Sequence[VerdictEntry], complete: bool) -> Headline:
    """Return the headline of an audit.

    Args:
        verdicts: What the tests say.
        complete: Whether the run came to its end.

    Returns:
        The worst verdict, and how many there are of each.
    """
    counts = []
    for verdict in VERDICT_ORDER:
        number = sum(one.verdict == verdict.name for one in verdicts)
        if number:
            counts.append(f"{number} {verdict.words}")
    rest = [", ".join(counts) or "nothing was tested"]
    if not complete:
        rest.append("the run was interrupted and is not complete")
    worst = _worst_verdict(verdicts)
    if worst is None:
        text = f"{'; '.join(rest)}. {NO_PROOF}"
        return Headline(text=text, worst=text, rest="")
    where = f"{worst.test} at epsilon {_epsilon(worst.epsilon)}, heard by {worst.adversary}"
    first = f"{Verdict[worst.verdict].words}: {where}: {worst.says}"
    counted = f"{'; '.join(rest)}. {NO_PROOF}"
    return Headline(text=f"{first}; {counted}", worst=_sentence(first), rest=_capital(counted))


def _worst_verdict(verdicts: Sequence[VerdictEntry]) -> VerdictEntry | None:
    """The first of the worst; verdicts that no number of trials would have changed come last."""
    telling = []
    for one in verdicts:
        if one.verdict != "INCONCLUSIVE" or one.needs or one.p is None:
            telling.append(one)
    for verdict in VERDICT_ORDER:
        for one in telling or verdicts:
            if one.verdict == verdict.name:
                return one
    return None


def gate_headline(gate: GatePart, complete: bool, seeds: int) -> Headline:
    """Return the headline of a gate.

    Args:
        gate: Its part of the record, the rules with the worst first.
        complete: Whether the run came to its end.
        seeds: Number of seeds.

    Returns:
        The worst rule, and how many there are.
    """
    count = _counted(gate, seeds)
    if gate.code == 1 and gate.rules:
        rule = gate.rules[0]
        if rule.status is RuleStatus.CONTRADICTED:
            return _two(f"Not as declared: {rule.cell}: {rule.says}", count)
        return _two(f"Leak: {rule.cell}: {STATUS_WORDS[rule.status]}: {rule.says}", count)
    if gate.code == 3:
        return _two(f"The gate cannot tell: {_undecided(gate.rules, complete)}", count)
    accepted = sum(rule.status is RuleStatus.ACCEPTED for rule in gate.rules)
    covered = ""
    if accepted:
        covered = f", {accepted} accepted"
    worst = clean(f"Nothing over the limits{covered}: {count}")
    return Headline(text=f"{worst}. {PASS}", worst=f"{worst}.", rest=PASS)


def _counted(gate: GatePart, seeds: int) -> str:
    """How many rules were judged, on how many cells and seeds."""
    idle = sum(rule.status is RuleStatus.UNTESTED for rule in gate.rules)
    count = f"{len(gate.rules) - idle} rules on {len(gate.cells)} cells, {seeds} seeds"
    if not idle:
        return count
    return f"{count}, {idle} control{'s' * (idle != 1)} with nothing to score"


def _undecided(rules: Sequence[RuleEntry], complete: bool) -> str:
    if not complete:
        return CUT_SHORT
    for rule in rules:
        if rule.status in _UNDECIDED:
            return f"{rule.cell}: {rule.says}"
    return ""


def _two(worst: str, count: str) -> Headline:
    return Headline(text=clean(f"{worst}. {count}."), worst=f"{clean(worst)}.", rest=f"{count}.")


def _capital(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}"


def _sentence(text: str) -> str:
    return f"{text.rstrip('.')}."


def _how(finding: Finding) -> str:
    leak = f"a {finding.leak.kind} heard by {finding.adversary}"
    if finding.attack == "none":
        return f"{leak} is determined, and no attack here can use it"
    return f"by {finding.attack} from {leak}"


def _counts(findings: Sequence[Finding], nodes: int) -> list[str]:
    """How many nodes came out how."""
    attacked = {one.node for one in findings}
    identical = {one.node for one in findings if is_identical(one.scores)}
    said = []
    if identical:
        said.append(f"{len(identical)} of {_count(nodes)} gave away a record bit for bit")
    certificates = []
    for word in _RANK:
        count = len({one.node for one in findings if one.certificate.name == word})
        if count:
            certificates.append(f"{count} {word.lower()}")
    said.append(f"certificates of {_count(len(attacked))} attacked: {', '.join(certificates)}")
    if nodes > len(attacked):
        said.append(f"nothing determined for {_count(nodes - len(attacked))}")
    return said


def _count(nodes: int) -> str:
    return f"{nodes} node" + "s" * (nodes != 1)


# ---------------------------------------------------------------------------------------------
# Findings
# ---------------------------------------------------------------------------------------------


def harm(finding: Finding) -> tuple[float, ...]:
    """Return what sorts findings by how much they give away.

    Args:
        finding: One finding.

    Returns:
        Identical records, PSNR or negative error, certificate, negative residual; the larger, the
        worse.
    """
    scores = finding.scores or NO_SCORES
    identical = best(scores.exact, max) or 0.0
    residual = float("-inf")
    if finding.residual is not None:
        residual = -finding.residual
    return identical, _nearness(scores), _RANK[finding.certificate.name], residual


def _nearness(scores: Scores) -> float:
    """The PSNR, minus the relative error if there is none; minus infinity if there is neither."""
    psnr = best(scores.psnr, max)
    if psnr is not None:
        return psnr
    error = best(scores.relative_error, min)
    if error is not None:
        return -error
    return float("-inf")


def outcome(finding: Finding) -> str:
    """Say what was got of one node.

    Args:
        finding: One finding.

    Returns:
        A part of a sentence.
    """
    scores, certificate = finding.scores, finding.certificate
    if scores is None:
        name = certificate.name.lower()
        return f"which {certificate.sentence} (certificate {name}, no truth file: not scored)"
    psnr = best(scores.psnr, max)
    error = best(scores.relative_error, min)
    if psnr is not None:
        near = f"{psnr:.1f} dB PSNR"
    elif error is not None:
        near = f"relative error {error:.1e}"
    elif certificate.name != "FAILED" and scores.labels_found:
        return f"{scores.labels_found:.0%} of the labels and no input recovered"
    else:
        return "nothing recovered"
    identical = sum(map(bool, values(scores.exact)))
    if identical:
        return f"{identical} of {len(scores.matched)} records bit for bit ({near})"
    return f"reconstructed at {near}"


def values(column: MaybeColumn) -> Sequence[float | None]:
    """Return one value an image.

    Args:
        column: A column of scores, None or absent if it was not measured.

    Returns:
        The values, none if it was not measured.
    """
    if column is None or isinstance(column, UnsetType):
        return ()
    return column.per_image


def best(column: MaybeColumn, pick: Callable[[list[float]], float]) -> float | None:
    """Return the best value of one metric over all images.

    Args:
        column: As in `values`.
        pick: ``max`` or ``min``.

    Returns:
        The value, None if none was measured.
    """
    measured = [float(value) for value in values(column) if value is not None]
    if not measured:
        return None
    return pick(measured)


def is_identical(scores: Scores | None) -> bool:
    """Tell whether a record was given away bit for bit.

    Args:
        scores: Of a finding.

    Returns:
        Whether one of the images is identical.
    """
    return scores is not None and any(values(scores.exact))


def reconstructed(one: NodeBest | None, adversary: str, attack: str) -> str:
    """Say what an attack of a gate recovered of one record.

    Args:
        one: The record that was recovered best, None if there is none.
        adversary: Who hears.
        attack: What attacked.

    Returns:
        What leaked, from whom and to whom.
    """
    if one is None:
        return f"{adversary} reconstructs nothing by {attack}"
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
    rounds = f"rounds {one.first} to {one.last}"
    if one.first == one.last:
        rounds = f"round {one.first}"
    said = f"{adversary} reconstructs {what} of node {one.node}{how}{near}"
    return f"{said}, by {attack} from the {one.kind}s of {rounds} (seed {one.seed})"


def untried(one: NotTried) -> str:
    """Say what the configuration of a gate leaves out.

    Args:
        one: One thing that it leaves out.

    Returns:
        For example ``check main: other nodes than 5, 6``.
    """
    if not isinstance(one.attack, UnsetType):
        return f"attack {one.attack}"
    if not isinstance(one.adversaries, UnsetType):
        return f"other adversaries than {', '.join(one.adversaries)}"
    if not isinstance(one.nodes, UnsetType):
        return f"check {one.check}: other nodes than {', '.join(map(str, one.nodes))}"
    return f"check {one.check}: more than {given(one.gradients, 0)} gradients"


def rule_outcome(rule: RuleEntry, cell: CellEntry | None, pitfall: str | None) -> str:
    """Say what a rule of a gate found, from its figures; less than the gate itself says.

    Args:
        rule: The rule.
        cell: Its cell, None if it has none.
        pitfall: Name of the pitfall that it is about, None for none.

    Returns:
        A part of a sentence that names no node but the cell's worst one.
    """
    if pitfall is not None:
        return pitfall
    parts = []
    if rule.value is not None:
        parts.append(f"{rule.measure} {_figure(rule.value)}".strip())
    if rule.limit is not None:
        parts.append(f"at most {_figure(rule.limit)}")
    if rule.p is not None:
        parts.append(f"p = {_figure(rule.p)}")
    said = ", ".join(parts) or STATUS_WORDS[rule.status]
    if rule.status in _LEAKED and cell and cell.says:
        return f"{said}: {cell.says}"
    return said


def _figure(value: Extended) -> str:
    number = decoded(value)
    return "-" if number is None else f"{number:.4g}"


# ---------------------------------------------------------------------------------------------
# Tables and lists
# ---------------------------------------------------------------------------------------------


def table(findings: Sequence[Finding]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Return findings as a table.

    Args:
        findings: One a row.

    Returns:
        Headings, and one row of cells for each finding; a column that no finding fills is left
        out. Cells are cleaned, not escaped.
    """
    rows = [dict(zip(HEADINGS, _cells(one), strict=True)) for one in findings]
    used = []
    for heading in HEADINGS:
        if heading in _ALWAYS or any(row[heading] != "-" for row in rows):
            used.append(heading)
    return tuple(used), [tuple(clean(row[heading]) for heading in used) for row in rows]


def by_reason(entries: Iterable[tuple[int, str]]) -> list[str]:
    """Put nodes of which the same is said together.

    Args:
        entries: Node and reason; an empty reason is left out.

    Returns:
        ``nodes 0, 3: reason`` for every reason, each once; cleaned, not escaped.
    """
    nodes: dict[str, list[int]] = {}
    for node, reason in entries:
        if reason:
            nodes.setdefault(clean(reason), []).append(node)
    said = []
    for reason, who in nodes.items():
        plural = "s" * (len(who) > 1)
        said.append(f"node{plural} {', '.join(map(str, who))}: {reason}")
    return said


def notes(findings: Iterable[Finding]) -> list[str]:
    """Return the notes of findings, nodes with the same note together.

    Args:
        findings: Some findings.

    Returns:
        As `by_reason`.
    """
    return by_reason((one.node, one.note) for one in findings)


def not_determined(entries: Iterable[Undetermined]) -> list[str]:
    """Return why nothing is determined of nodes, those with the same reason together.

    Args:
        entries: The nodes.

    Returns:
        As `by_reason`.
    """
    return by_reason((one.node, one.reason) for one in entries)


def scopes(findings: Iterable[Finding]) -> list[str]:
    """Say, nodes together, on what part of what is heard their leaks rest.

    Args:
        findings: Some findings.

    Returns:
        As `by_reason`.
    """
    return by_reason((one.node, given(one.leak.scope, "")) for one in findings)


def provenance(record: RunRecord) -> list[tuple[str, str]]:
    """Return everything that is needed to repeat a run.

    Args:
        record: Of the run.

    Returns:
        Name and value, cleaned, not escaped.
    """
    source, trace = record.provenance, record.trace
    versions = []
    for name, version in source.versions.items():
        versions.append(f"{name} {version or 'absent'}")
    said = {
        "protocol": (
            f"{trace.protocol}, {trace.nodes} nodes, {trace.edges} edges, {trace.rounds} rounds"
        ),
        "data": f"{trace.data or 'not named'}, shape {trace.shape}, model {trace.model}",
        "command": source.command,
        "started": source.started,
        "wall time": f"{source.seconds:.1f} s",
        "versions": ", ".join(versions),
        "torchvision": "shimmed (operators declared, not compiled)" if source.shimmed else "",
        "seeds": ", ".join(f"{name} {seed}" for name, seed in source.seeds.items()),
        "device": (
            f"{source.device}, {source.threads} thread{'s' * (source.threads != 1)}, "
            f"{source.platform}"
        ),
        "trace": (f"id {source.trace.id or 'none'}, sha256 {source.trace.sha256 or 'not taken'}"),
        "truth": _truth(record),
        "configuration": f"sha256 {source.digest}",
    }
    for name, text in record.metrics.items():
        said[f"metric {name}"] = text
    return [(clean(name), clean(value)) for name, value in said.items() if value]


def _truth(record: RunRecord) -> str:
    sha256 = record.provenance.truth.sha256
    if sha256:
        return f"sha256 {sha256}"
    if isinstance(record, AuditRecord | CheckRecord):
        return "recorded with each run, and not kept"
    return "no truth file: not scored"


def refused(counts: Mapping[str, Json]) -> str:
    """Say of how many nodes an attack gave nothing.

    Args:
        counts: A point of a curve or of a sweep, as JSON values.

    Returns:
        As `refusal`.
    """
    return refusal(counts.get("attacked"), counts.get("refused"))


def refusal(attacked: int | None, refused: int | None) -> str:
    """Say of how many nodes an attack gave nothing.

    Args:
        attacked: Nodes, once a run.
        refused: Those that gave nothing; None for a record of version 1, which did not count them.

    Returns:
        A cell of a table.
    """
    if refused is None:
        return "-"
    return f"{refused} of {attacked}"


def point_of(epsilon: Extended) -> str:
    """Say which point of an audit's grid an entry belongs to.

    Args:
        epsilon: Of the point.

    Returns:
        For example ``epsilon 10``.
    """
    if epsilon is None:
        return "as configured"
    if epsilon == "inf":
        return "no noise (epsilon inf)"
    return f"epsilon {epsilon:g}"


def cell_of(finding: Finding) -> str:
    """Say which point of an audit's grid, and which run at it, a finding belongs to.

    Args:
        finding: One finding.

    Returns:
        For example ``epsilon 10, seed 0``; "" for a finding that is not an audit's.
    """
    cell = given(finding.cell, None)
    if cell is None:
        return ""
    return f"{point_of(cell.epsilon)}, seed {cell.seed}"


def _epsilon(epsilon: Extended) -> str:
    """As `leakaudit.auditing.record.words`."""
    if epsilon is None:
        return "as configured"
    if epsilon == "inf":
        return "inf"
    return f"{epsilon:.4g}".replace("e+0", "e").replace("e+", "e")


def _cells(finding: Finding) -> tuple[str, ...]:
    """One cell a heading, "-" where it does not apply."""
    scores = finding.scores or NO_SCORES
    rounds = finding.leak.rounds
    span = f"{rounds.first}-{rounds.last}"
    if rounds.first == rounds.last:
        span = str(rounds.first)
    error = "-"
    if not isinstance(scores.psnr, NumberColumn):
        error = spread(scores.relative_error, "{:.1e}")
    return (
        str(finding.node),
        finding.attack,
        f"{finding.leak.kind} {span}",
        finding.certificate.name.lower(),
        spread(scores.psnr, "{:.1f}"),
        spread(scores.ssim, "{:.3f}"),
        spread(scores.lpips, "{:.3f}"),
        error,
        _share(scores.exact),
        _labels(finding, scores),
        _identified(scores),
        f"{finding.seconds:.2f}",
    )


def spread(column: MaybeColumn, form: str) -> str:
    """Return a metric as a cell of a table.

    Args:
        column: A `NumberColumn`; anything else was not measured.
        form: How a number is written.

    Returns:
        The one value, or the median and the range of several that differ as they are printed;
        missed records count as blind guesses.
    """
    if not isinstance(column, NumberColumn):
        return "-"
    found = [value for value in column.per_image if value is not None]
    if not found:
        return "-"
    found += given(column.missed, ())
    if len({form.format(value) for value in found}) == 1:
        return form.format(found[0])
    middle = form.format(column.median)
    return f"{middle} ({form.format(min(found))} to {form.format(max(found))})"


def _share(column: MaybeColumn) -> str:
    if not isinstance(column, FlagColumn):
        return "-"
    found = column.per_image
    if len(found) != 1:
        return f"{sum(map(bool, found))} of {len(found)}"
    return "yes" if found[0] else "no"


def _labels(finding: Finding, scores: Scores) -> str:
    if finding.labels is None:
        return "-"
    correct = _share(scores.label_correct)
    if correct != "-" and len(finding.labels) > 1:
        return f"{correct} right"
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
