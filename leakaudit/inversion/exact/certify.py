"""When a reconstruction may be called exact: what has to be shown, in one place for every attack.

docs/exact.md has the theorem. Four things have to be shown, from the leak and the public
description of the task, without the truth:

* **Evidence**: the rows reveal how many inputs there are. Their singular values end at the noise of
  the wire, and there are more independent rows than inputs, so that neither weight decay nor an
  average of several inputs can pass for one (`ends`, `scarce`).
* **Residual**: what the inputs leave unexplained is the noise that the rows themselves show. How
  much noise a protocol declares never widens anything (`pixel_errors`).
* **Pixels**: every pixel lies within its own error of the grid k/levels, and this error is so small
  that rounding took none to another value but with a probability of `MISTAKE` for the whole image
  (`pixel_errors.wrong_pixel`).
* **Uniqueness**: no other image on the grid could take the place of this one (`uniqueness`,
  `pixel_grid.others_between`). If some could, and the models are known, the slopes of the loss are
  computed again for each, and only one may fit (`slopes`).

Data without a grid are never called exact. They get an interval for every value.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Generator, Tensor

from leakaudit.inversion.exact import first_layer_rows, slopes, uniqueness
from leakaudit.inversion.exact.pixel_errors import SURE, UNEVEN, Estimates, wrong_pixel
from leakaudit.inversion.exact.pixel_grid import Grid, others_between
from leakaudit.reconstruction import Certificate

if TYPE_CHECKING:
    from leakaudit.inversion.exact.first_layer_rows import Span
    from leakaudit.leak import GradientLeak
    from leakaudit.tasks.task import Task

# Widest interval, relative to the size of the data, that is called one. A choice.
NARROW = 0.1

# Rounding that a sender's state keeps from round to round, in units of the number format's
# precision; 5 was seen.
LASTING = 16.0

# Probability of a wrong pixel anywhere in an image that is called exact. A choice: one in a
# million.
MISTAKE = 1e-6

# Singular values beyond the batch, in units of those of the wire's noise, that are nothing but
# noise; 2 was seen.
ENDS = 10.0

# Independent rows beyond the samples that must be there if fewer inputs than samples, or an unknown
# number, are seen.
MARGIN = 2

# Size of rows, in units of the wire's noise, above which two images that differ by a level in one
# pixel show as two. Such a difference is 1e-4 of an image of 3072 pixels.
TWINS = 1e8

# Part of the slopes that must change over the rounds for that: if nothing is learned, slopes do not
# depend on images.
MOVED = 1e-5

# Lengths of windows in which activity is looked at: all rounds, half of them, a quarter.
WINDOWS = 3

# Rounds of a window. One round alone has no noise over time.
SHORTEST = 2

# Relative residual of a whole gradient that is rounding in float32.
ROUNDED = 2e-6

# Condition number of images on the grid that depend on each other; a difference of one level in one
# pixel makes 1e4.
DEPENDENT = 1e6

# Part of an image outside the others' space that makes it independent; a level in one of 3072
# pixels is 1e-4.
APART = 1e-5

# Pixels that are moved by a grey level to see what that does to the whole gradient.
PROBES = 32

# Relative residual that is rounding in float64.
EQUAL = 1e-12

# Times as much that another image must leave.
WORSE = 10.0


@dataclass(frozen=True)
class Batch:
    """What is proven of the inputs of a batch, all on the grid.

    Attributes:
        x: (b, p) the inputs, exchanged for others if the slopes at known models decided so.
        exact: Which of them are proven.
        choices: For some of the others, the images (k, p) that explain the rows as well.
        why: The first obligation that is not met, empty if all inputs are proven.
    """

    x: Tensor
    exact: tuple[bool, ...]
    choices: Mapping[int, Tensor]
    why: str = ""


@dataclass(frozen=True)
class Single:
    """What is proven of one input, or of a whole batch without a grid.

    Attributes:
        certificate: EXACT, INTERVAL or APPROXIMATE.
        x: (1, p), rounded to the grid if that is sure.
        interval: Half-widths, or None.
        note: What was seen, or which obligation is not met.
    """

    certificate: Certificate
    x: Tensor
    interval: Tensor | None
    note: str


@dataclass(frozen=True)
class Heard:
    """What a batch is judged by.

    Attributes:
        leak: What the rows come from.
        task: What is trained.
        stack: (m, H, p + 1) rows of the first layer.
        white: The same, whitened over all rounds.
        span: The space that they span.
        grid: Of the data.
        generator: Divides neurons into parts.
    """

    leak: GradientLeak
    task: Task
    stack: Tensor
    white: Tensor
    span: Span
    grid: Grid
    generator: Generator

    def stored(self, x: Tensor) -> Tensor:
        """Return what the first layer saw of inputs, and a 1.

        That is k/levels as it is, or rounded to float32 by whoever stored it, whichever lies closer
        to the space of the rows.

        Args:
            x: (n, p) on the grid.

        Returns:
            (n, p + 1).
        """
        basis = self.span.basis
        versions = torch.stack([self.grid.rows(x), self.grid.rows(x.float().to(x))])
        off = (versions - versions @ basis.T @ basis).norm(dim=2)
        better = (off[0] < off[1])[:, None]
        return torch.where(better, versions[0], versions[1])


def single(
    leak: GradientLeak,
    task: Task,
    stack: Tensor,
    white: Tensor,
    row: Tensor,
    grid: Grid,
    alone: bool,
) -> Single:
    """Judge one input behind rows of rank one.

    Args:
        leak: What the rows come from.
        task: What is trained.
        stack: (m, H, p + 1) rows of the first layer.
        white: The same, whitened.
        row: (p + 1,) their direction, the input as the first layer sees it and a 1.
        grid: Of the data.
        alone: Whether nothing but the wire's noise follows the first singular value.
    """
    found = Estimates.of(white, row[None], stack, leak.wire)
    x = found.pixels(grid)
    why = scarce(leak, task, white, 1)
    if not alone:
        why = "more than the wire's rounding follows the first singular value"
    elif signs(stack):
        why = "all numbers have one size, so that they are signs of gradients rather than gradients"
    elif not why and slopes.agree(leak, task, row[None] / row.norm(), grid.rows(x), grid) is False:
        why = "the known models give this input other slopes than the rows hold"
    if grid.levels:
        snapped = grid.snapped(x)
        off = float(((x - snapped) * grid.levels).abs().max())
        if not why and float(wrong_pixel(found, grid, snapped)) >= MISTAKE:
            why = "rounding may have taken a pixel to another value"
        if why:
            return Single(Certificate.APPROXIMATE, x, None, why)
        note = f"every pixel was within {off:.1e} of a grey level before rounding"
        return Single(Certificate.EXACT, snapped, None, note)
    if not why and not (leak.batch == 1 and steady(leak)):
        why = "the batch size is not known to be one"
    if why:
        return Single(Certificate.APPROXIMATE, x, None, why)
    return interval(x, found.half_widths(grid), task)


def interval(x: Tensor, width: Tensor, task: Task, condition: float = 1.0) -> Single:
    """Return values with their half-widths; APPROXIMATE if these are nearly as wide as the data.

    The widths take in that the values are stored in the task's own number format, and that senders
    round their own states in it. Such errors last, so rounds do not average them.

    Args:
        x: (b, p) the values.
        width: (b, p) their half-widths, as far as the wire's errors make them.
        task: What is trained.
        condition: Condition number of the inputs of a batch, by which errors of one grow in the
            others.
    """
    size = float(x.square().mean().sqrt())
    width = width + torch.finfo(task.dtype).eps * (x.abs() + LASTING * condition * size)
    widest = float(width.max())
    said = f"every value within {widest:.1e} at {SURE:.0%} confidence for all of them together"
    if not widest < NARROW * size:
        note = f"{said}, which is {widest / max(size, 1e-300):.0%} of their size"
        return Single(Certificate.APPROXIMATE, x, None, note)
    return Single(Certificate.INTERVAL, x, width.reshape(-1, *task.spec.shape), said)


def batch(heard: Heard, x: Tensor, estimates: Tensor) -> Batch:
    """Judge images on the grid.

    Args:
        heard: The rows and what they come from.
        x: (n, p) different images on the grid. If they depend on each other, the first ones that do
            not are judged.
        estimates: (k, p) of the other inputs, as many as are needed beside x.
    """
    grid = heard.grid
    span = heard.span
    picked = _independent(torch.cat([x, estimates]), heard)
    among = len(x)
    estimates = estimates[picked[picked >= among] - among]
    x = x[picked[picked < among]]
    nothing = (False,) * len(x)
    if len(x) + len(estimates) != span.batch:
        why = (
            f"{len(x)} images on the grid and {len(estimates)} estimates "
            f"stand for {span.batch} inputs"
        )
        return Batch(x, nothing, {}, why)
    why = _unclear(heard)
    if why:
        return Batch(x, nothing, {}, why)
    rows, doubt = _settled(heard, x, estimates)
    inside = rows @ span.basis.T
    if not bool(torch.linalg.cond(inside) < DEPENDENT):
        return Batch(x, nothing, {}, "the images depend on each other")
    sure = doubt < MISTAKE
    strays = {k for k in range(span.batch) if float(doubt[k]) == 1}
    choices: dict[int, Tensor] = {}
    unlisted = set(strays)  # those whose alternatives cannot be listed
    agreed = slopes.agree(heard.leak, heard.task, span.basis, rows, grid)
    for k, others in enumerate(companions(heard, inside, agreed)):
        if k in strays or others & strays:
            unlisted.add(k)
            continue
        found = others_between(x[k], x[sorted(others)], grid.levels)
        if found is None:
            unlisted.add(k)
        elif len(found):
            choices[k] = found
    if choices and not unlisted and bool(sure.all()):
        chosen = slopes.by_slopes(heard, x, choices)
        if chosen is not None:
            return Batch(chosen, (True,) * len(x), {})
    # A batch that is wrong in one image fails this, so it comes after other candidates were tried.
    if agreed is False:
        why = "the known models give these images other slopes than the rows hold"
        return Batch(x, nothing, choices, why)
    exact = tuple(bool(sure[k]) and k not in choices and k not in unlisted for k in range(len(x)))
    why = ""
    if not all(exact):
        if choices:
            why = "images that are alike leave several candidates"
        elif unlisted - strays:
            why = "too few neurons tell some inputs apart"
        else:
            why = "noise may have taken a pixel to another value"
    return Batch(x, exact, choices, why)


def table(heard: Heard, x: Tensor) -> Single:
    """Judge a whole batch of data without a grid: intervals if activity proves every input.

    Args:
        heard: The rows and what they come from.
        x: (b, p) estimates of all inputs.
    """
    from scipy.special import ndtri  # slow to import, and inputs on a grid need no quantile

    leak = heard.leak
    span = heard.span
    why = _unclear(heard)
    if leak.batch != span.batch or len(x) != span.batch or not steady(leak):
        why = "the batch size is not known, or some samples repeat"
    if why:
        return Single(Certificate.APPROXIMATE, x, None, why)
    inside = heard.grid.rows(x) @ span.basis.T
    agreed = slopes.agree(leak, heard.task, span.basis, heard.grid.rows(x), heard.grid)
    if any(companions(heard, inside, agreed)):
        return Single(Certificate.APPROXIMATE, x, None, "too few neurons tell the inputs apart")
    if agreed is False:
        why = "the known models give these inputs other slopes than the rows hold"
        return Single(Certificate.APPROXIMATE, x, None, why)
    data = uniqueness.windows([heard.white @ span.basis.T], span.noise)
    inside, mixed = uniqueness.refined(data, inside)
    found = Estimates.of(heard.white, inside @ span.basis, heard.stack, leak.wire)
    values = found.pixels(heard.grid)
    # Each input also holds a multiple of every other one's difference, by the errors of the duals.
    quantile = -UNEVEN * float(ndtri((1 - SURE) / (2 * values.numel())))
    apart = (values[:, None] - values[None]).abs()
    width = found.half_widths(heard.grid) + quantile * (mixed[:, :, None] * apart).sum(1)
    return interval(values, width, heard.task, float(torch.linalg.cond(inside)))


def companions(heard: Heard, inside: Tensor, agreed: bool | None) -> list[frozenset[int]]:
    """Return for every input those that it may still hold, by activity in several windows.

    A companion must remain in every window length: one length that excludes it is enough.

    Args:
        heard: The rows and what they come from.
        inside: (b, b) the inputs in the rows' space.
        agreed: Whether known models give the inputs the slopes that the rows hold. If that is not
            sure, the rows themselves have to show that these slopes are independent.

    Returns:
        The places of an input's companions, one set for each input.
    """
    near = [frozenset(range(len(inside)))] * len(inside)
    rounds = len(heard.stack)
    basis = heard.span.basis
    for k in range(WINDOWS):
        length = rounds // 2**k
        if (k and length < SHORTEST) or not any(near):
            break
        parts = [heard.white]
        if k:
            starts = range(0, rounds - length + 1, length)
            windows = [slice(a, a + length) for a in starts]
            parts = [first_layer_rows.whiten(heard.stack, heard.leak, one) for one in windows]
        data = uniqueness.windows([part @ basis.T for part in parts], heard.span.noise)
        found = uniqueness.companions(data, inside, outputs(heard.task), heard.generator)
        near = [old & new for old, new in zip(near, found, strict=True)]
    if agreed:
        return near
    whole = uniqueness.windows([heard.white @ basis.T], heard.span.noise)
    alike = uniqueness.undecided(whole, inside, heard.generator)
    return [old | new for old, new in zip(near, alike, strict=True)]


def whole_gradient(
    leak: GradientLeak, task: Task, x: Tensor, left: float, residual: Callable[[Tensor], float]
) -> bool:
    """Whether one image on the grid is the only one that gives the whole gradient.

    The image was found by linear equations layer by layer, and these settle every layer, so that
    only rounding can make another image of it. What the image leaves of the gradient must be as
    little as the rounding of its numbers, and much less than one grey level makes in any pixel that
    is tried.

    Args:
        leak: A plain gradient.
        task: What is trained.
        x: (1, *shape) on the grid.
        left: Relative residual of x.
        residual: The same, of other inputs.
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


def steady(leak: GradientLeak) -> bool:
    """Whether every gradient of the leak is of the same samples, as far as the declaration says.

    Args:
        leak: One gradient, or several of a node with `records` samples and batches of `batch`.
    """
    return leak.combination.shape[1] == 1 or leak.records is None or leak.records == leak.batch


def signs(stack: Tensor) -> bool:
    """Whether all entries of rows have one size.

    Signs of gradients do, and have rank one for one sample as well.

    Args:
        stack: (m, H, p + 1) rows.
    """
    told = stack[stack != 0].abs()
    same = torch.finfo(torch.float32).eps
    return len(told) > 1 and float(told.max() - told.min()) <= same * float(told.max())


def outputs(task: Task) -> int:
    """Count the independent entries of the loss's slope in the model's outputs.

    Args:
        task: What is trained. The entries of cross-entropy add up to zero.
    """
    if task.spec.loss == "cross_entropy":
        return max(1, task.spec.classes - 1)
    if task.spec.loss == "squared":
        return max(1, task.spec.classes)
    return 1


def decays(leak: GradientLeak, task: Task) -> bool:
    """Whether the rows may hold weight decay that was not taken out, since the models are unknown.

    Args:
        leak: What the rows come from.
        task: What is trained.
    """
    return bool(task.l2) and leak.theta is None


def ends(span: Span, white: Tensor) -> bool:
    """Whether nothing but the wire's noise follows the batch's directions.

    Samples whose rows hardly change would show there.

    Args:
        span: The space of the rows.
        white: (m, H, p + 1) whitened rows.
    """
    rows, columns = white.flatten(0, 1).shape
    of_noise = ENDS * (math.sqrt(rows) + math.sqrt(columns))
    return span.white or float(span.sizes[span.batch]) < of_noise


def scarce(leak: GradientLeak, task: Task, white: Tensor, inputs: int) -> str:
    """Explain why the rows may come from more samples than the inputs that they show.

    Rows of rank r could be those of any number of samples if there were only r of them: a stack of
    one row has rank one whatever is in it. So, unless the batch size is known, there must be more
    independent rounds than inputs. Neurons of one round are no evidence: at a model without outputs
    all samples have the same slopes, and an average of the samples has them too.

    Args:
        leak: What the rows come from.
        task: What is trained.
        white: (m, H, p + 1) whitened rows.
        inputs: Their rank.

    Returns:
        The reason, empty if they cannot.
    """
    known = leak.batch if steady(leak) else None
    if known == inputs and not decays(leak, task):
        return ""
    if leak.batch is not None and inputs < leak.batch:
        # Two images that differ by two levels in a few pixels have an average on the grid.
        return (
            f"{leak.batch} samples show as {inputs} inputs: some repeat, "
            "or are so alike that only their average is seen"
        )
    over_time = white.flatten(1)
    spread = torch.linalg.svdvals(torch.linalg.qr(over_time.T).R)
    noise = ENDS * (math.sqrt(over_time.shape[1]) + math.sqrt(len(over_time)))
    least = uniqueness.TIMES if known is not None else MOVED
    independent = int((spread > max(noise, least * float(spread[0]))).sum())
    if independent >= max(inputs, leak.batch or inputs) + MARGIN:
        if known is None and float(spread[0]) < TWINS * noise:
            how = "the batch size is not known" if leak.batch is None else "batches change"
            return (
                f"{how}, and on this wire two images that are nearly equal look like one; "
                "record an unchanged batch (samples)"
            )
        return ""
    if known == inputs:
        return (
            f"weight decay is in the rows, the models are unknown, "
            f"and {independent} independent rows cannot tell it apart"
        )
    return (
        f"{independent} independent rows cannot tell {inputs} inputs from an average of more; "
        "record the batch size (samples)"
    )


def _unclear(heard: Heard) -> str:
    """Explain why the rows do not reveal the number of inputs for sure, empty if they do."""
    if not ends(heard.span, heard.white):
        return "more than the wire's rounding follows the batch's singular values"
    return scarce(heard.leak, heard.task, heard.white, heard.span.batch)


def _independent(x: Tensor, heard: Heard) -> Tensor:
    """Choose places of inputs (n, p) that do not depend on those before them, at most b."""
    inside = heard.stored(x) @ heard.span.basis.T
    chosen: list[int] = []
    basis = inside.new_zeros(inside.shape[1], 0)
    for k, row in enumerate(inside):
        rest = row - basis @ (basis.T @ row)
        rest = rest - basis @ (basis.T @ rest)
        if len(chosen) < heard.span.batch and float(rest.norm()) > APART * float(row.norm()):
            chosen.append(k)
            basis = torch.cat([basis, (rest / rest.norm())[:, None]], dim=1)
    return torch.tensor(chosen, dtype=torch.long)


def _settled(heard: Heard, x: Tensor, estimates: Tensor) -> tuple[Tensor, Tensor]:
    """Put estimates from the rows in the place of images that are not on the grid after all.

    An image with something else in it is a mixture that happens to lie near the grid. Its estimate
    from the rows takes its place, since the others are judged beside it; this can show more such
    images.

    Args:
        heard: The rows and what they come from.
        x: (n, p) images on the grid.
        estimates: (b - n, p) of the other inputs.

    Returns:
        The inputs as rows (b, p + 1), and for each the probability (b,) of a wrong pixel, 1 if it
        is not on the grid.
    """
    grid = heard.grid
    rows = torch.cat([heard.stored(x), grid.rows(estimates)])
    rounded = torch.cat([x, grid.snapped(estimates)])
    strays = torch.arange(len(rows)) >= len(x)
    while True:
        found = Estimates.of(heard.white, rows, heard.stack, heard.leak.wire)
        doubt = wrong_pixel(found, grid, rounded)
        doubt[strays] = 1
        new = (doubt == 1) & ~strays
        if not bool(new.any()):
            return rows, doubt
        strays |= new
        rows[new] = found.values[new] / found.values[new, -1:]
