"""Networks whose layers have low-rank adapters, as programs write them."""

from __future__ import annotations

import math

import torch
from gpt2_of_a_stranger import Gpt
from torch import Tensor, nn

ACTIVATIONS: dict[str, type[nn.Module]] = {
    "relu": nn.ReLU,
    "leaky_relu": nn.LeakyReLU,
    "gelu": nn.GELU,
    "tanh": nn.Tanh,
    "silu": nn.SiLU,
}


class Adapted(nn.Module):
    """A frozen linear layer with trained factors A and B."""

    def __init__(self, inputs: int, outputs: int, rank: int, scale: float, bias: bool) -> None:
        super().__init__()
        self.base = nn.Linear(inputs, outputs, bias=bias).requires_grad_(False)
        self.A = nn.Parameter(torch.randn(rank, inputs) / math.sqrt(inputs))
        self.B = nn.Parameter(torch.zeros(outputs, rank))
        self.scale = scale

    def forward(self, x: Tensor) -> Tensor:
        """Return W x + c + s B A x."""
        out: Tensor = self.base(x) + self.scale * (x @ self.A.T) @ self.B.T
        return out


def mlp(
    shape: tuple[int, ...],
    outputs: int,
    hidden: int = 64,
    rank: int = 8,
    act: str = "relu",
    scale: float = 2.0,
    trained: str = "first",
    bias: bool = True,
) -> nn.Module:
    """Two layers; `trained` are the adapters of the ``first`` or ``all`` layers, or the ``head``.

    With ``head``, the last layer itself is trained besides the first adapter.
    """
    first = Adapted(math.prod(shape), hidden, rank, scale, bias)
    last: nn.Module = nn.Linear(hidden, outputs).requires_grad_(trained == "head")
    if trained == "all":
        last = Adapted(hidden, outputs, min(rank, outputs), scale, bias=True)
    return nn.Sequential(nn.Flatten(), first, ACTIVATIONS[act](), last)


class Turned(nn.Module):
    """An adapter whose matrices are stored transposed, as GPT-2 stores its weights."""

    def __init__(self, inputs: int, outputs: int, rank: int) -> None:
        super().__init__()
        self.kernel = nn.Parameter(torch.randn(inputs, outputs) / 12, requires_grad=False)
        self.low = nn.Parameter(torch.randn(inputs, rank) / 12)
        self.high = nn.Parameter(torch.zeros(rank, outputs))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x @ (self.kernel + 3 * self.low @ self.high)
        return out


def turned(shape: tuple[int, ...], outputs: int) -> nn.Module:
    """A network with such an adapter."""
    return nn.Sequential(
        nn.Flatten(), Turned(math.prod(shape), 32, 4), nn.Tanh(), nn.Linear(32, outputs)
    )


def late(shape: tuple[int, ...], outputs: int) -> nn.Module:
    """A network whose adapter receives something else than the input."""
    return nn.Sequential(
        nn.Flatten(), nn.Tanh(), Turned(math.prod(shape), 32, 4), nn.Linear(32, outputs)
    )


def two_layers(shape: tuple[int, ...], outputs: int) -> nn.Module:
    """Two trained layers after a frozen one, which are no adapter."""
    inputs = math.prod(shape)
    frozen = nn.Linear(inputs, 32).requires_grad_(False)
    return nn.Sequential(
        nn.Flatten(), frozen, nn.ReLU(), nn.Linear(32, inputs), nn.Linear(inputs, outputs)
    )


def decoder(
    shape: tuple[int, ...],
    classes: int,
    width: int = 64,
    rank: int = 16,
    layers: str = "c_attn c_fc",
) -> nn.Module:
    """A GPT-2 with frozen weights and adapters of some of its layers."""
    net = Gpt(shape, classes, width=width, heads=2).requires_grad_(False)
    for parent in list(net.modules()):
        for name, layer in list(parent.named_children()):
            if name in layers.split():
                assert isinstance(layer, nn.Linear)
                adapted = Adapted(layer.in_features, layer.out_features, rank, 2.0, bias=False)
                adapted.base = layer
                setattr(parent, name, adapted)
    return net
