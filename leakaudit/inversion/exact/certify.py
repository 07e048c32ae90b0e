"""When a reconstruction may be called exact: what has to be shown, in one place for every attack (docs/exact.md has the theorem).

Four things have to be shown, from the leak and the public description of the task, without the truth:

* **Evidence**: the rows tell how many inputs there are. Their singular values end at the noise of the wire, and there are more
  independent rows than inputs, so that neither weight decay nor an average of several inputs can pass for one.
* **Residual**: what the inputs leave unexplained is the noise that the rows themselves show. How much noise a protocol declares
  never widens anything.
* **Pixels**: every pixel lies within its own error of the grid k/levels, and this error is so small that rounding took none to
  another value but with a probability of `MISTAKE` for the whole image.
* **Uniqueness**: no other image on the grid could take the place of this one (`uniqueness`, `gridrepair.others_between`). If some
  could, and the models are known, the slopes of the loss are computed again for each, and only one may fit.

Data without a grid are never called exact. They get an interval for every value.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from scipy.special import ndtri, stdtrit
from torch import Generator, Tensor

from leakaudit.inversion.exact import first_layer_rows, slopes, uniqueness
from leakaudit.inversion.exact.pixel_grid import Grid, others_between
from leakaudit.reconstruction import Certificate

if TYPE_CHECKING:
    from leakaudit.inversion.exact.first_layer_rows import Span
    from leakaudit.leak import GradientLeak
    from leakaudit.tasks.task import Task

SURE = 0.99  # confidence of intervals, for all values of a reconstruction together
UNEVEN = 2.0  # wires round large numbers more than small ones: errors of some rows are so many times larger than the average
NARROW = 0.1  # widest interval, relative to the size of the data, that is called one
LASTING = 16.0  # rounding that a sender's state keeps from round to round, in units of the number format's precision; 5 was seen
MISTAKE = 1e-6  # probability of a wrong pixel anywhere in an image that is called exact
CAUTION = 1.5  # errors are taken this many times as large as measured: they are not quite Gaussian, and measured themselves
LEVEL = 5e-3  # distance to the grid, in grid units, that needs no explanation: rounding leaves 2e-3 in a batch of 32 from float32 wires
HALF = 1e-4  # precision of a wire above which it is a half-precision one: 8e-3 for bfloat16, 1e-3 for float16, 1e-7 for float32
HALFWAY = 0.25  # distance to the grid, in grid units, beyond which a pixel is nearly as close to another level
STRAY = 8.0  # errors in units of their standard deviation beyond which something else is in a pixel
ENDS = 10.0  # singular values beyond the batch, in units of those of the wire's noise, that are nothing but noise; 2 was seen
MARGIN = 2  # independent rows beyond the samples that must be there if fewer inputs than samples, or an unknown number, are seen
TWINS = 1e8  # size of rows, in units of the wire's noise, above which two images that differ by a level in one pixel show as two
MOVED = 1e-5  # part of the slopes that must change over the rounds for that: where nothing is learned, slopes do not depend on images
WINDOWS = (
    3  # lengths of windows in which activity is looked at: all rounds, half of them, a quarter
)
SHORTEST = 2  # rounds of a window
ROUNDED = 2e-6  # relative residual of a whole gradient that is rounding in float32
DEPENDENT = 1e6  # condition number of images on the grid that depend on each other; a difference of one level in one pixel makes 1e4
APART = 1e-5  # part of an image outside the others' space that makes it independent; a level in one of 3072 pixels is 1e-4
PROBES = 32  # pixels that are moved by a grey level
EQUAL = 1e-12  # relative residual that is rounding in float64
MANY = 30  # rows beyond unknowns above which each column's own noise is well known
COLUMNS = 512  # of the rows that are looked at together
WORSE = 10.0  # times as much that another image must leave


@dataclass(frozen=True)
class Batch:
    """What is proven of the inputs (b, p) of a batch, all on the grid.

    x: the inputs, exchanged for others if the slopes at known models decided so. exact: which are proven.
    choices: for some of the others, the images (k, p) that explain the rows as well. why: the first obligation that is not met,
    empty if all inputs are proven.
    """

    x: Tensor
    exact: tuple[bool, ...]
    choices: Mapping[int, Tensor]
    why: str = ""


@dataclass(frozen=True)
class Single:
    """What is proven of one input.

    certificate: EXACT, INTERVAL or APPROXIMATE. x: (1, p), rounded to the grid if that is sure. interval: half-widths, or None.
    note: what was seen, or which obligation is not met.
    """

    certificate: Certificate
    x: Tensor
    interval: Tensor | None
    note: str


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
        return Single(
            Certificate.EXACT,
            snapped,
            None,
            f"every pixel was within {off:.1e} of a grey level before rounding",
        )
    if not why and not (leak.batch == 1 and steady(leak)):
        why = "the batch size is not known to be one"
    if why:
        return Single(Certificate.APPROXIMATE, x, None, why)
    return interval(x, found.half_widths(grid), task)


def interval(x: Tensor, width: Tensor, task: Task, condition: float = 1.0) -> Single:
    """Return values x (b, p) with their half-widths; APPROXIMATE if these are nearly as wide as the data themselves.

    The widths take in that the values are stored in the task's own number format, and that senders round their own states in it. Such
    errors last, so rounds do not average them.

    Args:
        x: The values.
        width: Their half-widths, as far as the wire's errors make them.
        task: What is trained.
        condition: Condition number of the inputs of a batch, by which errors of one grow in the others.
    """
    size = float(x.square().mean().sqrt())
    width = width + torch.finfo(task.dtype).eps * (x.abs() + LASTING * condition * size)
    widest = float(width.max())
    said = f"every value within {widest:.1e} at {SURE:.0%} confidence for all of them together"
    if not widest < NARROW * size:
        return Single(
            Certificate.APPROXIMATE,
            x,
            None,
            f"{said}, which is {widest / max(size, 1e-300):.0%} of their size",
        )
    return Single(Certificate.INTERVAL, x, width.reshape(-1, *task.spec.shape), said)


def repeated(stack: Tensor) -> float:
    """How much larger errors are than independent rounds would make them, because a model that stands still repeats its rounding.

    Args:
        stack: (m, H, p + 1) rows of the first layer. An entry that is equal in two rounds in a row has the same error in both.

    Returns:
        The square root of rounds over rounds that count, at least 1.
    """
    told = stack[1:] != 0
    equal = (stack[1:] == stack[:-1]) & told
    share = equal.flatten(1).sum(1) / told.flatten(1).sum(1).clamp_min(1)
    return math.sqrt(len(stack) / (1 + float((1 - share).sum())))


def steady(leak: GradientLeak) -> bool:
    """Whether every gradient of the leak is of the same samples, as far as the declaration says."""
    return leak.combination.shape[1] == 1 or leak.records is None or leak.records == leak.batch


def signs(stack: Tensor) -> bool:
    """Whether all entries of rows (m, H, p + 1) have one size: signs of gradients do, and have rank one for one sample as well."""
    told = stack[stack != 0].abs()
    return len(told) > 1 and float(told.max() - told.min()) <= torch.finfo(
        torch.float32
    ).eps * float(told.max())


def outputs(task: Task) -> int:
    """Independent entries of the loss's slope in the model's outputs: those of cross-entropy add up to zero."""
    if task.spec.loss == "cross_entropy":
        return max(1, task.spec.classes - 1)
    return max(1, task.spec.classes) if task.spec.loss == "squared" else 1


def decays(leak: GradientLeak, task: Task) -> bool:
    """Whether the rows may hold weight decay that was not taken out, since the models are unknown."""
    return bool(task.l2) and leak.theta is None


def ends(span: Span, white: Tensor) -> bool:
    """Whether nothing but the wire's noise follows the batch's directions; samples whose rows hardly change would show there."""
    rows, columns = white.flatten(0, 1).shape
    quiet = ENDS * (math.sqrt(rows) + math.sqrt(columns))
    return span.white or float(span.sizes[span.batch]) < quiet


@dataclass(frozen=True)
class Heard:
    """What a batch is judged by.

    leak: what the rows come from. task: what is trained. stack: (m, H, p + 1) rows of the first layer. white: the same, whitened over
    all rounds. span: the space that they span. grid: of the data. generator: for dividing neurons into parts.
    """

    leak: GradientLeak
    task: Task
    stack: Tensor
    white: Tensor
    span: Span
    grid: Grid
    generator: Generator

    def stored(self, x: Tensor) -> Tensor:
        """Return what the first layer saw of inputs (n, p), and a 1: k/levels as it is, or rounded to float32 by who stored it."""
        basis = self.span.basis
        versions = torch.stack([self.grid.rows(x), self.grid.rows(x.float().to(x))])
        off = (versions - versions @ basis.T @ basis).norm(dim=2)
        better = (off[0] < off[1])[:, None]
        return torch.where(better, versions[0], versions[1])


def batch(heard: Heard, x: Tensor, estimates: Tensor) -> Batch:
    """Judge images on the grid.

    Args:
        heard: The rows and what they come from.
        x: (n, p) different images on the grid. If they depend on each other, the first ones that do not are judged.
        estimates: (k, p) of the other inputs, as many as are needed beside x.
    """
    grid, span = heard.grid, heard.span
    picked = _independent(torch.cat([x, estimates]), heard)
    x, estimates = x[picked[picked < len(x)]], estimates[picked[picked >= len(x)] - len(x)]
    nothing = (False,) * len(x)
    if len(x) + len(estimates) != span.batch:
        return Batch(
            x,
            nothing,
            {},
            f"{len(x)} images on the grid and {len(estimates)} estimates stand for {span.batch} inputs",
        )
    if why := _unclear(heard):
        return Batch(x, nothing, {}, why)
    rows, doubt = _settled(heard, x, estimates)
    inside = rows @ span.basis.T
    if not bool(torch.linalg.cond(inside) < DEPENDENT):
        return Batch(x, nothing, {}, "the images depend on each other")
    sure = doubt < MISTAKE
    strays = {k for k in range(span.batch) if float(doubt[k]) == 1}
    choices: dict[int, Tensor] = {}
    unlisted = set(strays)
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
    # A batch that is wrong in one image fails this, so it comes after other candidates were tried in its place.
    if agreed is False:
        return Batch(
            x,
            nothing,
            choices,
            "the known models give these images other slopes than the rows hold",
        )
    exact = tuple(bool(sure[k]) and k not in choices and k not in unlisted for k in range(len(x)))
    if all(exact):
        return Batch(x, exact, choices)
    if choices:
        return Batch(x, exact, choices, "images that are alike leave several candidates")
    if unlisted - strays:
        return Batch(x, exact, choices, "too few neurons tell some inputs apart")
    return Batch(x, exact, choices, "noise may have taken a pixel to another value")


def table(heard: Heard, x: Tensor) -> Single:
    """Judge a whole batch of data without a grid: intervals if activity proves every input, estimated as x (b, p)."""
    leak, span = heard.leak, heard.span
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
        return Single(
            Certificate.APPROXIMATE,
            x,
            None,
            "the known models give these inputs other slopes than the rows hold",
        )
    inside, mixed = uniqueness.refined(
        uniqueness.windows([heard.white @ span.basis.T], span.noise), inside
    )
    found = Estimates.of(heard.white, inside @ span.basis, heard.stack, leak.wire)
    values = found.pixels(heard.grid)
    quantile = -UNEVEN * float(ndtri((1 - SURE) / (2 * values.numel())))
    apart = (values[:, None] - values[None]).abs()
    width = found.half_widths(heard.grid) + quantile * (mixed[:, :, None] * apart).sum(1)
    return interval(values, width, heard.task, float(torch.linalg.cond(inside)))


def companions(heard: Heard, inside: Tensor, agreed: bool | None) -> list[frozenset[int]]:
    """Return for every input of a batch those that it may still hold, by activity in several windows.

    Args:
        heard: The rows and what they come from.
        inside: (b, b) the inputs in the rows' space.
        agreed: Whether known models give the inputs the slopes that the rows hold. If that is not sure, the rows themselves have to
            show that these slopes are independent.
    """
    near = [frozenset(range(len(inside)))] * len(inside)
    rounds, basis = len(heard.stack), heard.span.basis
    for k in range(WINDOWS):
        length = rounds // 2**k
        if (k and length < SHORTEST) or not any(near):
            break
        if k:
            starts = range(0, rounds - length + 1, length)
            parts = [
                first_layer_rows.whiten(heard.stack, heard.leak, slice(a, a + length))
                for a in starts
            ]
        else:
            parts = [heard.white]
        data = uniqueness.windows([part @ basis.T for part in parts], heard.span.noise)
        found = uniqueness.companions(data, inside, outputs(heard.task), heard.generator)
        near = [old & new for old, new in zip(near, found, strict=True)]
    if agreed:
        return near
    whole = uniqueness.windows([heard.white @ basis.T], heard.span.noise)
    alike = uniqueness.undecided(whole, inside, heard.generator)
    return [old | new for old, new in zip(near, alike, strict=True)]


def _unclear(heard: Heard) -> str:
    """Say why the rows do not tell the number of inputs for sure, empty if they do."""
    if not ends(heard.span, heard.white):
        return "more than the wire's rounding follows the batch's singular values"
    return scarce(heard.leak, heard.task, heard.white, heard.span.batch)


def _independent(x: Tensor, heard: Heard) -> Tensor:
    """Choose places of inputs (n, p) that do not depend on those before them, as many as there are inputs."""
    inside = heard.stored(x) @ heard.span.basis.T
    chosen, basis = list[int](), inside.new_zeros(inside.shape[1], 0)
    for k, row in enumerate(inside):
        rest = row - basis @ (basis.T @ row)
        rest = rest - basis @ (basis.T @ rest)
        if len(chosen) < heard.span.batch and float(rest.norm()) > APART * float(row.norm()):
            chosen.append(k)
            basis = torch.cat([basis, (rest / rest.norm())[:, None]], dim=1)
    return torch.tensor(chosen, dtype=torch.long)


def _settled(heard: Heard, x: Tensor, estimates: Tensor) -> tuple[Tensor, Tensor]:
    """Return the inputs as rows (b, p + 1), and for each the probability of a wrong pixel, 1 if it is not on the grid.

    An image with something else in it is a mixture that happens to lie near the grid. Its estimate from the rows takes its place,
    since the others are judged beside it; this can show more such images.
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


def scarce(leak: GradientLeak, task: Task, white: Tensor, inputs: int) -> str:
    """Say why the rows may come from more samples than the inputs that they show, empty if they cannot."""
    known = leak.batch if steady(leak) else None
    if known == inputs and not decays(leak, task):
        return ""
    if leak.batch is not None and inputs < leak.batch:
        # Two images that differ by two levels in a few pixels have an average on the grid.
        return f"{leak.batch} samples show as {inputs} inputs: some repeat, or are so alike that only their average is seen"
    over_time = white.flatten(1)
    spread = torch.linalg.svdvals(torch.linalg.qr(over_time.T).R)
    noise = ENDS * (math.sqrt(over_time.shape[1]) + math.sqrt(len(over_time)))
    least = uniqueness.TIMES if known is not None else MOVED
    rounds = int((spread > max(noise, least * float(spread[0]))).sum())
    # Neurons of one round are no evidence: at a model without outputs all samples have the same slopes, and an average has them too.
    independent = rounds
    if independent >= max(inputs, leak.batch or inputs) + MARGIN:
        if known is None and float(spread[0]) < TWINS * noise:
            how = "the batch size is not known" if leak.batch is None else "batches change"
            return f"{how}, and on this wire two images that are nearly equal look like one; record an unchanged batch (samples)"
        return ""
    if known == inputs:
        return f"weight decay is in the rows, the models are unknown, and {independent} independent rows cannot tell it apart"
    return f"{independent} independent rows cannot tell {inputs} inputs from an average of more; record the batch size (samples)"


@dataclass(frozen=True)
class Estimates:
    """Inputs that are estimated again, column by column, from all rows.

    values: (b, p + 1), each known up to its scale. noise: (p + 1,) standard deviation of the rows' errors in each column, from what the
    estimates leave of it: wires round large values more than small ones, and zeros not at all. gain: (b,) the error of an estimate
    per unit of it. freedom: rows beyond unknowns. rounding: (b, p + 1) largest errors of the values if every row's entries are off by
    half of the wire's precision, the worst that rounding can do. coarse: whether the wire has half precision.
    """

    values: Tensor
    noise: Tensor
    gain: Tensor
    freedom: int
    rounding: Tensor
    coarse: bool

    @classmethod
    def of(cls, white: Tensor, rows: Tensor, stack: Tensor, wire: float) -> Estimates:
        """Estimate inputs again.

        Args:
            white: (m, H, p + 1) whitened rows.
            rows: (b, p + 1) the inputs as the first layer sees them.
            stack: The rows as they are; repeated ones do not average their errors.
            wire: Precision of the wire's number format.
        """
        flat = white.flatten(0, 1)
        slopes = torch.linalg.lstsq(rows.T, flat.T, driver="gelsd").solution.T
        inverse = torch.linalg.pinv(slopes.T @ slopes, hermitian=True)
        weights = inverse @ slopes.T
        again = weights @ flat
        blocks = list(zip(flat.split(COLUMNS, dim=1), again.split(COLUMNS, dim=1), strict=True))
        left = torch.cat([(part - slopes @ found).square().sum(0) for part, found in blocks])
        rounding = wire / 2 * torch.cat([weights.abs() @ part.abs() for part, _ in blocks], dim=1)
        freedom = max(0, len(flat) - len(rows))
        noise = (left / max(1, freedom)).sqrt()
        size = flat.square().mean(0).sqrt()
        share = size / size.square().mean().sqrt().clamp_min(1e-300)
        if freedom < MANY:
            # Few rows may agree by luck, or repeat each other and hide their rounding. No column is taken to be relatively more
            # precise than all are together, nor than the leak states, which is 1 here, in proportion to its size.
            noise = noise.clamp_min(noise.square().mean().sqrt() * share).clamp_min(share)
        gain = repeated(stack) * inverse.diagonal().clamp_min(0).sqrt()
        return cls(again, noise, gain, freedom, rounding, wire > HALF)

    def pixels(self, grid: Grid) -> Tensor:
        """Inputs (b, p) in the data's units."""
        return self.values[:, :-1] / self.values[:, -1:] * grid.std + grid.mean

    def errors(self, grid: Grid, noise: Tensor) -> Tensor:
        """Errors (b, p) in the data's units that errors `noise` (p + 1,) of the rows make."""
        seen = self.values[:, :-1] / self.values[:, -1:]
        both = torch.hypot(noise[:-1], seen * noise[-1])
        return both * self.gain[:, None] / self.values[:, -1:].abs() * grid.std

    def half_widths(self, grid: Grid) -> Tensor:
        """Half-widths (b, p) of intervals that hold all values at once at the confidence `SURE`.

        The error of a column is what its rows show, with Student's quantile for their number, or what the leak states, which is 1 in
        whitened rows, if that is more. It is never less than the worst that rounding can do: where one row is much larger than the
        others, or rows repeat, errors of rounding do not average.
        """
        tail = (1 - SURE) / (2 * self.values.numel())
        shown = (
            -self.noise * float(stdtrit(self.freedom, tail))
            if self.freedom
            else torch.zeros_like(self.noise)
        )
        return self.errors(grid, UNEVEN * shown.clamp_min(-float(ndtri(tail)))).maximum(
            self.rounded(grid)
        )

    def rounded(self, grid: Grid) -> Tensor:
        """Errors (b, p) in the data's units that rounding can make at worst."""
        seen = self.values[:, :-1] / self.values[:, -1:]
        worst = self.rounding[:, :-1] + seen.abs() * self.rounding[:, -1:]
        return worst / self.values[:, -1:].abs() * grid.std


def wrong_pixel(estimates: Estimates, grid: Grid, x: Tensor) -> Tensor:
    """Bound, for every image (b, p) on the grid, the probability that one of its pixels is another level; 1 if something else is in it."""
    off = (estimates.pixels(grid) - x) * grid.levels
    spread = estimates.errors(grid, estimates.noise) * grid.levels
    missed = torch.special.erfc(0.5 / (CAUTION * spread.clamp_min(1e-12)) / math.sqrt(2)).sum(1)
    strays = (off.abs() > (STRAY * spread + LEVEL).clamp_max(HALFWAY)).any(1)
    if estimates.coarse:
        # Rounding to half precision takes several pixels the same way where one row is much larger than the others.
        unsure = (estimates.rounded(grid) * grid.levels > 0.5).any(1)
        missed = torch.where(unsure, missed.clamp_min(0.5), missed)
    return torch.where(strays, torch.ones_like(missed), missed)


def whole_gradient(
    leak: GradientLeak, task: Task, x: Tensor, left: float, residual: Callable[[Tensor], float]
) -> bool:
    """Whether one image on the grid, found by linear equations layer by layer, is the only one that gives the whole gradient.

    The equations settle every layer, so that only rounding can make another image of it. What the image leaves of the gradient must be
    as little as the rounding of its numbers, and much less than one grey level makes in any pixel that is tried.

    Args:
        leak: A plain gradient.
        task: What is trained.
        x: (1, *shape) on the grid.
        left: Relative residual of x.
        residual: The same, of other inputs.
    """
    if leak.batch != 1 or left > ROUNDED:
        return False
    flat, step = x.flatten(), 1 / task.spec.levels
    places = torch.linspace(0, len(flat) - 1, min(PROBES, len(flat))).round().long()
    for place in places.tolist():
        other = flat.clone()
        other[place] += -step if other[place] > 0.5 else step
        if residual(other.reshape(x.shape)) < WORSE * max(left, EQUAL):
            return False
    return True
