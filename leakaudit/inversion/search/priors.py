"""What images look like before anything is known of them: smoothness, the box of pixel values, batch statistics, where a search starts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Generator, Tensor, nn

if TYPE_CHECKING:
    from leakaudit.tasks.task import Task

Start = Literal["gray", "uniform", "normal"]
Statistics = Mapping[
    str, tuple[Tensor, Tensor]
]  # layer of batch normalisation -> mean and variance a channel of what it sees


def total_variation(x: Tensor, rounding: float = 0.0) -> Tensor:
    """Mean absolute difference of horizontal plus of vertical neighbours; x: (b, c, h, w), 0 for other shapes.

    rounding: e in sqrt(d^2 + e^2), which makes the absolute value smooth for L-BFGS. Anisotropic, as in Geiping et al. 2020.
    """
    if x.dim() != 4:
        return x.new_zeros(())
    sides = [d for d in (x.diff(dim=-1), x.diff(dim=-2)) if d.numel()]
    parts = [
        (d.square() + rounding**2).sqrt().mean() if rounding else d.abs().mean() for d in sides
    ]
    return torch.stack(parts).sum() if parts else x.new_zeros(())


def boxed(task: Task, x: Tensor) -> Tensor:
    """Clamp images to [0, 1], the range of pixels in the data's units; other inputs stay as they are."""
    return x.clamp(0, 1) if task.spec.is_image else x


def start(task: Task, batch: int, generator: Generator, kind: Start, dtype: torch.dtype) -> Tensor:
    """Draw the inputs (batch, *shape) that a search starts from, in the data's units.

    kind: ``gray`` between 0.45 and 0.55, ``uniform`` in [0, 1], or ``normal`` with mean 0 and deviation 1, as Zhu et al. 2019 do.
    """
    draw = torch.randn if kind == "normal" else torch.rand
    x = draw(batch, *task.spec.shape, generator=generator, dtype=dtype, device=generator.device).to(
        task.device
    )
    return 0.45 + 0.1 * x if kind == "gray" else x


class _Seen(Exception):
    """The last of the layers asked for has been run."""


def inputs(
    task: Task, theta: Tensor, x: Tensor, names: Iterable[str], last: str | None = None
) -> dict[str, Tensor]:
    """Inputs of layers, in the order in which they run on a batch x (b, *shape); differentiable in x.

    last: the layer of `names` before which the forward pass ends, and those that run later are missing.
    """
    seen: dict[str, Tensor] = {}
    layers = dict(task.module.named_modules())

    def look(name: str) -> Any:
        def hook(_: nn.Module, given: tuple[Tensor, ...]) -> None:
            seen[name] = given[0]
            if name == last:
                raise _Seen

        return hook

    hooks = [layers[n].register_forward_pre_hook(look(n)) for n in names]
    try:
        task.logits(theta, x)
    except _Seen:
        pass
    finally:
        for hook in hooks:
            hook.remove()
    return seen


def of_batch(x: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and biased variance (c,) of a batch x (b, c, ...)."""
    sides = [d for d in range(x.dim()) if d != 1]
    return x.mean(sides), x.var(sides, unbiased=False)


def batch_statistics(task: Task, theta: Tensor, x: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
    """Mean and biased variance (c,) of what every layer of batch normalisation sees of a batch x (b, *shape); differentiable in x."""
    return {n: of_batch(t) for n, t in inputs(task, theta, x, [n for n, _ in _norms(task)]).items()}


def running_statistics(task: Task) -> Statistics | None:
    """Return the model's own statistics (``bn=eval``); None where it has none, or those of a fresh model, which say nothing."""
    names = [n for n, m in _norms(task) if m.running_mean is not None]
    found = {
        n: (task.buffers[f"{n}.running_mean"], task.buffers[f"{n}.running_var"])
        for n in names
        if f"{n}.running_mean" in task.buffers
    }
    return (
        found
        if any(bool((mean != 0).any() or (var != 1).any()) for mean, var in found.values())
        else None
    )


def normalisation(
    task: Task, theta: Tensor, x: Tensor, known: Statistics, first: float = 10.0
) -> Tensor:
    """How far a batch's statistics are from known ones (Yin et al. 2021, R_BN); as `apart`."""
    return apart(batch_statistics(task, theta, x), known, first)


def apart(found: Statistics, known: Statistics, first: float = 10.0) -> Tensor:
    """How far statistics are from known ones: 0 where they agree, about 1 a unit of relative error.

    Weighted mean over the layers of both of the squared error of means over the known variance, and of variances over its square.
    first: weight of the first layer among the others.
    """
    gaps: list[Tensor] = []
    weights = [first if k == 0 else 1.0 for k, name in enumerate(known) if name in found]
    for name in (n for n in known if n in found):
        (mean, var), (a, b) = (
            tuple(t.to(found[name][0]) for t in pair) for pair in (known[name], found[name])
        )
        size = var.mean().clamp_min(torch.finfo(var.dtype).tiny)
        gaps.append((a - mean).square().mean() / size + (b - var).square().mean() / size.square())
    return torch.stack([w * gap for w, gap in zip(weights, gaps, strict=True)]).sum() / max(
        sum(weights), 1.0
    )


def shift(x: Tensor, reference: Tensor, most: int) -> Tensor:
    """Move one image (c, h, w) by whole pixels, `most` at most each way, to where it correlates best with another; edges repeat.

    By the product of Fourier transforms, mean of each channel taken off.
    """
    sides = x.shape[-2:]
    a, b = (torch.fft.rfft2(t - t.mean((-2, -1), keepdim=True)) for t in (x, reference))
    match = torch.fft.irfft2((a.conj() * b).sum(0), s=sides)
    near = [torch.arange(-most, most + 1, device=x.device) for _ in sides]
    window = match[near[0][:, None] % sides[0], near[1][None] % sides[1]]
    down, right = (int(v) - most for v in divmod(int(window.argmax()), 2 * most + 1))
    rows, columns = (
        (torch.arange(n, device=x.device) - by).clamp(0, n - 1)
        for n, by in zip(sides, (down, right), strict=True)
    )
    return x[:, rows][:, :, columns]


def consensus(candidates: Tensor, y: Tensor, best: int, most: int) -> Tensor:
    """Mean image (s, b, *shape) of several candidates (s, b, *shape) for one batch, as each candidate orders it (Yin et al. 2021, R_group).

    Samples of one class have no order, so those of each candidate are paired with those of candidate `best` by distance; images are then
    moved onto theirs. y: (b,) labels.
    """
    from leakaudit._util.assignment import assign

    order, moved = [], []
    for one in candidates:
        gap = torch.cdist(one.flatten(1).double(), candidates[best].flatten(1).double()).square()
        pairs = assign(gap.cpu() + 1e3 * (gap.max().cpu() + 1) * (y[:, None] != y).cpu())
        order.append(pairs.found.to(y.device))
        moved.append(
            torch.stack(
                [
                    shift(a, b, most) if a.dim() == 3 else a
                    for a, b in zip(one[order[-1]], candidates[best], strict=True)
                ]
            )
        )
    middle = torch.stack(moved).mean(0)
    return torch.stack([middle[o.argsort()] for o in order])


def _norms(task: Task) -> list[tuple[str, Any]]:
    """Layers of batch normalisation by name, in the model's order."""
    return [
        (n, m)
        for n, m in task.module.named_modules()
        if isinstance(m, nn.modules.batchnorm._BatchNorm)
    ]


def normalises(task: Task) -> bool:
    """Whether the model has layers of batch normalisation."""
    return bool(_norms(task))
