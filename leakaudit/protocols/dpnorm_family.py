"""The dual variables of DP-Norm, and its Theorem 1: the noise required for (epsilon, delta).

The printed theorem differs from eq. (8), which concludes its proof. Both forms are implemented.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Literal, TypeAlias

import torch
from torch import Tensor

from leakaudit._util.bisection import crossing, geometric
from leakaudit.protocols.admm_family import NeighbourSums
from leakaudit.protocols.blocks import blocks
from leakaudit.traces.arcs import Arcs

if TYPE_CHECKING:
    from leakaudit.protocols.simulation import Simulation

Theorem: TypeAlias = Literal["eq8", "printed"]
# Range in which `guaranteed` searches for an epsilon; published claims lie within it.
LEAST = 1e-9
MOST = 1e9


def sensitivity(
    gamma: float, mu: float, inner: int, records: int, batch: int, lipschitz: float
) -> float:
    """Return Delta_2 = 2 c mu (K / d_i + 1 / B) G with c = 1 + 2 (gamma + 1) (Lemma 1).

    Args:
        batch: Records per mini-batch, B; 0 uses all.
    """
    return 2 * (1 + 2 * (gamma + 1)) * mu * (inner / records + 1 / (batch or records)) * lipschitz


def level(epsilon: float, delta: float, rounds: int, form: Theorem) -> float:
    """Return J in sigma >= J Delta_2.

    Eq. (8) is

        J = max{ sqrt(2 h R log(e + epsilon / (sqrt(2 h) delta))) / epsilon, sqrt(R / (2 epsilon)) }

    and the theorem as printed has epsilon under the first root.

    Args:
        form: ``eq8`` or ``printed``.
    """
    log = math.log(math.e + math.sqrt(2) * epsilon / ((1 + math.sqrt(1 + epsilon)) * delta))
    h = (1 + math.sqrt(1 + epsilon / log)) ** 2 / 4
    inside = 2 * h * rounds * math.log(math.e + epsilon / (math.sqrt(2 * h) * delta))
    if form == "eq8":
        first = math.sqrt(inside) / epsilon
    else:
        first = math.sqrt(inside / epsilon)
    return max(first, math.sqrt(rounds / (2 * epsilon)))


def guaranteed(ratio: float, delta: float, rounds: int, form: Theorem) -> float:
    """Return the epsilon, between `LEAST` and `MOST`, that requires a given noise `level`.

    Args:
        form: ``eq8`` or ``printed``.
    """

    def enough(epsilon: float) -> bool:
        return level(epsilon, delta, rounds, form) <= ratio

    return crossing(enough, LEAST, MOST, side="above", middle=geometric)


def sign(i: int, j: int) -> int:
    """Return A_{i|j}."""
    return 1 if i < j else -1


class Duals:
    """z and lambda of arcs, and per node (N, 1): eta, the degree and share = eta / gamma.

    If all nodes have the same gamma, training needs only two sums per node. With c = 2 / gamma and
    s = w + n,

        S_i = sum_j A_{i|j} z_{i|j}    becomes    (1 - c) T_i + c sum_j s_j
        T_i = sum_j A_{j|i} z_{j|i}    becomes    (1 - c) S_i + c E_i s_i

    In this case z is stored only for the recorded channels. It is stored for all arcs, (2 E, d), if
    the gammas differ, if channels send at different times of a round, if curves are recorded (they
    show the norm of the duals), or if nodes run in several processes.
    """

    def __init__(
        self,
        sim: Simulation,
        like: Tensor,
        constants: Sequence[tuple[Fraction, Fraction]],
        *,
        together: bool = True,
    ) -> None:
        """Start with z = 0.

        Args:
            together: Whether all channels send at the same time.
        """
        self.recorder = recorder = sim.recorder
        graph = sim.graph
        recorded = {arc for i, j in sim.wires for arc in ((i, j), (j, i))}
        gammas = {gamma for _, gamma in constants}
        alike = len(gammas) == 1 and not recorder.keep_curves and not recorder.partial and together
        self.sums = [torch.zeros_like(like), torch.zeros_like(like)] if alike else None
        self.around = NeighbourSums(graph, like)
        self.factor = 2 / float(min(gammas))
        arcs = [arc for arc in graph.arcs if arc in recorded or not alike]
        at = {arc: k for k, arc in enumerate(arcs)}
        self.back = torch.tensor([at[j, i] for i, j in at], dtype=torch.long, device=like.device)
        src, dst = torch.tensor(arcs, dtype=torch.long).reshape(-1, 2).T
        written = torch.tensor([arc in recorded for arc in arcs], dtype=torch.bool)
        self.arcs = Arcs(src, dst, torch.arange(len(arcs)), written)
        self.src = src.to(like.device)
        self.signs = torch.tensor([[sign(i, j)] for i, j in arcs]).reshape(-1, 1).to(like)
        exact = [[float(eta), float(eta / gamma)] for eta, gamma in constants]
        self.eta, self.share = torch.tensor(exact, dtype=torch.float64).to(like).T[:, :, None]
        self.degree = self.around.degree
        self.z = like.new_zeros(len(at), like.shape[1])
        self.dual = self.z
        if not together:
            self.dual = self.z.clone()

    def pull(self) -> Tensor:
        """Return sum_j A_{i|j} z_{i|j} of every node, (N, d)."""
        if self.sums is not None:
            return self.sums[0]
        total = self.z.new_zeros(len(self.degree), self.z.shape[1])
        return total.index_add_(0, self.src, self.signs * self.z)

    def send(
        self, t: int, name: str, shown: Tensor, which: slice | Tensor = slice(None)
    ) -> tuple[Tensor, Tensor]:
        """Send y on stored arcs, and return their lambda and what arrives.

        Args:
            shown: w + n, (N, d).
        """
        arcs = self.arcs
        if isinstance(which, Tensor):
            arcs = Arcs(
                arcs.src[which], arcs.dst[which], torch.arange(len(which)), arcs.kept[which]
            )
        src = self.src[which]
        z = self.z[which]
        dual = self.share[src] * (z - self.signs[which] * shown[src])
        y = 2 / self.eta[src] * dual - z
        back = self.back[which]
        return dual, self.recorder.exchange(t, name, y, arcs, instead=lambda: self.z[back])

    def exchange(self, t: int, shown: Tensor) -> None:
        """Send y on all arcs, and set every z to the y of the other end.

        Args:
            shown: w + n, (N, d).
        """
        self.dual, y = self.send(t, "y", shown)
        self.z = y[self.back]
        if self.sums is not None:
            s, back = self.sums
            c = self.factor
            for part in blocks(s):
                others = self.around.sum(shown[:, part])
                back[:, part].mul_(1 - c).add_(others, alpha=c)
                s[:, part].mul_(1 - c).addcmul_(self.degree, shown[:, part], value=c)
            self.sums.reverse()

    def exchange_some(self, t: int, shown: Tensor, which: Tensor) -> None:
        """Do the same on some arcs at once; the others keep z and lambda.

        Args:
            shown: w + n, (N, d).
        """
        self.dual[which], y = self.send(t, "y", shown, which)
        self.z[self.back[which]] = y
