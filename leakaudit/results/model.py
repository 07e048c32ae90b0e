"""The record of a run as types: the content of results.json.

There is one tagged kind each for attack, audit, check and sweep. The types are the schema:
msgspec builds a record from JSON values by them and refuses what does not fit,
`leakaudit._util.decoding` reports where it does not, and ``schema.json`` beside this file is
generated from them.

Two conventions hold throughout. A field that older records lack, or that only some records have,
is `UNSET` when it is absent, so that a record that is read and written again keeps exactly its
keys; `given` reads such a field. Infinity is the text ``inf``, because JSON has no infinity; only
`decoded` and `encoded` know this.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Literal, TypeAlias, TypeVar

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from leakaudit._util.decoding import Sha256
from leakaudit._util.plain import Extended as Extended
from leakaudit._util.plain import Number as Number
from leakaudit._util.plain import decoded as decoded
from leakaudit._util.plain import encoded as encoded
from leakaudit.errors import LeakauditError
from leakaudit.trace import Json
from leakaudit.verdict import Verdict

T = TypeVar("T")
K = TypeVar("K")
S = TypeVar("S", bound=Struct)

SCHEMA: Literal["leakaudit.results"] = "leakaudit.results"
VERSION: Literal[2] = 2

# Any JSON value: settings and constants belong to the program that was run, not to this schema.
Free: TypeAlias = object

# "(?!\n)$": in Python, "$" also matches before a final line break. In JSON schema the look-ahead
# changes nothing.
FileName: TypeAlias = Annotated[
    str,
    Meta(
        pattern=r"^[A-Za-z0-9_-][A-Za-z0-9._-]*(?!\n)$",
        description="a file name without folder",
    ),
]
Time: TypeAlias = Annotated[
    str,
    Meta(
        pattern=(
            r"^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}"
            r"(\.[0-9]+)?\+00:00(?!\n)$"
        ),
        description="a time in UTC like 2030-01-31T12:00:00+00:00",
    ),
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
    """The outcome of a rule of a gate; `wording.STATUS_WORDS` has what each means."""

    OK = "OK"
    OVER = "OVER"
    REGRESSION = "REGRESSION"
    CONTRADICTED = "CONTRADICTED"
    ACCEPTED = "ACCEPTED"
    WARNING = "WARNING"
    INCONCLUSIVE = "INCONCLUSIVE"
    NOT_COMPARABLE = "NOT_COMPARABLE"
    VOID = "VOID"
    UNTESTED = "UNTESTED"


class _Entry(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A part of a record whose fields are all known."""


class _Open(Struct, frozen=True, kw_only=True):
    """A part of a record in which other entries may stand; they are not read."""


# ---------------------------------------------------------------------------------------------
# Scores
# ---------------------------------------------------------------------------------------------


class _Column(_Entry, frozen=True, kw_only=True):
    """One metric of a reconstruction.

    Attributes:
        per_image: One value for each true record, None for one that was not recovered.
        missed: What the missed records count as in the statistics.
        min: Smallest value, missed records included; None if nothing was recovered.
        median: Their median.
        mean: Their mean.
    """

    per_image: tuple[Number | None, ...]
    missed: tuple[Number, ...] | UnsetType = UNSET
    min: Number | None
    median: Number | None
    mean: Number | None


class NumberColumn(_Column, frozen=True, kw_only=True):
    """One metric of a reconstruction that is a number."""


class FlagColumn(_Column, frozen=True, kw_only=True):
    """One metric of a reconstruction that is yes or no.

    Attributes:
        per_image: Yes or no for each true record, None for one that was not recovered.
    """

    per_image: tuple[bool | None, ...]


class RankColumn(_Column, frozen=True, kw_only=True):
    """The rank of the own record among all records.

    Attributes:
        per_image: The rank of each true record from 1, None for one that was not recovered.
    """

    per_image: tuple[int | None, ...]


Column: TypeAlias = NumberColumn | FlagColumn | RankColumn


class Scores(_Entry, frozen=True, kw_only=True):
    """How near a reconstruction came to the truth: `leakaudit.scoring.scoring.Score` in the record.

    Attributes:
        mse: Mean squared error; absent, like every other column, if it was not measured.
        psnr: In dB.
        ssim: Structural similarity.
        lpips: Perceptual distance.
        relative_error: Euclidean, relative to the true record.
        exact: Whether the record is bit-identical.
        label_correct: Whether its label is right.
        identified: Whether it is nearer to its own record than to every other one.
        rank: Place of its own record by distance, 1 is best.
        chance: Greatest chance of a blind guess to identify a record.
        labels_found: Share of the true labels that were found.
        not_recovered: Number of true records without a reconstruction.
        surplus: Number of reconstructions beyond the true records.
        matched: For each true record the row of the reconstruction, None if there is none.
    """

    mse: NumberColumn | UnsetType = UNSET
    psnr: NumberColumn | UnsetType = UNSET
    ssim: NumberColumn | UnsetType = UNSET
    lpips: NumberColumn | UnsetType = UNSET
    relative_error: NumberColumn | UnsetType = UNSET
    exact: FlagColumn | UnsetType = UNSET
    label_correct: FlagColumn | UnsetType = UNSET
    identified: FlagColumn | UnsetType = UNSET
    rank: RankColumn | UnsetType = UNSET
    chance: Number | None
    labels_found: Number | None
    not_recovered: int
    surplus: int | UnsetType = UNSET
    matched: tuple[int | None, ...]


# ---------------------------------------------------------------------------------------------
# Findings
# ---------------------------------------------------------------------------------------------


class RoundSpan(_Entry, frozen=True, kw_only=True):
    """The rounds that a leak spans.

    Attributes:
        first: First round.
        last: Last round.
        count: Number of rounds that enter.
    """

    first: int
    last: int
    count: int


class LeakSummary(_Entry, frozen=True, kw_only=True):
    """What was attacked: a combination of gradients that the adversary can compute.

    Attributes:
        kind: For example ``gradient`` or ``difference``.
        rounds: The rounds that it spans.
        rows: Number of gradients.
        formula: How it is computed, in the protocol's symbols; names nodes.
        scope: On what part of what is heard it rests; may name nodes.
        std: Largest standard deviation of its noise.
    """

    kind: str
    rounds: RoundSpan
    rows: int
    formula: str
    scope: str | UnsetType = UNSET
    std: Number | None


class CertificateEntry(_Entry, frozen=True, kw_only=True):
    """How sure an attack is without the truth.

    Attributes:
        name: Name of a `leakaudit.reconstruction.Certificate`.
        sentence: Its value.
    """

    name: CertificateName
    sentence: str


class StoredImages(_Entry, frozen=True, kw_only=True):
    """Where a reconstruction was saved.

    Attributes:
        file: An npz beside the record.
        x: Its array of inputs.
        y: Its array of labels, None if there are none.
        interval: Its array of half-widths.
        choices: Arrays of other candidates, by the place of the input.
    """

    file: FileName
    x: str
    y: str | None
    interval: str | UnsetType = UNSET
    choices: dict[str, str] | UnsetType = UNSET


class GridPoint(_Entry, frozen=True, kw_only=True):
    """The point of an audit's grid, and the run at it, that a finding belongs to.

    Attributes:
        epsilon: None for constants as they were configured.
        seed: Of the run.
    """

    epsilon: Extended
    seed: int


class Finding(_Entry, frozen=True, kw_only=True):
    """One reconstruction: what was attacked, what came out, and how near it comes to the truth.

    Attributes:
        node: Whose inputs these are.
        adversary: Who hears, in the form that `leakaudit.adversary.Adversary.parse` reads.
        attack: Name of the attack, ``none`` if no attack can use the leak.
        leak: What was attacked.
        certificate: How sure the attack is.
        certified: Number of inputs that are certified exact.
        batch: Number of inputs.
        labels: Labels that were found, None if there are none.
        scores: None if there was no truth.
        residual: How well the reconstruction explains the leak; None if that is not finite.
        seconds: Time that the attack took.
        note: Remarks of the attack and of scoring, joined by semicolons.
        images: Where the reconstruction was saved.
        cell: The point of an audit's grid; absent in an attack.
    """

    node: int
    adversary: str
    attack: str
    leak: LeakSummary
    certificate: CertificateEntry
    certified: int | UnsetType = UNSET
    batch: int | None
    labels: tuple[Number | None, ...] | None
    scores: Scores | None
    residual: Number | None
    seconds: Number
    note: str
    images: StoredImages | None
    cell: GridPoint | UnsetType = UNSET


class Undetermined(_Entry, frozen=True, kw_only=True):
    """A node of which an adversary learns no gradient.

    Attributes:
        node: The node.
        adversary: Who hears.
        reason: Why nothing is determined.
    """

    node: int
    adversary: str
    reason: str


# ---------------------------------------------------------------------------------------------
# Where a record comes from
# ---------------------------------------------------------------------------------------------


class TraceSource(_Entry, frozen=True, kw_only=True):
    """Which recording was attacked.

    Attributes:
        id: Given to the recording.
        sha256: Of the file, None if it was not hashed.
        recording: Number that was drawn for the recording; records of version 1 lack it.
    """

    id: str
    sha256: Sha256 | None
    recording: str | UnsetType | None = UNSET


class TruthSource(_Entry, frozen=True, kw_only=True):
    """With which truth a record was scored.

    Attributes:
        sha256: Of the file, None if there was none.
        path: Where it stood.
        recording: As in `TraceSource`.
    """

    sha256: Sha256 | None
    path: str | UnsetType | None = UNSET
    recording: str | UnsetType | None = UNSET


class Rescoring(_Entry, frozen=True, kw_only=True):
    """One time that a record was scored again.

    Attributes:
        metrics: What was computed anew.
        truth: sha256 of the truth file.
        command: Command line.
        started: When.
    """

    metrics: tuple[str, ...]
    truth: Sha256 | None
    command: str
    started: Time


class Provenance(_Entry, frozen=True, kw_only=True):
    """Everything that is needed to get a record again; see `leakaudit.results.provenance.collect`.

    Attributes:
        versions: Of Python and the packages, None for one that is absent.
        shimmed: Whether torchvision's operators were declared and not compiled.
        seeds: By purpose.
        device: For example ``cpu``.
        threads: Of torch.
        trace: The recording.
        truth: The truth file.
        settings: Effective configuration.
        digest: sha256 of the settings.
        command: Command line.
        started: When.
        seconds: Wall time.
        platform: Operating system.
        rescored: Each time that it was scored again.
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


class TraceSummary(_Entry, frozen=True, kw_only=True):
    """What was trained, and the network.

    Attributes:
        protocol: Name of the victim.
        data: Name of the data.
        model: Name of the model.
        nodes: Number of nodes.
        edges: Number of edges.
        links: The edges, at most `leakaudit.results.findings.DRAWN`.
        rounds: Number of rounds.
        shape: Of one input.
        classes: Number of classes.
    """

    protocol: str
    nodes: int
    edges: int
    links: tuple[tuple[int, ...], ...] | UnsetType = UNSET
    rounds: int
    data: str
    model: str
    shape: tuple[int, ...]
    classes: int


class AttackAbout(_Entry, frozen=True, kw_only=True):
    """What a reader should know of an attack.

    Attributes:
        paper: Source.
        reads: What it reads.
        cost: What it costs.
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
    """The guarantee that a test was made against.

    Attributes:
        name: For example ``the exact view``.
        epsilon: Of the guarantee.
        delta: Of the guarantee.
        mu: Of a Gaussian guarantee, None for another.
    """

    name: str
    epsilon: Extended
    delta: Number
    mu: Number | None


class SuccessFigures(_Open, frozen=True, kw_only=True):
    """What a test of reconstruction or identification counted.

    Attributes:
        hits: Trials that succeeded.
        trials: All trials.
        kappa: Chance of a blind guess to succeed, an upper limit.
        ceiling: Largest success rate that the promise allows, None for no promise.
    """

    hits: int
    trials: int
    kappa: Number
    ceiling: Number | None


class CanaryFigures(_Open, frozen=True, kw_only=True):
    """What replays with a record and with another one counted.

    Attributes:
        true_positives: Guesses that the record was there, among the replays with it.
        positives: Replays with it.
        false_positives: Guesses that the record was there, among the replays without it.
        negatives: Replays without it.
    """

    true_positives: int
    positives: int
    false_positives: int
    negatives: int


class OneRunFigures(_Open, frozen=True, kw_only=True):
    """What the canaries of one run counted.

    Attributes:
        canaries: Records of which a coin decided whether they were there.
        guesses: How many of them were guessed.
        right: How many of the guesses were right.
    """

    canaries: int
    guesses: int
    right: int


class ViewFigures(_Open, frozen=True, kw_only=True):
    """What the exact view of an adversary gives, beside the claim.

    Attributes:
        mu: Of one record.
        node_mu: Of a whole node.
        rounds_priced: The rounds that these values are about; None in a record of version 1.
        exact: Epsilon of one record.
        claimed: Epsilon that is claimed.
        ratio: Exact over claimed.
    """

    mu: Extended
    node_mu: Extended
    rounds_priced: int | None = None
    exact: Extended
    claimed: Extended
    ratio: Extended


class SensitivityFigures(_Open, frozen=True, kw_only=True):
    """How far a record moved a gradient.

    Attributes:
        moved: The largest change that was measured.
        assumed: What every epsilon assumes.
    """

    moved: Number
    assumed: Number


Figures: TypeAlias = (
    SuccessFigures | CanaryFigures | OneRunFigures | ViewFigures | SensitivityFigures
)
# An entry that only figures of this kind have: records hold no tag for them.
_OWN_ENTRY: dict[str, type[Figures]] = {
    "hits": SuccessFigures,
    "positives": CanaryFigures,
    "canaries": OneRunFigures,
    "exact": ViewFigures,
    "moved": SensitivityFigures,
}


class VerdictEntry(_Entry, frozen=True, kw_only=True):
    """What one test of an audit says.

    Attributes:
        epsilon: Point of the grid.
        adversary: Who hears.
        node: Whose records were tested.
        test: The test in words.
        attack: What guessed.
        promise: What was tested, None for no promise.
        verdict: Name of a `leakaudit.verdict.Verdict`.
        says: Why.
        power: What the test could have found.
        p: The p-value, None if nothing was counted.
        level: Its threshold.
        needs: Trials that would be enough.
        figures: What was counted; `read_figures` returns it as a type.
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

    def read_figures(self) -> Figures | None:
        """Return the figures as a type.

        Returns:
            What was counted, None if nothing was.

        Raises:
            msgspec.ValidationError: A figure is of another type.
        """
        for entry, kind in _OWN_ENTRY.items():
            if entry in self.figures:
                return msgspec.convert(self.figures, kind)
        return None


class ClaimEntry(_Open, frozen=True, kw_only=True):
    """A claimed guarantee.

    Attributes:
        source: Where it is claimed.
        epsilon: What is claimed.
    """

    source: str | None = None
    epsilon: Extended = None


class ViewEntry(_Open, frozen=True, kw_only=True):
    """What theory says of one view.

    `leakaudit.accounting.compare.Comparison.to_json` has more entries.

    Attributes:
        node: Whose record.
        adversary: Who hears.
        mu: Of the Gaussian view.
        epsilon: Of one record.
        exact: Of one record, by the exact relation; preferred over epsilon.
        verdict: Name of a `leakaudit.verdict.Verdict`.
        why: The reason.
        claim: What is claimed.
    """

    node: int | None = None
    adversary: str | None = None
    mu: Extended = None
    epsilon: Extended = None
    exact: Extended = None
    verdict: VerdictName | None = None
    why: str | None = None
    claim: ClaimEntry | None = None


class AuditPoint(_Entry, frozen=True, kw_only=True):
    """One point of an audit's grid.

    Attributes:
        epsilon: None for constants as configured.
        constants: Of the protocol at this point.
        views: What theory says there.
    """

    epsilon: Extended
    constants: Mapping[str, Free]
    views: tuple[Mapping[str, Free], ...]

    def read_views(self) -> list[ViewEntry]:
        """Return the views as types; the fields themselves keep every entry of the comparison.

        Returns:
            One view an entry.

        Raises:
            msgspec.ValidationError: An entry of the comparison is of another type.
        """
        return [msgspec.convert(view, ViewEntry) for view in self.views]


class CurveValues(_Open, frozen=True, kw_only=True):
    """One metric at one point of an audit's grid, over all records.

    Attributes:
        best: Best value.
        median: Median.
        mean: Mean.
        images: Number of records.
    """

    images: Number | UnsetType = UNSET
    best: Number
    median: Number
    mean: Number


class CurvePoint(_Entry, frozen=True, kw_only=True):
    """What one attack got at one point of an audit's grid.

    Attributes:
        epsilon: The point.
        adversary: Who hears.
        attack: What attacked.
        attacked: Nodes, once a run.
        refused: Nodes, once a run, that gave nothing.
        psnr: In dB.
        ssim: Structural similarity.
        relative_error: Relative error.
    """

    epsilon: Extended
    adversary: str
    attack: str
    attacked: int | UnsetType = UNSET
    refused: int | UnsetType = UNSET
    psnr: CurveValues | UnsetType = UNSET
    ssim: CurveValues | UnsetType = UNSET
    relative_error: CurveValues | UnsetType = UNSET


class AuditPart(_Entry, frozen=True, kw_only=True):
    """What only an audit's record has.

    Attributes:
        alpha: Error probability of all tests together.
        delta: Of every epsilon.
        grid: The points.
        curves: What attacks got at them.
        verdicts: What the tests say.
        figure: File of the drawing.
    """

    alpha: Number
    delta: Number
    grid: tuple[AuditPoint, ...]
    curves: tuple[CurvePoint, ...]
    verdicts: tuple[VerdictEntry, ...]
    figure: FileName | None


# ---------------------------------------------------------------------------------------------
# Gate
# ---------------------------------------------------------------------------------------------


class RuleEntry(_Entry, frozen=True, kw_only=True):
    """The outcome of one rule of a gate.

    Attributes:
        kind: What sort of rule it is.
        cell: Name of the cell, or ``check/lint``.
        measure: What is compared; of lint a pitfall's code.
        says: The outcome in words.
        accepted: Id of the acceptance that covers it, "" for none.
        value: What was measured.
        limit: What is allowed.
        p: Adjusted p-value of a test.
        status: The outcome.
        nodes: Nodes that `says` names; text of the lint, of an attack or of an error in it may
            name more. Earlier records lack it.
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
        seed: Of the run.
        node: Whose record.
        psnr: In dB, None if it was not measured.
        relative_error: None if no input was recovered.
        exact: Whether it is bit-identical.
        labels: Share of the labels that were found.
        kind: Of the leak.
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
        samples: One value a seed.
        mean: Their mean.
        worst: The largest.
    """

    samples: tuple[Number, ...]
    mean: Number
    worst: Number


class CellEntry(_Entry, frozen=True, kw_only=True):
    """One attack by one adversary in one check of a gate.

    Attributes:
        name: ``check/adversary/attack``.
        check: Name of the check.
        adversary: Who hears.
        attack: What attacks.
        digest: sha256 of how it was measured.
        seeds: Of the runs.
        measures: By name.
        epsilon: Of one record in this view.
        rounds_priced: Rounds that the epsilon is of.
        worst: The record that came out best, None if none did.
        nodes: The same of each node.
        says: The worst record in words.
        reasons: Why nothing is determined, by node.
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
    rounds_priced: int | UnsetType | None = UNSET
    worst: NodeBest | None
    nodes: tuple[NodeBest, ...] | UnsetType = UNSET
    says: str
    reasons: dict[str, str]
    seconds: Number

    @property
    def worst_node(self) -> int | None:
        """The node of the record that came out best, None if there is none."""
        if self.worst is None:
            return None
        return self.worst.node


class PitfallText(_Entry, frozen=True, kw_only=True):
    """A pitfall of the lint in words.

    Attributes:
        name: What it is.
        fix: What to do about it.
    """

    name: str
    fix: str


class NotTried(_Entry, frozen=True, kw_only=True):
    """Something that the configuration of a gate leaves out; exactly one of the last four is there.

    Attributes:
        check: Name of the check that leaves it out, "" for all checks together.
        attack: An attack that is not used.
        adversaries: Those that are tried; all others are not.
        nodes: Those that are attacked; all others are not.
        gradients: The most that an attack may use.
    """

    check: str
    attack: str | UnsetType = UNSET
    adversaries: tuple[str, ...] | UnsetType = UNSET
    nodes: tuple[int, ...] | UnsetType = UNSET
    gradients: int | UnsetType = UNSET


class GatePart(_Entry, frozen=True, kw_only=True):
    """What only a gate's record has.

    Attributes:
        code: The exit code.
        verdict: The same in words.
        strict: Whether warnings count.
        cells: What was measured.
        rules: The outcomes, the worst first.
        networks: By check.
        pitfalls: Of the rules of kind lint and recording, by code.
        acceptances: By id, whether each was used.
        stale: Cells of the baseline that are no longer measured.
        not_tried: What the configuration leaves out; `RunRecord.not_tried` has it in words.
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


# ---------------------------------------------------------------------------------------------
# Sweep
# ---------------------------------------------------------------------------------------------


class SweepStatistics(_Entry, frozen=True, kw_only=True):
    """One metric at one point of a sweep.

    Attributes:
        best: Best value.
        median: Median.
        mean: Mean.
    """

    best: Number
    median: Number
    mean: Number


class SweepPoint(_Entry, frozen=True, kw_only=True):
    """What one attack got at one point of a sweep, over all seeds.

    Attributes:
        attack: What attacked.
        adversary: Who hears.
        at: Value of every axis.
        cells: Number of cells.
        attacked: Nodes, once a run.
        refused: Nodes, once a run, that gave nothing.
        records: Number of true records.
        recovered: Number of them recovered.
        exact: Number of them bit-identical.
        certified: Number of them certified exact.
        labels_found: Share of the labels.
        psnr: In dB.
        ssim: Structural similarity.
        relative_error: Relative error.
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
    psnr: SweepStatistics | UnsetType = UNSET
    ssim: SweepStatistics | UnsetType = UNSET
    relative_error: SweepStatistics | UnsetType = UNSET


class SweptColumns(_Entry, frozen=True, kw_only=True):
    """What one cell of a sweep measured.

    Attributes:
        attacked: Nodes that were attacked.
        refused: Nodes that gave nothing.
        returned: Reconstructions that were returned.
        records: Number of true records.
        recovered: Number of them recovered.
        exact: Number of them bit-identical.
        certified: Number of them certified exact.
        psnr: One value a record, in dB.
        ssim: One value a record.
        relative_error: One value a record.
        labels: Share of the labels, one value a node.
    """

    attacked: int | UnsetType = UNSET
    refused: int | UnsetType = UNSET
    returned: int | UnsetType = UNSET
    records: int
    recovered: int
    exact: int
    certified: int
    psnr: tuple[Number, ...]
    ssim: tuple[Number, ...]
    relative_error: tuple[Number, ...]
    labels: tuple[Number, ...]


class SweptCell(_Entry, frozen=True, kw_only=True):
    """One cell of a sweep.

    Attributes:
        key: Digest of what it is.
        attack: What attacked.
        adversary: Who hears.
        at: Value of every axis.
        seed: Of the run.
        status: Whether it has a result.
        says: Why it has none.
        constants: Of the protocol.
        records: Number of true records.
        reasons: Why nothing is determined, by node.
        columns: What was measured.
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


class SweepPart(_Entry, frozen=True, kw_only=True):
    """What only a sweep's record has.

    Attributes:
        digest: Of the plan and the versions.
        plan: The plan.
        versions: Of the packages.
        axes: Values of every axis.
        across: The axis that is drawn from left to right.
        psnr: Decibels from which a record counts as recovered.
        cells: What was run.
        missing: Number of cells without a result.
        points: Cells put together over seeds.
        figure: File of the drawing.
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


class RunRecord(_Entry, frozen=True, kw_only=True, tag_field="kind"):
    """What the records of an attack, an audit and a gate share.

    Attributes:
        schema: Name of this schema.
        version: Of this schema.
        complete: Whether the run came to its end.
        summary: One sentence, the worst case first; made from the other fields.
        trace: What was trained.
        findings: One a reconstruction.
        undetermined: Nodes of which nothing is determined.
        not_tried: What the run left out, in words.
        metrics: What each metric means.
        attacks: What each attack is.
        picture: File of the drawing of all reconstructions.
        originals: File of the true images.
        provenance: Where the record comes from.
        files: sha256 of every file of pictures that is named.
        unverified: What is not verified about the record.
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


class AttackRecord(RunRecord, frozen=True, kw_only=True, tag="attack"):
    """The record of an attack."""


class AuditRecord(RunRecord, frozen=True, kw_only=True, tag="audit"):
    """The record of an audit.

    Attributes:
        audit: What only an audit has.
    """

    audit: AuditPart


class CheckRecord(RunRecord, frozen=True, kw_only=True, tag="check"):
    """The record of a gate.

    Attributes:
        location: File of the configuration.
        gate: What only a gate has.
    """

    location: str
    gate: GatePart


class SweepRecord(_Entry, frozen=True, kw_only=True, tag_field="kind", tag="sweep"):
    """The record of a sweep.

    Attributes:
        schema: Name of this schema.
        version: Of this schema.
        complete: Whether every cell has been run.
        summary: One sentence, the worst case first.
        sweep: What was run.
    """

    schema: Literal["leakaudit.results"]
    version: Literal[1, 2]
    complete: bool
    summary: str
    sweep: SweepPart


Record: TypeAlias = AttackRecord | AuditRecord | CheckRecord | SweepRecord
KINDS: dict[str, type[Record]] = {
    "attack": AttackRecord,
    "audit": AuditRecord,
    "check": CheckRecord,
    "sweep": SweepRecord,
}
NO_SCORES = Scores(chance=None, labels_found=None, not_recovered=0, matched=())


def certificate(name: str, sentence: str) -> CertificateEntry:
    """Return a certificate as an entry.

    Args:
        name: Name of a `leakaudit.reconstruction.Certificate`.
        sentence: Its value.

    Returns:
        The entry.
    """
    return msgspec.convert({"name": name, "sentence": sentence}, CertificateEntry)


def given(value: T | UnsetType, default: T) -> T:
    """Return a field that may be absent.

    Args:
        value: The field.
        default: What stands for an absent one.

    Returns:
        The value, or the default if the field is absent.
    """
    if isinstance(value, UnsetType):
        return default
    return value


def kind_of(record: Record) -> str:
    """Return the kind of a record.

    Args:
        record: Any record.

    Returns:
        Its name in `KINDS`.
    """
    return str(record.__struct_config__.tag)


def of(results: Mapping[str, object]) -> Record:
    """Return JSON values as a record.

    Args:
        results: The values of one record, as `leakaudit.results.record_file.read` returns them.

    Returns:
        The record.

    Raises:
        msgspec.ValidationError: A value is not what the record holds there. Use
            `leakaudit.results.record_file.validate` for a message that people can read.
        KeyError: The kind is not known.
    """
    return fitted(results, KINDS[str(results["kind"])])


def of_run(results: Mapping[str, object]) -> RunRecord:
    """Return JSON values as the record of an attack, an audit or a gate.

    Args:
        results: As in `of`. What only a report adds (``against``, ``gallery``, and ``location``
            if the record is not a gate's) is left out.

    Returns:
        The record.

    Raises:
        msgspec.ValidationError: As `of`.
        LeakauditError: The record is a sweep's.
    """
    kind = KINDS[str(results["kind"])]
    if not issubclass(kind, RunRecord):
        raise LeakauditError("expected the results of an attack, an audit or a gate, got a sweep")
    return _own(results, kind)


def of_sweep(results: Mapping[str, object]) -> SweepRecord:
    """Return JSON values as the record of a sweep.

    Args:
        results: As in `of_run`.

    Returns:
        The record.

    Raises:
        msgspec.ValidationError: As `of`.
    """
    return _own(results, SweepRecord)


def _own(results: Mapping[str, object], kind: type[S]) -> S:
    """Convert a record without what only a report adds to it."""
    fields = {field.encode_name for field in msgspec.structs.fields(kind)}
    added = {"against", "gallery", "location"} - fields
    return fitted({key: value for key, value in results.items() if key not in added}, kind)


def fitted(values: object, kind: type[K]) -> K:
    """Convert JSON values to one type.

    Args:
        values: JSON values. Numbers of another library that JSON writes as numbers are taken too.
        kind: A type of this module, or a list of one.

    Returns:
        The value of that type.

    Raises:
        msgspec.ValidationError: It does not fit.
    """
    if isinstance(values, Mapping):
        values = dict(values)
    try:
        return msgspec.convert(values, kind)
    except msgspec.ValidationError:
        # json writes subclasses of the plain types, such as numpy's float64; msgspec refuses them.
        return msgspec.convert(json.loads(json.dumps(values)), kind)


def plain(record: Struct) -> dict[str, Json]:
    """Return a record, or a part of one, as JSON values.

    Args:
        record: Of any type of this module.

    Returns:
        Its fields, in the order in which results.json is written; absent fields are left out.
    """
    built = msgspec.to_builtins(record, enc_hook=_builtin)
    values: dict[str, Json] = json.loads(json.dumps(built))
    # msgspec writes the tag first, results.json after the version.
    order = [key for key in ("schema", "version", "kind") if key in values and "schema" in values]
    if isinstance(record, CheckRecord):
        # A gate's own part stands before its provenance, that of other kinds after it.
        values["provenance"] = values.pop("provenance")
    return {**{key: values[key] for key in order}, **values}


def _builtin(value: object) -> object:
    """A number of another library, such as numpy's float64, as a plain one."""
    if isinstance(value, float):
        return float(value)
    raise TypeError(f"a record holds JSON values only, got {type(value).__name__}")
