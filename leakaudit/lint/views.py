"""What the declared relations say of listeners and of noise, whatever the figures: who hears more, and what travels without noise."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from leakaudit.adversary import Adversary
from leakaudit.bounds import gaussian
from leakaudit.errors import LeakauditError
from leakaudit.lint.case import Case
from leakaudit.lint.pitfall import Pitfall
from leakaudit.relations import Relations, account, know
from leakaudit.verdict import Verdict

MORE = 1 + 1e-6
NODES, LONGEST = 3, 24  # nodes and rounds that are looked at
SHOWN = 3


def check(case: Case) -> Iterator[Pitfall]:
    """Yield combinations without noise of a protocol that draws noise, and listeners that learn more than the outsider."""
    relations = _short(case)
    if relations is None:
        return
    nodes = [i for i in case.holders if relations.gradients(i)]
    nodes = nodes[:: max(1, math.ceil(len(nodes) / NODES))]
    if any(v.kind == "noise" for v in relations.vectors):
        yield from _bare(case, relations, nodes)
    yield from list(_listeners(case, relations, nodes)) or _pairs(case, relations)


def _short(case: Case) -> Relations | None:
    """Return the declaration of a few rounds, None where there is none."""
    if case.protocol is None or case.relations is None:
        return None
    return replace(case.protocol, rounds=min(case.protocol.rounds, LONGEST)).whole


def _bare(case: Case, relations: Relations, nodes: list[int]) -> Iterator[Pitfall]:
    view = know(relations, Adversary())
    for node in nodes:
        try:
            leaking = account(view, relations.gradients(node), 1.0, certify=False).leaking
        except LeakauditError:
            continue
        if leaking:
            some = ", ".join(map(str, leaking[:SHOWN])) + (
                f" and {len(leaking) - SHOWN} more" if len(leaking) > SHOWN else ""
            )
            says = f"the protocol draws noise, and {some} of node {node} can be computed without any: mu is infinite"
            yield Pitfall(
                6, case.broken, says, {"node": node, "leaking": [str(e) for e in leaking]}
            )
            return


def _listeners(case: Case, relations: Relations, nodes: list[int]) -> Iterator[Pitfall]:
    """Compare an outsider on all wires with the same and one neighbour, which knows its own noise and hears secure messages."""
    for node in nodes:
        found = dict[str, float]()
        for name, who in (
            ("outsider", Adversary()),
            ("neighbour", Adversary(corrupt=frozenset(case.trace.graph.neighbours[node][:1]))),
        ):
            try:
                found[name] = account(
                    know(relations, who), relations.gradients(node), 1.0, certify=False
                ).attained
            except LeakauditError:
                break
        if len(found) == 2 and found["neighbour"] > found["outsider"] * MORE:
            near = case.trace.graph.neighbours[node][0]
            says = (
                f"what node {node} sends has mu {found['outsider']:.4g} to an outsider on all wires and {found['neighbour']:.4g} with "
                f"neighbour {near}, at sensitivity 1 over {relations.round} rounds: one epsilon of the protocol does not exist"
            )
            yield Pitfall(
                4,
                Verdict.UNCLAIMED,
                says,
                {"node": node, "neighbour": near, **{f"mu_{k}": v for k, v in found.items()}},
            )
            return


def _pairs(case: Case, relations: Relations) -> Iterator[Pitfall]:
    """Compare claims of what one node sees of another with what an outsider on all wires sees."""
    pairs = [c for c in case.claims if c.pair is not None and c.sensitivity is not None and c.delta]
    if not pairs:
        return
    claim = min(pairs, key=lambda c: c.epsilon or 0.0)
    node = claim.pair[1] if claim.pair else 0
    try:
        mu = account(
            know(relations, Adversary()),
            relations.gradients(node),
            claim.sensitivity or 0.0,
            certify=False,
        ).attained
    except LeakauditError:
        return
    if (total := gaussian.epsilon(claim.delta or 0.0, mu)) > (claim.epsilon or 0.0) * MORE:
        says = (
            f"{claim.source} promises epsilon {claim.epsilon:.4g} of what one node sees of node {node}; an outsider on all wires has "
            f"{total:.4g} over {relations.round} rounds, of which it says nothing"
        )
        yield Pitfall(
            4, Verdict.UNCLAIMED, says, {"node": node, "claimed": claim.epsilon, "outsider": total}
        )
