"""Check that a refactoring changes no results: every victim and every verb, before and after.

    git worktree add ../before COMMIT          and a .venv in it, made with the README's commands
    python tests/same_runs.py make ../before FOLDER/before
    python tests/same_runs.py make . FOLDER/after
    python tests/same_runs.py compare FOLDER/before FOLDER/after

The command line records, describes, explains, bounds, attacks and reports a run of each victim; an
audit, a sweep, a gate and the claims follow (`JUDGED`), then what users and programs rely on: the
help of every command, the lists, and the public names with their signatures (`FACADE`). Every file
is compared: traces tensor by tensor, bit by bit, pictures byte by byte, texts and JSON word by
word. Only what differs between any two runs of the same code is masked: the random ids of a
recording, times, and digests of files that contain them.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

MLP = ["--model", "mlp", "--set"]
RUNS: dict[str, list[str]] = {
    "fedsgd": ["fedsgd", "--graph", "star", "--data", "faces"],
    "fedavg": ["fedavg", "--graph", "star", "--data", "gaussians"],
    "dpsgd": ["dpsgd", "--data", "faces", "--samples", "2", *MLP, "hidden=64"],
    "dpsgd noise": ["dpsgd", "--data", "photos", "--set", "sigma=0.1", "--set", "clip=1"],
    "pdmm": ["pdmm", "--data", "faces", *MLP, "hidden=64"],
    "pdmm batch": ["pdmm", "--data", "faces", "--samples", "3", *MLP, "hidden=128"],
    "pdmm quantised": ["pdmm", "--data", "photos", "--set", "quantize=0.001"],
    "dpnorm": ["dpnorm", "--data", "faces"],
    "recal": ["recal", "--data", "gaussians", "--model", "logistic"],
    "dkm": ["dkm", "--data", "gaussians"],
    "secured": [
        *("secured", "--graph", "complete", "--data", "gaussians"),
        *("--set", "group_size=2", "--set", "partitions=2"),
    ],
    "gossip": ["gossip", "--data", "gaussians"],
    "choco": ["choco", "--data", "photos"],
    "extra": ["extra", "--data", "photos"],
    "nids": ["nids", "--data", "gaussians"],
    "tracking": ["tracking", "--data", "faces"],
    "muffliato": ["muffliato", "--data", "photos"],
    "fedsplit": ["fedsplit", "--graph", "star", "--data", "photos"],
    "dpadmm": ["dpadmm", "--data", "photos"],
    "single": ["single", "--data", "faces"],
    "diloco": ["diloco", "--graph", "star", "--data", "faces"],
    "secagg": ["secagg", "--graph", "complete", "--data", "gaussians"],
    "dpadmmserver": ["dpadmmserver", "--graph", "star", "--data", "photos"],
    "mradmm": ["mradmm", "--data", "gaussians", "--model", "logistic"],
    "pvpadmm": ["pvpadmm", "--data", "gaussians", "--model", "logistic"],
    "rwadmm": ["rwadmm", "--data", "gaussians", "--model", "logistic"],
}
SHAPE = ["--nodes", "4", "--rounds", "6", "--seed", "1", "-q"]
FORMATS = ("html", "markdown", "text", "junit", "sarif", "json", "github", "csv", "latex", "svg")
PLANS = {
    "audit": """
[scenario]
victim = "dpsgd"
nodes = 3
graph = "ring"
rounds = 3
data = "faces"
model = "mlp"
set = { hidden = 16, clip = 1.0, sigma = 0.5, noise = "message" }
[audit]
epsilon = [inf, 100, 8]
adversaries = ["eavesdropper"]
attacks = ["exact", "analytic"]
nodes = [0]
candidates = 4
replays = 12
canary = 12
""",
    "sweep": """
[scenario]
victim = "fedsgd"
nodes = 2
graph = "star"
rounds = 1
data = "faces"
model = "mlp"
set = { hidden = 32 }
[sweep]
attacks = ["exact", "analytic"]
seeds = 2
[sweep.over]
samples = [1, 2]
""",
}
JUDGED: dict[str, list[str]] = {
    "audit": ["audit", "plan.toml", "-o", "out", "--seed", "3", "-q"],
    "sweep": ["sweep", "plan.toml", "-o", "out", "--seed", "3", "-q"],
    "check": ["check", "--strict", "-o", "out", "--seed", "3", "-q"],
    "claims": ["reproduce", "--claims", "-f", "json", "-o", "out.json", "-q"],
}
LISTED = ("victims", "attacks", "reports", "models", "data", "graphs")
FACADE = """
import argparse, importlib, inspect, json, leakaudit
from leakaudit.cli import parser

def helps(command):
    yield command.prog, command.format_help()
    for action in command._actions:
        if isinstance(action, argparse._SubParsersAction):
            for below in action.choices.values():
                yield from helps(below)

def signature(thing):
    try:
        return str(inspect.signature(thing))
    except (TypeError, ValueError):
        return repr(thing)

names = {name: signature(getattr(leakaudit, name)) for name in leakaudit.__all__}
for module in ("leakaudit.theory.bounds", "leakaudit.theory.relations", "leakaudit.core.registry"):
    public = {k: v for k, v in vars(importlib.import_module(module)).items() if k[0] != "_"}
    names |= {f"{module}.{name}": signature(value) for name, value in public.items()}
print(json.dumps({"help": dict(helps(parser())), "names": names}, indent=1, default=str))
"""
VARY = {
    *("seconds", "started", "command", "platform", "path", "created", "files", "digest"),
    *("versions", "wall", "id", "recording", "sha256"),
}
VARYING_WORDS = re.compile(
    r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d)?(\.\d+)?(Z|\+00:00)?"  # a time
    r'|\b\d+(\.\d+)? ?(s|ms|min)\b|time="[\d.]+"'  # a duration
    r"|[0-9a-f]{64}|sha256:[0-9a-f]+|\b[0-9a-f]{32}\b"  # a digest, an id
    r"|\b\d\.\d\d(?= ?\||$| ?</td>)",  # the last column of a table: seconds
    re.MULTILINE,
)
TEXTS = (".html", ".markdown", ".md", ".text", ".txt", ".junit", ".sarif", ".github", ".svg")


def steps() -> Iterator[tuple[list[str], str]]:
    """Yield the commands after recording, and the file that keeps what each one prints."""
    yield ["trace", "info", "trace.pt", "-f", "json"], "info.json"
    yield ["trace", "lint", "trace.pt", "-f", "json"], "lint.json"
    yield ["explain", "trace.pt", "--node", "1", "-f", "json"], "explain.json"
    yield ["bound", "trace.pt", "--as", "eavesdropper", "-f", "json"], "bound.json"
    attack = ["attack", "trace.pt", "-o", "out", "--seed", "3", "--max-seconds", "60", "-q"]
    yield attack, "log.txt"
    for name in FORMATS:
        yield ["report", "out", "-f", name, "-q"], f"report.{name}"
    redacted = ["report", "out", "-f", "json", "--redact", "--redact-key", "k", "-q"]
    yield redacted, "redacted.json"


def make(checkout: Path, folder: Path, only: list[str]) -> None:
    """Run everything with the code of a checkout."""
    names = only or [*RUNS, *JUDGED, "facade"]

    def one(name: str) -> str:
        own = folder / name.replace(" ", "-")
        if name in RUNS:
            return run(checkout, own, RUNS[name])
        return judge(checkout, own, name) if name in JUDGED else describe(checkout, own)

    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        for name, codes in zip(names, pool.map(one, names), strict=True):
            sys.stdout.write(f"{name:15s} exit codes {codes}\n")


def run(checkout: Path, folder: Path, recorded: list[str]) -> str:
    """Record, attack and report one run; return the exit codes."""
    folder.mkdir(parents=True)
    codes = [call(checkout, folder, ["record", *recorded, *SHAPE, "-o", "trace.pt"], "record.txt")]
    for arguments, file in steps():
        codes.append(call(checkout, folder, arguments, file))
    (folder / "codes.json").write_text(json.dumps(codes), encoding="utf-8")
    return " ".join(map(str, codes))


def judge(checkout: Path, folder: Path, name: str) -> str:
    """Audit, sweep, check or re-evaluate claims; return the exit codes."""
    if name == "check":
        shutil.copytree(checkout / "examples/ci-repo", folder)
    else:
        folder.mkdir(parents=True)
        (folder / "plan.toml").write_text(PLANS.get(name, ""), encoding="utf-8")
    codes = [call(checkout, folder, JUDGED[name], "log.txt")]
    if name != "claims":
        for kind in FORMATS:
            codes.append(call(checkout, folder, ["report", "out", "-f", kind], f"report.{kind}"))
    (folder / "codes.json").write_text(json.dumps(codes), encoding="utf-8")
    return " ".join(map(str, codes))


def describe(checkout: Path, folder: Path) -> str:
    """Write the help of every command, what `list` prints, and the public signatures."""
    folder.mkdir(parents=True)
    codes = [execute(checkout, folder, ["-c", FACADE], "facade.json")]
    for group in LISTED:
        codes.append(call(checkout, folder, ["list", group, "-f", "json"], f"{group}.json"))
    return " ".join(map(str, codes))


def call(checkout: Path, folder: Path, arguments: list[str], file: str) -> int:
    """Run one command of leakaudit and write its output to a file."""
    return execute(checkout, folder, ["-m", "leakaudit", *arguments], file)


def execute(checkout: Path, folder: Path, arguments: list[str], file: str) -> int:
    """Run Python and write its output to a file."""
    python = checkout / ".venv" / "bin" / "python"
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0", "COLUMNS": "100"}
    printed = (folder / file).open("w", encoding="utf-8")
    errors = (folder / "errors.txt").open("a", encoding="utf-8")
    with printed, errors:
        done = subprocess.run(
            [str(python), *arguments],
            cwd=folder,
            env=environment,
            stdout=printed,
            stderr=errors,
            check=False,
        )
    return done.returncode


def compare(before: Path, after: Path) -> int:
    """Print the differences; return 1 if there are any."""
    found = [p.relative_to(top) for top in (before, after) for p in top.rglob("*") if p.is_file()]
    names = sorted({name.as_posix() for name in found if name.suffix != ".sha256"})
    different = [name for name in names if not same(before / name, after / name)]
    for name in different:
        sys.stdout.write(f"{name} differs, or is missing on one side\n")
    sys.stdout.write(f"{len(names)} files, {len(different)} differ\n")
    return int(bool(different))


def same(one: Path, other: Path) -> bool:
    """Return whether two files are equal apart from what varies."""
    if not one.is_file() or not other.is_file():
        return False
    return masked(one) == masked(other)


def masked(path: Path) -> object:
    """Return a file's content without what varies."""
    if path.suffix == ".pt":
        return plain(torch.load(path, weights_only=True))
    if path.suffix == ".npz":
        archive = zipfile.ZipFile(path)
        return {entry: archive.read(entry) for entry in archive.namelist()}
    if path.suffix in TEXTS or path.suffix == ".json":
        text = path.read_text(encoding="utf-8")
        try:
            return stable(json.loads(text))
        except ValueError:
            return VARYING_WORDS.sub("", text)
    return path.read_bytes()


def plain(value: Any) -> Any:
    """Return the contents of a trace or a truth; the ids and the time in its JSON text are
    masked.
    """
    if isinstance(value, dict):
        return {key: plain(entry) for key, entry in value.items()}
    if isinstance(value, torch.Tensor):
        return value.dtype, value.shape, value.contiguous().view(torch.uint8).numpy().tobytes()
    if isinstance(value, str) and value.startswith("{"):
        return stable(json.loads(value))
    return value


def stable(value: Any) -> Any:
    """Return a JSON value without the keys and the words that vary."""
    if isinstance(value, dict):
        return {key: stable(entry) for key, entry in value.items() if key not in VARY}
    if isinstance(value, list):
        return [stable(entry) for entry in value]
    if isinstance(value, str):
        return VARYING_WORDS.sub("", value)
    return value


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    verbs = parser.add_subparsers(dest="verb", required=True)
    making = verbs.add_parser("make")
    making.add_argument("checkout", type=Path)
    making.add_argument("folder", type=Path)
    making.add_argument("--only", nargs="+", default=[], choices=[*RUNS, *JUDGED, "facade"])
    comparing = verbs.add_parser("compare")
    comparing.add_argument("before", type=Path)
    comparing.add_argument("after", type=Path)
    asked = parser.parse_args()
    if asked.verb == "make":
        make(asked.checkout.resolve(), asked.folder.resolve(), asked.only)
    else:
        sys.exit(compare(asked.before, asked.after))


if __name__ == "__main__":
    main()
