"""How well dummy inputs explain a leak: one residual for gradients, differences and any other combination of them.

With G(x, y) the gradients (T, c) at the leak's models, the residual of `combination @ G = value` is what L2 and cosine compare.
Both gradients of a difference are differentiated, each with its own sign.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from leakaudit.inversion.search import priors
from leakaudit.reconstruction import Certificate, Reconstruction

if TYPE_CHECKING:
    from leakaudit.leak import GradientLeak
    from leakaudit.tasks.task import Task

Gradients = Callable[[Tensor, Tensor, Tensor], Tensor]
FIT = 0.1  # relative residual that counts as a fit; unrelated photographs and wrong labels leave 0.2 to 1.3
DROWNED = 0.5  # where noise alone makes this relative residual, a fit means nothing


@dataclass(frozen=True)
class Target:
    """A few rows of a leak, ready to be compared: `combination @ gradients = value`.

    theta: (T, d) models of the gradients that these rows use. combination: (m, T). value: (m, c). mixing, aim: the same two with
    rows mixed so that their errors are equal and independent, and aim has norm 1. columns: of the flat gradient that are
    compared. noise: norm of the residual that the leak's own errors make at the true inputs.
    """

    theta: Tensor
    combination: Tensor
    value: Tensor
    mixing: Tensor
    aim: Tensor
    columns: slice
    noise: float


def missing(leak: GradientLeak, batch: int | None) -> str | None:
    """Say what every attack by optimisation misses in a leak, None where nothing is missing."""
    if leak.theta is None:
        return "it needs the models at which the gradients were taken, and this adversary does not know them"
    if leak.inner > 1:
        return f"each gradient is a sum over {leak.inner} inner steps, and it compares single gradients"
    if not bool((leak.value != 0).any()):
        return "the gradients are zero"
    if batch is None and leak.batch is None:
        return "the number of samples behind a gradient is unknown; set batch=N"
    return None


def target(leak: GradientLeak, task: Task, rows: int, dtype: torch.dtype) -> Target:
    """Pick the `rows` consecutive rows with the best signal over noise and make them comparable.

    Raises no error: `missing` must have found nothing.
    """
    chosen = _window(leak, rows)
    used = leak.combination[chosen].count_nonzero(dim=0).nonzero().flatten()
    combination, value = (
        t.to(task.device, torch.float64)
        for t in (leak.combination[chosen][:, used], leak.value[chosen])
    )
    whiten, noise = _whiten(
        leak, chosen, value
    )  # in float64: the squared rounding of a small gradient is 0 in float32
    theta = (
        leak.theta[used].to(task.device, dtype)
        if leak.theta is not None
        else value.new_empty(0, dtype=dtype)
    )
    mixing, aim = (whiten @ combination).to(dtype), (whiten @ value).to(dtype)
    return Target(
        theta, combination.to(dtype), value.to(dtype), mixing, aim, slice(*leak.columns), noise
    )


def gradients(target: Target, task: Task, x: Tensor, y: Tensor) -> Tensor:
    """Gradients (T, c) of the dummy inputs, differentiable in x and in soft labels y."""
    same = (t.expand(len(target.theta), *t.shape) for t in (x, y))
    return task.again(target.theta, *same)[:, target.columns]


def l2(target: Target, task: Task, x: Tensor, y: Tensor) -> Tensor:
    """Squared norm of the whitened residual; 1 for gradients of zero (Zhu et al. 2019, eq. 2, over the norm of the target)."""
    loss: Tensor = (target.mixing @ gradients(target, task, x, y) - target.aim).square().sum()
    return loss


def stacked(targets: Sequence[Target]) -> tuple[Tensor, Tensor, Tensor]:
    """Models (K, T, d), mixing (K, m, T) and aim (K, m, c) of targets of equal shapes, for `squared`."""
    theta, mixing, aim = (
        torch.stack(parts)
        for parts in zip(*((t.theta, t.mixing, t.aim) for t in targets), strict=True)
    )
    return theta, mixing, aim


def alike(targets: Sequence[Target], sizes: Sequence[int] = ()) -> list[list[int]]:
    """Places of the targets whose shapes and columns, and batch sizes where given, are equal, so that they can be searched together."""
    groups: dict[object, list[int]] = {}
    for k, t in enumerate(targets):
        key = (
            t.theta.shape,
            t.aim.shape,
            t.columns.start,
            t.columns.stop,
            sizes[k] if sizes else 1,
        )
        groups.setdefault(key, []).append(k)
    return list(groups.values())


def squared(
    gradients: Gradients,
    columns: slice,
    theta: Tensor,
    mixing: Tensor,
    aim: Tensor,
    x: Tensor,
    y: Tensor,
) -> Tensor:
    """Return what `l2` does, (k,), for some of the `stacked` targets; gradients: of models (n, d), as `evaluate.Problems` hands it over.

    x: (k, b, *shape). y: (k, b) or soft (k, b, classes).
    """
    gap = _mixed(gradients, columns, theta, mixing, x, y) - aim.flatten(1)
    loss: Tensor = torch.linalg.vecdot(gap, gap)
    return loss


def angles(
    gradients: Gradients,
    columns: slice,
    theta: Tensor,
    mixing: Tensor,
    aim: Tensor,
    x: Tensor,
    y: Tensor,
) -> Tensor:
    """Return what `cosine` does, (k,), for some of the `stacked` targets, as `squared`."""
    found = _mixed(gradients, columns, theta, mixing, x, y)
    size = torch.linalg.vecdot(found, found).sqrt().clamp_min(torch.finfo(found.dtype).tiny)
    loss: Tensor = 1 - torch.linalg.vecdot(found, aim.flatten(1)) / size
    return loss


def _mixed(
    gradients: Gradients, columns: slice, theta: Tensor, mixing: Tensor, x: Tensor, y: Tensor
) -> Tensor:
    """Whitened rows (k, m * c) of the gradients of several problems, each at its own models theta (k, T, d)."""
    models = theta.shape[1]
    each = (t.repeat_interleave(models, 0) if models > 1 else t for t in (x, y))
    found = gradients(theta.flatten(0, 1), *each)[:, columns].unflatten(0, (len(theta), models))
    return torch.bmm(mixing, found).flatten(1)


def cosine(target: Target, task: Task, x: Tensor, y: Tensor) -> Tensor:
    """One minus the cosine between all whitened rows and their targets (Geiping et al. 2020, eq. 4)."""
    found = target.mixing @ gradients(target, task, x, y)
    loss: Tensor = 1 - (found * target.aim).sum() / found.norm().clamp_min(
        torch.finfo(found.dtype).tiny
    )
    return loss


def misfit(target: Target, task: Task, x: Tensor, y: Tensor) -> float:
    """Relative residual |combination @ G - value| / |value| of whitened rows, without a graph; infinite where it is not finite."""
    got = torch.stack(
        [task.gradient(w, x.detach(), y.detach())[target.columns] for w in target.theta]
    )
    size = float((target.mixing @ got - target.aim).norm())
    return size if math.isfinite(size) else math.inf


def reconstruction(
    name: str,
    leak: GradientLeak,
    task: Task,
    target: Target,
    x: Tensor,
    y: Tensor | None,
    residual: Callable[[Tensor], float],
    note: str,
) -> Reconstruction:
    """Judge inputs x (b, *shape) by the relative residual that they leave once they are clamped; the inputs that come back are finite.

    y: the labels to report, None where they are not settled. residual: of inputs. The certificate is APPROXIMATE or FAILED, never
    EXACT: other inputs may fit as well.
    """
    x = priors.boxed(task, x.detach().nan_to_num(0.5, 1.0, 0.0))
    left = residual(x)
    drowned = target.noise > DROWNED
    certificate = (
        Certificate.FAILED
        if drowned or left > max(FIT, 2 * target.noise)
        else Certificate.APPROXIMATE
    )
    note = f"the leak's noise is {target.noise:.2g} of its signal; {note}" if drowned else note
    return Reconstruction(leak.node, name, x.to(task.dtype), y, certificate, left, note=note)


def _window(leak: GradientLeak, rows: int) -> slice:
    """Return the consecutive rows whose signal over noise sums to most; of equals the first."""
    rows = min(rows, len(leak.value))
    size = leak.value.double().norm(dim=1)
    rounding = torch.finfo(leak.value.dtype).eps * float(size.max())
    ratio = size / (leak.std.double() * leak.value.shape[1] ** 0.5).clamp_min(rounding)
    first = int(ratio.unfold(0, rows, 1).sum(1).argmax())
    return slice(first, first + rows)


def _whiten(leak: GradientLeak, chosen: slice, value: Tensor) -> tuple[Tensor, float]:
    """Return the whitening (m, m) and the norm of the whitened error; exact leaks are only scaled."""
    noise = (leak.noise[chosen] if leak.noise is not None else leak.std[chosen].diag()).to(value)
    floor = (
        torch.finfo(leak.value.dtype).eps * value.square().mean().sqrt()
        + torch.finfo(value.dtype).tiny
    )
    one = torch.eye(len(value), dtype=value.dtype, device=value.device)
    whiten = torch.linalg.solve_triangular(
        torch.linalg.cholesky(noise @ noise.T + floor**2 * one), one, upper=False
    )
    size = (whiten @ value).norm()
    return whiten / size, math.sqrt(value.numel()) / float(size)
