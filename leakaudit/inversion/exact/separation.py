"""Whether the models at which gradients were taken give different records different slopes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from leakaudit.core.leak import GradientLeak
    from leakaudit.tasks.task import Task

# A gradient's rows in the first layer are slopes times inputs, so they have the rank of one input
# if there is one, and also if the slopes of all records are multiples of each other: what looks
# like an input is then their mean. A model that was drawn at random separates records, except by a
# coincidence. One that has learned from these records alone may not. From zeros, W is a combination
# of the inputs so far; a picture and its mirror image have equal outputs wherever all other inputs
# are symmetric as well, and records of equal length wherever their mean is the only other input.
#
# The evidence for a random start is the first layer, and what the visible inputs do not explain of
# it: every column differs from every other one and from zero. In a softmax regression, the sum of
# the rows of W must differ from zero as well: it is what training never changes.

# Size, in units of the largest column, below which columns or their differences are rounding.
ROUNDING = 1e-5

# Smallest size of the sum of all rows, in units of the weights, that shows a random start. It
# begins with 1, and shrinks as the weights grow; from zeros, it is rounding.
DRAWN = 1e-3

# Columns are also as uncertain as the models: this many standard deviations.
CERTAIN = 5.0

REASON = (
    "at these models, records with equal slopes look like one input, their mean: nothing shows "
    "that the first layer was drawn at random; record the batch size (samples)"
)


def separates(task: Task, theta: Tensor | None, rows: Tensor, error: float = 0.0) -> bool:
    """Decide whether a model would give different records different slopes in the first layer.

    `rows` (r, p + 1) are the inputs that the gradients show. If theta is not known, a network
    with a hidden layer is taken to have been drawn at random, because it would not learn from
    zeros.
    """
    if task.first_linear is None or task.adapter is not None:
        return False
    single = task.first_linear == task.last_linear
    softmax = task.spec.loss == "cross_entropy"
    if not bool(rows.isfinite().all()):
        return False
    if theta is None:
        return not single
    weight = task.layout.split(theta.double())[task.first_linear[0]].flatten(1)
    if not bool(weight.isfinite().all()):
        return False
    if single and len(weight) - softmax < 2:
        return False  # slopes of one number are multiples of each other
    scale = float(weight.norm(dim=0).max())
    inputs = rows[:, :-1].to(weight)
    outside = weight - weight @ torch.linalg.pinv(inputs) @ inputs
    if single and softmax and not float(outside.sum(0).norm()) > DRAWN * float(weight.norm()):
        return False
    near = ROUNDING * scale + CERTAIN * error * len(weight) ** 0.5
    return _distinct(weight, near) and _distinct(outside, near)


def separated(leak: GradientLeak, task: Task, rows: Tensor) -> bool:
    """Decide whether the first known model of a leak separates records; see `separates`."""
    first = None
    if leak.theta is not None:
        first = leak.theta[int(leak.rounds.argmin())]
    return separates(task, first, rows, leak.theta_std)


def _distinct(weight: Tensor, near: float) -> bool:
    """Return whether columns differ from zero and, up to their sign, from each other."""
    size = weight.norm(dim=0)
    if not float(size.min()) > near:
        return False
    order = size.argsort()  # equal columns have equal sizes
    before = weight[:, order[:-1]]
    after = weight[:, order[1:]]
    apart = torch.minimum((after - before).norm(dim=0), (after + before).norm(dim=0))
    return bool((apart > near).all())
