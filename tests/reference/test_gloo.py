"""The gloo engine against the engine that has all nodes in one process: the same messages, whoever
hosts the nodes.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from leakaudit.capture.gloo import engine, setup
from leakaudit.capture.gloo.node import _Route
from leakaudit.capture.gloo.setup import ProcessLayout, Setup
from leakaudit.core import registry
from leakaudit.core.errors import LeakauditError
from leakaudit.core.trace import Trace
from leakaudit.protocols import declared, recording
from leakaudit.protocols.scenario import Scenario
from leakaudit.traces import gaps
from leakaudit.traces.arcs import Arcs
from leakaudit.traces.recorder import Recorder

Key = tuple[int, str, int, int, bool]
ROUNDS = 6
EXACT: list[tuple[str, dict[str, Any]]] = [  # whose arithmetic is the same, operation by operation
    ("choco", {}),
    ("dkm", {}),
    ("dpadmm", {}),
    ("dpsgd", {}),
    ("extra", {}),
    ("gossip", {}),
    ("muffliato", {}),
    ("nids", {}),
    ("pdmm", {"quantize": 0.01}),
    ("pdmm", {"active": 2}),
    ("recal", {}),
    ("rwadmm", {"update": "gradient"}),
    ("secagg", {"sigma": 0.1}),
    ("secured", {}),
    ("tracking", {}),
]


def scenario(victim: str, top: dict[str, Any] | None = None, **constants: Any) -> Scenario:
    base = {
        "nodes": 4,
        "graph": "ring",
        "data": "gaussians",
        "model": "logistic",
        "samples": 4,
        "rounds": ROUNDS,
        "states": True,
        "seed": 3,
    }
    if victim in ("secagg", "secured"):
        base |= {"graph": "complete"}
    if victim == "secured":
        constants = {"group_size": 2, "partitions": 3, **constants}
    return Scenario(victim, **{**base, **(top or {})}, set=constants)


def messages(trace: Trace) -> dict[Key, Tensor]:
    found: dict[Key, Tensor] = {}
    for m in trace.messages:
        columns = (m.round, m.kind, m.src, m.dst, m.secure, m.row)
        for t, kind, src, dst, secure, row in zip(*(c.tolist() for c in columns), strict=True):
            key = (t, m.kinds[kind], src, dst, secure)
            assert key not in found
            found[key] = m.payload[row]
    return found


def apart(chosen: Scenario, procs: int) -> Recorder:
    return engine.record(recording.plan(chosen), None, ProcessLayout(procs), threads=True)


def worst(found: dict[Key, Tensor], wanted: dict[Key, Tensor]) -> float:
    assert sorted(found) == sorted(wanted)
    return max(
        (
            float((found[k] - wanted[k]).abs().max() / (wanted[k].abs().max() + 1e-3))
            for k in wanted
        ),
        default=0.0,
    )


# --- options of every separable protocol, nodes dealt out to threads --------------------------------------------------

OPTIONS: list[tuple[str, dict[str, Any], dict[str, Any], int]] = [
    ("pdmm", {}, {}, 4),
    ("pdmm", {"nodes": 6, "graph": "rgg"}, {"theta": 0.5, "k_max": 2}, 3),
    ("pdmm", {}, {"differential": False, "update": "quadratic"}, 2),
    ("pdmm", {"wires": "node:1", "layers": "first"}, {"theta": 0.7}, 4),
    ("pdmm", {"dtype": "float64"}, {"update": "exact", "z0": 0.0}, 4),
    ("pdmm", {"dtype": "float64"}, {}, 4),
    ("pdmm", {"wires": "none"}, {}, 4),
    ("pdmm", {"nodes": 5, "graph": "star"}, {"active": 3, "differential": False}, 3),
    ("pdmm", {"dtype": "float64"}, {"active": 2, "update": "exact"}, 2),
    ("dpnorm", {}, {"inner": 2, "resend": True, "alpha": 0.1}, 4),
    ("dpnorm", {"nodes": 5, "graph": "star"}, {"inner": 3, "order": "random", "alpha": 0.1}, 4),
    ("dpnorm", {"nodes": 5, "graph": "star"}, {"noise": "inner", "inner": 2, "batch": 2}, 2),
    ("dpnorm", {"dtype": "float64"}, {"epsilon": 2.0, "records": 4, "eta": "common"}, 3),
    ("dpsgd", {"nodes": 5, "graph": "rgg"}, {"sigma": 0.1}, 5),
    ("dpsgd", {}, {"order": "adapt", "sigma": 0.1, "own": "plain", "steps": 2, "slow": 0.1}, 4),
    ("dpsgd", {}, {"noise": "step", "sigma": 0.1, "batch": 2, "clip": 0.5}, 2),
    ("dpsgd", {"model": "mlp", "wires": "0-1"}, {"hidden": 8}, 4),
    ("secagg", {}, {"batch": 2, "local_steps": 2}, 4),
    ("secagg", {"nodes": 5}, {"fraction": 0.6, "sigma": 0.1, "batch": 2, "local_steps": 2}, 3),
    ("secagg", {}, {"fraction": 0.25}, 4),
    ("secured", {}, {}, 4),
    (
        "secured",
        {"nodes": 9, "samples": 2, "wires": "node:2"},
        {"group_size": 3, "partitions": 4, "batch": 1},
        3,
    ),
    ("recal", {"rounds": 20}, {"sigma": 0.1, "decay": 0.9, "baton": "full"}, 4),
    (
        "recal",
        {"rounds": 20, "graph": "complete"},
        {"activation": "iid", "reg": "l1", "noise_on": "lam", "sigma": 0.1},
        2,
    ),
    ("pdmm", {}, {"quantize": 0.01, "differential": False}, 4),
    ("nids", {}, {"spread": 0.2, "sigma": 0.1, "noise": "message"}, 4),
    ("nids", {"nodes": 5, "graph": "rgg"}, {"l1": 0.01, "sigma": 0.1, "fade": 0.9}, 2),
    ("extra", {}, {"spread": 0.2, "sigma": 0.1, "noise": "message"}, 4),
    ("extra", {"nodes": 5, "graph": "star"}, {"l1": 0.01, "sigma": 0.1}, 3),
    ("tracking", {}, {"sigma": 0.1}, 4),
    ("tracking", {"nodes": 5, "graph": "rgg"}, {"sigma": 0.1, "noise": "message"}, 2),
    ("gossip", {}, {"sigma": 0.1, "steps": 2}, 4),
    ("muffliato", {"nodes": 5, "wires": "node:1"}, {"accelerate": True, "gossips": 3}, 5),
    ("choco", {}, {"compress": "random"}, 4),
    ("choco", {"nodes": 5, "graph": "rgg"}, {"compress": "quantize"}, 2),
    ("dkm", {}, {"mechanism": "gaussian", "batch": 2, "fade": 3.0}, 4),
    ("dkm", {}, {"operator": "pgd", "l1": 0.01, "mechanism": "laplace"}, 3),
    ("dkm", {"dtype": "float64"}, {"operator": "dr", "l1": 0.01, "batch": 2}, 4),
    ("dpadmm", {}, {"steps": 2, "batch": 2, "sigma": 0.1}, 4),
    ("pvpadmm", {"dtype": "float64"}, {"perturb": "dual"}, 4),
    ("pvpadmm", {"nodes": 5, "graph": "star"}, {"perturb": "primal", "update": "gradient"}, 2),
    ("mradmm", {"dtype": "float64"}, {"rate": 2.0, "spread": 0.1}, 4),
    ("rwadmm", {"rounds": 20}, {"update": "gradient", "sigma": 0.1}, 4),
    (
        "rwadmm",
        {"rounds": 20, "nodes": 5, "graph": "star", "wires": "node:1", "dtype": "float64"},
        {"theta": 0.7},
        3,
    ),
]


@pytest.mark.parametrize(
    ("victim", "top", "constants", "procs"), OPTIONS, ids=lambda v: str(v).replace(" ", "")
)
def test_nodes_apart_send_what_nodes_together_send(
    victim: str, top: dict[str, Any], constants: dict[str, Any], procs: int
) -> None:
    """Gradients of fewer nodes at once may differ by rounding, which the rounds carry on."""
    chosen = scenario(victim, top, **constants)
    whole, found = recording.record(recording.plan(chosen), None), apart(chosen, procs)
    tolerance = 1e-12 if chosen.dtype == "float64" else 1e-5
    assert worst(messages(found.trace), messages(whole.trace)) < tolerance
    assert (found.trace.rounds, found.trace.complete) == (whole.trace.rounds, True)
    mine, theirs = found.truth_record.states["w"], whole.truth_record.states["w"]
    assert float((mine - theirs).abs().max() / theirs.abs().max()) < tolerance
    assert gaps.sentences(found.trace) == []


@pytest.mark.parametrize(("victim", "constants"), EXACT, ids=lambda v: str(v).replace(" ", ""))
def test_arithmetic_that_is_the_same_gives_the_same_numbers(
    victim: str, constants: dict[str, Any]
) -> None:
    """To a few roundings: on some processors torch rounds a row of a batch unlike the row by
    itself.
    """
    chosen = scenario(victim, **constants)
    whole, found = (
        messages(r.trace)
        for r in (recording.record(recording.plan(chosen), None), apart(chosen, 4))
    )
    largest = max(float(value.abs().max()) for value in whole.values())
    few = 16 * torch.finfo(getattr(torch, chosen.dtype)).eps * largest
    assert all(torch.allclose(found[k], whole[k], rtol=0, atol=few) for k in whole)


def test_every_victim_without_a_server_is_separable_and_tried_here() -> None:
    own = {
        n: kind
        for n, kind in registry.everything("victims")
        if kind.__module__.startswith("leakaudit.victims.")
    }
    wanted = {n for n, kind in own.items() if not kind.centralised} - {"single"}
    assert (
        {n for n, kind in own.items() if kind.separable}
        == {victim for victim, *_ in OPTIONS}
        == wanted
    )
    assert {victim for victim, _ in EXACT} < wanted


@pytest.mark.parametrize("victim", sorted({victim for victim, *_ in OPTIONS}))
def test_what_the_processes_kept_to_themselves_fulfils_the_declared_relations(victim: str) -> None:
    found = apart(scenario(victim, {"dtype": "float64"}), 4)
    assert declared.check(found.trace, found.truth_record).worst < 1e-12


def test_a_value_that_never_came_over_a_wire_is_nan(monkeypatch: pytest.MonkeyPatch) -> None:
    """D-PSGD that reads its neighbours' models off the common table, without an exchange, sends
    NaN.
    """
    from leakaudit.protocols.simulation import Simulation

    honest = Simulation.send

    def cheating(
        self: Simulation, round: int, kind: str, values: Tensor, *rest: Any, **named: Any
    ) -> Tensor:
        honest(self, round, kind, values, *rest, **named)
        return values

    monkeypatch.setattr(Simulation, "send", cheating)
    found = messages(apart(scenario("dpsgd"), 4).trace)
    assert all(bool(v.isfinite().all()) for (t, *_), v in found.items() if t == 1)
    assert all(bool(v.isnan().all()) for (t, *_), v in found.items() if t > 1)


def test_no_process_is_given_the_data_of_another(tmp_path: Path) -> None:
    plan = recording.plan(scenario("dpsgd"))
    setup.prepare(tmp_path, plan, recording.public(plan), ProcessLayout(2), trusted=False)
    made = Setup.read(tmp_path)
    x, y = made.data(1)
    assert torch.equal(x, plan.source.x[plan.rows[2:]].to(x.dtype))
    assert torch.equal(y, plan.source.y[plan.rows[2:]])
    assert sorted(p.name for p in tmp_path.glob("data*")) == ["data0.pt"]
    assert plan.source.x.numpy().tobytes() not in (tmp_path / setup.FILE).read_bytes()


# --- who sends what to which process ----------------------------------------------------------------------------------


def test_a_payload_goes_once_to_a_process_that_hosts_several_receivers() -> None:
    src, dst = torch.tensor([0, 0, 0, 1, 2, 3]), torch.tensor([1, 2, 3, 0, 0, 0])
    route = _Route.of(
        Arcs(src, dst, src, torch.tensor([True, True, False, True, True, True])), [0, 1, 1, 2], 0
    )
    assert {p: rows.tolist() for p, (_, rows) in route.out.items()} == {1: [0], 2: [0]}
    assert {p: rows.tolist() for p, (_, rows) in route.into.items()} == {1: [1, 2], 2: [3]}
    assert route.foreign.tolist() == route.wanted.tolist() == [1, 2, 3]
    assert route.told.tolist() == [0, 1]


def test_a_row_that_ends_elsewhere_is_foreign_and_not_wanted() -> None:
    src, dst = torch.tensor([0, 1, 1, 2]), torch.tensor([1, 0, 2, 1])
    route = _Route.of(Arcs(src, dst, src, torch.ones(4, dtype=torch.bool)), [0, 1, 2], 0)
    assert (route.foreign.tolist(), route.wanted.tolist(), list(route.out)) == ([1, 2], [1], [1])


# --- real processes ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def by_gloo() -> Callable[[str], tuple[Recorder, Recorder]]:
    """One run a victim by four processes, and by one."""
    kept: dict[str, tuple[Recorder, Recorder]] = {}

    def run(victim: str) -> tuple[Recorder, Recorder]:
        if victim not in kept:
            chosen = scenario(victim)
            inline = recording.record(recording.plan(chosen), None)
            kept[victim] = inline, engine.record(recording.plan(chosen), None, ProcessLayout(4))
        return kept[victim]

    return run


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["pdmm", "dpnorm", "dpsgd", "recal", "secured"])
def test_four_processes_and_one_give_the_same_trace(
    victim: str, by_gloo: Callable[[str], tuple[Recorder, Recorder]]
) -> None:
    inline, gloo = by_gloo(victim)
    a, b = inline.trace, gloo.trace
    assert (a.protocol, a.params, a.task, a.graph, a.columns, a.rounds) == (
        b.protocol,
        b.params,
        b.task,
        b.graph,
        b.columns,
        b.rounds,
    )
    assert a.complete
    assert b.complete
    assert all(torch.equal(a.public[name], b.public[name]) for name in {*a.public, *b.public})
    wanted, found = messages(a), messages(b)
    assert worst(found, wanted) < (1e-12 if victim in {"dpsgd", "recal", "secured"} else 1e-5)
    assert gaps.sentences(b) == []
    assert b.provenance["engine"] == {
        "name": "gloo",
        "procs": 4,
        "place": [0, 1, 2, 3],
        "timeout": 120.0,
    }


@pytest.mark.slow
def test_private_states_and_data_come_together_in_the_truth(
    by_gloo: Callable[[str], tuple[Recorder, Recorder]],
) -> None:
    inline, gloo = by_gloo("dpsgd")
    a, b = inline.truth_record, gloo.truth_record
    assert torch.equal(a.x, b.x)
    assert torch.equal(a.node, b.node)
    assert sorted(a.states) == sorted(b.states)
    assert all(torch.equal(a.states[name], b.states[name]) for name in a.states)


@pytest.mark.slow
def test_processes_that_cannot_begin_are_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = setup.prepare

    def prepare(folder: Path, *rest: Any) -> Setup:
        prepared = real(folder, *rest)
        (folder / setup.FILE).unlink()
        return prepared

    monkeypatch.setattr(setup, "prepare", prepare)
    with pytest.raises(
        LeakauditError,
        match=r"the processes could not connect on 127\.0\.0\.1: FileNotFoundError.*see --engine threads",
    ):
        engine.record(recording.plan(scenario("dpsgd")), tmp_path / "t.pt", ProcessLayout(4))
    assert list(tmp_path.iterdir()) == []
