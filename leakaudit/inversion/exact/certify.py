"""When a reconstruction may be called exact: the conditions, in one place for every attack."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from leakaudit.core.evidence import Evidence, Origin
from leakaudit.core.reconstruction import Certificate
from leakaudit.inversion.exact import (
    first_layer_rows,
    grid_lattice,
    separation,
    slopes,
    uniqueness,
)
from leakaudit.inversion.exact.first_layer_rows import BatchObservations
from leakaudit.inversion.exact.pixel_errors import SURE, UNEVEN, wrong_pixel
from leakaudit.inversion.exact.pixel_grid import PixelGrid, others_between
from leakaudit.inversion.exact.uniqueness import WindowRows
from leakaudit.inversion.linear import edge, independent, singular_values

if TYPE_CHECKING:
    from leakaudit.core.leak import GradientLeak
    from leakaudit.inversion.exact.first_layer_rows import Span
    from leakaudit.tasks.task import Task

# docs/exact.md has the theorem. Four conditions have to be shown from the leak and the public
# description of the task, without the truth:
#
# * **Evidence**: the rows reveal how many inputs there are. Their singular values end at the noise
#   of the messages, and there are more independent rows than inputs, so that neither weight decay
#   nor an average of several inputs can pass for one input (`ends`, `scarce`).
# * **Residual**: what the inputs leave unexplained is the noise that is visible in the rows. Noise
#   that a protocol declares never relaxes a condition (`pixel_errors`).
# * **Pixels**: every pixel lies within its own error of the grid k/levels, and this error is so
#   small that the probability that rounding moved any pixel of the image to another value is below
#   `MISTAKE` (`pixel_errors.wrong_pixel`).
# * **Uniqueness**: no other image could take the place of this one. Activity of neurons shows this
#   by itself (`uniqueness`). The grid alone does not, because a program may mix records off the
#   grid before the network receives them: what activity leaves open, the grid decides
#   (`pixel_grid.others_between`, `grid_lattice`) only if the slopes of the loss at known models are
#   those of these images (`slopes`), or some neurons contradict a mixture (`uniqueness.without`).
#   If several images on the grid could, only one may fit the slopes.
#
# Data without a grid are never called exact. They receive an interval for every value.

# Largest half-width, relative to the size of the values in its column, that is reported as an
# interval. A choice.
NARROW = 0.1

# Rounding error that remains in a sender's state from round to round, in units of the number
# format's precision; values up to 5 have been observed.
LASTING = 16.0

# Maximum probability of a wrong pixel anywhere in an image that is called exact. A choice: one in a
# million.
MISTAKE = 1e-6

# Maximum of the singular values beyond the batch, in units of those of message noise, that are
# explained by noise; values up to 2 have been observed.
ENDS = 10.0

# Number of independent rows beyond the samples that is required if fewer inputs than samples, or an
# unknown number, are visible.
MARGIN = 2

# Minimum size of rows, in units of the message noise, at which two images that differ by one level
# in one pixel appear as two. Such a difference is 1e-4 of an image of 3072 pixels.
TWINS = 1e8

# Part of the slopes that must change over the rounds for this: if nothing is learned, slopes do not
# depend on images.
MOVED = 1e-5

# Number of window lengths in which activity is examined: all rounds, half of them, a quarter.
WINDOWS = 3

# Relative residual of a whole gradient that rounding in float32 explains.
ROUNDED = 2e-6

# Condition number from which images on the grid count as dependent; a difference of one level in
# one pixel gives 1e4.
DEPENDENT = 1e6

# The same for values without a grid, which a matrix in float64 can still tell apart.
SINGULAR = 1e12

# Part of an image outside the others' space from which it is independent; one level in one of 3072
# pixels is 1e-4.
APART = 1e-5

# Number of pixels that are changed by one grey level to measure the effect on the whole gradient.
PROBES = 32

# Relative residual that rounding in float64 explains.
EQUAL = 1e-12

# Minimum ratio of the residual of any other image to that of this one.
WORSE = 10.0


@dataclass(frozen=True)
class Proof:
    """What is proven about one input or a batch."""

    x: Tensor  # (k, p) inputs, the proven ones first; rounded to the grid if rounding is safe
    exact: int = 0  # number of proven inputs
    # for each index, other images (k, p) that explain the rows equally well
    choices: Mapping[int, Tensor] = field(default_factory=dict)
    why: str = ""  # the first condition that is not met, or what was observed
    interval: Tensor | None = None  # half-widths for data without a grid, or None

    @property
    def certificate(self) -> Certificate:
        """That of all inputs together: EXACT, INTERVAL or APPROXIMATE."""
        if self.interval is not None:
            return Certificate.INTERVAL
        all_exact = 0 < self.exact == len(self.x)
        return Certificate.EXACT if all_exact else Certificate.APPROXIMATE


def single(
    leak: GradientLeak,
    task: Task,
    stack: Tensor,
    white: Tensor,
    row: Tensor,
    grid: PixelGrid,
    alone: bool,
) -> Proof:
    """Judge one input `row` (p + 1,), followed by a 1, that spans all rows (m, H, p + 1)."""
    found = first_layer_rows.estimates(leak, stack, white, row[None])
    x = found.pixels(grid)
    why = scarce(leak, task, white, row[None])
    if not alone:
        why = "the second singular value is larger than message rounding explains"
    elif signs(stack):
        why = "all entries have the same magnitude: these are signs of gradients, not gradients"
    elif not why and slopes.agree(leak, task, row[None] / row.norm(), grid.rows(x), grid) is False:
        why = "the slopes of this input at the known models differ from those in the rows"
    if grid.levels:
        snapped = grid.snapped(x)
        off = float(((x - snapped) * grid.levels).abs().max())
        if not why and float(wrong_pixel(found, grid, snapped)) >= MISTAKE:
            why = "rounding may have moved a pixel to another value"
        if why:
            return Proof(x, why=why)
        note = f"before rounding, every pixel was within {off:.1e} levels of a grey level"
        return Proof(snapped, 1, why=note)
    if not why and not (leak.samples == 1 and leak.steady):
        why = "the batch size is not known to be one"
    if why:
        return Proof(x, why=why)
    return interval(x, found.half_widths(grid), task, first_layer_rows.fresh(leak))


def interval(
    x: Tensor, width: Tensor, task: Task, fresh: bool = False, condition: float = 1.0
) -> Proof:
    """Return values (b, p) with half-widths; APPROXIMATE if one is nearly as large as its column.

    `width` (b, p) is what errors of messages cause. Values are also stored in the task's number
    format, and senders may round their own states in it. Such errors last over rounds, unless
    all are `fresh`, and grow by the `condition` number of a batch. A column with large values
    blurs the others only in a state.
    """
    size = x.abs().amax(0)
    kept = size if fresh else x.square().mean().sqrt()
    width = width + torch.finfo(task.dtype).eps * (x.abs() + LASTING * condition * kept)
    widest = float(width.max())
    said = f"every value within {widest:.1e}, at a joint confidence of {SURE:.0%}"
    # A few records may all be small in a column by chance: it then counts as an ordinary one.
    told = size[size > 0]
    limit = NARROW * size.clamp_min(float(told.quantile(0.5)) if len(told) else 0.0)
    wide = int((width > limit).any(0).sum())
    if wide or not bool(width.isfinite().all()):
        note = (
            f"{said}; in {wide} of {len(size)} columns, this is more than {NARROW:.0%} of the size"
        )
        return Proof(x, why=note)
    small = int((width > NARROW * size).any(0).sum())
    if small:
        said += f"; {small} of {len(size)} columns have values that are hardly larger than that"
    return Proof(x, why=said, interval=width.reshape(-1, *task.spec.shape))


def reported(x: Tensor, interval: Tensor | None, task: Task) -> tuple[Tensor, tuple[Evidence, ...]]:
    """Return values (b, p) as they are reported, and what shows that the data are no pictures.

    Estimates of a picture are shown within [0, 1]. Values that have an interval are never
    changed.
    """
    if not task.spec.is_image:
        return x, ()
    if interval is None:
        return x.clamp(0, 1), ()
    width = interval.reshape(x.shape).to(x)
    outside = int(((x < -width) | (x > 1 + width)).sum())
    if not outside:
        return x, ()
    shape = "x".join(map(str, task.spec.shape))
    why = (
        f"{outside} of {x.numel()} values lie outside [0, 1], so the inputs are no {shape} pictures"
    )
    return x, (Evidence("shape", Origin.CONTRADICTED, why),)


def batch(heard: BatchObservations, x: Tensor, estimates: Tensor) -> Proof:
    """Judge images (n, p) on the grid, given estimates (k, p) of the batch's other inputs.

    Images that depend on those before them are omitted.
    """
    grid = heard.grid
    span = heard.span
    inside = grid.stored(torch.cat([x, estimates]), span.basis)[0] @ span.basis.T
    picked = torch.tensor(independent(inside, APART, span.batch)[0], dtype=torch.long)
    among = len(x)
    estimates = estimates[picked[picked >= among] - among]
    x = x[picked[picked < among]]
    if len(x) + len(estimates) != span.batch:
        why = (
            f"{len(x)} images on the grid and {len(estimates)} estimates "
            f"do not match the number of inputs, {span.batch}"
        )
        return Proof(x, why=why)
    why = _unclear(heard)
    if why:
        return Proof(x, why=why)
    rows, doubt = _settled(heard, x, estimates)
    inside = rows @ span.basis.T
    if not bool(torch.linalg.cond(inside) < DEPENDENT):
        return Proof(x, why="the images depend on each other")
    sure = doubt < MISTAKE
    strays = {k for k in range(span.batch) if float(doubt[k]) == 1}
    choices: dict[int, Tensor] = {}
    unlisted = set(strays)  # images whose alternatives cannot be listed
    agreed = slopes.agree(heard.leak, heard.task, span.basis, rows, grid)
    near = companions(heard, inside, agreed)
    for k, others in enumerate(near):
        if k in strays or others & strays:
            unlisted.add(k)
            continue
        found = others_between(x[k], x[sorted(others)], grid.levels)
        if found is None:
            unlisted.add(k)
        elif len(found):
            choices[k] = found
    if (choices or unlisted) and not strays and len(x) == span.batch and heard.task.spec.is_image:
        settled = grid_lattice.irreplaceable(x, grid.levels)
        choices = {k: some for k, some in choices.items() if not bool(settled[k])}
        unlisted = {k for k in unlisted if not bool(settled[k])}
    if choices and not unlisted and bool(sure.all()):
        chosen = slopes.by_slopes(heard, x, choices)
        if chosen is not None:
            return Proof(chosen, len(x))
    if agreed is None:
        # What the network received may be mixtures off the grid, of the same space as these images.
        # A mixed dual vanishes at neurons of another image only by coincidence.
        without = uniqueness.without(_neurons(heard, len(heard.stack)), inside)
        unlisted |= {k for k, others in enumerate(near) if not bool(without[k, [*others]].all())}
    # A batch with one wrong image fails this check, so it follows the attempt with other
    # candidates.
    if agreed is False:
        why = "the slopes of these images at the known models differ from those in the rows"
        return Proof(x, 0, choices, why)
    proven = [k for k in range(len(x)) if sure[k] and k not in choices and k not in unlisted]
    order = [*proven, *(k for k in range(len(x)) if k not in proven)]
    choices = {place: choices[k] for place, k in enumerate(order) if k in choices}
    why = ""
    if len(proven) < len(x):
        if choices:
            why = "similar images leave several candidates"
        elif unlisted - strays:
            why = "too few neurons distinguish some of the inputs"
        else:
            why = "noise may have moved a pixel to another value"
    return Proof(x[order], len(proven), choices, why)


def table(heard: BatchObservations, x: Tensor) -> Proof:
    """Judge a whole batch (b, p) without a grid: intervals if activity proves every input."""
    from scipy.special import ndtri  # slow to import, and inputs on a grid need no quantile

    leak = heard.leak
    span = heard.span
    why = _unclear(heard)
    if leak.samples != span.batch or len(x) != span.batch or not leak.steady:
        why = "the batch size is unknown, or some samples are equal"
    if why:
        return Proof(x, why=why)
    inside = heard.grid.rows(x) @ span.basis.T
    if not bool(inside.isfinite().all()) or not bool(torch.linalg.cond(inside) < SINGULAR):
        return Proof(x, why="the inputs depend on each other")
    agreed = slopes.agree(leak, heard.task, span.basis, heard.grid.rows(x), heard.grid)
    if any(companions(heard, inside, agreed)):
        return Proof(x, why="too few neurons distinguish the inputs")
    if agreed is False:
        why = "the slopes of these inputs at the known models differ from those in the rows"
        return Proof(x, why=why)
    fitted = uniqueness.refined(_neurons(heard, len(heard.stack)), inside)
    if fitted is None:
        why = "the rows where the inputs are inactive do not determine them"
        return Proof(x, why=why)
    inside, mixed = fitted
    found = first_layer_rows.estimates(leak, heard.stack, heard.white, inside @ span.basis)
    values = found.pixels(heard.grid)
    # Errors of the duals also add to each input a multiple of its difference from every other one.
    quantile = -UNEVEN * float(ndtri((1 - SURE) / (2 * values.numel())))
    apart = (values[:, None] - values[None]).abs()
    width = found.half_widths(heard.grid) + quantile * (mixed[:, :, None] * apart).sum(1)
    condition = float(torch.linalg.cond(inside))
    return interval(values, width, heard.task, first_layer_rows.fresh(leak), condition)


def companions(
    heard: BatchObservations, inside: Tensor, agreed: bool | None
) -> list[frozenset[int]]:
    """Return for every input the others that it may still contain, by activity in several windows.

    `inside` (b, b) holds the inputs in the rows' space. One length of windows that excludes a
    companion is sufficient. Unless the slopes agree with known models, the rows themselves have
    to show that they are independent.
    """
    near = [frozenset(range(len(inside)))] * len(inside)
    for length in heard.lengths(WINDOWS):
        if not any(near):
            break
        data = _neurons(heard, length)
        found = uniqueness.companions(data, inside, outputs(heard.task), heard.generator)
        if not agreed:
            repeating = uniqueness.repeating(data, inside)
            found = [some | more for some, more in zip(found, repeating, strict=True)]
        near = [old & new for old, new in zip(near, found, strict=True)]
    if agreed:
        return near
    alike = uniqueness.undecided(_neurons(heard, len(heard.stack)), inside, heard.generator)
    return [old | new for old, new in zip(near, alike, strict=True)]


def _neurons(heard: BatchObservations, length: int) -> WindowRows:
    """Return the rows of all neurons over windows, in coordinates of their space."""
    parts = [part @ heard.span.basis.T for part in heard.windows(length)]
    rows = torch.cat([part.transpose(0, 1) for part in parts])
    neuron = torch.arange(parts[0].shape[1]).repeat(len(parts))
    return WindowRows(rows, heard.span.noise, neuron)


def whole_gradient(
    leak: GradientLeak, task: Task, x: Tensor, left: float, residual: Callable[[Tensor], float]
) -> bool:
    """Check whether one image (1, *shape) on the grid is the only one with this whole gradient.

    Linear equations determined every layer, so only rounding can admit another image. The
    residual must be as small as rounding explains, and much smaller than the change that one
    grey level causes in any of the pixels tested.
    """
    if leak.batch != 1 or left > ROUNDED:
        return False
    flat = x.flatten()
    step = 1 / task.spec.levels
    places = torch.linspace(0, len(flat) - 1, min(PROBES, len(flat))).round().long()
    for place in places.tolist():
        other = flat.clone()
        other[place] += -step if other[place] > 0.5 else step
        if residual(other.reshape(x.shape)) < WORSE * max(left, EQUAL):
            return False
    return True


def signs(stack: Tensor) -> bool:
    """Check whether all non-zero entries have the same magnitude: signs also have rank one."""
    told = stack[stack != 0].abs()
    same = torch.finfo(torch.float32).eps
    return len(told) > 1 and float(told.max() - told.min()) <= same * float(told.max())


def outputs(task: Task) -> int:
    """Return the number of independent entries of the loss's slope in the outputs.

    Those of cross-entropy add up to zero.
    """
    if task.spec.loss == "cross_entropy":
        return max(1, task.spec.classes - 1)
    if task.spec.loss == "squared":
        return max(1, task.spec.classes)
    return 1


def decays(leak: GradientLeak, task: Task) -> bool:
    """Check whether the rows may contain weight decay that was not removed.

    The models between the inner steps of a gradient are always unknown.
    """
    return bool(task.l2) and (leak.theta is None or leak.inner > 1)


def ends(span: Span, white: Tensor) -> bool:
    """Check whether the singular values of whitened rows after those of the batch are noise.

    Samples whose rows hardly change would appear among them.
    """
    of_noise = ENDS * edge(*white.flatten(0, 1).shape)
    of_noise = max(of_noise, first_layer_rows.RESOLVED * float(span.sizes[0]))
    return span.white or float(span.sizes[span.batch]) < of_noise


def scarce(leak: GradientLeak, task: Task, white: Tensor, span: Tensor) -> str:
    """Explain why the rows may come from more samples than the inputs (r, p + 1) that are visible.

    A stack of r rows has at most rank r, whatever it contains. Unless the batch size is known,
    there must therefore be more independent rounds than inputs. Neurons of one round are no
    evidence: at a model without outputs all samples have the same slopes, as has an average of
    them. Nor are rounds at models that cannot tell the samples apart (`separation`).
    """
    samples = leak.samples
    inputs = len(span)
    known = samples if leak.steady else None
    if known is None and inputs == leak.records:
        known = inputs  # every record of the node is visible
    if known == inputs and not decays(leak, task):
        return ""
    if samples is not None and inputs < samples:
        # Two images that differ by two levels in a few pixels have an average on the grid.
        return (
            f"{samples} samples appear as {inputs} inputs: some are equal, "
            "or so similar that only their average is visible"
        )
    over_time = white.flatten(1)
    spread = singular_values(over_time.T)
    noise = ENDS * edge(*over_time.shape)
    least = uniqueness.TIMES if known is not None else MOVED
    independent = int((spread > max(noise, least * float(spread[0]))).sum())
    if independent >= max(inputs, samples or inputs) + MARGIN:
        if known is None and samples != 1 and not separation.separated(leak, task, span):
            return separation.REASON
        if known is None and float(spread[0]) < TWINS * noise:
            how = "the batch size is unknown" if samples is None else "batches change"
            return (
                f"{how}, and at this message precision two nearly equal images look like one; "
                "record an unchanged batch (samples)"
            )
        return ""
    if known == inputs:
        return (
            f"the rows contain weight decay, the models are unknown, "
            f"and {independent} independent rows are not enough to separate it"
        )
    return (
        f"{independent} independent rows cannot distinguish {inputs} inputs from averages of more; "
        "record the batch size (samples)"
    )


def _unclear(heard: BatchObservations) -> str:
    """Explain why the rows do not reveal the number of inputs with certainty; empty if they do."""
    if not ends(heard.span, heard.white):
        return "a singular value after those of the batch is larger than message rounding explains"
    return scarce(heard.leak, heard.task, heard.white, heard.span.basis)


def _settled(heard: BatchObservations, x: Tensor, estimates: Tensor) -> tuple[Tensor, Tensor]:
    """Replace images (n, p) that turn out not to lie on the grid by estimates from the rows.

    They are mixtures that happen to lie near it, and the others are judged together with them,
    which can reveal more. Returns rows (b, p + 1), and the probability (b,) of a wrong pixel; 1
    off the grid.
    """
    grid = heard.grid
    rows = torch.cat([grid.stored(x, heard.span.basis)[0], grid.rows(estimates)])
    rounded = torch.cat([x, grid.snapped(estimates)])
    strays = torch.arange(len(rows)) >= len(x)
    while True:
        found = heard.estimates(rows)
        doubt = wrong_pixel(found, grid, rounded)
        doubt[strays] = 1
        new = (doubt == 1) & ~strays
        if not bool(new.any()):
            return rows, doubt
        strays |= new
        rows[new] = found.values[new] / found.values[new, -1:]
