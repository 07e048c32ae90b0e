"""The messages of PDMM around one node: changes of the duals on its channels."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from leakaudit.core.adversary import View

# Node i sends z_{j|i} to its neighbour j, or its change D_ij. With B = 1 if i < j and otherwise -1,
#
#     D_ij' = (1 - theta) D_ij + theta D_ji + 2 rho theta B (w' - w).
#
# If only some nodes take part in a round, the same holds from one turn of node i to the next, with
# the sum of what it received in between as D_ji.

Array = NDArray[np.float64]


class DualMessages:
    """What an adversary observes of them.

    Attributes:
        kind: "dz" if changes are sent, "z" if the duals are; empty if neither is observed.
        encrypted_start: Whether z^0 is sent, encrypted; that it is sent is visible.
        rounds: The observed rounds whose changes are known.
    """

    def __init__(self, view: View) -> None:
        self.view = view
        sent = {kind for _, _, kind in view.channels}
        self.kind = next((kind for kind in ("dz", "z") if kind in sent), "")
        self.encrypted_start = "z0" in view.kinds
        first = max(1, view.rounds.start)
        if self.kind == "z" and (first > 1 or self.encrypted_start):
            first += 1  # the change of the first message is not known
        self.rounds = range(first, max(first, view.rounds.stop))
        self._sent: dict[tuple[int, int], list[int]] = {}

    def heard(self, node: int, rounds: range) -> bool:
        """Return whether all changes on the channels of a node are known in some rounds."""
        first = rounds.start
        if self.kind == "z" and not (first == 1 and not self.encrypted_start):
            first -= 1
        near = self.view.graph.neighbours[node]
        for src, dst in ((a, b) for j in near for a, b in ((node, j), (j, node))):
            if not all(self.view.has(t, src, dst, self.kind) for t in range(first, rounds.stop)):
                return False
        return bool(near)

    def starts(self, node: int) -> bool:
        """Return whether z^0 is known on all channels of a node."""
        near = self.view.graph.neighbours[node]
        return not self.encrypted_start or all(
            self.view.has(0, a, b, "z0") for j in near for a, b in ((node, j), (j, node))
        )

    def start(self, src: int, dst: int, columns: Tensor | None = None) -> Array:
        """Return z^0 (c,) of one channel, if `starts` of one of its nodes."""
        if self.encrypted_start:
            return self._one(0, src, dst, "z0", columns)
        return np.zeros(self._width(columns))

    def change(self, t: int, src: int, dst: int, columns: Tensor | None = None) -> Array:
        """Return the change (c,) of z that one message of a round tells."""
        now = self._one(t, src, dst, self.kind, columns)
        if self.kind == "dz" or t == 1:
            return now
        return now - self._one(t - 1, src, dst, self.kind, columns)

    def whole(self, t: int, src: int, dst: int) -> Array:
        """Return one message (c,) itself."""
        return self._one(t, src, dst, self.kind, None)

    def sent(self, src: int, dst: int) -> list[int]:
        """Return the observed rounds in which a channel carried a message."""
        if (src, dst) not in self._sent:
            rounds = range(max(1, self.view.rounds.start), self.view.rounds.stop)
            found = [t for t in rounds if self.view.has(t, src, dst, self.kind)]
            self._sent[src, dst] = found
        return self._sent[src, dst]

    def turns(self, node: int) -> list[int]:
        """Return the rounds in which a node sent, from which on all changes around it are known.

        Empty if one of its channels is not observed.
        """
        near = self.view.graph.neighbours[node]
        mine = [self.sent(node, j) for j in near]
        theirs = [self.sent(j, node) for j in near]
        if not near or not all([*mine, *theirs]) or any(one != mine[0] for one in mine):
            return []
        known = 0
        if self.kind == "z" and (self.encrypted_start or self.view.rounds.start > 1):
            known = 1 + max(one[0] for one in (*mine, *theirs))
        return [t for t in mine[0] if t >= known]

    def around(self, node: int, most: int, columns: Tensor | None = None) -> Around:
        """Return the changes on the channels of a node, between at most so many of its turns."""
        near = self.view.graph.neighbours[node]
        every = self.turns(node)
        turns = every[:most]
        stop = every[most] if len(every) > most else self.view.rounds.stop
        ends = [*turns[1:], stop]
        sent = np.stack([self._each(node, j, turns, [t + 1 for t in turns], columns) for j in near])
        came = np.stack([self._each(j, node, turns, ends, columns) for j in near])
        sign = np.array([1.0 if node < j else -1.0 for j in near])[:, None, None]
        start = None
        if self.view.rounds.start <= 1 and every == self.sent(node, near[0]) and self.starts(node):
            there = [self.start(node, j, columns) for j in near]
            here = [
                self.start(j, node, columns) + self._each(j, node, [1], turns[:1], columns)[0]
                for j in near
            ]
            start = np.stack([there, here])
        return Around(node, sign, sent, came, start)

    def _each(
        self, src: int, dst: int, begins: list[int], ends: list[int], columns: Tensor | None
    ) -> Array:
        """Return what one channel changes in each of some spans of rounds, (spans, c)."""
        times = self.sent(src, dst)
        found = np.zeros((len(begins), self._width(columns)))
        for k, (begin, end) in enumerate(zip(begins, ends, strict=True)):
            inside = [t for t in times if begin <= t < end]
            for t in inside if self.kind == "dz" else inside[-1:]:
                found[k] += self._one(t, src, dst, self.kind, columns)
            earlier = [t for t in times if t < begin]
            if self.kind == "z" and inside and earlier:
                found[k] -= self._one(earlier[-1], src, dst, self.kind, columns)
        return found

    def _one(self, t: int, src: int, dst: int, kind: str, columns: Tensor | None) -> Array:
        if columns is None:
            return self.view.message(t, src, dst, kind).double().numpy()
        return self.view.some(t, src, dst, kind, columns).double().numpy()

    def _width(self, columns: Tensor | None) -> int:
        start, stop = self.view.columns
        return stop - start if columns is None else len(columns)


@dataclass(frozen=True)
class Around:
    """The changes of the duals around one node from turn to turn, on some columns."""

    node: int
    sign: Array  # (d, 1, 1) B of the node towards each neighbour
    sent: Array  # (d, T, c) changes of z_{j|i}
    came: Array  # (d, T, c) changes of z_{i|j}
    # z_{j|i} and z_{i|j} before the first of these turns, (2, d, c), if it is the node's first of
    # all and they are known
    start: Array | None

    def steps(self, theta: float) -> Array:
        """Return the changes of P, (T - 1, c), from the second round on."""
        change = self.sent[:, 1:] - self.sent[:, :-1]
        change = change - theta * (self.came[:, :-1] - self.sent[:, :-1])
        steps: Array = (self.sign * change).mean(0) / (2 * theta)
        return steps

    @property
    def size(self) -> float:
        """The largest root mean square of a message."""
        both = np.concatenate([self.sent, self.came])
        return float(np.sqrt(np.square(both).mean(-1).max()))

    @property
    def degree(self) -> int:
        """Number d of neighbours."""
        return len(self.sign)

    def update(self, theta: float, q: float | None) -> tuple[Array, list[Array]]:
        """Return the local update after = A before - B (pull + gradient), in changes of P and S.

        That is a target and terms, (T - 2, c) each: what their difference leaves is a multiple of
        gradients. The coefficients are A, for a known q with B = (1 - A) / (d + q), and otherwise A
        and B.
        """
        steps = self.steps(theta)
        pull = (self.sign * self.came).sum(0)[1:-1]
        if q is None:
            return steps[1:], [steps[:-1], -pull]
        pull = pull / (self.degree + q)
        return steps[1:] + pull, [steps[:-1] + pull]

    def rounding(self, theta: float, eps: float) -> float:
        """Return the rounding of an entry of `update`.

        Args:
            eps: Distance from 1 to the next number in the format of the messages.
        """
        return eps * self.size * (2 / theta + self.degree)
