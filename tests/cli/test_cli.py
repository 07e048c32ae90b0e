"""The command line as users meet it: what it writes, what it prints, and that it says the same again."""

# JSON is looked up by keys here: a wrong key fails when the test runs.
# mypy: disable-error-code="call-overload, index"

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from invoked import RECORD, refused

import leakaudit as la
from leakaudit.cli import main

pytestmark = pytest.mark.usefixtures("own_folder")


def test_help_imports_nothing_heavy() -> None:
    heavy = "torch", "numpy", "skimage", "rich", "networkx"
    code = f"import sys, leakaudit.cli as c; c.parser(); print([m for m in {heavy} if m in sys.modules])"
    out = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout
    assert out.strip() == "[]"


def test_attack_writes_everything_and_prints_json(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["attack", "trace.pt", "-o", "out", "-f", "json", "-q"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown == json.loads((place / "out/results.json").read_text())
    names = [
        "originals.npz",
        "reconstructions.npz",
        "reconstructions.png",
        "report.md",
        "results.json",
    ]
    assert sorted(p.name for p in (place / "out").iterdir()) == names
    assert [f["node"] for f in shown["findings"]] == [0, 1, 2, 3]
    for finding in shown["findings"]:
        assert finding["attack"] == "analytic"
        assert finding["certificate"]["name"] == "EXACT"
        assert finding["scores"]["psnr"]["min"] >= 60
        assert finding["scores"]["label_correct"]["per_image"] == [True]
    assert (
        shown["provenance"]["trace"]["sha256"] == (place / "trace.pt.sha256").read_text().split()[0]
    )


def test_the_same_seed_gives_the_same_run(place: Path) -> None:
    assert main([*RECORD, "-o", "again.pt"]) == 0
    one, two = la.load("trace.pt"), la.load("again.pt")
    assert "seed" not in str(one.provenance)
    assert la.load_truth("again.truth.pt").provenance["scenario"]["seed"] == 0
    assert torch.equal(one.messages[0].payload, two.messages[0].payload)
    assert main([*RECORD, "--seed", "1", "-o", "other.pt"]) == 0
    assert not torch.equal(one.messages[0].payload, la.load("other.pt").messages[0].payload)


def test_without_a_truth_the_attack_works_and_says_so(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (place / "trace.truth.pt").unlink()
    assert main(["attack", "trace.pt", "-o", "out", "-q", "-f", "json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert all(f["scores"] is None and "no truth" in f["note"] for f in shown["findings"])
    assert "no truth" in shown["summary"]
    assert shown["provenance"]["truth"]["sha256"] is None


def test_one_node_and_a_curious_neighbour(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        main(
            [
                "attack",
                "trace.pt",
                "-o",
                "out",
                "-q",
                "-f",
                "json",
                "--as",
                "eavesdropper+node:1",
                "--node",
                "2",
            ]
        )
        == 0
    )
    (finding,) = json.loads(capsys.readouterr().out)["findings"]
    assert (finding["node"], finding["adversary"]) == (2, "eavesdropper+nodes:1")
    assert main(["attack", "trace.pt", "-o", "out", "-q", "-f", "json", "--as", "node:1"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["findings"] == []
    assert [u["node"] for u in shown["undetermined"]] == [0, 2, 3]


def test_text_and_markdown_tell_the_worst_first(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["attack", "trace.pt", "-o", "out", "-q"]) == 0
    assert capsys.readouterr().out.startswith(
        "An eavesdropper recovered all 4 training images of nodes 0 to 3 exactly."
    )
    assert main(["attack", "trace.pt", "-o", "out", "-q", "-f", "markdown"]) == 0
    assert capsys.readouterr().out == (place / "out/report.md").read_text()


def test_settings_come_from_the_nearest_source(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (place / "pyproject.toml").write_text(
        "[tool.leakaudit]\nseed = 1\nthreads = 2\nmax-bytes = '1GB'\n"
    )
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
        assert (
            main(["attack", name, "--truth", "trace.truth.pt", "-o", "out", "-q", "-f", "json"])
            == 0
        )
        assert all(
            f["certificate"]["name"] == "EXACT"
            for f in json.loads(capsys.readouterr().out)["findings"]
        )


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
    assert torch.equal(
        la.load("same.pt").messages[0].payload, la.load("trace.pt").messages[0].payload
    )


def test_a_users_own_model_runs_only_when_trusted(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (place / "mine.py").write_text(
        "import torch\ndef net(shape, classes):\n    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(625, classes))\n"
    )
    own = [
        "record",
        "pdmm",
        "--model",
        "mine:net",
        "--nodes",
        "4",
        "--rounds",
        "6",
        "-o",
        "own.pt",
        "-q",
    ]
    with monkeypatch.context() as patched:
        patched.syspath_prepend(str(place))
        assert main(own) == 0  # who names it on the command line means it
    del sys.modules["mine"]
    (place / "own.toml").write_text('model = "mine:net"\nnodes = 4\n')
    monkeypatch.syspath_prepend(str(place))
    by_file, attack = (
        ["record", "--scenario", "own.toml", "-o", "file.pt", "-q"],
        ["attack", "own.pt", "-o", "out", "-q"],
    )
    assert "--trust-model" in refused(capsys, *by_file)
    assert "--trust-model" in refused(capsys, *attack)
    assert "mine" not in sys.modules
    assert main([*by_file, "--trust-model", "mine:net"]) == 0
    assert main([*attack, "--trust-model", "mine:net"]) == 0
    del sys.modules["mine"]
    findings = json.loads((place / "out/results.json").read_text())["findings"]
    assert all(f["certificate"]["name"] == "EXACT" for f in findings)


def test_ctrl_c_keeps_what_was_found(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from leakaudit.inversion import attacking

    whole, calls = attacking.attack_one, []

    def stop_at_third(*args: object, **kwargs: object) -> object:
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return whole(*args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(attacking, "attack_one", stop_at_third)
    assert main(["attack", "trace.pt", "-o", "out", "-q"]) == 130
    record = json.loads((place / "out/results.json").read_text())
    assert [f["node"] for f in record["findings"]] == [0, 1]
    assert record["complete"] is False
    assert "incomplete" in record["summary"]
