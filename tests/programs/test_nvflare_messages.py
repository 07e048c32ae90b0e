"""The tap of NVFlare on messages that are made here, without nvflare.

Rounds, differences, filters and refusals.
"""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from by_hand import FEDAVG, LR, TASK, come_back, records, state
from torch import Generator

from leakaudit.capture.tap import merge
from leakaudit.capture.tap.exchanges import note_once
from leakaudit.capture.tap.guessing.guess import Guess, guess
from leakaudit.capture.tap.log.capture import Capture
from leakaudit.capture.tap.log.reading import RankLog, read_logs
from leakaudit.capture.tap.messages import answers, wires
from leakaudit.capture.tap.nvflare.tasks import TaskTap, note_filters
from leakaudit.core.errors import NotUnderstood
from leakaudit.traces import trace_file

NAMES = ("site-1", "site-2", "site-10")


class FakeShareable(dict[str, Any]):
    """A message as nvflare's, as far as the tap reads it."""

    def __init__(self, round_: int | None = None, code: str = "OK", **held: Any) -> None:
        super().__init__(held)
        self.headers = {} if round_ is None else {"current_round": round_}
        self.code = code

    def get_header(self, name: str) -> Any:
        return self.headers.get(name)

    def get_return_code(self, default: str) -> str:
        return self.code or default


def message(
    data: dict[str, Any], kind: str = "WEIGHTS", at: int | None = None, **meta: Any
) -> FakeShareable:
    return FakeShareable(at, DXO={"kind": kind, "data": data, "meta": meta})


def talk(
    folder: Path,
    kind: str = "WEIGHTS",
    rounds: int = 3,
    personal: float = 0.0,
    noise: float = 0.0,
    **meta: Any,
) -> tuple[RankLog, ...]:
    """Log the rounds of a server whose clients take one step of SGD on their record.

    Args:
        folder: folder of the log.
        kind: what clients send.
        rounds: number of rounds.
        personal: what the server adds to the model of a client, times its number.
        noise: what clients add to what they send.
        meta: what clients say about it.
    """
    tap = TaskTap(Capture(str(folder)))
    w = TASK.init(Generator().manual_seed(1))
    random = Generator().manual_seed(2)
    for t in range(rounds):
        ups = []
        for number, name in enumerate(NAMES):
            down = w + personal * number
            tap.instruct(name, "train", f"{t}.{name}", message(state(down), at=t), NAMES)
            tap.instruct(name, "validate", f"v{t}.{name}", message(state(down), at=t))
            ups.append(down - LR * TASK.gradient(down, *records(number)))
            ups[-1] = ups[-1] + noise * torch.randn(len(w), generator=random)
            sent = ups[-1] if kind == "WEIGHTS" else ups[-1] - down
            answer = message(state(sent), kind, at=t, NUM_STEPS_CURRENT_ROUND=1, **meta)
            tap.receive(name, "train", f"{t}.{name}", answer)
            tap.receive(name, "validate", f"v{t}.{name}", message({"loss": 0.1}, "METRICS"))
        w = torch.stack(ups).mean(0)
    tap.capture.end()
    return read_logs(folder)


def protocol(found: Guess) -> str:
    return str(tomllib.loads(found.toml)["protocol"])


@pytest.mark.parametrize("kind", ["WEIGHTS", "WEIGHT_DIFF"])
def test_the_step_is_proved_and_every_record_comes_back(tmp_path: Path, kind: str) -> None:
    logs = talk(tmp_path / "log", kind)
    found = guess(logs)
    assert found.description is not None
    assert found.description.protocol == "fedavg"
    assert found.description.params == FEDAVG
    differences = "clients sent differences from the server's model" in found.toml
    assert differences == (kind == "WEIGHT_DIFF")
    merge.write(wires.plan(found.description, logs), logs, tmp_path / "trace.pt")
    trace = trace_file.load(tmp_path / "trace.pt")
    assert trace.complete
    assert len(trace) == 18
    assert merge.facts(trace).notes[0] == (
        "node 3 is the server; of the clients, node 0 is client site-1, 1 is client site-2, "
        "2 is client site-10"
    )
    assert come_back(tmp_path / "trace.pt", nodes=3)


def test_a_small_difference_is_kept_in_float64(tmp_path: Path) -> None:
    model = np.array([1.0, 1e-3, -2.0], np.float32)
    difference = np.array([1e-9, 1e-3, 0.5], np.float32)
    tap = TaskTap(Capture(str(tmp_path)))
    tap.instruct("site-1", "train", "a", message({"w": model}, at=0))
    model[:] = 0  # the program goes on with its own arrays
    tap.receive("site-1", "train", "a", message({"w": difference}, "WEIGHT_DIFF", at=0))
    tap.capture.end()
    (log,) = read_logs(tmp_path)
    down, up = (log.tensor(event) for event in log.events)
    assert up.dtype == torch.float64
    found = (up - down.double()).float()
    assert torch.allclose(found, torch.from_numpy(difference), rtol=1e-6, atol=0)


def test_a_difference_from_an_unknown_model_is_left_out(tmp_path: Path) -> None:
    tap = TaskTap(Capture(str(tmp_path)))
    tap.receive("site-1", "train", "a", message({"w": np.ones(3)}, "WEIGHT_DIFF", at=0))
    tap.capture.end()
    (event,) = read_logs(tmp_path)[0].events
    assert event.notes["left_out"] == "a difference from a model that is not known"


def test_rounds_count_from_one_and_clients_are_in_their_order(tmp_path: Path) -> None:
    (log,) = talk(tmp_path)
    sent = [event for event in log.events if event.op == "send"]
    assert {event.notes["round"] for event in sent} == {1, 2, 3}
    assert {(event.peer, event.notes["node"]) for event in sent} == {
        (1, "site-1"),
        (2, "site-2"),
        (3, "site-10"),
    }
    others = [event.notes["kind"] for event in log.events if event.op == "other"]
    assert others == ["validate"] * 18


def test_filters_that_travel_with_a_message_are_named(tmp_path: Path) -> None:
    found = guess(talk(tmp_path, noise=1e-3, filter_history=["SVTPrivacy", "Mine"]))
    assert protocol(found) == "NOT KNOWN"
    assert "Mine, SVTPrivacy may change what is sent" in found.toml
    assert "messages pass through SVTPrivacy, which adds noise and hides parameters" in found.toml
    assert "messages pass through Mine, which is not known to leakaudit" in found.toml


@pytest.mark.parametrize(
    ("name", "expected"), [("ExcludeVars", "NOT KNOWN"), ("ConvertWeights", "fedavg")]
)
def test_filters_of_a_clients_process_are_named(tmp_path: Path, name: str, expected: str) -> None:
    talk(tmp_path)
    kind = type(name, (), {})
    module: Any = SimpleNamespace(get_filters=lambda: [kind()])
    note_filters(module, str(tmp_path))
    assert [type(one).__name__ for one in module.get_filters()] == [name]
    module.get_filters()
    logs = read_logs(tmp_path)
    assert len(logs) == 2  # noted once
    assert protocol(guess(logs)) == expected


def test_arrays_beside_a_model_are_no_fedavg(tmp_path: Path) -> None:
    found = guess(talk(tmp_path, scaffold_c_diff={"w": np.ones(3)}))
    assert protocol(found) == "NOT KNOWN"
    assert "messages also hold scaffold_c_diff" in found.toml


def test_a_server_with_a_model_for_each_client_is_no_fedavg(tmp_path: Path) -> None:
    found = guess(talk(tmp_path, personal=0.01))
    assert protocol(found) == "NOT KNOWN"
    assert "the server sends different models to its clients in a round" in found.toml


def test_encrypted_answers_are_not_understood(tmp_path: Path) -> None:
    tap = TaskTap(Capture(str(tmp_path)))
    tap.instruct("site-1", "train", "a", message({"w": np.ones(3, np.float32)}, at=0))
    meta: dict[str, Any] = {
        "processed_algorithm": "_ALGO_HE_CKKS",
        "filter_history": ["HEModelEncryptor"],
    }
    tap.receive("site-1", "train", "a", message({"w": b"secret"}, at=0, **meta))
    tap.capture.end()
    with pytest.raises(NotUnderstood, match="WEIGHTS, _ALGO_HE_CKKS: homomorphic encryption"):
        answers.check(read_logs(tmp_path))


def test_answers_that_are_errors_are_not_understood(tmp_path: Path) -> None:
    tap = TaskTap(Capture(str(tmp_path)))
    tap.instruct("site-1", "train", "a", message({"w": np.ones(3, np.float32)}, at=0))
    tap.receive("site-1", "train", "a", FakeShareable(code="EXECUTION_EXCEPTION"))
    tap.capture.end()
    with pytest.raises(NotUnderstood, match="errors, such as 'EXECUTION_EXCEPTION'"):
        answers.check(read_logs(tmp_path))


def test_trouble_of_the_tap_does_not_reach_the_program(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tap = TaskTap(Capture(str(tmp_path)))
    client = SimpleNamespace(name="site-1")
    given = "train", "a", object()
    assert tap.request(lambda runner, client, ctx: given, None, client, None) == given
    assert tap.submission(lambda *args: "done", None, client, *given, None) == "done"
    assert "recording of process" in capsys.readouterr().err


def test_a_client_writes_what_its_server_does(tmp_path: Path) -> None:
    w = TASK.init(Generator().manual_seed(1))
    server = TaskTap(Capture(str(tmp_path / "server")))
    client = TaskTap(Capture(str(tmp_path / "client"), rank=1), "site-1")
    task = message(state(w), at=0)
    answer = message(state(-w), "WEIGHT_DIFF", at=0)
    server.instruct("site-1", "train", "a", task)
    client.instruct("site-1", "train", "", task)
    client.receive("site-1", "train", "", answer)
    server.receive("site-1", "train", "a", answer)
    server.capture.end()
    client.capture.end()
    (there,) = read_logs(tmp_path / "server")
    (here,) = read_logs(tmp_path / "client")
    assert [e.op for e in here.events] == ["recv"] * 4 + ["send"] * 4
    for one, other in zip(there.events, here.events, strict=True):
        assert torch.equal(there.tensor(one), here.tensor(other))
        assert one.notes == other.notes


def test_remarks_of_a_process_survive_an_unwritable_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    note_once(str(tmp_path / "file"), "filter", filter="Mine")


def test_without_nvflare_a_job_ends_in_one_line(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['nvflare'] = None\n"
        "from leakaudit.capture.tap.nvflare.filters import RecordMessages\n"
        "RecordMessages('x')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("leakaudit.core.errors.LeakauditError: recording needs NVFlare (")
    assert last.endswith("pip install leakaudit[nvflare]")
    words = [sys.executable, "-m", "leakaudit", "tap", "-o", "trace.pt", "--", "no-nvflare", "job"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 2
    last = done.stderr.strip().splitlines()[-1]
    assert last.endswith("cannot run 'no-nvflare': No such file or directory")
    assert "Traceback" not in done.stderr
    assert not any(tmp_path.iterdir())


def test_clients_that_talk_to_each_other_are_not_understood(tmp_path: Path) -> None:
    tap = TaskTap(Capture(str(tmp_path)))
    tap.instruct("site-1", "swarm_start", "a", FakeShareable(controller="x"))
    tap.receive("site-1", "swarm_start", "a", FakeShareable())
    tap.capture.end()
    with pytest.raises(NotUnderstood, match="clients answered no model: 1 answers hold no arrays"):
        guess(read_logs(tmp_path))
