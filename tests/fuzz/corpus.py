"""Sound files to start from, made by leakaudit itself: one small file of each kind that it reads."""

from __future__ import annotations

import contextlib
import io
import json
from pathlib import Path
from unittest.mock import patch

import mutations
import numpy as np
import torch
from PIL import Image
from torch import nn

from leakaudit.capture.tap.log.writing import Log
from leakaudit.cli import main
from leakaudit.core import registry
from leakaudit.runs.pipeline.checkpoint import Checkpoint


def words(text: str) -> list[str]:
    """Split a command line at blanks."""
    return text.split()


SMALL = words("--nodes 3 --graph ring --rounds 4 --data gaussians --samples 2 --model logistic -q")
FACES = words("--nodes 2 --graph star --rounds 2 --data faces --samples 1 --model mlp -q")
TOKENS = words("--nodes 2 --graph star --rounds 1 --data text:8 --samples 2 --model gpt -q")
# Graph, nodes and rounds. A sound file must be far below the limits of the fuzzer, and all views of
# nine nodes take 1 s for each round.
NETWORKS = (("ring", "4", "4"), ("star", "3", "4"), ("complete", "4", "4"), ("complete", "9", "2"))

SCENARIO = """
victim = "dpsgd"
nodes = 3
graph = "ring"
rounds = 2
data = "gaussians"
samples = 1
split = "iid"
model = "logistic"
dtype = "float32"
seed = 0
wires = "all"
layers = "all"
states = false
[set]
sigma = 0.5
alpha = 0.1
"""
AUDIT = """
victim = "dpsgd"
nodes = 3
graph = "ring"
rounds = 2
data = "gaussians"
model = "logistic"
[set]
sigma = 0.5
[audit]
epsilon = [1.0]
attacks = ["exact"]
replays = 0
canary = 0
"""
SWEEP = """
[scenario]
victim = "dpsgd"
nodes = 3
graph = "ring"
rounds = 2
data = "gaussians"
model = "logistic"
[sweep]
seeds = 2
attacks = ["exact"]
[sweep.over]
sigma = [0.1, 0.2]
"""
GATE = """
[gate]
seeds = 2
baseline = "leakage-baseline.json"
compare = ["exact"]
[check.main]
attacks = ["exact"]
set.exact.visits = 2
lint = "error"
[check.main.scenario]
victim = "dpsgd"
nodes = 3
graph = "ring"
rounds = 2
data = "gaussians"
model = "logistic"
set = { order = "adapt", noise = "message", sigma = 0.5 }
[[budget]]
measure = "exact"
most = 0.0
[[accept]]
id = "a"
reason = "b"
owner = "c"
expires = "2030-01-01"
"""
TAP = """
payload = "weights"
protocol = "dpsgd"
first = "start"
[params]
alpha = 0.1
samples = 1
[model]
name = "logistic"
shape = [2]
classes = 2
loss = "binary"
levels = 0
"""
LIBSVM = "1 1:0.5 3:2\n-1 2:1\n1 1:1\n-1 3:0.25\n"
EDGES = "0 1\n1 2\n2 0\n"


def run(*argv: str, codes: tuple[int, ...] = (0, 1, 3)) -> int:
    """Run the command line silently; it must end with one of the codes."""
    said = io.StringIO()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(said):
        code = main(argv)
    if code not in codes:
        raise AssertionError((argv, code, said.getvalue()))
    return code


def make(home: Path) -> None:
    """Write the corpus into a folder.

    The traces of all bundled protocols are in the folder ``all``; what is at the top is named by
    its kind.
    """
    home.mkdir(parents=True)
    with contextlib.chdir(home):
        _traces()
        _results()
        _logs()
        _data()
        _texts()


def _traces() -> None:
    run("record", "dpsgd", "-o", "a.pt", *SMALL, "--set", "sigma=0.1", "--states", "--curves")
    run("record", "pdmm", "-o", "b.pt", *SMALL)
    run("record", "fedsgd", "-o", "c.pt", *FACES, "--set", "hidden=4")
    run("record", "dpsgd", "-o", "folder/", *SMALL)
    run("trace", "convert", "a.pt", "a.npz")
    run("trace", "convert", "a.pt", "a.safetensors")
    run("trace", "verify", "a.pt", "--write", "-q", codes=(0, 2))
    Path("all").mkdir()
    for victim in registry.names("victims"):
        for graph, nodes, rounds in NETWORKS:
            network = ["--graph", graph, "--nodes", nodes, "--rounds", rounds]
            argv = ["record", victim, "-o", f"all/{victim}.pt", *SMALL, *network, "--states"]
            if run(*argv, codes=(0, 2)) == 0:
                break


def _results() -> None:
    with patch.object(Checkpoint, "clear", lambda self: None):
        run("attack", "c.pt", "-o", "attack", "-q")
    Path("attack/unfinished").rename("unfinished")
    run("attack", "c.pt", "-o", "unscored", "--truth", "none", "-q")
    run("record", "fedsgd", "-o", "words.pt", *TOKENS, "--set", "width=32")
    run("attack", "words.pt", "-o", "text", "-q")
    Path("sweep.toml").write_text(SWEEP)
    run("sweep", "sweep.toml", "-o", "sweep", "--workers", "0", "-q")
    Path("audit.toml").write_text(AUDIT)
    run("audit", "audit.toml", "-o", "audit", "-q")
    Path("gate").mkdir()
    with contextlib.chdir("gate"):
        Path("leakaudit.toml").write_text(GATE.replace('"2030-01-01"', "2030-01-01"))
        run("check", "--update", "--reason", "first", "-q")
        run("check", "-o", "../check", "-q")


def _logs() -> None:
    for rank in range(2):
        generator = torch.Generator().manual_seed(rank)
        with Log("log", rank, world=2) as log:
            for t in range(4):
                value = torch.rand(3, generator=generator)
                log.write("send", value, 1 - rank, 0, round=t, kind="w")
    wire = Path("wire")
    wire.mkdir()
    lines = []
    numbers = b""
    for t in range(4):
        for src in range(2):
            about = {"round": t, "src": src, "dst": [1 - src], "kind": "w", "file": "m.bin"}
            form = {"offset": len(numbers), "dtype": "float32", "shapes": [[2], [1]]}
            lines.append(json.dumps(about | form))
            numbers += np.array([t, src, 0.5], "<f4").tobytes()
    (wire / "m.bin").write_bytes(numbers)
    (wire / "messages.jsonl").write_text("\n".join(lines) + "\n")


def _data() -> None:
    generator = np.random.default_rng(0)
    pixels = generator.integers(256, size=(6, 4, 4), dtype=np.uint8)
    np.savez("data.npz", x=pixels, y=np.arange(6) % 2)
    zeros = np.zeros((2, 2), np.float32)
    np.savez("truth.npz", x=zeros, y=np.zeros(2, np.int64), node=np.arange(2))
    weights = {"net.0.weight": np.zeros((4, 3), np.float32), "lin.0": np.zeros(4, np.float32)}
    np.savez("weights.npz", **weights)  # type: ignore[arg-type]
    tensors = {key: torch.from_numpy(value) for key, value in weights.items()}
    Path("weights.pth").write_bytes(mutations.torch_bytes(tensors))
    Path("pictures").mkdir()
    for k in range(3):
        Image.fromarray(np.full((6, 6, 3), 40 * k, np.uint8)).save(f"pictures/{k}.png")
        Image.fromarray(np.full((6, 6), 40 * k, np.uint8)).save(f"pictures/{k}.jpg")


def _texts() -> None:
    Path("scenario.toml").write_text(SCENARIO)
    Path("tap.toml").write_text(TAP)
    Path("svm.txt").write_text(LIBSVM)
    Path("edges.txt").write_text(EDGES)
    about = {"format": "leakaudit.progress", "version": 1, "started": 0.0, "updated": 1.0}
    stages = [{"what": "cells", "done": 1, "total": 4}]
    Path("progress.json").write_text(json.dumps(about | {"stages": stages}))


def export_model(path: Path) -> None:
    """Write a torch.export program, with torch's compiler off the record of the corpus: it takes
    two seconds to import.
    """
    net = nn.Sequential(nn.Flatten(), nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 2))
    program = torch.export.export(net, (torch.zeros(1, 2),))
    torch.export.save(program, path)


def trace_files(home: Path) -> list[Path]:
    """The traces of all protocols, without their truth files."""
    return sorted(path for path in (home / "all").glob("*.pt") if ".truth." not in path.name)
