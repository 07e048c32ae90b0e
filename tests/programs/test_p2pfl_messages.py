"""The tap of p2pfl on messages that are made here, without p2pfl.

Nodes, repeats, partial means and techniques.
"""

from __future__ import annotations

import pickle
import tomllib
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from by_hand import LR, TASK, come_back, records, state
from torch import Generator

from leakaudit.capture.tap import merge
from leakaudit.capture.tap.guessing.guess import guess
from leakaudit.capture.tap.log.capture import Capture
from leakaudit.capture.tap.log.reading import RankLog, read_logs
from leakaudit.capture.tap.messages import wires
from leakaudit.capture.tap.p2pfl import hooks
from leakaudit.capture.tap.p2pfl.hooks import _NodesTap
from leakaudit.traces import trace_file

NAMES = ("node-0", "node-1", "node-10")


@pytest.fixture(autouse=True)
def packing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read messages as this test packs them."""
    monkeypatch.setattr(hooks, "unpacked", pickle.loads)


def send(
    tap: _NodesTap,
    source: str,
    to: str,
    w: torch.Tensor,
    round_: int,
    trained_by: Sequence[str],
    cmd: str = "partial_model",
    techniques: Sequence[str] = (),
) -> None:
    packed = pickle.dumps((list(state(w).values()), list(techniques), []))
    weights = SimpleNamespace(weights=packed, contributors=list(trained_by))
    msg = SimpleNamespace(cmd=cmd, round=round_, weights=weights, HasField=lambda name: True)
    client = SimpleNamespace(self_addr=source, nei_addr=to)
    assert tap.send(lambda client, msg, **named: "sent", client, msg, x=1) == "sent"


def gossip(
    folder: Path,
    rounds: int = 4,
    steps: int = 1,
    several: bool = False,
    techniques: Sequence[str] = (),
) -> tuple[RankLog, ...]:
    """Log nodes that train, send each other their models, and go on from the mean."""
    tap = _NodesTap(Capture(str(folder)))
    w = TASK.init(Generator().manual_seed(1))
    for name in NAMES[1:]:
        send(tap, NAMES[0], name, w, 0, [], "init_model")
    for t in range(rounds):
        own = {}
        for k, name in enumerate(NAMES):
            own[name] = w
            for _ in range(steps):
                own[name] = own[name] - LR * TASK.gradient(own[name], *records(k))
        for source in NAMES:
            for to in NAMES:
                if source != to:
                    send(tap, source, to, own[source], t, [source], techniques=techniques)
        if several:
            both = (own[NAMES[0]] + own[NAMES[1]]) / 2
            send(tap, NAMES[0], NAMES[2], both, t, NAMES[:2])
        w = torch.stack(list(own.values())).mean(0)
    tap.end()
    return read_logs(folder)


def test_own_models_are_proved_and_every_record_comes_back(tmp_path: Path) -> None:
    logs = gossip(tmp_path / "log", several=True)
    assert sorted(log.rank for log in logs) == [0, 1, 2]
    found = guess(logs)
    assert found.description is not None
    assert found.description.protocol == "dpsgd"
    alpha = found.description.params["alpha"]
    assert abs(alpha - LR) < 1e-4 * LR
    assert found.description.params["order"] == "adapt"
    merge.write(wires.plan(found.description, logs), logs, tmp_path / "trace.pt")
    trace = trace_file.load(tmp_path / "trace.pt")
    assert trace.complete
    assert (trace.graph.nodes, len(trace)) == (3, 24)
    notes = merge.facts(trace).notes
    assert "node 0 is node-0, node 1 is node-1, node 2 is node-10" in notes
    assert any("'partial_model of several' are not in the trace" in note for note in notes)
    assert come_back(tmp_path / "trace.pt", nodes=3)


def test_several_local_steps_are_said_to_be_not_known(tmp_path: Path) -> None:
    found = guess(gossip(tmp_path, steps=3))
    assert found.description is None
    assert "params.alpha, params.order, params.optimiser" in found.said


@pytest.mark.parametrize("technique", ["ptq", "dp"])
def test_techniques_that_change_a_model_are_named(tmp_path: Path, technique: str) -> None:
    found = guess(gossip(tmp_path, techniques=[technique]))
    assert tomllib.loads(found.toml)["protocol"] == "NOT KNOWN"
    assert f"{technique} may change what is sent" in found.toml


def test_a_model_that_is_sent_again_is_left_out(tmp_path: Path) -> None:
    tap = _NodesTap(Capture(str(tmp_path)))
    w = TASK.init(Generator().manual_seed(1))
    for _ in range(2):
        send(tap, "a", "b", w, 0, ["a"])
    tap.end()
    (log,) = read_logs(tmp_path)
    assert [event.op for event in log.events] == ["send"] * 4 + ["other"]
    assert log.events[-1].notes["kind"] == "partial_model, again"


def test_other_messages_are_sent_and_not_logged(tmp_path: Path) -> None:
    tap = _NodesTap(Capture(str(tmp_path / "log")))
    msg = SimpleNamespace(HasField=lambda name: False)
    assert tap.send(lambda client, msg: "sent", SimpleNamespace(), msg) == "sent"
    assert not (tmp_path / "log").exists()


def test_nodes_of_several_processes_are_numbered_alike(tmp_path: Path) -> None:
    w = TASK.init(Generator().manual_seed(1))
    for source, to in (("h:9", "h:10"), ("h:10", "h:9")):  # a process each
        tap = _NodesTap(Capture(str(tmp_path)))
        send(tap, source, to, w, 0, [source])
        tap.end()
    found = {log.rank: {event.peer for event in log.events} for log in read_logs(tmp_path)}
    assert found == {0: {1}, 1: {0}}


def test_trouble_of_the_tap_does_not_reach_the_program(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tap = _NodesTap(Capture(str(tmp_path)))
    weights = SimpleNamespace(weights=b"no pickle", contributors=["a"])
    msg = SimpleNamespace(cmd="x", round=0, weights=weights, HasField=lambda name: True)
    client = SimpleNamespace(self_addr="a", nei_addr="b")
    assert tap.send(lambda client, msg: "sent", client, msg) == "sent"
    assert "recording of process" in capsys.readouterr().err
