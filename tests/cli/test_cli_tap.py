"""`leakaudit tap`: what it says, its exit codes, what it leaves behind; programs that crash, or that start their processes themselves."""

# JSON is looked up by keys here: a wrong key fails when the test runs.
# mypy: disable-error-code="operator, union-attr"

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from leakaudit.capture.tap.log.environment import VARIABLE
from leakaudit.capture.tap.log.reading import read_logs
from leakaudit.capture.tap.log.writing import Log
from leakaudit.cli import main
from leakaudit.traces import trace_file
from leakaudit.traces.trace_info import verify

DESCRIPTION = """
payload = "weights"
first = "update"
[params]
alpha = 0.1
[model]
name = "logistic"
shape = [1, 4, 4]
classes = 3
"""

PROGRAM = """
import os, signal, sys
import torch, torch.distributed as dist
from torch.multiprocessing import spawn

def work(rank, store, crash):
    dist.init_process_group("gloo", init_method="file://" + store, rank=rank, world_size=3)
    kept = []
    for t in range(1, 7):
        w = torch.arange(51.0) + 100 * rank + t
        kept.append(w)
        if rank == 2 and t == crash:
            os.kill(os.getpid(), signal.SIGKILL)
        others = [j for j in range(3) if j != rank]
        theirs = [torch.empty(51) for _ in others]
        works = [dist.isend(w, j) for j in others] + [dist.irecv(v, j) for j, v in zip(others, theirs)]
        for one in works:
            one.wait()
        if not all(torch.equal(v, torch.arange(51.0) + 100 * j + t) for j, v in zip(others, theirs)):
            sys.exit(3)
    dist.destroy_process_group()

if __name__ == "__main__":
    spawn(work, args=(os.path.abspath("store"), int(sys.argv[1])), nprocs=3)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tap.toml").write_text(DESCRIPTION)
    (tmp_path / "program.py").write_text(PROGRAM)
    return tmp_path


def sent() -> dict[tuple[int, int, int], torch.Tensor]:
    """What the program sends, by (round, src, dst)."""
    return {
        (t, i, j): torch.arange(51.0) + 100 * i + t
        for t in range(1, 7)
        for i in range(3)
        for j in range(3)
        if i != j
    }


def held(path: str) -> dict[tuple[int, int, int], torch.Tensor]:
    (m,) = trace_file.load(path).messages
    return {
        (int(m.round[k]), int(m.src[k]), int(m.dst[k])): m.payload[int(m.row[k])]
        for k in range(len(m))
    }


# --- programs that start their processes themselves -------------------------------------------------------------------


@pytest.mark.slow
def test_filters_keep_what_was_asked_for_and_nothing_else(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    filters = ["--rounds", "2:4", "--ranks", "0,2"]
    assert (
        main(
            [
                "tap",
                "--describe",
                "tap.toml",
                *filters,
                "--progress",
                "none",
                "--",
                sys.executable,
                "program.py",
                "0",
            ]
        )
        == 0
    )
    wanted = {k: v for k, v in sent().items() if k[0] in (2, 3) and k[1] in (0, 2)}
    found = held("trace.pt")
    assert found.keys() == wanted.keys()
    assert all(torch.equal(found[k], wanted[k]) for k in wanted)
    said = capfd.readouterr().err
    assert "trace.pt: dpsgd, 3 nodes, 3 edges, 3 rounds, 8 messages; the tap took " in said
    assert "payloads not kept: 16 omitted because of rounds, 12 omitted because of ranks" in said
    assert not (folder / "trace.tap").exists()


@pytest.mark.slow
def test_a_killed_process_leaves_a_trace_that_verify_accepts_and_that_names_what_is_missing(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Rank 2 ends before it sends in round 4; what the others sent until then is there, bit for bit."""
    code = main(
        [
            "tap",
            "-o",
            "cut.pt",
            "--describe",
            "tap.toml",
            "--receive",
            "--",
            sys.executable,
            "program.py",
            "4",
        ]
    )
    assert code == 1
    trace, found, wanted = trace_file.load("cut.pt"), held("cut.pt"), sent()
    assert not trace.complete
    assert {k for k in wanted if k[0] < 4 or (k[0] == 4 and k[1] != 2)} == found.keys()
    assert all(torch.equal(found[k], wanted[k]) for k in found)
    facts = verify("cut.pt")
    assert (
        "messages 'w' 2 -> 0 of round 4: their sender's process had terminated" in facts["missing"]
    )
    assert (
        "messages 'w' 2 -> 1 of round 4: their sender's process had terminated" in facts["missing"]
    )
    assert any(
        line.startswith("node 2 ended after round 3: its process did not end normally")
        for line in facts["missing"]
    )
    assert "leakaudit tap: messages 'w' 2 -> 0 of round 4" in capfd.readouterr().err
    capfd.readouterr()
    assert main(["trace", "verify", "cut.pt"]) == 0


@pytest.mark.slow
def test_what_arrives_is_what_was_sent_and_stands_in_where_a_sender_is_not_heard(
    folder: Path,
) -> None:
    options = ["-q", "--keep", "--receive", "--describe", "tap.toml", "--max-bytes", "1e6"]
    assert main(["tap", *options, "--", sys.executable, "program.py", "0"]) == 0
    logs, wanted = read_logs("trace.tap"), sent()
    arrived = {
        (t, event.peer, log.rank): log.tensor(event)
        for log in logs
        for peer in range(3)
        for t, event in enumerate((e for e in log.events if e.op == "recv" and e.peer == peer), 1)
    }
    assert arrived.keys() == wanted.keys()
    assert all(torch.equal(arrived[k], v) for k, v in wanted.items())
    for name in ("rank1.0.jsonl", "rank1.0.bin"):
        (folder / "trace.tap" / name).unlink()
    assert (
        main(["tap", "merge", "trace.tap", "--describe", "tap.toml", "-o", "heard.pt", "-q"]) == 0
    )
    found = held("heard.pt")
    assert found.keys() == wanted.keys()
    assert all(torch.equal(found[k], wanted[k]) for k in wanted)


# --- wrong use --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ([], "expected a program after --"),
        (["--"], "expected a program after --"),
        (["--", "/no/such/program"], "cannot run '/no/such/program': No such file or directory"),
        (["--rounds", "5", "--", "true"], "--rounds: expected A:B, such as 0:11, got '5'"),
        (["--rounds", "4:2", "--", "true"], "--rounds: expected A:B"),
        (
            ["--ranks", "0;1", "--", "true"],
            "--ranks: expected whole numbers separated by commas, got '0;1'",
        ),
        (
            ["--describe", "none.toml", "--", "true"],
            "description none.toml: No such file or directory",
        ),
        (
            ["--", "true"],
            "no messages of the program were recorded: it sent none by torch.distributed",
        ),
        (["-o", "tap.toml/trace.pt", "--", "true"], "cannot write tap.toml/trace.tap"),
        (["--max-bytes", "much", "--", "true"], "max_bytes from flag"),
        (["describe", "none"], "cannot read none: No such file or directory"),
        (["describe", "."], "contains no log of a tap"),
        (["merge", "none", "--describe", "tap.toml"], "cannot read none"),
        (["-o", ".", "--", "true"], "expected the name of a trace file, got '.'"),
    ],
)
def test_wrong_use_is_one_line_and_code_2_and_leaves_nothing(
    folder: Path, capfd: pytest.CaptureFixture[str], arguments: list[str], complaint: str
) -> None:
    before = sorted(p.name for p in folder.iterdir())
    assert main(["tap", *arguments]) == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert complaint in err
    # Before the start, a line states how much is recorded.
    lines = [line for line in err.splitlines() if "of messages are recorded" not in line]
    assert len(lines) == 1
    assert sorted(p.name for p in folder.iterdir()) == before


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        ("mine.toml", b'payload = "wei', "description mine.toml: "),
        ("mine.toml", bytes(range(128, 256)), "description mine.toml: "),
        (
            "mine.toml",
            b"payload = ['weights']",
            "payload: expected weights, gradients or duals, got ['weights']",
        ),
        ("mine.toml", DESCRIPTION.replace("logistic", "broken:f").encode(), "model 'broken:f': "),
        (
            "truth.npz",
            b"PK\x03\x04 no archive",
            "cannot read truth.npz as .npz: File is not a zip file",
        ),
        (
            "trace.tap/rank0.0.jsonl",
            bytes(range(256)),
            "rank0.0.jsonl: expected the log of rank 0",
        ),
    ],
)
def test_files_that_are_something_else_are_one_line_and_code_2(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    name: str,
    content: bytes,
    complaint: str,
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    logged(folder / "trace.tap")
    (folder / "broken.py").write_text("def f(:\n")
    (folder / "mine.toml").write_text(DESCRIPTION)
    (folder / name).write_bytes(content)
    truth = ["--truth", "truth.npz"] if name == "truth.npz" else []
    trusted = ["--trust-model", "broken:f"]
    assert main(["tap", "merge", "trace.tap", "--describe", "mine.toml", *truth, *trusted]) == 2
    out, err = capfd.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert complaint in err
    assert not (folder / "trace.pt").exists()


@pytest.mark.parametrize(
    ("y", "node", "got"),
    [
        (np.int64(1), np.zeros(2, int), "got (2, 1, 4, 4), (), (2,) int64"),
        (np.zeros(2, int), np.int64(0), "got (2, 1, 4, 4), (2,), () int64"),
        (np.int64(1), np.int64(0), "got (2, 1, 4, 4), (), () int64"),
        (np.zeros(3, int), np.zeros(2, int), "got (2, 1, 4, 4), (3,), (2,) int64"),
        (np.zeros(2, int), np.zeros(2), "got (2, 1, 4, 4), (2,), (2,) float64"),
    ],
)
def test_a_truth_of_other_shapes_is_one_line_and_code_2(
    folder: Path, capfd: pytest.CaptureFixture[str], y: object, node: object, got: str
) -> None:
    logged(folder / "trace.tap")
    np.savez("truth.npz", x=np.zeros((2, 1, 4, 4)), y=np.asarray(y), node=np.asarray(node))
    arguments = ["merge", "trace.tap", "--describe", "tap.toml", "--truth", "truth.npz"]
    assert main(["tap", *arguments]) == 2
    out, err = capfd.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert f"truth.npz: expected x (s, 1, 4, 4), y (s,), node (s,), {got}; save one label" in err
    assert not (folder / "trace.pt").exists()


def test_the_programs_exit_code_is_passed_on(folder: Path) -> None:
    assert main(["tap", "-q", "--", sys.executable, "-c", "import sys; sys.exit(7)"]) == 7
    assert (
        main(["tap", "-q", "--", sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"])
        == 128 + 9
    )


def own(folder: Path, body: str) -> None:
    """Write a program without torch that writes to the tap's log itself."""
    (folder / "own.py").write_text(
        "import json, os\nimport numpy as np\nfrom leakaudit.capture.tap.log.writing import Log\n"
        f"folder, random = json.loads(os.environ['{VARIABLE}'])['folder'], np.random.default_rng(0)\n{body}"
    )


def test_messages_that_are_not_understood_are_kept_and_code_3(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Vectors of which nothing is known."""
    own(
        folder,
        "logs = [Log(folder, k, world=2) for k in range(2)]\n"
        "for _ in range(3):\n    for k, log in enumerate(logs): log.write('send', random.normal(size=40), peer=1 - k)\n"
        "for log in logs: log.close()\n",
    )
    assert main(["tap", "--", sys.executable, "own.py"]) == 3
    said = capfd.readouterr().err
    assert (
        "model.name, model.shape, model.classes; next: leakaudit tap describe trace.tap -o tap.toml"
        in said
    )
    assert len(read_logs("trace.tap")) == 2
    assert not (folder / "trace.pt").exists()
    assert main(["tap", "--describe", "tap.toml", "--", sys.executable, "own.py"]) == 2
    said = capfd.readouterr().err
    assert "no message has the size of the model (51 numbers" in said
    assert "the log is kept: leakaudit tap merge trace.tap --describe FILE" in said
    assert not (folder / "trace.pt").exists()


def test_a_guess_does_not_write_over_a_description(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Gradients of single records of a softmax regression, as a hook logs them, guessed twice."""
    own(
        folder,
        "for k in range(2):\n    with Log(folder, k, world=2) as log:\n        x = random.random(9)\n"
        "        for _ in range(3):\n            q = random.normal(size=4)\n"
        "            g = np.concatenate([np.outer(q, x).ravel(), q])\n"
        "            log.write('ddp', g, lane='model 0', of=2, parameters=[0, 1], last=True,"
        " sizes=[36, 4])\n",
    )
    (folder / "trace.toml").write_text("# mine")
    assert main(["tap", "--progress", "none", "--", sys.executable, "own.py"]) == 0
    assert (
        "trace.toml exists and differs, so it was kept; inferred: gradients (sure), fedsgd"
        in capfd.readouterr().err
    )
    assert (folder / "trace.toml").read_text() == "# mine"
    assert trace_file.load("trace.pt").protocol == "fedsgd"
    (folder / "trace.toml").unlink()
    assert main(["tap", "--progress", "none", "--", sys.executable, "own.py"]) == 0
    assert 'name = "logistic"' in (folder / "trace.toml").read_text()


def test_a_folder_that_is_no_log_is_not_emptied(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (folder / "trace.tap").mkdir()
    (folder / "trace.tap" / "thesis.tex").write_text("mine")
    assert main(["tap", "--", "true"]) == 2
    assert "contains 'thesis.tex', which is not a log of a tap" in capfd.readouterr().err
    assert (folder / "trace.tap" / "thesis.tex").read_text() == "mine"


def test_the_log_of_an_earlier_tap_is_replaced(folder: Path) -> None:
    with Log(folder / "trace.tap", 0) as log:
        log.write("send", torch.ones(51), peer=1)
    assert main(["tap", "-q", "--", "true"]) == 2
    assert not (folder / "trace.tap").exists()


def logged(folder: Path) -> None:
    for rank in range(2):
        with Log(folder, rank, world=2) as log:
            for t in range(3):
                log.write("send", torch.full((51,), float(10 + rank + t)), peer=1 - rank)


def test_describe_writes_what_merge_reads_once_it_is_filled_in(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    logged(folder / "trace.tap")
    assert (
        main(
            [
                "tap",
                "describe",
                "trace.pt",
                "-o",
                "mine.toml",
                "--model",
                "logistic",
                "--shape",
                "1,4,4",
                "--classes",
                "3",
            ]
        )
        == 0
    )
    assert "to be filled in: params.alpha" in capfd.readouterr().err
    merging = ["tap", "merge", "trace.tap", "--describe", "mine.toml", "-o", "trace.pt"]
    assert main(merging) == 2
    assert "params.alpha: still NOT KNOWN" in capfd.readouterr().err
    assert not Path("trace.pt").exists()
    text = Path("mine.toml").read_text()
    text = text.replace('alpha = "NOT KNOWN"', "alpha = 0.1")
    text = text.replace('order = "NOT KNOWN"', 'order = "combine"')
    text = text.replace('optimiser = "NOT KNOWN"', 'optimiser = "sgd"')
    Path("mine.toml").write_text(text)
    assert main([*merging, "--progress", "none"]) == 0
    assert "trace.pt: dpsgd, 2 nodes, 1 edges, 3 rounds, 6 messages" in capfd.readouterr().err
    assert held("trace.pt")[3, 1, 0].tolist() == [13.0] * 51


def test_a_model_is_named_with_its_shape(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    logged(folder / "trace.tap")
    assert main(["tap", "describe", "trace.tap", "--model", "logistic"]) == 2
    assert "--model also needs --shape" in capfd.readouterr().err


def test_help_names_the_actions(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["tap", "--help"])
    assert stop.value.code == 0
    said = capfd.readouterr().out
    assert "leakaudit tap describe LOG" in said
    assert "leakaudit tap merge LOG" in said
    with pytest.raises(SystemExit) as stop:
        main(["tap", "describe", "--help"])
    assert stop.value.code == 0
    assert "--classes" in capfd.readouterr().out
