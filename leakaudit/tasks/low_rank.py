"""Low-rank adapters (LoRA): which trained factors act on the input of a network."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import permutations
from typing import TYPE_CHECKING

import torch
from torch import Generator, Tensor

from leakaudit.tasks import build_task

if TYPE_CHECKING:
    from leakaudit.tasks.task import Task

# An adapter (Hu et al. 2022) adds s B A x to the output W x + c of a frozen layer. Libraries name
# and arrange its factors in many ways, and names prove nothing. What identifies an adapter are its
# gradients: with the gradient M = dL/dW that the frozen weight would have,
#
#     dL/dB = s M A^T   and   dL/dA = s B^T M.
#
# Both are tested with random factors, which also gives the scale s. The rows of M are combinations
# of the layer's inputs, which shows whether these are the inputs of the network; the coefficients,
# one for each of them, add up to dL/dc.

# Largest relative difference, in float64, of two gradients that are equal.
SAME = 1e-9
# Spread of the random factors: a choice.
SPREAD = 0.1


@dataclass(frozen=True)
class Adapter:
    """A low-rank adapter of a fully connected layer that receives the network's input."""

    weight: str  # name of the frozen weight W
    down: str  # name of A, which receives the input
    up: str  # name of B
    scale: float  # s
    bias: str | None = None  # name of c, trained or frozen
    turned: frozenset[str] = frozenset()  # those of the three that are stored transposed

    def matrices(self, values: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Return A (r, p) and B (H, r), or their gradients."""
        return self._matrix(values, self.down), self._matrix(values, self.up)

    def effective(self, task: Task, theta: Tensor) -> Tensor:
        """Return W + s B A (H, p) at a model (d,)."""
        down, up = self.matrices(task.layout.split(theta))
        weight = self._matrix(task.buffers, self.weight).to(theta)
        return weight + self.scale * up @ down

    def stored(self, name: str, matrix: Tensor) -> Tensor:
        """Return one of the three matrices as the model stores it."""
        return matrix.T if name in self.turned else matrix

    def _matrix(self, values: Mapping[str, Tensor], name: str) -> Tensor:
        return self.stored(name, values[name])


def first(task: Task) -> Adapter | None:
    """Find the adapter of the layer that receives the flattened, normalised input."""
    width = math.prod(task.spec.shape)
    if task.tokens:
        return None
    x = build_task.example(task.module, task.spec).double()
    inputs = task.normalise(x).flatten(1)
    frozen = [name for name, value in task.buffers.items() if width in value.shape]
    return next(_found(task, frozen, x, inputs), None)


def layers(task: Task, width: int) -> tuple[Adapter, ...]:
    """Find the adapters of all layers of a model that reads tokens, with inputs of this width.

    Those of other layers are found with A and B exchanged, which leaves B A in its place.
    """
    x = build_task.example(task.module, task.spec)
    frozen = [name for name, value in task.buffers.items() if width in value.shape]
    return tuple(_found(task, frozen, x, width))


def _random() -> Generator:
    return Generator().manual_seed(0)


def _found(task: Task, frozen: list[str], x: Tensor, inputs: Tensor | int) -> Iterator[Adapter]:
    """Yield the adapters of some frozen weights, by gradients at random factors.

    `inputs` are those of the layer (n, p), or their width p if they are not known.
    """
    trained = dict(zip(task.layout.names, task.layout.shapes, strict=True))
    factors = [name for name, shape in trained.items() if len(shape) == 2]
    frozen = [name for name in frozen if task.buffers[name].dim() == 2]
    if len(factors) < 2 or not frozen:
        return
    random = _random()
    theta = task.init(random).double()
    theta = theta + SPREAD * torch.randn(len(theta), generator=random).to(theta)
    slopes = _gradients(task, theta, frozen, x)
    params = task.layout.split(theta)
    width = inputs if isinstance(inputs, int) else inputs.shape[1]
    for weight in frozen:
        for adapter in _candidates(weight, factors, width, trained, slopes):
            found = _confirmed(adapter, params, slopes, inputs)
            if found is not None:
                yield found
                break


def _gradients(task: Task, theta: Tensor, weights: list[str], x: Tensor) -> dict[str, Tensor]:
    """Return the gradients of all trained parameters, frozen weights and frozen vectors."""
    vectors = [n for n, v in task.buffers.items() if v.dim() == 1 and v.is_floating_point()]
    constants = {name: task.buffers[name] for name in (*weights, *vectors)}
    values = {**task.layout.split(theta), **constants}
    values = {name: value.double().clone().requires_grad_() for name, value in values.items()}
    with torch.enable_grad():
        # A weight of its own for every output, as the slopes of a loss would be.
        out = task.logits_at(values, x)
        some = torch.arange(1.0, out.numel() + 1).to(out).sin().reshape(out.shape)
        wanted = list(values.values())
        found = torch.autograd.grad((some * out).sum(), wanted, materialize_grads=True)
    return dict(zip(values, found, strict=True))


def _candidates(
    weight: str,
    factors: list[str],
    width: int,
    trained: Mapping[str, tuple[int, ...]],
    slopes: Mapping[str, Tensor],
) -> Iterator[Adapter]:
    """Yield all pairs of factors whose shapes fit, in every arrangement."""
    for turned in _arrangements(weight, slopes[weight].shape, width, last=True):
        outputs = slopes[weight].numel() // width
        for down, up in permutations(factors, 2):
            rank = math.prod(trained[down]) // width
            if trained[up] not in ((outputs, rank), (rank, outputs)):
                continue
            for other in _arrangements(down, trained[down], width, last=True):
                for third in _arrangements(up, trained[up], outputs, last=False):
                    yield Adapter(weight, down, up, 1.0, None, turned | other | third)


def _arrangements(
    name: str, shape: tuple[int, ...], size: int, last: bool
) -> Iterator[frozenset[str]]:
    """Yield whether a matrix may be stored as it is, or transposed, by the size of one side."""
    if shape[-1 if last else 0] == size:
        yield frozenset()
    if shape[0 if last else -1] == size:
        yield frozenset({name})


def _confirmed(
    adapter: Adapter,
    theta: Mapping[str, Tensor],
    slopes: Mapping[str, Tensor],
    inputs: Tensor | int,
) -> Adapter | None:
    """Return an adapter with its scale if the gradients are those of one."""
    down, up = adapter.matrices(theta)
    of_down, of_up = adapter.matrices(slopes)
    whole = adapter._matrix(slopes, adapter.weight)
    expected = whole @ down.T
    scale = float((expected * of_up).sum() / expected.square().sum())
    if not (_same(of_up, scale * expected) and _same(of_down, scale * up.T @ whole)):
        return None
    if isinstance(inputs, int):
        return replace(adapter, scale=scale)
    inside = torch.linalg.qr(inputs.T).Q
    if not _same(whole, whole @ inside @ inside.T):
        return None
    sums = (whole @ torch.linalg.pinv(inputs)).sum(1)
    biases = [n for n, s in slopes.items() if s.shape == sums.shape and _same(sums, s)]
    return replace(adapter, scale=scale, bias=biases[0] if len(biases) == 1 else None)


def _same(a: Tensor, b: Tensor) -> bool:
    return float((a - b).norm()) <= SAME * float(a.norm())
