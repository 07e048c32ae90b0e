"""Views of long runs: by recursion and in closed form, as if all rounds were solved at once."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from noisy_protocols import made, same
from torch import Generator

from leakaudit.core import registry
from leakaudit.core.adversary import Adversary
from leakaudit.protocols import topology
from leakaudit.protocols.declared import DECLARED, Protocol
from leakaudit.theory.relations import Relations, account, know, recursion, shared
from leakaudit.theory.relations.account import Bound
from leakaudit.theory.relations.forward import ForwardModel
from leakaudit.theory.relations.recursion import _LongView, long_view
from leakaudit.theory.relations.repeat import steady
from leakaudit.theory.relations.symmetric import ROUNDING, SymmetricNetwork
from leakaudit.views.accounting import survey
from leakaudit.views.accounting.adversaries import around, named
from leakaudit.views.accounting.compare import compare
from leakaudit.views.accounting.node_view import Views


@pytest.mark.parametrize("seen", [[5], [0, 3, 7], [*range(12)]])
@pytest.mark.parametrize("kind", ["ring", "rgg"])
def test_products_of_low_rank_change_nothing(kind: str, seen: list[int]) -> None:
    protocol = made("dpsgd", kind, 120, 300, 2)
    network = protocol.network
    assert network is not None
    vectors = network._eigenvectors
    assert network._ends_product.rank < 60
    changes = []
    for way in (network._directly, network._by_products):
        total, ends, across = way(vectors[seen], vectors.T)
        changes.append(total - (across * np.linalg.solve(ends, across)).sum(axis=0))
    direct, by_products = changes
    # Far from the observed nodes, the difference of two large numbers is small. How much of it is
    # rounding depends on the processor.
    assert np.abs(by_products - direct).max() < 1e-12 * float(direct.max())
    assert np.abs(by_products - direct).max() < 0.5 * ROUNDING * protocol.rounds


@pytest.mark.skipif(
    bool(np.finfo(np.longdouble).eps > 1e-18), reason="this platform has no extended precision"
)
@pytest.mark.parametrize("seen", [[5], [*range(12)]])
@pytest.mark.parametrize("kind", ["ring", "rgg"])
def test_closed_forms_are_those_of_extended_precision(kind: str, seen: list[int]) -> None:
    protocol = made("dpsgd", kind, 120, 300, 2)
    network = protocol.network
    assert network is not None
    expected = kalman(network.weights, seen, protocol.rounds)
    found = network.squared(seen) / network._scale
    margin = ROUNDING * protocol.rounds
    assert (found <= expected).all()
    assert (found >= expected - 2 * margin).all()


def kalman(weights: np.ndarray, seen: list[int], rounds: int) -> np.ndarray:
    """Return the squared mu of equal changes of all gradients of each node, round by round.

    z_t = W z_(t-1) + e_t, of which the entries `seen` are observed, and a change of a node's gradients
    adds 1 to its entry in every round. The Kalman filter whitens the observations: mu^2 is the sum
    of the squared changes of its normalised innovations. Computed in extended precision.
    """
    w = weights.astype(np.longdouble)
    ones = np.eye(len(w), dtype=np.longdouble)
    near = [np.flatnonzero(row) for row in weights]
    covariance, change = np.zeros_like(w), np.zeros_like(w)
    squared = np.zeros(len(w), np.longdouble)

    def averaged(x: np.ndarray) -> np.ndarray:
        return np.array([w[i, j] @ x[j] for i, j in enumerate(near)])

    for _ in range(rounds):
        covariance = averaged(averaged(covariance).T) + ones
        change = averaged(change) + ones
        factor = cholesky(covariance[np.ix_(seen, seen)])
        innovation = solved(factor, change[seen])
        gain = solved(factor, covariance[seen])
        squared += (innovation**2).sum(axis=0)
        change = change - gain.T @ innovation
        covariance = covariance - gain.T @ gain
    return squared


def cholesky(a: np.ndarray) -> np.ndarray:
    """Return the lower factor; LAPACK has no extended precision."""
    factor = np.zeros_like(a)
    for i, j in itertools.product(range(len(a)), repeat=2):
        rest = a[i, j] - factor[i, :j] @ factor[j, :j]
        if i > j:
            factor[i, j] = rest / factor[j, j]
        elif i == j:
            factor[i, i] = np.sqrt(rest)
    return factor


def solved(factor: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Solve with a lower triangular factor."""
    found = np.zeros_like(right)
    for i, row in enumerate(factor):
        found[i] = (right[i] - row[:i] @ found[:i]) / row[i]
    return found


STEADY = [
    "dpsgd",
    "dpsgd, own model without noise",
    "dpsgd, adapt",
    "dpsgd, noise of steps",
    "dpsgd, momentum",
    "dpnorm",
    "dpnorm, noise of steps",
    "dpadmm",
    "dkm",
]
SYMMETRIC = ["dpsgd", "dpsgd, adapt", "dkm"]
VIEWS = 8  # of each protocol and graph
SHAPES = [("ring", 6, 18), ("er", 6, 17), ("star", 5, 16)]


def hidden_views(protocol: Protocol) -> list[Adversary]:
    """Return some of all channels, single curious nodes and pairs of them."""
    nodes = range(protocol.graph.nodes)
    threats = around(protocol.graph, nodes, 2)
    every = list(dict.fromkeys(one.adversary for one in threats if one.adversary.hears != "all"))
    return every[:: 1 + len(every) // VIEWS]


def pairs(protocol: Protocol, *, closed: bool) -> Iterator[tuple[_LongView, Bound | None, int]]:
    """Yield every hidden view of every node, followed over the rounds and solved at once."""
    model = protocol.beginning
    assert model is not None
    assert protocol.forward is not None
    network = protocol.network if closed else None
    for adversary in hidden_views(protocol):
        known = know(protocol.start, adversary).known
        view = long_view(model, protocol.same, known, protocol.rounds, network, adversary.corrupt)
        nodes = [i for i in range(protocol.graph.nodes) if i not in adversary.corrupt]
        whole = shared.bounds(protocol.forward, know(protocol.whole, adversary).known, nodes)
        assert whole is not None
        if view is not None:
            for node in nodes:
                yield view, whole(node), node


@pytest.mark.parametrize(("name", "shape"), list(itertools.product(STEADY, SHAPES)))
def test_the_recursion_equals_all_rounds_at_once(name: str, shape: tuple[str, int, int]) -> None:
    kind, nodes, rounds = shape
    protocol = made(name, kind, nodes, rounds, 3)
    followed = 0
    for view, theirs, node in pairs(protocol, closed=False):
        ours = view.bound(node)
        if ours is None:
            continue
        assert theirs is not None
        followed += 1
        expected = math.sqrt(max(theirs.fisher.sum(), 0.0))
        assert ours.attained == pytest.approx(expected, rel=1e-9, abs=1e-12)
        assert ours.certificate == theirs.certificate
        assert min(ours.certificate) == 0
    assert followed


@pytest.mark.parametrize(("name", "shape"), list(itertools.product(SYMMETRIC, SHAPES)))
def test_the_closed_form_equals_all_rounds_at_once(name: str, shape: tuple[str, int, int]) -> None:
    kind, nodes, rounds = shape
    protocol = made(name, kind, nodes, rounds, 3)
    assert protocol.network is not None
    for view, theirs, node in pairs(protocol, closed=True):
        assert theirs is not None
        expected = float(theirs.fisher.sum())
        error = expected - view.squared[node]
        # Never more than is attained, and less only by what covers rounding.
        assert -1e-14 * expected <= error <= 1e-10 * max(expected, 1.0)
        if (ours := view.bound(node)) is not None:
            assert ours.certificate == theirs.certificate


def test_protocols_without_symmetric_weights_have_no_closed_form() -> None:
    for name in ("dpnorm", "dpsgd, own model without noise", "dpsgd, momentum", "dpadmm"):
        assert made(name, "ring", 6, 18, 0).network is None


@pytest.mark.parametrize("seen", [[0], [0, 3], [1, 2, 5]])
def test_the_closed_form_solves_the_least_squares_problem(seen: list[int]) -> None:
    """mu^2 is the least squared noise that hides a change, from a dense solution."""
    protocol = made("dpsgd", "er", 9, 40, 1)
    network = protocol.network
    assert network is not None
    nodes, rounds = 9, protocol.rounds
    follow = np.eye(nodes * rounds)
    for t in range(1, rounds):
        follow[t * nodes : (t + 1) * nodes, (t - 1) * nodes : t * nodes] = -network.weights
    hidden = [t * nodes + i for t in range(rounds) for i in range(nodes) if i not in seen]
    for node in range(nodes):
        change = 0.1 * np.tile(np.arange(nodes) == node, rounds)  # alpha = 0.1, sigma = 1
        left = np.linalg.lstsq(follow[:, hidden], change, rcond=None)[0]
        expected = float(((follow[:, hidden] @ left - change) ** 2).sum())
        assert network.squared(seen)[node] == pytest.approx(expected, rel=1e-8, abs=1e-11)
        assert network.squared(seen, [node])[node] == pytest.approx(expected, rel=1e-8, abs=1e-11)


def test_a_curious_hub_observes_every_message() -> None:
    """On a star, the hub receives w - alpha g + xi of every leaf: mu = alpha sqrt(T) / sigma."""
    protocol = made("dpsgd", "star", 5, 200, 0)
    (found,) = compare(protocol, named([Adversary.parse("node:0")], [1], 5), sensitivity=1.0)
    assert found.bound.linear == pytest.approx(0.1 * math.sqrt(200), rel=1e-9)


def one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bound every view of a long run with all its rounds, by `account`."""
    monkeypatch.setattr(recursion, "long_view", lambda *_: None)


@pytest.mark.parametrize("name", [*STEADY, "dpnorm, sent twice", "dpsgd, mini-batches"])
@pytest.mark.parametrize("who", ["node:0", "edges:1-2,2-1", "nodes:0,3"])
def test_long_runs_have_the_bounds_of_all_their_rounds(
    name: str, who: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rounds = 45  # more than all rounds at once are used for
    threats = named([Adversary.parse(who)], None, 6)
    ours = list(compare(made(name, "ring", 6, rounds, 0), threats))
    one_by_one(monkeypatch)
    theirs = list(compare(made(name, "ring", 6, rounds, 0), threats))
    for found, expected in zip(ours, theirs, strict=True):
        same(found, expected)


@pytest.mark.parametrize("who", ["node:0", "nodes:0,2", "eavesdropper"])
@pytest.mark.parametrize(
    ("name", "constants"),
    [
        ("nids", {"sigma": 0.5}),
        ("extra", {"sigma": 0.5}),
        ("muffliato", {"sigma": 0.5, "gossips": 1}),
        ("dpsgd", {"sigma": 0.5, "noise": "step"}),
    ],
)
def test_other_protocols_have_the_bounds_of_all_their_rounds(
    name: str, constants: dict[str, Any], who: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In NIDS, a gradient of another node reacts although every message is observed."""

    def protocol() -> Protocol:
        graph = topology.make("er", 5, Generator().manual_seed(1))
        return Protocol(registry.get("victims", name)(**constants), graph, 44, {})

    threats = named([Adversary.parse(who)], None, 5)
    ours = list(compare(protocol(), threats))
    one_by_one(monkeypatch)
    monkeypatch.setattr(Views, "_all_messages", lambda *_: None)
    for found, expected in zip(ours, compare(protocol(), threats), strict=True):
        same(found, expected)


@pytest.mark.parametrize("name", ["dpsgd", "dpnorm"])
def test_an_outsider_of_a_long_run_has_the_bounds_of_all_its_rounds(name: str) -> None:
    protocol = made(name, "er", 7, 45, 2)
    knowledge = know(protocol.whole, Adversary())
    for found in compare(protocol, named([Adversary()], None, 7), sensitivity=1.0):
        expected = account(knowledge, knowledge.gradients(found.bound.node), 1.0)
        assert found.bound.node_mu == pytest.approx(expected.mu, rel=1e-9)
        assert found.bound.linear == pytest.approx(math.sqrt(expected.fisher.sum()), rel=1e-9)
        assert found.bound.certificate == expected.certificate


def test_an_eavesdropper_of_some_rounds_has_bounds_of_its_own() -> None:
    protocol = made("dpsgd", "ring", 5, 45, 0)
    threats = named([Adversary(), Adversary(window=range(1, 21))], [0], 5)
    whole, some = (one.bound.linear for one in compare(protocol, threats))
    (first,) = compare(protocol, threats[1:])
    assert some == first.bound.linear
    assert whole is not None
    assert some is not None
    assert some < whole


def test_a_channel_that_reveals_a_gradient_is_left_to_exact_methods() -> None:
    """One node adds no noise: what it sends reveals its gradients."""
    p = Relations()
    state = {i: p.public("w0", i) for i in range(3)}
    for _ in p.rounds(DECLARED):
        sent = {}
        for i in range(3):
            content = state[i] - p.grad(i, at=state[i]) / 10
            if i:
                content = content + p.noise("n", 1.0, i)
            sent[i] = p.send(i, (i + 1) % 3, content)
        for i in range(3):
            state[i] = p.state("w", i, eq=(sent[i] + sent[(i + 1) % 3]) / 2)
    model = ForwardModel.of(p)
    assert model is not None
    watches = Adversary(hears=frozenset({(0, 1)}))
    assert long_view(model, steady(p, 3), know(p, watches).known, 50) is None
    other = Adversary(hears=frozenset({(1, 2)}))
    view = long_view(model, steady(p, 3), know(p, other).known, 50)
    assert view is not None
    assert view.squared[1] > view.squared[2] > 0


def test_of_many_distant_nodes_only_the_worst_is_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    protocol = made("dpsgd", "er", 12, 60, 4)
    nodes = range(12)
    every = list(compare(protocol, around(protocol.graph, nodes, 1)))
    monkeypatch.setattr(survey, "MOST_SHARED", 50)
    assert survey.lists_worst(protocol, nodes, 1)
    assert not survey.lists_worst(protocol, nodes, 0)
    threats = survey.adversaries(made("dpsgd", "er", 12, 60, 4), nodes, 1)
    found = list(compare(protocol, threats))
    assert len(found) < len(every)
    for node in nodes:
        distant = [one for one in found if one.bound.node == node and one.threat.kind == "node"]
        others = [one for one in every if one.bound.node == node and one.threat.kind == "node"]
        assert len(distant) == 1
        most = max(one.bound.linear or 0.0 for one in others)
        assert distant[0].bound.linear == pytest.approx(most, rel=1e-9)
    listed = [one.threat for one in found if one.threat.kind != "node"]
    assert listed == [one.threat for one in every if one.threat.kind != "node"]


def test_a_network_that_grows_has_no_closed_form() -> None:
    """The closed form needs eigenvalues of at most 1; the recursion does not."""
    p = Relations()
    sent = {i: p.public("w0", i) for i in range(2)}
    for _ in p.rounds(DECLARED):
        old = dict(sent)
        for i in range(2):
            content = old[i] + old[1 - i] / 2 - p.grad(i, at=old[i]) + p.noise("n", 1.0, i)
            sent[i] = p.send(i, 1 - i, content)
    model = ForwardModel.of(p)
    assert model is not None
    assert SymmetricNetwork.of(model, steady(p, 3), 30) is None
    known = know(p, Adversary(hears=frozenset({(0, 1)}))).known
    view = long_view(model, steady(p, 3), known, 30)
    assert view is not None
    assert torch.isfinite(torch.from_numpy(view.squared)).all()
