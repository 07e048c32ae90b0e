"""The samples of one gradient that were not peeled, solved through all layers at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from leakaudit.inversion.exact import certify, whole_chain
from leakaudit.inversion.exact.chain_pieces import ComposedFunction
from leakaudit.inversion.exact.whole_chain import ChainEquations, ChainSystem

if TYPE_CHECKING:
    from leakaudit.inversion.exact.ray_samples import EquationSamples

# `whole_chain` has the equations. Each sample is solved from its own features if they are enough.
# If that leaves some open, and all samples of the batch are there, the gradients of the
# convolutions join in, and all samples are solved together.

# Error of features that the rounding of activations in float32 explains, a root mean square
# relative to the largest feature; 4e-8 has been observed. With messages in float64, it is smaller
# in proportion to their precision.
ROUNDED = 2e-7

# Smallest error of features, in the same units: pixels k/255 that are stored in float32 lie beside
# the grid. 9e-9 has been observed.
LEAST = 2e-8

# Number of equations per pixel below which no search is started: the solution would not be unique.
FEWEST = 1.0

# A gray image, from which every search starts.
GREY = 0.5

SHORT = "the whole chain has {:.1f} equations per pixel, which is too few"
# The part of the noise of a gradient's entries that all of them together may explain, as a norm.
NOISY = 3.0

STUCK = "the search through the whole chain ended without images that reproduce their features"
LOOSE = "some change of an image may keep its features"


@dataclass(eq=False)
class _RaySearch:
    """Images of some rays, and what was found so far."""

    found: EquationSamples  # rays of one gradient
    known: dict[int, Tensor]  # images on the grid, by ray, that were found before
    # images on the grid with the features of their ray, which no other image of the same linear
    # piece has
    unique: dict[int, Tensor]
    close: dict[int, Tensor]  # other images
    why: str = ""  # why an image is missing or not unique; empty if none is

    @property
    def left(self) -> list[int]:
        """The rays without an image."""
        rays = range(len(self.found.rays))
        return [k for k in rays if k not in self.known and k not in self.unique]

    def alone(self, chain: ComposedFunction) -> None:
        """Solve for every image from its own features."""
        if self.left:
            one = equations(self.found, chain, self.left)
            self._attempt(self.left, ChainSystem((one,)))

    def together(self, chain: ComposedFunction, weight: Tensor) -> None:
        """Solve for all images from their features and the last convolution's gradient."""
        found = self.found
        if not self.left or len(found.rays) != found.span.batch or len(found.chains) > 1:
            return
        # The slopes in the outputs of earlier convolutions jump where a ReLU after them changes,
        # and a search through such equations ends at once.
        gradient = found.of_convolution(chain.convolutions[-1])
        if gradient is None:
            return
        # What of the whole gradient stays unexplained is the error of that of all convolutions.
        value = found.leak.value[found.equation].double()
        noise = float(found.leak.std[found.equation]) * len(value) ** 0.5
        accuracy = max(certify.ROUNDED * float(value.norm()), NOISY * noise)
        every = list(range(len(found.rays)))
        slopes = found.slopes.T @ weight
        one = equations(self.found, chain, every)
        one = replace(one, gradient=gradient, slopes=slopes, accuracy=accuracy)
        self._attempt(every, ChainSystem((one,)))

    def _attempt(self, rays: list[int], equations: ChainSystem) -> None:
        """Solve equations of some rays, and sort the images."""
        if equations.per_pixel < FEWEST:
            self.why = SHORT.format(equations.per_pixel)
            return
        task = self.found.task
        grid = self.found.grid
        start = torch.full((len(rays), *task.spec.shape), GREY, dtype=self.found.rows.dtype)
        best = {**self.close, **self.unique, **self.known}
        for place, k in enumerate(rays):
            if k in best:
                start[place] = best[k]
        x, done = whole_chain.solve(equations, task.normalise(start), grid)
        unique = torch.zeros_like(done)
        if bool(done.all()) or (bool(done.any()) and not equations.joint):
            unique[done] = whole_chain.unique(equations.of(done), x[done])
        self.why = "" if bool(unique.all()) else LOOSE if bool(done.all()) else STUCK
        for place, k in enumerate(rays):
            image = task.denormalise(x[place])
            if k in self.known or k in self.unique:
                continue
            if bool(unique[place]):
                self.unique[k] = grid.snapped(image)
                self.close.pop(k, None)
            else:
                self.close[k] = image


def equations(
    found: EquationSamples, chain: ComposedFunction, rays: Sequence[int]
) -> ChainEquations:
    """Return what the features of some rays say about their images."""
    chosen = torch.tensor(list(rays))
    values = found.features[chosen]
    precision = (found.leak.wire or 1.0) / torch.finfo(torch.float32).eps
    floor = max(LEAST, ROUNDED * min(1.0, precision))
    errors = torch.from_numpy(found.error).to(values)[chosen]
    error = (errors / values.abs().amax(1)).clamp_min(floor)
    level = (1 / (found.grid.levels * found.grid.std)).reshape(1, *found.task.spec.shape)
    return ChainEquations(chain, values, error, level)


def solve(
    found: EquationSamples, known: Mapping[int, Tensor], starts: Mapping[int, Tensor]
) -> _RaySearch:
    """Solve for the images of all rays that are not known, from some starts or from grey."""
    search = _RaySearch(found, dict(known), {}, dict(starts))
    for chain, weight in found.chains:
        if not search.left:
            break
        whole = ComposedFunction.of(chain)
        if isinstance(whole, str):
            search.why = whole
            break
        search.alone(whole)
        search.together(whole, weight)
    return search
