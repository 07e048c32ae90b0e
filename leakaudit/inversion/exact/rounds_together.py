"""Images from several rounds: the features at each model are equations between the same pixels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Generator, Tensor

from leakaudit.core.progress import expired
from leakaudit.core.reconstruction import Certificate, Reconstruction
from leakaudit.inversion.attack import failed
from leakaudit.inversion.exact import certify, features, whole_batch, whole_chain
from leakaudit.inversion.exact.chain_pieces import ComposedFunction
from leakaudit.inversion.exact.pixel_grid import PixelGrid
from leakaudit.inversion.exact.whole_chain import ChainEquations, ChainSystem
from leakaudit.inversion.labels import consistency
from leakaudit.inversion.search import objectives

if TYPE_CHECKING:
    from leakaudit.core.leak import GradientLeak
    from leakaudit.tasks.task import Task

# A small network has fewer features than its images have pixels, and a gradient with fewer entries
# than all pixels of a batch. But if a node uses the same batch in every round, every model gives
# other features of the same images, and enough rounds together determine them.
#
# 1. **Features** of all samples, separately from the gradient of each round (`features.samples`).
# 2. **Order.** They come in any order. What is known of the images so far predicts their features
#    at the next model, and the assignment with the smallest differences tells which are whose.
# 3. **Pixels.** All rounds are one system of equations, and `whole_chain` solves it. While there
#    are fewer equations than pixels, a few steps suffice: they only have to predict features.
#
# Images are certified by the conditions of the whole chain: at least `whole_chain.ENOUGH` equations
# per pixel, all features of all rounds reproduced by the rounded images, no change of whole levels
# that keeps them to first order, and the whole gradient of every round.

# Steps of a search while there are few equations. A choice.
ROUGH = 8

# Equations per pixel from which images are solved for, if there are enough rounds. With fewer, more
# steps and iterations are needed.
PLENTY = 1.5

# Rounds without the features of all samples after which no more are tried.
PATIENCE = 3


def missing(leak: GradientLeak) -> str | None:
    """Explain why the rounds of a leak cannot be solved together; None if they can."""
    if not leak.steady or leak.batch is None:
        return "it requires the same batch of known size in every round"
    if int(leak.single.sum()) < 2:
        return "it requires the gradients of several rounds"
    return None


def recover(leak: GradientLeak, task: Task, most: int, generator: Generator) -> Reconstruction:
    """Recover the images behind several gradients of one batch."""
    grid = PixelGrid.of(task)
    images: _Images | None = None
    missed = 0
    why = ""
    rounds = leak.single.nonzero().flatten()[:most].tolist()
    for equation in rounds:
        if missed == PATIENCE or expired():
            break
        known = _equations(leak, task, equation, generator)
        if isinstance(known, str):
            why = known
            missed += 1
            continue
        last = equation == rounds[-1]
        images = (images or _Images.grey(task, known)).with_round(known, grid, last)
        if bool(images.done.all()):
            break
    if images is None:
        return failed("cone", leak, task, why)
    return _reported(leak, task, images, grid)


@dataclass(frozen=True)
class _Images:
    """Images and the rounds that they were solved from."""

    x: Tensor  # (b, *shape) as the network receives them
    done: Tensor  # (b,) whether they are determined and reproduce all features
    parts: tuple[ChainEquations, ...]  # the equations of each round, in the order of the images

    @classmethod
    def grey(cls, task: Task, known: ChainEquations) -> _Images:
        """Start from grey images."""
        shape = (len(known.values), *task.spec.shape)
        x = torch.full(shape, whole_batch.GREY, dtype=known.values.dtype)
        return cls(task.normalise(x), torch.zeros(len(x), dtype=torch.bool), ())

    def with_round(self, known: ChainEquations, grid: PixelGrid, last: bool) -> _Images:
        """Add the equations of another round, in any order of the images, and solve all of them."""
        if self.parts:
            known = self._ordered(known)
        system = ChainSystem((*self.parts, known))
        enough = system.per_pixel >= (whole_chain.ENOUGH if last else PLENTY)
        x, done = whole_chain.solve(system, self.x, grid, whole_chain.STEPS if enough else ROUGH)
        return _Images(x, done & enough, system.parts)

    def _ordered(self, known: ChainEquations) -> ChainEquations:
        """Assign features to the images that predict them best."""
        from scipy.optimize import linear_sum_assignment  # slow to import

        predicted = known.predicted(self.x)
        # Features that are the same for all images tell nothing.
        middle = known.values.mean(0)
        apart = torch.cdist(predicted - middle, known.values - middle)
        order = linear_sum_assignment(apart.square().numpy())[1]
        return known.of(torch.from_numpy(order))


def _equations(
    leak: GradientLeak, task: Task, equation: int, generator: Generator
) -> ChainEquations | str:
    """Find the features of all samples in one round, or explain why there are none."""
    found = features.samples(leak, task, equation, generator)
    if isinstance(found, str):
        return found
    if found.doubt:
        return found.doubt
    if len(found.rays) < found.span.batch:
        return f"the features of {len(found.rays)} of {found.span.batch} samples were found"
    ((chain, _),) = found.chains
    composed = ComposedFunction.of(chain)
    if isinstance(composed, str):
        return composed
    return whole_batch.equations(found, composed, range(len(found.rays)))


def _reported(leak: GradientLeak, task: Task, images: _Images, grid: PixelGrid) -> Reconstruction:
    system = ChainSystem(images.parts)
    wanted = len(images.x)
    x = task.denormalise(images.x)
    found = int(images.done.sum())
    why = ""
    y = None
    left = 1.0
    if system.per_pixel < whole_chain.ENOUGH:
        why = whole_batch.SHORT.format(system.per_pixel)
    elif found < wanted:
        why = whole_batch.STUCK
    else:
        x = grid.snapped(x)
        y = consistency.labels(leak, task, x)
        if not bool(whole_chain.unique(system, images.x).all()):
            why = whole_batch.LOOSE
        elif y is None:
            why = "the labels were not found, so the whole gradients were not compared"
    if y is not None:
        left, explained = _compared(leak, task, x, y)
        if not explained:
            why = why or "the whole gradient of these images differs from the leaked one"
    sentence = f"{found} of {wanted} images reproduce their features in {len(system.parts)} rounds"
    return Reconstruction(
        leak.node,
        "cone",
        x.clamp(0, 1).to(task.dtype),
        y,
        Certificate.APPROXIMATE if why else Certificate.EXACT,
        left,
        note="; ".join(filter(None, (sentence, why))),
        certified=0 if why else wanted,
    )


def _compared(leak: GradientLeak, task: Task, x: Tensor, y: Tensor) -> tuple[float, bool]:
    """Return the largest residual of a round, and whether errors explain those of all rounds."""
    worst = 0.0
    explained = True
    for equation in range(len(leak.value)):
        left, noise = objectives.compared(leak.equation(equation), task, x, y)
        worst = max(worst, left)
        explained &= left <= max(certify.ROUNDED, features.EXPLAINED * noise)
    return worst, explained
