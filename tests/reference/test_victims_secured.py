"""SecureD-FL: Algorithm 3 in plain loops, its averaging, its partitions, and who learns what of recorded traces at which iteration."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection
from typing import Any

import numpy as np
import pytest
import torch
from effort import counted

import leakaudit as la
from leakaudit.core.trace import Graph, Trace, Truth
from leakaudit.protocols import declared, recording
from leakaudit.protocols.kirkman import partitions
from leakaudit.protocols.scenario import Scenario
from leakaudit.theory.relations import (
    Knowledge,
    Relations,
    account,
    determined,
    estimate,
    know,
)
from leakaudit.theory.relations import recorded as messages
from leakaudit.victims.secured import SecureD

Recorded = tuple[recording.Plan, Trace, Truth]


def record(
    nodes: int = 9,
    rounds: int = 8,
    dtype: str = "float64",
    data: str = "gaussians",
    samples: int = 3,
    seed: int = 0,
    **settings: Any,
) -> Recorded:
    model = {} if data == "gaussians" else {"bias": False}
    scenario = Scenario(
        victim="secured",
        nodes=nodes,
        graph="complete",
        rounds=rounds,
        data=data,
        samples=samples,
        model="logistic",
        set={**model, **settings},
        dtype=dtype,
        seed=seed,
        states=True,
        curves=True,
    )
    plan = recording.plan(scenario)
    recorder = recording.record(plan, None)
    return plan, recorder.trace, recorder.truth_record


def sums(trace: Trace, groups: torch.Tensor, t: int) -> torch.Tensor:
    """Return z of a round, as an outsider adds it up from what the first peer of every group tells another group."""
    view = la.Adversary().view(trace)
    ends = [(int(g[0]), int(groups[(k + 1) % len(groups)][0])) for k, g in enumerate(groups)]
    return torch.stack([view.message(t, i, j, "sum") for i, j in ends]).sum(0)


def z_of(victim: SecureD, trace: Trace, t: int) -> torch.Tensor:
    groups = trace.public["groups"]
    i = (t - 1) % victim.iterations + 1
    return sums(trace, groups[i % len(groups)], t)


def test_it_sends_what_algorithm_3_sends() -> None:
    plan, trace, truth = record(rounds=10, iterations=5, rho=0.4, local_steps=2)
    view, groups, n, rho = la.Adversary().view(trace), trace.public["groups"].tolist(), 9, 0.4
    model = trace.public["w0"].numpy()
    for r in range(2):
        w = np.empty((n, len(model)))
        for k in range(n):
            at = torch.tensor(model)
            for _ in range(2):
                at = at - 0.1 * plan.task.gradient(at, truth.of(k)[0].double(), truth.of(k)[1])
            w[k] = at.numpy()
        lam, z = truth.states["lam0"][5 * r + 1].numpy() + 0.5, np.zeros_like(model)
        assert ((lam >= 0) & (lam < 1)).all()
        for i in range(1, 6):
            t, y = 5 * r + i, np.empty_like(w)
            x = (2 * w - lam + rho * z) / (2 + rho)
            y = x + lam / rho
            for group in groups[i % 4]:
                total = sum(y[u] for u in group) / n
                for k, j in itertools.product(group, range(n)):
                    if j in group and j != k:
                        assert np.abs(view.message(t, k, j, "y").numpy() - y[k]).max() < 1e-12
                    elif j not in group:
                        assert np.abs(view.message(t, k, j, "sum").numpy() - total).max() < 1e-12
            z = y.mean(0)
            lam = lam + rho * (x - z)
        model = z


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"rho": 1.0, "iterations": 2},
        {"batch": 2, "local_steps": 3},
        {"group_size": 9, "partitions": 1},
        {"lam0": 0.0},
    ],
    ids=["default", "paper", "batches", "one group", "no lambda"],
)
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_the_declaration_is_what_runs(settings: dict[str, Any], dtype: str) -> None:
    _, trace, truth = record(rounds=6, dtype=dtype, **settings)
    found = declared.check(trace, truth)
    assert found.skipped == 0
    assert found.worst < 20 * torch.finfo(getattr(torch, dtype)).eps
    assert len(trace) == 9 * 8 * 6


@pytest.mark.parametrize("rho", [0.1, 1.0, 10.0])
def test_lemma_1_and_the_rate_of_lemma_2_from_the_second_iteration(rho: float) -> None:
    plan, trace, truth = record(rounds=12, iterations=12, rho=rho)
    victim = plan.victim
    assert isinstance(victim, SecureD)
    mean = truth.states["w"][1].mean(0)
    assert truth.states["lam"][1:].sum(1).abs().max() < 1e-12
    off = [z_of(victim, trace, t) - mean for t in range(1, 13)]
    for before, after in itertools.pairwise(off[:6]):
        assert torch.allclose(after, rho / (rho + 2) * before, rtol=0, atol=1e-12)
    first = 2 / (rho * (2 + rho)) * (truth.states["lam0"][1] + 0.5).mean(0) - rho / (2 + rho) * mean
    assert torch.allclose(off[0], first, rtol=0, atol=1e-12)


def test_the_error_falls_below_1e_13_after_four_iterations_on_ten_checkpoints() -> None:
    _, _, truth = record(rounds=70, iterations=7, rho=1e-3)
    mse = truth.states["mse"][1:].reshape(10, 7).mean(0)
    assert mse[3] < 1e-13 < mse[2]
    assert (mse[1:4] < 0.01 * mse[:3]).all()


def test_two_iterations_leave_a_quarter_of_lambda_in_every_coordinate() -> None:
    for rho in (1e-3, 1.0):
        _, _, truth = record(rounds=2, iterations=2, rho=rho)
        mean, start = truth.states["w"][1].mean(0), (truth.states["lam0"][1] + 0.5).mean(0)
        expected = 2 * start / (2 + rho) ** 2 - (rho / (2 + rho)) ** 2 * mean
        assert float(truth.states["mse"][2]) == pytest.approx(
            float(expected.square().mean()), rel=1e-6
        )


@pytest.mark.parametrize(
    ("nodes", "size", "count"),
    [(9, 3, 4), (15, 3, 5), (12, 3, 4), (16, 4, 4), (8, 2, 7), (25, 5, 6), (6, 6, 1)],
)
def test_partitions_where_nobody_meets_twice_within_a_million_calls(
    nodes: int, size: int, count: int
) -> None:
    for seed in range(5):
        with counted() as effort:
            found = partitions(nodes, size, count, torch.Generator().manual_seed(seed))
        assert effort.calls < 1_000_000
        assert [sorted(v for group in day for v in group) for day in found] == [
            list(range(nodes))
        ] * count
        assert {len(group) for day in found for group in day} == {size}
        met = [
            pair
            for day in found
            for group in day
            for pair in itertools.combinations(sorted(group), 2)
        ]
        assert len(set(met)) == len(met)
    assert found == partitions(nodes, size, count, torch.Generator().manual_seed(4))


@pytest.mark.parametrize(
    ("nodes", "size", "count", "words"),
    [
        (10, 3, 1, "does not divide"),
        (9, 3, 5, "at most 4"),
        (6, 3, 2, "at most 1"),
        (12, 3, 5, "use partitions=4"),
        (6, 2, 6, "at most 5 partitions"),
        (9, 1, 1, "does not"),
    ],
)
def test_partitions_that_are_not_there_are_refused_in_one_line(
    nodes: int, size: int, count: int, words: str
) -> None:
    with pytest.raises(la.LeakauditError, match=words) as caught:
        partitions(nodes, size, count, torch.Generator().manual_seed(0))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "settings", [{"rho": 0.0}, {"iterations": 0}, {"group_size": 1}, {"batch": -1}, {"lr": 0.0}]
)
def test_wrong_constants_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(la.LeakauditError, match="secured"):
        SecureD(**settings)


def test_an_incomplete_graph_is_refused() -> None:
    ring = Graph(9, tuple(sorted((min(i, (i + 1) % 9), max(i, (i + 1) % 9)) for i in range(9))))
    with pytest.raises(la.LeakauditError, match="graph=complete"):
        SecureD().schedule(ring, 1, torch.Generator())


def own_only(k: Knowledge) -> Knowledge:
    """Forget the group sums, but not z, as the paper's proof does."""
    p = k.declared
    told = {m.vector for m in p.select("message", name="sum")}
    rows = tuple(r for r in k.rows if told.isdisjoint(p.relations[r].terms))
    return Knowledge(p, (k.known - told) | {z.vector for z in p.select("state", name="z")}, rows)


def breaches(
    p: Relations, nodes: int, last: int, corrupt: Collection[int], *, with_sums: bool = True
) -> dict[int, int]:
    """Return the first iteration at which a coalition knows w_k, for every other peer that it ever does."""
    first: dict[int, int] = {}
    for i in range(1, last + 1):
        k = know(p, la.Adversary(hears="none", corrupt=frozenset(corrupt), window=range(i + 1)))
        k = k if with_sums else own_only(k)
        others = [q for q in range(nodes) if q not in corrupt]
        first = {q: i for q in others if determined(k, [p.find("w", q, 1)])} | first
    return first


def spans(
    p: Relations, nodes: int, last: int, size: int, *, with_sums: bool = True, every: int = 1
) -> tuple[int, int, int, int]:
    """Return earliest first breach, latest first breach, earliest and latest iteration at which all others are known."""
    found = [
        breaches(p, nodes, last, c, with_sums=with_sums)
        for c in list(itertools.combinations(range(nodes), size))[::every]
    ]
    everybody = [max(b.values()) if len(b) == nodes - size else last + 1 for b in found]
    firsts = [min(b.values()) for b in found]
    return min(firsts), max(firsts), min(everybody), max(everybody)


def test_who_is_known_at_which_iteration_of_nine_peers() -> None:
    plan, trace, _ = record(rounds=9, iterations=9, rho=0.8, local_steps=1)
    p = declared.protocol_of(trace).whole
    assert plan.victim.claims(trace.graph, 9)[0].rounds == 7
    assert spans(p, 9, 9, 1) == (5, 5, 6, 6)
    assert spans(p, 9, 9, 1, with_sums=False) == (5, 5, 8, 8)
    assert spans(p, 9, 5, 2) == (2, 3, 3, 4)
    assert spans(p, 9, 5, 3)[3] <= 4
    at_six = breaches(p, 9, 6, {0})
    assert [sum(v <= i for v in at_six.values()) for i in (4, 5, 6)] == [0, 2, 8]
    assert not breaches(p, 9, 2, {0})  # at the paper's I = 2 one cannot, two can


@pytest.mark.parametrize(
    ("count", "alone", "sums_first", "sums_all"), [(7, (8, 14), 6, 6), (5, (6, 16), 6, 6)]
)
def test_who_is_known_at_which_iteration_of_fifteen_peers(
    count: int, alone: tuple[int, int], sums_first: int, sums_all: int
) -> None:
    _, trace, _ = record(
        nodes=15,
        rounds=15,
        iterations=15,
        rho=0.8,
        partitions=count,
        samples=2,
        local_steps=1,
        seed=1,
    )
    p = declared.protocol_of(trace).whole
    earliest, _, _, latest = spans(p, 15, 15, 1, with_sums=False, every=4)
    assert (earliest, latest) == alone
    earliest, _, _, latest = spans(p, 15, 8, 1, every=4)
    assert (earliest, latest) == (sums_first, sums_all)
    earliest, _, _, latest = spans(p, 15, 6, 2, every=4)
    assert (earliest, latest) == (2, 5)


def test_outsiders() -> None:
    _, trace, _ = record(rounds=9, iterations=9, rho=0.8, local_steps=1)
    p = declared.protocol_of(trace).whole
    assert breaches(p, 9, 3, ()) == {}
    for i, count in ((1, 0), (2, 9)):
        k = know(p, la.Adversary(window=range(i + 1)))
        assert sum(bool(determined(k, [p.find("w", q, 1)])) for q in range(9)) == count
    for i, count in ((7, 0), (8, 9)):  # group sums alone
        k = know(p, la.Adversary(window=range(i + 1)))
        k = Knowledge(p, k.known - {m.vector for m in p.select("message", name="y")}, k.rows)
        assert sum(bool(determined(k, [p.find("w", q, 1)])) for q in range(9)) == count


@pytest.mark.parametrize(("dtype", "limit"), [("float64", 1e-9), ("float32", 1e-4)])
def test_one_curious_peer_computes_everybodys_update_at_the_sixth_iteration(
    dtype: str, limit: float
) -> None:
    plan, trace, truth = record(rounds=6, iterations=6, rho=0.8, dtype=dtype, local_steps=3)
    counts = []
    for i in (4, 5, 6):
        leaks = la.leaks(
            trace, la.Adversary(hears="none", corrupt=frozenset({0}), window=range(i + 1))
        )
        exact = [leak for leak in leaks if float(leak.std.max()) < limit]
        counts.append((len(leaks), len(exact)))
        for leak in exact:
            at, total = (
                trace.public["w0"].double(),
                torch.zeros(leak.value.shape[1], dtype=torch.float64),
            )
            for _ in range(3):
                g = plan.task.gradient(at, truth.of(leak.node)[0].double(), truth.of(leak.node)[1])
                at, total = at - 0.1 * g, total + g
            assert (leak.inner, leak.theta_rounds.tolist(), leak.combination.tolist()) == (
                3,
                [0],
                [[1.0]],
            )
            assert float((leak.value[0] - total).abs().max()) < limit
    assert counts == [
        (8, 0),
        (8, 2),
        (8, 8),
    ]  # before, everybody's is known up to the spread of lambda^0


@pytest.mark.parametrize(("dtype", "limit"), [("float64", 1e-9), ("float32", 1e-4)])
def test_an_outsider_who_hears_every_y_computes_every_update_from_two_iterations(
    dtype: str, limit: float
) -> None:
    _, trace, truth = record(rounds=12, dtype=dtype, rho=0.8, iterations=2, local_steps=1)
    leaks = la.leaks(trace, rounds=6)
    assert len(leaks) == 9
    start = torch.cat(
        [
            truth.states["w"][:1, 0],
            torch.stack([z_of(SecureD(iterations=2), trace, t) for t in range(2, 12, 2)]),
        ]
    ).double()
    for leak in leaks:
        update = (start - truth.states["w"][1::2, leak.node].double()) / 0.1
        assert leak.theta_rounds.tolist() == [0, 2, 4, 6, 8, 10]
        assert float((leak.value - update).abs().max()) < limit


@pytest.mark.parametrize(("rho", "widths"), [(1.0, (1, 0.4, 0.211, 0.123, 0.0758)), (10.0, ())])
def test_one_meeting_leaves_an_interval(rho: float, widths: tuple[float, ...]) -> None:
    _, trace, truth = record(
        rounds=5, iterations=5, rho=rho, data="faces", samples=1, local_steps=1
    )
    p = declared.protocol_of(trace).whole
    read, z = messages(la.Adversary().view(trace)), {}
    victim = declared.protocol_of(trace).victim
    assert isinstance(victim, SecureD)
    for t in range(1, 6):
        z[t] = z_of(victim, trace, t)
    a = 2 / (2 + rho)
    for i in range(1, 6):
        group = trace.public["groups"][i % 4][0].tolist()
        met = next(
            m.vector for m in p.select("message", group[0], "y") if p.vectors[m.vector].round == i
        )
        public = [v.vector for v in p.select("public")] + [
            v.vector for v in p.select("state", name="z")
        ]
        rows = tuple(
            r
            for r in range(len(p.relations))
            if not any(p.vectors[c].name == "sum" for c in p.relations[r].terms)
        )
        quiet = estimate(
            Knowledge(p, frozenset([met, *public]), rows),
            [p.find("w", group[0], 1)],
            rounding=1e-15,
        )
        width = a**i / (rho * sum(a**j for j in range(1, i + 1)))
        assert quiet.std[0] == pytest.approx(width / math.sqrt(12), rel=1e-6)
        if widths:
            assert width == pytest.approx(widths[i - 1], rel=5e-3)
        value = quiet.apply(lambda v: z[v.round] if v.name == "z" else read(v))[0]
        error = value - truth.states["w"][1, group[0]]
        assert float(error.std()) / quiet.std[0] == pytest.approx(1, abs=0.02)
        assert float(error.abs().max()) <= width / 2 * (1 + 1e-6)


def test_uniform_noise_is_not_priced_as_gaussian() -> None:
    _, trace, _ = record(rounds=1, iterations=2)
    p = declared.protocol_of(trace).whole
    with pytest.raises(la.LeakauditError, match="uniform"):
        account(know(p, la.Adversary()), p.gradients(0), 1.0)


def test_faces_come_back_bit_for_bit_from_two_iterations() -> None:
    made = Scenario(
        "secured",
        nodes=6,
        graph="complete",
        rounds=4,
        set={"hidden": "32", "iterations": 2, "partitions": 1, "local_steps": 1},
    )
    recorder = recording.record(recording.plan(made), None)
    found = la.attack(la.leaks(recorder.trace), generator=torch.Generator().manual_seed(0))
    assert [s.exact for s in la.score(found, recorder.truth_record)] == [(True,)] * 6


@pytest.mark.parametrize(("count", "safe"), [(1, 1), (4, 7)])
def test_the_promise_is_that_of_two_rounds_of_partitions_less_one(count: int, safe: int) -> None:
    (claim,) = SecureD(partitions=count).claims(Graph(9, ()), 8)
    assert claim.rounds == safe
    assert claim.promise.startswith(f"{safe} iterations")


def test_a_trace_without_its_partitions_is_refused() -> None:
    whole = Graph(6, tuple(itertools.combinations(range(6), 2)))
    for public in (
        {},
        {"groups": torch.zeros(1, 2, 3, dtype=torch.long)},
        {"groups": torch.arange(6)},
    ):
        with pytest.raises(la.LeakauditError, match="groups"):
            SecureD().relations(whole, 1, public)
