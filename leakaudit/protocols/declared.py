"""The protocol that a victim declares, and the check of this declaration on a recorded run."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Any, cast

import torch
from torch import Generator, Tensor

from leakaudit._util.plain import is_number
from leakaudit._util.plural import named
from leakaudit.core import registry
from leakaudit.core.adversary import Adversary, View
from leakaudit.core.claim import Claim
from leakaudit.core.errors import LeakauditError, brief
from leakaudit.core.evidence import Origin
from leakaudit.core.trace import Graph, Json, Trace, Truth
from leakaudit.protocols.schedules import Unscheduled
from leakaudit.protocols.traffic import Undeclared, compared, posts
from leakaudit.protocols.victim import Victim
from leakaudit.tasks import clipping
from leakaudit.tasks.task import Task
from leakaudit.theory.relations import Relations, Residuals, Turns, Vector, residuals, secretless
from leakaudit.theory.relations.declare import Limits, at_most, gradients_times, outline, outlined
from leakaudit.theory.relations.estimate import recorded
from leakaudit.theory.relations.forward import ForwardModel
from leakaudit.theory.relations.recursion import WINDOW
from leakaudit.theory.relations.repeat import extend, steady
from leakaudit.theory.relations.symmetric import SymmetricNetwork
from leakaudit.traces import gaps, vocabulary
from leakaudit.traces.trace_file import same_run

# Number of rounds to declare if all rounds of a protocol have the same relations, and how many of
# the last ones are compared with each other. The initial phases of the bundled protocols end in
# round 2 or 3, and three equal rounds exclude protocols that alternate between two kinds. A choice.
DECLARED = 8
ALIKE = 3
# Largest number of relations of which a forward model is built: a minute of computing. A choice.
MODELLED = 60_000
# Largest number of rounds: the response of a view to noise is dense, and grows with their square.
MODELLED_ROUNDS = 40
# Tolerance of a relation in rounding units of the number format. Over 20 rounds of a logistic
# model, the bundled victims reach 6 at most; the rest is a margin for large models and for devices
# that add in a different order. It is 2.4e-4 in float32.
SLACK = 2000.0
# Largest number of vectors that the protocol of a recording may declare: a number in any case, and
# more for each message. The bundled victims declare at most 10 per message if all messages are
# recorded; the rest is for inner steps, and for recordings of a few channels. Choices: a lint
# examines about 7,000 vectors per second.
SOME = 5_000
VECTORS = 500
# The same in all rounds of which no message was recorded, unless the recording has none at all. The
# views of a small network are examined in half a minute with as many.
IDLE_SOME = 1_000
IDLE = 10


def largest(trace: Trace) -> Limits:
    """Return the most that the protocol of a recording may declare."""
    busy = frozenset[int]().union(*(table.round.unique().tolist() for table in trace.messages))
    idle = SOME
    if busy:
        idle = IDLE_SOME + IDLE * len(trace)
    return SOME + VECTORS * len(trace), idle, busy


@dataclass(frozen=True)
class _ClippedSensitivity:
    """The largest change of a mean of clipped gradients by replacing one record."""

    sensitivity: float  # Euclidean distance
    words: str  # the reason, for the reader of a report


def clipped(clip: float, samples: int, batch: int) -> _ClippedSensitivity:
    """Return the largest change of a gradient by replacing one record.

    A gradient is the mean over b records of their gradients, each clipped to Euclidean norm C, so
    the mean changes by at most 2 C / b. The smallest mini-batch gives the largest change.

    Args:
        samples: Records per node, 0 if not declared; b then counts as 1.
        batch: Records per mini-batch, 0 for all.
    """
    smallest = samples
    if 0 < batch < samples:
        smallest = samples % batch or batch
    of = "a mean of an undeclared number of records"
    if smallest:
        of = f"a mean of {smallest}"
    return _ClippedSensitivity(
        2 * clip / max(1, smallest), f"clip = {clip:g}, one record replaced by another in {of}"
    )


@dataclass(frozen=True)
class Protocol:
    """A victim with its constants, on a graph and over a number of rounds."""

    victim: Victim  # the protocol with its constants
    graph: Graph
    rounds: int  # length of the run
    public: Mapping[str, Tensor]  # public tensors, including the schedule
    # why messages of the run were not received, as a sentence; empty if all were. If any are
    # missing, the relations between nodes differ from the declared ones, and only those within a
    # node hold.
    missing: str = ""
    holds: int = 0  # the last round in which all relations hold
    # whether the last round was begun but not finished, so that any of its messages may have been
    # sent
    begun: bool = False
    # whether the order of records in mini-batches is taken from the declaration; otherwise every
    # record is assumed to enter every gradient
    ordered: bool = True
    # channels with messages of which the declaration does not say what they contain. They are added
    # to every round, each with a vector that nothing explains.
    undeclared: tuple[Undeclared, ...] = ()
    records: int = 0  # records of each node; 0 if unknown
    summed: int = 1  # records of which a gradient is the sum, if it is not their mean
    # constants that a recording does not state, so that their defaults are a guess
    unstated: tuple[str, ...] = ()
    # what a recording says about its own inputs (`views.accounting.resting`)
    evidence: Mapping[str, Json] = field(default_factory=dict)
    # the most that may be declared, if constants and public tensors come from a recording, which a
    # stranger may have made; None if they do not
    most: Limits | None = None

    @property
    def size(self) -> int:
        """Number of coordinates of a model, and so of every vector; 0 if unknown."""
        return len(self.public.get("w0", ()))

    @property
    def whole(self) -> Relations:
        """The relations of the whole network over all rounds."""
        if isinstance(self._whole, LeakauditError):
            raise self._whole.with_traceback(None)
        return self._whole

    @cached_property
    def _whole(self) -> Relations | LeakauditError:
        """The same, or why it cannot be declared: every view would take as long to find out."""
        try:
            return self._declared(self.rounds)
        except LeakauditError as error:
            return error

    @cached_property
    def start(self) -> Relations:
        """The relations of the first few rounds if all rounds are alike, otherwise of all rounds.

        `continued` extends the first few to later rounds.
        """
        if not self.victim.stationary or self.rounds <= DECLARED:
            return self.whole
        few = self._declared(DECLARED)
        if len(steady(few, ALIKE)) < ALIKE or not few.settled:
            return self.whole
        return few

    def _declared(self, rounds: int) -> Relations:
        """Return the relations of the first rounds."""
        if self.most is None:
            return self._complete(rounds)
        try:
            with at_most(self.most):
                return self._complete(rounds)
        except LeakauditError:
            raise
        except (ArithmeticError, LookupError, RuntimeError, TypeError, ValueError) as error:
            raise LeakauditError(
                f"the relations of {type(self.victim).__name__} cannot be declared with the "
                f"constants and public tensors of the trace ({type(error).__name__}: {error}); "
                "they are not those of a recorded run"
            ) from error

    def _complete(self, rounds: int) -> Relations:
        with gradients_times(self.summed):
            if not self.undeclared:
                return _relations(self.victim, self.graph, rounds, self.public, self.summed)
            p = self.victim.relations(self.graph, rounds, self.public)
        sent = {post for vector in p.vectors for post in posts(vector)}
        for post, secure, early in self.undeclared:
            kind, src, dst = post
            for t in range(not early, rounds + 1):
                if (post, t) in sent:
                    continue
                p.round = t
                what = p.state(f"message {kind}", src, dst)
                p.send(src, dst, what, kind, secure=secure)
        return p

    @cached_property
    def guessed(self) -> tuple[str, ...]:
        """Unstated constants that the relations depend on, and whose default is one of many.

        A default that switches something off, such as a momentum of 0, is an assumption; the
        default of a step size or of the noise would be a guess.
        """
        found = []
        for name in self.defaulted:
            value = getattr(self.victim, name)
            neutral = value == 0 or (isinstance(value, int) and value == 1)
            if is_number(value) and not neutral:
                found.append(name)
        return tuple(found)

    @cached_property
    def defaulted(self) -> tuple[str, ...]:
        """Unstated constants that the relations depend on."""
        plain = self
        if self.undeclared:
            plain = replace(self, undeclared=())
        return tuple(name for name in self.unstated if plain.depends_on(name))

    @cached_property
    def forward(self) -> ForwardModel | None:
        """The forward model of the whole network over all rounds, for all views.

        None if there is none, if it would be too large, or if messages were lost.
        """
        if self.missing or self.rounds > MODELLED_ROUNDS or self.relations_count > MODELLED:
            return None
        if ForwardModel.of(self.start) is None:
            return None
        return ForwardModel.of(self.whole)

    @cached_property
    def beginning(self) -> ForwardModel | None:
        """The forward model of `start`, for a long run whose rounds are alike (`recursion`).

        None if there is none, if the rounds differ, or if messages were lost.
        """
        if self.missing or not self.repeats or len(self.start.relations) > MODELLED:
            return None
        return ForwardModel.of(self.start)

    @cached_property
    def network(self) -> SymmetricNetwork | None:
        """The network of `beginning` over all rounds, if it averages with symmetric weights.

        None if a record enters only some gradients, or if the run has only a few rounds.
        """
        if self.turns is not None or self.rounds <= DECLARED + WINDOW or self.beginning is None:
            return None
        return SymmetricNetwork.of(self.beginning, self.same, self.rounds)

    @cached_property
    def claims(self) -> tuple[Claim, ...]:
        """What the paper promises about the run."""
        return tuple(self.victim.claims(self.graph, self.rounds, self.public))

    @property
    def relations_count(self) -> int:
        """Approximately how many relations all rounds have."""
        return len(self.start.relations) * self.rounds // max(1, self.start.round)

    @cached_property
    def silent(self) -> frozenset[int]:
        """Nodes that enter no gradient and hold no secret, so that nothing can leak."""
        return secretless(self.start, range(self.graph.nodes))

    @cached_property
    def unsaid(self) -> str:
        """Why a protocol file says nothing about the data of some nodes; empty if it does.

        A file may omit a gradient that the program computes; bundled protocols are complete.
        """
        if not hasattr(self.victim, "definition"):
            return ""
        holders = range(self.graph.nodes - self.victim.centralised)
        absent = [node for node in holders if not self.start.gradients(node)]
        if not absent:
            return ""
        whose = "their"
        if len(absent) == 1:
            whose = "its"
        return (
            f"the description contains no gradient of {named(absent)}, so nothing can be "
            f"concluded about {whose} data"
        )

    @cached_property
    def turns(self) -> Turns | None:
        """The gradients of a node that one record can enter; None if all (`Victim.turns`)."""
        return self.victim.turns(self.rounds) if self.ordered else None

    @property
    def batched(self) -> bool:
        """Whether a gradient may be of a mini-batch while `turns` does not say of which records."""
        batch = getattr(self.victim, "batch", 0)
        said = [self.evidence.get(name) for name in ("batch", "samples")]
        unknown = any(isinstance(one, list) and one[:1] == [Origin.UNKNOWN.name] for one in said)
        if self.turns is not None or 0 < self.records <= batch:
            return False
        return batch > 0 or unknown

    @property
    def clipped(self) -> _ClippedSensitivity | None:
        """The largest change of a gradient if the protocol clips; None if it does not."""
        clip = getattr(self.victim, "clip", 0)
        if not clip > 0:
            return None
        samples = getattr(self.victim, "samples", 0)
        if "batch" in self.unstated:  # the mean may be of any number of them
            samples = 0
        return clipped(clip, samples, getattr(self.victim, "batch", 0))

    @property
    def repeats(self) -> bool:
        """Whether `start` can be extended to later rounds."""
        return self.victim.stationary and len(self.same) == ALIKE and self.start.settled

    def continued(self, rows: Iterable[int], rounds: range) -> Relations:
        """Return some relations of `start` for other rounds; see `repeat.extend`."""
        with at_most(self.most):
            return extend(self.start, self.same, rows, rounds)

    def depends_on(self, name: str) -> bool:
        """Return whether another value of this constant would change the relations."""
        value = getattr(self.victim, name)
        if isinstance(value, bool):
            others: tuple[Any, ...] = (not value,)
        elif isinstance(value, int):
            others = (value // 2 or 2,)
        elif isinstance(value, float):
            others = (value / 2 or 1.0,)
        else:
            others = registry.choices(type(self.victim), name)
        if not others:
            return True
        return any(self._differs(name, other) for other in others if other != value)

    def _differs(self, name: str, value: Any) -> bool:
        """Return whether this value of a constant changes the relations, or cannot be declared."""
        try:
            other = replace(cast(Any, self.victim), **{name: value})
            if not self._drawn_by(other) - self._drawn_by(self.victim) <= self.public.keys():
                return False  # the public tensors would contain its schedule
            with at_most(self.most), gradients_times(self.summed):
                changed = other.relations(self.graph, self.start.round, self.public)
        except Unscheduled:  # the run would have published it
            return False
        except (LeakauditError, ValueError, TypeError):
            return not isinstance(value, bool)  # a switch that is impossible here is not thrown
        before = [r.terms for r in self.start.relations]
        after = [r.terms for r in changed.relations]
        return before != after or changed.vectors != self.start.vectors

    def _drawn_by(self, victim: Victim) -> set[str]:
        """Return the names of the tensors that a victim draws for its schedule."""
        return set(victim.schedule(self.graph, 1, Generator().manual_seed(0)))

    @cached_property
    def same(self) -> range:
        """The last rounds of `start`, as far as they are all alike."""
        return steady(self.start, ALIKE)


# The last declarations, each with the tensors on which it depends. One run declares its network
# several times: to deduce gradients, and to check that the messages are those of the protocol. Most
# ask for the same rounds, or for two different numbers of them.
KEPT = 2
_last: list[tuple[Hashable, Mapping[str, Tensor], Relations]] = []


def _relations(
    victim: Victim, graph: Graph, rounds: int, public: Mapping[str, Tensor], summed: int
) -> Relations:
    """Return the relations of a victim; they are shared, so nobody may change them."""
    tensors = tuple((name, id(value), value._version) for name, value in public.items())
    key: Hashable = (victim, type(victim), graph, rounds, summed, tensors)
    try:
        hash(key)
    except TypeError:  # a victim of a plugin may have constants without a hash
        return victim.relations(graph, rounds, public)
    for at, (other, _, relations) in enumerate(_last):
        if other == key:
            _last.append(_last.pop(at))
            return relations
    made = victim.relations(graph, rounds, public)
    if outlined():
        return made
    # The tensors are kept, so that their addresses are not used again.
    _last.append((key, dict(public), made))
    del _last[:-KEPT]
    return made


def protocol_of(trace: Trace, rounds: int | None = None) -> Protocol:
    """Return the protocol named in a trace, with its constants, over its first rounds.

    Args:
        rounds: Number of rounds; None for all rounds before the first missing message.
    """
    kind = registry.of_trace(trace.protocol, trace.provenance)
    known = registry.parameters(kind)
    constants = {k: v for k, v in trace.params.items() if k in known}
    victim: Victim = registry.configure(kind, constants)
    if rounds is None:
        rounds = gaps.before(trace).rounds
    unstated: tuple[str, ...] = ()
    if not hasattr(victim, "definition"):  # a protocol file states its constants itself
        unstated = tuple(name for name in known if name not in trace.params)
    evidence = trace.provenance.get("evidence")
    if not isinstance(evidence, Mapping):
        evidence = {}
    return Protocol(
        victim,
        trace.graph,
        rounds,
        _sized(trace.public, trace.layout.size),
        records=_records(trace),
        summed=_summed(trace),
        unstated=unstated,
        evidence=evidence,
        most=largest(trace),
    )


def _sized(public: Mapping[str, Tensor], size: int) -> Mapping[str, Tensor]:
    """Return public tensors with an initial model (d,), whose length the noise may depend on."""
    start = public.get("w0")
    if start is None:
        return {**public, "w0": _unknown_start(size)}
    if start.shape != (size,):
        raise LeakauditError(
            f"expected a public tensor 'w0' of the {size} parameters of the model, got shape "
            f"{tuple(start.shape)}"
        )
    return public


@lru_cache(maxsize=1)  # one tensor, so that `_relations` recognises it
def _unknown_start(size: int) -> Tensor:
    return torch.zeros(1).expand(size)


def _records(trace: Trace) -> int:
    """Return the records of each node, as a recording states them; 0 if it does not."""
    stated = trace.params.get("samples")
    return stated if isinstance(stated, int) else 0


def _summed(trace: Trace) -> int:
    """Return of how many records a gradient is the sum; 1 if it is their mean."""
    reduction = trace.params.get("reduction", "mean")
    if reduction == "mean":
        return 1
    records = _records(trace)
    if reduction != "sum" or records < 1:
        raise LeakauditError(
            f"reduction: expected mean, or sum with the number of records as samples, got "
            f"{brief(reduction, 40)} with samples = {records}"
        )
    return records


def constants(trace: Trace) -> dict[str, Json]:
    """Return the constants of a recording: those it states, the rest as its protocol has them."""
    stated = dict(trace.params)
    if trace.protocol.startswith(registry.OWN):
        return stated
    try:
        return {**registry.values(protocol_of(trace, 0).victim), **stated}
    except LeakauditError:  # a finding says so
        return stated


def constant(trace: Trace, name: str) -> float:
    """Return one of the `constants` of a recording; 0 if it is missing or not a finite number."""
    value = constants(trace).get(name)
    return float(value) if is_number(value) else 0.0


def played(trace: Trace) -> Protocol:
    """Return the protocol named in a trace over all rounds in which any message was sent.

    Lost messages count as sent, and so does the round after the last complete one, unless the file
    shows that it did not begin.
    """
    missing = gaps.lost(trace)
    holds = max(gaps.sound(trace) or 0, 0) if missing else 0
    made = protocol_of(trace, trace.rounds)
    undeclared, absent = _traffic(trace, made)
    if absent is not None:
        if not missing or absent <= holds:
            holds = max(absent - 1, 0)
        missing = missing or gaps.since(absent)
    made = replace(made, undeclared=undeclared)
    if not trace.complete and _another(trace, made.victim):
        made = replace(made, rounds=trace.rounds + 1, begun=True)
    return replace(made, missing=missing, holds=holds)


def _traffic(trace: Trace, protocol: Protocol) -> tuple[tuple[Undeclared, ...], int | None]:
    rounds = trace.rounds
    if protocol.victim.stationary:
        rounds = min(rounds, DECLARED)
    try:
        with outline():
            sent = replace(protocol, rounds=rounds).whole.vectors
    except LeakauditError:  # every view says so
        return (), None
    return compared(trace, sent, rounds)


def _another(trace: Trace, victim: Victim) -> bool:
    """Return whether a run may have continued after the rounds of its trace.

    The planned number of rounds decides, otherwise the schedule.
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

    The relations are evaluated with messages, private states, and gradients computed by automatic
    differentiation.
    """
    same_run(trace, truth)
    trace = gaps.before(trace)
    if trace.columns != (0, trace.layout.size) or not truth.states:
        lacks = "the private states; record with --states"
        if truth.states:
            lacks = "all columns of the model"
        raise LeakauditError(f"checking relations requires a recording that contains {lacks}")
    vocabulary.inputs(truth.x, trace.task, "truth")
    vocabulary.labels(truth.y, trace.task, "truth")
    task = task or Task.build(trace.task)
    read = recorded(everything(trace))
    data = {i: truth.of(i) for i in truth.node.unique().tolist()}
    clip = constant(trace, "clip")

    def fetch(vector: Vector) -> Tensor | None:
        if vector.kind in ("message", "public"):
            return read(vector)
        return private_vector(truth, vector, trace.layout.size)

    def gradient(vector: Vector, theta: Tensor) -> Tensor:
        owner = cast(int, vector.owner)
        if owner not in data:
            raise LeakauditError(
                f"checking relations requires the records of every node, but the truth has none "
                f"of node {owner}"
            )
        x, y = data[owner]
        x = x.to(task.device, torch.float64)
        at = theta.to(task.device)[None]
        return clipping.gradients(task, at, x[None], y.to(task.device)[None], clip)[0].cpu()

    tolerance = SLACK * torch.finfo(trace.dtype).eps
    return residuals(protocol_of(trace).whole, fetch, tolerance, gradient)


def everything(trace: Trace) -> View:
    """Return the view of one who observes all messages of a recording."""
    return Adversary(corrupt=frozenset(range(trace.graph.nodes))).view(trace)


def private_vector(truth: Truth, vector: Vector, size: int) -> Tensor | None:
    """Return a private vector by name (``g.2`` for index 2) and round; None if it was not stored.

    A vector of no particular node is stored once. What has another shape is none of this model.
    """
    name = vector.name if vector.index is None else f"{vector.name}.{vector.index}"
    kept = truth.states.get(name)
    owner = vector.owner or 0
    if kept is None or kept.dim() != 3 or kept.shape[2] != size:
        return None
    if vector.round >= len(kept) or owner >= kept.shape[1]:
        return None
    value = kept[vector.round, owner]
    if vector.kind == "gradient":
        value = value / truth.summed
    return None if bool(value.isnan().all()) else value
