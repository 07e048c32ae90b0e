"""A node's price from its own relations is the price from those of the whole network, mu, leaks and
certificate.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from leakaudit.core.adversary import Adversary
from leakaudit.core.errors import LeakauditError
from leakaudit.core.registry import get
from leakaudit.protocols.declared import DECLARED, Protocol
from leakaudit.protocols.topology import make
from leakaudit.theory.relations import account, know
from leakaudit.views.accounting.basis import (
    ALL_MESSAGES,
    MODELS_SEEN,
    REACTING,
    SMOOTH,
    STEERED,
    Basis,
)
from leakaudit.views.accounting.view_bound import view_bounds

ROUNDS = DECLARED + 3
NOISY = [
    ("nids", {"sigma": 0.5}),
    ("extra", {"sigma": 0.5}),
    ("dpnorm", {"noise": "inner"}),
    ("dpnorm", {}),
    ("dpsgd", {"sigma": 0.5}),
    ("dpsgd", {"sigma": 0.5, "noise": "step"}),
    ("muffliato", {"sigma": 0.5}),
]


@pytest.mark.parametrize("adversary", [Adversary(), Adversary(corrupt=frozenset({1}))], ids=str)
@pytest.mark.parametrize(("name", "constants"), NOISY)
def test_a_nodes_own_relations_price_as_the_whole_networks(
    name: str, constants: dict[str, Any], adversary: Adversary
) -> None:
    protocol = Protocol(
        get("victims", name)(**constants), make("ring", 4, torch.Generator()), ROUNDS, {}
    )
    (found,) = view_bounds(protocol, adversary, [0])
    assert not found.refused
    knowledge = know(protocol.whole, adversary)
    whole = account(
        knowledge,
        [g for g in knowledge.declared.gradients(0) if g.vector not in knowledge.known],
        1.0,
    )
    lowest = min(whole.certificate)
    if lowest == 2 or whole.mu == math.inf:
        assert found.mu == pytest.approx(whole.mu, rel=1e-9)
    else:
        assert found.mu is None
    if lowest == 1:
        assert found.node_mu == pytest.approx(whole.mu, rel=1e-9)
    if whole.fisher is not None:
        assert found.linear == pytest.approx(math.sqrt(whole.fisher.sum()), rel=1e-9)
    assert found.certificate == whole.certificate
    assert len(found.leaking) == len(whole.leaking)


@pytest.mark.parametrize(
    ("adversary", "words"),
    [
        (Adversary(corrupt=frozenset({7})), "node 7 does not exist"),
        (Adversary(hears=frozenset({(0, 2)})), "edge 0-2 does not exist"),
    ],
)
def test_an_adversary_that_is_not_in_the_graph_is_refused(adversary: Adversary, words: str) -> None:
    protocol = Protocol(
        get("victims", "dpsgd")(sigma=0.5), make("ring", 4, torch.Generator()), 3, {}
    )
    with pytest.raises(LeakauditError, match=words):
        list(view_bounds(protocol, adversary, [0]))


def test_the_text_of_a_basis_is_made_from_its_values() -> None:
    """Every part that is set is in the sentence, and the unit of privacy begins it."""
    plain = Basis(MODELS_SEEN)
    assert plain.unit == "record"
    assert str(plain).startswith("record: the models are functions of what is observed")
    smooth = Basis(SMOOTH, ALL_MESSAGES, smoothness=0.25, own_view="not its own")
    assert str(smooth) == (
        "record: gradients are 0.25-Lipschitz (assumed with --smoothness, not checked); upper bound, computed for one who observes every message "
        "that the node sends or receives (not its own)"
    )
    reacting = Basis(REACTING, not_smooth="no bound")
    assert reacting.unit == "node"
    assert str(reacting).startswith("node: no epsilon per record")
    assert str(reacting).endswith(" (with any smoothness: no bound)")
    assert Basis(STEERED).unit == "none"
