"""Decisions of bounds and views that other tests only see from afar: each fails if its line is
wrong.
"""

import math

import numpy as np
import pytest
from scipy.stats import beta, binom

import leakaudit as la
from leakaudit.core.adversary import Adversary
from leakaudit.core.errors import LeakauditError
from leakaudit.core.verdict import APART
from leakaudit.protocols import declared, recording
from leakaudit.protocols.scenario import Scenario
from leakaudit.theory.bounds import gaussian
from leakaudit.theory.bounds.approximate import approximate
from leakaudit.theory.bounds.empirical import Counts, epsilon_lower
from leakaudit.theory.bounds.guarantee import Adjacency
from leakaudit.theory.bounds.joint import LARGEST, JointTest, ceiling, joint_test
from leakaudit.theory.relations import Relations, know
from leakaudit.theory.relations.estimate import estimate
from leakaudit.views.accounting.calibration import _noise
from leakaudit.views.accounting.node_view import NodeView, _any_hidden
from leakaudit.views.accounting.view_bound import ViewBound, _contradicts, _least, _with_epsilons


@pytest.mark.parametrize(("hits", "alarms"), [(100, 0), (97, 4), (60, 2)])
def test_both_events_share_alpha(hits: int, alarms: int) -> None:
    """Four Clopper-Pearson limits, each at a quarter of alpha."""
    n, share, delta = 100, 0.05 / 4, 1e-3

    def low(k: int) -> float:
        return float(beta.ppf(share, k, n - k + 1)) if k else 0.0

    def high(k: int) -> float:
        return float(beta.ppf(1 - share, k + 1, n - k)) if k < n else 1.0

    seen = math.log((low(hits) - delta) / high(alarms))
    absent = math.log((low(n - alarms) - delta) / high(n - hits))
    found = epsilon_lower(Counts(hits, n, alarms, n), delta, 0.05, both=True)
    assert found == pytest.approx(max(seen, absent), rel=1e-9)


@pytest.mark.parametrize(("positives", "negatives", "x", "y"), [(6, 9, 5, 1), (12, 5, 9, 0)])
def test_a_p_value_covers_rates_between_the_nodes(
    positives: int, negatives: int, x: int, y: int
) -> None:
    """It is at least the largest chance over a grid that is much finer than the pieces."""
    guarantee = approximate(1.0, 1e-3, Adjacency.ADD_REMOVE)
    test = joint_test(guarantee, positives, negatives)
    region = test._region(test.statistic(x, y))
    nodes, _ = test._nodes
    fine = np.unique(np.concatenate([nodes, *np.linspace(nodes[:-1], nodes[1:], 1000)]))
    powers = ceiling(guarantee, fine)
    chance = np.zeros(len(fine))
    for false, least in enumerate(region):
        chance += binom.pmf(false, negatives, fine) * binom.sf(least - 1, positives, powers)
    assert test.p_value(x, y) >= chance.max()


def test_a_hidden_gradient_to_which_another_one_reacts() -> None:
    """Node 1 evaluates a gradient at a model that only it received, and publishes it."""
    p = Relations(la.Graph(3, ((0, 1), (1, 2))))
    w = p.public("w0")
    for _ in p.rounds(1):
        model = p.state("w", 0, eq=w - p.grad(0, at=w) + p.noise("e", 1.0, 0))
        told = p.send(0, 1, model, "w", secure=True)
        p.send(1, 2, p.grad(1, at=told) + p.noise("e", 1.0, 1), "g")
    view = NodeView.of(know(p, Adversary()), 0)
    assert view.bound.certificate == (0,)
    assert not view.bound.fisher.any()
    assert view.lowest == 0


def test_a_secure_relay_is_hidden_and_own_noise_is_not() -> None:
    """Only messages, and private vectors of others, may bring in what is not declared nearby."""
    p = Relations(la.Graph(2, ((0, 1),)))
    w = p.public("w0")
    for _ in p.rounds(1):
        g = p.grad(0, at=w)
        p.send(0, 1, g + p.noise("e", 1.0, 0), "open")
        p.send(0, 1, g + p.noise("n", 1.0, 0), "closed", secure=True)
    outsider = know(p, Adversary()).near([0])
    neighbour = know(p, Adversary(corrupt=frozenset({1}))).near([0])
    assert _any_hidden(outsider, 0)
    assert not _any_hidden(neighbour, 0)


@pytest.mark.parametrize("noisy", ["first", "all"])
def test_the_clients_that_add_noise_are_the_declared_ones(noisy: str) -> None:
    scenario = Scenario(
        "fedsgd",
        nodes=4,
        graph="star",
        rounds=2,
        data="gaussians",
        samples=2,
        dtype="float64",
        set={"sigma": 0.5, "noisy": noisy},
        states=True,
    )
    recorder = recording.record(recording.plan(scenario), None)
    declared.check(recorder.trace, recorder.truth_record)


@pytest.mark.parametrize(("positives", "negatives"), [(6, 9), (40, 25)])
def test_an_outcome_is_as_extreme_as_itself(positives: int, negatives: int) -> None:
    test = joint_test(approximate(1.0, 1e-3, Adjacency.ADD_REMOVE), positives, negatives)
    for y in range(negatives + 1):
        for x in range(positives + 1):
            assert test._region(test.statistic(x, y))[y] <= x


def test_the_largest_number_of_trials_is_examined() -> None:
    guarantee = approximate(1.0, 1e-3, Adjacency.ADD_REMOVE)
    assert JointTest(guarantee, LARGEST, 1).positives == LARGEST
    with pytest.raises(LeakauditError, match="expected 1 to 5000 trials"):
        JointTest(guarantee, 1, LARGEST + 1)


@pytest.mark.parametrize(("above", "contradicts"), [(0.5, False), (2.0, True)])
def test_a_bound_below_what_records_attain_is_a_contradiction(
    above: float, contradicts: bool
) -> None:
    """`above` is in units of `APART`."""
    found = ViewBound(0, Adversary(), 1.0, 1e-5, mu=2.0, reached=2.0 * (1 + above * APART))
    assert _contradicts(found) is contradicts


def test_a_record_and_a_node_have_their_own_epsilon() -> None:
    found = _with_epsilons(ViewBound(0, Adversary(), 1.0, 1e-5, mu=1.0, node_mu=3.0))
    assert found.epsilon == gaussian.epsilon(1e-5, 1.0)
    assert found.node_epsilon == gaussian.epsilon(1e-5, 3.0)


@pytest.mark.parametrize(("reacts", "bounded"), [(True, False), (False, True)])
def test_a_node_to_whose_data_hidden_vectors_react_has_no_bound(
    reacts: bool, bounded: bool
) -> None:
    """Node 1 evaluates a gradient at the model of node 0, or at a public one."""
    p = Relations(la.Graph(3, ((0, 1), (0, 2), (1, 2))))
    w = p.public("w0")
    for _ in p.rounds(1):
        noised = p.grad(0, at=w) + p.noise("e", 1.0, 0)
        p.send(0, 2, noised, "g")
        hidden = p.send(0, 1, p.grad(0, at=w, index=2) + p.noise("e", 1.0, 0, 2), "h", secure=True)
        at = hidden if reacts else w
        p.send(1, 2, p.grad(1, at=at) + p.noise("e", 1.0, 1), "g")
    view = NodeView.of(know(p, Adversary()), 0)
    found = _least(ViewBound(0, Adversary(), 1.0, 1e-5), [view], None, None)
    assert (found.node_mu is not None) is bounded


def test_the_noise_to_scale_is_that_of_the_node() -> None:
    p = Relations(la.Graph(3, ((0, 1), (0, 2), (1, 2))))
    w = p.public("w0")
    for _ in p.rounds(1):
        for node, std in ((0, 1.0), (1, 3.0)):
            p.send(node, 2, p.grad(node, at=w) + p.noise("e", std, node), "g")
    assert _noise(p, 0, 2.0) == {"e": (2.0, 2.0)}
    assert _noise(p, 2, 2.0) == {"e": (2.0, 6.0)}  # it adds none itself


def test_the_rounding_of_a_plain_message_is_not_raised_by_the_noise_of_another() -> None:
    p = Relations()
    plain, noised = p.secret("g", 0), p.secret("g", 1)
    p.send(0, 1, plain, "w")
    p.send(1, 0, noised + p.noise("e", 1.0, 1), "w")
    found = estimate(know(p, Adversary()), [plain, noised], rounding=1e-9)
    assert found.std == pytest.approx([1e-9, 1.0], rel=1e-5)
