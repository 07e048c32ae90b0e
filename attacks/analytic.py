"""One input from the first fully connected layer, exactly: row r of dL/dW is delta_r x^T and entry r of dL/db is delta_r.

Phong et al. 2018 for one gradient; Yu 2023 section 5.4 for logistic regression and two-step differences. Here all rows of
all gradients *and differences* count at once: each is a multiple of [x 1], so the stack has rank one and its right singular
vector is the input, whatever the combination, the models and the labels are. Rows of a wire share errors, so they are
whitened over time first.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Generator, Tensor

from leakaudit import consistency, temporal
from leakaudit.errors import AttackError
from leakaudit.leak import GradientLeak
from leakaudit.progress import step
from leakaudit.reconstruction import Certificate, Reconstruction
from leakaudit.registry import attack, param

if TYPE_CHECKING:
    from leakaudit.task import Task

NOISE_MARGIN = 10.0  # a second direction this far above the wire's own rounding is a second input
GRID_MARGIN = 0.09  # rms distance to the pixel grid, in grid units, at which noise takes no pixel to another value; 0.289 for anything else


@attack("analytic")
@dataclass(frozen=True)
class Analytic:
    """Rank-one recovery of a single input, from gradients or from their differences."""

    exact: ClassVar[bool] = True
    rank: ClassVar[int] = 0
    reads: ClassVar[str] = "gradients of one sample, or their differences, with the rows of a first fully connected layer"
    paper: ClassVar[str] = (
        "Phong et al. 2018; Yu 2023, section 5.4, extended to differences of any network with a first fully connected layer"
    )
    cost: ClassVar[str] = "one pass over the first layer's rows"

    numbers: int = param(1 << 23, "most entries of the stack (rounds x rows x inputs) that are used")

    def refuses(self, leak: GradientLeak, task: Task) -> str | None:
        """Need a first fully connected layer with a bias inside the recorded columns, and one sample a node."""
        if why := temporal.missing(leak, task):
            return why
        if leak.batch is not None and leak.batch > 1:
            return f"it recovers one input, and each gradient comes from {leak.batch}"
        return None

    def __call__(self, leak: GradientLeak, task: Task, generator: Generator) -> Reconstruction:
        """Reconstruct the input; the certificate is EXACT where the stack has rank one to rounding and the input lies on the pixel grid."""
        if why := self.refuses(leak, task):
            raise AttackError(f"analytic cannot use this leak: {why}")
        stack = temporal.rows(leak, task)
        used = max(1, self.numbers // stack[0].numel())
        stack = temporal.whiten(stack, leak, slice(used)).flatten(0, 1)
        step("analytic", 0, 1)
        first, second, noise = _two_directions(stack)
        step("analytic", 1, 1)
        return self._judge(leak, task, first, second, noise, stack.norm().item())

    def _judge(self, leak: GradientLeak, task: Task, first: Tensor, second: float, noise: float, signal: float) -> Reconstruction:
        """Turn the right singular vector into an input and say how sure it is."""
        ratio = second / signal if signal > 0 else 1.0
        scale = first[-1].abs()
        if not signal > NOISE_MARGIN * noise or scale < 1e-12:
            return _nothing(leak, task, 1.0, "the gradients vanish or drown in the wire's noise")
        mean, std = (
            torch.tensor(v, dtype=first.dtype).reshape(-1, *[1] * (len(task.spec.shape) - 1)) for v in (task.spec.mean, task.spec.std)
        )
        x = (first[:-1] / first[-1]).reshape(task.spec.shape) * std + mean
        single = second <= NOISE_MARGIN * noise
        if not single and ratio > 0.05:
            return _nothing(leak, task, ratio, "the rows span more than one input: the batch is larger than one")
        certificate, note = Certificate.APPROXIMATE, ""
        if task.spec.levels:
            snapped = (x * task.spec.levels).round() / task.spec.levels
            off = float((x - snapped).mul(task.spec.levels).square().mean().sqrt())
            if single and off < GRID_MARGIN and x.min() > -0.01 and x.max() < 1.01:
                certificate, x, note = Certificate.EXACT, snapped, f"off the pixel grid by {off:.1e} grid units before snapping"
        elif single:
            certificate = Certificate.EXACT
        if task.spec.is_image:
            x = x.clamp(0, 1)
        x = x[None].to(task.dtype)
        return Reconstruction(leak.node, "analytic", x, consistency.label(leak, task, x), certificate, ratio, note=note)


def _nothing(leak: GradientLeak, task: Task, residual: float, note: str) -> Reconstruction:
    return Reconstruction(leak.node, "analytic", torch.empty(0, *task.spec.shape), None, Certificate.FAILED, residual, note=note)


def _two_directions(stack: Tensor) -> tuple[Tensor, float, float]:
    """Return the first right singular vector of (n, p), the second singular value and what pure unit noise would have."""
    first = _power(stack, stack.T @ stack[:, -1])
    rest = stack - torch.outer(stack @ first, first)
    second = _power(rest, rest.T @ rest.square().sum(1).sqrt())
    return first, float((rest @ second).norm()), math.sqrt(stack.shape[0]) + math.sqrt(stack.shape[1])


def _power(stack: Tensor, start: Tensor, steps: int = 30) -> Tensor:
    """Run power iterations on stack^T stack."""
    v: Tensor = start / start.norm().clamp_min(torch.finfo(start.dtype).tiny)
    for _ in range(steps):
        new: Tensor = stack.T @ (stack @ v)
        new = new / new.norm().clamp_min(torch.finfo(new.dtype).tiny)
        if (new - v).norm() < 1e-15 * math.sqrt(len(v)):
            break
        v = new
    return v
