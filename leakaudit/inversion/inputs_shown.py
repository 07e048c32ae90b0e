"""What the rows of gradients show of the inputs behind them, against what is declared."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Generator, Tensor

from leakaudit._util.plural import counted
from leakaudit.core.evidence import Evidence, Origin
from leakaudit.inversion.exact import first_layer_rows, separation
from leakaudit.inversion.exact.first_layer_rows import SPARE
from leakaudit.inversion.exact.pixel_grid import PixelGrid
from leakaudit.inversion.linear import edge, least_squares

if TYPE_CHECKING:
    from leakaudit.core.leak import GradientLeak
    from leakaudit.tasks.task import Task

# Whoever describes a recording states how many records are behind a gradient, and whether all
# rounds use the same ones. The rows of a first fully connected layer are combinations of the
# inputs (`first_layer_rows`), as are those of an adapter's factor A, so their rank is a lower bound
# on the number of different inputs, in one gradient and in all of them together. A number that is
# exceeded is contradicted by the messages.
#
# The rank is counted above the errors of the messages, which are those that the leak states or that
# each gradient shows by itself, whichever is larger. If every gradient contains d inputs and an
# error E_t, and all contain the same inputs, then the singular value d + 1 of all gradients
# together is at most the root of sum |E_t|^2. So noise, rounding and weight decay that nobody
# declared do not look like other inputs.

# Equations that are examined, evenly spread over the rounds. A choice that limits the time.
MOST = 8

# Singular values this many times above the errors belong to inputs, as in `certify.ENDS`.
MARGIN = 10.0

# A single gradient contains more inputs than declared if its singular values drop by this ratio
# after them. A choice: noise has no such drop, and rounding in float32 is further below.
DROP = 100.0

# Norm of what inputs leave of a gradient, in units of its noise, that this noise explains: white
# noise gives 1, and rounding that is not white has given 2.
LEFT = 3.0

# Share of a gradient that inputs may leave because the program stored them in float32. One level in
# one of 3072 pixels is 1e-4.
STORED = 1e-6

# Share of the largest slopes below which an input does not count as part of a gradient.
UNUSED = 1e-3


@dataclass(frozen=True)
class InputCounts:
    """Lower bounds on the number of different inputs, as far as gradients show them."""

    node: int  # the node that the gradients belong to
    # different inputs in each equation that was examined; 0 if none stands out
    counts: tuple[int, ...]
    together: int  # different inputs in all of these equations
    samples: int | None  # different inputs behind each gradient, as declared; None if unknown
    inputs: int | None  # different inputs behind all gradients, as declared; None if unknown
    clear: bool  # whether known errors explain what these inputs leave of every equation
    hidden: float  # share of a gradient, at most, that a further input may have in these errors
    apart: bool  # whether the models would show that several inputs are several (`separation`)

    @property
    def gradients(self) -> int:
        """Number of equations that were examined."""
        return len(self.counts)

    @property
    def each(self) -> int:
        """Different inputs in the gradient that shows most of them."""
        return max(1, *self.counts)

    @property
    def differ(self) -> bool:
        """Whether the gradients contain different inputs."""
        return self.together > max(self.each, self.samples or 0)

    @property
    def crowded(self) -> bool:
        """Whether one gradient contains more inputs than declared."""
        return self.samples is not None and self.each > self.samples

    @property
    def contradicts(self) -> bool:
        """Whether the messages contradict the declared number of inputs."""
        several = self.inputs is not None and self.together > self.inputs
        return self.crowded or several

    @property
    def evidence(self) -> Evidence:
        """Where the number of inputs comes from."""
        if self.samples is None:
            return Evidence("samples", Origin.UNKNOWN, self._found)
        if self.contradicts:
            said = f"{counted(self.samples, 'record')} behind each gradient"
            if self.inputs is not None:
                said += f" and {self.inputs} behind all"
            return Evidence("samples", Origin.CONTRADICTED, f"{said} declared, but {self._found}")
        if self.together == self.inputs and self.apart:
            return Evidence("samples", Origin.VERIFIED, self._found)
        return Evidence("samples", Origin.DECLARED)

    @property
    def _found(self) -> str:
        gradients = counted(self.gradients, "gradient")
        if self.crowded:
            return f"one gradient of node {self.node} contains {self.each} different inputs"
        return (
            f"{gradients} of node {self.node} contain {counted(self.together, 'different input')}"
        )


def shown(leak: GradientLeak, task: Task) -> InputCounts | None:
    """Count the different inputs that gradients show at least.

    None if the rows of a first fully connected layer are not among them, or show too little.
    """
    if first_layer_rows.unseen(leak, task):
        return None
    places = (
        torch.linspace(0, len(leak.value) - 1, min(MOST, len(leak.value))).round().long().unique()
    )
    stack = first_layer_rows.of_inputs(leak, task)[places]
    if not bool(stack.isfinite().all()):
        return None
    random = Generator().manual_seed(0)
    declared = leak.samples or 1
    blocks: list[Tensor] = []
    counts: list[int] = []
    errors: list[float] = []
    clear = True
    hidden = 0.0
    for rows, std in zip(stack, leak.std[places], strict=True):
        block = _in_units_of_noise(rows, std)
        room = min(int((block != 0).any(1).sum()), int((block != 0).any(0).sum()))
        if not room:
            continue  # a gradient that vanishes contains no input
        most = room // 2 if task.adapter is None else room  # an adapter has few rows
        if declared + 1 > most:
            return None
        sizes = first_layer_rows.largest(block, min(declared + SPARE, room), random)[0]
        number = _before_drop(sizes, edge(*block.shape), most)
        # With an unknown number of inputs, the gradient's own count takes its place.
        end = leak.samples or max(1, number)
        rounding = first_layer_rows.RESOLVED / MARGIN * float(sizes[0])
        left = float(sizes[min(end, len(sizes) - 1)])
        known = max(edge(*block.shape), rounding)
        clear = clear and number > 0 and left <= LEFT * known
        hidden = max(hidden, LEFT * known / float(sizes[0]))
        blocks.append(block)
        counts.append(number)
        errors.append(max(known, left))
    if not blocks:
        return None
    each = max(1, *counts)
    limit = MARGIN * math.sqrt(sum(error**2 for error in errors))
    most = min(2 * max(declared, each) + SPARE, *torch.cat(blocks).shape)
    sizes, basis = first_layer_rows.largest(torch.cat(blocks), most, random)
    together = max(each, int((sizes > limit).sum()))
    apart = separation.separated(leak, task, basis[:together])
    # Of mini-batches from an unknown number of records, nothing says that they are the same ones.
    inputs = None if leak.records is None else leak.inputs
    return InputCounts(
        leak.node, tuple(counts), together, leak.samples, inputs, clear, hidden, apart
    )


def uses(leak: GradientLeak, task: Task, x: Tensor) -> Tensor | None:
    """Decide which inputs (n, *shape) each equation of a leak consists of, up to its noise: (m, n).

    All False for an equation that they do not explain, or that vanishes. None if this cannot be
    decided, because the rows of a first fully connected layer have not leaked, or are too few.
    """
    if first_layer_rows.unseen(leak, task) or not len(x):
        return None
    stack = first_layer_rows.of_inputs(leak, task)
    flat = x.detach().flatten(1).double().to(stack)
    inputs = first_layer_rows.inputs(task, PixelGrid.of(task), flat)
    many = len(inputs) > min(stack.shape[1:] if task.adapter is None else stack.shape[2:]) // 2
    if many and leak.samples != 1:
        return None
    used = torch.zeros(len(stack), len(inputs), dtype=torch.bool)
    for k, rows in enumerate(stack):
        allowed = _allowed(rows, float(leak.std[k]))
        if float(rows.norm()) <= allowed:
            continue
        if many:  # the one with the largest part in the gradient of one record
            size = (rows @ inputs.T).norm(dim=0) / inputs.norm(dim=1)
            chosen = torch.arange(len(size), device=size.device) == size.argmax()
        else:
            slopes = least_squares(inputs.T, rows.T)  # (n, H)
            size = slopes.norm(dim=1) * inputs.norm(dim=1)
            chosen = size > UNUSED * size.max()
        left = rows - least_squares(inputs[chosen].T, rows.T).T @ inputs[chosen]
        few = leak.samples is None or int(chosen.sum()) <= leak.samples
        if few and float(left.norm()) <= allowed:
            used[k] = chosen.cpu()
    return used


def silent(leak: GradientLeak) -> Tensor:
    """Decide which equations (m,) contain no more than noise."""
    value = leak.value.double()
    quiet: Tensor = value.norm(dim=1) <= LEFT * leak.std.double() * math.sqrt(value.shape[1])
    return quiet


def _allowed(rows: Tensor, std: float) -> float:
    """Return the largest norm of what noise and rounding leave of rows that are explained."""
    return LEFT * std * math.sqrt(rows.numel()) + STORED * float(rows.norm())


def _in_units_of_noise(rows: Tensor, std: Tensor) -> Tensor:
    """Divide rows by the standard deviation of their errors, at least that of rounding them."""
    rounding = torch.finfo(torch.float64).eps * float(rows.square().mean().sqrt())
    return rows / max(float(std), rounding, torch.finfo(torch.float64).tiny)


def _before_drop(sizes: Tensor, noise: float, most: int) -> int:
    """Count the singular values above the errors that a clear drop follows; 0 without one."""
    for k in range(min(most, len(sizes) - 1), 0, -1):
        if float(sizes[k - 1]) > DROP * max(float(sizes[k]), noise):
            return k
    return 0
