"""Labels of a batch: given by the user, or read from the last layer's gradient.

For one sample, the signs reveal the label (`label_signs`); for more samples, the classes are
counted (`label_counts`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias

import torch
from torch import Tensor

from leakaudit.core.errors import AttackError
from leakaudit.core.registry import written
from leakaudit.inversion.labels import label_counts, label_signs

if TYPE_CHECKING:
    from leakaudit.core.leak import GradientLeak
    from leakaudit.tasks.task import Task

# Number of plain rows that `read` examines. A choice: counts of further rows hardly differ.
ROWS = 8

# Maximum distance of reliable counts from whole numbers: half of what would round them incorrectly.
NEAR = 0.25

# Distance from whole numbers for methods that do not report one: the largest possible.
UNKNOWN = 0.5

# A count with which a class receives a remainder only if no other class does.
TINY = 1e-9

# Maximum ratio of a singular value to the one before it, for the rank to be reliable: for different
# samples, the ratio is 1e-1 and more; rounding in float32 gives 1e-6.
GAP = 1e-3


# Labels (B,) in ascending order, the maximum distance of the underlying counts from whole numbers,
# and how they were read, for a note.
LabelReading: TypeAlias = tuple[Tensor, float, str]


def read(leak: GradientLeak, task: Task, batch: int) -> LabelReading | None:
    """Read the labels of a batch from the last layer's gradient; None if no plain row has it.

    One sample: by signs. More: by `label_counts.pooled` if model and bias are known, from the
    row whose counts are closest to whole numbers; if none are close and the rows have rank
    `batch`, by the classes of `label_counts.rlg`. Otherwise by `label_counts.llg`.
    """
    if batch == 1:
        y = label_signs.from_gradient(leak, task)
        if y is not None:
            return (y.cpu(), 0.0, "the signs of one sample")
    heads = _heads(leak, task)
    if not heads:
        return None
    if not heads[0].whole:
        n = label_counts.llg(heads[0], batch)
        return (spread(n), UNKNOWN, "LLG, which does not report its certainty")
    found = [rounded(label_counts.pooled(one, batch), batch, "pooled counts") for one in heads]
    nearest = min(range(len(heads)), key=lambda k: found[k][1])
    best = found[nearest]
    if best[1] < NEAR:
        return best
    return _by_classes(heads[nearest], batch) or best


def _heads(leak: GradientLeak, task: Task) -> list[label_counts.LastLayer]:
    """Return the last layer in the plain rows that contain it."""
    found: list[label_counts.LastLayer] = []
    for row in label_signs.plain_rows(leak)[:ROWS]:
        head = label_counts.of(leak, task, row)
        if head is not None:
            found.append(head)
    return found


def readable(leak: GradientLeak, task: Task) -> bool:
    """Check whether `read` finds labels."""
    if label_signs.from_gradient(leak, task) is not None:
        return True
    return bool(_heads(leak, task))


def spread(n: Tensor) -> Tensor:
    """Convert counts (C,) into labels (B,) in ascending order."""
    return torch.arange(len(n)).repeat_interleave(n)


def rounded(real: Tensor, batch: int, how: str) -> LabelReading:
    """Convert real-valued counts (C,) into labels."""
    n = label_counts.whole(real, batch)
    return (spread(n), float((real - n).abs().nan_to_num(1.0).max()), how)


def given(known: Sequence[int], task: Task, batch: int) -> Tensor | None:
    """Return labels that the user provides; None if there are none."""
    if not known:
        return None
    classes = range(task.spec.classes)
    found = all(label in classes for label in known)
    if not found or len(known) != batch or task.spec.loss == "squared":
        raise AttackError(
            f"labels: expected {batch} numbers from 0 to {task.spec.classes - 1}, "
            f"separated by commas, got {written(known)!r}"
        )
    return torch.tensor(known, device=task.device)


def given_or_read(
    known: Sequence[int], leak: GradientLeak, task: Task, batch: int
) -> tuple[Tensor, str]:
    """Return known labels, or read them from the leak and say how, for a note."""
    told = given(known, task, batch)
    if told is not None:
        return told, ""
    found = read(leak, task, batch)
    if found is None:
        raise AttackError("labels: the leak does not contain the last layer; set labels=…")
    labels, off, how = found
    y = labels.to(task.device)
    sure = off < NEAR
    if batch == 1 and sure:
        return y, ""
    doubt = "" if sure else ", which may be wrong"
    return y, f"labels by {how}{doubt}; "


def _by_classes(head: label_counts.LastLayer, batch: int) -> LabelReading | None:
    """Assign one sample to every class of RLG and distribute the rest by pooled counts.

    None if the rank does not reveal all samples.
    """
    size = torch.linalg.svdvals(head.weight)
    if 2 * batch > head.classes or batch >= len(size) or size[batch] > GAP * size[batch - 1]:
        return None
    classes = label_counts.rlg(head)
    rest = batch - int(classes.sum())
    if rest < 0 or rest == batch:
        return None
    if not rest:
        return (spread(classes.long()), 0.0, "the classes of RLG")
    more = torch.where(classes, (label_counts.pooled(head, batch) - 1).clamp_min(TINY), 0.0)
    n = classes.long() + label_counts.whole(more, rest)
    return (spread(n), UNKNOWN, "the classes of RLG, the rest by pooled counts")
