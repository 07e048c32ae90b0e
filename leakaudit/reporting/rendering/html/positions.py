"""Where the nodes of a network are drawn: distances on the page follow those in the network."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.float64]
Edge = Sequence[int]

# Both are choices: after these steps, or below this movement (in units of one edge), further steps
# change less than can be seen.
STEPS = 200
STILL = 1e-3
# Weight of the circle in the start, relative to the largest distance: it decides between starts
# that fit the distances equally well, and changes no other.
TIE = 1e-6


def positions(nodes: int, links: Sequence[Edge]) -> Matrix:
    """Place the nodes of a network in the plane.

    The positions x minimise the stress, sum over i < j of (|x_i - x_j| - d_ij)^2 / d_ij^2, in which
    d_ij is the number of edges between i and j (Kamada, Kawai 1989). From a start by classical
    scaling, majorisation lowers the stress in every step (Gansner, Koren, North 2004, Section 2).
    """
    distance = distances(nodes, links)
    angles = 2 * np.pi * np.arange(nodes) / nodes
    circle = np.stack([np.sin(angles), -np.cos(angles)], axis=1)
    weight = np.zeros_like(distance)
    np.divide(1, distance**2, out=weight, where=distance > 0)
    # The weighted Laplacian is singular only for a common shift, which 1/n removes.
    inverse = np.linalg.inv(_laplacian(weight) + 1 / nodes)
    x = _start(distance, circle)
    for _ in range(STEPS):
        apart = np.linalg.norm(x[:, None] - x[None], axis=-1)
        pull = np.zeros_like(distance)
        np.divide(weight * distance, apart, out=pull, where=apart > 0)
        # Minimum of the quadratic function that touches the stress from above at x, eq. (7).
        moved = inverse @ (_laplacian(pull) @ x)
        still = np.abs(moved - x).max() < STILL
        x = moved
        if still:
            break
    # The stress does not depend on the orientation: it is chosen to follow the circle.
    left, _, right = np.linalg.svd(x.T @ circle)
    turned: Matrix = x @ (left @ right)
    return turned


def distances(nodes: int, links: Sequence[Edge]) -> Matrix:
    """Return the number of edges between any two nodes."""
    near: list[list[int]] = [[] for _ in range(nodes)]
    for i, j in links:
        near[i].append(j)
        near[j].append(i)
    found = np.full((nodes, nodes), -1.0)
    for source in range(nodes):
        row = found[source]
        row[source] = 0
        reached = [source]
        for node in reached:  # it grows while it is read: breadth first
            for other in near[node]:
                if row[other] < 0:
                    row[other] = row[node] + 1
                    reached.append(other)
    found[found < 0] = found.max() + 1
    return found


def _start(distance: Matrix, circle: Matrix) -> Matrix:
    """Return the positions (n, 2) by classical scaling (Torgerson 1952)."""
    squares = distance**2
    mean = squares.mean(axis=0)
    inner = -(squares - mean - mean[:, None] + mean.mean()) / 2
    inner += TIE * squares.max() * (circle @ circle.T)
    values, vectors = np.linalg.eigh(inner)
    start: Matrix = vectors[:, -2:] * np.sqrt(np.maximum(values[-2:], 0))
    return start


def _laplacian(weight: Matrix) -> Matrix:
    laplacian: Matrix = np.diag(weight.sum(axis=1)) - weight
    return laplacian
