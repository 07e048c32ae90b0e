"""Exact recovery of a whole batch from the first fully connected layer.

The attack reads gradients or differences of gradients.

Row r of dL/dW of the layer is sum_k delta_rk [x_k 1], and so is a row of any combination of
gradients. All rows therefore lie in the space spanned by the batch's inputs (Phong et al. 2018;
SPEAR, Dimitrov et al. 2024, for one gradient). If a ReLU stays inactive for sample k in all
recorded rounds, its row does not contain x_k. `activation_patterns` finds these patterns,
`duals_to_inputs` converts them into inputs, and the data's grid k/levels determines for every
single input whether it is exact. Neither models nor labels are needed. If white noise is large
enough to matter, `noisy_duals` instead weighs all rows and patterns jointly, and the estimates are
approximate.

docs/exact.md has the theorem behind the certificates, and what can be recovered at which noise.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Generator, Tensor

from leakaudit.errors import AttackError
from leakaudit.inversion.exact import certify, duals_to_inputs, first_layer_rows, noisy_duals
from leakaudit.inversion.exact.activation_patterns import Groups
from leakaudit.inversion.exact.certify import Heard
from leakaudit.inversion.exact.duals_to_inputs import KnownInputs
from leakaudit.inversion.exact.pixel_grid import Grid
from leakaudit.inversion.labels import batch_labels, consistency
from leakaudit.leak import GradientLeak
from leakaudit.progress import expired, step
from leakaudit.reconstruction import SHOWN, Attack, Certificate, Reconstruction
from leakaudit.registry import attack, param

if TYPE_CHECKING:
    from leakaudit.tasks.task import Task

# Minimum number of rounds of a window. In a single round, there is no noise over time.
SHORTEST = 2

# Root mean square distance from which two estimates count as different. A choice: five grey levels
# of 255.
APART = 0.02

# Maximum root mean square distance from [0, 1] of an estimate that is shown. A choice: beyond it,
# the estimate is a mixture with large factors, and nothing is recognisable.
LEAVES = 0.15

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
        "that contain the rows of a first fully connected layer"
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
        """Require a first fully connected layer with bias inside the recorded columns."""
        return first_layer_rows.missing(leak, task)

    def __call__(self, leak: GradientLeak, task: Task, generator: Generator) -> Reconstruction:
        """Reconstruct the batch.

        The certificate is EXACT if every different input is certified, and APPROXIMATE if some are,
        with their number in the note.
        """
        why = self.refuses(leak, task)
        if why:
            raise AttackError(f"exact cannot use this leak: {why}")
        stack = first_layer_rows.rows(leak, task)
        white = first_layer_rows.whiten(stack, leak, slice(None))
        span = first_layer_rows.span(white, leak.batch, generator)
        if span is None:
            why = (
                "the singular values do not show the batch size: "
                "the batch is too large for these rows, or the noise hides it"
            )
            none = torch.empty(0, *task.spec.shape)
            return Reconstruction(leak.node, "exact", none, None, Certificate.FAILED, 1.0, note=why)
        heard = Heard(leak, task, stack, white, span, Grid.of(task), generator)
        return _reconstruction(_proof(self._searched(heard), heard), heard)

    def _searched(self, heard: Heard) -> KnownInputs:
        """Search for the inputs: by likelihood if there is noise, and by walks in windows."""
        span = heard.span
        grid = heard.grid
        nothing = heard.white.new_zeros(0, len(grid.mean))
        found = KnownInputs(nothing, nothing)
        noisy = span.white and 1 < span.batch <= noisy_duals.MOST
        if noisy:
            found = noisy_duals.recover(heard.white, span, grid, nothing, heard.generator)
        for tried, length in enumerate(_lengths(len(heard.stack), self.windows)):
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


def _groups(heard: Heard, length: int) -> Groups:
    """Rows of all neurons over windows of a given length, in coordinates of the batch's space."""
    rounds = len(heard.stack)
    parts = [heard.white]
    if length != rounds:
        windows = [slice(a, a + length) for a in range(0, rounds - length + 1, length)]
        parts = [first_layer_rows.whiten(heard.stack, heard.leak, window) for window in windows]
    basis = heard.span.basis
    rows = torch.cat([torch.einsum("mhp,bp->hmb", part, basis) for part in parts])
    return Groups.of(rows, torch.full((len(rows),), heard.span.noise, dtype=rows.dtype))


def _lengths(rounds: int, windows: int) -> list[int]:
    """Window lengths: all rounds, half of them, a quarter, and so on."""
    return [rounds // 2**k for k in range(windows) if not k or rounds // 2**k >= SHORTEST]


@dataclass(frozen=True)
class _Proof:
    """What is proven about a batch; inputs are in the order in which they are reported.

    Attributes:
        x: (k, p) inputs, the proven ones first.
        exact: Number of proven inputs.
        choices: For each index, other images that explain the rows equally well.
        why: The first condition that is not met, or what was observed.
        interval: Half-widths for data without a grid, or None.
    """

    x: Tensor
    exact: int
    choices: Mapping[int, Tensor]
    why: str
    interval: Tensor | None


def _proof(found: KnownInputs, heard: Heard) -> _Proof:
    """Judge inputs on the grid, or by intervals if there is none, and append estimates."""
    wanted = heard.span.batch
    grid = heard.grid
    image = heard.task.spec.is_image
    if not grid.levels and found.complete:
        judged = certify.table(heard, found.open)
        rest = _distinct(replace(found, open=judged.x), wanted, image)
        return _Proof(rest, 0, {}, judged.note, judged.interval)
    found = _rounded(found, wanted, grid)
    batch = certify.batch(heard, found.certified, found.open)
    proven = torch.tensor(batch.exact, dtype=torch.bool)
    order = [*proven.nonzero().flatten().tolist(), *(~proven).nonzero().flatten().tolist()]
    choices = {place: batch.choices[k] for place, k in enumerate(order) if k in batch.choices}
    rest = grid.denoised(_distinct(found, wanted - len(found.certified), image))
    x = torch.cat([batch.x[proven], batch.x[~proven], rest])
    return _Proof(x, int(proven.sum()), choices, batch.why, None)


def _reconstruction(proof: _Proof, heard: Heard) -> Reconstruction:
    """Report what is proven and how certain each input is."""
    leak = heard.leak
    task = heard.task
    wanted = heard.span.batch
    certificate, sentence = _verdict(proof, wanted)
    x = proof.x.clamp(0, 1) if task.spec.is_image else proof.x
    x = x.reshape(-1, *task.spec.shape).to(task.dtype)
    seen = f"batch of {wanted} by a drop of {heard.span.clear:.0e} in the singular values"
    if leak.batch is not None and leak.batch != wanted:
        seen += f", {leak.batch} samples declared: some are equal or have a zero gradient"
    y = None
    if len(x) == wanted:
        if wanted == 1:
            y = consistency.label(leak, task, x)
        else:
            y = batch_labels.labels(leak, task, x)
    others = _candidates(proof.choices, proof.x, heard.grid)
    shown: dict[int, Tensor] = {}
    for k, some in proof.choices.items():
        shown[k] = some[:SHOWN].reshape(-1, *task.spec.shape).to(task.dtype)
    return Reconstruction(
        leak.node,
        "exact",
        x,
        y,
        certificate,
        _residual(proof.x, heard.white, heard.grid),
        note="; ".join(filter(None, (sentence, proof.why, *others, seen))),
        certified=proof.exact,
        interval=proof.interval if certificate is Certificate.INTERVAL else None,
        choices=shown,
    )


def _verdict(proof: _Proof, wanted: int) -> tuple[Certificate, str]:
    """Return the certificate of a batch of this size and its description for the note."""
    if proof.exact == wanted:
        return Certificate.EXACT, f"all {wanted} different inputs are exact"
    if proof.interval is not None and len(proof.x) == wanted:
        return Certificate.INTERVAL, f"all {wanted} different inputs are found"
    if not len(proof.x):
        return Certificate.FAILED, f"no input was isolated out of a batch of {wanted}"
    approximate = len(proof.x) - proof.exact
    missing = max(0, wanted - len(proof.x))
    return Certificate.APPROXIMATE, (
        f"{proof.exact} of {wanted} inputs exact (the first ones), "
        f"{approximate} approximate, {missing} not isolated"
    )


def _candidates(choices: Mapping[int, Tensor], x: Tensor, grid: Grid) -> Iterator[str]:
    """Describe, for each input with other candidates, how many there are and how far apart."""
    for k, others in choices.items():
        levels = float((others - x[k]).abs().max()) * grid.levels
        yield (
            f"input {k + 1} is one of {len(others) + 1} candidates "
            f"that differ by up to {levels:.0f} levels"
        )


def _rounded(found: KnownInputs, wanted: int, grid: Grid) -> KnownInputs:
    """Round the estimates as well if every dual vector was found.

    Activity may then prove them, even if their pixels are only black and white, which the grid
    cannot judge.
    """
    if not grid.levels or not found.complete or len(found.certified) + len(found.open) != wanted:
        return found
    every = torch.cat([found.certified, grid.snapped(found.open)])
    return replace(found, certified=every, open=found.open[:0])


def _distinct(found: KnownInputs, room: int, image: bool) -> Tensor:
    """Choose estimates that differ from the certified inputs and from each other.

    Args:
        found: Certified inputs and estimates.
        room: Maximum number to choose.
        image: Whether they must stay near [0, 1].

    Returns:
        (k, p) estimates.
    """
    kept = found.certified
    for x in found.open:
        inside = not image or float((x - x.clamp(0, 1)).square().mean().sqrt()) < LEAVES
        apart = not len(kept) or float((kept - x).square().mean(1).sqrt().min()) > APART
        space = len(kept) < len(found.certified) + room
        if inside and apart and space and bool(x.isfinite().all()):
            kept = torch.cat([kept, x[None]])
    return kept[len(found.certified) :]


def _residual(x: Tensor, white: Tensor, grid: Grid) -> float:
    """Share of the whitened rows that the inputs (b, p) do not explain."""
    if not len(x):
        return 1.0
    flat = white.flatten(0, 1)
    basis = torch.linalg.qr(grid.rows(x).T).Q
    size = flat.norm().clamp_min(torch.finfo(flat.dtype).tiny)
    return float((flat - flat @ basis @ basis.T).norm() / size)
