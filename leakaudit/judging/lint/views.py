"""Findings from the declared relations about adversaries and noise.

The checks find adversaries who learn more than others, and combinations without noise.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from leakaudit._util.plain import Figures
from leakaudit.core.adversary import Adversary
from leakaudit.core.errors import LeakauditError
from leakaudit.core.verdict import Verdict
from leakaudit.theory.bounds import gaussian
from leakaudit.theory.relations import Expression, Relations, account, know
from leakaudit.views.conformance.case import Case
from leakaudit.views.conformance.pitfall import MORE, Pitfall

NODES = 3  # number of nodes that are examined: a choice that limits the time
LONGEST = 24  # number of rounds that are examined: likewise
SHOWN = 3  # largest number of names in a sentence
TERMS = 10  # largest number of terms of a combination in a sentence


def check(case: Case) -> Iterator[Pitfall]:
    """Yield combinations without noise, and adversaries that learn more than an outsider."""
    relations = _short(case)
    if relations is None:
        return
    nodes = [node for node in case.holders if relations.gradients(node)]
    nodes = nodes[:: max(1, math.ceil(len(nodes) / NODES))]
    if any(vector.kind == "noise" for vector in relations.vectors):
        yield from _without_noise(case, relations, nodes)
    yield from list(_neighbours(case, relations, nodes)) or _pairs(case, relations)


def _short(case: Case) -> Relations | None:
    """Return the declaration of a few rounds; None if there is none."""
    if case.protocol is None or case.relations is None:
        return None
    return replace(case.protocol, rounds=min(case.protocol.rounds, LONGEST)).whole


def _without_noise(case: Case, relations: Relations, nodes: list[int]) -> Iterator[Pitfall]:
    """Find combinations of gradients that an outsider can compute without noise."""
    view = know(relations, Adversary())
    for node in nodes:
        try:
            found = account(view, relations.gradients(node), 1.0, certify=False, least=True)
        except LeakauditError:
            continue
        leaking = found.leaking
        if leaking:
            says = (
                f"the protocol adds noise, but {_some(leaking)} of node {node} can be computed "
                "without noise: mu is infinite"
            )
            figures: Figures = {"node": node, "leaking": [str(one) for one in leaking]}
            yield Pitfall(6, case.broken, says, figures)
            return


def _some(names: Sequence[Expression]) -> str:
    text = ", ".join(map(_brief, names[:SHOWN]))
    if len(names) > SHOWN:
        text += f" and {len(names) - SHOWN} more"
    return text


def _brief(one: Expression) -> str:
    """Return a combination, of which only the first terms are written if there are many."""
    if len(one.terms) <= TERMS:
        return str(one)
    first = dict(sorted(one.terms.items())[:SHOWN])
    return f"{Expression(one.home, first)} + ... ({len(one.terms)} terms)"


def _neighbours(case: Case, relations: Relations, nodes: list[int]) -> Iterator[Pitfall]:
    """Compare an outsider on all channels with one who is also a neighbour.

    A neighbour knows its own noise and reads secure messages.
    """
    for node in nodes:
        near = case.trace.graph.neighbours[node]
        outsider = _mu(relations, Adversary(), node)
        if outsider is None:
            continue
        neighbour = _mu(relations, Adversary(corrupt=frozenset(near[:1])), node)
        if neighbour is None or not neighbour > outsider * MORE:
            continue
        says = (
            f"in the messages of node {node}, linear losses attain mu {outsider:.4g} for an "
            f"outsider on all channels and {neighbour:.4g} for one who is also neighbour "
            f"{near[0]}, at sensitivity 1 over {relations.round} rounds: the protocol has no "
            "single epsilon"
        )
        figures: Figures = {
            "node": node,
            "neighbour": near[0],
            "mu_outsider": outsider,
            "mu_neighbour": neighbour,
        }
        yield Pitfall(4, Verdict.UNCLAIMED, says, figures)
        return


def _mu(
    relations: Relations, adversary: Adversary, node: int, sensitivity: float = 1.0
) -> float | None:
    """Return mu of a node's gradients for an adversary; None if it cannot be computed."""
    try:
        view = know(relations, adversary)
        return account(view, relations.gradients(node), sensitivity, certify=False).attained
    except LeakauditError:
        return None


def _pairs(case: Case, relations: Relations) -> Iterator[Pitfall]:
    claims = [claim for claim in case.claims if claim.sensitivity is not None and claim.delta]
    claims = [claim for claim in claims if claim.pair is not None]
    if not claims:
        return
    claim = min(claims, key=lambda claim: claim.epsilon or 0.0)
    epsilon = claim.epsilon or 0.0
    node = claim.pair[1] if claim.pair else 0
    mu = _mu(relations, Adversary(), node, claim.sensitivity or 0.0)
    if mu is None:
        return
    total = gaussian.epsilon(claim.delta or 0.0, mu)
    if total > epsilon * MORE:
        says = (
            f"{claim.source} claims epsilon {claim.epsilon:.4g} for what one node learns about "
            f"node {node}; for an outsider on all channels, which the claim does not cover, linear "
            f"losses attain {total:.4g} over {relations.round} rounds"
        )
        figures: Figures = {"node": node, "claimed": claim.epsilon, "outsider": total}
        yield Pitfall(4, Verdict.UNCLAIMED, says, figures)
