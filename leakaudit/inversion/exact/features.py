"""Whole batches through convolutions: features as extreme rays, pixels by peeling, the proof."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Generator, Tensor, nn

from leakaudit.core.reconstruction import Certificate, Reconstruction
from leakaudit.inversion.attack import failed
from leakaudit.inversion.exact import (
    certify,
    chain_pieces,
    extreme_rays,
    first_layer_rows,
    last_layer,
    weak_samples,
    whole_batch,
)
from leakaudit.inversion.exact.extreme_rays import ConvexCone
from leakaudit.inversion.exact.peel import PeeledSample, closed, peel, sized
from leakaudit.inversion.exact.pixel_grid import OFF, PixelGrid
from leakaudit.inversion.exact.ray_samples import EquationSamples
from leakaudit.inversion.labels import consistency
from leakaudit.inversion.search import objectives
from leakaudit.tasks import layer_chain, sequential
from leakaudit.tasks.activations import ACTIVATIONS
from leakaudit.tasks.layer_chain import Layer

if TYPE_CHECKING:
    from leakaudit.core.leak import GradientLeak
    from leakaudit.inversion.exact.first_layer_rows import Span
    from leakaudit.tasks.build_task import LinearNames
    from leakaudit.tasks.task import Task

# The inputs of the first linear layer are features of the images, known up to a basis of their
# space. `extreme_rays` finds them if they come out of a ReLU, `last_layer` if their layer is the
# last one, and `peel` solves for the pixels. What makes an image exact:
#
# 1. **Evidence.** The singular values of the gradient's rows end at the noise, after as many as
#    there are samples (times the models that take part in a difference).
# 2. **Zeros.** The zeros of the features determine the ray even without any third of them. A
#    mixture of samples vanishes where several samples happen to cancel, and such a coincidence is
#    one column. Features from `last_layer` have no such witness, so their images are only certified
#    by the gradient.
# 3. **Levels.** Every pixel is proven by exhaustion of the levels that the features leave possible
#    (`open_pixels`). Mixtures of samples leave none. Convolution and ReLU of the rounded image must
#    give the features again, zeros included.
# 4. **Gradient.** If all samples are found, the whole gradient is computed again with their labels,
#    and must equal the leaked one up to rounding. Images with pixels that their features do not
#    prove are certified by this alone, and so are those that `whole_batch` solved for through all
#    layers at once.
#
# Samples whose slopes are close to rounding come second: those that are proven refine their
# features (`weak_samples`).

# Difference between features computed again and those of the leak, relative to the largest one,
# that the rounding of models in float32 explains.
ROUNDED = 1e-5

# The same in standard deviations of the error of a feature.
FITS = 8.0

# Maximum relative residual of the whole gradient, in units of what the leak's errors explain.
EXPLAINED = 3.0

# The same if every image is proven by its own features, so that the gradient is only compared to
# notice another model or loss. The softmax of a trained network is 1 - p for a small p, and the
# rounding of 1 in float32 is 1e-3 of a slope of 1e-4.
SATURATED = 1e-3


def missing(leak: GradientLeak, task: Task) -> str | None:
    """Explain why features of a leak cannot be recovered and peeled."""
    if leak.gaps:
        return leak.gaps
    layer = first_linear(task)
    if isinstance(layer, str):
        return layer
    why = first_layer_rows.not_leaked(leak, task, layer.names)
    if why:
        return why
    if leak.theta is None:
        return "the weights of the convolutions are needed, but this adversary does not know them"
    if not layer.rectified and last_layer.too_large(leak.batch, task.spec.classes):
        return (
            f"features that do not come out of a ReLU follow from the softmax, but "
            f"{task.spec.classes} classes are too few for {leak.batch} samples"
        )
    if not layer.rectified and not bool(leak.single.any()):
        return (
            "features that do not come out of a ReLU follow from the softmax of one model, but "
            "every equation is a combination of several gradients"
        )
    if leak.inner > 1:
        return f"it reads single gradients, but each is a sum over {leak.inner} inner steps"
    return None


def recover(
    leak: GradientLeak, task: Task, equation: int, generator: Generator, whole: bool = True
) -> Reconstruction:
    """Recover the images behind one equation of a leak."""
    found = samples(leak, task, equation, generator)
    if isinstance(found, str):
        return failed("cone", leak, task, found)
    return _reported(_images(found, whole), found)


def samples(
    leak: GradientLeak, task: Task, equation: int, generator: Generator
) -> EquationSamples | str:
    """Find the features behind one equation of a leak, or explain why there are none."""
    layer = first_linear(task)
    assert not isinstance(layer, str)
    stack = first_layer_rows.rows(leak, task, layer.names)
    white = first_layer_rows.whiten(stack, leak, slice(equation, equation + 1))
    models = leak.combination[equation].nonzero().flatten()
    expected = leak.batch * len(models) if leak.batch else None
    span = first_layer_rows.span(white, expected, generator)
    if span is None:
        return "the singular values do not show the number of samples"
    one = span.basis[:, -1]
    cone = ConvexCone.of(span.basis[:, :-1], one, span.sizes[: span.batch], span.noise)

    def accepts(ray: extreme_rays.Array) -> bool:
        return cone.firm(ray, extreme_rays.random(generator))

    rays = np.zeros((0, span.batch))
    if layer.rectified:
        rays = extreme_rays.rays(cone, span.batch, accepts, generator)
    why = _doubt(leak, span, white, expected)
    error = np.array([cone.error(ray) for ray in rays])
    found = EquationSamples(
        leak, task, equation, layer.names, stack[equation], span, cone, rays, error, why
    )
    if len(rays) < span.batch and layer.softmax and len(models) == 1 and not why:
        return _by_softmax(found, generator)
    return found


def _by_softmax(found: EquationSamples, generator: Generator) -> EquationSamples:
    """Find samples by the softmax behind the last layer, if that finds all of them."""
    leak = found.leak
    if last_layer.too_large(leak.batch, found.task.spec.classes):
        return found
    model = int(leak.combination[found.equation].nonzero())
    assert leak.theta is not None
    layout = found.task.layout.slices
    weight, bias = (leak.theta[model].double()[layout[name]] for name in found.layer if name)
    affine = torch.cat([weight.reshape(len(bias), -1), bias[:, None]], dim=1)
    noise = float(leak.std[found.equation]) * found.span.noise
    # The equation may be a multiple of the gradient.
    rows = found.rows / leak.combination[found.equation, model]
    seen = last_layer.inputs(rows, affine, found.span.basis, noise, leak.wire, generator)
    if seen is None:
        return found
    rays, of_rays = (some.cpu().numpy() for some in seen)
    of_space = np.array([found.cone.error(ray) for ray in rays])
    error = np.hypot(of_space, of_rays)
    return replace(found, rays=rays, error=error, firm=False)


@dataclass(frozen=True)
class _Images:
    """Images that were peeled from features."""

    plain: Tensor  # (k, *shape) images on the grid that their features prove
    other: Tensor  # (m, *shape) images with these features, but with pixels that these do not prove
    close: Tensor  # (n, *shape) images that do not have these features
    why: str  # why some rays gave no image


@dataclass(frozen=True)
class _Sample:
    """One ray, taken back to pixels."""

    ray: int
    peeled: PeeledSample  # its pixels, as far as they are known
    chain: list[Layer]  # the layers of the model that the ray belongs to
    weight: Tensor  # (H, n) weights of the linear layer of this model
    values: Tensor  # (n,) its features
    error: float  # relative error of the features
    allowed: Tensor  # (n,) largest errors of the features

    def image(self, x: Tensor, found: EquationSamples) -> Tensor | None:
        """Return the rounded image if its features are those of the leak; None if they are not."""
        task = found.task
        grid = found.grid
        image = task.denormalise(x.reshape(1, *task.spec.shape))
        away = (image * grid.levels - (image * grid.levels).round()).square().mean().sqrt()
        if not float(away) < OFF:
            return None
        snapped = grid.snapped(image)
        off = (_features(self.chain, snapped, task) - self.values).abs()
        return snapped[0] if bool((off < self.allowed).all()) else None


def _images(found: EquationSamples, whole: bool) -> _Images:
    """Peel every ray, close what is open, compare features, and solve the rest as a whole."""
    task = found.task
    samples: list[_Sample] = []
    reasons: list[str] = []
    for k, ray in enumerate(torch.from_numpy(found.rays).to(found.rows)):
        values = ray @ found.span.basis[:, :-1]
        error = max(float(found.error[k]) / float(values.abs().max()), ROUNDED / FITS)
        best = _best(found, k, values, error)
        if isinstance(best, str):
            reasons.append(best)
        else:
            samples.append(best)
    samples = _again(found, samples)
    inputs = _closed(found, samples) or [one.peeled.x for one in samples]
    plain: dict[int, Tensor] = {}
    other: dict[int, Tensor] = {}
    close: dict[int, Tensor] = {}
    for x, one in zip(inputs, samples, strict=True):
        snapped = one.image(x, found)
        if snapped is None:
            close[one.ray] = task.denormalise(x.reshape(1, *task.spec.shape))[0]
        elif one.peeled.plain and found.firm:
            plain[one.ray] = snapped
        else:
            other[one.ray] = snapped
    if whole:
        rest = whole_batch.solve(found, {**plain, **other}, close)
        other.update(rest.unique)
        close = rest.close
        reasons = [*reasons[:1], rest.why]
    none = torch.empty(0, *task.spec.shape, dtype=found.rows.dtype)
    return _Images(
        torch.stack(list(plain.values())).unique(dim=0) if plain else none,
        torch.stack(list(other.values())).unique(dim=0) if other else none,
        torch.stack(list(close.values())) if close else none,
        "; ".join(filter(None, reasons[:2])),
    )


def _best(found: EquationSamples, ray: int, values: Tensor, error: float) -> _Sample | str:
    """Peel features (n,) through the model whose pixels are closest to the grid."""
    reason = ""
    best: tuple[float, _Sample] | None = None
    for chain, weight in found.chains:
        one = peel(chain, values, error, found.grid)
        if isinstance(one, str):
            reason = reason or one
            continue
        away = _away(one, found.grid)
        allowed = torch.full_like(values, FITS * error * float(values.abs().max()))
        if best is None or away < best[0]:
            best = away, _Sample(ray, one, chain, weight, values, error, allowed)
    return best[1] if best else reason


def _again(found: EquationSamples, samples: list[_Sample]) -> list[_Sample]:
    """Peel the samples that are not proven again, with features refined by those that are."""
    models = int(found.leak.combination[found.equation].count_nonzero())
    all_there = len(samples) == len(found.rays) == found.span.batch
    if not all_there or models > 1 or found.span.white:
        return samples
    known: dict[int, Tensor] = {}
    while True:
        before = len(known)
        for k, one in enumerate(samples):
            image = one.image(one.peeled.x, found) if one.peeled.plain else None
            if image is not None:
                known[k] = _features(one.chain, image[None], found.task)
        if not before < len(known) < len(samples):
            return samples
        samples = _with_refined(found, samples, known)


def _with_refined(
    found: EquationSamples, samples: list[_Sample], known: dict[int, Tensor]
) -> list[_Sample]:
    """Peel the samples that are not known again, given exact features (n,) of the others."""
    values = torch.stack([one.values for one in samples])
    deviation = torch.from_numpy(found.error).to(values)
    noise = float(found.leak.std[found.equation]) * found.span.noise
    refined = weak_samples.refined(found.rows, values, deviation, known, found.leak.wire, noise)
    if refined is None:
        return samples
    out = list(samples)
    weak = [k for k in range(len(samples)) if k not in known]
    for k, mine, spread in zip(weak, *refined, strict=True):
        better = _refined(samples[k], mine, spread, found.grid)
        if better is not None:
            out[k] = better
    return out


def _refined(sample: _Sample, values: Tensor, deviation: Tensor, grid: PixelGrid) -> _Sample | None:
    """Peel refined features (n,) with errors (n,); None if this proves no more pixels."""
    error = ROUNDED / FITS
    deviation = deviation.clamp_min(error * float(values.max()))
    found = sized(sample.chain, values, error, deviation, grid)
    if found is None:
        return None
    full, deviation = found
    peeled = peel(sample.chain, full, error, grid, deviation)
    if isinstance(peeled, str) or not peeled.plain:
        return None
    allowed = FITS * deviation
    return _Sample(sample.ray, peeled, sample.chain, sample.weight, full, error, allowed)


def _away(peeled: PeeledSample, grid: PixelGrid) -> float:
    """Return the root mean square distance of the determined pixels from the grid."""
    pixels = (peeled.x * grid.std + grid.mean)[peeled.determined] * grid.levels
    return float((pixels - pixels.round()).square().mean().sqrt())


def _closed(found: EquationSamples, samples: list[_Sample]) -> list[Tensor] | None:
    """Close open directions if all samples are there and the first convolution has leaked."""
    peeled = [one.peeled for one in samples]
    if not samples or len(samples) != found.span.batch:
        return None
    gradient = found.of_convolution(peeled[0].layer)
    if gradient is None:
        return None
    neurons = found.slopes
    slopes = torch.stack([neurons[:, one.ray] @ one.weight for one in samples], dim=1)
    return closed(peeled, slopes, gradient.flatten(), found.grid)


def _features(chain: list[Layer], x: Tensor, task: Task) -> Tensor:
    return layer_chain.run(chain, task.normalise(x)).flatten()


def _doubt(leak: GradientLeak, span: Span, white: Tensor, expected: int | None) -> str:
    """Explain why the rows do not show the number of samples with certainty; empty if they do."""
    if not certify.ends(span, white):
        return "a singular value after those of the batch is larger than message rounding explains"
    if expected is None or not leak.steady:
        return "the batch size is not known; record it (samples)"
    if expected != span.batch:
        return f"{expected} samples appear as {span.batch}: some are equal, or nearly"
    return ""


def _reported(images: _Images, found: EquationSamples) -> Reconstruction:
    leak = found.leak
    task = found.task
    why = found.doubt
    wanted = leak.batch or found.span.batch
    exact = torch.cat([images.plain, images.other])
    x = torch.cat([exact, images.close])[:wanted]
    if not len(x):
        return failed("cone", leak, task, images.why or "no sample was found among the rays")
    y = None
    left = 1.0
    certified = len(images.plain)
    if len(exact) > wanted:
        why = (
            why or f"{len(exact)} images have features of the leak, but there are {wanted} samples"
        )
    if len(exact) == wanted:
        y = consistency.labels(leak, task, exact)
        certified = wanted
    if y is not None:
        left, noise = objectives.compared(leak.equation(found.equation), task, exact, y)
        allowed = max(certify.ROUNDED, EXPLAINED * noise)
        if len(images.plain) == wanted:
            allowed = max(allowed, SATURATED)
        if left > allowed:
            why = why or "the whole gradient of these images differs from the leaked one"
    elif len(exact) == wanted:
        why = why or "the labels were not found, so the whole gradient was not compared"
    if why:
        certified = 0
    certificate = Certificate.EXACT if certified == wanted else Certificate.APPROXIMATE
    when = leak.equation(found.equation).when
    sentence = f"{len(exact)} of {wanted} images reproduce their features"
    note = "; ".join(filter(None, (sentence, why, images.why if certified < wanted else "")))
    return Reconstruction(
        leak.node,
        "cone",
        x.clamp(0, 1).to(task.dtype),
        y,
        certificate,
        left,
        note=note,
        certified=certified,
        rounds=(when,) * len(x) if certified else (),
    )


@dataclass(frozen=True)
class _FirstLinear:
    """The first linear layer behind convolutions."""

    names: LinearNames  # names of its weight and bias
    rectified: bool  # whether its inputs come out of a ReLU, so that they are never negative
    softmax: bool  # whether it is the last layer, with softmax and cross-entropy behind it


def first_linear(task: Task) -> _FirstLinear | str:
    """Return the first linear layer behind convolutions; or why its inputs cannot be found."""
    parts = sequential.parts(task.module)
    if parts is None:
        return f"{task.spec.model} is not a plain chain of layers"
    rectified = False
    before: nn.Module | None = None
    for k, (name, m) in enumerate(parts, 1):
        if isinstance(m, nn.Linear):
            names = (f"{name}.weight", None if m.bias is None else f"{name}.bias")
            softmax = k == len(parts) and task.spec.loss == "cross_entropy"
            if not rectified and not softmax:
                return (
                    f"the inputs of {name} do not come out of a ReLU, "
                    "and it is not the last layer with cross-entropy behind it"
                )
            return _FirstLinear(names, rectified, softmax)
        why = _unfit(name, m, before)
        if why:
            return why
        if sequential.role(m) in ("layer", "activation"):
            rectified = isinstance(m, nn.ReLU)
        before = m
    return "there is no linear layer"


def _unfit(name: str, m: nn.Module, before: nn.Module | None) -> str:
    """Explain why a layer cannot be inverted, given the layer before it; empty if it can."""
    if isinstance(m, nn.Conv2d) and not sequential.plain(m):
        return f"{name} is a convolution with groups or with padding other than zeros"
    if isinstance(m, nn.BatchNorm2d):
        if m.running_mean is None:
            return (
                f"{name} normalises with the statistics of the batch, so that features depend "
                "on all samples; bn=eval can be inverted"
            )
        if not isinstance(before, nn.Conv2d):
            return f"{name} is not directly behind a convolution"
        return ""
    if isinstance(m, (nn.MaxPool2d, nn.AdaptiveMaxPool2d)):
        return (
            f"{name} is a {type(m).__name__}, and which of its inputs it lets through is not known"
        )
    invertible = type(m) in ACTIVATIONS and ACTIVATIONS[type(m)].undo is not None
    if isinstance(m, chain_pieces.AVERAGES) or invertible:
        return ""
    if sequential.role(m) in ("other", "activation"):
        return f"{name} is a {type(m).__name__}, which cannot be inverted"
    return ""
