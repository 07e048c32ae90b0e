"""What the gradient of a convolution says of its input, for a batch that normalises itself.

The inputs of a layer come out exactly and without any search, in four steps:

1. **Low rank.** The gradient of a convolution's kernel is dW = D P, with P the patches (b L, c k k)
   that it sees of b inputs at L places each, and D the slopes of its outputs. Batch normalisation
   behind it makes every row of D sum to zero. So if b L - 1 is below the number of channels (the
   last stages of a ResNet and small batches), the row space of dW is that of the patches less their
   mean (`_layers`).
2. **Differences.** Patches overlap and their edges are padded, so few inputs have all their patches
   in that space: the differences between those of the batch, b - 1 dimensions (`_basis`).
3. **Separation.** Behind a ReLU, many entries are above zero for only one input of the batch. Such
   entries all lie on one line of those b - 1 dimensions, one line for each input, and the lines
   give all inputs, up to one common factor and to what all inputs have in common (`_separated`).
4. **Lifting.** Strides that leave an edge without padding allow more inputs than the differences,
   and then step 2 leaves some freedom. The next layer's inputs settle it (`lifted`): between a
   convolution W, normalisation by the batch and a ReLU, outputs h of two inputs that are both above
   zero differ by (h_i - h_j) s = W (a_i - a_j), with one unknown s per channel, its deviation over
   the layer's own factor. If a_i - a_j is known up to a few coefficients, those and the s are the
   one solution of these linear equations.

This is our own. The low rank is also what Dimitrov et al. 2024 (SPEAR) use for linear layers, and
inputs of a linear layer are separated and then inverted by Kariyappa et al. 2023 (Cocktail Party
Attack).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leakaudit._util.assignment import match
from leakaudit.inversion.search import priors

if TYPE_CHECKING:
    from leakaudit.tasks.task import Task

# Singular value number b L over the one before it, at the most: it is 1e-14 for gradients in
# float64 and 1e-7 in float32, and about 1 if the rank is not low. A solution of the lifting's
# equations is held to the same.
DROP = 1e-3

# By how much at least the share in the row space of any input other than the differences falls
# short of 1.
UNIQUE = 1e-4

# How much more that is than for the differences themselves, as a ratio.
CLEARLY = 0.1

# Most entries of an input, and most equations, for which differences are computed; both are limits
# of time, a few seconds.
ENTRIES = 32_768
EQUATIONS = 4_096

# Most entries that are compared in pairs: nine million distances.
LOOKED = 3_000

# Entries this small beside the largest are not compared: noise turns their directions.
FAINT = 1e-3

# Entries of the faintest line at least, and that number over the next line's, which is made by
# chance.
FEW = 4
CLEAR = 3

# Distance of two entries on one line, in units of `LowRankLayer.drop`, and its range. Directions of
# entries as faint as `FAINT` have a thousand times the error of the gradient; those of half the
# lines less.
NEAR = 300.0
NEAREST = 1e-6
FARTHEST = 1e-2

# Part of the largest output below which an output may be zero, so that nothing is known of what
# ReLU cut off.
ON = 1e-6

# Most unknowns of the lifting's equations, a limit of time.
UNKNOWNS = 4_096


@dataclass(frozen=True)
class LowRankLayer:
    """A convolution whose gradient has a low rank.

    Attributes:
        name: Of the module.
        shape: (c, h, w) of its input.
        space: (r, c k k) orthonormal rows that span the rows of its gradient.
        drop: Singular value number r + 1 over number r (see `DROP`).
        windows: Kernel size, stride, padding and dilation, by the names that torch gives them.
    """

    name: str
    shape: tuple[int, ...]
    space: Tensor
    drop: float
    windows: dict[str, tuple[int, ...]]

    def patches(self, x: Tensor) -> Tensor:
        """Patches (b, c k k, L) of inputs x (b, c, h, w)."""
        return F.unfold(x, **self.windows)

    def outside(self, x: Tensor) -> Tensor:
        """Measure what of a batch's patches, less their mean, the gradient does not explain.

        Args:
            x: (b, c, h, w) inputs of the layer.

        Returns:
            A share of their squares, 0 for the true inputs.
        """
        rows = self.patches(x).transpose(1, 2).flatten(0, 1)
        rows = rows - rows.mean(0)
        explained = (rows @ self.space.to(x).T).square().sum()
        return 1 - explained / rows.square().sum().clamp_min(torch.finfo(x.dtype).tiny)


@dataclass(frozen=True)
class LayerInputs:
    """Inputs of a layer that its gradient gives.

    Attributes:
        layer: The layer.
        x: (b, c, h, w), less their mean over the batch and up to a factor.
        before: Layers of low rank before it.
    """

    layer: LowRankLayer
    x: Tensor
    before: tuple[LowRankLayer, ...]

    def misfit(self, seen: dict[str, Tensor]) -> Tensor:
        """Compare the activations of a candidate batch, smoothly.

        Args:
            seen: Inputs of the layers by name.

        Returns:
            1 - cosine, plus `LowRankLayer.outside` of the layers before.
        """
        got = seen[self.layer.name]
        got = got - got.mean(0)
        length = got.norm().clamp_min(torch.finfo(got.dtype).tiny)
        cosine: Tensor = (got * self.x.to(got)).sum() / length
        others = [one.outside(seen[one.name]) for one in self.before]
        return 1 - cosine + sum(others, start=got.new_zeros(()))

    def residual(self, seen: Tensor) -> float:
        """Compare inputs in the order that fits best.

        Args:
            seen: (b, c, h, w) inputs a of the layer.

        Returns:
            |a - x|, both less their mean and of length 1; infinite for NaN.
        """
        a = seen - seen.mean(0)
        a = a / a.norm().clamp_min(torch.finfo(a.dtype).tiny)
        pairs = match(a, self.x.to(a))
        if pairs.missing:
            return math.inf
        return float((a[pairs.found] - self.x.to(a)[pairs.true]).norm())


def read(
    task: Task, theta: Tensor, gradient: Tensor, columns: slice, batch: int
) -> LayerInputs | None:
    """Compute the inputs of the first layer whose gradient gives them.

    Args:
        task: What is trained.
        theta: (d,) the model.
        gradient: (width,) of `columns` of theta, up to a factor.
        columns: Which parameters the gradient is of.
        batch: Samples behind the gradient.

    Returns:
        The inputs, whose order is not that of the labels, or None if no layer gives them.
    """
    if batch < 2:
        return None
    before: tuple[LowRankLayer, ...] = ()
    free: Tensor | None = None  # basis of the layer before, if it holds more than the differences
    for layer in _layers(task, theta, gradient.double(), columns, batch):
        basis = _basis(layer, batch)
        found = None
        if basis is not None and basis.shape[1] == batch - 1:
            found = _separated(basis, batch, layer.drop)
        if found is None:
            before = (*before, layer)
            free = basis
            continue
        found = found.reshape(batch, *layer.shape)
        if free is not None:
            weight = task.layout.split(theta)[f"{before[-1].name}.weight"]
            earlier = lifted(before[-1], free, weight, found)
            if earlier is not None:
                layer = before[-1]
                found = earlier
                before = before[:-1]
        return LayerInputs(layer, (found - found.mean(0)) / (found - found.mean(0)).norm(), before)
    return None


def lifted(layer: LowRankLayer, basis: Tensor, weight: Tensor, outputs: Tensor) -> Tensor | None:
    """Go from what a layer gives to what it saw, if its own gradient leaves some freedom there.

    Args:
        layer: A convolution, followed by normalisation and ReLU.
        basis: (n, k) a basis of its inputs' differences.
        weight: Of the layer.
        outputs: (b, c', h', w'), behind normalisation and ReLU, up to a factor and to what all have
            in common, of which each entry is zero once.

    Returns:
        Inputs (b, c, h, w) less their mean and up to a factor, or None if the outputs do not
        determine them.
    """
    batch, channels = outputs.shape[:2]
    k = basis.shape[1]
    of_inputs = (batch - 1) * k  # unknown coefficients; an unknown s per channel follows them
    if of_inputs + channels > UNKNOWNS:
        return None
    made = F.conv2d(
        basis.T.reshape(-1, *layer.shape),
        weight.to(basis),
        stride=layer.windows["stride"],
        padding=layer.windows["padding"],
        dilation=layer.windows["dilation"],
    )
    if made.shape[1:] != outputs.shape[1:]:
        return None
    made = made.flatten(1).T
    h = outputs.flatten(1)
    channel = torch.arange(channels, device=h.device).repeat_interleave(outputs[0, 0].numel())
    on = h > ON * h.max()
    rows = []
    for j in range(1, batch):
        # W (a_0 - a_j) + s (h_j - h_0) = 0 where both outputs are above zero
        both = (on[0] & on[j]).nonzero().flatten()
        row = basis.new_zeros(len(both), of_inputs + channels)
        row[:, (j - 1) * k : j * k] = made[both]
        at = torch.arange(len(both), device=h.device)
        row[at, of_inputs + channel[both]] = h[j, both] - h[0, both]
        rows.append(row)
    equations = torch.cat(rows)
    equations = equations[:, equations.abs().sum(0) > 0]
    if len(equations) < equations.shape[1] or equations.shape[1] <= of_inputs:
        return None
    # The equations are homogeneous: the one null vector, with the sign that makes the s positive.
    _, sizes, vectors = torch.linalg.svd(equations, full_matrices=False)
    if float(sizes[-1]) > DROP * float(sizes[-2]):
        return None
    solution = vectors[-1] * vectors[-1, of_inputs:].sum().sign()
    less = [basis.new_zeros(len(basis))]
    less += [-basis @ part for part in solution[:of_inputs].split(k)]
    inputs = torch.stack(less)
    return (inputs - inputs.mean(0)).reshape(batch, *layer.shape)


def _layers(
    task: Task, theta: Tensor, gradient: Tensor, columns: slice, batch: int
) -> list[LowRankLayer]:
    """Find the convolutions of low rank b L - 1, in the order in which the model runs them.

    Args:
        task: What is trained.
        theta: (d,) the model.
        gradient: (width,) of `columns` of theta.
        columns: Which parameters the gradient is of.
        batch: Samples b behind the gradient.
    """
    own: dict[str, nn.Conv2d] = {}
    for name, module in task.module.named_modules():
        if isinstance(module, nn.Conv2d) and module.groups == 1 and module.padding_mode == "zeros":
            own[name] = module
    # Any inputs do: only the shapes that the layers see are needed.
    some = torch.zeros(batch, *task.spec.shape, dtype=torch.float64, device=theta.device)
    with torch.no_grad():
        seen = priors.inputs(task, theta.double(), some, own)
    found: list[LowRankLayer] = []
    for name, x in seen.items():
        conv = own[name]
        at = task.layout.slices.get(f"{name}.weight")
        if at is None or at.start < columns.start or at.stop > columns.stop:
            continue
        if isinstance(conv.padding, str):
            continue
        windows = {
            "kernel_size": conv.kernel_size,
            "stride": conv.stride,
            "padding": conv.padding,
            "dilation": conv.dilation,
        }
        rank = batch * F.unfold(x[:1], **windows).shape[-1] - 1
        if rank >= min(conv.out_channels, conv.weight[0].numel()):
            continue
        matrix = gradient[at.start - columns.start : at.stop - columns.start]
        matrix = matrix.reshape(conv.out_channels, -1)
        _, sizes, rows = torch.linalg.svd(matrix, full_matrices=False)
        drop = float(sizes[rank] / sizes[rank - 1].clamp_min(torch.finfo(sizes.dtype).tiny))
        if sizes[rank - 1] > 0 and drop < DROP:
            found.append(LowRankLayer(name, tuple(x.shape[1:]), rows[:rank], drop, windows))
    return found


def _basis(layer: LowRankLayer, batch: int) -> Tensor | None:
    """Find the inputs all of whose patches lie in the row space.

    They are the right singular vectors at 1 of A = [V S_1; ...; V S_L] C^(-1/2), with V the row
    space, S_l the choice of patch l, and C how often an entry is in a patch: |A x|^2 is the share
    of x that the row space explains. The differences of the batch are b - 1 of them. Strides that
    leave one edge of an even side without padding also allow moved inputs, and then there are more.

    Args:
        layer: Of low rank.
        batch: Number b of inputs.

    Returns:
        A basis (n, k), or None if they cannot be told from others, or are too large.
    """
    entries = torch.Size(layer.shape).numel()
    numbers = torch.arange(1, entries + 1, dtype=layer.space.dtype).reshape(1, *layer.shape)
    places = layer.patches(numbers)[0].long()  # which entry stands where, 0 for padding
    rank = len(layer.space)
    count = places.shape[1]
    if entries > ENTRIES or rank * count > EQUATIONS:
        return None
    often = torch.bincount(places.flatten(), minlength=entries + 1)[1:]
    often = often.to(layer.space).sqrt().clamp_min(1)
    a = layer.space.new_zeros(count * rank, entries + 1)
    for k in range(count):
        a[k * rank : (k + 1) * rank].index_add_(1, places[:, k].to(a.device), layer.space)
    a = a[:, 1:] / often
    values, vectors = torch.linalg.eigh(a @ a.T)
    gaps = 1 - values.flip(0)
    many = int((gaps < UNIQUE).sum())
    if not batch - 1 <= many < len(gaps):
        return None
    if not float(gaps[many - 1]) < CLEARLY * float(gaps[many]):
        return None
    basis: Tensor = (a.T @ vectors[:, -many:]) / often[:, None]
    return basis


def _separated(differences: Tensor, batch: int, drop: float) -> Tensor | None:
    """Separate the inputs behind a ReLU from a basis of their differences.

    An entry that only input i has is a positive multiple of one vector e_i, and those b vectors sum
    to zero in the right lengths.

    Args:
        differences: (n, b - 1).
        batch: Number b of inputs.
        drop: Relative error of the gradient (see `LowRankLayer`).

    Returns:
        (b, n), or None if not all of them show.
    """
    sizes = differences.norm(dim=1)
    kept = sizes.topk(min(LOOKED, int((sizes > FAINT * sizes.max()).sum()))).indices
    lines = differences[kept] / sizes[kept, None]
    distance = torch.cdist(lines, lines, compute_mode="donot_use_mm_for_euclid_dist")
    near = distance < min(FARTHEST, max(NEAREST, NEAR * drop))
    # Take the line with the most entries, remove these, and so on; one more than there are inputs.
    left = torch.ones(len(kept), dtype=torch.bool, device=lines.device)
    found: list[Tensor] = []
    counts: list[int] = []
    for _ in range(batch + 1):
        number = (near & left).sum(1) * left
        best = int(number.argmax())
        chosen = near[best] & left
        found.append(lines[chosen].mean(0))
        counts.append(int(number[best]))
        left &= ~chosen
    if counts[batch - 1] < max(FEW, CLEAR * counts[batch]):
        return None
    vectors = torch.stack(found[:batch])
    lengths = torch.linalg.svd(vectors.T).Vh[-1]
    lengths = lengths * lengths.sum().sign()
    if float(lengths.min()) <= 0:
        return None
    x: Tensor = differences @ torch.linalg.pinv(vectors * lengths[:, None])
    # An entry is zero for one input at least, which is the smallest.
    return x.T - x.amin(1)
