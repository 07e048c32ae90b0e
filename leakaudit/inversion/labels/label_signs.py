"""Labels: as the variables of a search, and read from the sign of a last layer's gradient.

The gradient of a last linear layer under cross-entropy is q h^T for its weights and q for its bias, q = p - e_y: one sample
makes exactly one entry of q negative, that of its label. With two or more samples the signs tell which classes are there but
neither how many of each nor which classes are missing for certain; `read` then counts (`counts`).
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

ROWS = 8  # plain rows that `read` looks at
NEAR = 0.25  # counts this near to whole numbers are taken for right
UNKNOWN = 0.5  # distance from whole numbers where a method gives none
TINY = 1e-9  # a count that lets a class win a remainder where no other class wants it
GAP = (
    1e-3  # least fall of singular values after as many as there are samples, for the rank to count
)
CLEAR = 0.05  # another entry may be negative by this share of the lowest (noise), else the signs are not those of one sample


@dataclass(frozen=True)
class Read:
    """Labels y (B,) in ascending order, how far the counts behind them lie from whole numbers at most, and how they were read."""

    y: Tensor
    off: float
    how: str


def from_bias(bias: Tensor) -> Tensor | None:
    """Return the label (1,) of one sample from the gradient (C,) of the last bias, None where more than one entry is negative.

    Valid for any activation. C = 1, the loss ``binary``: label 1 where the entry is negative.
    """
    if len(bias) == 1:
        return (bias < 0).long() if bool(bias != 0) else None
    return bias.argmin()[None] if _one_negative(bias) else None


def idlg(weight: Tensor) -> Tensor | None:
    """Return the label (1,) of one sample: the row of the last weights' gradient (C, H) with the lowest sum (Zhao et al. 2020, eq. 5).

    Row c is q_c h^T, so the rule needs features h >= 0 (ReLU, sigmoid). None where more than one row has a negative sum.
    """
    sums = weight.sum(1)
    return sums.argmin()[None] if len(sums) > 1 and _one_negative(sums) else None


def from_gradient(leak: GradientLeak, task: Task) -> Tensor | None:
    """Return the label (1,) of one sample from the largest plain row of a leak: by the bias where there is one, else by iDLG's rule.

    None where the last layer is not in the leak, or the signs are not those of one sample.
    """
    rows = plain_rows(leak)
    if task.last_linear is None or not rows or task.spec.loss == "squared":
        return None
    value = label_counts.plain(leak, task, max(rows, key=lambda r: float(leak.value[r].norm())))
    weight, bias = (label_counts.part(leak, task, value, name) for name in task.last_linear)
    return from_bias(bias) if bias is not None else None if weight is None else idlg(weight)


def plain_rows(leak: GradientLeak) -> list[int]:
    """Rows that hold one gradient that is not zero."""
    single = leak.combination.count_nonzero(dim=1) == 1
    found: list[int] = (single.cpu() & (leak.value != 0).any(1).cpu()).nonzero().flatten().tolist()
    return found


def read(leak: GradientLeak, task: Task, batch: int) -> Read | None:
    """Return the labels of a batch from the last layer's gradient, None where it is not in a plain row.

    One sample: by signs. More: by `counts.pooled` where model and bias are known, from the row whose counts lie nearest to whole
    numbers; where none lies near them and the rows have rank `batch`, by the classes of `counts.rlg`. Else by `counts.llg`.
    """
    if batch == 1 and (y := from_gradient(leak, task)) is not None:
        return Read(y.cpu(), 0.0, "the signs of one sample")
    heads = [
        head
        for row in plain_rows(leak)[:ROWS]
        if (head := label_counts.of(leak, task, row)) is not None
    ]
    if not heads:
        return None
    if not heads[0].whole:
        return Read(
            spread(label_counts.llg(heads[0], batch)),
            UNKNOWN,
            "LLG, which does not say how sure it is",
        )
    best, head = min(
        (
            (rounded(label_counts.pooled(head, batch), batch, "pooled counts"), head)
            for head in heads
        ),
        key=lambda found: found[0].off,
    )
    return best if best.off < NEAR else _by_classes(head, batch) or best


def readable(leak: GradientLeak, task: Task) -> bool:
    """Whether `read` finds labels."""
    return from_gradient(leak, task) is not None or any(
        label_counts.of(leak, task, row) is not None for row in plain_rows(leak)[:ROWS]
    )


def spread(n: Tensor) -> Tensor:
    """Labels (B,) in ascending order from counts (C,)."""
    return torch.arange(len(n)).repeat_interleave(n)


def given(text: str, task: Task, batch: int) -> Tensor | None:
    """Read known labels such as ``3`` or ``3,1,4``; None for the empty text.

    Raises AttackError where they are not `batch` classes of the task.
    """
    if not text:
        return None
    known = (
        [int(t) for t in text.split(",")]
        if re.fullmatch(r"\d{1,9}(,\d{1,9})*", text.replace(" ", ""))
        else []
    )
    if len(known) != batch or max(known) >= task.spec.classes or task.spec.loss == "squared":
        raise AttackError(
            f"labels: expected {batch} numbers from 0 to {task.spec.classes - 1} joined by commas, got {text!r}"
        )
    return torch.tensor(known, device=task.device)


def given_or_read(text: str, leak: GradientLeak, task: Task, batch: int) -> tuple[Tensor, str]:
    """Return known labels (B,), else those that `read` finds, and for the latter how they were read, for a note.

    Raises AttackError where neither is there.
    """
    if (known := given(text, task, batch)) is not None:
        return known, ""
    found = read(leak, task, batch)
    if found is None:
        raise AttackError("labels: the last layer's gradient is not in the leak; set labels=…")
    doubt = "" if found.off < NEAR else ", which may be wrong"
    return found.y.to(
        task.device
    ), "" if batch == 1 and not doubt else f"labels by {found.how}{doubt}; "


def candidates(task: Task, batch: int) -> list[Tensor]:
    """All labels (batch,) that differ by more than their order, which a mean gradient does not show."""
    return [
        torch.tensor(c, device=task.device)
        for c in itertools.combinations_with_replacement(range(task.spec.classes), batch)
    ]


def count(task: Task, batch: int) -> int:
    """Number of `candidates`."""
    return math.comb(task.spec.classes + batch - 1, batch)


def raw(task: Task, batch: int, generator: Generator, dtype: torch.dtype) -> Tensor:
    """Draw label variables from N(0, 1): (batch, classes), or (batch,) for loss ``binary``."""
    shape = (batch,) if task.spec.loss == "binary" else (batch, task.spec.classes)
    return torch.randn(shape, generator=generator, dtype=dtype, device=generator.device).to(
        task.device
    )


def soft(task: Task, variables: Tensor) -> Tensor:
    """Map label variables to what the loss takes: softmax, sigmoid, or themselves for loss ``squared``."""
    if task.spec.loss == "cross_entropy":
        return F.softmax(variables, dim=-1)
    return variables.sigmoid() if task.spec.loss == "binary" else variables


def hard(task: Task, variables: Tensor) -> Tensor:
    """Map label variables to the labels that they mean: the largest class, 0 or 1, or themselves for loss ``squared``."""
    if task.spec.loss == "cross_entropy":
        return variables.argmax(-1)
    return (variables > 0).long() if task.spec.loss == "binary" else variables


def _one_negative(values: Tensor) -> bool:
    """Whether exactly one entry is clearly negative."""
    low, second = values.topk(2, largest=False).values
    return bool(low < 0 and second >= CLEAR * low)


def rounded(real: Tensor, batch: int, how: str) -> Read:
    """Return the labels of real counts (C,)."""
    n = label_counts.whole(real, batch)
    return Read(spread(n), float((real - n).abs().nan_to_num(1.0).max()), how)


def _by_classes(head: label_counts.Head, batch: int) -> Read | None:
    """Give every class of RLG one sample and share out the rest by pooled counts; None where the rank does not show all samples."""
    size = torch.linalg.svdvals(head.weight)
    if 2 * batch > head.classes or batch >= len(size) or size[batch] > GAP * size[batch - 1]:
        return None
    classes = label_counts.rlg(head)
    rest = batch - int(classes.sum())
    if rest < 0 or rest == batch:
        return None
    more = torch.where(classes, (label_counts.pooled(head, batch) - 1).clamp_min(TINY), 0.0)
    n = classes.long() + (label_counts.whole(more, rest) if rest else 0)
    return Read(
        spread(n),
        UNKNOWN if rest else 0.0,
        "the classes of RLG" + (", the rest by pooled counts" if rest else ""),
    )
