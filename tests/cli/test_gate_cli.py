"""`check`, `baseline` and `init` as users meet them: exit codes, files that are whole or as they
were, one clear line for what is wrong.
"""

# JSON is looked up by keys here: a wrong key fails when the test runs.
# mypy: disable-error-code="assignment"

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
import tomllib
import xml.etree.ElementTree as Tree
from datetime import date
from pathlib import Path

import pytest
from invoked import GATE

from leakaudit.cli import main
from leakaudit.judging.gate import baseline, judge
from leakaudit.reporting.results import record_file

QUIET = "sigma = 0.5"  # noise that hides everything from this attack


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "leakaudit.toml").write_text(GATE)
    return tmp_path


def change(old: str, new: str) -> None:
    file = Path("leakaudit.toml")
    assert old in file.read_text()
    file.write_text(file.read_text().replace(old, new, 1))


def made() -> dict[str, object]:
    gate: dict[str, object] = record_file.read(Path("leakaudit-out/results.json"))["gate"]
    return gate


@pytest.mark.slow
def test_the_life_of_a_gate(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No baseline: 3. With one: 0, and bit-identical again. Without noise: 1. Accepted: 0. Measured
    in another way: 3.
    """
    assert main(["check", "-q"]) == 3
    assert "is not in the baseline" in capsys.readouterr().out
    assert main(["check", "--update", "-q", "--reason", "first"]) == 0
    assert capsys.readouterr().out == "+ ring/eavesdropper/exact\n"
    before = (place / "leakage-baseline.json").read_bytes()
    repeated = []
    for _ in range(2):
        assert main(["check", "-q", "--strict"]) == 0
        assert capsys.readouterr().out.startswith("No limit is exceeded: ")
        repeated.append(made()["cells"][0]["measures"])  # type: ignore[index]
    assert repeated[0] == repeated[1]
    assert main(["check", "--diff", "-q"]) == 0
    assert capsys.readouterr().out == "no difference\n"

    change(QUIET, "sigma = 0.0")
    assert main(["check", "-q"]) == 1
    out = capsys.readouterr().out
    assert out.startswith("Leak: eavesdropper reconstructs the training input of node ")
    assert "(check ring, adversary eavesdropper, attack exact)" in out
    assert "\n  REGRESSION   advantage over a blind guess " in out
    assert out.count("reconstructs the training input") == 2, "in the summary and in the block"
    assert " within the limits" in out
    assert main(["check", "--diff", "-q"]) == 0
    assert "~ ring/eavesdropper/exact exact: 0.0% -> 100.0%\n" in capsys.readouterr().out
    assert (place / "leakage-baseline.json").read_bytes() == before

    day = '[[accept]]\nid = "a"\nreason = "r"\nowner = "o"\nexpires = {}\n'
    text = (place / "leakaudit.toml").read_text()
    (place / "leakaudit.toml").write_text(text + day.format("2999-01-01"))
    assert main(["check", "-q", "--strict"]) == 0
    assert made()["acceptances"] == {"a": "used"}
    (place / "leakaudit.toml").write_text(text + day.format("2020-01-01"))
    assert main(["check", "-q"]) == 1
    assert "acceptance a has expired" in capsys.readouterr().out
    assert "; acceptance a of o expired on 2020-01-01" in str(made()["rules"])

    (place / "leakaudit.toml").write_text(GATE.replace("visits = 2", "visits = 3"))
    assert main(["check", "-q"]) == 3
    assert "was measured differently" in capsys.readouterr().out


def test_formats_summary_and_results_say_the_same(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    change(QUIET, "sigma = 0.0")
    change("[gate]", '[gate]\nbaseline = ""')
    change("seeds = 6", "seeds = 2")
    flags = [
        "-f",
        "json",
        "-f",
        "junit=out/junit.xml",
        "-f",
        "sarif=out/a.sarif",
        "-f",
        "github=out/github.txt",
        "--summary",
        "job.md",
    ]
    assert main(["check", "-q", "-o", "out", *flags]) == 1
    shown = json.loads(capsys.readouterr().out)
    assert shown == json.loads((place / "out/results.json").read_text())
    assert (shown["gate"]["code"], shown["gate"]["verdict"]) == (1, "leak")
    assert shown["gate"]["cells"][0]["worst"]["exact"] is True
    cases = Tree.parse(place / "out/junit.xml").getroot().findall(".//testcase")
    assert len(cases) == len(shown["gate"]["rules"]) == 5
    assert sum(case.find("failure") is not None for case in cases) == 1
    (run,) = json.loads((place / "out/a.sarif").read_text())["runs"]
    assert [r["level"] for r in run["results"]].count("error") == 1
    assert (
        run["results"][0]["locations"][0]["physicalLocation"]["artifactLocation"]["uri"]
        == "leakaudit.toml"
    )
    assert (
        "\n::error title=ring/eavesdropper/exact%3A budget%3A records recovered bit for bit::OVER BUDGET: "
        in (place / "out/github.txt").read_text()
    )
    page = (place / "job.md").read_text()
    assert page.startswith("# Leakage gate: leak\n")
    assert (place / "out/leak.png").read_bytes().startswith(b"\x89PNG")
    assert shown["picture"] == "leak.png"
    assert set(shown["files"]) == {"leak.png", "leak.npz"}
    assert main(["report", "out", "-o", "page.html", "-q"]) == 0
    assert (place / "page.html").read_text().count('src="data:image/png') == 4
    assert main(["report", "out", "-o", "hidden.html", "--redact", "-q"]) == 0
    assert "data:image/png" not in (place / "hidden.html").read_text()
    row = "| OVER BUDGET | ring/eavesdropper/exact | budget: records recovered bit for bit | 100.0% | 0.0% |"
    assert row in page


def test_time_that_runs_out_is_code_3_and_no_update(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    change("seeds = 6", "seeds = 2")
    assert main(["check", "--update", "-q", "--reason", "first"]) == 0
    before = (place / "leakage-baseline.json").read_bytes()
    change("seeds = 2", "seeds = 4000")
    assert main(["check", "-q", "--max-seconds", "0.5"]) == 3
    assert "the run was interrupted" in capsys.readouterr().out
    assert record_file.read(place / "leakaudit-out/results.json")["complete"] is False
    assert main(["check", "--update", "-q", "--reason", "second", "--max-seconds", "0.5"]) == 2
    assert "the baseline is not changed: the run was interrupted" in capsys.readouterr().err
    assert (place / "leakage-baseline.json").read_bytes() == before


def test_ctrl_c_before_the_first_recording_is_code_130(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(judge, "_run", interrupted)
    assert main(["check", "-q"]) == 130
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert "interrupted before the first recording" in line
    assert not (place / "leakaudit-out/results.json").exists()


def test_a_dry_run_says_the_cost_and_writes_nothing(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = sorted(place.iterdir())
    assert main(["check", "--dry-run", "-q"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("ring: 6 seeds, ")
    assert "nothing was judged or written" in out
    assert sorted(place.iterdir()) == files


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["check", "rong"], "check 'rong' does not exist; did you mean 'ring'?"),
        (["check", "-f", "htlm"], "there is no report 'htlm'"),
        (
            ["check", "--show"],
            "baseline leakage-baseline.json: the file does not exist; create one with 'leakaudit check --update --reason TEXT'",
        ),
        (["check", "--diff"], "expected the results.json of a run"),
        (["init", "--example"], "leakaudit.toml already exists"),
        (["init"], "expected one of --run MODULE:FUNCTION, --tap COMMAND and --scenario FILE"),
        (["init", "--run", "a:b", "--tap", "c"], "expected one of --run MODULE:FUNCTION"),
        (["init", "--run", "a:b", "--truth", "c"], "--truth: expected only with --tap"),
    ],
)
def test_what_cannot_be_used_is_one_line_and_code_2(
    place: Path, capsys: pytest.CaptureFixture[str], argv: list[str], message: str
) -> None:
    assert main([*argv, "-q"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert len(err.strip().splitlines()) == 1
    assert message in err


def test_a_program_that_is_not_there_is_named(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (place / "gate_program.py").write_text("def train(seed, path):\n    pass\n")
    plain = "[gate]\nbaseline = ''\n[check.ring]\nrun = '{}'\n"
    for run, code, message in (
        ("no_such_program:train", 2, "cannot import 'no_such_program'"),
        ("gate_program:trian", 2, "gate_program has no 'trian'; did you mean 'train'?"),
        ("gate_program:train", 4, "run wrote no trace; record with leakaudit.Recorder(path, …)"),
    ):
        (place / "leakaudit.toml").write_text(plain.format(run))
        assert main(["check", "-q"]) == code
        assert message in capsys.readouterr().err


@pytest.mark.slow
def test_init_writes_a_gate_that_passes_and_never_overwrites(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["init", "-q", "--example"]) == 0
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "leakage-baseline.json",
        "leakaudit.schema.json",
        "leakaudit.toml",
    ]
    assert main(["config", "lint"]) == 0
    assert main(["check", "-q", "--strict"]) == 0
    assert baseline.read(tmp_path / "leakage-baseline.json").reason == "first baseline"
    text = (tmp_path / "leakaudit.toml").read_text()
    assert main(["init", "-q", "--example"]) == 2
    assert (tmp_path / "leakaudit.toml").read_text() == text
    example = "\n".join(
        line.removeprefix("# ") for line in text[text.index("# [[accept]]") :].splitlines()
    )
    assert tomllib.loads(example)["accept"][0]["expires"] == date(2030, 6, 30)
    capsys.readouterr()


def test_init_for_a_program_and_for_a_scenario(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["init", "-q", "--no-baseline", "--run", "train:record"]) == 0
    assert '\nrun = "train:record"\n' in Path("leakaudit.toml").read_text()
    assert main(["config", "lint"]) == 0
    Path("leakaudit.toml").unlink()
    assert main(["init", "-q", "--no-baseline", "--scenario", "a.toml"]) == 0
    assert '\nscenario = "a.toml"\n' in Path("leakaudit.toml").read_text()
    assert main(["config", "lint"]) == 0
    Path("leakaudit.toml").unlink()
    assert main(["init", "-q", "--run", "train"]) == 2
    assert not Path("leakaudit.toml").exists()


KILLED = """
import os, signal, sys, time
from pathlib import Path
from leakaudit._util import files
from leakaudit.cli import main

def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)

class Half:
    def __init__(self, file):
        self.file = file
    def __enter__(self):
        return self
    def __exit__(self, *_):
        pass
    def write(self, data):
        self.file.write(data[: len(data) // 2])
        self.file.flush()
        die()

def replaced(self, target):
    os.replace(self, target)
    die()

places = {
    "half": lambda: setattr(files, "open", lambda *args, **given: Half(open(*args, **given))),
    "written": lambda: setattr(os, "fsync", die),
    "moved": lambda: setattr(Path, "replace", replaced),
}
out, sys.stdout = sys.stdout, open(os.devnull, "w")
start = time.perf_counter()
assert main(sys.argv[1:]) == 0  # every import and cache is there before the forks
sys.stdout = out
print(time.perf_counter() - start, flush=True)
for line in sys.stdin:
    place = line.strip()
    if (child := os.fork()) == 0:
        sys.stdout = sys.stderr = open(os.devnull, "w")
        places.get(place, lambda: None)()
        os._exit(main(sys.argv[1:]))
    if place not in (*places, "never"):
        time.sleep(float(place))
        os.kill(child, signal.SIGKILL)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "verb", [["check", "-o", "out"], ["check", "--update", "--reason", "again"]]
)
def test_a_gate_that_is_killed_at_any_moment_leaves_whole_files(
    place: Path, verb: list[str]
) -> None:
    """Killed with half of a file written, with all of it, and once it is in its place; and at five
    moments of the run.
    """
    change("seeds = 6", "seeds = 2")
    change("[check.ring]", '[check.ring]\nlint = "off"')
    assert main(["check", "--update", "-q", "--reason", "first"]) == 0
    file = place / ("out/results.json" if verb[0] == "check" else "leakage-baseline.json")
    command = [sys.executable, "-W", "ignore", "-c", KILLED, *verb, "-q"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as forking:
        assert forking.stdin is not None
        assert forking.stdout is not None

        def killed(when: str) -> int:
            assert forking.stdin is not None
            assert forking.stdout is not None
            forking.stdin.write(f"{when}\n")
            forking.stdin.flush()
            return int(forking.stdout.readline())

        def whole() -> bytes:
            assert set(baseline.read(place / "leakage-baseline.json").cells) == {
                "ring/eavesdropper/exact"
            }
            if verb[0] == "check":
                if not file.exists():
                    return b""  # a check takes the last one's record away first, so that nobody takes it for its own
                assert record_file.read(file)["kind"] == "check"
            return file.read_bytes()

        assert float(forking.stdout.readline()) > 0
        start = time.perf_counter()
        assert killed("never") == 0
        seconds, old = time.perf_counter() - start, whole()
        for when in ("half", "written"):
            assert killed(when) == -signal.SIGKILL
            assert whole() == (b"" if verb[0] == "check" else old)
        assert killed("moved") == -signal.SIGKILL
        assert whole() != old
        for k in range(5):
            killed(f"{seconds * (k + 1) / 5:.3f}")
            whole()
        forking.stdin.close()
