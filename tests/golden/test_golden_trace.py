"""Traces of format 1, recorded once: every later version of the program reads them as they stand here, for ever."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from leakaudit.core.adversary import Adversary
from leakaudit.core.errors import LeakauditError
from leakaudit.core.trace import Graph, Layout, TaskSpec
from leakaudit.traces.trace_file import load, load_truth
from leakaudit.traces.trace_info import verify

HERE = Path(__file__).parent
TASK = TaskSpec(
    "logistic",
    {"l2": 0.125},
    shape=(2,),
    classes=3,
    mean=(0.5,),
    std=(0.25,),
    labels=("a", "b", "ä"),
)


def value(round: int, node: int) -> torch.Tensor:
    """What node 1, 0 or 2 (in this order) held in a round, in all 9 columns."""
    order = [1, 0, 2].index(node)
    return (torch.arange(9 * order, 9 * order + 9) + 100 * round) / 16


@pytest.mark.parametrize(("name", "rounds", "tables"), [("trace_v1.pt", 3, 1), ("folder_v1", 2, 2)])
def test_the_trace(name: str, rounds: int, tables: int) -> None:
    trace = load(HERE / name, verify=True)
    assert verify(HERE / name)["messages"] == 4 * rounds
    assert (trace.protocol, trace.params) == (
        "pdmm",
        {"rho": 0.4, "differential": True, "list": [1, None, "x"]},
    )
    assert (trace.task, trace.graph) == (TASK, Graph(3, ((0, 1), (1, 2))))
    assert trace.layout == Layout(("layer.weight", "layer.bias"), ((3, 2), (3,)))
    assert (trace.columns, trace.rounds, trace.id, trace.complete) == (
        (1, 9),
        rounds,
        "golden",
        True,
    )
    assert trace.provenance["note"] == "format 1, kept for ever"
    assert (trace.dtype, len(trace.messages), len(trace)) == (torch.float32, tables, 4 * rounds)
    assert trace.public["w0"].tolist() == [k / 8 for k in range(9)]
    view = Adversary(corrupt=frozenset({1})).view(trace)
    for t in range(rounds):
        kind = "z0" if t == 0 else "dz"
        for src, dst, what in ((1, 0, "w"), (1, 2, "w"), (0, 1, kind), (2, 1, kind)):
            assert torch.equal(view.message(t, src, dst, what), value(t, src)[1:])
    tap = Adversary().view(trace)
    assert tap.has(1, 0, 1, "dz")
    assert not tap.has(0, 0, 1, "z0"), "it was sent encrypted"


def test_the_truth() -> None:
    truth = load_truth(HERE / "trace_v1.truth.pt", verify=True, id="golden")
    assert truth.task == TASK
    assert truth.x.tolist() == [[n / 4, n / 2] for n in range(3)]
    assert (truth.y.tolist(), truth.node.tolist(), truth.index.tolist()) == (
        [0, 1, 2],
        [0, 1, 2],
        [0, 10, 20],
    )
    assert truth.pool.tolist() == [[0.125, 0.125]]
    assert torch.equal(
        truth.states["w"],
        torch.stack([torch.stack([value(t, n) for n in (1, 0, 2)]) for t in range(3)]),
    )


def test_torch_reads_the_same_file() -> None:
    tree = torch.load(HERE / "trace_v1.pt", weights_only=True)
    assert set(tree) == {"format", "version", "meta", "topology", "public", "messages"}
    assert tree["messages"]["written"].tolist() == [9, 12, 3, 1]
    assert torch.equal(tree["messages"]["payload"][3], value(1, 1)[1:])


def test_one_is_not_the_other() -> None:
    with pytest.raises(
        LeakauditError, match=r"trace_v1\.truth\.pt is a truth file; expected a trace"
    ):
        load(HERE / "trace_v1.truth.pt")
    with pytest.raises(LeakauditError, match=r"trace_v1\.pt is a trace; expected a truth file"):
        load_truth(HERE / "trace_v1.pt")
