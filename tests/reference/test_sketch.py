"""Selected columns and sketches: equal to a full recording and to the documented map, and tested.

The sketch is compared with a dense matrix that is built from its description in docs/traces.md, in
float64.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import leakaudit as la
from leakaudit.capture.gloo import engine
from leakaudit.capture.gloo.setup import ProcessLayout
from leakaudit.capture.tap import merge
from leakaudit.core.errors import LeakauditError
from leakaudit.core.payload import StoredColumns
from leakaudit.core.sketch import NUMBERS, ROWS, WIDTH, Sketch
from leakaudit.core.trace import Graph, Layout, Messages, TaskSpec, Trace
from leakaudit.protocols import recording
from leakaudit.traces import convert, layers, trace_file, trace_info
from leakaudit.traces.recorder import Recorder, RecorderOptions, Storage
from leakaudit.views.conformance import conformance

NAMES = ("a.weight", "a.bias", "b.weight", "c.weight", "c.bias")
LAYOUT = Layout(NAMES, ((30, 10), (30,), (60, 30), (5, 60), (5,)))
SMALL = la.Scenario(
    victim="pdmm",
    nodes=4,
    graph="ring",
    rounds=3,
    data="faces",
    model="mlp",
    set={"hidden": 32},
    layers="layer1.bias,layer2.bias,sketch",
)
PROTOCOLS: list[tuple[str, dict[str, Any]]] = [
    ("pdmm", {}),
    ("pdmm", {"theta": 0.5, "differential": False}),
    ("pdmm", {"quantize": 0.01}),
    ("dpsgd", {}),
    ("tracking", {}),
    ("fedsplit", {}),
    ("dpadmmserver", {}),
    ("fedavg", {}),
    ("secured", {"group_size": 2, "partitions": 3, "lam0": 0.5}),
]


def dense(size: int, seed: int) -> np.ndarray:
    """Return the map of the sketch as a matrix (NUMBERS, size), sign by sign."""
    height = -(-size // 64)
    text = f"leakaudit sketch {seed}".encode()
    digest = hashlib.shake_128(text).digest(2 * height)  # 16 signs of `height` rows
    found = np.zeros((16, 64, size))
    for r in range(16):
        for row in range(height):
            bit = r * height + row
            sign = 1 if digest[bit // 8] >> (7 - bit % 8) & 1 else -1
            columns = np.arange(64 * row, min(size, 64 * row + 64))
            found[r, columns % 64, columns] = sign / 4
    return found.reshape(1024, size)


@pytest.mark.parametrize("size", [1, 63, 64, 65, 1000, 200_001])
def test_the_sketch_is_the_documented_map(size: int) -> None:
    values = torch.randn(3, size, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    sums, norms = Sketch(size, 7).of(values)
    if size <= 1000:
        assert np.allclose(sums.numpy(), values.numpy() @ dense(size, 7).T, atol=1e-12)
    assert torch.allclose(norms, values.norm(dim=1), rtol=1e-14)
    # Long vectors are processed in pieces, which the same sums in float32 must not notice.
    single = Sketch(size, 7).of(values.float())[0]
    assert float((single - sums).abs().max()) < 1e-6 * float(sums.abs().max())


def test_columns_may_be_added_in_any_order() -> None:
    values = torch.randn(2, 1000, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    sketch = Sketch(1000, 0)
    total = torch.zeros(2, NUMBERS, dtype=torch.float64)
    for start in (640, 0, 320):
        sketch.add(
            total, values[:, start : min(1000, start + (360 if start == 640 else 320))], start
        )
    assert torch.allclose(total, sketch.of(values)[0], atol=1e-13)


def test_every_small_difference_is_seen_and_lengths_are_kept() -> None:
    """The probability of a miss is at most 2^-ROWS, and the expected squared length is exact."""
    generator = torch.Generator().manual_seed(2)
    sketch = Sketch(64 * 400, 3)
    pairs = torch.randint(400, (2000, 2), generator=generator)
    one = torch.zeros(2000, 64 * 400)
    for k, (i, j) in enumerate(pairs.tolist()):
        one[k, 64 * i + 5] = 1.0
        one[k, 64 * j + 5] += 1.0  # cancels in a sum with opposite signs
    lengths = sketch.of(one)[0].norm(dim=1)
    assert float(lengths.min()) > 0
    assert abs(float((lengths**2).mean() / (one.norm(dim=1) ** 2).mean()) - 1) < 0.05


def test_layers_are_chosen_by_name() -> None:
    def spans(text: str) -> tuple[tuple[int, int], ...]:
        return layers.kept(text, LAYOUT).spans

    assert spans("all") == ((0, LAYOUT.size),)
    assert spans("first") == spans("a.*") == spans("a") == ((0, 330),)
    assert spans("last") == ((2130, 2435),)
    assert spans("first,last") == spans("c,a") == ((0, 330), (2130, 2435))
    assert spans("b.weight,c.weight") == ((330, 2430),)  # neighbours are one span
    assert spans("*.bias") == ((300, 330), (2430, 2435))
    assert layers.kept("first,sketch:5", LAYOUT) == StoredColumns(LAYOUT.size, ((0, 330),), 5)
    assert layers.kept("b,sketch", LAYOUT).seed is None  # the rest is smaller than a sketch
    for wrong in ("d", "sketch", "first,sketch:x"):
        with pytest.raises(LeakauditError, match="layers: "):
            layers.kept(wrong, LAYOUT)


@pytest.mark.parametrize(("victim", "constants"), PROTOCOLS)
def test_selected_columns_are_those_of_a_full_recording(
    victim: str, constants: dict[str, Any], tmp_path: Path
) -> None:
    chosen = replace(SMALL, victim=victim, set={"hidden": 32, **constants})
    if victim == "secured":
        chosen = replace(chosen, graph="complete")
    trace, _ = la.record(chosen, tmp_path / "trace.pt")
    whole, _ = la.record(replace(chosen, layers="all"))
    assert len(trace.spans) == 2
    assert not conformance.examine(trace).deviations
    (table,), (full,) = trace.messages, whole.messages
    for name in ("round", "src", "dst", "kind", "row"):
        assert torch.equal(getattr(table, name), getattr(full, name))
    for span in trace.spans:
        (part,) = trace.of_span(span).messages
        assert torch.equal(part.payload, full.payload[:, slice(*span)])
    assert trace.sketched is not None
    sums = trace.sketched.messages[0].payload
    exact = full.payload.double() @ torch.from_numpy(dense(trace.layout.size, 0)).T
    assert float((sums - exact).norm() / exact.norm()) < 1e-6
    assert table.stored is not None
    norms = table.stored[:, -1]
    known = ~norms.isnan()
    assert bool(known.all()) != (victim == "pdmm" and "quantize" not in constants)
    assert torch.allclose(norms[known], full.payload[known].norm(dim=1), rtol=1e-5)


def test_attacks_use_the_recorded_columns_only() -> None:
    """A sketch changes neither the leaks nor the reconstructions; every record comes back."""
    chosen = replace(SMALL, victim="dpsgd", layers="first,sketch")
    trace, truth = la.record(chosen)
    plain, _ = la.record(replace(chosen, layers="first"))
    assert trace.kept is not None
    leaks = la.leaks(trace, la.Adversary())
    for leak, other in zip(leaks, la.leaks(plain, la.Adversary()), strict=True):
        assert leak.columns == other.columns
        assert torch.equal(leak.value, other.value)
    found = la.attack(leaks, "auto", generator=torch.Generator().manual_seed(0))
    scores = la.score(found, truth)
    values = [float(p or 0) for score in scores for p in score.psnr or ()]
    assert len(values) == SMALL.nodes
    assert min(values) > 60


def test_leaks_of_the_sketch_are_sketches_of_leaks() -> None:
    chosen = replace(SMALL, victim="dpsgd", dtype="float64")
    trace, _ = la.record(chosen)
    whole, _ = la.record(replace(chosen, layers="all"))
    assert trace.kept is not None
    assert trace.sketched is not None
    sums = la.leaks(trace.sketched, la.Adversary())
    full = la.leaks(whole, la.Adversary())
    for leak, other in zip(sums, full, strict=True):
        exact = trace.kept.sketched(other.value)
        assert torch.equal(leak.combination, other.combination)
        assert float((leak.value - exact).norm()) < 1e-10 * float(exact.norm())


@pytest.mark.parametrize("victim", ["pdmm", "dpsgd"])
def test_nodes_in_threads_record_the_same(victim: str) -> None:
    chosen = replace(SMALL, victim=victim)
    apart = engine.record(recording.plan(chosen), None, ProcessLayout(2), threads=True).trace
    together, _ = la.record(chosen)
    assert apart.kept == together.kept
    for first, second in zip(by_message(apart), by_message(together), strict=True):
        assert float((first - second).norm()) <= 1e-5 * float(second.norm())


def by_message(trace: Trace) -> list[torch.Tensor]:
    """Return what is linear in each message, in the order of rounds, senders and receivers."""
    assert trace.kept is not None
    (table,) = trace.messages
    assert table.stored is not None
    columns = (table.round, table.src, table.dst, table.row)
    found = sorted(zip(*(column.tolist() for column in columns), strict=True))
    return [table.stored[row, : trace.kept.linear] for *_, row in found]


def recorded_again(whole: Trace, payload: torch.Tensor, path: Path | None = None) -> Trace:
    """Record the messages of a trace with other payloads, some columns and a sketch."""
    (table,) = whole.messages
    kept = layers.kept(SMALL.layers, whole.layout)
    recorder = Recorder(
        Storage(path, truth=False),
        protocol=whole.protocol,
        task=whole.task,
        graph=whole.graph,
        params=whole.params,
        rounds=whole.rounds,
        public=whole.public,
        options=RecorderOptions(layout=whole.layout, layers=kept, check=False, dtype=payload.dtype),
    )
    with recorder:
        for k in range(len(table)):
            recorder.send(
                int(table.round[k]),
                int(table.src[k]),
                int(table.dst[k]),
                table.kinds[int(table.kind[k])],
                payload[int(table.row[k])],
                secure=bool(table.secure[k]),
            )
    return recorder.trace


@pytest.mark.parametrize("constants", [{}, {"quantize": 1e-4}])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_tampered_column_that_was_not_recorded_is_found(
    constants: dict[str, Any], dtype: str
) -> None:
    chosen = replace(SMALL, layers="all", dtype=dtype, set={"hidden": 32, **constants})
    whole, _ = la.record(chosen)
    honest = whole.messages[0].payload
    assert not conformance.examine(recorded_again(whole, honest)).deviations
    tampered = honest.clone()
    tampered[-3, 100:164] += 0.5 * honest[-3].norm() / 8  # half of the message's length
    found = recorded_again(whole, tampered)
    # The recorded columns are those of the honest run.
    assert torch.equal(found.messages[0].payload, recorded_again(whole, honest).messages[0].payload)
    (deviation,) = conformance.examine(found).deviations
    assert deviation.about == "sketch"
    assert "inconsistent in columns that were not recorded" in deviation.sentence


def test_a_copy_that_differs_in_a_column_that_was_not_recorded_is_found() -> None:
    """D-PSGD sends one vector to all neighbours: its two copies must have one sketch."""
    whole, _ = la.record(replace(SMALL, victim="dpsgd", layers="all"))
    (table,) = whole.messages
    separate = replace(table, row=torch.arange(len(table)))  # every copy with a payload of its own
    apart = replace(whole, messages=(separate,))
    payload = table.payload[table.row.long()]
    assert not conformance.examine(recorded_again(apart, payload)).deviations
    tampered = payload.clone()
    tampered[3, 100] += 0.01
    (deviation,) = conformance.examine(recorded_again(apart, tampered)).deviations
    assert deviation.about == "copies"


def test_a_sketch_satisfies_the_relations_up_to_rounding() -> None:
    """PDMM on a ring: both messages of a node determine its model, through the sketch as well."""
    trace, _ = la.record(replace(SMALL, dtype="float64"))
    whole, _ = la.record(replace(SMALL, dtype="float64", layers="all"))
    assert trace.kept is not None
    assert trace.sketched is not None
    assert torch.allclose(
        trace.sketched.public["w0"], trace.kept.sketched(whole.public["w0"][None])[0]
    )
    assert not conformance.examine(trace).deviations


def stored(trace: Trace) -> list[torch.Tensor]:
    """Return everything that a trace stores of its messages, in order."""
    found = []
    for table in trace.messages:
        rows = table.payload if table.stored is None else table.stored
        found.append(rows[table.row.long()].nan_to_num(-1.0))
    return found


@pytest.mark.parametrize("target", ["again.pt", "folder/", "again.npz", "again.safetensors"])
def test_conversions_keep_spans_and_sketches(target: str, tmp_path: Path) -> None:
    trace, _ = la.record(SMALL, tmp_path / "trace.pt")
    other = f"{tmp_path}/{target}"
    convert.convert(tmp_path / "trace.pt", other)
    if other.endswith((".npz", ".safetensors")):
        convert.convert(other, tmp_path / "back.pt")
        other = str(tmp_path / "back.pt")
    back = trace_file.load(other)
    assert (back.kept, back.columns, back.layout) == (trace.kept, trace.columns, trace.layout)
    assert torch.equal(torch.cat(stored(back)), torch.cat(stored(trace)))


def test_a_trace_with_a_sketch_has_its_own_version(tmp_path: Path) -> None:
    la.record(SMALL, tmp_path / "trace.pt")
    facts = trace_info.info(tmp_path / "trace.pt")
    assert facts["version"] == 2
    assert facts["spans"] == [[20000, 20032], [23232, 23332]]
    assert facts["sketch"] == {"seed": 0, "numbers": ROWS * WIDTH}
    assert trace_info.verify(tmp_path / "trace.pt")["sha256"]
    la.record(replace(SMALL, layers="first"), tmp_path / "first.pt")
    assert trace_info.info(tmp_path / "first.pt")["version"] == 1


@pytest.mark.parametrize(
    "change",
    [
        {"spans": []},
        {"spans": [[0, 5], [5, 9]]},
        {"spans": [[3, 2]]},
        {"spans": [[20000, 20032], [23232, 99999]]},
        {"spans": [[23232, 23332]]},
        {"sketch": {"seed": 0, "rows": 4, "width": 256}},
        {"sketch": "yes"},
        {"sketch": None},  # the payload is then wider than stated
    ],
)
def test_malformed_descriptions_are_rejected(change: dict[str, Any], tmp_path: Path) -> None:
    import json

    path = tmp_path / "trace.pt"
    la.record(SMALL, path)
    tree = torch.load(path, weights_only=True)
    about = json.loads(tree["meta"])
    about["kept"] |= change
    torch.save({**tree, "meta": json.dumps(about)}, path)
    with pytest.raises(LeakauditError, match="is rejected"):
        trace_file.load(path, verify=False)


@pytest.mark.parametrize(("place", "says"), [(-2, "sketch"), (-1, "norm")])
def test_verification_rejects_impossible_sketches_and_norms(
    place: int, says: str, tmp_path: Path
) -> None:
    path = tmp_path / "trace.pt"
    la.record(replace(SMALL, victim="dpsgd"), path)
    tree = torch.load(path, weights_only=True)
    tree["messages"]["payload"][2, place] = torch.inf if place == -2 else 1e-9
    torch.save(tree, path)
    path.with_name("trace.pt.sha256").unlink()
    with pytest.raises(LeakauditError, match=says):
        trace_info.verify(path)


def recorder(path: Path | None, dtype: torch.dtype, chosen: str) -> Recorder:
    """Return a recorder of vectors of the layout above, for two nodes."""
    return Recorder(
        path,
        protocol="own:test",
        task=TaskSpec("own", shape=(1,)),
        graph=Graph(2, ((0, 1),)),
        options=RecorderOptions(layout=LAYOUT, dtype=dtype, layers=chosen),
    )


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("chosen", ["all", "first,last"])
def test_half_precision_takes_two_bytes_and_is_read_back_exactly(
    dtype: torch.dtype, chosen: str, tmp_path: Path
) -> None:
    generator = torch.Generator().manual_seed(4)
    sent = torch.randn(20, LAYOUT.size, generator=generator).mul_(30).to(dtype)
    with recorder(tmp_path / "trace.pt", dtype, chosen) as made:
        for t, vector in enumerate(sent):
            made.send(t, 0, 1, "w", vector)
    trace = trace_file.load(tmp_path / "trace.pt")
    for span in trace.spans:
        payload = trace.of_span(span).messages[0].payload
        assert payload.dtype == dtype
        assert torch.equal(payload.view(torch.int16), sent[:, slice(*span)].view(torch.int16))
    width = sum(stop - start for start, stop in trace.spans)
    size = (tmp_path / "trace.pt").stat().st_size
    assert size - 20 * width * 2 < 50_000
    convert.convert(tmp_path / "trace.pt", tmp_path / "again.safetensors")
    convert.convert(tmp_path / "again.safetensors", tmp_path / "back.pt")
    back = trace_file.load(tmp_path / "back.pt")
    assert torch.equal(torch.cat(stored(back)), torch.cat(stored(trace)))


def test_a_sketch_of_half_precision_is_refused() -> None:
    with pytest.raises(LeakauditError, match="a sketch of messages in bfloat16 verifies nothing"):
        recorder(None, torch.bfloat16, "first,sketch")


def test_a_recorder_takes_whole_vectors_or_what_is_kept_of_them() -> None:
    vectors = torch.randn(2, LAYOUT.size, generator=torch.Generator().manual_seed(5))
    with recorder(None, torch.float32, "first,last,sketch") as made:
        made.send(1, 0, 1, "w", vectors[0])
        made.send(1, 1, 0, "w", made.kept.cut(vectors[1:])[0])
        with pytest.raises(LeakauditError, match="expected a vector of 1660 or 2435"):
            made.send(1, 1, 0, "w", vectors[1, :635])
    table: Messages = made.trace.messages[0]
    assert table.stored is not None
    assert torch.equal(table.stored, made.kept.cut(vectors))


def test_a_tapped_program_with_two_half_formats_is_stored_exactly() -> None:
    """float16 ends at 65504, and bfloat16 has eight digits: neither holds the numbers of the other."""
    both = [torch.float16, torch.bfloat16]
    sent: Any = [SimpleNamespace(message=SimpleNamespace(dtype=dtype)) for dtype in both]
    assert merge._widest(sent) == torch.float32
    for dtype in (*both, torch.float32, torch.float64):
        only: Any = [SimpleNamespace(message=SimpleNamespace(dtype=dtype))]
        assert merge._widest(only) == dtype
