"""Labels: as the variables of a search, and read from the sign of a last layer's gradient.

The gradient of a last linear layer under cross-entropy is q h^T for its weights and q for its bias, q = p - e_y: one sample
makes exactly one entry of q negative, that of its label. With two or more samples the signs tell which classes are there but
neither how many of each nor which classes are missing for certain, so these functions answer for one sample only.
"""

from __future__ import annotations

import itertools
import math
import re
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from leakaudit.errors import AttackError

if TYPE_CHECKING:
    from leakaudit.leak import GradientLeak
    from leakaudit.task import Task

CLEAR = 0.05  # another entry may be negative by this share of the lowest (noise), else the signs are not those of one sample


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
    plain = (leak.combination.count_nonzero(dim=1) == 1).nonzero().flatten()
    if task.last_linear is None or not len(plain) or task.spec.loss == "squared":
        return None
    row = plain[int(leak.value[plain].norm(dim=1).argmax())]
    value = leak.value[row] * leak.combination[row].sum().sign()
    if task.l2 and leak.theta is not None:
        value = value - task.l2 * (leak.combination[row].abs().to(leak.theta) @ leak.theta)[slice(*leak.columns)].to(value)
    weight, bias = task.last_linear
    for name, rule in ((bias, from_bias), (weight, idlg)):
        if name is not None and leak.columns[0] <= (at := task.layout.slices[name]).start and at.stop <= leak.columns[1]:
            part = value[at.start - leak.columns[0] : at.stop - leak.columns[0]].double()
            return rule(part if rule is from_bias else part.reshape(task.layout.shapes[task.layout.names.index(name)]))
    return None


def given(text: str, task: Task, batch: int) -> Tensor | None:
    """Read known labels such as ``3`` or ``3,1,4``; None for the empty text.

    Raises AttackError where they are not `batch` classes of the task.
    """
    if not text:
        return None
    known = [int(t) for t in text.split(",")] if re.fullmatch(r"\d{1,9}(,\d{1,9})*", text.replace(" ", "")) else []
    if len(known) != batch or max(known) >= task.spec.classes or task.spec.loss == "squared":
        raise AttackError(f"labels: expected {batch} numbers from 0 to {task.spec.classes - 1} joined by commas, got {text!r}")
    return torch.tensor(known, device=task.device)


def candidates(task: Task, batch: int) -> list[Tensor]:
    """All labels (batch,) that differ by more than their order, which a mean gradient does not show."""
    return [torch.tensor(c, device=task.device) for c in itertools.combinations_with_replacement(range(task.spec.classes), batch)]


def count(task: Task, batch: int) -> int:
    """Number of `candidates`."""
    return math.comb(task.spec.classes + batch - 1, batch)


def raw(task: Task, batch: int, generator: Generator, dtype: torch.dtype) -> Tensor:
    """Draw label variables from N(0, 1): (batch, classes), or (batch,) for loss ``binary``."""
    shape = (batch,) if task.spec.loss == "binary" else (batch, task.spec.classes)
    return torch.randn(shape, generator=generator, dtype=dtype, device=generator.device).to(task.device)


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
