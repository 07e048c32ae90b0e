"""Asynchronous PDMM and ADMM: some nodes take part in a round, by a public schedule."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import leakaudit as la
from leakaudit.core.reconstruction import Certificate
from leakaudit.core.trace import Graph, TaskSpec
from leakaudit.protocols import declared, recording
from leakaudit.protocols.scenario import Scenario
from leakaudit.protocols.schedules import draw_moments, draw_nodes, most_sent, read
from leakaudit.tasks.task import Problem, Task
from leakaudit.theory.relations import determined, know
from leakaudit.traces.recorder import Recorder, RecorderOptions
from leakaudit.victims.pdmm import PDMM

Array = NDArray[np.float64]
NODES, SIZE, RECORDS = 6, 4, 12
RING = Graph(6, tuple(sorted((min(i, (i + 1) % 6), max(i, (i + 1) % 6)) for i in range(6))))
LOLLIPOP = Graph(6, ((0, 1), (0, 2), (1, 2), (2, 3), (3, 4), (4, 5)))
DRAW = np.random.default_rng(0)
X = DRAW.normal(size=(NODES, RECORDS, SIZE))
Y = np.stack([x @ DRAW.normal(size=SIZE) for x in X]) + 0.1 * DRAW.normal(size=(NODES, RECORDS))


def gradient(i: int, w: Array) -> Array:
    """The gradient of f_i(w) = |X_i w - y_i|^2 / (2 b)."""
    return np.asarray(X[i].T @ (X[i] @ w - Y[i]) / RECORDS)


def least(i: int, linear: Array, weight: float) -> Array:
    """argmin f_i(w) + linear'w + weight/2 |w|^2."""
    h = X[i].T @ X[i] / RECORDS + weight * np.eye(SIZE)
    return np.asarray(np.linalg.solve(h, X[i].T @ Y[i] / RECORDS - linear))


OPTIMUM = np.linalg.solve(sum(x.T @ x for x in X), sum(x.T @ y for x, y in zip(X, Y, strict=True)))


def record(
    victim: PDMM, graph: Graph, rounds: int, dtype: torch.dtype = torch.float64, wires: bool = True
) -> Recorder:
    task = Task.build(TaskSpec("linear", {"bias": False}, "squared", (SIZE,), 1), dtype=dtype)
    random = torch.Generator().manual_seed(0)
    public = {"w0": torch.zeros(SIZE, dtype=dtype), **victim.schedule(graph, rounds, random)}
    recorder = Recorder(
        None,
        protocol="pdmm",
        task=task,
        graph=graph,
        params={**la.registry.values(victim), "samples": RECORDS},
        rounds=rounds,
        public=public,
        options=RecorderOptions(dtype=dtype, keep_states=True),
    )
    x, y = torch.tensor(X, dtype=dtype), torch.tensor(Y, dtype=dtype)
    with recorder:
        for i in range(NODES):
            recorder.truth(i, x[i], y[i])
        edges = graph.edges if wires else []
        victim.run(Problem(task, x, y), graph, rounds, recorder, random, edges)
    return recorder


def sign(i: int, j: int) -> int:
    return 1 if i < j else -1


# --- against the papers ---------------------------------------------------------------------------


@pytest.mark.parametrize("graph", [RING, LOLLIPOP], ids=["ring", "lollipop"])
@pytest.mark.parametrize("active", [1, 3])
def test_it_is_asynchronous_pdmm_of_zhang_and_heusdens(graph: Graph, active: int) -> None:
    """In their variables: x_j and lambda_{j|i} as node i received them last.

    An active node minimises f_i(x) - x' sum_j A_ij lambda_{j|i} + rho/2 sum_j |A_ij x + A_ji x_j|^2
    and sets lambda_{i|j} = lambda_{j|i} - rho (A_ij x_i + A_ji x_j). All start at zero.
    """
    rho, rounds = 0.5, 40
    victim = PDMM(rho=rho, update="exact", z0=0.0, differential=False, active=active)
    recorder = record(victim, graph, rounds)
    x = np.zeros((NODES, SIZE))
    lam = {arc: np.zeros(SIZE) for arc in graph.arcs}
    view = la.Adversary().view(recorder.trace)
    for t, awake in enumerate(recorder.trace.public["active"].tolist(), 1):
        new_x, new_lam = x.copy(), dict(lam)
        for i in awake:
            near = graph.neighbours[i]
            linear = np.zeros(SIZE)
            for j in near:
                linear = linear - sign(i, j) * lam[j, i] + rho * sign(i, j) * sign(j, i) * x[j]
            new_x[i] = least(i, linear, rho * len(near))
            for j in near:
                gap = sign(i, j) * new_x[i] + sign(j, i) * x[j]
                new_lam[i, j] = lam[j, i] - rho * gap
        x, lam = new_x, new_lam
        np.testing.assert_allclose(
            recorder.truth_record.states["w"][t].numpy(), x, rtol=0, atol=1e-12
        )
        for i in awake:
            for j in graph.neighbours[i]:
                # z_{j|i} = rho A_ij x_i - lambda_{i|j}
                z = rho * sign(i, j) * x[i] - lam[i, j]
                sent = view.message(t, i, j, "z").numpy()
                np.testing.assert_allclose(sent, z, rtol=0, atol=1e-12)
    assert len(recorder.trace) == sum(
        graph.degree(i) for awake in recorder.trace.public["active"].tolist() for i in awake
    )


def loop(recorder: Recorder, victim: PDMM) -> tuple[dict[tuple[int, ...], Array], Array]:
    """Run the thesis' Algorithms 1 and 2 line by line; nodes that are not active do nothing.

    Returns dz by (round, i, j) and the models (rounds + 1, N, SIZE).
    """
    trace = recorder.trace
    graph, rho, theta, alpha = trace.graph, victim.rho, victim.theta, victim.alpha
    w = np.zeros((NODES, SIZE))
    z = {arc: np.zeros(SIZE) for arc in graph.arcs}
    if victim.z0:
        view = la.Adversary(corrupt=frozenset(range(NODES))).view(trace)
        z = {(j, i): view.message(0, i, j, "z0").numpy() for i, j in graph.arcs}
    changes: dict[tuple[int, ...], Array] = {}
    models = [w.copy()]
    for t, awake in enumerate(trace.public["active"].tolist(), 1):
        new = dict(z)
        for i in awake:
            near = graph.neighbours[i]
            pull = np.zeros(SIZE)
            for j in near:
                pull = pull + sign(i, j) * z[i, j]
            push = rho * len(near)
            if victim.update == "exact":
                w[i] = least(i, pull, push)
            elif victim.update == "quadratic":
                w[i] = (victim.mu * w[i] - gradient(i, w[i]) - pull) / (victim.mu + push)
            else:
                for _ in range(victim.k_max):
                    w[i] = w[i] - alpha * (gradient(i, w[i]) + pull + push * w[i])
            for j in near:
                change = theta * (z[i, j] - z[j, i] + 2 * rho * sign(i, j) * w[i])
                new[j, i] = z[j, i] + change
                changes[t, i, j] = change
        z = new
        models.append(w.copy())
    return changes, np.stack(models)


FORMS: dict[str, dict[str, Any]] = {
    "PDMM": {"active": 2},
    "ADMM": {"active": 3, "theta": 0.5, "k_max": 3},
    "quadratic": {"active": 1, "update": "quadratic", "mu": 4.0, "z0": 0.0},
    "exact": {"active": 4, "update": "exact", "theta": 0.8},
    "everybody": {"active": 6},
}


@pytest.mark.parametrize("settings", FORMS.values(), ids=FORMS)
@pytest.mark.parametrize("graph", [RING, LOLLIPOP], ids=["ring", "lollipop"])
def test_messages_and_models_are_those_of_the_lines(graph: Graph, settings: dict[str, Any]) -> None:
    victim = PDMM(**settings)
    recorder = record(victim, graph, 25)
    changes, models = loop(recorder, victim)
    np.testing.assert_allclose(
        recorder.truth_record.states["w"].numpy(), models, rtol=0, atol=1e-12
    )
    view = la.Adversary().view(recorder.trace)
    for (t, i, j), change in changes.items():
        sent = view.message(t, i, j, "dz").numpy()
        np.testing.assert_allclose(sent, change, rtol=0, atol=1e-12)
    first = 2 * len(graph.edges) * bool(victim.z0)
    assert len(recorder.trace) == first + len(changes)
    assert len(recorder.trace) <= victim.messages(graph, 25, graph.edges)


def test_all_nodes_active_is_the_synchronous_run() -> None:
    some, every = (record(PDMM(active=n, z0=0.0), LOLLIPOP, 30).truth_record for n in (6, 0))
    assert torch.allclose(some.states["w"], every.states["w"], rtol=0, atol=1e-12)


@pytest.mark.parametrize("settings", FORMS.values(), ids=FORMS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
def test_the_declaration_is_what_runs(settings: dict[str, Any], dtype: torch.dtype) -> None:
    for graph in (RING, LOLLIPOP):
        recorder = record(PDMM(**settings), graph, 8, dtype)
        found = declared.check(recorder.trace, recorder.truth_record)
        assert found.skipped == 0
        assert found.worst < 20 * torch.finfo(dtype).eps


@pytest.mark.parametrize("settings", [{}, {"theta": 0.5}, {"update": "exact"}], ids=str)
def test_it_converges_to_the_optimum(settings: dict[str, Any]) -> None:
    victim = PDMM(active=2, alpha=0.2, **settings)
    w = record(victim, RING, 3000, wires=False).truth_record.states["w"][-1].numpy()
    assert np.abs(w - OPTIMUM).max() < 1e-9


def test_a_recording_from_before_the_option_had_everybody_active() -> None:
    trace = record(PDMM(), RING, 4).trace
    older = replace(trace, params={k: v for k, v in trace.params.items() if k != "active"})
    assert declared.protocol_of(older).defaulted == ()
    assert len(la.leaks(older)) == NODES


# --- what leaks -----------------------------------------------------------------------------------


def rank(rows: Array) -> int:
    if not rows.size:
        return 0
    size = np.linalg.svd(rows, compute_uv=False)
    return int((size > 1e-9 * max(1.0, size[0])).sum())


def observed(victim: PDMM, graph: Graph, awakes: list[list[int]]) -> tuple[Array, list[int]]:
    """Return the coefficients of all dz in gradients and the secret z^0, and each column's node."""
    size = len(graph.arcs) + sum(map(len, awakes))
    eye = np.eye(size)
    z = {(j, i): eye[k] for k, (i, j) in enumerate(graph.arcs)}
    whose = [-1] * len(graph.arcs)
    w = {i: np.zeros(size) for i in range(NODES)}
    rows = []
    for awake in awakes:
        new = dict(z)
        for i in awake:
            near = graph.neighbours[i]
            pull = sum((sign(i, j) * z[i, j] for j in near), start=np.zeros(size))
            g = eye[len(whose)]
            whose.append(i)
            w[i] = w[i] - victim.alpha * (g + pull + victim.rho * len(near) * w[i])
            for j in near:
                change = victim.theta * (z[i, j] - z[j, i] + 2 * victim.rho * sign(i, j) * w[i])
                new[j, i] = z[j, i] + change
                rows.append(change)
        z = new
    return np.stack(rows), whose


@pytest.mark.parametrize("theta", [1.0, 0.5])
@pytest.mark.parametrize("graph", [RING, LOLLIPOP], ids=["ring", "lollipop"])
def test_differences_of_consecutive_activations_leak(graph: Graph, theta: float) -> None:
    """Yu 2023, section 7.2, asks whether asynchronous PDMM leaks as much: it does, and no more."""
    rounds = 14
    victim = PDMM(active=3, theta=theta)
    recorder = record(victim, graph, rounds)
    awakes = recorder.trace.public["active"].tolist()
    p = victim.relations(graph, rounds, recorder.trace.public)
    seen, whose = observed(victim, graph, awakes)
    _, models = loop(recorder, victim)
    leaks = {leak.node: leak for leak in la.leaks(recorder.trace, rounds=rounds)}
    for node in range(NODES):
        own = [k for k, i in enumerate(whose) if i == node]
        others = [k for k, i in enumerate(whose) if i != node]
        expected = rank(seen) - rank(seen[:, others])
        view = know(p, la.Adversary(), own=False)
        assert len(determined(view, p.gradients(node))) == expected
        # The first gradient starts from z^0 and the last shows only in the next activation.
        assert expected >= len(own) - 3
        if not expected:
            assert node not in leaks
            continue
        leak = leaks[node]
        taken = np.stack([gradient(node, models[t, node]) for t in leak.theta_rounds.tolist()])
        error = leak.value.numpy() - leak.combination.numpy() @ taken
        assert np.abs(error).max() < 1e-11
        assert all(
            sorted(row[row != 0].tolist()) == [-1.0, 1.0] for row in leak.combination.numpy()
        )


def test_the_attack_recovers_the_records_of_nodes_that_took_part_often_enough() -> None:
    plan = recording.plan(
        Scenario(
            "pdmm",
            nodes=6,
            graph="ring",
            rounds=12,
            data="faces",
            model="mlp",
            samples=1,
            seed=1,
            set={"hidden": 32, "active": 3},
        )
    )
    made = recording.record(plan, None)
    leaks = la.leaks(made.trace)
    turns = Counter(made.trace.public["active"].flatten().tolist())
    assert set(leaks.undetermined) == {i for i in range(6) if turns[i] < 4}
    found = la.attack(leaks, generator=torch.Generator().manual_seed(0))
    assert {one.node for one in found} == set(range(6)) - set(leaks.undetermined)
    assert {one.certificate for one in found} == {Certificate.EXACT}
    for score in la.score(found, made.truth_record):
        assert score.psnr is not None
        assert (score.psnr[0] or 0) > 150


# --- schedules ------------------------------------------------------------------------------------


def test_every_set_of_nodes_is_equally_likely() -> None:
    drawn = draw_nodes(4, 6000, 2, torch.Generator().manual_seed(0))
    counts = Counter(tuple(row) for row in drawn.tolist())
    assert set(counts) == {(i, j) for i in range(4) for j in range(i + 1, 4)}
    for count in counts.values():
        assert abs(count - 1000) < 5 * (6000 * 1 / 6 * 5 / 6) ** 0.5


def test_every_moment_is_equally_likely() -> None:
    drawn = draw_moments(3, 4000, 5, torch.Generator().manual_seed(0))
    assert drawn.shape == (4000, 3)
    counts = Counter(drawn.flatten().tolist())
    assert set(counts) == {1, 2, 3, 4, 5}
    for count in counts.values():
        assert abs(count - 2400) < 5 * (12000 * 1 / 5 * 4 / 5) ** 0.5


def test_the_most_that_some_nodes_send() -> None:
    assert most_sent(LOLLIPOP.edges, 1) == 3
    assert most_sent(LOLLIPOP.edges, 2) == 5
    assert most_sent(LOLLIPOP.edges, 99) == 12
    assert most_sent([], 2) == 0


@pytest.mark.parametrize(
    ("table", "words"),
    [
        (None, "expected a public tensor 'active' of 2 integers for each of 3 rounds"),
        (torch.zeros(3, dtype=torch.long), "2 integers"),
        (torch.zeros(3, 2), "2 integers"),
        (torch.tensor([[0, 1]] * 2), "3 rounds"),
        (torch.tensor([[0, 6]] * 3), "outside 0 to 5"),
        (torch.tensor([[-1, 0]] * 3), "outside 0 to 5"),
        (torch.tensor([[1, 1]] * 3), "declared twice"),
    ],
)
def test_a_schedule_that_does_not_fit_is_refused(table: torch.Tensor | None, words: str) -> None:
    public = {} if table is None else {"active": table}
    with pytest.raises(la.LeakauditError, match=words) as caught:
        PDMM(active=2).relations(RING, 3, public)
    assert "\n" not in str(caught.value)


def test_a_schedule_may_be_longer_than_the_run() -> None:
    table = torch.tensor([[0, 1], [2, 3], [4, 5]])
    assert torch.equal(read({"active": table}, "active", 2, 2, range(6)), table[:2])
