"""Which messages of a recording its protocol does not send, and which it sends but are absent."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from leakaudit.core.trace import Messages, Trace
from leakaudit.theory.relations import Vector

Post: TypeAlias = tuple[str, int, int | None]  # kind, sender and receiver; None for everybody


# Recorded messages that the declaration does not contain; whether all of them were sent encrypted,
# and whether some were sent before the first round.
Undeclared: TypeAlias = tuple[Post, bool, bool]


def posts(vector: Vector) -> Iterator[tuple[Post, int]]:
    """Yield every receiver's copy of a message, with its round; nothing for another vector."""
    if vector.kind == "message":
        for dst in vector.dst or (None,):
            yield (vector.name, vector.owner or 0, dst), vector.round


def compared(
    trace: Trace, declared: Sequence[Vector], last: int
) -> tuple[tuple[Undeclared, ...], int | None]:
    """Compare a recording with the declared vectors; rounds after the last are like that one.

    Return the channels with undeclared messages, and the first round that lacks one, if any does.
    """
    ids: dict[Post, int] = {}
    early: list[int] = []
    for vector in declared:
        for post, t in posts(vector):
            early.append(ids.setdefault(post, len(ids)) * (trace.rounds + 1) + t)
    expected = _repeated(torch.tensor(early, dtype=torch.long), last, trace.rounds)
    sent = [torch.zeros(0, dtype=torch.long)]
    undeclared: dict[Post, Undeclared] = {}
    for table in trace.messages:
        keys = _keys(table, ids, trace.rounds)
        extra = ~torch.isin(keys, expected)
        chosen = extra & (table.round <= trace.rounds)
        for post, secure, first in _channels(table, chosen):
            _, all_secure, some_first = undeclared.get(post, (post, True, False))
            undeclared[post] = (post, secure and all_secure, first or some_first)
        sent.append(keys)
    arrived = torch.cat(sent)
    lost = expected[~torch.isin(expected, arrived)]
    if trace.provenance.get("wires") is not None:  # only some channels were recorded
        used = (arrived // (trace.rounds + 1)).unique()
        lost = lost[torch.isin(lost // (trace.rounds + 1), used)]
    absent = None
    if len(lost):
        absent = int((lost % (trace.rounds + 1)).min())
    return tuple(undeclared.values()), absent


def _repeated(keys: Tensor, last: int, rounds: int) -> Tensor:
    of_last = keys[keys % (rounds + 1) == last]
    more = torch.arange(1, rounds - last + 1)
    return torch.cat([keys, (of_last[:, None] + more).flatten()])


def _keys(table: Messages, ids: dict[Post, int], rounds: int) -> Tensor:
    ends, inverse = torch.stack((table.kind, table.src, table.dst), 1).unique(
        dim=0, return_inverse=True
    )
    numbers = []
    for kind, src, dst in ends.tolist():
        post: Post = (table.kinds[kind], src, None if dst < 0 else dst)
        board: Post = (table.kinds[kind], src, None)
        if post not in ids and board in ids:
            post = board
        numbers.append(ids.setdefault(post, len(ids)))
    return torch.tensor(numbers, dtype=torch.long)[inverse] * (rounds + 1) + table.round


def _channels(table: Messages, chosen: Tensor) -> Iterator[Undeclared]:
    columns = (table.kind, table.src, table.dst, table.secure, table.round == 0)
    for kind, src, dst, secure, early in torch.stack(columns, 1)[chosen].unique(dim=0).tolist():
        to = None if dst < 0 else dst
        yield (table.kinds[kind], src, to), bool(secure), bool(early)
