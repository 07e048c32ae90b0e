"""The messages of a log without a description: what is sent, and which parts may be gradients."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor

from leakaudit.capture.tap.fitting import fit
from leakaudit.capture.tap.fitting.part import Part
from leakaudit.capture.tap.fitting.sketch import Sketch
from leakaudit.capture.tap.log.layers import NOTE
from leakaudit.capture.tap.log.reading import Event, RankLog
from leakaudit.capture.tap.messages.layouts import Place
from leakaudit.capture.tap.messages.states import sort_out
from leakaudit.capture.tap.messages.streams import (
    FLOATS,
    GRADIENTS,
    POINT,
    LoggedMessage,
    Wire,
    assemble,
    is_of_hook,
    one_kind,
    one_lane,
    operations,
)
from leakaudit.errors import NotUnderstood
from leakaudit.protocols.mixing import metropolis
from leakaudit.tasks.task import Task
from leakaudit.trace import Graph

Payload: TypeAlias = Literal["weights", "gradients", "duals"]

# Models of ranks that train together have a cosine near 1 and move by a small fraction of their
# length. Gradients of different ranks have a small cosine and change completely from round to
# round. What two neighbours' duals add is opposite: cosine -1 up to the difference of two models.
# The thresholds in between are choices; the result states its certainty, and the user confirms it.
#
# A server that sends models to clients that send gradients looks opposite too: w' - g and g' - w
# are nearly w and -w. Two more relations of duals m_ij distinguish the two cases, with
# c_i = 2 rho A_ij w_i:
#
# - m_ij(t+1) = m_ji(t) + c_i and m_ji(t+1) = m_ij(t) - c_j, so the sum of both changes by c_i - c_j
#   in a round, and each of them by much more. For a model and a gradient H w + b the change of the
#   sum has the square |dw|^2 + |dg|^2 + 2 dw H dw. If the loss is convex along the step, that is at
#   least |dw|^2 + |dg|^2, with any optimiser.
# - A_ij (m_ij(t+1) - m_ji(t)) = 2 rho w_i is the same on all channels of a node, up to rounding. Of
#   a server it is w' - g_j, and clients' gradients differ. The first relation is not sufficient for
#   certainty: clients that send the way from w to their own optimum keep the sum as duals do.
#
# Measured: the square of the sum's change over the sum of the squares is 9e-4 to 1.4e-2 on
# examples/tap/ecl.py, and .77 to 1.4 in FedSGD of an mlp (with a loss that is not convex
# everywhere).
ALIKE = 0.9  # cosine of messages above which they may be models
CLEARLY_ALIKE = 0.99
OPPOSED = -0.9  # cosine of what two messages add, below which they are duals
SAME = 1e-5  # relative difference of messages that are equal up to rounding; a choice
KEPT = 0.1  # change of the sum on an edge, squared, over that of both messages: less for duals
ROUNDINGS = 4  # tolerance between channels; one addition per message makes 1, the rest is a choice
MOVE = 0.5  # maximum distance, relative to its length, by which a model moves in a round

SOME = 6  # rounds or samples to use: a choice that bounds the time
PAIRS = 60  # pairs of messages to compare: also a choice
LONGEST = 500  # maximum number of tensors per message for which a period is searched


@dataclass(frozen=True)
class Observed:
    """Messages by channel, as vectors.

    Attributes:
        streams: the messages with payloads, by channel.
        slices: the place of each parameter in a vector, in the order of a message.
        sizes: lengths of the parameters in the model's order, followed by the model's own length.
        graph: the graph of the ranks that exchange messages one to one.
        lane: the lane of the messages; None if there is only one.
        names: names of the parameters, if a hook noted them.
        notes: remarks for the reader.
    """

    streams: Mapping[Wire, list[LoggedMessage]]
    slices: list[Place]
    sizes: tuple[int, ...]
    graph: Graph
    lane: str | None = None
    names: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def missing(self) -> list[str]:
        """Parameters that do not travel, by name, or by number if their names are unknown."""
        count = len(self.sizes) - 1
        absent: set[int] = set()
        for stream in self.streams.values():
            covers = stream[0].covers
            if covers is not None:
                absent |= set(range(count)) - set(covers)
        if len(self.names) == count:
            return [self.names[k] for k in sorted(absent)]
        return [f"number {k}" for k in sorted(absent)]

    @property
    def chosen(self) -> bool:
        """Whether the user chose the parameters that were recorded."""
        return any(stream[0].note(NOTE) for stream in self.streams.values())

    def value(self, message: LoggedMessage) -> Tensor:
        """Return the vector (d,) of a message.

        Args:
            message: a message of one of the streams.
        """
        return message.value(self.slices)

    def whole(self, message: LoggedMessage) -> Tensor | None:
        """Return the vector (d,) of a message with what was left out; None if that is not recorded.

        Args:
            message: a message of one of the streams.
        """
        return message.whole(self.slices)

    def part(self, message: LoggedMessage) -> Part | None:
        """Return what is recorded of a message.

        Args:
            message: a message of one of the streams.

        Returns:
            The part; None without a sketch, or if the message has other axes than the model.
        """
        sketched = message.sketched()
        if sketched is None or any(place.axes for place in self.slices):
            return None
        total, seed, others = sketched
        kept = torch.zeros(self.sizes[-1], dtype=torch.bool)
        for place in message.covers or ():
            kept[self.slices[place].start : self.slices[place].stop] = True
        lengths = [place.stop - place.start for place in self.slices]
        columns = {k: slice(self.slices[k].start, self.slices[k].stop) for k in others}
        return Part(kept, columns, Sketch(lengths, seed), total)

    @property
    def own(self) -> dict[int, list[LoggedMessage]]:
        """Rank -> its messages to its first receiver, or to all."""

        def key(wire: Wire) -> tuple[int, int]:
            return wire.src, -1 if wire.dst is None else wire.dst

        out: dict[int, list[LoggedMessage]] = {}
        for wire in sorted(self.streams, key=key):
            if wire.op not in ("recv", "model"):
                out.setdefault(wire.src, self.streams[wire])
        return out


@dataclass(frozen=True)
class PayloadGuess:
    """The payload of the messages.

    Attributes:
        payload: weights, gradients or duals.
        sure: the certainty, in one word; the payload means nothing if it is unknown.
        why: the evidence, in one line.
    """

    payload: Payload
    sure: Literal["sure", "likely", "unsure", "unknown"]
    why: str


def collect(logs: Sequence[RankLog], task: Task | None, places: Sequence[Place] = ()) -> Observed:
    """Combine the log's tensors into messages.

    Args:
        logs: one per rank.
        task: the task of the model that is sent; None uses the sizes of tensors that repeat.
        places: the place of each parameter, in the order of a message; empty if messages hold the
            parameters in the model's order and axes.

    Raises:
        NotUnderstood: the log contains no vectors, or none of the size of the model.
    """
    sorted_out = sort_out(logs, task)
    logs = sorted_out.logs
    if not places:
        places = _usual(sizes_of(task) if task is not None else _sizes(logs))
    sent = [place.stop - place.start for place in places]
    sizes = (*sent, sum(sent))
    streams: dict[Wire, list[LoggedMessage]] = {}
    for wire, stream in assemble(logs, sizes).messages.items():
        kept = [message for message in stream if message.kept]
        if kept:
            streams[wire] = kept
    streams, dropped = one_lane(streams)
    streams, _ = one_kind(streams)
    if not streams:
        raise NotUnderstood(
            f"the log contains no message of the model's size ({sizes[-1]} numbers), but "
            f"{operations(logs)}; specify the model that was trained"
        )
    ordered = [place.stop - place.start for place in sorted(places, key=_start)]
    lane = None
    if dropped:
        lane = next(iter(streams.values()))[0].lane
    return Observed(
        streams,
        list(places),
        (*ordered, sizes[-1]),
        _graph(streams),
        lane,
        _names(streams),
        sorted_out.notes,
    )


def sizes_of(task: Task) -> tuple[int, ...]:
    """Return the lengths of a model's parameters, followed by its own length.

    Args:
        task: the task of the model.
    """
    slices = task.layout.slices.values()
    return (*(part.stop - part.start for part in slices), task.layout.size)


def _usual(sizes: Sequence[int]) -> list[Place]:
    """Return the places of parameters that messages hold in the model's order and axes."""
    starts = np.cumsum([0, *sizes[:-1]]).tolist()
    return [Place(begin, end) for begin, end in pairwise(starts)]


def _start(place: Place) -> int:
    return place.start


def shapes(logs: Sequence[RankLog], task: Task | None) -> list[tuple[int, ...]]:
    """Return the shapes of the tensors of a message; empty if they do not repeat.

    Args:
        logs: one per rank.
        task: the task of the model that is sent, if known.
    """
    logs = sort_out(logs, task).logs
    wanted = list(_sizes(logs)[:-1])
    for log in logs:
        events = [event for event in log.events if event.dtype in FLOATS]
        for begin, event in enumerate(events):
            if event.numel != wanted[0]:
                continue
            run = events[begin : begin + len(wanted)]
            if [piece.numel for piece in run] == wanted:
                return [piece.shape for piece in run]
    return []


def _names(streams: Mapping[Wire, list[LoggedMessage]]) -> tuple[str, ...]:
    """Return the names of the parameters that a hook noted."""
    for stream in streams.values():
        noted = stream[0].note("names")
        if isinstance(noted, list):
            return tuple(map(str, noted))
    return ()


def _graph(wires: Iterable[Wire]) -> Graph:
    """Return the graph of the ranks that exchange messages one to one."""
    last = 0
    edges: set[tuple[int, int]] = set()
    for src, dst, op, _ in wires:
        last = max(last, src)
        if dst is None:
            continue
        last = max(last, dst)
        if op in POINT and src != dst:
            edges.add((min(src, dst), max(src, dst)))
    return Graph(1 + last, tuple(sorted(edges)))


def _sizes(logs: Sequence[RankLog]) -> tuple[int, ...]:
    """Return the lengths of the tensors that repeat on most channels, and their sum.

    Each channel votes for its shortest period, with one vote per number that was sent on it. The
    sizes noted by a hook of DistributedDataParallel count twice.
    """
    wires: dict[Any, list[int]] = defaultdict(list)
    votes = Counter[tuple[int, ...]]()
    for log in logs:
        for event in log.events:
            noted = [n for n in event.notes.get("sizes", ()) if type(n) is int]
            if noted:
                votes[*noted, sum(noted)] += 2 * sum(noted)
            elif _may_repeat(event):
                lane = event.notes.get("lane", "")
                wires[event.rank, event.peer, event.op, lane].append(event.numel)
    for numels in wires.values():
        period = _period(numels)
        if period:
            once = numels[:period]
            votes[*once, sum(once)] += sum(numels)
    if not votes:
        raise NotUnderstood(
            "the log contains no floating-point tensors that may be models or gradients, but "
            f"{operations(logs)}"
        )
    return votes.most_common(1)[0][0]


def _may_repeat(event: Event) -> bool:
    """Return whether a tensor may be a part of a message whose parts nobody noted."""
    if is_of_hook(event) or "parameters" in event.notes:
        return False
    return event.dtype in FLOATS and bool(event.shape)


def _period(numels: Sequence[int]) -> int:
    """Return the period of a sequence of lengths, 0 if there is none up to LONGEST."""
    for period in range(1, min(len(numels), LONGEST) + 1):
        if all(a == b for a, b in zip(numels, numels[period:], strict=False)):
            return period
    return 0


def payload(seen: Observed) -> PayloadGuess:
    """Determine what is sent by comparing messages of different ranks and rounds.

    Args:
        seen: the messages.
    """
    pairs = list(_across(seen))
    hooked = any(wire.op in GRADIENTS for wire in seen.streams)
    if not pairs and not hooked:
        why = "only one rank sends, so no comparison shows what is sent"
        return PayloadGuess("gradients", "unknown", why)
    if _all_zero(seen):
        return _nothing(hooked)
    across = _median(pairs, 0.0)
    move = _median(list(_moves(seen)), 1.0)
    if across < ALIKE:
        found = _duals(seen)
        if found is not None:
            return found
    facts = (
        f"messages of different ranks have cosine {across:.3f} "
        f"and move by {move:.2g} of their length per round"
    )
    if across > ALIKE:
        # Clients with equal data send equal gradients, which look like models. A server's model
        # still differs from them. Without a server, the two cases cannot be distinguished.
        met = _median(list(_met(seen)), across)
        if met < ALIKE:
            why = f"{facts}, but those of two ranks that communicate have cosine {met:.3f}"
            return PayloadGuess("gradients", "likely", why)
    if across > ALIKE and move < MOVE:
        sure: Literal["sure", "likely"] = "sure" if across > CLEARLY_ALIKE else "likely"
        if _median(list(_apart(seen)), 0.0) < SAME:
            why = f"{facts}: models that stay close, or gradients of equal data"
            return PayloadGuess("weights", "likely", why)
        return PayloadGuess("weights", sure, f"{facts}: models that stay close")
    if across < ALIKE:
        return PayloadGuess("gradients", "likely", f"{facts}: each rank has its own direction")
    return PayloadGuess("weights", "unsure", facts)


def _all_zero(seen: Observed) -> bool:
    """Return whether the first messages of all ranks consist of zeros."""
    some = [message for stream in seen.own.values() for message in stream[:SOME]]
    return not any(bool(seen.value(message).any()) for message in some)


def _nothing(hooked: bool) -> PayloadGuess:
    """Return the payload of messages without content: only a hook knows what it sends."""
    if hooked:
        why = "the program's gradients are zero in the rounds that were compared"
        return PayloadGuess("gradients", "likely", why)
    why = "all messages that were compared are zero, so no comparison shows what is sent"
    return PayloadGuess("gradients", "unknown", why)


def _duals(seen: Observed) -> PayloadGuess | None:
    """Return that duals are sent, if the sums of two neighbours' messages indicate it."""
    opposed = _median(list(_swaps(seen)), 0.0)
    if opposed > OPPOSED:
        return None
    kept = _median(list(_kept(seen)), 1.0)
    if kept > KEPT:
        return None
    why = (
        "what two nodes add to each other's last message is opposite "
        f"(cosine {opposed:.3f}), and the sum of their messages is stable (it changes by "
        f"{kept:.2g} of their changes, squared), as in PDMM and ECL"
    )
    agreed_wires = list(_wires_agree(seen))
    if agreed_wires and all(agreed_wires):
        return PayloadGuess("duals", "sure", f"{why}; all channels of a node show the same model")
    return PayloadGuess("duals", "likely", why)


def _across(seen: Observed) -> Iterator[float]:
    """Yield cosines of messages that two ranks send at the same position on their channels."""
    for one, other in _pairs(seen):
        yield _cosine(one, other)


def _apart(seen: Observed) -> Iterator[float]:
    """Yield the relative difference between messages of two ranks."""
    for one, other in _pairs(seen):
        yield float((one - other).norm() / one.norm().clamp_min(1e-30))


def _pairs(seen: Observed) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield messages that two ranks send at the same position on their channels."""
    own = list(seen.own.values())
    pairs: list[tuple[LoggedMessage, LoggedMessage]] = []
    for one in own:
        for other in own:
            if other is not one:
                pairs.extend(zip(one[:SOME], other[:SOME], strict=False))
    for one_message, other_message in pairs[:PAIRS]:
        yield seen.value(one_message), seen.value(other_message)


def _met(seen: Observed) -> Iterator[float]:
    """Yield cosines of messages that two ranks send to each other."""
    pairs: list[tuple[LoggedMessage, LoggedMessage]] = []
    for i, j in seen.graph.edges:
        there = seen.streams.get(Wire(i, j, "send"), [])[:SOME]
        back = seen.streams.get(Wire(j, i, "send"), [])[:SOME]
        pairs.extend(zip(there, back, strict=False))
    for one, other in pairs[:PAIRS]:
        yield _cosine(seen.value(one), seen.value(other))


def _moves(seen: Observed) -> Iterator[float]:
    """Yield the relative difference between a message and the previous one on its channel."""
    for stream in seen.own.values():
        for before, after in islice(pairwise(stream), SOME):
            old = seen.value(before)
            move = seen.value(after) - old
            yield float(move.norm() / old.norm().clamp_min(1e-30))


def _swaps(seen: Observed) -> Iterator[float]:
    """Yield the cosines of z_ji(t+1) - z_ij(t) and z_ij(t+1) - z_ji(t).

    PDMM makes them 2 rho w_i and -2 rho w_j.
    """
    for i, j in seen.graph.edges:
        there = seen.streams.get(Wire(i, j, "send"), [])
        back = seen.streams.get(Wire(j, i, "send"), [])
        for t in range(min(len(there), len(back), SOME) - 1):
            one = seen.value(there[t + 1]) - seen.value(back[t])
            two = seen.value(back[t + 1]) - seen.value(there[t])
            yield _cosine(one, two)


def _kept(seen: Observed) -> Iterator[float]:
    """Yield the change of the sum of both messages of an edge, relative to the messages.

    Squares are summed over rounds: the first rounds, in which duals change most, count most.
    """
    for i, j in seen.graph.edges:
        there = seen.streams.get(Wire(i, j, "send"), [])[:SOME]
        back = seen.streams.get(Wire(j, i, "send"), [])[:SOME]
        of_sum = 0.0
        of_both = 0.0
        for (one, one_after), (two, two_after) in zip(
            pairwise(there), pairwise(back), strict=False
        ):
            d_one = (seen.value(one_after) - seen.value(one)).double()
            d_two = (seen.value(two_after) - seen.value(two)).double()
            of_sum += float((d_one + d_two).square().sum())
            of_both += float(d_one.square().sum() + d_two.square().sum())
        if of_both > 0:
            yield of_sum / of_both


def _wires_agree(seen: Observed) -> Iterator[bool]:
    """Yield whether all channels of a node show the same 2 rho w_i, for nodes with several."""
    for i, near in enumerate(seen.graph.neighbours):
        out = {j: seen.streams.get(Wire(i, j, "send"), []) for j in near}
        back = {j: seen.streams.get(Wire(j, i, "send"), []) for j in near}
        rounds = min((len(stream) for stream in (*out.values(), *back.values())), default=0)
        if len(near) < 2:
            continue
        for t in range(min(rounds, SOME) - 1):
            shown: list[Tensor] = []
            length = 0.0
            precision = 0.0
            for j in near:
                sent = seen.value(out[j][t + 1])
                got = seen.value(back[j][t])
                sign = 1 if i < j else -1  # A_ij
                shown.append(sign * (sent.double() - got.double()))
                length = max(length, float(sent.double().norm() + got.double().norm()))
                precision = max(precision, torch.finfo(sent.dtype).eps)
            apart = max(float((u - shown[0]).norm()) for u in shown[1:])
            yield apart <= ROUNDINGS * precision * length


def same_start(seen: Observed) -> bool:
    """Return whether all ranks start with the same message.

    Args:
        seen: the messages.
    """
    starts = [stream[0] for stream in seen.own.values()]
    firsts = [seen.value(message) for message in starts if message.index == 0]
    return len(firsts) > 1 and all(torch.equal(firsts[0], value) for value in firsts)


def samples(seen: Observed, payload: Payload) -> list[fit.GradientSample]:
    """Return vectors that should be gradients, from the first rounds of several ranks.

    Args:
        seen: the messages.
        payload: what is sent; duals yield none, because they require `duals.solve`.
    """
    if payload == "gradients":
        return list(_gradients(seen))[:SOME]
    if payload == "weights" and seen.graph.edges:
        return list(_steps(seen))
    return []


def _gradients(seen: Observed) -> Iterator[fit.GradientSample]:
    """Yield each rank's first two messages, at the models that were logged or sent with them."""
    models: list[LoggedMessage] = []
    for wire, stream in seen.streams.items():
        if wire.op == "model":
            models = stream
            break
    server = hub(seen.graph)
    for rank, stream in seen.own.items():
        if rank == server:
            continue
        if server is not None:
            models = seen.streams.get(Wire(server, rank, "send"), [])
        for message in stream[:2]:
            near = [model for model in models if model.index == message.index]
            points = {}
            model = seen.whole(near[0]) if near else None
            if model is not None:
                points["model"] = model
            whole = seen.whole(message)
            if whole is not None:
                yield fit.GradientSample(whole, points)
                continue
            part = seen.part(message)
            if part is not None and points:
                yield fit.GradientSample(seen.value(message), points, part=part)


def hub(graph: Graph) -> int | None:
    """Return the node to which all others are connected, and nobody else; None if there is none.

    Args:
        graph: the graph of the nodes that exchange messages one to one.
    """
    if len(graph.edges) < 2:
        return None
    shared = set.intersection(*map(set, graph.edges))
    return min(shared, default=None)


def _steps(seen: Observed) -> Iterator[fit.GradientSample]:
    """Yield what decentralised SGD with Metropolis weights W subtracts in its first rounds.

    w_i(t+1) = sum_j W_ij w_j(t) - alpha g_i, where g_i is computed at w_i(t) (combine) or at the
    sum (adapt).
    """
    weights = metropolis(seen.graph)
    own = seen.own
    if seen.missing:
        yield from _first_steps(seen)
        return
    for i, neighbours in list(enumerate(seen.graph.neighbours))[:SOME]:
        around = [i, *neighbours]
        shortest = min((len(own.get(j, [])) for j in around), default=0)
        for t in range(min(SOME, shortest - 1)):
            if any(own[j][t].index != t for j in around):
                continue
            now = {j: seen.value(own[j][t]).double() for j in around}
            mean = torch.stack([float(weights[i, j]) * now[j] for j in around]).sum(0)
            step = mean - seen.value(own[i][t + 1]).double()
            points = {"combine": now[i], "adapt": mean}
            rounding = torch.finfo(own[i][t].dtype).eps
            yield fit.GradientSample(step, points, mean, i, t, rounding)


def _first_steps(seen: Observed) -> Iterator[fit.GradientSample]:
    """Yield the first steps as above, if a sketch of the others was recorded beside some columns.

    Only the first models are recorded whole. If they are equal, averaging changes nothing.
    """
    streams = [stream for stream in seen.own.values() if stream[0].index == 0]
    starts = [seen.whole(stream[0]) for stream in streams]
    first = starts[0] if starts else None
    if first is None:
        return
    if any(start is None or not torch.equal(start, first) for start in starts):
        return
    start = first.double()
    for stream in streams[:SOME]:
        after = seen.part(stream[1]) if len(stream) > 1 else None
        if after is None or stream[1].index != 1:
            continue
        step = start - seen.value(stream[1]).double()
        rounding = torch.finfo(stream[0].dtype).eps
        points = {"combine": start, "adapt": start}
        part = after.subtracted_from(start)
        yield fit.GradientSample(step, points, start, stream[0].src, 0, rounding, part)


def agreed(samples: Sequence[fit.GradientSample], sizes: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Return the widths of the networks that most samples indicate.

    Args:
        samples: vectors that should be gradients.
        sizes: lengths of the parameters if they were sent one by one, followed by the model's own.

    Returns:
        Up to two tuples (inputs, hidden, outputs) or (inputs, outputs).
    """
    some = [sample for sample in samples[:SOME] if bool(sample.value.any())]
    one_by_one = sizes[:-1] if len(sizes) > 2 else ()
    if one_by_one and not some:
        return list(islice(fit.widths(sizes[-1], one_by_one), 1))
    votes = Counter[tuple[int, ...]]()
    for sample in some:
        votes.update(islice(fit.layers(sample.value, one_by_one), 3))
    return [widths for widths, count in votes.most_common(2) if 2 * count >= len(some)]


def _median(values: Sequence[float], none: float) -> float:
    if not values:
        return none
    return float(np.median(values))


def _cosine(a: Tensor, b: Tensor) -> float:
    a = a.double()
    b = b.double()
    return float(a @ b / (a.norm() * b.norm()).clamp_min(1e-300))
