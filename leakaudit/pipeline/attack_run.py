"""One attack run, from a trace file to a folder with results.json, pictures and a report."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from leakaudit import registry
from leakaudit._util.files import replacing
from leakaudit.adversary import Adversary
from leakaudit.errors import AttackError, LeakauditError
from leakaudit.pipeline import checkpoint
from leakaudit.pipeline import node_groups as nodes
from leakaudit.pipeline.checkpoint import Checkpoint
from leakaudit.pipeline.node_groups import Found
from leakaudit.rendering import pictures
from leakaudit.results import findings, provenance
from leakaudit.results import record_file as results
from leakaudit.scoring import lpips_weights, scoring
from leakaudit.scoring.scoring import Score
from leakaudit.tasks.task import Task
from leakaudit.trace import Json, Trace, Truth
from leakaudit.traces import trace_file
from leakaudit.traces._storage import sidecar

HASHED = 4 << 30  # bytes; larger traces are attacked without being hashed


@dataclass(frozen=True)
class Options:
    """What an attack run does.

    nodes: whose inputs, None for all. attack: a name or ``auto``; settings: its hyper-parameters. rounds: how many
    gradients at most. truth: a file, ``auto`` (the one beside the trace) or ``none``. max_seconds: 0 for no limit.
    trusted: whether a model ``package.module:factory`` may run its code. resume: whether to go on with what an interrupted run
    of the same kind left in the output folder.
    """

    adversary: Adversary = field(default_factory=Adversary)
    nodes: tuple[int, ...] | None = None
    attack: str = "auto"
    settings: Mapping[str, str] = field(default_factory=dict)
    rounds: int | None = None
    truth: str = "auto"
    lpips_weights: str = "auto"
    seed: int = 0
    device: str = "cpu"
    max_seconds: float = 0.0
    trusted: bool = False
    resume: bool = False

    def to_json(self) -> dict[str, Json]:
        """Return the effective configuration, for the record and its digest."""
        window = self.adversary.window
        heard = {
            "adversary": str(self.adversary),
            "window": None if window is None else [window.start, window.stop],
        }
        knows = self.adversary.knows
        rest = {
            k: getattr(self, k)
            for k in (
                "attack",
                "rounds",
                "truth",
                "lpips_weights",
                "seed",
                "device",
                "max_seconds",
                "trusted",
            )
        }
        return {
            **heard,
            "knows": knows if isinstance(knows, str) else sorted(knows),
            "nodes": self.nodes and list(self.nodes),
            "settings": dict(self.settings),
            **rest,
        }


@dataclass(frozen=True)
class Finished:
    """What a run leaves: the record, and whether Ctrl-C cut it short."""

    results: dict[str, Json]
    interrupted: bool


def attack_file(path: Path, folder: Path, options: Options) -> Finished:
    """Attack a trace and write results.json, reconstructions.npz and .png, originals.npz and report.md into `folder`.

    Ctrl-C ends the attacks and keeps what was found, marked as not complete.
    Raises LeakauditError, with nothing written, for a trace, truth, adversary, attack or folder that cannot be used.
    """
    started, clock = datetime.now(UTC), time.perf_counter()
    trace = trace_file.load(path)
    truth_path = _truth_path(path, options.truth)
    truth = None if truth_path is None else trace_file.load_truth(truth_path)
    unverified = []
    if truth is not None and not trace_file.same_run(trace, truth):
        unverified.append(results.ID_ONLY)
    weights, sentence = lpips_weights.find(options.lpips_weights, trace.task.shape)
    task = Task.build(trace.task, device=options.device, trusted=options.trusted)
    task.check_layout(trace.layout)
    if options.attack != "auto":
        registry.configure(registry.get("attacks", options.attack), dict(options.settings))
    sha256 = _sha256(path)
    with ready(folder):
        kept = Checkpoint.begin(folder, _key(trace, sha256, options), options.resume)
        try:
            found = nodes.attack(trace, task, options, kept)
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
        record = _write(
            folder,
            trace,
            truth,
            found,
            scores,
            origin,
            sentence,
            _not_tried(found, options, trace),
            unverified,
        )
        if record["complete"]:
            kept.clear()
    return Finished(record, found.interrupted)


def _key(trace: Trace, sha256: str | None, options: Options) -> str:
    """Digest of what the reconstructions of a run depend on."""
    rest = ("truth", "lpips_weights", "max_seconds", "trusted")
    about = {k: v for k, v in options.to_json().items() if k not in rest}
    return checkpoint.key({"trace": sha256 or [trace.id, trace.recording], "options": about})


def _not_tried(found: Found, options: Options, trace: Trace) -> list[str]:
    """Say in words what the run left out."""
    late = (
        [f"nodes {', '.join(map(str, found.late))} (--max-seconds was over)"] if found.late else []
    )
    attacks = sorted(set(registry.names("attacks")) - {r.attack for _, r in found.pairs})
    listened = [] if options.adversary.corrupt else ["curious nodes and coalitions (--as node:3)"]
    last = max((int(leak.rounds.max()) for leak, _ in found.pairs), default=trace.rounds)
    after = [f"rounds after {last}"] if last < trace.rounds - 1 else []
    return [*late, *(f"attack {name}" for name in attacks), *listened, *after]


def _write(
    folder: Path,
    trace: Trace,
    truth: Truth | None,
    found: Found,
    scores: list[Score],
    origin: Mapping[str, Json],
    lpips: str,
    not_tried: list[str],
    unverified: list[str],
) -> dict[str, Json]:
    """Write all files of a run, results.json last: where it stands, everything that it names stands too."""
    made = [f for _, f in found.pairs]
    images = results.save_reconstructions(folder / "reconstructions.npz", made)
    pairs = pictures.pair_up(made, scores, truth)
    kept = pictures.save_originals(folder / "originals.npz", made, truth)
    drawn = "reconstructions.png" if any(p.found is not None for p in pairs) else None
    if drawn:
        title = f"{trace.protocol}, {trace.task.model}, {found.pairs[0][0].adversary}"
        pictures.save(pictures.grid(pairs, title=title), folder / drawn)
    entries = [
        findings.finding(leak, f, s, i)
        for (leak, f), s, i in zip(found.pairs, scores, images, strict=True)
    ]
    adversary = origin["settings"]["adversary"]
    missing = [
        findings.undetermined(node, adversary, reason)
        for node, reason in sorted(found.reasons.items())
    ]
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
    )
    record = results.remarked(results.sealed(record, folder), *unverified)
    with replacing(folder / "report.md") as file:
        file.write(registry.get("reports", "markdown")(record).encode())
    results.write(folder / "results.json", record)
    return record


def _truth_path(path: Path, option: str) -> Path | None:
    """Return the truth file that scoring may open, None for none."""
    if option == "none":
        return None
    beside = trace_file.truth_path(path)
    if option == "auto":
        return beside if beside.is_file() else None
    if not Path(option).is_file():
        raise LeakauditError(
            f"truth file {option} is not there; name it with --truth FILE, or use --truth none"
        )
    return Path(option)


def _sha256(path: Path) -> str | None:
    """Return the digest of a file, of the manifest for a folder of shards; None above `HASHED` bytes."""
    file = path / "manifest.json" if path.is_dir() else path
    return sidecar.digest(file) if file.stat().st_size <= HASHED else None


@contextmanager
def ready(folder: Path) -> Iterator[None]:
    """Make the output folder and try it before any work; take it away again where the work inside fails and left it empty."""
    new = [p for p in (folder, *folder.parents) if not p.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with replacing(folder / "results.probe") as file:
            file.write(b"")
        (folder / "results.probe").unlink()
    except OSError as e:
        raise LeakauditError(
            f"output folder {folder} cannot be written: {e.strerror}; choose another with --output"
        ) from e
    try:
        yield
    except BaseException:
        for made in new:
            if made.is_dir() and not any(made.iterdir()):
                made.rmdir()
        raise
