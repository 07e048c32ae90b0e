"""From the inputs that an attack found to a reconstruction: what is proven, what is shown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from leakaudit.core.reconstruction import SHOWN, Certificate, Reconstruction
from leakaudit.inversion.exact import certify
from leakaudit.inversion.exact.certify import Proof
from leakaudit.inversion.exact.duals_to_inputs import KnownInputs
from leakaudit.inversion.exact.first_layer_rows import BatchObservations
from leakaudit.inversion.exact.pixel_grid import PixelGrid
from leakaudit.inversion.labels import consistency
from leakaudit.inversion.linear import positive

# Root mean square distance from which two estimates count as different. A choice: five grey levels
# of 255.
APART = 0.02

# Maximum root mean square distance from [0, 1] of an estimate that is shown. A choice: beyond it,
# the estimate is a mixture with large factors, and nothing is recognisable.
LEAVES = 0.15


def proven(found: KnownInputs, heard: BatchObservations) -> Proof:
    """Judge inputs on the grid, or by intervals if there is none, and append estimates."""
    wanted = heard.span.batch
    grid = heard.grid
    image = heard.task.spec.is_image
    if not grid.levels and found.complete:
        judged = certify.table(heard, found.open)
        return replace(judged, x=_distinct(replace(found, open=judged.x), wanted, image))
    found = _rounded(found, wanted, grid)
    judged = certify.batch(heard, found.certified, found.open)
    rest = grid.denoised(_distinct(found, wanted - len(found.certified), image))
    return replace(judged, x=torch.cat([judged.x, rest]))


def reconstruction(name: str, proof: Proof, heard: BatchObservations) -> Reconstruction:
    """Report what is proven and how certain each input is."""
    leak = heard.leak
    task = heard.task
    wanted = heard.span.batch
    certificate, sentence = verdict(proof, wanted)
    interval = proof.interval if certificate is Certificate.INTERVAL else None
    x, evidence = certify.reported(proof.x, interval, task)
    x = x.reshape(-1, *task.spec.shape).to(task.dtype)
    seen = f"batch of {wanted} by a drop of {heard.span.clear:.0e} in the singular values"
    if leak.inputs not in (None, wanted):
        seen += f", {leak.inputs} samples declared: some are equal or have a zero gradient"
    y = None
    if len(x) == wanted:
        if wanted == 1:
            y = consistency.label(leak, task, x)
        else:
            y = consistency.labels(leak, task, x)
    others = _candidates(proof.choices, proof.x, heard.grid)
    shown: dict[int, Tensor] = {}
    for k, some in proof.choices.items():
        shown[k] = some[:SHOWN].reshape(-1, *task.spec.shape).to(task.dtype)
    return Reconstruction(
        leak.node,
        name,
        x,
        y,
        certificate,
        _residual(proof.x, heard.white, heard.grid),
        note="; ".join(filter(None, (sentence, proof.why, *others, seen))),
        certified=proof.exact,
        interval=interval,
        evidence=evidence,
        choices=shown,
    )


def verdict(proof: Proof, wanted: int) -> tuple[Certificate, str]:
    """Return the certificate of a batch and its description for the note."""
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


def _candidates(choices: Mapping[int, Tensor], x: Tensor, grid: PixelGrid) -> Iterator[str]:
    """Describe how many other candidates each input has, and how far apart they are."""
    for k, others in choices.items():
        levels = float((others - x[k]).abs().max()) * grid.levels
        yield (
            f"input {k + 1} is one of {len(others) + 1} candidates "
            f"that differ by up to {levels:.0f} levels"
        )


def _rounded(found: KnownInputs, wanted: int, grid: PixelGrid) -> KnownInputs:
    """Round the estimates as well if every dual vector was found.

    Activity may then prove them, even if their pixels are only black and white, which the grid
    cannot judge.
    """
    if not grid.levels or not found.complete or len(found.certified) + len(found.open) != wanted:
        return found
    every = torch.cat([found.certified, grid.snapped(found.open)])
    return replace(found, certified=every, open=found.open[:0])


def _distinct(found: KnownInputs, room: int, image: bool) -> Tensor:
    """Choose estimates (k, p) that differ from the certified inputs and from each other.

    Those of an image must stay near [0, 1].
    """
    kept = found.certified
    for x in found.open:
        inside = not image or float((x - x.clamp(0, 1)).square().mean().sqrt()) < LEAVES
        apart = not len(kept) or float((kept - x).square().mean(1).sqrt().min()) > APART
        space = len(kept) < len(found.certified) + room
        if inside and apart and space and bool(x.isfinite().all()):
            kept = torch.cat([kept, x[None]])
    return kept[len(found.certified) :]


def _residual(x: Tensor, white: Tensor, grid: PixelGrid) -> float:
    """Return the share of the whitened rows that the inputs (b, p) do not explain."""
    if not len(x):
        return 1.0
    flat = white.flatten(0, 1)
    basis = torch.linalg.qr(grid.rows(x).T).Q
    return float((flat - flat @ basis @ basis.T).norm() / positive(flat.norm()))
