"""What is linted: a trace, its truth where it is given, and what its protocol declares and promises."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from leakaudit import registry
from leakaudit.errors import LeakauditError
from leakaudit.lint import loops
from leakaudit.protocols.declared import Protocol, protocol_of
from leakaudit.relations import Relations
from leakaudit.trace import Json, Trace, Truth
from leakaudit.verdict import Verdict
from leakaudit.victim import Claim

FEW = 64  # rounds that are declared; what they show holds for longer runs


@dataclass(frozen=True)
class Case:
    """A trace under lint. truth: opened where the caller gives it."""

    trace: Trace
    truth: Truth | None = None

    @property
    def params(self) -> Mapping[str, Json]:
        """Constants as they are recorded."""
        return self.trace.params

    @cached_property
    def protocol(self) -> Protocol | None:
        """The registered protocol over its first rounds, None for a loop of the user's own."""
        if self.trace.protocol not in registry.names("victims"):
            return None
        return protocol_of(self.trace, min(self.trace.rounds, FEW))

    @cached_property
    def relations(self) -> Relations | None:
        """What the protocol declares, None where nothing can be declared."""
        try:
            return self.protocol.whole if self.protocol else None
        except LeakauditError:
            return None

    @cached_property
    def claims(self) -> tuple[Claim, ...]:
        """What the protocol promises of this run with an epsilon, by its paper or by the recorded constants."""
        if self.protocol is None:
            return loops.claims(self.trace)
        try:
            found = self.protocol.victim.claims(
                self.trace.graph, self.trace.rounds, self.trace.public
            )
        except LeakauditError:
            return ()
        return tuple(c for c in found if c.epsilon is not None and c.met)

    def number(self, name: str) -> float:
        """Return a recorded constant that is a number, 0 where there is none."""
        value = self.params.get(name)
        return (
            float(value)
            if isinstance(value, int | float)
            and not isinstance(value, bool)
            and math.isfinite(value)
            else 0.0
        )

    @property
    def broken(self) -> Verdict:
        """The verdict where something undermines the claims: UNCLAIMED where there are none."""
        return Verdict.UNSUPPORTED if self.claims else Verdict.UNCLAIMED

    @cached_property
    def laws(self) -> frozenset[str]:
        """Laws of the declared noise."""
        if self.relations is None:
            return frozenset({"gaussian"} if loops.noise(self.params) else ())
        return frozenset(v.law for v in self.relations.vectors if v.kind == "noise")

    @property
    def holders(self) -> range:
        """Nodes that hold data."""
        return range(
            self.trace.graph.nodes
            - (self.protocol is not None and self.protocol.victim.centralised)
        )

    @cached_property
    def records(self) -> Mapping[int, int]:
        """Records of every node that holds data: counted in the truth, else as recorded, empty where nobody says."""
        if self.truth is not None and len(self.truth.node):
            return {i: int((self.truth.node == i).sum()) for i in self.holders}
        told = int(self.number("samples") or self.number("records"))
        return dict.fromkeys(self.holders, told) if told > 0 else {}
