"""What theory allows: the mu, and epsilon, of what an adversary sees of each node.

The adversary's own view is computed first. If it sees every model at which the node takes gradients
(certificate 2), its mu holds for one record. If not, the views of stronger adversaries are tried,
of which its own view is a function, so that their mu is an upper value; and with a smoothness, the
drift of the gradients is bounded. The least upper value counts. What constant and quadratic losses
reach is computed beside it, so that the truth lies between.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace

from leakaudit.adversary import Adversary
from leakaudit.bounds import gaussian
from leakaudit.errors import LeakauditError
from leakaudit.progress import step
from leakaudit.protocols.declared import DECLARED, Protocol
from leakaudit.relations import (
    Bound,
    Expression,
    Knowledge,
    Turns,
    account,
    alone,
    drift,
    know,
    largest,
    reached,
    secretless,
    with_models,
)
from leakaudit.trace import Json

# Relative distance of two mu that count as equal; a choice, well above rounding.
CLOSE = 1e-9

# Choices of batches for which a drift is computed; above, a record counts in every gradient, which
# is an upper value. A choice: each costs a pass over the declaration.
DRIFTED = 16

SEEN = (
    "the models are functions of what is seen, so one changed record moves each gradient by the "
    "sensitivity only"
)
MESSAGES = "every message that the node sends or receives"
MODELS = "the models at which it takes gradients"
NODE = (
    "node: no epsilon for records, because a changed record moves the models, and with them later "
    "gradients by more than the "
    "sensitivity; give a smoothness. The node's epsilon holds if any two gradients of the node, at "
    "any two models, differ by the "
    "sensitivity at most"
)
NONE = (
    "none: noise that this listener does not see steers the models, so there is no epsilon for "
    "records or for the node"
)
IDLE = "record: the node takes no gradient in these rounds"
LEAKS = "record: a combination of gradients is on the wire without noise"


@dataclass(frozen=True)
class Price:
    """The bound on what one adversary's view may tell about one node.

    Attributes:
        node: That the data belongs to.
        adversary: As text.
        sensitivity: How far one gradient moves.
        delta: At which epsilons are given.
        mu: At record level, of Gaussian differential privacy; a certified upper value. None if
            there is none, as `level` says.
        attained: Reached by changes that may differ from round to round; None if `mu` is an upper
            value only.
        linear: Reached by a record whose gradients are constant and move by the sensitivity.
        reached: As `linear`, also by quadratic losses within the smoothness that was given.
        epsilon: Of `mu`.
        node_mu: If all data of the node change, and any two of its gradients, wherever taken,
            differ by at most the sensitivity.
        node_epsilon: Of `node_mu`.
        level: Whose change is bounded, and for whom.
        certificate: Of every gradient, see `leakaudit.relations.Bound`.
        leaking: Combinations of gradients without noise, if mu is inf.
        enters: How many of the node's gradients one record enters at most.
        gradients: How many gradients the node takes.
        rounds_priced: The rounds that these values are about.
        refused: Why there are none, in words.
    """

    node: int
    adversary: str
    sensitivity: float
    delta: float
    mu: float | None = None
    attained: float | None = None
    linear: float | None = None
    reached: float | None = None
    epsilon: float | None = None
    node_mu: float | None = None
    node_epsilon: float | None = None
    level: str = ""
    certificate: tuple[int, ...] = ()
    leaking: tuple[str, ...] = ()
    enters: int | None = None
    gradients: int | None = None
    rounds_priced: int = 0
    refused: str = ""

    @property
    def largest(self) -> float | None:
        """The mu to compare views by: at record level, else of the node, else what is reached."""
        return next((mu for mu in (self.mu, self.node_mu, self.reached) if mu is not None), None)

    def to_json(self) -> dict[str, Json]:
        """Plain values; infinity is the text ``inf``."""
        return {
            k: "inf" if v == math.inf else list(v) if isinstance(v, tuple) else v
            for k, v in asdict(self).items()
        }


def price(
    protocol: Protocol,
    adversary: Adversary,
    nodes: Sequence[int],
    sensitivity: float = 1.0,
    delta: float = 1e-5,
    smoothness: float | None = None,
) -> Iterator[Price]:
    """Yield the bound of every node, over all rounds of the protocol.

    Args:
        protocol: With its constants and graph.
        adversary: Who observes it.
        nodes: To be bounded.
        sensitivity: How far one gradient moves in Euclidean norm when a record changes and the
            model does not.
        delta: At which epsilons are given.
        smoothness: Lipschitz constant of the node's gradients, for record level if the protocol
            does not release the models.

    Raises:
        LeakauditError: A node or edge does not exist.
    """
    adversary.check(protocol.graph)
    for k, node in enumerate(nodes):
        if not 0 <= node < protocol.graph.nodes:
            raise LeakauditError(
                f"there is no node {node}: the graph has nodes 0 to {protocol.graph.nodes - 1}"
            )
        step("nodes", k, len(nodes))
        asked = Price(node, str(adversary), sensitivity, delta, rounds_priced=protocol.rounds)
        try:
            yield _price(protocol, adversary, asked, smoothness)
        except LeakauditError as e:
            yield replace(asked, refused=str(e))
    step("nodes", len(nodes), len(nodes))


@dataclass(frozen=True)
class _View:
    """What somebody sees of a node, with its bound at sensitivity 1.

    Attributes:
        knowledge: What is known.
        targets: The node's gradients that are not known.
        bound: At sensitivity 1.
        says: Who that is, if not the adversary that was asked for.
    """

    knowledge: Knowledge
    targets: Sequence[Expression]
    bound: Bound
    says: str = ""

    @classmethod
    def of(cls, knowledge: Knowledge, node: int, says: str = "") -> _View:
        targets = _targets(knowledge, node)
        return cls(knowledge, targets, account(knowledge, targets, 1.0), says)

    @property
    def lowest(self) -> int:
        """The lowest certificate.

        A gradient that no message shows leaves the view as it is, wherever it was taken; so its 1
        counts for nothing. Its 0 counts: another node's gradient, which is shown, may react to it.
        """
        levels = self.bound.certificate
        if self.bound.fisher is not None:
            shown = self.bound.fisher.diagonal() != 0
            levels = tuple(
                level for level, seen in zip(levels, shown, strict=True) if seen or not level
            )
        return min(levels, default=2)


def _price(
    protocol: Protocol, adversary: Adversary, asked: Price, smoothness: float | None
) -> Price:
    node = asked.node
    moved = asked.sensitivity
    if node in adversary.corrupt:
        raise LeakauditError("the adversary is this node")
    if secretless(protocol.start, node):
        nothing = replace(
            asked,
            mu=0.0,
            attained=0.0,
            linear=0.0,
            reached=0.0,
            node_mu=0.0,
            level=IDLE,
            enters=0,
            gradients=0,
        )
        return _with_epsilons(nothing)
    if protocol.missing:
        return _faulty(protocol, adversary, asked, smoothness)
    try:
        own = _View.of(_knowledge(protocol, node, adversary), node)
    except LeakauditError as e:
        return _elsewhere(protocol, asked, smoothness, str(e))
    turns = _turns(protocol, own)
    every = range(len(own.targets))
    found = replace(
        asked, certificate=own.bound.certificate, gradients=len(every), enters=len(every)
    )
    if own.bound.leaking:
        # Constant gradients: a difference of two of them, which may be what leaks, tells nothing of
        # these.
        linear = moved * _quadratic(own, every, 0.0)
        leaks = replace(
            found,
            mu=math.inf,
            attained=math.inf,
            linear=linear,
            reached=math.inf,
            node_mu=math.inf,
            level=LEAKS,
        )
        return _with_epsilons(replace(leaks, leaking=tuple(map(str, own.bound.leaking))))
    entered: Sequence[int] = every
    least = 0.0
    if own.bound.fisher is not None:
        # All gradients move by one vector of length 1: mu^2 is the sum of M. Rounding may leave it
        # below 0.
        least = math.sqrt(max(float(own.bound.fisher.sum()), 0.0))
    if turns and own.bound.fisher is not None:
        least, _, entered = largest(own.bound.fisher, turns)
    found = replace(
        found, linear=moved * least, reached=moved * least, enters=_most(turns, len(every))
    )
    if smoothness:
        # Quadratic losses of the largest curvature that the smoothness allows, concave and convex.
        least = max(least, *(_quadratic(own, entered, bend) for bend in (-smoothness, smoothness)))
        found = replace(found, reached=moved * least)
    views = [own] if own.lowest == 2 else [own, *_stronger(protocol, node)]
    priced = _levelled(found, views, turns, smoothness)
    own_level = own.lowest == 2 and not turns
    return replace(priced, attained=moved * own.bound.attained if own_level else None)


def _levelled(
    found: Price, views: Sequence[_View], turns: Turns | None, smoothness: float | None
) -> Price:
    """Return the bound with the least upper value of all views, for records and for the node.

    The listener's view is a function of each of these views, so a price of any of them is an upper
    value of its own.
    """
    records: list[tuple[float, str]] = []
    whole: list[float] = []
    why = ""
    for view in views:
        if view.lowest == 2:
            records.append((_recorded(view, turns), f"record: {SEEN}{_for(view)}"))
        elif view.lowest == 1 and smoothness is not None:
            try:
                records.append(
                    (
                        _drifted(view, turns, smoothness),
                        f"record: gradients are {smoothness:g}-Lipschitz{_for(view)}",
                    )
                )
            except LeakauditError as e:
                why = f" (with the smoothness: {e})"
        if view.lowest >= 1:
            whole.append(view.bound.mu)
    mu, level = min(records, key=lambda one: one[0], default=(math.inf, ""))
    node_mu = min(whole, default=math.inf)
    if mu == math.inf:
        level = NODE if node_mu < math.inf else NONE
        level += why
    moved = found.sensitivity
    return _with_epsilons(
        replace(
            found,
            mu=None if mu == math.inf else moved * mu,
            node_mu=None if node_mu == math.inf else moved * node_mu,
            level=level,
        )
    )


def _with_epsilons(found: Price) -> Price:
    """Return the price with an epsilon for every mu."""
    at = found.delta
    return replace(
        found,
        epsilon=None if found.mu is None else gaussian.epsilon(at, found.mu),
        node_epsilon=None if found.node_mu is None else gaussian.epsilon(at, found.node_mu),
    )


def _for(view: _View) -> str:
    return f"; upper value, priced for one who {view.says}" if view.says else ""


def _recorded(view: _View, turns: Turns | None) -> float:
    """Return the mu at record level of a view that has every model, at sensitivity 1."""
    if turns is None or view.bound.fisher is None:
        return view.bound.mu
    return min(view.bound.mu, largest(view.bound.fisher, turns)[1])


def _drifted(view: _View, turns: Turns | None, smoothness: float) -> float:
    """Return the mu at record level of a view without the models, for Lipschitz gradients.

    It is at sensitivity 1. A record of a mini-batch enters some gradients only; if there are few
    choices each is priced, else it counts in all of them, which is an upper value.
    """
    every = tuple(range(len(view.targets)))
    patterns: list[tuple[int, ...]] = [every]
    if turns and math.prod(len(choices) for choices in turns) <= DRIFTED:
        patterns = [tuple(itertools.chain(*chosen)) for chosen in itertools.product(*turns)]
    worst = 0.0
    for entered in patterns:
        moves = [float(k in entered) for k in every]
        found = drift(view.knowledge, view.targets, moves, smoothness)
        aligned = account(view.knowledge, view.targets, found.limits, certify=False)
        worst = max(worst, min(found.mu, aligned.mu))
    return worst


def _quadratic(view: _View, entered: Sequence[int], curvature: float) -> float:
    """Return what least squares of this curvature reach.

    It is 0, which claims nothing, if that cannot be computed.
    """
    try:
        return reached(view.knowledge, view.targets, entered, curvature)
    except LeakauditError:
        return 0.0


def _stronger(protocol: Protocol, node: int) -> tuple[_View, ...]:
    """Return views of which every adversary's is a function, unless it is the node itself.

    They are computed once for each node.
    """
    if node not in protocol.stronger:
        protocol.stronger[node] = tuple(_made_stronger(protocol, node))
    return protocol.stronger[node]


def _made_stronger(protocol: Protocol, node: int) -> Iterator[_View]:
    """Yield the view of one who hears all messages of the node, then with models besides."""
    heard = _alone(protocol, node)
    if heard is None:
        return
    try:
        everything = _View.of(heard, node, f"hears {MESSAGES}")
    except LeakauditError:
        return
    yield everything
    for below in (1, 2):
        shown = with_models(heard, everything.targets, everything.bound.certificate, below)
        if shown is None or everything.lowest >= below:
            continue
        try:
            yield _View.of(shown, node, f"hears {MESSAGES} and sees {MODELS}")
        except LeakauditError:
            continue


def _alone(protocol: Protocol, node: int) -> Knowledge | None:
    """Return `alone` over all rounds.

    If all rounds of a protocol are alike, later ones are copies of the last declared ones.
    """
    start = alone(protocol.start, node)
    if start is None or protocol.start.round >= protocol.rounds:
        return start
    if protocol.repeats:
        return alone(protocol.continued(start.rows, range(1, protocol.rounds + 1)), node)
    return alone(protocol.whole, node)


def _elsewhere(protocol: Protocol, asked: Price, smoothness: float | None, why: str) -> Price:
    """Return the bound for one who hears all messages of the node.

    It is used if the adversary's own view cannot be bounded. No value is known to be reached then.
    Raises LeakauditError, which says why, if there is no price either.
    """
    views = [view for view in _stronger(protocol, asked.node) if not view.bound.leaking]
    if not views:
        raise LeakauditError(why)
    every = len(views[0].targets)
    turns = _turns(protocol, views[0])
    found = replace(
        asked, certificate=views[0].bound.certificate, gradients=every, enters=_most(turns, every)
    )
    priced = _levelled(found, views, turns, smoothness)
    return replace(priced, level=f"{priced.level} ({why})")


def _faulty(
    protocol: Protocol, adversary: Adversary, asked: Price, smoothness: float | None
) -> Price:
    """Return the price of a run in which messages were lost, over all its rounds.

    Each step of the node is as declared, except for received vectors: a lost one is replaced by
    another that is known. So what the node sends is priced for one who hears all its messages, lost
    ones included (`relations.alone`). A listener of the run without the fault never has more.
    """
    why = f"{protocol.missing}, so every message of the node counts as heard"
    try:
        return _elsewhere(protocol, asked, smoothness, why)
    except LeakauditError:
        if protocol.holds:  # a leak of the rounds before the first loss is a leak of the run
            before = replace(protocol, rounds=protocol.holds, missing="")
            leaking = _price(before, adversary, asked, None)
            if leaking.mu == math.inf:
                return leaking
        raise LeakauditError(
            f"{why}, and then its noise hides nothing; record without the fault"
        ) from None


def _turns(protocol: Protocol, view: _View) -> Turns | None:
    """Return which gradients a record can enter; None if all of them, or if not declared."""
    declared = protocol.turns
    if declared is None:
        return None
    count = sum(1 for _ in view.knowledge.declared.gradients(_owner(view)))
    known = {k for choices in declared for some in choices for k in some}
    if len(view.targets) != count or (known and max(known) >= count):
        return None
    return declared


def _owner(view: _View) -> int:
    owner = view.knowledge.declared.vectors[view.targets[0].vector].owner
    if owner is None:
        raise LeakauditError("account: expected gradients that a node takes")
    return owner


def _most(turns: Turns | None, every: int) -> int:
    """Return how many gradients one record enters at most."""
    if turns is None:
        return every
    return sum(max((len(some) for some in choices), default=0) for choices in turns)


def _knowledge(protocol: Protocol, node: int, adversary: Adversary) -> Knowledge:
    """Return what an adversary knows, over all relations that say something of the node.

    Private vectors of its own nodes are included. Only those of the node if all its messages are
    heard and they allow, over the first rounds, what those of the whole network allow: the same mu,
    leaks and certificates.
    """
    if protocol.repeats and protocol.rounds > DECLARED:
        start = know(protocol.start, adversary)
        own = start.near([node])
        unheard = (protocol.start.vectors[k] for k in own.used - own.known)
        if not any(v.kind == "message" and not v.secure for v in unheard) and _agree(
            own, start, node
        ):
            return know(protocol.continued(own.rows, range(1, protocol.rounds + 1)), adversary)
    return know(protocol.whole, adversary)


def _agree(own: Knowledge, start: Knowledge, node: int) -> bool:
    """Whether a part of the relations gives the bound that all of them give."""
    part, whole = (account(k, _targets(k, node), 1.0) for k in (own, start))
    same = part.mu == whole.mu or math.isclose(part.mu, whole.mu, rel_tol=CLOSE)
    return (
        same and part.certificate == whole.certificate and len(part.leaking) == len(whole.leaking)
    )


def _targets(knowledge: Knowledge, node: int) -> list[Expression]:
    """Return the node's gradients that the adversary does not know; refuse a node without any."""
    targets = [g for g in knowledge.declared.gradients(node) if g.vector not in knowledge.known]
    if not targets:
        raise LeakauditError("its data does not enter by gradients, so there is nothing to price")
    return targets
