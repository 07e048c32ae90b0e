"""What a view determines about a node's gradients, by the relations of the protocol."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from leakaudit._util.plural import counted, named
from leakaudit.core import registry
from leakaudit.core.adversary import Adversary
from leakaudit.core.errors import LeakauditError, NotDetermined, Unexplained
from leakaudit.core.trace import Graph, Trace
from leakaudit.protocols.declared import DECLARED, protocol_of
from leakaudit.protocols.dual_constants import ComputedConstants
from leakaudit.theory.relations import Expression, Knowledge, Relations, Vector, determined, explain
from leakaudit.theory.relations.account import unexplained, unheard_rounding
from leakaudit.theory.relations.declare import outline
from leakaudit.theory.relations.determine import basis
from leakaudit.theory.relations.estimate import recorded
from leakaudit.traces import gaps
from leakaudit.views import messages
from leakaudit.views.deviation import Deviation
from leakaudit.views.extraction.partial_messages import PartialCombination, parts
from leakaudit.views.extraction.sums import NodeSum, shares_noise, sums
from leakaudit.views.messages import STATED, ExpectedMessages

# The whole network is declared for a few rounds; the part around the node is then continued over
# the required rounds (docs/relations.md, reuse). If every message of the node is observed, its own
# relations are sufficient. Otherwise, the relations within a growing distance are solved, and the
# result is a lower bound on what leaks.

ROWS = 12_000  # most relations that are solved together if messages are missing; a choice
REACH = 2  # in that case, least distance of the nodes whose relations are used; a choice
# Rounds before and after a combination whose relations are tried for a short formula; finally all.
WINDOWS = ((1, 2), (2, 3), (1 << 30, 1 << 30))
# Observed rounds after the last requested gradient: a gradient influences the next message, or the
# one after it.
MARGIN = 2

UNHEARD = "the adversary observes no message"


@dataclass(frozen=True)
class ChosenRelations:
    """What a view determines about one node, over relations that were chosen for it."""

    node: int
    knowledge: Knowledge  # the relations in use, and what is observed
    # a basis of the combinations of its gradients, noise-free ones first
    rows: tuple[Expression, ...]
    noisy: int  # number of combinations that hold only up to noise
    # distance of the nodes whose relations are used; None if the node's own suffice
    reach: int | None
    assumed: str = ""  # constants for which defaults were assumed
    limit: str = ""  # why later rounds are omitted; empty if none are
    # which observed vectors may reveal further combinations; None if there are none
    missing: Unexplained | None = None

    @property
    def scope(self) -> str:
        """The basis of the result, if it is not everything observed or if constants are missing."""
        said = []
        if self.reach is not None:
            rounds = len({r.round for r in self.knowledge.relations if r.round})
            what = f"relations of {rounds} rounds, of nodes within distance {self.reach}"
            said.append(f"lower bound on what leaks, from {what}; further relations may add leaks")
        if self.missing is not None:
            said.append(f"lower bound on what leaks: {self.missing}")
        if self.assumed:
            said.append(assumption(self.assumed))
        if self.limit:
            said.append(self.limit)
        return "; ".join(said)

    def formula(self, row: Expression) -> Expression:
        """Return how one row is computed from observed messages, in exact rationals.

        If possible, few rounds and no noise are used.
        """
        tried: tuple[bool, ...] = (False, True)
        if any(row is one for one in self.rows[len(self.rows) - self.noisy :]):
            tried = (True,)  # it is known not to be determined without noise
        for noise in tried:
            for before, after in WINDOWS:
                window = range(min(row.rounds) - before, max(row.rounds) + after + 1)
                found = explain(self.knowledge.within(window), row, up_to_noise=noise)
                if found is not None:
                    return found
        raise NotDetermined(f"{row} is not determined")


class Deduction:
    """A trace as one adversary observes it, with the relations of its protocol."""

    def __init__(self, trace: Trace, adversary: Adversary) -> None:
        self._gap = gaps.limit(trace)
        trace = gaps.before(trace)
        self.constants = _computed(trace, adversary)
        if self.constants is not None:
            values = self.constants.values
            trace = replace(trace, params={**trace.params, **values})
            knows = frozenset({*adversary.knows, *values})
            if self.constants.scaled:
                knows -= {"w0"}  # the models of the declaration have another scale
            adversary = replace(adversary, knows=knows)
        self.trace = trace
        self.view = adversary.view(trace)
        self.fetch = recorded(self.view)
        self._protocol = protocol_of(trace, self.view.rounds.stop - 1)

    @cached_property
    def base(self) -> Relations:
        """The whole network, over the first rounds if all rounds are alike, otherwise over all."""
        base = self._protocol.start
        shown = {v.name for v in base.vectors if v.kind == "public"}
        for name in registry.values(self._protocol.victim):
            hidden = name in self.trace.params and name not in shown and not self.view.knows(name)
            if hidden and self._protocol.depends_on(name):
                self._require(name)
        if self._protocol.summed > 1:  # gradients of means are multiples of what is sent
            self.view.constant("samples")
        return base

    def _require(self, name: str) -> None:
        """Raise an error about a constant that is neither known nor computed."""
        why = "" if self.constants is None else self.constants.why_not(name)
        if why:
            raise LeakauditError(
                f"this adversary does not know {name!r}, and the messages do not tell: {why}; "
                "to assume that it is known, add it to --knows"
            )
        self.view.constant(name)

    @property
    def scaled(self) -> bool:
        """Whether the scale of the models is not known, or not the steps between them."""
        return self.constants is not None and self.constants.scaled

    @property
    def rests_on(self) -> str:
        """What is known of the constants that the adversary does not know, in words."""
        return "" if self.constants is None else self.constants.sentence

    def _limit(self, knowledge: Knowledge) -> str:
        """Say why more may leak: messages are missing, or noise that the adversary's nodes hold."""
        return "; ".join(filter(None, (self._gap, self._unrecorded_noise(knowledge))))

    def _unrecorded_noise(self, knowledge: Knowledge) -> str:
        """Say which noise of other nodes' equations the adversary knows, but not from messages."""
        declared = knowledge.declared
        corrupt = self.view.adversary.corrupt
        held: set[int] = set()
        for k in declared.shares.keys() & knowledge.used:
            vector = declared.vectors[k]
            if vector.kind == "noise" and not corrupt.isdisjoint(
                {*declared.shares[k], vector.owner}
            ):
                held.add(k)
        # A message that contains nothing else unknown shows the noise, such as a mask that is sent.
        for relation in knowledge.relations if held else ():
            unknown = relation.terms.keys() - knowledge.known
            if len(unknown) == 1:
                held -= unknown
        if not held:
            return ""
        names = sorted({declared.vectors[k].name for k in held})
        return (
            f"lower bound on what leaks: the adversary's nodes also know the noise "
            f"{', '.join(names)}, which they share with others and no message shows; "
            "'leakaudit bound' counts it as known"
        )

    @cached_property
    def assumed(self) -> str:
        """Constants that the trace does not state, with the defaults that replace them.

        A protocol file states its constants itself.
        """
        missing: list[str] = []
        if hasattr(self._protocol.victim, "definition"):
            return ""
        for name, value in registry.values(self._protocol.victim).items():
            if name not in self.trace.params:
                missing.append(f"{name}={value}")
        return ", ".join(missing)

    def unexamined(self, nodes: Sequence[int]) -> list[str]:
        """Return why nothing is examined of these nodes, in one sentence; empty if something is."""
        why = "none of the nodes computes a gradient"
        if not nodes:
            why = "the adversary controls all nodes that hold data"
        elif not self.view.channels:
            why = UNHEARD
        elif any(self.base.gradients(node) for node in nodes):
            return []
        return [f"nothing was examined: {why}"]

    def of(self, node: int, gradients: int) -> ChosenRelations:
        """Return what is determined about a node's first gradients.

        Raises NotDetermined, with the reason, if nothing is determined, or if it is not known
        whether something is.
        """
        if not self.view.channels:
            raise self._nothing(UNHEARD)
        if not self.base.gradients(node):
            if self._protocol.victim.centralised and node == self.trace.graph.nodes - 1:
                raise NotDetermined("it is the server and holds no data")
            if self._protocol.unsaid:
                raise self._nothing(self._protocol.unsaid, understood=False)
            raise self._nothing("it computes no gradients")
        own = self._open.near([node])
        unheard = self._unheard(node, own)
        if unheard:
            best = self._search(node, gradients)
        else:
            best = self._solve(node, own, gradients, None)
        missing = None
        if len(best.rows) < len(best.knowledge.gradients(node)):
            missing = self._missing
        if best.rows:
            return replace(best, missing=missing)
        if missing is not None:
            raise self._nothing(self._with_sum(str(missing), node), explained=False)
        why = "the observed messages do not determine any combination of its gradients"
        hidden = self._hidden(node)
        if unheard:
            why += f"; its channels to {unheard} are not observed"
        elif hidden:
            why += f": {hidden}"
        raise self._nothing(self._with_sum(why, node))

    @cached_property
    def _missing(self) -> Unexplained | None:
        """Which observed vectors may reveal what is not determined."""
        return unexplained(self._open) or unheard_rounding(self._open)

    def _with_sum(self, reason: str, node: int) -> str:
        summed = self.summed(node)
        if not summed:
            return reason
        return f"{reason}; {summed}"

    def partial(
        self, node: int, gradients: int
    ) -> tuple[ChosenRelations, list[PartialCombination]]:
        """Return what messages that omit coordinates determine on those that they hold.

        Only relations of the node itself are used, so all its messages have to be observed.
        """
        own = self._open.near([node])
        knowledge = self._continued(node, own, gradients, None)
        found: list[PartialCombination] = []
        if self.base.omits and not self._unheard(node, own):
            found = parts(knowledge, node, self.fetch, gradients)
        return self._without_rows(node, knowledge), found

    def sums(self, node: int, gradients: int) -> tuple[ChosenRelations, list[NodeSum]]:
        """Return the relations in use, and the sums of several nodes that they determine."""
        groups = self._groups.get(node, ())
        if not groups:
            return ChosenRelations(node, self._open, (), 0, None), []
        group, *others = groups
        knowledge = self._summing(node, gradients)
        found = [one for one in sums(knowledge, group) if tuple(one) == group]
        chosen = self._without_rows(node, knowledge)
        if others:
            unused = f"its sums with {counted(len(others), 'other group')} of nodes are not used"
            limit = f"lower bound on what leaks: {unused}"
            chosen = replace(chosen, limit="; ".join(filter(None, (chosen.limit, limit))))
        return chosen, found[:gradients]

    @cached_property
    def _groups(self) -> dict[int, list[tuple[int, ...]]]:
        """The groups of nodes of which a sum is determined, for each node in one.

        The smallest comes first, and of several the one with most sums.
        """
        holders = [n for n in range(self.trace.graph.nodes) if self.base.gradients(n)]
        mine = [n for n in holders if n not in self.view.adversary.corrupt]
        if len(mine) < 2:
            return {}
        knowledge = self._summing(mine[0], 1)
        if len(knowledge.rows) > ROWS:
            return {}
        counts = Counter(tuple(one) for one in sums(knowledge, mine))
        groups = defaultdict[int, list[tuple[int, ...]]](list)
        for group in sorted(counts, key=lambda group: (len(group), -counts[group])):
            for node in group:
                groups[node].append(group)
        return dict(groups)

    def _summing(self, node: int, gradients: int) -> Knowledge:
        """Return the relations in which sums are searched.

        The first rounds show all groups if the others repeat them. If not, all rounds are used, if
        they are not too many: each may sum other nodes.
        """
        if self._protocol.repeats or len(self._open.rows) > ROWS:
            return self._continued(node, self._open, gradients, REACH)
        return Knowledge(self.base, self._held, self._open.rows)

    def loses_noise(self, found: ChosenRelations) -> bool:
        """Return whether a sum with other nodes' gradients may contain less noise."""
        return found.noisy == len(found.rows) > 0 and self._shares_noise

    @cached_property
    def _shares_noise(self) -> bool:
        return shares_noise(self._open)

    def summed(self, node: int) -> str:
        """Say which other nodes a determined sum contains; empty if there is none."""
        with_whom: list[str] = []
        for group in self._groups.get(node, ()):
            with_whom.append(named([other for other in group if other != node]))
        if len(with_whom) < 2:
            return "".join(f"the sum with those of {who} is determined" for who in with_whom)
        some = ", of ".join(with_whom[:3]) + (", …" if len(with_whom) > 3 else "")
        return f"sums with {len(with_whom)} groups of nodes are determined: with those of {some}"

    def around(self, node: int, rounds: int) -> ChosenRelations:
        """Return the relations around a node, without rows.

        They are the node's own if all its messages are observed, and otherwise also those of nodes
        within distance `REACH`.
        """
        part = self._open.near([node])
        reach = None
        if self._unheard(node, part):
            reach = REACH
            part = self._open.near(_ball(self.view.graph, node, reach))
        knowledge = self._continued(node, part, rounds, reach)
        return self._without_rows(node, knowledge, reach)

    def _without_rows(
        self, node: int, knowledge: Knowledge, reach: int | None = None
    ) -> ChosenRelations:
        return ChosenRelations(node, knowledge, (), 0, reach, self.assumed, self._limit(knowledge))

    def _nothing(
        self, reason: str, understood: bool = True, explained: bool = True
    ) -> NotDetermined:
        sentences: dict[bool, str] = {}
        for one in self._deviations:
            sentences.setdefault(one.about in STATED, one.sentence)
        if False in sentences:
            return NotDetermined(sentences[False], understood=False)
        if True in sentences:
            reason += f"; {sentences[True]}"
        return NotDetermined(reason, understood and explained, explained)

    @cached_property
    def _deviations(self) -> tuple[Deviation, ...]:
        trace = messages.within(self.trace, self.view.adversary)
        with outline():
            declared = ExpectedMessages.of(trace)
        return tuple(messages.observed(trace, declared, self.view.adversary))

    def _hidden(self, node: int) -> str:
        """Return what nonlinear steps hide of a node's gradients; empty if nothing is said."""
        gradients = {g.vector for g in self.base.gradients(node)}
        for step, why in self.base.hides.items():
            for part in self.base.opaques[step]:
                if not gradients.isdisjoint(part.terms):
                    return why
        return ""

    def _search(self, node: int, gradients: int) -> ChosenRelations:
        reach = REACH
        ball = _ball(self.view.graph, node, reach)
        best = self._solve(node, self._open.near(ball), gradients, reach)
        while True:
            reach += 1
            wider = _ball(self.view.graph, node, reach)
            if len(wider) == len(ball):
                return best
            ball = wider
            found = self._solve(node, self._open.near(ball), gradients, reach)
            if len(found.rows) <= len(best.rows):
                return best
            best = found

    def _solve(
        self, node: int, part: Knowledge, gradients: int, reach: int | None
    ) -> ChosenRelations:
        knowledge = self._continued(node, part, gradients, reach)
        wanted = knowledge.gradients(node)
        rows = determined(knowledge, wanted)
        exact = len(rows)
        if knowledge.noise:
            rows = basis([*rows, *determined(knowledge, wanted, up_to_noise=True)])
        return ChosenRelations(
            node,
            knowledge,
            tuple(rows),
            len(rows) - exact,
            reach,
            self.assumed,
            self._limit(knowledge),
        )

    def _continued(
        self, node: int, part: Knowledge, gradients: int, reach: int | None
    ) -> Knowledge:
        """Return what the view contains of the required rounds, and the relations to use."""
        first = max(self.view.rounds.start, 1)
        relations = self.base.relations
        if not self._protocol.repeats:
            taken = [part.declared.vectors[g.vector].round for g in self.base.gradients(node)]
            heard = [t for t in taken if t >= first]
            if len(heard) <= gradients + MARGIN:
                return Knowledge(self.base, self._held, part.rows)
            end = heard[gradients + MARGIN]
            return Knowledge(self.base, self._held, part.within(range(end)).rows)
        stop = min(self.view.rounds.stop, first + gradients + MARGIN)
        if reach is not None:
            # The second-last round is the one that is continued.
            rows_a_round = sum(relations[r].round == self.base.round - 1 for r in part.rows)
            stop = min(stop, first + max(DECLARED, ROWS // max(1, rows_a_round)))
        longer = self._protocol.continued(part.rows, range(first, stop))
        return Knowledge(longer, self._known(longer), tuple(range(len(longer.relations))))

    @cached_property
    def _held(self) -> frozenset[int]:
        """The vectors of the base that the view contains, which all nodes share."""
        return self._known(self.base)

    def _known(self, declared: Relations) -> frozenset[int]:
        held = (k for k, vector in enumerate(declared.vectors) if self._holds(vector))
        return frozenset(held)

    def _holds(self, vector: Vector) -> bool:
        if vector.kind == "public":
            return self.view.knows(vector.name)
        if vector.kind != "message" or vector.round not in self.view.rounds:
            return False
        for receiver in self._receivers(vector):
            if self.view.has(vector.round, vector.owner or 0, receiver, vector.name):
                return True
        return False

    def _receivers(self, message: Vector) -> Sequence[int]:
        if message.dst is None:
            return range(self.view.graph.nodes)
        return message.dst

    @cached_property
    def _open(self) -> Knowledge:
        """The base, with the messages of all channels that are observed at any time.

        It determines which relations belong together.
        """
        channels = self.view.channels
        known: set[int] = set()
        for k, v in enumerate(self.base.vectors):
            if v.kind == "public":
                heard = self.view.knows(v.name)
            elif v.kind == "message":
                heard = any((v.owner, j, v.name) in channels for j in self._receivers(v))
            else:
                heard = False
            if heard:
                known.add(k)
        return Knowledge(self.base, frozenset(known), tuple(range(len(self.base.relations))))

    def _unheard(self, node: int, own: Knowledge) -> list[int]:
        """Return the nodes at the other end of a node's own messages that are not observed."""
        ends: set[int] = set()
        for k in own.used - own.known:
            vector = self.base.vectors[k]
            if vector.kind == "message" and not vector.secure:
                ends.update((vector.owner or 0, *self._receivers(vector)))
        return sorted(ends - {node})


def _computed(trace: Trace, adversary: Adversary) -> ComputedConstants | None:
    """Return the unknown constants that the messages determine; None if all are known."""
    if adversary.knows == "all":
        return None
    kind = registry.of_trace(trace.protocol, trace.provenance)
    unknown = frozenset(registry.parameters(kind)) & trace.params.keys() - adversary.knows
    if not unknown:
        return None
    found: ComputedConstants | None = kind.computed(adversary.view(trace), unknown)
    return found


def assumption(constants: str) -> str:
    """Return in words that a result assumes constants, as in `Deduction.assumed`."""
    if not constants:
        return ""
    return f"the trace does not state all constants; assumed: {constants}"


def _ball(graph: Graph, node: int, reach: int) -> frozenset[int]:
    ball = frozenset({node})
    for _ in range(reach):
        ball = ball.union(*(graph.neighbours[i] for i in ball))
    return ball
