"""What the curves of a run show of its models: on the nodes' records, on others, and in between."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.func import vmap

from leakaudit.tasks import losses
from leakaudit.tasks.task import Comparison, Problem, Task

RECORDS = 512  # held-out records that are evaluated at once: the fastest of those measured
MEAN = "_mean_model"  # ends the name of a curve of the mean model, beside one of the nodes' models


def of(problem: Problem, w: Tensor) -> Iterator[tuple[str, float | Tensor]]:
    """Measure the models (N, d) of a round; yield numbers, and values (N,) of each node.

    ``loss`` and ``accuracy`` are those of the mean model on all nodes' records; ``consensus`` is
    the root mean square over nodes of |w_i - mean|.
    """
    task = problem.task
    against = problem.against
    mean = w.mean(0)
    x = problem.x.flatten(0, 1)
    y = problem.y.flatten(0, 1)
    yield "loss", float(task.loss(mean, x, y))
    labels = "classes" if against is None else against.labels
    if _has_labels(task, labels):
        with torch.no_grad():
            right = losses.correct(task.spec.loss, task.logits(mean, x), x, y, labels)
        yield "accuracy", float(right.double().mean())
    yield "consensus", float((w - mean).norm(dim=1).square().mean().sqrt())
    if against is not None:
        if len(against.x):
            yield from _tested(task, against, torch.cat([w, mean[None]]))
        yield from _distances(against, w, mean)


def _distances(
    against: Comparison, w: Tensor, mean: Tensor
) -> Iterator[tuple[str, float | Tensor]]:
    """Compare models with the optimum, and with the parameters behind the targets.

    ``rmse`` is |mean - w*| / sqrt(d); ``rmse_nodes`` is that of the nodes' models, averaged, and
    ``rmse_planted`` the same for the parameters behind the targets. ``relative_error`` is the root
    mean square over nodes of |w_i - w*| / |w*|.
    """
    root = w.shape[1] ** 0.5
    best = against.optimum
    if best is not None:
        yield "rmse", float((mean.double() - best).norm()) / root
        each = (w.double() - best).norm(dim=1)
        yield "rmse_nodes", float(each.mean()) / root
        if bool(best.any()):
            yield "relative_error", float(each.square().mean().sqrt() / best.norm())
    if against.planted is not None:
        each = (w.double() - against.planted.double()).norm(dim=1)
        yield "rmse_planted", float(each.mean()) / root


def _has_labels(task: Task, labels: str) -> bool:
    return task.spec.loss != "squared" or labels != "classes"


def _tested(
    task: Task, against: Comparison, models: Tensor
) -> Iterator[tuple[str, float | Tensor]]:
    """Evaluate models (N + 1, d), of which the last is the mean, on the held-out records.

    ``test_loss`` is the loss without its l2 term, ``test_error`` the root mean square of what a
    prediction misses. A curve without an ending is the average over nodes.
    """
    loss = task.spec.loss
    sums: dict[str, Tensor] = {}
    for x, y in zip(against.x.split(RECORDS), against.y.split(RECORDS), strict=True):
        targets = losses.next_tokens(x, y) if task.spec.is_text else y
        for k, out in enumerate(_outputs(task, models, x)):
            found = {"test_loss": losses.mean_loss(loss, out, targets).double()}
            if _has_labels(task, against.labels):
                right = losses.correct(loss, out, x, y, against.labels)
                found["test_accuracy"] = right.double().mean()
            if loss == "squared":
                found["test_error"] = 2 * found["test_loss"] / out.shape[-1]
            for name, value in found.items():
                total = sums.setdefault(name, torch.zeros(len(models), dtype=torch.float64))
                total[k] += value.cpu() * len(x) / len(against.x)
    for name, each in sums.items():
        if name == "test_error":
            each = each.sqrt()
        yield name, float(each[:-1].mean())
        yield name + MEAN, float(each[-1])
        yield name, each[:-1]


def _outputs(task: Task, models: Tensor, x: Tensor) -> Tensor:
    """Return the outputs (n, t, k) of several models for the same records."""
    with torch.no_grad():
        if task.stack is None:  # one by one is faster for convolutions, by 2.4 for a LeNet
            return torch.stack([task.logits(theta, x) for theta in models])
        out: Tensor = vmap(task.logits, in_dims=(0, None))(models, x)
        return out
