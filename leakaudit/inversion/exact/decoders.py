"""Decoder-only transformers of any library as the model `gpt`, whose layers the attacks know."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Generator, Tensor

from leakaudit.tasks import low_rank
from leakaudit.tasks.low_rank import Adapter
from leakaudit.tasks.models import Decoder, Gpt
from leakaudit.tasks.task import Task

# Models that follow GPT-2 call their layers by the names of its authors: ``wte``, ``wpe``,
# ``h.0.attn.c_attn`` and so on. Names prove nothing, and the number of heads and the kind of GELU
# are not among the parameters. Therefore random weights are copied into a `Decoder`, and it counts
# only if it computes the same logits as the model itself.
#
# The copy is a permutation of the parameters, so that it also applies to their gradients.

TOKENS = "tokens.weight"
PLACES = "places.weight"
HEAD = "head.weight"

# GPT-2's names of the layers of a block, and those of `leakaudit.tasks.models.EncoderBlock`.
BLOCK = {
    "ln_1": "norm1",
    "attn.c_proj": "join",
    "ln_2": "norm2",
    "mlp.c_fc": "up",
    "mlp.c_proj": "down",
}
# The same outside of blocks.
AROUND = {"wte": "tokens", "wpe": "places", "ln_f": "norm", "lm_head": "head"}
ATTENTION = ("query", "key", "value")

# Largest relative difference of logits, in float64, at which two models are the same one.
SAME = 1e-9

# Sequences on which the logits are compared.
COMPARED = 3

# Spread of the weights at which they are compared, around the initial ones. Those may be zero, and
# would then hide what the model does with them.
MOVED = 0.05

# Sequences whose logits are computed at a time; a choice that limits memory.
TOGETHER = 64

# Number of multiplications, tokens times parameters, up to which the logits of every token of the
# vocabulary are compared: about a minute.
AFFORDABLE = 1e12

Named = Mapping[str, Tensor]


@dataclass(frozen=True)
class Reading:
    """A model as a decoder."""

    sizes: Gpt
    length: int  # number of positions
    vocabulary: int  # number of tokens
    approximate: str  # kind of GELU, as in `torch.nn.functional.gelu`
    # returns parameters, or their gradients, by the names of the decoder, without those that are
    # not given
    renamed: Callable[[Named], dict[str, Tensor]]
    adapted: bool = False  # whether frozen layers have low-rank adapters

    def decoder(self, parameters: Named) -> Decoder:
        """Return the decoder with given parameters, in float64."""
        with torch.device("meta"):  # without memory, and without drawing weights
            made = Decoder(self.sizes, self.length, self.vocabulary, self.approximate)
        values = self.renamed(parameters)
        values.setdefault(HEAD, values[TOKENS])
        for name, empty in made.state_dict().items():
            value = values.get(name)
            if value is None:
                value = torch.zeros(empty.shape, device=values[HEAD].device)
            values[name] = value.double()
        made.load_state_dict(values, assign=True)
        return made.requires_grad_(False)


def reading(task: Task) -> Reading | str:
    """Return how to read a task's model as a decoder; or why it is none, in words."""
    length = task.spec.shape[0]
    if isinstance(task.module, Decoder):
        sizes = task.module.sizes
        return Reading(sizes, length, task.tokens, task.module.approximate, dict)
    tables = [v for n, v in _parameters(task).items() if n.endswith("wte.weight")]
    adapters = low_rank.layers(task, tables[0].shape[1]) if len(tables) == 1 else ()

    def merged(parameters: Named) -> dict[str, Tensor]:
        return _merged(parameters, adapters)

    shapes = {name: tuple(value.shape) for name, value in merged(_parameters(task)).items()}
    names = _gpt2(shapes)
    if isinstance(names, str):
        return f"it knows the layers of GPT-2 and of the model gpt, but {names}"
    x = torch.randint(task.tokens, (COMPARED, length), generator=Generator().manual_seed(0))
    theta = _moved(task)
    for one in _candidates(task, names, shapes):
        candidate = replace(one, renamed=_after(merged, one.renamed), adapted=bool(adapters))
        if _same(task, theta, at(task, candidate, theta), x):
            return candidate
    return f"{task.spec.model} has the layers of GPT-2, but does not compute what GPT-2 does"


def _merged(parameters: Named, adapters: Sequence[Adapter]) -> dict[str, Tensor]:
    """Return parameters, or their gradients, by the names of a model without adapters.

    Weights contain their adapters. Of gradients, which frozen weights do not have, those of the
    factors A take their place: their rows are combinations of the same inputs.
    """
    found = dict(parameters)
    for adapter in adapters:
        inner = adapter.weight.rpartition(".")[0]
        outer = inner.rpartition(".")[0]
        down, up = adapter.matrices(parameters)
        weight = adapter.stored(adapter.weight, down)
        if adapter.weight in parameters:
            added = adapter.stored(adapter.weight, adapter.scale * up @ down)
            weight = parameters[adapter.weight] + added
        for name in (adapter.down, adapter.up, adapter.weight):
            found.pop(name, None)
        # The frozen layer is a part of the one that has its place in the model.
        for name in [name for name in found if name.startswith(f"{inner}.")]:
            found[f"{outer}.{name.removeprefix(f'{inner}.')}"] = found.pop(name)
        found[f"{outer}.{adapter.weight.removeprefix(f'{inner}.')}"] = weight
    return found


def _after(
    first: Callable[[Named], dict[str, Tensor]], then: Callable[[Named], dict[str, Tensor]]
) -> Callable[[Named], dict[str, Tensor]]:
    return lambda parameters: then(first(parameters))


def at(task: Task, read: Reading, theta: Tensor) -> Decoder:
    """Return the decoder with the parameters (d,) of a model, in float64."""
    return read.decoder({**_parameters(task), **task.layout.split(theta)})


def reads_every_token(task: Task, read: Reading) -> str:
    """Return why a model may read some tokens in another way than the decoder, or "".

    Three random sequences would not show it.
    """
    if isinstance(task.module, Decoder):
        return ""
    if task.tokens * task.layout.size > AFFORDABLE:
        return "the model is too large to compare every token of its vocabulary"
    length = task.spec.shape[0]
    count = math.ceil(task.tokens / length)
    every = (torch.arange(count * length) % task.tokens).reshape(count, length)
    theta = _moved(task)
    model = at(task, read, theta)
    for x in every.split(TOGETHER):
        if not _same(task, theta, model, x):
            return "the model treats some tokens in another way than GPT-2 does"
    return ""


def _moved(task: Task) -> Tensor:
    """Draw weights (d,) around the initial ones."""
    generator = Generator().manual_seed(0)
    theta = task.init(generator).double()
    return theta + MOVED * torch.randn(len(theta), generator=generator).to(theta)


def _same(task: Task, theta: Tensor, model: Decoder, x: Tensor) -> bool:
    """Return whether the task's model at theta and a decoder give the same logits of x (s, L)."""
    x = x.to(theta.device)
    with torch.no_grad():
        wanted = task.logits(theta, x)
        found = model(x)
    if wanted.shape != found.shape:
        return False
    return float((found - wanted).norm()) <= SAME * float(wanted.norm())


def _parameters(task: Task) -> dict[str, Tensor]:
    """Return all parameters of a model, also frozen ones, at some values."""
    theta = torch.zeros(task.layout.size, dtype=torch.float64, device=task.device)
    names = {name for name, _ in task.module.named_parameters()}
    frozen = {name: value.double() for name, value in task.buffers.items() if name in names}
    return {**frozen, **task.layout.split(theta)}


def _gpt2(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, str] | str:
    """Return the model's names by those of GPT-2; or which layer is missing or left over."""
    prefixes = [name.removesuffix("wte.weight") for name in shapes if name.endswith("wte.weight")]
    if len(prefixes) != 1:
        return "the model has no layer wte"
    names: dict[str, str] = {}
    for name in shapes:
        short = name.removeprefix(prefixes[0])
        names["lm_head.weight" if name.endswith("lm_head.weight") else short] = name
    depth = sum(name.endswith("attn.c_attn.weight") for name in names)
    layers = [f"h.{k}.{layer}" for k in range(depth) for layer in (*BLOCK, "attn.c_attn")]
    layers.append("ln_f")
    needed = {f"{layer}.weight" for layer in layers} | {"wte.weight", "wpe.weight"}
    possible = needed | {f"{layer}.bias" for layer in layers} | {"lm_head.weight"}
    for name in sorted(needed - names.keys()):
        return f"the model has no {name}"
    for name in sorted(names.keys() - possible):
        return f"GPT-2 has no {names[name]}"
    return names


def _candidates(
    task: Task, names: Mapping[str, str], shapes: Mapping[str, tuple[int, ...]]
) -> Iterator[Reading]:
    """Yield decoders with every possible number of heads, and both kinds of GELU."""
    vocabulary, width = shapes[names["wte.weight"]]
    positions = shapes[names["wpe.weight"]][0]
    blocks = {name.split(".")[1] for name in names if name.startswith("h.")}
    length = task.spec.shape[0]
    wide = shapes[names["h.0.attn.c_attn.weight"]]
    if vocabulary != task.tokens or positions < length or sorted(wide) != [width, 3 * width]:
        return
    turned = wide[0] == width  # GPT-2's own layers hold their weights as (inputs, outputs)

    def renamed(parameters: Named) -> dict[str, Tensor]:
        return _renamed(parameters, names, turned, length)

    possible = [heads for heads in range(1, width + 1) if not width % heads]
    # Most models have heads of 64 coordinates.
    for heads in sorted(possible, key=lambda heads: abs(heads - width / 64)):
        sizes = Gpt(len(blocks), width, heads, tied="lm_head.weight" not in names)
        for approximate in ("tanh", "none"):
            yield Reading(sizes, length, vocabulary, approximate, renamed)


def _renamed(
    parameters: Named, names: Mapping[str, str], turned: bool, length: int
) -> dict[str, Tensor]:
    """Return parameters by the names of the decoder, with weights as (outputs, inputs)."""
    found: dict[str, Tensor] = {}
    for name, own in names.items():
        layer, _, kind = name.rpartition(".")
        if own not in parameters:  # frozen ones have no gradient
            continue
        value = parameters[own]
        if layer in AROUND:
            found[f"{AROUND[layer]}.{kind}"] = value
            continue
        _, block, inner = layer.split(".", 2)
        if turned and kind == "weight" and value.dim() == 2:
            value = value.T
        if inner == "attn.c_attn":
            for part, some in zip(ATTENTION, value.tensor_split(3), strict=True):
                found[f"blocks.{block}.{part}.{kind}"] = some
        elif inner in BLOCK:
            found[f"blocks.{block}.{BLOCK[inner]}.{kind}"] = value
    if PLACES in found:
        found[PLACES] = found[PLACES][:length]
    return found
