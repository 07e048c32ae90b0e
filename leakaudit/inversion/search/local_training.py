"""Local trainings: the sum of the gradients of several steps, differentiated through all of them.

A leak with ``inner`` K > 1 holds u = sum_k keep^(K-k) g_k of gradients along w_k = keep w_{k-1} - rate g_k: what a client of FedAvg
sends back is keep^K w_0 - rate u (McMahan et al. 2017, Algorithm 1; attacked by Geiping et al. 2020, section 6). From the known w_0 the
K steps are taken again with dummy records, and u is compared.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from leakaudit.inversion.labels import label_signs
from leakaudit.inversion.search import objectives

if TYPE_CHECKING:
    from leakaudit.inversion.search.objectives import Target
    from leakaudit.leak import GradientLeak
    from leakaudit.tasks.task import Task


@dataclass(frozen=True)
class Local:
    """How a node trains between two messages; with one step, its update is a gradient.

    steps: K. rate: of a step. samples: different records n. batch: records of a step; mini-batches come in the records' order, the
    last one smaller where the size does not divide, and again from the first one when all have come. keep: 1 - rate times weight decay.
    """

    steps: int
    rate: float
    samples: int
    batch: int
    keep: float = 1.0

    @property
    def batches(self) -> int:
        """Number of mini-batches of an epoch."""
        return -(-self.samples // self.batch)


def of(leak: GradientLeak, batch: int | None, samples: int | None, decay: float = 0.0) -> Local:
    """Return the local training behind each gradient of a leak.

    batch: records of a step, as the leak says where None. samples: different records, as many as one step takes where None. decay: weight
    decay of the steps. Raises no error: `missing` must have found nothing.
    """
    size = batch or leak.batch or 1
    rate = leak.step or 0.0
    return Local(leak.inner, rate, samples or size, min(size, samples or size), 1 - rate * decay)


def missing(leak: GradientLeak, batch: int | None, samples: int | None) -> str | None:
    """Say what an attack that takes the local steps again misses in a leak, None where nothing is missing."""
    if why := objectives.missing(replace(leak, inner=1), batch):
        return why
    if leak.inner > 1 and leak.step is None:
        return f"each gradient is a sum over {leak.inner} local steps, and their size is not known"
    if samples is not None and (count := of(leak, batch, samples).batches) > leak.inner:
        return f"{samples} samples make {count} mini-batches, and the node takes {leak.inner} steps; set samples=N and batch=N"
    return None


def refused(
    leak: GradientLeak, task: Task, given: str, batch: int | None, samples: int | None
) -> str | None:
    """Say why an attack that compares single gradients or local trainings, at known labels, cannot read a leak; None where it can.

    given: labels in words, empty where they are to be read from the last layer. batch, samples: as `of` takes them.
    """
    if not leak.is_plain:
        return "it fits single gradients, and this leak's rows combine several; use differential"
    if why := missing(leak, batch, samples):
        return why
    if not given and not label_signs.readable(leak, task):
        return "the last layer's gradient, which would show the labels, is not in the leak; set labels=… or use dlg"
    return None


def update(
    task: Task, local: Local, theta: Tensor, x: Tensor, y: Tensor, graph: bool = True
) -> Tensor:
    """Return u (d,) of a local training from theta (d,), differentiable in x and in soft y where `graph`.

    x: (samples, *shape), y: (samples,) or soft, in the order of the mini-batches.
    """
    total = torch.zeros_like(theta)
    for k in range(local.steps):
        at = k % local.batches * local.batch
        mine = x[at : at + local.batch], y[at : at + local.batch]
        if graph and not theta.requires_grad:
            g = task.again(theta[None], *(t[None] for t in mine))[0]
        else:
            g = task.gradient(theta, *mine, create_graph=graph)
        total = local.keep * total + g
        theta = local.keep * theta - local.rate * g
    return total


def cosine(target: Target, task: Task, local: Local, x: Tensor, y: Tensor) -> Tensor:
    """One minus the cosine between whitened updates and their targets (Geiping et al. 2020, eq. 4), as `objectives.cosine`."""
    found = target.mixing @ _updates(target, task, local, x, y, graph=True)
    loss: Tensor = 1 - (found * target.aim).sum() / found.norm().clamp_min(
        torch.finfo(found.dtype).tiny
    )
    return loss


def l2(target: Target, task: Task, local: Local, x: Tensor, y: Tensor) -> Tensor:
    """Squared norm of the whitened residual of updates, as `objectives.l2`."""
    loss: Tensor = (
        (target.mixing @ _updates(target, task, local, x, y, graph=True) - target.aim)
        .square()
        .sum()
    )
    return loss


def misfit(target: Target, task: Task, local: Local, x: Tensor, y: Tensor) -> float:
    """Relative residual of updates without a graph, as `objectives.misfit`."""
    size = float(
        (
            target.mixing @ _updates(target, task, local, x.detach(), y.detach(), graph=False)
            - target.aim
        ).norm()
    )
    return size if math.isfinite(size) else math.inf


def _updates(target: Target, task: Task, local: Local, x: Tensor, y: Tensor, graph: bool) -> Tensor:
    """Updates (T, c) of the dummy records."""
    return torch.stack([update(task, local, w, x, y, graph)[target.columns] for w in target.theta])
