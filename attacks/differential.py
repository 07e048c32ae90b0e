"""The differential gradient attack: inputs whose gradients at two models differ as overheard.

Dummy inputs are moved until the *difference* of their gradients is the one on the wire. Both dummy
gradients are differentiated, each with its own sign (Yu 2023, section 5).

For one sample the last layer comes first: one difference settles its label and its features exactly
(`last_layer`), the features are inverted, and the whole difference polishes. That order matters for
ReLU. If two models are close, units that switch between them make most of the difference. It jumps
as the input moves, and a search that starts from noise stops at the first jump. Features are
continuous.

For several samples, or if the last layer is not in the leak, every set of labels is tried: a few
steps from a few starts rank them, the best are fitted, and signed Adam tries where L-BFGS does not
fit.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Generator, Tensor

from leakaudit.errors import AttackError
from leakaudit.inversion.labels import label_signs as labels
from leakaudit.inversion.labels import last_layer
from leakaudit.inversion.search import (
    adam,
    batched_search,
    feature_inversion,
    objectives,
    optimise,
    priors,
)
from leakaudit.inversion.search.batched_search import FORMATS, SearchSchedule
from leakaudit.inversion.search.evaluate import Problems
from leakaudit.inversion.search.feature_inversion import Known
from leakaudit.inversion.search.objectives import Gradients, Target
from leakaudit.inversion.search.optimise import Point, Run
from leakaudit.leak import GradientLeak
from leakaudit.progress import expired
from leakaudit.reconstruction import Attack, Certificate, Reconstruction
from leakaudit.registry import attack, param

if TYPE_CHECKING:
    from leakaudit.tasks.task import Task

# L-BFGS steps for each candidate label and start. A choice: enough to rank labels.
SCOUT = 10

# Starts of all labels together. With more labels than that, each has one start.
SCOUTS = 30

# Most sets of labels that are tried. A limit of time.
LABELS = 100

# Residual that the next label must leave, in units of the best one's (or of the noise), for the
# best label to be reported.
RIVAL = 2.0

# Relative residual of the features below which no other start is tried: the input is then right but
# for details, and another start leads to the same one.
CLOSE = 0.01

# A search is good enough to end all others if its residual is this many times the goal. Objectives
# are squared residuals.
ENOUGH = 10.0


@dataclass(frozen=True)
class _Candidate:
    """A search with one set of labels y."""

    y: Tensor
    run: Run


@attack("differential")
@dataclass(frozen=True)
class Differential(Attack):
    """L2 between differences with L-BFGS in float64, from the last layer's features if possible.

    Attributes:
        labels: Known labels, joined by commas; empty to search them.
        rows: Most consecutive differences that are fitted at once.
        steps: Most L-BFGS steps of 20 iterations, for each start.
        restarts: Most starting points. The next one is tried if ten times the goal is missed.
        goal: Relative residual at which the search stops.
        adam_steps: Most signed-Adam steps if L-BFGS does not fit, 0 for none.
        rate: First signed-Adam step in the data's units.
        tv: Weight of total variation beside the cosine in signed Adam.
        batch: Samples behind each gradient; None takes what the leak says.
    """

    exact: ClassVar[bool] = False
    rank: ClassVar[int] = 1
    reads: ClassVar[str] = (
        "differences of gradients at known models, "
        "few samples with labels that can be tried one by one"
    )
    paper: ClassVar[str] = (
        "Yu 2023, section 5 (gradient inversion from differences), "
        "with both gradients differentiated"
    )
    cost: ClassVar[str] = (
        "two or more double backward passes an evaluation; "
        "5 to 30 s for a small network on one core"
    )

    labels: str = param("", "known labels, e.g. 3 or 3,1,4; searched where not given")
    rows: int = param(4, "most consecutive differences that are fitted at once")
    steps: int = param(300, "most L-BFGS steps of 20 iterations, each restart")
    restarts: int = param(
        3, "most starting points; the next is tried where ten times the goal was missed"
    )
    goal: float = param(3e-5, "relative residual at which the search stops")
    adam_steps: int = param(1200, "most signed-Adam steps where L-BFGS does not fit, 0 for none")
    rate: float = param(0.1, "first signed-Adam step in the data's units")
    tv: float = param(1e-2, "weight of total variation beside the cosine in signed Adam")
    batch: int | None = param(
        None, "samples behind each gradient; as the leak says where not given"
    )

    def refuses(self, leak: GradientLeak, task: Task) -> str | None:
        """Need differences at known models, and labels that can be tried one by one."""
        if leak.is_plain:
            return (
                "it fits differences of gradients, and this leak holds single gradients; "
                "use idlg or dlg"
            )
        why = objectives.missing(leak, self.batch)
        if why:
            return why
        if task.spec.loss == "squared":
            return "it tries every label, and loss 'squared' has a continuum of them"
        if self.labels:
            return None
        batch = self.batch or leak.batch or 1
        n = labels.count(task, batch)
        if n > LABELS:
            return (
                f"{batch} samples of {task.spec.classes} classes make {n} sets of labels to try "
                f"(at most {LABELS}); set labels=…"
            )
        return None

    def __call__(self, leak: GradientLeak, task: Task, generator: Generator) -> Reconstruction:
        """Reconstruct the inputs.

        The certificate says whether they fit the differences, or the last layer's part of them.
        """
        why = self.refuses(leak, task)
        if why:
            raise AttackError(f"differential cannot use this leak: {why}")
        batch = self.batch or leak.batch or 1
        target = objectives.target(leak, task, self.rows, torch.float64)
        known = labels.given(self.labels, task, batch)
        seen = last_layer.solve(target, task) if batch == 1 else None
        if seen is not None and (known is None or int(known) == seen.label):
            found = self._by_features(leak, task, target, seen, generator)
            if found.certificate is Certificate.APPROXIMATE or expired():
                return found
            known = found.y
        tried = labels.candidates(task, batch) if known is None else [known]
        return self._by_search(leak, task, target, tried, generator)

    def _by_features(
        self, leak: GradientLeak, task: Task, target: Target, known: Known, generator: Generator
    ) -> Reconstruction:
        """Invert the features, then fit the whole difference.

        If that fits from no start, the best of the inputs counts, judged by their features.
        """
        y = torch.tensor([known.label], device=task.device)
        residual = partial(objectives.misfit, target, task, y=y)
        note = ""
        runs: list[tuple[float, Run]] = []
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
            note = f"residual of the last layer's features, the whole difference keeps {left:.2g}; "
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
        """Rank labels and starts by a few steps each, fit the best, then try signed Adam."""
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
        note = f"{doubt}{len(tried)} labels tried; {run}"
        residual = partial(objectives.misfit, target, task, y=best.y)
        y = None if doubt else best.y
        return objectives.reconstruction(
            "differential", leak, task, target, best.run.point[0], y, residual, note
        )

    def _scout(
        self, target: Target, task: Task, pairs: list[tuple[Tensor, Tensor]]
    ) -> list[_Candidate]:
        """Search a few steps from each label and start, all together."""
        number = len(pairs)
        y = torch.stack([pair[0] for pair in pairs])
        x = torch.stack([pair[1] for pair in pairs])
        goal = torch.full((number,), self._goal(target), dtype=torch.float64, device=task.device)
        same = [t.expand(number, *t.shape[1:]) for t in objectives.stacked([target])]
        problems = Problems(task, partial(_objective, target.columns), (*same, y), goal)
        schedule = SearchSchedule(SCOUT, formats=FORMATS["float64"])
        found = dict(batched_search.search(problems, (x,), schedule, "differential: labels"))
        return [_Candidate(pair[0], found[k]) for k, pair in enumerate(pairs)]

    def _rival(self, target: Target, task: Task, best: Run, others: list[_Candidate]) -> _Candidate:
        """Search the most promising other label twice as long as the best one.

        It starts from its own best point, or from the best label's if that fits it better.
        """
        starts = list(others)
        for one in others:
            left = objectives.misfit(target, task, best.point[0], one.y)
            starts.append(_Candidate(one.y, replace(best, objective=left**2)))
        start = min(starts, key=_objective_of)
        steps = min(self.steps, 2 * best.steps)
        return _Candidate(start.y, self._fit(target, task, start.y, start.run.point, steps))

    def _doubt(self, target: Target, best: _Candidate, done: list[_Candidate]) -> str:
        """Explain why the best label is not settled, for the note; empty if it is, or was known."""
        rivals = [one.run.objective for one in done if not torch.equal(one.y, best.y)]
        if not rivals:
            return ""
        if expired():
            return "no time to compare labels; "
        left = best.run.objective
        if left > max(objectives.FIT, 2 * target.noise) ** 2:
            return "no label fits; "
        enough = max(ENOUGH**2 * self.goal**2, RIVAL**2 * max(left, target.noise**2))
        return "" if min(rivals) > enough else "another label fits as well; "

    def _fit(self, target: Target, task: Task, y: Tensor, start: Point, steps: int) -> Run:
        """L-BFGS on the whole difference."""
        objective = partial(objectives.l2, target, task, y=y)
        return optimise.lbfgs(objective, start, steps, self._goal(target), "differential")

    def _goal(self, target: Target) -> float:
        """Squared residual at which a search stops."""
        return max(self.goal, target.noise) ** 2

    def _signed(self, target: Target, task: Task, y: Tensor, start: Tensor) -> Run:
        """Signed Adam on cosine and total variation.

        The run's objective is the squared residual, as for L-BFGS.
        """

        def objective(x: Tensor) -> Tensor:
            return objectives.cosine(target, task, x, y) + self.tv * priors.total_variation(x)

        run = adam.signed_adam(
            objective,
            (start,),
            self.adam_steps,
            self.rate,
            partial(priors.boxed, task),
            "differential: signed Adam",
        )
        return replace(run, objective=objectives.misfit(target, task, run.point[0], y) ** 2)


def _objective_of(candidate: _Candidate) -> float:
    """The key by which candidates are ranked."""
    return candidate.run.objective


def _objective(columns: slice, gradients: Gradients, given: Point, point: Point) -> Tensor:
    """Squared relative residual of each problem (see `Problems`)."""
    theta, mixing, aim, y = given
    return objectives.squared(gradients, columns, theta, mixing, aim, point[0], y)


def _of_features(task: Task, known: Known, x: Tensor) -> float:
    """Relative residual of the features."""
    return float(feature_inversion.misfit(task, known, x).detach().sqrt())
