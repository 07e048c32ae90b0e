"""Bounds and formulas of long runs, which are computed from a few rounds: protocols in which what
happened many rounds ago matters, against the relations of all rounds.

A reviewer found that rounds with the same relations may still differ: a value may be handed on for
longer than the rounds that are compared.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from leakaudit.core.adversary import Adversary
from leakaudit.core.trace import Graph
from leakaudit.protocols.declared import DECLARED, Protocol
from leakaudit.protocols.equations.file import victim
from leakaudit.theory.relations import Bound, account, know, shared
from leakaudit.theory.relations.repeat import steady
from leakaudit.views.accounting import node_view
from leakaudit.views.accounting.adversaries import around, curious, named
from leakaudit.views.accounting.compare import compare
from leakaudit.views.accounting.node_view import NodeView
from leakaudit.views.accounting.view_bound import CONTRADICTION

RING = Graph(4, ((0, 1), (1, 2), (2, 3), (0, 3)))
PATH = Graph(12, tuple((i, i + 1) for i in range(11)))


def registers(name: str, length: int) -> str:
    """Equations that hand a vector on, from register to register."""
    return "\n".join(f"{name}{k}[i] = {name}{k - 1}[i]" for k in range(length, 0, -1))


def zeros(name: str, length: int) -> str:
    return "\n".join(f"{name}{k}[i] = 0" for k in range(length + 1))


def delayed(length: int) -> str:
    """D-PSGD that takes its noise back after some rounds."""
    return f'''name = "delayed"
start = """
w[i] = w0
{zeros("n", length)}
"""
round = """
{registers("n", length)}
n0[i] = noise(sigma)
h[i -> neighbours] = w[i] - grad(w[i]) + n0[i] - n{length}[i]
w[i] = sum(j in closed_neighbours: W[i,j] * h[j -> i])
"""
[constants]
sigma = 1.0
[matrices]
W = "metropolis"
'''


RELAY = f'''name = "relay"
start = """
w[i] = w0
r[i] = 0
n[i] = 0
"""
round = """
n[i] = noise(sigma)
h[i -> neighbours] = grad(w0) + n[i]
secure s[i -> neighbours] = r[i] + n[i]
r[i] = sum(j in neighbours: L[i,j] * s[j -> i])
p[11 -> neighbours] = r[11] + w0
"""
[constants]
sigma = 1.0
[matrices]
L = [{",".join(str([int(j == i - 1) for j in range(12)]) for i in range(12))}]
'''

COUNTED = '''name = "counted"
start = """
w[i] = w0
k = 20
"""
round = """
k = k - 1
a = k * (k - 1) * (k - 2) / 5000
h[i -> neighbours] = grad(w0) + noise(sigma)
w[i] = sum(j in closed_neighbours: W[i,j] * h[j -> i])
"""
[constants]
sigma = 1.0
[matrices]
W = "metropolis"
'''

SIGNS = '''name = "signs"
start = """
w[i] = w0
"""
round = """
g[i] = grad(w0)
h[i] = grad(w0)
m[i -> neighbours] = g[i] + A[i,i] * h[i] + noise(sigma)
"""
[constants]
sigma = 1.0
[matrices]
A = [[1, 0], [0, -1]]
'''


# The same relay, in which equations refer to the private vectors of other nodes.
# Node 0 shows both of its masks, and node 1 one mask twice.
MASKS = '''name = "masks"
start = """
w[i] = w0
"""
round = """
secure s[2 -> neighbours] = noise(3)
secure s[3 -> neighbours] = noise(3)
secure s[4 -> neighbours] = noise(3)
secure s[5 -> neighbours] = noise(3)
e[0 -> neighbours] = s[4 -> 0]
f[0 -> neighbours] = s[5 -> 0]
e[1 -> neighbours] = s[2 -> 1]
f[1 -> neighbours] = s[2 -> 1]
m[0 -> neighbours] = grad(w0) + noise(sigma) + s[4 -> 0] + s[5 -> 0]
m[1 -> neighbours] = grad(w0) + noise(sigma) + s[2 -> 1] + s[3 -> 1]
"""
[constants]
sigma = 1.0
'''
MASKED = Graph(6, ((0, 4), (0, 5), (1, 2), (1, 3), (3, 4)))

# Every model is sent at the start of the next round, which the last round does not have.
SENT_LATER = '''name = "later"
start = """
w[i] = w0
"""
round = """
h[i -> neighbours] = w[i]
w[i] = sum(j in closed_neighbours: W[i,j] * h[j -> i]) - 1/10 * grad(h[i -> i]) + noise(sigma)
"""
[constants]
sigma = 1.0
[matrices]
W = "metropolis"
'''


def protocol(text: str, graph: Graph, rounds: int) -> Protocol:
    return Protocol(victim(text)(), graph, rounds, {"w0": torch.zeros(1)})


@pytest.mark.parametrize("length", [1, 3, 7, 8, 10])
@pytest.mark.parametrize("who", ["eavesdropper", "node:1"])
def test_noise_that_is_taken_back_later(who: str, length: int) -> None:
    """With ten rounds in between, mu was 7.7 instead of 30 after 60 rounds."""
    rounds = 24
    made = protocol(delayed(length), RING, rounds)
    adversary = Adversary.parse(who)
    (found,) = compare(made, named([adversary], [0], 4))
    whole = NodeView.of(know(made.whole, adversary), 0)
    fisher = whole.bound.fisher
    assert fisher is not None
    assert found.bound.linear == pytest.approx(math.sqrt(float(fisher.sum())), rel=1e-6)
    if whole.lowest == 2:
        assert found.bound.mu == pytest.approx(whole.bound.mu, rel=1e-6)


def test_rounds_are_alike_if_the_values_that_they_find_are() -> None:
    for length in (1, 3):
        few = protocol(delayed(length), RING, 50)
        assert few.repeats
        assert few.start.round == DECLARED
    late = protocol(delayed(10), RING, 50)
    first = late.victim.relations(RING, DECLARED, {})
    assert len(steady(first, 3)) == 3, "the relations of the first rounds look alike"
    assert not first.settled
    assert late.start.round == 50


def test_a_number_that_changes_from_round_to_round_is_no_repetition() -> None:
    """Nothing depends on it yet, and something may."""
    assert not protocol(COUNTED, RING, 50).start.settled


@pytest.mark.parametrize("rounds", [8, 11, 12, 20])
@pytest.mark.parametrize("node", [0, 1, 5])
def test_noise_that_is_relayed_out_of_sight(node: int, rounds: int) -> None:
    """The last node of a path publishes what was relayed: it says nothing in the first rounds."""
    made = protocol(RELAY, PATH, rounds)
    adversary = Adversary.parse("eavesdropper")
    (found,) = compare(made, named([adversary], [node], 12))
    whole = NodeView.of(know(made.whole, adversary), node)
    assert found.bound.mu == pytest.approx(whole.bound.mu)
    assert bool(found.bound.leaking) == bool(whole.bound.leaking)
    if rounds >= 12:
        assert found.bound.mu == math.inf


@pytest.mark.parametrize("rounds", [8, 12, 30])
def test_nodes_that_show_other_masks_are_not_alike(rounds: int) -> None:
    """Node 1 had the bound of node 0, which is three times as large."""
    made = protocol(MASKS, MASKED, rounds)
    for found in compare(made, named([Adversary()], [0, 1], 6)):
        # The noise of one gradient: of variance 1, and a mask of standard deviation 3 for node 1.
        variance = {0: 1.0, 1: 1.0 + 3.0**2}[found.bound.node]
        assert found.bound.mu == pytest.approx(math.sqrt(rounds / variance))


@pytest.mark.parametrize("rounds", [40, 41, 50])
@pytest.mark.parametrize("matrix", ["metropolis", "uniform"])
@pytest.mark.parametrize(
    "adversary", [curious(0), curious(3), Adversary(hears=frozenset({(1, 2)}))]
)
def test_a_model_that_is_never_sent_is_not_observed(
    adversary: Adversary, matrix: str, rounds: int
) -> None:
    """From 41 rounds on, another method follows the rounds; it counted one too many."""
    graph = Graph(4, ((0, 1), (1, 2), (2, 3)))
    made = protocol(SENT_LATER.replace("metropolis", matrix), graph, rounds)
    nodes = [node for node in range(4) if node not in adversary.corrupt]
    for found in compare(made, named([adversary], nodes, 4)):
        whole = NodeView.of(know(made.whole, adversary), found.bound.node)
        fisher = whole.bound.fisher
        assert fisher is not None
        assert found.bound.linear == pytest.approx(math.sqrt(float(fisher.sum())), rel=1e-6)


def test_a_bound_below_what_records_attain_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    made = protocol(SIGNS, Graph(2, ((0, 1),)), 3)
    right = account

    def halved(*args: Any, **options: Any) -> Bound:
        found = right(*args, **options)
        return replace(found, mu=found.mu / 2)

    monkeypatch.setattr(node_view, "account", halved)
    monkeypatch.setattr(shared, "bounds", lambda *args: None)
    (found,) = compare(made, named([Adversary()], [0], 2))
    assert found.bound.refused == CONTRADICTION
    assert found.bound.mu is None


@pytest.mark.parametrize("length", [5, 10])
def test_gradients_at_a_model_of_many_rounds_ago(length: int) -> None:
    """The first rounds are evaluated at the start, which everybody knows."""
    text = f'''name = "stale"
start = """
w[i] = w0
{zeros("v", length).replace("= 0", "= w0")}
"""
round = """
{registers("v", length)}
v0[i] = w[i]
w[i] = w[i] + noise(sigma)
h[i -> neighbours] = grad(v{length}[i]) + noise(sigma)
"""
[constants]
sigma = 1.0
'''
    made = protocol(text, RING, 24)
    for who in ("eavesdropper", "node:1"):
        adversary = Adversary.parse(who)
        (found,) = compare(made, named([adversary], [0], 4))
        whole = NodeView.of(know(made.whole, adversary), 0)
        assert whole.lowest == 0
        assert min(found.bound.certificate) == 0
        assert found.bound.mu is None or found.bound.mu >= whole.bound.mu * (1 - 1e-9)


@pytest.mark.parametrize("size", [0, 1])
def test_gradients_of_opposite_signs_are_not_alike(size: int) -> None:
    """The same mu, but a constant gradient adds up at one node and cancels at the other."""
    made = protocol(SIGNS, Graph(2, ((0, 1),)), 3)
    outsiders = [
        one for one in compare(made, around(made.graph, [0, 1], size)) if one.threat.kind != "node"
    ]
    linear = {one.bound.node: one.bound.linear for one in outsiders}
    assert linear[0] == pytest.approx(math.sqrt(12))
    assert linear[1] == 0
    assert {round(one.bound.mu or 0, 6) for one in outsiders} == {round(math.sqrt(12), 6)}


@pytest.mark.parametrize("rounds", [4, 16])
def test_a_private_model_that_a_nonlinear_step_moves_has_no_bound(rounds: int) -> None:
    """In long runs its inputs were not copied, so that one who knows it seemed to be stronger."""
    text = """name = "own"
start = "w[i] = w0"
round = '''
g[i] = grad(w[i])
m[i -> neighbours] = g[i] + noise(1)
w[i] = opaque(w[i], g[i])
'''
"""
    made = protocol(text, RING, rounds)
    (found,) = compare(made, named([Adversary.parse("eavesdropper")], [0], 4))
    assert found.bound.mu is None
