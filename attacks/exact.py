"""A whole batch from the first fully connected layer, exactly, from gradients or from their differences.

Row r of dL/dW of the layer is sum_k delta_rk [x_k 1], and so is a row of any combination of gradients, so all rows lie in the space
of the batch's inputs (Phong et al. 2018; SPEAR, Dimitrov et al. 2024, for one gradient). A ReLU that stays inactive for sample k over
the recorded rounds hides x_k from its row: `lattice` finds these patterns, `isolate` turns them into inputs, and the data's grid
k/levels says of every input by itself whether it is exact. Neither models nor labels are needed. Where white noise is loud enough to
count, `noisy_duals` weighs all rows and patterns together instead, and estimates are approximate.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Generator, Tensor

from leakaudit.errors import AttackError
from leakaudit.inversion.exact import (
    certify,
    duals_to_inputs,
    first_layer_rows,
    noisy_duals,
)
from leakaudit.inversion.exact.activation_patterns import Groups
from leakaudit.inversion.exact.certify import Heard
from leakaudit.inversion.exact.duals_to_inputs import Inputs
from leakaudit.inversion.exact.pixel_grid import Grid
from leakaudit.inversion.labels import batch_labels, consistency
from leakaudit.leak import GradientLeak
from leakaudit.progress import expired, step
from leakaudit.reconstruction import SHOWN, Certificate, Reconstruction
from leakaudit.registry import attack, param

if TYPE_CHECKING:
    from leakaudit.inversion.exact.first_layer_rows import Span
    from leakaudit.tasks.task import Task

SHORTEST = 2  # rounds of a window
APART = 0.02  # rms distance of two estimates that count as two
LEAVES = 0.15  # how far an estimate may leave [0, 1], root mean square, to be shown
FAINT = 100.0  # ratio of the batch's least direction and white noise below which nothing but the likelihood helps


@attack("exact")
@dataclass(frozen=True)
class Exact:
    """Recovery of batches from activation patterns over time, certified image by image on the pixel grid."""

    exact: ClassVar[bool] = True
    rank: ClassVar[int] = 1
    reads: ClassVar[str] = (
        "gradients of one unchanged batch, or their differences, with the rows of a first fully connected layer"
    )
    paper: ClassVar[str] = (
        "extends Phong et al. 2018 and Dimitrov et al. 2024 (SPEAR) to many rounds and to differences of gradients"
    )
    cost: ClassVar[str] = (
        "under a second for 8 samples and about ten for 64, where there are as many rounds as samples"
    )

    visits: int = param(
        150, "walks, and batches of 2048 draws, that may fail in a row before a search ends"
    )
    windows: int = param(3, "window lengths that are tried: all rounds, half of them, a quarter, …")

    def refuses(self, leak: GradientLeak, task: Task) -> str | None:
        """Need a first fully connected layer with a bias inside the recorded columns."""
        return first_layer_rows.missing(leak, task)

    def __call__(self, leak: GradientLeak, task: Task, generator: Generator) -> Reconstruction:
        """Reconstruct the batch; EXACT where every different input is certified, APPROXIMATE where some are, with the count in the note."""
        if why := self.refuses(leak, task):
            raise AttackError(f"exact cannot use this leak: {why}")
        stack = first_layer_rows.rows(leak, task)
        white = first_layer_rows.whiten(stack, leak, slice(None))
        span = first_layer_rows.span(white, leak.batch, generator)
        if span is None:
            why = "the rows show no end of the batch: it is larger than the rows can tell, or the noise hides it"
            return Reconstruction(
                leak.node,
                "exact",
                torch.empty(0, *task.spec.shape),
                None,
                Certificate.FAILED,
                1.0,
                note=why,
            )
        grid = Grid.of(task)
        found = Inputs(white.new_zeros(0, len(grid.mean)), white.new_zeros(0, len(grid.mean)))
        noisy = span.white and 1 < span.batch <= noisy_duals.MOST
        if noisy:
            found = noisy_duals.recover(white, span, grid, found.certified, generator)
        for tried, length in enumerate(_lengths(len(stack), self.windows)):
            if (
                len(found.certified) >= span.batch
                or (noisy and span.clear < FAINT)
                or (found.complete and not grid.levels)
                or expired()
            ):
                break
            step("exact", tried, self.windows)
            groups = _groups(stack, leak, length, span, white)
            new = duals_to_inputs.recover(
                groups, span.basis, grid, found.certified, self.visits, generator
            )
            found = (
                new
                if len(new.certified) > len(found.certified) or not (tried or noisy) or new.complete
                else found
            )
        step("exact", self.windows, self.windows)
        return _judged(found, Heard(leak, task, stack, white, span, grid, generator))


def _groups(stack: Tensor, leak: GradientLeak, length: int, span: Span, white: Tensor) -> Groups:
    """Rows of all neurons over windows of some length, in coordinates of the batch's space; white: the whole stack, whitened."""
    windows = [slice(a, a + length) for a in range(0, len(stack) - length + 1, length)]
    parts = (
        [white]
        if length == len(stack)
        else [first_layer_rows.whiten(stack, leak, window) for window in windows]
    )
    rows = torch.cat([torch.einsum("mhp,bp->hmb", part, span.basis) for part in parts])
    return Groups.of(rows, torch.full((len(rows),), span.noise, dtype=rows.dtype))


def _lengths(rounds: int, windows: int) -> list[int]:
    """Window lengths: all rounds, half of them, a quarter, and so on."""
    return [rounds // 2**k for k in range(windows) if not k or rounds // 2**k >= SHORTEST]


def _judged(found: Inputs, heard: Heard) -> Reconstruction:
    """Put proven inputs first, then the others, and say how sure each is."""
    leak, task, span, grid = heard.leak, heard.task, heard.span, heard.grid
    wanted = span.batch
    if not grid.levels and found.complete:
        judged = certify.table(heard, found.open)
        found = replace(found, open=judged.x)
        proven, choices = torch.zeros(0, dtype=torch.bool), dict[int, Tensor]()
        exact, certified, why, interval = 0, found.certified, judged.note, judged.interval
    else:
        found = _rounded(found, wanted, grid)
        batch = certify.batch(heard, found.certified, found.open)
        proven = torch.tensor(batch.exact, dtype=torch.bool)
        exact, certified, why, interval = int(proven.sum()), batch.x, batch.why, None
        order = [*proven.nonzero().flatten().tolist(), *(~proven).nonzero().flatten().tolist()]
        choices = {place: batch.choices[k] for place, k in enumerate(order) if k in batch.choices}
    rest = grid.denoised(_distinct(found, wanted - len(found.certified), task.spec.is_image))
    flat = torch.cat([certified[proven], certified[~proven], rest])
    certificate, sentence = Certificate.FAILED, f"no input was isolated out of a batch of {wanted}"
    if exact == wanted:
        certificate, sentence = Certificate.EXACT, f"all {wanted} different inputs are exact"
    elif interval is not None and len(flat) == wanted:
        certificate, sentence = Certificate.INTERVAL, f"all {wanted} different inputs are found"
    elif len(flat):
        certificate = Certificate.APPROXIMATE
        missing = max(0, wanted - len(flat))
        sentence = f"{exact} of {wanted} inputs exact (the first ones), {len(flat) - exact} approximate, {missing} not isolated"
    x = (
        (flat.clamp(0, 1) if task.spec.is_image else flat)
        .reshape(-1, *task.spec.shape)
        .to(task.dtype)
    )
    seen = f"batch of {wanted} by a drop of {span.clear:.0e} in the singular values"
    if leak.batch is not None and leak.batch != wanted:
        seen += f", {leak.batch} samples were announced: some repeat or show no gradient"
    y = None
    if certificate in (Certificate.EXACT, Certificate.INTERVAL):
        y = consistency.label(leak, task, x) if wanted == 1 else batch_labels.labels(leak, task, x)
    note = "; ".join(filter(None, (sentence, why, *_candidates(choices, flat, grid), seen)))
    interval = interval if certificate is Certificate.INTERVAL else None
    residual = _residual(flat, heard.white, grid)
    shown = {
        k: some[:SHOWN].reshape(-1, *task.spec.shape).to(task.dtype) for k, some in choices.items()
    }
    return Reconstruction(
        leak.node,
        "exact",
        x,
        y,
        certificate,
        residual,
        note=note,
        certified=exact,
        interval=interval,
        choices=shown,
    )


def _candidates(choices: Mapping[int, Tensor], x: Tensor, grid: Grid) -> Iterator[str]:
    """Say of each input (b, p) with other candidates how many there are and how far apart they are."""
    for k, others in choices.items():
        levels = float((others - x[k]).abs().max()) * grid.levels
        yield f"input {k + 1} is one of {len(others) + 1} candidates, which differ by up to {levels:.0f} levels"


def _rounded(found: Inputs, wanted: int, grid: Grid) -> Inputs:
    """Round estimates too if every dual was found: then activity may prove them, even if they are black and white only."""
    if not grid.levels or not found.complete or len(found.certified) + len(found.open) != wanted:
        return found
    return replace(
        found, certified=torch.cat([found.certified, grid.snapped(found.open)]), open=found.open[:0]
    )


def _distinct(found: Inputs, room: int, image: bool) -> Tensor:
    """Choose estimates that stay in the data's range and differ from what is certified and from each other."""
    kept = found.certified
    for x in found.open:
        inside = not image or float((x - x.clamp(0, 1)).square().mean().sqrt()) < LEAVES
        apart = not len(kept) or float((kept - x).square().mean(1).sqrt().min()) > APART
        if (
            inside
            and apart
            and bool(x.isfinite().all())
            and len(kept) < len(found.certified) + room
        ):
            kept = torch.cat([kept, x[None]])
    return kept[len(found.certified) :]


def _residual(x: Tensor, white: Tensor, grid: Grid) -> float:
    """Part of the whitened rows that the inputs do not explain."""
    flat = white.flatten(0, 1)
    if not len(x):
        return 1.0
    basis = torch.linalg.qr(grid.rows(x).T).Q
    return float(
        (flat - flat @ basis @ basis.T).norm() / flat.norm().clamp_min(torch.finfo(flat.dtype).tiny)
    )
