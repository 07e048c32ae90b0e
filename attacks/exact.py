"""Exact recovery of a whole batch from the first fully connected layer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Generator

from leakaudit.core.leak import GradientLeak
from leakaudit.core.progress import expired, step
from leakaudit.core.reconstruction import Reconstruction
from leakaudit.core.registry import attack, param
from leakaudit.inversion.attack import Attack, failed
from leakaudit.inversion.exact import (
    adapter_batch,
    duals_to_inputs,
    first_layer_rows,
    noisy_duals,
    proof,
)
from leakaudit.inversion.exact.activation_patterns import Groups
from leakaudit.inversion.exact.duals_to_inputs import KnownInputs
from leakaudit.inversion.exact.first_layer_rows import BatchObservations
from leakaudit.inversion.exact.pixel_grid import PixelGrid

if TYPE_CHECKING:
    from leakaudit.tasks.task import Task

# The attack reads gradients or differences of gradients.
#
# Row r of dL/dW of the layer is sum_k delta_rk [x_k 1], and so is a row of any combination of
# gradients. All rows therefore lie in the space spanned by the batch's inputs (Phong et al. 2018;
# SPEAR, Dimitrov et al. 2024, for one gradient). If a ReLU stays inactive for sample k in all
# recorded rounds, its row does not contain x_k. `activation_patterns` finds these patterns,
# `duals_to_inputs` converts them into inputs, and the data's grid k/levels determines for every
# single input whether it is exact. Neither models nor labels are needed. If white noise is large
# enough to matter, `noisy_duals` instead weighs all rows and patterns jointly, and the estimates
# are approximate.
#
# docs/exact.md has the theorem behind the certificates, and what can be recovered at which noise.

# Ratio of the batch's weakest direction to white noise below which only the likelihood helps: walks
# need neurons that are 20 times above the noise (`activation_patterns.SOFT`) in every direction.
FAINT = 100.0


@attack("exact")
@dataclass(frozen=True)
class Exact(Attack):
    """Recovery of batches from activation patterns over time, certified image by image."""

    exact: ClassVar[bool] = True
    rank: ClassVar[int] = 1
    reads: ClassVar[str] = (
        "gradients of one unchanged batch, or their differences, "
        "that contain the rows of a first fully connected layer; or gradients of its low-rank "
        "adapter, at known models"
    )
    paper: ClassVar[str] = (
        "extends Phong et al. 2018 and Dimitrov et al. 2024 (SPEAR) to many rounds "
        "and to differences of gradients"
    )
    cost: ClassVar[str] = (
        "under a second for 8 samples and about ten for 64, if there are as many rounds as samples"
    )

    visits: int = param(
        150, "walks, or batches of 2048 draws, that may fail in a row before a search ends"
    )
    # A ReLU that is active once in all rounds may be inactive in a part of them.
    windows: int = param(
        3, "number of window lengths to try: all rounds, half of them, a quarter, …"
    )

    def refuses(self, leak: GradientLeak, task: Task) -> str | None:
        """Require a first fully connected layer with bias, or an adapter of it."""
        if task.first_linear is None or task.adapter is not None:
            return adapter_batch.missing(leak, task)
        return first_layer_rows.missing(leak, task)

    def __call__(self, leak: GradientLeak, task: Task, generator: Generator) -> Reconstruction:
        """Reconstruct the batch.

        The certificate is EXACT if every different input is certified, and APPROXIMATE if some are,
        with their number in the note.
        """
        if task.adapter is not None:
            return adapter_batch.recover(leak, task, generator)
        stack = first_layer_rows.rows(leak, task)
        white = first_layer_rows.whiten(stack, leak, slice(None))
        span = first_layer_rows.span(white, leak.inputs, generator)
        if span is None:
            why = (
                "the singular values do not show the batch size: "
                "the batch is too large for these rows, or the noise hides it"
            )
            return failed("exact", leak, task, why)
        heard = BatchObservations(leak, task, stack, white, span, PixelGrid.of(task), generator)
        return proof.reconstruction("exact", proof.proven(self._searched(heard), heard), heard)

    def _searched(self, heard: BatchObservations) -> KnownInputs:
        """Search for the inputs: by likelihood if there is noise, and by walks in windows."""
        span = heard.span
        grid = heard.grid
        nothing = heard.white.new_zeros(0, len(grid.mean))
        found = KnownInputs(nothing, nothing)
        noisy = span.white and 1 < span.batch <= noisy_duals.MOST
        if noisy:
            found = noisy_duals.recover(heard.white, span, grid, heard.generator)
        for tried, length in enumerate(heard.lengths(self.windows)):
            everything = len(found.certified) >= span.batch
            hopeless = noisy and span.clear < FAINT
            settled = found.complete and not grid.levels
            if everything or hopeless or settled or expired():
                break
            step("exact", tried, self.windows)
            groups = _groups(heard, length)
            known = found.certified
            new = duals_to_inputs.recover(
                groups, span.basis, grid, known, self.visits, heard.generator
            )
            first = not (tried or noisy)
            if len(new.certified) > len(known) or first or new.complete:
                found = new
        step("exact", self.windows, self.windows)
        return found


def _groups(heard: BatchObservations, length: int) -> Groups:
    """Rows of all neurons over windows of a given length, in coordinates of the batch's space."""
    basis = heard.span.basis
    rows = torch.cat([torch.einsum("mhp,bp->hmb", part, basis) for part in heard.windows(length)])
    return Groups.of(rows, torch.full((len(rows),), heard.span.noise, dtype=rows.dtype))
