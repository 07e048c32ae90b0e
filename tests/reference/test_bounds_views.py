"""The recorded exact views of decentralised protocols, and the per-message formula that falls short of one of them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction as Q
from pathlib import Path

import numpy as np
import pytest
import torch

from leakaudit.core.adversary import Adversary
from leakaudit.protocols.topology import make
from leakaudit.theory.relations import Relations, account, know
from leakaudit.theory.relations.expression import Expression
from leakaudit.victims.muffliato import Muffliato

RING = {i: ((i - 1) % 8, (i + 1) % 8) for i in range(8)}
CUBE = {i: tuple(i ^ (1 << k) for k in range(5)) for i in range(32)}
NODE_0 = Adversary(hears="none", corrupt=frozenset({0}))


def averaged(
    near: Mapping[int, tuple[int, ...]], rounds: int
) -> tuple[Relations, dict[int, Expression]]:
    """Noise once: every node adds N(0, 1) to its secret and then averages with its neighbours, weight 1 / (degree + 1)."""
    p = Relations()
    secret = {i: p.secret("g", i) for i in near}
    x = {i: p.state("x", i, eq=secret[i] + p.noise("n", 1.0, i)) for i in near}
    for _ in p.rounds(rounds):
        m = {i: p.send(i, near[i], x[i], "x") for i in near}
        x = {
            i: p.state("x", i, eq=Q(1, len(near[i]) + 1) * (x[i] + sum(m[j] for j in near[i])))
            for i in near
        }
    return p, secret


def mu(p: Relations, target: Expression, adversary: Adversary) -> float:
    return account(know(p, adversary), [target], 1.0).mu


@pytest.mark.parametrize("u", [1, 2, 3, 4])
def test_on_a_ring_of_eight_distance_does_not_protect(u: int) -> None:
    p, secret = averaged(RING, 4)
    assert mu(p, secret[u], NODE_0) == pytest.approx(1, rel=1e-9)


def test_an_outsider_on_one_edge_and_on_all() -> None:
    p, secret = averaged(RING, 4)
    assert mu(p, secret[4], Adversary(hears=frozenset({(0, 1)}))) == pytest.approx(0, abs=1e-9)
    assert mu(p, secret[4], Adversary()) == pytest.approx(1, rel=1e-9)


def test_one_round_shows_a_neighbour() -> None:
    p, secret = averaged(RING, 1)
    assert mu(p, secret[1], NODE_0) == pytest.approx(1, rel=1e-9)
    assert mu(p, secret[2], NODE_0) == 0


def test_on_a_hypercube_half_is_seen() -> None:
    p, secret = averaged(CUBE, 6)
    assert mu(p, secret[3], NODE_0) ** 2 == pytest.approx(0.5, rel=1e-6)


def test_the_published_formula_adds_messages_as_if_their_noise_were_fresh(
    generator: torch.Generator, tmp_path: Path
) -> None:
    ring = Muffliato(lr=0.5, clip=1.0, sigma=1.0, gossips=4, accelerate=False)
    assert 2 * ring.pairwise(make("ring", 8, generator), 4)[0, 4] == pytest.approx(
        0.01418439716, rel=1e-8
    )
    edges = tmp_path / "cube"
    edges.write_text("".join(f"{i} {j}\n" for i in CUBE for j in CUBE[i] if i < j))
    cube = Muffliato(lr=0.5, clip=1.0, sigma=1.0, gossips=6, accelerate=False)
    assert 2 * cube.pairwise(make(f"file:{edges}", 32, generator), 6)[0, 3] == pytest.approx(
        1.033080294, rel=1e-8
    )


@pytest.mark.parametrize(
    ("kind", "wanted"),
    [("fresh", math.sqrt(5) / 2), ("reused", 0.5), ("reused and changing", math.inf)],
)
def test_one_record_in_several_releases(kind: str, wanted: float) -> None:
    p = Relations()
    g, once = p.secret("g", 0), p.noise("n", 2.0, 0)
    for t in range(2 if kind == "reused and changing" else 5):
        n = p.noise("m", 2.0, 0, t) if kind == "fresh" else once
        p.send(0, 1, (t + 1 if "changing" in kind else 1) * g + n, f"x{t}")
    assert mu(p, g, Adversary()) == pytest.approx(wanted, rel=1e-9)
    assert np.isinf(wanted) == ("changing" in kind)
