"""Architectures by name.

A model is a frozen dataclass of hyper-parameters. Called with the input shape and the number of
outputs, it returns a module with its standard initialisation, drawn from torch's current CPU state.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar, Literal, Protocol

import torch
from torch import Tensor, nn

from leakaudit.core.errors import LeakauditError
from leakaudit.core.registry import param, written
from leakaudit.tasks import _torchvision

DEEPEST = 64  # maximum number of hidden layers
WIDEST = 10**9 - 1  # maximum neurons per layer, far more than fit into memory
SPREAD = 0.02  # standard deviation of the initial weights of `Gpt`: that of GPT-2
ACTIVATIONS: dict[str, type[nn.Module]] = {"relu": nn.ReLU, "sigmoid": nn.Sigmoid, "tanh": nn.Tanh}


class _Model(Protocol):
    """An architecture with its hyper-parameters."""

    note: ClassVar[str]  # description in `leakaudit list models`

    def __call__(self, shape: tuple[int, ...], outputs: int) -> nn.Module:
        """Build the module for inputs (b, *shape), already normalised."""


@dataclass(frozen=True)
class _Affine:
    """Linear(prod(shape), outputs)."""

    bias: bool = param(True, "whether there is an intercept")

    def __call__(self, shape: tuple[int, ...], outputs: int) -> nn.Module:
        linear = nn.Linear(math.prod(shape), outputs, bias=self.bias)
        return nn.Sequential(OrderedDict(flatten=nn.Flatten(), linear=linear))


class _Logistic(_Affine):
    """Logistic regression."""

    note: ClassVar[str] = (
        "Logistic regression: one logit with loss ``binary``, one per class with ``cross_entropy``."
    )


class _Linear(_Affine):
    """Linear regression."""

    note: ClassVar[str] = "Linear regression, for loss ``squared``."


@dataclass(frozen=True)
class _Mlp:
    """Fully connected network of any depth."""

    note: ClassVar[str] = "Fully connected network of any depth."
    hidden: Sequence[int] = param((100,), "width of the hidden layers, e.g. 256 or 256,64")
    act: Literal["relu", "sigmoid", "tanh"] = param("relu", "activation")

    def __post_init__(self) -> None:
        sound = all(1 <= width <= WIDEST for width in self.hidden)
        if not sound or not 1 <= len(self.hidden) <= DEEPEST:
            raise LeakauditError(
                f"mlp: expected hidden=256 or hidden=256,64 (at most {DEEPEST} layers), "
                f"got {written(self.hidden)!r}"
            )

    def __call__(self, shape: tuple[int, ...], outputs: int) -> nn.Module:
        """Build the module."""
        widths = [math.prod(shape), *self.hidden, outputs]
        layers: OrderedDict[str, nn.Module] = OrderedDict(flatten=nn.Flatten())
        for i, (before, after) in enumerate(pairwise(widths), 1):
            if i > 1:
                layers[f"act{i - 1}"] = ACTIVATIONS[self.act]()
            layers[f"layer{i}"] = nn.Linear(before, after)
        return nn.Sequential(layers)


@dataclass(frozen=True)
class _LeNet:
    """The LeNet of DLG; images of 32x32 give Linear(768, outputs) as published."""

    note: ClassVar[str] = (
        "The LeNet of DLG (Zhu et al. 2019): three 5x5 convolutions of 12 channels, "
        "strides 2, 2, 1; all parameters U(-0.5, 0.5)."
    )
    act: Literal["sigmoid", "relu", "tanh"] = param("sigmoid", "activation")

    def __call__(self, shape: tuple[int, ...], outputs: int) -> nn.Module:
        """Build the module."""
        module = _convolutions("lenet", shape, outputs, 5, (12, 12, 12), (2, 2, 1), self.act)
        for p in module.parameters():
            nn.init.uniform_(p, -0.5, 0.5)
        return module


@dataclass(frozen=True)
class _ConvNet:
    """Three convolutions."""

    note: ClassVar[str] = (
        "Three 3x3 convolutions (width, 2 width, 2 width channels; strides 1, 2, 2) "
        "and one linear layer; no normalisation."
    )
    width: int = param(16, "channels of the first convolution")
    act: Literal["relu", "sigmoid", "tanh"] = param("relu", "activation")

    def __call__(self, shape: tuple[int, ...], outputs: int) -> nn.Module:
        """Build the module."""
        if self.width < 1:
            raise LeakauditError(f"convnet: expected width >= 1, got {self.width}")
        channels = (self.width, 2 * self.width, 2 * self.width)
        return _convolutions("convnet", shape, outputs, 3, channels, (1, 2, 2), self.act)


@dataclass(frozen=True)
class _Cnn:
    """Convolutions of one kernel size and stride."""

    note: ClassVar[str] = (
        "Convolutions with ReLU, then fully connected layers; "
        "the default is one 3x3 convolution of 32 channels, stride 2, and 256 neurons."
    )
    channels: Sequence[int] = param((32,), "channels of the convolutions, e.g. 32 or 32,128")
    kernel: int = param(3, "side of the kernels, an odd number; the padding is half of it")
    stride: int = param(2, "stride of the convolutions")
    hidden: Sequence[int] = param((256,), "widths of the fully connected layers before the outputs")
    act: Literal["relu", "sigmoid", "tanh"] = param("relu", "activation of the connected layers")

    def __post_init__(self) -> None:
        widths = [*self.channels, *self.hidden]
        sound = all(1 <= width <= WIDEST for width in widths) and self.channels and self.hidden
        if not sound or len(widths) > DEEPEST or self.kernel % 2 == 0 or self.stride < 1:
            raise LeakauditError(
                "cnn: expected channels=32 or channels=32,128, hidden=256, an odd kernel "
                f"and stride >= 1, got channels={written(self.channels)!r}, "
                f"hidden={written(self.hidden)!r}, kernel={self.kernel}, stride={self.stride}"
            )

    def __call__(self, shape: tuple[int, ...], outputs: int) -> nn.Module:
        """Build the module."""
        strides = (self.stride,) * len(self.channels)
        module = _convolutions(
            "cnn", shape, self.hidden[0], self.kernel, self.channels, strides, "relu"
        )
        layers = OrderedDict(module.named_children())
        for i, (before, after) in enumerate(pairwise([*self.hidden, outputs]), 1):
            layers[f"fc_act{i}"] = ACTIVATIONS[self.act]()
            layers[f"fc{i + 1}"] = nn.Linear(before, after)
        return nn.Sequential(layers)


@dataclass(frozen=True)
class _ResNet10:
    """torchvision's ResNet with one basic block per stage."""

    note: ClassVar[str] = (
        "torchvision's ResNet with one basic block per stage; "
        "``bn=train`` (batch statistics, default) or ``bn=eval``."
    )

    def __call__(self, shape: tuple[int, ...], outputs: int) -> nn.Module:
        """Build the module."""
        return _resnet([1, 1, 1, 1], shape, outputs)


@dataclass(frozen=True)
class _ResNet18:
    """torchvision's ResNet-18."""

    note: ClassVar[str] = (
        "torchvision's ResNet-18, untrained; "
        "``bn=train`` (batch statistics, default) or ``bn=eval``."
    )

    def __call__(self, shape: tuple[int, ...], outputs: int) -> nn.Module:
        """Build the module."""
        return _resnet([2, 2, 2, 2], shape, outputs)


@dataclass(frozen=True)
class Gpt:
    """Decoder-only transformer as GPT-2 (Radford et al. 2019), for loss ``next_token``.

    The context is the length of the data's records, the vocabulary that of the data.
    """

    note: ClassVar[str] = (
        "Decoder-only transformer as GPT-2: learned positions, pre-norm blocks, causal attention, "
        "GELU; for token sequences."
    )
    depth: int = param(2, "number of blocks")
    width: int = param(128, "length of the vector of one position")
    heads: int = param(4, "number of attention heads")
    tied: bool = param(False, "whether the output layer uses the weights of the token embedding")

    def __post_init__(self) -> None:
        _check_sizes("gpt", self)

    def __call__(self, shape: tuple[int, ...], outputs: int) -> nn.Module:
        """Build the module."""
        if len(shape) != 1:
            raise LeakauditError(
                f"gpt needs sequences of tokens, got inputs of shape {shape}; use --data text"
            )
        return Decoder(self, shape[0], outputs)


class Decoder(nn.Module):
    """The module of `Gpt`: (b, length) tokens to (b, length, vocabulary) logits."""

    def __init__(self, sizes: Gpt, length: int, vocabulary: int, approximate: str = "none") -> None:
        """Draw the initial weights as GPT-2 does."""
        super().__init__()
        self.sizes = sizes
        self.approximate = approximate
        self.tokens = nn.Embedding(vocabulary, sizes.width)
        self.places = nn.Embedding(length, sizes.width)
        blocks = [
            EncoderBlock(sizes.width, sizes.heads, approximate=approximate)
            for _ in range(sizes.depth)
        ]
        self.blocks = nn.ModuleList(blocks)
        self.norm = nn.LayerNorm(sizes.width)
        self.head = nn.Linear(sizes.width, vocabulary, bias=False)
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=SPREAD)
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)
        # GPT-2 scales what is added to the residual stream, which every block does twice.
        for block in blocks:
            for layer in (block.join, block.down):
                nn.init.normal_(layer.weight, std=SPREAD / math.sqrt(2 * sizes.depth))
        if sizes.tied:
            self.head.weight = self.tokens.weight

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of the next token at every position."""
        here = torch.arange(x.shape[1], device=x.device)
        stream = self.tokens(x) + self.places(here)
        for block in self.blocks:
            stream = block(stream)
        logits: Tensor = self.head(self.norm(stream))
        return logits


@dataclass(frozen=True)
class _Vit:
    """Vision transformer (Dosovitskiy et al. 2021), as ViT-Tiny but less deep.

    The outputs are computed from a class token in front of the patches.
    """

    note: ClassVar[str] = (
        "Vision transformer as ViT-Tiny, less deep: patches, class token, learned positions, "
        "pre-norm blocks, attention, GELU."
    )
    patch: int = param(16, "side of a patch, in pixels")
    depth: int = param(2, "number of blocks")
    width: int = param(192, "length of the vector of one token")
    heads: int = param(3, "number of attention heads")

    def __post_init__(self) -> None:
        _check_sizes("vit", self)
        if self.patch < 1:
            raise LeakauditError(f"vit: expected patch >= 1, got patch={self.patch}")

    def __call__(self, shape: tuple[int, ...], outputs: int) -> nn.Module:
        """Build the module."""
        _needs_image("vit", shape)
        if shape[1] % self.patch or shape[2] % self.patch:
            raise LeakauditError(
                f"vit: patches of {self.patch} x {self.patch} pixels do not tile an image of "
                f"{shape[1]} x {shape[2]}; set patch to a divisor of both"
            )
        return VisionTransformer(self, shape, outputs)


class VisionTransformer(nn.Module):
    """The module of model ``vit``: (b, channels, height, width) images to (b, outputs)."""

    def __init__(self, sizes: _Vit, shape: tuple[int, ...], outputs: int) -> None:
        super().__init__()
        self.size = shape[1:]
        patches = shape[1] // sizes.patch * (shape[2] // sizes.patch)
        self.embed = nn.Conv2d(shape[0], sizes.width, sizes.patch, sizes.patch)
        self.first = nn.Parameter(SPREAD * torch.randn(sizes.width))
        self.places = nn.Parameter(SPREAD * torch.randn(1 + patches, sizes.width))
        blocks = [EncoderBlock(sizes.width, sizes.heads, causal=False) for _ in range(sizes.depth)]
        self.blocks = nn.ModuleList(blocks)
        self.norm = nn.LayerNorm(sizes.width)
        self.head = nn.Linear(sizes.width, outputs)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=SPREAD)
                nn.init.zeros_(module.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs, computed from the class token."""
        patches = self.embed(x).flatten(2).transpose(1, 2)
        first = self.first.expand(len(x), 1, -1)
        stream = torch.cat([first, patches], dim=1) + self.places
        for block in self.blocks:
            stream = block(stream)
        outputs: Tensor = self.head(self.norm(stream[:, 0]))
        return outputs


class EncoderBlock(nn.Module):
    """Attention and two fully connected layers, each added to the stream (b, length, h)."""

    def __init__(
        self, width: int, heads: int, causal: bool = True, approximate: str = "none"
    ) -> None:
        super().__init__()
        self.heads = heads
        self.causal = causal
        self.approximate = approximate
        self.norm1 = nn.LayerNorm(width)
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.join = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def parts(self, stream: Tensor) -> list[Tensor]:
        """Return queries, keys and values of a stream, each (b, heads, length, h / heads)."""
        inputs = self.norm1(stream)
        found = []
        for layer in (self.query, self.key, self.value):
            found.append(layer(inputs).unflatten(-1, (self.heads, -1)).transpose(1, 2))
        return found

    def forward(self, stream: Tensor) -> Tensor:
        """Return the stream after this block."""
        query, key, value = self.parts(stream)
        scores = query @ key.transpose(2, 3) / math.sqrt(query.shape[3])
        if self.causal:
            later = torch.ones_like(scores[0, 0], dtype=torch.bool).triu(1)
            scores = scores.masked_fill(later, -math.inf)
        seen = (scores.softmax(3) @ value).transpose(1, 2).flatten(2)
        stream = stream + self.join(seen)
        hidden = nn.functional.gelu(self.up(self.norm2(stream)), approximate=self.approximate)
        result: Tensor = stream + self.down(hidden)
        return result


MODELS: dict[str, type[_Model]] = {
    "linear": _Linear,
    "logistic": _Logistic,
    "mlp": _Mlp,
    "lenet": _LeNet,
    "convnet": _ConvNet,
    "cnn": _Cnn,
    "resnet10": _ResNet10,
    "resnet18": _ResNet18,
    "gpt": Gpt,
    "vit": _Vit,
}
READ_TOKENS = frozenset({"gpt"})  # models whose inputs are tokens
CONVEX = frozenset({"linear", "logistic"})  # models whose usual loss is convex in the parameters


def _check_sizes(name: str, sizes: Gpt | _Vit) -> None:
    sound = 1 <= sizes.depth <= DEEPEST and 1 <= sizes.width <= WIDEST
    if not sound or sizes.heads < 1 or sizes.width % sizes.heads:
        raise LeakauditError(
            f"{name}: expected depth from 1 to {DEEPEST} and a width that is a multiple of heads, "
            f"got depth={sizes.depth}, width={sizes.width}, heads={sizes.heads}"
        )


def _needs_image(name: str, shape: tuple[int, ...]) -> None:
    if len(shape) != 3:
        raise LeakauditError(
            f"{name} needs images (channels, height, width), got inputs of shape {shape}; "
            "use mlp or logistic"
        )


def _resnet(blocks: list[int], shape: tuple[int, ...], outputs: int) -> nn.Module:
    """Build a ResNet of torchvision.

    For inputs with other than three channels, the first convolution is replaced and initialised in
    the same way.
    """
    _needs_image("resnet", shape)
    resnet = _torchvision.torchvision().models.resnet
    module: nn.Module = resnet.ResNet(resnet.BasicBlock, blocks, num_classes=outputs)
    if shape[0] != 3:
        module.conv1 = nn.Conv2d(shape[0], 64, kernel_size=7, stride=2, padding=3, bias=False)
        nn.init.kaiming_normal_(module.conv1.weight, mode="fan_out", nonlinearity="relu")
    return module


def _convolutions(
    name: str,
    shape: tuple[int, ...],
    outputs: int,
    kernel: int,
    channels: Sequence[int],
    strides: Sequence[int],
    act: str,
) -> nn.Sequential:
    """Build convolutions with padding kernel // 2, each with an activation, then a linear layer."""
    _needs_image(name, shape)
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    before, height, width = shape
    for i, (after, stride) in enumerate(zip(channels, strides, strict=True), 1):
        layers[f"conv{i}"] = nn.Conv2d(before, after, kernel, stride, kernel // 2)
        layers[f"act{i}"] = ACTIVATIONS[act]()
        before = after
        height = math.ceil(height / stride)
        width = math.ceil(width / stride)
    layers["flatten"] = nn.Flatten()
    layers["fc"] = nn.Linear(before * height * width, outputs)
    return nn.Sequential(layers)
