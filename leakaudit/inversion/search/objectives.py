"""How well dummy inputs explain a leak: one residual for gradients and their combinations."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx, once_differentiable

from leakaudit.core.reconstruction import Certificate, Reconstruction
from leakaudit.inversion.linear import positive
from leakaudit.inversion.search import priors

if TYPE_CHECKING:
    from leakaudit.core.leak import GradientLeak
    from leakaudit.tasks.task import Task

# With G(x, y) the gradients (T, c) at the leak's models, L2 and cosine compare `combination @ G`
# with `value`. Both gradients of a difference are differentiated, each with its own sign.

Gradients = Callable[[Tensor, Tensor, Tensor], Tensor]

# Relative residual that counts as a fit; for unrelated photographs and wrong labels it is 0.2 to
# 1.3.
FIT = 0.1

# If noise causes this relative residual, a fit is meaningless.
DROWNED = 0.5

# Samples for each number of a gradient beyond which no search is begun. A choice: their inputs have
# at least as many unknowns, and a file can state any number of samples.
CROWD = 100


@dataclass(frozen=True)
class Target:
    """A few rows of a leak, prepared for comparison: `combination @ gradients = value`."""

    theta: Tensor  # (T, d) models of the gradients that these rows use
    combination: Tensor  # (m, T)
    value: Tensor  # (m, c)
    # (m, T) the combination, with rows mixed so that their errors are equal and independent
    mixing: Tensor
    aim: Tensor  # (m, c) the value, mixed in the same way, with norm 1
    columns: slice  # columns of the flat gradient to compare
    noise: float  # norm of the residual that the leak's own errors cause at the true inputs
    factors: Tensor | None = None  # (c,) of the columns in the cosine; None for 1

    def to(self, dtype: torch.dtype) -> Target:
        """Return the same numbers in another format."""
        names = ["theta", "combination", "value", "mixing", "aim"]
        if self.factors is not None:
            names.append("factors")
        return replace(self, **{name: getattr(self, name).to(dtype) for name in names})

    @property
    def weighted(self) -> Tensor:
        """The aim (m, c) with the columns' factors, of norm 1."""
        if self.factors is None:
            return self.aim
        aim: Tensor = self.aim * self.factors
        return aim / positive(aim.norm())

    def l2(self, found: Tensor) -> Tensor:
        """Return the squared relative norm of the whitened residual of gradients (T, c)."""
        loss: Tensor = (self.mixing @ found - self.aim).square().sum()
        return loss

    def cosine(self, found: Tensor) -> Tensor:
        """Return one minus the cosine of whitened rows of gradients (T, c) and the target."""
        rows = self.mixing @ found
        if self.factors is not None:
            rows = rows * self.factors
        size = positive(rows.norm())
        loss: Tensor = 1 - (rows * self.weighted).sum() / size
        return loss

    def misfit(self, found: Tensor) -> float:
        """Return the relative norm of the whitened residual; infinite if it is not finite."""
        size = float((self.mixing @ found - self.aim).norm())
        return size if math.isfinite(size) else math.inf


COMBINED = "it fits single gradients, but this leak contains combinations; use differential"


def missing(leak: GradientLeak, batch: int | None) -> str | None:
    """Explain what an attack by optimisation lacks in a leak; None if nothing is missing.

    `batch` is the number of samples behind each gradient, if the leak need not state it.
    """
    if leak.gaps:
        return leak.gaps
    if leak.theta is None:
        why = (
            "it requires the models at which the gradients were computed, "
            "but this adversary does not know them"
        )
        if leak.adversary == "eavesdropper":
            why += f"; one who also is a node may (--as eavesdropper+node:{int(leak.node == 0)})"
        return why
    if leak.inner > 1:
        return (
            f"it compares single gradients, "
            f"but each gradient is a sum over {leak.inner} inner steps"
        )
    if not bool((leak.value != 0).any()):
        return "the gradients are zero"
    samples = batch or leak.batch
    if samples is None:
        return "the number of samples behind each gradient is unknown; set batch=N"
    if samples > CROWD * leak.value.shape[-1]:
        return (
            f"{samples} samples are behind each gradient of {leak.value.shape[-1]} numbers, "
            "too many to be determined"
        )
    return None


def incomplete(leak: GradientLeak, task: Task) -> str | None:
    """Explain why the whole gradient of a batch cannot be compared with a leak."""
    why = missing(leak, None)
    if why:
        return why
    start, stop = leak.columns
    if start > 0 or stop < task.layout.size:
        return "it requires the gradient of all parameters, to recompute it"
    return None


def clearest(leak: GradientLeak, usable: Tensor) -> GradientLeak:
    """Return the leak of the usable equation (m,) with the best signal-to-noise ratio."""
    return leak.equation(int(clarity(leak).where(usable, -1.0).argmax()))


def target(leak: GradientLeak, task: Task, rows: int, dtype: torch.dtype) -> Target:
    """Choose the consecutive rows with the best signal-to-noise ratio and prepare the comparison.

    `missing` must have returned None.
    """
    chosen = _window(leak, rows)
    used = leak.combination[chosen].count_nonzero(dim=0).nonzero().flatten()
    combination = leak.combination[chosen][:, used].to(task.device, torch.float64)
    value = leak.value[chosen].to(task.device, torch.float64)
    # In float64, because the squared rounding error of a small gradient is 0 in float32.
    whiten, noise = _whiten(leak, chosen, value)
    assert leak.theta is not None
    return Target(
        theta=leak.theta[used].to(task.device, dtype),
        combination=combination.to(dtype),
        value=value.to(dtype),
        mixing=(whiten @ combination).to(dtype),
        aim=(whiten @ value).to(dtype),
        columns=slice(*leak.columns),
        noise=noise,
    )


def gradients(target: Target, task: Task, x: Tensor, y: Tensor) -> Tensor:
    """Compute the gradients (T, c) of dummy inputs, differentiable in x and in soft labels y."""
    models = len(target.theta)
    same_x = x.expand(models, *x.shape)
    same_y = y.expand(models, *y.shape)
    return task.again(target.theta, same_x, same_y)[:, target.columns]


def l2(target: Target, task: Task, x: Tensor, y: Tensor) -> Tensor:
    """Return the squared norm of the whitened residual, relative to the target.

    Zhu et al. 2019, eq. 2, divided by the norm of the target. Gradients of zero give 1.
    """
    return target.l2(gradients(target, task, x, y))


def cosine(target: Target, task: Task, x: Tensor, y: Tensor) -> Tensor:
    """Return one minus the cosine of whitened rows and targets (Geiping et al. 2020, eq. 4)."""
    return target.cosine(gradients(target, task, x, y))


def stacked(targets: Sequence[Target]) -> tuple[Tensor, Tensor, Tensor]:
    """Stack targets of equal shapes: models (K, T, d), mixing (K, m, T) and aim (K, m, c)."""
    theta = torch.stack([t.theta for t in targets])
    mixing = torch.stack([t.mixing for t in targets])
    aim = torch.stack([t.aim for t in targets])
    return theta, mixing, aim


Weights = Literal["equal", "linear", "exp"]


def factors(task: Task, columns: slice, weights: Weights, dtype: torch.dtype) -> Tensor | None:
    """Return factors (c,) of columns, square roots of their parameter's weight; None for 1.

    Of n parameters (weights and biases count each), the k-th from 0 has the weight 1 - k / n
    (linear) or e^-k (exp), as in the code of Geiping et al. 2020.
    """
    if weights == "equal":
        return None
    found = torch.empty(task.layout.size, dtype=dtype, device=task.device)
    for k, piece in enumerate(task.layout.slices.values()):
        weight = 1 - k / len(task.layout.names) if weights == "linear" else math.exp(-k)
        found[piece] = math.sqrt(weight)
    return found[columns]


def alike(targets: Sequence[Target], sizes: Sequence[int] = ()) -> list[list[int]]:
    """Group targets that can be searched together: equal shapes, columns and batch sizes."""
    groups: dict[object, list[int]] = {}
    for k, t in enumerate(targets):
        size = sizes[k] if sizes else 1
        key = (t.theta.shape, t.aim.shape, t.columns.start, t.columns.stop, size)
        groups.setdefault(key, []).append(k)
    return list(groups.values())


def mixed(
    gradients: Gradients, columns: slice, theta: Tensor, mixing: Tensor, x: Tensor, y: Tensor
) -> Tensor:
    """Compute whitened rows (k, m * c) of some `stacked` targets, each at its own models.

    `gradients` maps models (n, d), inputs and labels to gradients, as in `evaluate.Problems`.
    """
    models = theta.shape[1]
    if models > 1:
        x = x.repeat_interleave(models, 0)
        y = y.repeat_interleave(models, 0)
    found = gradients(theta.flatten(0, 1), x, y)
    if columns != slice(0, theta.shape[-1]):  # a selection of everything would be a copy
        found = found[:, columns]
    if mixing.shape[1:] == (1, 1):
        return mixing[:, 0] * found
    return torch.bmm(mixing, found.unflatten(0, (len(theta), models))).flatten(1)


def squared(found: Tensor, aim: Tensor) -> Tensor:
    """Return the same as `l2`, (k,), for rows (k, m * c) of `mixed`."""
    loss: Tensor = _Squares.apply(found - aim.flatten(1))  # type: ignore[no-untyped-call]
    return loss


class _Squares(torch.autograd.Function):
    """Sums of squares of rows (k, n), whose derivative takes one pass over them instead of three.

    It cannot be differentiated again. Both results are the bits that autograd gives.
    """

    @staticmethod
    def forward(ctx: FunctionCtx, gap: Tensor) -> Tensor:
        """Return the sums (k,)."""
        ctx.save_for_backward(gap)
        sums: Tensor = torch.linalg.vecdot(gap, gap)
        return sums

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor) -> Tensor:
        """Return twice the rows, times the slopes (k,) of the sums."""
        (gap,) = ctx.saved_tensors
        slopes: Tensor = gap * (2 * slope)[:, None]
        return slopes


def angles(found: Tensor, aim: Tensor) -> Tensor:
    """Return the same as `cosine`, (k,), for rows (k, m * c) of `mixed`."""
    size = positive(torch.linalg.vecdot(found, found).sqrt())
    loss: Tensor = 1 - torch.linalg.vecdot(found, aim.flatten(1)) / size
    return loss


def misfit(target: Target, task: Task, x: Tensor, y: Tensor) -> float:
    """Return the residual |combination @ G - value| / |value| of whitened rows, without a graph."""
    x = x.detach()
    y = y.detach()
    return target.misfit(
        torch.stack([task.gradient(w, x, y)[target.columns] for w in target.theta])
    )


def compared(leak: GradientLeak, task: Task, x: Tensor, y: Tensor) -> tuple[float, float]:
    """Recompute the clearest equation of a leak from inputs (b, *shape) and labels (b,).

    Returns the relative residual, and the one that the leak's own errors cause.
    """
    clear = target(leak, task, 1, torch.float64)
    return misfit(clear, task, x.to(clear.value), y.to(clear.value.device)), clear.noise


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
    """Judge inputs by their relative residual after clamping.

    The certificate is APPROXIMATE or FAILED, never EXACT: other inputs may fit equally well.
    """
    x = priors.boxed(task, x.detach().nan_to_num(0.5, 1.0, 0.0))
    left = residual(x)
    certificate = Certificate.APPROXIMATE
    # A fit within twice the noise is as good as possible.
    if left > max(FIT, 2 * target.noise):
        certificate = Certificate.FAILED
    if target.noise > DROWNED:
        certificate = Certificate.FAILED
        note = f"noise is {target.noise:.2g} of the leak's signal; {note}"
    return Reconstruction(leak.node, name, x.to(task.dtype), y, certificate, left, note=note)


def _window(leak: GradientLeak, rows: int) -> slice:
    """Return the consecutive rows with the largest total signal-to-noise ratio."""
    rows = min(rows, len(leak.value))
    first = int(clarity(leak).unfold(0, rows, 1).sum(1).argmax())
    return slice(first, first + rows)


def clarity(leak: GradientLeak) -> Tensor:
    """Return the signal-to-noise ratio (m,) of every equation."""
    size = leak.value.double().norm(dim=1)
    rounding = torch.finfo(leak.value.dtype).eps * float(size.max())
    ratio: Tensor = size / (leak.std.double() * leak.value.shape[1] ** 0.5).clamp_min(rounding)
    return ratio


def _whiten(leak: GradientLeak, chosen: slice, value: Tensor) -> tuple[Tensor, float]:
    """Return the whitening (m, m) and the norm of the whitened error; exact leaks are only scaled.

    The whitening is the inverse Cholesky factor of the errors' covariance, divided by the norm
    of the whitened values.
    """
    mixed = leak.noise[chosen] if leak.noise is not None else leak.std[chosen].diag()
    noise = mixed.to(value)
    rounding = torch.finfo(leak.value.dtype).eps * value.square().mean().sqrt()
    floor = rounding + torch.finfo(value.dtype).tiny
    one = torch.eye(len(value), dtype=value.dtype, device=value.device)
    root = torch.linalg.cholesky(noise @ noise.T + floor**2 * one)
    whiten = torch.linalg.solve_triangular(root, one, upper=False)
    size = (whiten @ value).norm()
    return whiten / size, math.sqrt(value.numel()) / float(size)
