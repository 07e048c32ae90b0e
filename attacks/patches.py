"""All images of a batch from one gradient of a vision transformer."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Generator, Tensor

from leakaudit.core.leak import GradientLeak
from leakaudit.core.reconstruction import Certificate, Reconstruction
from leakaudit.core.registry import attack
from leakaudit.inversion.attack import Attack, failed
from leakaudit.inversion.exact import certify, first_layer_rows, vision_tokens
from leakaudit.inversion.exact.first_layer_rows import Span
from leakaudit.inversion.exact.pixel_grid import OFF, PixelGrid
from leakaudit.inversion.labels import consistency
from leakaudit.inversion.linear import positive
from leakaudit.inversion.search import objectives
from leakaudit.tasks.models import EncoderBlock, VisionTransformer

if TYPE_CHECKING:
    from leakaudit.tasks.task import Task

UPPER = ("blocks.0.up.weight", "blocks.0.up.bias")
LOWER = ("blocks.0.down.weight", "blocks.0.down.bias")

# Largest residual of the recomputed gradient, in units of what the leak's own errors cause. They
# are measured as a norm over many coordinates, which is close to 1; the margin is for rounding.
FITS = 3.0

# Largest distance of any pixel from the grid, half of what rounds it wrongly. The errors of the
# pixels of a patch are of similar size, so if one were rounded wrongly, others would lie between.
CLEAR = 0.25

# Largest error of a pixel of a single image, in grey levels: a fifth of what rounds it wrongly.
SURE = 0.1


# EXACT states that no other batch of b images on the grid has this gradient. Let h be the width and
# n = b (1 + patches of an image) the number of tokens. These conditions are checked:
#
# 1. The inputs of the first block's last two layers span n dimensions each.
# 2. n tokens were found, the images lie on the grid, and every patch belongs to one of them.
# 3. The whole gradient, recomputed from the images and their labels, is the leaked one up to
#    rounding.
#
# Let another batch have the same gradient. Its n tokens span the same two spaces of n dimensions,
# so each of them is a solution of the 4 h + 1 - n equations in n - 1 unknowns that determined the
# tokens here. If the weights are in general position, so many equations have no solutions but those
# by construction, and the other batch has the same tokens. The linear equations that follow have
# one solution only, so it has the same images. Weights drawn at random are in general position with
# probability 1; trained weights are assumed to be.
#
# With one image, the gradients of the positions and of the embedding determine the pixels, as long
# as the former are independent, and nothing is assumed about the weights.


@attack("patches")
@dataclass(frozen=True)
class Patches(Attack):
    """All images of a batch, token by token, from the spaces of two layers' gradients.

    EXACT states that no other batch of b images on the grid has this gradient (docs/vision.md).
    """

    exact: ClassVar[bool] = True
    rank: ClassVar[int] = 4
    reads: ClassVar[str] = (
        "one gradient of the model vit at a known model, with fewer tokens than the model is wide"
    )
    paper: ClassVar[str] = (
        "Lu et al. 2022 (APRIL, one image); separation of tokens by the two layers around GELU, "
        "assembly and the certificate: developed for leakaudit"
    )
    cost: ClassVar[str] = "a nonlinear least-squares problem per start; seconds for 40 tokens"

    def refuses(self, leak: GradientLeak, task: Task) -> str | None:
        """Require the model vit, a known model and batch, all parameters and few tokens."""
        if not isinstance(task.module, VisionTransformer):
            return f"it knows the layers of the model vit only, not those of {task.spec.model}"
        if not task.spec.levels:
            return "it requires images with pixels k/levels"
        why = objectives.incomplete(leak, task)
        if why:
            return why
        if not bool(leak.single.any()):
            return "it reads single gradients, but all equations combine gradients at two models"
        if leak.batch == 1:
            return None
        if len(task.module.blocks) < 2:
            return "with one block, only the class token has slopes in its last two layers"
        return None

    def __call__(self, leak: GradientLeak, task: Task, generator: Generator) -> Reconstruction:
        """Find the tokens, compute the images from them and recompute the gradient."""
        with torch.no_grad():
            return _recovered(objectives.clearest(leak, leak.single), task, generator)


def _recovered(leak: GradientLeak, task: Task, generator: Generator) -> Reconstruction:
    assert leak.theta is not None
    assert leak.batch is not None
    net = _network(task, leak.theta[0])
    gradient = _gradient(leak, task)
    doubt = ""
    if leak.batch == 1:
        images: Tensor | str = vision_tokens.single(net, gradient)
        doubt = _dependent(leak, task, gradient)
    else:
        found = _tokens(leak, task, net, generator)
        if isinstance(found, str):
            return failed("patches", leak, task, found)
        images = vision_tokens.images(net, gradient, found, leak.batch)
    if isinstance(images, str):
        return failed("patches", leak, task, images)
    return _judged(leak, task, task.denormalise(images), doubt)


def _dependent(leak: GradientLeak, task: Task, gradient: Mapping[str, Tensor]) -> str:
    """Explain why the slopes of one image do not determine its pixels; empty if they do."""
    sizes = torch.linalg.svdvals(gradient["places"][1:])
    embedding = gradient["embed.weight"]
    rounding = torch.finfo(leak.value.dtype).eps * float(embedding.abs().amax())
    noise = max(rounding, float(leak.std[0] / leak.combination[0, 0].abs()))
    # Error of a normalised pixel in the weakest direction, then in grey levels.
    error = noise / float(positive(sizes[-1]))
    levels = error * float(PixelGrid.of(task).std.max()) * task.spec.levels
    if len(sizes) < len(gradient["places"]) - 1 or levels > SURE:
        return "the slopes of the patches depend on each other"
    return ""


def _tokens(
    leak: GradientLeak, task: Task, net: VisionTransformer, generator: Generator
) -> Tensor | str:
    """Return the inputs (n, h) of the upper layer; or why they were not found."""
    assert leak.batch is not None
    count = leak.batch * len(net.places)
    width = net.places.shape[1]
    if count >= width:
        return f"the batch has {count} tokens, but the model is only {width} wide"
    spaces = []
    for layer in (UPPER, LOWER):
        rows = first_layer_rows.rows(leak, task, layer)
        white = first_layer_rows.whiten(rows, leak, slice(0, 1))
        span = first_layer_rows.span(white, count, generator)
        why = _unclear(span, white, count, layer[0])
        if why:
            return why
        assert span is not None
        spaces.append(span)
    block = net.blocks[0]
    assert isinstance(block, EncoderBlock)
    upper, lower = spaces
    found = vision_tokens.tokens(block, upper, lower, generator)
    if len(found) < count:
        return f"the search found {len(found)} of {count} tokens"
    return found


def _unclear(span: Span | None, white: Tensor, count: int, name: str) -> str:
    """Explain why a gradient does not show all tokens; empty if it does."""
    if span is None:
        return f"the singular values of the gradient of {name} do not show the tokens"
    if span.batch != count:
        return (
            f"{count} tokens appear as {span.batch} in the gradient of {name}: some images are "
            "equal, or rounding hides the differences"
        )
    if not certify.ends(span, white):
        return "a singular value after those of the tokens is larger than rounding explains"
    return ""


def _judged(leak: GradientLeak, task: Task, x: Tensor, doubt: str) -> Reconstruction:
    """Round images (b, *shape) to the grid and recompute the gradient."""
    grid = PixelGrid.of(task)
    flat = x.flatten(1)
    snapped = grid.snapped(flat)
    away = ((flat - snapped) * grid.levels).abs()
    typical = away.square().mean(1).sqrt()
    inside = bool((typical < OFF).all()) and float(away.max()) < CLEAR
    images = snapped.reshape(x.shape)
    shown = images if inside else x
    y = consistency.labels(leak, task, shown)
    residual = 1.0
    if not inside:
        doubt = doubt or (
            "the images do not lie on the grid of the data: "
            f"pixels are up to {float(away.max()):.1g} levels away from it"
        )
    if y is None:
        doubt = doubt or "the labels were not found, so the whole gradient was not compared"
    else:
        # Programs that compute in double precision often store k/255 in single precision.
        stored = (shown.double(), shown.float().double())
        residual, noise = min(objectives.compared(leak, task, one, y) for one in stored)
        limit = max(_rounding(leak), FITS * noise)
        if residual > limit:
            doubt = doubt or (
                f"the recomputed gradient differs by {residual:.1g}, "
                f"and rounding explains {limit:.1g}"
            )
    note = f"before rounding, pixels were within {float(away.max()):.1g} levels of a grey level"
    if doubt:
        note = f"not certified: {doubt}"
    return Reconstruction(
        node=leak.node,
        attack="patches",
        x=shown.clamp(0, 1).to(task.dtype),
        y=y,
        certificate=Certificate.APPROXIMATE if doubt else Certificate.EXACT,
        residual=residual,
        note=note,
        certified=0 if doubt else len(x),
        rounds=() if doubt else (leak.when,) * len(shown),
    )


def _rounding(leak: GradientLeak) -> float:
    """Return the relative residual of a whole gradient that its number format explains."""
    if leak.value.dtype is torch.float64 and leak.wire <= torch.finfo(torch.float64).eps:
        return certify.EQUAL
    return certify.ROUNDED


def _gradient(leak: GradientLeak, task: Task) -> Mapping[str, Tensor]:
    """Return the gradient of every parameter, in float64, without that of a penalty."""
    assert leak.theta is not None
    factor = float(leak.combination[0, 0])
    value = leak.value[0].double() / factor - task.l2 * leak.theta[0].double()
    return task.layout.split(value)


def _network(task: Task, theta: Tensor) -> VisionTransformer:
    """Return the task's model with given parameters, in float64."""
    module = copy.deepcopy(task.module).to(theta.device, torch.float64)
    module.load_state_dict(dict(task.layout.split(theta.double())), strict=False)
    assert isinstance(module, VisionTransformer)
    return module.requires_grad_(False)
