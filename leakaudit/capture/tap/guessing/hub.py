"""A server and its clients in a log without a description: what clients make of a model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

import torch
from torch import Tensor

from leakaudit.capture.fitting import factors, fit
from leakaudit.capture.tap.guessing.observed import ChannelVectors
from leakaudit.capture.tap.guessing.payloads import PayloadGuess, cosine
from leakaudit.capture.tap.messages.arranged import round_of
from leakaudit.capture.tap.messages.description import Payload
from leakaudit.capture.tap.messages.server_step import MEAN, mean_miss
from leakaudit.capture.tap.messages.streams import LoggedMessage

POINT = "down"  # name of the model at which a client's first gradient is computed
# A trained model is the server's model moved by a fraction of its length; a gradient or a
# difference has a direction of its own. Between these lie other thresholds as well.
ALIKE = 0.9  # cosine of a reply with the server's model, from which on it may be a model
CLEARLY_ALIKE = 0.99
ROUNDS = 60  # exchanges whose models are compared: a choice, too
SOME = 6  # exchanges to look at: a choice that bounds the time
LOCAL = 4  # gradients that recomputed local training takes, about
BUDGET = 50_000_000  # numbers of all gradients that are recomputed: also a choice


@dataclass(frozen=True)
class _Exchange:
    round: int
    client: int
    down: Tensor  # (d,) the server's model
    up: Tensor  # (d,) the answer


def server(seen: ChannelVectors) -> int | None:
    """Return the rank of the server of a star; None if there is none."""
    # Unless the program states it, a rank is the server if all others exchange messages with it
    # only, and if its models are the means of what they sent: a hub of a decentralised protocol
    # adds a gradient of its own.
    for stream in seen.streams.values():
        noted = stream[0].note("server")
        if noted is not None:
            return int(noted)
    ends = [(wire.src, wire.dst) for wire in seen.streams if wire.op in ("send", "recv")]
    others = [wire for wire in seen.streams if wire.op not in ("send", "recv")]
    if not ends or others:
        return None
    common = set.intersection(*(set(pair) for pair in ends))
    clients = {rank for pair in ends for rank in pair} - common
    if len(common) != 1 or len(clients) < 2:
        return None
    hub = int(common.pop() or 0)
    if is_mean(seen, hub) is not True:
        return None
    return hub


def _exchanges(seen: ChannelVectors, hub: int, most: int | None = None) -> Iterator[_Exchange]:
    downs = _by_round(seen, hub, from_server=True)
    ups = _by_round(seen, hub, from_server=False)
    keys = sorted(downs.keys() & ups.keys())
    if most is not None:
        keys = [keys[k] for k in factors.spread(len(keys), most)]
    for key in keys:
        yield _Exchange(*key, downs[key].value, ups[key].value)


def _by_round(
    seen: ChannelVectors, hub: int, from_server: bool
) -> dict[tuple[int, int], LoggedMessage]:
    """Return round and client -> the message to or from the client; a sender's log comes first."""
    found: dict[tuple[int, int], LoggedMessage] = {}
    for wire, stream in sorted(seen.streams.items(), key=lambda item: item[0].op):
        src, dst, op, _ = wire
        client = dst if from_server else src
        if op not in ("send", "recv") or client is None or client == hub:
            continue
        if (src == hub) != from_server:
            continue
        for message in stream:
            found[round_of(message, 1), client] = message
    return found


def payload(seen: ChannelVectors, hub: int) -> PayloadGuess:
    """Determine what clients answer: a model, or a gradient or difference."""
    near = _cosine(seen, hub)
    why = f"clients' answers and the server's model have cosine {near:.3f}"
    if near > CLEARLY_ALIKE:
        return PayloadGuess("weights", "sure", f"{why}: trained models")
    if near > ALIKE:
        return PayloadGuess("weights", "likely", f"{why}: trained models")
    return PayloadGuess("gradients", "unsure", f"{why}: gradients, or differences of models")


def _cosine(seen: ChannelVectors, hub: int) -> float:
    found = sorted(cosine(one.down, one.up) for one in islice(_exchanges(seen, hub), SOME))
    return found[len(found) // 2] if found else 0.0


def samples(
    seen: ChannelVectors, hub: int, payload: Payload, most: int = 2 * SOME
) -> Iterator[fit.GradientSample]:
    """Yield what should be gradients: answers, or what clients subtract from the server's model.

    They are spread from the first to the last, because an optimiser may have a memory.
    """
    rounding = _rounding(seen)
    for one in _exchanges(seen, hub, most):
        down = one.down.double()
        step = one.up.double()
        if payload == "weights":
            step = down - step
        yield fit.GradientSample(step, {POINT: down}, None, one.client, one.round, rounding)


def whole(seen: ChannelVectors, hub: int, payload: Payload) -> Iterator[fit.GradientSample]:
    """Yield the same of a whole run, or as much of it as time allows."""
    each = LOCAL if payload == "weights" else 1
    return samples(seen, hub, payload, max(2 * SOME, BUDGET // (each * seen.sizes[-1])))


def _rounding(seen: ChannelVectors) -> float:
    """Return the distance from 1 to the next number in the shortest format of the messages."""
    formats = [stream[0].dtype for stream in seen.streams.values()]
    return max((torch.finfo(dtype).eps for dtype in formats), default=0.0)


def examples(seen: ChannelVectors) -> set[int]:
    """Return the numbers of examples that clients report."""
    noted = {message.note("examples") for stream in seen.streams.values() for message in stream}
    return noted - {None}


def is_one_model(seen: ChannelVectors, hub: int) -> bool:
    """Return whether the server sends the same model to all clients of a round."""
    models: dict[int, Tensor] = {}
    for one in islice(_exchanges(seen, hub), ROUNDS):
        if not torch.equal(models.setdefault(one.round, one.down), one.down):
            return False
    return True


def is_mean(seen: ChannelVectors, hub: int) -> bool | None:
    """Return whether the next model is the mean of all answers; None if no round shows it."""
    by_round: dict[int, list[_Exchange]] = {}
    for one in _exchanges(seen, hub):
        by_round.setdefault(one.round, []).append(one)
    clients = {one.client for answers in by_round.values() for one in answers}
    shown: bool | None = None
    for t, answers in sorted(by_round.items()):
        if t + 1 not in by_round:
            continue
        if len(answers) < len(clients):  # the server asked a part of the clients
            return False
        mean = torch.stack([one.up.double() for one in answers]).mean(0)
        if mean_miss(answers[0].down, by_round[t + 1][0].down, mean) > MEAN:
            return False
        shown = True
    return shown
