"""Recording: what is read back is what was sent, however a run ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flat_recorder import flat_recorder

from leakaudit.core.adversary import Adversary
from leakaudit.core.errors import LeakauditError
from leakaudit.core.trace import Graph, Layout, TaskSpec, Trace
from leakaudit.traces import callers
from leakaudit.traces.recorder import Recorder, estimate, human, plan_size
from leakaudit.traces.trace_file import load, load_truth

GRAPH = Graph(3, ((0, 1), (1, 2)))
LAYOUT = Layout(("first.weight", "first.bias", "last.weight"), ((2, 3), (2,), (4,)))
TASK = TaskSpec("mlp", {"hidden": 2}, shape=(1, 2, 2), classes=2)
D = LAYOUT.size
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def recorder(path: Any, **options: Any) -> Recorder:
    settings: dict[str, Any] = {
        "protocol": "own:loop",
        "task": TASK,
        "graph": GRAPH,
        "layout": LAYOUT,
        "params": {"alpha": 0.1},
        **options,
    }
    return flat_recorder(path, **settings)


def run(rec: Recorder, rounds: int = 4) -> torch.Tensor:
    """One broadcast by node 1 and two messages to it a round; returns all payloads in the order of
    sending.
    """
    values = torch.randn(
        rounds, 3, D, generator=torch.Generator().manual_seed(1), dtype=torch.float64
    )
    for t in range(rounds):
        rec.send(t, 1, [0, 2], "w", values[t, 0])
        rec.send_many(t, [0, 2], [1, 1], "g", secure=t == 0).copy_(
            values[t, 1:, slice(*rec.columns)]
        )
        rec.end_round(t)
    return values.reshape(-1, D)


def assert_equal(a: Trace, b: Trace) -> None:
    """Bit for bit, table by table."""
    assert (a.protocol, a.params, a.task, a.graph, a.layout) == (
        b.protocol,
        b.params,
        b.task,
        b.graph,
        b.layout,
    )
    assert (a.columns, a.rounds, a.id, a.complete, list(a.public)) == (
        b.columns,
        b.rounds,
        b.id,
        b.complete,
        list(b.public),
    )
    flat: list[dict[str, Any]] = [
        {
            **{
                n: torch.cat([getattr(m, n) for m in t.messages])
                for n in ("round", "src", "dst", "secure")
            },
            "payload": torch.cat([m.payload[m.row.long()] for m in t.messages]).view(torch.uint8),
            "kind": [m.kinds[k] for m in t.messages for k in m.kind.tolist()],
        }
        for t in (a, b)
    ]
    for name, column in flat[0].items():
        assert (
            column == flat[1][name]
            if isinstance(column, list)
            else torch.equal(column, flat[1][name])
        ), name


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("columns", [None, (2, 9)])
def test_what_is_read_is_what_was_sent(
    tmp_path: Path, dtype: torch.dtype, columns: tuple[int, int] | None
) -> None:
    w0 = torch.arange(float(D))
    with recorder(
        tmp_path / "trace.pt", dtype=dtype, columns=columns, public={"w0": w0}, rounds=4
    ) as rec:
        sent = run(rec)
    trace = load(tmp_path / "trace.pt", verify=True)
    (m,) = trace.messages
    assert torch.equal(m.payload, sent[:, slice(*(columns or (0, D)))].to(dtype))
    assert m.row.tolist() == [k for t in range(4) for k in (3 * t, 3 * t, 3 * t + 1, 3 * t + 2)]
    assert m.round.tolist() == [t for t in range(4) for _ in range(4)]
    assert (m.src.tolist()[:4], m.dst.tolist()[:4]) == ([1, 1, 0, 2], [0, 2, 1, 1])
    assert (m.kinds, m.kind.tolist()[:4], m.secure.tolist()[:8]) == (
        ("w", "g"),
        [0, 0, 1, 1],
        [False, False, True, True] + [False] * 4,
    )
    assert (trace.rounds, trace.complete, trace.dtype, trace.columns) == (
        4,
        True,
        dtype,
        columns or (0, D),
    )
    assert (trace.protocol, trace.params, trace.task, trace.graph, trace.layout) == (
        "own:loop",
        {"alpha": 0.1},
        TASK,
        GRAPH,
        LAYOUT,
    )
    assert torch.equal(trace.public["w0"], w0)
    assert trace.provenance["torch"] == torch.__version__
    assert trace.provenance["leakaudit"]


@pytest.mark.parametrize("dtype", FLOATS)
def test_file_shards_and_memory_record_the_same_bits(tmp_path: Path, dtype: torch.dtype) -> None:
    traces = []
    for path, size in (
        (tmp_path / "sized.pt", {"messages": 160, "rows": 120}),
        (tmp_path / "grown.pt", {}),
        (f"{tmp_path}/shards/", {}),
        (None, {}),
    ):
        with recorder(path, dtype=dtype, id="same", shard_bytes=20_000, **size) as rec:
            run(rec, 40)
        traces.append(rec.trace)
    assert len(traces[2].messages) > 3
    for other in traces[1:]:
        assert_equal(traces[0], other)


def test_torch_reads_the_file(tmp_path: Path) -> None:
    with recorder(tmp_path / "trace.pt", public={"w0": torch.ones(D)}) as rec:
        sent = run(rec)
    for mmap in (False, True):
        tree = torch.load(tmp_path / "trace.pt", weights_only=True, mmap=mmap)
        assert (tree["format"], tree["version"]) == ("leakaudit.trace", 1)
        assert tree["messages"]["written"].tolist() == [12, 16, 3, 1]
        assert torch.equal(tree["messages"]["payload"], sent.float())
        assert torch.equal(tree["public"]["w0"], torch.ones(D))


def test_a_file_made_by_torch_is_read(tmp_path: Path) -> None:
    with recorder(tmp_path / "trace.pt") as rec:
        run(rec)
    torch.save(torch.load(tmp_path / "trace.pt", weights_only=True), tmp_path / "again.pt")
    assert_equal(load(tmp_path / "again.pt"), rec.trace)


def test_growth_keeps_what_was_written_and_views_handed_out_before(tmp_path: Path) -> None:
    layout, width = Layout(("w",), ((1000,),)), 1000
    complete = Graph(3, ((0, 1), (0, 2), (1, 2)))
    with recorder(tmp_path / "trace.pt", graph=complete, layout=layout, messages=1, rows=1) as rec:
        views = []
        for t in range(3):
            for k in range(
                400
            ):  # 1.6 MB a round: the file grows several times while views wait to be filled
                views.append((t * 400 + k, rec.send_many(t, [k % 3], [(k + 1) % 3], "w")))
            for value, view in views[::-1]:
                view.fill_(value)
            views.clear()
            rec.end_round(t)
    (m,) = rec.trace.messages
    assert torch.equal(m.payload, torch.arange(1200.0)[:, None].expand(-1, width))
    assert (
        tmp_path / "trace.pt"
    ).stat().st_size < 1200 * 4000 + 4096 * 21 + 16_384  # cut to what was used
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".")] == []


def test_arrays_of_other_frameworks(tmp_path: Path) -> None:
    class Foreign:
        def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray[Any, Any]:
            return np.arange(D, dtype=np.float64)

    class Capsule:
        def __init__(self) -> None:
            self.inner = torch.arange(D)

        def __dlpack__(self, **settings: Any) -> Any:
            return self.inner.__dlpack__(**settings)

        def __dlpack_device__(self) -> Any:
            return self.inner.__dlpack_device__()

    frozen = np.arange(D, dtype=">f8")
    frozen.flags.writeable = False
    graphed = torch.arange(float(D), requires_grad=True)
    with recorder(tmp_path / "trace.pt") as rec:
        for value in (
            Foreign(),
            Capsule(),
            frozen,
            graphed,
            list(range(D)),
            np.arange(D, dtype=np.int8),
        ):
            rec.send(0, 0, 1, "w", value)
    assert torch.equal(rec.trace.messages[0].payload, torch.arange(float(D)).expand(6, -1))


def test_secure_kinds_are_closed_to_a_tap() -> None:
    with recorder(None, secure_kinds=("w",)) as rec:
        run(rec)
    view = Adversary().view(rec.trace)
    assert not view.has(1, 1, 0, "w")
    assert view.has(1, 0, 1, "g")
    assert Adversary(corrupt=frozenset({0})).view(rec.trace).has(1, 1, 0, "w")


def test_truth_is_written_beside_and_carries_the_same_id(tmp_path: Path) -> None:
    x, y = (
        torch.rand(3, 2, 1, 2, 2, generator=torch.Generator().manual_seed(0)),
        torch.tensor([[0, 1], [1, 1], [0, 0]]),
    )
    with recorder(tmp_path / "trace.pt", keep_states=True) as rec:
        for node in range(3):
            rec.truth(node, x[node].numpy(), y[node], index=[node, 10 + node])
        rec.pool(x[0, :1])
        for t in (0, 2):
            rec.state("w", t, torch.full((3, D), float(t)))
            rec.send(t, 0, 1, "w", torch.zeros(D))
    truth = load_truth(tmp_path / "trace.truth.pt", verify=True, id=load(tmp_path / "trace.pt").id)
    assert torch.equal(truth.x, x.flatten(0, 1))
    assert truth.y.tolist() == [0, 1, 1, 1, 0, 0]
    assert (truth.node.tolist(), truth.index.tolist()) == (
        [0, 0, 1, 1, 2, 2],
        [0, 10, 1, 11, 2, 12],
    )
    assert (truth.task, tuple(truth.pool.shape), tuple(truth.states["w"].shape)) == (
        TASK,
        (1, 1, 2, 2),
        (3, 3, D),
    )
    assert truth.states["w"][2].eq(2).all()
    assert truth.states["w"][1].isnan().all()
    assert torch.equal(rec.truth_record.x, truth.x)
    with pytest.raises(LeakauditError, match="another recording"):
        load_truth(tmp_path / "trace.truth.pt", id="other")


@pytest.mark.parametrize(
    ("given", "found"), [(True, "trace.truth.pt"), (False, None), ("elsewhere.pt", "elsewhere.pt")]
)
def test_where_the_truth_goes(tmp_path: Path, given: bool | str, found: str | None) -> None:
    with recorder(
        tmp_path / "trace.pt", truth=given if isinstance(given, bool) else tmp_path / given
    ) as rec:
        rec.state("w", 0, torch.zeros(D))  # not kept
        rec.truth(0, torch.zeros(1, 2, 2), 1)
        run(rec)
    names = {p.name for p in tmp_path.glob("*.pt")}
    assert names == {"trace.pt"} | ({found} if found else set())


def test_no_truth_no_file(tmp_path: Path) -> None:
    with recorder(tmp_path / "trace.pt") as rec:
        rec.state("w", 0, torch.zeros(D))
        run(rec)
    assert {p.name for p in tmp_path.iterdir()} == {"trace.pt", "trace.pt.sha256"}


def test_an_exception_leaves_the_whole_rounds(tmp_path: Path) -> None:
    def interrupted() -> None:
        with recorder(tmp_path / "trace.pt") as rec:
            rec.truth(0, torch.zeros(1, 2, 2), 1)
            run(rec, 2)
            rec.send(2, 0, 1, "w", torch.zeros(D))
            raise KeyError("of the user's own loop")

    with pytest.raises(KeyError, match="own loop"):
        interrupted()
    trace = load(tmp_path / "trace.pt", verify=True)
    assert (trace.complete, trace.rounds, len(trace), len(trace.messages[0].payload)) == (
        False,
        1,
        8,
        6,
    )
    assert load_truth(tmp_path / "trace.truth.pt").id == trace.id


def test_an_exception_before_the_first_message_changes_nothing(tmp_path: Path) -> None:
    with recorder(tmp_path / "trace.pt", id="old") as rec:
        run(rec)

    def interrupted() -> None:
        with recorder(tmp_path / "trace.pt", id="new"):
            raise KeyError("early")

    before = sorted(p.name for p in tmp_path.iterdir())
    with pytest.raises(KeyError):
        interrupted()
    assert sorted(p.name for p in tmp_path.iterdir()) == before
    assert load(tmp_path / "trace.pt", verify=True).id == "old"


KILLED = """
    import sys, time, torch
    from leakaudit.traces.recorder import Recorder, RecorderOptions, Storage
    from leakaudit.core.trace import Graph, Layout, TaskSpec
    path, sized = sys.argv[1], sys.argv[2] == "sized"
    d = 20_000
    messages = 100_000 if sized else None
    storage = Storage(path, messages=messages, max_bytes=1e11, shard_bytes=3_000_000)
    options = RecorderOptions(layout=Layout(("w",), ((d,),)))
    task, graph = TaskSpec("softmax", shape=(1,)), Graph(2, ((0, 1),))
    rec = Recorder(storage, protocol="own:p", task=task, graph=graph, options=options)
    rec.truth(0, torch.zeros(1), 0)
    for t in range(100_000):
        rec.send_many(t, [0, 1], [1, 0], "w").fill_(t)
        rec.end_round(t)
        if t == 50:
            print("running", flush=True)
"""


@pytest.mark.parametrize(
    ("name", "mode"), [("trace.pt", "sized"), ("trace.pt", "growing"), ("folder/", "growing")]
)
def test_a_killed_run_leaves_its_rounds(
    tmp_path: Path, project: Path, name: str, mode: str
) -> None:
    path = f"{tmp_path}/{name}"
    environment = {**os.environ, "PYTHONPATH": str(project)}
    command = [sys.executable, "-c", textwrap.dedent(KILLED), path, mode]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"running\n"
        time.sleep(0.05)
        process.send_signal(signal.SIGKILL)
    trace = load(path)
    assert not trace.complete
    assert trace.rounds >= 50
    assert len(trace) >= 2 * (trace.rounds + 1) - 2
    payload = torch.cat([m.payload[m.row.long()] for m in trace.messages])
    assert torch.equal(
        payload, torch.cat([m.round for m in trace.messages]).float()[:, None].expand_as(payload)
    )
    assert (
        load_truth(f"{tmp_path}/{name.removesuffix('/').removesuffix('.pt')}.truth.pt").id
        == trace.id
    )


def test_it_can_be_read_while_it_is_written(tmp_path: Path) -> None:
    rec = recorder(tmp_path / "trace.pt")
    run(rec, 3)
    rec.send(3, 0, 1, "w", torch.ones(D))
    early = load(tmp_path / "trace.pt")
    assert (early.complete, early.rounds, len(early)) == (False, 2, 12)
    rec.close()
    assert len(load(tmp_path / "trace.pt")) == 13


def test_a_new_recording_replaces_the_old_one_and_its_sha256(tmp_path: Path) -> None:
    for rounds in (5, 2):
        with recorder(tmp_path / "trace.pt") as rec:
            run(rec, rounds)
        assert load(tmp_path / "trace.pt", verify=True).rounds == rounds - 1
    rec = recorder(tmp_path / "trace.pt", hash=False)
    run(rec, 1)
    assert not (tmp_path / "trace.pt.sha256").exists()
    rec.close()
    assert not (tmp_path / "trace.pt.sha256").exists()


def test_a_new_recording_replaces_an_old_folder(tmp_path: Path) -> None:
    for rounds in (60, 1):
        with recorder(f"{tmp_path}/run/", shard_bytes=20_000) as rec:
            run(rec, rounds)
    assert sorted(p.name for p in (tmp_path / "run" / "shards").iterdir()) == ["r000000.pt"]
    assert load(tmp_path / "run", verify=True).rounds == 0


def test_a_link_is_followed_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "trace.pt").symlink_to(tmp_path / "elsewhere" / "trace.pt")
    with recorder(tmp_path / "trace.pt") as rec:
        run(rec)
    assert (tmp_path / "trace.pt").is_symlink()
    assert load(tmp_path / "elsewhere" / "trace.pt", verify=True).complete


def test_an_empty_recording_is_a_trace(tmp_path: Path) -> None:
    for path in (tmp_path / "trace.pt", None, f"{tmp_path}/run/"):
        with recorder(path, messages=0) as rec:
            rec.end_round(3)
        assert (rec.trace.rounds, len(rec.trace), rec.trace.complete, list(rec.trace.kinds())) == (
            3,
            0,
            True,
            [],
        )


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("no/such/folder/trace.pt", {}, "does not exist; create it first"),
    ("file.txt/trace.pt", {}, "does not exist; create it first"),
    ("pipe", {}, "it is not a file"),
    ("full/", {}, "a folder with other contents"),
    ("trace.pt", {"dtype": torch.int32}, "float16"),
    ("trace.pt", {"columns": (3, 99)}, "columns"),
    ("trace.pt", {"messages": -1}, "messages: expected"),
    ("trace.pt", {"params": {"f": object()}}, "numbers, text"),
    ("trace.pt", {"params": {"alpha": float("nan")}}, "numbers, text"),
    ("trace.pt", {"protocol": "own:a\nb"}, "printable"),
    ("trace.pt", {"layout": Layout(("w",), ((0,),))}, "0 parameters"),
    ("trace.pt", {"messages": 10**9, "rounds": 400}, "max_bytes allows 4 GB"),
]


@pytest.mark.parametrize(
    ("path", "options", "match"), REFUSED, ids=[f"{k}-{r[2]}" for k, r in enumerate(REFUSED)]
)
def test_refused_before_anything_is_created(
    tmp_path: Path, path: str, options: dict[str, Any], match: str
) -> None:
    (tmp_path / "file.txt").write_text("mine")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").write_text("mine")
    os.mkfifo(tmp_path / "pipe")
    before = sorted(p.name for p in tmp_path.rglob("*"))
    with pytest.raises(LeakauditError, match=match) as caught:
        recorder(f"{tmp_path}/{path}", **options)
    assert "\n" not in str(caught.value)
    assert sorted(p.name for p in tmp_path.rglob("*")) == before


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs a folder that takes no files")
def test_a_folder_that_takes_no_files() -> None:
    with pytest.raises(LeakauditError, match="cannot write /proc/self/trace"):
        recorder("/proc/self/trace.pt")


def late(rec: Recorder) -> None:
    rec.end_round(3)
    rec.send(2, 0, 1, "w", torch.zeros(D))


def closed(rec: Recorder) -> None:
    rec.close()
    rec.send(4, 0, 1, "w", torch.zeros(D))


def reshaped(rec: Recorder) -> None:
    rec.state("w", 0, torch.zeros(3))
    rec.state("w", 1, torch.zeros(4))


MISUSED: list[tuple[Callable[[Recorder], object], str]] = [
    (lambda r: r.send(0, 3, 1, "w", torch.zeros(D)), "src: expected numbers from 0 to 2, got 3"),
    (
        lambda r: r.send(0, 0, [1, -1], "w", torch.zeros(D)),
        "dst: expected numbers from 0 to 2, got -1",
    ),
    (lambda r: r.send(0, 0, 1, "w", torch.zeros(D + 1)), "expected a vector of 12 real numbers"),
    (lambda r: r.send(0, 0, 1, "w", torch.zeros(2, D)), "expected a vector"),
    (lambda r: r.send(0, 0, 1, "w", torch.zeros(D, dtype=torch.complex64)), "real numbers"),
    (lambda r: r.send(0, 0, 1, "w", ["a"] * D), "real numbers"),
    (lambda r: r.send(0, 0, 1, "a\nb", torch.zeros(D)), "printable"),
    (lambda r: r.send(0, 0, 1, "", torch.zeros(D)), "printable"),
    (lambda r: r.send(0, 0.5, 1, "w", torch.zeros(D)), "whole numbers"),  # type: ignore[arg-type]
    (
        lambda r: r.send(9, 0, 1, "w", torch.zeros(D)),
        "round 9: expected a whole number from 0 to 5",
    ),
    (lambda r: r.send("1", 0, 1, "w", torch.zeros(D)), "round 1: expected a whole number"),  # type: ignore[arg-type]
    (
        lambda r: r.send(0, 0, 2, "w", torch.zeros(D)),
        r"channel 0 -> 2 is not in the graph; node 0 has neighbours \[1\]",
    ),
    (lambda r: r.send_many(0, [1, 2], [2, 0], "w"), "channel 2 -> 0 is not in the graph"),
    (lambda r: r.send(0, 0, 1, "w", [torch.nan] * D), "12 of 12 numbers are NaN or infinite"),
    (
        lambda r: r.send(0, 0, 1, "w", [0.0] * (D - 1) + [torch.inf]),
        "1 of 12 numbers are NaN or infinite",
    ),
    (
        lambda r: r.truth(0, torch.full((1, 2, 2), 255.0), 1),
        r"pictures in \[0, 1\], got numbers from 255 to 255; divide them by 255",
    ),
    (
        lambda r: r.truth(0, torch.full((1, 2, 2), -1.5), 1),
        "got numbers from -1.5 to -1.5; undo the normalisation",
    ),
    (lambda r: r.truth(0, torch.full((1, 2, 2), torch.nan), 1), "finite numbers"),
    (lambda r: r.pool(torch.full((3, 1, 2, 2), 9.0)), r"pool: expected pictures in \[0, 1\]"),
    (lambda r: r.truth(0, torch.zeros(1, 2, 2), 2), "labels from 0 to 1, got 2 to 2"),
    (lambda r: r.truth(0, torch.zeros(1, 2, 2), -1), "labels from 0 to 1, got -1"),
    (lambda r: r.send(0, 0, 1, 3, torch.zeros(D)), "kind 3"),  # type: ignore[arg-type]
    (lambda r: r.send(0, 0, [[1], [1, 2]], "w", torch.zeros(D)), "dst: expected"),  # type: ignore[list-item]
    (lambda r: r.send(0, 0, 1, "w", None), "real numbers, got NoneType"),
    (late, "comes after round 3"),
    (closed, "the recording is closed"),
    (lambda r: r.send_many(0, [0, 1], [1], "w"), "expected src, dst and row of equal length"),
    (lambda r: r.send(0, [0, 1], 2, "w", torch.zeros(D)), "one src, got 2"),  # type: ignore[arg-type]
    (lambda r: r.state("w", -1, torch.zeros(3)), "a round >= 0"),
    (lambda r: r.state("w", 2_000_000_000, torch.zeros(3)), "private states take more than 4 GB"),
    (
        lambda r: r.send_many(0, [0, 1], [1, 0], "w", row=[0, 2]),
        "row: expected numbers from 0 to 1, got 2",
    ),
    (lambda r: r.truth(0, torch.zeros(2, 2), 1), "samples of shape"),
    (lambda r: r.truth(0, torch.zeros(2, 1, 2, 2), [1]), "one label and one index for each"),
    (lambda r: r.truth(0, torch.zeros(1, 2, 2, dtype=torch.uint8), 1), "floats in"),
    (lambda r: r.truth(7, torch.zeros(1, 2, 2), 1), "node: expected numbers from 0 to 2, got 7"),
    (reshaped, "as in earlier rounds"),
    (lambda r: r.trace, "still open"),
]


@pytest.mark.parametrize(("misuse", "match"), MISUSED, ids=[m[1] for m in MISUSED])
def test_misuse_is_one_line(misuse: Callable[[Recorder], object], match: str) -> None:
    rec = recorder(None, rounds=5, keep_states=True)
    with pytest.raises(LeakauditError, match=match) as caught:
        misuse(rec)
    assert "\n" not in str(caught.value)


FEDSGD: dict[str, Any] = {
    "protocol": "fedsgd",
    "graph": Graph(3, ((0, 2), (1, 2))),
    "params": {"lr": 0.1},
}
UNKNOWN: list[tuple[dict[str, Any], str]] = [
    ({"protocol": "fedsdg"}, "protocol: unknown 'fedsdg'; did you mean 'fedsgd'.*own:NAME"),
    ({"params": {"lrr": 0.1}}, "params: fedsgd has no constant 'lrr'; did you mean 'lr'"),
    (
        {"params": {"learning_rate": 0.1}},
        r"params: fedsgd has no constant 'learning_rate' \(known: .*, decay, fraction, lr, ",
    ),
    ({"params": {"lr": "fast"}}, "lr: expected a finite number, got 'fast'"),
    ({"params": {"lr": -1.0}}, "expected lr > 0"),
]


@pytest.mark.parametrize(("options", "match"), UNKNOWN, ids=[m for _, m in UNKNOWN])
def test_a_name_that_the_protocol_does_not_have_is_refused_with_the_nearest(
    options: dict[str, Any], match: str
) -> None:
    with pytest.raises(LeakauditError, match=match) as caught:
        recorder(None, **{**FEDSGD, **options})
    assert "\n" not in str(caught.value)


def test_a_kind_that_the_protocol_does_not_send_is_refused_and_one_of_an_own_protocol_is_not() -> (
    None
):
    rec = recorder(None, **FEDSGD)
    rec.send(1, 2, [0, 1], "w", torch.zeros(D))
    with pytest.raises(
        LeakauditError,
        match=r"round 1: fedsgd does not send messages of kind 'grad' \(known: g, w\)",
    ):
        rec.send(1, 0, 2, "grad", torch.zeros(D))
    with pytest.raises(LeakauditError, match="channel 0 -> 1 is not in the graph"):
        rec.send(1, 0, 1, "g", torch.zeros(D))
    rec.send(1, 0, 2, "g", torch.zeros(D))
    rec.close()
    assert list(rec.trace.kinds()) == ["w", "g"]
    own = recorder(None, **{**FEDSGD, "protocol": "own:mine", "params": {"anything": 1}})
    own.send(1, 0, 2, "grad", torch.zeros(D))
    own.close()
    assert (own.trace.protocol, list(own.trace.kinds())) == ("own:mine", ["grad"])


def test_a_copy_keeps_what_a_recorder_would_refuse() -> None:
    rec = recorder(None, **{**FEDSGD, "protocol": "fedsdg", "check": False})
    rec.send(1, 0, 1, "anything", torch.full((D,), torch.nan))
    rec.close()
    assert len(rec.trace) == 1


def test_a_broadcast_to_nobody_is_no_message() -> None:
    with recorder(None) as rec:
        rec.send(0, 0, [], "w", torch.zeros(D))
        rec.truth(0, torch.zeros(1, 2, 2), 1)
        assert len(rec.truth_record.x) == 1
    assert len(rec.trace) == 0


def test_rows_shared_by_several_messages() -> None:
    with recorder(None) as rec:
        rec.send_many(0, [1, 1, 0], [0, 2, 1], "w", row=[0, 0, 1]).copy_(
            torch.arange(2.0 * D).view(2, D)
        )
    (m,) = rec.trace.messages
    assert (len(m.payload), m.row.tolist()) == (2, [0, 0, 1])


def test_the_limit_holds_while_recording(tmp_path: Path) -> None:
    rec = recorder(tmp_path / "trace.pt", max_bytes=60_000)
    with pytest.raises(LeakauditError, match="max_bytes allows 60 kB"):
        run(rec, 1000)
    rec.close(complete=False)
    trace = load(tmp_path / "trace.pt")
    assert not trace.complete
    assert trace.rounds > 100
    assert (tmp_path / "trace.pt").stat().st_size <= 60_000 + 16_384


@pytest.mark.parametrize("size", [1, 999, 1000, 123_456, 4e9, 5.25e12, 4e15])
def test_sizes_in_words(size: float) -> None:
    number, unit = human(size).split()
    scale = {"bytes": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12}[unit]
    assert float(number.replace(",", "")) * scale == pytest.approx(size, rel=6e-3)


@pytest.mark.parametrize(("messages", "rows"), [(0, None), (16, None), (1600, 1200)])
def test_the_planned_size_is_the_size(tmp_path: Path, messages: int, rows: int | None) -> None:
    with recorder(tmp_path / "trace.pt", messages=messages, rows=rows) as rec:
        run(rec, messages // 4)
    size = (tmp_path / "trace.pt").stat().st_size
    assert size <= plan_size(messages, D, torch.float32, rows) <= size + 16_384


def test_smaller_recordings_are_named() -> None:
    graph = Graph(4, ((0, 1), (0, 2), (0, 3), (1, 2)))
    sizes = estimate(
        8000, D, torch.float64, graph=graph, layout=LAYOUT, rounds=1000, max_bytes=100_000
    )
    assert list(sizes) == [
        "all of it",
        "89 of 1000 rounds (--rounds)",
        "one node's channels (--wires node:0)",
        "the first layer only (--layers first)",
    ]
    assert sizes["all of it"] == plan_size(8000, D, torch.float64)
    assert sizes["89 of 1000 rounds (--rounds)"] <= 100_000
    assert sizes["one node's channels (--wires node:0)"] == plan_size(6000, D, torch.float64)
    assert sizes["the first layer only (--layers first)"] == plan_size(8000, 8, torch.float64)
    with pytest.raises(
        LeakauditError,
        match="requires 952 kB, but max_bytes allows 100 kB; "
        r"smaller recordings: .*one node's channels \(--wires node:0\)",
    ):
        recorder(None, graph=graph, messages=8000, rounds=1000, dtype=torch.float64, max_bytes=1e5)


def test_a_description_of_the_task_gives_the_layout() -> None:
    rec = recorder(
        None, layout=None, task=TaskSpec("mlp", {"hidden": 3}, shape=(1, 2, 2), classes=2)
    )
    assert rec.layout.size == 4 * 3 + 3 + 3 * 2 + 2


@pytest.mark.skipif(
    not Path("/proc/self/clear_refs").exists(), reason="needs Linux's memory counters"
)
def test_memory_stays_flat(tmp_path: Path) -> None:
    def peak() -> int:
        return next(
            int(line.split()[1])
            for line in Path("/proc/self/status").read_text().splitlines()
            if line.startswith("VmHWM")
        )

    rec = recorder(tmp_path / "trace.pt", layout=Layout(("w",), ((1_000_000,),)), hash=False)
    chunk = torch.randn(2, 1_000_000)
    rec.send_many(0, [0, 2], [1, 1], "w").copy_(chunk)
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts from here
    before = peak()
    for t in range(1, 32):  # 256 MB
        rec.send_many(t, [0, 2], [1, 1], "w").copy_(chunk)
        rec.end_round(t)
    rec.close()
    assert peak() - before < 100_000, "kB"


# --- where messages are sent ------------------------------------------------------------------------------------------

PROGRAM = """
import torch, leakaudit as la
graph = la.Graph(3, ((0, 1), (0, 2)))
task = la.TaskSpec("logistic", shape=(4,), classes=2)
with la.Recorder("t.pt", protocol="fedsgd", task=task, graph=graph, rounds=1) as recorder:
    recorder.truth(node=1, x=torch.zeros(1, 4), y=torch.zeros(1, dtype=torch.int64))
    recorder.send(round=0, src=0, dst=[1, 2], kind="w", value=torch.zeros(10))
    for node in (1, 2):
        recorder.send(round=0, src=node, dst=0, kind="g", value=torch.zeros(10))
"""


def test_the_truth_notes_the_lines_that_send_and_the_trace_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "src").mkdir()
    file = tmp_path / "src" / "program.py"
    file.write_text(PROGRAM)
    monkeypatch.chdir(tmp_path)
    exec(compile(PROGRAM, str(file), "exec"), {"__name__": "program"})
    noted = callers.read(load_truth("t.truth.pt").provenance)
    assert [(one.kind, one.file, one.line) for one in noted] == [
        ("w", "src/program.py", 7),
        ("g", "src/program.py", 9),
    ]
    assert "program.py" not in str(load("t.pt").provenance)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    exec(compile(PROGRAM, str(file), "exec"), {"__name__": "program"})
    assert callers.SENT not in load_truth("t.truth.pt").provenance, "no path outside the folder"


@pytest.mark.parametrize(
    "place",
    [
        ["/etc/passwd", 1],
        ["../x.py", 1],
        ["x.py", 0],
        ["x.py"],
        "x.py",
        ["x\n.py", 1],
        [1, 1],
        None,
    ],
)
def test_a_place_of_another_form_is_not_read(place: Any) -> None:
    assert callers.read({callers.SENT: {"w": place}}) == []
