"""One attack run, from a trace file to a folder with results.json, pictures and a report."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import UNSET, structs

from leakaudit._util.jobs import IN_PROCESS, Pool
from leakaudit.core import registry
from leakaudit.core.errors import AttackError, LeakauditError
from leakaudit.core.reconstruction import Certificate
from leakaudit.core.trace import Trace, Truth
from leakaudit.reporting.findings import findings
from leakaudit.reporting.results import output_folder, provenance, record_file
from leakaudit.reporting.results.model import AttackRecord, Provenance
from leakaudit.runs.pipeline import checkpoint, output
from leakaudit.runs.pipeline import node_groups as nodes
from leakaudit.runs.pipeline.attack_options import AttackOptions
from leakaudit.runs.pipeline.checkpoint import Checkpoint
from leakaudit.runs.pipeline.node_groups import GroupResults
from leakaudit.scoring import lpips_weights, scoring
from leakaudit.scoring.scoring import Score
from leakaudit.tasks import remarks
from leakaudit.tasks.task import Task
from leakaudit.traces import trace_file
from leakaudit.traces._storage import sidecar
from leakaudit.views.extraction import hearing
from leakaudit.views.extraction.deduction import Deduction

if TYPE_CHECKING:
    from leakaudit.views.conformance.conformance import Conformance

# Certificates of reconstructions whose recomputed gradients are those of the messages.
CONFIRMED = {Certificate.EXACT, Certificate.INTERVAL}
HASHED = 4 << 30  # bytes; larger traces are not hashed, a choice


@dataclass(frozen=True)
class _AttackOutcome:
    record: AttackRecord  # as results.json contains it
    interrupted: bool  # whether Ctrl-C interrupted the run


def attack_file(
    path: Path, folder: Path, options: AttackOptions, executor: Pool = IN_PROCESS
) -> _AttackOutcome:
    """Attack a trace and write results.json, pictures, arrays and report.md into a folder.

    Nothing is written if an input is invalid. Ctrl-C keeps what was found, as not complete.
    """
    started = datetime.now(UTC)
    clock = time.perf_counter()
    run = _Run.load(path, options)
    with output_folder.ready(folder):
        kept = Checkpoint.begin(folder, run.key(), options.resume)
        try:
            found = nodes.attack(run.trace, run.task, run.options, kept, path, executor)
        except AttackError:
            kept.clear()
            raise
        made = [reconstruction for _, reconstruction in found.pairs]
        scores = scoring.score(made, run.truth, run.weights)
        origin = run.origin(started, time.perf_counter() - clock)
        record = output.write(folder, _build(run, found, scores, origin), made, scores, run.truth)
        if record.complete:
            kept.clear()
    return _AttackOutcome(record, found.interrupted)


def check(path: Path, options: AttackOptions) -> None:
    """Check all that `attack_file` checks before any work.

    Raises:
        LeakauditError: An input is invalid.
    """
    _Run.load(path, options)


@dataclass(frozen=True)
class _Run:
    """What is attacked, after everything was checked that can be before any work."""

    path: Path
    options: AttackOptions  # with a number of gradients that the memory allows
    trace: Trace
    sha256: str | None  # of the trace; None if it is too large
    task: Task
    truth_path: Path | None  # None if nothing is scored
    truth: Truth | None
    by_id: bool  # whether only the id ties the truth to the trace
    weights: lpips_weights.Weights | None
    lpips: str  # which weights are used, in words

    @classmethod
    def load(cls, path: Path, options: AttackOptions) -> _Run:
        hearing.check_rounds(options.rounds)
        hearing.check_nodes(options.adversary, options.nodes)
        trace = trace_file.load(path)
        options.adversary.check(trace.graph)
        options = options.within(trace)
        truth: Truth | None = None
        by_id = False
        truth_path = _truth_path(path, options.truth)
        if truth_path is not None:
            truth = trace_file.load_truth(truth_path)
            by_id = not trace_file.same_run(trace, truth)
        weights, lpips = lpips_weights.find(options.lpips_weights, trace.task.shape)
        task = Task.build(trace.task, device=options.device, trusted=options.trusted)
        task.check_layout(trace.layout)
        if options.attack != "auto":
            registry.configure(registry.get("attacks", options.attack), dict(options.settings))
        if truth is not None:
            _require_records(trace, truth, options)
        return cls(
            path,
            options,
            trace,
            _sha256(path),
            task,
            truth_path,
            truth,
            by_id,
            weights,
            lpips,
        )

    def key(self) -> str:
        about = self.options.to_json()
        for name in ("truth", "lpips_weights", "max_seconds", "trusted"):
            del about[name]
        trace = self.sha256 or [self.trace.id, self.trace.recording]
        return checkpoint.key({"trace": trace, "options": about})

    def origin(self, started: datetime, seconds: float) -> Provenance:
        truth = None
        if self.truth is not None and self.truth_path is not None:
            sha256 = _sha256(self.truth_path)
            truth = provenance.scored_with(sha256, self.truth_path, self.truth.recording)
        return provenance.collect(
            self.trace,
            settings=self.options.to_json(),
            seeds={"attack": self.options.seed},
            device=self.options.device,
            started=started,
            seconds=seconds,
            trace_sha256=self.sha256,
            truth=truth,
        )

    def conformance(self) -> Conformance:
        from leakaudit.views.conformance import (
            conformance,  # sweeps and audits import this module without it
        )

        on_cpu = self.task
        if self.options.device != "cpu":
            on_cpu = Task.build(self.trace.task, trusted=self.options.trusted)
        options = self.options
        return conformance.examine(
            self.trace, self.truth, options.adversary, on_cpu, options.max_memory
        )


def _build(
    run: _Run, found: GroupResults, scores: Sequence[Score], origin: Provenance
) -> AttackRecord:
    unexamined = _unexamined(run.trace, run.options, found)
    if unexamined:  # these nodes were not examined with the result that nothing is determined
        found.reasons.clear()
    checked = run.conformance()
    entries = []
    for (leak, reconstruction), score in zip(found.pairs, scores, strict=True):
        entries.append(findings.finding(leak, reconstruction, score))
    missing = []
    for node, reason in sorted(found.reasons.items()):
        understood = node not in found.not_understood
        adversary = str(run.options.adversary)
        missing.append(findings.undetermined(node, adversary, reason, understood))
    unverified = []
    if run.by_id:
        unverified.append(record_file.ID_ONLY)
    certified = {one.certificate for _, one in found.pairs} & CONFIRMED
    if found.pairs and not (checked.compared or certified):
        unverified.append(record_file.NOT_COMPARED)
    unverified += checked.rest.sentences
    unclear = checked.unclear(determined=not found.reasons)
    unclear += [found.reasons[node] for node in sorted(found.not_understood)]
    unclear = list(dict.fromkeys([*unexamined, *unclear]))
    made = findings.build(
        run.trace,
        entries,
        origin,
        lpips=run.lpips,
        undetermined=missing,
        not_tried=_not_tried(found, run.options, run.trace),
        complete=not (found.interrupted or found.late),
        truth=run.truth,
    )
    said = "".join([*(f"MODEL: {remark}. " for remark in remarks.of(run.task)), made.summary])
    return structs.replace(
        made,
        summary=record_file.warned(said, unverified, unclear),
        unverified=tuple(unverified) or UNSET,
        unclear=tuple(unclear) or UNSET,
    )


def _unexamined(trace: Trace, options: AttackOptions, found: GroupResults) -> list[str]:
    """Return why a run examined nothing; empty if it examined something."""
    if found.pairs or found.not_understood or found.late:
        return []
    nodes = options.nodes or hearing.targets(trace, options.adversary)
    return Deduction(trace, options.adversary).unexamined(nodes)


def _require_records(trace: Trace, truth: Truth, options: AttackOptions) -> None:
    """Check that a truth has records of every attacked node, before any is attacked.

    A node without a leak needs none, nor one in a sum that is attacked for an earlier node.
    """
    order = options.nodes
    if order is None:
        order = hearing.targets(trace, options.adversary)
    known = set(truth.node.tolist())
    earlier = set[int]()
    heard = None
    for node in order:
        if node not in known:
            heard = heard or Deduction(trace, options.adversary)
            for leak in hearing.deduce(heard, [node], options.rounds, incomplete=True):
                if not earlier & set(leak.others):
                    scoring.require_records(truth, node)
        earlier.add(node)


def _not_tried(found: GroupResults, options: AttackOptions, trace: Trace) -> list[str]:
    left_out = []
    if found.late:
        late = ", ".join(map(str, found.late))
        left_out.append(f"nodes {late} (the time limit --max-seconds was reached)")
    tried = {name for _, one in found.pairs for name in (one.attack, *one.tried)}
    others = sorted(set(registry.names("attacks")) - tried)
    if others:
        left_out.append(f"attack{'s' * (len(others) > 1)} {', '.join(others)}")
    if not options.adversary.corrupt:
        left_out.append("curious nodes and coalitions (--as node:3)")
    last = max((int(leak.rounds.max()) for leak, _ in found.pairs), default=trace.rounds)
    if last < trace.rounds - 1:
        left_out.append(f"rounds after {last}")
    return left_out


def _truth_path(path: Path, option: str) -> Path | None:
    if option == "none":
        return None
    beside = trace_file.truth_path(path)
    if option == "auto":
        if beside.is_file():
            return beside
        return None
    if not Path(option).is_file():
        raise LeakauditError(
            f"the truth file {option} does not exist; specify it with --truth FILE, or use "
            "--truth none"
        )
    return Path(option)


def _sha256(path: Path) -> str | None:
    """Digest of a file, or of a folder's manifest; None above `HASHED` bytes."""
    file = path
    if path.is_dir():
        file = path / "manifest.json"
    if file.stat().st_size > HASHED:
        return None
    return sidecar.digest(file)
