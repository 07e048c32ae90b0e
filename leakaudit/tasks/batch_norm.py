"""Batch normalisation layers, and what layers see of a batch."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from torch import Tensor, nn

from leakaudit.tasks.build_task import BatchNorm

if TYPE_CHECKING:
    from leakaudit.tasks.task import Task


class _Seen(Exception):
    """The last of the requested layers has been reached."""


def inputs(
    task: Task, theta: Tensor, x: Tensor, names: Iterable[str], last: str | None = None
) -> dict[str, Tensor]:
    """Record the inputs of layers on a batch, up to the layer `last`; differentiable in x."""
    seen: dict[str, Tensor] = {}
    modules = dict(task.module.named_modules())

    def look(name: str) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
        def hook(_: nn.Module, given: tuple[Tensor, ...]) -> None:
            seen[name] = given[0]
            if name == last:
                raise _Seen

        return hook

    hooks = [modules[n].register_forward_pre_hook(look(n)) for n in names]
    try:
        task.logits(theta, x)
    except _Seen:
        pass
    finally:
        for hook in hooks:
            hook.remove()
    return seen


def of_batch(x: Tensor) -> tuple[Tensor, Tensor]:
    """Compute the mean and variance (c,) of each channel of (b, c, ...), as running statistics do.

    The variance is the unbiased one, and 0 for a single value.
    """
    sides = [d for d in range(x.dim()) if d != 1]
    values = x.numel() // x.shape[1]
    return x.mean(sides), x.var(sides, correction=min(1, values - 1))


def batch_statistics(task: Task, theta: Tensor, x: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
    """Compute a batch's statistics (c,) in every batch normalisation layer; differentiable in x."""
    names = [name for name, _ in layers(task)]
    return {name: of_batch(seen) for name, seen in inputs(task, theta, x, names).items()}


def normalisations(task: Task) -> dict[str, int]:
    """Return the number of channels of each batch normalisation layer, by its name."""
    return {name: module.num_features for name, module in layers(task)}


def normalises(task: Task) -> bool:
    """Return whether the model has batch normalisation layers."""
    return bool(layers(task))


def layers(task: Task) -> list[tuple[str, BatchNorm]]:
    """Return the batch normalisation layers, by name."""
    found: list[tuple[str, BatchNorm]] = []
    for name, module in task.module.named_modules():
        if isinstance(module, BatchNorm):
            found.append((name, module))
    return found
