"""Whole token sequences of a batch from one gradient of a decoder-only transformer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Generator, Tensor

from leakaudit.core.leak import GradientLeak
from leakaudit.core.progress import step
from leakaudit.core.reconstruction import Certificate, Reconstruction
from leakaudit.core.registry import attack
from leakaudit.inversion.attack import Attack, failed
from leakaudit.inversion.exact import decoders, prefixes
from leakaudit.inversion.exact.decoders import HEAD, Reading
from leakaudit.inversion.search import objectives
from leakaudit.tasks.models import Decoder

if TYPE_CHECKING:
    from leakaudit.tasks.task import Task

ATTENTION = ("blocks.0.query.weight", "blocks.0.key.weight", "blocks.0.value.weight")
BEHIND = "blocks.0.up.weight"

# Largest residual of the recomputed gradient, in units of what the leak's own errors cause. They
# are measured as a norm over many coordinates, which is close to 1; the margin is for rounding.
FITS = 3.0


# EXACT states that no other batch of b sequences of length L has this gradient. Let h be the width,
# K the number of models in the leak's equation, and r the rank of the space of the layer behind the
# first attention. The inputs of this layer, one for every different prefix and model, are called
# rows. The argument needs these conditions, all of which are checked:
#
# 1. The tree is complete, no guess lay between inside and outside, and r = K times its number of
#    nodes. Its rows are thus a basis of the space.
# 2. r <= h - 2 (`prefixes.space`), and K b L is at most the number of neurons of that layer.
#    (Normalised vectors have h - 1 free coordinates.)
# 3. The counts follow from the output layer, and from the last normalisation if the output layer is
#    tied to the embedding, and agree with the tree.
# 4. The recomputed gradient is the leaked one up to rounding.
#
# Let another batch have the same gradient. If the weights are in general position, the slopes of
# its rows are independent, because there are no more rows than neurons, and so are the rows
# themselves, up to h - 1 of them. Its gradient then has the rank of its number of rows, or h - 1 if
# that is less. The rank is r, so it has r rows, and they span the same space as those of the tree.
# A row of the tree that is none of them would depend on r <= h - 2 rows, which general position
# excludes. It thus has the nodes of the tree and no others, and the output layer's gradient
# determines its counts: it is the same batch. This holds for a tied layer as well: batches with the
# same nodes have the same tokens, whose rows are not used.
#
# Weights drawn at random are in general position with probability 1; trained weights are assumed to
# be. If K b L is at most h - 2, independent slopes are not needed: rows outside the space would
# have slopes that add up to zero, but the last row of a sequence has the slopes of one loss only, a
# softmax minus a label, which is not zero.


@attack("sequences")
@dataclass(frozen=True)
class Sequences(Attack):
    """All sequences of a batch, token by token, from the spaces of two layers' gradients.

    EXACT states that no other batch of b sequences of length L has this gradient (docs/text.md).
    """

    exact: ClassVar[bool] = True
    rank: ClassVar[int] = 2
    reads: ClassVar[str] = (
        "a gradient of GPT-2 (the model gpt, or that of a program) at a known model, or a "
        "difference of two, with fewer tokens than the model is wide"
    )
    paper: ClassVar[str] = (
        "Petrov et al. 2024 (span tests); prefixes behind the first attention, counts by the "
        "output layer and the certificate: developed for leakaudit"
    )
    cost: ClassVar[str] = (
        "one row of attention per guess; 10 s for 16 sequences of 32 tokens at width 768"
    )
    tokens: ClassVar[bool] = True

    def refuses(self, leak: GradientLeak, task: Task) -> str | None:
        """Require a decoder, a known model, and the layers that are used."""
        read = _usable(leak, task)
        return read if isinstance(read, str) else None

    def __call__(self, leak: GradientLeak, task: Task, generator: Generator) -> Reconstruction:
        """Grow the tree of prefixes, count its sequences and recompute the gradient."""
        read = _usable(leak, task)
        assert not isinstance(read, str)  # `refuses` returns it
        with torch.no_grad():
            return _recovered(_clearest(leak, task), task, read, generator)


def _usable(leak: GradientLeak, task: Task) -> Reading | str:
    """Return how to read the model; or why the leak cannot be used, in words."""
    if not task.tokens:
        return "it recovers tokens, but the inputs of the model are numbers"
    # The batch size is found if it is not declared.
    if why := objectives.incomplete(replace(leak, batch=leak.batch or 1), task):
        return why
    read = decoders.reading(task)
    if isinstance(read, str):
        return read
    named = read.renamed(task.layout.split(torch.zeros(task.layout.size)))
    needed = (*ATTENTION, BEHIND, decoders.TOKENS if read.sizes.tied else HEAD)
    for name in ATTENTION if read.adapted else needed:
        if name not in named:
            return f"it requires the gradient of {name}, which is frozen"
    return read


def _recovered(
    leak: GradientLeak, task: Task, read: Reading, generator: Generator
) -> Reconstruction:
    assert leak.theta is not None
    length = task.spec.shape[0]
    models = [decoders.at(task, read, theta) for theta in leak.theta]
    parts = read.renamed(task.layout.split(leak.value[0].double()))
    width = read.sizes.width
    most = max(1, (width - 2) // (len(models) * length))
    batch = leak.batch or most
    rows = len(models) * batch * length
    attention = torch.cat([parts[name] for name in ATTENTION])
    if not attention.any():
        why = (
            "the gradient of the first attention is zero, as that of an adapter's factor A before "
            "the first step, when B is zero"
        )
        return failed("sequences", leak, task, why)
    first = prefixes.space(leak, attention, rows, generator)
    if BEHIND not in parts:
        return _tokens(leak, task, models, first, batch)
    behind = prefixes.space(leak, parts[BEHIND], rows, generator)
    if behind is None:
        return failed(
            "sequences",
            leak,
            task,
            f"the gradient of {BEHIND} spans all {min(width, len(parts[BEHIND]))} dimensions: its "
            f"{rows} inputs, one for each token{_each(models)}, are too many for this "
            f"{'rank' if read.adapted else 'width'}, or noise hides them",
        )
    possible = prefixes.candidates(models, first)
    sequences, nearest, stopped = prefixes.grow(models, behind, possible, batch)
    if stopped:
        why = f"{stopped}; the space has {behind.rank} dimensions"
        return failed("sequences", leak, task, why)
    numbers, _ = prefixes.nodes(sequences)
    nodes = int(numbers.max()) + 1
    if read.adapted:
        note = (
            f"{len(sequences)} different sequences fit the adapters' gradients; not certified: the "
            "output layer is frozen or has an adapter, so that nothing counts them"
        )
        return replace(_uncounted(leak, note), x=sequences)
    sizes = range(len(sequences), most + 1)
    if leak.batch is not None:
        sizes = range(batch, batch + 1)
    found = _counted(models, leak.combination[0].double(), parts, sequences, sizes)
    if isinstance(found, str):
        note = (
            f"{len(sequences)} different sequences fit, but how often each occurs is not known: "
            f"{found}"
        )
        return replace(_uncounted(leak, note), x=sequences)
    x, y = found
    residual, noise = _misfit(leak, task, x, y)
    doubts = _doubts(nearest, nodes * len(models), behind.rank, rows, len(parts[BEHIND]))
    if strange := decoders.reads_every_token(task, read):
        doubts.append(strange)
    if leak.batch is None:
        doubts.append(
            f"the recording does not state the number of sequences, and {len(x)} is the "
            "smallest that fits; set samples"
        )
    if residual > FITS * noise:
        doubts.append(
            f"the recomputed gradient differs by {residual:.1g}, and rounding explains {noise:.1g}"
        )
    certificate = Certificate.APPROXIMATE if doubts else Certificate.EXACT
    note = f"{len(sequences)} different sequences with {nodes} different prefixes"
    if doubts:
        note = f"{note}; not certified: {'; '.join(doubts)}"
    return Reconstruction(
        node=leak.node,
        attack="sequences",
        x=x,
        y=y,
        certificate=certificate,
        residual=residual,
        note=note,
        certified=0 if doubts else len(x),
        rounds=() if doubts else (leak.when,) * len(x),
    )


def _uncounted(leak: GradientLeak, note: str) -> Reconstruction:
    none = torch.empty(0, dtype=torch.int64)
    return Reconstruction(
        leak.node, "sequences", none, None, Certificate.APPROXIMATE, 1.0, note=note
    )


def _tokens(
    leak: GradientLeak,
    task: Task,
    models: Sequence[Decoder],
    space: prefixes.Space | None,
    batch: int,
) -> Reconstruction:
    """Read the tokens that may stand at each position, from the first attention alone."""
    if space is None:
        why = (
            "the gradient of the first attention shows no end of its inputs, one for each token "
            "and position: an adapter shows fewer than its rank"
        )
        return failed("sequences", leak, task, why)
    possible = prefixes.candidates(models, space)
    most = max(map(len, possible))
    if not min(map(len, possible)):
        why = "no token fits at one of the positions: some inputs of the first attention are hidden"
        return failed("sequences", leak, task, why)
    if most > prefixes.BEAM * batch:
        return failed("sequences", leak, task, f"{most} tokens fit at one position, too many")
    tokens = torch.cat(possible).unique()
    note = (
        f"{len(tokens)} different tokens, by the space of the first attention, which has "
        f"{space.rank} dimensions; up to {most} of them fit at one position"
    )
    found = replace(_uncounted(leak, note), tokens=tokens)
    if most == 1:
        return replace(found, x=torch.cat(possible)[None], tokens=None)
    return replace(found, x=torch.empty(0, *task.spec.shape, dtype=torch.int64))


def _counted(
    models: Sequence[Decoder],
    weights: Tensor,
    parts: Mapping[str, Tensor],
    sequences: Tensor,
    sizes: Sequence[int],
) -> tuple[Tensor, Tensor] | str:
    """Count the sequences of a tree with the first batch size that gives whole numbers."""
    found: tuple[Tensor, Tensor] | str = "there are more than the width allows"
    for batch in sizes:
        found = prefixes.counts(models, weights, parts, sequences, batch)
        if not isinstance(found, str):
            break
    return found


def _doubts(nearest: float, nodes: int, rank: int, rows: int, neurons: int) -> list[str]:
    """Return which conditions of the certificate do not hold."""
    doubts = []
    if nodes != rank:
        doubts.append(f"the tree has {nodes} rows, but its space has {rank} dimensions")
    if nearest < prefixes.OUTSIDE:
        doubts.append(f"a rejected prefix is only {nearest:.0f} times the noise away")
    if rows > neurons:
        doubts.append(f"{rows} tokens could occur, and their layer has only {neurons} neurons")
    return doubts


def _clearest(leak: GradientLeak, task: Task) -> GradientLeak:
    """Return the clearest equation in double precision, without the gradient of a penalty."""
    one = objectives.clearest(leak, torch.ones(len(leak.value), dtype=torch.bool))
    assert one.theta is not None
    combination = one.combination.double()
    theta = one.theta.double()
    value = one.value
    if task.l2:
        value = (value.double() - task.l2 * combination @ theta).to(value)
    return replace(one, combination=combination, value=value, theta=theta)


def _misfit(leak: GradientLeak, task: Task, x: Tensor, y: Tensor) -> tuple[float, float]:
    """Recompute the gradient, and return its relative residual and that of its noise."""
    assert leak.theta is not None
    again = torch.zeros(task.layout.size, dtype=torch.float64)
    size = 0.0
    for k, (weight, theta) in enumerate(zip(leak.combination[0], leak.theta, strict=True)):
        step("gradients", k, len(leak.theta))
        gradient = task.gradient(theta, x.double(), y) - task.l2 * theta
        again += weight * gradient
        size += float((weight * gradient).norm())
    value = leak.value[0].double()
    total = float(value.norm())
    precision = max(leak.wire, torch.finfo(leak.value.dtype).eps)
    # A sum over the tokens of the batch of rows that are themselves sums over the width.
    terms = x.numel() * task.layout.shapes[0][1]
    rounded = precision * terms**0.5 * size
    noise = float(leak.std[0]) * len(value) ** 0.5
    return float((again - value).norm()) / total, (rounded**2 + noise**2) ** 0.5 / total


def _each(models: Sequence[Decoder]) -> str:
    return f" at each of {len(models)} models" if len(models) > 1 else ""
