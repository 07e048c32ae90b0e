"""How many records are behind the gradients of a log, as far as their first layer shows it.

`leakaudit.inversion.inputs_shown` counts them rank by rank; here they are put together in words.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from leakaudit._util.plural import counted
from leakaudit.capture.fitting import fit
from leakaudit.capture.fitting.fit import GradientSample
from leakaudit.core.leak import GradientLeak
from leakaudit.inversion import inputs_shown
from leakaudit.inversion.exact import separation
from leakaudit.inversion.inputs_shown import InputCounts
from leakaudit.tasks.task import Task

# A gradient in float32 was summed up in another order than ours: it is rounded this many times more
# coarsely than its format. Measured: 1 to 10.
ROUNDINGS = 10.0
# What travels in a shorter format was rounded to it once, by half of its last place at most.
ONCE = 0.5
HIDDEN = 1e-3  # share of a gradient from which on it is said that another record may hide: a choice


@dataclass(frozen=True)
class RecordCounts:
    """Lower bounds on the number of different records behind gradients."""

    ranks: tuple[InputCounts, ...]  # what the gradients of each rank show
    apart: bool  # whether gradients at the models would show that several records are several

    @property
    def most(self) -> int:
        """Different records in the gradient that shows most."""
        return max(rank.each for rank in self.ranks)

    @property
    def together(self) -> int:
        """Different records in all gradients of a rank, of the rank that shows most."""
        return self._largest.together

    @property
    def alike(self) -> bool:
        """Whether every gradient has the rank of one record, and nothing above its rounding."""
        return self.most == 1 and all(rank.clear for rank in self.ranks)

    @property
    def single(self) -> bool:
        """Whether this proves one record: several would have shown in some rank's gradients."""
        return self.alike and self.apart

    @property
    def differ(self) -> bool:
        """Whether the gradients of a rank show more records than each of them."""
        return self.together > self.most

    @property
    def repeats(self) -> bool:
        """Whether each rank's gradients, several of one rank at least, show the same record."""
        return self.single and self.together == 1 and self._largest.gradients > 1

    @property
    def text(self) -> str:
        """What the gradients show, in words."""
        least = min(min(rank.counts) for rank in self.ranks)
        each = f"at least {counted(least, 'record')}"
        if self.alike:
            each = "one record"
        elif least < self.most:
            each = f"at least {least} to {self.most} records"
        number = counted(sum(rank.gradients for rank in self.ranks), "gradient")
        found = f"{number} show {each} each"
        if self.alike and not self.apart:
            found += ", or the mean of several with equal slopes"
        hidden = max(rank.hidden for rank in self.ranks)
        if self.alike and hidden > HIDDEN:
            found += f" (another one of less than {hidden:.1g} of it would not show)"
        largest = self._largest
        if largest.gradients < 2:
            return found
        if self.alike and largest.together == 1:
            return f"{found}, and those of a rank the same one"
        several = counted(largest.together, "different input")
        if self.single:
            return f"{found}, and {largest.gradients} of a rank {several}: later steps use new ones"
        return f"{found}, and {largest.gradients} of a rank at least {several}"

    @property
    def _largest(self) -> InputCounts:
        return max(self.ranks, key=lambda rank: (rank.together, rank.gradients))


def shown(task: Task, samples: Sequence[GradientSample], apart: bool) -> RecordCounts | None:
    """Count the records that gradients show at least.

    None if the model begins with another layer, or if no record stands out in a gradient: it then
    shows noise, or too many records to be counted.
    """
    if task.first_linear is None:
        return None
    of_rank: dict[int, list[GradientSample]] = defaultdict(list)
    for sample in samples:
        if sample.part is None and bool(sample.value.isfinite().all()):
            of_rank[sample.rank].append(sample)
    found: list[InputCounts] = []
    for rank, some in of_rank.items():
        one = inputs_shown.shown(_leak(rank, some, task), task)
        if one is not None:
            found.append(one)
    if not found or any(0 in one.counts for one in found):
        return None
    return RecordCounts(tuple(found), apart)


def separated(task: Task, samples: Sequence[GradientSample], point: str) -> bool:
    """Decide whether each rank's first gradient would show that several records are several."""
    first: dict[int, GradientSample] = {}
    for sample in samples:
        first.setdefault(sample.rank, sample)
    for sample in first.values():
        x = fit.record(task, sample.value)
        if x is None:
            return False
        row = torch.cat([task.normalise(x).flatten(), x.new_ones(1)])[None]
        if not separation.separates(task, sample.thetas.get(point), row):
            return False
    return bool(first)


def _leak(rank: int, samples: Sequence[GradientSample], task: Task) -> GradientLeak:
    value = torch.stack([sample.value.double() for sample in samples])
    stds: list[float] = []
    for sample in samples:
        # A step is rounded like the models between which it lies.
        sizes = [float(one.double().norm()) for one in (sample.value, *sample.thetas.values())]
        rounding = ROUNDINGS * torch.finfo(torch.float32).eps
        rounding = max(rounding, ONCE * fit.precision(task, sample))
        stds.append(rounding * max(sizes) / math.sqrt(value.shape[1]))
    count = len(samples)
    return GradientLeak(
        node=rank,
        rounds=torch.arange(1, count + 1),
        combination=torch.eye(count),
        value=value,
        std=torch.tensor(stds),
        columns=(0, task.layout.size),
    )
