"""The record of a run of a gate: results.json of kind ``check``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from msgspec.structs import replace

from leakaudit._util import averages
from leakaudit._util.revision import revision
from leakaudit.core import registry
from leakaudit.core.errors import Interrupted
from leakaudit.core.quantities import MEASURES
from leakaudit.core.trace import Trace
from leakaudit.core.verdict import Holds
from leakaudit.judging.gate.baseline import rounded
from leakaudit.judging.gate.cells import GateCell
from leakaudit.judging.gate.config import Acceptance, Check, Gate
from leakaudit.judging.gate.judgement import GateResults
from leakaudit.judging.gate.rule import CANNOT_TELL, FOUND, Rule
from leakaudit.judging.gate.rules import whom
from leakaudit.judging.gate.runs import values
from leakaudit.reporting.findings.findings import finite
from leakaudit.reporting.findings.wording import gate_headline, untried
from leakaudit.reporting.results import provenance
from leakaudit.reporting.results.model import (
    SCHEMA,
    VERSION,
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
    encoded,
)
from leakaudit.scoring import scoring
from leakaudit.views.conformance.pitfall import NAMES

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


def build(judged: GateResults) -> CheckRecord:
    """Return the record of a run."""
    if judged.first is None:
        raise Interrupted("the run was interrupted before the first recording")
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
        strict=judged.options.strict,
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
    return provenance.collect(
        trace,
        settings=settings(judged.gate, judged.options.seed),
        seeds={"first": judged.options.seed, "count": judged.gate.seeds},
        device="cpu",
        started=judged.started,
        seconds=judged.seconds,
        program=revision(Path(judged.gate.source).absolute().parent),
    )


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
