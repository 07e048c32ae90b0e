"""What the gradient of a convolution says of its input, for a batch that normalises itself: exactly, and without any search.

The gradient of a convolution's kernel is dW = D P, with P the patches (b L, c k k) that it sees of b inputs at L places each, and D the
slopes of its outputs. Batch normalisation behind it makes every row of D sum to zero, so where b L - 1 is below the number of channels
(the last stages of a ResNet and small batches) the row space of dW is that of the patches less their mean. Patches overlap and their
edges are padded, so few inputs have all their patches in there: the differences between those of the batch, b - 1 dimensions.
Behind a ReLU many entries are above zero for one input of the batch alone. Such entries all lie on one line of those b - 1 dimensions, one
line an input, and the lines give all inputs, up to one common factor and to what all inputs have in common. `lifting` goes on from there
to the layer before, where its gradient leaves some freedom.

Our own; the low rank is also what Dimitrov et al. 2024 (SPEAR) use for linear layers, and inputs of a linear layer are separated and then
inverted by Kariyappa et al. 2023 (Cocktail Party Attack).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leakaudit.inversion.search import priors

if TYPE_CHECKING:
    from leakaudit.tasks.task import Task

DROP = 1e-3  # singular value number b L over the one before, at most: 1e-14 of float64 gradients, 1e-7 of float32 ones
UNIQUE = 1e-4  # by which the share in the row space of any other input falls short of 1, at least
ENTRIES, EQUATIONS, LOOKED = (
    32_768,
    4_096,
    3_000,
)  # most entries of an input, equations, and entries that are compared in pairs
FEW, CLEAR = (
    4,
    3,
)  # entries of the faintest line at least, and that number over the next line's, which only chance makes
NEAR, NEAREST, FARTHEST = (
    300.0,
    1e-6,
    1e-2,
)  # distance of two entries on one line over `Layer.drop`, and its range


@dataclass(frozen=True)
class Layer:
    """A convolution whose gradient has a low rank. space: (r, c k k) orthonormal. drop: `DROP` as measured. shape: (c, h, w) it sees."""

    name: str
    shape: tuple[int, ...]
    space: Tensor
    drop: float
    windows: dict[str, Any]

    def patches(self, x: Tensor) -> Tensor:
        """Patches (b, c k k, L) of inputs x (b, c, h, w)."""
        return F.unfold(x, **self.windows)

    def outside(self, x: Tensor) -> Tensor:
        """Share of the patches of a batch x (b, c, h, w), less their mean, that the gradient does not explain; 0 for the true inputs."""
        rows = self.patches(x).transpose(1, 2).flatten(0, 1)
        rows = rows - rows.mean(0)
        return 1 - (rows @ self.space.to(x).T).square().sum() / rows.square().sum().clamp_min(
            torch.finfo(x.dtype).tiny
        )


@dataclass(frozen=True)
class Inputs:
    """Inputs x (b, c, h, w) of a layer, less their mean over the batch and up to a factor; before: layers of low rank before it."""

    layer: Layer
    x: Tensor
    before: tuple[Layer, ...]

    def misfit(self, seen: dict[str, Tensor]) -> Tensor:
        """1 - cosine, plus `Layer.outside` of the layers before; seen: inputs of the layers by name."""
        got = seen[self.layer.name]
        got = got - got.mean(0)
        cosine: Tensor = (got * self.x.to(got)).sum() / got.norm().clamp_min(
            torch.finfo(got.dtype).tiny
        )
        return (
            1
            - cosine
            + sum((one.outside(seen[one.name]) for one in self.before), start=got.new_zeros(()))
        )

    def residual(self, seen: Tensor) -> float:
        """|a - x| of inputs a (b, c, h, w), less their mean and with |a| = |x| = 1, in the order that fits best; infinite for NaN."""
        from leakaudit._util.assignment import match

        a = seen - seen.mean(0)
        a = a / a.norm().clamp_min(torch.finfo(a.dtype).tiny)
        pairs = match(a, self.x.to(a))
        return (
            float((a[pairs.found] - self.x.to(a)[pairs.true]).norm())
            if not pairs.missing
            else math.inf
        )


def read(task: Task, theta: Tensor, gradient: Tensor, columns: slice, batch: int) -> Inputs | None:
    """Inputs of the first layer whose gradient gives them, None where there is none.

    theta: (d,). gradient: (width,) of `columns` of theta, up to a factor. The order of the inputs is not that of the labels.
    """
    from leakaudit.inversion.exact.convolution_lifting import lifted

    before: tuple[Layer, ...] = ()
    free: Tensor | None = (
        None  # basis of the layer before, where it holds more than the differences
    )
    for layer in _layers(task, theta, gradient.double(), columns, batch) if batch > 1 else ():
        basis = _basis(layer, batch)
        found = (
            _separated(basis, batch, layer.drop)
            if basis is not None and basis.shape[1] == batch - 1
            else None
        )
        if found is None:
            before, free = (*before, layer), basis
            continue
        found = found.reshape(batch, *layer.shape)
        if free is not None:
            weight = task.layout.split(theta)[f"{before[-1].name}.weight"]
            earlier = lifted(before[-1], free, weight, found)
            if earlier is not None:
                layer, found, before = before[-1], earlier, before[:-1]
        return Inputs(layer, (found - found.mean(0)) / (found - found.mean(0)).norm(), before)
    return None


def _layers(task: Task, theta: Tensor, gradient: Tensor, columns: slice, batch: int) -> list[Layer]:
    """Convolutions of low rank b L - 1, in the order in which the model runs them."""
    own = {
        n: m
        for n, m in task.module.named_modules()
        if isinstance(m, nn.Conv2d) and m.groups == 1 and m.padding_mode == "zeros"
    }
    with torch.no_grad():
        seen = priors.inputs(
            task,
            theta.double(),
            torch.rand(batch, *task.spec.shape, dtype=torch.float64, device=theta.device),
            own,
        )
    found = []
    for name, x in seen.items():
        conv, at = own[name], task.layout.slices.get(f"{name}.weight")
        if (
            at is None
            or at.start < columns.start
            or at.stop > columns.stop
            or isinstance(conv.padding, str)
        ):
            continue
        windows = {k: getattr(conv, k) for k in ("kernel_size", "stride", "padding", "dilation")}
        rank = batch * F.unfold(x[:1], **windows).shape[-1] - 1
        if rank < min(conv.out_channels, conv.weight[0].numel()):
            matrix = gradient[at.start - columns.start : at.stop - columns.start].reshape(
                conv.out_channels, -1
            )
            _, sizes, rows = torch.linalg.svd(matrix, full_matrices=False)
            drop = float(sizes[rank] / sizes[rank - 1].clamp_min(torch.finfo(sizes.dtype).tiny))
            found += (
                [Layer(name, tuple(x.shape[1:]), rows[:rank], drop, windows)]
                if sizes[rank - 1] > 0 and drop < DROP
                else []
            )
    return found


def _basis(layer: Layer, batch: int) -> Tensor | None:
    """Inputs (n, k) all of whose patches lie in the row space, a basis; None where they cannot be told from others.

    They are the right singular vectors at 1 of A = [V S_1; ...; V S_L] C^(-1/2), with S_l the choice of patch l, and C how often an entry
    is in a patch. The differences of the batch are b - 1 of them. Strides that leave one edge of an even side without padding also allow
    moved inputs, and then there are more.
    """
    entries = torch.Size(layer.shape).numel()
    places = layer.patches(
        torch.arange(1, entries + 1, dtype=layer.space.dtype).reshape(1, *layer.shape)
    )[0].long()  # 0 for padding
    rank, count = len(layer.space), places.shape[1]
    if entries > ENTRIES or rank * count > EQUATIONS:
        return None
    often = (
        torch.bincount(places.flatten(), minlength=entries + 1)[1:]
        .to(layer.space)
        .sqrt()
        .clamp_min(1)
    )
    a = layer.space.new_zeros(count * rank, entries + 1)
    for k in range(count):
        a[k * rank : (k + 1) * rank].index_add_(1, places[:, k].to(a.device), layer.space)
    a = a[:, 1:] / often
    values, vectors = torch.linalg.eigh(a @ a.T)
    gaps = 1 - values.flip(0)
    many = int((gaps < UNIQUE).sum())
    clear = batch - 1 <= many < len(gaps) and float(gaps[many - 1]) < 0.1 * float(gaps[many])
    return (a.T @ vectors[:, -many:]) / often[:, None] if clear else None


def _separated(differences: Tensor, batch: int, drop: float) -> Tensor | None:
    """Inputs (b, n) behind a ReLU from their differences (n, b - 1); None where not all of them show.

    An entry that only input i has is a positive multiple of one vector e_i, and those b vectors sum to zero in the right lengths.
    """
    sizes = differences.norm(dim=1)
    kept = sizes.topk(min(LOOKED, int((sizes > 1e-3 * sizes.max()).sum()))).indices
    lines = differences[kept] / sizes[kept, None]
    near = torch.cdist(lines, lines, compute_mode="donot_use_mm_for_euclid_dist") < min(
        FARTHEST, max(NEAREST, NEAR * drop)
    )
    left, found, counts = torch.ones(len(kept), dtype=torch.bool, device=lines.device), [], []
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
    return x.T - x.amin(1)
