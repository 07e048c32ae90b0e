"""`sweep`, as a user calls it: kills, parts, backends, processes that die, and exit codes."""

# JSON is looked up by keys here: a wrong key fails when the test runs.
# mypy: disable-error-code="call-overload, index, operator, union-attr"

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from invoked import SWEEP

from leakaudit.cli import main
from leakaudit.reporting.results import record_file

FRAGILE = """
import os, signal
from leakaudit.core import registry
Analytic = registry.get("attacks", "analytic")

@registry.attack("fragile")
class Fragile(Analytic):
    '''Analytic, but its process is killed at one seed.'''
    def __call__(self, leak, task, generator):
        if not os.path.exists("strong") and generator.initial_seed() == int(os.environ["FRAGILE"]):
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__call__(leak, task, generator)
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "plan.toml"
    path.write_text(SWEEP)
    return path


def started(*words: str, **more: str) -> subprocess.Popen[bytes]:
    """`leakaudit sweep` as a process of its own."""
    command = [sys.executable, "-m", "leakaudit", "sweep", *words, "-q", "-f", "json"]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, env={**os.environ, **more})


def descendants(pid: int) -> list[str]:
    """Processes that this one started, and those that they started."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return children + [found for child in children for found in descendants(int(child))]


def test_one_command_runs_draws_and_prints_and_a_report_shows_it_again(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    out = str(tmp_path / "out")
    assert main(["sweep", str(file), "-o", out, "--dry-run"]) == 0
    dry = json.loads(capsys.readouterr().out)
    assert (dry["cells"], dry["done"], dry["hours left"]) == (8, 0, None)
    assert not Path(out).exists()
    assert main(["sweep", str(file), "-o", out, "--workers", "0"]) == 0
    shown = capsys.readouterr()
    assert "out: 8 of 8 cells" in shown.err
    assert {p.name for p in Path(out).iterdir()} == {
        *("results.json", "sweep.png", "report.md", "plan.json", "cells", "times-1-of-1.jsonl")
    }
    assert main(["report", out, "-f", "text"]) == 0
    assert capsys.readouterr().out == shown.out
    assert main(["report", out, "-f", "markdown"]) == 0
    assert capsys.readouterr().out == (tmp_path / "out" / "report.md").read_text()
    assert main(["report", out, "-f", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == record_file.read(
        tmp_path / "out" / "results.json"
    )
    assert main(["report", out, "-f", "html"]) == 0
    page = capsys.readouterr().out
    assert "<h1" in page
    assert "What to do" in page
    assert page.count("<svg") == 1
    for words in (
        ["-f", "sarif"],
        ["-f", "text", "--redact"],
        ["-f", "text", "--against", out],
    ):
        assert main(["report", out, *words]) == 2
        assert "a sweep" in capsys.readouterr().err
    assert main(["record", "dpsgd", "-o", "t.pt", "--nodes", "3", "--rounds", "1", "-q"]) == 0
    assert main(["report", out, "--rescore", "--truth", "t.truth.pt"]) == 2
    assert "expected the results of an attack" in capsys.readouterr().err
    assert main(["sweep", str(file), "-o", out, "--dry-run"]) == 0
    assert json.loads(capsys.readouterr().out)["hours left"] == 0.0


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ("[sweep]", "[swep]", "unknown key 'swep'; did you mean 'sweep'"),
        ("seeds = 2", "sedes = 2", "unknown key 'sedes'; did you mean 'seeds'"),
        ("seeds = 2", "seeds = 0", "seeds: expected an integer >= 1"),
        ("hidden = 8", "hiden = 8", "did you mean 'hidden'"),
        ("rounds = 3", 'rounds = "3"', "rounds: expected a whole number, got '3'"),
        ("rounds = 3", "ronds = 3", "did you mean 'rounds'"),
        ("sigma = [", "epsilon = [", "over.epsilon: cannot vary here"),
        ("sigma = [0.0, 0.01]", "sigma = 0.1", "over.sigma: expected a list"),
        ("sigma = [0.0, 0.01]", "sigma = [0.1, 0.1]", "over.sigma: expected a list of distinct"),
        (
            "sigma = [0.0, 0.01]",
            "sigma = [nan]",
            "over.sigma: expected a list of distinct words or finite",
        ),
        ("sigma = [0.0, 0.01]", "sigma = [-1.0]", "sigma"),
        ("nodes = [0]", "nodes = 0", "nodes: expected a list"),
        ("nodes = [0]", "nodes = [7]", "node 7"),
        ("nodes = [0]", "set = {dlg = {steps = 3}}", "expected the name of an attack or a victim"),
        ("[sweep]", "[sweep", "plan.toml"),
    ],
)
def test_a_plan_with_a_mistake_is_one_line_and_code_2(
    file: Path, before: str, after: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file.write_text(SWEEP.replace(before, after, 1))
    assert main(["sweep", str(file), "-o", str(file.parent / "out"), "--workers", "0"]) == 2
    told = capsys.readouterr().err
    assert words in told
    assert told.count("\n") == 1
    assert not (file.parent / "out").exists()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--shard", "3/2"], "--shard: expected I/N"),
        (["--shard", "two"], "--shard: expected I/N"),
        (["--shard", "9/9"], "expected at most 8 parts"),
        (["--workers", "-1"], "--workers: expected an integer >= 0"),
        (["--backend", "threads"], "--backend: expected process, loky, dask, ray"),
        (["extra.toml"], "expected one plan"),
    ],
)
def test_a_flag_with_a_mistake_is_code_2(
    file: Path, words: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["sweep", str(file), *words, "-o", str(file.parent / "out"), "-q"]) == 2
    assert told in capsys.readouterr().err


def test_merging_what_is_not_there_is_code_2_and_what_is_not_all_is_code_3(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = str(file.parent / "half")
    assert main(["sweep", str(file), "-o", folder, "--workers", "0", "--shard", "1/2", "-q"]) == 0
    assert capsys.readouterr().out == ""
    assert main(["sweep", "merge", folder, "-o", str(file.parent / "half.json")]) == 3
    assert "4 missing" in capsys.readouterr().out
    assert main(["sweep", "merge", str(file.parent / "nowhere")]) == 2
    assert "expected the folder of a sweep" in capsys.readouterr().err
    assert main(["sweep", "merge"]) == 2
    cell = next((file.parent / "half" / "cells").iterdir())
    cell.write_text('{"config": 3}')
    assert main(["sweep", "merge", folder, "-o", str(file.parent / "half.json")]) == 2
    assert "expected the result of a cell" in capsys.readouterr().err


@pytest.mark.slow
def test_a_sweep_killed_twice_and_resumed_gives_the_bytes_of_one_that_was_not(file: Path) -> None:
    file.write_text(SWEEP.replace("seeds = 2", "seeds = 12"))
    whole, broken = file.parent / "whole", file.parent / "broken"
    assert main(["sweep", str(file), "-o", str(whole), "--workers", "0", "-q"]) == 0
    counts = []
    for least in (2, 7):
        with started(str(file), "-o", str(broken), "--workers", "2") as process:
            while len([*broken.glob("cells/*.json")]) < least:
                time.sleep(0.005)
            children = descendants(process.pid)
            process.send_signal(signal.SIGKILL)
        counts.append(len([*broken.glob("cells/*.json")]))
        limit = time.monotonic() + 600
        while any(
            Path(f"/proc/{child}").exists() and time.monotonic() < limit for child in children
        ):
            time.sleep(0.05)
        assert not [child for child in children if Path(f"/proc/{child}").exists()]
        assert not (broken / "results.json").exists()
        for path in broken.glob("cells/*.json"):
            json.loads(path.read_bytes())
    assert counts[0] < counts[1] < 48
    with started(str(file), "-o", str(broken), "--workers", "2") as process:
        assert process.wait() == 0
    assert (broken / "results.json").read_bytes() == (whole / "results.json").read_bytes()
    assert {p.name: p.read_bytes() for p in (broken / "cells").iterdir()} == {
        p.name: p.read_bytes() for p in (whole / "cells").iterdir()
    }


@pytest.mark.slow
def test_ctrl_c_in_a_terminal_reaches_every_process_and_is_told_by_one(file: Path) -> None:
    file.write_text(SWEEP.replace("seeds = 2", "seeds = 200"))
    command = [
        sys.executable,
        "-m",
        "leakaudit",
        "sweep",
        str(file),
        "-o",
        str(file.parent / "out"),
        "--workers",
        "2",
        "-f",
        "json",
    ]
    with subprocess.Popen(
        command,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        while len([*file.parent.glob("out/cells/*.json")]) < 4 and process.poll() is None:
            time.sleep(0.005)
        masks = [
            int(Path(f"/proc/{p}/status").read_text().split("SigBlk:")[1].split()[0], 16)
            for p in descendants(process.pid)
        ]
        os.killpg(process.pid, signal.SIGINT)
        _, told = process.communicate()
    assert (
        sum(mask >> (signal.SIGINT - 1) & 1 for mask in masks) == 3
    )  # the two workers, and what they are forked from
    assert process.returncode == 130
    assert "Traceback" not in told
    assert "run the same command again to continue" in told
    assert not record_file.read(file.parent / "out" / "results.json")["complete"]


@pytest.mark.slow
def test_workers_have_the_environment_of_the_sweep_that_starts_them(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["sweep", str(file), "--workers", "1", "-q", "-f", "json", "-o"]
    assert main([*words, str(file.parent / "before")]) == 0
    monkeypatch.setenv(
        "LEAKAUDIT_PLUGINS", "nosuch"
    )  # the process that workers are forked from is older
    assert main([*words, str(file.parent / "after")]) == 3
    says = [
        c["says"]
        for c in record_file.read(file.parent / "after" / "results.json")["sweep"]["cells"]
    ]
    assert all("plugin 'nosuch'" in line for line in says)


@pytest.mark.slow
def test_a_process_that_dies_takes_one_cell_with_it_which_is_tried_again_later(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from leakaudit._util.seeds import generator

    monkeypatch.chdir(file.parent)
    (file.parent / "fragile_attack.py").write_text(FRAGILE)
    file.write_text(SWEEP.replace('"analytic"', '"fragile"'))
    words = [
        str(file),
        "-o",
        str(file.parent / "out"),
        "--workers",
        "2",
        "--plugin",
        "fragile_attack",
    ]
    more = {"FRAGILE": str(generator(1, 0).initial_seed()), "PYTHONPATH": str(file.parent)}
    with started(*words, **more) as process:
        assert process.wait() == 3
    cells = record_file.read(file.parent / "out" / "results.json")["sweep"]["cells"]
    died = [c for c in cells if c["status"] == "died"]
    assert [(c["attack"], c["seed"]) for c in died] == [("fragile", 1)] * 2
    assert all("signal 9 (SIGKILL)" in c["says"] for c in died)
    assert [c["status"] for c in cells].count("done") == 6
    (file.parent / "strong").touch()
    with started(*words, **more) as process:
        assert process.wait() == 0
    assert all(
        c["status"] == "done"
        for c in record_file.read(file.parent / "out" / "results.json")["sweep"]["cells"]
    )


@pytest.mark.slow
def test_joblib_gives_the_same_file(file: Path) -> None:
    pytest.importorskip("joblib")
    assert main(["sweep", str(file), "-o", str(file.parent / "here"), "--workers", "0", "-q"]) == 0
    with started(
        str(file), "-o", str(file.parent / "there"), "--workers", "2", "--backend", "joblib"
    ) as process:
        assert process.wait() == 0
    assert (file.parent / "here" / "results.json").read_bytes() == (
        file.parent / "there" / "results.json"
    ).read_bytes()
    with started(
        str(file), "-o", str(file.parent / "no"), "--workers", "2", "--backend", "joblib:nosuch"
    ) as process:
        assert process.wait() == 2
