"""Inverting Gradients (Geiping et al. 2020): cosine similarity of gradients, and a smooth image."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Literal

import torch
from torch import Generator, Tensor

from leakaudit.core.leak import GradientLeak
from leakaudit.core.reconstruction import Reconstruction
from leakaudit.core.registry import attack, param
from leakaudit.inversion.attack import Attack
from leakaudit.inversion.labels import read_labels
from leakaudit.inversion.search import adam, local_training, objectives, priors, published_lbfgs
from leakaudit.inversion.search.adam import RateSchedule
from leakaudit.inversion.search.evaluate import Problems
from leakaudit.inversion.search.local_training import Local
from leakaudit.inversion.search.objectives import Target
from leakaudit.inversion.search.optimise import Point, SearchRun
from leakaudit.tasks.smoothed_relu import Rounding

if TYPE_CHECKING:
    from leakaudit.tasks.task import Task

# The published loss is 1 - cos(g', g) + alpha TV(x) (eq. 4), minimised with Adam on the sign of the
# slope, within the range of pixels. The cosine ignores the length of gradients, which changes by
# orders of magnitude during training.
#
# Two things are new, and ``sign=hard`` reverts both. The soft sign shrinks slopes that are small
# compared with the others, and ReLUs are rounded at first (`leakaudit.tasks.smoothed_relu`). This
# reaches a quarter of the final loss of the published recipe, in a quarter of its steps.
#
# For a local training, the cosine compares updates, and all local steps are differentiated (section
# 6 of the paper).


@dataclass(frozen=True)
class _Wanted:
    """One leak to be searched, possibly together with others."""

    place: int  # index of the leak
    target: Target  # what its gradients are compared with
    local: Local  # how the node trains
    y: Tensor  # (b,) labels
    how: str  # how the labels were found, for the note
    generator: Generator  # draws the starts


@attack("inverting")
@dataclass(frozen=True)
class Inverting(Attack):
    """Cosine and total variation, minimised with signed Adam.

    Labels are read from the last layer if they are not given. Single gradients are searched in one
    batch.
    """

    exact: ClassVar[bool] = False
    rank: ClassVar[int] = 2
    reads: ClassVar[str] = (
        "plain gradients or local trainings at known models, with the last layer or known labels"
    )
    paper: ClassVar[str] = (
        "Geiping et al. 2020, Inverting Gradients: "
        "How easy is it to break privacy in federated learning?"
    )
    cost: ClassVar[str] = (
        "one double backward pass per step and one more per further local step; "
        "2 to 6 s for an image of a small network on one core, minutes for a ResNet-18"
    )

    labels: Sequence[int] = param(
        (), "known labels, e.g. 3 or 3,1,4; default: read from the last layer"
    )
    steps: int = param(1200, "maximum number of Adam steps per restart")
    restarts: int = param(1, "number of starting points; the one with the best objective is kept")
    rate: float = param(0.1, "first step in the data's units")
    tv: float = param(2e-2, "weight of total variation", "alpha")
    sign: Literal["hard", "soft"] = param(
        "soft",
        "sign of slopes; soft: slope divided by its size plus the mean size, with a cosine "
        "schedule; hard: as published",
    )
    weights: Literal["equal", "linear", "exp"] = param(
        "equal",
        "weights of the parameters in the cosine, as in the published code; linear: 1 for the "
        "first parameter to 1/n for the last of n; exp: e^-k for the k-th",
    )
    optimiser: Literal["adam", "lbfgs"] = param(
        "adam",
        "lbfgs: that of the published code, torch's without a line search, 20 iterations a step; "
        "it uses no rate, sign or rounding",
    )
    rounding: float = param(
        0.8,
        "initial width of rounded ReLUs, relative to their inputs; "
        "decreases to a fortieth; 0 or sign=hard: no rounding",
    )
    rows: int = param(1, "maximum number of gradients of the leak to fit at once")
    batch: int | None = param(
        None, "number of samples behind each gradient; default: as stated by the leak"
    )
    samples: int | None = param(
        None,
        "number of different records in a local training with mini-batches; "
        "default: the size of one mini-batch",
    )
    decay: float = param(0.0, "weight decay of the local steps")
    dtype: Literal["float32", "float64"] = param(
        "float32", "number format of the search; float32 is sufficient for signs"
    )

    def refuses(self, leak: GradientLeak, task: Task) -> str | None:
        """Require labels, and plain gradients or local trainings that start from known models."""
        return local_training.refused(leak, task, self.labels, self.batch, self.samples)

    def __call__(self, leak: GradientLeak, task: Task, generator: Generator) -> Reconstruction:
        """Reconstruct the inputs; the certificate states whether they fit."""
        return next(found for _, found in self.many([leak], task, [generator]))

    def many(
        self, leaks: Sequence[GradientLeak], task: Task, generators: Sequence[Generator]
    ) -> Iterator[tuple[int, Reconstruction]]:
        """Reconstruct the inputs of several leaks; single gradients of one shape together."""
        wanted: list[_Wanted] = []
        for k, leak in enumerate(leaks):
            local = local_training.of(leak, self.batch, self.samples, self.decay)
            y, how = read_labels.given_or_read(self.labels, leak, task, local.samples)
            rows = self.rows if local.batches == 1 else 1
            target = objectives.target(leak, task, rows, getattr(torch, self.dtype))
            factors = objectives.factors(task, target.columns, self.weights, target.aim.dtype)
            target = replace(target, factors=factors)
            wanted.append(_Wanted(k, target, local, y, how, generators[k]))
        for group in _groups(wanted):
            for one, run in self._search(group, task):
                residual = partial(local_training.misfit, one.target, task, one.local, y=one.y)
                search = "L-BFGS" if self.optimiser == "lbfgs" else "signed Adam"
                note = f"{one.how}{search} {run}"
                leak = leaks[one.place]
                found = objectives.reconstruction(
                    "inverting", leak, task, one.target, run.point[0], one.y, residual, note
                )
                yield one.place, found

    def _search(self, wanted: list[_Wanted], task: Task) -> Iterator[tuple[_Wanted, SearchRun]]:
        """Search one group together from all starts; yield the best run of each."""
        restarts = max(1, self.restarts)
        each = [one for one in wanted for _ in range(restarts)]
        targets = [one.target for one in each]
        y = torch.stack([one.y for one in each])
        dtype = targets[0].aim.dtype
        drawn = [priors.start(task, y.shape[1], one.generator, "normal", dtype) for one in each]
        starts = torch.stack(drawn)
        soft = self.sign == "soft"
        rounding = Rounding(self.rounding)
        by_adam = self.optimiser == "adam"
        smooth = task.rounded(rounding) if self.rounding and soft and by_adam else task
        local = wanted[0].local
        alone = local.steps > 1
        given: Point = (y,)
        if alone:
            objective = partial(_of_updates, targets[0], smooth, local, self.tv)
        else:
            objective = partial(_of_gradients, smooth, targets[0], self.tv)
            theta, mixing, _ = objectives.stacked(targets)
            given = (theta, mixing, torch.stack([target.weighted for target in targets]), y)
        goals = starts.new_zeros(len(each))
        problems = Problems(objective, given, goals, smooth.vectorised and not alone)
        box = partial(priors.boxed, task)
        if by_adam:
            runs = adam.minimise(
                problems.at((starts,)),
                starts.flatten(1),
                RateSchedule(self.steps, self.rate, self.sign, stages=not soft),
                box,
                "inverting",
                lambda k, x, values: rounding.at(k / self.steps),
            )
        else:
            runs = [self._lbfgs(problems, k, start, box) for k, start in enumerate(starts)]
        for k, one in enumerate(wanted):
            mine = runs[k * restarts : (k + 1) * restarts]
            best = min(mine, key=lambda run: run.objective)
            yield one, best.after(*(run for run in mine if run is not best))

    def _lbfgs(
        self, problems: Problems, k: int, start: Tensor, box: Callable[[Tensor], Tensor]
    ) -> SearchRun:
        """Search one problem from one start, without a line search, as the published code does."""
        one = problems.of_these(torch.tensor([k], device=problems.goal.device))

        def objective(x: Tensor) -> Tensor:
            return one.objective(one.given, (x[None],))[0]

        return published_lbfgs.minimise(objective, (start,), self.steps, -1.0, "inverting", box)


def _groups(wanted: list[_Wanted]) -> Iterator[list[_Wanted]]:
    """Yield what can be searched together; local trainings one by one."""
    yield from ([one] for one in wanted if one.local.steps > 1)
    single = [one for one in wanted if one.local.steps == 1]
    for group in objectives.alike([one.target for one in single], [len(one.y) for one in single]):
        yield [single[k] for k in group]


def _of_gradients(task: Task, like: Target, weight: float, given: Point, point: Point) -> Tensor:
    """Return cosine and total variation of each problem (see `Problems`)."""
    theta, mixing, aim, y = given
    smooth = torch.vmap(priors.total_variation)(point[0])
    found = objectives.mixed(task.again, like.columns, theta, mixing, point[0], y)
    if like.factors is not None:
        found = found * like.factors.repeat(aim.shape[1])
    return objectives.angles(found, aim) + weight * smooth


def _of_updates(
    target: Target, task: Task, local: Local, weight: float, given: Point, point: Point
) -> Tensor:
    """Return the same for the local training of one problem."""
    x = point[0][0]
    cosine = local_training.cosine(target, task, local, x, given[0][0])
    return (cosine + weight * priors.total_variation(x))[None]
