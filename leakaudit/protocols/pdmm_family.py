"""The dual variables z of PDMM, in two implementations.

`Sums` trains with two sums per node, and stores z only for the recorded channels. `EdgeDuals`
stores z for every channel and updates it with the messages received, as quantizers and nodes in
other processes require.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from leakaudit.protocols.admm_family import NeighbourSums
from leakaudit.traces.arcs import Arcs

if TYPE_CHECKING:
    from leakaudit.protocols.simulation import Simulation

# Numbers of one direction of several channels that are processed together, 256 KiB in float32, so
# that both directions and their changes stay in a second-level cache. Chosen for common processors.
ROWS = 1 << 16


@dataclass(frozen=True)
class DualRule:
    """z_{j|i} <- z_{j|i} + theta ( z_{i|j} - z_{j|i} + 2 rho B w_i ), which i sends to j.

    Stacked, z is (2, E, c): of the messages i -> j, then of those j -> i, for the edges (i, j)
    with i < j, where B = 1 for i and -1 for j.
    """

    rho: float  # penalty of disagreement
    theta: float  # averaging constant, 0 < theta <= 1
    differential: bool  # whether the change of z is sent instead of z
    cell: float  # cell width of a fixed quantizer of the messages; 0 for none
    z0: float  # standard deviation of z^0. If it is 0, z^0 is public and not sent.

    @property
    def kind(self) -> str:
        """Kind of the messages."""
        return "dz" if self.differential else "z"

    def drawn(self, sim: Simulation, w: Tensor) -> Iterator[tuple[tuple[int, int], Tensor]]:
        """Draw z^0 of every edge, so that recording fewer edges does not change the training."""
        if not self.z0:
            return
        for edge in sim.graph.edges:
            z = torch.randn(2, w.shape[1], generator=sim.generator, dtype=w.dtype)
            yield edge, z.mul_(self.z0).to(w.device)

    def change(self, z: Tensor, w: Tensor, ends: Tensor, out: Iterable[Tensor]) -> None:
        """Compute the changes of z, as their senders do.

        Args:
            z: The duals of k edges, (2, k, c).
            w: The models, (N, c).
            ends: The nodes i and j of the edges, (2, k).
            out: Receives the changes i -> j and j -> i, (k, c) each.
        """
        i, j = ends
        there, back = out
        if len(i) > 1:
            own = w[i]
            other = w[j]
        else:  # a view, not a copy
            own = w[i[0]][None]
            other = w[j[0]][None]
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
    """S_i = sum_j B z_{i|j} and T_i = sum_j B z_{j|i}, (N, d), and z on the recorded channels.

    The sums change by theta ( T - S - 2 rho sum_j w_j ) and theta ( S - T + 2 rho d_i w_i ).
    """

    def __init__(self, rule: DualRule, sim: Simulation, w: Tensor) -> None:
        """Draw z^0 and send it unless it is zero, for the models w (N, d)."""
        self.rule = rule
        self.recorder = sim.recorder
        self.around = NeighbourSums(sim.graph, w)
        self.kept = sim.recorder.kept
        self.s = torch.zeros_like(w)
        self.t = torch.zeros_like(w)
        at = {wire: k for k, wire in enumerate(sorted(set(sim.wires)))}
        self.ends = torch.tensor(list(at), dtype=torch.long).reshape(-1, 2).T
        # The rule is linear, so a sketch of z follows it, with sketches of the models.
        self.z = w.new_zeros(2, len(at), self.kept.linear)
        for (i, j), z in rule.drawn(sim, w):
            there, back = z
            self.t[i] += there
            self.s[i] += back
            self.t[j] -= back
            self.s[j] -= there
            if (i, j) in at:
                self.z[:, at[i, j]] = self.kept.project(z)
        if rule.z0:
            for out, z in zip(self._outgoing(0, "z0", secure=True), self.z, strict=False):
                out.copy_(z)

    def move(self, w: Tensor, part: slice) -> None:
        """Update S and T on some columns of the models w, (N, d).

        For theta = 1 they are swapped, which `send` completes.
        """
        rule = self.rule
        w = w[:, part]
        s = self.s[:, part]
        t = self.t[:, part]
        pull = 2 * rule.rho * self.around.degree
        others = self.around.sum(w)
        if rule.theta == 1:
            t.sub_(others, alpha=2 * rule.rho)
            s.addcmul_(w, pull)
        else:
            change = (t - s).sub_(others, alpha=2 * rule.rho).mul_(rule.theta)
            t.lerp_(torch.addcmul(s, w, pull), rule.theta)
            s.add_(change)

    def send(self, t: int, w: Tensor) -> None:
        """Update z on the recorded channels and send it in round t, for the models w, (N, d).

        Messages are written directly into the recording if possible.
        """
        rule = self.rule
        outs = self._outgoing(t, rule.kind)
        w = self.kept.project(w)
        if rule.theta == 1:
            self.s, self.t = self.t, self.s
        direct = rule.differential and self.z.is_cpu
        for some in pieces(self.z):
            z = self.z[:, some]
            rows = [out[some] for out in outs]
            change = rows if direct else [torch.empty_like(one) for one in z]
            rule.change(z, w, self.ends[:, some].to(z.device), change)
            for old, new in zip(z, change, strict=True):
                old.add_(new)
            if direct:
                continue
            sent = change if rule.differential else z
            for row, values in zip(rows, sent, strict=True):
                row.copy_(values)

    def _outgoing(self, t: int, kind: str, secure: bool = False) -> list[Tensor]:
        """Reserve a round's rows of the recording: messages i -> j, then messages j -> i."""
        if not self.ends.numel():
            return []
        found = []
        for src, dst in (self.ends, self.ends.flip(0)):
            out = self.recorder.send_many(t, src, dst, kind, secure=secure)
            out[:, self.kept.linear :] = torch.nan  # whole messages, and so norms, are not computed
            found.append(out[:, : self.kept.linear])
        return found


class EdgeDuals:
    """z (2, E, d) on all edges, and its sums S (N, d)."""

    def __init__(self, rule: DualRule, sim: Simulation, w: Tensor) -> None:
        """Draw z^0 and send it unless it is zero, for the models w (N, d)."""
        self.rule = rule
        self.recorder = sim.recorder
        self.ends = torch.tensor(sim.graph.edges, dtype=torch.long).reshape(-1, 2).T
        graph = sim.graph
        kept = set(sim.wires)
        recorded = torch.tensor([edge in kept for edge in graph.edges])
        src, dst = torch.cat((self.ends, self.ends.flip(0)), 1)
        self.arcs = Arcs(src, dst, torch.arange(len(src)), recorded.repeat(2))
        z = w.new_zeros(2, len(graph.edges), w.shape[1])
        for k, (_, drawn) in enumerate(rule.drawn(sim, w)):
            z[:, k] = drawn
        self.z = z
        if rule.z0:
            self.z = self._exchange(0, "z0", z, secure=True)
        self.s = torch.zeros_like(w)
        self._change = torch.empty_like(z)
        for k, (i, j) in enumerate(graph.edges):
            self.s[i] += self.z[1, k]
            self.s[j] -= self.z[0, k]

    def move(self, w: Tensor, part: slice) -> None:
        """Do nothing: S changes when messages are received."""

    def send(self, t: int, w: Tensor) -> None:
        """Send in round t for the models w, (N, d), and update z and S with the received messages.

        If no message is received, the receiver's z does not change.
        """
        change = self._change
        ends = self.ends.to(w.device)
        for some in pieces(self.z):
            self.rule.change(self.z[:, some], w, ends[:, some], change[:, some])
        if self.rule.differential:
            change = self._exchange(t, "dz", change, instead=lambda: torch.zeros_like(self.z))
            self.z.add_(change)
        else:
            came = self._exchange(t, "z", self.z + change, instead=lambda: self.z)
            if self.recorder.partial:  # of a node in another process only z is known
                change = came - self.z
            self.z = came
        for some in pieces(self.z):
            i, j = ends[:, some]
            self.s.index_add_(0, i, change[1, some])
            self.s.index_add_(0, j, change[0, some], alpha=-1)

    def _exchange(
        self,
        t: int,
        kind: str,
        z: Tensor,
        secure: bool = False,
        instead: Callable[[], Tensor] | None = None,
    ) -> Tensor:
        """Send z (2, E, d) and return the receivers' copies."""
        flat = None if instead is None else lambda: instead().flatten(0, 1)
        return self.recorder.exchange(t, kind, z.flatten(0, 1), self.arcs, secure, flat).view_as(z)


def pieces(z: Tensor) -> Iterator[slice]:
    """Yield slices of the edges that fit into the cache.

    Args:
        z: The duals, (2, E, c).
    """
    together = max(1, ROWS // max(1, z.shape[2]))
    return (slice(at, at + together) for at in range(0, z.shape[1], together))
