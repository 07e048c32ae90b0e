"""The dual variables z of PDMM: two sums a node that need no wires, or z on every wire, which moves by what arrives there."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Generator, Tensor

from leakaudit.protocols.admm_family import Around
from leakaudit.trace import Graph
from leakaudit.traces.arcs import Arcs

if TYPE_CHECKING:
    from leakaudit.traces.recorder import Recorder

ROWS = (
    1 << 16
)  # numbers of one direction of some wires that are worked on together, so that they stay in cache


@dataclass(frozen=True)
class Rule:
    """z_{j|i} <- z_{j|i} + theta ( z_{i|j} - z_{j|i} + 2 rho B w_i ), which travels i -> j, as the change or as z.

    cell: width of a fixed quantizer on what travels, 0 for none. z0: standard deviation of z^0. Stacked, z is (2, E, c): of i -> j,
    then of j -> i, i < j.
    """

    rho: float
    theta: float
    differential: bool
    cell: float
    z0: float

    @property
    def kind(self) -> str:
        """Name of what travels."""
        return "dz" if self.differential else "z"

    def drawn(
        self, graph: Graph, w: Tensor, generator: Generator
    ) -> Iterator[tuple[tuple[int, int], Tensor]]:
        """Yield z^0 (2, d) of every wire, whichever are recorded, so that recording less does not change the training."""
        for edge in graph.edges if self.z0 else ():
            yield (
                edge,
                torch.randn(2, w.shape[1], generator=generator, dtype=w.dtype)
                .mul_(self.z0)
                .to(w.device),
            )

    def change(self, z: Tensor, w: Tensor, ends: Tensor, out: Iterable[Tensor]) -> None:
        """Fill `out`, (k, c) i -> j and (k, c) j -> i, with the changes of z (2, k, c) as their senders reckon them; ends: (2, k)."""
        (i, j), (there, back) = ends, out
        own, other = (w[i], w[j]) if len(i) > 1 else (w[i[0]][None], w[j[0]][None])
        torch.sub(z[1], z[0], out=there)
        torch.neg(there, out=back)
        there.add_(own, alpha=2 * self.rho)
        back.sub_(other, alpha=2 * self.rho)
        for change, old in zip((there, back), z, strict=True):
            if self.theta != 1:
                change.mul_(self.theta)
            if self.cell and self.differential:
                change.div_(self.cell).round_().mul_(self.cell)
            elif self.cell:
                change.add_(old).div_(self.cell).round_().mul_(self.cell).sub_(old)


class Sums:
    """S_i = sum_j B z_{i|j} and T_i = sum_j B z_{j|i}, (N, d), whose cost does not grow with wires, and z on the recorded ones alone.

    They move by theta ( T - S - 2 rho sum_j w_j ) and theta ( S - T + 2 rho d_i w_i ).
    """

    def __init__(
        self,
        rule: Rule,
        graph: Graph,
        recorder: Recorder,
        w: Tensor,
        wires: Iterable[tuple[int, int]],
        generator: Generator,
    ) -> None:
        """Draw z^0 and send it; w (N, d)."""
        self.rule, self.recorder, self.around, self.columns = (
            rule,
            recorder,
            Around(graph, w),
            slice(*recorder.columns),
        )
        self.s, self.t = torch.zeros_like(w), torch.zeros_like(w)
        at = {wire: k for k, wire in enumerate(sorted(set(wires)))}
        self.ends = torch.tensor(list(at), dtype=torch.long).reshape(-1, 2).T
        self.z = w.new_zeros(2, len(at), self.columns.stop - self.columns.start)
        for (i, j), z in rule.drawn(graph, w, generator):
            there, back = z
            self.t[i] += there
            self.s[i] += back
            self.t[j] -= back
            self.s[j] -= there
            if (i, j) in at:
                self.z[:, at[i, j]] = z[:, self.columns]
        for out, z in zip(self._outgoing(0, "z0", secure=True), self.z, strict=False):
            out.copy_(z)

    def move(self, w: Tensor, part: slice) -> None:
        """Move S and T on some columns of w; for theta = 1 they change places, which `send` completes."""
        rule, w, s, t = self.rule, w[:, part], self.s[:, part], self.t[:, part]
        pull, others = 2 * rule.rho * self.around.degree, self.around.sum(w)
        if rule.theta == 1:
            t.sub_(others, alpha=2 * rule.rho)
            s.addcmul_(w, pull)
        else:
            change = (t - s).sub_(others, alpha=2 * rule.rho).mul_(rule.theta)
            t.lerp_(torch.addcmul(s, w, pull), rule.theta)
            s.add_(change)

    def send(self, t: int, w: Tensor) -> None:
        """Move z on the recorded wires, and write what travels straight into the recording where it is in memory."""
        rule, outs, w = self.rule, self._outgoing(t, self.rule.kind), w[:, self.columns]
        if rule.theta == 1:
            self.s, self.t = self.t, self.s
        direct = rule.differential and self.z.is_cpu
        for some in pieces(self.z):
            z, rows = self.z[:, some], [out[some] for out in outs]
            change = rows if direct else [torch.empty_like(one) for one in z]
            rule.change(z, w, self.ends[:, some].to(z.device), change)
            for old, new in zip(z, change, strict=True):
                old.add_(new)
            for row, sent in (
                () if direct else zip(rows, change if rule.differential else z, strict=True)
            ):
                row.copy_(sent)

    def _outgoing(self, t: int, kind: str, secure: bool = False) -> list[Tensor]:
        """Reserve a round's rows of the recording: those i -> j, those j -> i; none where no wire is recorded."""
        both = (self.ends, self.ends.flip(0)) if self.ends.numel() else ()
        return [self.recorder.send_many(t, src, dst, kind, secure=secure) for src, dst in both]


class Wires:
    """z (2, E, d) on all wires, and S (N, d) of it: for a quantizer, which acts on each, and for nodes in several processes."""

    def __init__(
        self,
        rule: Rule,
        graph: Graph,
        recorder: Recorder,
        w: Tensor,
        wires: Iterable[tuple[int, int]],
        generator: Generator,
    ) -> None:
        """Draw z^0 and send it; w (N, d)."""
        self.rule, self.recorder, self.ends, kept = (
            rule,
            recorder,
            torch.tensor(graph.edges, dtype=torch.long).reshape(-1, 2).T,
            set(wires),
        )
        (src, dst), some = (
            torch.cat((self.ends, self.ends.flip(0)), 1),
            torch.tensor([edge in kept for edge in graph.edges]),
        )
        self.arcs = Arcs(src, dst, torch.arange(len(src)), some.repeat(2))
        z = w.new_zeros(2, len(graph.edges), w.shape[1])
        for k, (_, drawn) in enumerate(rule.drawn(graph, w, generator)):
            z[:, k] = drawn
        self.z, self.s, self._change = (
            self._exchange(0, "z0", z, secure=True),
            torch.zeros_like(w),
            torch.empty_like(z),
        )
        for k, (i, j) in enumerate(graph.edges):
            self.s[i] += self.z[1, k]
            self.s[j] -= self.z[0, k]

    def move(self, w: Tensor, part: slice) -> None:
        """Do nothing: S moves when something arrives."""

    def send(self, t: int, w: Tensor) -> None:
        """Move z and S by what arrives; where nothing does, the receiver's z stays."""
        change, ends = self._change, self.ends.to(w.device)
        for some in pieces(self.z):
            self.rule.change(self.z[:, some], w, ends[:, some], change[:, some])
        if self.rule.differential:
            change = self._exchange(t, "dz", change, instead=lambda: torch.zeros_like(self.z))
            self.z.add_(change)
        else:
            came = self._exchange(t, "z", self.z + change, instead=lambda: self.z)
            change = (
                came - self.z if self.recorder.partial else change
            )  # of a node elsewhere only z is known
            self.z = came
        for some in pieces(self.z):
            i, j = ends[:, some]
            self.s.index_add_(0, i, change[1, some]).index_add_(0, j, change[0, some], alpha=-1)

    def _exchange(
        self,
        t: int,
        kind: str,
        z: Tensor,
        secure: bool = False,
        instead: Callable[[], Tensor] | None = None,
    ) -> Tensor:
        """Send z (2, E, d) and return what the receivers hold."""
        flat = None if instead is None else lambda: instead().flatten(0, 1)
        return self.recorder.exchange(t, kind, z.flatten(0, 1), self.arcs, secure, flat).view_as(z)


def pieces(z: Tensor) -> Iterator[slice]:
    """Yield the wires of z (2, E, c) in pieces that stay in cache."""
    together = max(1, ROWS // max(1, z.shape[2]))
    return (slice(at, at + together) for at in range(0, z.shape[1], together))
