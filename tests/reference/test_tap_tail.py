"""The file of payloads: what was given to the disk early comes back bit for bit, also of a process that is killed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from leakaudit.capture.tap.log import writing
from leakaudit.capture.tap.log.reading import read_logs
from leakaudit.capture.tap.log.writing import Log

SIZE = 3_180_040  # bytes of a payload: 795,010 numbers


def payload(k: int) -> np.ndarray:
    return np.random.default_rng(k).random(SIZE // 4, dtype=np.float32)


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """What the disk is asked to write early, (offset, bytes); writing counts as dear."""
    calls: list[tuple[int, int]] = []
    real = os.posix_fadvise

    def advise(fd: int, offset: int, length: int, advice: int) -> None:
        calls.append((offset, length))
        real(fd, offset, length, advice)

    monkeypatch.setattr(os, "posix_fadvise", advise)
    monkeypatch.setattr(writing, "COSTLY", 0.0)
    return calls


def test_what_was_given_to_the_disk_early_is_read_back(
    tmp_path: Path, given: list[tuple[int, int]]
) -> None:
    with Log(tmp_path, 0) as log:
        for k in range(16):
            assert log.write("send", payload(k // 2))  # each to two receivers
            assert all(
                0 < n <= (k // 2) * SIZE + 16 * 8 for _, n in given
            )  # never the last payload, which may come again
    (found,) = read_logs(tmp_path)
    assert len(given) == 3
    assert [e.offset for e in found.events[::2]] == [e.offset for e in found.events[1::2]]
    assert all(
        np.array_equal(found.tensor(e).numpy(), payload(k // 2)) for k, e in enumerate(found.events)
    )


def test_cheap_writing_is_left_to_the_kernel(
    tmp_path: Path, given: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writing, "COSTLY", 1.0)
    with Log(tmp_path, 0) as log:
        for k in range(8):
            log.write("send", payload(k))
    assert given == []


def test_a_slow_disk_is_not_waited_for_twice(
    tmp_path: Path, given: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writing, "PATIENCE", 0.0)
    with Log(tmp_path, 0) as log:
        for k in range(12):
            assert log.write("send", payload(k))
    assert len(given) == 1


def test_a_killed_process_leaves_all_that_it_wrote(tmp_path: Path) -> None:
    code = (
        "import os, signal, sys\n"
        "import numpy as np\n"
        "from leakaudit.capture.tap.log import writing\n"
        "from leakaudit.capture.tap.log.writing import Log\n"
        "writing.COSTLY = 0.0\n"
        "log = Log(sys.argv[1], 0)\n"
        "for k in range(10):\n"
        f"    value = np.random.default_rng(k).random({SIZE // 4}, dtype=np.float32)\n"
        "    log.write('send', value)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    assert subprocess.run([sys.executable, "-c", code, tmp_path], check=False).returncode == -9
    (found,) = read_logs(tmp_path)
    assert (found.closed, len(found.events)) == (False, 10)
    assert all(
        np.array_equal(found.tensor(e).numpy(), payload(k)) for k, e in enumerate(found.events)
    )
