"""The label of one sample from the signs of the last layer's gradient."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from leakaudit.inversion.labels import label_counts

if TYPE_CHECKING:
    from leakaudit.core.leak import GradientLeak
    from leakaudit.tasks.task import Task

# The gradient of a last linear layer under cross-entropy is q h^T for its weights and q for its
# bias, with q = p - e_y. For one sample, exactly one entry of q is negative, that of its label.
# With two or more samples, the signs reveal which classes are present, but not how many samples of
# each, nor with certainty which classes are absent; `read_labels` then counts.

# Another entry may be negative by this share of the lowest (noise). Beyond it, the signs are not
# those of one sample.
CLEAR = 0.05


def from_bias(bias: Tensor) -> Tensor | None:
    """Read the label (1,) of one sample from the gradient (C,) of the last bias, if clear.

    With C = 1, the loss ``binary``, label 1 has a negative entry.
    """
    if len(bias) == 1:
        return (bias < 0).long() if bool(bias != 0) else None
    return bias.argmin()[None] if _one_negative(bias) else None


def idlg(weight: Tensor) -> Tensor | None:
    """Read the label (1,) of one sample from the row with the lowest sum (Zhao et al. 2020, eq. 5).

    Row c is q_c h^T, so the rule requires features h >= 0 (ReLU, sigmoid).
    """
    sums = weight.sum(1)
    return sums.argmin()[None] if len(sums) > 1 and _one_negative(sums) else None


def from_gradient(leak: GradientLeak, task: Task) -> Tensor | None:
    """Read the label (1,) of one sample from the largest plain row of a leak.

    By the bias if there is one, otherwise by iDLG's rule. None if the leak does not contain the
    last layer, or if the signs are not those of one sample.
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
    """Find the rows that contain one gradient that is not zero."""
    found: list[int] = (
        (leak.single.cpu() & (leak.value != 0).any(1).cpu()).nonzero().flatten().tolist()
    )
    return found


def _one_negative(values: Tensor) -> bool:
    """Check whether exactly one entry is clearly negative."""
    low, second = values.topk(2, largest=False).values
    return bool(low < 0 and second >= CLEAR * low)
