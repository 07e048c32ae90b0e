"""What an eavesdropper, curious nodes and one tapped kind of message recover of D-PSGD and its relatives, through the engine."""

from __future__ import annotations

import math
import runpy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import leakaudit as la
from leakaudit.theory.relations import Expression, Vector, determined, estimate, explain, know
from leakaudit.theory.relations.estimate import recorded
from leakaudit.traces.recorder import Recorder
from leakaudit.views.extraction import hearing
from leakaudit.views.extraction.deduction import Deduction

RUNS: dict[str, Any] = runpy.run_path(str(Path(__file__).with_name("test_victims_consensus.py")))
train, relations, gradient, miss, curious = (
    RUNS[n] for n in ("train", "relations", "gradient", "miss", "curious")
)
STEP, OWN, DTYPES = RUNS["STEP"], RUNS["OWN"], RUNS["DTYPES"]

RECOVERED: list[tuple[str, dict[str, Any], list[int]]] = [
    ("dpsgd", {"alpha": 0.1 * STEP}, list(range(30))),
    ("dpsgd", {"alpha": 0.1 * STEP, "order": "adapt"}, list(range(30))),
    ("tracking", {"alpha": 0.05 * STEP}, list(range(31))),
    ("extra", {"alpha": 0.6 * STEP}, list(range(30))),
    ("extra", {"alpha": 0.6 * STEP, "spread": 1.0}, list(range(1, 30))),
    ("nids", {"alphas": OWN}, list(range(2, 30))),
    ("nids", {"alphas": OWN, "spread": 1.0}, list(range(2, 30))),
    ("gossip", {}, [0]),
    ("muffliato", {"lr": 0.3 * STEP, "sigma": 0.0, "clip": 0.0}, [0, 5, 10, 15, 20, 25]),
]


@pytest.mark.parametrize("dtype", DTYPES, ids=["float64", "float32"])
@pytest.mark.parametrize(("name", "constants", "rounds"), RECOVERED)
def test_the_eavesdropper_recovers_gradients(
    name: str, constants: dict[str, Any], rounds: list[int], dtype: torch.dtype
) -> None:
    run = train(name, 30, dtype=dtype, **constants)
    found, error = miss(run)
    assert found == rounds
    assert error < (1e-12 if dtype == torch.float64 else 1e-5)
    (leak,) = la.leaks(run.trace, nodes=[0])
    assert leak.kind == ("difference" if name == "extra" and "spread" in constants else "gradient")


@pytest.mark.parametrize(
    ("name", "constants"), [(n, c) for n, c, _ in RECOVERED if "spread" not in c]
)
def test_the_formula_in_rationals_is_as_exact_as_the_wire(
    name: str, constants: dict[str, Any]
) -> None:
    run = train(name, 12, **constants)
    p, fetch = relations(run), recorded(la.Adversary().view(run.trace))
    g = p.gradients(0)[-1]
    formula = explain(know(p, la.Adversary(), own=False), g)
    assert formula is not None
    value = sum(float(v) * fetch(p.vectors[place]) for place, v in formula.terms.items())
    at = max(p.vectors[place].round for place in p.points[g.vector].terms)
    assert float((value - gradient(run, 0, at)).abs().max()) < 3e-14


def test_curious_nodes_need_all_that_a_node_mixes() -> None:
    for name in ("dpsgd", "extra"):
        run = train(name, 10, alpha=0.05)
        assert miss(run, curious(1))[0] == [0]
        rounds, error = miss(run, curious(1, 7))
        assert rounds == list(range(10))
        assert error < 1e-12
        assert len(la.leaks(run.trace, curious(3), nodes=[0])) == 0


def test_the_models_alone_give_gradient_tracking_away() -> None:
    p = relations(train("tracking", 8, alpha=0.05))
    k = know(p, la.Adversary())
    quiet = replace(k, known=k.known - {v.vector for v in p.select("message", name="y")})
    assert [str(e) for e in determined(quiet, p.gradients(0))] == [f"g[0,{t}]" for t in range(8)]


def between(run: Recorder, node: int, column: int) -> list[tuple[Expression, float]]:
    """Return the sums of gradients that one column of one node's messages gives away, with their values on that column."""
    p, fetch = relations(run), recorded(la.Adversary().view(run.trace))
    k = know(p, la.Adversary(), own=False)
    sent = [
        m for m in p.select("message", node, "q") if float(fetch(p.vectors[m.vector])[column]) != 0
    ]
    left = {
        p.find("r", node, p.vectors[m.vector].round).vector: torch.zeros(10, dtype=torch.float64)
        for m in sent
    }
    more = replace(k, known=k.known | left.keys())
    rows = determined(more, p.gradients(node))
    if not rows:
        return []
    places = {p.vectors[v].label: value for v, value in left.items()}
    got = estimate(more, rows).apply(
        lambda v: places[v.label] if v.label in places else fetch(v).double()
    )
    return [(row, float(got[j, column])) for j, row in enumerate(rows)]


@pytest.mark.parametrize("dtype", DTYPES, ids=["float64", "float32"])
@pytest.mark.parametrize("compress", ["top", "random", "fixed"])
def test_a_leak_of_some_coordinates_says_which_they_are(compress: str, dtype: torch.dtype) -> None:
    """Every entry with a mark is the sum of gradients that its row states; the others are zero."""
    run = train("choco", 14, dtype=dtype, alpha=0.3 * STEP, compress=compress)
    for leak in la.leaks(run.trace, nodes=[0, 2]):
        at = leak.theta_rounds.tolist()
        truth = torch.stack([gradient(run, leak.node, t) for t in at])
        off = (leak.combination @ truth - leak.value).abs()
        assert leak.seen is not None
        assert 2 <= int(leak.seen.any(1).sum()) == len(leak.seen)
        assert 0.01 < float(leak.seen.double().mean()) < 0.6
        assert float(off[leak.seen].max()) < (1e-11 if dtype == torch.float64 else 2e-5)
        assert not bool((leak.value[~leak.seen] != 0).any())
        assert leak.theta is None
        if compress == "fixed":
            assert leak.is_plain
            assert bool((leak.seen == leak.seen[:1]).all())


def test_whoever_cannot_read_gaps_is_not_given_any() -> None:
    trace = train("choco", 14, alpha=0.3 * STEP, compress="top").trace
    found = hearing.deduce(Deduction(trace, la.Adversary()), [0])
    assert len(found) == 0
    assert "on these, attacks read the sums" in found.undetermined[0]
    assert len(la.leaks(trace, la.Adversary.parse("node:1"), nodes=[0])) == 0


@pytest.mark.parametrize("dtype", DTYPES, ids=["float64", "float32"])
@pytest.mark.parametrize("compress", ["top", "random"])
def test_compression_hides_nothing_but_the_timing(compress: str, dtype: torch.dtype) -> None:
    run = train("choco", 14, dtype=dtype, alpha=0.3 * STEP, compress=compress)
    seen, widest = 0, 0
    for column in range(3):
        for row, value in between(run, 2, column):
            truth = sum(
                float(c) * float(gradient(run, 2, row.home[k].round - 1)[column])
                for k, c in row.terms.items()
            )
            assert value == pytest.approx(truth, abs=1e-11 if dtype == torch.float64 else 2e-5)
            seen, widest = seen + 1, max(widest, len(row.terms))
    assert seen >= 5
    assert widest >= 2


def test_a_quantizer_leaves_its_cell_on_every_gradient() -> None:
    run = train("choco", 40, alpha=0.1, compress="quantize", cell=1e-3)
    (leak,) = la.leaks(run.trace, nodes=[0])
    truth = torch.stack([gradient(run, 0, t) for t in leak.theta_rounds.tolist()])
    error = leak.combination @ truth - leak.value
    predicted = 1e-3 / math.sqrt(12) * math.sqrt(2) / 0.1
    assert leak.std[5:].numpy() == pytest.approx(np.full(len(leak.std) - 5, predicted), rel=0.02)
    assert float(error.square().mean().sqrt()) == pytest.approx(predicted, rel=0.15)


def test_with_l1_gradients_leak_where_models_are_not_zero() -> None:
    """There z = x + alpha l1 sign(x); published as exact on 73 % of the entries."""
    alpha, l1 = float(0.6 * STEP), 0.2
    run = train("extra", 12, alpha=alpha, l1=l1)
    assert len(la.leaks(run.trace)) == 0
    p, fetch = relations(run), recorded(la.Adversary().view(run.trace))
    k = know(p, la.Adversary(), own=False)
    more = replace(k, known=k.known | {z.vector for z in p.select("state", name="z")})
    rows = determined(more, p.gradients(0))
    assert [str(r) for r in rows] == [f"g[0,{t}]" for t in range(1, 13)]

    def value(v: Vector) -> torch.Tensor:
        if v.kind != "state":
            return fetch(v).double()
        x: torch.Tensor = fetch(
            replace(v, kind="message", name="w", dst=tuple(run.graph.neighbours[v.owner or 0]))
        )
        return x + alpha * l1 * x.sign()

    got, zero = estimate(more, rows).apply(value), run.truth_record.states["w"][:, 0] == 0
    for t, row in enumerate(got):
        shown = ~zero[1 : t + 2].any(0)  # every z in its sum is known there
        assert float((row - gradient(run, 0, t))[shown].abs().max()) < 1e-12
    there = train("extra", 200, wires=False, alpha=alpha, l1=l1).truth_record.states["w"][1:] != 0
    assert float((there[:-1] & there[1:]).double().mean()) == pytest.approx(0.73, abs=0.005)
