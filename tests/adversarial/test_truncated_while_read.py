"""A file that somebody truncates while it is read: one line, and no results of zeros (19)."""

from __future__ import annotations

import mmap
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

import leakaudit
from leakaudit.cli import main
from leakaudit.core import mapping
from leakaudit.core.errors import LeakauditError
from leakaudit.core.trace import Trace
from leakaudit.traces import trace_file

linux = pytest.mark.skipif(
    not mapping.SUPPORTED, reason="other systems end the process, or refuse to truncate"
)
RECORD = "record dpsgd --nodes 3 --graph ring --rounds 8 --data faces --samples 1 --model mlp -q -o"


@pytest.fixture
def trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    assert main([*RECORD.split(), "t.pt"]) == 0
    return tmp_path / "t.pt"


def half(path: Path) -> int:
    """Pages are missing."""
    return path.stat().st_size // 2


def one_number(path: Path) -> int:
    """The last number of the payloads is missing; its page is there, and ends in zeros."""
    payload = trace_file.load(path, verify=False).messages[0].payload
    return path.read_bytes().rindex(payload[-1].numpy().tobytes()) + payload[-1].nbytes - 4


@pytest.fixture(params=[half, one_number])
def truncating(
    trace: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Callable[[], Trace]:
    """`trace_file.load`, after which the file is truncated."""
    size = request.param(trace)
    load = trace_file.load

    def loaded(*args: object, **options: object) -> Trace:
        found = load(trace, verify=False)
        os.truncate(trace, size)
        return found

    monkeypatch.setattr(trace_file, "load", loaded)
    return loaded


@linux
@pytest.mark.parametrize(
    "words",
    ["attack t.pt -o out -q", "explain t.pt", "trace verify t.pt", "trace convert t.pt u.npz"],
)
def test_a_command_ends_in_one_line(
    truncating: Callable[[], Trace], capsys: pytest.CaptureFixture[str], words: str
) -> None:
    assert main(words.split()) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert "t.pt was truncated while it was read" in line
    assert not Path("out/results.json").exists()
    assert not Path("u.npz").exists()


@linux
def test_the_library_raises(truncating: Callable[[], Trace]) -> None:
    found = truncating()
    with pytest.raises(LeakauditError, match="truncated while it was read"):
        leakaudit.leaks(found)


@linux
def test_a_process_survives_the_pages_that_are_gone(trace: Path) -> None:
    """With torch, with numpy, in a copy and in a thread; pages that are still there keep theirs."""
    found = trace_file.load(trace).messages[0].payload
    first = found[0].clone()
    os.truncate(trace, one_number(trace) // 2)
    assert torch.equal(found[0], first)
    assert float(found[-1].abs().sum()) == 0
    assert found.numpy()[-2].tobytes() == bytes(found[-2].nbytes)
    with pytest.raises(LeakauditError, match=r"t\.pt was truncated"):
        mapping.release(found[-1])
    with pytest.raises(LeakauditError, match=r"t\.pt was truncated"):
        mapping.verify()


@pytest.fixture
def impatient() -> Iterator[None]:
    """Threads take turns a thousand times as often."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(usual / 1000)
    yield
    sys.setswitchinterval(usual)


@pytest.mark.usefixtures("impatient")
def test_many_threads_read_at_once(tmp_path: Path) -> None:
    """Files are opened and closed while others are looked up."""
    path = tmp_path / "file"
    path.write_bytes(bytes(4096))

    def read(_: int) -> None:
        for _ in range(100):
            with path.open("r+b") as file:
                data = mmap.mmap(file.fileno(), 0)
            mapping.register(data, path)
            mapping.need(data, 4096)
            mapping.verify()

    with ThreadPoolExecutor(20) as pool:
        list(pool.map(read, range(20)))


def test_a_recording_that_becomes_smaller_when_it_ends_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "t.pt"
    graph = leakaudit.Graph(2, ((0, 1),))
    task = leakaudit.TaskSpec("logistic", shape=(2,), classes=2, loss="binary")
    with leakaudit.Recorder(path, protocol="dpsgd", params={}, task=task, graph=graph) as recorder:
        for t in range(3):
            recorder.send(t, 0, 1, "w", torch.full((3,), float(t)))
            recorder.end_round(t)
        size = path.stat().st_size
        early = trace_file.load(path)
    assert path.stat().st_size < size
    assert early.messages[0].payload[:, 0].tolist()[:2] == [0.0, 1.0]
    mapping.verify()


@linux
def test_a_recording_that_is_truncated_while_it_is_written(tmp_path: Path) -> None:
    path = tmp_path / "t.pt"
    graph = leakaudit.Graph(2, ((0, 1),))
    task = leakaudit.TaskSpec("logistic", shape=(20_000,), classes=2, loss="binary")
    recorder = leakaudit.Recorder(path, protocol="dpsgd", params={}, task=task, graph=graph)
    recorder.send(1, 0, 1, "w", torch.rand(20_001))
    recorder.end_round(1)
    os.truncate(path, 4096)
    recorder.send(2, 0, 1, "w", torch.rand(20_001))
    with pytest.raises(LeakauditError, match="truncated while it was written"):
        recorder.close()


PROGRAM = """
import mmap
import os

from leakaudit.core import mapping


def mapped(name):
    open(name, "wb").write(bytes(1 << 20))
    with open(name, "r+b") as file:
        return mmap.mmap(file.fileno(), 0)


known, other = mapped("f"), mapped("g")
mapping.register(known, "f")
os.truncate("f", 0)
os.truncate("g", 0)
print(known[1 << 19], flush=True)
print(other[1 << 19], flush=True)
"""


@linux
def test_another_fault_ends_the_process_as_before(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=tmp_path, check=False, capture_output=True, timeout=60
    )
    assert (done.returncode, done.stdout) == (-signal.SIGBUS, b"0\n")
