"""How many records are behind gradients, as far as their first layer shows it.

The rows of a first fully connected layer's gradient are combinations of its inputs, so their rank
is a lower bound on the number of different records: of one gradient, and of several together.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from leakaudit._util.plural import counted
from leakaudit.capture.tap.fitting.fit import GradientSample
from leakaudit.tasks.task import Task

WIDTH = 128  # random combinations to which columns are reduced: a choice that bounds the time
FEWEST = 3  # rows that are not zero: fewer have a small rank whatever the records are
# A gradient in float32 was summed up in another order than ours: it is rounded this many times more
# coarsely than its format. Measured: 1 to 10.
ROUNDINGS = 100.0


@dataclass(frozen=True)
class Shown:
    """Lower bounds on the number of different records behind gradients.

    Attributes:
        gradients: Gradients that were compared.
        least: Different records in the gradient that shows fewest.
        most: Different records in the gradient that shows most.
        together: Different records in all gradients of a rank, of the rank that shows most.
        of_rank: Gradients of that rank.
    """

    gradients: int
    least: int
    most: int
    together: int
    of_rank: int

    @property
    def single(self) -> bool:
        """Whether every gradient shows one record only."""
        return self.most == 1

    @property
    def differ(self) -> bool:
        """Whether the gradients of a rank show more records than each of them."""
        return self.together > self.most

    @property
    def repeats(self) -> bool:
        """Whether each rank's gradients, several of one rank at least, show the same record."""
        return self.together == 1 and self.of_rank > 1

    @property
    def text(self) -> str:
        """What the gradients show, in words."""
        each = "one record"
        if not self.single:
            each = f"at least {self.least} records"
            if self.least < self.most:
                each = f"at least {self.least} to {self.most} records"
        found = f"{counted(self.gradients, 'gradient')} show {each} each"
        if self.of_rank < 2:
            return found
        if self.repeats:
            return f"{found}, and those of a rank the same one"
        several = counted(self.together, "different record")
        if self.single:
            return f"{found}, and {self.of_rank} of a rank {several}: later steps use new ones"
        return f"{found}, and {self.of_rank} of a rank at least {several}"


def shown(task: Task, samples: Sequence[GradientSample]) -> Shown | None:
    """Count the records that gradients show at least.

    Args:
        task: the model.
        samples: vectors that are gradients up to a factor.

    Returns:
        None if the model begins with another layer, or if the rank of a gradient is above half of
        its rows or columns: then they show noise, or too many records to be counted.
    """
    blocks: dict[int, list[tuple[Tensor, float]]] = defaultdict(list)
    for sample in samples:
        found = _block(task, sample)
        if found is not None:
            blocks[sample.rank].append(found)
    each: list[int] = []
    together: list[tuple[int, int]] = []
    for of_rank in blocks.values():
        for block, edge in of_rank:
            rank = _rank(block, edge)
            if 2 * rank > min(block.shape):
                return None
            each.append(rank)
        stack = torch.cat([block for block, _ in of_rank])
        edge = sum(edge**2 for _, edge in of_rank) ** 0.5
        together.append((_rank(stack, edge), len(of_rank)))
    if not each:
        return None
    return Shown(len(each), min(each), max(each), *max(together))


def _block(task: Task, sample: GradientSample) -> tuple[Tensor, float] | None:
    """Return the first layer's rows (h, n + 1), of norm 1, and the norm of their rounding."""
    if task.first_linear is None or sample.part is not None:
        return None
    value = sample.value.double()
    names = [name for name in task.first_linear if name is not None]
    rows = task.layout.shapes[task.layout.names.index(names[0])][0]

    def taken(vector: Tensor) -> Tensor:
        parts = [vector[task.layout.slices[name]].reshape(rows, -1) for name in names]
        return torch.cat(parts, dim=1)

    block = taken(value)
    active = (block != 0).any(1)
    if int(active.sum()) < FEWEST:
        return None
    size = float(block.norm())
    # A step is rounded like the models between which it lies.
    models = [float(taken(model.double()).norm()) for model in sample.thetas.values()]
    rounding = max(sample.rounding, torch.finfo(torch.float32).eps)
    edge = ROUNDINGS * rounding * max([size, *models])
    return _reduced(block[active] / size), edge / size


def _reduced(block: Tensor) -> Tensor:
    """Return random combinations of the columns, the same for every block."""
    if block.shape[1] <= WIDTH:
        return block
    random = Generator().manual_seed(0)
    mixed = torch.randn(block.shape[1], WIDTH, generator=random, dtype=block.dtype)
    return torch.mm(block, mixed / WIDTH**0.5)


def _rank(block: Tensor, edge: float) -> int:
    """Return how many singular values exceed an error."""
    return int((torch.linalg.svdvals(block) > edge).sum())
