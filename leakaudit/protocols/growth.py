"""Stability of PDMM's gradient steps, computed from its constants and the graph only."""

from __future__ import annotations

import torch

from leakaudit.core.trace import Graph

# The factor is measured over the last LAST of ROUNDS rounds. Power iteration reduces the influence
# of its start at the ratio of the second to the first eigenvalue: a component that grows 2 % less
# per round than the fastest one has dropped to 0.98^200 = 2 % of it when the measurement begins.
ROUNDS = 300
LAST = 100
TOO_FAST = 1.5  # factor per round at which every longer run fails; published settings reach 1.2
SMALL = 0.5  # alpha times curvature up to which no tested graph diverged


def growth(graph: Graph, alpha: float, rho: float, theta: float, inner: int, l2: float) -> float:
    """Return the factor per round by which PDMM grows on the losses l2/2 |w|^2 of all nodes.

    Data can only increase it. It is the spectral radius of the linear map of (w, S, T), by power
    iteration.
    """
    degrees = [float(graph.degree(i)) for i in range(graph.nodes)]
    degree = torch.tensor(degrees, dtype=torch.float64)
    curve = l2 + rho * degree
    if alpha * float(curve.max()) <= SMALL:
        return 1.0
    src, dst = torch.tensor(graph.arcs).T
    fixed = torch.Generator().manual_seed(0)
    w, s, t = torch.randn(3, graph.nodes, generator=fixed, dtype=torch.float64)
    total = 0.0
    for done in range(ROUNDS):
        for _ in range(inner):
            w = w - alpha * (curve * w + s)
        others = torch.zeros_like(w).index_add_(0, dst, w[src])
        moved = s + theta * (t - s - 2 * rho * others)
        t = t + theta * (s - t + 2 * rho * degree * w)
        s = moved
        size = torch.stack((w, s, t)).norm()
        w = w / size
        s = s / size
        t = t / size
        if done >= ROUNDS - LAST:
            total += float(size.log())
    return float(torch.tensor(total / LAST).exp())
