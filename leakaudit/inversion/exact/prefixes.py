"""Token sequences of a decoder-only transformer, from the spaces that its gradients span."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import torch
from torch import Generator, Tensor

from leakaudit.core.progress import expired, step
from leakaudit.inversion.exact import first_layer_rows
from leakaudit.inversion.exact.decoders import HEAD, TOKENS
from leakaudit.tasks.models import Decoder, EncoderBlock

if TYPE_CHECKING:
    from leakaudit.core.leak import GradientLeak

# The gradient of a fully connected layer with inputs u_1 ... u_n is a sum of terms d_i u_i^T, so
# its rows lie in the span of the inputs. With fewer inputs than the layer is wide, this span is a
# small part of all vectors, and it can be tested whether a guessed input lies in it. In a
# transformer, the inputs are functions of tokens, of which there are finitely many (Gupta et al.
# 2022; Petrov et al. 2024).
#
# **Tokens.** The attention of the first block receives LN(E[v] + P[p]) for a token v at position p.
# This space only tells which tokens may stand at a position: E[v] + P[p] is a sum, so the
# difference of two tokens may be moved to another position without leaving the span.
#
# **Prefixes.** The first fully connected layer behind that attention receives, at position p, a
# vector that depends on all tokens up to p, and in a way that is not a sum. Prefixes are therefore
# extended token by token, and those whose vector lies in the space of this layer's gradient are
# kept. The result is a *tree*: every path from its root to a leaf is a sequence. Each extension
# costs one row of attention, because the keys and values of a prefix are kept.
#
# **Counts.** The output layer's gradient is sum_t c_t f_t^T over the nodes t of the tree, with f_t
# the known inputs of this layer. If they are independent, c_t follows. With n_t sequences through a
# node, p_t the predicted probabilities and k_t the numbers of each next token, c_t = (n_t p_t -
# k_t) / (b L). A token that never follows determines n_t, and the others k_t. At a leaf, these are
# the multiplicity of the sequence and the tokens behind it.
#
# For a combination of gradients at several models, the spaces contain the vectors at all of them,
# and a guess must lie in the space at every model.

# Distances from a space, in units of the root mean square that the leak's noise causes, up to which
# a vector lies in it. The distance of a true input is a norm over many coordinates and therefore
# close to 1; the margin is for errors that are not white, such as those of rounding.
INSIDE = 10.0

# Distances above which a vector certainly lies outside. Guesses between the two limits are kept out
# of the tree, but then nothing is certified.
OUTSIDE = 100.0

# Prefixes kept at one position, as a multiple of the batch: more of them mean that the space does
# not tell them apart. A choice.
BEAM = 4

CHUNK = 4096  # guesses tested at a time; a choice that limits memory

# Largest distance of a count from a whole number. A choice: wrong nodes give arbitrary numbers.
WHOLE = 0.1

# Smallest singular value of the output layer's inputs, relative to the largest, at which they count
# as independent: solving then amplifies rounding to at most 1e-16 / 1e-9 = 1e-7 in float64.
INDEPENDENT = 1e-9


@dataclass(frozen=True)
class Space:
    """The space that the rows of a layer's gradient span."""

    axes: Tensor  # (h, h) orthonormal columns, of which the first r span the space
    sizes: Tensor  # (r,) singular values of the rows, in units of the noise of one entry
    rounding: float  # relative error of a guessed vector

    @property
    def rank(self) -> int:
        """The dimension r of the space."""
        return len(self.sizes)

    def distance(self, vectors: Tensor) -> Tensor:
        """Return distances from the space, in units of the error to expect for a vector inside.

        Noise of variance 1 in the rows S V^T turns a direction v_i by noise / s_i, so a
        vector sum_i a_i v_i appears at a distance of sqrt((h - r) sum_i (a_i / s_i)^2).
        """
        inside, outside = (vectors @ self.axes).split([self.rank, len(self.axes) - self.rank], -1)
        turned = outside.shape[-1] * (inside / self.sizes).square().sum(-1)
        rounded = self.rounding**2 * vectors.square().sum(-1)
        expected = (turned + rounded).sqrt()
        distances: Tensor = outside.norm(dim=-1) / expected
        return distances


def space(leak: GradientLeak, rows: Tensor, most: int, generator: Generator) -> Space | None:
    """Find the space that rows (n, h) of a gradient span; None if its end is not visible."""
    width = rows.shape[1]
    white = first_layer_rows.whiten(rows[None], leak, slice(0, 1))
    found = first_layer_rows.span(white, min(most, width), generator)
    # Normalised vectors have only h - 1 free coordinates as long as all biases are equal. As many
    # dimensions as rows, such as those of an adapter, show no end.
    if found is None or found.batch >= min(width - 1, len(rows)):
        return None
    axes = torch.linalg.qr(found.basis.T, mode="complete").Q
    precision = max(leak.wire, torch.finfo(leak.value.dtype).eps)
    # Rounding errors of a sum of h terms grow as sqrt(h).
    rounding = precision * math.sqrt(width)
    return Space(axes, found.sizes[: found.batch] / found.noise, rounding)


# The sequences (s, L), all different, whose prefixes all lie in a space; the smallest distance of a
# rejected guess from it; and why the search ended early, "" if it is complete.
Tree: TypeAlias = tuple[Tensor, float, str]


def nodes(sequences: Tensor) -> tuple[Tensor, Tensor]:
    """Number the different prefixes (s, L), and list one position (n, 2) of each."""
    numbers = torch.empty_like(sequences)
    places = []
    count = 0
    for p in range(sequences.shape[1]):
        _, inverse = sequences[:, : p + 1].unique(dim=0, return_inverse=True)
        numbers[:, p] = inverse + count
        for k in range(int(inverse.max()) + 1):
            first = int((inverse == k).nonzero()[0])
            places.append((first, p))
        count = len(places)
    return numbers, torch.tensor(places)


def candidates(models: Sequence[Decoder], found: Space | None) -> list[Tensor]:
    """Return the tokens that may stand at each position, by the space of the first attention."""
    length, vocabulary = len(models[0].places.weight), len(models[0].tokens.weight)
    if found is None:
        return [torch.arange(vocabulary)] * length
    possible = []
    for p in range(length):
        fits = torch.ones(vocabulary, dtype=torch.bool)
        for model in models:
            inputs = _first(model).norm1(model.tokens.weight + model.places.weight[p])
            fits &= found.distance(inputs) <= INSIDE
        possible.append(fits.nonzero().flatten())
    return possible


class _Growing:
    """The prefixes of one model during the search: keys and values of the first block."""

    def __init__(self, model: Decoder) -> None:
        """Begin with the empty prefix."""
        self.model = model
        self.block = _first(model)
        width = len(model.places.weight[0]) // self.block.heads
        self.keys = torch.empty(1, self.block.heads, 0, width, dtype=torch.float64)
        self.values = self.keys.clone()

    def extended(self, rows: slice, tokens: Tensor) -> Tensor:
        """Return inputs (n, c, h) of the layer behind the attention, after tokens (c,)."""
        keys, values = self.keys[rows], self.values[rows]
        stream = self._stream(tokens)
        # (1, heads, c, h / heads): the tokens take the place of positions.
        query, key, value = self.block.parts(stream[None])
        past = query @ keys.transpose(2, 3)
        own = (query * key).sum(3, keepdim=True).expand(len(keys), -1, -1, -1)
        scores = torch.cat([past, own], dim=3) / math.sqrt(query.shape[3])
        weights = scores.softmax(3)
        seen = weights[..., :-1] @ values + weights[..., -1:] * value
        joined: Tensor = self.block.join(seen.transpose(1, 2).flatten(2))
        inputs: Tensor = self.block.norm2(stream + joined)
        return inputs

    def keep(self, rows: Tensor, tokens: Tensor) -> None:
        """Extend prefixes (n,) by tokens (n,), and keep only these."""
        _, key, value = self.block.parts(self._stream(tokens)[:, None])
        self.keys = torch.cat([self.keys[rows], key], dim=2)
        self.values = torch.cat([self.values[rows], value], dim=2)

    def _stream(self, tokens: Tensor) -> Tensor:
        here = self.keys.shape[2]
        stream: Tensor = self.model.tokens.weight[tokens] + self.model.places.weight[here]
        return stream


def grow(models: Sequence[Decoder], found: Space, possible: Sequence[Tensor], batch: int) -> Tree:
    """Find all sequences whose prefixes lie in the space behind the first attention."""
    growing = [_Growing(model) for model in models]
    alive = torch.empty(1, 0, dtype=torch.int64)
    nearest = math.inf
    for p, tokens in enumerate(possible):
        step("positions", p, len(possible))
        some = max(1, CHUNK // max(1, len(tokens)))
        parts = []
        for start in range(0, len(alive), some):
            these = slice(start, start + some)
            distances = [found.distance(one.extended(these, tokens)) for one in growing]
            parts.append(torch.stack(distances).amax(0))
        if expired():
            return alive[:0], math.inf, f"the time limit expired at position {p + 1}"
        distance = torch.cat(parts)
        fits = distance <= INSIDE
        if not bool(fits.any()):
            return alive[:0], math.inf, f"no token continues a sequence at position {p + 1}"
        if int(fits.sum()) > BEAM * batch:
            said = f"{int(fits.sum())} prefixes fit at position {p + 1}, more than the batch has"
            return alive[:0], math.inf, said
        if not bool(fits.all()):
            nearest = min(nearest, float(distance[~fits].min()))
        rows, columns = fits.nonzero(as_tuple=True)
        new = tokens[columns]
        alive = torch.cat([alive[rows], new[:, None]], dim=1)
        for one in growing:
            one.keep(rows, new)
    step("positions", len(possible), len(possible))
    return alive, nearest, ""


def counts(
    models: Sequence[Decoder],
    weights: Tensor,
    gradient: Mapping[str, Tensor],
    sequences: Tensor,
    batch: int,
) -> tuple[Tensor, Tensor] | str:
    """Count the sequences of a tree by the gradient of the output layer.

    If the output layer is tied to the embedding of the tokens, their gradients are added. This
    concerns the tokens of the tree only; the others still show how often each node occurs.
    `weights` (K,) are the coefficients of the models' gradients in the leak.
    """
    numbers, places = nodes(sequences)
    inputs, chances = [], []
    for model in models:
        final = _final(model, sequences)[places[:, 0], places[:, 1]]
        inputs.append(final)
        chances.append(model.head(final).softmax(1))
    stack = torch.cat(inputs)
    if len(stack) > stack.shape[1]:
        return f"{len(stack)} inputs of the output layer exceed its width of {stack.shape[1]}"
    sizes = torch.linalg.svdvals(stack)
    if float(sizes[-1]) < INDEPENDENT * float(sizes[0]):
        return "the inputs of the output layer depend on each other"

    tied = HEAD not in gradient
    vocabulary = chances[0].shape[1]
    clear = torch.ones(vocabulary, dtype=torch.bool)
    if tied:
        clear[sequences.unique()] = False
    if int(clear.sum()) <= 2 * batch:
        return f"only {int(clear.sum())} tokens do not occur, which is too few to count sequences"
    head = gradient[TOKENS if tied else HEAD][clear]
    # head = sum_t c_t f_t^T, one block of nodes for each model
    slopes = torch.linalg.lstsq(stack.T, head.T).solution.unflatten(0, (len(models), -1))
    scale = batch * sequences.shape[1] / weights
    slopes = slopes * scale[:, None, None]
    # A token that never follows has the slope n p; others have less. At most b tokens follow.
    share = slopes[0] / chances[0][:, clear]
    through = share.topk(batch + 1, dim=1).values.median(1).values
    followers = through[:, None] * chances[0][:, clear] - slopes[0]
    off = float((followers - followers.round()).abs().max())
    off = max(off, float((through - through.round()).abs().max()))
    for slope, chance in zip(slopes[1:], chances[1:], strict=True):
        again = through[:, None] * chance[:, clear] - slope
        off = max(off, float((again - followers.round()).abs().max()))
    whole = torch.zeros(len(places), vocabulary, dtype=torch.float64)
    whole[:, clear] = followers.round()
    through = through.round()
    inside = _following(numbers, places, sequences, through, vocabulary)
    if tied and off <= WHOLE:
        whole += inside * ~clear
        last = _last_tokens(models, weights, gradient, inputs, chances, whole, through, ~clear)
        if isinstance(last, str):
            return last
        whole += last.round()
        off = max(off, float((last - last.round()).abs().max()))
    if off > WHOLE or bool((whole < 0).any()):
        return f"the counts of tokens are not whole numbers (they are off by {off:.2g})"
    if not torch.equal(whole.sum(1), through):
        return "the counts of tokens do not add up"
    inner = places[:, 1] < sequences.shape[1] - 1
    roots = places[:, 1] == 0
    if not torch.equal(inside[inner], whole[inner]) or int(through[roots].sum()) != batch:
        return "the counts of tokens do not agree with the tree"
    x, y = [], []
    for k, leaf in enumerate(numbers[:, -1]):
        after = torch.repeat_interleave(whole[leaf].long())
        x.append(sequences[k].expand(len(after), -1))
        y.append(after)
    return torch.cat(x), torch.cat(y)


def _following(
    numbers: Tensor, places: Tensor, sequences: Tensor, through: Tensor, vocabulary: int
) -> Tensor:
    """Return how often each token follows a node (n, vocabulary) by the tree; 0 for the leaves."""
    expected = torch.zeros(len(places), vocabulary, dtype=through.dtype)
    for node, (row, p) in enumerate(places.tolist()):
        if p:
            expected[numbers[row, p - 1], sequences[row, p]] = through[node]
    return expected


def _last_tokens(
    models: Sequence[Decoder],
    weights: Tensor,
    gradient: Mapping[str, Tensor],
    inputs: Sequence[Tensor],
    chances: Sequence[Tensor],
    whole: Tensor,
    through: Tensor,
    hidden: Tensor,
) -> Tensor | str:
    """Return the tokens behind sequences that the tied embedding hides, as counts (n, vocabulary).

    The last normalisation scales z_t to f_t = gamma z_t + beta, and the output layer W makes
    logits of it. The gradients of gamma and beta are therefore sum_t z_t * W^T c_t and sum_t
    W^T c_t, and linear in the counts within c_t = (n_t p_t - k_t) / (b L). A model may have no
    beta. `inputs` (n, h) and `chances` (n, vocabulary) belong to the nodes at each model,
    `through` (n,) counts their sequences, and `hidden` are the tokens that are sought.
    """
    missing = through - whole.sum(1)
    leaves = (missing > 0).nonzero().flatten()
    found = torch.zeros_like(whole)
    if not len(leaves):
        return found
    tokens = hidden.nonzero().flatten()
    length = models[0].places.weight.shape[0]
    total = float(through.sum()) / length  # the batch
    wanted = [gradient[name] for name in ("norm.weight", "norm.bias") if name in gradient]
    if not wanted:
        return "the last normalisation is frozen, and a tied embedding needs its gradient"
    known = torch.zeros(len(wanted), inputs[0].shape[1], dtype=torch.float64)
    columns = torch.zeros(len(leaves), len(tokens), *known.shape, dtype=torch.float64)
    for weight, model, final, chance in zip(weights, models, inputs, chances, strict=True):
        scaled = (final - model.norm.bias) / model.norm.weight
        share = float(weight) / (total * length)
        back = share * (through[:, None] * chance - whole) @ model.head.weight
        rows = model.head.weight[tokens]
        for k, factor in enumerate((scaled, torch.ones_like(scaled))[: len(wanted)]):
            known[k] += (factor * back).sum(0)
            columns[:, :, k] += share * factor[leaves, None] * rows
    matrix = columns.flatten(0, 1).flatten(1).T
    sizes = torch.linalg.svdvals(matrix)
    few = matrix.shape[1] > matrix.shape[0]
    if few or float(sizes[-1]) < INDEPENDENT * float(sizes[0]):
        return (
            f"{len(leaves)} sequences end with one of {len(tokens)} tokens that occur elsewhere, "
            "and the gradient of the tied embedding does not show which"
        )
    left = known.flatten() - torch.cat(wanted)
    counted = torch.linalg.lstsq(matrix, left[:, None]).solution
    found[leaves[:, None], tokens] = counted.view(len(leaves), len(tokens))
    return found


def _first(model: Decoder) -> EncoderBlock:
    block = model.blocks[0]
    assert isinstance(block, EncoderBlock)
    return block


def _final(model: Decoder, x: Tensor) -> Tensor:
    """Return the inputs (s, L, h) of the output layer."""
    seen: list[Tensor] = []
    hook = model.head.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    model(x)
    hook.remove()
    return seen[0]
