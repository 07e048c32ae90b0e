"""Views of one node with their bounds: the view of the adversary itself, and of stronger ones."""

from __future__ import annotations

import itertools
import math
from bisect import bisect_left
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from typing import TypeAlias

from leakaudit._util.once import once
from leakaudit.core.adversary import Adversary
from leakaudit.core.errors import LeakauditError, Unexplained
from leakaudit.protocols.declared import DECLARED, Protocol
from leakaudit.theory.relations import (
    Bound,
    Expression,
    Knowledge,
    Shifts,
    Turns,
    account,
    alone,
    know,
    recursion,
    shared,
    shifts,
    with_models,
)
from leakaudit.theory.relations.account import lowest_level
from leakaudit.views.accounting.basis import ALL_MESSAGES, MESSAGES_AND_MODELS, OWNERS

# Relative distance of two mu that count as equal; a choice, well above rounding.
CLOSE = 1e-9
# Number of relations beyond which a symmetric network is bounded in closed form, although all
# rounds at once would fit: a choice.
LARGE = 10_000


@dataclass(frozen=True)
class NodeView:
    """A view of a node, with its bound at sensitivity 1."""

    knowledge: Knowledge  # what is known; of a long run (`recursion`), in its first rounds
    targets: Sequence[Expression]  # the node's gradients that are not known; empty for a long run
    bound: Bound  # the bound at sensitivity 1
    stronger: str = ""  # the adversary, if it is not the requested one but a stronger one

    @classmethod
    def of(
        cls,
        knowledge: Knowledge,
        node: int,
        stronger: str = "",
        *,
        least: bool = False,
    ) -> NodeView:
        """Bound what is known of a node; with `least`, from below (`account`)."""
        targets = _targets(knowledge, node)
        return cls(knowledge, targets, account(knowledge, targets, 1.0, least=least), stronger)

    @property
    def count(self) -> int:
        """The number of the node's gradients that are not known."""
        return len(self.bound.certificate)

    @cached_property
    def lowest(self) -> int:
        """The lowest certificate."""
        return lowest_level(self.bound.certificate, self.bound.fisher)

    def turns(self, protocol: Protocol) -> Turns | None:
        """Return which gradients a record can enter; None if all of them, or if not declared."""
        declared = protocol.turns
        if declared is None:
            return None
        vectors = self.knowledge.declared.vectors
        owner = vectors[self.targets[0].vector].owner
        assert owner is not None
        count = len(self.knowledge.declared.gradients(owner))
        last = -1
        for choices in declared:
            for entered in choices:
                last = max(last, *entered, -1)
        if len(self.targets) != count or last >= count:
            return None
        return declared


class Views:
    """One adversary's views of the nodes of a protocol; what they share is computed once."""

    def __init__(
        self,
        protocol: Protocol,
        adversary: Adversary,
        nodes: Iterable[int],
        *,
        smooth: bool = False,
    ) -> None:
        self.protocol = protocol
        self.smooth = smooth
        self.adversary = adversary
        self.nodes = [node for node in nodes if node not in adversary.corrupt]

    def own(self, node: int) -> NodeView:
        """Return the adversary's view of a node, over all rounds."""
        if self._together is not None:
            known, bounded = self._together
            bound = bounded(node)
            if bound is not None:
                return NodeView(known, bound.targets, bound)
        return self._all_messages(node) or _own_view(self.protocol, self.adversary, node)

    def certain(self, node: int) -> NodeView:
        """Return what the view reveals whatever unexplained vectors contain: a lower bound.

        In a long run, only relations of the node itself are used.
        """
        protocol = self.protocol
        if protocol.repeats and protocol.rounds > DECLARED:
            rows = self._at_first.near([node]).rows
            declared = protocol.continued(rows, range(1, protocol.rounds + 1))
        else:
            declared = protocol.whole
        return NodeView.of(know(declared, self.adversary), node, least=True)

    def informed(self, node: int, missing: Unexplained) -> NodeView | None:
        """Return the view of one who also knows all that the owners of unexplained vectors know.

        These vectors are functions of this view and of chance, so that it determines the
        adversary's own: its mu is an upper bound.

        Returns:
            None if there is none: the node itself, or nobody in particular, owns such a vector.
        """
        adversary = self.adversary
        window = adversary.window
        if window is not None:  # a vector may contain what its owner learnt before
            window = range(window.stop)
        while True:
            owners = {owner for owner in missing.owners if owner is not None}
            if node in owners or None in missing.owners:
                return None
            adversary = Adversary(adversary.hears, adversary.corrupt | owners, window)
            try:
                views = Views(self.protocol, adversary, [node], smooth=self.smooth)
                return replace(views.own(node), stronger=OWNERS)
            except Unexplained as more:
                missing = more
            except LeakauditError:
                return None

    def _all_messages(self, node: int) -> NodeView | None:
        """Return the view of a node all of whose messages are observed, in a long run.

        It contains what the node's own relations show, and is contained in the view of one who
        observes everything else as well. If both have the same bound, so has this view. They are
        computed once for all nodes whose relations are alike. None if they differ, or leak.
        """
        protocol = self.protocol
        if not protocol.repeats or protocol.rounds <= DECLARED or self.adversary.hears != "all":
            return None
        if self.adversary.window is not None:  # the first rounds do not tell where it ends
            return None
        near = self._at_first.near([node])
        if not _all_heard(near) or not self._none_reacts:
            return None
        like = ("near", _private(near, node))
        known = shared_views(protocol)
        if like not in known:
            rows = protocol.continued(near.rows, range(1, protocol.rounds + 1))
            view = NodeView.of(know(rows, self.adversary), node)
            known[like] = (view,)
        (found,) = known[like]
        if found.bound.leaking:  # these are written with the number of a node
            return None
        for view in stronger_views(protocol, node):
            if view.stronger == ALL_MESSAGES and _equal(found.bound, view.bound):
                return found
        return None

    @cached_property
    def _none_reacts(self) -> bool:
        """Whether each node's own relations show its points, but for its own gradients.

        No gradient then reacts to those of another node, so that the certificate of a node by its
        own relations is that by all relations.
        """
        levels: dict[Hashable, int] = {}
        for node in range(self.protocol.graph.nodes):
            if node in self.adversary.corrupt or node in self.protocol.silent:
                continue
            near = self._at_first.near([node])
            like = _private(near, node)
            if like not in levels:
                try:
                    levels[like] = NodeView.of(near, node).lowest
                except LeakauditError:
                    return False
            if not levels[like]:
                return False
        return True

    @cached_property
    def _at_first(self) -> Knowledge:
        return know(self.protocol.start, self.adversary)

    @cached_property
    def _together(self) -> tuple[Knowledge, Callable[[int], Bound | None]] | None:
        """What is known, and what bounds each node; None if each node is bounded by itself.

        If all messages are observed in a long run, the relations of each node suffice
        (`_all_messages`), and the rest is not even declared.
        """
        protocol = self.protocol
        if protocol.rounds > DECLARED and self.adversary.hears == "all" and protocol.repeats:
            return None
        if protocol.forward is not None and not self._is_large:
            known = know(protocol.whole, self.adversary)
            whole = shared.bounds(protocol.forward, known.known, self.nodes)
            return None if whole is None else (known, whole)
        if protocol.beginning is None or self._needs_all_rounds:
            return None
        long = recursion.long_view(
            protocol.beginning,
            protocol.same,
            self._at_first.known,
            protocol.rounds,
            protocol.network,
            self.adversary.corrupt,
            self.nodes,
        )
        return None if long is None else (self._at_first, long.bound)

    @property
    def _is_large(self) -> bool:
        protocol = self.protocol
        if self._needs_all_rounds or protocol.relations_count <= LARGE:
            return False
        return protocol.network is not None

    @property
    def _needs_all_rounds(self) -> bool:
        """Whether more is asked than a recursion over rounds yields."""
        return self.smooth or self.protocol.turns is not None or self.adversary.window is not None


def _own_view(protocol: Protocol, adversary: Adversary, node: int) -> NodeView:
    found = _by_own_relations(protocol, adversary, node)
    if found is None:
        found = NodeView.of(know(protocol.whole, adversary), node)
    return found


@once
def shared_views(protocol: Protocol) -> dict[Hashable, tuple[NodeView, ...]]:
    """Return the views of adversaries who observe all messages of a node, as far as they are known.

    All such adversaries share the same result, and so do nodes whose relations are alike; a key
    is a node, or represents these relations.
    """
    return {}


def stronger_views(protocol: Protocol, node: int) -> tuple[NodeView, ...]:
    """Return views that determine the view of every adversary other than the node itself.

    They are computed once for all nodes whose own relations are alike. These views may therefore be
    those of another node, with the same bounds.
    """
    known = shared_views(protocol)
    if node not in known:
        known[node] = _like_earlier(protocol, node)
    return known[node]


def _all_of_node(protocol: Protocol, node: int) -> Knowledge | None:
    """Return what one knows who observes all messages of a node, maybe only in the first rounds."""
    if protocol.repeats or protocol.start.round >= protocol.rounds:
        return alone(protocol.start, node)
    return alone(protocol.whole, node)


def _over_all_rounds(protocol: Protocol, node: int, heard: Knowledge) -> Knowledge | None:
    """Return the same over all rounds: if they are alike, as copies of the last declared ones."""
    if heard.declared.round >= protocol.rounds:
        return heard
    return alone(protocol.continued(heard.rows, range(1, protocol.rounds + 1)), node)


Released: TypeAlias = tuple[Knowledge, Shifts]


@once
def _known_releases(protocol: Protocol) -> dict[Hashable, Released | LeakauditError]:
    """Return what `released` has found, or why it found nothing."""
    return {}


def released(
    protocol: Protocol, node: int, smoothness: float | None, *, anywhere: bool
) -> Released:
    """Return how far each release of a node moves at sensitivity 1, with the declaration.

    Args:
        anywhere: Whether the sensitivity is that of gradients at any two models (`shifts`).

    Raises:
        LeakauditError: The messages of the node are no releases with fresh noise.
    """
    known = _known_releases(protocol)
    key = (node, smoothness, anywhere)
    if key not in known:
        try:
            known[key] = _released(protocol, node, smoothness, anywhere)
        except LeakauditError as why:
            known[key] = why.with_traceback(None)
    found = known[key]
    if isinstance(found, LeakauditError):
        raise found
    return found


def _released(protocol: Protocol, node: int, smoothness: float | None, anywhere: bool) -> Released:
    heard = _all_of_node(protocol, node)
    longer = None
    if heard is not None:
        longer = _over_all_rounds(protocol, node, heard)
    if longer is None:
        raise LeakauditError("the equations of the node use private vectors of other nodes")
    return longer, shifts(longer, _targets(longer, node), 1.0, smoothness, anywhere=anywhere)


def _like_earlier(protocol: Protocol, node: int) -> tuple[NodeView, ...]:
    """Return the stronger views of a node, or of an earlier one whose relations are alike."""
    heard = _all_of_node(protocol, node)
    if heard is None:
        return ()
    like = _private(heard, node)
    known = shared_views(protocol)
    if like not in known:
        known[like] = tuple(_stronger(protocol, node, heard))
    return known[like]


def _private(heard: Knowledge, node: int) -> Hashable:
    """Return the relations and points of a node without known vectors and numbers of nodes.

    Known vectors do not affect a bound, so nodes with equal values have equal bounds.
    """
    vectors = heard.declared.vectors
    labels: dict[int, int] = {}  # unknown vectors in the order of their first use

    def form(terms: Mapping[int, Fraction]) -> Hashable:
        unknown = []
        for k, value in terms.items():
            if k not in heard.known:
                v = vectors[k]
                label = labels.setdefault(k, len(labels))
                unknown.append((label, v.kind, v.name, v.round, v.std, v.law, v.width, value))
        return frozenset(unknown)

    def steps(terms: Mapping[int, Fraction]) -> Hashable:
        parts = (heard.declared.opaques.get(k, ()) for k in terms)
        found = [form(part.terms) for part in itertools.chain(*parts)]
        for k in terms:
            if k in heard.declared.firmly:
                of, by = heard.declared.firmly[k]
                found.append(("firm", form(of.terms), by is not None and form(by.terms)))
        return tuple(found)

    rows: list[Hashable] = []
    for relation in heard.relations:
        rows.append((form(relation.terms), steps(relation.terms)))
    points = []
    for target in heard.declared.gradients(node):
        point = heard.declared.points[target.vector]
        earlier = bisect_left(heard.rows, heard.declared.before[target.vector])
        points.append((form(target.terms), form(point.terms), steps(point.terms), earlier))
    return (tuple(rows), tuple(points))


def _stronger(protocol: Protocol, node: int, heard: Knowledge) -> Iterator[NodeView]:
    """Yield the view of one who observes all messages of the node, then views with models added."""
    longer = _over_all_rounds(protocol, node, heard)
    if longer is None:
        return
    heard = longer
    try:
        everything = NodeView.of(heard, node, ALL_MESSAGES)
    except LeakauditError:
        return
    yield everything
    for below in (1, 2):
        shown = with_models(heard, everything.targets, everything.bound.certificate, below)
        if shown is None or everything.lowest >= below:
            continue
        try:
            yield NodeView.of(shown, node, MESSAGES_AND_MODELS)
        except LeakauditError:
            continue


def _by_own_relations(protocol: Protocol, adversary: Adversary, node: int) -> NodeView | None:
    """Return a view of a node in a long run, from relations of the node alone; None if they differ.

    Private vectors of the adversary's own nodes are included. Only these relations are continued
    over the rounds, which is much faster. This requires that all messages of the node are observed
    or encrypted, and that over the first rounds its own relations yield the same as those of the
    whole network. What other nodes relay, by encrypted messages or because equations refer to their
    private vectors, may arrive later: over all rounds, the node's own relations must therefore leak
    something by themselves, or have the bound of one who observes all messages of the node.
    """
    if not protocol.repeats or protocol.rounds <= DECLARED:
        return None
    start = know(protocol.start, adversary)
    own = start.near([node])
    if not _all_heard(own) or not _agree(own, start, node):
        return None
    rows = protocol.continued(own.rows, range(1, protocol.rounds + 1))
    found = NodeView.of(know(rows, adversary), node)
    if found.bound.leaking or not _any_hidden(own, node):
        return found
    for view in stronger_views(protocol, node):
        if view.stronger == ALL_MESSAGES and _equal(found.bound, view.bound):
            return found
    return None


def _any_hidden(knowledge: Knowledge, node: int) -> bool:
    vectors = knowledge.declared.vectors
    hidden = (vectors[k] for k in knowledge.used - knowledge.known)
    return any(vector.kind == "message" or vector.owner not in (node, None) for vector in hidden)


def _all_heard(knowledge: Knowledge) -> bool:
    for k in knowledge.used - knowledge.known:
        vector = knowledge.declared.vectors[k]
        if vector.kind == "message" and not vector.secure:
            return False
    return True


def _agree(own: Knowledge, start: Knowledge, node: int) -> bool:
    part = account(own, _targets(own, node), 1.0)
    return _equal(part, account(start, _targets(start, node), 1.0))


def _equal(part: Bound, whole: Bound) -> bool:
    if part.certificate != whole.certificate or len(part.leaking) != len(whole.leaking):
        return False
    return part.mu == whole.mu or math.isclose(part.mu, whole.mu, rel_tol=CLOSE)


def _targets(knowledge: Knowledge, node: int) -> list[Expression]:
    """Return the node's gradients that the adversary does not know; reject a node without any."""
    gradients = knowledge.declared.gradients(node)
    targets = [g for g in gradients if g.vector not in knowledge.known]
    if not targets:
        raise LeakauditError("its data does not enter through gradients, so there is no bound")
    return targets
