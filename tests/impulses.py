"""An oracle for `leakaudit bound`: the effect of one record on a view, from the victims' run code
only.

Declarations are not used. Losses are quadratic: the gradient of node i is c_i w + a constant, and
changing a record changes the constant by a unit vector. A run is then linear in these constants and
in the noise, and every coordinate of the model follows the same recursion. One run is therefore
sufficient: each coordinate carries a different impulse, from a record or one draw of noise, and its
recorded values are the response. Both data sets give Gaussian views with one covariance; the mu
between them is the length of the whitened difference of their means.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor

from leakaudit.core.adversary import Adversary
from leakaudit.core.trace import Graph, TaskSpec
from leakaudit.protocols.victim import Victim
from leakaudit.tasks.task import Problem, Task
from leakaudit.traces.recorder import Recorder, RecorderOptions

Key = tuple[int, int, int, str, bool]  # round, src, dst, kind, secure
Array = np.ndarray[Any, np.dtype[np.float64]]
SMALL = 1e-9  # singular values and signals below this, relative, are rounding errors


@dataclass(frozen=True)
class Response:
    """keys: of the messages (m). moved: (node, record) -> their change (m,). noise: (m, q), owner:
    (q,) node of every draw.
    """

    keys: list[Key]
    moved: dict[tuple[int, int], Array]
    noise: Array
    owner: list[int]

    def mu(self, node: int, record: int, adversary: Adversary) -> float:
        """Return the mu of one changed record in an adversary's view; the adversary knows its own
        nodes' noise.
        """
        rows = [k for k, key in enumerate(self.keys) if heard(key, adversary)]
        a = self.moved[node, record][rows]
        size = float(np.abs(a).max(initial=0.0))
        if size == 0:
            return 0.0
        b = self.noise[rows][:, [k for k, i in enumerate(self.owner) if i not in adversary.corrupt]]
        if not b.size or not b.any():
            return math.inf
        u, s, _ = np.linalg.svd(b, full_matrices=True)
        rank = int((s > SMALL * s[0]).sum())
        if float(np.abs(u[:, rank:].T @ a).max(initial=0.0)) > 10 * SMALL * size:
            return math.inf
        return float(np.linalg.norm((u[:, :rank].T @ a) / s[:rank]))


def heard(key: Key, adversary: Adversary) -> bool:
    """Return whether an adversary can read a message."""
    _, src, dst, _, secure = key
    if src in adversary.corrupt or dst in adversary.corrupt:
        return True
    if secure or adversary.hears == "none":
        return False
    return adversary.hears == "all" or (src, dst) in adversary.hears


class Quadratic:
    """Replaces a task: gradients are curvature_i w + impulse for each node i; the data contain its
    number and records.
    """

    def __init__(
        self, task: Task, curvature: Sequence[float], impulses: Mapping[tuple[int, int], int]
    ) -> None:
        self.task, self.curvature, self.impulses = task, curvature, impulses

    def __getattr__(self, name: str) -> Any:
        return getattr(self.task, name)

    def gradients(
        self,
        thetas: Tensor,
        x: Tensor,
        y: Tensor,
        chunk: int | None = None,
        out: Tensor | None = None,
    ) -> Tensor:
        """Return (N, d); record `b` of node `i` changes a gradient by one at its own coordinate if
        it is in the batch.
        """
        nodes, records = x[:, 0, 0].long().tolist(), x[:, :, 1].long().tolist()
        g = torch.stack([self.curvature[i] * theta for i, theta in zip(nodes, thetas, strict=True)])
        for row, node in enumerate(nodes):
            for record in set(records[row]):
                if (node, record) in self.impulses:
                    g[row, self.impulses[node, record]] += 1.0
        return g if out is None else out.copy_(g)


class Draws:
    """Replaces torch.randn: zeros with one 1 per row, each row of each call at its own coordinate,
    from `first` on.
    """

    def __init__(self, first: int, drawer: Callable[[int], int]) -> None:
        self.at, self.calls, self.owner, self.drawer = first, 0, list[int](), drawer

    def __call__(self, *shape: Any, **others: Any) -> Tensor:
        size = (
            tuple(shape[0]) if len(shape) == 1 and not isinstance(shape[0], int) else tuple(shape)
        )
        found = torch.zeros(size, dtype=torch.float64)
        rows = found if len(size) == 2 else found[None]
        for row in range(len(rows)):
            self.owner.append(row if len(size) == 2 else self.drawer(self.calls))
            if self.at < rows.shape[1]:
                rows[row, self.at] = 1.0
            self.at += 1
        self.calls += 1
        return found


def respond(
    victim: Victim,
    graph: Graph,
    rounds: int,
    curvature: Sequence[float],
    public: Mapping[str, Tensor],
    *,
    holders: int,
    samples: int = 1,
    drawer: Callable[[int], int] = lambda call: -1,
) -> Response:
    """Return the responses of a run of the victim.

    curvature: of every node's loss. public: its schedule. holders: nodes with data. drawer: returns
    the node of a draw of noise from its index among all draws, for victims that draw for one node
    at a time.
    """
    records = [(node, record) for node in range(holders) for record in range(samples)]
    size = 2 + len(records)  # for a first run that counts the draws of noise
    for _ in range(2):
        draws = Draws(len(records), drawer)
        keys, payload = _run(victim, graph, rounds, curvature, public, records, max(2, size), draws)
        size = len(records) + len(draws.owner)
    moved = {one: payload[:, k] for k, one in enumerate(records)}
    return Response(keys, moved, payload[:, len(records) : size], draws.owner)


def _run(
    victim: Victim,
    graph: Graph,
    rounds: int,
    curvature: Sequence[float],
    public: Mapping[str, Tensor],
    records: Sequence[tuple[int, int]],
    size: int,
    draws: Draws,
) -> tuple[list[Key], Array]:
    spec = TaskSpec("linear", {"bias": False}, "squared", (size,), 1)
    task = Task.build(spec, dtype=torch.float64)
    holders, samples = (
        1 + max(node for node, _ in records),
        1 + max(record for _, record in records),
    )
    x = torch.zeros(holders, samples, size, dtype=torch.float64)
    for node, record in records:
        x[node, record, 0], x[node, record, 1] = node, record
    quadratic: Any = Quadratic(task, curvature, {one: k for k, one in enumerate(records)})
    problem = Problem(quadratic, x, torch.zeros(holders, samples, 1, dtype=torch.float64))
    start = {"w0": torch.zeros(size, dtype=torch.float64), **public}
    with (
        Recorder(
            None,
            protocol="own:impulses",
            task=spec,
            graph=graph,
            params={},
            rounds=rounds,
            public=start,
            options=RecorderOptions(layout=task.layout, dtype=torch.float64),
        ) as recorder,
        patch("torch.randn", draws),
    ):
        victim.run(problem, graph, rounds, recorder, torch.Generator().manual_seed(5), graph.edges)
    keys, rows = list[Key](), list[Tensor]()
    for part in recorder.trace.messages:
        for k in range(len(part)):
            keys.append(
                (
                    int(part.round[k]),
                    int(part.src[k]),
                    int(part.dst[k]),
                    part.kinds[int(part.kind[k])],
                    bool(part.secure[k]),
                )
            )
            rows.append(part.payload[int(part.row[k])].double())
    return keys, torch.stack(rows).numpy() if rows else np.zeros((0, size))
