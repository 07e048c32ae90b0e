"""Whole batches from ONE gradient, through convolutions: samples as extreme rays of a cone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Generator, Tensor

from leakaudit.core.leak import GradientLeak
from leakaudit.core.reconstruction import Certificate, Reconstruction
from leakaudit.core.registry import attack, param
from leakaudit.inversion.attack import Attack, failed
from leakaudit.inversion.exact import (
    extreme_rays,
    features,
    first_layer_rows,
    proof,
    rounds_together,
)
from leakaudit.inversion.exact.duals_to_inputs import KnownInputs
from leakaudit.inversion.exact.extreme_rays import Array
from leakaudit.inversion.exact.first_layer_rows import BatchObservations
from leakaudit.inversion.exact.pixel_grid import OFF_SEARCHED, PixelGrid
from leakaudit.inversion.search import objectives

if TYPE_CHECKING:
    from leakaudit.tasks.task import Task

# Inputs of a linear layer that are never negative are extreme rays of a cone in the row space of
# its gradient (`leakaudit.inversion.exact.extreme_rays`), and linear programs find them. This needs
# no ReLU after the layer, no second round, and no label.
#
# * If the layer is the first one, its inputs are the pixels, which also have an upper limit.
# * If convolutions and ReLUs come before it, its inputs are features. With the known weights,
#   `peel` solves for the pixels layer by layer, or `whole_batch` through all layers at once, if
#   there are enough equations. If not, `rounds_together` uses the features of several rounds.
# * If the layer is the last one, with softmax behind it, its inputs need no zeros (`last_layer`),
#   so that the activation may also be a sigmoid or tanh.
#
# docs/cone.md has the idea in full, its certificate and its limits.

INVISIBLE = (
    "the singular values do not show the batch size: "
    "the batch is too large for these rows, or the noise hides it"
)


@attack("cone")
@dataclass(frozen=True)
class Cone(Attack):
    """Recovery of batches from non-negative inputs or features, by linear programs."""

    exact: ClassVar[bool] = True
    rank: ClassVar[int] = 3
    reads: ClassVar[str] = (
        "one gradient, or one difference, of a linear layer whose inputs are pixels "
        "or come out of convolutions with ReLU; several gradients of one batch, if one is too few"
    )
    paper: ClassVar[str] = (
        "unpublished; the row space of one gradient is used by Dimitrov et al. 2024 (SPEAR)"
    )
    cost: ClassVar[str] = (
        "one to three linear programs per sample: a second for 16 samples, half a minute for 64"
    )

    rounds: int = param(3, "number of gradients to try, those with the least noise first")
    together: int = param(24, "maximum number of gradients of one batch to solve together")

    def refuses(self, leak: GradientLeak, task: Task) -> str | None:
        """Require pixels in [0, 1] and a first linear layer, with nothing but ReLU before it."""
        if not task.spec.is_image or not task.spec.levels:
            return "it requires images with pixels k/levels"
        if task.first_linear is not None:
            return first_layer_rows.missing(leak, task)
        return features.missing(leak, task)

    def __call__(self, leak: GradientLeak, task: Task, generator: Generator) -> Reconstruction:
        """Reconstruct the batch.

        EXACT requires what `certify` requires of pixels, or `features` of features.
        """
        if task.first_linear is not None:
            return _pixels(leak, task, generator)
        best = failed("cone", leak, task, INVISIBLE)
        several = rounds_together.missing(leak) is None
        for found in self._attempts(leak, task, several, generator):
            if _rank(found) >= _rank(best):
                best = found
            if found.certificate is Certificate.EXACT:
                break
        return best

    def _attempts(
        self, leak: GradientLeak, task: Task, several: bool, generator: Generator
    ) -> Iterator[Reconstruction]:
        """Yield reconstructions from features, those that take the least time first."""
        clearest = objectives.clarity(leak).argsort(descending=True)[: self.rounds].tolist()
        if several:
            for equation in clearest:
                yield features.recover(leak, task, equation, generator, whole=False)
            yield rounds_together.recover(leak, task, self.together, generator)
        for equation in clearest:
            yield features.recover(leak, task, equation, generator)


def _rank(found: Reconstruction) -> tuple[int, int]:
    return found.certified, len(found.x)


def _pixels(leak: GradientLeak, task: Task, generator: Generator) -> Reconstruction:
    """Recover the inputs of a first linear layer from all rounds."""
    stack = first_layer_rows.rows(leak, task)
    white = first_layer_rows.whiten(stack, leak, slice(None))
    span = first_layer_rows.span(white, leak.inputs, generator)
    if span is None:
        return failed("cone", leak, task, INVISIBLE)
    grid = PixelGrid.of(task)
    heard = BatchObservations(leak, task, stack, white, span, grid, generator)
    one = span.basis[:, -1]
    # The layer receives (x - mean) / std, and the column of its bias is 1.
    pixels = span.basis[:, :-1] * grid.std + one[:, None] * grid.mean
    gain = float(torch.hypot(grid.std, grid.mean).max())
    box = torch.cat([pixels, one[:, None] - pixels, one[:, None]], dim=1)
    cone = extreme_rays.ConvexCone.of(box, one, span.sizes[: span.batch], gain * span.noise)

    def image(ray: Array) -> Tensor:
        return torch.from_numpy(ray).to(pixels) @ pixels

    def accepts(ray: Array) -> bool:
        return bool(grid.holds(image(ray)[None], OFF_SEARCHED)[0])

    rays = extreme_rays.rays(cone, span.batch, accepts, generator)
    x = grid.snapped(torch.stack([image(ray) for ray in rays])) if len(rays) else pixels[:0]
    return proof.reconstruction("cone", proof.proven(KnownInputs(x, pixels[:0]), heard), heard)
