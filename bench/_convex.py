"""Simultaneous trainings of softmax regression on a ring, for replays of DP-Norm's Figures 2 and 4.

Models W are (N, C, V, p): nodes, classes, trainings, features. Two matrix products per node and
step serve all V trainings. Logits are relative to class 0, with a gradient equal to minus the sum
of the others', which saves a class. A round of each method is, in the notation of the victims
dpnorm, dpsgd (order=adapt, noise=step), dpadmm and single (mu is the step size of all; eta of
DP-ADMM is 1/mu):

    w <- keep ( w - mu (g + l2 w) ) + push + n        K times

push is constant within a round, and only DP-SGD and DP-ADMM draw n.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

import torch
import torch.nn.functional as F
from torch import Tensor

METHODS = ("dpnorm", "dpsgd", "dpadmm", "single")


@dataclass(frozen=True)
class Training:
    """One curve of the figures.

    sigma: standard deviation of the noise per coordinate, on the message (dpnorm) or on the model
    after each step (dpsgd, dpadmm). noise: origin of sigma, ``none``, ``printed`` or ``equal``.
    epsilon: the epsilon for which it is set.
    """

    method: str
    label: str
    epsilon: float = float("inf")
    noise: str = "none"
    sigma: float = 0.0
    mu: float = 0.03
    alpha: float = 0.0
    rho: float = 1e-4
    l2: float = 0.0


def gradient(w: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Return the mean gradients of the cross entropy; w (C, V, p), x (B, p), y (B,) int64 -> (C, V,
    p).
    """
    classes, count, _ = w.shape
    s = ((w[1:] - w[:1]).flatten(0, 1) @ x.T).view(classes - 1, count, len(x))
    top = s.amax(0).clamp_min_(0)
    s.sub_(top).exp_()
    s.div_(s.sum(0).add_(top.neg_().exp_()))
    s.sub_(F.one_hot(y, classes)[:, 1:].T[:, None].to(s))
    out = torch.empty_like(w)
    torch.mm(s.flatten(0, 1).div_(len(x)), x, out=out[1:].flatten(0, 1))
    torch.sum(out[1:], 0, out=out[0]).neg_()
    return out


class Ring:
    """The state of all trainings on a ring of N >= 3 nodes, in the order of `METHODS`."""

    def __init__(
        self,
        trainings: Sequence[Training],
        start: Tensor,
        nodes: int,
        inner: int,
        draw: Callable[[tuple[int, ...]], Tensor],
    ) -> None:
        """Start with a common model `start` (C, p). draw: returns standard normal numbers of a
        shape.
        """
        self.trainings = sorted(trainings, key=lambda t: METHODS.index(t.method))
        self.draw, order = draw, [t.method for t in self.trainings]
        self.at = {
            m: slice(order.index(m), order.index(m) + len(list(run))) for m, run in groupby(order)
        }
        self.at.update({m: slice(0, 0) for m in METHODS if m not in self.at})
        self.w = start[:, None].expand(nodes, -1, len(order), -1).clone()
        mu, alpha, rho, l2, sigma = (
            self._row([getattr(t, name) for t in self.trainings])
            for name in ("mu", "alpha", "rho", "l2", "sigma")
        )
        norm, admm = (self._row([float(m == name) for m in order]) for name in ("dpnorm", "dpadmm"))
        eta = 1 / (2 * mu * inner)
        self.share, self.eta = (eta / (1 + alpha * eta))[self.at["dpnorm"]], eta[self.at["dpnorm"]]
        self.curve, self.rho = (4 * rho + 1 / mu)[self.at["dpadmm"]], rho[self.at["dpadmm"]]
        keep = 1 / (1 + norm * 2 * mu * eta / (1 + alpha * eta) + admm * 4 * rho * mu)
        self.fade, self.step, self.pull = (
            keep * (1 - mu * l2),
            -keep * mu,
            (keep * mu)[self.at["dpnorm"]] * self.share,
        )
        self.sigma, self.shaken = (
            sigma,
            slice(self.at["dpnorm"].stop, sum(m != "single" for m in order)),
        )
        self.loud = bool(sigma[self.shaken].any())
        self.z = self._part("dpnorm").new_zeros(
            2, *self._part("dpnorm").shape
        )  # of the arcs to the next node, and to the previous one
        self.sign = torch.ones(2, nodes, 1, 1, 1).to(start)
        self.sign[0, -1] = self.sign[1, 1:] = -1
        self.dual, self.lam = self.z, torch.zeros_like(self._part("dpadmm"))

    def round(self, batches: Iterable[tuple[Tensor, Tensor]]) -> None:
        """Take one step per batch, x (N, B, p) and y (N, B), and exchange."""
        push = torch.zeros_like(self.w)
        push[:, :, self.at["dpnorm"]] = self.pull * (self.sign * self.z).sum(0)
        w = self._part("dpadmm")
        push[:, :, self.at["dpadmm"]] = (
            self.rho * (2 * w + _around(w)) - 2 * self.lam
        ) / self.curve
        g = torch.empty_like(self.w)
        for x, y in batches:
            for i, w in enumerate(self.w):
                g[i] = gradient(w, x[i], y[i])
            alone = g[:, :, self.at["single"]]
            alone.copy_(alone.mean(0, keepdim=True))
            self.w.mul_(self.fade).addcmul_(g, self.step).add_(push)
            if self.loud:
                n = self.w[:, :, self.shaken]
                n.add_(self.sigma[self.shaken] * self.draw(tuple(n.shape)))
        self._exchange()

    def measure(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        """Return accuracy on x (n, p), and norms of w and of the dual: means over nodes, or arcs,
        (V,); NaN without a dual.
        """
        count = self.w.shape[2]
        right = [
            ((x @ w.flatten(0, 1).T).view(len(x), -1, count).argmax(1) == y[:, None])
            .double()
            .mean(0)
            for w in self.w
        ]
        dual = torch.full((count,), torch.nan, dtype=torch.float64)
        dual[self.at["dpnorm"]] = self.dual.norm(dim=(2, 4)).mean((0, 1)).double()
        dual[self.at["dpadmm"]] = self.lam.norm(dim=(1, 3)).mean(0).double()
        return {
            "accuracy": torch.stack(right).mean(0),
            "norm_w": self.w.norm(dim=(1, 3)).mean(0).double(),
            "norm_dual": dual,
        }

    def _exchange(self) -> None:
        """Send the messages: y of DP-Norm, models of the others."""
        w = self._part("dpnorm")
        shown = w + self.sigma[self.at["dpnorm"]] * self.draw(tuple(w.shape)) if w.numel() else w
        self.dual = self.share * (self.z - self.sign * shown)
        y = 2 / self.eta * self.dual - self.z
        self.z = torch.stack((y[1].roll(-1, 0), y[0].roll(1, 0)))
        w = self._part("dpsgd")
        w.copy_((w + _around(w)) / 3)
        w = self._part("dpadmm")
        self.lam += self.rho / 2 * (2 * w - _around(w))

    def _part(self, method: str) -> Tensor:
        """Return the models of a method, a view (N, C, its trainings, p)."""
        return self.w[:, :, self.at[method]]

    def _row(self, values: Sequence[float]) -> Tensor:
        """Return one constant per training, (V, 1)."""
        return torch.tensor(values, dtype=torch.float64)[:, None].to(self.w)


def _around(w: Tensor) -> Tensor:
    """Return the sum over both neighbours on the ring, (N, ...)."""
    return w.roll(1, 0) + w.roll(-1, 0)
