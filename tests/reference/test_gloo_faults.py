"""Runs in which something goes wrong: what the others do is what a plain loop does, what is missing is named, nothing false is claimed."""

# JSON is looked up by keys here: a wrong key fails when the test runs.
# mypy: disable-error-code="operator"

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from leakaudit.capture.gloo import engine
from leakaudit.capture.gloo.board import DONE, STARTING, WAITING, WORKING, ProcessBoard
from leakaudit.capture.gloo.faults import Fault
from leakaudit.capture.gloo.inbox import CUT, GOODBYE, Inbox
from leakaudit.capture.gloo.setup import ProcessLayout
from leakaudit.core.adversary import Adversary
from leakaudit.core.errors import LeakauditError
from leakaudit.core.trace import Graph, Trace, Truth
from leakaudit.judging.lint.checks import lint
from leakaudit.protocols import declared, recording
from leakaudit.protocols.mixing import metropolis
from leakaudit.protocols.scenario import Scenario
from leakaudit.tasks.task import Task
from leakaudit.traces import gaps, trace_file, trace_info
from leakaudit.traces.recorder import Recorder
from leakaudit.views.extraction import hearing

HANG = 600.0  # seconds after which something is broken, however busy the machine is
Ends = tuple[int, int]
ROUNDS = 8


def scenario(victim: str, **constants: Any) -> Scenario:
    graph = "complete" if victim in ("secagg", "secured") else "ring"
    constants = (
        {"group_size": 2, "partitions": 3, **constants} if victim == "secured" else constants
    )
    base: dict[str, Any] = {
        "nodes": 4,
        "graph": graph,
        "data": "gaussians",
        "model": "logistic",
        "samples": 4,
        "dtype": "float64",
    }
    return Scenario(victim, rounds=ROUNDS, states=True, set=constants, **base)


def faulty(
    victim: str, fault: str, path: Path | None = None, timeout: float = HANG, **constants: Any
) -> Recorder:
    plan = recording.plan(scenario(victim, **constants))
    return engine.record(
        plan, path, ProcessLayout(plan.graph.nodes, timeout, (Fault.parse(fault),)), threads=True
    )


class Still:
    """The clock of a run of threads, which stands still while any node makes progress.

    It moves by `TICK` when every node that still runs has looked for a message in vain since anybody last said what it does: after
    two such ticks nothing is under way. A late node that sleeps moves it by that long, once all others wait, and wakes up when its
    neighbours have given it up twice each.
    """

    TICK = 0.2

    def __init__(self, patch: pytest.MonkeyPatch, nodes: int) -> None:
        self.now, self.nodes, self.lock = 100.0, nodes, threading.RLock()
        self.states: dict[int, int] = {}
        self.looked: set[int] = set()
        self.given_up: Counter[int] = Counter()
        tell, silent = ProcessBoard.tell, ProcessBoard.silent

        def told(board: ProcessBoard, rank: int, state: int, round: int | None = None) -> None:
            with self.lock:
                tell(board, rank, state, round)
                self.states[rank] = state
                self.looked.clear()

        def asked(board: ProcessBoard, rank: int, seconds: float) -> bool:
            with self.lock:
                gone = silent(board, rank, seconds)
                if gone:
                    self.given_up[threading.get_ident()] += 1
                self.looked.add(threading.get_ident())
                if len(self.looked) == sum(state != DONE for state in self.states.values()):
                    self.now += self.TICK
                    self.looked.clear()
                return gone

        patch.setattr(ProcessBoard, "tell", told)
        patch.setattr(ProcessBoard, "silent", asked)
        patch.setattr("leakaudit.capture.gloo.board.time", self)
        patch.setattr("leakaudit.capture.gloo.node.time", self)

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        until(lambda: sum(state == WAITING for state in self.states.values()) == self.nodes - 1)
        self.now += seconds
        until(lambda: len(self.given_up) == 2 and min(self.given_up.values()) >= 2)


def until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + HANG
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.005)


def sent(trace: Trace, kind: str) -> dict[tuple[int, int, int], Tensor]:
    (m,) = trace.messages
    which = m.kind == m.kinds.index(kind)
    ends = zip(
        m.round[which].tolist(),
        m.src[which].tolist(),
        m.dst[which].tolist(),
        m.row[which].tolist(),
        strict=True,
    )
    return {(t, i, j): m.payload[row] for t, i, j, row in ends}


def gradients(truth: Truth, task: Task) -> Callable[[int, Tensor], Tensor]:
    return lambda i, w: task.gradient(w, truth.of(i)[0].to(w.dtype), truth.of(i)[1])


def dpsgd_loop(
    recorder: Recorder, alive: Callable[[int, int], bool], arrives: Callable[[int, Ends], bool]
) -> dict[tuple[int, int], Tensor]:
    """D-PSGD, combine, where a node averages the last model that it has of each neighbour: (round, node) -> w."""
    trace, truth = recorder.trace, recorder.truth_record
    graph, weights, g = (
        trace.graph,
        metropolis(trace.graph),
        gradients(truth, Task.build(trace.task, dtype=torch.float64)),
    )
    w = dict.fromkeys(range(graph.nodes), trace.public["w0"])
    held = {(j, i): w[j] for j, i in graph.arcs}
    out = {}
    for t in range(1, trace.rounds + 1):
        new = {}
        for i in filter(lambda i: alive(t, i), w):
            mixed = float(weights[i, i]) * w[i] + sum(
                float(weights[i, j]) * held[j, i] for j in graph.neighbours[i]
            )
            new[i] = out[t, i] = mixed - trace.params["alpha"] * g(i, w[i])
        w |= new
        held |= {(j, i): w[j] for j, i in graph.arcs if alive(t, j) and arrives(t, (j, i))}
    return out


def pdmm_loop(
    recorder: Recorder, lost: tuple[int, int, int], z: dict[Ends, dict[Ends, Tensor]]
) -> dict[tuple[int, int], Tensor]:
    """Differential PDMM, where a lost change leaves the receiver's copy of z as it is; z[i][a, b]: node i's copy of z_{a|b}."""
    trace, truth = recorder.trace, recorder.truth_record
    graph, p = trace.graph, trace.params
    g, out = gradients(truth, Task.build(trace.task, dtype=torch.float64)), {}
    w = dict.fromkeys(range(graph.nodes), trace.public["w0"])
    for t in range(1, trace.rounds + 1):
        for i in w:
            pull = sum((1 if i < j else -1) * z[i, j][i, j] for j in graph.neighbours[i])
            w[i] = w[i] - p["alpha"] * (g(i, w[i]) + pull + p["rho"] * graph.degree(i) * w[i])
            out[t, i] = w[i]
        change = {
            (i, j): z[i, j][i, j] - z[i, j][j, i] + 2 * p["rho"] * (1 if i < j else -1) * w[i]
            for i, j in graph.arcs
        }
        for i, j in graph.arcs:
            z[i, j][j, i] = z[i, j][j, i] + change[i, j]
            if (t, i, j) != lost:
                z[j, i][j, i] = z[j, i][j, i] + change[i, j]
    return out


def states(recorder: Recorder) -> Tensor:
    return recorder.truth_record.states["w"]


# --- what the others do -----------------------------------------------------------------------------------------------


def test_a_lost_model_is_replaced_by_the_last_one_that_arrived() -> None:
    found = faulty("dpsgd", "drop:0-1@4")
    assert found.trace.provenance["faults"] == ["drop:0-1@4"]
    wanted = dpsgd_loop(found, lambda t, i: True, lambda t, arc: (t, arc) != (4, (0, 1)))
    assert all(
        torch.allclose(states(found)[t, i], w, rtol=0, atol=1e-12) for (t, i), w in wanted.items()
    )
    other = dpsgd_loop(found, lambda t, i: True, lambda t, arc: True)
    assert not torch.allclose(states(found)[5, 1], other[5, 1], rtol=0, atol=1e-6)


def test_the_neighbours_of_a_stopped_node_keep_its_last_model() -> None:
    found = faulty("dpsgd", "stop:3@5")
    assert found.trace.provenance["faults"] == ["stop:3@5"]
    wanted = dpsgd_loop(found, lambda t, i: i != 3 or t <= 5, lambda t, arc: True)
    assert len(wanted) == 3 * ROUNDS + 5
    assert all(
        torch.allclose(states(found)[t, i], w, rtol=0, atol=1e-12) for (t, i), w in wanted.items()
    )
    assert bool(states(found)[6:, 3].isnan().all())


def test_a_lost_change_of_z_leaves_one_end_with_the_old_z() -> None:
    found = faulty("pdmm", "drop:0-1@3")
    start = {
        (j, i): v for (_, i, j), v in sent(found.trace, "z0").items()
    }  # z_{j|i} travels i -> j
    copies = {arc: {arc: start[arc], arc[::-1]: start[arc[::-1]]} for arc in found.trace.graph.arcs}
    wanted = pdmm_loop(found, (3, 0, 1), copies)
    assert all(
        torch.allclose(states(found)[t, i], w, rtol=0, atol=1e-11) for (t, i), w in wanted.items()
    )


def test_a_node_that_is_waited_for_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr("leakaudit.capture.gloo.node.time", SimpleNamespace(sleep=slept.append))
    found, whole = (
        faulty("dpnorm", "late:2@4:0.3"),
        recording.record(recording.plan(scenario("dpnorm")), None),
    )
    assert slept == [0.3]
    late, wanted = sent(found.trace, "y"), sent(whole.trace, "y")
    assert sorted(late) == sorted(wanted)
    assert max(float((late[k] - wanted[k]).abs().max()) for k in wanted) < 1e-12
    assert found.trace.complete
    assert found.trace.provenance["faults"] == ["late:2@4:0.3"]
    assert gaps.sentences(found.trace) == []


@pytest.mark.parametrize(
    ("victim", "fault", "why"),
    [
        ("dpsgd", "stop:1@0", "node 1 did not complete round 0"),
        ("dpsgd", "late:1@0:0.1", "node 1 sent nothing in round 0"),
        ("nids", "drop:0-1@1", "node 0 sent nothing to node 1 in round 1"),
    ],
)
def test_a_fault_that_finds_nothing_to_spoil_is_not_said_to_have_happened(
    victim: str, fault: str, why: str
) -> None:
    """D-PSGD has no round 0, and NIDS sends nothing in the first."""
    trace = faulty(victim, fault).trace
    assert (trace.complete, gaps.sentences(trace), trace.provenance["faults"]) == (True, [], [])
    assert Fault.parse(fault).missed == f"--fault {fault}: did not occur, because {why}"


def test_a_node_that_hangs_is_given_up_after_the_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    Still(monkeypatch, 4)
    found = faulty("dpsgd", "late:2@4:2.0", timeout=0.4)
    assert not found.trace.complete
    said = gaps.sentences(found.trace)
    assert len(said) == 2
    assert all(
        "messages 'w' 2 -> " in s and "rounds 4 to" in s and s.endswith("not received in time")
        for s in said
    )
    assert sorted(k for k in sent(found.trace, "w") if k[1] == 2) == sorted(
        (t, 2, j) for t in range(1, ROUNDS + 1) for j in (1, 3)
    )


@pytest.mark.parametrize(
    ("victim", "fault", "sentence"),
    [
        ("secured", "stop:3@2", "node 3 ended after round 2: its process failed"),
        ("secured", "stop:3@2", "ended after round 2: message 'y' of round 3 did not arrive"),
        ("secured", "stop:3@2", "nothing was sent in rounds 3 to 8"),
        (
            "pdmm",
            "drop:0-1@0",
            "node 1 ended before completing a round: message 'z0' of round 0 did not arrive",
        ),
    ],
)
def test_a_protocol_without_a_rule_for_silence_ends(victim: str, fault: str, sentence: str) -> None:
    trace = faulty(victim, fault).trace
    assert not trace.complete
    assert any(sentence in s for s in gaps.sentences(trace)), gaps.sentences(trace)


def test_a_lost_baton_ends_the_walk(monkeypatch: pytest.MonkeyPatch) -> None:
    Still(monkeypatch, 4)
    plan = recording.plan(scenario("recal"))
    i, to = recording.public(plan)["active"][3:5].tolist()
    trace = faulty("recal", f"drop:{i}-{to}@4", timeout=0.3).trace
    assert (trace.rounds, trace.complete) == (3, False)
    first = f"messages 'y' {i} -> {to} of round 4: "
    assert gaps.sentences(trace)[0] in (
        first + gaps.WHY["lost"],
        first + gaps.WHY["silent"],
    )  # who gives up first, when all wait
    assert "nothing was sent in rounds 4 to 8" in gaps.sentences(trace)


# --- what the file says, and what is claimed --------------------------------------------------------------------------


def test_verify_accepts_the_trace_and_names_the_rounds(tmp_path: Path) -> None:
    faulty("dpsgd", "stop:3@5", tmp_path / "t.pt")
    facts = trace_info.verify(tmp_path / "t.pt")
    assert facts["missing"] == [
        "messages 'w' 3 -> 0 of rounds 6 to 8: their sender's process had terminated",
        "messages 'w' 3 -> 2 of rounds 6 to 8: their sender's process had terminated",
        "node 3 ended after round 5: its process failed",
    ]
    assert trace_info.info(tmp_path / "t.pt")["missing"] == facts["missing"]
    assert [p.name for p in tmp_path.glob(".gloo-*")] == []


@pytest.fixture(scope="module")
def dropped() -> Recorder:
    return faulty("dpsgd", "drop:0-1@4")


def unsound(trace: Trace) -> Trace:
    """The same trace, as if nobody had said that something is missing."""
    return replace(
        trace, provenance={k: v for k, v in trace.provenance.items() if k != "holds_until"}
    )


def test_the_relations_are_checked_up_to_the_first_gap_and_fail_beyond_it(
    dropped: Recorder,
) -> None:
    trace, truth = dropped.trace, dropped.truth_record
    assert gaps.sound(trace) == 3
    assert declared.check(trace, truth).worst < 1e-12
    with pytest.raises(LeakauditError, match="round 5"):
        declared.check(unsound(trace), truth)


@pytest.mark.parametrize("listener", [Adversary(), Adversary(corrupt=frozenset({2}))])
def test_no_gradient_beyond_the_gap_is_claimed_and_those_before_it_are_true(
    dropped: Recorder, listener: Adversary
) -> None:
    trace, truth = dropped.trace, dropped.truth_record
    g = gradients(truth, Task.build(trace.task, dtype=torch.float64))
    for leak in hearing.leaks(trace, listener):
        rounds = leak.theta_rounds.tolist()
        assert max(rounds) <= 3
        assert "messages of round 4 are missing, so only rounds up to 3 are used" in leak.scope
        true = torch.stack([g(leak.node, truth.states["w"][t, leak.node]) for t in rounds])
        assert torch.allclose(leak.combination.double() @ true, leak.value, rtol=0, atol=1e-10)


def test_without_that_limit_a_gradient_would_be_wrong(dropped: Recorder) -> None:
    trace, truth = dropped.trace, dropped.truth_record
    g = gradients(truth, Task.build(trace.task, dtype=torch.float64))
    leak = next(leak for leak in hearing.leaks(unsound(trace), nodes=[1]))
    true = torch.stack([g(1, truth.states["w"][t, 1]) for t in leak.theta_rounds.tolist()])
    assert float((leak.combination.double() @ true - leak.value).abs().max()) > 1e-3


def test_nothing_is_claimed_where_the_first_round_is_missing() -> None:
    trace = faulty("dpsgd", "drop:0-1@1").trace
    with pytest.raises(LeakauditError, match="messages of the first round are missing"):
        hearing.leaks(trace)


@pytest.mark.parametrize(
    "entry",
    [
        3,
        "none",
        [3],
        [{"src": "x"}],
        [{"src": 0, "dst": 1, "kind": "w", "why": "lost", "rounds": [1]}],
    ],
)
def test_a_provenance_of_another_form_is_passed_over(dropped: Recorder, entry: Any) -> None:
    assert (
        gaps.sentences(replace(dropped.trace, provenance={"missing": entry, "ended": entry})) == []
    )


def test_a_limit_that_is_no_round_is_refused(dropped: Recorder) -> None:
    with pytest.raises(LeakauditError, match="expected a round number as 'holds_until', got '3'"):
        gaps.before(replace(dropped.trace, provenance={"holds_until": "3"}))


def test_a_trace_of_another_engine_is_whole() -> None:
    trace = recording.record(recording.plan(scenario("dpsgd")), None).trace
    assert gaps.before(trace) is trace
    assert (gaps.sentences(trace), gaps.limit(trace)) == ([], "")


# --- the parts --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["stop:3@5", "late:2@4:0.5", "drop:0-1@6"])
def test_a_fault_is_read_and_written_alike(text: str) -> None:
    assert str(Fault.parse(text)) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "stop:3",
        "stop:3-1@5",
        "late:2@4",
        "drop:0@6",
        "stop:3@5:1",
        "late:2@4:-1",
        "late:2@4:1e9",
        "late:2@4:e",
    ],
)
def test_what_is_no_fault_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(LeakauditError, match=r"^--fault: expected "):
        Fault.parse(text)


@pytest.mark.parametrize(
    ("text", "why"),
    [("stop:9@1", "nodes 0 to 3"), ("drop:0-2@1", "no such channel"), ("stop:1@9", "8 rounds")],
)
def test_a_fault_must_fit_the_run(text: str, why: str) -> None:
    with pytest.raises(LeakauditError, match=why):
        Fault.parse(text).check(Graph(4, ((0, 1), (0, 3), (1, 2), (2, 3))), 8)


def test_faults_ask_for_a_process_a_node() -> None:
    with pytest.raises(LeakauditError, match=r"expected one process per node \(--procs 4\), got 2"):
        engine.check(
            recording.plan(scenario("dpsgd")), ProcessLayout(2, faults=(Fault.parse("stop:1@1"),))
        )


def test_an_inbox_tells_what_is_lost_from_what_is_gone() -> None:
    box, waited = Inbox([1, 2]), list[int]()
    for number in (1, 2, 4):
        box.put(1, number, torch.full((1, 1), float(number)))
    box.end(1, GOODBYE, reached=5)
    box.end(2, CUT)

    def take(peer: int, number: int) -> tuple[float | None, str]:
        rows, why = box.take(peer, number, lambda: True, lambda: waited.append(number))
        return None if rows is None else float(rows), why

    assert take(1, 2) == (2.0, "")  # that of exchange 1 came too late
    assert take(1, 3) == (None, "lost")
    assert take(1, 4) == (4.0, "")
    assert take(1, 5) == (None, "lost")
    assert take(1, 6) == (None, "ended")
    assert take(2, 1) == (None, "closed")
    assert waited == []


def test_who_waits_is_not_silent_and_who_keeps_all_waiting_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Still(monkeypatch, 3)
    board = ProcessBoard(tmp_path / "board", 3, new=True)
    assert not board.started
    for rank, state in enumerate((WORKING, WAITING, WAITING)):
        board.tell(rank, state)
    assert board.started
    clock.now += 0.05
    assert board.silent(0, 0.02)
    assert not board.silent(0, 10.0)
    assert not board.silent(1, 0.02)
    board.tell(0, WAITING)
    assert not board.silent(1, 0.02)
    clock.now += 0.05
    assert board.silent(1, 0.02)  # all wait for each other
    board.tell(0, STARTING)
    assert not board.silent(0, 0.0)
    board.tell(0, DONE, 5)
    assert board.lowest() == 0


def test_the_truth_of_a_faulty_run_is_written(tmp_path: Path) -> None:
    faulty("dpsgd", "stop:3@5", tmp_path / "t.pt")
    truth = trace_file.load_truth(tmp_path / "t.truth.pt")
    assert truth.states["w"].shape[:2] == (ROUNDS + 1, 4)


@pytest.mark.parametrize("victim", ["pdmm", "dpnorm"])
def test_lint_finds_nothing_in_a_faulty_run_that_it_does_not_find_in_a_whole_one(
    victim: str,
) -> None:
    """DP-Norm's noise is estimated from its relations, which do not hold beyond the gap."""
    whole = recording.record(recording.plan(scenario(victim)), None).trace
    found, wanted = (
        {(p.code, p.verdict) for p in lint(t)} for t in (faulty(victim, "drop:0-1@5").trace, whole)
    )
    assert found <= wanted


def test_a_node_is_at_most_an_hour_late() -> None:
    assert Fault.parse("late:0@1:3600").seconds == 3600
    with pytest.raises(LeakauditError, match="expected 0 to 3600 seconds"):
        Fault.parse("late:0@1:3600.5")


@pytest.mark.parametrize(("round", "exists"), [(3, True), (4, False)])
def test_a_fault_happens_in_a_round_of_the_run(round: int, exists: bool) -> None:
    fault, graph = Fault("stop", 0, round), Graph(2, ((0, 1),))
    if exists:
        fault.check(graph, 3)
        return
    with pytest.raises(LeakauditError, match="the run has 3 rounds"):
        fault.check(graph, 3)
