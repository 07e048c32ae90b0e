"""The differential gradient attack: inputs whose gradients differ between models as observed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Generator, Tensor

from leakaudit.core.leak import GradientLeak
from leakaudit.core.progress import expired
from leakaudit.core.reconstruction import Certificate, Reconstruction
from leakaudit.core.registry import attack, param
from leakaudit.inversion.attack import Attack
from leakaudit.inversion.labels import last_layer, read_labels, soft_labels
from leakaudit.inversion.search import (
    adam,
    batched_search,
    feature_inversion,
    objectives,
    priors,
)
from leakaudit.inversion.search.adam import RateSchedule
from leakaudit.inversion.search.batched_search import FORMATS, SearchSchedule
from leakaudit.inversion.search.evaluate import Problems
from leakaudit.inversion.search.feature_inversion import Features
from leakaudit.inversion.search.objectives import Target
from leakaudit.inversion.search.optimise import Point, SearchRun

if TYPE_CHECKING:
    from leakaudit.tasks.task import Task

# The attack moves dummy inputs until the *difference* of their gradients at two models equals the
# observed one. Both dummy gradients are differentiated, each with its own sign (Yu 2023, section
# 5).
#
# For one sample, the attack starts with the last layer: one difference determines the label and the
# features exactly (`last_layer`). It then inverts the features, and finally refines the input with
# the whole difference. This order matters for ReLU. If two models are close, units that switch
# between them contribute most of the difference. The difference therefore jumps as the input moves,
# and a search that starts from noise stops at the first jump. Features are continuous.
#
# For several samples, or if the leak does not contain the last layer, every set of labels is tried:
# a few steps from a few starts rank the sets, the best ones are fitted, and signed Adam is tried if
# L-BFGS does not fit.

# L-BFGS steps for each candidate label and start. A choice: enough to rank the labels.
SCOUT = 10

# Total number of starts for all labels. If there are more labels than this, each has one start.
SCOUTS = 30

# Maximum number of sets of labels to try. Limits the running time.
LABELS = 100

# The best label is reported only if the residual of the next one is at least this many times its
# own (or the noise).
RIVAL = 2.0

# Relative residual of the features below which no other start is tried: the input is then correct
# except for details, and another start leads to the same one.
CLOSE = 0.01

# A search that ends with a residual of at most this many times the goal ends all others. Objectives
# are squared residuals.
ENOUGH = 10.0


@dataclass(frozen=True)
class _Candidate:
    """A search with one set of labels y."""

    y: Tensor
    run: SearchRun


@attack("differential")
@dataclass(frozen=True)
class Differential(Attack):
    """L2 between differences with L-BFGS in float64; starts from the last layer's features."""

    exact: ClassVar[bool] = False
    rank: ClassVar[int] = 1
    reads: ClassVar[str] = (
        "differences of gradients at known models, "
        "for few samples whose labels can be tried one by one"
    )
    paper: ClassVar[str] = (
        "Yu 2023, section 5 (gradient inversion from differences), "
        "with both gradients differentiated"
    )
    cost: ClassVar[str] = (
        "two or more double backward passes per evaluation; "
        "3 s for one sample of a small network on one core, 30 to 70 s for two"
    )

    labels: Sequence[int] = param((), "known labels, e.g. 3 or 3,1,4; default: found by the attack")
    rows: int = param(4, "maximum number of consecutive differences to fit at once")
    steps: int = param(300, "maximum number of L-BFGS steps (20 iterations each) per restart")
    restarts: int = param(
        3, "maximum number of starting points; the next is tried if ten times the goal is missed"
    )
    goal: float = param(3e-5, "relative residual at which the search stops")
    adam_steps: int = param(
        1200, "maximum number of signed-Adam steps if L-BFGS does not fit; 0 disables them"
    )
    rate: float = param(0.1, "first signed-Adam step in the data's units")
    tv: float = param(1e-2, "weight of total variation, relative to the cosine, in signed Adam")
    batch: int | None = param(
        None, "number of samples behind each gradient; default: as stated by the leak"
    )

    def refuses(self, leak: GradientLeak, task: Task) -> str | None:
        """Require differences at known models, and labels that can be tried one by one."""
        if leak.is_plain:
            return (
                "it fits differences of gradients, but this leak contains single gradients; "
                "use idlg or dlg"
            )
        why = objectives.missing(leak, self.batch)
        if why:
            return why
        if task.spec.loss == "squared":
            return "it tries every label, but the targets of loss 'squared' are continuous"
        if self.labels:
            return None
        batch = self.batch or leak.batch or 1
        n = soft_labels.count(task, batch)
        if n > LABELS:
            return (
                f"{batch} samples of {task.spec.classes} classes have {n} possible sets of labels "
                f"(maximum {LABELS}); set labels=…"
            )
        return None

    def __call__(self, leak: GradientLeak, task: Task, generator: Generator) -> Reconstruction:
        """Reconstruct the inputs.

        The certificate states whether they fit the differences, or the last layer's part of
        them.
        """
        batch = self.batch or leak.batch or 1
        target = objectives.target(leak, task, self.rows, torch.float64)
        known = read_labels.given(self.labels, task, batch)
        seen = last_layer.solve(target, task) if batch == 1 else None
        if seen is not None and (known is None or int(known) == seen[0]):
            found = self._by_features(leak, task, target, seen, generator)
            if found.certificate is Certificate.APPROXIMATE or expired():
                return found
            known = found.y
        tried = soft_labels.candidates(task, batch) if known is None else [known]
        return self._by_search(leak, task, target, tried, generator)

    def _by_features(
        self,
        leak: GradientLeak,
        task: Task,
        target: Target,
        seen: tuple[int, Features],
        generator: Generator,
    ) -> Reconstruction:
        """Invert the features, then fit the whole difference.

        If no start leads to a fit, the best inputs found are returned, judged by their
        features.
        """
        label, known = seen
        y = torch.tensor([label], device=task.device)
        residual = partial(objectives.misfit, target, task, y=y)
        note = ""
        runs: list[tuple[float, SearchRun]] = []
        for k in range(self.restarts):
            start = priors.start(task, 1, generator, "uniform", torch.float64)
            inverted = feature_inversion.invert(task, known, start, coarse=k % 2 == 0)
            whole = self._fit(target, task, y, inverted.point, self.steps)
            for run in (inverted, whole):
                runs.append((residual(priors.boxed(task, run.point[0])), run))
            left, best = min(runs, key=lambda r: r[0])
            if left <= objectives.FIT or expired():
                break
            if _of_features(task, known, priors.boxed(task, best.point[0])) <= CLOSE:
                break
        best = best.after(*(run for _, run in runs if run is not best))
        if left > objectives.FIT:
            residual = partial(_of_features, task, known)
            note = f"residual of the last layer's features (whole difference: {left:.2g}); "
        note = f"{note}features, L-BFGS {best}"
        return objectives.reconstruction(
            "differential", leak, task, target, best.point[0], y, residual, note
        )

    def _by_search(
        self,
        leak: GradientLeak,
        task: Task,
        target: Target,
        tried: list[Tensor],
        generator: Generator,
    ) -> Reconstruction:
        """Rank labels and starts by a few steps each, fit the best ones, then try signed Adam."""
        draw = partial(priors.start, task, len(tried[0]), generator, "uniform", torch.float64)
        starts = [draw() for _ in range(max(1, min(self.restarts, SCOUTS // len(tried))))]
        pairs: list[tuple[Tensor, Tensor]] = []
        for labels_tried in tried:
            pairs += [(labels_tried, x) for x in starts]
        done = self._scout(target, task, pairs)
        for scout in sorted(done, key=_objective_of)[: self.restarts]:
            fitted = self._fit(target, task, scout.y, scout.run.point, self.steps)
            done.append(_Candidate(scout.y, fitted))
            if fitted.objective <= ENOUGH**2 * self._goal(target) or expired():
                break
        best = min(done, key=_objective_of)
        fits = best.run.objective <= objectives.FIT**2
        if not fits and self.adam_steps and not expired():
            done.append(_Candidate(best.y, self._signed(target, task, best.y, draw())))
            best = min(done, key=_objective_of)
        others = [one for one in done if not torch.equal(one.y, best.y)]
        if others:
            done.append(self._rival(target, task, best.run, others))
            best = min(done, key=_objective_of)
        doubt = self._doubt(target, best, done)
        run = best.run.after(*(one.run for one in done if one.run is not best.run))
        note = f"{doubt}{len(tried)} sets of labels tried; {run}"
        residual = partial(objectives.misfit, target, task, y=best.y)
        y = None if doubt else best.y
        return objectives.reconstruction(
            "differential", leak, task, target, best.run.point[0], y, residual, note
        )

    def _scout(
        self, target: Target, task: Task, pairs: list[tuple[Tensor, Tensor]]
    ) -> list[_Candidate]:
        """Search a few steps from each label and start, in one batch."""
        number = len(pairs)
        y = torch.stack([pair[0] for pair in pairs])
        x = torch.stack([pair[1] for pair in pairs])
        goal = torch.full((number,), self._goal(target), dtype=torch.float64, device=task.device)
        same = [t.expand(number, *t.shape[1:]) for t in objectives.stacked([target])]
        objective = partial(_objective, task, target.columns)
        problems = Problems(objective, (*same, y), goal, task.vectorised)
        schedule = SearchSchedule(SCOUT, formats=FORMATS["float64"])
        found = dict(batched_search.search(problems, (x,), schedule, "differential: labels"))
        return [_Candidate(pair[0], found[k]) for k, pair in enumerate(pairs)]

    def _rival(
        self, target: Target, task: Task, best: SearchRun, others: list[_Candidate]
    ) -> _Candidate:
        """Search the most promising other label twice as long as the best one.

        The search starts from the other label's own best point, or from the best label's
        point if that fits it better.
        """
        starts = list(others)
        for one in others:
            left = objectives.misfit(target, task, best.point[0], one.y)
            starts.append(_Candidate(one.y, replace(best, objective=left**2)))
        start = min(starts, key=_objective_of)
        steps = min(self.steps, 2 * best.steps)
        return _Candidate(start.y, self._fit(target, task, start.y, start.run.point, steps))

    def _doubt(self, target: Target, best: _Candidate, done: list[_Candidate]) -> str:
        """Explain for the note why the best label is uncertain; empty if it is certain or given."""
        rivals = [one.run.objective for one in done if not torch.equal(one.y, best.y)]
        if not rivals:
            return ""
        if expired():
            return "not enough time to compare labels; "
        left = best.run.objective
        if left > max(objectives.FIT, 2 * target.noise) ** 2:
            return "no label fits; "
        enough = max(ENOUGH**2 * self.goal**2, RIVAL**2 * max(left, target.noise**2))
        return "" if min(rivals) > enough else "another label fits equally well; "

    def _fit(self, target: Target, task: Task, y: Tensor, start: Point, steps: int) -> SearchRun:
        objective = partial(objectives.l2, target, task, y=y)
        return batched_search.lbfgs(objective, start, steps, self._goal(target), "differential")

    def _goal(self, target: Target) -> float:
        """Return the squared residual at which a search stops."""
        return max(self.goal, target.noise) ** 2

    def _signed(self, target: Target, task: Task, y: Tensor, start: Tensor) -> SearchRun:
        """Minimise cosine and total variation with signed Adam; the objective is that of L-BFGS."""

        def objective(x: Tensor) -> Tensor:
            return objectives.cosine(target, task, x, y) + self.tv * priors.total_variation(x)

        (run,) = adam.minimise(
            Problems.single(objective, (start,)),
            start.flatten()[None],
            RateSchedule(self.adam_steps, self.rate, "hard", stages=True),
            partial(priors.boxed, task),
            "differential: signed Adam",
        )
        return replace(run, objective=objectives.misfit(target, task, run.point[0], y) ** 2)


def _objective_of(candidate: _Candidate) -> float:
    return candidate.run.objective


def _objective(task: Task, columns: slice, given: Point, point: Point) -> Tensor:
    """Return the squared relative residual of each problem (see `Problems`)."""
    theta, mixing, aim, y = given
    found = objectives.mixed(task.again, columns, theta, mixing, point[0], y)
    return objectives.squared(found, aim)


def _of_features(task: Task, known: Features, x: Tensor) -> float:
    """Return the relative residual of the features."""
    return float(feature_inversion.misfit(task, known, x).detach().sqrt())
