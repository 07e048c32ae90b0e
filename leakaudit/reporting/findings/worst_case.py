"""The worst case of an attack in two plain sentences, which stand first in every report."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING

from msgspec import UnsetType

from leakaudit._util.plural import capital, counted, named
from leakaudit.core.errors import LeakauditError
from leakaudit.core.evidence import Origin
from leakaudit.reporting.findings.measured import (
    Record,
    best,
    harm,
    identifies,
    of_record,
    record_keys,
    shows_record,
    values,
)
from leakaudit.reporting.results.model import (
    NO_SCORES,
    AttackRecord,
    Finding,
    NumberColumn,
    RunRecord,
    Scores,
    Undetermined,
    given,
)
from leakaudit.reporting.results.record_file import NOT_COMPARED

if TYPE_CHECKING:
    from leakaudit.core.adversary import Adversary

# PSNR in dB from which the content of a natural image is recognisable, and from which an image is
# close to the original; rules of thumb that the glossary states as well.
RECOGNISABLE = 20.0
CLOSE = 30.0
# Relative error up to which a certified record counts as right if the data has no grid on which it
# could be compared bit for bit.
ROUNDING = 1e-3
# Relative error from which a record does not count as reconstructed: that of 20 dB, as for images.
FAR = 0.1
FEW_TOKENS = 0.1  # share of the tokens below which a text does not count as reconstructed
CHANNELS = 2  # most channels that a sentence lists
CURIOUS = 4  # most curious nodes that a sentence lists
ALTERED = "Either the program changes records before it uses them (augmentation)"
# What `gradient_values.sum_leak` assumes.
EQUAL_SHARES = "if all of these nodes hold equally many records and count equally"
FAILURE = "A failed attack is not evidence of privacy."


# What evidence is about, in words.
DECLARED = {
    "samples": "number of records",
    "shape": "shape of a record",
    "gradients": "model, loss or optimiser",
}
# What certificates assume if their inputs could not be computed again.
AS_SENT = "if the messages contain what the recording declares"


class WorstOutcome(Enum):
    """What the worst case is; the value is its badge."""

    EXACT = "Leak"
    INTERVAL = "Leak within intervals"
    CONTRADICTED = "Inconclusive"
    CLOSE = "Close reconstruction"
    RECOGNISABLE = "Partly recovered"
    IDENTIFIED = "Identified"
    LABELS = "Labels learned"
    TOKENS = "Tokens learned"
    FITS = "Not verified"
    UNUSED = "Leak not attacked"
    NOT_UNDERSTOOD = "Not understood"
    NOTHING = "Nothing recovered"
    NOT_DETERMINED = "Nothing determined"
    NOT_EXAMINED = "Nothing examined"


# Those in which inputs can be seen.
RECOVERED = frozenset(
    {WorstOutcome.EXACT, WorstOutcome.INTERVAL, WorstOutcome.CLOSE, WorstOutcome.RECOGNISABLE}
)


@dataclass(frozen=True)
class WorstCase:
    """The worst case of an attack."""

    says: str  # what was recovered from whom and by whom: one sentence
    certainty: str  # how certain this is: one or two sentences
    outcome: WorstOutcome  # the kind of the worst case
    finding: Finding | None = None  # the finding that shows it best, None if there is none
    proven: bool = False  # whether the attack was certain without access to the truth


@dataclass(frozen=True)
class _Tally:
    """How many records findings are about, and how many were recovered exactly."""

    records: int | None = 0  # number of true records, None if it is not known
    exact: int = 0  # number of records that were recovered exactly
    proven: int = 0  # how many of these the attack certified
    wrong: int = 0  # number of certified records that differ from the originals
    least: bool = False  # whether more records may be exact

    def __add__(self, other: _Tally) -> _Tally:
        """Count other records as well."""
        records = None
        if self.records is not None and other.records is not None:
            records = self.records + other.records
        return _Tally(
            records,
            self.exact + other.exact,
            self.proven + other.proven,
            self.wrong + other.wrong,
            self.least or other.least,
        )


def worst_case(
    findings: Sequence[Finding],
    undetermined: Sequence[Undetermined],
    shape: Sequence[int],
) -> WorstCase:
    """Describe the worst case."""
    if not findings:
        return _nothing_determined(undetermined)
    noun = _noun(findings, shape)
    exact = _exact(findings, noun)
    if exact is not None:
        return exact
    intervals = [one for one in findings if _is_within_intervals(one)]
    if intervals:
        top = max(intervals, key=harm)
        return WorstCase(
            f"{who(top.adversary)} recovered training data of {named(top.nodes)} to within narrow "
            "intervals.",
            _certain_intervals(intervals) + _not_as_declared(intervals),
            WorstOutcome.INTERVAL,
            top,
            proven=True,
        )
    case = _best_approximation(findings, noun)
    unknown = {one.node for one in undetermined if one.understood is False}
    if unknown and case.outcome is WorstOutcome.NOTHING:
        more = f"The messages about {counted(len(unknown), 'other node')} are not understood."
        return replace(
            case, certainty=f"{case.certainty} {more}", outcome=WorstOutcome.NOT_UNDERSTOOD
        )
    return case


def _best_approximation(findings: Sequence[Finding], noun: str) -> WorstCase:
    """The worst case if nothing is exact: of the closest input, or else of labels or tokens."""
    top = max(findings, key=harm)
    if top.attack == "none":
        return WorstCase(
            f"What {whom(top.adversary)} observes determines gradients of "
            f"{named(top.nodes)}, but no available attack can use them.",
            FAILURE,
            WorstOutcome.UNUSED,
            top,
        )
    if top.scores is None:
        return _unscored(top, noun)
    case = _approximate(top, top.scores, noun)
    if case.outcome is not WorstOutcome.NOTHING:
        return case
    # Another attack may have found labels or tokens.
    for one in sorted(findings, key=_learned, reverse=True):
        if one.scores is not None:
            other = _without_inputs(one, one.scores, noun)
            if other.outcome is not WorstOutcome.NOTHING:
                return other
    return case


def _learned(finding: Finding) -> float:
    scores = finding.scores
    return 0.0 if scores is None else float(scores.labels_found or 0.0)


def _is_within_intervals(finding: Finding) -> bool:
    if finding.certificate.name != "INTERVAL" or not _returned(finding):
        return False
    if finding.scores is None:
        return True
    error = best(finding.scores.relative_error, min)
    psnr = best(finding.scores.psnr, max)
    if psnr is not None:
        return psnr >= RECOGNISABLE and shows_record(finding.scores)
    return error is None or error <= FAR


def who(adversary: str) -> str:
    """Describe an adversary at the start of a sentence, such as ``An eavesdropper``."""
    one = parsed(adversary)
    if one is None:
        return f'The adversary "{adversary}"'
    parts = []
    if one.hears == "all":
        parts.append("An eavesdropper")
    elif isinstance(one.hears, frozenset):
        channels = [f"{a}-{b}" for a, b in sorted(one.hears)]
        if len(channels) <= CHANNELS:
            plural = "s" * (len(channels) > 1)
            parts.append(f"An eavesdropper on channel{plural} {' and '.join(channels)}")
        else:
            parts.append(f"An eavesdropper on {len(channels)} channels")
    curious = sorted(one.corrupt)
    if len(curious) == 1:
        parts.append(f"Curious node {curious[0]}")
    elif len(curious) > CURIOUS:
        parts.append(f"{len(curious)} curious nodes together")
    elif curious:
        names = ", ".join(map(str, curious[:-1]))
        parts.append(f"Curious nodes {names} and {curious[-1]} together")
    if not parts:
        return "Nobody"
    return " with ".join([parts[0], *map(_lower, parts[1:])])


def whom(adversary: str) -> str:
    """Describe an adversary inside a sentence."""
    return _lower(who(adversary))


def is_outsider(adversary: str) -> bool:
    """Return whether an adversary only taps channels, so that encryption would stop it."""
    one = parsed(adversary)
    return one is not None and not one.corrupt


def tally(findings: Iterable[Finding]) -> tuple[int, int | None]:
    """Count the records that were recovered exactly."""
    counts = _together(_best_of_nodes(findings))
    return counts.exact, counts.records


def parsed(adversary: str) -> Adversary | None:
    """Return the adversary, None if the text does not describe one."""
    from leakaudit.core.adversary import (
        Adversary,  # with torch, which a list of records does without
    )

    try:
        return Adversary.parse(adversary)
    except (LeakauditError, ValueError):
        return None


def _exact(findings: Sequence[Finding], noun: str) -> WorstCase | None:
    per_adversary: dict[str, list[Finding]] = {}
    for one in findings:
        per_adversary.setdefault(one.adversary, []).append(one)
    # The adversary that recovers most; the first of equals, which is the one that was named first.
    adversary = max(per_adversary, key=lambda name: tally(per_adversary[name])[0])
    chosen = _best_of_nodes(per_adversary[adversary])
    counts = _together(chosen)
    if not counts.exact:
        return _contradicted(findings)
    owners: set[int] = set()
    for finding in chosen:
        owners.update(finding.nodes)
    showing = [finding for finding in chosen if _tally(finding).exact]
    top = max(showing, key=harm)
    scored = all(finding.scores is not None for finding in showing)
    whose = named(sorted(owners))
    if scored:
        what = f"{_share_of(counts.exact, counts.records, noun, whose)} exactly"
    else:
        what = _shown_by_messages(chosen, counts, noun, whose)
    summed = any(len(finding.nodes) > 1 and _tally(finding).proven for finding in chosen)
    premises = [EQUAL_SHARES] * summed
    if not scored and not _recomputed(showing):
        premises.append(AS_SENT)
    certainty = _how_certain(counts, premises, scored=scored)
    certainty += _not_as_declared(chosen)
    if sum(len(finding.nodes) for finding in chosen) > len(owners):
        certainty += (
            " Only sums over nodes are known; what is in two of them belongs to a node in both."
        )
    elif len(top.nodes) > 1:
        certainty += (
            f" Only a sum over nodes is known, so it is open which {noun} belongs to which node."
        )
    return WorstCase(
        f"{who(adversary)} recovered {what}.",
        certainty,
        WorstOutcome.EXACT,
        top,
        proven=counts.proven == counts.exact and not counts.wrong,
    )


def conclusive(record: AttackRecord) -> bool:
    """Whether an attack decides anything.

    It does not if the recording is not what it declares, the truth refutes every certificate, or no
    node was examined; nor if nothing shows what the messages contain: no true gradient, certificate
    or truth.
    """
    examined = bool(record.findings or record.undetermined)
    scored = given(record.provenance.truth.path, None) is not None
    shown = scored or NOT_COMPARED not in given(record.unverified, ())
    return examined and shown and not given(record.unclear, ()) and not refuted(record)


def refuted(record: RunRecord) -> str:
    """Return why an attack concludes nothing: the truth refutes its certificates; else empty."""
    if any(_tally(finding).exact for finding in record.findings):
        return ""
    case = _contradicted(record.findings)
    return "" if case is None else f"{case.says} {case.certainty}"


def _contradicted(findings: Sequence[Finding]) -> WorstCase | None:
    wrong = [(finding, _tally(finding).wrong) for finding in findings]
    count = sum(one for _, one in wrong)
    if not count:
        return None
    top = max((finding for finding, one in wrong if one), key=harm)
    return WorstCase(
        f"{who(top.adversary)} obtained {counted(count, 'result')} that the attack proves to be "
        "exact, but none of them equals its original.",
        f"{ALTERED}, the truth is that of another run, or the attack is wrong: nothing can be "
        "concluded before this is settled.",
        WorstOutcome.CONTRADICTED,
        top,
    )


def _share_of(exact: int, total: int | None, noun: str, owners: str, kind: str = "training") -> str:
    if total is None:
        return f"{counted(exact, f'{kind} {noun}')} of {owners}"
    if total == 1:
        return f"the {kind} {noun} of {owners}"
    if exact == total:
        every = "both" if total == 2 else f"all {total}"
        return f"{every} {kind} {noun}s of {owners}"
    return f"{exact} of the {total} {kind} {noun}s of {owners}"


def _shown_by_messages(chosen: Sequence[Finding], counts: _Tally, noun: str, owners: str) -> str:
    """Say how many inputs were recovered exactly without a truth, by what the messages show.

    A description says how many records there are, but only the messages show which were used.
    """
    verified = all(_origin(one, "samples") == Origin.VERIFIED.name for one in chosen)
    if verified and counts.records is not None:
        return f"{_share_of(counts.exact, counts.records, noun, owners, 'input')} exactly"
    kinds = {finding.leak.kind for finding in chosen}
    kind = kinds.pop() if len(kinds) == 1 else "combination"
    determined = sum(finding.leak.rows for finding in chosen)
    explained = sum(map(_explained, chosen))
    # Nodes may hold equal records; a certificate tells apart only those of one gradient.
    different = "different " * (len({finding.nodes for finding in chosen}) == 1)
    inputs = counted(counts.exact, f"{different}input {noun}")
    return (
        f"{'at least ' * counts.least}{inputs} exactly, from {explained} of "
        f"{counted(determined, f'determined {kind}')} of {owners}"
    )


def _explained(finding: Finding) -> int:
    certified = _tally(finding).proven
    if not certified:
        return 0
    rounds = given(finding.rounds, ())
    if not rounds:
        return finding.leak.rows
    return len({each for some in rounds[:certified] for each in some})


def _not_as_declared(findings: Sequence[Finding]) -> str:
    for finding in findings:
        for one in given(finding.evidence, ()):
            if one.origin == Origin.CONTRADICTED.name:
                what = DECLARED.get(one.subject, one.subject)
                return f" The {what} is not as declared: {one.detail}."
    return ""


def _recomputed(findings: Iterable[Finding]) -> bool:
    """Return whether all messages were compared with gradients of what was recovered from them."""
    return all(_origin(one, "gradients") == Origin.VERIFIED.name for one in findings)


def _origin(finding: Finding, subject: str) -> str:
    """Return where something that a finding rests on comes from: the name of an `Origin`."""
    for one in given(finding.evidence, ()):
        if one.subject == subject:
            return one.origin
    return Origin.UNKNOWN.name


def _certain_intervals(findings: Sequence[Finding]) -> str:
    if all(one.scores is not None for one in findings) or _recomputed(findings):
        return "The intervals are certain without seeing the originals."
    return f"{AS_SENT.capitalize()}, the intervals are certain without seeing the originals."


def _how_certain(counts: _Tally, premises: Sequence[str], *, scored: bool) -> str:
    """Say how certain exact results are, given what they assume."""
    premise = "".join(f"{one}, " for one in premises)
    if counts.wrong:
        wrong = counted(counts.wrong, "other result")
        return (
            "This was found by comparison with the originals. The attack also proves "
            f"{wrong} to be exact that differ from the originals. "
            f"{ALTERED}, the truth is that of another run, or the attack is wrong."
        )
    if counts.proven == counts.exact:
        said = capital(f"{premise}this is certain without seeing the originals")
        if scored:
            return f"{said}, and a comparison with them agrees."
        return (
            f"{said}: the network received exactly these inputs. There was no truth that shows "
            "whether they are records as stored."
        )
    if counts.proven:
        return capital(
            f"{premise}{counts.proven} of these results are certain without seeing the "
            "originals; the others were confirmed by comparison with them."
        )
    return (
        "A comparison with the originals shows this; without them, the attack could not have been "
        "certain."
    )


def _best_of_nodes(findings: Iterable[Finding]) -> list[Finding]:
    chosen: dict[tuple[int, ...], Finding] = {}
    for finding in findings:
        before = chosen.setdefault(finding.nodes, finding)
        if _exact_then_harm(finding) > _exact_then_harm(before):
            chosen[finding.nodes] = finding
    return list(chosen.values())


def _exact_then_harm(finding: Finding) -> tuple[float, ...]:
    return _tally(finding).exact, *harm(finding)


def _together(findings: Sequence[Finding]) -> _Tally:
    """Count the records of several findings; one that several sums contain counts once.

    Without a truth, results of sums with common nodes may be the same record: only the larger sum
    counts.
    """
    found = _compared([one for one in findings if one.scores is not None])
    covered: set[int] = set()
    unseen = [one for one in findings if one.scores is None]
    for finding in sorted(unseen, key=lambda one: _tally(one).exact, reverse=True):
        tallied = _tally(finding)
        if not covered.isdisjoint(finding.nodes):
            tallied = _Tally(None, least=tallied.exact > 0)
        covered.update(finding.nodes)
        found += tallied
    return found


def _tally(finding: Finding) -> _Tally:
    if finding.scores is not None:
        return _compared([finding])
    certified = _certified(finding)
    return _Tally(finding.batch, certified, certified)


def _certified(finding: Finding) -> int:
    certified = 0
    if finding.certificate.name == "EXACT":
        certified = finding.batch or 1
    return given(finding.certified, certified)


def _compared(findings: Sequence[Finding]) -> _Tally:
    """Count the records of findings that were compared with a truth, which names them."""
    every: set[Record] = set()
    exact: set[Record] = set()
    proven: set[Record] = set()
    wrong: set[Record] = set()
    for finding in findings:
        scores = finding.scores or NO_SCORES
        certified = _certified(finding)
        keys = record_keys(scores, finding.node)
        every.update(keys)
        for record, (key, row) in enumerate(zip(keys, scores.matched, strict=True)):
            if row is None:
                continue
            is_certified = row < certified
            is_exact = bool(of_record(scores.exact, record))
            if is_certified and not values(scores.exact):
                error = of_record(scores.relative_error, record)
                is_exact = error is not None and error <= ROUNDING
            if is_exact:
                exact.add(key)
            if is_certified and is_exact:
                proven.add(key)
            elif is_certified:
                wrong.add(key)
    return _Tally(len(every), len(exact), len(proven), len(wrong))


def _approximate(top: Finding, scores: Scores, noun: str) -> WorstCase:
    someone = who(top.adversary)
    owners = named(top.nodes)
    psnr = best(scores.psnr, max)
    tokens = best(scores.tokens_correct, max)
    error = best(scores.relative_error, min)
    if psnr is not None:
        near = f"{psnr:.1f} dB PSNR"
        outcome = WorstOutcome.CLOSE if psnr >= CLOSE else WorstOutcome.RECOGNISABLE
        meaning = "close to the original" if psnr >= CLOSE else "recognisable"
        reached = psnr >= RECOGNISABLE and shows_record(scores)
        says = (
            f"{someone} reconstructed a training image of {owners} with {near}, which is {meaning}."
        )
        missed = "recovered no recognisable training image"
        if psnr >= RECOGNISABLE and not reached:
            missed = "recovered no training image more closely than a guess without any leak"
            near += f", a blind guess {scores.blind_psnr:.1f} dB"
    elif tokens is not None:
        near = f"{tokens:.0%} of its tokens"
        outcome = WorstOutcome.RECOGNISABLE
        reached = tokens >= FEW_TOKENS
        says = f"{someone} reconstructed a training text of {owners} with {near}."
        missed = "recovered no training text"
    elif error is not None:
        near = f"a relative error of {error:.2g}"
        outcome = WorstOutcome.RECOGNISABLE
        reached = error <= FAR
        says = f"{someone} reconstructed a training {noun} of {owners} with {near}."
        missed = f"recovered no training {noun}"
    else:
        return _without_inputs(top, scores, noun)
    identified = identifies(scores)
    if not reached:
        says = f"{someone} {missed}; the closest one, of {owners}, has {near}."
        outcome = WorstOutcome.IDENTIFIED if identified else WorstOutcome.NOTHING
    certainty = "This was measured by comparison with the originals."
    if top.certificate.name == "FAILED":
        certainty += " By its own judgement, the attack failed."
    elif reached:
        certainty += " Without them, the attack could not have known how close it came."
    if identified:
        certainty += " The result identifies the record among all records of the data."
    elif not reached:
        certainty += f" {FAILURE}"
    return WorstCase(says, certainty, outcome, top)


def _without_inputs(top: Finding, scores: Scores, noun: str) -> WorstCase:
    """The worst case if no input was recovered, but perhaps labels or tokens."""
    someone = who(top.adversary)
    owners = named(top.nodes)
    compared = "This was measured by comparison with the truth."
    if top.certificate.name != "FAILED" and scores.labels_found:
        return WorstCase(
            f"{someone} learned {scores.labels_found:.0%} of the labels of {owners}, "
            f"but recovered no training {noun}.",
            compared,
            WorstOutcome.LABELS,
            top,
        )
    if not isinstance(scores.tokens_found, UnsetType) and scores.tokens_found:
        wrong = "none of them wrong"
        if scores.tokens_wrong:
            wrong = f"and {counted(scores.tokens_wrong, 'token')} that do not occur"
        return WorstCase(
            f"{someone} learned which tokens occur in the training texts of {owners}: "
            f"{scores.tokens_found:.0%} of them, {wrong}.",
            compared,
            WorstOutcome.TOKENS,
            top,
        )
    says = f"{someone} recovered no training {noun} of {owners}."
    return WorstCase(says, FAILURE, WorstOutcome.NOTHING, top)


def _unscored(top: Finding, noun: str) -> WorstCase:
    someone = who(top.adversary)
    if top.certificate.name == "FAILED":
        says = f"{someone} recovered nothing that explains what {named(top.nodes)} sent."
        return WorstCase(says, FAILURE, WorstOutcome.NOTHING, top)
    return WorstCase(
        f"{someone} computed possible inputs of {named(top.nodes)}, of which none is proven.",
        f"Whether these are training {noun}s is not known: they may not explain what was sent, or "
        "others explain it as well, and there was no truth file to compare with.",
        WorstOutcome.FITS,
        top,
    )


def _nothing_determined(undetermined: Sequence[Undetermined]) -> WorstCase:
    unknown = {one.node for one in undetermined if one.understood is False}
    if unknown:
        return WorstCase(
            f"The messages about {counted(len(unknown), 'node')} are not understood, so it is not "
            "known what they reveal.",
            "They are not those that the declared protocol sends, or its description does not say "
            "how they depend on data; nothing can be concluded.",
            WorstOutcome.NOT_UNDERSTOOD,
        )
    nodes = {one.node for one in undetermined}
    if not nodes:
        return WorstCase(
            "Nothing was examined.",
            "No attack was made, so nothing follows for privacy.",
            WorstOutcome.NOT_EXAMINED,
        )
    return WorstCase(
        f"What was observed determines no gradient of the {counted(len(nodes), 'node')} examined.",
        "This holds for the adversaries and rounds that were tried, and is not evidence of "
        "privacy.",
        WorstOutcome.NOT_DETERMINED,
    )


def _returned(finding: Finding) -> bool:
    scores = finding.scores
    return scores is None or scores.not_recovered < len(scores.matched)


def _noun(findings: Sequence[Finding], shape: Sequence[int]) -> str:
    if len(shape) == 3 and shape[0] in (1, 3):
        return "image"
    for one in findings:
        if one.scores is not None and isinstance(one.scores.tokens_correct, NumberColumn):
            return "text"
    return "record"


def _lower(text: str) -> str:
    return f"{text[:1].lower()}{text[1:]}"
