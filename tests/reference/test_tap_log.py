"""The raw log: bit-equal payloads, torn tails, full disks, forks, and files that nobody of ours wrote."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from leakaudit.capture.tap import launch
from leakaudit.capture.tap.log import reading
from leakaudit.capture.tap.log.capture import Capture, CaptureSettings
from leakaudit.capture.tap.log.reading import RankLog, read_logs
from leakaudit.capture.tap.log.writing import DTYPES, Log
from leakaudit.cli import main
from leakaudit.core.errors import LeakauditError
from leakaudit.traces import trace_file


def values() -> list[torch.Tensor]:
    random = torch.Generator().manual_seed(0)
    plain = torch.randn(3, 5, generator=random)
    return [
        plain,
        plain.bfloat16(),
        plain.half(),
        plain.double().T,
        plain > 0,
        torch.arange(7),
        torch.zeros(0),
        torch.tensor(2.5),
    ]


def written(folder: Path, **options: Any) -> RankLog:
    with Log(folder, 3, **options) as log:
        for k, value in enumerate(values()):
            log.write("send", value, peer=1, tag=k, round=k)
    (found,) = read_logs(folder)
    return found


def test_payloads_come_back_bit_for_bit(tmp_path: Path) -> None:
    log = written(tmp_path, world=4)
    assert (log.rank, log.closed, log.about["world"]) == (3, True, 4)
    for event, value in zip(log.events, values(), strict=True):
        assert torch.equal(log.tensor(event), value)
        assert log.tensor(event).dtype == value.dtype
        assert (event.peer, event.tag, event.notes["round"]) == (1, event.seq, event.seq)


def test_every_number_format_of_the_log_is_torchs(tmp_path: Path) -> None:
    assert {
        str(getattr(torch, name)).removeprefix("torch."): getattr(torch, name).itemsize
        for name in DTYPES
    } == DTYPES
    with Log(tmp_path, 0) as log:
        assert not log.write("send", torch.zeros(2, dtype=torch.complex64))
        assert log.write("send", np.arange(4.0))
    (found,) = read_logs(tmp_path)
    assert found.events[0].notes["left_out"] == "an unsupported number format"
    assert found.tensor(found.events[1]).tolist() == [0, 1, 2, 3]
    with pytest.raises(LeakauditError, match="event 0 of rank 0 has no payload"):
        found.tensor(found.events[0])


def test_writing_to_what_was_read_does_not_reach_the_file(tmp_path: Path) -> None:
    log = written(tmp_path)
    log.tensor(log.events[0]).zero_()
    assert torch.equal(read_logs(tmp_path)[0].tensor(log.events[0]), values()[0])


def test_the_same_bytes_again_are_kept_once_and_other_bytes_are_not(tmp_path: Path) -> None:
    first, late = torch.zeros(300_000), torch.zeros(300_000)
    late[-1] = 1  # differs in the last chunk alone
    with Log(tmp_path, 0) as log:
        for value in (first, first.clone(), late, first):
            assert log.write("send", value)
    (found,) = read_logs(tmp_path)
    offsets = [e.offset for e in found.events]
    assert offsets[0] == offsets[1]
    assert len(set(offsets)) == 3
    assert all(
        torch.equal(found.tensor(e), v)
        for e, v in zip(found.events, (first, first, late, first), strict=True)
    )


@pytest.mark.parametrize("cut", [1, 30, 100])
def test_a_torn_last_line_costs_one_event(tmp_path: Path, cut: int) -> None:
    log = Log(tmp_path, 0)
    for value in values():
        log.write("send", value)
    log.abandon()
    path = tmp_path / "rank0.0.jsonl"
    path.write_bytes(path.read_bytes()[:-cut])
    (found,) = read_logs(tmp_path)
    assert (found.closed, len(found.events)) == (False, len(values()) - 1)


def test_a_payload_that_is_cut_off_ends_the_log(tmp_path: Path) -> None:
    log = written(tmp_path)
    data = log.path.with_suffix(".bin")
    os.truncate(data, log.events[3].offset + 8)
    (found,) = read_logs(tmp_path)
    assert len(found.events) == 3
    assert torch.equal(found.tensor(found.events[2]), values()[2])


def test_a_log_that_is_still_being_written_can_be_read(tmp_path: Path) -> None:
    log = Log(tmp_path, 0)
    log.write("send", torch.ones(4))
    (found,) = read_logs(tmp_path)
    assert not found.closed
    assert found.tensor(found.events[0]).tolist() == [1, 1, 1, 1]
    log.close()


def test_a_closed_log_keeps_nothing_and_touches_no_file_that_was_opened_since(
    tmp_path: Path,
) -> None:
    log = Log(tmp_path / "log", 0)
    log.close()
    with (
        open(tmp_path / "other", "wb"),
        open(tmp_path / "another", "wb"),
    ):  # they get the numbers of the log's files
        assert not log.write("send", torch.ones(8))
        log.close()
    assert (tmp_path / "other").stat().st_size == (tmp_path / "another").stat().st_size == 0


def test_payloads_beyond_max_bytes_are_left_out_and_said_so(tmp_path: Path) -> None:
    with Log(tmp_path, 0, max_bytes=1000) as log:
        assert [log.write("send", torch.full((100,), float(k))) for k in range(4)] == [
            True,
            True,
            False,
            False,
        ]
    (found,) = read_logs(tmp_path)
    assert [e.notes.get("left_out") for e in found.events] == [None, None, "max_bytes", "max_bytes"]
    assert not found.events[2].kept


def test_a_full_disk_ends_the_payloads_and_not_the_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, real = Log(tmp_path, 0), os.write
    assert log.write("send", torch.ones(8))

    def full(fd: int, data: Any) -> int:
        if len(data) == 400:
            raise OSError(28, "No space left on device")
        return real(fd, data)

    monkeypatch.setattr(os, "write", full)
    assert not log.write("send", torch.ones(100))
    assert not log.write("send", torch.zeros(8))
    log.close()
    (found,) = read_logs(tmp_path)
    assert [e.notes.get("left_out") for e in found.events] == [
        None,
        *["No space left on device"] * 2,
    ]
    assert found.tensor(found.events[0]).sum() == 8
    assert (found.closed, found.trouble) == (True, "No space left on device")


DESCRIPTION = """
payload = "weights"
protocol = "dpsgd"
first = "start"
[params]
alpha = 0.1
samples = 1
[model]
name = "logistic"
shape = [2]
classes = 2
loss = "binary"
"""


@pytest.mark.parametrize("fails", ["payload", "line", "nothing"])
def test_a_trace_is_not_complete_if_the_disk_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    """The program and its log end normally, and every channel is used: nothing else would show it."""
    real = os.write

    def failing(fd: int, data: Any) -> int:
        last = b'"seq":3' in bytes(data) if fails == "line" else len(data) == 12
        if failing_now and last:
            raise OSError(5, "Input/output error")
        return real(fd, data)

    failing_now = False
    monkeypatch.setattr(os, "write", failing)
    for rank in range(2):
        with Log(tmp_path / "log", rank, world=2) as log:
            for t in range(4):
                failing_now = (fails, rank, t) == (fails, 1, 3) and fails != "nothing"
                log.write("send", torch.rand(3) + t, 1 - rank, 0, round=t, kind="w")
                failing_now = False
    (tmp_path / "tap.toml").write_text(DESCRIPTION)
    target = tmp_path / "t.pt"
    words = ["tap", "merge", str(tmp_path / "log"), "-o", str(target)]
    main([*words, "--describe", str(tmp_path / "tap.toml"), "-q"])
    trace = trace_file.load(target)
    assert trace.complete == (fails == "nothing")
    assert len(trace.messages[0].round) == (8 if fails == "nothing" else 7)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows does not lock folders")
def test_two_taps_do_not_mix_their_logs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["tap", "-o", str(tmp_path / "t.pt"), "-q", "--", sys.executable, "-c", "print()"]
    with launch.owned(tmp_path / "t.tap"):
        (tmp_path / "t.tap" / "rank0.0.jsonl").touch()
        assert main(words) == 2
        (line,) = capsys.readouterr().err.strip().splitlines()
        assert "another tap writes to" in line
        assert (tmp_path / "t.tap" / "rank0.0.jsonl").exists()
    assert main(words) == 2  # the program sends nothing
    assert "no messages of the program" in capsys.readouterr().err
    assert not (tmp_path / "t.tap").exists()


def test_a_rank_that_is_started_again_gets_files_of_its_own(tmp_path: Path) -> None:
    for _ in range(3):
        with Log(tmp_path, 1) as log:
            log.write("send", torch.ones(2))
    assert [(log.rank, log.attempt) for log in read_logs(tmp_path)] == [(1, 0), (1, 1), (1, 2)]


def spoil(**changes: Any) -> Callable[[list[dict[str, Any]]], None]:
    def change(lines: list[dict[str, Any]]) -> None:
        lines[2].update(changes)

    return change


@pytest.mark.parametrize(
    "change",
    [
        spoil(nbytes=1 << 40),
        spoil(nbytes=-4),
        spoil(nbytes=8),
        spoil(offset=-16),
        spoil(offset=1),
        spoil(offset=1.5),
        spoil(shape=[1 << 60]),
        spoil(shape="many"),
        spoil(shape=[1] * 40),
        spoil(dtype=["float32"]),
        spoil(rank=2),
        spoil(peer=-1),
        spoil(peer=True),
        spoil(tag="x"),
        spoil(op="../../etc"),
        spoil(op=7),
        spoil(notes={"deep": {"deeper": 1}}),
        spoil(note="x" * 600_000),
        lambda lines: lines[0].update(format="other"),
        lambda lines: lines[0].update(version=2),
        lambda lines: lines[0].update(rank=5),
    ],
)
def test_lines_that_we_would_not_have_written_are_refused(
    tmp_path: Path, change: Callable[[list[dict[str, Any]]], None]
) -> None:
    path = written(tmp_path).path
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    change(lines)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(LeakauditError, match=r"\.jsonl: ") as error:
        read_logs(tmp_path)
    assert "\n" not in str(error.value)


def test_a_log_may_have_as_many_lines_as_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = written(tmp_path)
    count = len(log.path.read_bytes().splitlines())
    monkeypatch.setattr(reading, "MOST", count)
    assert read_logs(tmp_path)[0].closed
    monkeypatch.setattr(reading, "MOST", count - 1)
    with pytest.raises(LeakauditError, match=f"more than {count - 1} lines"):
        read_logs(tmp_path)


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(b"x" * 4096)
    log = written(tmp_path / "log")
    data = log.path.with_suffix(".bin")
    data.unlink()
    data.symlink_to(secret)
    with pytest.raises(LeakauditError, match="not a regular file"):
        read_logs(tmp_path / "log")


def test_a_folder_without_logs_is_refused(tmp_path: Path) -> None:
    (tmp_path / "rank0.0.bin").touch()
    with pytest.raises(LeakauditError, match="contains no log of a tap"):
        read_logs(tmp_path)
    with pytest.raises(
        LeakauditError, match="No such file or directory; expected the folder of a tap"
    ):
        read_logs(tmp_path / "none")


def test_names_that_are_not_ours_are_left_alone(tmp_path: Path) -> None:
    log = written(tmp_path)
    for name in ("rank٣.0.jsonl", "rank-1.0.jsonl", "xrank0.0.jsonl", "rank0.0.jsonl.old"):
        shutil.copy(log.path, tmp_path / name)
    assert len(read_logs(tmp_path)) == 1


# --- what is kept of a process ----------------------------------------------------------------------------------------


def captured(folder: Path, **options: Any) -> list[str | None]:
    """Reasons why the payloads of seven messages to two receivers are left out, in order."""
    capture = Capture(str(folder), CaptureSettings(**options))
    for t in range(7):
        for peer in (1, 2):
            capture.event("send", torch.full((4,), float(t)), peer)
    capture.end()
    (log,) = read_logs(folder)
    return [e.notes.get("left_out") for e in log.events]


def test_rounds_are_counted_by_wire(tmp_path: Path) -> None:
    assert captured(tmp_path, rounds=(2, 4)) == [*["rounds"] * 2, *[None] * 4, *["rounds"] * 8]


def test_the_initial_model_is_kept_whatever_the_rounds(tmp_path: Path) -> None:
    assert captured(tmp_path, rounds=(2, 4), start=0, sizes=[4, 4]) == [
        None,
        None,
        *["rounds"] * 2,
        *[None] * 4,
        *["rounds"] * 6,
    ]


def test_a_round_is_a_whole_model_where_it_is_sent_in_parts(tmp_path: Path) -> None:
    capture = Capture(str(tmp_path), CaptureSettings(rounds=(2, 3), sizes=[6, 2, 8]))
    for t in range(3):
        for tag, size in enumerate((6, 2)):
            capture.event("send", torch.full((size,), float(t)), 1, tag)
        capture.event("send", torch.tensor(0.5), 1, 9)
    capture.end()
    (log,) = read_logs(tmp_path)
    assert [e.notes.get("left_out") for e in log.events] == [
        "rounds",
        "rounds",
        None,
        None,
        None,
        None,
        "rounds",
        "rounds",
        None,
    ]


def test_ranks_that_are_not_asked_for_leave_no_payload(tmp_path: Path) -> None:
    assert set(captured(tmp_path / "a", ranks=[1, 2])) == {"ranks"}
    assert set(captured(tmp_path / "b", ranks=[0])) == {None}


def test_a_forked_child_writes_a_log_of_its_own(tmp_path: Path) -> None:
    capture = Capture(str(tmp_path))
    capture.event("send", torch.ones(4), 1)
    pid = os.fork()
    if pid == 0:
        capture.event("send", torch.zeros(4), 1)
        capture.end()
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    capture.event("send", torch.full((4,), 2.0), 1)
    capture.end()
    parent, child = read_logs(tmp_path)
    assert [parent.tensor(e)[0].item() for e in parent.events] == [1, 2]
    assert [child.tensor(e)[0].item() for e in child.events] == [0]
    assert parent.closed
    assert child.closed


def test_trouble_of_the_tap_does_not_reach_the_program(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    capture = Capture(str(tmp_path / "file" / "log"))
    capture.event("send", torch.ones(4), 1)
    capture.event("send", torch.ones(4), 1)
    assert capfd.readouterr().err.count("leakaudit tap: recording of process") == 1
