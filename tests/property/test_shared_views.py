"""Views that share work have the same bounds as views that are bounded one by one."""

from __future__ import annotations

import importlib
import itertools
import math
from unittest.mock import patch

import numpy as np
import pytest
from noisy_protocols import NOISY, made, same

from leakaudit.protocols.declared import Protocol
from leakaudit.theory.relations import Relations, shared
from leakaudit.theory.relations.forward import PRIMES, Echelon, ForwardModel, product
from leakaudit.views.accounting.adversaries import around
from leakaudit.views.accounting.compare import Comparison, compare, worst
from leakaudit.views.accounting.symmetry import _Symmetry

engine = importlib.import_module("leakaudit.theory.relations.account")  # a function has its name


def bounded(
    protocol: Protocol,
    coalitions: int = 1,
    smoothness: float | None = None,
    sensitivity: float | None = None,
) -> list[Comparison]:
    threats = around(protocol.graph, range(protocol.graph.nodes), coalitions)
    return list(compare(protocol, threats, smoothness=smoothness, sensitivity=sensitivity))


def one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bound every view by itself, with `account`."""
    monkeypatch.setattr(shared, "bounds", lambda *_: None)


CASES = list(itertools.product(NOISY, (("ring", 5, 6), ("er", 6, 4))))


@pytest.mark.parametrize(("name", "shape"), CASES)
def test_sharing_changes_no_bound(
    name: str, shape: tuple[str, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    kind, nodes, rounds = shape
    ours = bounded(made(name, kind, nodes, rounds, 3))
    one_by_one(monkeypatch)
    theirs = bounded(made(name, kind, nodes, rounds, 3))
    for found, expected in zip(ours, theirs, strict=True):
        same(found, expected)


@pytest.mark.parametrize("name", ["dpsgd", "dpnorm", "dpsgd, own model without noise"])
def test_sharing_changes_no_bound_of_coalitions_or_smooth_losses(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = bounded(made(name, "er", 6, 3, 5), 2, smoothness=0.5)
    one_by_one(monkeypatch)
    theirs = bounded(made(name, "er", 6, 3, 5), 2, smoothness=0.5)
    for found, expected in zip(ours, theirs, strict=True):
        same(found, expected)


def test_the_protocols_with_noise_do_share() -> None:
    shares = {name: made(name, "ring", 5, 3, 0).forward is not None for name in NOISY}
    for name in ("dpsgd", "dpnorm", "muffliato", "recal"):
        assert shares[name]
    assert not shares["pdmm"]  # no noise: every view that reveals anything leaks


def test_a_closed_form_of_a_curious_neighbour_is_met() -> None:
    # One round: the neighbour receives w - alpha g + xi, so mu = alpha / sigma.
    found = bounded(made("dpsgd", "ring", 4, 1, 0), sensitivity=1.0)
    near = [one.bound for one in found if one.threat.kind == "neighbour"]
    assert near
    for bound in near:
        assert bound.mu == pytest.approx(0.1, rel=1e-12)


def test_a_forward_model_solves_the_relations() -> None:
    protocol = made("dpnorm, noise of steps", "er", 6, 3, 1)
    model = ForwardModel.of(protocol.whole)
    assert model is not None
    rows = np.arange(len(model.defined))
    noise, gradients = model.responses(
        rows, np.arange(len(model.noise)), np.arange(len(model.gradients))
    )
    # Insert the responses into every relation: the coefficient of each input is zero.
    column = {k: c for c, k in enumerate(model.noise)}
    gradient = {k: c for c, k in enumerate(model.gradients)}
    for relation in protocol.whole.relations:
        left = np.zeros(len(model.noise))
        right = np.zeros(len(model.gradients))
        for k, value in relation.terms.items():
            if k in model.place:
                left += float(value) * noise[model.place[k]]
                right += float(value) * gradients[model.place[k]]
            elif k in column:
                left[column[k]] += float(value) * protocol.whole.vectors[k].std
            elif k in gradient:
                right[gradient[k]] += float(value)
        assert np.abs(left).max() < 1e-12
        assert np.abs(right).max() < 1e-12


def test_a_declaration_that_defines_two_vectors_at_once_has_no_forward_model() -> None:
    p = Relations()
    a, b = p.state("a", 0), p.state("b", 0)
    p.relate(a + b, p.noise("n", 1.0, 0) + p.grad(0, at=p.public("w")))
    assert ForwardModel.of(p) is None


@pytest.mark.parametrize("prime", PRIMES)
def test_products_modulo_a_prime_are_exact(prime: int) -> None:
    drawn = np.random.default_rng(0)
    a = drawn.integers(0, prime, (7, 131))
    b = drawn.integers(0, prime, (131, 5))
    exact = a.astype(object) @ b.astype(object) % prime
    assert (product(a, b, prime) == exact).all()
    largest = np.full((2, 200), prime - 1)
    assert (product(largest, largest.T, prime) == 200 % prime).all()


def test_an_echelon_finds_dependent_rows_and_what_they_show_without_noise() -> None:
    prime = PRIMES[0]
    echelon = Echelon(prime, 3)
    assert echelon.add(np.array([[1, 2, 3, 0, 0], [0, 1, 1, 0, 1]])) == ([0, 1], [])
    # The sum of both, with another share of the node in column 3.
    assert echelon.add(np.array([[1, 3, 4, 7, 1], [5, 0, 0, 0, 0]])) == ([1], [3])
    assert not echelon.reduced(np.array([[1, 3, 4, 0, 1]])).any()


@pytest.mark.parametrize("seed", range(4))
def test_rows_are_eliminated_together_as_one_by_one(seed: int) -> None:
    """A hundred rows of rank 60; a few also show a node without noise."""
    prime = PRIMES[0]
    drawn = np.random.default_rng(seed)
    base = drawn.integers(0, prime, (60, 75))
    rows = product(drawn.integers(0, prime, (100, 60)), base, prime)
    rows[::7, 71] = drawn.integers(1, prime, len(rows[::7]))
    together = Echelon(prime, 70)
    single = Echelon(prime, 70)
    independent: list[int] = []
    leaks: set[int] = set()
    for k in range(len(rows)):
        new, found = single.add(rows[k : k + 1])
        independent += [k] * len(new)
        leaks.update(found)
    assert together.add(rows) == (independent, sorted(leaks))
    assert (len(independent), leaks) == (60, {71})
    asked = np.concatenate([base, drawn.integers(0, prime, (5, 75))])
    noise = slice(0, 70)
    assert np.array_equal(together.reduced(asked)[:, noise], single.reduced(asked)[:, noise])


def test_renamings_found_for_one_adversary_serve_the_others() -> None:
    protocol = made("dpsgd", "ring", 12, 3, 0)
    symmetry = _Symmetry(protocol.graph, protocol.start)
    threats = around(protocol.graph, range(12), 1)
    first = [threat for threat in threats if symmetry.like(threat) is None]
    # Outsider, channel, neighbour, and nodes at distances 2 to 6.
    assert len(first) == 8
    assert all(threat.node == 0 for threat in first)


def test_nodes_at_different_distances_are_told_apart_without_a_search() -> None:
    protocol = made("dpsgd", "ring", 12, 3, 0)
    symmetry = _Symmetry(protocol.graph, protocol.start)
    compared = []
    with patch.object(symmetry, "_renaming", lambda *colours: compared.append(colours)):
        for threat in around(protocol.graph, [0], 1):
            if threat.kind in ("neighbour", "node"):
                symmetry.like(threat)
    # Two nodes at each of the distances 1 to 5: the second is compared with the first.
    assert len(compared) == 5


@pytest.mark.parametrize("name", ["dpsgd", "dpnorm", "dpsgd, mini-batches"])
def test_a_sparse_matrix_gives_the_same_bounds(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    one_by_one(monkeypatch)
    dense = bounded(made(name, "ring", 4, 10, 0))
    monkeypatch.setattr(engine, "DENSE", 2)
    sparse = bounded(made(name, "ring", 4, 10, 0))
    for found, expected in zip(sparse, dense, strict=True):
        same(found, expected)


def test_a_matrix_that_does_not_fit_in_memory_leaves_a_larger_bound_release_by_release(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one_by_one(monkeypatch)
    exact = bounded(made("dpnorm", "ring", 4, 10, 0))
    monkeypatch.setattr(engine, "LARGEST", 100)
    found = bounded(made("dpnorm", "ring", 4, 10, 0))
    assert any(one.bound.basis is not None and one.bound.basis.by_release for one in found)
    for one, whole in zip(found, exact, strict=True):
        assert (one.bound.node_mu or math.inf) >= (whole.bound.largest or 0.0) * (1 - 1e-9)


def test_the_worst_views_of_all_nodes_are_among_those_of_each_node() -> None:
    found = bounded(made("dpsgd", "er", 6, 3, 0))
    each = worst(found)
    overall = worst(found, by_node=False)
    assert len({one.threat.kind for one in overall}) == len(overall) < len(each)
    for one in overall:
        assert one.bound.largest == pytest.approx(
            max(
                other.bound.largest or 0.0 for other in each if other.threat.kind == one.threat.kind
            )
        )
