"""Whether PDMM's gradient steps are stable, from its constants and the graph alone."""

from __future__ import annotations

import torch

from leakaudit.trace import Graph

# The factor is measured over the last LAST of ROUNDS rounds. Power iteration forgets its start at
# the rate of the second eigenvalue over the first: what grows 2 % less a round than the fastest
# part has fallen to 0.98^200 = 2 % of it when the measurement begins.
ROUNDS = 300
LAST = 100
TOO_FAST = 1.5  # factor a round that no run of some rounds survives; published settings reach 1.2
SMALL = 0.5  # alpha times curvature up to which no graph was seen to diverge


def growth(graph: Graph, alpha: float, rho: float, theta: float, inner: int, l2: float) -> float:
    """Return the factor a round by which PDMM grows on the losses l2/2 |w|^2 of all nodes.

    Data only add to it. It is the spectral radius of the linear map of (w, S, T), by power
    iteration. On regular graphs with l2 = 0 it exceeds 1 for alpha rho d > 1 if theta = 1, and
    for about alpha rho d > 4/3 if theta = 1/2.

    Args:
        graph: Who talks to whom.
        alpha: Step size.
        rho: Penalty of disagreement.
        theta: Averaging.
        inner: Gradient steps a round.
        l2: Weight of the l2 term of a node's loss.

    Returns:
        The factor; 1 without a computation if the steps are small.
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
