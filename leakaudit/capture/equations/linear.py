"""Search for the combination of messages that leaves nothing, or only gradients."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor

from leakaudit.capture.equations.streams import SenderStreams, Term
from leakaudit.capture.fitting import min_rank
from leakaudit.capture.fitting.min_rank import Blocks
from leakaudit.core.errors import LeakauditError
from leakaudit.tasks.task import Task

FITTED = 4  # rounds to which coefficients are fitted, at most: a choice that bounds the time
HELD = 2  # rounds that are held back, at least
COMPARED = 16  # rounds that are compared: also a choice

# A coefficient: its term, its sender, and the nodes whose messages it multiplies.
_Column: TypeAlias = tuple[Term, int, tuple[int, ...]]
Form: TypeAlias = Literal["", "single", "momentum", "difference"]


@dataclass(frozen=True)
class Equation:
    """The equation of one kind of messages, with coefficients that are the same in all rounds."""

    streams: SenderStreams
    kind: str  # kind of the messages that it defines
    rank: int  # rank of what it leaves: 0 for nothing, otherwise the number of records of gradients
    terms: tuple[Term, ...]  # the earlier messages that it contains
    # (term, node, sender) -> coefficient. The sender of a sum over clients is -1.
    weights: Mapping[tuple[Term, int, int], Fraction] = field(default_factory=dict)
    rounds: tuple[int, ...] = ()
    # What it leaves, if it is proved. `single`: R_t = a g_t. `momentum`: R_t = b R_{t-1} + a g_t.
    # `difference`: R_t = a (g_t - g_{t-1}), so that b = -a.
    form: Form = ""
    point: Term | None = None  # the model at which g_t is evaluated; None for the combination
    rate: Fraction = Fraction(0)  # a
    other: Fraction = Fraction(0)  # b; 0 for a single gradient
    # node -> records (b, *shape) and labels (b,)
    records: Mapping[int, tuple[Tensor, Tensor]] = field(default_factory=dict)
    miss: float = 0.0  # largest difference from a recomputed gradient, relative to what is left

    @property
    def senders(self) -> tuple[int, ...]:
        """Nodes that send its messages."""
        return self.streams.senders(self.kind)

    def of(self, node: int, t: int) -> Tensor | None:
        """Return the combination of earlier messages (d,) in the equation of one node, or None."""
        some = self.streams.value(self.kind, node, t)
        if some is None:
            return None
        total = torch.zeros_like(some)
        for column in self.columns(node):
            weight = self.weights[column[0], node, column[1]]
            if weight == 0:
                continue
            value = self.multiplied(column, t)
            if value is None:
                return None
            total = total + float(weight) * value
        return total

    def columns(self, node: int) -> list[_Column]:
        """Return the unknown coefficients of a node."""
        found: list[_Column] = []
        for term in self.terms:
            nodes = self.streams.nodes_of(term, node)
            if term.who == "clients":
                found.append((term, -1, nodes))
            else:
                found.extend((term, sender, (sender,)) for sender in nodes)
        return found

    def multiplied(self, column: _Column, t: int, recorded: bool = False) -> Tensor | None:
        """Return what one coefficient multiplies in a round."""
        term, _, nodes = column
        total: Tensor | None = None
        for node in nodes:
            if recorded and t - term.lag not in self.streams.sent.get((term.kind, node), {}):
                return None
            value = self.streams.value(term.kind, node, t - term.lag)
            if value is None:
                return None
            total = value if total is None else total + value
        return total

    def tested(self, node: int) -> list[int]:
        """Return the rounds of a node in which all messages of the equation were recorded."""
        found: list[int] = []
        for t in sorted(self.streams.sent[self.kind, node]):
            some = (self.multiplied(one, t, recorded=True) for one in self.columns(node))
            if all(value is not None for value in some):
                found.append(t)
        return found[:COMPARED]

    def blocks(self, task: Task, node: int, rounds: list[int]) -> Blocks:
        """Return the blocks of a node's messages, and of what coefficients multiply."""
        targets: list[np.ndarray] = []
        rows: list[np.ndarray] = []
        for t in rounds:
            targets.append(block(task, self.streams.sent[self.kind, node][t]))
            values = (self.multiplied(one, t) for one in self.columns(node))
            some = [block(task, value) for value in values if value is not None]
            rows.append(np.stack(some) if some else np.zeros((0, *targets[0].shape)))
        return Blocks(np.stack(targets), np.stack(rows), self.streams.eps)

    def starts(self, node: int) -> list[np.ndarray]:
        """Return coefficients from which to search: averages, and the node's own message."""
        some = self.columns(node)
        count = len(some)
        if not count:
            return [np.zeros(0)]
        newest = np.array([float(term.lag <= 1) for term, _, _ in some])
        own = np.array([float(term.lag <= 1 and term.who == "own") for term, _, _ in some])
        found = [newest / newest.sum(), np.full(count, 1 / count)]
        if own.any():
            found.append(own)
        return found


def search(streams: SenderStreams, task: Task, kind: str, rank: int) -> Equation | None:
    """Return the equation with the fewest terms that leaves blocks of a rank, 0 for nothing."""
    for terms in candidates(streams, kind):
        if rank == 0 and not terms:
            continue
        found = _for_all(Equation(streams, kind, rank, terms), task)
        if found is not None:
            return found
    return None


def candidates(streams: SenderStreams, kind: str) -> Iterator[tuple[Term, ...]]:
    """Yield the terms that an equation may have, those with fewer coefficients first."""
    own = Term(kind, 1, "own")
    near = Term(kind, 1, "near")
    others = tuple(one for one in streams.kinds if one != kind)
    yield ()
    if streams.server is not None:
        yield from _of_star(streams, kind, others)
        return
    yield (own,)
    yield (own, near)
    yield (own, Term(kind, 2, "near"))
    yield (own, near, Term(kind, 2, "own"))
    yield (own, near, Term(kind, 2, "own"), Term(kind, 2, "near"))
    for other in others:
        for lag in (0, 1):
            yield (own, near, Term(other, lag, "own"))
        yield (own, near, Term(other, 1, "own"), Term(other, 1, "near"))


def _of_star(
    streams: SenderStreams, kind: str, others: tuple[str, ...]
) -> Iterator[tuple[Term, ...]]:
    own = Term(kind, 1, "own")
    if streams.senders(kind) == (streams.server,):
        for other in others:
            yield (Term(other, 1, "clients"),)
            yield (own, Term(other, 1, "clients"))
            yield (own, Term(kind, 2, "own"), Term(other, 1, "clients"))
        return
    for other in others:
        if streams.senders(other) == (streams.server,):
            yield (Term(other, 0, "server"),)
            yield (Term(other, 0, "server"), own)


def _for_all(equation: Equation, task: Task) -> Equation | None:
    weights: dict[tuple[Term, int, int], Fraction] = {}
    tested: set[int] = set()
    for node in equation.senders:
        rounds = equation.tested(node)
        if len(rounds) < 1 + HELD:
            return None
        blocks = equation.blocks(task, node, rounds)
        exact = _exact(blocks, equation.rank, equation.starts(node))
        if exact is None:
            return None
        tested.update(rounds)
        for (term, sender, _), value in zip(equation.columns(node), exact, strict=True):
            weights[term, node, sender] = value
    return replace(equation, weights=weights, rounds=tuple(sorted(tested)))


def block(task: Task, value: Tensor) -> np.ndarray:
    """Return the weights (H, n) of the first fully connected layer beside its bias (H, 1)."""
    if value.shape != (task.layout.size,):
        raise LeakauditError(
            f"expected vectors of {task.layout.size} parameters, got shape {tuple(value.shape)}; "
            "record all layers"
        )
    weight, bias = (task.layout.slices[name] for name in task.first_linear or () if name)
    b = value[bias].double().numpy()
    rows = value[weight].double().numpy().reshape(len(b), -1)
    joined: np.ndarray = np.concatenate([rows, b[:, None]], axis=1)
    return joined


def _exact(blocks: Blocks, rank: int, begin: list[np.ndarray]) -> list[Fraction] | None:
    """Return exact coefficients that hold in the rounds held back as well."""
    many = min(FITTED, len(blocks.target) - HELD)
    found = min_rank.fit(blocks.rounds(slice(0, many)), rank, begin)
    if found is None:
        return None
    values: list[Fraction] = []
    for value, width in zip(*found, strict=True):
        simple = min_rank.simplest(float(value), float(width))
        if simple is None:
            return None
        values.append(simple)
    c = np.array([float(value) for value in values])
    holds = min_rank.miss(blocks, c, rank) <= min_rank.FLOORS
    return values if holds and min_rank.is_clear(blocks, c, rank) else None
