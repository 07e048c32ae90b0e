"""Rows of a first fully connected layer over time: stacked, whitened, and the space of inputs that they span.

Row r of round t is a combination sum_k delta_rk^t [x_k 1] of the batch, and so is a row of any difference. Over H neurons and m
leaked equations the stack (m H, p) has as many large singular values as there are different inputs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Generator, Tensor

if TYPE_CHECKING:
    from leakaudit.leak import GradientLeak
    from leakaudit.tasks.task import Task

SPARE = 16  # directions beyond the batch that are looked at
CLEAR = 5.0  # a singular value this far above the next one ends the batch
STEPS = 3  # power iterations
ABOVE = 1.45  # singular values this far above the least one that is looked at are signal that helps; those of white noise reach 1.15
STATED = (
    0.7,
    2.0,
)  # size of the largest of them, in units of sqrt(rows) + sqrt(columns), that fits what the leak says of its noise
LOUDEST = (
    3e7  # singular value, with noise 1, up to which sums of squares still hold the noise in float64
)


@dataclass(frozen=True)
class Span:
    """What the stack spans.

    basis: (b, p) orthonormal rows. sizes: singular values, the first b of the batch, the rest noise. noise: standard deviation of an
    entry of the stack. clear: ratio of the last singular value of the batch and the first one after it, the confidence in b. white:
    whether noise is white, of about the size that the leak states, and loud enough to count. level: its standard deviation as its
    largest singular value shows it.
    """

    basis: Tensor
    sizes: Tensor
    noise: float
    clear: float
    white: bool = False
    level: float = 1.0

    @property
    def batch(self) -> int:
        """Number b of different inputs."""
        return len(self.basis)


def missing(leak: GradientLeak, task: Task) -> str | None:
    """Say why a leak does not show the rows of a first fully connected layer with a bias, None where it does."""
    if task.first_linear is None:
        return f"the first layer of {task.spec.model} is not fully connected"
    weight, bias = task.first_linear
    if bias is None:
        return f"the first layer {weight} has no bias, so inputs are known up to their scale only"
    where = [task.layout.slices[weight], task.layout.slices[bias]]
    if any(s.start < leak.columns[0] or s.stop > leak.columns[1] for s in where):
        return f"the leak holds columns {leak.columns[0]}:{leak.columns[1]}, the first layer needs {where[0].start}:{where[1].stop}"
    return None


def rows(leak: GradientLeak, task: Task) -> Tensor:
    """Return the rows (m, H, p) of the first layer in float64, weights and bias side by side, without what weight decay adds."""
    weight, bias = (task.layout.slices[n] for n in task.first_linear or () if n)
    start, m, units = leak.columns[0], len(leak.value), bias.stop - bias.start
    value = leak.value.double()
    if task.l2 and leak.theta is not None:
        value = (
            value
            - task.l2 * leak.combination.double() @ leak.theta.double()[:, slice(*leak.columns)]
        )
    inputs = value[:, weight.start - start : weight.stop - start].reshape(m, units, -1)
    return torch.cat([inputs, value[:, bias.start - start : bias.stop - start, None]], dim=2)


def whiten(stack: Tensor, leak: GradientLeak, window: slice) -> Tensor:
    """Give the errors of rows (m, ...) of a window of the leak's equations unit variance, independent over time."""
    noise = leak.noise.double() if leak.noise is not None else torch.diag(leak.std.double())
    together = noise[window] @ noise[window].T
    size = stack[window].square().mean()
    floor = (
        torch.finfo(torch.float64).eps ** 2 * size
        + 1e-14 * together.diagonal().mean()
        + torch.finfo(torch.float64).tiny
    )
    root: Tensor = torch.linalg.cholesky(
        together + floor * torch.eye(len(together), dtype=together.dtype, device=together.device)
    )
    white: Tensor = torch.linalg.solve_triangular(root, stack[window].flatten(1), upper=False)
    return white.contiguous().reshape(stack[window].shape)


def span(stack: Tensor, expected: int | None, generator: Generator) -> Span | None:
    """Find the space of inputs of a whitened stack (m, H, p), None where no end of the batch shows.

    expected: size of the batch where it is known; inputs that repeat make the space smaller. Without it more and more directions
    are looked at. White noise of the stated size ends the batch where it begins, anything else where singular values drop most.
    """
    flat = stack.flatten(0, 1)
    most, edge = min(flat.shape), math.sqrt(len(flat)) + math.sqrt(flat.shape[1])
    used = int(
        (flat != 0).any(0).sum()
    )  # columns that hold anything: directions beyond them have no noise that could be compared
    count = (expected or SPARE) + SPARE
    while True:
        count = most if 3 * count > most else count
        sizes, basis = _largest(flat, count, generator)
        ratio = sizes[:-1] / sizes[1:].clamp_min(
            1e-17 * float(sizes[0]) + torch.finfo(sizes.dtype).tiny
        )
        ratio = ratio[: min(len(ratio), expected or len(ratio), max(0, used - 1))]
        noise = _noise(sizes, flat.shape) * edge if count == most else float(sizes[-1])
        loud = (
            _loud(sizes / edge, noise / edge, expected or count) if float(sizes[0]) < LOUDEST else 0
        )
        if (
            loud
            or count == most
            or expected
            or (
                len(ratio)
                and float(ratio.max()) > CLEAR
                and int(ratio.argmax()) < count - SPARE // 2
            )
        ):
            break
        count *= 2
    if not loud and (not len(ratio) or not float(ratio.max()) > CLEAR or not float(sizes[0]) > 0):
        return None
    b = loud or int(ratio.argmax()) + 1
    left = sizes[b : min(b + SPARE // 2, used)]
    noise = float(left.square().mean().sqrt()) / edge
    floor = torch.finfo(torch.float64).eps * float(sizes[0]) / math.sqrt(len(flat))
    return Span(
        basis[:b],
        sizes,
        max(noise, floor),
        float(ratio[b - 1]),
        bool(loud),
        float(sizes[b] / edge) if loud else 1.0,
    )


def around(stack: Tensor, known: Tensor, batch: int, generator: Generator) -> Tensor:
    """Return the space (batch, p) that known rows (n, p) and the largest rest of a whitened stack (m, H, p) span, the known ones first."""
    inside = torch.linalg.qr(known.T).Q.T
    flat = stack.flatten(0, 1)
    rest = _largest(flat - (flat @ inside.T) @ inside, batch - len(known), generator)[1]
    return torch.cat([inside, rest])


def _noise(sizes: Tensor, shape: Sequence[int]) -> float:
    """Standard deviation of white noise in a matrix (n, p), from all its singular values: of the fewest largest ones that stand out."""
    n, p = shape
    for k in range(len(sizes)):
        std = math.sqrt(float(sizes[k:].square().sum()) / ((n - k) * (p - k)))
        if float(sizes[k]) <= ABOVE * std * (math.sqrt(n) + math.sqrt(p)):
            break
    return std


def _loud(sizes: Tensor, noise: float, most: int) -> int:
    """Number of singular values above white noise of about size 1, the largest of which are `noise`; 0 where they are more than `most`."""
    loud = int((sizes > ABOVE * noise).sum())
    white = len(sizes) - loud >= SPARE // 2 and STATED[0] < float(sizes[loud]) < STATED[1]
    return loud if white and loud <= most else 0


def _largest(flat: Tensor, count: int, generator: Generator) -> tuple[Tensor, Tensor]:
    """Return the `count` largest singular values of (n, p) and their right vectors, by random projection and power iterations."""
    if 3 * count > min(flat.shape):
        _, sizes, right = torch.linalg.svd(
            torch.linalg.qr(flat).R if len(flat) > flat.shape[1] else flat, full_matrices=False
        )
        return sizes[:count], right[:count]
    start = torch.randn(
        count, len(flat), generator=generator, dtype=flat.dtype, device=generator.device
    ).to(flat.device)
    right = torch.linalg.qr((start @ flat).T).Q
    for _ in range(STEPS):
        right = torch.linalg.qr((torch.linalg.qr(flat @ right).Q.T @ flat).T).Q
    _, sizes, turn = torch.linalg.svd(torch.linalg.qr(flat @ right).R)
    return sizes, turn @ right.T
