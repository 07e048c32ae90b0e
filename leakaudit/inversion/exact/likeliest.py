"""Inputs where the wire's noise counts: the likeliest ones, and those that the data's grid certifies all the same."""

from __future__ import annotations

import torch
from torch import Generator, Tensor

from leakaudit.inversion.exact import first_layer_rows, noisy_duals
from leakaudit.inversion.exact.duals_to_inputs import Inputs, merged
from leakaudit.inversion.exact.first_layer_rows import Span
from leakaudit.inversion.exact.noisy_duals import Evidence
from leakaudit.inversion.exact.pixel_grid import Grid
from leakaudit.progress import expired

TURNS = 4  # of certifying inputs and looking again for the others


def recover(white: Tensor, span: Span, grid: Grid, known: Tensor, generator: Generator) -> Inputs:
    """Find the inputs behind a whitened stack (m, H, p + 1) whose noise is white; known: (n, p) certified already.

    What is certified is exact, so it is taken as given, and the others are estimated anew beside it: their part outside it shows
    more clearly than the smallest singular values of the whole.
    """
    basis, certified, x = span.basis, known, known[:0]
    for _ in range(TURNS):
        if len(certified):
            basis = first_layer_rows.around(white, grid.rows(certified), len(span.basis), generator)
        evidence = Evidence.of(torch.einsum("mhp,bp->hmb", white, basis) / span.level)
        if len(x):
            rows = grid.rows(torch.cat([certified, x]))
            fit = noisy_duals.settled(evidence, rows @ basis.T, len(certified))
        else:
            fit = noisy_duals.search(evidence, generator)
        guesses = grid.pixels(fit.m @ basis)
        new = merged(certified, guesses, grid)
        x = guesses[~grid.holds(guesses)]
        if len(new) in (len(certified), len(basis)) or len(new) + len(x) != len(basis) or expired():
            return Inputs(new, x)
        certified = new
    return Inputs(certified, x)
