"""Rows of a first fully connected layer over time: stacked, whitened, and the space they span."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Generator, Tensor

from leakaudit.core.errors import AttackError
from leakaudit.inversion.exact.pixel_errors import Estimates
from leakaudit.inversion.exact.pixel_grid import PixelGrid
from leakaudit.inversion.linear import edge

if TYPE_CHECKING:
    from leakaudit.core.leak import GradientLeak
    from leakaudit.tasks.build_task import LinearNames
    from leakaudit.tasks.task import Task

# Place row r of the layer's weight gradient and entry r of its bias gradient side by side. In round
# t, this is a combination sum_k delta_rk^t [x_k 1] of the batch, where delta_rk^t is the slope of
# sample k's loss in neuron r (Phong et al. 2018). A row of any linear combination of gradients,
# such as a difference of two rounds, is a combination of the same [x_k 1]. For H neurons and m
# leaked equations, the stack (m H, p) therefore has as many large singular values as there are
# different inputs, whatever the models and the labels are.
#
# Before these singular values can be counted, two steps are necessary:
#
# 1. **Whitening** (`whiten`). Leaked equations are differences of messages, so neighbouring
#    equations share the errors of a message. With K the covariance of these errors over time and K
#    = R R^T its Cholesky factorisation, R^-1 makes them independent with unit variance. Singular
#    values of the whitened stack can then be compared with those of white noise.
# 2. **Counting** (`span`). The largest singular value of white noise of size n x p with unit
#    variance is close to its *edge*, sqrt(n) + sqrt(p) (Bai and Yin 1993). If the observed noise
#    agrees with what the leak states, everything clearly above the edge belongs to the batch. If it
#    does not (rounding is not white, and messages in float64 have hardly any noise), the batch ends
#    at the largest drop between consecutive singular values.

# Number of directions beyond the batch that are also computed, to observe the noise; half of them
# estimate its size. A choice: with 8, noise costs up to 2 dB; 32 change nothing.
SPARE = 16

# The batch ends at a drop by this ratio. A choice: neighbouring singular values of white noise
# differ by a few per cent. From 2 to 20, batches of up to 16 images are counted correctly.
CLEAR = 5.0

# Power iterations of the randomised singular value decomposition. Each multiplies the missing part
# of a direction by the squared ratio of the first omitted singular value to its own: if this ratio
# is 1/5 (`CLEAR`), three iterations leave 5^-6 = 6e-5 of it. With one, noise costs 1 dB; six change
# nothing.
STEPS = 3

# Singular values this many times above the smallest one computed belong to the batch. White noise
# reaches at most 1.15 times its edge; the rest is margin, because a direction nearly as weak as
# noise does more harm than good. 1.2 and 1.8 give the same results.
ABOVE = 1.45

# Range of the largest singular value of the noise, in units of its edge at the stated standard
# deviation, in which the statement is accepted. A choice: one half to three, or 0.8 to 1.5, give
# the same results for messages that are rounded uniformly.
STATED = (0.7, 2.0)

# Largest singular value, for noise of variance 1, at which sums of squares in float64 still resolve
# the noise: 2.2e-16 (3e7)^2 = 0.2 is below 1.
LOUDEST = 3e7

# Value that is added to the diagonal of the errors' covariance, relative to its mean, so that it
# has a Cholesky factor even if rounding made it singular: 50 times the precision of float64.
JITTER = 1e-14

# Share of the rows' norm, in one direction, that rounding in float64 explains: rounding of the
# program's own gradients, which are the messages themselves in some protocols, and of the
# decomposition. Up to 25 units were observed, for 32,768 features. Two images that differ by one
# level in one pixel give 1e-5.
RESOLVED = 100.0 * torch.finfo(torch.float64).eps

# Smallest singular value by which another is divided, relative to the largest one: below the
# precision of float64, so that it only prevents 0 / 0.
LEAST = 1e-17

# Minimum number of rounds of a window. In a single round, there is no noise over time.
SHORTEST = 2


@dataclass(frozen=True)
class Span:
    """The space that the rows of a stack span."""

    basis: Tensor  # (b, p) orthonormal rows
    # singular values in descending order: first the b of the batch, then those of noise
    sizes: Tensor
    noise: float  # standard deviation of one entry of the stack's noise
    # ratio of the batch's last singular value to the first one after it, a measure of the
    # confidence in b
    clear: float
    # whether the noise is white, of about the size that the leak states, and large enough to matter
    white: bool = False
    # standard deviation of white noise, estimated from its largest singular value; 1 if the noise
    # is not white
    level: float = 1.0

    @property
    def batch(self) -> int:
        """The number b of different inputs."""
        return len(self.basis)


def missing(leak: GradientLeak, task: Task) -> str | None:
    """Explain why a leak does not contain the rows of a first fully connected layer with bias."""
    return leak.gaps or absent(leak, task)


def unseen(leak: GradientLeak, task: Task) -> str | None:
    """Explain why a leak has no rows in the space of the first layer's inputs (`of_inputs`)."""
    if task.adapter is None:
        return missing(leak, task)
    whole = leak.columns == (0, task.layout.size)
    return leak.gaps or (None if whole else "the adapter's factors are not among the columns")


def absent(leak: GradientLeak, task: Task) -> str | None:
    """Explain the same for a leak in which coordinates may be missing."""
    if task.first_linear is None:
        return f"the first layer of {task.spec.model} is not fully connected"
    return not_leaked(leak, task, task.first_linear)


def not_leaked(leak: GradientLeak, task: Task, layer: LinearNames) -> str | None:
    """Explain why a leak does not contain the rows of a layer with bias; None if it does."""
    weight, bias = layer
    if bias is None:
        return f"the layer {weight} has no bias, so only the direction of inputs is known"
    where = [task.layout.slices[weight], task.layout.slices[bias]]
    first, last = leak.columns
    if any(s.start < first or s.stop > last for s in where):
        return (
            f"the leak contains columns {first}:{last}, "
            f"but the layer {weight} requires {where[0].start}:{where[1].stop}"
        )
    return None


def rows(leak: GradientLeak, task: Task, layer: LinearNames | None = None) -> Tensor:
    """Extract the rows (m, H, p + 1) of the first layer, or of another linear one, in float64.

    Weight decay adds multiples of the weights. It is subtracted if the models are known; those
    between the inner steps of a gradient never are.
    """
    return entries(_plain(leak, task), leak, task, layer)


def _plain(leak: GradientLeak, task: Task) -> Tensor:
    """Return the values of a leak without weight decay, if the models are known."""
    value = leak.value.double()
    if task.l2 and leak.theta is not None and leak.inner == 1:
        models = leak.theta.double()[:, slice(*leak.columns)]
        value = value - task.l2 * leak.combination.double() @ models
    return value


def entries(
    value: Tensor, leak: GradientLeak, task: Task, layer: LinearNames | None = None
) -> Tensor:
    """Arrange columns (m, c) of a leak as rows (m, H, p + 1) of the first layer, or of another."""
    weight, bias = (task.layout.slices[n] for n in layer or task.first_linear or () if n)
    start = leak.columns[0]
    units = bias.stop - bias.start
    of_weights = value[:, weight.start - start : weight.stop - start]
    of_bias = value[:, bias.start - start : bias.stop - start, None]
    return torch.cat([of_weights.reshape(len(value), units, -1), of_bias], dim=2)


def of_inputs(leak: GradientLeak, task: Task) -> Tensor:
    """Extract rows (m, r, q) in float64 that lie in the space of the first layer's inputs.

    Those of a fully connected layer contain each input followed by a 1, q = p + 1. Those of a
    layer with a low-rank adapter are the gradient of its factor A, q = p.
    """
    if task.adapter is None:
        return rows(leak, task)
    return torch.stack([task.adapter.matrices(task.layout.split(v))[0] for v in _plain(leak, task)])


def inputs(task: Task, grid: PixelGrid, x: Tensor) -> Tensor:
    """Return inputs (n, p) as rows (n, q) of this space."""
    found = grid.rows(x)
    return found if task.adapter is None else found[:, :-1]


def fresh(leak: GradientLeak) -> bool:
    """Check whether every error is in one equation only, so that no state of a sender keeps it."""
    return leak.noise is None or bool((leak.noise.count_nonzero(dim=0) <= 1).all())


def whiten(stack: Tensor, leak: GradientLeak, window: slice) -> Tensor:
    """Scale the errors of a window of rows (m, ...) to unit variance, independent over time.

    The leak's `noise` J states which errors of messages each equation contains. The rows are
    multiplied by the inverse Cholesky factor of their covariance J J^T.
    """
    noise = leak.noise.double() if leak.noise is not None else torch.diag(leak.std.double())
    covariance = noise[window] @ noise[window].T
    size = stack[window].square().mean()
    # Errors are never smaller than the rounding of the rows themselves in float64.
    floor = (
        torch.finfo(torch.float64).eps ** 2 * size
        + JITTER * covariance.diagonal().mean()
        + torch.finfo(torch.float64).tiny
    )
    one = torch.eye(len(covariance), dtype=covariance.dtype, device=covariance.device)
    root, failed = torch.linalg.cholesky_ex(covariance + floor * one)
    if failed:
        raise AttackError("the noise of the rows of the first layer is too ill-conditioned")
    white: Tensor = torch.linalg.solve_triangular(root, stack[window].flatten(1), upper=False)
    return white.contiguous().reshape(stack[window].shape)


def span(stack: Tensor, expected: int | None, generator: Generator) -> Span | None:
    """Find the space of inputs of a whitened stack (m, H, p); None if its end is not visible.

    If the noise is white and of the stated size, the batch ends where the noise begins;
    otherwise at the largest drop between singular values. It has `expected` inputs at most; if
    that is None, an increasing number of directions is computed.
    """
    flat = stack.flatten(0, 1)
    most = min(flat.shape)
    white = edge(*flat.shape)
    # Directions beyond the number of non-zero columns contain no noise to compare with.
    used = int((flat != 0).any(0).sum())
    count = (expected or SPARE) + SPARE
    while True:
        if 3 * count > most:
            count = most
        sizes, basis = largest(flat, count, generator)
        ratio = _drops(sizes, expected, used)
        noise = _noise(sizes, flat.shape) * white if count == most else float(sizes[-1])
        loud = 0
        if float(sizes[0]) < LOUDEST:
            loud = _above_noise(sizes / white, noise / white, expected or count)
        dropped = len(ratio) > 0 and float(ratio.max()) > CLEAR
        # Some directions of noise must follow the end.
        inside = dropped and int(ratio.argmax()) < count - SPARE // 2
        if loud or count == most or expected or inside:
            break
        count *= 2
    if not loud and (not dropped or not float(sizes[0]) > 0):
        return None
    b = loud or int(ratio.argmax()) + 1
    left = sizes[b : min(b + SPARE // 2, used)]
    noise = float(left.square().mean().sqrt()) / white
    floor = torch.finfo(torch.float64).eps * float(sizes[0]) / math.sqrt(len(flat))
    return Span(
        basis=basis[:b],
        sizes=sizes,
        noise=max(noise, floor),
        clear=float(ratio[b - 1]),
        white=bool(loud),
        level=float(sizes[b] / white) if loud else 1.0,
    )


def around(stack: Tensor, known: Tensor, batch: int, generator: Generator) -> Tensor:
    """Span a space (b, p) by known rows (n, p), and the largest part of a stack outside them."""
    inside = torch.linalg.qr(known.T).Q.T
    flat = stack.flatten(0, 1)
    outside = flat - (flat @ inside.T) @ inside
    rest = largest(outside, batch - len(known), generator)[1]
    return torch.cat([inside, rest])


def _drops(sizes: Tensor, expected: int | None, used: int) -> Tensor:
    """Return ratios of each singular value to the next, as far as the batch may end there."""
    floor = LEAST * float(sizes[0]) + torch.finfo(sizes.dtype).tiny
    ratio = sizes[:-1] / sizes[1:].clamp_min(floor)
    return ratio[: min(len(ratio), expected or len(ratio), max(0, used - 1))]


def _noise(sizes: Tensor, shape: Sequence[int]) -> float:
    """Estimate the standard deviation of white noise in a matrix from all its singular values.

    If the k largest ones are signal, the others contain (n - k) (p - k) squares of noise. The
    smallest k whose next singular value may be noise is used.
    """
    n, p = shape
    for k in range(len(sizes)):
        std = math.sqrt(float(sizes[k:].square().sum()) / ((n - k) * (p - k)))
        if float(sizes[k]) <= ABOVE * std * edge(n, p):
            break
    return std


def _above_noise(sizes: Tensor, noise: float, most: int) -> int:
    """Return the number of singular values above white noise of about the stated size, 1.

    0 if the noise does not agree with the statement, or too many values stand out.
    """
    above = int((sizes > ABOVE * noise).sum())
    low, high = STATED
    white = len(sizes) - above >= SPARE // 2 and low < float(sizes[above]) < high
    return above if white and above <= most else 0


def largest(flat: Tensor, count: int, generator: Generator) -> tuple[Tensor, Tensor]:
    """Compute the largest singular values (count,) of a matrix, and right vectors (count, p).

    Random projection and power iterations (Halko, Martinsson and Tropp 2011, algorithm 4.4);
    the complete decomposition if more than a third of all is wanted, which is then no more
    expensive.
    """
    if 3 * count > min(flat.shape):
        # R of a QR decomposition has the same singular values and right vectors as the matrix.
        small = torch.linalg.qr(flat).R if len(flat) > flat.shape[1] else flat
        _, sizes, right = torch.linalg.svd(small, full_matrices=False)
        return sizes[:count], right[:count]
    start = torch.randn(
        count, len(flat), generator=generator, dtype=flat.dtype, device=generator.device
    ).to(flat.device)
    right = torch.linalg.qr((start @ flat).T).Q
    for _ in range(STEPS):
        left = torch.linalg.qr(flat @ right).Q
        right = torch.linalg.qr((left.T @ flat).T).Q
    _, sizes, turn = torch.linalg.svd(torch.linalg.qr(flat @ right).R)
    return sizes, turn @ right.T


@dataclass(frozen=True)
class BatchObservations:
    """The observations by which a batch is judged."""

    leak: GradientLeak  # source of the rows
    task: Task
    stack: Tensor  # (m, H, p + 1) rows of the first layer
    white: Tensor  # the same rows, whitened over all rounds
    span: Span
    grid: PixelGrid
    generator: Generator  # divides neurons into parts
    # if only some entries were observed: the whitened rows, and a mask (H, p + 1) of these entries.
    # The other rows above are then completed, and no evidence for pixels.
    observed: tuple[Tensor, Tensor] | None = None

    def lengths(self, most: int) -> list[int]:
        """Return lengths of windows: all rounds, half of them, a quarter, and so on."""
        rounds = len(self.stack)
        return [rounds // 2**k for k in range(most) if not k or rounds // 2**k >= SHORTEST]

    def windows(self, length: int) -> list[Tensor]:
        """Return the rows, whitened over windows of some rounds."""
        rounds = len(self.stack)
        if length == rounds:
            return [self.white]
        windows = [slice(a, a + length) for a in range(0, rounds - length + 1, length)]
        return [whiten(self.stack, self.leak, one) for one in windows]

    def estimates(self, rows: Tensor) -> Estimates:
        """Estimate the inputs (b, p + 1) again, from observed entries."""
        if self.observed is None:
            return estimates(self.leak, self.stack, self.white, rows)
        return Estimates.observed(*self.observed, rows, self.stack)


def estimates(leak: GradientLeak, stack: Tensor, white: Tensor, rows: Tensor) -> Estimates:
    """Estimate inputs (b, p + 1) again from all rows of a leak."""
    return Estimates.of(white, rows, stack, leak.wire, fresh(leak))
