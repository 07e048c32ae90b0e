"""What is mutated, and how leakaudit reads it afterwards.

A target writes one hostile file, and whatever else its readers need, into an empty folder, and
returns calls. A call is the arguments of a command line, or ``("read", READER, PATH)`` for a reader
of the library. Everything that a call may write has a name that begins with ``out``.
"""

from __future__ import annotations

import bz2
import gzip
import hashlib
import json
import shutil
import struct
import tomllib
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import corpus
import mutations
import torch
from corpus import words
from mutations import REAL, TEXTS
from PIL import Image

from leakaudit.capture.tap.log.reading import read_logs
from leakaudit.capture.tap.messages import description
from leakaudit.capture.wire import folder as wire_folder
from leakaudit.core.trace import TaskSpec
from leakaudit.judging.auditing.plan import AuditPlan
from leakaudit.judging.gate import baseline
from leakaudit.judging.gate import files as gate_files
from leakaudit.protocols.equations import file as protocol_file
from leakaudit.protocols.scenario import Scenario
from leakaudit.reporting.results import record_file
from leakaudit.reporting.viewing import pages, running
from leakaudit.reporting.viewing.filters import Query
from leakaudit.reporting.viewing.index import RunIndex
from leakaudit.runs.sweeping import tables
from leakaudit.scoring import lpips_weights
from leakaudit.tasks import data_files
from leakaudit.tasks.task import Task
from leakaudit.traces import trace_file

Call = tuple[str, ...]

PROTOCOL_FILES = sorted((Path(__file__).parents[1] / "protocol_files").glob("*.toml"))
FORMATS = ("html", "markdown", "sarif", "junit", "github", "text", "json", "csv", "latex", "svg")


def _logs(path: Path) -> None:
    for log in read_logs(path):
        for event in log.events:
            if event.kept:
                log.tensor(event)


def _listing(path: Path) -> str:
    """The pages of the viewer: the list, a comparison, and every run in progress."""
    listing = RunIndex(path).listing()
    found = [pages.listed(listing, Query(), path.name), pages.compared(listing.runs[:2], None, "")]
    for one in listing.progress:
        cells = running.latest(listing.paths[one.id])
        found.append(pages.watched(one, cells, paused=True))
    return "".join(found)


def _model(path: Path) -> None:
    Task.build(TaskSpec(path.name, shape=(2,), classes=2, beside=str(path.absolute().parent)))


READERS: dict[str, Callable[[Path], object]] = {
    "trace": trace_file.load,
    "truth": trace_file.load_truth,
    "record": record_file.read,
    "baseline": baseline.read,
    "gate": gate_files.configured,
    "scenario": Scenario.from_toml,
    "audit": AuditPlan.from_toml,
    "sweep": tables.load,
    "description": description.read,
    "protocol": protocol_file.load,
    "log": _logs,
    "wire": lambda path: wire_folder.read(path, 1e8),
    "npz": data_files.read_npz,
    "libsvm": data_files.read_libsvm,
    "pictures": data_files.read_folder,
    "weights": lpips_weights.read,
    "model": _model,
    "list": _listing,
}
TRACE_VERBS = (  # (calls, cost): a dear call is taken less often
    (("trace", "info", "{}"), 1),
    (("trace", "info", "{}", "-f", "json"), 1),
    (("trace", "verify", "{}"), 1),
    (("trace", "verify", "{}", "--relations", "--truth", "x.truth.pt"), 2),
    (("trace", "convert", "{}", "out.npz"), 1),
    (("trace", "convert", "{}", "out/"), 2),
    (("trace", "convert", "{}", "out.safetensors"), 1),
    (("trace", "lint", "{}"), 5),
    (("trace", "lint", "{}", "--truth", "x.truth.pt"), 5),
    (("explain", "{}"), 4),
    (("explain", "{}", "-f", "json"), 4),
    (("bound", "{}"), 5),
    (("bound", "{}", "-f", "json"), 5),
    (("trace", "equations", "{}"), 5),
    (("attack", "{}", "--dry-run"), 6),
    (("attack", "{}", "-o", "out", "--attack", "exact", "--max-seconds", "2"), 12),
    (("attack", "{}", "-o", "out", "--max-seconds", "1"), 60),
)
RECORD = words("record dpsgd -o out.pt --nodes 2 --graph complete --rounds 1 --samples 1 -q")


@dataclass(frozen=True)
class Target:
    """One kind of file.

    Attributes:
        name: its name.
        weight: how often it is drawn, relative to the others.
        make: writes the files of a case into the current folder; returns its calls.
    """

    name: str
    weight: float
    make: Callable[[Random], list[Call]]


def _some(r: Random, calls: list[Call], most: int) -> list[Call]:
    return r.sample(calls, min(most, len(calls)))


def _on_trace(r: Random, name: str) -> list[Call]:
    """Read a trace, and run one verb on it."""
    verbs = [verb for verb, _ in TRACE_VERBS]
    (verb,) = r.choices(verbs, [1 / cost for _, cost in TRACE_VERBS])
    return [("read", "trace", name), tuple(word.format(name) for word in verb)]


class Targets:
    """All targets on one corpus."""

    def __init__(self, home: Path) -> None:
        """Read the corpus.

        Args:
            home: the folder that `corpus.make` filled.
        """
        self.home = home
        self.files = {
            path.relative_to(home).as_posix(): path.read_bytes()
            for path in home.rglob("*")
            if path.is_file()
        }
        self.traces = [path.relative_to(home).as_posix() for path in corpus.trace_files(home)]

    def all(self) -> list[Target]:
        """Return the targets."""
        return [
            Target("trace", 12, self.trace),
            Target("trace meaning", 12, self.meaning),
            Target("truth", 4, self.truth),
            Target("shards", 4, self.shards),
            Target("trace npz", 4, self.trace_npz),
            Target("trace safetensors", 4, self.trace_safetensors),
            Target("sha256", 1, self.sha256),
            *(Target(f"results {kind}", 3, self.record(kind)) for kind in RECORDS),
            Target("listed results", 3, self.listed),
            Target("pictures npz", 3, self.reconstructions),
            Target("checkpoint", 2, self.checkpoint),
            Target("baseline", 4, self.baseline),
            Target("leakaudit.toml", 4, self.gate),
            Target("scenario", 4, self.scenario),
            Target("audit plan", 4, self.audit),
            Target("sweep plan", 4, self.sweep),
            Target("sweep folder", 3, self.swept),
            Target("protocol file", 5, self.protocol),
            Target("tap log", 6, self.log),
            Target("tap description", 3, self.described),
            Target("tap truth", 2, self.tap_truth),
            Target("wire folder", 5, self.wire),
            Target("data npz", 4, self.npz),
            Target("data pictures", 3, self.pictures),
            Target("data libsvm", 3, self.libsvm),
            Target("graph file", 1, self.graph),
            Target("lpips weights", 3, self.weights),
            Target("model program", 4, self.model),
        ]

    # -----------------------------------------------------------------------------------------
    # Traces and truth files
    # -----------------------------------------------------------------------------------------

    def put(self, *names: str, under: str = "") -> None:
        """Copy files of the corpus."""
        for name in names:
            target = Path(under or name)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(self.files[name])

    def put_folder(self, name: str, target: str) -> None:
        """Copy a folder of the corpus."""
        shutil.copytree(self.home / name, target)

    def _trace(self, r: Random) -> str:
        return r.choice(("a.pt", "b.pt", "c.pt", *self.traces))

    def trace(self, r: Random) -> list[Call]:
        """A trace, at every level."""
        name = self._trace(r)
        Path("x.pt").write_bytes(mutations.mutate_torch(r, self.files[name]))
        self.put(name.replace(".pt", ".truth.pt"), under="x.truth.pt")
        return _on_trace(r, "x.pt")

    def meaning(self, r: Random) -> list[Call]:
        """A well-formed trace with values that no honest run has."""
        name = r.choice(self.traces)
        tree = torch.load(self.home / name, weights_only=True, mmap=False)
        for _ in range(r.choice((1, 1, 2, 3))):
            self._change_meaning(r, tree)
        Path("x.pt").write_bytes(mutations.torch_bytes(tree))
        self.put(name.replace(".pt", ".truth.pt"), under="x.truth.pt")
        return _on_trace(r, "x.pt")

    def _change_meaning(self, r: Random, tree: dict[str, Any]) -> None:
        about = json.loads(tree["meta"])
        table = tree["messages"]
        count = len(table["round"])
        whole = (0, 1, 2, 3, 7, 1_000, 10**6, 2**31 - 1, 10**9, 10**12)
        do = r.randrange(13) if count else 0
        if do < 5 and about["params"]:
            key = r.choice(sorted(about["params"]))
            old = about["params"][key]
            odd = {bool: (not old,), int: whole, float: REAL[:11]}.get(type(old), TEXTS[:-2])
            about["params"][key] = r.choice(odd)
        elif do == 5:
            table["written"][2] = r.choice((0, 1, 5, 100, 1_000, 10**6, 2**31 - 1))
        elif do == 6:
            table["round"][r.randrange(count)] = r.choice((0, 5, 100, 1_000, 2**31 - 2))
        elif do == 7:
            about["nodes"] = r.choice((about["nodes"] + 1, 100, 10_000, 10**6))
        elif do == 8:
            key, value = r.choice(
                (
                    *(("classes", one) for one in (2, 3, 10**6, 2**31 - 1)),
                    *(("levels", one) for one in (1, 255, 2**31 - 1)),
                    *(("loss", one) for one in ("binary", "squared", "cross_entropy")),
                    *(("mean", [one]) for one in REAL[:11]),
                    *(("std", [one]) for one in (1e-300, 1e300, 1e-9)),
                    *(("args", one) for one in ({"bias": False}, {"l2": 1e300}, {"l2": 0.1})),
                    *(("shape", one) for one in ([1, 4096, 4096], [10**6], [0], [2, 2, 2, 2])),
                    *(("model", one) for one in ("mlp", "convnet", "resnet18", "vit", "gpt2")),
                    ("data", r.choice(TEXTS)),
                )
            )
            about["task"][key] = value
        elif do == 9 and tree["public"]:
            key = r.choice(sorted(tree["public"]))
            tree["public"] = mutations.mutate_tensors(r, {key: tree["public"][key]})
        elif do == 10 and table["payload"].numel():
            payload = table["payload"].view(-1)
            payload[r.randrange(len(payload))] = r.choice((float("nan"), float("inf"), 1e38))
        elif do == 11:
            column = table[r.choice(("src", "dst", "row", "kind"))]
            column[r.randrange(count)] = column[r.randrange(count)]
        else:
            about["protocol"] = Path(r.choice(self.traces)).stem
        tree["meta"] = json.dumps(about)

    def truth(self, r: Random) -> list[Call]:
        """A truth file beside a sound trace."""
        name = self._trace(r)
        self.put(name, under="x.pt")
        truth = self.files[name.replace(".pt", ".truth.pt")]
        Path("x.truth.pt").write_bytes(mutations.mutate_torch(r, truth))
        verbs: list[Call] = [
            ("trace", "curves", "x.truth.pt"),
            ("trace", "curves", "x.truth.pt", "-f", "csv"),
            ("trace", "verify", "x.pt", "--relations", "--truth", "x.truth.pt"),
            ("trace", "lint", "x.pt", "--truth", "x.truth.pt"),
        ]
        if name == "c.pt":
            self.put_folder("attack", "out")
            verbs = [("report", "out", "--rescore", "--truth", "x.truth.pt"), *verbs]
        return [("read", "truth", "x.truth.pt"), *_some(r, verbs, 1)]

    def shards(self, r: Random) -> list[Call]:
        """A folder of shards: its manifest, a shard, or a link in its place."""
        self.put_folder("folder", "f")
        self.put("folder.truth.pt", under="x.truth.pt")
        manifest = Path("f/manifest.json")
        shard = r.choice(sorted(Path("f/shards").iterdir()))
        if r.random() < 0.6:
            manifest.write_bytes(mutations.mutate_json(r, manifest.read_bytes()))
            Path("f/manifest.json.sha256").unlink()
        elif r.random() < 0.3:
            shard.rename("elsewhere.pt")
            shard.symlink_to(Path("elsewhere.pt").absolute())
        else:
            shard.write_bytes(mutations.mutate_torch(r, shard.read_bytes()))
        return _on_trace(r, "f")

    def trace_npz(self, r: Random) -> list[Call]:
        """A trace in numpy's format."""
        Path("x.npz").write_bytes(mutations.mutate_npz(r, self.files["a.npz"]))
        return [("trace", "convert", "x.npz", "out.pt")]

    def trace_safetensors(self, r: Random) -> list[Call]:
        """A trace in the format of safetensors."""
        changed = mutations.mutate_safetensors(r, self.files["a.safetensors"])
        Path("x.safetensors").write_bytes(changed)
        return [("trace", "convert", "x.safetensors", "out.pt")]

    def sha256(self, r: Random) -> list[Call]:
        """The file with the sha256 of a trace."""
        self.put("a.pt", under="x.pt")
        text = self.files["a.pt.sha256"]
        odd = (b"", b"\\" + text, text * 1_000, text.upper(), b"\x1b[2J" + text)
        Path("x.pt.sha256").write_bytes(r.choice((mutations.mutate_bytes(r, text), *odd)))
        return [("trace", "verify", "x.pt"), ("trace", "info", "x.pt")]

    # -----------------------------------------------------------------------------------------
    # Results
    # -----------------------------------------------------------------------------------------

    def record(self, kind: str) -> Callable[[Random], list[Call]]:
        """A results.json of one kind, rendered in some format."""

        def make(r: Random) -> list[Call]:
            self.put_folder(kind, "out")
            path = Path("out/results.json")
            path.write_bytes(mutations.mutate_json(r, path.read_bytes()))
            form = r.choice(FORMATS)
            redact = r.choice(((), ("--redact",)))
            table: Call = ()
            if form in TABULAR and r.random() < 0.7:
                table = ("--table", r.choice(TABLES[kind]))
            calls: list[Call] = [
                ("report", "out", "-f", form, *redact, *table, "-o", f"out.{form}")
            ]
            if r.random() < 0.2:
                other = str(self.home / kind)
                pair = r.sample(("out", other), 2)
                calls.append(("report", pair[0], "-f", "text", "--against", pair[1]))
            if kind in ("attack", "unscored") and r.random() < 0.1:
                truth = str(self.home / "c.truth.pt")
                calls.append(("report", "out", "--rescore", "--truth", truth, "-o", "out2"))
            if kind == "check":
                self.put("gate/leakaudit.toml", under="leakaudit.toml")
                self.put("gate/leakage-baseline.json", under="leakage-baseline.json")
                calls.append(("check", "--diff", "out/results.json", "-f", r.choice(PLAIN)))
            return [("read", "record", "out/results.json"), *calls]

        return make

    def listed(self, r: Random) -> list[Call]:
        """Results of all kinds, as the viewer lists them, and notes of a run in progress."""
        for kind in RECORDS:
            path = Path("runs", kind, "results.json")
            path.parent.mkdir(parents=True)
            path.write_bytes(mutations.mutate_json(r, self.files[f"{kind}/results.json"]))
        going = Path("runs/going/progress.json")
        going.parent.mkdir()
        going.write_bytes(mutations.mutate_json(r, self.files["progress.json"]))
        return [("read", "list", "runs")]

    def reconstructions(self, r: Random) -> list[Call]:
        """Arrays beside a record that describes others."""
        kind = r.choice(("attack", "attack", "text"))
        self.put_folder(kind, "out")
        name = r.choice(("reconstructions.npz", "originals.npz"))
        changed = mutations.mutate_npz(r, self.files[f"{kind}/{name}"])
        Path("out", name).write_bytes(changed)
        if r.random() < 0.9:  # a forger writes the digest that fits
            path = Path("out/results.json")
            text = path.read_text()
            if r.random() < 0.4:
                text = mutations.mutate_json(r, text.encode()).decode("utf-8", "replace")
            path.write_text(text.replace(_digest(self.files[f"{kind}/{name}"]), _digest(changed)))
        calls: list[Call] = [("report", "out", "-o", "out.html")]
        if r.random() < 0.2:
            truth = str(self.home / "c.truth.pt")
            calls.append(("report", "out", "--rescore", "--truth", truth, "-o", "out2"))
        return calls

    def checkpoint(self, r: Random) -> list[Call]:
        """The finished part of an interrupted attack."""
        self.put("c.pt")
        Path("out/unfinished").mkdir(parents=True)
        for name in (name for name in self.files if name.startswith("unfinished/")):
            Path("out", name).write_bytes(mutations.mutate_torch(r, self.files[name]))
        return [
            ("attack", "c.pt", "-o", "out", "--resume", "--truth", "none", "--max-seconds", "1")
        ]

    # -----------------------------------------------------------------------------------------
    # Configuration and plans
    # -----------------------------------------------------------------------------------------

    def baseline(self, r: Random) -> list[Call]:
        """The baseline of a gate."""
        self.put("gate/leakaudit.toml", under="leakaudit.toml")
        path = Path("leakage-baseline.json")
        path.write_bytes(mutations.mutate_json(r, self.files["gate/leakage-baseline.json"]))
        results = str(self.home / "check" / "results.json")
        form = ("-f", r.choice(PLAIN))
        verbs: list[Call] = [("check", "--show", *form), ("check", "--diff", results, *form)]
        if r.random() < 0.05:
            verbs = [("check", "-o", "out", "-q")]
        return [("read", "baseline", path.name), *_some(r, verbs, 1)]

    def _toml(self, r: Random, text: str, path: str, computes: bool = False) -> None:
        """Write a changed file; if a command computes what it asks for, it asks for little."""
        allowed = modest if computes else anything
        Path(path).write_bytes(mutations.mutate_toml(r, tomllib.loads(text), allowed))

    def gate(self, r: Random) -> list[Call]:
        """The configuration of a gate."""
        self._toml(r, corpus.GATE, "leakaudit.toml")
        verbs: list[Call] = [("config", "lint"), ("config", "show")]
        return [("read", "gate", "."), *_some(r, verbs, 1)]

    def scenario(self, r: Random) -> list[Call]:
        """A scenario to record."""
        dry = ("record", "--scenario", "s.toml", "--dry-run")
        verbs: list[Call] = [
            ("record", "--scenario", "s.toml", "-o", "out.pt", "--max-bytes", "10MB", "-q"),
            dry,
            ("bound", "s.toml"),
        ]
        verb = r.choice(verbs)
        self._toml(r, corpus.SCENARIO, "s.toml", computes=verb != dry)
        return [("read", "scenario", "s.toml"), verb]

    def audit(self, r: Random) -> list[Call]:
        """The plan of an audit."""
        self._toml(r, corpus.AUDIT, "a.toml")
        return [("read", "audit", "a.toml"), ("audit", "a.toml", "--dry-run")]

    def sweep(self, r: Random) -> list[Call]:
        """The plan of a sweep."""
        self._toml(r, corpus.SWEEP, "w.toml")
        return [("read", "sweep", "w.toml"), ("sweep", "w.toml", "-o", "out", "--dry-run")]

    def swept(self, r: Random) -> list[Call]:
        """The folder of a sweep: its plan, a cell, or the timings."""
        self.put_folder("sweep", "out")
        out = Path("out")
        path = r.choice((out / "plan.json", *sorted(out.glob("cells/*.json"))))
        if r.random() < 0.15:
            path = next(out.glob("times-*.jsonl"))
            path.write_bytes(mutations.mutate_bytes(r, path.read_bytes()))
        else:
            path.write_bytes(mutations.mutate_json(r, path.read_bytes()))
        plan = str(self.home / "sweep.toml")
        verbs: list[Call] = [
            ("sweep", "merge", "out", "-o", "out2/results.json", "-f", "markdown", "-q"),
            ("sweep", "merge", "out", "-o", "out2/results.json", "-f", "json", "-q"),
            ("sweep", plan, "-o", "out", "--dry-run"),
        ]
        return [("read", "list", "."), *_some(r, verbs, 1)]

    def protocol(self, r: Random) -> list[Call]:
        """A protocol written as equations: its text or its tables."""
        text = r.choice(PROTOCOL_FILES).read_text()
        if r.random() < 0.5:
            data = mutations.mutate_text(r, text).encode("utf-8", "replace")
        else:
            tree = tomllib.loads(text)
            if r.random() < 0.5:
                key = r.choice(("start", "round"))
                tree[key] = mutations.mutate_text(r, str(tree.get(key, "")))
                data = mutations.as_toml(tree)
            else:
                data = mutations.mutate_toml(r, tree)
        Path("p.toml").write_bytes(data)
        calls: list[Call] = [("read", "protocol", "p.toml")]
        if r.random() < 0.3:
            name = _name(data)
            calls.append(("record", name, "--plugin", "p.toml", *RECORD[2:], "--data", "gaussians"))
        return calls

    # -----------------------------------------------------------------------------------------
    # What programs write
    # -----------------------------------------------------------------------------------------

    def log(self, r: Random) -> list[Call]:
        """The raw log of a tap: a line, a payload, or bytes."""
        self.put_folder("log", "log")
        self.put("tap.toml")
        path = r.choice(sorted(Path("log").iterdir()))
        path.write_bytes(_mutate_lines(r, path))
        verbs: list[Call] = [
            ("tap", "merge", "log", "--describe", "tap.toml", "-o", "out.pt", "-q"),
            ("tap", "describe", "log", "-q"),
            ("tap", "describe", "log", "-o", "out.toml", *MODEL),
        ]
        return [("read", "log", "log"), *_some(r, verbs, 1)]

    def described(self, r: Random) -> list[Call]:
        """The description of a log."""
        self.put_folder("log", "log")
        self._toml(r, corpus.TAP, "tap.toml")
        merge = ("tap", "merge", "log", "--describe", "tap.toml", "-o", "out.pt", "-q")
        return [("read", "description", "tap.toml"), merge]

    def tap_truth(self, r: Random) -> list[Call]:
        """The records that a tapped program left for scoring."""
        self.put_folder("log", "log")
        self.put("tap.toml")
        Path("truth.npz").write_bytes(mutations.mutate_npz(r, self.files["truth.npz"]))
        merge = ("tap", "merge", "log", "--describe", "tap.toml", "-o", "out.pt", "-q")
        return [(*merge, "--truth", "truth.npz")]

    def wire(self, r: Random) -> list[Call]:
        """A folder in the wire format."""
        self.put_folder("wire", "wire")
        self.put("tap.toml")
        path = r.choice(sorted(Path("wire").iterdir()))
        path.write_bytes(_mutate_lines(r, path))
        calls: list[Call] = [("read", "wire", "wire")]
        if r.random() < 0.5:
            calls.append(
                ("trace", "import", "wire", "--describe", "tap.toml", "-o", "out.pt", "-q")
            )
        return calls

    # -----------------------------------------------------------------------------------------
    # Data and models
    # -----------------------------------------------------------------------------------------

    def npz(self, r: Random) -> list[Call]:
        """Data as arrays."""
        Path("d.npz").write_bytes(mutations.mutate_npz(r, self.files["data.npz"]))
        return [("read", "npz", "d.npz"), (*RECORD, "--data", "npz:d.npz")]

    def pictures(self, r: Random) -> list[Call]:
        """Data as a folder of pictures."""
        self.put_folder("pictures", "p")
        path = r.choice(sorted(Path("p").iterdir()))
        raw = path.read_bytes()
        if path.suffix == ".png" and r.random() < 0.4:
            sides = r.choices((0, 6, 60_000, 2**31 - 1), k=2)
            head = struct.pack(">IIBBBBB", *sides, r.choice((1, 8, 16, 7)), r.randrange(7), 0, 0, 0)
            raw = raw[:16] + head + struct.pack(">I", zlib.crc32(b"IHDR" + head)) + raw[33:]
        else:
            raw = mutations.mutate_bytes(r, raw)
        path.write_bytes(raw)
        if r.random() < 0.1:  # black pictures, 1,000 times as large as their files
            side = r.choice((60, 2_000, 4_000))
            Image.new("L", (side, side)).save("p/x0.png")
            for k in range(1, r.choice((2, 5, 40))):
                shutil.copy("p/x0.png", f"p/x{k}.png")
            for path in (*Path("p").glob("[0-9].*"),):
                path.unlink()
        return [("read", "pictures", "p"), (*RECORD, "--data", "images:p")]

    def libsvm(self, r: Random) -> list[Call]:
        """Data as sparse rows."""
        odd = ("", "1 99999999999:1\n", "1 4000000000:1\n", "nan 1:1\n", "1 1:1e999\n", "1 -1:3\n")
        text = mutations.mutate_text(r, corpus.LIBSVM * r.choice((1, 3))) + r.choice(odd)
        data = text.encode("utf-8", "replace")
        name = r.choice(("s.txt", "s.txt", "s.gz", "s.bz2"))
        if name != "s.txt":
            if r.random() < 0.1:
                line = r.choice((b"\n", b"0" * 1_000 + b"\n"))
                data = line * (r.choice((10**5, 3 * 10**7)) // len(line))
            data = gzip.compress(data) if name == "s.gz" else bz2.compress(data)
        Path(name).write_bytes(mutations.mutate_bytes(r, data) if r.random() < 0.3 else data)
        return [("read", "libsvm", name), (*RECORD, "--data", f"libsvm:{name}")]

    def graph(self, r: Random) -> list[Call]:
        """A network as a list of edges."""
        text = mutations.mutate_text(r, corpus.EDGES).encode("utf-8", "replace")
        Path("e.txt").write_bytes(mutations.mutate_bytes(r, text) if r.random() < 0.5 else text)
        network = ("--nodes", "3", "--graph", "file:e.txt", "--rounds", "1", "--data", "gaussians")
        return [("record", "dpsgd", "-o", "out.pt", *network, "--model", "logistic", "-q")]

    def weights(self, r: Random) -> list[Call]:
        """Weights for LPIPS."""
        name = r.choice(("weights.npz", "weights.pth"))
        change = mutations.mutate_npz if name.endswith("npz") else mutations.mutate_torch
        if name == "weights.pth" and r.random() < 0.05:
            zeros = torch.zeros(r.choice((10, 10**6, 10**8)))
            large = mutations.torch_bytes({"net.0.weight": zeros, "lin.0": zeros[:4]})
            Path(name).write_bytes(mutations.deflated(large))
        else:
            Path(name).write_bytes(change(r, self.files[name]))
        return [("read", "weights", name)]

    def model(self, r: Random) -> list[Call]:
        """A torch.export program: its graph, its tensors, or the archive."""
        data = self.files["model.pt2"]
        do = r.random()
        if do < 0.7:
            entries = []
            for name, body in mutations.entries(data):
                if name.endswith(".json") and body and r.random() < 0.6:
                    body = mutations.mutate_json(r, body)
                entries.append((name, body))
            data = mutations.zipped(entries)
        elif do < 0.9:
            data = mutations.mutate_zip(r, data)
        else:
            data = mutations.mutate_bytes(r, data)
        Path("m.pt2").write_bytes(data)
        return [("read", "model", "m.pt2")]


WORK = ("rounds", "nodes", "samples", "seeds", "replays", "canary", "steps", "visits")
RECORDS = ("attack", "unscored", "text", "audit", "check", "sweep")
PLAIN = ("text", "json")
TABULAR = ("csv", "latex", "json")
TABLES = {
    "attack": ("findings",),
    "unscored": ("findings",),
    "text": ("findings",),
    "audit": ("verdicts", "curves", "views", "findings"),
    "check": ("rules", "measures"),
    "sweep": ("points", "cells"),
}
MODEL = words("--model logistic --shape 2 --classes 2 --loss binary -q")


def anything(key: str, value: object) -> bool:
    """Allow every value: reading a plan is quick, whatever it asks for."""
    return True


def modest(key: str, value: object) -> bool:
    """Whether a value in a plan asks for little work. Unlike a recording, a plan may ask for as
    much as its author wants, and a command that computes it takes its time.
    """
    return key not in WORK or not isinstance(value, int) or not 100 < value < 2**31


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _mutate_lines(r: Random, path: Path) -> bytes:
    """Change one line of JSON in a file of lines, or bytes of any other file."""
    data = path.read_bytes()
    if path.suffix != ".jsonl" or r.random() < 0.2:
        return mutations.mutate_bytes(r, data)
    lines = data.split(b"\n")
    k = r.randrange(len(lines) - 1)
    lines[k] = mutations.as_json(mutations.mutate_tree(r, json.loads(lines[k])))
    if r.random() < 0.1:
        lines[k:k] = [lines[k]] * r.choice((1, 1_000))
    return b"\n".join(lines)


def _name(data: bytes) -> str:
    """The name that a protocol file gives itself, as far as it can be read."""
    try:
        name = tomllib.loads(data.decode()).get("name")
    except (ValueError, RecursionError):
        return "x"
    if isinstance(name, str) and name and "\0" not in name:
        return name
    return "x"


def weighted(targets: list[Target], r: Random) -> Iterator[Target]:
    """Draw targets without end."""
    weights = [one.weight for one in targets]
    while True:
        yield r.choices(targets, weights)[0]
