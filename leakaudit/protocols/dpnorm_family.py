"""The dual variables of DP-Norm, and its Theorem 1: the noise that (epsilon, delta) asks for, in both of its forms."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Literal, TypeAlias

import torch
from torch import Tensor

from leakaudit._util.bisection import crossing, geometric
from leakaudit.protocols.admm_family import Around
from leakaudit.protocols.blocks import blocks
from leakaudit.trace import Graph
from leakaudit.traces.arcs import Arcs

if TYPE_CHECKING:
    from leakaudit.traces.recorder import Recorder

Theorem: TypeAlias = Literal["eq8", "printed"]


def sensitivity(
    gamma: float, mu: float, inner: int, records: int, batch: int, lipschitz: float
) -> float:
    """Return Delta_2 = 2 c mu (K / d_i + 1 / B) G with c = 1 + 2 (gamma + 1) (Lemma 1); batch 0 takes all records."""
    return 2 * (1 + 2 * (gamma + 1)) * mu * (inner / records + 1 / (batch or records)) * lipschitz


def level(epsilon: float, delta: float, rounds: int, form: Theorem) -> float:
    """Return J of sigma >= J Delta_2.

    J = max{ sqrt(2 h R log(e + epsilon / (sqrt(2 h) delta))) / epsilon, sqrt(R / (2 epsilon)) } is eq. (8); the theorem as printed
    has epsilon below the first root.
    """
    log = math.log(math.e + math.sqrt(2) * epsilon / ((1 + math.sqrt(1 + epsilon)) * delta))
    h = (1 + math.sqrt(1 + epsilon / log)) ** 2 / 4
    inside = 2 * h * rounds * math.log(math.e + epsilon / (math.sqrt(2 * h) * delta))
    first = math.sqrt(inside) / epsilon if form == "eq8" else math.sqrt(inside / epsilon)
    return max(first, math.sqrt(rounds / (2 * epsilon)))


def guaranteed(ratio: float, delta: float, rounds: int, form: Theorem) -> float:
    """Return the epsilon whose `level` is this ratio sigma / Delta_2; it lies between 1e-9 and 1e9."""

    def enough(epsilon: float) -> bool:
        return level(epsilon, delta, rounds, form) <= ratio

    return crossing(enough, 1e-9, 1e9, side="above", middle=geometric)


def sign(i: int, j: int) -> int:
    """Return A_{i|j}."""
    return 1 if i < j else -1


class Duals:
    """z_{i|j} of arcs, and per node (N, 1): eta, the degree and share = eta / gamma.

    Where all nodes have the same gamma, two sums per node suffice to train, with c = 2 / gamma and s = w + n:
    S_i = sum_j A_{i|j} z_{i|j} and T_i = sum_j A_{j|i} z_{j|i} become (1 - c) T_i + c sum_j s_j and (1 - c) S_i + c E_i s_i. Then z is
    kept on the recorded wires alone; else, where curves are kept, whose dual norm needs them, and where nodes live in several
    processes, on all arcs (2 E, d).
    """

    def __init__(
        self,
        graph: Graph,
        recorder: Recorder,
        wires: Iterable[tuple[int, int]],
        like: Tensor,
        constants: Sequence[tuple[Fraction, Fraction]],
    ) -> None:
        """Start with z = 0. constants: eta_i and gamma_i of every node."""
        self.recorder, both = recorder, {arc for i, j in wires for arc in ((i, j), (j, i))}
        gammas = {gamma for _, gamma in constants}
        alike = len(gammas) == 1 and not recorder.keep_curves and not recorder.partial
        self.sums = [torch.zeros_like(like), torch.zeros_like(like)] if alike else None
        self.around, self.factor = Around(graph, like), 2 / float(min(gammas))
        arcs = [arc for arc in graph.arcs if arc in both or not alike]
        at = {arc: k for k, arc in enumerate(arcs)}
        self.back = torch.tensor([at[j, i] for i, j in at], dtype=torch.long, device=like.device)
        src, dst = torch.tensor(arcs, dtype=torch.long).reshape(-1, 2).T
        self.arcs = Arcs(
            src,
            dst,
            torch.arange(len(arcs)),
            torch.tensor([arc in both for arc in arcs], dtype=torch.bool),
        )
        self.src = src.to(like.device)
        self.signs = torch.tensor([[sign(i, j)] for i, j in arcs]).reshape(-1, 1).to(like)
        exact = [[float(eta), float(eta / gamma)] for eta, gamma in constants]
        self.eta, self.share = torch.tensor(exact, dtype=torch.float64).to(like).T[:, :, None]
        self.degree = self.around.degree
        self.z = like.new_zeros(len(at), like.shape[1])

    def pull(self) -> Tensor:
        """Return sum_j A_{i|j} z_{i|j} of every node, (N, d)."""
        if self.sums is not None:
            return self.sums[0]
        return self.z.new_zeros(len(self.degree), self.z.shape[1]).index_add_(
            0, self.src, self.signs * self.z
        )

    def send(self, t: int, name: str, shown: Tensor) -> tuple[Tensor, Tensor]:
        """Send what the nodes tell of w + n, (N, d); return lambda, and the y that arrived, of the arcs that are kept."""
        dual = self.share[self.src] * (self.z - self.signs * shown[self.src])
        y = 2 / self.eta[self.src] * dual - self.z
        return dual, self.recorder.exchange(
            t, name, y, self.arcs, instead=lambda: self.z[self.back]
        )

    def exchange(self, t: int, shown: Tensor) -> Tensor:
        """Send, give every z the y of the other end, and return lambda of the arcs that are kept."""
        dual, y = self.send(t, "y", shown)
        self.z = y[self.back]
        if self.sums is not None:
            (s, back), c = self.sums, self.factor
            for part in blocks(s):
                back[:, part].mul_(1 - c).add_(self.around.sum(shown[:, part]), alpha=c)
                s[:, part].mul_(1 - c).addcmul_(self.degree, shown[:, part], value=c)
            self.sums.reverse()
        return dual
