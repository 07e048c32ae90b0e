"""Redaction of a record for a wider audience: no images, labels or paths, and nodes renumbered.

The record is read as typed fields, so the content of every field is known, and each field is
treated accordingly:

- nodes, edges and adversaries are renamed;
- a sentence that could name a node is removed, or composed again from the redacted fields beside
  it;
- a name is kept if it is one of leakaudit's own (an attack, a protocol, a data set, a model, a
  setting), and otherwise hidden;
- what identifies a recording, a file or a machine is removed: identifiers, digests of files, the
  number of a recording, and what a platform or a version says of one machine;
- a digest of settings is computed again from the redacted settings. The old one would confirm every
  correct guess of what was hidden, and the old number of a node is quickly guessed;
- scores, certificates, the structure of the network, seeds, times and versions stay, because they
  are the substance of a report.

No text is searched. Text that is not known to be harmless is removed.
"""

from __future__ import annotations

import hashlib
import hmac
import inspect
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TypeVar

from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import replace

from leakaudit.core import registry
from leakaudit.core.adversary import Adversary
from leakaudit.core.errors import LeakauditError, brief
from leakaudit.core.quantities import MEASURES
from leakaudit.core.reconstruction import Certificate
from leakaudit.core.trace import Json, TaskSpec
from leakaudit.core.verdict import Verdict
from leakaudit.reporting.findings import comparison, findings
from leakaudit.reporting.findings.wording import headline, reconstructed, rule_outcome, untried
from leakaudit.reporting.results import audit_names, model
from leakaudit.reporting.results.model import (
    AttackAbout,
    AuditPart,
    AuditRecord,
    CellEntry,
    CheckRecord,
    Finding,
    GatePart,
    LeakSummary,
    NodeBest,
    Provenance,
    Rescoring,
    RuleEntry,
    RunRecord,
    TraceSummary,
    Undetermined,
    VerdictEntry,
    ViewEntry,
    given,
)
from leakaudit.reporting.results.provenance import PACKAGES, digest
from leakaudit.reporting.results.record_file import ID_ONLY, NOT_COMPARED, UNTIED, warned
from leakaudit.scoring.scoring import METRICS, SEVERAL, definitions
from leakaudit.tasks.data import is_public
from leakaudit.tasks.models import MODELS
from leakaudit.views.conformance.rest import unexplained, untested

HIDDEN = "redacted"
LARGEST = 200_000  # nodes that are renumbered, which takes about a second; a choice
ROUNDS = 100_000  # rounds up to which a sentence about the last round attacked is kept: a choice
LOCATION = "leakaudit.toml"  # in place of the path of a gate's configuration
LEAKS = ("gradient", "difference")  # kinds of a `leakaudit.core.leak.GradientLeak`
GUESSERS = ("auto", *audit_names.GUESSERS)  # what guesses, besides the attacks
LEVELS = (0, 1, 15, 16, 255, 256, 65535)  # data grids for which the definitions are known
LISTENERS = ("adversary", "adversaries", "undetermined")  # settings that name adversaries
ATTACKS = ("attack", "attacks")  # settings that name attacks
# Values of settings that belong to leakaudit's own vocabulary; other text in settings is hidden.
WORDS = frozenset(
    ("all", "auto", "none", "cpu", "cuda", "off", "warn", "error", "mean", "worst", "best", HIDDEN)
)
# Keys of settings that belong to leakaudit's own vocabulary, besides the parameters of attacks,
# protocols and models; others, such as the constants of a user's protocol file, are hidden.
KEYS = frozenset(
    (
        # an attack
        *("adversary", "window", "knows", "nodes", "settings", "attack", "rounds", "truth"),
        *("lpips_weights", "seed", "device", "max_seconds", "trusted"),
        # a scenario, and what belongs to the task in its constants
        *("scenario", "victim", "graph", "data", "samples", "split", "model", "set", "dtype"),
        *("classes", "rows", "labels", "reduction", "test", "every", "calibrate", "weights"),
        *("wires", "layers", "states", "curves", "l2", "bn", "dropout", "tokens", "sha256"),
        # an audit
        *("epsilon", "delta", "noise", "constant", "sensitivity", "smoothness", "adversaries"),
        *("attacks", "seeds", "gradients", "alpha", "psnr", "candidates", "replays", "canary"),
        "one_run",
        # a gate
        *("baseline", "compare", "tolerance", "checks", "budgets", "accepted", "name", "run"),
        *("lint", "timeout", "secure", "undetermined", "measure", "most", "cells", "level"),
        *("aggregate", "id", "reason", "owner", "expires", "tap", "describe"),
        # measures of a gate, by which its tolerance is given
        *MEASURES,
        # seeds
        *("first", "count"),
    )
)
DEVICES = frozenset(("cpu", "cuda", "mps", *(f"cuda:{number}" for number in range(64))))
SYSTEMS = ("Linux", "macOS", "Darwin", "Windows", "FreeBSD", "OpenBSD", "NetBSD")
# The public part of a version; what follows it may name who built the package (PEP 440).
VERSION = re.compile(r"[0-9]+(\.[0-9]+)*((a|b|rc|\.post|\.dev)[0-9]+)*")
ADVERSARY_NOBODY = "nobody"  # the text form of an `Adversary` that observes nothing

B = TypeVar("B", Undetermined, Finding, VerdictEntry, NodeBest)
S = TypeVar("S", bound=Struct)


def redact(results: Mapping[str, Json], key: str | None = None) -> dict[str, Json]:
    """Remove personal data from a record."""
    record = model.of_run(results)
    return model.plain(_Redactor.drawn(key, record).record(record))


def redact_compared(
    now: Mapping[str, Json], before: Mapping[str, Json], key: str | None = None
) -> dict[str, Json]:
    """Remove personal data from two records, with the same node numbers, and compare them."""
    new, old = model.of_run(now), model.of_run(before)
    redactor = _Redactor.drawn(key, new, old)
    shown = redactor.record(new)
    differs = comparison.differences(new, old)
    against = comparison.against(shown, redactor.record(old), differs)
    return {**model.plain(shown), "against": model.plain(against)}


@dataclass(frozen=True)
class _Redactor:
    """Redacts parts of records."""

    places: Mapping[int, int]  # the new number of every node
    attacks: frozenset[str]  # names of attacks that stay
    protocols: frozenset[str]  # names of protocols that stay

    @classmethod
    def drawn(cls, key: str | None, *records: RunRecord) -> _Redactor:
        """Draw a permutation of the nodes of some records."""
        if key == "":
            raise LeakauditError("redaction key: expected a secret, got an empty text")
        secret = key
        if secret is None:
            values = [json.dumps(model.plain(record), sort_keys=True) for record in records]
            secret = "\n".join(values)
        hashed = hashlib.sha256(secret.encode("utf-8", "surrogatepass")).digest()
        nodes = max(network.nodes for record in records for network in _networks(record))
        if nodes > LARGEST:
            raise LeakauditError(
                f"redaction renumbers at most {LARGEST:,} nodes, but the record states "
                f"{brief(nodes, 20)}"
            )
        order = sorted(
            range(nodes), key=lambda node: hmac.digest(hashed, str(node).encode(), "sha256")
        )
        return cls(
            places={node: place for place, node in enumerate(order)},
            attacks=frozenset((*registry.names("attacks"), *GUESSERS)),
            protocols=frozenset(registry.names("victims")),
        )

    # --- names --------------------------------------------------------------------------------

    def node(self, node: int) -> int:
        """The new number of a node; a number outside the network hides nothing and is kept."""
        return self.places.get(node, node)

    def nodes(self, nodes: Iterable[int]) -> tuple[int, ...]:
        """Several nodes, in the order of their new numbers."""
        return tuple(sorted(map(self.node, nodes)))

    def adversary(self, name: str) -> str:
        if name == ADVERSARY_NOBODY:
            return name
        try:
            one = Adversary.parse(name)
        except (LeakauditError, ValueError):
            return HIDDEN
        hears = one.hears
        if isinstance(hears, frozenset):
            hears = frozenset((self.node(a), self.node(b)) for a, b in hears)
        return str(Adversary(hears=hears, corrupt=frozenset(map(self.node, one.corrupt))))

    def attack(self, name: str) -> str:
        return _known(name, self.attacks)

    def renamed(self, part: S, **changes: object) -> S:
        """A part with new names of its nodes, adversaries and attacks, and with other changes."""
        for name in part.__struct_fields__:
            value = getattr(part, name)
            if name in changes or value is None or value is UNSET:
                continue
            if name == "node":
                changes[name] = self.node(value)
            elif name in ("nodes", "others"):
                changes[name] = self.nodes(value)
            elif name == "adversary":
                changes[name] = self.adversary(value)
            elif name == "adversaries":
                changes[name] = tuple(map(self.adversary, value))
            elif name == "attack":
                changes[name] = self.attack(value)
        return replace(part, **changes)

    # --- records ------------------------------------------------------------------------------

    def record(self, record: RunRecord) -> RunRecord:
        shown = replace(
            record,
            trace=self.trace(record.trace),
            findings=_by_node(map(self.finding, record.findings)),
            undetermined=_by_node(self.renamed(one, reason=HIDDEN) for one in record.undetermined),
            not_tried=self.not_tried(record),
            metrics=_metrics(record.metrics, record.trace),
            attacks=self.described(record.attacks),
            picture=None,
            originals=UNSET if record.originals is UNSET else None,
            provenance=self.provenance(record),
            files=UNSET,
            unverified=_remarks(record.unverified, record.trace.rounds),
            unclear=_reasons(record.unclear),
        )
        if isinstance(shown, AuditRecord):
            shown = replace(shown, audit=self.audit(shown.audit))
        if isinstance(shown, CheckRecord):
            shown = replace(shown, gate=self.gate(shown.gate), location=LOCATION)
        said = headline(shown)
        remarks = given(shown.unverified, ())
        return replace(shown, summary=warned(said, remarks, given(shown.unclear, ())))

    def finding(self, finding: Finding) -> Finding:
        return self.renamed(
            finding,
            leak=_leak(finding.leak),
            certificate=replace(
                finding.certificate, sentence=Certificate[finding.certificate.name].value
            ),
            labels=None,
            note="",
            images=None,
        )

    def trace(self, trace: TraceSummary) -> TraceSummary:
        links = trace.links
        if not isinstance(links, UnsetType):
            renamed = [tuple(sorted(map(self.node, edge))) for edge in links]
            links = tuple(sorted(renamed))
        return replace(
            trace,
            protocol=_known(trace.protocol, self.protocols),
            data=_data(trace.data),
            model=_known(trace.model, MODELS),
            links=links,
            sent=UNSET,
        )

    def not_tried(self, record: RunRecord) -> tuple[str, ...]:
        """Compose the sentences again if the record of a gate has the fields they are made from.

        For other records, keep only sentences that name an attack or a round.
        """
        if isinstance(record, CheckRecord) and not isinstance(record.gate.not_tried, UnsetType):
            return tuple(untried(self.renamed(one)) for one in record.gate.not_tried)
        harmless = {f"attack {name}" for name in self.attacks} | self.attacks
        harmless |= {f"rounds after {last}" for last in range(min(record.trace.rounds, ROUNDS))}
        harmless.add("curious nodes and coalitions (--as node:3)")
        harmless.add("adversaries, attacks and epsilons that are not in the plan")
        kept = [said for said in record.not_tried if said in harmless]
        if len(kept) < len(record.not_tried):
            kept.append(HIDDEN)
        return tuple(kept)

    def described(
        self, attacks: Mapping[str, AttackAbout] | UnsetType
    ) -> dict[str, AttackAbout] | UnsetType:
        """Describe attacks as the program does, not as the record does."""
        if isinstance(attacks, UnsetType):
            return UNSET
        known = {}
        for name in attacks:
            if name in self.attacks and name not in GUESSERS:
                known[name] = findings.described(name)
        return known

    def provenance(self, record: RunRecord) -> Provenance:
        source = record.provenance
        trace, truth = source.trace, source.truth
        rescored = source.rescored
        if not isinstance(rescored, UnsetType):
            rescored = tuple(map(_rescoring, rescored))
        settings = self.settings(source.settings)
        return replace(
            source,
            versions=_versions(source.versions),
            seeds=dict(zip(self.keys(source.seeds), source.seeds.values(), strict=True)),
            device=_known(source.device, DEVICES),
            trace=replace(trace, id=HIDDEN, sha256=None, recording=_recording(trace.recording)),
            truth=replace(truth, sha256=None, path=UNSET, recording=_recording(truth.recording)),
            settings=settings,
            digest=digest(settings),
            command=_command(model.kind_of(record)),
            platform=_system(source.platform),
            rescored=rescored,
            program=UNSET,
        )

    def settings(self, values: Mapping[str, object]) -> dict[str, object]:
        """The settings of one table."""
        kept = {}
        for shown, (name, value) in zip(self.keys(values), values.items(), strict=True):
            kept[shown] = self.setting(value, name)
        return kept

    def keys(self, names: Iterable[str]) -> list[str]:
        """Keys of one table: those of leakaudit's own, and a number for each hidden one."""
        kept = []
        hidden = 0
        for name in names:
            if name in KEYS or name in self.attacks or name in _parameters():
                kept.append(name)
            else:
                hidden += 1
                kept.append(f"{HIDDEN} {hidden}")
        return kept

    def setting(self, value: object, name: str) -> object:
        """Numbers stay, except for nodes; texts are adversaries, attacks or known words."""
        if isinstance(value, Mapping):
            return self.settings(value)
        if isinstance(value, list | tuple):
            return [self.setting(inner, name) for inner in value]
        if isinstance(value, str):
            if name in LISTENERS:
                return self.adversary(value)
            if name in ATTACKS:
                return self.attack(value)
            return _known(value, WORDS)
        if isinstance(value, int) and not isinstance(value, bool) and name in ("node", "nodes"):
            return self.node(value)
        return value

    # --- audits -------------------------------------------------------------------------------

    def audit(self, audit: AuditPart) -> AuditPart:
        grid = []
        for point in audit.grid:
            views = [self.view(view) for view in point.read_views()]
            views.sort(key=lambda view: -1 if view.node is None else view.node)
            grid.append(
                replace(point, constants={}, views=tuple(model.plain(view) for view in views))
            )
        return replace(
            audit,
            grid=tuple(grid),
            curves=tuple(map(self.renamed, audit.curves)),
            ceilings=tuple(map(self.renamed, given(audit.ceilings, ()))),
            verdicts=_by_node(map(self.verdict, audit.verdicts)),
            figure=None,
        )

    def view(self, view: ViewEntry) -> ViewEntry:
        claim = view.claim
        if claim is not None:
            claim = replace(claim, source=HIDDEN)
        return self.renamed(view, why=None, claim=claim)

    def verdict(self, one: VerdictEntry) -> VerdictEntry:
        says = Verdict[one.verdict].value
        if one.p is not None:
            says = f"{says} (p = {one.p:.2g})"
        counted = {}
        for name, value in one.figures.items():
            if value is None or isinstance(value, int | float) or value == "inf":
                counted[name] = value
        return self.renamed(one, says=says, power="", figures=counted)

    # --- gates --------------------------------------------------------------------------------

    def gate(self, gate: GatePart) -> GatePart:
        cells = tuple(map(self.cell, gate.cells))
        known = dict(zip((cell.name for cell in gate.cells), cells, strict=True))
        networks = given(gate.networks, {})
        # Rules about a whole recording belong to no cell and are named after their check.
        whole = {}
        for check in {*networks, *(cell.check for cell in gate.cells)}:
            for what in ("lint", "recording"):
                whole[f"{check}/{what}"] = f"{check}/{what}"
        names = {**whole, **{name: cell.name for name, cell in known.items()}}
        ids = {name: f"acceptance {k}" for k, name in enumerate(gate.acceptances, 1)}
        pitfalls = given(gate.pitfalls, {})
        rules = []
        for rule in gate.rules:
            pitfall = pitfalls.get(rule.measure)
            rules.append(
                _rule(
                    self.renamed(rule),
                    names.get(rule.cell, HIDDEN),
                    known.get(rule.cell),
                    None if pitfall is None else pitfall.name,
                    ids.get(rule.accepted, HIDDEN if rule.accepted else ""),
                )
            )
        shown = gate.networks
        if not isinstance(shown, UnsetType):
            shown = {name: self.trace(network) for name, network in networks.items()}
        left_out = gate.not_tried
        if not isinstance(left_out, UnsetType):
            left_out = tuple(map(self.renamed, left_out))
        return replace(
            gate,
            cells=cells,
            rules=tuple(rules),
            networks=shown,
            acceptances={ids[name]: state for name, state in gate.acceptances.items()},
            stale=(HIDDEN,) * len(gate.stale),
            remarks=UNSET,
            not_tried=left_out,
        )

    def cell(self, cell: CellEntry) -> CellEntry:
        adversary, attack = self.adversary(cell.adversary), self.attack(cell.attack)
        nodes = cell.nodes
        if not isinstance(nodes, UnsetType):
            nodes = _by_node(map(self.best, nodes))
        worst = None
        if cell.worst is not None:
            worst = self.best(cell.worst)
        return self.renamed(
            cell,
            name=f"{cell.check}/{adversary}/{attack}",
            digest=digest({"check": cell.check, "adversary": adversary, "attack": attack}),
            worst=worst,
            nodes=nodes,
            says=reconstructed(worst, adversary, attack),
            reasons={},
        )

    def best(self, one: NodeBest) -> NodeBest:
        return self.renamed(one, kind=_known(one.kind, LEAKS), formula="")


def _networks(record: RunRecord) -> list[TraceSummary]:
    networks = [record.trace]
    if isinstance(record, CheckRecord):
        networks += given(record.gate.networks, {}).values()
    return networks


def _by_node(entries: Iterable[B]) -> tuple[B, ...]:
    """Entries in the order of their new numbers; their old order would reveal the old numbers."""
    return tuple(sorted(entries, key=lambda entry: entry.node))


def _known(name: str, known: Iterable[str]) -> str:
    """A name of leakaudit's own, or `HIDDEN`; an empty name reveals nothing."""
    if not name or name in known:
        return name
    return HIDDEN


def _data(name: str) -> str:
    """A public data set keeps its name; a user's file does not."""
    if not name or is_public(name):
        return name
    return HIDDEN


def _leak(leak: LeakSummary) -> LeakSummary:
    return replace(
        leak,
        kind=_known(leak.kind, LEAKS),
        formula="",
        scope=UNSET if leak.scope is UNSET else "",
    )


def _rule(
    rule: RuleEntry, name: str, cell: CellEntry | None, pitfall: str | None, accepted: str
) -> RuleEntry:
    renamed = replace(rule, cell=name, accepted=accepted)
    return replace(renamed, says=rule_outcome(renamed, cell, pitfall))


def _metrics(metrics: Mapping[str, str], trace: TraceSummary) -> dict[str, str]:
    """Definitions composed by the program stay; any other might name a file, such as weights."""
    known: dict[str, set[str]] = {}
    for levels in LEVELS:
        task = TaskSpec("mlp", shape=trace.shape, levels=levels)
        for name, text in definitions(task).items():
            known.setdefault(name, set()).add(text)
    known["label_correct"].add(SEVERAL)
    return {name: _known(text, known.get(name, ())) for name, text in metrics.items()}


def _remarks(remarks: Sequence[str] | UnsetType, rounds: int) -> tuple[str, ...] | UnsetType:
    if isinstance(remarks, UnsetType):
        return UNSET
    known = {UNTIED, ID_ONLY, NOT_COMPARED}
    for last in range(min(rounds, ROUNDS)):
        known |= {untested(last), unexplained(last)}
    return tuple(_known(remark, known) for remark in remarks)


def _reasons(reasons: Sequence[str] | UnsetType) -> tuple[str, ...] | UnsetType:
    """Keep that a result is inconclusive, but not why: a reason names nodes and messages."""
    if isinstance(reasons, UnsetType):
        return UNSET
    return (HIDDEN,) * len(reasons)


def _command(verb: str) -> str:
    return f"leakaudit {verb} {HIDDEN}"


@cache
def _parameters() -> frozenset[str]:
    kinds = [registry.get("attacks", name) for name in registry.names("attacks")]
    kinds += [registry.get("victims", name) for name in registry.names("victims")]
    known: set[str] = set()
    for kind in kinds:
        known |= registry.parameters(kind).keys()
    for made in MODELS.values():
        known |= inspect.signature(made).parameters.keys()
    return frozenset(known)


def _recording(number: str | UnsetType | None) -> str | UnsetType | None:
    return HIDDEN if isinstance(number, str) else number


def _rescoring(one: Rescoring) -> Rescoring:
    metrics = tuple(_known(name, METRICS) for name in one.metrics)
    return replace(one, metrics=metrics, truth=None, command=_command("score"))


def _versions(versions: Mapping[str, str | None]) -> dict[str, str | None]:
    kept: dict[str, str | None] = {}
    for name in ("python", *PACKAGES):
        if name in versions:
            kept[name] = _public(versions[name])
    return kept


def _public(version: str | None) -> str | None:
    if version is None:
        return None
    found = VERSION.match(version)
    return HIDDEN if found is None else found[0]


def _system(platform: str) -> str:
    for name in SYSTEMS:
        if platform.startswith(name):
            return name
    return HIDDEN
