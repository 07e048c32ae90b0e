"""A protocol as its victim declares it, and the check of that declaration on a recorded run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Generator, Tensor

from leakaudit import registry
from leakaudit.adversary import Adversary
from leakaudit.errors import LeakauditError
from leakaudit.relations import Relations, Residuals, Turns, Vector, residuals
from leakaudit.relations.estimate import recorded
from leakaudit.relations.repeat import extend, steady
from leakaudit.tasks.task import Task
from leakaudit.trace import Graph, Trace, Truth
from leakaudit.traces import gaps
from leakaudit.traces.trace_file import same_run
from leakaudit.victim import Victim

if TYPE_CHECKING:
    from leakaudit.accounting.node_view import NodeView

# Rounds that are declared of a protocol whose rounds are alike, and how many of the last ones are
# compared with each other. Starts of the bundled protocols end in round 2 or 3, and three alike
# in a row leave out those that alternate between two kinds of rounds. A choice.
DECLARED = 8
ALIKE = 3
# Rounding units of the number format by which a relation may miss. Measured over 20 rounds of a
# logistic model, the bundled victims miss by 6 at most; the rest is room for large models and for
# devices that add in another order. It is 2.4e-4 in float32.
SLACK = 2000.0


@dataclass(frozen=True)
class Clipped:
    """How far one record for another moves a gradient that is a mean of clipped ones.

    Attributes:
        sensitivity: Euclidean distance.
        words: Why, for the reader of a report.
    """

    sensitivity: float
    words: str


def clipped(clip: float, samples: int, batch: int) -> Clipped:
    """Return how far one record for another moves a gradient.

    A gradient is the mean over b records of their gradients, each cut to Euclidean norm C. One
    record for another turns one of these into another vector of norm C at most, so the mean moves
    by 2 C / b at most, and by the most in the smallest mini-batch.

    Args:
        clip: C.
        samples: Records of a node, 0 if that is not declared; b then counts as 1.
        batch: Records of a mini-batch, 0 for all.
    """
    smallest = samples
    if 0 < batch < samples:
        smallest = samples % batch or batch
    of = "a mean of a number of records that is not declared"
    if smallest:
        of = f"a mean of {smallest}"
    return Clipped(2 * clip / max(1, smallest), f"clip = {clip:g}, one record for another in {of}")


@dataclass(frozen=True)
class Protocol:
    """A victim with its constants on a graph, over a number of rounds.

    Attributes:
        victim: The protocol with its constants.
        graph: Who talks to whom.
        rounds: Length of the run.
        public: Public tensors, which hold the schedule.
        missing: Why messages of the run were not received, in words; empty if all were. If any are
            missing, the relations between nodes are not those declared, and only each node's own
            hold.
        holds: The last round in which all relations hold.
        begun: Whether the last round was begun and not ended, so that any of its messages may
            have been sent.
        ordered: Whether the order in which records come in mini-batches is taken from the
            declaration; else a record counts in every gradient.
    """

    victim: Victim
    graph: Graph
    rounds: int
    public: Mapping[str, Tensor]
    missing: str = ""
    holds: int = 0
    begun: bool = False
    ordered: bool = True

    @cached_property
    def whole(self) -> Relations:
        """The relations of the whole network over all rounds."""
        return self.victim.relations(self.graph, self.rounds, self.public)

    @cached_property
    def start(self) -> Relations:
        """The relations of the first few rounds if all rounds are alike, else of all.

        `continued` leads on from the first few.
        """
        if not self.victim.stationary or self.rounds <= DECLARED:
            return self.whole
        return self.victim.relations(self.graph, DECLARED, self.public)

    @cached_property
    def stronger(self) -> dict[int, tuple[NodeView, ...]]:
        """What `accounting` found for adversaries who hear all messages of a node, by node.

        It is the same for all of them.
        """
        return {}

    @cached_property
    def turns(self) -> Turns | None:
        """Which gradients of a node one record can enter, None if all of them (`Victim.turns`)."""
        return self.victim.turns(self.rounds) if self.ordered else None

    @property
    def clipped(self) -> Clipped | None:
        """How far a record moves a gradient that is clipped as declared; None without a clip."""
        clip = getattr(self.victim, "clip", 0)
        if not clip > 0:
            return None
        samples = getattr(self.victim, "samples", 0)
        return clipped(clip, samples, getattr(self.victim, "batch", 0))

    @property
    def repeats(self) -> bool:
        """Whether `start` can be continued."""
        return self.victim.stationary and len(self._same) == ALIKE

    def continued(self, rows: Iterable[int], rounds: range) -> Relations:
        """Return some relations of `start` for other rounds; see `repeat.extend`.

        Args:
            rows: Places of the relations in `start`.
            rounds: The other rounds.
        """
        return extend(self.start, self._same, rows, rounds)

    def depends_on(self, name: str) -> bool:
        """Whether another value of this constant would give other relations."""
        value = getattr(self.victim, name)
        if not isinstance(value, int | float):
            return True
        changed_value = not value if isinstance(value, bool) else value / 2 or 1
        try:
            other = replace(cast(Any, self.victim), **{name: changed_value})
            changed = other.relations(self.graph, self.start.round, self.public)
        except (LeakauditError, ValueError, TypeError):
            return True
        before = [r.terms for r in self.start.relations]
        after = [r.terms for r in changed.relations]
        return before != after or changed.vectors != self.start.vectors

    @cached_property
    def _same(self) -> range:
        return steady(self.start, ALIKE)


def protocol_of(trace: Trace, rounds: int | None = None) -> Protocol:
    """Return the protocol that a trace names, with its constants, over its first rounds.

    Args:
        trace: A recording.
        rounds: Number of rounds; None for all before a message is missing.

    Raises:
        LeakauditError: No victim of that name is registered.
    """
    kind = registry.get("victims", trace.protocol)
    known = registry.parameters(kind)
    constants = {k: v for k, v in trace.params.items() if k in known}
    victim: Victim = registry.configure(kind, constants)
    if rounds is None:
        rounds = gaps.before(trace).rounds
    return Protocol(victim, trace.graph, rounds, trace.public)


def played(trace: Trace) -> Protocol:
    """Return the protocol that a trace names over all rounds in which anything was sent.

    Messages that were lost count. A trace holds only whole rounds. A run that ended early may
    have sent any message of the round after them, so that round counts, unless the file shows
    that there was none.

    Args:
        trace: A recording.
    """
    missing = gaps.lost(trace)
    holds = max(gaps.sound(trace) or 0, 0) if missing else 0
    made = protocol_of(trace, trace.rounds)
    if not trace.complete and _another(trace, made.victim):
        made = replace(made, rounds=trace.rounds + 1, begun=True)
    return replace(made, missing=missing, holds=holds)


def _another(trace: Trace, victim: Victim) -> bool:
    """Return whether a run may have gone on after the rounds of its trace.

    The rounds that were planned decide, or else the schedule.
    """
    planned = trace.provenance.get("planned")
    if type(planned) is int:
        return planned > trace.rounds
    longer = victim.schedule(trace.graph, trace.rounds + 1, Generator().manual_seed(0))
    return all(
        len(trace.public[name]) >= len(drawn)
        for name, drawn in longer.items()
        if name in trace.public
    )


def check(trace: Trace, truth: Truth, task: Task | None = None) -> Residuals:
    """Check every relation of a declaration on a recorded run.

    Messages, private states, and gradients by automatic differentiation go into the relations.

    Args:
        trace: The recording.
        truth: Its truth, recorded with states.
        task: The model, needed only if it is a user's own.

    Raises:
        LeakauditError: A relation misses by more than rounding, or the check lacks something.
    """
    same_run(trace, truth)
    trace = gaps.before(trace)
    if trace.columns != (0, trace.layout.size) or not truth.states:
        lacks = "the private states; record with --states"
        if truth.states:
            lacks = "all columns of the model"
        raise LeakauditError(f"relations are checked on a recording that holds {lacks}")
    task = task or Task.build(trace.task)
    everybody = Adversary(corrupt=frozenset(range(trace.graph.nodes)))
    read = recorded(everybody.view(trace))
    data = {i: truth.of(i) for i in truth.node.unique().tolist()}

    def fetch(vector: Vector) -> Tensor | None:
        if vector.kind in ("message", "public"):
            return read(vector)
        return _state(truth, vector)

    def gradient(vector: Vector, theta: Tensor) -> Tensor:
        x, y = data[cast(int, vector.owner)]
        x = x.to(task.device, torch.float64)
        return task.gradient(theta.to(task.device), x, y.to(task.device)).cpu()

    tolerance = SLACK * torch.finfo(trace.dtype).eps
    return residuals(protocol_of(trace).whole, fetch, tolerance, gradient)


def _state(truth: Truth, vector: Vector) -> Tensor | None:
    """Return a private vector by its name (``g.2`` for index 2) and round, None if it was not kept.

    A vector that belongs to no node is kept for all nodes alike.
    """
    name = vector.name if vector.index is None else f"{vector.name}.{vector.index}"
    kept = truth.states.get(name)
    owner = vector.owner or 0
    if kept is None or vector.round >= len(kept) or kept.dim() != 3 or owner >= kept.shape[1]:
        return None
    value = kept[vector.round, owner]
    return None if bool(value.isnan().all()) else value
