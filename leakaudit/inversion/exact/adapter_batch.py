"""Whole batches from the gradients of a low-rank adapter of the first layer, at known models."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Generator, Tensor

from leakaudit.core.reconstruction import Certificate, Reconstruction
from leakaudit.inversion.attack import failed
from leakaudit.inversion.exact import certify, first_layer_rows, slope_search
from leakaudit.inversion.exact.certify import MISTAKE
from leakaudit.inversion.exact.pixel_errors import Estimates, wrong_pixel
from leakaudit.inversion.exact.pixel_grid import PixelGrid
from leakaudit.inversion.exact.slope_search import Layer
from leakaudit.inversion.linear import edge, least_squares
from leakaudit.inversion.search import objectives
from leakaudit.tasks import batch_norm, build_task
from leakaudit.tasks.low_rank import Adapter

if TYPE_CHECKING:
    from leakaudit.core.leak import GradientLeak
    from leakaudit.inversion.exact.first_layer_rows import Span
    from leakaudit.tasks.task import Task

# A layer computes W x + c + s B A x; W and c are frozen, A (r, p) and B (H, r) are trained. With
# the slopes Delta (H, b) of the batch X (b, p) in its outputs, their gradients are
#
#     dA = s (B^T Delta) X     and     dB = s Delta (X A^T).
#
# 1. **Span.** If B^T Delta has rank b, the rows of dA span the space of the inputs. B begins with
#    zeros, so that this holds from the second step on.
# 2. **The whole gradient.** With an orthonormal basis R of the span, X = T R and dB = s (Delta T)
#    (R A^T). R A^T (b, r) is known and has rank b, so Delta T follows, and with it Delta X: all
#    that the gradient of W would have shown. Only that of c is missing, so nothing states the
#    length of an input.
# 3. **Samples.** At the known model, the slopes of an input are a function of this input
#    (`slope_search`), its length included.
#
# EXACT states that no other batch of b inputs has these gradients. It requires:
#
# 1. b is declared, the rank of dA is b < r, and its singular values end at the noise. The b inputs
#    then span the same space, whatever they are: another batch is (1 + E) X.
# 2. The gradients of all parameters, computed again from X and its labels, are the leaked ones up
#    to rounding, in every round.
# 3. Every pixel is on the grid, and rounding cannot have moved it (`pixel_errors`).
# 4. To first order, every E that changes a pixel by a quarter of a level changes dB by more than
#    ten times what is left of it. dB changes by s L(E) X A^T, where L(E) = Delta E +
#    dDelta/dX [E X].
# 5. The layer has at least 2 b neurons.
# 6. The loss has at least three outputs. With two classes, the slopes of an input x have one
#    direction and the size p(x) - y, so that all equations for its length are one, which two
#    lengths may fulfil. With more outputs, no other length of a single input is found to fulfil
#    them.
#
# As in `whole_chain`, it is not proven that no batch exists far from X, where first order says
# nothing. It would fulfil H b equations, with b^2 unknowns, to five or more digits by coincidence.

# Largest residual of gradients that are computed again, in units of what errors explain.
FITS = 3.0
# Neurons for each input, so that there are twice as many equations as unknowns: a choice.
ENOUGH = 2
# Change of dB, in units of what is left of it or of its rounding, that could go unnoticed.
UNNOTICED = 10.0
# Distance from its level, in levels, at which a pixel is nearly as close to another one.
HALFWAY = 0.25
# Middle of the range of pixels, and a rough spread around it: where samples are sought.
MIDDLE, SPREAD = 0.5, 0.25
# Outputs from which on the equations for the length of an input are more than one.
OUTPUTS = 3
# How much longer, or shorter, the inputs are that are compared with one; the nearest differ by less
# than a level.
FACTORS = 1 + torch.logspace(-4, 14, 240, dtype=torch.float64)
# Relative difference of two directions of slopes that could be one.
ALIKE = 0.1
# Singular values of noise, in units of the first one after those of a batch: a choice.
MARGIN = 5.0
# Largest batch of which b^4 numbers are computed: 800 MB.
LARGEST = 100
# Smallest divisor.
TINY = 1e-300
# Steps that improve estimates by slopes at the estimates.
POLISH = 8


def missing(leak: GradientLeak, task: Task) -> str | None:
    """Explain why a leak does not show the batch of a first layer with an adapter."""
    adapter = task.adapter
    if adapter is None:
        model = task.spec.model
        return f"the first layer of {model} is not fully connected, and no adapter is found there"
    if task.spec.loss not in ("cross_entropy", "binary"):
        return f"at an adapter, it requires a loss with labels, not {task.spec.loss}"
    if batch_norm.normalises(task):
        return "batch normalisation couples the records, whose slopes do not separate"
    why = objectives.incomplete(replace(leak, batch=leak.batch or 1), task)
    if why:
        return why
    if not leak.single.any():
        return (
            "an adapter's gradients at several models do not separate, and the leak contains only "
            "their differences"
        )
    rank = len(adapter.matrices(task.layout.split(leak.value[0]))[0])
    if (leak.batch or 1) >= rank:
        return (
            f"each gradient comes from {leak.batch or 1} records, and an adapter of rank {rank} "
            f"shows the space of at most {rank - 1}"
        )
    return None


def recover(leak: GradientLeak, task: Task, generator: Generator) -> Reconstruction:
    """Recover the batch of a leak for which `missing` gives no reason."""
    if not leak.steady:
        return failed("exact", leak, task, "its gradients come from different records")
    task = replace(task, buffers={n: _double(v) for n, v in task.buffers.items()})
    leak = _some(leak, leak.single)
    stack = first_layer_rows.of_inputs(leak, task)
    shows = stack.flatten(1).any(1)
    if not shows.any():
        why = (
            "the gradient of the adapter's factor A is zero, because B is zero before the first "
            "step; the gradient of any later step shows more"
        )
        return failed("exact", leak, task, why)
    later = _some(leak, shows)
    stack = stack[shows]
    white = first_layer_rows.whiten(stack, later, slice(None))
    span = first_layer_rows.span(white, leak.samples, generator)
    rank = stack.shape[1]
    if span is None or span.batch >= rank:
        why = (
            f"the {rank} rows of the adapter's factor A do not show the batch size: there are "
            f"{rank} inputs or more, or noise hides the weakest"
        )
        return failed("exact", leak, task, why)
    seen = _Observations(leak, later, task, stack, white, span)
    found = seen.samples(generator)
    if found is None:
        why = f"not all {span.batch} samples were found among the inputs that the adapter shows"
        return failed("exact", leak, task, why)
    return seen.judged(*found)


def _double(value: Tensor) -> Tensor:
    return value.double() if value.is_floating_point() else value


def _some(leak: GradientLeak, rows: Tensor) -> GradientLeak:
    """Return a leak of some of its equations, (m,) bool."""
    noise = None if leak.noise is None else leak.noise[rows]
    return replace(
        leak,
        combination=leak.combination[rows],
        value=leak.value[rows],
        std=leak.std[rows],
        noise=noise,
    )


@dataclass(frozen=True, eq=False)
class _Round:
    """One gradient at a known model, in float64."""

    theta: Tensor  # (d,)
    value: Tensor  # (d,) the gradient
    noise: float  # standard deviation of an entry, with rounding
    params: Mapping[str, Tensor]
    down: Tensor  # A (r, p)
    up: Tensor  # B (H, r)
    of_down: Tensor  # dA (r, p)
    of_up: Tensor  # dB (H, r)

    @classmethod
    def of(cls, leak: GradientLeak, task: Task, k: int) -> _Round:
        """Return equation k of single gradients."""
        assert leak.theta is not None
        assert task.adapter is not None
        t = int(leak.combination[k].abs().argmax())
        weight = float(leak.combination[k, t])
        theta = leak.theta[t].double()
        value = leak.value[k].double() / weight - task.l2 * theta
        params = task.layout.split(theta)
        down, up = task.adapter.matrices(params)
        of_down, of_up = task.adapter.matrices(task.layout.split(value))
        rounding = _precision(leak) * float(value.square().mean().sqrt())
        noise = max(float(leak.std[k]) / abs(weight), rounding)
        return cls(theta, value, noise, params, down, up, of_down, of_up)


def _precision(leak: GradientLeak) -> float:
    return max(leak.wire, torch.finfo(leak.value.dtype).eps)


@dataclass(frozen=True, eq=False)
class _Observations:
    """What single gradients of one batch show at an adapter."""

    leak: GradientLeak
    later: GradientLeak  # those of them in which A has a gradient
    task: Task
    stack: Tensor  # (m, r, p) the later gradients of A
    white: Tensor  # the same, whitened over time
    span: Span  # the space of the inputs, as the layer receives them

    @property
    def adapter(self) -> Adapter:
        """The adapter."""
        assert self.task.adapter is not None
        return self.task.adapter

    @property
    def grid(self) -> PixelGrid:
        """The grid of the data."""
        return PixelGrid.of(self.task)

    @property
    def usual(self) -> float:
        """A usual length of an input, as the layer receives it."""
        middle = (MIDDLE - self.grid.mean) / self.grid.std
        return float(torch.hypot(middle, SPREAD / self.grid.std).norm())

    @property
    def share(self) -> float:
        """The weight of one record in the mean loss."""
        return self.task.factor / self.span.batch

    def clearest(self) -> _Round:
        """Return the later gradient with the best signal-to-noise ratio."""
        return _Round.of(self.later, self.task, int(objectives.clarity(self.later).argmax()))

    def layer(self, one: _Round, basis: Tensor) -> Layer:
        """Return the layer at a model, as a function of coordinates in a basis (b, p)."""
        adapter = self.adapter
        origin = torch.zeros(len(basis), dtype=torch.float64)
        origin[0] = self.usual
        x = self.task.denormalise(origin @ basis).reshape(1, *self.task.spec.shape)
        low = one.down @ self.task.normalise(x).flatten()
        low = low / (adapter.scale * low.square().sum())
        place = adapter.bias
        fixed = {**self.task.buffers, **one.params}

        def logits(task: Task, shift: Tensor) -> Tensor:
            moved = {place: fixed[place] + shift} if place else {}
            if not place:
                moved[adapter.up] = adapter.stored(adapter.up, one.up + torch.outer(shift, low))
            return task.logits_at({**one.params, **moved}, x)

        return Layer(logits, adapter.effective(self.task, one.theta) @ basis.T, origin)

    def samples(self, generator: Generator) -> tuple[Tensor, Tensor] | None:
        """Find the inputs (b, p), as the layer receives them, and their labels (b,)."""
        one = self.clearest()
        basis = self.span.basis
        scale = self.adapter.scale * self.share
        inside = one.of_up @ torch.linalg.pinv(basis @ one.down.T) / scale
        sizes = torch.linalg.svdvals(one.of_up)
        # The singular values after those of the batch show noise that nobody stated.
        noise = max(
            certify.ENDS * one.noise * edge(*one.of_up.shape), MARGIN * float(sizes[len(basis)])
        )
        tilt = noise / max(TINY, float(sizes[len(basis) - 1]))
        centre = (torch.full_like(basis[0], MIDDLE) - self.grid.mean) / self.grid.std
        found = slope_search.samples(
            self.task,
            self.layer(one, basis),
            inside,
            min(slope_search.LOOSE, tilt),
            _precision(self.leak),
            centre @ basis.T,
            self.usual,
            generator,
        )
        if found is None:
            return None
        coordinates, labels = found
        return self._polished(coordinates @ basis, labels), labels

    def slopes(self, one: _Round, x: Tensor, labels: Tensor, ways: bool = False) -> _Slopes:
        """Return the slopes of inputs (b, p), and how they change with each other's inputs."""
        axes = torch.linalg.qr(x.T).Q.T
        layer = self.layer(one, axes)
        u = x @ axes.T
        found = layer.slopes(self.task, u, labels)
        changed = layer.moved(self.task, u, labels, u.T) if ways else found.new_zeros(0)
        return _Slopes(found.T, changed)

    def _polished(self, x: Tensor, labels: Tensor) -> Tensor:
        """Estimate inputs (b, p) again from all gradients of A, with slopes at the estimates."""
        rounds = [_Round.of(self.later, self.task, k) for k in range(len(self.stack))]
        for _ in range(POLISH):
            parts = []
            for one in rounds:
                slopes = self.slopes(one, x, labels).values
                parts.append(self.adapter.scale * self.share * one.up.T @ slopes / one.noise)
            rows = torch.cat([one.of_down / one.noise for one in rounds])
            mixed = torch.cat(parts)
            if not bool(mixed.isfinite().all()):
                break
            x = least_squares(mixed, rows)
        return x

    def judged(self, x: Tensor, labels: Tensor) -> Reconstruction:
        """Certify inputs (b, p), as the layer receives them, if every condition holds."""
        grid = self.grid
        levels = self.task.spec.levels
        pixels = x * grid.std + grid.mean
        if levels:
            pixels = grid.denoised(pixels)
        # The program may have stored pixels in full, or rounded to float32.
        versions = [pixels, pixels.float().double()]
        tried = [self._left(version, labels) for version in versions]
        best = min(range(2), key=lambda k: tried[k].errors)
        pixels = versions[best]
        left = tried[best]
        if not left.share < objectives.FIT:
            why = "the inputs that were found do not give the gradients"
            return failed("exact", self.leak, self.task, why, left.share)
        x = (pixels - grid.mean) / grid.std
        why = self._uncounted() or self._few() or self._another_length(x, labels)
        if not why and left.errors > FITS:
            why = (
                f"gradients that are computed again from the inputs differ by {left.errors:.1g} "
                "times what rounding explains"
            )
        estimates = self._estimates(x)
        width = self._unnoticed(x, labels, left.of_up) * grid.std
        interval = None
        if levels and not why:
            why = self._off_grid(estimates, grid.snapped(pixels), width)
        elif not why:
            width = width + estimates.half_widths(grid)
            fresh = first_layer_rows.fresh(self.later)
            judged = certify.interval(pixels, width, self.task, fresh)
            interval = judged.interval
            why = judged.why
        exact = bool(levels) and not why
        certificate = Certificate.EXACT if exact else Certificate.APPROXIMATE
        if interval is not None:
            certificate = Certificate.INTERVAL
        elif exact:
            pixels = grid.snapped(pixels)
        shown, evidence = certify.reported(pixels, interval, self.task)
        batch = self.span.batch
        note = f"all {batch} inputs that the adapter of {self.adapter.weight} shows"
        return Reconstruction(
            self.leak.node,
            "exact",
            shown.reshape(-1, *self.task.spec.shape).to(self.task.dtype),
            labels,
            certificate,
            left.share,
            note=f"{note}; {why}" if why else note,
            certified=batch if exact else 0,
            interval=interval,
            evidence=evidence,
        )

    def _uncounted(self) -> str:
        """Explain why the number of inputs is not certain; empty if it is."""
        if self.leak.samples is None:
            return "the batch size is not stated (samples)"
        if self.leak.samples != self.span.batch:
            number = f"{self.leak.samples} samples appear as {self.span.batch} inputs"
            return f"{number}: some depend on each other, or the number is wrong"
        if not certify.ends(self.span, self.white):
            return "a singular value after those of the batch is larger than rounding explains"
        return ""

    def _few(self) -> str:
        """Explain why too few equations confirm the inputs; empty if they are enough."""
        outputs = len(self.clearest().up)
        if outputs < ENOUGH * self.span.batch:
            return f"a layer of {outputs} neurons does not confirm {self.span.batch} inputs"
        if build_task.outputs(self.task.spec) < OUTPUTS:
            return "with fewer than three outputs of the loss, inputs of two lengths may fit"
        return ""

    def _another_length(self, x: Tensor, labels: Tensor) -> str:
        """Explain that an input of another length could fit; empty if none of (b, p) can."""
        one = self.clearest()
        axes = torch.linalg.qr(x.T).Q.T
        layer = self.layer(one, axes)
        u = x @ axes.T
        own = layer.slopes(self.task, u, labels)
        for factors in (FACTORS, 1 / FACTORS):
            longer, alike = [], []  # than the own slopes, from the own length on
            for factor in factors:
                moved = factor * layer.slopes(self.task, factor * u, labels)
                share = (moved * own).sum(1) / own.square().sum(1).clamp_min(TINY)
                off = (moved - share[:, None] * own).norm(dim=1)
                longer.append(share > 1)
                alike.append(off <= ALIKE * moved.norm(dim=1))
            crosses = torch.stack(longer).diff(dim=0)
            same = torch.stack(alike)
            if bool((crosses & (same[1:] | same[:-1])).any()):
                return "an input of another length could have the same gradients"
        return ""

    def _left(self, pixels: Tensor, labels: Tensor) -> _Left:
        """Compute the gradients again from inputs (b, p) in the data's units."""
        x = pixels.reshape(-1, *self.task.spec.shape)
        precision = _precision(self.leak) * math.sqrt(x.numel())  # a gradient sums so many terms
        found = _Left(0.0, 0.0, 0.0)
        for k in range(len(self.leak.value)):
            one = _Round.of(self.leak, self.task, k)
            off = self.task.gradient(one.theta, x, labels) - self.task.l2 * one.theta - one.value
            noise = one.noise * math.sqrt(len(off))
            explained = math.hypot(noise, precision * float(one.value.norm()))
            mine = self.adapter.matrices(self.task.layout.split(off))[1]
            found = _Left(
                max(found.errors, float(off.norm()) / max(TINY, explained)),
                max(found.share, float(off.norm()) / max(TINY, float(one.value.norm()))),
                max(found.of_up, float(mine.norm()) / max(TINY, float(one.of_up.norm()))),
            )
        return found

    def _estimates(self, x: Tensor) -> Estimates:
        """Estimate the inputs (b, p) again, column by column, at their own length."""
        later = self.later
        found = Estimates.of(self.white, x, self.stack, later.wire, first_layer_rows.fresh(later))
        one = torch.ones(len(x), 1, dtype=x.dtype)
        none = torch.zeros(1, dtype=x.dtype)
        return replace(
            found,
            values=torch.cat([found.values, one], dim=1),
            noise=torch.cat([found.noise, none]),
            stated=torch.cat([found.stated, none]),
            rounding=torch.cat([found.rounding, 0 * one], dim=1),
        )

    def _off_grid(self, estimates: Estimates, snapped: Tensor, width: Tensor) -> str:
        """Explain why a pixel may have another level; empty if none can."""
        if not float(wrong_pixel(estimates, self.grid, snapped).max()) < MISTAKE:
            return "rounding may have moved a pixel to another value"
        moved = float(width.max()) * self.grid.levels
        if not moved < HALFWAY:
            return f"a batch with pixels {moved:.1g} levels away could have the same gradients"
        return ""

    def _unnoticed(self, x: Tensor, labels: Tensor, left: float) -> Tensor:
        """Bound how much inputs (b, p) of another batch in their space may differ (b, p).

        To first order, for an unnoticed change of dB; infinite if there is no bound.
        """
        one = self.clearest()
        b = len(x)
        if b > LARGEST:
            return torch.full_like(x, math.inf)
        slopes = self.slopes(one, x, labels, ways=True)
        size = float(one.of_up.norm())
        unseen = UNNOTICED * max(left * size, one.noise * math.sqrt(one.of_up.numel()))
        low = torch.linalg.svdvals(x @ one.down.T)
        unseen = unseen / max(TINY, self.adapter.scale * self.share * float(low[-1]))
        # L(E), column j: sum_k Delta_k E_kj + (derivative of Delta_j) sum_l E_jl x_l
        normal = torch.zeros(b, b, b, b, dtype=torch.float64)  # of E_kj and E_k'j'
        own = slopes.values
        for j in range(b):
            ways = slopes.changed[j]
            both = own.T @ ways
            normal[:, j, :, j] += own.T @ own
            normal[j, :, j, :] += ways.T @ ways
            normal[:, j, j, :] += both
            normal[j, :, :, j] += both.T
        factor, singular = torch.linalg.cholesky_ex(normal.reshape(b * b, b * b))
        if int(singular):
            return torch.full_like(x, math.inf)
        inverse = torch.cholesky_inverse(factor).reshape(b, b, b, b)
        widths = []
        for j in range(b):
            block = inverse[j, :, j, :]
            widths.append(unseen * (x * (block @ x)).sum(0).clamp_min(0).sqrt())
        return torch.stack(widths)


@dataclass(frozen=True)
class _Left:
    """The largest part of any gradient that inputs do not explain."""

    errors: float  # in units of what errors explain
    share: float  # of the gradient
    of_up: float  # of dB, as a share of it


@dataclass(frozen=True)
class _Slopes:
    values: Tensor  # (H, b)
    changed: Tensor  # (b, H, b) the derivatives of each along all inputs
