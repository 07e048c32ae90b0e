"""One attack run, from a trace file to a folder with results.json, pictures and a report."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from leakaudit import registry
from leakaudit._util.executor import IN_PROCESS, Executor
from leakaudit._util.files import private_folder, replacing
from leakaudit._util.own_code import Trust
from leakaudit.adversary import Adversary
from leakaudit.errors import AttackError, LeakauditError
from leakaudit.extraction import hearing
from leakaudit.extraction.deduction import Deduction
from leakaudit.pipeline import checkpoint, progress_file
from leakaudit.pipeline import node_groups as nodes
from leakaudit.pipeline.checkpoint import Checkpoint
from leakaudit.pipeline.node_groups import Found
from leakaudit.reconstruction import Certificate
from leakaudit.rendering import pictures
from leakaudit.results import findings, model, provenance, worst_case
from leakaudit.results import record_file as results
from leakaudit.scoring import lpips_weights, scoring
from leakaudit.scoring.scoring import Score
from leakaudit.tasks import remarks
from leakaudit.tasks.task import Task
from leakaudit.trace import Json, Trace, Truth
from leakaudit.traces import trace_file
from leakaudit.traces._storage import sidecar

# Certificates of reconstructions whose recomputed gradients are those of the messages.
CONFIRMED = {Certificate.EXACT, Certificate.INTERVAL}
HASHED = 4 << 30  # bytes; larger traces are not hashed, a choice


@dataclass(frozen=True)
class AttackOptions:
    """The options of an attack run."""

    adversary: Adversary = field(default_factory=Adversary)
    nodes: tuple[int, ...] | None = None  # nodes to attack; None for all
    attack: str = "auto"  # a name or `auto`
    settings: Mapping[str, str] = field(default_factory=dict)  # hyper-parameters of the attack
    rounds: int | None = None  # maximum number of gradients; None for the default
    truth: str = "auto"  # a file, `auto` (the one beside the trace) or `none`
    lpips_weights: str = "auto"  # the argument of `lpips_weights.find`
    seed: int = 0  # seed of the random numbers of the attacks
    device: str = "cpu"  # torch device for the attacks
    max_seconds: float = 0.0  # time limit in seconds; 0 for none
    trusted: Trust = False  # the `package.module:factory` that may execute its code; True for any
    # whether to continue an interrupted run with the same options in the output folder
    resume: bool = False
    # bytes for the gradients and models of a node and for attacking one of them; None for no limit
    max_memory: int | None = None

    def within(self, trace: Trace) -> AttackOptions:
        """Return the options with a number of gradients that `max_memory` allows."""
        if self.max_memory is None:
            return self
        return replace(self, rounds=hearing.affordable(trace, self.rounds, self.max_memory))

    def to_json(self) -> dict[str, Json]:
        """Return the effective configuration, for the record and its digest."""
        adversary = self.adversary
        window = adversary.window
        knows = adversary.knows
        return {
            "adversary": str(adversary),
            "window": None if window is None else [window.start, window.stop],
            "knows": knows if isinstance(knows, str) else sorted(knows),
            "nodes": None if self.nodes is None else list(self.nodes),
            "settings": dict(self.settings),
            "attack": self.attack,
            "rounds": self.rounds,
            "truth": self.truth,
            "lpips_weights": self.lpips_weights,
            "seed": self.seed,
            "device": self.device,
            "max_seconds": self.max_seconds,
            "trusted": self.trusted,
        }


@dataclass(frozen=True)
class Finished:
    """The outcome of a run."""

    results: dict[str, Json]  # the content of results.json
    interrupted: bool  # whether Ctrl-C interrupted the run
    # whether the recording is what it declares, as far as this could be checked, and the truth does
    # not refute every certificate. Reconstructions that are neither certified nor scored with a
    # truth decide nothing, nor does a run that examined no node.
    conclusive: bool


def attack_file(
    path: Path, folder: Path, options: AttackOptions, executor: Executor = IN_PROCESS
) -> Finished:
    """Attack a trace and write the results into a folder.

    These are results.json, reconstructions.npz and .png, originals.npz and report.md. Ctrl-C ends
    the attacks and keeps what was found, marked as not complete.

    Raises:
        LeakauditError: The trace, truth, adversary, attack or folder cannot be used; nothing is
            written.
    """
    started = datetime.now(UTC)
    clock = time.perf_counter()
    trace = trace_file.load(path)
    options = options.within(trace)
    truth_path = _truth_path(path, options.truth)
    truth: Truth | None = None
    unverified: list[str] = []
    if truth_path is not None:
        truth = trace_file.load_truth(truth_path)
        if not trace_file.same_run(trace, truth):
            unverified.append(results.ID_ONLY)
    weights, sentence = lpips_weights.find(options.lpips_weights, trace.task.shape)
    task = Task.build(trace.task, device=options.device, trusted=options.trusted)
    task.check_layout(trace.layout)
    if options.attack != "auto":
        registry.configure(registry.get("attacks", options.attack), dict(options.settings))
    if truth is not None:
        _require_records(trace, truth, options)
    sha256 = _sha256(path)
    with ready(folder):
        kept = Checkpoint.begin(folder, _key(trace, sha256, options), options.resume)
        try:
            found = nodes.attack(trace, task, options, kept, path, executor)
        except AttackError:
            kept.clear()
            raise
        scores = scoring.score([f for _, f in found.pairs], truth, weights)
        origin = provenance.collect(
            trace,
            settings=options.to_json(),
            seeds={"attack": options.seed},
            device=options.device,
            command=provenance.command(),
            started=started,
            seconds=time.perf_counter() - clock,
            trace_sha256=sha256,
            truth_sha256=None if truth_path is None else _sha256(truth_path),
            truth_path=truth_path,
            truth_recording=None if truth is None else truth.recording,
        )
        unexamined = _unexamined(trace, options, found)
        if unexamined:  # these nodes were not examined with the result that nothing is determined
            found.reasons.clear()
        not_tried = _not_tried(found, options, trace)
        on_cpu = task
        if options.device != "cpu":
            on_cpu = Task.build(trace.task, trusted=options.trusted)
        from leakaudit.lint import conformance  # sweeps and audits import this module without it

        checked = conformance.examine(trace, truth, options.adversary, on_cpu, options.max_memory)
        certified = {one.certificate for _, one in found.pairs} & CONFIRMED
        confirmed = checked.compared or bool(certified) or not found.pairs
        if not confirmed:
            unverified.append(results.NOT_COMPARED)
        unverified += checked.rest.sentences
        unclear = checked.unclear(determined=not found.reasons)
        unclear += [found.reasons[node] for node in sorted(found.not_understood)]
        unclear = list(dict.fromkeys([*unexamined, *unclear]))
        record = _write(
            folder,
            trace,
            truth,
            found,
            options.adversary,
            scores,
            origin,
            sentence,
            not_tried,
            unverified,
            unclear,
            remarks.of(task),
        )
        if record["complete"]:
            kept.clear()
    tried = bool(found.pairs or found.reasons)
    refuted = worst_case.refuted(model.of_run(record))
    conclusive = tried and not (unclear or refuted) and (confirmed or truth is not None)
    return Finished(record, found.interrupted, conclusive)


def _unexamined(trace: Trace, options: AttackOptions, found: Found) -> list[str]:
    """Return why a run examined nothing; empty if it examined something."""
    if found.pairs or found.not_understood or found.late:
        return []
    nodes = options.nodes or hearing.targets(trace, options.adversary)
    return Deduction(trace, options.adversary).unexamined(nodes)


def _require_records(trace: Trace, truth: Truth, options: AttackOptions) -> None:
    """Check that a truth has records of every node that is attacked, before any is.

    A node without a leak needs none, nor does one whose gradient is only known as a part of the sum
    that is attacked for an earlier node.
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


def _key(trace: Trace, sha256: str | None, options: AttackOptions) -> str:
    """Return a digest of everything that the reconstructions of a run depend on."""
    about = options.to_json()
    for name in ("truth", "lpips_weights", "max_seconds", "trusted"):
        del about[name]
    return checkpoint.key({"trace": sha256 or [trace.id, trace.recording], "options": about})


def _not_tried(found: Found, options: AttackOptions, trace: Trace) -> list[str]:
    """Return what the run omitted, in words."""
    left_out = []
    if found.late:
        late = ", ".join(map(str, found.late))
        left_out.append(f"nodes {late} (the time limit --max-seconds was reached)")
    tried = {reconstruction.attack for _, reconstruction in found.pairs}
    others = sorted(set(registry.names("attacks")) - tried)
    if others:
        left_out.append(f"attack{'s' * (len(others) > 1)} {', '.join(others)}")
    if not options.adversary.corrupt:
        left_out.append("curious nodes and coalitions (--as node:3)")
    last = max((int(leak.rounds.max()) for leak, _ in found.pairs), default=trace.rounds)
    if last < trace.rounds - 1:
        left_out.append(f"rounds after {last}")
    return left_out


def _write(
    folder: Path,
    trace: Trace,
    truth: Truth | None,
    found: Found,
    adversary: Adversary,
    scores: list[Score],
    origin: Mapping[str, Json],
    lpips: str,
    not_tried: list[str],
    unverified: list[str],
    unclear: list[str],
    of_model: tuple[str, ...],
) -> dict[str, Json]:
    """Write all files of a run.

    results.json is the last one: if it exists, so does everything that it names.
    """
    made = [reconstruction for _, reconstruction in found.pairs]
    images = results.save_reconstructions(folder / "reconstructions.npz", made)
    pairs = pictures.pair_up(made, scores, truth)
    kept = pictures.save_originals(folder / "originals.npz", made, truth)
    drawn = None
    if any(pair.found is not None for pair in pairs):
        drawn = "reconstructions.png"
        title = f"{trace.protocol}, {trace.task.model}, {found.pairs[0][0].adversary}"
        pictures.save(pictures.grid(pairs, title=title), folder / drawn)
    entries = []
    for (leak, reconstruction), score, image in zip(found.pairs, scores, images, strict=True):
        entries.append(findings.finding(leak, reconstruction, score, image))
    missing = []
    for node, reason in sorted(found.reasons.items()):
        understood = node not in found.not_understood
        missing.append(findings.undetermined(node, str(adversary), reason, understood))
    complete = not (found.interrupted or found.late)
    record = findings.build(
        trace,
        entries,
        missing,
        not_tried,
        origin,
        lpips=lpips,
        picture=drawn,
        originals=kept,
        complete=complete,
        truth=truth,
    )
    about_model = "".join(f"MODEL: {remark}. " for remark in of_model)
    record["summary"] = f"{about_model}{record['summary']}"
    record = results.inconclusive(record, *unclear)
    record = results.remarked(results.sealed(record, folder), *unverified)
    with replacing(folder / "report.md") as file:
        file.write(registry.get("reports", "markdown")(record).encode())
    results.write(folder / "results.json", record)
    return record


def _truth_path(path: Path, option: str) -> Path | None:
    """Return the truth file for scoring, or None."""
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
    """Digest of a file, of the manifest for a folder of shards; None above `HASHED` bytes."""
    file = path
    if path.is_dir():
        file = path / "manifest.json"
    if file.stat().st_size > HASHED:
        return None
    return sidecar.digest(file)


@contextmanager
def ready(folder: Path) -> Iterator[None]:
    """Create the output folder and check that it is writable before any work.

    The work inside writes its progress there. If it fails, the folders that were made and are
    still empty are removed.
    """
    new = [p for p in (folder, *folder.parents) if not p.exists()]
    try:
        private_folder(folder)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as e:
        raise LeakauditError(
            f"output folder {folder} cannot be written: {e.strerror}; choose another with --output"
        ) from e
    try:
        with progress_file.kept(folder):
            yield
    except BaseException:
        for made in new:
            if made.is_dir() and not any(made.iterdir()):
                made.rmdir()
        raise
