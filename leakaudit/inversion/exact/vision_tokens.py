"""Images of a vision transformer's batch, from the gradients of its first block."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial

import torch
from torch import Generator, Tensor, nn

from leakaudit.core.progress import expired, step
from leakaudit.inversion import linear
from leakaudit.inversion.exact.first_layer_rows import Span
from leakaudit.tasks.models import EncoderBlock, VisionTransformer

# The gradient of a fully connected layer is a sum of terms d_t [u_t 1], one for each token t: d_t
# is the slope of the loss in the layer's outputs, and u_t its input. With n tokens in the batch,
# less than the layer is wide, its rows span a space of n dimensions. This does not yet separate the
# tokens: any basis of the space explains the rows.
#
# **Two layers separate them.** The first block ends with two layers, GELU between them. The space
# of the upper one contains [u_t 1], that of the lower one contains [gelu(U u_t + b) 1]. A point of
# the first space has n - 1 coordinates, and that its hidden values lie in the second space is a
# system of 4 h + 1 - n equations. GELU is not linear, so a mixture of tokens does not solve it: the
# solutions are the tokens. `tokens` finds them by least squares (Levenberg and Marquardt), from
# many starts.
#
# **Then everything follows from linear equations**, one after the other (`images`):
#
# 1. The hidden values are known, so the lower layer's gradient determines the slope of every token.
# 2. A normalisation divides by the spread of its input, which is not known. Its reciprocals are the
#    solution of the equation for the bias of the layer before.
# 3. The slopes determine what attention added to every token, thus the token as the block received
#    it (without its mean, which no layer sees).
# 4. This token determines the slopes in queries, keys and values, thus the slope of the embedding.
# 5. The gradient of the positions is the sum of these slopes at each position: it tells where a
#    token stands. The gradient of the embedding then determines the pixels of every patch.
# 6. The class token of an image shows a mean of its patches, with weights that are known up to
#    their sum. Which patches belong to it is therefore the solution of linear equations, and must
#    be 0 or 1.
#
# With one image, the slopes of step 5 are the gradient of the positions itself (Lu et al. 2022),
# and the first steps are not needed.

# Most steps of a search on the sphere, and without its constraint. Choices: nearly all searches
# need 10 to 20 of the first, and quadratic convergence 3 or 4 of the second.
STEPS = 60
POLISH = 8

# Starts that are searched together. A choice that limits memory.
STARTS = 16

# Sets of starts without a new token after which the search gives up. A choice.
PATIENCE = 20

# Factor of the damping after a step that fails, relative to the diagonal of the equations, and its
# largest value. Usual choices.
FAILS = (4.0, 1e6)

# Residual relative to the hidden values at the start, below which a search leaves the sphere. The
# sphere is only approximate, because a normalisation adds a small number to the variance.
NEAR = 1e-2

# Largest residual of a token, in units of what noise and rounding cause: a norm over many
# coordinates, which is close to 1. The margin is for errors that are not white.
FOUND = 10.0

# Relative distance from which two points are different tokens. Grey values of one level apart in
# one pixel move a token by about 1e-3.
APART = 1e-5

# Largest distance of an indicator from 0 or 1: half of what would round it to the wrong side.
WHOLE = 0.25

Gradient = Mapping[str, Tensor]


def tokens(block: EncoderBlock, upper: Span, lower: Span, generator: Generator) -> Tensor:
    """Find points (k, h), k <= n, of one space whose hidden values lie in the other.

    The spaces (n, h + 1) and (n, m + 1) are those of the inputs of a block's last two layers.
    """
    search = _Search(block, upper, lower)
    wanted = upper.batch
    found = upper.basis.new_empty(0, wanted)
    in_vain = 0
    while len(found) < wanted and in_vain < PATIENCE and not expired():
        step("tokens", len(found), wanted)
        before = len(found)
        # Orthogonal to all tokens but one, starts do not differ, so they are not always.
        avoided = found[:0] if in_vain else found
        for point in search.run(avoided, generator):
            near = (found - point).norm(dim=1)
            if len(found) < wanted and not bool((near < APART * point.norm()).any()):
                found = torch.cat([found, point[None]])
        in_vain = 0 if len(found) > before else in_vain + 1
    step("tokens", len(found), wanted)
    return found @ upper.basis[:, :-1]


class _Search:
    """Least squares for points c with c . r = 1, where r is the column of the bias."""

    def __init__(self, block: EncoderBlock, upper: Span, lower: Span) -> None:
        """Prepare the coordinates."""
        bias = upper.basis[:, -1]
        self.centre = bias / bias.square().sum()
        # Directions in which the last entry of the input does not change.
        self.axes = torch.linalg.qr(bias[:, None], mode="complete").Q[:, 1:]
        weight = torch.cat([block.up.weight, block.up.bias[:, None]], dim=1)
        self.weight = weight @ upper.basis.T
        self.gain = weight.square().sum()
        self.slope = self.weight @ self.axes
        self.hidden = lower.basis
        # By how much the noise of the gradient turns each row of a basis: the standard deviation
        # in one direction outside the space.
        self.input_errors = upper.noise / upper.sizes[: upper.batch]
        self.hidden_errors = lower.noise / lower.sizes[: lower.batch]
        before = upper.basis[:, :-1] - bias[:, None] * block.norm2.bias
        self.normal = before / block.norm2.weight

    def run(self, avoided: Tensor, generator: Generator) -> Tensor:
        """Return the points (k, n) that starts orthogonal to `avoided` (f, n) lead to."""
        left_over, width = self.normal.shape
        starts = min(STARTS, left_over - len(avoided))
        drawn = torch.randn(starts, width, generator=generator, dtype=torch.float64)
        c = drawn.to(self.normal) @ self.normal.T
        known = torch.linalg.qr(avoided.T).Q
        y = (c - c @ known @ known.T) @ self.axes
        # Normalised inputs have the norm sqrt(h).
        y *= (math.sqrt(width) / (y @ self.axes.T @ self.normal).norm(dim=1))[:, None]
        scale = float(self._hidden(y)[1].norm(dim=1).mean())
        for weight, steps, enough in ((scale, STEPS, NEAR * scale), (0.0, POLISH, 0.0)):
            residual = partial(self._residual, weight=weight)
            stepped = partial(self._stepped, weight=weight)
            y, left = linear.descended(y, residual, stepped, steps, FAILS, enough**2)
        points = self._points(y)
        return points[left.sqrt() < FOUND * self._expected(y, points)]

    def _points(self, y: Tensor) -> Tensor:
        points: Tensor = self.centre + y @ self.axes.T
        return points

    def _expected(self, y: Tensor, points: Tensor) -> Tensor:
        """Return the residuals (s,) that noise and rounding cause for tokens.

        Noise turns the two spaces: see `prefixes._Space.distance`. An error of the input
        reaches the hidden values through the weights.
        """
        _, hidden = self._hidden(y)
        free = hidden.shape[1] - len(self.hidden)
        turned = free * (hidden @ self.hidden.T * self.hidden_errors).square().sum(1)
        moved = (points * self.input_errors).square().sum(1)
        # Rounding errors of a sum of h terms grow at most as h.
        precision = (1 + self.normal.shape[1]) * torch.finfo(hidden.dtype).eps
        rounded = (precision * hidden).square().sum(1)
        expected: Tensor = (turned + self.gain * moved + rounded).sqrt()
        return expected

    def _hidden(self, y: Tensor) -> tuple[Tensor, Tensor]:
        """Return what the upper layer computes (s, m), and its hidden values with a 1."""
        inner = self._points(y) @ self.weight.T
        hidden = nn.functional.gelu(inner)
        return inner, torch.cat([hidden, hidden.new_ones(len(hidden), 1)], dim=1)

    def _residual(self, y: Tensor, weight: float) -> Tensor:
        """Return the part of hidden values outside their space, and the deviation of the norm."""
        _, whole = self._hidden(y)
        outside = whole - whole @ self.hidden.T @ self.hidden
        normal = self._points(y) @ self.normal
        off = normal.square().mean(1, keepdim=True) - 1
        return torch.cat([outside, weight * off], dim=1)

    def _stepped(self, y: Tensor, value: Tensor, damping: Tensor, weight: float) -> Tensor:
        """Return the points after one step."""
        inner, _ = self._hidden(y)
        slope = gelu_slope(inner)[:, :, None] * self.slope
        inside = self.hidden[:, :-1] @ slope
        normal = self._points(y) @ self.normal
        along = 2 * weight / normal.shape[1] * (normal @ self.normal.T @ self.axes)
        matrix = slope.mT @ slope - inside.mT @ inside + along[:, :, None] * along[:, None]
        right = (slope.mT @ value[:, :-2, None])[:, :, 0] + along * value[:, -1:]
        size = matrix.diagonal(dim1=1, dim2=2)
        matrix = matrix + torch.diag_embed(damping[:, None] * size)
        moved: Tensor = y - torch.linalg.solve(matrix, right)
        return moved


def gelu_slope(x: Tensor) -> Tensor:
    """Return the derivative of GELU."""
    density = torch.exp(-x.square() / 2) / math.sqrt(2 * math.pi)
    slope: Tensor = torch.special.ndtr(x) + x * density
    return slope


def images(net: VisionTransformer, gradient: Gradient, inputs: Tensor, batch: int) -> Tensor | str:
    """Compute the images (b, c, h, w) from the inputs (n, h) of the first block's upper layer.

    They are as the model receives them; or why they do not follow.
    """
    block = net.blocks[0]
    assert isinstance(block, EncoderBlock)
    middle, spread, normal = _behind_attention(block, gradient, inputs)
    # What attention added, by the gradient of its last layer.
    seen = torch.linalg.lstsq(middle.T, gradient["blocks.0.join.weight"]).solution
    stream = _centred(spread[:, None] * normal - block.join(seen))
    start = _centred(net.first + net.places[0])
    of_class = (stream - start).norm(dim=1).argsort()[:batch]
    rest = torch.ones(len(stream), dtype=torch.bool)
    rest[of_class] = False
    # Equal patches at the same position are one token from here on.
    different, which = _different(stream[rest])
    stack = torch.cat([start[None], different])
    summed = torch.zeros_like(stack)
    summed[0] = middle[of_class].sum(0)
    summed.index_add_(0, 1 + which, middle[rest])
    slopes = _at_embedding(block, gradient, stack, summed)
    where = torch.linalg.lstsq(slopes.T, gradient["places"].T).solution
    place = where.argmax(1)
    sure = (where - nn.functional.one_hot(place, where.shape[1])).abs().amax()
    if not float(sure) < WHOLE or bool((place == 0).nonzero().flatten().ne(0).any()):
        return "the positions of the patches do not follow from the gradient"
    patches = torch.linalg.lstsq(slopes[1:].T, gradient["embed.weight"].flatten(1)).solution
    chosen = _chosen(block, stack, seen[of_class])
    if chosen is None:
        return "which patches form an image does not follow from the class tokens"
    return _assembled(net, patches, place[1:], chosen)


def single(net: VisionTransformer, gradient: Gradient) -> Tensor | str:
    """Compute the image of a batch of one, whose slopes are the gradient of the positions."""
    slopes = gradient["places"][1:]
    patches = torch.linalg.lstsq(slopes.T, gradient["embed.weight"].flatten(1)).solution
    count = len(patches)
    return _assembled(net, patches, torch.arange(1, 1 + count), torch.ones(1, count).bool())


def _behind_attention(
    block: EncoderBlock, gradient: Gradient, inputs: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the slopes of the stream behind the attention, its spread, and it normalised."""
    inner = block.up(inputs)
    ahead = _solved(nn.functional.gelu(inner), gradient, "blocks.0.down")
    into = (ahead @ block.down.weight * gelu_slope(inner)) @ block.up.weight
    normal = (inputs - block.norm2.bias) / block.norm2.weight
    through = _unscaled(block.norm2, normal, into)
    # The slopes ahead + through / spread add up to the gradient of the bias of the layer before.
    left = gradient["blocks.0.join.bias"] - ahead.sum(0)
    inverse = torch.linalg.lstsq(through.T, left[:, None]).solution[:, 0]
    return ahead + inverse[:, None] * through, 1 / inverse, normal


def _at_embedding(
    block: EncoderBlock, gradient: Gradient, stream: Tensor, middle: Tensor
) -> Tensor:
    """Return slopes of the loss in the different embedded tokens (k, h).

    `middle` (k, h) sums the slopes behind the attention.
    """
    spread = (stream.square().mean(1, keepdim=True) + block.norm1.eps).sqrt()
    normal = stream / spread
    inputs = normal * block.norm1.weight + block.norm1.bias
    into = torch.zeros_like(inputs)
    for name in ("query", "key", "value"):
        layer = getattr(block, name)
        into += _solved(inputs, gradient, f"blocks.0.{name}") @ layer.weight
    return middle + _unscaled(block.norm1, normal, into) / spread


def _chosen(block: EncoderBlock, stream: Tensor, seen: Tensor) -> Tensor | None:
    """Return which patches (b, k) belong to each image; None if it does not follow.

    `stream` (1 + k, h) starts with the class token, and `seen` (b, h) is what the class tokens
    saw: weighted means of the values of their images.
    """
    query, key, value = block.parts(stream[None])
    scores = query[0, :, 0, None] @ key[0].mT / math.sqrt(query.shape[3])
    weights = (scores - scores.amax()).exp()[:, 0, :, None]
    picked = []
    for one in seen.unflatten(1, (block.heads, -1)):
        # sum_s w_s (v_s - seen) = 0 over the class token and the patches of the image
        terms = (weights * (value[0] - one[:, None])).transpose(1, 2).flatten(0, 1)
        share = torch.linalg.lstsq(terms[:, 1:], -terms[:, :1]).solution[:, 0]
        chosen = share > 0.5
        if not float((share - chosen.double()).abs().amax()) < WHOLE:
            return None
        picked.append(chosen)
    return torch.stack(picked)


def _assembled(
    net: VisionTransformer, patches: Tensor, place: Tensor, chosen: Tensor
) -> Tensor | str:
    """Return images (b, *shape) of patches at places from 1 on; or why they are none."""
    places = torch.arange(1, len(net.places))
    columns = []
    for mine in chosen:
        order = place[mine].argsort()
        if not torch.equal(place[mine][order], places):
            return "the patches of an image do not cover all positions"
        columns.append(patches[mine][order].T)
    side = net.embed.kernel_size[0]
    whole: Tensor = nn.functional.fold(torch.stack(columns), net.size, side, stride=side)
    return whole


def _solved(inputs: Tensor, gradient: Gradient, layer: str) -> Tensor:
    """Return the slopes (n, o) in a layer's outputs, given its inputs (n, i)."""
    whole = torch.cat([inputs, inputs.new_ones(len(inputs), 1)], dim=1)
    rows = torch.cat([gradient[f"{layer}.weight"], gradient[f"{layer}.bias"][:, None]], dim=1)
    found: Tensor = torch.linalg.lstsq(whole.T, rows.T).solution
    return found


def _unscaled(norm: nn.LayerNorm, normal: Tensor, slopes: Tensor) -> Tensor:
    """Return slopes in front of a normalisation, times the spread by which it divides."""
    scaled = slopes * norm.weight
    along = (scaled * normal).mean(1, keepdim=True)
    return _centred(scaled) - normal * along


def _centred(x: Tensor) -> Tensor:
    return x - x.mean(-1, keepdim=True)


def _different(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return the different rows (k, h), and the index (n,) of each row among them."""
    near = torch.cdist(rows, rows, compute_mode="donot_use_mm_for_euclid_dist")
    same = near < APART * rows.norm(dim=1).mean()
    first = same.double().argmax(1)
    kept, which = first.unique(return_inverse=True)
    return rows[kept], which
