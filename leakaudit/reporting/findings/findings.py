"""The record of an attack: its findings, then all of it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import msgspec
from msgspec import UNSET, UnsetType

from leakaudit.core import registry
from leakaudit.core.evidence import Evidence, Origin
from leakaudit.core.leak import GradientLeak
from leakaudit.core.reconstruction import EQUATIONS, Certificate, Reconstruction
from leakaudit.core.trace import Trace, Truth
from leakaudit.reporting.findings.wording import summary
from leakaudit.reporting.results import model
from leakaudit.reporting.results.model import (
    SCHEMA,
    VERSION,
    AttackAbout,
    AttackRecord,
    EvidenceEntry,
    Finding,
    LeakSummary,
    Provenance,
    RoundSpan,
    Scores,
    SentAt,
    StoredImages,
    TraceSummary,
    Undetermined,
)
from leakaudit.scoring.scoring import Score, definitions
from leakaudit.traces import callers

DRAWN = 5000  # most edges that are stored for the drawing; a choice, far more than a page draws


def finding(
    leak: GradientLeak,
    found: Reconstruction,
    score: Score,
    images: StoredImages | None = None,
) -> Finding:
    """Return one finding of a record."""
    return Finding(
        node=found.node,
        adversary=leak.adversary,
        attack=found.attack,
        leak=summarised(leak),
        certificate=model.certificate(found.certificate.name, _sentence(leak, found)),
        certified=certified(found),
        batch=_batch(leak, found),
        labels=_labels(found),
        scores=scores(score),
        residual=finite(found.residual),
        seconds=found.seconds,
        note=noted(found, score),
        images=images,
        others=found.others or UNSET,
        rounds=found.rounds or UNSET,
        evidence=tuple(map(_entry, found.evidence)) or UNSET,
    )


def _batch(leak: GradientLeak, found: Reconstruction) -> int:
    """Return the number of inputs: the declared one, unless the messages contradict it."""
    about = [one.origin for one in found.evidence if one.subject == "samples"]
    wrong = Origin.CONTRADICTED in about
    if leak.inputs is None or wrong:
        return len(found.x)
    return leak.inputs


def _sentence(leak: GradientLeak, found: Reconstruction) -> str:
    """Return what a certificate means, with the rounds if it does not concern all of them."""
    sentence = found.certificate.value
    exact = found.rounds[: found.certified]
    if found.certificate is not Certificate.EXACT or not exact:
        return sentence
    its = "the gradients of its own rounds"
    if len({*exact}) == 1:
        its = f"{leak.kind} {', '.join(map(str, exact[0]))}"
    return sentence.replace(EQUATIONS, f"{its} of {leak.span}")


def _entry(evidence: Evidence) -> EvidenceEntry:
    return msgspec.convert(
        {
            "subject": evidence.subject,
            "origin": evidence.origin.name,
            "detail": evidence.detail,
        },
        EvidenceEntry,
    )


def scores(score: Score) -> Scores | None:
    """Return a score in the form in which the record stores it."""
    measured = score.to_json()
    if measured is None:
        return None
    return model.fitted(measured, Scores)


def certified(found: Reconstruction) -> int:
    """Count the inputs of a reconstruction that are certified exact."""
    return sum(one is Certificate.EXACT for one in found.certificates)


def noted(found: Reconstruction, score: Score) -> str:
    """Join the remarks of an attack and of scoring."""
    return "; ".join(filter(None, (found.note, score.note)))


def summarised(leak: GradientLeak) -> LeakSummary:
    """Describe a leak that was attacked."""
    rounds = RoundSpan(
        first=int(leak.rounds.min()), last=int(leak.rounds.max()), count=len(leak.rounds)
    )
    return LeakSummary(
        kind=leak.kind,
        rounds=rounds,
        rows=len(leak.combination),
        formula=leak.formula,
        scope=leak.scope,
        std=finite(float(leak.std.max())),
    )


def _labels(found: Reconstruction) -> tuple[float | None, ...] | None:
    if found.y is None or found.y.numel() != len(found.y):
        return None  # targets of several numbers are no labels
    return tuple(finite(label) for label in found.y.flatten().tolist())


def undetermined(node: int, adversary: str, reason: str, understood: bool) -> Undetermined:
    """Return one entry of ``undetermined``."""
    return Undetermined(
        node=node,
        adversary=adversary,
        reason=reason,
        understood=UNSET if understood else False,
    )


def build(
    trace: Trace,
    findings: Sequence[Finding],
    provenance: Provenance,
    *,
    lpips: str,
    undetermined: Sequence[Undetermined] = (),
    not_tried: Sequence[str] = (),
    complete: bool = True,
    truth: Truth | None = None,
) -> AttackRecord:
    """Return the record of an attack, without files."""
    return AttackRecord(
        schema=SCHEMA,
        version=VERSION,
        complete=complete,
        summary=summary(findings, undetermined, not_tried, trace.task.shape, complete),
        trace=trained(trace, truth),
        findings=tuple(findings),
        undetermined=tuple(undetermined),
        not_tried=tuple(not_tried),
        metrics=definitions(trace.task, lpips, truth),
        attacks=attacks_of(findings),
        picture=None,
        originals=None,
        provenance=provenance,
    )


def trained(trace: Trace, truth: Truth | None = None) -> TraceSummary:
    """Describe the training and the network to be drawn."""
    graph, task = trace.graph, trace.task
    sent: tuple[SentAt, ...] | UnsetType = UNSET
    if truth is not None:
        noted = callers.read(truth.provenance)
        if noted:
            sent = tuple(SentAt(kind=one.kind, file=one.file, line=one.line) for one in noted)
    return TraceSummary(
        protocol=trace.protocol,
        nodes=graph.nodes,
        edges=len(graph.edges),
        links=graph.edges[:DRAWN],
        rounds=trace.rounds,
        data=task.data,
        model=task.model,
        shape=task.shape,
        classes=task.classes,
        sent=sent,
    )


def attacks_of(found: Iterable[Finding]) -> dict[str, AttackAbout]:
    """Return what a reader should know about the attacks behind findings."""
    names = dict.fromkeys(one.attack for one in found if one.attack != "none")
    return {name: described(name) for name in names}


def described(attack: str) -> AttackAbout:
    """Return what a reader should know about an attack."""
    kind = registry.get("attacks", attack)
    return AttackAbout(paper=kind.paper, reads=kind.reads, cost=kind.cost, exact=kind.exact)


def finite(value: float) -> float | None:
    """Return a number that JSON can represent."""
    return value if math.isfinite(value) else None
