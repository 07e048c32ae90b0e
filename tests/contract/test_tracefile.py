"""Reading: what is in a file comes back, whichever way it was written, and nothing else is touched."""

# JSON is looked up by keys here: a wrong key fails when the test runs.
# mypy: disable-error-code="call-overload, index"

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from effort import counted
from flat_recorder import flat_recorder

from leakaudit._util.files import write_tensors
from leakaudit.core import progress
from leakaudit.core.adversary import Adversary
from leakaudit.core.errors import LeakauditError
from leakaudit.core.trace import Graph, Layout, TaskSpec, Trace, Truth
from leakaudit.traces._storage.mapped_file import MapFile, hole
from leakaudit.traces._storage.tree import truth_tree
from leakaudit.traces._storage.wellformed import INDEX
from leakaudit.traces.convert import convert
from leakaudit.traces.recorder import Recorder, RecorderOptions, Storage
from leakaudit.traces.trace_file import head, load, load_truth, write_sidecar
from leakaudit.traces.trace_info import info, verify

GRAPH = Graph(4, ((0, 1), (1, 2), (1, 3)))
LAYOUT = Layout(("w", "b"), ((3, 2), (3,)))
CALLS, BYTES, PAGES = 20_000, 4_000_000, 4_000  # of opening a file of 60 GB whose index has 2 MB
TASK = TaskSpec(
    "softmax",
    {"l2": 0.5},
    shape=(2,),
    classes=3,
    mean=(0.25,),
    std=(2.0,),
    labels=("a", "ä", "\N{SNOWMAN}"),
)


def record(path: Any, rounds: int = 5, **options: Any) -> Recorder:
    """Broadcasts by node 1 and one secure answer a round."""
    settings: dict[str, Any] = {
        "protocol": "own:p",
        "task": TASK,
        "graph": GRAPH,
        "layout": LAYOUT,
        "params": {"rho": 0.4, "names": ["x"]},
        **options,
    }
    with flat_recorder(path, **settings) as rec:
        for t in range(rounds):
            values = torch.arange(18.0).view(2, 9) + 100 * t
            rec.send(t, 1, [0, 2, 3], "w", values[0])
            rec.send(t, 0, 1, "u", values[1], secure=True)
    return rec


def sent(trace: Trace) -> dict[tuple[int, int, int, str], tuple[bool, bytes]]:
    """Every message with its bits, whatever the order and the rows."""
    return {
        (int(m.round[k]), int(m.src[k]), int(m.dst[k]), m.kinds[int(m.kind[k])]): (
            bool(m.secure[k]),
            bytes(m.payload[int(m.row[k])].contiguous().view(torch.uint8).numpy()),
        )
        for m in trace.messages
        for k in range(len(m))
    }


def assert_same(a: Trace, b: Trace) -> None:
    assert sent(a) == sent(b)
    for name in (
        "protocol",
        "params",
        "task",
        "graph",
        "layout",
        "columns",
        "rounds",
        "id",
        "complete",
        "dtype",
    ):
        assert getattr(a, name) == getattr(b, name), name
    assert {n: t.tolist() for n, t in a.public.items()} == {
        n: t.tolist() for n, t in b.public.items()
    }


def test_loaded_tensors_are_private_and_the_file_may_be_read_only(tmp_path: Path) -> None:
    record(tmp_path / "trace.pt")
    (tmp_path / "trace.pt").chmod(0o400)
    before = (tmp_path / "trace.pt").read_bytes()
    trace = load(tmp_path / "trace.pt")
    trace.messages[0].payload.zero_()
    trace.messages[0].round.add_(1)
    assert (tmp_path / "trace.pt").read_bytes() == before
    assert load(tmp_path / "trace.pt", verify=True).messages[0].payload[1, 0] == 9


def test_later_versions_may_add_keys(tmp_path: Path) -> None:
    record(tmp_path / "trace.pt", public={"w0": torch.ones(9)})
    tree = torch.load(tmp_path / "trace.pt", weights_only=True)
    meta = json.loads(tree["meta"])
    meta |= {"colour": {"deep": [1]}}
    meta["task"] |= {"new": 1}
    meta["layout"] |= {"new": 1}
    tree |= {
        "meta": json.dumps(meta),
        "comment": "hello",
        "extra": [torch.ones(2), {"a": None}, 1.5, True],
    }
    tree["messages"] |= {"received": torch.zeros(3)}
    tree["messages"]["written"] = torch.cat([tree["messages"]["written"], torch.tensor([7])])
    torch.save(tree, tmp_path / "later.pt")
    assert_same(load(tmp_path / "trace.pt"), load(tmp_path / "later.pt"))


def test_the_sha256_file_is_that_of_sha256sum(tmp_path: Path) -> None:
    record(tmp_path / "trace.pt", hash=False)
    assert not (tmp_path / "trace.pt.sha256").exists()
    sha = hashlib.sha256((tmp_path / "trace.pt").read_bytes()).hexdigest()
    assert write_sidecar(tmp_path / "trace.pt") == sha
    assert (tmp_path / "trace.pt.sha256").read_text() == f"{sha}  trace.pt\n"
    assert load(tmp_path / "trace.pt", verify=True).complete


def test_a_folder_is_sealed_by_its_manifest(tmp_path: Path) -> None:
    record(f"{tmp_path}/run/", 40, shard_bytes=17_500, hash=False)
    folder = tmp_path / "run"
    with pytest.raises(LeakauditError, match="no sha256"):
        load(folder, verify=True)
    sha = write_sidecar(folder)
    assert sha == hashlib.sha256((folder / "manifest.json").read_bytes()).hexdigest()
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["meta"]["protocol"] == "own:p"
    for shard in manifest["shards"]:
        assert shard["sha256"] == hashlib.sha256((folder / shard["file"]).read_bytes()).hexdigest()
        alone = load(folder / shard["file"])
        assert (alone.complete, int(alone.messages[0].round[0])) == (True, shard["round"])
    assert len(load(folder, verify=True).messages) == len(manifest["shards"]) > 2


def test_a_folder_without_its_last_shards_is_incomplete_when_the_manifest_says_so(
    tmp_path: Path,
) -> None:
    record(f"{tmp_path}/run/", 40, shard_bytes=20_000)
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    manifest |= {"complete": False, "shards": manifest["shards"][:2]}
    (tmp_path / "run" / "manifest.json").write_text(json.dumps(manifest))
    trace = load(tmp_path / "run", verify=False)
    assert (trace.complete, len(trace.messages)) == (False, 2)
    assert trace.rounds == int(trace.messages[-1].round[-1])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_truth_round_trip(tmp_path: Path, dtype: torch.dtype) -> None:
    x = torch.rand(9, 2, dtype=dtype, generator=torch.Generator().manual_seed(0))
    index = torch.arange(3)
    truth = Truth(
        "a",
        TASK,
        x[3:6],
        torch.tensor([0.5, 1, 2]),
        index,
        index * 2,
        x[6:],
        {"w": torch.ones(2, 4, 9)},
    )
    write_tensors(tmp_path / "new" / "truth.pt", truth_tree(truth))
    back = load_truth(tmp_path / "new" / "truth.pt", id="a")
    assert (back.id, back.task, list(back.states)) == ("a", TASK, ["w"])
    for name in ("x", "y", "node", "index", "pool"):
        assert torch.equal(getattr(back, name), getattr(truth, name))
        assert getattr(back, name).dtype == getattr(truth, name).dtype
    assert (
        torch.load(tmp_path / "new" / "truth.pt", weights_only=True)["x"].untyped_storage().nbytes()
        == 6 * dtype.itemsize
    )  # no whole data set


def test_info_is_plain_and_complete(tmp_path: Path) -> None:
    record(
        tmp_path / "trace.pt",
        5,
        public={"w0": torch.ones(9)},
        columns=(2, 8),
        provenance={"command": "x", "n": np.int64(3)},
    )
    facts = info(tmp_path / "trace.pt")
    assert json.loads(json.dumps(facts)) == facts
    expected = {
        "protocol": "own:p", "nodes": 4, "edges": 3, "rounds": 4, "messages": 20, "secure": 5, "dtype": "float32", "d": 9,
        "columns": [2, 8],
        "complete": True, "files": 1, "public": {"w0": [9]}, "params": {"rho": 0.4, "names": ["x"]}, "task": TASK.to_json(),
        "kinds": {"w": {"messages": 15, "secure": 0}, "u": {"messages": 5, "secure": 5}},
        "bytes": (tmp_path / "trace.pt").stat().st_size, "sha256": hashlib.sha256((tmp_path / "trace.pt").read_bytes()).hexdigest(),
    }  # fmt: skip
    assert {name: facts[name] for name in expected} == expected
    assert facts["provenance"]["n"] == 3
    record(f"{tmp_path}/run/", 40, shard_bytes=17_500, hash=False)
    folder = info(tmp_path / "run")
    assert (folder["sha256"], folder["messages"], folder["kinds"]["w"]["messages"]) == (
        None,
        160,
        120,
    )
    assert folder["bytes"] == sum(p.stat().st_size for p in (tmp_path / "run" / "shards").iterdir())


def test_verify_names_the_first_message_that_is_not_finite(tmp_path: Path) -> None:
    record(tmp_path / "good.pt")
    seen: list[tuple[str, int, int]] = []
    with progress.watching(lambda *step: seen.append(step)):
        assert verify(tmp_path / "good.pt") == {
            "path": str(tmp_path / "good.pt"), "sha256": hashlib.sha256((tmp_path / "good.pt").read_bytes()).hexdigest(),
            "messages": 20, "values": 90,
        }  # fmt: skip
    assert seen[-1] == ("checking", 10, 10)
    with Recorder(
        Storage(tmp_path / "bad.pt", hash=False),
        protocol="own:p",
        task=TASK,
        graph=GRAPH,
        options=RecorderOptions(layout=LAYOUT, check=False),
    ) as rec:
        for t in range(40):
            rec.send(t, 1, [0, 2], "w", torch.full((9,), torch.nan) if t >= 30 else torch.ones(9))
    load(tmp_path / "bad.pt")  # what is not attacked need not be finite
    with pytest.raises(
        LeakauditError, match=r"'w' 1 -> 0 of round 30 contains 9 values that are not finite.*0:30"
    ):
        verify(tmp_path / "bad.pt")
    with (tmp_path / "good.pt").open("r+b") as file:
        file.seek(-600, os.SEEK_END)
        file.write(b"x")
    with pytest.raises(LeakauditError, match="does not match its sha256"):
        verify(tmp_path / "good.pt")


# Larger than memory.


def sparse(path: Path, gigabytes: int) -> int:
    """A sound trace with that many GB of payload, all zeros but in one row, that takes next to no space; returns its rows."""
    width = 250_000
    rows = gigabytes * 1000
    graph, layout = Graph(2, ((0, 1),)), Layout(("w",), ((width,),))
    about = head(
        Trace(
            "p", {}, TaskSpec("softmax", shape=(1,)), graph, layout, (0, width), 0, (), id="sparse"
        )
    )
    index = {name: hole(rows, dtype=torch.int32) for name in INDEX}
    counters = {
        "written": torch.tensor([rows, rows, rows // 2 - 1, 1]),
        "kinds": torch.tensor([*b"w\n\0"], dtype=torch.uint8),
    }
    file = MapFile(
        path,
        {
            **about,
            "messages": {
                **counters,
                **index,
                "secure": hole(rows, dtype=torch.bool),
                "payload": hole(rows, width, dtype=torch.float32),
            },
        },
    )
    table, numbers = file.tree["messages"], torch.arange(rows, dtype=torch.int32)
    for name, values in (
        ("round", numbers // 2),
        ("src", numbers % 2),
        ("dst", 1 - numbers % 2),
        ("row", numbers),
    ):
        table[name].copy_(values)
    table["payload"][-1].fill_(7)
    file.finish(rows)
    file.publish()
    return rows


def test_a_trace_larger_than_memory_opens_at_once(tmp_path: Path) -> None:
    rows = sparse(tmp_path / "trace.pt", 60)
    status = (tmp_path / "trace.pt").stat()
    assert status.st_size > 60e9
    assert status.st_blocks * 512 < 20e6
    load(tmp_path / "trace.pt")
    with counted() as effort:
        trace = load(tmp_path / "trace.pt")
    assert effort.calls < CALLS
    assert effort.read < BYTES
    assert effort.pages < PAGES
    assert len(trace) == rows
    view = Adversary().view(trace)
    assert view.message(rows // 2 - 1, 1, 0, "w").eq(7).all()
    assert view.message(17, 0, 1, "w").eq(0).all()


def test_an_open_recording_of_60_gb_is_read_up_to_its_last_round(tmp_path: Path) -> None:
    layout = Layout(("w",), ((250_000,),))
    rec = Recorder(
        Storage(tmp_path / "trace.pt", messages=60_000, max_bytes=1e11, hash=False),
        protocol="own:p",
        task=TASK,
        graph=GRAPH,
        options=RecorderOptions(layout=layout),
    )
    for t in range(2):
        rec.send(t, 0, 1, "w", torch.full((250_000,), float(t)))
        rec.end_round(t)
    assert (tmp_path / "trace.pt").stat().st_size > 60e9
    with counted() as effort:
        trace = load(tmp_path / "trace.pt")
    assert effort.calls < CALLS
    assert effort.read < BYTES
    assert effort.pages < PAGES
    assert (len(trace), trace.rounds, trace.complete, float(trace.messages[0].payload[1, -1])) == (
        2,
        1,
        False,
        1.0,
    )
    rec.close()
    assert (tmp_path / "trace.pt").stat().st_size < 5e6
    assert load(tmp_path / "trace.pt").complete


# Other forms.


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("columns", [None, (2, 8)])
@pytest.mark.parametrize(
    "way",
    [
        ("a.npz",),
        ("a.safetensors",),
        ("run/",),
        ("run/", "a.npz"),
        ("run/", "a.safetensors", "b/"),
        ("a.npz", "c/"),
    ],
)
def test_conversions_keep_every_bit(
    tmp_path: Path, way: tuple[str, ...], columns: tuple[int, int] | None, dtype: torch.dtype
) -> None:
    original = record(
        tmp_path / "trace.pt", 40, dtype=dtype, columns=columns, public={"w0": torch.arange(9.0)}
    ).trace
    if dtype == torch.bfloat16 and any(w.endswith("npz") for w in way):
        with pytest.raises(LeakauditError, match="bfloat16"):
            convert(tmp_path / "trace.pt", tmp_path / "a.npz")
        assert not (tmp_path / "a.npz").exists()
        return
    if any(w.endswith("safetensors") for w in way):
        pytest.importorskip("safetensors")
    at: str = f"{tmp_path}/trace.pt"
    for target in (*way, "back.pt"):
        convert(at, f"{tmp_path}/{target}", shard_bytes=20_000)
        at = f"{tmp_path}/{target}"
    back = load(at, verify=True)
    assert_same(original, back)
    assert len(back.messages[0].payload) == len(
        original.messages[0].payload
    )  # broadcasts are still stored once


def test_payloads_of_several_shards_become_one_array(tmp_path: Path) -> None:
    original = record(f"{tmp_path}/run/", 40, shard_bytes=17_500).trace
    assert len(original.messages) > 2
    convert(f"{tmp_path}/run/", tmp_path / "a.npz")
    convert(tmp_path / "a.npz", tmp_path / "back.pt")
    assert_same(original, load(tmp_path / "back.pt"))


def test_an_incomplete_trace_stays_incomplete(tmp_path: Path) -> None:
    def interrupted() -> None:
        with Recorder(
            tmp_path / "trace.pt",
            protocol="own:p",
            task=TASK,
            graph=GRAPH,
            options=RecorderOptions(layout=LAYOUT),
        ) as rec:
            rec.send(0, 0, 1, "w", torch.ones(9))
            rec.send(1, 0, 1, "w", torch.ones(9))
            raise KeyError

    with pytest.raises(KeyError):
        interrupted()
    for target in ("a.npz", "run/", "b.pt"):
        convert(tmp_path / "trace.pt", f"{tmp_path}/{target}")
    convert(tmp_path / "a.npz", tmp_path / "c.pt")
    for name in ("run", "b.pt", "c.pt"):
        trace = load(tmp_path / name)
        assert (trace.complete, trace.rounds, len(trace)) == (False, 0, 1)


META = {
    "protocol": "theirs",
    "task": {"model": "logistic", "shape": [2], "classes": 3},
    "graph": {"nodes": 2, "edges": [[0, 1]]},
}
ARRAYS = {
    "round": np.array([1, 0]),
    "src": np.array([0, 1]),
    "dst": np.array([1, 0]),
    "payload": np.arange(18.0).reshape(2, 9),
}


def test_arrays_of_another_program(tmp_path: Path) -> None:
    np.savez_compressed(
        tmp_path / "theirs.npz",
        meta=json.dumps(META),
        kind=np.array(["w", "g"]),
        **ARRAYS,  # type: ignore[arg-type]
    )
    convert(tmp_path / "theirs.npz", tmp_path / "trace.pt")
    trace = load(tmp_path / "trace.pt")
    assert (trace.protocol, trace.layout.size, trace.columns, trace.dtype, trace.rounds) == (
        "theirs",
        9,
        (0, 9),
        torch.float64,
        1,
    )
    assert trace.messages[0].round.tolist() == [0, 1]  # a recording is in the order of its rounds
    assert Adversary().view(trace).message(0, 1, 0, "g").tolist() == list(range(9, 18))
    assert Adversary().view(trace).message(1, 0, 1, "w").tolist() == list(range(9))


INCOMPLETE: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    (
        {"payload": None, "src": None},
        {},
        "lacks src, payload; a trace requires the arrays round, src, dst",
    ),
    ({}, {"graph": None}, "lacks a valid description"),
    ({}, {"graph": {"nodes": 2, "edges": "x"}}, "lacks a valid description"),
    ({}, {"task": None}, "lacks a valid description"),
    ({}, {"layout": {"names": ["w"]}}, "lacks a valid description"),
    ({}, {"nodes": 1, "graph": {"nodes": 1, "edges": []}}, "src 1, expected 0 to 0"),
    ({"dst": np.array([1])}, {}, "round has 2 entries, but dst has 1"),
    ({"src": np.array([0.5, 1])}, {}, "whole numbers"),
    ({"round": np.array([-1, 0])}, {}, "round: expected numbers from 0 to"),
    ({"kind": np.array([0, 1])}, {}, "add their names to the description"),
    ({"kind": np.array([0, 1])}, {"kinds": ["w"]}, "kind 1, expected 0 to 0"),
    ({"payload": np.zeros((2, 5))}, {}, "5 columns"),
    ({"payload": np.zeros((1, 9))}, {}, "row 1, expected 0 to 0"),
    ({"payload": np.zeros((2, 9), dtype=np.int32)}, {}, "payload"),
    ({"payload": np.zeros((2, 9), dtype=complex)}, {}, "real numbers"),
    ({"secure": np.array([True])}, {}, "secure has 1"),
]


@pytest.mark.parametrize(
    ("arrays", "meta", "match"), INCOMPLETE, ids=[f"{k}" for k in range(len(INCOMPLETE))]
)
def test_what_is_missing_or_wrong_is_said_in_one_line(
    tmp_path: Path, arrays: dict[str, Any], meta: dict[str, Any], match: str
) -> None:
    named = {name: value for name, value in {**ARRAYS, **arrays}.items() if value is not None}
    about = {name: value for name, value in {**META, **meta}.items() if value is not None}
    np.savez(tmp_path / "theirs.npz", meta=json.dumps(about), **named)
    with pytest.raises(LeakauditError, match=match) as caught:
        convert(tmp_path / "theirs.npz", tmp_path / "trace.pt")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "trace.pt").exists()


def test_targets_that_make_no_sense(tmp_path: Path) -> None:
    record(tmp_path / "trace.pt")
    with pytest.raises(LeakauditError, match="ends in"):
        convert(tmp_path / "trace.pt", tmp_path / "trace.csv")
    with pytest.raises(LeakauditError, match="both source and target"):
        convert(tmp_path / "trace.pt", tmp_path / "x" / ".." / "trace.pt")
    with pytest.raises(LeakauditError, match="max_bytes allows 1 kB"):
        convert(tmp_path / "trace.pt", tmp_path / "a.npz", max_bytes=1000)
    with pytest.raises(LeakauditError, match="max_bytes allows 1 kB"):
        convert(tmp_path / "trace.pt", tmp_path / "a.pt", max_bytes=1000)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["trace.pt", "trace.pt.sha256"]
