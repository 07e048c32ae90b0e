"""What recorded traces determine through the relations: partial taps, late starts, long runs, running sums, each against autograd."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import leakaudit as la
from leakaudit.core.leak import GradientLeak
from leakaudit.core.trace import Graph, Trace, Truth
from leakaudit.protocols import declared, recording
from leakaudit.protocols.declared import DECLARED
from leakaudit.protocols.scenario import Scenario
from leakaudit.theory.relations.estimate import _on_sums
from leakaudit.views.extraction import gradient_values
from leakaudit.views.extraction.deduction import Deduction

Run = tuple[recording.Plan, Trace, Truth]


def chorded(seed: int = 0, nodes: int = 10) -> Graph:
    """A ring of ten nodes with random chords: 30 directed edges for seed 0."""
    draw, edges = (
        np.random.default_rng(seed),
        {tuple(sorted((i, (i + 1) % nodes))) for i in range(nodes)},
    )
    for _ in range(nodes):
        a, b = draw.choice(nodes, 2, replace=False)
        edges.add(tuple(sorted((int(a), int(b)))))
    return Graph(nodes, tuple(sorted(edges)))  # type: ignore[arg-type]


def run(
    rounds: int = 20,
    dtype: str = "float64",
    graph: Graph | None = None,
    victim: str = "pdmm",
    **constants: Any,
) -> Run:
    steps = {"alpha": 0.02, "z0": 1.0} if victim == "pdmm" else {}
    scenario = Scenario(
        victim,
        10,
        "ring",
        rounds,
        "gaussians",
        12,
        model="logistic",
        set={"l2": 0.1, **steps, **constants},
        dtype=dtype,
        states=True,
    )
    plan = recording.plan(scenario)
    if graph is not None:
        plan = replace(plan, graph=graph, wires=list(graph.edges))
    recorder = recording.record(plan, None)
    return plan, recorder.trace, recorder.truth_record


def errors(plan: recording.Plan, truth: Truth, leak: GradientLeak) -> Tensor:
    """Largest error of every row."""
    x, y = truth.of(leak.node)
    models = truth.states["w"].double()
    g = torch.stack(
        [
            plan.task.gradient(models[t, leak.node], x.double(), y)
            for t in leak.theta_rounds.tolist()
        ]
    )
    return (leak.value - leak.combination @ g).abs().amax(1)


def with_pair(leak: GradientLeak, first: int) -> list[int]:
    """Rows that are a difference of the gradients of two rounds in a row."""
    rounds = leak.theta_rounds.tolist()
    return [
        k
        for k, row in enumerate(leak.combination)
        if {rounds[j] for j in row.nonzero()[:, 0].tolist()} == {first, first + 1}
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("update", "theta", "share", "taps", "nodes"),
    [
        ("gradient", 1.0, 0.7, 18, 6),
        ("gradient", 1.0, 0.5, 12, 3),
        ("gradient", 1.0, 0.4, 8, 0),
        ("exact", 0.5, 0.5, 12, 9),
    ],
)
@pytest.mark.parametrize(("dtype", "limit"), [("float64", 1e-12), ("float32", 5e-5)])
def test_taps_on_some_edges_give_differences_of_some_nodes(
    update: str, theta: float, share: float, taps: int, nodes: int, dtype: str, limit: float
) -> None:
    """RELATIONS section 4.2: 18 of 30 directed edges give g^10 - g^11 of six nodes, twelve of three, eight of none."""
    graph = chorded()
    plan, trace, truth = run(dtype=dtype, graph=graph, update=update, theta=theta)
    draw = np.random.default_rng(4)
    heard = frozenset(
        (i, j) for i in range(10) for j in graph.neighbours[i] if draw.random() < share
    )
    assert (len(graph.arcs), len(heard)) == (30, taps)
    leaks = la.leaks(trace, la.Adversary(hears=heard))
    first = 10 + (update == "exact")
    pairs = {leak.node: with_pair(leak, first) for leak in leaks}
    assert sum(map(bool, pairs.values())) == nodes
    for leak in leaks:
        whole = heard.issuperset(arc for arc in graph.arcs if leak.node in arc)
        assert leak.scope.startswith("lower bound") != whole
        assert all(errors(plan, truth, leak)[k] < limit for k in pairs[leak.node])


def test_a_few_taps_and_their_values() -> None:
    plan, trace, truth = run(
        rounds=8, graph=Graph(10, tuple((i, i + 1) for i in range(9))), update="exact"
    )
    (leak,) = la.leaks(trace, la.Adversary(hears=frozenset({(3, 4), (4, 3), (5, 4)})), [4])
    assert leak.scope.startswith("lower bound")
    assert errors(plan, truth, leak).max() < 1e-10


@pytest.mark.parametrize("constants", [{}, {"z0": 0.0}, {"theta": 0.5, "k_max": 3}])
def test_a_long_run_is_continued_from_a_short_declaration(constants: dict[str, Any]) -> None:
    """Rounds beyond the declared ones rest on copies of the last; their values are those of autograd, and the rank that of all rounds."""
    plan, trace, truth = run(rounds=5 * DECLARED, **constants)
    (leak,) = la.leaks(trace, nodes=[2])
    assert leak.theta_rounds.max() >= 5 * DECLARED - 3
    if "k_max" not in constants:
        assert errors(plan, truth, leak).max() < 1e-11
    else:
        assert leak.inner == 3
    assert len(leak.value) >= len(leak.theta_rounds) - 1


def test_a_late_start_says_nothing_of_what_was_before() -> None:
    plan, trace, truth = run(rounds=30)
    (leak,) = la.leaks(trace, la.Adversary(window=range(20, 28)), [2])
    assert leak.theta_rounds.min() >= 19
    assert errors(plan, truth, leak).max() < 1e-11


def test_absolute_gradients_are_taken_from_running_sums() -> None:
    _, trace, _ = run(rounds=40, z0=0.0)
    heard = Deduction(trace, la.Adversary())
    found = heard.of(0, 64)
    estimated = gradient_values.minimum_variance(heard, found.knowledge, found.rows)
    weights, running = _on_sums(estimated.vectors, estimated.weights)
    assert running
    assert np.count_nonzero(weights) < np.count_nonzero(estimated.weights) / 4
    plain = sum(
        float(w) * heard.fetch(v).double()
        for w, v in zip(estimated.weights[-1], estimated.vectors, strict=True)
    )
    torch.testing.assert_close(estimated.apply(heard.fetch)[-1], plain, rtol=0, atol=1e-11)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    "constants",
    [{}, {"theta": 0.5}, {"update": "quadratic", "mu": 10.0}, {"z0": 0.0}, {"differential": False}],
)
def test_the_predicted_noise_is_the_size_of_the_error(
    dtype: str, constants: dict[str, Any]
) -> None:
    plan, trace, truth = run(dtype=dtype, **constants)
    ratios = torch.cat([errors(plan, truth, leak) / leak.std for leak in la.leaks(trace)])
    assert 0.05 < ratios.median() < 4


def test_a_quantizer_is_noise_that_does_not_add_up() -> None:
    """What arrives is what counts, so a difference has the quantizer's error of a few messages, not of all before."""
    plan, trace, truth = run(rounds=40, quantize=1e-3)
    (leak,) = la.leaks(trace, nodes=[1])
    off = errors(plan, truth, leak)
    assert float(leak.std[0]) > 1e-3
    assert off[-5:].max() < 6 * leak.std.max()
    assert leak.std[5:].max() / leak.std[5:].min() < 1.5


def test_neighbours_that_share_a_neighbourhood_give_two_step_differences() -> None:
    """A curious node that hears all neighbours of another knows their models, and so the terms of its dual up to z^0."""
    graph = Graph(4, ((0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)))
    scenario = Scenario(
        "pdmm",
        4,
        "complete",
        12,
        "gaussians",
        12,
        model="logistic",
        set={"l2": 0.1, "alpha": 0.02},
        dtype="float64",
        states=True,
    )
    plan = recording.plan(scenario)
    recorder = recording.record(plan, None)
    assert plan.graph == graph
    (leak,) = la.leaks(recorder.trace, la.Adversary(hears="none", corrupt=frozenset({1})), [0])
    assert leak.theta is not None
    assert errors(plan, recorder.truth_record, leak).max() < 1e-9
    gaps = {tuple(leak.theta_rounds[row != 0].diff().tolist()) for row in leak.combination}
    assert (2,) in gaps


def test_constants_that_the_relations_do_not_hold_need_not_be_known() -> None:
    _, trace, _ = run(rounds=6)
    needed = frozenset({"rho", "theta", "update", "differential", "k_max", "quantize", "alpha"})
    assert len(la.leaks(trace, la.Adversary(knows=needed), [0])) == 1
    with pytest.raises(la.LeakauditError, match="does not know 'alpha'"):
        la.leaks(trace, la.Adversary(knows=needed - {"alpha"}), [0])


def test_constants_that_the_trace_does_not_name_are_said() -> None:
    _, trace, _ = run(rounds=6)
    params = {k: v for k, v in trace.params.items() if k != "theta"}
    (leak,) = la.leaks(replace(trace, params=params), nodes=[0])
    assert "does not state all constants; assumed: theta=1.0" in leak.scope


def test_a_message_that_is_declared_and_not_in_the_trace_is_named() -> None:
    scenario = Scenario(
        "pdmm", 5, "ring", 4, "gaussians", 3, model="logistic", wires="node:0", states=True
    )
    recorder = recording.record(recording.plan(scenario), None)
    with pytest.raises(la.LeakauditError, match="round 0 has no message 'z0' 1 -> 2"):
        declared.check(recorder.trace, recorder.truth_record)
