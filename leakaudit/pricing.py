"""What theory allows: the exact mu, and epsilon, of what an adversary sees of each node, behind `leakaudit bound`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

from leakaudit.adversary import Adversary
from leakaudit.bounds import gaussian
from leakaudit.declared import DECLARED, Protocol
from leakaudit.errors import LeakauditError
from leakaudit.progress import step
from leakaudit.relations import Expression, Knowledge, account, drift, know
from leakaudit.trace import Json

CLOSE = 1e-9  # of two mu that are one but for rounding
LEVELS = {
    2: "record: the models are functions of what is seen, so one changed record moves each gradient by the sensitivity alone",
    1: "node: the node's own past gradients move the model where later ones are taken; give --smoothness for records",
    0: "fixed changes: hidden noise steers the models, so this holds for changes that do not depend on the run",
}


@dataclass(frozen=True)
class Price:
    """What one adversary's view may tell about one node.

    mu: of Gaussian differential privacy, certified upper value; attained: reached by some change, None at record level. linear: reached
    by records whose gradients are constant and move by the sensitivity. epsilon: at `delta`. level: whose change is bounded
    (`LEVELS`). leaking: combinations without noise, where mu is inf. refused: why there is no mu, in words.
    """

    node: int
    adversary: str
    sensitivity: float
    delta: float
    mu: float | None = None
    attained: float | None = None
    linear: float | None = None
    epsilon: float | None = None
    level: str = ""
    certificate: tuple[int, ...] = ()
    leaking: tuple[str, ...] = ()
    refused: str = ""

    def to_json(self) -> dict[str, Json]:
        """Plain values; infinity is the text ``inf``."""
        return {k: "inf" if v == math.inf else list(v) if isinstance(v, tuple) else v for k, v in asdict(self).items()}


def price(
    protocol: Protocol,
    adversary: Adversary,
    nodes: Sequence[int],
    sensitivity: float = 1.0,
    delta: float = 1e-5,
    smoothness: float | None = None,
) -> Iterator[Price]:
    """Yield the price of every node.

    sensitivity: how far one gradient moves in Euclidean norm when the data changes. smoothness: Lipschitz constant of the node's
    gradients, for record level where the protocol does not release the models. Raises LeakauditError for a node or edge that is not there.
    """
    adversary.check(protocol.graph)
    for k, node in enumerate(nodes):
        if not 0 <= node < protocol.graph.nodes:
            raise LeakauditError(f"there is no node {node}: the graph has nodes 0 to {protocol.graph.nodes - 1}")
        step("nodes", k, len(nodes))
        asked = Price(node, str(adversary), sensitivity, delta)
        try:
            yield _price(_knowledge(protocol, node, adversary), asked, smoothness)
        except LeakauditError as e:
            yield Price(node, str(adversary), sensitivity, delta, refused=str(e))
    step("nodes", len(nodes), len(nodes))


def _knowledge(protocol: Protocol, node: int, adversary: Adversary) -> Knowledge:
    """Return what an adversary knows, own private vectors included, over all relations that say something of the node.

    Those of the node alone, where all its messages are heard and where they allow, over the first rounds, what those of the whole
    network allow: the same mu, leaks and certificates.
    """
    if protocol.repeats and protocol.rounds > DECLARED:
        start = know(protocol.start, adversary)
        own = start.near([node])
        unheard = (protocol.start.vectors[k] for k in own.used - own.known)
        if not any(v.kind == "message" and not v.secure for v in unheard) and _agree(own, start, node):
            return know(protocol.continued(own.rows, range(1, protocol.rounds + 1)), adversary)
    return know(protocol.whole, adversary)


def _agree(own: Knowledge, start: Knowledge, node: int) -> bool:
    """Whether a part of the relations gives the bound that all of them give."""
    part, whole = (account(k, _targets(k, node), 1.0) for k in (own, start))
    same = part.mu == whole.mu or math.isclose(part.mu, whole.mu, rel_tol=CLOSE)
    return same and part.certificate == whole.certificate and len(part.leaking) == len(whole.leaking)


def _targets(knowledge: Knowledge, node: int) -> list[Expression]:
    """Return the node's gradients that the adversary does not know; raises LeakauditError where there are none."""
    targets = [g for g in knowledge.declared.gradients(node) if g.vector not in knowledge.known]
    if not targets:
        raise LeakauditError("it takes no gradients, or the adversary is this node")
    return targets


def _price(knowledge: Knowledge, asked: Price, smoothness: float | None) -> Price:
    targets = _targets(knowledge, asked.node)
    bound = account(knowledge, targets, asked.sensitivity)
    mu, lowest = bound.mu, min(bound.certificate, default=2)
    attained: float | None = bound.attained
    level = LEVELS[lowest]
    if smoothness is not None and mu < math.inf and lowest < 2:
        try:
            moved = drift(knowledge, targets, asked.sensitivity, smoothness)
            reached = account(knowledge, targets, moved.limits, certify=False)
            mu, attained, level = min(moved.mu, reached.mu), None, f"record: gradients are {smoothness:g}-Lipschitz"
        except LeakauditError as e:
            level = f"{level} (no bound for records: {e})"
    return Price(
        asked.node,
        asked.adversary,
        asked.sensitivity,
        asked.delta,
        mu=mu,
        attained=attained,
        linear=bound.attained,
        epsilon=gaussian.epsilon(asked.delta, mu),
        level=level if mu < math.inf else "",
        certificate=bound.certificate,
        leaking=tuple(map(str, bound.leaking)),
    )
