"""A protocol as its victim declares it, and the check of that declaration on a run whose truth is there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, cast

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

DECLARED, ALIKE = (
    8,
    3,
)  # rounds of a protocol whose rounds are alike, and how many of the last ones are compared
SLACK = 2000.0  # rounding units of the number format that a relation may miss by


@dataclass(frozen=True)
class Clipped:
    """How far one record for another moves a gradient that is a mean of clipped ones, and why."""

    sensitivity: float
    words: str


def clipped(clip: float, samples: int, batch: int) -> Clipped:
    """Return how far one record for another moves a gradient.

    A gradient is the mean over b records of their gradients, each cut to Euclidean norm C. One record for another turns one of these
    into another vector of norm C at most, so the mean moves by 2 C / b at most, in the smallest mini-batch by the most.

    Args:
        clip: C.
        samples: Records of a node, 0 if that is not declared; b then counts as 1.
        batch: Records of a mini-batch, 0 for all.
    """
    smallest = samples
    if 0 < batch < samples:
        smallest = samples % batch or batch
    of = (
        f"a mean of {smallest}"
        if smallest
        else "a mean of a number of records that is not declared"
    )
    return Clipped(2 * clip / max(1, smallest), f"clip = {clip:g}, one record for another in {of}")


@dataclass(frozen=True)
class Protocol:
    """A victim with its constants on a graph, over a number of rounds, with the public tensors that hold its schedule.

    missing: why messages of the run were not received, in words, empty if all were: then the relations between nodes are not those
    declared, and only each node's own still hold. holds: the last round in which all do. begun: whether the last round was begun
    and not ended, so that any of its messages may have been sent. ordered: whether the order in which records come in mini-batches
    is taken from the declaration; else a record counts in every gradient.
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
        """Those of the first few rounds, where all rounds are alike and may be continued (`continued`), else of all."""
        if not self.victim.stationary or self.rounds <= DECLARED:
            return self.whole
        return self.victim.relations(self.graph, DECLARED, self.public)

    @cached_property
    def stronger(self) -> dict[int, tuple[Any, ...]]:
        """What `pricing` found for listeners who hear all messages of a node, by node: the same for every listener."""
        return {}

    @cached_property
    def turns(self) -> Turns | None:
        """Which gradients of a node one record can enter, None if all of them (`Victim.turns`)."""
        return self.victim.turns(self.rounds) if self.ordered else None

    @property
    def clipped(self) -> Clipped | None:
        """What the declared clip of every record's gradient allows a record to do, None without a clip."""
        clip, samples, batch = (
            getattr(self.victim, name, 0) for name in ("clip", "samples", "batch")
        )
        return clipped(clip, samples, batch) if clip > 0 else None

    @property
    def repeats(self) -> bool:
        """Whether `start` can be continued."""
        return self.victim.stationary and len(self._same) == ALIKE

    def continued(self, rows: Iterable[int], rounds: range) -> Relations:
        """Return some relations of `start` (places) for other rounds; see `repeat.extend`."""
        return extend(self.start, self._same, rows, rounds)

    def depends_on(self, name: str) -> bool:
        """Whether another value of this constant would give other relations."""
        value = getattr(self.victim, name)
        if not isinstance(value, int | float):
            return True
        try:
            other = replace(
                cast(Any, self.victim),
                **{name: not value if isinstance(value, bool) else value / 2 or 1},
            )
            changed = other.relations(self.graph, self.start.round, self.public)
        except (LeakauditError, ValueError, TypeError):
            return True
        return [r.terms for r in changed.relations] != [
            r.terms for r in self.start.relations
        ] or changed.vectors != self.start.vectors

    @cached_property
    def _same(self) -> range:
        return steady(self.start, ALIKE)


def protocol_of(trace: Trace, rounds: int | None = None) -> Protocol:
    """Return the protocol that a trace names, with its constants, over its first rounds, by default all before a message is missing.

    Raises LeakauditError where no victim of that name is registered.
    """
    kind = registry.get("victims", trace.protocol)
    victim: Victim = registry.configure(
        kind, {k: v for k, v in trace.params.items() if k in registry.parameters(kind)}
    )
    return Protocol(
        victim, trace.graph, gaps.before(trace).rounds if rounds is None else rounds, trace.public
    )


def played(trace: Trace) -> Protocol:
    """Return the protocol that a trace names over all rounds in which anything was sent, messages that were lost included.

    A trace holds whole rounds only. A run that ended early may have sent any message of the round after them, so that round counts,
    unless the file shows that there was none.
    """
    missing = gaps.lost(trace)
    holds = max(gaps.sound(trace) or 0, 0) if missing else 0
    made = protocol_of(trace, trace.rounds)
    if not trace.complete and _another(trace, made.victim):
        made = replace(made, rounds=trace.rounds + 1, begun=True)
    return replace(made, missing=missing, holds=holds)


def _another(trace: Trace, victim: Victim) -> bool:
    """Whether a run may have gone on after the rounds of its trace: by the rounds that were planned, else by its schedule."""
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
    """Check the declaration on a run: every relation on its messages, its private states and gradients by autograd.

    truth: recorded with states. task: needed only where the model is a user's own.
    Raises LeakauditError that names the first relation that misses by more than rounding, or says what the check lacks.
    """
    same_run(trace, truth)
    trace = gaps.before(trace)
    if trace.columns != (0, trace.layout.size) or not truth.states:
        lacks = (
            "all columns of the model"
            if truth.states
            else "the private states; record with --states"
        )
        raise LeakauditError(f"relations are checked on a recording that holds {lacks}")
    task = task or Task.build(trace.task)
    read = recorded(Adversary(corrupt=frozenset(range(trace.graph.nodes))).view(trace))
    data = {i: truth.of(i) for i in truth.node.unique().tolist()}

    def fetch(vector: Vector) -> Tensor | None:
        if vector.kind in ("message", "public"):
            return read(vector)
        return _state(truth, vector)

    def gradient(vector: Vector, theta: Tensor) -> Tensor:
        x, y = data[cast(int, vector.owner)]
        return task.gradient(
            theta.to(task.device), x.to(task.device, torch.float64), y.to(task.device)
        ).cpu()

    tolerance = SLACK * torch.finfo(trace.dtype).eps
    return residuals(protocol_of(trace).whole, fetch, tolerance, gradient)


def _state(truth: Truth, vector: Vector) -> Tensor | None:
    """Return a private vector by its name (``g.2`` for index 2) and round, if it was kept; one of no node is kept for all alike."""
    kept = truth.states.get(
        vector.name if vector.index is None else f"{vector.name}.{vector.index}"
    )
    owner = vector.owner or 0
    if kept is None or vector.round >= len(kept) or kept.dim() != 3 or owner >= kept.shape[1]:
        return None
    value = kept[vector.round, owner]
    return None if bool(value.isnan().all()) else value
