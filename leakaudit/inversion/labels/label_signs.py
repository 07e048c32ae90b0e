"""Labels: read from a last layer's gradient, given by the user, or as variables of a search.

The gradient of a last linear layer under cross-entropy is q h^T for its weights and q for its bias,
with q = p - e_y. One sample makes exactly one entry of q negative, that of its label. With two or
more samples the signs tell which classes are there, but neither how many of each nor which classes
are missing for certain; `read` then counts (`label_counts`).
"""

from __future__ import annotations

import itertools
import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from leakaudit.errors import AttackError
from leakaudit.inversion.labels import label_counts

if TYPE_CHECKING:
    from leakaudit.leak import GradientLeak
    from leakaudit.tasks.task import Task

# Plain rows that `read` looks at. A choice: counts of further rows hardly differ.
ROWS = 8

# Counts this near to whole numbers are taken to be right: half of what would round them wrongly.
NEAR = 0.25

# Distance from whole numbers if a method gives none: the largest there is.
UNKNOWN = 0.5

# A count that lets a class win a remainder only if no other class wants it.
TINY = 1e-9

# How small a singular value must be beside the one before it for the rank to count: samples that
# differ make 1e-1 and more, rounding in float32 makes 1e-6.
GAP = 1e-3

# Another entry may be negative by this share of the lowest (noise), or else the signs are not those
# of one sample.
CLEAR = 0.05


@dataclass(frozen=True)
class Read:
    """Labels that were read.

    Attributes:
        y: (B,) labels in ascending order.
        off: How far the counts behind them lie from whole numbers at most.
        how: How they were read, for a note.
    """

    y: Tensor
    off: float
    how: str


def from_bias(bias: Tensor) -> Tensor | None:
    """Read the label of one sample from the gradient of the last bias; valid for any activation.

    Args:
        bias: (C,). With C = 1, the loss ``binary``, label 1 has a negative entry.

    Returns:
        (1,), or None if more than one entry is negative.
    """
    if len(bias) == 1:
        return (bias < 0).long() if bool(bias != 0) else None
    return bias.argmin()[None] if _one_negative(bias) else None


def idlg(weight: Tensor) -> Tensor | None:
    """Read the label of one sample by the row with the lowest sum (Zhao et al. 2020, eq. 5).

    Row c is q_c h^T, so the rule needs features h >= 0 (ReLU, sigmoid).

    Args:
        weight: (C, H) gradient of the last weights.

    Returns:
        (1,), or None if more than one row has a negative sum.
    """
    sums = weight.sum(1)
    return sums.argmin()[None] if len(sums) > 1 and _one_negative(sums) else None


def from_gradient(leak: GradientLeak, task: Task) -> Tensor | None:
    """Read the label of one sample from the largest plain row of a leak.

    Args:
        leak: What was heard.
        task: What is trained.

    Returns:
        (1,), by the bias if there is one, else by iDLG's rule; None if the last layer is not in the
        leak, or if the signs are not those of one sample.
    """
    rows = plain_rows(leak)
    if task.last_linear is None or not rows or task.spec.loss == "squared":
        return None
    largest = max(rows, key=lambda r: float(leak.value[r].norm()))
    value = label_counts.plain(leak, task, largest)
    weight, bias = (label_counts.part(leak, task, value, name) for name in task.last_linear)
    if bias is not None:
        return from_bias(bias)
    return None if weight is None else idlg(weight)


def plain_rows(leak: GradientLeak) -> list[int]:
    """Find the rows that hold one gradient that is not zero.

    Args:
        leak: What was heard.
    """
    single = leak.combination.count_nonzero(dim=1) == 1
    found: list[int] = (single.cpu() & (leak.value != 0).any(1).cpu()).nonzero().flatten().tolist()
    return found


def read(leak: GradientLeak, task: Task, batch: int) -> Read | None:
    """Read the labels of a batch from the last layer's gradient.

    One sample: by signs. More: by `label_counts.pooled` if model and bias are known, from the row
    whose counts lie nearest to whole numbers; if none lies near them and the rows have rank
    `batch`, by the classes of `label_counts.rlg`. Else by `label_counts.llg`.

    Args:
        leak: What was heard.
        task: What is trained.
        batch: Samples.

    Returns:
        The labels, or None if the last layer is not in a plain row.
    """
    if batch == 1:
        y = from_gradient(leak, task)
        if y is not None:
            return Read(y.cpu(), 0.0, "the signs of one sample")
    heads = _heads(leak, task)
    if not heads:
        return None
    if not heads[0].whole:
        n = label_counts.llg(heads[0], batch)
        return Read(spread(n), UNKNOWN, "LLG, which does not say how sure it is")
    found = [rounded(label_counts.pooled(one, batch), batch, "pooled counts") for one in heads]
    nearest = min(range(len(heads)), key=lambda k: found[k].off)
    best = found[nearest]
    if best.off < NEAR:
        return best
    return _by_classes(heads[nearest], batch) or best


def _heads(leak: GradientLeak, task: Task) -> list[label_counts.Head]:
    """The last layer in the plain rows that have it."""
    found: list[label_counts.Head] = []
    for row in plain_rows(leak)[:ROWS]:
        head = label_counts.of(leak, task, row)
        if head is not None:
            found.append(head)
    return found


def readable(leak: GradientLeak, task: Task) -> bool:
    """Whether `read` finds labels.

    Args:
        leak: What was heard.
        task: What is trained.
    """
    if from_gradient(leak, task) is not None:
        return True
    return any(label_counts.of(leak, task, row) is not None for row in plain_rows(leak)[:ROWS])


def spread(n: Tensor) -> Tensor:
    """Turn counts into labels.

    Args:
        n: (C,) counts.

    Returns:
        (B,) in ascending order.
    """
    return torch.arange(len(n)).repeat_interleave(n)


def rounded(real: Tensor, batch: int, how: str) -> Read:
    """Turn real counts into labels.

    Args:
        real: (C,) counts.
        batch: Samples.
        how: How they were read, for a note.
    """
    n = label_counts.whole(real, batch)
    return Read(spread(n), float((real - n).abs().nan_to_num(1.0).max()), how)


def given(text: str, task: Task, batch: int) -> Tensor | None:
    """Take labels that the user knows.

    Args:
        text: Such as ``3`` or ``3,1,4``, or empty.
        task: What is trained.
        batch: Samples.

    Returns:
        (batch,), or None for the empty text.

    Raises:
        AttackError: They are not `batch` classes of the task.
    """
    if not text:
        return None
    known: list[int] = []
    if re.fullmatch(r"\d{1,9}(,\d{1,9})*", text.replace(" ", "")):
        known = [int(t) for t in text.split(",")]
    if len(known) != batch or max(known) >= task.spec.classes or task.spec.loss == "squared":
        raise AttackError(
            f"labels: expected {batch} numbers from 0 to {task.spec.classes - 1} "
            f"joined by commas, got {text!r}"
        )
    return torch.tensor(known, device=task.device)


def given_or_read(text: str, leak: GradientLeak, task: Task, batch: int) -> tuple[Tensor, str]:
    """Take known labels, or else read them.

    Args:
        text: Known labels, or empty.
        leak: What was heard.
        task: What is trained.
        batch: Samples.

    Returns:
        The labels (batch,), and for a note how they were read, empty if they were known.

    Raises:
        AttackError: They are neither known nor in the leak.
    """
    known = given(text, task, batch)
    if known is not None:
        return known, ""
    found = read(leak, task, batch)
    if found is None:
        raise AttackError("labels: the last layer's gradient is not in the leak; set labels=…")
    y = found.y.to(task.device)
    sure = found.off < NEAR
    if batch == 1 and sure:
        return y, ""
    doubt = "" if sure else ", which may be wrong"
    return y, f"labels by {found.how}{doubt}; "


def candidates(task: Task, batch: int) -> list[Tensor]:
    """List all labels that differ by more than their order, which a mean gradient does not show.

    Args:
        task: What is trained.
        batch: Samples.

    Returns:
        Each (batch,).
    """
    every = itertools.combinations_with_replacement(range(task.spec.classes), batch)
    return [torch.tensor(labels, device=task.device) for labels in every]


def count(task: Task, batch: int) -> int:
    """Number of `candidates`.

    Args:
        task: What is trained.
        batch: Samples.
    """
    return math.comb(task.spec.classes + batch - 1, batch)


def raw(task: Task, batch: int, generator: Generator, dtype: torch.dtype) -> Tensor:
    """Draw label variables from N(0, 1), for a search that moves labels too.

    Args:
        task: What is trained.
        batch: Samples.
        generator: Draws them.
        dtype: Number format.

    Returns:
        (batch, classes), or (batch,) for loss ``binary``.
    """
    shape = (batch,) if task.spec.loss == "binary" else (batch, task.spec.classes)
    drawn = torch.randn(shape, generator=generator, dtype=dtype, device=generator.device)
    return drawn.to(task.device)


def soft(task: Task, variables: Tensor) -> Tensor:
    """Map label variables to what the loss takes.

    Args:
        task: What is trained.
        variables: (..., classes), or (...) for loss ``binary``.

    Returns:
        Their softmax or sigmoid, or themselves for loss ``squared``.
    """
    if task.spec.loss == "cross_entropy":
        return F.softmax(variables, dim=-1)
    return variables.sigmoid() if task.spec.loss == "binary" else variables


def hard(task: Task, variables: Tensor) -> Tensor:
    """Map label variables to the labels that they mean.

    Args:
        task: What is trained.
        variables: (..., classes), or (...) for loss ``binary``.

    Returns:
        The largest class, 0 or 1, or themselves for loss ``squared``.
    """
    if task.spec.loss == "cross_entropy":
        return variables.argmax(-1)
    return (variables > 0).long() if task.spec.loss == "binary" else variables


def _one_negative(values: Tensor) -> bool:
    """Whether exactly one entry is clearly negative."""
    low, second = values.topk(2, largest=False).values
    return bool(low < 0 and second >= CLEAR * low)


def _by_classes(head: label_counts.Head, batch: int) -> Read | None:
    """Give every class of RLG one sample and share out the rest by pooled counts.

    Returns:
        The labels, or None if the rank does not show all samples.
    """
    size = torch.linalg.svdvals(head.weight)
    if 2 * batch > head.classes or batch >= len(size) or size[batch] > GAP * size[batch - 1]:
        return None
    classes = label_counts.rlg(head)
    rest = batch - int(classes.sum())
    if rest < 0 or rest == batch:
        return None
    if not rest:
        return Read(spread(classes.long()), 0.0, "the classes of RLG")
    more = torch.where(classes, (label_counts.pooled(head, batch) - 1).clamp_min(TINY), 0.0)
    n = classes.long() + label_counts.whole(more, rest)
    return Read(spread(n), UNKNOWN, "the classes of RLG, the rest by pooled counts")
