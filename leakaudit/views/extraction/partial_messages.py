"""What messages determine that hold only some coordinates of a vector."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TypeAlias

import torch
from torch import Tensor

from leakaudit.theory.relations import Expression, Knowledge, determined
from leakaudit.theory.relations.determine import eliminated
from leakaudit.theory.relations.estimate import Fetch

# Every coordinate obeys the same relations, but a sender may omit coordinates, different ones in
# every round (`Relations.omit`). The omitted part r of a message is zero on the coordinates that
# are sent and unknown elsewhere. A combination of gradients and omitted parts that is determined,
# such as g1 + g2 + 10 r2 - 10 r0, is therefore the combination g1 + g2 of gradients on those
# coordinates on which messages 0 and 2 are not zero. Every coordinate has rounds of its own, so a
# leak has a mask.
#
# The elimination of all other unknowns is done once, with the omitted parts as further targets. For
# each pair of messages that follow each other on some coordinate, the parts in between are then
# eliminated from the few rows that remain. A coordinate that was sent but is zero counts as not
# sent, which is on the safe side.


# A combination of gradients that is determined on some coordinates; the same with omitted parts,
# which is determined on all; and (c,) bool, the coordinates on which these parts are zero.
PartialCombination: TypeAlias = tuple[Expression, Expression, Tensor]


@dataclass(frozen=True, eq=False)
class _Omitted:
    """The omitted part of a message."""

    place: int
    sent: Tensor  # (c,) bool, the coordinates on which the message is not zero


def parts(knowledge: Knowledge, node: int, fetch: Fetch, most: int) -> list[PartialCombination]:
    """Return what the messages of a node determine of its gradients, coordinate by coordinate.

    Args:
        fetch: Returns the value (c,) of a known vector.
        most: Largest number of combinations; those with most coordinates are returned.
    """
    omitted = _omitted(knowledge, node, fetch)
    gradients = knowledge.gradients(node)
    if not omitted or not gradients:
        return []
    targets = {g.vector: g for g in gradients}
    home = knowledge.declared.vectors
    for part in omitted:
        targets[part.place] = Expression(home, {part.place: Fraction(1)})
    # In a round, the gradient comes before the message.
    order = sorted(targets, key=lambda k: (home[k].round, home[k].kind != "gradient", k))
    rows = determined(knowledge, [targets[k] for k in order], form="echelon")
    found: list[PartialCombination] = []
    for before, after in _neighbours(omitted, most):
        kept = {part.place for part in (before, after) if part is not None}
        others = {part.place for part in omitted} - kept
        for form in eliminated(rows, others, order):
            row = Expression(home, {k: v for k, v in form.terms.items() if k not in kept})
            # Combinations without the later message belong to an earlier pair.
            if row.terms and after.place in form.terms:
                found.append((row, form, _between(omitted, before, after)))
    return found


def _omitted(knowledge: Knowledge, node: int, fetch: Fetch) -> list[_Omitted]:
    declared = knowledge.declared
    found = []
    in_time = sorted(declared.omits.items(), key=lambda pair: declared.vectors[pair[0]].round)
    for place, message in in_time:
        mine = declared.vectors[place].owner == node
        if mine and place in knowledge.used and message in knowledge.known:
            found.append(_Omitted(place, fetch(declared.vectors[message]) != 0))
    return found


def _neighbours(omitted: Sequence[_Omitted], most: int) -> list[tuple[_Omitted | None, _Omitted]]:
    """Return pairs of messages that follow each other on at least one coordinate.

    The first message of a coordinate has no predecessor: what precedes it is the common start.
    """
    last = torch.full(omitted[0].sent.shape, -1, device=omitted[0].sent.device)
    counted: list[tuple[int, int, int]] = []
    for after, part in enumerate(omitted):
        before, number = last[part.sent].unique(return_counts=True)
        for k, n in zip(before.tolist(), number.tolist(), strict=True):
            counted.append((n, k, after))
        last[part.sent] = after
    chosen = sorted(counted, key=lambda pair: -pair[0])[:most]
    pairs: list[tuple[_Omitted | None, _Omitted]] = []
    for _, k, after in sorted(chosen, key=lambda pair: (pair[2], pair[1])):
        before_it = None
        if k >= 0:
            before_it = omitted[k]
        pairs.append((before_it, omitted[after]))
    return pairs


def _between(omitted: Sequence[_Omitted], before: _Omitted | None, after: _Omitted) -> Tensor:
    """Return the coordinates (c,) that both messages hold and none between them does."""
    seen = after.sent.clone()
    start = 0
    if before is not None:
        seen &= before.sent
        start = omitted.index(before) + 1
    for part in omitted[start : omitted.index(after)]:
        seen &= ~part.sent
    return seen
