"""How long the linear engine takes on 100 nodes of degree six, against dense algebra in the same process.

python bench/relations.py [rounds]        one JSON line a figure, one thread
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import time
from collections.abc import Callable
from fractions import Fraction as Q
from functools import partial
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before numpy loads its algebra

import networkx as nx
import numpy as np

from leakaudit.adversary import Adversary
from leakaudit.relations import Knowledge, Relations, determined_each, estimate, know, later, steady
from leakaudit.relations.account import fisher, supremum
from leakaudit.relations.kkt import system

NODES, DEGREE = 100, 6


def pdmm(near: dict[int, list[int]], rounds: int) -> Relations:
    """Differential PDMM with one gradient step a round, theta = 1, random z^0."""
    p, rho, alpha = Relations(), Q(2, 5), Q(1, 50)
    w = {i: p.secret("w", i) for i in near}
    z = {(i, j): p.secret("z", i, j) for i in near for j in near[i]}
    for _ in p.rounds(rounds):
        for i in near:
            pull = sum(z[i, j] if i < j else -z[i, j] for j in near[i])
            w[i] = p.state("w", i, eq=(1 - alpha * rho * len(near[i])) * w[i] - alpha * (p.grad(i, at=w[i]) + pull))
        new = {(j, i): p.state("z", j, i, eq=z[i, j] + (2 * rho if i < j else -2 * rho) * w[i]) for i, j in z}
        for j, i in new:
            p.send(i, j, new[j, i] - z[j, i], name="dz")
        z = new
    return p


def dpnorm(rounds: int) -> tuple[Knowledge, float]:
    """One node of DP-Norm with two wires, K = 1, whose received duals are seen; and its mu in closed form."""
    p, mu, alpha, sigma = Relations(), Q(1, 20), Q(1, 5), 0.1
    gamma = 1 + alpha / (2 * mu)
    a, w = gamma / (gamma + 1), p.public("w")
    for _ in p.rounds(rounds):
        w = p.state("w", 0, eq=a * (w - mu * p.grad(0, at=w)))
        p.send(0, (1, 2), w + p.noise("n", sigma, 0), name="y")
    moved = np.cumsum(float(a) ** np.arange(1, rounds + 1)) * float(mu) / sigma
    return know(p, Adversary()), float(np.linalg.norm(moved))


def timed(what: str, work: Callable[[], Any], **also: Any) -> Any:
    """Print one figure and return the work's result."""
    start = time.perf_counter()
    result = work()
    print(json.dumps({"what": what, "seconds": round(time.perf_counter() - start, 3), **also}), flush=True)
    return result


def dense(k: Knowledge, targets: list[Any]) -> float:
    """Return the largest std of the same estimates by dense singular values, as a user without the engine would."""
    s = system(k, 1e-7)
    f, b = s.flat.toarray(), s.noise.toarray()
    c = np.zeros((f.shape[1], len(targets)))
    for j, e in enumerate(targets):
        for place, v in e.terms.items():
            c[s.columns[place], j] = float(v)
    left, size, right = np.linalg.svd(f)
    r = int((size > 1e-9 * size[0]).sum())
    fixed, free = left[:, :r] @ ((right[:r] @ c) / size[:r, None]), left[:, r:]
    shift = np.linalg.lstsq(b.T @ free, -(b.T @ fixed), rcond=None)[0]
    return float(np.linalg.norm(b.T @ (fixed + free @ shift), axis=0).max())


def main(rounds: int) -> None:
    """Measure everything once."""
    graph = nx.random_regular_graph(DEGREE, NODES, seed=1)
    near = {i: sorted(graph[i]) for i in range(NODES)}
    p = timed("declare the whole network", lambda: pdmm(near, rounds), rounds=rounds)
    k = know(p, Adversary())
    steps = [(p.gradients(i)[2 : rounds - 2]) for i in range(NODES)]
    wanted = [[a - b for a, b in itertools.pairwise(g)] for g in steps]
    middle = rounds // 2

    def windows() -> int:
        count, window = 0, k.within(range(middle - 3, middle + 4))
        for i in range(NODES):
            e = estimate(window.near([i]), [p.find("g", i, middle) - p.find("g", i, middle + 1)])
            count += len([later(e, p, by) for by in range(5 - middle, rounds - middle - 3)])
        return count

    timed("values, own rows, all nodes, every difference, weights of 7 rounds used again", windows, rounds=rounds)
    timed("rounds that repeat", lambda: steady(p))
    timed("values, own rows, all nodes, every difference, all rounds", lambda: [estimate(k.near([i]), wanted[i]) for i in range(NODES)])

    def ball(radius: int) -> float:
        around = nx.single_source_shortest_path_length(graph, 0, cutoff=radius)
        window = k.within(range(20, 25)).near(around)
        return float(estimate(window, [p.find("g", 0, 22) - p.find("g", 0, 23)]).amplification[0])

    if rounds >= 30:
        for radius in (1, 2):
            found = timed("window of 5 rounds, one difference", partial(ball, radius), radius=radius)
            print(json.dumps({"what": "its amplification", "radius": radius, "amplification": found}))
    small = pdmm(near, 12)
    g = {i: small.gradients(i) for i in range(NODES)}
    bases = timed("exact global ranks of all nodes", lambda: determined_each(know(small, Adversary()), g), rounds=12)
    print(json.dumps({"what": "rank of every node", "ranks": sorted({len(v) for v in bases.values()})}))

    one = know(pdmm({0: near[0], **{j: [0] for j in near[0]}}, 20), Adversary())
    few = [a - b for a, b in itertools.pairwise(one.declared.gradients(0)[2:18])]
    quick = timed("one node, 20 rounds, sparse", lambda: float(estimate(one, few).std.max()))
    slow = timed("one node, 20 rounds, dense singular values", lambda: dense(one, few))
    print(json.dumps({"what": "sparse over dense std", "ratio": quick / slow}))

    view, expected = dpnorm(2000)
    m = timed("DP-Norm mu, one node", lambda: supremum(fisher(view, view.declared.gradients(0)), np.ones(2000))[1], rounds=2000)
    print(json.dumps({"what": "mu over closed form", "mu": m, "ratio": m / expected}))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 200)
