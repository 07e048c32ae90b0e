"""The differential gradient attack: dummy inputs are moved until the *difference* of their gradients at two models is the one overheard.

Both dummy gradients are differentiated, each with its own sign. For one sample the last layer comes first: one difference settles
its label and its features exactly (`lastlayer`), the features are inverted, and the whole difference polishes. That order matters for
ReLU: when two models are close, units that switch between them make most of the difference, it jumps as the input moves, and a search
that starts from noise stops at the first jump; features are continuous.
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
    batched_search,
    feature_inversion,
    objectives,
    optimise,
    priors,
)
from leakaudit.inversion.search.batched_search import FORMATS, Schedule
from leakaudit.inversion.search.evaluate import Problems
from leakaudit.inversion.search.feature_inversion import Known
from leakaudit.inversion.search.objectives import Gradients, Target
from leakaudit.inversion.search.optimise import Run
from leakaudit.leak import GradientLeak
from leakaudit.progress import expired
from leakaudit.reconstruction import Certificate, Reconstruction
from leakaudit.registry import attack, param

if TYPE_CHECKING:
    from leakaudit.tasks.task import Task

SCOUT = 10  # L-BFGS steps for each candidate label and start
SCOUTS = 30  # of them, where there are fewer labels; else one start a label
LABELS = 100  # most candidates
RIVAL = 2.0  # least residual of the next label over the best one's (or the noise) for a label to be reported
CLOSE = 0.01  # relative residual of the features after which no other start is tried


@attack("differential")
@dataclass(frozen=True)
class Differential:
    """L2 between differences with L-BFGS in float64, from the last layer's features where they are settled; else signed Adam too."""

    exact: ClassVar[bool] = False
    rank: ClassVar[int] = 1
    reads: ClassVar[str] = (
        "differences of gradients at known models, few samples with labels that can be tried one by one"
    )
    paper: ClassVar[str] = (
        "Yu 2023, section 5 (gradient inversion from differences), with both gradients differentiated"
    )
    cost: ClassVar[str] = (
        "two or more double backward passes an evaluation; 5 to 30 s for a small network on one core"
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
            return "it fits differences of gradients, and this leak holds single gradients; use idlg or dlg"
        if why := objectives.missing(leak, self.batch):
            return why
        if task.spec.loss == "squared":
            return "it tries every label, and loss 'squared' has a continuum of them"
        batch = self.batch or leak.batch or 1
        if not self.labels and (n := labels.count(task, batch)) > LABELS:
            return f"{batch} samples of {task.spec.classes} classes make {n} sets of labels to try (at most {LABELS}); set labels=…"
        return None

    def __call__(self, leak: GradientLeak, task: Task, generator: Generator) -> Reconstruction:
        """Reconstruct the inputs; the certificate says whether they fit the differences, or the last layer's part of them."""
        if why := self.refuses(leak, task):
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
        return self._by_search(
            leak,
            task,
            target,
            labels.candidates(task, batch) if known is None else [known],
            generator,
        )

    def _by_features(
        self, leak: GradientLeak, task: Task, target: Target, known: Known, generator: Generator
    ) -> Reconstruction:
        """Invert the features, then fit the whole difference; where that fits from no start, the best of the features' inputs counts."""
        y = torch.tensor([known.label], device=task.device)
        residual, note = partial(objectives.misfit, target, task, y=y), ""
        runs: list[tuple[float, Run]] = []
        for k in range(self.restarts):
            start = priors.start(task, 1, generator, "uniform", torch.float64)
            inverted = feature_inversion.invert(task, known, start, coarse=k % 2 == 0)
            whole = self._fit(target, task, y, inverted.point, self.steps)
            runs += [(residual(priors.boxed(task, run.point[0])), run) for run in (inverted, whole)]
            left, best = min(runs, key=lambda r: r[0])
            if (
                left <= objectives.FIT
                or expired()
                or _of_features(task, known, priors.boxed(task, best.point[0])) <= CLOSE
            ):
                break
        best = best.after(*(run for _, run in runs if run is not best))
        if left > objectives.FIT:
            residual = partial(_of_features, task, known)
            note = f"residual of the last layer's features, the whole difference keeps {left:.2g}; "
        return objectives.reconstruction(
            "differential",
            leak,
            task,
            target,
            best.point[0],
            y,
            residual,
            f"{note}features, L-BFGS {best}",
        )

    def _by_search(
        self,
        leak: GradientLeak,
        task: Task,
        target: Target,
        tried: list[Tensor],
        generator: Generator,
    ) -> Reconstruction:
        """Rank labels and starts by a few steps each, fit the best, and try signed Adam where none fits."""
        draw = partial(priors.start, task, len(tried[0]), generator, "uniform", torch.float64)
        starts = [draw() for _ in range(max(1, min(self.restarts, SCOUTS // len(tried))))]
        done = self._scout(target, task, [(y, x) for y in tried for x in starts])
        for y, scout in sorted(done, key=lambda d: d[1].objective)[: self.restarts]:
            done.append((y, self._fit(target, task, y, scout.point, self.steps)))
            if done[-1][1].objective <= 100 * self._goal(target) or expired():
                break
        y, best = min(done, key=lambda d: d[1].objective)
        if best.objective > objectives.FIT**2 and self.adam_steps and not expired():
            done.append((y, self._signed(target, task, y, draw())))
            y, best = min(done, key=lambda d: d[1].objective)
        if others := [d for d in done if not torch.equal(d[0], y)]:
            done.append(self._rival(target, task, best, others))
            y, best = min(done, key=lambda d: d[1].objective)
        doubt = self._doubt(target, y, best, done)
        note = f"{doubt}{len(tried)} labels tried; {best.after(*(run for _, run in done if run is not best))}"
        residual = partial(objectives.misfit, target, task, y=y)
        return objectives.reconstruction(
            "differential", leak, task, target, best.point[0], None if doubt else y, residual, note
        )

    def _scout(
        self, target: Target, task: Task, pairs: list[tuple[Tensor, Tensor]]
    ) -> list[tuple[Tensor, Run]]:
        """Search a few steps from each label and start, all together."""
        y, x = (torch.stack(parts) for parts in zip(*pairs, strict=True))
        goal = torch.full(
            (len(pairs),), self._goal(target), dtype=torch.float64, device=task.device
        )
        given = (*(t.expand(len(pairs), *t.shape[1:]) for t in objectives.stacked([target])), y)
        problems = Problems(task, partial(_objective, target.columns), given, goal)
        schedule = Schedule(SCOUT, formats=FORMATS["float64"])
        found = dict(batched_search.search(problems, (x,), schedule, "differential: labels"))
        return [(pair[0], found[k]) for k, pair in enumerate(pairs)]

    def _rival(
        self, target: Target, task: Task, best: Run, others: list[tuple[Tensor, Run]]
    ) -> tuple[Tensor, Run]:
        """Search the most promising other label twice as long as the best one, from its own best point or from the best label's."""
        shared = [
            (y, replace(best, objective=objectives.misfit(target, task, best.point[0], y) ** 2))
            for y, _ in others
        ]
        y, start = min([*others, *shared], key=lambda d: d[1].objective)
        return y, self._fit(target, task, y, start.point, min(self.steps, 2 * best.steps))

    def _doubt(self, target: Target, y: Tensor, best: Run, done: list[tuple[Tensor, Run]]) -> str:
        """Why label y is not settled, for the note; empty where it is, as a label that was known."""
        rivals = [run.objective for other, run in done if not torch.equal(other, y)]
        if not rivals:
            return ""
        if expired():
            return "no time to compare labels; "
        if best.objective > max(objectives.FIT, 2 * target.noise) ** 2:
            return "no label fits; "
        enough = max(100 * self.goal**2, RIVAL**2 * max(best.objective, target.noise**2))
        return "" if min(rivals) > enough else "another label fits as well; "

    def _fit(self, target: Target, task: Task, y: Tensor, start: optimise.Point, steps: int) -> Run:
        """L-BFGS on the whole difference."""
        return optimise.lbfgs(
            partial(objectives.l2, target, task, y=y),
            start,
            steps,
            self._goal(target),
            "differential",
        )

    def _goal(self, target: Target) -> float:
        """Squared residual at which a search stops."""
        return max(self.goal, target.noise) ** 2

    def _signed(self, target: Target, task: Task, y: Tensor, start: Tensor) -> Run:
        """Signed Adam on cosine and total variation; the run's objective is the squared residual, as for L-BFGS."""

        def objective(x: Tensor) -> Tensor:
            return objectives.cosine(target, task, x, y) + self.tv * priors.total_variation(x)

        run = optimise.signed_adam(
            objective,
            (start,),
            self.adam_steps,
            self.rate,
            partial(priors.boxed, task),
            "differential: signed Adam",
        )
        return replace(run, objective=objectives.misfit(target, task, run.point[0], y) ** 2)


def _objective(
    columns: slice, gradients: Gradients, given: optimise.Point, point: optimise.Point
) -> Tensor:
    theta, mixing, aim, y = given
    return objectives.squared(gradients, columns, theta, mixing, aim, point[0], y)


def _of_features(task: Task, known: Known, x: Tensor) -> float:
    """Relative residual of the features."""
    return float(feature_inversion.misfit(task, known, x).detach().sqrt())
