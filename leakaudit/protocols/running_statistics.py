"""Running statistics of batch normalisation, which clients send beside what they have trained.

Messages are as long as the model, so a layer's running mean is in the columns of its weight, and
its running variance in those of its bias; all other columns are 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from leakaudit.core.errors import LeakauditError
from leakaudit.core.trace import Layout
from leakaudit.protocols.local import of_all
from leakaudit.tasks import batch_norm
from leakaudit.theory.relations import Expression, Relations, decimal

if TYPE_CHECKING:
    from leakaudit.protocols.simulation import Simulation
    from leakaudit.tasks.task import Task

START = "running0"  # public vector: the running statistics before the first round
BATCH = "statistics"  # state: those of a client's batch, with the unbiased variance
SENDS: Mapping[str, str] = {
    "running": "running statistics of the server, with buffers=true",
    "buffers": "running statistics of a client after its steps, with buffers=true",
}


def check(victim: str, task: Task, momentum: float, clip: float) -> None:
    """Reject a run whose running statistics cannot be sent."""

    def refuse(why: str) -> None:
        raise LeakauditError(f"{victim}: buffers=true {why}")

    layers = batch_norm.layers(task)
    if not layers:
        refuse(f"sends running statistics, but {task.spec.model} has no batch normalisation layers")
    if clip:
        refuse("needs clip=0: clipped gradients are those of single records, not of a batch")
    for name, layer in layers:
        if layer.running_mean is not None:
            refuse("needs bn=train; with bn=eval, running statistics are constants")
        if layer.momentum is None:
            refuse(f"needs a momentum, but layer {name} averages all batches (momentum=None)")
        if layer.momentum != momentum:
            refuse(f"needs bn_momentum={layer.momentum}, that of layer {name}, got {momentum:g}")
        if not {f"{name}.weight", f"{name}.bias"} <= {*task.layout.names}:
            refuse(f"needs a trained weight and bias in layer {name}, whose columns it uses")


def start(task: Task) -> Tensor:
    """Return the running statistics of a new model (d,): mean 0 and variance 1."""
    found = {}
    for name, size in batch_norm.normalisations(task).items():
        found[name] = (torch.zeros(size), torch.ones(size))
    return _joined(task.layout, found).to(task.device, task.dtype)


def of_layers(
    layout: Layout, columns: tuple[int, int], began: Tensor, value: Tensor
) -> dict[str, tuple[Tensor, Tensor]]:
    """Return mean and variance (k,) by layer; layers that are recorded in part are omitted.

    Args:
        columns: The recorded columns (start, stop), c = stop - start.
        began: The running statistics `START` (c,), whose variances of 1 tell which layers have any.
        value: Statistics (c,).
    """
    found = {}
    first, stop = columns
    for name, of_bias in layout.slices.items():
        layer = name.removesuffix(".bias")
        of_weight = layout.slices.get(f"{layer}.weight")
        if layer == name or of_weight is None:
            continue
        if min(of_weight.start, of_bias.start) < first or max(of_weight.stop, of_bias.stop) > stop:
            continue
        mean, var = (slice(at.start - first, at.stop - first) for at in (of_weight, of_bias))
        if bool((began[var] == 1).all()):
            found[layer] = (value[mean], value[var])
    return found


class RunningStatistics:
    """Those of the server in one run, and those of its clients within a round."""

    def __init__(self, sim: Simulation, momentum: float) -> None:
        self._sim = sim
        self._momentum = momentum
        self._server = sim.recorder.public[START].to(sim.problem.x.device)
        self._clients = self._server

    def step(
        self, t: int, models: Tensor, x: Tensor, some: Tensor | None, index: int | None = None
    ) -> None:
        """Include the batches x (n, b, ...) that clients see at their models (n, d)."""
        task = self._sim.problem.task
        seen = []
        with torch.no_grad():
            for w, batch in zip(models, x, strict=True):
                found = batch_norm.batch_statistics(task, w, batch)
                seen.append(_joined(task.layout, found))
        batches = torch.stack(seen)
        name = BATCH if index is None else f"{BATCH}.{index}"
        self._sim.recorder.state(name, t, of_all(batches, some, self._sim.problem.nodes))
        self._clients = (1 - self._momentum) * self._clients + self._momentum * batches

    def exchange(self, t: int, some: Tensor | None) -> None:
        """Send those of the server and of its clients; the server continues from their mean."""
        self._sim.down(t, "running", self._server, some)
        self._sim.up(t, "buffers", self._clients, some)
        self._server = self._clients = self._clients.mean(0)


def declare(
    p: Relations,
    running: Expression,
    server: int,
    clients: Sequence[int],
    momentum: float,
    steps: int = 1,
) -> Expression:
    """Declare the exchange of a round in which each client takes some steps.

    Return the running statistics of the server after it; `running` are those before it.
    """
    m = decimal(momentum)
    down = p.send(server, clients, running, "running")
    up = []
    for i in clients:
        own = down
        for k in range(1, steps + 1):
            index = None if steps == 1 else k
            own = (1 - m) * own + m * p.state(BATCH, i, index)
        up.append(p.send(i, server, own, "buffers"))
    return p.state("running", server, eq=sum(up) * Fraction(1, len(up)))


def _joined(layout: Layout, found: Mapping[str, tuple[Tensor, Tensor]]) -> Tensor:
    """Return statistics of layers as a vector (d,)."""
    some, _ = next(iter(found.values()))
    flat = some.new_zeros(layout.size)
    for name, (mean, var) in found.items():
        flat[layout.slices[f"{name}.weight"]] = mean
        flat[layout.slices[f"{name}.bias"]] = var
    return flat
