"""Whether PDMM's gradient steps are stable, from its constants and the graph alone."""

from __future__ import annotations

import torch

from leakaudit.trace import Graph

ROUNDS, LAST = 300, 100  # rounds that are run, and of them those that are measured
TOO_FAST = 1.5  # factor a round that no run of some rounds survives; published settings reach 1.2
SMALL = 0.5  # alpha times curvature up to which no graph was seen to diverge


def growth(graph: Graph, alpha: float, rho: float, theta: float, inner: int, l2: float) -> float:
    """Return the factor a round by which PDMM grows on the losses l2/2 |w|^2 of all nodes; data only add to it.

    The spectral radius of the linear map of (w, S, T), by power iteration; 1 without a run where the steps are small.
    On regular graphs with l2 = 0 it is above 1 from alpha rho d > 1 on for theta = 1, and from about 4/3 on for theta = 1/2.
    """
    degree = torch.tensor([float(graph.degree(i)) for i in range(graph.nodes)], dtype=torch.float64)
    curve = l2 + rho * degree
    if alpha * float(curve.max()) <= SMALL:
        return 1.0
    src, dst = torch.tensor(graph.arcs).T
    w, s, t = torch.randn(
        3, graph.nodes, generator=torch.Generator().manual_seed(0), dtype=torch.float64
    )
    total = 0.0
    for done in range(ROUNDS):
        for _ in range(inner):
            w = w - alpha * (curve * w + s)
        others = torch.zeros_like(w).index_add_(0, dst, w[src])
        s, t = s + theta * (t - s - 2 * rho * others), t + theta * (s - t + 2 * rho * degree * w)
        size = torch.stack((w, s, t)).norm()
        w, s, t = w / size, s / size, t / size
        total += float(size.log()) if done >= ROUNDS - LAST else 0.0
    return float(torch.tensor(total / LAST).exp())
