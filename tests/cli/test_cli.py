"""The command line as users meet it: results on stdout, one clear line and code 2 for anything that cannot be used."""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import leakaudit as la
from leakaudit.cli import main

RECORD = ["record", "pdmm", "--nodes", "4", "--graph", "ring", "--rounds", "6", "--model", "mlp", "--set", "hidden=32", "-q"]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cli")
    assert main([*RECORD, "-o", str(folder / "trace.pt")]) == 0
    return folder / "trace.pt"


@pytest.fixture
def place(tmp_path: Path, recorded: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of its own with a trace, its truth and their sha256."""
    for file in recorded.parent.iterdir():
        shutil.copy(file, tmp_path / file.name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def refused(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    """Run a call that must fail: code 2, one line on stderr, nothing on stdout."""
    before = {p: p.stat().st_mtime_ns for p in Path().rglob("*")}
    try:
        code = main([*argv])
    except SystemExit as e:
        code = int(str(e.code))
    out, err = capsys.readouterr()
    assert code == 2
    assert out == ""
    lines = err.strip().splitlines()
    assert len(lines) == 1, err
    assert "Traceback" not in err
    assert {p: p.stat().st_mtime_ns for p in Path().rglob("*")} == before, "a file was left behind or changed"
    return lines[0]


def test_help_is_fast_and_imports_nothing_heavy() -> None:
    heavy = "torch", "numpy", "skimage", "rich", "networkx"
    code = f"import sys, leakaudit.cli as c; c.parser(); print([m for m in {heavy} if m in sys.modules])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.strip() == "[]"

    def cpu(*words: str) -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, *words], capture_output=True, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    assert min(cpu("-m", "leakaudit", "--help") for _ in range(5)) < 0.15 + min(cpu("-c", "pass") for _ in range(5))


def test_attack_writes_everything_and_prints_json(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["attack", "trace.pt", "-o", "out", "-f", "json", "-q"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown == json.loads((place / "out/results.json").read_text())
    names = ["originals.npz", "reconstructions.npz", "reconstructions.png", "report.md", "results.json"]
    assert sorted(p.name for p in (place / "out").iterdir()) == names
    assert [f["node"] for f in shown["findings"]] == [0, 1, 2, 3]
    for finding in shown["findings"]:
        assert finding["attack"] == "analytic"
        assert finding["certificate"]["name"] == "EXACT"
        assert finding["scores"]["psnr"]["min"] >= 60
        assert finding["scores"]["label_correct"]["per_image"] == [True]
    assert shown["provenance"]["trace"]["sha256"] == (place / "trace.pt.sha256").read_text().split()[0]


def test_the_same_seed_gives_the_same_run(place: Path) -> None:
    assert main([*RECORD, "-o", "again.pt"]) == 0
    one, two = la.load("trace.pt"), la.load("again.pt")
    assert "seed" not in str(one.provenance)
    assert la.load_truth("again.truth.pt").provenance["scenario"]["seed"] == 0
    assert torch.equal(one.messages[0].payload, two.messages[0].payload)
    assert main([*RECORD, "--seed", "1", "-o", "other.pt"]) == 0
    assert not torch.equal(one.messages[0].payload, la.load("other.pt").messages[0].payload)


def test_without_a_truth_the_attack_works_and_says_so(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (place / "trace.truth.pt").unlink()
    assert main(["attack", "trace.pt", "-o", "out", "-q", "-f", "json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert all(f["scores"] is None and "no truth" in f["note"] for f in shown["findings"])
    assert "no truth" in shown["summary"]
    assert shown["provenance"]["truth"]["sha256"] is None


def test_one_node_and_a_curious_neighbour(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["attack", "trace.pt", "-o", "out", "-q", "-f", "json", "--as", "eavesdropper+node:1", "--node", "2"]) == 0
    (finding,) = json.loads(capsys.readouterr().out)["findings"]
    assert (finding["node"], finding["adversary"]) == (2, "eavesdropper+nodes:1")
    assert main(["attack", "trace.pt", "-o", "out", "-q", "-f", "json", "--as", "node:1"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["findings"] == []
    assert [u["node"] for u in shown["undetermined"]] == [0, 2, 3]


def test_text_and_markdown_tell_the_worst_first(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["attack", "trace.pt", "-o", "out", "-q"]) == 0
    assert capsys.readouterr().out.startswith("Worst case: node")
    assert main(["attack", "trace.pt", "-o", "out", "-q", "-f", "markdown"]) == 0
    assert capsys.readouterr().out == (place / "out/report.md").read_text()


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["attack", "absent.pt"], "absent.pt"),
        (["attack", "trace.pt", "--attack", "analytc"], "did you mean 'analytic'"),
        (["attack", "trace.pt", "--node", "9"], "there is no node 9: the trace has nodes 0 to 3"),
        (["attack", "trace.pt", "--as", "node:7"], "there is no node 7"),
        (["attack", "trace.pt", "--as", "edges:0-2"], "there is no edge 0-2"),
        (["attack", "trace.pt", "--as", "everyone"], "expected eavesdropper"),
        (["attack", "trace.pt", "--rounds", "five"], "expected A:B"),
        (["attack", "trace.pt", "--truth", "nowhere.pt"], "nowhere.pt is not there"),
        (["attack", "trace.pt", "--set", "depth=3", "--attack", "analytic"], "has no parameter 'depth'"),
        (["attack", "trace.pt", "-f", "pdf"], "there is no report 'pdf'"),
        (["attack", "trace.pt", "-o", "trace.pt/out"], "cannot be written"),
        (["attack", "trace.pt", "-o", "/proc/leakaudit"], "cannot be written"),
        (["attack", "trace.pt", "--threads", "many"], "threads"),
        (["attack", "trace.pt", "--device", "abacus"], "device 'abacus'"),
        (["attack"], "required: trace"),
        (["attakc"], "invalid choice"),
        (["record"], "name a victim"),
        (["record", "pdm", "-o", "x.pt"], "did you mean 'pdmm'"),
        (["record", "pdmm", "-o", "x.pt", "--set", "alfa=1"], "did you mean 'alpha'"),
        (["record", "pdmm", "-o", "x.pt", "--set", "rho=big"], "rho"),
        (["record", "pdmm", "-o", "x.pt", "--set", "theta=2"], "theta"),
        (["record", "pdmm", "-o", "x.pt", "--data", "npz:absent.npz"], "absent.npz"),
        (["record", "pdmm", "-o", "x.pt", "--nodes", "200"], "need 200 records"),
        (["record", "pdmm", "-o", "x.pt", "--graph", "torus"], "there is no graph 'torus'"),
        (["record", "pdmm", "-o", "x.pt", "--model", "transformer"], "model"),
        (["record", "pdmm", "-o", "no/such/folder/x.pt"], "no/such/folder"),
        (["record", "pdmm", "-o", "x.pt", "--max-bytes", "1MB"], "--rounds"),
        (["record", "pdmm", "-o", "x.pt", "--model", "absent:module"], "absent"),
        (["trace", "info", "absent.pt"], "absent.pt"),
        (["trace", "convert", "trace.pt", "trace.xyz"], "xyz"),
    ],
)
def test_bad_input_gets_one_line_and_code_two(place: Path, capsys: pytest.CaptureFixture[str], argv: list[str], said: str) -> None:
    assert said in refused(capsys, *argv)


@pytest.mark.parametrize("content", [b"", b"hello, this is no trace\n", b"PK\x03\x04 not a zip", b"\x80\x02}q\x00."])
def test_files_that_are_no_traces(place: Path, capsys: pytest.CaptureFixture[str], content: bytes) -> None:
    (place / "bad.pt").write_bytes(content)
    assert "bad.pt" in refused(capsys, "attack", "bad.pt")


def test_a_truncated_trace_and_flipped_bytes(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = (place / "trace.pt").read_bytes()
    (place / "short.pt").write_bytes(whole[: len(whole) // 2])
    assert "short.pt" in refused(capsys, "attack", "short.pt")
    flipped = bytearray(whole)
    flipped[len(flipped) // 2] ^= 0xFF
    (place / "trace.pt").write_bytes(flipped)
    assert "sha256" in refused(capsys, "attack", "trace.pt")
    assert "sha256" in refused(capsys, "trace", "verify", "trace.pt")


def test_another_runs_truth_is_refused(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*RECORD, "--seed", "5", "-o", "other.pt"]) == 0
    assert "name the right file with --truth" in refused(capsys, "attack", "trace.pt", "--truth", "other.truth.pt")


def rewritten(place: Path, **changes: Any) -> None:
    """Save the trace again with other contents, through the public recorder."""
    trace = replace(la.load("trace.pt"), **changes)
    (m,) = trace.messages
    with la.Recorder(
        place / "changed.pt", protocol=trace.protocol, task=trace.task, graph=trace.graph, params=trace.params, layout=trace.layout
    ) as recorder:
        for k in range(len(m)):
            recorder.send(int(m.round[k]), int(m.src[k]), int(m.dst[k]), m.kinds[m.kind[k]], m.payload[m.row[k]], secure=bool(m.secure[k]))


def test_nan_in_a_message_is_named(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = la.load("trace.pt")
    (m,) = trace.messages
    payload = m.payload.clone()
    k = int(((m.round == 3) & (m.src == 1) & (m.dst == 2)).nonzero())
    payload[m.row[k], 7] = float("nan")
    rewritten(place, messages=(replace(m, payload=payload),))
    line = refused(capsys, "attack", "changed.pt")
    assert "1 -> 2 of round 3" in line
    assert "not finite" in line
    assert main(["attack", "changed.pt", "-q", "-o", "out", "--rounds", "0:3", "--node", "0"]) == 0


def test_an_unknown_protocol_and_a_wrong_model(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rewritten(place, protocol="pigeon")
    assert "there is no victim 'pigeon'" in refused(capsys, "attack", "changed.pt")
    trace = la.load("trace.pt")
    rewritten(place, task=replace(trace.task, args={"hidden": 33}))
    assert "wrong model for the trace" in refused(capsys, "attack", "changed.pt")


def test_settings_come_from_the_nearest_source(place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    (place / "pyproject.toml").write_text("[tool.leakaudit]\nseed = 1\nthreads = 2\nmax-bytes = '1GB'\n")
    (place / "leakaudit.toml").write_text("seed = 2\nprogress = 'plain'\n")
    monkeypatch.setenv("LEAKAUDIT_PROGRESS", "none")
    assert main(["config", "show", "-f", "json", "--seed", "4"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["seed"] == {"value": 4, "source": "flag"}
    assert shown["progress"] == {"value": "none", "source": "environment"}
    assert shown["threads"] == {"value": 2, "source": "pyproject.toml"}
    assert shown["max_bytes"] == {"value": 10**9, "source": "pyproject.toml"}
    assert shown["device"]["source"] == "default"
    (place / "leakaudit.toml").write_text("sead = 2\n")
    assert "did you mean 'seed'" in refused(capsys, "config", "show")


@pytest.mark.parametrize("what", ["victims", "attacks", "reports", "models", "data", "graphs"])
def test_lists(what: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", what, "-f", "json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert len(rows) >= 2
    assert all(row["name"] for row in rows)
    assert main(["list", what]) == 0
    text = capsys.readouterr().out
    assert all(row["name"] in text for row in rows)


def test_help_of_a_victim_names_its_parameters(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["record", "pdmm", "--help"])
    assert stop.value.code == 0
    shown = capsys.readouterr().out
    assert "k_max=1" in shown
    assert "[theta]" in shown


def test_doctor_and_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "-f", "json"]) == 0
    checks = {row["check"]: row for row in json.loads(capsys.readouterr().out)}
    assert checks["torch"]["found"] == torch.__version__
    assert {"torchvision", "lpips", "threads", "faces"} <= checks.keys()
    with pytest.raises(SystemExit):
        main(["--version"])
    assert capsys.readouterr().out.startswith(f"leakaudit {la.__version__} (torch ")


def test_trace_info_verify_convert(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trace", "info", "trace.pt", "-f", "json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["protocol"] == "pdmm"
    assert facts["rounds"] == 6
    assert main(["trace", "verify", "trace.pt", "-q"]) == 0
    for target in ("other.npz", "folder/"):
        assert main(["trace", "convert", "trace.pt", target, "-q"]) == 0
    assert main(["trace", "convert", "other.npz", "back.pt", "-q"]) == 0
    capsys.readouterr()
    for name in ("back.pt", "folder"):
        assert main(["attack", name, "--truth", "trace.truth.pt", "-o", "out", "-q", "-f", "json"]) == 0
        assert all(f["certificate"]["name"] == "EXACT" for f in json.loads(capsys.readouterr().out)["findings"])


def test_dry_runs_write_nothing(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = sorted(p.name for p in place.iterdir())
    assert main([*RECORD, "-o", "dry.pt", "--dry-run"]) == 0
    text = capsys.readouterr().out
    assert 'victim = "pdmm"' in text
    (place / "again.toml").write_text(text)
    assert main(["attack", "trace.pt", "--dry-run"]) == 0
    assert json.loads(capsys.readouterr().out)["nodes"]["0"]["leak"] == "difference"
    assert sorted(p.name for p in place.iterdir()) == sorted([*before, "again.toml"])
    assert main(["record", "--scenario", "again.toml", "-o", "same.pt", "-q"]) == 0
    assert torch.equal(la.load("same.pt").messages[0].payload, la.load("trace.pt").messages[0].payload)


def test_a_users_own_model_runs_only_when_trusted(place: Path) -> None:
    (place / "mine.py").write_text(
        "import torch\ndef net(shape, classes):\n    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(625, classes))\n"
    )
    run = [sys.executable, "-m", "leakaudit"]
    own = ["record", "pdmm", "--model", "mine:net", "--nodes", "4", "--rounds", "6", "-o", "own.pt", "-q"]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run([*run, *own], capture_output=True, env=env, check=True)  # who names it on the command line means it
    (place / "own.toml").write_text('model = "mine:net"\nnodes = 4\n')
    by_file = [*run, "record", "--scenario", "own.toml", "-o", "file.pt", "-q"]
    assert subprocess.run(by_file, capture_output=True, env=env, check=False).returncode == 2
    subprocess.run([*by_file, "--trust-model"], capture_output=True, env=env, check=True)
    attack = [*run, "attack", "own.pt", "-o", "out", "-q"]
    assert subprocess.run(attack, capture_output=True, env=env, check=False).returncode == 2
    subprocess.run([*attack, "--trust-model"], capture_output=True, env=env, check=True)
    findings = json.loads((place / "out/results.json").read_text())["findings"]
    assert all(f["certificate"]["name"] == "EXACT" for f in findings)


def test_ctrl_c_keeps_what_was_found(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from leakaudit import api

    whole, calls = api.attack_one, []

    def stop_at_third(*args: object, **kwargs: object) -> object:
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return whole(*args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(api, "attack_one", stop_at_third)
    assert main(["attack", "trace.pt", "-o", "out", "-q"]) == 130
    record = json.loads((place / "out/results.json").read_text())
    assert [f["node"] for f in record["findings"]] == [0, 1]
    assert record["complete"] is False
    assert "not complete" in record["summary"]
