"""The vectors of a log that may be gradients, if it has no server with clients."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

import torch
from torch import Tensor

from leakaudit.capture.fitting import factors, fit
from leakaudit.capture.tap.guessing.observed import ChannelVectors
from leakaudit.capture.tap.messages.arranged import round_of
from leakaudit.capture.tap.messages.description import Payload
from leakaudit.capture.tap.messages.streams import MODELS, LogChannel, LoggedMessage
from leakaudit.protocols.mixing import metropolis

SOME = 6  # rounds or samples to use: a choice that bounds the time
SPREAD = 8  # ranks, and gradients of each, whose records are counted: also a choice
# Of a whole run, so many gradients of each rank are recomputed at least, and so many numbers of all
# ranks together at most: choices that bound the time.
LEAST = 3
BUDGET = 50_000_000


def samples(seen: ChannelVectors, payload: Payload) -> list[fit.GradientSample]:
    """Return vectors that should be gradients, from the first rounds of several ranks."""
    # Duals yield none, because they require `duals.solve`.
    if payload == "gradients":
        return list(_gradients(seen))[:SOME]
    if payload == "weights" and seen.graph.edges:
        if seen.missing:
            return list(_first_steps(seen))
        return list(_steps(seen, range(SOME), SOME))
    return []


def spread(seen: ChannelVectors, payload: Payload) -> list[fit.GradientSample]:
    """Return vectors that should be gradients, from rounds spread over the whole run."""
    # Only their records can be counted: most models at which they were computed are left out.
    if payload == "weights" and seen.graph.edges and not seen.missing:
        shortest = min(map(len, seen.own.values()), default=0)
        return list(_steps(seen, factors.spread(shortest - 1, SPREAD), SPREAD))
    found: list[fit.GradientSample] = []
    if payload != "gradients":
        return found
    clients = [rank for rank in seen.own if rank != seen.centre]
    for rank in clients[:SPREAD]:
        stream = seen.own[rank]
        for k in factors.spread(len(stream), SPREAD):
            rounding = torch.finfo(stream[k].dtype).eps
            value = stream[k].value
            points = {} if k else _points(seen, rank, stream[k])
            found.append(fit.GradientSample(value, points, None, rank, k, rounding))
    return found


def run(seen: ChannelVectors) -> Iterator[fit.GradientSample]:
    """Yield the gradients of a run, or as many of them as time allows, from first to last."""
    ranks = max(1, len(seen.own))
    most = max(LEAST, BUDGET // (seen.sizes[-1] * ranks))
    yield from _gradients(seen, most)


def compared(
    seen: ChannelVectors,
    found: fit.ModelFit,
    run: Iterable[fit.GradientSample],
    clipped: bool = False,
) -> factors.Factors:
    """Compare the gradients of a run with those recomputed at the model that explains the first."""
    return factors.compare(found.task, run, len(seen.own), _rounds(seen), clipped)


def steps(seen: ChannelVectors) -> list[fit.GradientSample]:
    """Return the steps of the first node that sends models, as far as time allows."""
    shortest = min(map(len, seen.own.values()), default=0)
    most = max(SOME, BUDGET // seen.sizes[-1])
    return list(_steps(seen, range(min(shortest - 1, most)), 1))


def _rounds(seen: ChannelVectors) -> list[int]:
    clients = [stream for rank, stream in seen.own.items() if rank != seen.centre]
    return [round_of(message, 1) for stream in clients for message in stream]


def _gradients(seen: ChannelVectors, most: int = 0) -> Iterator[fit.GradientSample]:
    """Yield each rank's first two messages, or up to `most` of all, with their models."""
    for rank, stream in seen.own.items():
        if rank == seen.centre:
            continue
        chosen = stream[:2]
        if most:
            chosen = [stream[k] for k in factors.spread(len(stream), most)]
        for message in chosen:
            points = _points(seen, rank, message)
            whole = message.whole
            part = None
            if whole is None:
                part = seen.part(message)
                if part is None or not points:
                    continue
                whole = message.value
            rounding = torch.finfo(message.dtype).eps
            yield fit.GradientSample(
                whole, points, None, rank, round_of(message, 1), rounding, part
            )


def _points(seen: ChannelVectors, rank: int, message: LoggedMessage) -> dict[str, Tensor]:
    """Return the model that was logged or sent with a rank's gradient, by name; or nothing."""
    models: list[LoggedMessage] = []
    if seen.centre is not None:
        models = seen.streams.get(LogChannel(seen.centre, rank, "send"), [])
    else:
        models = next((stream for wire, stream in seen.streams.items() if wire.op in MODELS), [])
    near = next((model for model in models if model.index == message.index), None)
    found = None if near is None else near.whole
    return {} if found is None else {"model": found}


def _steps(seen: ChannelVectors, rounds: Sequence[int], ranks: int) -> Iterator[fit.GradientSample]:
    """Yield what decentralised SGD with Metropolis weights W subtracts in some rounds."""
    # w_i(t+1) = sum_j W_ij w_j(t) - alpha g_i, where g_i is computed at w_i(t) (combine) or at the
    # sum (adapt).
    weights = metropolis(seen.graph)
    own = seen.own
    for i, neighbours in list(enumerate(seen.graph.neighbours))[:ranks]:
        around = [i, *neighbours]
        shortest = min((len(own.get(j, [])) for j in around), default=0)
        for t in rounds:
            if t + 1 >= shortest or any(own[j][t].index != t for j in around):
                continue
            now = {j: own[j][t].value.double() for j in around}
            mean = torch.stack([float(weights[i, j]) * now[j] for j in around]).sum(0)
            step = mean - own[i][t + 1].value.double()
            points = {"combine": now[i], "adapt": mean}
            rounding = torch.finfo(own[i][t].dtype).eps
            yield fit.GradientSample(step, points, mean, i, t, rounding)


def _first_steps(seen: ChannelVectors) -> Iterator[fit.GradientSample]:
    """Yield the first steps as above, if a sketch of the others was recorded beside some columns.

    Only the first models are recorded whole; if they are equal, averaging changes nothing.
    """
    streams = [stream for stream in seen.own.values() if stream[0].index == 0]
    starts = [stream[0].whole for stream in streams]
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
        step = start - stream[1].value.double()
        rounding = torch.finfo(stream[0].dtype).eps
        points = {"combine": start, "adapt": start}
        part = after.subtracted_from(start)
        yield fit.GradientSample(step, points, start, stream[0].src, 0, rounding, part)


def agreed(samples: Sequence[fit.GradientSample], sizes: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Return up to two networks that most samples indicate: (inputs, [hidden,] outputs).

    sizes: lengths of the parameters if they were sent one by one, followed by the model's own.
    """
    some = [sample for sample in samples[:SOME] if bool(sample.value.any())]
    one_by_one = sizes[:-1] if len(sizes) > 2 else ()
    if one_by_one and not some:
        return list(islice(fit.widths(sizes[-1], one_by_one), 1))
    votes = Counter[tuple[int, ...]]()
    for sample in some:
        votes.update(islice(fit.layers(sample.value, one_by_one), 3))
    return [widths for widths, count in votes.most_common(2) if 2 * count >= len(some)]
