"""The input of the lint: a trace, its truth if given, and the declarations and claims."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from leakaudit._util.plain import is_number
from leakaudit.core import registry
from leakaudit.core.claim import Claim
from leakaudit.core.errors import LeakauditError
from leakaudit.core.trace import Trace, Truth
from leakaudit.core.verdict import Verdict
from leakaudit.protocols.declared import Protocol, constant, constants, protocol_of
from leakaudit.tasks.task import Task
from leakaudit.theory.relations import Relations
from leakaudit.views.conformance import loops, reach

FEW = 64  # number of rounds that are declared: a choice; findings also hold for longer runs


@dataclass(frozen=True)
class Case:
    """A trace under lint."""

    trace: Trace  # a trace without gaps
    truth: Truth | None = None  # the truth of the same run; None if it was not given

    @cached_property
    def params(self) -> Mapping[str, object]:
        """The constants, also those that the protocol has and the recording does not state."""
        return constants(self.trace)

    @cached_property
    def protocol(self) -> Protocol | None:
        """The registered protocol over its first rounds; None for a training loop of a user."""
        known = self.trace.protocol in registry.names("victims")
        if not known and registry.TEXT not in self.trace.provenance:
            return None
        return protocol_of(self.trace, min(self.trace.rounds, FEW))

    @cached_property
    def relations(self) -> Relations | None:
        """The relations that the protocol declares; None if it cannot declare any."""
        try:
            if self.protocol is None:
                return None
            return self.protocol.whole
        except LeakauditError:
            return None

    @cached_property
    def compared_relations(self) -> Relations:
        """The relations of the rounds that are compared; LeakauditError if there are none."""
        return reach.relations(self.trace)

    @cached_property
    def claims(self) -> tuple[Claim, ...]:
        """The claims about this run that state an epsilon, from its paper or its constants."""
        if self.protocol is None:
            return loops.claims(self.trace)
        victim = self.protocol.victim
        try:
            found = victim.claims(self.trace.graph, self.trace.rounds, self.trace.public)
        except LeakauditError:
            return ()
        return tuple(_read(claim) for claim in found if claim.epsilon is not None and claim.met)

    def number(self, name: str) -> float:
        """Return one of the constants."""
        value = self.params.get(name)
        return float(value) if is_number(value) else 0.0

    @property
    def broken(self) -> Verdict:
        """The verdict on something that undermines the claims; UNCLAIMED if there are none."""
        if self.claims:
            return Verdict.UNSUPPORTED
        return Verdict.UNCLAIMED

    @cached_property
    def laws(self) -> frozenset[str]:
        """Distributions of the declared noise."""
        if self._start is not None:
            return frozenset(v.law for v in self._start.vectors if v.kind == "noise")
        if loops.noise(self.params):
            return frozenset({"gaussian"})
        return frozenset()

    @property
    def _start(self) -> Relations | None:
        """The relations of the first rounds, which declare the noise of all of them."""
        if self.protocol is None:
            return None
        try:
            return self.protocol.start
        except LeakauditError:
            return None

    @property
    def unsaid(self) -> str:
        """Why a protocol file says nothing about the data of some nodes; empty if it does."""
        if self.protocol is None:
            return ""
        if self.trace.rounds > FEW and not self.protocol.repeats:
            return ""  # a later round may contain the gradient
        try:
            return self.protocol.unsaid
        except LeakauditError:
            return ""

    @property
    def holders(self) -> range:
        """Nodes that hold data: all but the server, which is the last node."""
        nodes = self.trace.graph.nodes
        if self.protocol is not None and self.protocol.victim.centralised:
            nodes -= 1
        return range(nodes)

    @cached_property
    def records(self) -> Mapping[int, int]:
        """Node -> its number of records, from the truth or else the constants; empty if unknown."""
        if self.truth is not None and len(self.truth.node):
            owners = self.truth.node
            return {i: int((owners == i).sum()) for i in self.holders}
        recorded = int(self.number("samples") or self.number("records"))
        if recorded <= 0:
            return {}
        return dict.fromkeys(self.holders, recorded)


def _read(claim: Claim) -> Claim:
    if claim.neighbours is not None:
        return claim
    return replace(claim, neighbours=loops.named_adjacency(claim.adjacency))


def obstacle_to_gradients(trace: Trace, truth: Truth | None, task: Task | None = None) -> str:
    """Return why gradients cannot be computed from the records of a truth; empty if they can be."""
    if truth is None:
        return "there is no truth"
    if not len(truth.node):
        return "the truth contains no records"
    obstacles = unknown_gradients(trace, truth)
    if task is None and ":" in trace.task.model:
        obstacles.append("the model is code of your own")
    return obstacles[0] if obstacles else ""


def unknown_gradients(trace: Trace, truth: Truth) -> list[str]:
    """Return why the records of a truth do not yield the gradients of a recording."""
    found = []
    if trace.columns != (0, trace.layout.size):
        found.append("only some columns of the model are recorded")
    if 0 < int(constant(trace, "batch")) < int(truth.node.bincount().max()):
        found.append("gradients are of secret mini-batches")
    return found
