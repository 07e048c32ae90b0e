"""Exact recovery from messages that hold only some coordinates."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Generator, Tensor

from leakaudit.core.leak import GradientLeak
from leakaudit.core.progress import step
from leakaudit.core.reconstruction import Certificate, Reconstruction
from leakaudit.core.registry import attack, param
from leakaudit.inversion.attack import Attack
from leakaudit.inversion.exact import (
    certify,
    completion,
    duals_to_inputs,
    first_layer_rows,
    gluing,
)
from leakaudit.inversion.exact.activation_patterns import Groups
from leakaudit.inversion.exact.completion import CompletedInput
from leakaudit.inversion.exact.first_layer_rows import BatchObservations, Span
from leakaudit.inversion.exact.gluing import GluedSpace
from leakaudit.inversion.exact.pixel_errors import HALF, Estimates, repeated, wrong_pixel
from leakaudit.inversion.exact.pixel_grid import PixelGrid
from leakaudit.inversion.linear import edge, singular_values

if TYPE_CHECKING:
    from leakaudit.tasks.task import Task

# Partial sharing, random-k and top-k sparsification send some coordinates of a model, the same ones
# in every round or different ones.
#
# One sample: what is observed of the first layer's rows, entry (r, j) = d_r x_j, links neurons and
# pixels, and one connected component determines all its ratios
# (`leakaudit.inversion.exact.completion`). The bias column gives the scale.
#
# An unchanged batch, with the same coordinates in every round: the rows of each neuron over time
# show the space of the inputs on its own pixels. `gluing` connects these pieces, and the search of
# the attack `exact` continues in the space.
#
# An input is only called exact if every pixel is determined, and only observed entries are
# evidence.

# Levels of data without a grid that entries should resolve: as for eight bits.
LEVELS = 255

# Level in the middle of the range, for pixels that are not determined.
MIDDLE = 0.5


@attack("completion")
@dataclass(frozen=True)
class Completion(Attack):
    """Completion of one input, or of an unchanged batch, from some coordinates of gradients."""

    exact: ClassVar[bool] = True
    rank: ClassVar[int] = 2
    incomplete: ClassVar[bool] = True
    reads: ClassVar[str] = (
        "some coordinates of gradients of one sample or one unchanged batch, or of their sums, "
        "among the rows of a first fully connected layer"
    )
    paper: ClassVar[str] = "extends Phong et al. 2018 to messages that omit coordinates"
    cost: ClassVar[str] = (
        "one sparse least-squares problem with an unknown per pixel; "
        "for batches, eigenvectors of a matrix with a row per pixel and the search of exact"
    )

    visits: int = param(
        150, "batches: walks, or batches of 2048 draws, that may fail in a row before a search ends"
    )

    def refuses(self, leak: GradientLeak, task: Task) -> str | None:
        """Require missing coordinates, and a first fully connected layer with bias."""
        if leak.training is not None:
            return leak.gaps
        if leak.seen is None:
            return "it completes messages, but this leak contains every coordinate; use exact"
        why = first_layer_rows.absent(leak, task)
        if why:
            return why
        if certify.decays(leak, task):
            return "the gradients contain weight decay of models that are not known"
        if _several(leak) and not _aligned(leak):
            return (
                f"it recovers {leak.batch} samples only if all messages hold the same coordinates, "
                "but these differ"
            )
        return None

    def __call__(self, leak: GradientLeak, task: Task, generator: Generator) -> Reconstruction:
        """Reconstruct the inputs; `_doubt` and `certify.batch` list what makes them exact."""
        if _several(leak):
            leak = _aligned(leak) or leak
        assert leak.seen is not None
        seen = first_layer_rows.entries(leak.seen, leak, task)
        heard = _Entries(leak, task, first_layer_rows.rows(leak, task), seen, PixelGrid.of(task))
        step("completion", 0, 1)
        if _several(leak):
            found = _batch(heard, self.visits, generator)
        else:
            found = _single(heard)
        step("completion", 1, 1)
        return found


@dataclass(frozen=True)
class _Entries:
    """What was observed of the first layer.

    Attributes:
        leak: Source of the rows.
        task: The learning task.
        stack: (m, H, p + 1) rows; zero where not observed.
        seen: (m, H, p + 1) bool, the observed entries.
        grid: Grid of the data.
    """

    leak: GradientLeak
    task: Task
    stack: Tensor
    seen: Tensor
    grid: PixelGrid

    @property
    def share(self) -> str:
        """How much was observed, in words."""
        return f"{float(self.seen.double().mean()):.2%} of the first layer's entries observed"

    def reported(
        self, x: Tensor, certificate: Certificate, residual: float, note: str, certified: int = 0
    ) -> Reconstruction:
        """Return a reconstruction of inputs (b, p), without labels: they are incomplete."""
        shown = x.clamp(0, 1) if self.task.spec.is_image else x
        return Reconstruction(
            self.leak.node,
            "completion",
            shown.reshape(-1, *self.task.spec.shape).to(self.task.dtype),
            None,
            certificate,
            residual,
            note=f"{note}; {self.share}",
            certified=certified,
        )

    def nothing(self, note: str) -> Reconstruction:
        """Return a reconstruction without inputs and with the reason."""
        none = self.stack.new_zeros(0, len(self.grid.mean))
        return self.reported(none, Certificate.FAILED, 1.0, note)


def _several(leak: GradientLeak) -> bool:
    """Return whether each gradient comes from more than one sample."""
    return leak.batch is not None and leak.batch > 1


def _aligned(leak: GradientLeak) -> GradientLeak | None:
    """Return the part of a leak that holds the same coordinates in every equation.

    A coordinate that happens not to change in a round looks as if it had not been sent.
    Equations with less than half as many coordinates as the fullest are omitted, and so are
    coordinates that the others do not all hold. None if it lacks more than half of the
    coordinates.
    """
    seen = leak.seen
    assert seen is not None
    count = seen.sum(1)
    kept = 2 * count > count.max()
    common = seen[kept].all(0)
    if not 2 * int(common.sum()) > int(count.max()):
        return None
    noise = leak.noise
    if noise is not None:
        noise = noise[kept]
    return replace(
        leak,
        combination=leak.combination[kept],
        value=leak.value[kept] * common,
        std=leak.std[kept],
        noise=noise,
        seen=common.expand(int(kept.sum()), -1),
    )


def _single(heard: _Entries) -> Reconstruction:
    """Recover one input by a rank-one completion."""
    grid = heard.grid
    change = 1 / (grid.levels or LEVELS)
    found = completion.single(heard.stack, heard.seen, heard.leak.std, change / grid.std)
    if found is None:
        return heard.nothing("no bias entry gives the scale")
    known = found.known[:-1]
    x = grid.pixels(found.row[None])
    why = _doubt(heard, found)
    shown = PixelGrid(grid.levels, grid.mean[known], grid.std[known])
    x[:, known] = shown.denoised(x[:, known])
    x[:, ~known] = MIDDLE
    certificate = Certificate.APPROXIMATE if why else Certificate.EXACT
    note = f"{int(known.sum())} of {len(known)} pixels determined"
    if why:
        note = f"{note}; {why}"
    return heard.reported(x, certificate, found.misfit, note, certified=int(not why))


def _doubt(heard: _Entries, found: CompletedInput) -> str:
    """Return the first condition for an exact input that is not met; empty if all are.

    The conditions are those of `certify.single`, on observed entries. In addition, every pixel
    must be confirmed: with one entry, it would agree with any value.
    """
    leak = heard.leak
    grid = heard.grid
    if not bool(found.known.all()):
        return "no observed entry connects the others to the bias"
    if leak.batch != 1 or not leak.steady:
        return "the batch size is not known to be one"
    confirmed = int(found.checked[:-1].min()) >= completion.CONFIRM
    if found.freedom < completion.MANY or not confirmed:
        return "too few observed entries confirm some of the pixels"
    # Errors that are not Gaussian are assumed to be as large as their largest one suggests.
    spread = max(1.0, found.spread, found.worst / completion.FAR)
    if spread > completion.NOISE:
        return (
            "the observed entries do not belong to one input up to message rounding: "
            f"they differ by {found.spread:.1f} stated errors on average, "
            f"and by {found.worst:.0f} at most"
        )
    if certify.signs(heard.stack[heard.seen][None, None]):
        return "all entries have the same magnitude: these are signs of gradients, not gradients"
    if not grid.levels:
        return "the data have no grid"
    if leak.wire > HALF:
        return "messages have half precision, whose rounding errors are not independent"
    estimates = Estimates(
        values=found.row[None],
        noise=spread * found.error,
        stated=torch.ones_like(found.error),
        gain=found.row.new_full((1, 1), repeated(heard.stack)),
        freedom=found.freedom,
        rounding=torch.zeros_like(found.row)[None],
        coarse=False,
    )
    snapped = grid.snapped(estimates.pixels(grid))
    if float(wrong_pixel(estimates, grid, snapped)) >= certify.MISTAKE:
        return "rounding may have moved a pixel to another value"
    return ""


def _batch(heard: _Entries, visits: int, generator: Generator) -> Reconstruction:
    """Recover several inputs: glue the neurons' row spaces, then search in the space of inputs."""
    leak = heard.leak
    seen = heard.seen[0]
    white = first_layer_rows.whiten(heard.stack, leak, slice(None))
    space = gluing.glue(white, seen, leak.batch or 1)
    if space is None:
        return heard.nothing(
            "too few neurons at which all inputs are active share observed pixels with each other"
        )
    known = space.columns[:-1]
    grid = PixelGrid(heard.grid.levels, heard.grid.mean[known], heard.grid.std[known])
    groups = Groups.of(space.slopes, space.noise)
    none = white.new_zeros(0, int(known.sum()))
    found = duals_to_inputs.recover(groups, space.basis, grid, none, visits, generator)
    wanted = len(space.basis)
    note = f"{int(known.sum())} of {len(known)} pixels determined"
    x = torch.cat([found.certified, found.open])[:wanted]
    exact = 0
    why = "no observed entry connects the others to the bias"
    if bool(known.all()):
        complete = _completed(heard, white, space, generator)
        judged = certify.batch(complete, found.certified, found.open)
        exact = judged.exact
        x = torch.cat([judged.x, found.open])[:wanted]
        why = judged.why
    if leak.wire > HALF:
        exact = 0
        why = "messages have half precision, whose rounding errors are not independent"
    if not len(x):
        return heard.nothing(f"no input was isolated out of a batch of {wanted}; {note}")
    whole = torch.full((len(x), len(known)), MIDDLE, dtype=x.dtype)
    whole[:, known] = x
    certificate = Certificate.APPROXIMATE
    if exact == wanted == leak.batch:
        certificate = Certificate.EXACT
    said = f"{exact} of {wanted} inputs exact (the first ones); {note}"
    if why:
        said = f"{said}; {why}"
    return heard.reported(whole, certificate, space.misfit, said, certified=exact)


def _completed(
    heard: _Entries, white: Tensor, space: GluedSpace, generator: Generator
) -> BatchObservations:
    """Return what the certificate needs: completed rows, and apart from them what was observed.

    The coordinates of a completed row in the space are those that its observed entries
    determine, with the error of the least certain direction.
    """
    leak = heard.leak
    rows, columns = len(white) * len(space.neurons), white.shape[2]
    stack = space.completed(heard.stack, heard.seen[0])
    complete = space.slopes.transpose(0, 1) @ space.basis
    sizes = singular_values(space.slopes.flatten(0, 1))
    unexplained = space.worst * edge(rows, columns)
    noise = max(
        float(space.noise.max()), torch.finfo(white.dtype).eps * float(sizes[0]) / math.sqrt(rows)
    )
    span = Span(
        basis=space.basis,
        sizes=torch.cat([sizes, sizes.new_tensor([unexplained])]),
        noise=noise,
        clear=float(sizes[-1]) / max(unexplained, torch.finfo(white.dtype).tiny),
    )
    observed = (white[:, space.neurons], heard.seen[0][space.neurons])
    return BatchObservations(
        leak, heard.task, stack, complete, span, heard.grid, generator, observed
    )
