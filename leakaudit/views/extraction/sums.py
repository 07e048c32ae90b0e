"""Sums of the gradients of several nodes, where those of a single node are not determined."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from typing import TypeAlias

from leakaudit.theory.relations import Expression, Knowledge, determined
from leakaudit.theory.relations.determine import basis

# Masks that cancel (secure aggregation), or an average that is seen without its parts, hide every
# single gradient. But the mean of the gradients of k nodes with b records each is the gradient of
# the mean loss over all k b records, so the sum is the gradient of one large batch.
#
# The relations of the whole network are used. A combination counts if it contains gradients of one
# round and treats all its nodes alike: the same coefficients, at the same model.

# A determined combination of gradients of one round, the same for several nodes: the gradients of
# each node, by node; the last one of a node has the weight 1.
NodeSum: TypeAlias = Mapping[int, Expression]


def mean(parts: NodeSum) -> Expression:
    """Return the mean over the nodes."""
    first, *rest = parts.values()
    return sum(rest, start=first) * Fraction(1, len(parts))


def sums(knowledge: Knowledge, nodes: Iterable[int]) -> list[NodeSum]:
    """Return the determined sums of gradients, those without noise first."""
    wanted: list[Expression] = []
    for node in nodes:
        wanted.extend(knowledge.gradients(node))
    home = knowledge.declared.vectors
    # Rows are shortest from first to last target, so the gradients of a round stand together.
    wanted.sort(key=lambda g: (home[g.vector].round, home[g.vector].owner or 0, g.vector))
    rows = determined(knowledge, wanted)
    if knowledge.noise:
        noisy = determined(knowledge, wanted, up_to_noise=True)
        # Of rows that follow from each other, the first ones are kept.
        rows = basis([*rows, *_without_shared_noise(knowledge, noisy), *noisy])
    parts = (_alike(knowledge, row) for row in rows)
    return [one for one in parts if len(one) > 1]


def shares_noise(knowledge: Knowledge) -> bool:
    """Return whether several nodes add the same unknown noise to what they send."""
    return any(len(owners) > 1 for owners in _adding(knowledge).values())


def _adding(knowledge: Knowledge) -> dict[int, set[int]]:
    """Return the senders of messages that contain an unknown noise vector, by its place."""
    declared = knowledge.declared
    adding: dict[int, set[int]] = {place: set() for place in knowledge.noise}
    for message, row in declared.sent.items():
        for place in declared.relations[row].terms.keys() & adding.keys():
            adding[place].add(declared.vectors[message].owner or 0)
    return adding


def _without_shared_noise(knowledge: Knowledge, rows: Sequence[Expression]) -> Iterator[Expression]:
    """Yield sums of rows of single nodes that add the same noise, which may cancel in them."""
    groups: list[set[int]] = []  # nodes that share noise, directly or through others
    for owners in _adding(knowledge).values():
        touched = [group for group in groups if group & owners]
        groups = [group for group in groups if not group & owners]
        groups.append(owners.union(*touched))

    by_round = defaultdict[tuple[int, ...], dict[int, Expression]](dict)
    for row in rows:
        for node, part in _alike(knowledge, row).items():
            by_round[tuple(row.rounds)][node] = part
    for parts in by_round.values():
        for group in groups:
            mine = [parts[node] for node in sorted(group & parts.keys())]
            if len(mine) > 1:
                yield sum(mine[1:], start=mine[0])


def _alike(knowledge: Knowledge, row: Expression) -> dict[int, Expression]:
    """Return the part of each node in a combination if all are alike; otherwise nothing."""
    if len(row.rounds) > 1:
        return {}
    vectors = knowledge.declared.vectors
    places = defaultdict[int, list[int]](list)
    for place in sorted(row.terms):
        places[vectors[place].owner or 0].append(place)
    shapes = set()
    parts = {}
    for node, mine in places.items():
        steps = tuple((vectors[k].name, vectors[k].index, row.terms[k]) for k in mine)
        start = knowledge.declared.points[mine[0]]
        shapes.add((steps, frozenset(start.terms.items())))
        part = Expression(vectors, {k: row.terms[k] for k in mine})
        parts[node] = part / row.terms[mine[-1]]
    return parts if len(shapes) == 1 else {}
