"""What the wires of one PDMM node determine, by direct formulas for any theta.

With out = sum_j B x_{j|i} (sent) and in = sum_j B x_{i|j} (received), x = z or its change Dz, d neighbours:

    w^{t+1}  = ( out^{t+1} - (1-theta) out^t - theta in^t ) / (2 rho theta d)        its step Dw^{t+1} from Dz, t >= 1
    h^t      = -( a w^{t+1} - b w^t ) - gamma S^t                                    S = in of z
    h^t - h^{t+1} = a Dw^{t+2} - b Dw^{t+1} + gamma DS^{t+1}                         needs neither w nor convergence

h^t is the gradient at w^t, and at w^{t+1} for exact updates. It corrects the two-step identities (2.13), (4.3), (4.22)
of Yu 2023, which hold for theta = 1 alone and need the converged model.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from leakaudit.adversary import View
from leakaudit.errors import NotDetermined
from leakaudit.leak import GradientLeak


def coefficients(view: View, degree: int) -> tuple[float, float, float]:
    """Return a, b, gamma of the local update that the trace declares.

    k_max steps sum their gradients with weights q^{k_max-1-s}, q = 1 - alpha rho d.
    """
    rho = float(view.constant("rho"))
    if view.constant("update") == "exact":
        return rho * degree, 0.0, 1.0
    if view.constant("update") == "quadratic":
        mu = float(view.constant("mu"))
        return mu + rho * degree, mu, 1.0
    alpha, k_max = float(view.constant("alpha")), int(view.constant("k_max"))
    q = 1 - alpha * rho * degree
    return 1 / alpha, q**k_max / alpha, sum(q**s for s in range(k_max))


class _Heard:
    """Sums over the wires of one node in float64: `out` and `inn` (R, c) of rounds first, first + 1, ..."""

    def __init__(self, view: View, node: int, rounds: int) -> None:
        self.view, self.node = view, node
        self.kind = "dz" if view.constant("differential") else "z"
        self.neighbours = view.graph.neighbours[node]
        self.first = max(view.rounds.start, 1)
        self.last = min(view.rounds.stop - 1, self.first + rounds + 1)
        self._need_all_wires()
        span = range(self.first, self.last + 1)
        self.out = torch.stack([self._sum(t, self.kind, sent=True) for t in span])
        self.inn = torch.stack([self._sum(t, self.kind, sent=False) for t in span])
        cell, unit = float(view.constant("quantize")), 0.3 * torch.finfo(view.dtype).eps
        largest = float(self.out.square().mean(1).max()) / len(self.neighbours)
        self.rounding = cell / 12**0.5 if cell else unit * largest**0.5
        self.absolute = self._start()

    def _need_all_wires(self) -> None:
        if self.last - self.first < 2:
            raise NotDetermined(f"{max(0, self.last - self.first + 1)} rounds are heard, the formulas need three in a row")
        deaf = [
            j for j in self.neighbours if not (self._has(self.first, self.kind, j, True) and self._has(self.first, self.kind, j, False))
        ]
        if deaf:
            raise NotDetermined(f"its wires to {deaf} are not heard in both directions; the direct formulas need every wire of the node")

    def _has(self, t: int, kind: str, j: int, sent: bool) -> bool:
        return self.view.has(t, self.node, j, kind) if sent else self.view.has(t, j, self.node, kind)

    def _one(self, t: int, kind: str, j: int, sent: bool) -> Tensor:
        return (self.view.message(t, self.node, j, kind) if sent else self.view.message(t, j, self.node, kind)).double()

    def _sum(self, t: int, kind: str, sent: bool) -> Tensor:
        total = torch.zeros(self.view.columns[1] - self.view.columns[0], dtype=torch.float64)
        for j in self.neighbours:
            total.add_(self._one(t, kind, j, sent), alpha=1 if self.node < j else -1)
        return total

    def _z0(self, j: int) -> tuple[Tensor, Tensor] | None:
        """Start of one wire, sent and received, where this adversary knows it."""
        if self.first != 1:
            return None
        if self.view.knows("z0") and self.view.constant("z0") == 0:
            nothing = torch.zeros(self.out.shape[1], dtype=torch.float64)
            return nothing, nothing
        if self._has(0, "z0", j, True) and self._has(0, "z0", j, False):
            return self._one(0, "z0", j, True), self._one(0, "z0", j, False)
        return None

    def _start(self) -> bool:
        """Put z^0 in front where all of it is known, and make `out` and `inn` sums of z; whether they are."""
        known = [self._z0(j) for j in self.neighbours]
        if all(k is not None for k in known):
            sign = [1 if self.node < j else -1 for j in self.neighbours]
            sent, received = (sum(s * k[side] for s, k in zip(sign, known, strict=True) if k) for side in (0, 1))
            self.out, self.inn = (torch.cat([torch.as_tensor(z)[None], rest]) for z, rest in ((sent, self.out), (received, self.inn)))
            self.first = 0
            if self.kind == "dz":
                self.out, self.inn = self.out.cumsum(0), self.inn.cumsum(0)
            return True
        return self.kind == "z"

    def models(self, start: int, count: int) -> Tensor | None:
        """Models w^start, ... of the node (count, d) from one wire whose z^0 is known (a curious neighbour's), else None."""
        view, j = self.view, next((j for j in self.neighbours if self._z0(j) is not None), None)
        if j is None or view.columns != (0, view.layout.size) or (start == 0 and not view.knows("w0")):
            return None
        rho, theta, sign = float(view.constant("rho")), float(view.constant("theta")), 1 if self.node < j else -1
        there, back = (z.clone() for z in self._z0(j) or ())
        w = [view.public("w0").double()] if start == 0 else []
        for t in range(1, start + count):
            change = self._one(t, "dz", j, True)
            if t >= start:
                w.append((change / theta + there - back) * (sign / (2 * rho)))
            there += change
            back += self._one(t, "dz", j, False)
        return torch.stack(w)


def pdmm_leaks(view: View, node: int, rounds: int) -> list[GradientLeak]:
    """Return one leak of a node: gradients where all its z are known, else one-step differences, of `rounds` rounds at most.

    Raises NotDetermined where a wire of the node or three rounds in a row are missing.
    """
    heard, degree = _Heard(view, node, rounds), view.graph.degree(node)
    a, b, gamma = coefficients(view, degree)
    rho, theta = float(view.constant("rho")), float(view.constant("theta"))
    w = (heard.out[1:] - (1 - theta) * heard.out[:-1] - theta * heard.inn[:-1]) / (2 * rho * theta * degree)  # w, or its steps
    known = _gradients(heard, w, a, b, gamma) if heard.absolute else _differences(heard, w, a, b, gamma)
    count = len(known.value)
    noise = _noise(
        count, known.band, heard.rounding / (2 * rho * theta) * (2 / degree) ** 0.5, gamma * heard.rounding * (2 * degree) ** 0.5
    )
    taken = known.start + int(view.constant("update") == "exact")  # the round in which the first gradient is taken
    one = torch.eye(count, count if heard.absolute else count + 1, dtype=torch.float64)
    models = known.models if heard.absolute else heard.models(taken, count + 1)
    return [
        GradientLeak(
            node=node,
            rounds=torch.arange(one.shape[1]) + taken,
            combination=one if heard.absolute else one - one.roll(1, dims=1),
            value=known.value,
            std=noise.norm(dim=1),
            columns=view.columns,
            noise=noise,
            theta=models if view.columns == (0, view.layout.size) else None,
            batch=view.constant("samples") if view.knows("samples") else None,
            inner=int(view.constant("k_max")) if view.constant("update") == "gradient" else 1,
            adversary=str(view.adversary),
            formula=known.formula,
        )
    ]


class _Known(NamedTuple):
    """Rows of a leak: values (m, c) of rounds start, start + 1, ..., what an error of w adds to them, models where known."""

    start: int
    value: Tensor
    band: tuple[float, ...]
    formula: str
    models: Tensor | None = None


def _gradients(heard: _Heard, w: Tensor, a: float, b: float, gamma: float) -> _Known:
    """h^t = b w^t - a w^{t+1} - gamma S^t, from w (R, c) of rounds first + 1, ..., and from w^0 where it is known."""
    view, start = heard.view, heard.first if b == 0 else heard.first + 1
    if b and heard.first == 0 and view.knows("w0"):
        w, start = torch.cat([view.public("w0").to(w)[None, slice(*view.columns)], w]), 0
    ahead, behind = (w[1:], b * w[:-1]) if b else (w, torch.zeros(()))
    value = behind - a * ahead - gamma * heard.inn[start - heard.first :][: len(ahead)]
    return _Known(start, value, (b, -a) if b else (-a,), "g(t) = b w(t) - a w(t+1) - gamma S(t)", w[: len(value)])


def _differences(heard: _Heard, w: Tensor, a: float, b: float, gamma: float) -> _Known:
    """h^t - h^{t+1} = a Dw^{t+2} - b Dw^{t+1} + gamma DS^{t+1}, from steps w (R, c) of rounds first + 1, ..."""
    ahead, behind = (w[1:], b * w[:-1]) if b else (w, torch.zeros(()))
    value = a * ahead - behind + gamma * heard.inn[1 if b else 0 :][: len(ahead)]
    formula = "g(t) - g(t+1) = a Dw(t+2) - b Dw(t+1) + gamma DS(t+1)"
    return _Known(heard.first if b else heard.first - 1, value, (b, -a - b, a) if b else (-a, a), formula)


def _noise(rows: int, band: tuple[float, ...], of_w: float, of_s: float) -> Tensor:
    """Return the error of each row (rows, q): w has a fresh one every round, which neighbouring rows share, and so has S."""
    shifted = [of_w * c * torch.eye(rows, rows + len(band) - 1, dtype=torch.float64).roll(k, dims=1) for k, c in enumerate(band)]
    return torch.cat([torch.stack(shifted).sum(0), of_s * torch.eye(rows, dtype=torch.float64)], dim=1)
