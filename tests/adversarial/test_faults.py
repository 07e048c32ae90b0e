"""Does a lost message, a node that stops, or an edited file ever lower a price? Against own loops that lose the same messages."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from impulses import Key, Response
from quadratics import path, problem, protocol

from leakaudit.capture.gloo import engine
from leakaudit.capture.gloo.faults import Fault
from leakaudit.capture.gloo.setup import ProcessLayout
from leakaudit.cli import main
from leakaudit.core.adversary import Adversary
from leakaudit.core.errors import LeakauditError
from leakaudit.core.trace import Graph, Trace
from leakaudit.core.verdict import Verdict
from leakaudit.protocols import recording
from leakaudit.protocols.declared import Protocol, played
from leakaudit.protocols.mixing import metropolis
from leakaudit.protocols.scenario import Scenario
from leakaudit.protocols.topology import make
from leakaudit.traces import gaps
from leakaudit.views.accounting.adversaries import named
from leakaudit.views.accounting.compare import compare
from leakaudit.views.accounting.view_bound import view_bounds

ROUNDING = 1e-6
ALPHA, SIGMA = 0.3, 0.5


def lossy(made: Protocol, holds: int = 1) -> Protocol:
    """Return the protocol of a run that lost messages after round `holds`."""
    return replace(made, missing="messages are missing", holds=holds)


Lost = Callable[[int, int, int], bool]  # round, src, dst


def loop(
    graph: Graph, rounds: int, order: str, own: str, curvature: list[float], lost: Lost
) -> Response:
    """Run D-PSGD with noise on its messages, losing some: a node goes on with the last model that it has of a neighbour.

    Written from the paper's two lines, for quadratic losses from w0 = 0. Coordinate i is the impulse of node i's record, the others
    are one draw of noise each. A message that is lost is heard by nobody.
    """
    n = graph.nodes
    weights = metropolis(graph)
    w = np.array([[float(weights.get((i, j), 0)) for j in range(n)] for i in range(n)])
    size = n + n * rounds
    model, base = np.zeros((n, size)), np.zeros((n, size))
    held = np.zeros((n, n, size))  # held[i, j]: what node i has of node j's messages
    keys, rows = list[Key](), list[np.ndarray[Any, Any]]()
    for t in range(1, rounds + 1):
        gradient = np.array(curvature)[:, None] * model
        gradient[np.arange(n), np.arange(n)] += 1
        if order == "combine":
            model = np.array([w[i] @ held[i] for i in range(n)]) - ALPHA * gradient
            if own == "plain":
                model += np.diag(w)[:, None] * (base - held[np.arange(n), np.arange(n)])
        else:
            model = model - ALPHA * gradient
        base = model.copy()
        sent = model.copy()
        sent[np.arange(n), n + (t - 1) * n + np.arange(n)] += SIGMA
        for i, near in enumerate(graph.neighbours):
            held[i, i] = sent[i]
            for j in near:
                if not lost(t, i, j):
                    held[j, i] = sent[i]
                    keys.append((t, i, j, "w", False))
                    rows.append(sent[i].copy())
        if order == "adapt":
            model = np.array([w[i] @ held[i] for i in range(n)])
            if own == "plain":
                model += np.diag(w)[:, None] * (base - sent)
    payload = np.array(rows)
    moved = {(i, 0): payload[:, i] for i in range(n)}
    return Response(keys, moved, payload[:, n:], list(range(n)) * rounds)


def plan_of_faults(rng: random.Random, graph: Graph, rounds: int) -> Lost:
    """Draw lost messages, and perhaps a node that stops."""
    some = rng.choice([0.1, 0.3, 0.6])
    dropped = {
        (t, i, j) for t in range(1, rounds + 1) for i, j in graph.arcs if rng.random() < some
    }
    stopped, last = rng.choice([(-1, 0), (rng.randrange(graph.nodes), rng.randrange(rounds))])
    return lambda t, i, j: (t, i, j) in dropped or (i == stopped and t > last)


def test_the_loop_is_the_run_of_the_victim_without_faults() -> None:
    graph = make("star", 4, torch.Generator())
    for order, own in [
        ("combine", "noised"),
        ("combine", "plain"),
        ("adapt", "noised"),
        ("adapt", "plain"),
    ]:
        made = protocol("dpsgd", graph, 4, order=order, own=own, alpha=ALPHA, sigma=SIGMA)
        response = loop(graph, 4, order, own, [0.0] * 4, lambda t, i, j: False)
        for node, adversary in ((0, "eavesdropper"), (1, "node:0"), (2, "node:1")):
            who = Adversary.parse(adversary)
            (found,) = view_bounds(made, who, [node])
            assert found.linear == pytest.approx(response.mu(node, 0, who), rel=ROUNDING), (
                order,
                own,
                node,
            )


@pytest.mark.slow
def test_a_run_with_faults_never_reaches_more_than_its_price(
    fresh_seed: int, fresh_cases: Callable[[int], int]
) -> None:
    """100 random fault plans of D-PSGD, with curvature: the price counts all rounds and every message."""
    priced = 0
    for seed in range(fresh_seed, fresh_seed + fresh_cases(100)):
        rng = random.Random(seed)
        graph = make(
            rng.choice(["ring", "star", "complete"]), rng.choice([3, 4, 5]), torch.Generator()
        )
        rounds, order, own = (
            rng.choice([2, 4, 6]),
            rng.choice(["combine", "adapt"]),
            rng.choice(["noised", "plain"]),
        )
        bend = rng.choice([0.0, 1.0, 4.0])
        curvature = [rng.uniform(-bend, bend) for _ in range(graph.nodes)]
        response = loop(graph, rounds, order, own, curvature, plan_of_faults(rng, graph, rounds))
        made = lossy(
            protocol("dpsgd", graph, rounds, order=order, own=own, alpha=ALPHA, sigma=SIGMA)
        )
        for node in range(graph.nodes):
            near = graph.neighbours[node][0]
            for who in (Adversary(), Adversary(hears="none", corrupt=frozenset({near}))):
                for smoothness in (None, bend):
                    (found,) = view_bounds(made, who, [node], smoothness=smoothness)
                    assert not found.refused
                    assert found.rounds == rounds
                    if found.mu is not None:
                        assert response.mu(node, 0, who) <= found.mu * (1 + ROUNDING) + 1e-9, (
                            seed,
                            node,
                            str(who),
                            found,
                        )
                        priced += 1
    assert priced


@pytest.mark.slow
def test_no_fault_lowers_a_price(fresh_seed: int, fresh_cases: Callable[[int], int]) -> None:
    """100 random protocols, listeners and last sound rounds, over all victims: with lost messages mu is as large, or not given."""
    given = 0
    for seed in range(fresh_seed, fresh_seed + fresh_cases(100)):
        one = problem(seed)
        rounds = one.protocol.rounds
        for smoothness in (None, 1.0):
            (whole,) = view_bounds(one.protocol, one.adversary, [one.node], smoothness=smoothness)
            for holds in {0, random.Random(seed).randrange(rounds)}:
                (found,) = view_bounds(
                    lossy(one.protocol, holds), one.adversary, [one.node], smoothness=smoothness
                )
                assert found.rounds == rounds, one.says
                assert found.linear is None or found.gradients == 0 or found.mu == math.inf, (
                    one.says
                )
                if found.mu is None:
                    assert found.epsilon is None
                    continue
                given += 1
                assert whole.mu is None or found.mu >= whole.mu * (1 - 1e-9), one.says
                assert whole.linear is None or found.mu >= whole.linear * (1 - 1e-9), one.says
    assert given > 20


def scenario(victim: str, **constants: Any) -> Scenario:
    base: dict[str, Any] = {
        "nodes": 4,
        "graph": "ring",
        "rounds": 8,
        "data": "gaussians",
        "model": "logistic",
        "dtype": "float64",
    }
    return Scenario(victim, set=constants, **base)


def faulty(victim: str, fault: str, file: Path | None, **constants: Any) -> Trace:
    """Record a run in which something goes wrong."""
    plan = recording.plan(scenario(victim, **constants))
    return engine.record(
        plan, file, ProcessLayout(4, 30.0, (Fault.parse(fault),)), threads=True
    ).trace


@pytest.mark.parametrize("fault", ["drop:0-1@3", "stop:2@4", "drop:1-2@1"])
def test_a_recorded_run_is_priced_over_all_rounds(fault: str) -> None:
    """D-PSGD that adapts first, eight rounds: mu .566 of node 2 became .283, though it lost nothing and sent in all rounds."""
    trace = faulty("dpsgd", fault, None, order="adapt", sigma=0.5, alpha=0.1)
    assert gaps.sound(trace) is not None
    made = played(trace)
    assert made.rounds == 8
    for node in range(4):
        (found,) = view_bounds(made, Adversary(), [node])
        assert found.mu == pytest.approx(math.sqrt(8) * 0.1 / 0.5)
        assert found.rounds == 8
        assert "missing" in str(found.basis)


@pytest.mark.parametrize("holds", [0, 1, 5, 8, 900, None, "three", -4])
def test_an_edited_provenance_never_lowers_a_price(holds: Any) -> None:
    for constants in ({"order": "adapt"}, {"order": "combine"}):
        plan = recording.plan(scenario("dpsgd", sigma=0.5, alpha=0.1, **constants))
        trace = recording.record(plan, None).trace
        edited = replace(
            trace, provenance={**trace.provenance, "holds_until": holds, "missing": []}
        )
        (whole,) = view_bounds(played(trace), Adversary(), [1])
        if not isinstance(holds, int | None):
            with pytest.raises(LeakauditError, match="holds_until"):
                played(edited)
            continue
        (found,) = view_bounds(played(edited), Adversary(), [1])
        assert found.rounds == whole.rounds == 8
        assert found.mu == pytest.approx(whole.mu)
        assert found.node_mu == pytest.approx(whole.node_mu)


def test_table_and_json_say_how_many_rounds_are_priced_and_why(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A claim of DP-Norm is not settled by two rounds of eight; quiet output says so as well."""
    file = tmp_path / "trace.pt"
    faulty("dpnorm", "drop:0-1@3", file, sigma=0.5)
    assert main(["bound", str(file), "-f", "json", "-q"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {one["rounds_priced"] for one in found} == {8}
    assert all("messages of round 3 or later are missing" in one["level"] for one in found)
    assert main(["bound", str(file), "-q"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "rounds: 8" in said
    assert "messages of round 3 or later are missing" in said


def test_a_claim_is_not_refuted_nor_upheld_by_what_a_faulty_run_is_not_known_to_reach() -> None:
    made = protocol(
        "dpsgd",
        path(4),
        6,
        alpha=0.03,
        epsilon=1.0,
        noise="step",
        horizon=6,
        samples=4000,
        steps=1,
        order="adapt",
    )
    (whole,) = compare(made, named([Adversary()], [1], 4))
    (found,) = compare(lossy(made), named([Adversary()], [1], 4))
    assert whole.verdict is Verdict.REFUTED
    assert found.verdict is Verdict.INCONCLUSIVE
    assert "not known whether this is attained" in found.why
    assert found.least is None


def test_a_leak_before_the_first_loss_stays_a_leak() -> None:
    trace = faulty("dpsgd", "drop:0-1@3", None, order="adapt", alpha=0.1)
    (found,) = view_bounds(played(trace), Adversary(), [2])
    assert found.mu == math.inf
    (found,) = view_bounds(lossy(played(trace), holds=0), Adversary(), [2])
    assert found.mu is None
    assert "record a run without the fault" in found.refused


def test_a_run_that_ended_early_counts_the_round_that_was_under_way() -> None:
    plan = recording.plan(scenario("dpsgd", order="adapt", sigma=0.5))
    trace = recording.record(plan, None).trace
    cut = replace(trace, rounds=5, complete=False, provenance={**trace.provenance, "planned": 8})
    (found,) = view_bounds(played(cut), Adversary(), [0])
    assert found.rounds == 6
    assert found.mu == pytest.approx(math.sqrt(6) * 0.1 / 0.5)


def test_pricing_a_long_faulty_run_is_as_quick_as_one_without() -> None:
    """300 rounds of ten nodes: each node's own relations are all that is solved."""
    graph = make("ring", 10, torch.Generator())
    made = lossy(protocol("dpsgd", graph, 300, order="adapt", sigma=0.5))
    found = list(view_bounds(made, Adversary(hears="none", corrupt=frozenset({0})), range(1, 10)))
    assert all(one.mu == pytest.approx(math.sqrt(300) * 0.1 / 0.5) for one in found)
