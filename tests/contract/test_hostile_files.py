"""A file that a stranger made is refused in one line, quickly, in little memory, and without running anything."""

from __future__ import annotations

import hashlib
import io
import json
import os
import pickle
import shutil
import struct
import zipfile
import zlib
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from effort import counted
from flat_recorder import flat_recorder
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from leakaudit._util import config, uncollected
from leakaudit._util.uncollected import read_json
from leakaudit._util.untrusted import safe_reader
from leakaudit._util.untrusted.archive import MAX_DIRECTORY, MAX_RECORDS, FileFault
from leakaudit.core.errors import LeakauditError
from leakaudit.core.trace import Graph, Layout, TaskSpec
from leakaudit.traces._storage import shards, wellformed
from leakaudit.traces.convert import READ, convert
from leakaudit.traces.trace_file import load, load_truth
from leakaudit.traces.trace_info import info

CALLS, MEGABYTES = 1_000_000, 200  # 1,000,000 calls take about half a second
REBUILD = b"ctorch._utils\n_rebuild_tensor_v2\n"


def record(path: Any, rounds: int = 3) -> None:
    """A small sound trace of two nodes."""
    task, layout = TaskSpec("softmax", shape=(2,)), Layout(("w",), ((4,),))
    settings: dict[str, Any] = {
        "protocol": "dpsgd",
        "task": task,
        "graph": Graph(2, ((0, 1),)),
        "layout": layout,
        "messages": 2 * rounds,
    }
    with flat_recorder(path, shard_bytes=17_000, public={"w0": torch.ones(4)}, **settings) as rec:
        rec.truth(0, torch.zeros(2), 1)
        for t in range(rounds):
            rec.send_many(t, [0, 1], [1, 0], "w").fill_(t)


def memory(peak: bool) -> int:
    """Resident memory in bytes; peak: since the counter was reset."""
    status = Path("/proc/self/status")
    if not status.exists():
        return 0
    field = "VmHWM" if peak else "VmRSS"
    return (
        next(
            int(line.split()[1])
            for line in status.read_text().splitlines()
            if line.startswith(field)
        )
        * 1024
    )


def refused(path: Path, read: Callable[[Path], object] = load) -> str:
    """Check that the file is refused as it should be, and return the line.

    A trace is refused by the reader of headers as well, which does not compare the sha256.
    """
    if Path("/proc/self/clear_refs").exists():
        Path("/proc/self/clear_refs").write_text("5")
    before = memory(peak=False)
    with counted() as effort, pytest.raises(LeakauditError) as caught:
        read(path)
    grown = memory(peak=True) - before
    assert effort.calls < CALLS
    assert grown < MEGABYTES * 1_000_000
    line = str(caught.value)
    assert line.isprintable()
    assert str(path.name) in line
    assert len(line) < 400
    if read is load and "sha256" not in line:
        with pytest.raises(LeakauditError) as again:
            info(path)
        assert str(again.value) == line
    return line


def archive(
    path: Path, index: bytes, records: dict[str, bytes] | None = None, **settings: Any
) -> Path:
    """An archive as torch makes it, whose records are aligned, with an index of one's own."""
    with path.open("wb") as raw, zipfile.ZipFile(raw, "w", **settings) as file:
        for name, data in {
            "data.pkl": index,
            "version": b"3\n",
            "byteorder": b"little",
            **(records or {}),
        }.items():
            entry = zipfile.ZipInfo(f"trace/{name}")
            entry.compress_type = file.compression
            gap = -(raw.tell() + 30 + len(entry.filename) + 4) % 64
            entry.extra = struct.pack("<2sH", b"FB", gap) + bytes(gap)
            file.writestr(entry, data)
    return path


def tensor_index(
    numel: int, size: tuple[int, ...], stride: tuple[int, ...], offset: int = 0
) -> bytes:
    """The index of {'x': tensor} with any numbers in it."""

    class Named(pickle.Pickler):
        def persistent_id(self, value: Any) -> Any:
            return ("storage", torch.FloatStorage, "0", "cpu", numel) if value == "STORE" else None

        def reducer_override(self, value: Any) -> Any:
            args: tuple[Any, ...] = ("STORE", offset, size, stride, False, OrderedDict())
            return (
                (torch._utils._rebuild_tensor_v2, args)
                if isinstance(value, complex)
                else NotImplemented
            )

    out = io.BytesIO()
    Named(out, protocol=2).dump({"x": 1j})
    return out.getvalue()


def deep(opening: bytes, closing: bytes, count: int) -> bytes:
    return b"\x80\x02" + opening * count + closing * count + b"."


def sharing(levels: int) -> bytes:
    """((t, t), (t, t))… with the same tuple inside, 2^levels long when it is walked."""
    return (
        b"\x80\x02)q\x00"
        + b"".join(b"h" + bytes([k]) + b"\x86q" + bytes([k + 1]) for k in range(levels))
        + b"."
    )


def wide(count: int) -> bytes:
    """Three levels of lists with the same `count` items each."""
    items = [b"K\x00" * count, b"h\x00" * count, b"h\x01" * count]
    return (
        b"\x80\x02]("
        + b"]("
        + b"]("
        + items[0]
        + b"eq\x00"
        + items[1]
        + b"eq\x01"
        + items[2]
        + b"e."
    )


INDICES: dict[str, bytes] = {
    "os.system by GLOBAL": b"\x80\x02cos\nsystem\nX\x0a\x00\x00\x00touch OWNED\x85R.",
    "os.system by STACK_GLOBAL": b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x0atouch OWNED\x85R.",
    "os.system by INST": b"(S'touch OWNED'\nios\nsystem\n.",
    "os.system by OBJ": b"\x80\x02(cos\nsystem\nX\x0b\x00\x00\x00touch OWNEDo.",
    "os.system behind a name that is allowed": b"\x80\x02ctorch\nFloatStorage\ncos\nsystem\n.",
    "a name with a space": b"\x80\x02ctorch FloatStorage\n\n.",
    "eval": b"\x80\x02cbuiltins\neval\nX\x01\x00\x00\x001\x85R.",
    "torch.hub": b"\x80\x02ctorch.hub\nload\n.",
    "bytearray of 20 GiB": b"\x80\x02cbuiltins\nbytearray\n\x8a\x05\x00\x00\x00\x00\x05\x85R.",
    "BYTEARRAY8": b"\x80\x05\x96" + struct.pack("<Q", 20 << 30) + b"abc.",
    "BINBYTES8": b"\x80\x04\x8e" + struct.pack("<Q", 20 << 30) + b"abc.",
    "a text that ends too early": b"\x80\x02X\xff\xff\xff\x7fabc.",
    "memo at 2^31": b"\x80\x02]r\xff\xff\xff\x7f.",
    "extension": b"\x80\x02\x82\x01.",
    "BUILD": b"\x80\x02}}b.",
    "frames": pickle.dumps({"format": "leakaudit.trace"}, protocol=4),
    "lists, 100 000 deep": deep(b"]", b"a", 100_000),
    "lists, 20 000 deep": deep(b"]", b"a", 20_000)[:-2] + b".",
    "dictionaries, deep": b"\x80\x02" + b"}X\x01\x00\x00\x00a" * 5000 + b"}" + b"s" * 5000 + b".",
    "tuples, deep": b"\x80\x02)" + b"\x85" * 20_000 + b".",
    "exponential sharing": b"\x80\x02}X\x01\x00\x00\x00a" + sharing(60)[2:-1] + b"s.",
    "wide sharing, not deep": b"\x80\x02}X\x01\x00\x00\x00a" + wide(300)[2:-1] + b"s.",
    "a million empty lists": b"\x80\x02](" + b"]" * 1_000_000 + b"e.",
    "OrderedDict of a dictionary": b"\x80\x02ccollections\nOrderedDict\n}\x85R.",
    "a call of a text": b"\x80\x02X\x01\x00\x00\x00a)R.",
    "a call of a dtype": b"\x80\x02ctorch\nFloatStorage\n)R.",
    "a storage that is none": b"\x80\x02(K\x01K\x02tQ.",
    "a storage of text": b"\x80\x02(X\x07\x00\x00\x00storageX\x01\x00\x00\x00aX\x01\x00\x00\x000X\x03\x00\x00\x00cpuK\x01tQ.",
    "a tensor of numbers": b"\x80\x02" + REBUILD + b"(K\x01K\x02K\x03K\x04K\x05K\x06tR.",
    "a number as key": b"\x80\x02}K\x01K\x02s.",
    "a list as key": b"\x80\x02}]K\x02s.",
    "stop at once": b"\x80\x02.",
    "no stop": b"\x80\x02}",
    "two pickles": b"\x80\x02}.\x80\x02}.",
    "a list": b"\x80\x02].",
    "an empty index": b"",
    "no pickle": b"hello",
    "an empty dictionary": b"\x80\x02}.",
    "bytes": pickle.dumps({"format": b"leakaudit.trace"}, protocol=3),
    "an array of numpy": pickle.dumps(np.arange(3), protocol=2),
    "a long number": b"\x80\x02}X\x01\x00\x00\x00a\x8a\xff" + b"\x7f" * 255 + b"s.",
    "digits without end": b"\x80\x02I" + b"9" * 1_000_000 + b"\n.",
    "expand to 1e12": tensor_index(1, (10**12,), (0,)),
    "expand to 1e36": tensor_index(1, (10**12, 10**12, 10**12), (0, 0, 0)),
    "more numbers than the record": tensor_index(10**9, (10**9,), (1,)),
    "an offset past the end": tensor_index(4, (4,), (1,), offset=1),
    "a negative offset": tensor_index(4, (2,), (1,), offset=-1),
    "a negative size": tensor_index(4, (-1,), (1,)),
    "a negative stride": tensor_index(4, (2,), (-1,)),
    "a transposed tensor": tensor_index(4, (2, 2), (1, 2)),
    "sizes without strides": tensor_index(4, (2, 2), (1,)),
    "eighty axes": tensor_index(4, (1,) * 80, (1,) * 80),
}


@pytest.mark.parametrize("name", INDICES)
def test_a_hostile_index(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    line = refused(archive(tmp_path / "bad.pt", INDICES[name], {"data/0": bytes(16)}))
    assert "aligned" not in line, "its own fault was not seen"
    assert [p.name for p in tmp_path.iterdir()] == ["bad.pt"], "something ran"


def compressed(path: Path) -> None:
    archive(path, b"\x80\x02}.", {"data/0": bytes(64 << 20)}, compression=zipfile.ZIP_DEFLATED)


def compressed_index(path: Path) -> None:
    archive(path, b"\x80\x02}." + bytes(64 << 20), compression=zipfile.ZIP_DEFLATED)


def size_lies(path: Path) -> None:
    """The directory announces 4 GB for a record of 16 bytes."""
    archive(path, tensor_index(4, (4,), (1,)), {"data/0": bytes(16)})
    patch(
        path,
        lambda data, at: struct.pack_into("<II", data, at + 20, 4_000_000_000, 4_000_000_000),
        "trace/data/0",
    )


def packed_size_lies(path: Path) -> None:
    archive(path, tensor_index(4, (4,), (1,)), {"data/0": bytes(16)})
    patch(path, lambda data, at: struct.pack_into("<I", data, at + 24, 20), "trace/data/0")


def overlapping(path: Path) -> None:
    """Two names, the same bytes."""
    archive(path, tensor_index(4, (4,), (1,)), {"data/0": bytes(16), "data/1": bytes(16)})
    with zipfile.ZipFile(path) as file:
        offset = file.getinfo("trace/data/0").header_offset
    patch(path, lambda data, at: struct.pack_into("<I", data, at + 42, offset), "trace/data/1")


def past_the_end(path: Path) -> None:
    archive(path, tensor_index(4, (4,), (1,)), {"data/0": bytes(16)})
    patch(path, lambda data, at: struct.pack_into("<I", data, at + 42, 0xFFFFFF00), "trace/data/0")


def two_names(path: Path) -> None:
    """The directory and the record disagree about which record this is."""
    archive(path, tensor_index(4, (4,), (1,)), {"data/0": bytes(16)})
    data = bytearray(path.read_bytes())
    at = data.index(b"trace/data/0")
    data[at : at + 12] = b"trace/data/9"
    path.write_bytes(data)


def patch(path: Path, change: Callable[[bytearray, int], None], name: str) -> None:
    """Change one entry of the directory."""
    data = bytearray(path.read_bytes())
    change(data, data.rindex(name.encode()) - 46)
    path.write_bytes(data)


def named_twice(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("trace/data.pkl", b"\x80\x02}.")
        with pytest.warns(UserWarning, match="Duplicate"):
            file.writestr("trace/data.pkl", INDICES["os.system by GLOBAL"])


def two_archives(path: Path) -> None:
    """A second archive behind the first: which one counts depends on the reader."""
    archive(path, INDICES["os.system by GLOBAL"])
    other = archive(path.with_suffix(".zip"), b"\x80\x02}.")
    path.write_bytes(path.read_bytes() + other.read_bytes())
    other.unlink()


def many_records(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as file:
        for k in range(5000):
            file.writestr(f"trace/data/{k}", b"")


def large_directory(path: Path) -> None:
    """An archive whose directory is said to be 20 GB long, in a sparse file."""
    record(path)
    with path.open("r+b") as file:
        file.truncate(20 << 30)
        file.seek(0, os.SEEK_END)
        file.write(struct.pack("<4sQHHIIQQQQ", b"PK\6\6", 44, 45, 45, 0, 0, 1, 1, 20 << 30, 0))
        file.write(
            struct.pack("<4sIQI", b"PK\6\7", 0, 20 << 30, 1)
            + struct.pack("<4sHHHHIIH", b"PK\5\6", 0, 0, 1, 1, 0, 0, 0)
        )


def large_index(path: Path) -> None:
    archive(path, b"\x80\x02}." + bytes(9 << 20))


FILES: dict[str, Callable[[Path], object]] = {
    "empty": lambda p: p.write_bytes(b""),
    "one byte": lambda p: p.write_bytes(b"P"),
    "text": lambda p: p.write_text("this is no trace\n" * 100),
    "zeros": lambda p: p.write_bytes(bytes(100_000)),
    "random": lambda p: p.write_bytes(np.random.default_rng(0).bytes(100_000)),
    "an empty archive": lambda p: p.write_bytes(b"PK\5\6" + bytes(18)),
    "an archive with a comment": lambda p: (
        archive(p, b"\x80\x02}."),
        p.write_bytes(p.read_bytes()[:-2] + b"\x03\x00abc"),
    ),
    "no index": lambda p: zipfile.ZipFile(p, "w").close(),
    "a bare pickle": lambda p: p.write_bytes(INDICES["os.system by GLOBAL"]),
    "torch's old format": lambda p: torch.save(
        {"x": torch.ones(2)}, p, _use_new_zipfile_serialization=False
    ),
    "another torch file": lambda p: torch.save({"x": torch.ones(2)}, p),
    "a bare tensor": lambda p: torch.save(torch.ones(2), p),
    "a complex tensor": lambda p: torch.save({"x": torch.ones(2, dtype=torch.complex64)}, p),
    "a parameter": lambda p: torch.save({"x": torch.nn.Parameter(torch.ones(2))}, p),
    "a sparse tensor": lambda p: torch.save({"x": torch.eye(2).to_sparse()}, p),
    "a module": lambda p: torch.save(torch.nn.Linear(1, 1), p),
    "an expanded tensor": lambda p: torch.save({"x": torch.zeros(1).expand(10**12)}, p),
    "a script": lambda p: archive(
        p, b"\x80\x02}.", {"constants.pkl": b"\x80\x02).", "code/a.py": b"x"}
    ),
    "another byte order": lambda p: archive(p, b"\x80\x02}.", {"byteorder": b"big"}),
    "a record of another folder": lambda p: archive(p, b"\x80\x02}.", {"../../etc/passwd": b"x"}),
    "a deflate bomb": compressed,
    "a deflate bomb as index": compressed_index,
    "a size that lies": size_lies,
    "a packed size that lies": packed_size_lies,
    "overlapping records": overlapping,
    "a record past the end": past_the_end,
    "a record with two names": two_names,
    "a name that comes twice": named_twice,
    "two archives": two_archives,
    "too many records": many_records,
    "a directory of 20 GB": large_directory,
    "an index of 9 MB": large_index,
    "a folder": lambda p: p.mkdir(),
    "a named pipe": lambda p: os.mkfifo(p),
    "a link to nowhere": lambda p: p.symlink_to("nowhere"),
    "a link to itself": lambda p: p.symlink_to(p.name),
    "not there": lambda p: None,
}


@pytest.mark.filterwarnings("ignore:.*pickle.*|.*beta.*|.*sparse.*|.*Sparse.*")
@pytest.mark.parametrize("name", FILES)
def test_a_hostile_file(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    FILES[name](tmp_path / "bad.pt")
    refused(tmp_path / "bad.pt")
    refused(tmp_path / "bad.pt", load_truth)
    assert not (tmp_path / "OWNED").exists()


def test_a_device_is_no_trace() -> None:
    refused(Path("/dev/zero"))


@pytest.mark.parametrize("keep", [1, 21, 22, 100, 4096, -1, -22, -76, -100])
def test_a_file_cut_short(tmp_path: Path, keep: int) -> None:
    record(tmp_path / "whole.pt")
    (tmp_path / "trace.pt").write_bytes((tmp_path / "whole.pt").read_bytes()[:keep])
    assert "truncated" in refused(tmp_path / "trace.pt")


def test_bytes_in_front(tmp_path: Path) -> None:
    record(tmp_path / "whole.pt")
    (tmp_path / "trace.pt").write_bytes(bytes(64) + (tmp_path / "whole.pt").read_bytes())
    refused(tmp_path / "trace.pt")


@pytest.mark.parametrize("place", [0.01, 0.3, 0.5, 0.999])
def test_a_flipped_byte_is_noticed(tmp_path: Path, place: float) -> None:
    record(tmp_path / "trace.pt")
    for name, read in (("trace.pt", load), ("trace.truth.pt", load_truth)):
        path = tmp_path / name
        data = bytearray(path.read_bytes())
        data[int(place * len(data))] ^= 1
        path.write_bytes(data)
        assert "sha256" in refused(path, read)


def test_what_the_sha256_file_may_be(tmp_path: Path) -> None:
    path, beside = tmp_path / "trace.pt", tmp_path / "trace.pt.sha256"
    record(path)
    assert beside.read_text() == f"{hashlib.sha256(path.read_bytes()).hexdigest()}  trace.pt\n"
    beside.write_text("nonsense")
    assert "does not contain a sha256" in refused(path)
    beside.unlink()
    assert load(path).complete
    assert "no sha256 next to it" in refused(path, lambda p: load(p, verify=True))
    beside.write_text(f"{'0' * 64}  trace.pt\n")
    assert "does not match" in refused(path)
    assert load(path, verify=False).complete


# What stands in a sound archive: every value out of range is named.

Tree = dict[str, Any]


def edit(tree: Tree, **meta: Any) -> None:
    tree["meta"] = json.dumps({**json.loads(tree["meta"]), **meta})


def column(name: str, value: Any) -> Callable[[Tree], None]:
    def change(tree: Tree) -> None:
        tree["messages"][name][1] = value

    return change


def instead(name: str, value: Any) -> Callable[[Tree], None]:
    return lambda tree: tree["messages"].__setitem__(name, value)


FORMS: dict[str, tuple[Callable[[Tree], object], str]] = {
    "another format": (lambda t: t.__setitem__("format", "x"), "not a file of leakaudit"),
    "a format that is no text": (lambda t: t.__setitem__("format", [1]), "not a file of leakaudit"),
    "a truth": (
        lambda t: t.__setitem__("format", "leakaudit.truth"),
        "is a truth file; expected a trace",
    ),
    "version 3": (
        lambda t: t.__setitem__("version", 3),
        "format version 3, but this program reads version 2; update leakaudit",
    ),
    "version true": (lambda t: t.__setitem__("version", True), "format version True"),
    "no version": (lambda t: t.pop("version"), "format version None"),
    "no description": (lambda t: t.pop("meta"), "description 'meta'"),
    "a description that is no JSON": (lambda t: t.__setitem__("meta", "{"), "description 'meta'"),
    "a deep description": (lambda t: t.__setitem__("meta", "[" * 100_000), "description 'meta'"),
    "a protocol with a line break": (lambda t: edit(t, protocol="a\nb"), "protocol"),
    "a protocol that is a number": (lambda t: edit(t, protocol=1), "protocol"),
    "parameters that are a list": (lambda t: edit(t, params=[1]), "params"),
    "parameters that are not finite": (
        lambda t: edit(t, params={"a": [float("nan")]}),
        "params.a: expected a JSON value, got [nan]",
    ),
    "a mean beyond all numbers": (
        lambda t: t.__setitem__("meta", t["meta"].replace('"mean": [0.0]', '"mean": [1e999]')),
        "task.mean[0]: expected a finite number, got inf",
    ),
    "parameters in a deep tree": (
        lambda t: t.__setitem__(
            "meta", t["meta"].replace('"params": {}', '"params": {"a": ' + "[" * 5000 + "]" * 5000)
        ),
        "description 'meta'",
    ),
    "a key that is half a character": (lambda t: edit(t, **{"\ud800": 1}), "in its description"),
    "a node that is true": (lambda t: edit(t, nodes=True), "nodes: expected a whole number"),
    "a node in halves": (lambda t: edit(t, nodes=1.5), "nodes"),
    "a whole number with a point": (lambda t: edit(t, nodes=2.0), "nodes: expected a whole number"),
    "no nodes": (lambda t: edit(t, nodes=0), "0 nodes"),
    "too many nodes": (lambda t: edit(t, nodes=10**12), "nodes"),
    "columns outside": (lambda t: edit(t, columns=[0, 5]), "columns"),
    "columns reversed": (lambda t: edit(t, columns=[3, 1]), "columns"),
    "a layout without shapes": (lambda t: edit(t, layout={"names": ["w"], "shapes": []}), "layout"),
    "a layout with a negative size": (
        lambda t: edit(t, layout={"names": ["w"], "shapes": [[-4, -1]]}),
        "layout",
    ),
    "an endless layout": (
        lambda t: edit(t, layout={"names": ["w"], "shapes": [[10**18]]}),
        "parameters",
    ),
    "a task without a model": (lambda t: edit(t, task={}), "model"),
    "a task with an endless shape": (
        lambda t: edit(t, task={"model": "mlp", "shape": [10**9, 10**9]}),
        "task",
    ),
    "a task of text": (lambda t: edit(t, task={"model": "mlp", "shape": "abc"}), "shape"),
    "an edge to itself": (
        lambda t: t.__setitem__("topology", torch.tensor([[0, 0]], dtype=torch.int32)),
        "edge",
    ),
    "an edge out of range": (
        lambda t: t.__setitem__("topology", torch.tensor([[0, 2]], dtype=torch.int32)),
        "edge",
    ),
    "repeats an edge": (
        lambda t: t.__setitem__("topology", torch.tensor([[0, 1], [0, 1]], dtype=torch.int32)),
        "edge",
    ),
    "edges of three": (
        lambda t: t.__setitem__("topology", torch.zeros(1, 3, dtype=torch.int32)),
        "topology",
    ),
    "public that is a tensor": (lambda t: t.__setitem__("public", torch.zeros(1)), "public"),
    "public that is text": (lambda t: t.__setitem__("public", {"w0": "x"}), "public"),
    "no messages": (lambda t: t.pop("messages"), "no messages"),
    "messages that are a list": (lambda t: t.__setitem__("messages", [1]), "no messages"),
    "a source out of range": (column("src", 2), "src 2, expected 0 to 1"),
    "a source below zero": (column("src", -1), "src -1"),
    "a destination out of range": (column("dst", 7), "dst 7"),
    "a kind out of range": (column("kind", 1), "kind 1"),
    "a row out of range": (column("row", 6), "row 6"),
    "a round below zero": (column("round", -3), "round -3"),
    "rounds in floats": (instead("round", torch.zeros(6)), "'round' should be a tensor of int32"),
    "a column too short": (
        instead("dst", torch.zeros(5, dtype=torch.int32)),
        "does not contain them",
    ),
    "a payload too narrow": (instead("payload", torch.zeros(6, 3)), "3 columns"),
    "a payload of integers": (instead("payload", torch.zeros(6, 4, dtype=torch.int32)), "payload"),
    "a payload with one axis": (instead("payload", torch.zeros(24)), "payload"),
    "a payload too short": (instead("payload", torch.zeros(5, 4)), "does not contain them"),
    "counters below zero": (instead("written", torch.tensor([-1, -1, 0, 1])), "it declares"),
    "counters beyond": (instead("written", torch.tensor([6, 10**15, 0, 1])), "it declares"),
    "too few counters": (instead("written", torch.tensor([6, 6])), "counters"),
    "secure as numbers": (instead("secure", torch.zeros(6, dtype=torch.uint8)), "secure"),
    "secure that is neither": (
        instead("secure", torch.full((6,), 2, dtype=torch.uint8).view(torch.bool)),
        "neither true nor false",
    ),
    "kinds that are no text": (instead("kinds", torch.full((8,), 255, dtype=torch.uint8)), "kinds"),
    "kinds that repeat": (
        instead("kinds", torch.tensor([*b"w\nw\n\0"], dtype=torch.uint8)),
        "repeat",
    ),
    "kinds that move the cursor": (
        instead("kinds", torch.tensor([*b"\x1b[2Jw\n\0"], dtype=torch.uint8)),
        "printable",
    ),
}


@pytest.mark.parametrize("name", FORMS)
def test_a_sound_archive_with_unsound_content(name: str, tmp_path: Path) -> None:
    record(tmp_path / "sound.pt")
    tree = torch.load(tmp_path / "sound.pt", weights_only=True)
    change, match = FORMS[name]
    change(tree)
    torch.save(tree, tmp_path / "trace.pt")
    assert match in refused(tmp_path / "trace.pt")


TRUTHS: dict[str, tuple[Callable[[Tree], object], str]] = {
    "a trace": (
        lambda t: t.__setitem__("format", "leakaudit.trace"),
        "is a trace; expected a truth file",
    ),
    "version 2": (lambda t: t.__setitem__("version", 2), "version 2"),
    "labels missing": (lambda t: t.__setitem__("y", torch.zeros(0)), "are inconsistent"),
    "inputs of another shape": (
        lambda t: t.__setitem__("x", torch.zeros(1, 3)),
        "are inconsistent",
    ),
    "a pool of another shape": (
        lambda t: t.__setitem__("pool", torch.zeros(1, 3)),
        "are inconsistent",
    ),
    "inputs in whole numbers": (
        lambda t: t.__setitem__("x", torch.zeros(1, 2, dtype=torch.uint8)),
        "'x' should be",
    ),
    "no inputs": (lambda t: t.pop("x"), "'x' should be"),
    "states that are text": (lambda t: t.__setitem__("states", {"w": "x"}), "states"),
}


@pytest.mark.parametrize("name", TRUTHS)
def test_a_truth_with_unsound_content(name: str, tmp_path: Path) -> None:
    record(tmp_path / "sound.pt")
    tree = torch.load(tmp_path / "sound.truth.pt", weights_only=True)
    change, match = TRUTHS[name]
    change(tree)
    torch.save(tree, tmp_path / "trace.pt")
    assert match in refused(tmp_path / "trace.pt", load_truth)


def test_what_a_later_version_adds_is_not_read_and_odd_text_is_kept(tmp_path: Path) -> None:
    """A folder's name in the command line may hold bytes that are no UTF-8: half a surrogate pair in JSON."""
    record(tmp_path / "sound.pt")
    tree = torch.load(tmp_path / "sound.pt", weights_only=True)
    task = json.loads(tree["meta"])["task"]
    edit(tree, later={"a": 1}, task={**task, "later": 2}, provenance={"command": "\udcff"})
    torch.save(tree, tmp_path / "trace.pt")
    read, sound = load(tmp_path / "trace.pt"), load(tmp_path / "sound.pt")
    assert read.provenance == {"command": "\udcff"}
    assert (read.task, read.layout, read.graph) == (sound.task, sound.layout, sound.graph)


@given(st.data())
@settings(
    max_examples=300,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_any_change_is_read_or_refused(tmp_path: Path, data: st.DataObject) -> None:
    """Bytes of the archive's and the index's own form, where a reader is most easily led astray."""
    if not (tmp_path / "sound.pt").exists():
        record(tmp_path / "sound.pt")
    content = bytearray((tmp_path / "sound.pt").read_bytes())
    directory = content.index(b"PK\1\2")
    places = st.one_of(st.integers(0, 1500), st.integers(directory, len(content) - 1))
    for place, value in data.draw(
        st.lists(st.tuples(places, st.integers(0, 255)), min_size=1, max_size=4)
    ):
        content[place] = value
    (tmp_path / "changed.pt").write_bytes(content)
    try:
        load(tmp_path / "changed.pt")
    except LeakauditError as error:
        assert str(error).isprintable()  # noqa: PT017 (both ends are allowed)


# Folders.


def manifest(change: Callable[[Tree], object]) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        value = json.loads((folder / "manifest.json").read_text())
        change(value)
        (folder / "manifest.json").write_text(json.dumps(value))

    return apply


def named(name: Any) -> Callable[[Path], None]:
    return manifest(lambda m: m["shards"][0].__setitem__("file", name))


def moved(folder: Path) -> None:
    """A shard becomes a link to a file outside."""
    shard = folder / "shards" / "r000000.pt"
    shard.rename(folder.parent / "outside.pt")
    shard.symlink_to(folder.parent / "outside.pt")


def moved_folder(folder: Path) -> None:
    (folder / "shards").rename(folder.parent / "outside")
    (folder / "shards").symlink_to(folder.parent / "outside")


def moved_manifest(folder: Path) -> None:
    (folder / "manifest.json").rename(folder.parent / "outside.json")
    (folder / "manifest.json").symlink_to(folder.parent / "outside.json")


def foreign(folder: Path) -> None:
    """A shard of another recording."""
    record(folder.parent / "other.pt")
    shutil.copy(folder.parent / "other.pt", folder / "shards" / "r000000.pt")


FOLDERS: dict[str, tuple[Callable[[Path], object], str]] = {
    "no manifest": (lambda f: (f / "manifest.json").unlink(), "without a manifest.json"),
    "text": (lambda f: (f / "manifest.json").write_text("hello"), "not the manifest of a trace"),
    "a deep manifest": (
        lambda f: (f / "manifest.json").write_text("[" * 100_000),
        "not the manifest of a trace",
    ),
    "a large manifest": (
        lambda f: (f / "manifest.json").write_bytes(b" " * (17 << 20)),
        "not the manifest of a trace",
    ),
    "a list": (lambda f: (f / "manifest.json").write_text("[]"), "not the manifest of a trace"),
    "no shards": (manifest(lambda m: m["shards"].clear()), "names no shards"),
    "shards of text": (manifest(lambda m: m["shards"].append("x")), "names the shard None"),
    "version 2": (
        manifest(lambda m: m.__setitem__("version", 2)),
        "format version 2, but this program reads version 1",
    ),
    "two dots": (named("shards/../../secret.pt"), "inside the folder"),
    "an absolute path": (named("/etc/passwd"), "inside the folder"),
    "a drive": (named("C:\\secret.pt"), "inside the folder"),
    "a number": (named(3), "inside the folder"),
    "a name with a line break": (named("shards/r000000.pt\n"), "inside the folder"),
    "the same shard twice": (manifest(lambda m: m["shards"].append(m["shards"][0])), "twice"),
    "a sha256 that is none": (
        manifest(lambda m: m["shards"][0].__setitem__("sha256", "x")),
        "sha256",
    ),
    "a link": (moved, "is a symbolic link"),
    "a link to a folder": (moved_folder, "is a symbolic link"),
    "a link as manifest": (moved_manifest, "without a manifest.json"),
    "a missing shard": (
        lambda f: (f / "shards" / "r000000.pt").unlink(),
        "lacks shards/r000000.pt",
    ),
    "a shard of another recording": (foreign, "does not belong to the others"),
    "a shard cut short": (lambda f: os.truncate(f / "shards" / "r000000.pt", 500), "truncated"),
}


@pytest.mark.parametrize("name", FOLDERS)
def test_a_hostile_folder(name: str, tmp_path: Path) -> None:
    record(f"{tmp_path}/run/", rounds=60)
    folder = tmp_path / "run"
    change, match = FOLDERS[name]
    change(folder)
    assert match in refused(folder, lambda f: load(f, verify=False))
    if (folder / "manifest.json").is_file():
        refused(folder)


@pytest.mark.parametrize("name", ["shards/r000000.pt", "manifest.json"])
def test_a_flipped_byte_in_a_folder_is_noticed(tmp_path: Path, name: str) -> None:
    record(f"{tmp_path}/run/", rounds=60)
    path = tmp_path / "run" / name
    path.write_bytes(path.read_bytes().replace(b"dpsgd", b"dpsgb"))
    with pytest.raises(LeakauditError, match="sha256"):
        load(tmp_path / "run")


# Files of other programs.


def npz_bomb(path: Path) -> None:
    with (
        zipfile.ZipFile(path, "w", compression=zipfile.ZIP_DEFLATED) as file,
        file.open("payload.npy", "w") as entry,
    ):
        np.lib.format.write_array_header_1_0(
            entry, {"descr": "<f4", "fortran_order": False, "shape": (40_000_000,)}
        )
        for _ in range(160):
            entry.write(bytes(1_000_000))


def npz_lie(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as file, file.open("payload.npy", "w") as entry:
        np.lib.format.write_array_header_1_0(
            entry, {"descr": "<f4", "fortran_order": False, "shape": (10**13,)}
        )


def npz_pickle(path: Path) -> None:
    np.savez(path, payload=np.array([{"a": 1}], dtype=object), allow_pickle=True)


def safetensors_lie(path: Path) -> None:
    head = json.dumps(
        {"payload": {"dtype": "F32", "shape": [10**12], "data_offsets": [0, 4 * 10**12]}}
    ).encode()
    path.write_bytes(struct.pack("<Q", len(head)) + head)


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("empty.npz", lambda p: p.write_bytes(b"")),
        ("text.npz", lambda p: p.write_text("hello")),
        ("bomb.npz", npz_bomb),
        ("lie.npz", npz_lie),
        ("pickle.npz", npz_pickle),
        ("missing.npz", lambda p: None),
        ("empty.safetensors", lambda p: p.write_bytes(b"")),
        ("text.safetensors", lambda p: p.write_text("hello, hello, hello")),
        ("lie.safetensors", safetensors_lie),
        ("large.safetensors", lambda p: p.write_bytes(struct.pack("<Q", 1 << 60))),
        ("missing.safetensors", lambda p: None),
    ],
)
def test_hostile_files_of_other_programs(
    name: str, make: Callable[[Path], object], tmp_path: Path
) -> None:
    if name.endswith("safetensors"):
        pytest.importorskip("safetensors")
    make(tmp_path / name)
    refused(tmp_path / name, lambda path: convert(path, tmp_path / "out.pt"))
    assert not (tmp_path / "out.pt").exists()


@pytest.mark.parametrize("ending", [".npz", ".safetensors"])
def test_max_bytes_is_the_largest_size_that_is_read(ending: str, tmp_path: Path) -> None:
    if ending == ".safetensors":
        pytest.importorskip("safetensors")
    record(tmp_path / "trace.pt")
    source = tmp_path / f"source{ending}"
    convert(tmp_path / "trace.pt", source)
    size = source.stat().st_size
    if ending == ".npz":
        with zipfile.ZipFile(source) as file:
            size = sum(entry.file_size for entry in file.infolist())
    read = READ[ending]
    assert len(read(source, size).messages[0]) == 6
    assert "but max_bytes allows" in refused(source, lambda path: read(path, size - 1))


def test_an_npz_may_unpack_to_64_mib_and_not_to_more(tmp_path: Path) -> None:
    """The files compress 1,000 times; only if they are read is it seen what they lack."""
    header = 128
    for name, more in (("at.npz", 0), ("above.npz", 1)):
        array = np.zeros((64 << 20) - header + more, np.uint8)
        np.savez_compressed(tmp_path / name, payload=array)
    assert "lacks round, src, dst" in refused(tmp_path / "at.npz", lambda p: READ[".npz"](p, 1e9))
    assert "200 times its size" in refused(tmp_path / "above.npz", lambda p: READ[".npz"](p, 1e9))


def test_the_refusals_hold_where_torch_would_be_led_astray(tmp_path: Path) -> None:
    """The list is not made of straw: `torch.load` accepts the bytearray, the expanded tensor and the flipped byte."""
    small = INDICES["bytearray of 20 GiB"].replace(b"\x8a\x05\x00\x00\x00\x00\x05", b"M\x00\x10")
    assert len(torch.load(archive(tmp_path / "bytes.pt", small), weights_only=True)) == 4096
    FILES["an expanded tensor"](tmp_path / "expanded.pt")
    assert torch.load(tmp_path / "expanded.pt", weights_only=True)["x"].numel() == 10**12
    record(tmp_path / "trace.pt")
    data = bytearray((tmp_path / "trace.pt").read_bytes())
    data[data.index(struct.pack("<f", 2.0) * 4)] ^= 255
    (tmp_path / "trace.pt").write_bytes(data)
    torch.load(tmp_path / "trace.pt", weights_only=True)
    assert zlib.crc32(data)  # no checksum in the archive says otherwise
    assert "sha256" in refused(tmp_path / "trace.pt")


# Limits: a file at the limit is read, and one above it is rejected.


def with_comments(path: Path, length: int) -> None:
    """An archive whose directory has a certain length, which comments fill."""
    names = ["trace/data.pkl", *(f"trace/data/{k:02}" for k in range(20))]
    spare = length - sum(46 + len(name) for name in names)
    with zipfile.ZipFile(path, "w") as file:
        for name in names:
            entry = zipfile.ZipInfo(name)
            entry.comment = bytes(min(spare, 60_000))
            spare -= len(entry.comment)
            file.writestr(entry, b"\x80\x02}." if name.endswith("pkl") else b"")
    assert spare == 0


def with_steps(count: int) -> bytes:
    """The index of {"a": [x, x, ..., None, ...]}, which few opcodes make and `count` steps walk."""
    shared = b"](" + b"N" * 99 + b"eq\x00"  # 100 steps wherever it occurs
    times, rest = divmod(count - 102, 100)
    again = b"h\x00" * times
    return b"\x80\x02}X\x01\x00\x00\x00a](" + shared + again + b"N" * rest + b"es."


def with_lists(depth: int) -> bytes:
    return b"\x80\x02}X\x01\x00\x00\x00a" + b"]" * depth + b"a" * (depth - 1) + b"s."


INDEX_LIMITS: dict[str, tuple[Callable[[int], bytes], int]] = {
    "bytes": (lambda n: b"\x80\x02}." + bytes(n - 4), safe_reader.MAX_INDEX),
    "opcodes, counted from 0": (
        lambda n: b"\x80\x02}" + b"q\x00" * (n - 2) + b".",
        safe_reader.MAX_STEPS,
    ),
    "places to remember": (
        lambda n: b"\x80\x02}r" + struct.pack("<I", n) + b".",
        safe_reader.MAX_STEPS,
    ),
    "steps over shared parts": (with_steps, safe_reader.MAX_STEPS),
    "lists in lists": (with_lists, safe_reader.MAX_DEPTH),
    "axes": (lambda n: tensor_index(1, (1,) * n, (1,) * n), safe_reader.MAX_DEPTH),
    "length of an axis": (
        lambda n: tensor_index(0, (0, n), (1, 1)),
        safe_reader.MAX_INT - 1,
    ),
}
ARCHIVE_LIMITS: dict[str, tuple[Callable[[Path, int], object], int]] = {
    "records": (
        lambda p, n: archive(p, b"\x80\x02}.", {f"data/{k}": b"" for k in range(n - 3)}),
        MAX_RECORDS,
    ),
    "directory": (with_comments, MAX_DIRECTORY),
}


@pytest.mark.parametrize("name", INDEX_LIMITS)
def test_an_index_may_be_as_large_as_its_limit(name: str, tmp_path: Path) -> None:
    make, limit = INDEX_LIMITS[name]
    at = archive(tmp_path / "at.pt", make(limit), {"data/0": bytes(16)})
    assert isinstance(safe_reader.outline(at), dict)
    above = archive(tmp_path / "above.pt", make(limit + 1), {"data/0": bytes(16)})
    refused(above, safe_reader.outline)


@pytest.mark.parametrize("name", ARCHIVE_LIMITS)
def test_an_archive_may_be_as_large_as_its_limit(name: str, tmp_path: Path) -> None:
    make, limit = ARCHIVE_LIMITS[name]
    make(tmp_path / "at.pt", limit)
    assert safe_reader.outline(tmp_path / "at.pt") == {}
    make(tmp_path / "above.pt", limit + 1)
    assert "directory is too large" in refused(tmp_path / "above.pt")


def nested(count: int) -> Any:
    value: Any = 1
    for _ in range(count):
        value = [value]
    return value


def model(sizes: list[int]) -> dict[str, Any]:
    """A layout whose first parameter is the one that is recorded."""
    return {"names": ["w", "v"], "shapes": [[4], sizes]}


CONTENT_LIMITS: dict[str, tuple[Callable[[Tree, int], object], int]] = {
    "name": (lambda t, n: edit(t, protocol="a" * n), 200),
    "axes of a record": (
        lambda t, n: edit(t, task={"model": "softmax", "shape": [1] * n}),
        wellformed.MAX_AXES,
    ),
    "numbers of a record": (
        lambda t, n: edit(t, task={"model": "softmax", "shape": [n]}),
        wellformed.MAX_SIZE,
    ),
    "axes of a parameter": (lambda t, n: edit(t, layout=model([1] * n)), wellformed.MAX_AXES),
    "parameters": (lambda t, n: edit(t, layout=model([n - 4])), wellformed.MAX_SIZE),
    "levels of the description": (
        lambda t, n: edit(t, params={"a": nested(n - 2)}),
        wellformed.DEEPEST,
    ),
    "nodes for one edge": (lambda t, n: edit(t, nodes=n), wellformed.SPARE_NODES + 2),
    "name of a kind": (
        lambda t, n: t["messages"].update(kinds=torch.tensor([*b"w" * n, *b"\n"]).byte()),
        wellformed.MAX_NAME,
    ),
    "counters": (
        lambda t, n: t["messages"].update(written=torch.tensor([6, 6, 2, 1, *[0] * (n - 4)])),
        64,
    ),
    "name of a tensor": (
        lambda t, n: t["public"].update({"a" * n: torch.ones(1)}),
        wellformed.LONGEST_NAME,
    ),
    "the last round of six messages": (
        lambda t, n: t["messages"]["round"].__setitem__(-1, n),
        wellformed.SPARE_ROUNDS + 6 * wellformed.ROUNDS_PER_MESSAGE,
    ),
}


@pytest.mark.parametrize("name", CONTENT_LIMITS)
def test_content_may_be_as_large_as_its_limit(name: str, tmp_path: Path) -> None:
    record(tmp_path / "sound.pt")
    change, limit = CONTENT_LIMITS[name]
    for count in (limit, limit + 1):
        tree = torch.load(tmp_path / "sound.pt", weights_only=True)
        change(tree, count)
        torch.save(tree, tmp_path / f"{count}.pt")
    assert len(load(tmp_path / f"{limit}.pt").messages[0]) == 6
    refused(tmp_path / f"{limit + 1}.pt")


def test_a_topology_may_be_as_large_as_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the limits of a million nodes and edges lowered to five and four."""
    monkeypatch.setattr(wellformed, "MAX_NODES", 5)
    monkeypatch.setattr(wellformed, "MAX_EDGES", 4)
    edges = torch.tensor([[0, 1], [0, 2], [0, 3], [1, 2], [1, 3]])
    assert wellformed.graph(5, edges[:4]).nodes == 5
    for nodes, count in ((6, 4), (5, 5)):
        with pytest.raises(FileFault, match=f"has {nodes} nodes and edges of shape"):
            wellformed.graph(nodes, edges[:count])


def manifest_of(folder: Path, size: int) -> None:
    text = (folder / "manifest.json").read_bytes()
    (folder / "manifest.json").write_bytes(text + b" " * (size - len(text)))


def test_a_manifest_may_be_as_large_as_its_limit(tmp_path: Path) -> None:
    record(f"{tmp_path}/run/")
    manifest_of(tmp_path / "run", shards.MAX_BYTES)
    assert load(tmp_path / "run", verify=False).complete
    manifest_of(tmp_path / "run", shards.MAX_BYTES + 1)
    assert "not the manifest of a trace" in refused(tmp_path / "run")


TEXT_LIMITS: dict[str, tuple[Callable[[str], object], Callable[[int], str], int]] = {
    "containers of JSON": (read_json, lambda n: json.dumps("[" * n), uncollected.CONTAINERS),
    "digits in JSON": (read_json, lambda n: "9" * n, uncollected.DIGITS),
    "levels of JSON": (lambda text: read_json(text, 7), lambda n: json.dumps(nested(n)), 7),
    "characters of TOML": (config.parsed, lambda n: "#" * n, config.LARGEST),
}


@pytest.mark.parametrize("name", TEXT_LIMITS)
def test_a_text_may_be_as_long_as_its_limit(name: str) -> None:
    read, make, limit = TEXT_LIMITS[name]
    read(make(limit))
    with pytest.raises(ValueError, match=r"expected at most|levels deep|beyond all floats"):
        read(make(limit + 1))
