"""What is sent, without a description: models, gradients, or the duals of PDMM."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from leakaudit.capture.tap.guessing.observed import ChannelVectors
from leakaudit.capture.tap.messages.description import Payload
from leakaudit.capture.tap.messages.streams import LogChannel, LoggedMessage

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
OPPOSED = -0.9  # cosine of what two messages add, below which they are duals
SAME = 1e-5  # relative difference of messages that are equal up to rounding; a choice
KEPT = 0.1  # change of the sum on an edge, squared, over that of both messages: less for duals
ROUNDINGS = 4  # tolerance between channels; one addition per message makes 1, the rest is a choice
MOVE = 0.5  # maximum distance, relative to its length, by which a model moves in a round

# Vectors of independent directions may be any of these, unless a recomputed gradient proves one.
DIRECTIONS = "gradients, differences of models, or models that move fast"

# What a program states that it sends -> the payload.
SENT: Mapping[str, Payload] = {"parameters": "weights", "gradients": "gradients"}
SOME = 6  # rounds to use: a choice that bounds the time
PAIRS = 60  # pairs of messages to compare: also a choice


@dataclass(frozen=True)
class PayloadGuess:
    """The payload of the messages."""

    payload: Payload
    # the certainty, in one word; the payload means nothing if it is unknown
    sure: Literal["sure", "likely", "unsure", "unknown"]
    why: str  # the evidence, in one line


def payload(seen: ChannelVectors) -> PayloadGuess:
    """Determine what is sent by comparing messages of different ranks and rounds."""
    if seen.hooked:
        zero = ", which are zero in the rounds that were compared" if _all_zero(seen) else ""
        return PayloadGuess("gradients", "sure", f"{seen.hooked} recorded gradients{zero}")
    if seen.sends in SENT:
        return PayloadGuess(SENT[seen.sends], "sure", f"the program sends its {seen.sends}")
    cosines = [cosine(*pair) for pair in _pairs(seen)]
    if not cosines:
        return _not_known("only one rank sends, so no comparison shows what is sent")
    if _all_zero(seen):
        return _not_known("all messages that were compared are zero")
    across = _median(cosines, 0.0)
    move = _median(list(_moves(seen)), 1.0)
    if not math.isfinite(across + move):
        return _not_known("messages that were compared contain NaN or infinity")
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
        met_pairs = (pair for ways in _edges(seen) for pair in zip(*ways, strict=True))
        met = _median([cosine(*pair) for pair in islice(met_pairs, PAIRS)], across)
        if met < ALIKE:
            why = f"{facts}, but those of two ranks that communicate have cosine {met:.3f}"
            return _not_known(f"{why}: {DIRECTIONS}")
        if _median([_apart(*pair) for pair in _pairs(seen)], 0.0) < SAME:
            return _not_known(f"{facts}: models that stay close, or gradients of equal data")
    if across > ALIKE and move < MOVE:
        return PayloadGuess("weights", "likely", f"{facts}: models that stay close")
    if across > ALIKE:
        return _not_known(f"{facts}: models that move fast, or gradients of similar data")
    return _not_known(f"{facts}: {DIRECTIONS}")


def _not_known(why: str) -> PayloadGuess:
    return PayloadGuess("gradients", "unknown", why)


def _all_zero(seen: ChannelVectors) -> bool:
    some = [message for stream in seen.own.values() for message in stream[:SOME]]
    return bool(some) and not any(bool(message.value.any()) for message in some)


def _duals(seen: ChannelVectors) -> PayloadGuess | None:
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


def _apart(one: Tensor, other: Tensor) -> float:
    return float((one - other).norm() / one.norm().clamp_min(1e-30))


def _pairs(seen: ChannelVectors) -> Iterator[tuple[Tensor, Tensor]]:
    own = list(seen.own.values())
    pairs: list[tuple[LoggedMessage, LoggedMessage]] = []
    for one in own:
        for other in own:
            if other is not one:
                pairs.extend(zip(one[:SOME], other[:SOME], strict=False))
    for one_message, other_message in pairs[:PAIRS]:
        yield one_message.value, other_message.value


def _edges(seen: ChannelVectors) -> Iterator[tuple[list[Tensor], list[Tensor]]]:
    """Yield the first messages that two ranks send to each other, one way and back."""
    for i, j in seen.graph.edges:
        there = seen.streams.get(LogChannel(i, j, "send"), [])
        back = seen.streams.get(LogChannel(j, i, "send"), [])
        count = min(len(there), len(back), SOME)
        yield [m.value for m in there[:count]], [m.value for m in back[:count]]


def _moves(seen: ChannelVectors) -> Iterator[float]:
    for stream in seen.own.values():
        for before, after in islice(pairwise(stream), SOME):
            yield _apart(before.value, after.value)


def _swaps(seen: ChannelVectors) -> Iterator[float]:
    """Yield the cosines of z_ji(t+1) - z_ij(t) and z_ij(t+1) - z_ji(t)."""
    # PDMM makes them 2 rho w_i and -2 rho w_j.
    for there, back in _edges(seen):
        for t in range(len(there) - 1):
            yield cosine(there[t + 1] - back[t], back[t + 1] - there[t])


def _kept(seen: ChannelVectors) -> Iterator[float]:
    """Yield the change of the sum of both messages of an edge, relative to the messages."""
    # Squares are summed over rounds: the first rounds, in which duals change most, count most.
    for there, back in _edges(seen):
        of_sum = 0.0
        of_both = 0.0
        for t in range(len(there) - 1):
            d_one = (there[t + 1] - there[t]).double()
            d_two = (back[t + 1] - back[t]).double()
            of_sum += float((d_one + d_two).square().sum())
            of_both += float(d_one.square().sum() + d_two.square().sum())
        if of_both > 0:
            yield of_sum / of_both


def _wires_agree(seen: ChannelVectors) -> Iterator[bool]:
    """Yield whether all channels of a node show the same 2 rho w_i, for nodes with several."""
    for i, near in enumerate(seen.graph.neighbours):
        out, back, rounds = seen.around(i)
        if len(near) < 2:
            continue
        for t in range(min(rounds, SOME) - 1):
            shown: list[Tensor] = []
            length = 0.0
            precision = 0.0
            for j in near:
                sent = out[j][t + 1].value
                got = back[j][t].value
                sign = 1 if i < j else -1  # A_ij
                shown.append(sign * (sent.double() - got.double()))
                length = max(length, float(sent.double().norm() + got.double().norm()))
                precision = max(precision, torch.finfo(sent.dtype).eps)
            apart = max(float((u - shown[0]).norm()) for u in shown[1:])
            yield apart <= ROUNDINGS * precision * length


def _median(values: Sequence[float], none: float) -> float:
    if not values:
        return none
    return float(np.median(values))


def cosine(a: Tensor, b: Tensor) -> float:
    """Return the cosine of the angle between two vectors."""
    a = a.double()
    b = b.double()
    return float(a @ b / (a.norm() * b.norm()).clamp_min(1e-300))
