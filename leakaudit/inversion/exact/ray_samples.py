"""Samples of one equation of a leak, as rays of a cone of features."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from leakaudit.inversion.exact import (
    chain_pieces,
    extreme_rays,
)
from leakaudit.inversion.exact.extreme_rays import ConvexCone
from leakaudit.inversion.exact.pixel_grid import PixelGrid
from leakaudit.inversion.labels import label_counts
from leakaudit.inversion.linear import least_squares
from leakaudit.tasks import layer_chain
from leakaudit.tasks.layer_chain import Layer

if TYPE_CHECKING:
    from leakaudit.core.leak import GradientLeak
    from leakaudit.inversion.exact.first_layer_rows import Span
    from leakaudit.tasks.build_task import LinearNames
    from leakaudit.tasks.task import Task


@dataclass(frozen=True)
class EquationSamples:
    """Samples of one equation."""

    leak: GradientLeak
    task: Task
    equation: int  # row of the leak
    layer: LinearNames  # names of the first linear layer
    rows: Tensor  # (H, n + 1) the layer's rows
    span: Span
    cone: ConvexCone
    rays: extreme_rays.Array  # (k, b) samples
    error: extreme_rays.Array  # (k,) standard deviation of a feature of each sample
    doubt: str  # why the rows do not show the number of samples with certainty; empty if they do
    firm: bool = True  # whether zeros determine the rays

    @cached_property
    def grid(self) -> PixelGrid:
        """The grid of the data."""
        return PixelGrid.of(self.task)

    @cached_property
    def chains(self) -> list[tuple[list[Layer], Tensor]]:
        """For each model that takes part: the layers before the linear one, and its weights."""
        assert self.leak.theta is not None
        used = self.leak.combination[self.equation].nonzero().flatten()
        found = []
        for theta in self.leak.theta[used].double():
            chain = layer_chain.layers(self.task, theta)
            names = [f"{one.name}.weight" for one in chain]
            at = names.index(self.layer[0])
            before = chain_pieces.folded(chain[:at])
            found.append((before, chain[at].parameters["weight"]))
        return found

    @property
    def features(self) -> Tensor:
        """(k, n) features of the samples."""
        return torch.from_numpy(self.rays).to(self.rows) @ self.span.basis[:, :-1]

    @property
    def slopes(self) -> Tensor:
        """(H, k) slopes of the samples in the linear layer; those of missing ones are left out."""
        rays = torch.from_numpy(self.rays).to(self.rows)
        inside = self.rows @ self.span.basis.T
        return least_squares(rays.T, inside.T).T

    def of_convolution(self, layer: Layer) -> Tensor | None:
        """Return the gradient of a convolution's weights (o, c, k, k); None if not leaked."""
        leak = self.leak
        name = f"{layer.name}.weight"
        value = label_counts.part(leak, self.task, leak.value[self.equation].double(), name)
        if value is None:
            return None
        if self.task.l2 and leak.theta is not None:
            columns = self.task.layout.slices[name]
            mixed = leak.combination[self.equation].double() @ leak.theta.double()[:, columns]
            value = value - self.task.l2 * mixed.reshape(value.shape)
        # The weights of a folded layer are s W, so a slope in them is 1/s of a slope in W.
        return value if layer.scale is None else value / layer.scale[:, None, None, None]
