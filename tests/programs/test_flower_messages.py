"""The tap of Flower on messages that are made here, without flwr.

Rounds, ranks, buffers and refusals.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from by_hand import FEDAVG, LR, TASK, come_back, records, state
from tapping import payloads
from torch import Generator, nn

import leakaudit as la
from leakaudit.capture.tap import merge
from leakaudit.capture.tap.exchanges import Conversation
from leakaudit.capture.tap.flower import wrappers as flower
from leakaudit.capture.tap.flower.messages import FlowerServerTap
from leakaudit.capture.tap.guessing import origins
from leakaudit.capture.tap.guessing.confirm import contradictions
from leakaudit.capture.tap.guessing.guess import guess
from leakaudit.capture.tap.log.capture import Capture, CaptureSettings
from leakaudit.capture.tap.log.reading import RankLog, read_logs
from leakaudit.capture.tap.log.writing import Log
from leakaudit.capture.tap.messages import answers, description, states, wires
from leakaudit.core.errors import NotUnderstood
from leakaudit.core.evidence import Origin
from leakaudit.core.trace import Trace
from leakaudit.tasks.task import Task
from leakaudit.traces import trace_file

MODEL: dict[str, Any] = {"name": "mlp", "args": {"hidden": "6"}, "shape": [1, 4, 4], "classes": 3}


@dataclass
class FakeArray:
    value: Any

    def numpy(self) -> Any:
        return self.value


@dataclass
class FakeMessage:
    """A message as flwr's, as far as the tap reads it."""

    node: int
    arrays: dict[str, Any] = field(default_factory=dict)
    kind: str = "train"
    config: dict[str, Any] = field(default_factory=dict)
    metrics: dict[str, Any] = field(default_factory=dict)
    error: Any = None
    number: str = ""
    reply_to: str = ""

    @property
    def metadata(self) -> Any:
        return SimpleNamespace(
            message_type=self.kind,
            dst_node_id=self.node,
            src_node_id=self.node,
            group_id="",
            message_id=self.number,
            reply_to_message_id=self.reply_to,
        )

    @property
    def content(self) -> Any:
        arrays = {name: FakeArray(value) for name, value in self.arrays.items()}
        return SimpleNamespace(
            array_records={"arrays": arrays} if arrays else {},
            config_records={"config": self.config},
            metric_records={"metrics": self.metrics},
        )

    def has_error(self) -> bool:
        return self.error is not None

    def has_content(self) -> bool:
        return self.error is None


def talk(
    folder: Path,
    rounds: int = 3,
    nodes: Iterable[int] = (31, 17, 5),
    extra: dict[str, Any] | None = None,
    noted: bool = True,
    moved: float = 1.0,
    steps: int = 1,
    count: int = 1,
    examples: int = 1,
    normalised: bool = False,
    **capture: Any,
) -> tuple[RankLog, ...]:
    """Log the rounds of a server whose clients take steps of SGD on their records."""
    tap = FlowerServerTap(Capture(str(folder), CaptureSettings(**capture)))
    w = TASK.init(Generator().manual_seed(1))
    for t in range(1, rounds + 1):
        config = {"server-round": t} if noted else {}
        sent = [
            FakeMessage(node, {**state(w), **(extra or {})}, config=config, number=f"{t}.{node}")
            for node in nodes
        ]
        places = tap.instruct(sent, nodes)
        tap._remember(sent, [m.number for m in sent], places)
        ups = []
        replies = []
        for node in nodes:
            x, y = records(sorted(nodes).index(node), count)
            if normalised:
                x = 2 * x - 1
            up = w
            for _ in range(steps):
                up = up - LR * TASK.gradient(up, x, y)
            ups.append(up)
            replies.append(
                FakeMessage(
                    node,
                    {**state(ups[-1]), **(extra or {})},
                    metrics={"num-examples": examples},
                    reply_to=f"{t}.{node}",
                )
            )
        tap.receive(replies)
        tap.instruct([FakeMessage(node, state(w), "evaluate") for node in nodes])
        w = w + moved * (torch.stack(ups).mean(0) - w)
    tap.capture.end()
    return read_logs(folder)


def traced(logs: tuple[RankLog, ...], path: Path) -> Trace:
    found = guess(logs)
    assert found.description is not None
    merge.write(wires.plan(found.description, logs), logs, path)
    return trace_file.load(path)


@pytest.mark.parametrize("noted", [True, False])
def test_rounds_and_clients_are_named_and_the_step_is_proved(tmp_path: Path, noted: bool) -> None:
    logs = talk(tmp_path / "log", noted=noted)
    found = guess(logs)
    assert found.description is not None
    assert found.description.protocol == "fedavg"
    assert found.description.params == FEDAVG
    trace = traced(logs, tmp_path / "trace.pt")
    assert trace.complete
    assert len(trace) == 18
    assert {(src, dst) for _, src, dst in payloads(trace) if dst == 3} == {(0, 3), (1, 3), (2, 3)}
    tap = merge.facts(trace)
    assert tap.notes[0] == (
        "node 3 is the server; of the clients, node 0 is client 5, 1 is client 17, 2 is client 31"
    )
    assert come_back(tmp_path / "trace.pt", nodes=3)


def test_a_server_that_moves_in_another_way_is_unknown(tmp_path: Path) -> None:
    found = guess(talk(tmp_path, moved=0.9))
    assert found.description is not None
    assert found.description.params["server"] == "unknown"


@pytest.mark.parametrize(
    ("params", "said"),
    [
        ({"lr": 0.1}, "params.lr: 0.1 contradicts the messages, which show 0.05"),
        ({"lr": LR, "epochs": 2}, "params.epochs: 2 contradicts the messages, which show 1"),
        ({"lr": LR}, ""),
        # A client takes one step, which shows momentum only in the size of Nesterov's.
        ({"lr": LR, "momentum": 0.9}, ""),
        ({"lr": LR / 1.9, "momentum": 0.9, "nesterov": True}, ""),
        (
            {"lr": LR, "optimiser": "adam"},
            "params.optimiser: 'adam' contradicts the messages, which show 'sgd'",
        ),
    ],
)
def test_a_description_that_contradicts_the_messages_is_found_out(
    tmp_path: Path, params: dict[str, Any], said: str
) -> None:
    logs = talk(tmp_path)
    described = description.of(
        {"payload": "weights", "protocol": "fedavg", "params": params, "model": MODEL}
    )
    assert "; ".join(contradictions(described, logs)).removesuffix("0000001") == said


def test_only_constants_that_the_messages_show_are_verified(tmp_path: Path) -> None:
    params = {"lr": LR, "momentum": 0.9, "epochs": 1, "batch": 1}
    described = description.of(
        {"payload": "weights", "protocol": "fedavg", "params": params, "model": MODEL}
    )
    logs = talk(tmp_path)
    for batch, epochs in ((0, Origin.VERIFIED), (1, Origin.DECLARED)):
        params = {**params, "batch": batch}
        some = replace(described, params=params)
        found = {one.subject: one.origin for one in origins.origins(some, logs, params, False)}
        assert found["lr"] is Origin.VERIFIED
        assert found["momentum"] is Origin.DECLARED
        assert found["epochs"] is epochs


def test_a_mean_that_is_none_contradicts_the_messages(tmp_path: Path) -> None:
    logs = talk(tmp_path, moved=0.9)
    described = description.of(
        {
            "payload": "weights",
            "protocol": "fedavg",
            "params": {"lr": LR, "server": "mean"},
            "model": MODEL,
        }
    )
    assert contradictions(described, logs) == [
        "params.server: 'mean' contradicts the messages, which show another combination"
    ]


@pytest.mark.parametrize("steps", [3, 10])
def test_several_local_steps_are_proved(tmp_path: Path, steps: int) -> None:
    found = guess(talk(tmp_path, steps=steps))
    assert found.description is not None
    assert found.description.params["epochs"] == steps
    assert found.description.params["lr"] == LR
    assert f"{steps} local steps recomputed at the record" in found.evidence[2]


@pytest.mark.parametrize(("steps", "count"), [(11, 1), (1, 2)])
def test_more_steps_than_are_tried_and_two_records_are_not_known(
    tmp_path: Path, steps: int, count: int
) -> None:
    found = guess(talk(tmp_path, steps=steps, count=count))
    assert found.description is None
    assert "params.lr, params.epochs, params.batch" in found.said


def test_clients_that_report_more_records_prove_nothing(tmp_path: Path) -> None:
    found = guess(talk(tmp_path, examples=2))
    assert found.description is None
    params = tomllib.loads(found.toml)["params"]
    assert params["samples"] == 2
    assert params["lr"] == "NOT KNOWN"


def test_a_usual_normalisation_is_proved_by_the_records(tmp_path: Path) -> None:
    found = guess(talk(tmp_path, normalised=True))
    assert found.description is not None
    assert found.description.task.spec.mean == (0.5,)
    assert found.description.task.spec.std == (0.5,)
    assert found.description.task.spec.levels == 255


def test_a_star_of_processes_is_fedavg_if_its_hub_sends_the_mean(tmp_path: Path) -> None:
    w = TASK.init(Generator().manual_seed(1))
    logs = [Log(tmp_path, k, world=3) for k in range(3)]
    for _ in range(3):
        for k in (1, 2):
            logs[0].write("send", w, peer=k)
        ups = [w - LR * TASK.gradient(w, *records(k)) for k in (1, 2)]
        for log, up in zip(logs[1:], ups, strict=True):
            log.write("send", up, peer=0)
        w = torch.stack(ups).mean(0)
    for log in logs:
        log.close()
    found = guess(read_logs(tmp_path))
    assert found.description is not None
    assert found.description.protocol == "fedavg"
    assert found.description.params["lr"] == LR
    trace = traced(read_logs(tmp_path), tmp_path / "trace.pt")
    assert (trace.graph.nodes, len(trace)) == (3, 12)


def test_a_state_without_names_is_read_by_the_models_own_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "normed.py").write_text(
        "from torch import nn\n"
        "def net():\n"
        "    norm = nn.BatchNorm1d(4, affine=False)\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(16, 4), norm, nn.Linear(4, 3))\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    spec = la.TaskSpec("normed:net", {"bn": "eval"}, shape=(1, 4, 4), classes=3)
    task = Task.build(spec, trusted=True)
    tap = FlowerServerTap(Capture(str(tmp_path / "log")))
    held = task.module.state_dict()
    arrays = {str(k): value.numpy() for k, value in enumerate(held.values())}
    tap.instruct([FakeMessage(1, arrays)])
    tap.capture.end()
    found = states.sort_out(read_logs(tmp_path / "log"), task)[0][0]
    assert list(held)[2:5] == ["2.running_mean", "2.running_var", "2.num_batches_tracked"]
    assert [event.notes["array"] for event in found.events] == [0, 1, 5, 6]
    assert [event.notes["parameters"] for event in found.events] == [[0], [1], [2], [3]]


def test_what_all_clients_receive_is_stored_once(tmp_path: Path) -> None:
    (log,) = talk(tmp_path, rounds=1)
    sent = [event for event in log.events if event.op == "send"]
    assert len(sent) == 3 * len(TASK.layout.names)
    assert len({event.offset for event in sent}) == len(TASK.layout.names)


def test_a_log_of_an_evaluation_has_no_round_of_it(tmp_path: Path) -> None:
    logs = talk(tmp_path / "log", rounds=2)
    kinds = [event.notes["kind"] for event in logs[0].events if event.op == "other"]
    assert kinds == ["evaluate"] * 6
    assert max(event.notes["round"] for event in logs[0].events) == 2


def test_only_the_rounds_and_senders_that_were_asked_for_are_kept(tmp_path: Path) -> None:
    logs = talk(tmp_path, ranks=[0, 2])
    kept = {(e.op, e.peer) for e in logs[0].events if e.kept}
    assert kept == {("send", 1), ("send", 2), ("send", 3), ("recv", 2)}


def test_buffers_are_known_by_name_and_left_out(tmp_path: Path) -> None:
    extra = {
        "bn.running_mean": np.zeros(4, np.float32),
        "bn.running_var": np.ones(4, np.float32),
        "bn.num_batches_tracked": np.array(3),
    }
    logs = talk(tmp_path / "log", extra=extra)
    _, notes = states.sort_out(logs, None)
    assert "bn.running_mean, bn.running_var, bn.num_batches_tracked" in notes[0]
    assert traced(logs, tmp_path / "trace.pt").layout.size == TASK.layout.size


def test_parameters_are_found_by_name_wherever_they_stand(tmp_path: Path) -> None:
    extra = {"other": np.zeros(TASK.layout.shapes[0], np.float32)}
    logs = talk(tmp_path / "log", extra=extra)
    described = description.of(
        {"payload": "weights", "protocol": "fedavg", "params": {"lr": LR}, "model": MODEL}
    )
    plan = wires.plan(described, logs)
    assert plan.start is not None
    assert torch.equal(plan.start, TASK.init(Generator().manual_seed(1)))
    assert any("other" in note for note in plan.notes)


def test_a_state_without_names_is_read_by_the_models_state(tmp_path: Path) -> None:
    net = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    tap = FlowerServerTap(Capture(str(tmp_path)))
    arrays = {str(k): value.numpy() for k, value in enumerate(net.state_dict().values())}
    tap.instruct([FakeMessage(1, arrays)])
    tap.capture.end()
    logs = read_logs(tmp_path)
    by_habit = states.sort_out(logs, None)[0][0]
    kept = [event.notes["array"] for event in by_habit.events]
    assert kept == [0, 1, 2, 3, 7, 8]


def test_answers_without_arrays_are_not_understood(tmp_path: Path) -> None:
    tap = FlowerServerTap(Capture(str(tmp_path)))
    tap.instruct([FakeMessage(1, {"0": np.zeros(3, np.float32)}, number="a")])
    tap.receive([FakeMessage(1, config={"masked_params": b"", "nids": [1]})])
    tap.capture.end()
    with pytest.raises(NotUnderstood, match="1 answers hold no arrays, but masked_params, nids"):
        answers.check(read_logs(tmp_path))
    assert NotUnderstood.code == 3


def test_answers_that_are_all_errors_are_not_understood(tmp_path: Path) -> None:
    tap = FlowerServerTap(Capture(str(tmp_path)))
    tap.instruct([FakeMessage(1, {"0": np.zeros(3, np.float32)}, number="a")])
    tap.receive([FakeMessage(1, error=SimpleNamespace(reason="no data"))])
    tap.capture.end()
    with pytest.raises(
        NotUnderstood, match="all 1 answers of clients are errors, such as 'no data'"
    ):
        guess(read_logs(tmp_path))


def test_trouble_of_the_tap_does_not_reach_the_program(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tap = FlowerServerTap(Capture(str(tmp_path)))
    messages = [object()]
    assert tap.push(lambda grid, sent: ["number"], None, messages) == ["number"]
    assert tap.pull(lambda grid: messages, None) == messages
    assert "recording of process" in capsys.readouterr().err


def test_a_grid_inside_another_one_is_logged_once(tmp_path: Path) -> None:
    tap = FlowerServerTap(Capture(str(tmp_path)))
    message = FakeMessage(1, state(TASK.init(Generator().manual_seed(1))))

    def inner(grid: Any, messages: Any) -> list[str]:
        return ["a"]

    def outer(grid: Any, messages: Any) -> Any:
        return tap.push(inner, grid, messages)

    tap.push(outer, SimpleNamespace(get_node_ids=lambda: [1]), [message])
    tap.capture.end()
    assert len(read_logs(tmp_path)[0].events) == len(TASK.layout.names)


def test_rounds_without_numbers_begin_after_an_answer() -> None:
    found = Conversation()
    assert [found.begin(1, None), found.begin(2, None)] == [1, 1]
    assert found.begin(1, None) == 2  # asked a second time
    found.answered = True
    assert found.begin(3, None) == 3
    assert found.begin(3, 7) == 7


def test_a_client_that_is_one_of_several_writes_a_log_of_its_own(tmp_path: Path) -> None:
    mod = flower.client_mod(str(tmp_path))
    w = TASK.init(Generator().manual_seed(1))
    context = SimpleNamespace(node_id=9, run_id=4, node_config={"partition-id": 2})
    reply = FakeMessage(9, state(w), metrics={"num-examples": 1})
    asked = FakeMessage(9, state(w), config={"server-round": 1})
    assert mod(asked, context, lambda message, context: reply) is reply
    (log,) = read_logs(tmp_path)
    assert (log.rank, log.about["run"]) == (3, "4")
    assert {(e.op, e.peer) for e in log.events} == {("recv", 0), ("send", 0)}
