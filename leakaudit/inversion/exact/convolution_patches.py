"""What the gradient of a convolution reveals about its input, if the batch is normalised."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leakaudit._util.assignment import match
from leakaudit.inversion.linear import positive
from leakaudit.tasks import batch_norm

if TYPE_CHECKING:
    from leakaudit.tasks.task import Task

# The method was developed for leakaudit. Dimitrov et al. 2024 (SPEAR) also use the low rank, for
# linear layers, and Kariyappa et al. 2023 (Cocktail Party Attack) separate and then invert the
# inputs of a linear layer.

# The inputs of a layer are computed exactly, without any search, in four steps:
#
# 1. **Low rank.** The gradient of a convolution's kernel is dW = D P, where P holds the patches (b
#    L, c k k) of b inputs at L positions each, and D the slopes of the outputs. If batch
#    normalisation follows, every row of D sums to zero. Therefore, if b L - 1 is below the number
#    of channels (the last stages of a ResNet and small batches), the row space of dW is that of the
#    patches minus their mean (`_layers`).
# 2. **Differences.** Patches overlap and their edges are padded, so few inputs have all their
#    patches in that space: the differences between those of the batch, b - 1 dimensions (`_basis`).
# 3. **Separation.** After a ReLU, many entries are positive for only one input of the batch. Such
#    entries all lie on one line of those b - 1 dimensions, one line per input, and the lines
#    determine all inputs, up to one common factor and to what all inputs have in common
#    (`_separated`).
# 4. **Lifting.** Strides that leave an edge without padding allow more inputs than the differences,
#    and then step 2 leaves some freedom. The inputs of the next layer remove it (`lifted`): between
#    a convolution W, batch normalisation and a ReLU, outputs h of two inputs that are both positive
#    differ by (h_i - h_j) s = W (a_i - a_j), with one unknown s per channel, its standard deviation
#    divided by the layer's own factor. If a_i - a_j is known up to a few coefficients, these and
#    the s are the only solution of these linear equations.

# Maximum ratio of singular value number b L to the one before it. The ratio is 1e-14 for gradients
# in float64, 1e-7 in float32, and about 1 if the rank is not low. The same limit applies to a
# solution of the lifting's equations.
DROP = 1e-3

# Minimum amount by which the share of any other input in the row space must fall short of 1.
UNIQUE = 1e-4

# Maximum ratio of this amount for the differences themselves to that of any other input.
CLEARLY = 0.1

# Maximum number of entries of an input, and of equations, for which differences are computed. Both
# limit the time to a few seconds.
ENTRIES = 32_768
EQUATIONS = 4_096

# Maximum number of entries that are compared in pairs: nine million distances.
LOOKED = 3_000

# Entries below this share of the largest are not compared: noise changes their directions.
FAINT = 1e-3

# Minimum number of entries on the weakest line, and minimum ratio of this number to that of the
# next line, which occurs by chance.
FEW = 4
CLEAR = 3

# Distance of two entries on one line, in units of `_LowRankLayer.drop`, and its range. Directions
# of entries as small as `FAINT` have a thousand times the error of the gradient; for half of the
# lines, the error is smaller.
NEAR = 300.0
NEAREST = 1e-6
FARTHEST = 1e-2

# Share of the largest output below which an output may be zero, so that nothing is known about what
# the ReLU cut off.
ON = 1e-6

# Maximum number of unknowns of the lifting's equations. Limits the running time.
UNKNOWNS = 4_096


@dataclass(frozen=True)
class _LowRankLayer:
    """A convolution whose gradient has a low rank."""

    name: str
    shape: tuple[int, ...]  # (c, h, w) of its input
    space: Tensor  # (r, c k k) orthonormal rows that span the rows of its gradient
    drop: float  # ratio of singular value number r + 1 to number r (see `DROP`)
    # kernel size, stride, padding and dilation, by their names in torch
    windows: dict[str, tuple[int, ...]]

    def patches(self, x: Tensor) -> Tensor:
        """Return the patches (b, c k k, L) of inputs x (b, c, h, w)."""
        return F.unfold(x, **self.windows)

    def outside(self, x: Tensor) -> Tensor:
        """Measure the part of a batch's patches, minus their mean, outside the gradient's space."""
        rows = self.patches(x).transpose(1, 2).flatten(0, 1)
        rows = rows - rows.mean(0)
        explained = (rows @ self.space.to(x).T).square().sum()
        return 1 - explained / positive(rows.square().sum())


@dataclass(frozen=True)
class LayerInputs:
    """Inputs of a layer, computed from its gradient."""

    layer: _LowRankLayer
    x: Tensor  # (b, c, h, w), minus their mean over the batch and up to a factor
    before: tuple[_LowRankLayer, ...]  # layers of low rank before it

    def misfit(self, seen: dict[str, Tensor]) -> Tensor:
        """Compare the activations of a candidate batch with the inputs, by a smooth measure."""
        got = seen[self.layer.name]
        got = got - got.mean(0)
        cosine: Tensor = (got * self.x.to(got)).sum() / positive(got.norm())
        others = [one.outside(seen[one.name]) for one in self.before]
        return 1 - cosine + sum(others, start=got.new_zeros(()))

    def residual(self, seen: Tensor) -> float:
        """Compare inputs (b, c, h, w) with the known ones, in the order that fits best."""
        a = seen - seen.mean(0)
        a = a / positive(a.norm())
        pairs = match(a, self.x.to(a))
        if pairs.missing:
            return math.inf
        return float((a[pairs.found] - self.x.to(a)[pairs.true]).norm())


def read(
    task: Task, theta: Tensor, gradient: Tensor, columns: slice, batch: int
) -> LayerInputs | None:
    """Compute the inputs of the first layer whose gradient determines them; None without one.

    `gradient` is that of `columns` of the model theta (d,), up to a factor. The order of the
    inputs is unrelated to that of the labels.
    """
    if batch < 2:
        return None
    before: tuple[_LowRankLayer, ...] = ()
    free: Tensor | None = None  # basis of the layer before, if it has more than the differences
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


def lifted(layer: _LowRankLayer, basis: Tensor, weight: Tensor, outputs: Tensor) -> Tensor | None:
    """Compute a layer's inputs from its outputs, if its own gradient leaves some freedom.

    `basis` (n, k) spans the inputs' differences; outputs (b, c', h', w') are known up to a
    factor and to what all have in common, and each entry is zero once. Returns (b, c, h, w)
    minus their mean, up to a factor; None if the outputs do not determine them.
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
        # W (a_0 - a_j) + s (h_j - h_0) = 0 if both outputs are positive
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
    # The equations are homogeneous: take the null vector, with the sign that makes the s positive.
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
) -> list[_LowRankLayer]:
    """Find the convolutions of low rank b L - 1, in the order in which the model runs them."""
    own: dict[str, nn.Conv2d] = {}
    for name, module in task.module.named_modules():
        if isinstance(module, nn.Conv2d) and module.groups == 1 and module.padding_mode == "zeros":
            own[name] = module
    # Arbitrary inputs suffice: only the shapes that the layers receive are needed.
    some = torch.zeros(batch, *task.spec.shape, dtype=torch.float64, device=theta.device)
    with torch.no_grad():
        seen = batch_norm.inputs(task, theta.double(), some, own)
    found: list[_LowRankLayer] = []
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
        drop = float(sizes[rank] / positive(sizes[rank - 1]))
        if sizes[rank - 1] > 0 and drop < DROP:
            found.append(_LowRankLayer(name, tuple(x.shape[1:]), rows[:rank], drop, windows))
    return found


def _basis(layer: _LowRankLayer, batch: int) -> Tensor | None:
    """Find a basis (n, k) of the inputs whose patches all lie in the row space; None if unclear.

    They are the right singular vectors with value 1 of A = [V S_1; ...; V S_L] C^(-1/2), with V
    the row space, S_l the selection of patch l, and C the number of patches that contain an
    entry: |A x|^2 is the share of x that the row space explains. The b - 1 differences of the
    batch are among them. Strides that leave an edge of an even side without padding also allow
    shifted inputs.
    """
    entries = torch.Size(layer.shape).numel()
    numbers = torch.arange(1, entries + 1, dtype=layer.space.dtype).reshape(1, *layer.shape)
    places = layer.patches(numbers)[0].long()  # the entry at each position, 0 for padding
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
    """Separate the inputs (b, n) after a ReLU, given a basis (n, b - 1) of their differences.

    An entry that is positive for input i only is a positive multiple of one vector e_i, and
    with the right lengths, these b vectors sum to zero.
    """
    sizes = differences.norm(dim=1)
    kept = sizes.topk(min(LOOKED, int((sizes > FAINT * sizes.max()).sum()))).indices
    lines = differences[kept] / sizes[kept, None]
    distance = torch.cdist(lines, lines, compute_mode="donot_use_mm_for_euclid_dist")
    near = distance < min(FARTHEST, max(NEAREST, NEAR * drop))
    # Take the line with the most entries, remove these, and so on; one line more than inputs.
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
    # Every entry is zero for at least one input, which is the smallest.
    return x.T - x.amin(1)
