"""The record of a run as types: the content of results.json.

Attack, audit, check and sweep each have a tagged type. The types define the schema: msgspec
converts JSON values to them and rejects what does not fit, `leakaudit._util.decoding` reports the
place of an error, and ``schema.json`` beside this file is generated from them.

Two conventions apply throughout. A field that older records lack, or that only some records have,
is `UNSET` when it is absent, so that reading and writing a record preserves its keys exactly;
`given` reads such a field. Infinity is stored as the text ``inf``, because JSON has no infinity;
only `decoded` and `encoded` convert it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias, TypeVar

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from leakaudit._util import averages
from leakaudit._util.decoding import Sha256
from leakaudit._util.plain import Extended as Extended
from leakaudit._util.plain import Number as Number
from leakaudit._util.plain import decoded as decoded
from leakaudit._util.plain import encoded as encoded
from leakaudit._util.plain import is_number
from leakaudit._util.revision import Revision
from leakaudit.core import display
from leakaudit.core.display import CardDisplay
from leakaudit.core.errors import LeakauditError
from leakaudit.core.quantities import QUANTITIES, Data, Metrics, Place, Quantity, add_columns, shown
from leakaudit.core.verdict import Verdict
from leakaudit.reporting.results.audit_names import OF_VIEW

if TYPE_CHECKING:
    from pandas import DataFrame

    from leakaudit.core.trace import Json  # with torch, which a reader of records can do without

T = TypeVar("T")
K = TypeVar("K")
S = TypeVar("S", bound=Struct)

SCHEMA: Literal["leakaudit.results"] = "leakaudit.results"
VERSION: Literal[2] = 2

# Any JSON value: settings and constants are defined by the program that was run, not by the schema.
Free: TypeAlias = object

# "(?!\n)$": in Python, "$" also matches before a final line break. In a JSON schema, the look-ahead
# has no effect.
FileName: TypeAlias = Annotated[
    str,
    Meta(
        pattern=r"^[A-Za-z0-9_-][A-Za-z0-9._-]*(?!\n)$",
        description="a file name without a folder",
    ),
]
Count: TypeAlias = Annotated[
    int, Meta(ge=0, lt=1 << 31, description="a whole number from 0 to 2147483647")
]
Time: TypeAlias = Annotated[
    str,
    Meta(
        pattern=(
            r"^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}"
            r"(\.[0-9]+)?\+00:00(?!\n)$"
        ),
        description="a time in UTC, such as 2030-01-31T12:00:00+00:00",
    ),
]

OriginName: TypeAlias = Literal[
    "ASSUMED", "CONTRADICTED", "DECLARED", "STATED", "UNKNOWN", "VERIFIED"
]
CertificateName: TypeAlias = Literal["APPROXIMATE", "EXACT", "FAILED", "INTERVAL"]
VerdictName: TypeAlias = Literal[
    "INCONCLUSIVE", "NOT_REFUTED", "REFUTED", "UNCLAIMED", "UNSUPPORTED"
]
VERDICT_NAMES: dict[Verdict, VerdictName] = {
    Verdict.REFUTED: "REFUTED",
    Verdict.NOT_REFUTED: "NOT_REFUTED",
    Verdict.UNSUPPORTED: "UNSUPPORTED",
    Verdict.INCONCLUSIVE: "INCONCLUSIVE",
    Verdict.UNCLAIMED: "UNCLAIMED",
}
ExitCode: TypeAlias = Literal[0, 1, 3]
GateVerdict: TypeAlias = Literal["cannot tell", "leak", "pass"]
AcceptanceState: TypeAlias = Literal["expired", "unused", "used"]


class RuleKind(StrEnum):
    """What a rule of a gate tests."""

    BUDGET = "budget"
    BASELINE = "baseline"
    LINT = "lint"
    RECORDING = "recording"
    ATTACKED = "attacked"
    POSITIVE = "positive"
    NEGATIVE = "negative"


class RuleStatus(StrEnum):
    """The outcome of a rule of a gate; `wording.OUTCOMES` defines their meanings."""

    OK = "OK"
    OVER = "OVER"
    REGRESSION = "REGRESSION"
    CONTRADICTED = "CONTRADICTED"
    ACCEPTED = "ACCEPTED"
    WARNING = "WARNING"
    INCONCLUSIVE = "INCONCLUSIVE"
    TOO_FEW_SEEDS = "TOO_FEW_SEEDS"
    NOT_COMPARABLE = "NOT_COMPARABLE"
    VOID = "VOID"
    UNTESTED = "UNTESTED"


class _Entry(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A part of a record in which every field is defined."""


class _Open(Struct, frozen=True, kw_only=True):
    """A part of a record that may contain further entries, which are not read."""


# ---------------------------------------------------------------------------------------------
# Scores
# ---------------------------------------------------------------------------------------------


class _Column(_Entry, frozen=True, kw_only=True):
    """One metric of a reconstruction."""

    # one value for each true record, None for one that was not recovered
    per_image: tuple[Number | None, ...]
    # the values with which missed records enter the statistics
    missed: tuple[Number, ...] | UnsetType = UNSET
    min: Number | None  # smallest value, including missed records; None if nothing was recovered
    median: Number | None
    mean: Number | None


class NumberColumn(_Column, frozen=True, kw_only=True):
    """One numeric metric of a reconstruction."""


class FlagColumn(_Column, frozen=True, kw_only=True):
    """One yes-or-no metric of a reconstruction.

    Attributes:
        per_image: Yes or no for each true record, None for one that was not recovered.
    """

    per_image: tuple[bool | None, ...]


Column: TypeAlias = NumberColumn | FlagColumn
RankColumn: TypeAlias = NumberColumn  # of ranks, counted from 1


class Scores(
    _Entry,
    Metrics[NumberColumn | UnsetType, FlagColumn | UnsetType, RankColumn | UnsetType],
    frozen=True,
    kw_only=True,
):
    """The quality of a reconstruction: `leakaudit.scoring.scoring.Score` as stored in the record.

    A column that was not measured is absent.

    Attributes:
        chance: Highest probability with which a blind guess identifies a record.
        blind_psnr: Largest PSNR in dB of a blind guess, the mean of all other records; absent if
            the records are no images.
        labels_found: Share of the true labels that were found.
        tokens_found: Share of the different tokens of the records in the set that was found; absent
            if no set was returned.
        tokens_wrong: Number of tokens in that set that do not occur in the records.
        not_recovered: Number of true records without a reconstruction.
        surplus: Number of reconstructions in excess of the true records.
        matched: For each true record, the row of the reconstruction; None if there is none.
        owners: For each true record, the node that owns it; absent if one node owns all.
        {quantities}
    """

    add_columns(vars(), QUANTITIES.values(), "{}Column | UnsetType", UNSET)
    chance: Number | None
    blind_psnr: Number | UnsetType = UNSET
    labels_found: Number | None
    tokens_found: Number | UnsetType = UNSET
    tokens_wrong: int | UnsetType = UNSET
    not_recovered: int
    surplus: int | UnsetType = UNSET
    matched: tuple[Count | None, ...]
    owners: tuple[Count, ...] | UnsetType = UNSET


# ---------------------------------------------------------------------------------------------
# Findings
# ---------------------------------------------------------------------------------------------


class RoundSpan(_Entry, frozen=True, kw_only=True):
    """The rounds that a leak spans.

    Attributes:
        first: First round.
        last: Last round.
        count: Number of rounds that contribute.
    """

    first: int
    last: int
    count: int


class LeakSummary(_Entry, frozen=True, kw_only=True):
    """The leak that was attacked: a combination of gradients that the adversary can compute.

    Attributes:
        kind: For example ``gradient`` or ``difference``.
        rounds: The rounds that it spans.
        rows: Number of gradients.
        formula: How it is computed, in the protocol's symbols; contains node numbers.
        scope: Which observed messages it is computed from; may contain node numbers.
        std: Largest standard deviation of its noise.
    """

    kind: str
    rounds: RoundSpan
    rows: int
    formula: str
    scope: str | UnsetType = UNSET
    std: Number | None


class CertificateEntry(_Entry, frozen=True, kw_only=True):
    """How certain an attack is without access to the truth.

    Attributes:
        name: Name of a `leakaudit.core.reconstruction.Certificate`.
        sentence: Its meaning.
    """

    name: CertificateName
    sentence: str


class EvidenceEntry(_Entry, frozen=True, kw_only=True):
    """What supports one input of a statement: a `leakaudit.core.evidence.Evidence`.

    Attributes:
        subject: The input, such as ``samples``.
        origin: Where its value comes from: a name of `leakaudit.core.evidence.Origin`.
        detail: A measured figure or a reason.
    """

    subject: str
    origin: OriginName
    detail: str


class StoredImages(_Entry, frozen=True, kw_only=True):
    """Where a reconstruction was saved.

    Attributes:
        file: An npz beside the record.
        x: Its array of inputs.
        y: Its array of labels, None if there are none.
        interval: Its array of half-widths.
        choices: Arrays of other candidates by the index of the input.
        tokens: Its array of the set of tokens that occur.
    """

    file: FileName
    x: str
    y: str | None
    interval: str | UnsetType = UNSET
    choices: dict[str, str] | UnsetType = UNSET
    tokens: str | UnsetType = UNSET


class GridPoint(_Entry, frozen=True, kw_only=True):
    """The point of an audit's grid, and the run at it, that a finding belongs to.

    Attributes:
        epsilon: None if the constants were used as configured.
        seed: Seed of the run.
    """

    epsilon: Extended
    seed: int


class Finding(_Entry, frozen=True, kw_only=True):
    """One reconstruction: what was attacked, the outcome, and its quality.

    Attributes:
        node: The node that owns the inputs.
        adversary: The adversary, in the form that `leakaudit.core.adversary.Adversary.parse` reads.
        attack: Name of the attack, ``none`` if no attack can use the leak.
        leak: The leak that was attacked.
        certificate: How certain the attack is.
        certified: Number of inputs that are certified exact.
        batch: Number of inputs.
        labels: Labels that were found, None if there are none.
        scores: None if there was no truth.
        residual: How well the reconstruction explains the leak; None if the residual is not finite.
        seconds: Time that the attack took.
        note: Remarks of the attack and of scoring, joined by semicolons.
        images: Where the reconstruction was saved.
        cell: The point of an audit's grid; absent in the record of an attack.
        others: Further nodes that own the inputs, because only a sum over all is determined;
            absent if there are none.
        rounds: For each input, the rounds whose gradients it was shown to explain; absent if the
            statements concern all rounds of the leak.
        evidence: What supports the numbers that the statements rest on; absent if nothing was
            examined.
    """

    node: int
    adversary: str
    attack: str
    leak: LeakSummary
    certificate: CertificateEntry
    certified: int | UnsetType = UNSET
    batch: Count | None
    labels: tuple[Number | None, ...] | None
    scores: Scores | None
    residual: Number | None
    seconds: Number
    note: str
    images: StoredImages | None
    cell: GridPoint | UnsetType = UNSET
    others: tuple[int, ...] | UnsetType = UNSET
    rounds: tuple[tuple[int, ...], ...] | UnsetType = UNSET
    evidence: tuple[EvidenceEntry, ...] | UnsetType = UNSET

    def __repr__(self) -> str:
        """One line, without labels."""
        return (
            f"Finding(node {self.node}, {self.adversary!r:.60}, {self.attack!r:.60},"
            f" {self.leak.kind!r:.20}, {self.certificate.name}, batch {self.batch})"
        )

    @property
    def nodes(self) -> tuple[int, ...]:
        """All nodes that own the inputs, sorted."""
        return tuple(sorted((self.node, *given(self.others, ()))))


class Undetermined(_Entry, frozen=True, kw_only=True):
    """A node about which an adversary learns no gradient.

    Attributes:
        reason: Why no gradient is determined.
        understood: False if the messages are not those that the protocol declares, so that nothing
            is known about what they determine.
    """

    node: int
    adversary: str
    reason: str
    understood: bool | UnsetType = UNSET


# ---------------------------------------------------------------------------------------------
# Where a record comes from
# ---------------------------------------------------------------------------------------------


class TraceSource(_Entry, frozen=True, kw_only=True):
    """Which recording was attacked.

    Attributes:
        id: Identifier that was given to the recording.
        sha256: SHA-256 of the file, None if it was not hashed.
        recording: Random number of the recording; records of version 1 lack it.
    """

    id: str
    sha256: Sha256 | None
    recording: str | UnsetType | None = UNSET


class TruthSource(_Entry, frozen=True, kw_only=True):
    """The truth that a record was scored with.

    Attributes:
        sha256: SHA-256 of the file, None if there was none.
        path: Path of the file.
        recording: As in `TraceSource`.
    """

    sha256: Sha256 | None
    path: str | UnsetType | None = UNSET
    recording: str | UnsetType | None = UNSET


class Rescoring(_Entry, frozen=True, kw_only=True):
    """One repetition of the scoring.

    Attributes:
        metrics: The metrics that were recomputed.
        truth: SHA-256 of the truth file.
        command: Command line.
        started: Time of the start.
    """

    metrics: tuple[str, ...]
    truth: Sha256 | None
    command: str
    started: Time


class Provenance(_Entry, frozen=True, kw_only=True):
    """Everything that is needed to reproduce a record; see `reporting.results.provenance.collect`.

    Attributes:
        versions: Versions of Python and the packages, None for a package that is absent.
        shimmed: Whether torchvision's operators were declared instead of compiled.
        seeds: Seeds by purpose.
        device: For example ``cpu``.
        threads: Number of threads of torch.
        trace: The recording.
        truth: The truth file.
        settings: Effective configuration.
        digest: SHA-256 of the settings.
        command: Command line.
        started: Time of the start.
        seconds: Wall-clock time.
        platform: Operating system.
        rescored: One entry for each time the record was scored again.
        program: The version of the audited program, absent if it is not known.
    """

    versions: dict[str, str | None]
    shimmed: bool
    seeds: dict[str, int]
    device: str
    threads: int
    trace: TraceSource
    truth: TruthSource
    settings: Mapping[str, Free]
    digest: Sha256
    command: str
    started: Time
    seconds: Number
    platform: str
    rescored: tuple[Rescoring, ...] | UnsetType = UNSET
    program: Revision | UnsetType = UNSET


class SentAt(_Entry, frozen=True, kw_only=True):
    """The line of a program that sends the messages of a kind.

    Attributes:
        kind: Kind of the messages.
        file: Path relative to the folder in which the program ran.
        line: Number of the line, from 1.
    """

    kind: str
    file: str
    line: int


class TraceSummary(_Entry, frozen=True, kw_only=True):
    """The training and the network.

    Attributes:
        protocol: Name of the victim.
        links: The edges, at most `leakaudit.reporting.findings.findings.DRAWN`.
        shape: Shape of one input.
        sent: Where the program sends its messages, if a recorder noted it.
    """

    protocol: str
    nodes: Count
    edges: Count
    links: tuple[tuple[int, ...], ...] | UnsetType = UNSET
    rounds: Count
    data: str
    model: str
    shape: tuple[int, ...]
    classes: int
    sent: tuple[SentAt, ...] | UnsetType = UNSET


class AttackAbout(_Entry, frozen=True, kw_only=True):
    """What a reader should know about an attack.

    Attributes:
        paper: Source.
        reads: The leaks that it uses.
        exact: Whether it can certify a result as exact.
    """

    paper: str
    reads: str
    cost: str
    exact: bool


# ---------------------------------------------------------------------------------------------
# Audit
# ---------------------------------------------------------------------------------------------


class PromiseEntry(_Entry, frozen=True, kw_only=True):
    """The guarantee that was tested.

    Attributes:
        name: For example ``the view bound of one record``.
        epsilon: Epsilon of the guarantee.
        delta: Delta of the guarantee.
        mu: Parameter of a Gaussian guarantee, None for any other.
    """

    name: str
    epsilon: Extended
    delta: Number
    mu: Number | None

    @property
    def of_view(self) -> bool:
        """Whether it is a bound on the view, and not a claim."""
        return self.mu is not None or self.name == OF_VIEW


class VerdictEntry(_Entry, frozen=True, kw_only=True):
    """The result of one test of an audit.

    Attributes:
        epsilon: Point of the grid.
        node: The node that owns the tested records.
        attack: The attack or method that guessed.
        promise: The guarantee that was tested, None if there is none.
        verdict: Name of a `leakaudit.core.verdict.Verdict`.
        says: The reason.
        power: What the test would have detected.
        p: The p-value, None if nothing was counted.
        level: Significance level of the test.
        needs: Number of trials that would suffice.
        figures: What was counted or computed; `number` returns one of them.
    """

    epsilon: Extended
    adversary: str
    node: int
    test: str
    attack: str
    promise: PromiseEntry | None
    verdict: VerdictName
    says: str
    power: str
    p: Number | None
    level: Number | None
    needs: int | None
    figures: Mapping[str, Free]

    def __repr__(self) -> str:
        """One line: what was tested and the verdict."""
        return (
            f"VerdictEntry(epsilon {self.epsilon}, node {self.node}, {self.adversary!r:.60},"
            f" {self.test!r:.60}, {self.verdict})"
        )

    def number(self, name: str) -> float | None:
        """Return a figure as a number, which may be infinite; None if there is none."""
        value = self.figures.get(name)
        if value == "inf":
            return math.inf
        return value if is_number(value) else None


class ClaimEntry(_Open, frozen=True, kw_only=True):
    """A claimed guarantee.

    Attributes:
        source: Where the claim is made.
        epsilon: The claimed epsilon.
    """

    source: str | None = None
    epsilon: Extended = None


class ViewEntry(_Open, frozen=True, kw_only=True):
    """The bound of one view.

    `leakaudit.views.accounting.compare.Comparison.to_json` has more entries.

    Attributes:
        node: The node that owns the record.
        mu: mu of the Gaussian view.
        epsilon: Epsilon of one record.
        exact: Epsilon of one record at the claim's delta; preferred over `epsilon`.
        holds: A `leakaudit.core.verdict.Holds`; None in a record of an earlier version.
        verdict: Name of a `leakaudit.core.verdict.Verdict`.
        why: The reason.
    """

    node: int | None = None
    adversary: str | None = None
    mu: Extended = None
    epsilon: Extended = None
    exact: Extended = None
    holds: str | None = None
    verdict: VerdictName | None = None
    why: str | None = None
    claim: ClaimEntry | None = None


class AuditPoint(_Entry, frozen=True, kw_only=True):
    """One point of an audit's grid.

    Attributes:
        epsilon: None if the constants were used as configured.
        constants: Constants of the protocol at this point.
        views: The view bounds at this point.
    """

    epsilon: Extended
    constants: Mapping[str, Free]
    views: tuple[Mapping[str, Free], ...]

    def read_views(self) -> list[ViewEntry]:
        """Return the views as types; the fields themselves keep every entry of the comparison."""
        try:
            return [msgspec.convert(view, ViewEntry) for view in self.views]
        except (msgspec.ValidationError, UnicodeEncodeError) as error:
            raise LeakauditError(
                f"the views at epsilon {self.epsilon} in the results are damaged: {error}; "
                "repeat the audit"
            ) from None


class Statistics(_Open, frozen=True, kw_only=True):
    """One metric at one point of an audit's grid or of a sweep, over all records.

    Attributes:
        images: Number of records; absent in a sweep.
    """

    images: Number | UnsetType = UNSET
    best: Number
    median: Number
    mean: Number


class CurvePoint(_Entry, frozen=True, kw_only=True):
    """The results of one attack at one point of an audit's grid.

    Attributes:
        epsilon: The point.
        attacked: Number of attacked nodes, counted once per run.
        refused: Number of those for which the attack returned nothing.
        {quantities}
    """

    epsilon: Extended
    adversary: str
    attack: str
    attacked: int | UnsetType = UNSET
    refused: int | UnsetType = UNSET
    add_columns(vars(), shown(Place.CURVE), "Statistics | UnsetType", UNSET)


class CeilingEntry(_Entry, frozen=True, kw_only=True):
    """What view bounds allow for one record at one point of an audit's grid.

    Attributes:
        epsilon: The point.
        adversary: Adversary whose views are bounded.
        chance: Upper limit of the probability with which any attack exceeds the following numbers,
            for a record that is named beforehand; None for those of a blind guess, the mean of all
            other records.
        nodes: Nodes for whose records they hold: all attacked nodes with a bound, by the weakest of
            their bounds. Absent for a blind guess, and in earlier records for all attacked nodes.
        psnr: PSNR in dB; 200, that of equal images, if nothing is excluded.
        ssim: SSIM; None if it is not defined for these images.
    """

    epsilon: Extended
    adversary: str
    chance: Number | None
    psnr: Number
    ssim: Number | None
    nodes: tuple[int, ...] | UnsetType = UNSET


class AuditPart(_Entry, frozen=True, kw_only=True):
    """The part of a record that is specific to an audit.

    Attributes:
        alpha: Error probability of all tests together.
        delta: Delta of every epsilon.
        grid: The points.
        curves: The results of the attacks at these points.
        ceilings: What blind guesses reach, and what the epsilon of each view allows; absent in
            earlier records.
        verdicts: The results of the tests.
        figure: File of the figure.
    """

    alpha: Number
    delta: Number
    grid: tuple[AuditPoint, ...]
    curves: tuple[CurvePoint, ...]
    ceilings: tuple[CeilingEntry, ...] | UnsetType = UNSET
    verdicts: tuple[VerdictEntry, ...]
    figure: FileName | None


# ---------------------------------------------------------------------------------------------
# Gate
# ---------------------------------------------------------------------------------------------


class RuleEntry(_Entry, frozen=True, kw_only=True):
    """The outcome of one rule of a gate.

    Attributes:
        kind: What the rule tests.
        cell: Name of the cell, or ``check/lint``.
        measure: The measure that is compared; for the lint, the code of a pitfall.
        says: The outcome in words.
        accepted: Id of the acceptance that covers it, "" for none.
        value: The measured value.
        limit: The allowed value.
        p: Adjusted p-value of a test.
        status: The outcome.
        nodes: Nodes that `says` names; quoted text of the lint, of an attack or of an error may
            name further nodes. Earlier records lack this field.
    """

    kind: RuleKind
    cell: str
    measure: str
    says: str
    accepted: str
    value: Extended
    limit: Extended
    p: Extended
    status: RuleStatus
    nodes: tuple[int, ...] | UnsetType = UNSET


class NodeBest(_Entry, frozen=True, kw_only=True):
    """The record of one node that an attack of a gate recovered best.

    Attributes:
        seed: Seed of the run.
        node: The node that owns the record.
        psnr: In dB, None if it was not measured.
        relative_error: None if no input was recovered.
        exact: Whether it is bit-identical.
        labels: Share of the labels that were found.
        kind: Kind of the leak.
        first: First round of the leak.
        last: Last round of the leak.
        formula: How the leak is computed.
    """

    seed: int
    node: int
    psnr: Number | None
    relative_error: Number | None
    exact: bool
    labels: Number | None
    kind: str
    first: int
    last: int
    formula: str


class SampleColumn(_Entry, frozen=True, kw_only=True):
    """One measure of a cell over the seeds.

    Attributes:
        samples: One value per seed.
        worst: The largest.
    """

    samples: tuple[Number, ...]
    mean: Number
    worst: Number


class CellEntry(_Entry, frozen=True, kw_only=True):
    """One attack by one adversary in one check of a gate.

    Attributes:
        name: ``check/adversary/attack``.
        digest: SHA-256 of the measurement's configuration.
        seeds: Seeds of the runs.
        measures: Measures by name.
        epsilon: Epsilon of one record in this view.
        holds: A `leakaudit.core.verdict.Holds`; absent in a record of an earlier version.
        rounds_priced: Number of rounds that the epsilon covers.
        worst: The record that was recovered best, None if none was recovered.
        nodes: The same for each node.
        says: Description of the worst record.
        reasons: Why no leak is determined, by node.
        seconds: Time taken.
    """

    name: str
    check: str
    adversary: str
    attack: str
    digest: Sha256
    seeds: tuple[int, ...]
    measures: dict[str, SampleColumn]
    epsilon: Extended
    holds: str | UnsetType = UNSET
    rounds_priced: int | UnsetType | None = UNSET
    worst: NodeBest | None
    nodes: tuple[NodeBest, ...] | UnsetType = UNSET
    says: str
    reasons: dict[str, str]
    seconds: Number


class PitfallText(_Entry, frozen=True, kw_only=True):
    """A pitfall of the lint in words.

    Attributes:
        name: Name of the pitfall.
        fix: How to avoid it.
    """

    name: str
    fix: str


class NotTried(_Entry, frozen=True, kw_only=True):
    """Something that the configuration of a gate omits; exactly one of the last four is present.

    Attributes:
        check: Name of the check that omits it, "" for all checks together.
        attack: An attack that is not used.
        adversaries: The adversaries that are tried; all others are omitted.
        nodes: The nodes that are attacked; all others are omitted.
        gradients: The largest number of gradients that an attack may use.
    """

    check: str
    attack: str | UnsetType = UNSET
    adversaries: tuple[str, ...] | UnsetType = UNSET
    nodes: tuple[int, ...] | UnsetType = UNSET
    gradients: int | UnsetType = UNSET


class GatePart(_Entry, frozen=True, kw_only=True):
    """The part of a record that is specific to a gate.

    Attributes:
        code: The exit code.
        verdict: The same in words.
        strict: Whether warnings count as failures.
        cells: What was measured.
        rules: The outcomes, the most severe first.
        networks: Networks by check.
        pitfalls: Pitfalls of the rules of kind lint and recording, by code.
        acceptances: State of each acceptance by id.
        stale: Cells of the baseline that are no longer measured.
        not_tried: What the configuration omits; `RunRecord.not_tried` states it in words.
        remarks: What a reader should know that does not affect the result. Earlier records lack
            this field.
    """

    code: ExitCode
    verdict: GateVerdict
    strict: bool
    cells: tuple[CellEntry, ...]
    rules: tuple[RuleEntry, ...]
    networks: dict[str, TraceSummary] | UnsetType = UNSET
    pitfalls: dict[str, PitfallText] | UnsetType = UNSET
    acceptances: dict[str, AcceptanceState]
    stale: tuple[str, ...]
    not_tried: tuple[NotTried, ...] | UnsetType = UNSET
    remarks: tuple[str, ...] | UnsetType = UNSET


# ---------------------------------------------------------------------------------------------
# Sweep
# ---------------------------------------------------------------------------------------------


class TrainedStatistics(_Entry, frozen=True, kw_only=True):
    """A quantity of the training at one point of a sweep, over all seeds.

    Attributes:
        mean: Its mean.
        low: Lower end of the 95 % interval of the mean by Student's t; None for a single seed.
        high: Upper end.
    """

    mean: Extended
    low: Extended
    high: Extended


class SweepPoint(_Entry, frozen=True, kw_only=True):
    """The results of one attack at one point of a sweep, over all seeds.

    Attributes:
        at: Value of every axis.
        attacked: Number of attacked nodes, counted once per run.
        refused: Number of those for which the attack returned nothing.
        records: Number of true records.
        recovered: Number of records recovered.
        exact: Number of records recovered bit for bit.
        certified: Number of records certified exact.
        labels_found: Share of the labels found.
        trained: Values after the last round by quantity, and bounds; absent without curves.
        {quantities}
    """

    attack: str
    adversary: str
    at: Mapping[str, Free]
    cells: int
    attacked: int | UnsetType = UNSET
    refused: int | UnsetType = UNSET
    records: int
    recovered: int
    exact: int
    certified: int
    labels_found: Number | None
    trained: Mapping[str, TrainedStatistics] | UnsetType = UNSET
    add_columns(vars(), shown(Place.CURVE), "Statistics | UnsetType", UNSET)


def trained_of(points: Sequence[SweepPoint]) -> tuple[str, ...]:
    """Return the quantities of the training that tables and figures show of some points."""
    found: dict[str, None] = {}
    for point in points:
        found.update(dict.fromkeys(given(point.trained, {})))
    return tuple(name for name in found if not name.startswith("norm_"))


def statistics(point: CurvePoint | SweepPoint, one: Quantity) -> Statistics | None:
    """Return the statistics of a quantity at a point, None if it was not measured."""
    values: Statistics | UnsetType = getattr(point, one.key)
    return given(values, None)


def records_at(point: CurvePoint) -> Number | None:
    """Return the number of records at a point, None if it is not known."""
    for one in shown(Place.CURVE):
        values = statistics(point, one)
        if values is not None:
            return given(values.images, None)
    return None


def curves_of(points: Sequence[CurvePoint] | Sequence[SweepPoint]) -> tuple[Quantity, ...]:
    """Return the quantities that tables and figures show of some points: what was measured.

    If nothing was, they are those that any data has.
    """
    measured = set[str]()
    data = Data.ANY
    for one in shown(Place.CURVE):
        if any(statistics(point, one) is not None for point in points):
            measured.add(one.key)
            data = Data.IMAGES if one.data is Data.IMAGES else data
    rows = shown(Place.CURVE, data=data)
    return tuple(one for one in rows if one.key in measured) or rows


def summary(values: Sequence[Number], one: Quantity) -> Statistics | None:
    """Return the statistics of a quantity over one value per record, None if there are none."""
    if not values:
        return None
    middle = averages.median(values)
    return Statistics(best=one.better(values), median=middle, mean=averages.mean(values))


class SweptColumns(_Entry, frozen=True, kw_only=True):
    """The measurements of one cell of a sweep; of each quantity, one value per record.

    Attributes:
        attacked: Number of nodes that were attacked.
        refused: Number of those for which the attack returned nothing.
        returned: Number of reconstructions that were returned.
        records: Number of true records.
        recovered: Number of records recovered.
        exact: Number of records recovered bit for bit.
        certified: Number of records certified exact.
        labels: Share of the labels found, one value per node.
        {quantities}
    """

    attacked: int | UnsetType = UNSET
    refused: int | UnsetType = UNSET
    returned: int | UnsetType = UNSET
    records: int
    recovered: int
    exact: int
    certified: int
    add_columns(vars(), shown(Place.CURVE), "tuple[Number, ...] | UnsetType", UNSET)
    labels: tuple[Number, ...]


def swept(columns: SweptColumns, one: Quantity) -> tuple[Number, ...]:
    """Return the values of a quantity in a cell, empty if an earlier version did not measure it."""
    values: tuple[Number, ...] | UnsetType = getattr(columns, one.key)
    return given(values, ())


class SweptCell(_Entry, frozen=True, kw_only=True):
    """One cell of a sweep.

    Attributes:
        key: Digest of its definition.
        at: Value of every axis.
        seed: Seed of the run.
        status: Whether it has a result.
        says: Why it has no result.
        constants: Constants of the protocol.
        records: Number of true records.
        reasons: Why no leak is determined, by node.
        columns: The measurements.
        trained: Values after the last round by quantity, and bounds; absent without curves.
    """

    key: Sha256
    attack: str
    adversary: str
    at: Mapping[str, Free]
    seed: int
    status: Literal["died", "done", "failed"]
    says: str
    constants: Mapping[str, Free]
    records: int
    reasons: dict[str, str]
    columns: SweptColumns
    trained: Mapping[str, Extended] | UnsetType = UNSET


class SweepPart(_Entry, frozen=True, kw_only=True):
    """The part of a record that is specific to a sweep.

    Attributes:
        digest: Digest of the plan and the versions.
        versions: Versions of the packages.
        axes: Values of every axis.
        across: The axis that is drawn horizontally.
        psnr: PSNR in dB from which a record counts as recovered.
        cells: The cells that were run.
        missing: Number of cells without a result.
        points: The cells aggregated over seeds.
        figure: File of the figure.
    """

    digest: Sha256
    plan: Mapping[str, Free]
    versions: dict[str, str | None]
    axes: Mapping[str, tuple[Free, ...]]
    across: str | None
    psnr: Number
    cells: tuple[SweptCell, ...]
    missing: int
    points: tuple[SweepPoint, ...]
    figure: FileName | None


# ---------------------------------------------------------------------------------------------
# Records
# ---------------------------------------------------------------------------------------------


class _Record(CardDisplay, _Entry, frozen=True, kw_only=True):
    """What the records of all kinds share."""

    def to_pandas(self, table: str | None = None) -> DataFrame:
        """Return one table of the record as a data frame."""
        return display.frame(of(plain(self)), table)


class RunRecord(_Record, frozen=True, kw_only=True, tag_field="kind"):
    """The fields that the records of an attack, an audit and a gate share.

    Attributes:
        version: Version of this schema.
        complete: Whether the run was completed.
        summary: One sentence, the worst case first; composed from the other fields.
        trace: The training.
        findings: One entry per reconstruction.
        undetermined: Nodes for which no leak is determined.
        not_tried: What the run omitted, in words.
        metrics: Definitions of the metrics.
        attacks: Descriptions of the attacks.
        picture: File with an image of all reconstructions.
        originals: File with the true images.
        provenance: Origin of the record.
        files: SHA-256 of every image file that the record names.
        unverified: Remarks about what is unverified.
        unclear: Why the result is inconclusive: how the recording differs from its declaration.
    """

    schema: Literal["leakaudit.results"]
    version: Literal[1, 2]
    complete: bool
    summary: str
    trace: TraceSummary
    findings: tuple[Finding, ...]
    undetermined: tuple[Undetermined, ...]
    not_tried: tuple[str, ...]
    metrics: dict[str, str]
    attacks: dict[str, AttackAbout] | UnsetType = UNSET
    picture: FileName | None
    originals: FileName | UnsetType | None = UNSET
    provenance: Provenance
    files: dict[str, Sha256] | UnsetType = UNSET
    unverified: tuple[str, ...] | UnsetType = UNSET
    unclear: tuple[str, ...] | UnsetType = UNSET

    def __repr__(self) -> str:
        """The kind, the summary and the number of findings."""
        return f"{type(self).__name__}({self.summary!r:.300}, {len(self.findings)} findings)"


class AttackRecord(RunRecord, frozen=True, kw_only=True, tag="attack"):
    """The record of an attack."""


class AuditRecord(RunRecord, frozen=True, kw_only=True, tag="audit"):
    """The record of an audit.

    Attributes:
        audit: The part that is specific to an audit.
    """

    audit: AuditPart


class CheckRecord(RunRecord, frozen=True, kw_only=True, tag="check"):
    """The record of a gate.

    Attributes:
        location: File of the configuration.
        gate: The part that is specific to a gate.
    """

    location: str
    gate: GatePart


class SweepRecord(_Record, frozen=True, kw_only=True, tag_field="kind", tag="sweep"):
    """The record of a sweep.

    Attributes:
        version: Version of this schema.
        complete: Whether every cell has been run.
        summary: One sentence, the worst case first.
        sweep: The part that is specific to a sweep.
    """

    schema: Literal["leakaudit.results"]
    version: Literal[1, 2]
    complete: bool
    summary: str
    sweep: SweepPart

    def __repr__(self) -> str:
        """The summary and the number of points."""
        return f"SweepRecord({self.summary!r:.300}, {len(self.sweep.points)} points)"


Record: TypeAlias = AttackRecord | AuditRecord | CheckRecord | SweepRecord
KINDS: dict[str, type[Record]] = {
    "attack": AttackRecord,
    "audit": AuditRecord,
    "check": CheckRecord,
    "sweep": SweepRecord,
}
NO_SCORES = Scores(chance=None, labels_found=None, not_recovered=0, matched=())


def certificate(name: str, sentence: str) -> CertificateEntry:
    """Return a certificate as an entry."""
    return msgspec.convert({"name": name, "sentence": sentence}, CertificateEntry)


def given(value: T | UnsetType, default: T) -> T:
    """Return a field that may be absent."""
    if isinstance(value, UnsetType):
        return default
    return value


def kind_of(record: Record | RunRecord) -> str:
    """Return the kind of a record."""
    return str(record.__struct_config__.tag)


def of(results: Mapping[str, object]) -> Record:
    """Return JSON values as a record, without the entries that only a report adds."""
    return _own(results, KINDS[str(results["kind"])])


def of_run(results: Mapping[str, object]) -> RunRecord:
    """Return JSON values as the record of an attack, an audit or a gate."""
    kind = KINDS[str(results["kind"])]
    if not issubclass(kind, RunRecord):
        raise LeakauditError("expected the results of an attack, an audit or a gate, got a sweep")
    return _own(results, kind)


def of_sweep(results: Mapping[str, object]) -> SweepRecord:
    """Return JSON values as the record of a sweep."""
    return _own(results, SweepRecord)


def _own(results: Mapping[str, object], kind: type[S]) -> S:
    fields = {field.encode_name for field in msgspec.structs.fields(kind)}
    added = {"against", "gallery", "location", "passages", "prefix"} - fields
    return fitted({key: value for key, value in results.items() if key not in added}, kind)


def fitted(values: object, kind: type[K]) -> K:
    """Convert JSON values to one type."""
    if isinstance(values, Mapping):
        values = dict(values)
    try:
        return msgspec.convert(values, kind)
    except msgspec.ValidationError:
        # json writes subclasses of the plain types, such as numpy's float64; msgspec rejects them.
        return msgspec.convert(json.loads(json.dumps(values)), kind)


def plain(record: Struct) -> dict[str, Json]:
    """Return a record, or a part of one, as JSON values."""
    built = msgspec.to_builtins(record, enc_hook=_builtin)
    values: dict[str, Json] = json.loads(json.dumps(built))
    # msgspec writes the tag first, results.json after the version.
    order = [key for key in ("schema", "version", "kind") if key in values and "schema" in values]
    if isinstance(record, CheckRecord):
        # The gate part precedes the provenance; the specific parts of other kinds follow it.
        values["provenance"] = values.pop("provenance")
    return {**{key: values[key] for key in order}, **values}


def _builtin(value: object) -> object:
    """Return a number of another library, such as numpy's float64, as a plain number."""
    if isinstance(value, float):
        return float(value)
    raise TypeError(f"expected JSON values in a record, got {type(value).__name__}")
