"""A run that broke is neither a pass nor a leak, and results of one run are never shown with the pictures of another."""

# JSON is looked up by keys here: a wrong key fails when the test runs.
# mypy: disable-error-code="arg-type"

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from leakaudit.cli import main
from leakaudit.reporting.results import record_file


def one_line(capsys: pytest.CaptureFixture[str]) -> str:
    err = capsys.readouterr().err
    assert len(err.strip().splitlines()) == 1, err
    assert "Traceback" not in err
    return err


# --- leakaudit itself ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error",
    [
        OverflowError("int too large"),
        IndexError("list\nindex"),
        MemoryError(),
        RecursionError("deep"),
    ],
)
def test_a_defect_is_one_line_and_code_4(
    error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(what: str) -> int:
        raise error

    monkeypatch.setattr("leakaudit.cli.list.entries", broken)
    monkeypatch.delenv("LEAKAUDIT_DEBUG", raising=False)
    assert main(["list", "graphs"]) == 4
    said = one_line(capsys)
    assert f"internal error, which is neither a pass nor a leak: {type(error).__name__}" in said
    assert "LEAKAUDIT_DEBUG=1" in said
    monkeypatch.setenv("LEAKAUDIT_DEBUG", "1")
    assert main(["list", "graphs"]) == 4
    assert "Traceback" in capsys.readouterr().err


def test_a_plugin_that_ends_the_process_is_code_4(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ending_plugin.py").write_text("import sys\nsys.exit(0)\n")
    assert main(["list", "graphs", "--plugin", "ending_plugin"]) == 4
    assert "called sys.exit(0) when it was imported; there is no verdict" in one_line(capsys)


# --- pictures and their record ------------------------------------------------------------------------------------------


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Results of two runs of one shape, in the folders a and b."""
    monkeypatch.chdir(tmp_path)
    for name, seed in (("a", "0"), ("b", "1")):
        record = [
            "record",
            "fedsgd",
            "-o",
            f"{name}.pt",
            "--nodes",
            "2",
            "--rounds",
            "1",
            "--model",
            "logistic",
            "--seed",
            seed,
            "-q",
        ]
        assert main(record) == 0
        assert main(["attack", f"{name}.pt", "-o", name, "-q"]) == 0
    return tmp_path


@pytest.mark.parametrize("file", ["reconstructions.npz", "originals.npz", "reconstructions.png"])
def test_pictures_of_another_run_are_refused(
    pair: Path, file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """As a kill leaves them: some files are of run b, results.json is still that of run a."""
    before = (pair / "a" / "results.json").read_bytes()
    shutil.copy(pair / "b" / file, pair / "a" / file)
    capsys.readouterr()
    assert main(["report", "a", "-o", "page.html", "-q"]) == 2
    assert f"{file} is not the file that a/results.json was written with" in one_line(capsys)
    assert not (pair / "page.html").exists()
    assert main(["report", "a", "--rescore", "--truth", "a.truth.pt", "-q"]) == 2
    assert "is not the file that" in one_line(capsys)
    assert (pair / "a" / "results.json").read_bytes() == before
    assert main(["report", "a", "--redact", "-o", "page.html", "-q"]) == 0


def test_honest_pairs_are_shown_and_scored_and_stay_pairs(pair: Path) -> None:
    for _ in range(2):
        assert main(["report", "a", "--rescore", "--truth", "a.truth.pt", "-q"]) == 0
        assert main(["report", "a", "-o", "page.html", "-q"]) == 0
    made = record_file.read(pair / "a" / "results.json")
    assert set(made["files"]) == {"originals.npz", "reconstructions.npz", "reconstructions.png"}
    (pair / "a" / "originals.npz").unlink()
    assert main(["report", "a", "-o", "page.html", "-q"]) == 0, "originals may be deleted"


# --- the action ---------------------------------------------------------------------------------------------------------

FAKES = {
    "green without a record": ("exit 0", 4, "error"),
    "red without a record": ("exit 1", 4, "error"),
    "a record that says otherwise": ('out 1; exit 0', 4, "error"),
    "no JSON": ('echo x > "$o/results.json"; exit 0', 4, "error"),
    "a defect": ("exit 4", 4, "error"),
    "a mistake": ("exit 2", 2, "error"),
    "a pass": ("out 0; exit 0", 0, "pass"),
    "a leak": ("out 1; exit 1", 1, "leak"),
    "unclear": ("out 3; exit 3", 3, "cannot tell"),
}  # fmt: skip
FAKE = """#!/bin/bash
while [ $# -gt 0 ]; do if [ "$1" = "-o" ]; then o="$2"; fi; shift; done
out() { echo "{\\"gate\\": {\\"code\\": $1}}" > "$o/results.json"; }
"""


@pytest.mark.parametrize("name", FAKES)
def test_the_action_believes_the_record_of_its_own_step_only(
    project: Path, tmp_path: Path, name: str
) -> None:
    """With a command that ends in every way, in a repository that has a folder leakaudit/ and results of an earlier step."""
    body, code, verdict = FAKES[name]
    command = tmp_path / "bin" / "leakaudit"
    command.parent.mkdir()
    command.write_text(FAKE + body + "\n")
    command.chmod(0o755)
    (tmp_path / "bin" / "python").symlink_to(sys.executable)
    repo = tmp_path / "repo"
    (repo / "leakaudit").mkdir(parents=True)
    (repo / "leakaudit" / "__main__.py").write_text("print('nothing to see')\n")
    (tmp_path / "leakaudit").mkdir()
    (tmp_path / "leakaudit" / "results.json").write_text('{"gate": {"code": 0}}')
    step = yaml.safe_load((project / "action.yml").read_text())["runs"]["steps"][1]
    told = tmp_path / "output"
    told.write_text("")
    environ = {
        **{
            "PATH": f"{command.parent}:/usr/bin:/bin",
            "RUNNER_TEMP": str(tmp_path),
            "GITHUB_OUTPUT": str(told),
        },
        **{
            "GITHUB_STEP_SUMMARY": str(tmp_path / "summary"),
            "LEAKAUDIT_CHECKS": "a *",
            "LEAKAUDIT_STRICT": "true",
        },
    }
    bash = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]]
    done = subprocess.run(bash, cwd=repo, env=environ, capture_output=True, text=True, check=False)
    outputs = dict(line.split("=", 1) for line in told.read_text().splitlines())
    assert (done.returncode, outputs["verdict"]) == (code, verdict), done.stdout + done.stderr
    assert ("results" in outputs) == (verdict != "error")
    assert outputs.get("results", "") != str(tmp_path / "leakaudit" / "results.json")


# --- code scanning ------------------------------------------------------------------------------------------------------


def test_a_clean_gate_raises_no_alert(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SARIF's default kind is fail: a result that passed must say so."""
    monkeypatch.chdir(tmp_path)
    constants = 'order = "adapt", noise = "message", sigma = 9.0'
    scenario = f'{{ victim = "dpsgd", nodes = 3, graph = "ring", rounds = 2, model = "logistic", set = {{ {constants} }} }}'
    gate = f'[gate]\nseeds = 1\nbaseline = ""\n[check.a]\nattacks = ["exact"]\nset.exact.visits = 2\nscenario = {scenario}\n'
    (tmp_path / "leakaudit.toml").write_text(gate + '[[budget]]\nmeasure = "exact"\nmost = 0.0\n')
    assert main(["check", "-q", "-f", "sarif=a.sarif"]) == 0
    (run,) = json.loads((tmp_path / "a.sarif").read_text())["runs"]
    assert len(run["results"]) > 3
    assert {(r["kind"], r["level"]) for r in run["results"]} <= {("pass", "none"), ("open", "none")}
