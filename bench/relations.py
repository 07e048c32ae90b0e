"""Time of the linear engine on 100 nodes of degree six, against dense numpy algebra in one process.

python bench/relations.py [name ...]
    values, ranks, mu, apply (default: all); one JSON line per figure, one thread

Dense algebra gets smaller problems of the same kind, which the engine solves as well; seconds are
elapsed time, cpu is CPU time.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction as Q
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before numpy loads its linear algebra

import networkx as nx
import numpy as np
import torch
from numpy.typing import NDArray

from leakaudit.core.adversary import Adversary
from leakaudit.theory.relations import (
    Estimate,
    Expression,
    Knowledge,
    Relations,
    Vector,
    account,
    determined,
    estimate,
    extend,
    know,
)
from leakaudit.theory.relations.kkt import system
from leakaudit.theory.relations.repeat import steady

NODES, DEGREE, ROUNDS = 100, 6, 200
WINDOW = range(2, 9)
Near = dict[int, list[int]]
Array = NDArray[np.float64]
torch.set_num_threads(1)


def pdmm(near: Near, rounds: int) -> Relations:
    """Declare differential PDMM with one gradient step per round, theta = 1, random z^0."""
    p, rho, alpha = Relations(), Q(2, 5), Q(1, 50)
    w = {i: p.secret("w", i) for i in near}
    z = {(i, j): p.secret("z", i, j) for i in near for j in near[i]}
    for _ in p.rounds(rounds):
        for i in near:
            pull = sum(z[i, j] if i < j else -z[i, j] for j in near[i])
            w[i] = p.state(
                "w",
                i,
                eq=(1 - alpha * rho * len(near[i])) * w[i] - alpha * (p.grad(i, at=w[i]) + pull),
            )
        new = {
            (j, i): p.state("z", j, i, eq=z[i, j] + (2 * rho if i < j else -2 * rho) * w[i])
            for i, j in z
        }
        for j, i in new:
            p.send(i, j, new[j, i] - z[j, i], name="dz")
        z = new
    return p


def dpnorm(rounds: int) -> tuple[Knowledge, float]:
    """One node of DP-Norm with two channels, K = 1, and known received duals; and its mu in closed
    form.
    """
    p, mu, alpha, sigma = Relations(), Q(1, 20), Q(1, 5), 0.1
    gamma = 1 + alpha / (2 * mu)
    a, w = gamma / (gamma + 1), p.public("w")
    for _ in p.rounds(rounds):
        w = p.state("w", 0, eq=a * (w - mu * p.grad(0, at=w)))
        p.send(0, (1, 2), w + p.noise("n", sigma, 0), name="y")
    moved = np.cumsum(float(a) ** np.arange(1, rounds + 1)) * float(mu) / sigma
    return know(p, Adversary()), float(np.linalg.norm(moved))


def random_graph(nodes: int) -> Near:
    """Return a random graph of degree six."""
    graph = nx.random_regular_graph(DEGREE, nodes, seed=1)
    return {i: sorted(graph[i]) for i in range(nodes)}


def timed(what: str, work: Callable[[], Any], **also: Any) -> Any:
    """Print one figure and return the result of the work."""
    start, used = time.perf_counter(), time.process_time()
    result = work()
    seconds = {
        "seconds": round(time.perf_counter() - start, 3),
        "cpu": round(time.process_time() - used, 3),
    }
    print(json.dumps({"what": what, **seconds, **also}), flush=True)
    return result


def said(what: str, **figures: Any) -> None:
    """Print figures that are not times."""
    print(json.dumps({"what": what, **figures}), flush=True)


def values() -> None:
    """Weights of every node's differences: one window of rounds is valid for all rounds."""
    near = random_graph(NODES)
    base = timed("declare 9 rounds of the whole network", partial(pdmm, near, 9))

    def windows() -> list[Estimate]:
        part = know(base, Adversary()).within(WINDOW)
        return [
            estimate(part.near([i]), [base.find("g", i, 5) - base.find("g", i, 6)]) for i in near
        ]

    found = timed(
        "weights of all 100 nodes, own rows, window of 7 rounds",
        windows,
        target=5,
    )

    own = know(base, Adversary()).near([0])
    longer = timed(
        "own rows of one node, continued",
        lambda: extend(base, steady(base, 3), own.rows, range(1, ROUNDS)),
        rounds=ROUNDS,
    )
    wanted = [a - b for a, b in itertools.pairwise(longer.gradients(0)[2 : ROUNDS - 3])]
    every = timed(
        "weights of one node, every difference, all rounds at once",
        partial(estimate, know(longer, Adversary()), wanted),
    )
    said(
        "amplification",
        window=float(found[0].amplification[0]),
        all_rounds=float(every.amplification.mean()),
    )
    part = know(base, Adversary()).within(WINDOW).near([0])
    slow = timed(
        "the same window of one node, dense singular values",
        partial(dense_std, part, list(found[0].combinations)),
    )
    said("sparse over dense std", ratio=float(found[0].std[0]) / slow)

    def ball() -> Estimate:
        around = [0, *near[0], *(k for j in near[0] for k in near[j])]
        part = know(base, Adversary()).within(WINDOW).near(set(around))
        return estimate(part, [base.find("g", 0, 5) - base.find("g", 0, 6)])

    said(
        "amplification",
        radius=2,
        window=float(timed("window of 7 rounds, radius 2", ball, target=60).amplification[0]),
    )


def dense_std(k: Knowledge, targets: list[Expression]) -> float:
    """Return the largest std of the same estimates by dense singular values, as without the
    engine.
    """
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


def ranks() -> None:
    """Exact ranks of every node's gradients in the whole network, and singular values for a smaller
    one.
    """

    def solve(p: Relations) -> list[int]:
        view = know(p, Adversary())
        owners = {v.owner for v in p.vectors if v.owner is not None}
        return sorted({len(determined(view.near([i]), p.gradients(i))) for i in owners})

    for rounds in (8, 12, 16):
        p = pdmm(random_graph(NODES), rounds)
        said(
            "rank of every node",
            ranks=timed(
                "exact ranks of all 100 nodes, whole network",
                partial(solve, p),
                rounds=rounds,
                target=60,
            ),
        )
    p = pdmm(random_graph(16), 5)
    exact = timed("exact ranks, 16 nodes", partial(solve, p), rounds=5)
    s = system(know(p, Adversary()), 0.0)
    f = s.flat.toarray()

    def singular() -> list[int]:
        def rank(m: Array) -> int:
            size = np.linalg.svd(m, compute_uv=False)
            return int((size > 1e-9 * size[0]).sum())

        whole, gone = rank(f), [[s.columns[g.vector] for g in p.gradients(i)] for i in range(16)]
        return sorted({whole - rank(np.delete(f, columns, axis=1)) for columns in gone[:2]})

    said(
        "ranks",
        exact=exact,
        singular=timed("singular values, 2 of the 16 nodes", singular, rounds=5),
    )


def mu() -> None:
    """The complete bound of DP-Norm for one node, including its certificate, and dense algebra on
    fewer rounds.
    """
    view, expected = dpnorm(2000)
    bound = timed(
        "DP-Norm mu and certificate, one node",
        lambda: account(view, view.declared.gradients(0), 1.0),
        rounds=2000,
        target=2,
    )
    said("mu over closed form", mu=bound.mu, ratio=bound.mu / expected)
    view, expected = dpnorm(300)
    timed(
        "DP-Norm mu and certificate, one node",
        lambda: account(view, view.declared.gradients(0), 1.0),
        rounds=300,
    )

    def dense_mu() -> float:
        s = system(view, 0.0)
        f, b = s.flat.toarray(), s.noise.toarray()
        own = [s.columns[g.vector] for g in view.declared.gradients(0)]
        left, size, _ = np.linalg.svd(np.delete(f, own, axis=1))
        null = left[:, int((size > 1e-9 * size[0]).sum()) :].T
        a = np.linalg.lstsq(null @ b, null @ f[:, own], rcond=1e-9)[0]
        return float(np.sqrt((a.T @ a).sum()))

    said(
        "mu over closed form",
        ratio=timed("the same, dense singular values", dense_mu, rounds=300) / expected,
    )


def apply() -> None:
    """Weights on 1.92 GB of messages on disk, 24 per value, against only reading them; cold: not in
    the page cache.
    """
    rounds, width = 40, 1_000_000
    p = pdmm({0: list(range(1, DEGREE + 1)), **{j: [0] for j in range(1, DEGREE + 1)}}, rounds)
    own = know(p, Adversary()).near([0])
    differences = []
    for t in range(3, 38):
        wanted = p.find("g", 0, t) - p.find("g", 0, t + 1)
        differences.append(estimate(own.within(range(t - 2, t + 3)), [wanted]))
    every = stacked(differences)
    place = {v: k for k, v in enumerate(v for v in p.vectors if v.kind == "message")}
    row = np.random.default_rng(0).normal(size=width).astype(np.float32)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "messages"
        with file.open("wb") as out:
            for k in range(len(place)):
                (row * np.float32(1 + k / 999)).tofile(out)

        def read() -> None:
            held = bytearray(4 * width)
            with file.open("rb", buffering=0) as source:
                while source.readinto(held):
                    pass

        def fetch(v: Vector) -> torch.Tensor:
            return torch.from_numpy(
                np.fromfile(file, np.float32, width, offset=4 * width * place[v])
            )

        gigabytes, speed = 4e-9 * width * len(place), dict[str, list[float]]()
        for name, work in [("read", read), ("apply", lambda: every.apply(fetch))] * 3:
            for state in ("cold", "warm"):
                if state == "cold":
                    forget(file)
                start = time.perf_counter()
                work()
                speed.setdefault(f"{name} {state}", []).append(
                    gigabytes / (time.perf_counter() - start)
                )
        middle = {key: float(np.median(v)) for key, v in speed.items()}
        said(
            "GB/s",
            **{key: round(v, 2) for key, v in middle.items()},
            weights=differences[0].weights.shape[1],
            values=len(every.weights),
        )
        said(
            "apply over read",
            cold=middle["apply cold"] / middle["read cold"],
            warm=middle["apply warm"] / middle["read warm"],
            target=0.5,
        )
        matrix = dense_weights(every, place)
        messages = np.memmap(file, np.float32, "r", shape=(len(place), width))
        steps = [slice(at, at + 16384) for at in range(0, width, 16384)]
        timed(
            "dense numpy product over chunks of coordinates, warm",
            lambda: [matrix @ messages[:, s] for s in steps],
        )


def stacked(estimates: list[Estimate]) -> Estimate:
    """Return several estimates as one."""
    vectors = tuple(dict.fromkeys(v for e in estimates for v in e.vectors))
    at = {v: k for k, v in enumerate(vectors)}
    weights = np.zeros((len(estimates), len(vectors)))
    for row, e in enumerate(estimates):
        weights[row, [at[v] for v in e.vectors]] = e.weights[0]
    return replace(estimates[0], vectors=vectors, weights=weights)


def dense_weights(every: Estimate, place: dict[Vector, int]) -> NDArray[np.float32]:
    """Return the weights over all messages in the order of the file."""
    matrix = np.zeros((len(every.weights), len(place)), np.float32)
    matrix[:, [place[v] for v in every.vectors]] = every.weights
    return matrix


def forget(file: Path) -> None:
    """Drop a file from the page cache."""
    handle = os.open(file, os.O_RDONLY)
    os.fsync(handle)
    os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(handle)


PARTS = {"values": values, "ranks": ranks, "mu": mu, "apply": apply}

if __name__ == "__main__":
    for part in sys.argv[1:] or PARTS:
        PARTS[part]()
