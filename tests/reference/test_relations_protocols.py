"""What views determine, protocol by protocol, in exact arithmetic: PDMM, DP-Norm, RECAL, D-PSGD, EXTRA, NIDS, FedAvg.

The declarations at the top are the fixtures; other tests load them from here.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping, Sequence
from fractions import Fraction as Q
from typing import Literal

import pytest

from leakaudit.core.adversary import Adversary
from leakaudit.theory.relations import (
    Expression,
    Relations,
    determined,
    know,
)

Around = Mapping[int, Sequence[int]]
Weights = Sequence[Sequence[Q]]


def ring(n: int) -> dict[int, list[int]]:
    return {i: sorted({(i - 1) % n, (i + 1) % n}) for i in range(n)}


def pdmm(
    p: Relations,
    near: Around,
    rounds: int,
    *,
    rho: Q = Q(2, 5),
    theta: Q = Q(1),
    update: Literal["exact", "gradient", "quadratic"] = "gradient",
    alpha: Q = Q(1, 50),
    mu: Q = Q(40),
    differential: bool = True,
    secret: bool = True,
    noise: float = 0,
) -> None:
    """z_{i|j} is held by i; gradients are stamped with the round whose update uses them."""
    sign = {(i, j): 1 if i < j else -1 for i in near for j in near[i]}
    w = {i: p.secret("w", i) for i in near}
    z = {(i, j): p.secret("z", i, j) if secret else p.public(f"z{i}", j) for i, j in sign}
    for _ in p.rounds(rounds):
        pull = {i: sum(sign[i, j] * z[i, j] for j in near[i]) for i in near}
        for i in near:
            degree, g = len(near[i]), p.grad(i, at=w[i])
            if update == "exact":
                w[i] = p.state("w", i, eq=-(g + pull[i]) / (rho * degree))
            elif update == "gradient":
                w[i] = p.state("w", i, eq=w[i] - alpha * (g + pull[i] + rho * degree * w[i]))
            else:
                w[i] = p.state("w", i, eq=(mu * w[i] - g - pull[i]) / (mu + rho * degree))
        new = {}
        for i, j in sign:
            out = w[i] + p.noise("n", noise, i, j) if noise else w[i]
            new[j, i] = p.state(
                "z", j, i, eq=(1 - theta) * z[j, i] + theta * (z[i, j] + 2 * rho * sign[i, j] * out)
            )
            p.send(i, j, new[j, i] - z[j, i] if differential else new[j, i], name="dz")
        z = new


def dpnorm(
    p: Relations,
    near: Around,
    rounds: int,
    *,
    steps: int = 1,
    mu: Q = Q(1, 20),
    alpha: Q = Q(1, 5),
    sigma: float = 0,
) -> None:
    """DP-Norm: K local steps, then the dual goes over every wire; the noise of a round is one draw for all wires."""
    z = {(i, j): p.public(f"z{i}", j) for i in near for j in near[i]}
    w = {i: p.public("w", i) for i in near}
    for _ in p.rounds(rounds):
        sent = {}
        for i in near:
            degree = len(near[i])
            eta = 1 / (mu * degree * steps)
            gamma = 1 + alpha * eta
            a = gamma / (gamma + eta * mu * degree)
            pull = sum((1 if i < j else -1) * z[i, j] for j in near[i])
            for k in range(steps):
                w[i] = p.state(
                    "w",
                    i,
                    k,
                    eq=a * (w[i] - mu * p.grad(i, at=w[i], index=k) + mu * eta / gamma * pull),
                )
            out = w[i] + p.noise("n", sigma, i) if sigma else w[i]
            for j in near[i]:
                sent[i, j] = p.send(
                    i, j, 2 / gamma * (z[i, j] - (1 if i < j else -1) * out) - z[i, j], name="y"
                )
        z = {(i, j): sent[j, i] for i, j in sent}


def gossip(
    p: Relations,
    weights: Weights,
    rounds: int,
    *,
    step: Q = Q(1, 10),
    sigma: float = 0,
    noised: bool = True,
) -> None:
    """D-PSGD and DP-dKM: every node sends its model, noised or not, to its neighbours and mixes; noised=False mixes what was not noised."""
    n = len(weights)
    x = {i: p.public("x", i) for i in range(n)}
    for _ in p.rounds(rounds):
        m = {}
        for i in range(n):
            to = [j for j in range(n) if weights[i][j] and j != i]
            m[i] = p.send(i, to, x[i] + p.noise("n", sigma, i) if sigma else x[i], name="x")
        source = m if noised else dict(x)
        old = dict(x)
        for i in range(n):
            mixed = sum(w * source[j] for j, w in enumerate(weights[i]) if w)
            x[i] = p.state("x", i, eq=mixed - step * p.grad(i, at=old[i]))


def extra(
    p: Relations, weights: Weights, rounds: int, *, step: Q = Q(1, 10), public: bool = True
) -> None:
    """EXTRA: x^{k+2} = (I + W) x^{k+1} - (I + W)/2 x^k - a (g^{k+1} - g^k); x is sent from the first step on."""
    nodes = range(len(weights))
    half = [[(w + (i == j)) / 2 for j, w in enumerate(row)] for i, row in enumerate(weights)]
    old = {i: p.public("x0", i) if public else p.secret("x0", i) for i in nodes}
    x, last = dict(old), dict[int, Expression]()
    for t in p.rounds(rounds):
        g = {i: p.grad(i, at=x[i]) for i in nodes}
        new = {}
        for i in nodes:
            first = sum(w * x[j] for j, w in enumerate(weights[i]) if w) - step * g[i]
            later = sum(h * (2 * x[j] - old[j]) for j, h in enumerate(half[i]) if h) - step * (
                g[i] - last.get(i, g[i])
            )
            new[i] = p.state("x", i, eq=first if t == 1 else later)
            p.send(i, [j for j in nodes if weights[i][j] and j != i], new[i], name="x")
        old, x, last = x, new, g


def nids(p: Relations, weights: Weights, rounds: int, *, public: bool = True) -> None:
    """NIDS with a step 1/(3 + i) a node: m^k = 2 x^k - x^{k-1} - a (g^k - g^{k-1}) is sent, x^{k+1} = Wn m^k; round k + 1 holds g^k."""
    nodes = range(len(weights))
    step, c = [Q(1, 3 + i) for i in nodes], Q(3, 2)
    mix = [
        [(i == j) - c * step[i] * ((i == j) - w) for j, w in enumerate(row)]
        for i, row in enumerate(weights)
    ]
    old = {i: p.public("x0", i) if public else p.secret("x0", i) for i in nodes}
    x, last = dict(old), dict[int, Expression]()
    for t in p.rounds(rounds):
        g = {i: p.grad(i, at=x[i]) for i in nodes}
        m = (
            {
                i: p.send(i, None, 2 * x[i] - old[i] - step[i] * (g[i] - last[i]), name="m")
                for i in nodes
            }
            if t > 1
            else {}
        )
        old, last = dict(x), g
        for i in nodes:
            x[i] = p.state(
                "x",
                i,
                eq=sum(v * m[j] for j, v in enumerate(mix[i]) if v)
                if t > 1
                else x[i] - step[i] * g[i],
            )


def recal(
    p: Relations,
    walk: Sequence[int],
    nodes: int,
    *,
    sigma: float = 0,
    where: Literal["x", "lam"] = "x",
) -> None:
    """RECAL and DP-RECAL: one active node a round; y is public, its prox is nonlinear and not declared."""
    s, tau = [Q(1, 2) + Q(i, 10) for i in range(nodes)], Q(1, 4)
    x, lam = (
        {i: p.public("x", i) for i in range(nodes)},
        {i: p.public("lam", i) for i in range(nodes)},
    )
    y, total = p.public("y"), p.public("s")
    for t in p.rounds(len(walk)):
        i = walk[t - 1]
        dual = lam[i] + s[i] * (x[i] - y)
        y_new = p.public("y")
        x_new = x[i] - tau * (p.grad(i, at=x[i]) + dual)
        xi = p.noise("xi", sigma, i) if sigma else None
        x_new = p.state("x", i, eq=x_new + xi if xi is not None and where == "x" else x_new)
        lam_new = dual + s[i] * (x_new - x[i] - y_new + y)
        lam_new = p.state(
            "lam", i, eq=lam_new + xi if xi is not None and where == "lam" else lam_new
        )
        total = p.send(i, None, total + lam_new - lam[i], name="s")
        x[i], lam[i], y = x_new, lam_new, y_new


def fedavg(
    p: Relations, nodes: int, rounds: int, steps: int, *, step: Q = Q(1, 10), decay: Q = Q(0)
) -> None:
    """FedAvg over a server, which is node `nodes`; w0 is public."""
    model: Expression = p.public("w0")
    for _ in p.rounds(rounds):
        sent = []
        for i in range(nodes):
            w = model
            for k in range(steps):
                w = p.state("w", i, k, eq=(1 - step * decay) * w - step * p.grad(i, at=w, index=k))
            sent.append(p.send(i, nodes, w, name="w"))
        model = p.send(nodes, range(nodes), sum(sent[1:], start=sent[0]) / nodes, name="model")


EAVESDROPPER = Adversary()
RING = ring(6)
CHORD = {**RING, 0: [1, 3, 5], 3: [0, 2, 4]}  # node 0 and 3 have degree three
THIRD = [[Q(1, 3) if (i - j) % 6 in (0, 1, 5) else Q(0) for j in range(6)] for i in range(6)]


def curious(*nodes: int) -> Adversary:
    return Adversary(hears="none", corrupt=frozenset(nodes))


def names(found: Sequence[Expression]) -> list[str]:
    return [str(e) for e in found]


def gradients(*rounds: int) -> list[str]:
    return [f"g[0,{t}]" for t in rounds]


def differences(*rounds: int) -> list[str]:
    return [f"g[0,{t}] - g[0,{t + 1}]" for t in rounds]


@pytest.mark.parametrize("theta", [Q(1), Q(1, 2)])
@pytest.mark.parametrize("update", ["exact", "gradient", "quadratic"])
def test_pdmm_on_all_edges(theta: Q, update: Literal["exact", "gradient", "quadratic"]) -> None:
    first = (
        1 if update == "exact" else 2
    )  # an inexact step starts from a model whose z is not seen either

    def found(*, differential: bool, secret: bool) -> list[str]:
        p = Relations()
        pdmm(p, CHORD, 8, theta=theta, update=update, differential=differential, secret=secret)
        return names(determined(know(p, EAVESDROPPER), p.gradients(0)))

    assert found(differential=False, secret=True) == gradients(*range(first + 1, 9))
    assert found(differential=True, secret=True) == differences(*range(first, 8))
    assert found(differential=True, secret=False) == gradients(*range(first, 9))


def test_pdmm_seen_by_neighbours() -> None:
    p = Relations()
    pdmm(p, CHORD, 8)
    for adversary, leaks in ((curious(1), []), (curious(1, 3, 5), gradients(*range(2, 9)))):
        k = know(p, adversary)
        assert names(determined(k, p.gradients(0))) == leaks
        assert names(determined(k, p.select("state", 0, "w"))) == [f"w[0,{t}]" for t in range(1, 9)]


@pytest.mark.parametrize("sigma", [0, 0.1])
@pytest.mark.parametrize(
    ("steps", "leak"),
    [(1, "g[0|0,{t}]"), (3, "g[0|0,{t}] + 6/5 g[0|1,{t}] + 36/25 g[0|2,{t}]")],
    ids=["one step", "three"],
)
def test_dp_norm(steps: int, leak: str, sigma: float) -> None:
    p = Relations()
    dpnorm(p, RING, 4, steps=steps, sigma=sigma)
    k, expected = know(p, EAVESDROPPER), [leak.format(t=t) for t in range(1, 5)]
    assert names(determined(k, p.gradients(0))) == ([] if sigma else expected)
    assert names(determined(k, p.gradients(0), up_to_noise=True)) == expected


@pytest.mark.parametrize(("sigma", "where"), [(0, "x"), (0.1, "x"), (0.1, "lam")])
def test_recal(sigma: float, where: Literal["x", "lam"]) -> None:
    steps = random.Random(0)
    walk = [s % 6 for s in itertools.accumulate([0, *(steps.choice((-1, 1)) for _ in range(20))])]
    p = Relations()
    recal(p, walk, 6, sigma=sigma, where=where)
    k, every = know(p, EAVESDROPPER), names(p.gradients(0))
    assert len(every) > 1
    assert names(determined(k, p.gradients(0))) == ([] if sigma else every)
    assert names(determined(k, p.gradients(0), up_to_noise=True)) == every


@pytest.mark.parametrize(
    ("adversary", "last"),
    [(EAVESDROPPER, 7), (curious(1), 1), (curious(2), 0), (curious(1, 5), 7)],
    ids=["all", "one", "far", "both"],
)
def test_d_psgd_needs_all_broadcasts_that_a_node_mixes(adversary: Adversary, last: int) -> None:
    p = Relations()
    gossip(p, THIRD, 8)
    assert names(determined(know(p, adversary), p.gradients(0))) == gradients(*range(1, last + 1))


def test_extra_leaks_gradients_or_differences() -> None:
    for public, expected in ((True, gradients(*range(1, 9))), (False, differences(*range(2, 8)))):
        p = Relations()
        extra(p, THIRD, 8, public=public)
        assert names(determined(know(p, EAVESDROPPER), p.gradients(0))) == expected


def test_nids_leaks_absolute_gradients_from_the_third_on() -> None:
    for public, more in ((True, ["g[0,1] + g[0,2]"]), (False, [])):
        p = Relations()
        nids(p, THIRD, 8, public=public)
        assert names(determined(know(p, EAVESDROPPER), p.gradients(0))) == [
            *more,
            *gradients(*range(3, 9)),
        ]


@pytest.mark.parametrize(
    ("decay", "weights"), [(Q(0), ("", "")), (Q(1, 100), ("1000/999 ", "1000000/998001 "))]
)
def test_fedavg_leaks_the_weighted_sum_of_a_round(decay: Q, weights: tuple[str, str]) -> None:
    p = Relations()
    fedavg(p, 3, 2, 3, decay=decay)
    found = names(determined(know(p, EAVESDROPPER), p.gradients(0)))
    assert found == [
        f"g[0|0,{t}] + {weights[0]}g[0|1,{t}] + {weights[1]}g[0|2,{t}]" for t in (1, 2)
    ]


def test_a_window_and_unknown_public_vectors_weaken_a_view() -> None:
    p = Relations()
    gossip(p, THIRD, 8)
    assert names(determined(know(p, Adversary(window=range(3, 6))), p.gradients(0))) == gradients(
        3, 4
    )
    p = Relations()
    pdmm(p, CHORD, 8, secret=False)
    assert (
        len(determined(know(p, Adversary(knows=frozenset())), p.gradients(0)))
        == len(determined(know(p, EAVESDROPPER), p.gradients(0))) - 1
    )
