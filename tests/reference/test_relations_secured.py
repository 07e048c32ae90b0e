"""SecureD-FL, where a coalition and the public group sums break nodes: exact ranks against a singular value decomposition.

With a = 2 / (2 + rho), y_k^i = a^{i-1} y_k^1 + (a + ... + a^{i-1}) w_k + known, so the oracle has two unknowns a node and
shares nothing with the engine.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from fractions import Fraction as Q

import numpy as np
import pytest

from leakaudit.core.adversary import Adversary
from leakaudit.theory.relations import Relations, determined, estimate, know
from leakaudit.theory.relations.kkt import system

Partitions = Sequence[Sequence[tuple[int, ...]]]
SCHOOLGIRLS = (
    "ABC DEF GHI JKL MNO|ADH BEK CIO FLN GJM|AEM BHN CGK DIL FJO|"
    "AFI BLO CHJ DKM EGN|AGL BDJ CFM EHO IKN|AJN BIM CEL DOG FHK|AKO BFG CDN EIJ HLM"
)


def nine() -> list[list[tuple[int, ...]]]:
    """Return the four partitions of a 3 x 3 square into rows, columns and both kinds of diagonals."""
    cells = list(itertools.product(range(3), repeat=2))
    slopes = [(1, 0), (0, 1), (1, 1), (2, 1)]
    return [
        [tuple(3 * r + c for r, c in cells if (a * r + b * c) % 3 == k) for k in range(3)]
        for a, b in slopes
    ]


def fifteen() -> list[list[tuple[int, ...]]]:
    return [
        [tuple(ord(c) - ord("A") for c in group) for group in day.split()]
        for day in SCHOOLGIRLS.split("|")
    ]


def secured(p: Relations, n: int, groups: Partitions, rounds: int, rho: Q) -> None:
    w, lam = {k: p.secret("w", k) for k in range(n)}, {k: p.secret("lam", k) for k in range(n)}
    z = p.public("z")
    for t in p.rounds(rounds):
        x = {k: p.state("x", k, eq=(2 * w[k] - lam[k] + rho * z) / (2 + rho)) for k in range(n)}
        z = p.public("z")
        for group in groups[t % len(groups)]:
            for k in group:
                p.send(k, [q for q in group if q != k], x[k] + lam[k] / rho, name="y")
            p.send(group[0], None, sum(x[k] + lam[k] / rho for k in group), name="sum")
        lam = {k: p.state("lam", k, eq=lam[k] + rho * (x[k] - z)) for k in range(n)}


def first_breach(
    groups: Partitions, n: int, rounds: int, rho: float, corrupt: tuple[int, ...], *, sums: bool
) -> dict[int, int]:
    """Return the first iteration at which w_k is determined, for every k that ever is."""
    a, rows, out = 2 / (2 + rho), list[np.ndarray](), dict[int, int]()
    for k in corrupt:
        rows += [np.eye(2 * n)[k], np.eye(2 * n)[n + k]]
    for i in range(1, rounds + 1):
        y = np.hstack([a ** (i - 1) * np.eye(n), sum(a**j for j in range(1, i)) * np.eye(n)])
        for group in groups[i % len(groups)]:
            if set(group) & set(corrupt):
                rows += [y[k] for k in group]
            if sums:
                rows.append(y[list(group)].sum(0))
        m = np.array(rows) / np.abs(rows).max(1, keepdims=True)
        _, size, right = np.linalg.svd(m)
        null = right[int((size > 1e-9 * size[0]).sum()) :]
        for k in set(range(n)) - set(corrupt) - set(out):
            if np.linalg.norm(null[:, n + k]) < 1e-7:
                out[k] = i
    return out


def cases() -> Iterator[tuple[int, Partitions, list[tuple[tuple[int, ...], bool]]]]:
    for n, groups in ((9, nine()), (15, fifteen()), (15, fifteen()[:5])):
        sizes = [
            list(itertools.combinations(range(n), k))[:: 1 if k < 2 else 12 if n == 9 else 45]
            for k in range(4)
        ]
        coalitions = [c for size in sizes for c in size]
        yield n, groups, [(c, sums) for sums in (True, False) for c in coalitions if c or sums]


def test_every_pair_meets_at_most_once() -> None:
    for groups, pairs in ((nine(), 36), (fifteen(), 105)):
        met = [
            pair
            for day in groups
            for group in day
            for pair in itertools.combinations(sorted(group), 2)
        ]
        assert len(set(met)) == len(met) == pairs


@pytest.mark.slow
def test_first_breach_of_every_node_equals_the_singular_values() -> None:
    tried, wrong = 0, []
    for n, groups, listed in cases():
        rounds = 2 * len(groups) + 1
        p = Relations()
        secured(p, n, groups, rounds, Q(4, 5))
        for corrupt, sums in listed:
            expected = first_breach(groups, n, rounds, 0.8, corrupt, sums=sums)
            found: dict[int, int] = {}
            for i in sorted(
                {*expected.values(), *(v - 1 for v in expected.values() if v > 1), rounds}
            ):
                k = know(
                    p, Adversary(hears="none", corrupt=frozenset(corrupt), window=range(i + 1))
                )
                if not sums:
                    k = type(k)(
                        p, k.known - {m.vector for m in p.select("message", name="sum")}, k.rows
                    )
                targets = [w for w in p.select("secret", name="w") if w.vector not in k.known]
                alone = [e.vector for e in determined(k, targets) if len(e.terms) == 1]
                found |= {
                    owner: i
                    for v in alone
                    if (owner := p.vectors[v].owner) is not None and owner not in found
                }
            tried += 1
            if found != expected:
                wrong.append((n, len(groups), corrupt, sums))
    assert (tried, wrong) == (157, [])


def test_one_curious_node_breaks_everybody_at_the_sixth_iteration() -> None:
    p = Relations()
    secured(p, 9, nine(), 6, Q(4, 5))
    others = p.select("secret", name="w")[1:]
    counts = []
    for i in (4, 5, 6):
        k = know(p, Adversary(hears="none", corrupt=frozenset({0}), window=range(i + 1)))
        counts.append(sum(len(e.terms) == 1 for e in determined(k, others)))
    assert counts == [0, 2, 8]


@pytest.mark.parametrize(("rho", "amplification"), [(Q(100), 19), (Q(1000), 192)])
def test_rank_in_floats_misses_what_exact_arithmetic_finds(rho: Q, amplification: float) -> None:
    p = Relations()
    secured(p, 9, nine(), 8, rho)
    k, others = (
        know(p, Adversary(hears="none", corrupt=frozenset({0}))),
        p.select("secret", name="w")[1:],
    )
    s = system(k, 0.0)
    _, size, right = np.linalg.svd(s.flat.toarray())
    null = right[int((size > 1e-9 * size[0]).sum()) :]
    in_floats = [w for w in others if np.linalg.norm(null[:, s.columns[w.vector]]) < 1e-7]
    assert in_floats == []
    assert determined(k, others) == others
    assert estimate(k, others[:1]).amplification == pytest.approx(amplification, rel=0.02)
