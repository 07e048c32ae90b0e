"""A quantity is one row and one function: a planted one is found in every report of every kind."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from leakaudit.core.quantities import QUANTITIES, Data
from leakaudit.scoring import scoring

# The row stands first among the numbers of images, as PSNR does.
ROW = """
    planted: Numbers = _row(
        "Planted", "a planted quantity", unit="pq", form=".2f", data=Data.IMAGES,
        near="{:.2f} pq planted", tolerance=1.0,
    )
    psnr: Numbers"""
PROGRAM = """
import importlib.util, json, os, sys, types
from pathlib import Path

# The table with one row more, before anything reads it.
spec = importlib.util.find_spec("leakaudit.core.quantities")
source = Path(spec.origin).read_text(encoding="utf-8")
assert source.count("\\n    psnr: Numbers") == 1
planted = types.ModuleType(spec.name)
sys.modules[spec.name] = planted
exec(compile(source.replace("\\n    psnr: Numbers", sys.argv[1]), spec.origin, "exec"), vars(planted))

from leakaudit.scoring import metrics

metrics.planted = lambda x, y, *, data_range: 0 * metrics.mse(x, y) + 7.5

from leakaudit.core import registry
from leakaudit.cli import main
from leakaudit.reporting.rendering.gallery import with_pictures
from leakaudit.reporting.rendering import cards
from leakaudit.reporting.findings import flat
from leakaudit.reporting.results import model
from leakaudit.reporting.trackers import content
from leakaudit.reporting.viewing import summaries

MLP = ["--model", "mlp", "--set", "hidden=16"]
main(["record", "fedsgd", "--graph", "star", "--nodes", "2", "--rounds", "1", *MLP,
      "--data", "faces", "-o", "trace.pt", "-q"])
main(["attack", "trace.pt", "--attack", "analytic", "-o", "attack", "-q"])
main(["audit", "audit.toml", "-o", "audit", "-q"])
main(["sweep", "sweep.toml", "--workers", "0", "-o", "sweep", "-q"])
os.chdir("check")
main(["check", "-o", ".", "-q"])
os.chdir("..")
for kind in ("attack", "audit", "sweep", "check"):
    folder = Path(kind)
    results = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    if kind != "sweep":
        results = with_pictures(results, folder)
    for format in registry.names("reports"):
        described = kind != "sweep" or format not in ("github", "junit", "sarif")
        if format not in ("pdf", "png") and described:
            text = registry.get("reports", format)(results)
            (folder / f"report.{format}").write_text(text, encoding="utf-8")
    for table in flat.NAMES[kind]:
        text = registry.get("reports", "csv")(results, table=table)
        (folder / f"report.{table}.csv").write_text(text, encoding="utf-8")
        text = registry.get("reports", "latex")(results, table=table)
        (folder / f"report.{table}.latex").write_text(text, encoding="utf-8")
    record = model.of(results)
    (folder / "report.tracker").write_text(json.dumps(content.metrics(record)), encoding="utf-8")
    (folder / "report.card").write_text(cards.html(record), encoding="utf-8")
    run = summaries.summarise(folder / "results.json", kind, os.stat(folder / "results.json"))
    (folder / "report.viewer").write_text(repr(run), encoding="utf-8")
"""
SCENARIO = """
[scenario]
victim = "fedsgd"
nodes = 2
graph = "star"
rounds = 1
data = "faces"
model = "mlp"
set = { hidden = 16 }
"""
AUDIT = (
    SCENARIO
    + """
[audit]
epsilon = []
adversaries = ["eavesdropper"]
attacks = ["analytic"]
seeds = 1
nodes = [0]
candidates = 2
replays = 2
canary = 2
"""
)
SWEEP = (
    SCENARIO
    + """
[sweep]
attacks = ["analytic"]
[sweep.over]
samples = [1, 2]
"""
)
GATE = """
[gate]
seeds = 2
baseline = ""
[check.ring]
run = "train:train"
adversaries = ["eavesdropper"]
attacks = ["exact"]
lint = "off"
[[budget]]
measure = "planted"
most = 0.0
"""

TABLES = {
    "attack": ("findings",),
    "audit": ("curves", "findings"),
    "sweep": ("points", "cells"),
    "check": ("rules", "measures"),
}
# Beside CSV and LaTeX. Not listed is what shows no closeness of records at all: the figure of an
# attack (its images), the card of an audit (its verdicts), and the entry of a sweep in the viewer's
# list (its best PSNR).
SHOWN = {
    "attack": "card github html json junit markdown sarif text tracker viewer",
    "audit": "github html json junit markdown sarif svg text tracker viewer",
    "sweep": "card html json markdown svg text tracker",
    "check": "card github html json junit markdown sarif svg text tracker viewer",
}


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory, project: Path) -> Path:
    folder = tmp_path_factory.mktemp("planted")
    (folder / "audit.toml").write_text(AUDIT)
    (folder / "sweep.toml").write_text(SWEEP)
    (folder / "check").mkdir()
    (folder / "check" / "leakaudit.toml").write_text(GATE)
    program = (project / "examples/ci-repo/train.py").read_text()
    assert program.count("SIGMA = 0.25") == 1
    (folder / "check" / "train.py").write_text(program.replace("SIGMA = 0.25", "SIGMA = 0.0"))
    command = [sys.executable, "-c", PROGRAM, ROW]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("kind", SHOWN)
def test_a_planted_quantity_is_in_every_report(planted: Path, kind: str) -> None:
    missing = []
    names = SHOWN[kind].split()
    for table in TABLES[kind]:
        names += [f"{table}.csv", f"{table}.latex"]
    for name in names:
        text = (planted / kind / f"report.{name}").read_text(encoding="utf-8")
        if "planted" not in text.lower():
            missing.append(name)
    assert not missing
    record = json.loads((planted / kind / "results.json").read_text(encoding="utf-8"))
    assert "7.5" in json.dumps(record)


def test_the_functions_of_the_rows_are_found() -> None:
    known = {data: {one.key for one, _ in scoring.measures(data)} for data in Data}
    assert {"mse", "relative_error"} <= known[Data.ANY]
    assert {"psnr", "ssim"} <= known[Data.IMAGES]
    assert {"tokens_correct", "token_f1"} <= known[Data.TEXT]
    # LPIPS also needs weights, and ROUGE is one function for three rows.
    assert known[Data.IMAGES].isdisjoint({"lpips"})
    assert known[Data.TEXT].isdisjoint({"rouge1", "rouge2", "rougel"})


def test_each_row_can_be_shown() -> None:
    for name, one in QUANTITIES.items():
        assert one.key == name
        assert one.text(0.25) in one.caption(0.25)
        assert one.better in (min, max)
