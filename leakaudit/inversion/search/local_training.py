"""Local trainings: the sum of the gradients of several steps, differentiated through all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from leakaudit.inversion.labels import read_labels
from leakaudit.inversion.search import objectives

if TYPE_CHECKING:
    from leakaudit.core.leak import GradientLeak
    from leakaudit.inversion.search.objectives import Target
    from leakaudit.tasks.task import Task

# A leak with ``inner`` K > 1 contains u = sum_k keep^(K-k) g_k of gradients along w_k = keep
# w_{k-1}
# - rate g_k. A client of FedAvg sends back keep^K w_0 - rate u (McMahan et al. 2017, algorithm 1;
#   attacked by Geiping et al. 2020, section 6). The K steps are repeated from the known w_0 with
#   dummy records, and u is compared.


@dataclass(frozen=True)
class Local:
    """How a node trains between two messages; with one step, its update is a gradient.

    Mini-batches follow the records' order, the last one is smaller if the size does not divide,
    and after the last they start again from the first.
    """

    steps: int  # number K of steps
    rate: float  # step size
    samples: int  # number n of different records
    batch: int  # number of records per step
    keep: float = 1.0  # 1 - rate times weight decay

    @property
    def batches(self) -> int:
        """Number of mini-batches per epoch."""
        return -(-self.samples // self.batch)


def of(leak: GradientLeak, batch: int | None, samples: int | None, decay: float = 0.0) -> Local:
    """Return the local training behind each gradient of a leak that `missing` accepts.

    `batch` records per step default to what the leak states, all `samples` to one batch.
    """
    size = batch or leak.batch or 1
    rate = leak.step or 0.0
    return Local(
        steps=leak.inner,
        rate=rate,
        samples=samples or size,
        batch=min(size, samples or size),
        keep=1 - rate * decay,
    )


def missing(leak: GradientLeak, batch: int | None, samples: int | None) -> str | None:
    """Explain what an attack that repeats the local steps lacks in a leak."""
    why = objectives.missing(replace(leak, inner=1), batch)
    if why:
        return why
    if leak.inner > 1 and leak.step is None:
        return f"each gradient is a sum over {leak.inner} local steps of unknown size"
    if samples is None:
        return None
    count = of(leak, batch, samples).batches
    if count > leak.inner:
        return (
            f"{samples} samples make {count} mini-batches, but the node takes only {leak.inner} "
            "steps; set samples=N and batch=N"
        )
    return None


def refused(
    leak: GradientLeak,
    task: Task,
    given: Sequence[int],
    batch: int | None,
    samples: int | None,
) -> str | None:
    """Explain why an attack that compares updates at known labels cannot use a leak."""
    if not leak.is_plain:
        return objectives.COMBINED
    why = missing(leak, batch, samples)
    if why:
        return why
    if not given and not read_labels.readable(leak, task):
        return (
            "the labels cannot be read because the leak does not contain the last layer; "
            "set labels=… or use dlg"
        )
    return None


def update(
    task: Task, local: Local, theta: Tensor, x: Tensor, y: Tensor, graph: bool = True
) -> Tensor:
    """Train locally from theta (d,) on (samples, *shape) in their order, and return u (d,)."""
    total = torch.zeros_like(theta)
    for k in range(local.steps):
        at = k % local.batches * local.batch
        mine = x[at : at + local.batch]
        labels = y[at : at + local.batch]
        if graph and not theta.requires_grad:
            g = task.again(theta[None], mine[None], labels[None])[0]
        else:
            g = task.gradient(theta, mine, labels, create_graph=graph)
        total = local.keep * total + g
        theta = local.keep * theta - local.rate * g
    return total


def cosine(target: Target, task: Task, local: Local, x: Tensor, y: Tensor) -> Tensor:
    """Return one minus the cosine of whitened updates and targets (Geiping et al. 2020, eq. 4)."""
    return target.cosine(_updates(target, task, local, x, y, graph=True))


def l2(target: Target, task: Task, local: Local, x: Tensor, y: Tensor) -> Tensor:
    """Return the squared norm of the whitened residual of updates, as `objectives.l2`."""
    return target.l2(_updates(target, task, local, x, y, graph=True))


def misfit(target: Target, task: Task, local: Local, x: Tensor, y: Tensor) -> float:
    """Return the relative residual of updates without a graph, as `objectives.misfit`."""
    return target.misfit(_updates(target, task, local, x.detach(), y.detach(), graph=False))


def _updates(target: Target, task: Task, local: Local, x: Tensor, y: Tensor, graph: bool) -> Tensor:
    """Return the updates (T, c) of the dummy records."""
    return torch.stack([update(task, local, w, x, y, graph)[target.columns] for w in target.theta])
