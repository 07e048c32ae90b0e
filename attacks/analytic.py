"""Exact recovery of one input from the first fully connected layer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Generator, Tensor

from leakaudit.core.leak import GradientLeak
from leakaudit.core.progress import step
from leakaudit.core.reconstruction import Reconstruction
from leakaudit.core.registry import attack, param
from leakaudit.inversion.attack import Attack, failed
from leakaudit.inversion.exact import certify, first_layer_rows
from leakaudit.inversion.exact.certify import Proof
from leakaudit.inversion.exact.pixel_grid import PixelGrid
from leakaudit.inversion.labels import consistency
from leakaudit.inversion.linear import edge

if TYPE_CHECKING:
    from leakaudit.tasks.task import Task

# Row r of dL/dW is delta_r x^T and entry r of dL/db is delta_r, so every row of the two together is
# a multiple of [x 1]: Phong et al. 2018 for one gradient, Yu 2023 section 5.4 for logistic
# regression and two-step differences. This attack uses the rows of all gradients *and differences*
# at once. The stack has rank one, and its right singular vector is the input, whatever the
# combination, the models and the labels are. Rows that come from the same messages share their
# errors, so they are first whitened over time.

# A second direction this far above the messages' own rounding is a second input. White noise
# reaches 1 in these units; rounding errors that are not white have reached 2.
NOISE_MARGIN = 10.0

# Share of the stack's norm in the second direction above which there is more than one input. Below
# it, the first direction is still the input to within a few per cent, and the certificate is
# APPROXIMATE.
SECOND = 0.05

# Smallest last entry of the unit vector [x 1]. Below it, the scale of the input is unknown.
SCALE = 1e-12


@attack("analytic")
@dataclass(frozen=True)
class Analytic(Attack):
    """Rank-one recovery of a single input from gradients or their differences."""

    exact: ClassVar[bool] = True
    rank: ClassVar[int] = 0
    reads: ClassVar[str] = (
        "gradients of one sample, or their differences, "
        "that contain the rows of a first fully connected layer"
    )
    paper: ClassVar[str] = (
        "Phong et al. 2018; Yu 2023, section 5.4, extended to differences of any network "
        "with a first fully connected layer"
    )
    cost: ClassVar[str] = "one pass over the first layer's rows"

    numbers: int = param(
        8_388_608, "maximum number of entries (rounds x rows x inputs) of the stack to use"
    )

    def refuses(self, leak: GradientLeak, task: Task) -> str | None:
        """Require one sample and a first fully connected layer with bias among the columns."""
        why = first_layer_rows.missing(leak, task)
        if why:
            return why
        if leak.samples is not None and leak.samples > 1:
            return (
                f"it recovers a single input, but each gradient comes from {leak.samples} samples"
            )
        return None

    def __call__(self, leak: GradientLeak, task: Task, generator: Generator) -> Reconstruction:
        """Reconstruct the input; `certify.single` describes what makes it exact."""
        stack = first_layer_rows.rows(leak, task)
        used = max(1, self.numbers // stack[0].numel())
        white = first_layer_rows.whiten(stack, leak, slice(used))
        flat = white.flatten(0, 1)
        signal = float(flat.norm())
        hidden = "the gradients vanish or are hidden by message noise"
        if not 0 < signal < math.inf:
            return failed("analytic", leak, task, hidden)
        step("analytic", 0, 1)
        sizes, right = first_layer_rows.largest(flat, first_layer_rows.SPARE, generator)
        step("analytic", 1, 1)
        first = right[0]
        second = float(sizes[1]) if len(sizes) > 1 else 0.0
        noise = edge(*flat.shape)
        ratio = second / signal
        sine = _sine(float((flat @ first).norm()), flat.shape)
        if sine == 1 or first[-1].abs() < SCALE:
            return failed("analytic", leak, task, hidden)
        grid = PixelGrid.of(task)
        expected = _expected_error(first, sine, grid)
        if not signal > NOISE_MARGIN * noise:
            why = "the messages' noise is too large to prove anything"
            x = grid.pixels(first[None])
            judged = Proof(x, why=f"{why}; {expected}")
            return self._reported(leak, task, judged, ratio)
        alone = second <= max(NOISE_MARGIN * noise, first_layer_rows.RESOLVED * signal)
        if not alone and ratio > SECOND:
            why = "the rows span more than one input: the gradients come from several samples"
            return failed("analytic", leak, task, why, ratio)
        judged = certify.single(leak, task, stack[:used], white, first, grid, alone)
        found = self._reported(leak, task, judged, ratio)
        return replace(found, rounds=(_rounds(leak, used),) if used < len(stack) else ())

    def _reported(
        self, leak: GradientLeak, task: Task, judged: Proof, ratio: float
    ) -> Reconstruction:
        x, evidence = certify.reported(judged.x, judged.interval, task)
        x = x.reshape(1, *task.spec.shape).to(task.dtype)
        return Reconstruction(
            leak.node,
            "analytic",
            x,
            consistency.label(leak, task, x),
            judged.certificate,
            ratio,
            note=judged.why,
            interval=judged.interval,
            evidence=evidence,
        )


def _rounds(leak: GradientLeak, used: int) -> tuple[int, ...]:
    """Return the rounds of the first equations, which the limit on numbers leaves."""
    columns = leak.combination[:used].count_nonzero(dim=0) > 0
    return tuple(leak.rounds[columns].tolist())


def _sine(size: float, shape: Sequence[int]) -> float:
    """Return the sine of the angle between the first right singular vector and the true one.

    Noise of unit variance turns the vector of a matrix (n, p) of rank one with singular value
    t. It also enlarges the value: size^2 = (t^2 + n) (t^2 + p) / t^2, and the sine's square is
    p (n + t^2) / (t^2 (t^2 + p)). Below t^4 = n p, the vector is arbitrary (Benaych-Georges and
    Nadakuditi 2012, section 3.1).
    """
    n, p = shape
    excess = size**2 - n - p
    if not excess > 2 * math.sqrt(n * p):
        return 1.0
    squared = (excess + math.sqrt(excess**2 - 4 * n * p)) / 2
    return math.sqrt(min(1.0, p * (n + squared) / (squared * (squared + p))))


def _expected_error(first: Tensor, sine: float, grid: PixelGrid) -> str:
    """Say how far the input is expected to be from the true one, if the noise is as stated."""
    turned = sine / math.sqrt(max(1e-300, 1 - sine**2) * len(first))
    seen = first[:-1] / first[-1]
    error = torch.hypot(torch.ones_like(seen), seen) * turned / first[-1].abs() * grid.std
    size = float(error.square().mean().sqrt())
    return f"expected error {size:.2g} (root mean square), if the noise is as stated"
