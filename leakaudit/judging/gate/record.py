"""What a run of a gate measured, and its record: results.json of kind ``check``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from leakaudit._util import averages
from leakaudit._util.revision import revision
from leakaudit.core import registry
from leakaudit.core.errors import INTERRUPTED, LeakauditError
from leakaudit.core.quantities import MEASURES
from leakaudit.core.trace import Trace
from leakaudit.core.verdict import Holds
from leakaudit.judging.gate import baseline
from leakaudit.judging.gate.baseline import CellMeasurements, rounded
from leakaudit.judging.gate.cells import GateCell
from leakaudit.judging.gate.config import Acceptance, Check, Gate
from leakaudit.judging.gate.rule import CANNOT_TELL, FOUND, PricedView, Rule
from leakaudit.judging.gate.rules import whom
from leakaudit.judging.gate.runs import SeedResults, values
from leakaudit.reporting.findings.findings import finite
from leakaudit.reporting.findings.wording import gate_headline, untried
from leakaudit.reporting.results import provenance
from leakaudit.reporting.results.model import (
    SCHEMA,
    VERSION,
    AcceptanceState,
    CellEntry,
    CheckRecord,
    ExitCode,
    GatePart,
    GateVerdict,
    NodeBest,
    NotTried,
    PitfallText,
    Provenance,
    RuleEntry,
    RuleKind,
    RuleStatus,
    SampleColumn,
    TraceSummary,
    encoded,
)
from leakaudit.scoring import scoring
from leakaudit.views.conformance.pitfall import NAMES

if TYPE_CHECKING:
    from pandas import DataFrame

WORDS: dict[ExitCode, GateVerdict] = {0: "pass", 1: "leak", 3: "cannot tell"}
# Outcomes from the most to the least severe, in the order in which a reader sees them.
_ORDER = (
    *FOUND,
    *CANNOT_TELL,
    RuleStatus.INCONCLUSIVE,
    RuleStatus.WARNING,
    RuleStatus.ACCEPTED,
    RuleStatus.OK,
    RuleStatus.UNTESTED,
)
_CODES = {f"P{number:02d}": named for number, named in NAMES.items()}  # code -> name and fix

View = tuple[str, str]  # name of a check, and an adversary in the words of the configuration


@dataclass
class GateResults:
    """The results of a run of a gate."""

    gate: Gate
    seed: int = 0
    strict: bool = False  # whether an increase that is not significant leads to code 3
    # cells that were attacked with at least one seed
    cells: list[GateCell] = field(default_factory=list)
    # epsilon in each view, if a budget limits it
    priced: dict[View, PricedView] = field(default_factory=dict)
    # check -> number of rounds that its epsilon covers
    rounds: dict[str, int] = field(default_factory=dict)
    rules: list[Rule] = field(default_factory=list)
    # id -> `used`, `unused` or `expired`
    acceptances: dict[str, AcceptanceState] = field(default_factory=dict)
    # cells of the baseline that are no longer measured
    stale: list[str] = field(default_factory=list)
    # what a reader should know that does not affect the result
    remarks: list[str] = field(default_factory=list)
    first: SeedResults | None = None
    # check -> the training and the network, as stored in the record
    networks: dict[str, TraceSummary] = field(default_factory=dict)
    complete: bool = True  # whether every seed was tried
    interrupted: bool = False  # whether Ctrl-C ended the run
    code: ExitCode = 3
    started: datetime = field(default_factory=lambda: datetime.now(UTC))  # time of the start
    seconds: float = 0.0

    def __repr__(self) -> str:
        """The exit code and how much was judged."""
        cut = "" if self.complete else ", not complete"
        return f"Judged(code {self.code}, {len(self.rules)} rules, {len(self.cells)} cells{cut})"

    def _repr_html_(self) -> str:
        """The card of its record, for notebooks."""
        from leakaudit.reporting.rendering import cards

        return cards.html(self if self.first is None else build(self))

    def to_pandas(self, table: str | None = None) -> DataFrame:
        """Return a table of the results as a data frame: ``rules`` (default) or ``measures``."""
        from leakaudit.reporting.findings import flat

        return flat.frame(flat.of_gate(part(self), table))

    @property
    def blocks(self) -> dict[str, CellMeasurements]:
        """Name of a cell -> what a baseline stores about it."""
        return {
            cell.name: baseline.block(cell.check.name, cell.digest(), cell.seeds, cell.samples)
            for cell in self.cells
        }


def build(judged: GateResults) -> CheckRecord:
    """Return the record of a run."""
    if judged.first is None:
        why = "the run was interrupted before the first recording"
        raise LeakauditError(why, code=INTERRUPTED)
    trace = judged.first.trace
    gate = part(judged)
    left_out = tuple(not_tried(judged.gate))
    means = {name: measure.means for name, measure in MEASURES.items()}
    return CheckRecord(
        schema=SCHEMA,
        version=VERSION,
        complete=judged.complete,
        summary=gate_headline(gate, judged.complete, judged.gate.seeds),
        trace=next(iter(judged.networks.values())),
        findings=(),
        undetermined=(),
        not_tried=tuple(map(untried, left_out)),
        metrics={**means, **scoring.definitions(trace.task)},
        picture=None,
        location=judged.gate.source,
        gate=replace(gate, not_tried=left_out),
        provenance=_origin(judged, trace),
    )


def part(judged: GateResults) -> GatePart:
    """Return what was measured and judged, which needs no recording."""
    return GatePart(
        code=judged.code,
        verdict=WORDS[judged.code],
        strict=judged.strict,
        cells=tuple(_cell(cell, judged) for cell in judged.cells),
        rules=tuple(map(_rule, ordered(judged.rules))),
        networks=dict(judged.networks),
        pitfalls=_pitfalls(judged.rules),
        acceptances=dict(judged.acceptances),
        stale=tuple(judged.stale),
        remarks=tuple(judged.remarks),
    )


def ordered(rules: Sequence[Rule]) -> list[Rule]:
    """Return rules sorted by severity, the most severe first."""
    rank = {status: place for place, status in enumerate(_ORDER)}
    return sorted(rules, key=lambda rule: rank[rule.status])


def not_tried(gate: Gate) -> Iterator[NotTried]:
    """Yield what the configuration omits: attacks, adversaries, nodes and gradients."""
    used = {attack for check in gate.checks for attack in check.attacks}
    if "auto" not in used:
        for name in registry.names("attacks"):
            if name not in used:
                yield NotTried(check="", attack=name)
    tried = dict.fromkeys(who for check in gate.checks for who in check.adversaries)
    yield NotTried(check="", adversaries=tuple(tried))
    for check in gate.checks:
        if check.nodes is not None:
            yield NotTried(check=check.name, nodes=check.nodes)
    for check in gate.checks:
        if check.gradients is not None:
            yield NotTried(check=check.name, gradients=check.gradients)


def _origin(judged: GateResults, trace: Trace) -> Provenance:
    origin = provenance.collect(
        trace,
        settings=settings(judged.gate, judged.seed),
        seeds={"first": judged.seed, "count": judged.gate.seeds},
        device="cpu",
        started=judged.started,
        seconds=judged.seconds,
    )
    state = revision(Path(judged.gate.source).absolute().parent)
    return origin if state is None else replace(origin, program=state)


# --- configuration --------------------------------------------------------------------------------


def settings(gate: Gate, seed: int) -> dict[str, object]:
    """Return the effective configuration as plain values."""
    return {
        "seeds": gate.seeds,
        "alpha": gate.alpha,
        "baseline": gate.baseline,
        "compare": list(gate.compare),
        "tolerance": dict(gate.tolerance),
        "seed": seed,
        "checks": list(map(_check, gate.checks)),
        "budgets": [asdict(budget) for budget in gate.budgets],
        "accepted": list(map(_acceptance, gate.accepted)),
    }


def _check(check: Check) -> dict[str, object]:
    plain: dict[str, object] = dict(vars(check))
    del plain["run"], plain["scenario"]
    plain["set"] = {attack: dict(held) for attack, held in check.set.items()}
    return {**plain, **values(check)}


def _acceptance(acceptance: Acceptance) -> dict[str, object]:
    return {**asdict(acceptance), "expires": acceptance.expires.isoformat()}


# --- entries --------------------------------------------------------------------------------------


def _pitfalls(rules: Sequence[Rule]) -> dict[str, PitfallText]:
    shown = {rule.measure for rule in rules if rule.kind in (RuleKind.LINT, RuleKind.RECORDING)}
    found = {}
    for code in sorted(shown & _CODES.keys()):
        name, fix = _CODES[code]
        found[code] = PitfallText(name=name, fix=fix)
    return found


def _cell(cell: GateCell, judged: GateResults) -> CellEntry:
    priced = judged.priced.get((cell.check.name, cell.who))
    epsilon = None
    holds = Holds.NONE
    if priced is not None and priced.epsilon is not None:
        epsilon = encoded(priced.epsilon)
        holds = priced.holds
    worst = None
    if cell.worst is not None:
        worst = _finite(cell.worst)
    return CellEntry(
        name=cell.name,
        check=cell.check.name,
        adversary=cell.who,
        attack=cell.attack,
        digest=cell.digest(),
        seeds=tuple(cell.seeds),
        measures={name: _column(samples) for name, samples in cell.samples.items()},
        epsilon=epsilon,
        holds=str(holds),
        rounds_priced=judged.rounds.get(cell.check.name),
        worst=worst,
        nodes=tuple(_finite(one) for _, one in sorted(cell.nodes.items())),
        says=whom(cell),
        reasons={str(node): reason for node, reason in sorted(cell.reasons.items())},
        seconds=cell.seconds,
    )


def _column(samples: Sequence[float]) -> SampleColumn:
    return SampleColumn(
        samples=tuple(map(rounded, samples)), mean=averages.mean(samples), worst=max(samples)
    )


def _finite(one: NodeBest) -> NodeBest:
    """Replace values that are not finite by None."""
    psnr = one.psnr
    error = one.relative_error
    if psnr is not None:
        psnr = finite(psnr)
    if error is not None:
        error = finite(error)
    return replace(one, psnr=psnr, relative_error=error)


def _rule(rule: Rule) -> RuleEntry:
    numbers = {"value": rule.value, "limit": rule.limit, "p": rule.p}
    return RuleEntry(**dict(vars(rule), **{k: encoded(number) for k, number in numbers.items()}))
