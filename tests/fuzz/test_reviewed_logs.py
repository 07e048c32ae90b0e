"""What a reviewer found in logs, links, surrogates and libraries that warn; one test per cause."""

from __future__ import annotations

import io
import json
import math
import struct
import sys
import warnings
import zipfile
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from corpus import SMALL, TAP
from invoked import refused
from PIL import Image

import leakaudit as la
from leakaudit._util import files
from leakaudit._util.untrusted import npz
from leakaudit.capture.fitting import fit
from leakaudit.capture.tap.log.reading import TYPES, read_logs
from leakaudit.capture.tap.log.writing import Log
from leakaudit.capture.wire import payloads
from leakaudit.capture.wire.lines import MessageLine
from leakaudit.cli import main
from leakaudit.core.errors import LeakauditError
from leakaudit.core.reconstruction import check_stored
from leakaudit.reporting.figures import plots
from leakaudit.reporting.results.model import AuditPoint
from leakaudit.tasks import data_files
from leakaudit.views.conformance import noise

pytestmark = pytest.mark.usefixtures("own_folder")

# ---------------------------------------------------------------------------------------------
# Notes of tap logs
# ---------------------------------------------------------------------------------------------

STAR = """
payload = "gradients"
protocol = "fedsgd"
[params]
lr = 0.1
samples = 1
[model]
name = "logistic"
shape = [2]
classes = 2
loss = "binary"
levels = 0
"""
MODEL = ("--model", "logistic", "--shape", "2", "--classes", "2", "--loss", "binary")


def describe(capsys: pytest.CaptureFixture[str], *more: str) -> str:
    """Run a tap describe that must fail, and return its line."""
    return refused(capsys, "tap", "describe", "log", "-o", "t.toml", *more)


def write_logs(**notes: Any) -> None:
    """Write the logs of two ranks that send each other a model with these notes."""
    for rank in range(2):
        with Log("log", rank, world=2) as log:
            for t in range(4):
                log.write("send", torch.rand(3), 1 - rank, **{"round": t, "kind": "w", **notes})


MISFITS = {
    "sizes": (7, None, True, 1.5, ["a"], [-1]),
    "lane": ([], [1], 7, None),
    "examples": ([1], "a", 1.5, True),
    "server": ([0], "a", 1.5, -1, True),
    "records": ([1], 1.5),
    "group": (7, [0, -5], [1.5]),
    "parameters": (7, [None]),
    "last": ("yes", 1),
    "noise": ("a", True),
    "names": ("a", [1]),
}


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, held in MISFITS.items() for value in held]
)
def test_a_note_of_another_type(name: str, value: object) -> None:
    write_logs(**{name: value})
    with pytest.raises(LeakauditError, match=rf"rank0\.0\.jsonl: line 2 notes {name} = .*expected"):
        read_logs("log")


def test_a_misfit_is_refused_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    write_logs(sizes=True)
    assert "sizes = 'True', expected a list of whole numbers from 0" in describe(capsys)


def test_the_notes_of_a_tap_fit_their_types() -> None:
    notes: dict[str, Any] = {
        "group": [0, 1],
        "sizes": [2, 1],
        "of": 2,
        "seed": 7,
        "rest": "whole",
        "names": ["w", "b"],
        "noise": math.nan,
        "divisor": 8,
        "examples": -1,
        "last": False,
        "within": [0, 1],
    }
    assert set(notes) <= set(TYPES)
    write_logs(**notes)
    found = read_logs("log")[0].events[0].notes
    assert found["names"] == ["w", "b"]
    assert math.isnan(found["noise"])


def test_notes_of_a_program_have_any_type() -> None:
    write_logs(of_a_program=[1, "a", None], src=[0], at=True)
    assert read_logs("log")[0].events[0].notes["of_a_program"] == [1, "a", None]


def write_star(**notes: Any) -> None:
    """Write the logs of three ranks that add up what they compute, and their description."""
    for rank in range(3):
        with Log("log", rank, world=3) as log:
            for _ in range(4):
                log.write("allreduce", torch.rand(3), **notes)
    Path("t.toml").write_text(STAR)


def merge(capsys: pytest.CaptureFixture[str]) -> str:
    return refused(capsys, "tap", "merge", "log", "--describe", "t.toml", "-o", "out.pt")


def test_a_process_group_without_the_sender(capsys: pytest.CaptureFixture[str]) -> None:
    write_star(group=[0] * 50)
    assert "rank 1 sends to a process group without it" in merge(capsys)


def test_a_process_group_of_ranks_that_cannot_exist(capsys: pytest.CaptureFixture[str]) -> None:
    write_star(group=[0, 1, 2, 1 << 40])
    assert f"names rank {1 << 40}" in merge(capsys)


Part = tuple[int, dict[str, Any]]  # numbers of a tensor, and its notes
COMBINED: dict[str, list[Part]] = {
    "a piece without a list": [(2, {}), (1, {"parameters": [1], "last": True})],
    "a whole model instead of a rest": [(3, {"rest": "whole"})] * 2,
}


@pytest.mark.parametrize("parts", COMBINED.values(), ids=COMBINED)
def test_notes_that_do_not_belong_together(
    parts: Sequence[Part], capsys: pytest.CaptureFixture[str]
) -> None:
    for rank in range(2):
        with Log("log", rank, world=2) as log:
            for numbers, notes in parts:
                log.write("send", torch.rand(numbers), 1 - rank, **notes)
    Path("t.toml").write_text(TAP)
    assert "no message" in merge(capsys)
    assert main(["tap", "describe", "log", "-o", "t.toml", *MODEL]) == 3
    assert "the log contains no message of the model's size" in capsys.readouterr().err


def test_an_empty_tensor_has_no_widths() -> None:
    assert list(fit.widths(3, (3, 0))) == []
    assert list(fit.widths(3, (3, 0, 0, 0))) == []
    assert list(fit.widths(9, (6, 3))) == [(2, 3)]


# ---------------------------------------------------------------------------------------------
# Texts and tensors that no file can hold
# ---------------------------------------------------------------------------------------------


@pytest.fixture
def arrays() -> dict[str, Any]:
    """The arrays of a trace, in a file a.npz as well."""
    assert main(["record", "dpsgd", "-o", "a.pt", *SMALL]) == 0
    assert main(["trace", "convert", "a.pt", "a.npz"]) == 0
    with np.load("a.npz") as file:
        return {name: file[name] for name in file.files}


def convert(arrays: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> str:
    np.savez("x.npz", **arrays)
    return refused(capsys, "trace", "convert", "x.npz", "out.pt")


def test_half_of_a_surrogate_pair_in_the_description(
    arrays: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    about = json.loads(str(arrays["meta"]))
    about["kinds"] = ["a\ud800"]
    arrays["meta"] = np.array(json.dumps(about))
    assert "half of a surrogate pair" in convert(arrays, capsys)


def test_half_of_a_surrogate_pair_as_a_kind(
    arrays: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    codes = np.full(len(arrays["round"]), 0xD800, np.uint32)
    arrays["kind"] = np.frombuffer(codes.tobytes(), "<U1")
    assert "half of a surrogate pair" in convert(arrays, capsys)


def test_a_public_tensor_of_uint64(
    arrays: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    arrays["public.w0"] = arrays["public.w0"].astype(np.uint64)
    assert "public w0: a trace does not store torch.uint64" in convert(arrays, capsys)


def test_half_of_a_surrogate_pair_in_the_views_of_an_audit() -> None:
    point = AuditPoint(epsilon=1.0, constants={}, views=({"\ud800": 1},))
    with pytest.raises(LeakauditError, match=r"views at epsilon 1\.0 in the results are damaged"):
        point.read_views()


# ---------------------------------------------------------------------------------------------
# Links that form a loop
# ---------------------------------------------------------------------------------------------


def test_a_loop_of_links() -> None:
    Path("loop").symlink_to("loop")
    if sys.version_info < (3, 13):
        with pytest.raises(LeakauditError, match="loop: its symbolic links form a loop"):
            files.resolved(Path("loop"))
    assert files.resolved(Path("absent")) == Path.cwd() / "absent"


LOOPS = (
    ("trace", "convert", "loop.npz", "out.pt"),
    ("trace", "convert", "a.pt", "loop.npz"),
    ("record", "dpsgd", "-o", "loop.pt", *SMALL),
    ("tap", "merge", "log", "--describe", "loop.toml"),
    ("trace", "import", "wire", "--describe", "loop.toml"),
    ("trace", "import", "wire", "--describe", "t.toml", "-o", "out.pt"),
)


@pytest.mark.parametrize("words", LOOPS, ids=range(len(LOOPS)))
def test_loops_in_paths(words: Sequence[str], capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("loop.npz", "loop.pt", "loop.toml"):
        Path(name).symlink_to(name)
    write_logs()
    Path("wire").mkdir()
    Path("wire/m.bin").symlink_to("m.bin")
    line = {"round": 0, "src": 0, "dst": [1], "kind": "w", "file": "m.bin", "offset": 0}
    lines = json.dumps({**line, "dtype": "float32", "shapes": [[2], [1]]}) + "\n"
    Path("wire/messages.jsonl").write_text(lines)
    Path("t.toml").write_text(TAP)
    said = refused(capsys, *words)
    assert "loop" in said or "m.bin" in said


# ---------------------------------------------------------------------------------------------
# Libraries that warn; the tests turn warnings into errors
# ---------------------------------------------------------------------------------------------


def test_targets_that_overflow_are_infinite(tmp_path: Path) -> None:
    path = tmp_path / "d.npz"
    np.savez(path, x=np.zeros((4, 3), np.float32), y=np.array([0.0, 1e300, 0.0, 1.0]))
    assert data_files.read_npz(path)[1][1] == math.inf
    text = tmp_path / "d.txt"
    text.write_text("1e300 1:1\n0.5 1:2\n")
    assert data_files.read_libsvm(text)[1][0] == math.inf


def test_targets_that_overflow_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    np.savez("d.npz", x=np.zeros((4, 3), np.float32), y=np.array([0.0, 1e300, 0.0, 1.0]))
    network = ("--nodes", "2", "--graph", "complete", "--rounds", "1", "--samples", "1")
    said = refused(capsys, "record", "dpsgd", "-o", "out.pt", "--data", "npz:d.npz", *network)
    assert "d.npz" in said


def chunk(kind: bytes, data: bytes) -> bytes:
    """Return a part of a PNG file."""
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(side: int, *others: bytes) -> bytes:
    """Return a grey PNG file of 6 rows whose header states a length of the side."""
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0))
    rows = chunk(b"IDAT", zlib.compress((b"\0" + b"\x10" * 6) * 6))
    return b"\x89PNG\r\n\x1a\n" + header + b"".join(others) + rows + chunk(b"IEND", b"")


def test_a_palette_with_transparency(tmp_path: Path) -> None:
    image = Image.new("P", (6, 6), 1)
    image.putpalette([10, 20, 30, 40, 50, 60])
    image.save(tmp_path / "a.png", transparency=bytes([0, 128]))
    records = data_files.read_folder(tmp_path)
    assert torch.allclose(records[0][0, :, 0, 0], torch.tensor([40.0, 50.0, 60.0]) / 255)


def test_a_picture_with_a_large_header(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(png(10_000))
    with pytest.raises(LeakauditError, match="pixels, got 10000x10000"):
        data_files.read_folder(tmp_path)


def test_an_animation_of_no_frames(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(png(6, chunk(b"acTL", bytes(8))))
    assert data_files.read_folder(tmp_path)[0].shape == (1, 1, 6, 6)


def test_a_malformed_table_of_several_pictures(tmp_path: Path) -> None:
    file = io.BytesIO()
    Image.new("RGB", (6, 6)).save(file, "JPEG")
    plain = file.getvalue()
    table = b"MPF\0MM\0*\0\0\0\x08\0\x01\xb0\x01\0\x04\0\0\0\x01\0\0\0\x02\0\0\0\0"
    segment = b"\xff\xe2" + struct.pack(">H", len(table) + 2) + table
    (tmp_path / "a.jpg").write_bytes(plain[:2] + segment + plain[2:])
    assert data_files.read_folder(tmp_path)[0].shape == (1, 3, 6, 6)


def python2(array: np.ndarray[Any, Any]) -> bytes:
    """Return a .npy file of float32 whose header has the long numbers of Python 2."""
    shape = ", ".join(f"{n}L" for n in array.shape)
    header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({shape}), }}".encode()
    header += b" " * (63 - (10 + len(header)) % 64) + b"\n"
    start = b"\x93NUMPY\x01\0" + struct.pack("<H", len(header)) + header
    return start + array.astype("<f4").tobytes()


def test_headers_of_python_2(tmp_path: Path) -> None:
    content = np.arange(6.0).reshape(2, 3)
    with zipfile.ZipFile(tmp_path / "d.npz", "w") as archive:
        archive.writestr("x.npy", python2(content))
    with npz.Npz(tmp_path / "d.npz") as file:
        assert file.length("x") == 6
        assert np.array_equal(file["x"], content)
    (tmp_path / "a.npy").write_bytes(python2(content))
    line = MessageLine(round=0, src=0, dst=1, kind="w", file="a.npy")
    (read,) = payloads.find(tmp_path, line).read()
    assert torch.equal(read, torch.from_numpy(content).float())


def test_a_trace_with_a_header_of_python_2(arrays: dict[str, Any]) -> None:
    np.savez("x.npz", **{name: value for name, value in arrays.items() if name != "payload"})
    with zipfile.ZipFile("x.npz", "a") as archive:
        archive.writestr("payload.npy", python2(arrays["payload"]))
    assert main(["trace", "convert", "x.npz", "out.pt"]) == 0
    found, expected = (la.load(name).messages[0].payload for name in ("out.pt", "a.pt"))
    assert torch.equal(found, expected)


def test_the_figure_of_the_largest_floats() -> None:
    with plots.settings():
        warnings.warn("constrained_layout not applied because axes sizes collapsed", stacklevel=1)
        with pytest.raises(UserWarning, match="another"):
            warnings.warn("another", stacklevel=1)


# ---------------------------------------------------------------------------------------------
# Stored reconstructions, and numbers near the largest float
# ---------------------------------------------------------------------------------------------

X = torch.zeros(2, 3)
OTHERS: dict[str, Callable[[], None]] = {
    "tokens": lambda: check_stored(X, None, tokens=torch.zeros(2, dtype=torch.complex64)),
    "tokens are": lambda: check_stored(X, None, tokens=torch.zeros(2)),
    "intervals": lambda: check_stored(X, None, interval=torch.zeros(2, 3, dtype=torch.int64)),
    "candidates": lambda: check_stored(X, None, choices={0: X.to(torch.complex64)}),
}


@pytest.mark.parametrize(("what", "check"), OTHERS.items())
def test_stored_tensors_of_other_types(what: str, check: Callable[[], None]) -> None:
    with pytest.raises(ValueError, match=what):
        check()


def test_stored_tensors_of_a_reconstruction() -> None:
    check_stored(X, None, X, {0: X}, torch.tensor([1, 5]))


@pytest.mark.parametrize("part", ["messages", "public"])
@pytest.mark.parametrize("command", [("bound",), ("trace", "lint")])
def test_numbers_near_the_largest_float_overflow_silently(
    part: str, command: Sequence[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["record", "dpsgd", "-o", "a.pt", *SMALL, "--set", "sigma=0.1", "--states"]) == 0
    content = torch.load("a.pt", weights_only=True)
    name = "payload" if part == "messages" else "w0"
    content[part][name] = torch.full_like(content[part][name], 1e300, dtype=torch.float64)
    torch.save(content, "a.pt")
    Path("a.pt.sha256").unlink()
    capsys.readouterr()
    assert main([*command, "a.pt"]) == 0
    assert "Warning" not in capsys.readouterr().err


def test_no_sample_has_too_little_noise() -> None:
    assert list(noise.insufficient([])) == []
