"""The attack simulation: every point of the grid x seed x adversary x attack x node, scored."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median

import torch

from leakaudit._util.assignment import match
from leakaudit._util.jobs import IN_PROCESS, Pool
from leakaudit._util.seeds import child
from leakaudit.core.adversary import Adversary
from leakaudit.core.errors import AttackError
from leakaudit.core.leak import GradientLeak
from leakaudit.core.progress import expired, step
from leakaudit.core.quantities import Quantity
from leakaudit.core.reconstruction import Reconstruction
from leakaudit.core.trace import Trace, Truth
from leakaudit.inversion import attacking
from leakaudit.judging.auditing.levels import Level
from leakaudit.judging.auditing.plan import AuditPlan
from leakaudit.protocols import recording
from leakaudit.reporting.results.model import Statistics
from leakaudit.scoring import metrics, scoring
from leakaudit.scoring.scoring import Score
from leakaudit.tasks import data
from leakaudit.tasks.task import Task
from leakaudit.views.extraction import hearing
from leakaudit.views.extraction.deduction import Deduction


@dataclass(frozen=True)
class _SimulatedReconstruction:
    level: int  # index in the grid
    seed: int  # number of the run
    adversary: Adversary  # the adversary whose view was attacked
    attack: str  # name of the requested attack
    leak: GradientLeak
    found: Reconstruction
    score: Score  # score of all records of the node
    # whether the first record was identified among `candidates`; None if this is meaningless
    identified: bool | None
    candidates: int  # number of records among which it had to be identified


@dataclass(frozen=True)
class _SkippedNode:
    level: int  # index in the grid
    seed: int  # number of the run
    adversary: Adversary  # the adversary whose view was attacked
    attack: str  # name of the requested attack
    node: int
    why: str  # why there is no reconstruction
    # score of an attack that finds nothing, so that refusing some nodes neither improves nor
    # worsens any mean
    score: Score


@dataclass(frozen=True)
class SimulationResults:
    """The results of all attacks."""

    outcomes: tuple[_SimulatedReconstruction, ...]
    skipped: tuple[_SkippedNode, ...]  # nodes without a reconstruction
    trace: Trace  # trace of the first run
    truth: Truth  # truth of the first run
    complete: bool  # false if the time limit or Ctrl-C ended the work

    def values(
        self, one: Quantity, level: int, adversary: Adversary, attack: str
    ) -> Statistics | None:
        """Return a quantity over all records of a cell; None if none was attacked or it lacks it.

        Missed records count as blind guesses, also those of nodes without a reconstruction.
        """
        scores = self.scores(level, adversary, attack)
        values = [value for score in scores for value in score.counted(one.key)]
        if not values:
            return None
        return Statistics(
            images=float(sum(len(score.matched) for score in scores)),
            best=one.better(values),
            median=median(values),
            mean=fmean(values),
        )

    def made(self, level: int, adversary: Adversary, attack: str) -> list[_SimulatedReconstruction]:
        """Return the reconstructions of a cell."""
        cell = (level, adversary, attack)
        return [o for o in self.outcomes if (o.level, o.adversary, o.attack) == cell]

    def scores(self, level: int, adversary: Adversary, attack: str) -> list[Score]:
        """Return the score of every node and seed of a cell, including those without a result."""
        found = [outcome.score for outcome in self.made(level, adversary, attack)]
        return [*found, *(missed.score for missed in self.refused(level, adversary, attack))]

    def refused(
        self, level: int, adversary: Adversary, attack: str, node: int | None = None
    ) -> list[_SkippedNode]:
        """Return the nodes and seeds of a cell, or of one of its nodes, without a result."""
        cell = (level, adversary, attack)
        found = [s for s in self.skipped if (s.level, s.adversary, s.attack) == cell]
        return found if node is None else [s for s in found if s.node == node]


@dataclass(frozen=True)
class _RunJob:
    plan: AuditPlan
    grid: Sequence[Level]
    nodes: Sequence[int]
    device: str  # device on which attacks compute

    def __call__(
        self, run: tuple[int, int]
    ) -> tuple[list[_SimulatedReconstruction | _SkippedNode], bool]:
        if expired():
            return [], False
        return list(self.results(run, self.recorded(run))), True

    def recorded(self, run: tuple[int, int]) -> tuple[Trace, Truth]:
        level, seed = run
        recorder = recording.record(seeded(self.grid[level].ready, seed), None)
        return recorder.trace, recorder.truth_record

    def results(
        self, run: tuple[int, int], recorded: tuple[Trace, Truth]
    ) -> Iterator[_SimulatedReconstruction | _SkippedNode]:
        trace, truth = recorded
        task = Task.build(trace.task, device=self.device)
        return _attacks(self.plan, *run, trace, truth, task, self.nodes)


def seeded(ready: recording.Plan, seed: int) -> recording.Plan:
    """Return the plan of one run; run 0 is the scenario's own."""
    scenario = ready.scenario
    chosen = child(scenario.seed, seed) if seed else scenario.seed
    random = dict(recording.generators(chosen, *recording.STREAMS))
    random["schedule"] = recording.generators(scenario.seed, *recording.STREAMS)["schedule"]
    rows = data.split(
        ready.source, scenario.nodes, scenario.samples, scenario.split, random["split"]
    )
    return replace(ready, rows=rows, random=random)


def simulate(
    plan: AuditPlan,
    grid: Sequence[Level],
    nodes: Sequence[int],
    device: str = "cpu",
    executor: Pool = IN_PROCESS,
) -> SimulationResults:
    """Run the whole grid; Ctrl-C and the time limit keep the results so far."""
    job = _RunJob(plan, grid, nodes, device)
    runs = [(k, seed) for k in range(len(grid)) for seed in range(plan.seeds)]
    each = len(plan.adversaries) * len(plan.attacks) * len(nodes)
    found: dict[tuple[int, int], list[_SimulatedReconstruction | _SkippedNode]] = {
        run: [] for run in runs
    }
    first = job.recorded(runs[0])
    complete = True
    done = 0
    try:
        if executor.inside:
            for run in runs:
                recorded = first if run == runs[0] else job.recorded(run)
                if expired():
                    complete = False
                    continue
                for one in job.results(run, recorded):
                    done += 1
                    step("attacks", done, len(runs) * each)
                    found[run].append(one)
        else:
            for outcome in executor.completed(job, runs):
                found[runs[outcome.place]], begun = outcome.result()
                complete = complete and begun
                done += each
                step("attacks", done, len(runs) * each)
    except KeyboardInterrupt:
        complete = False
    made = [one for run in runs for one in found[run]]
    outcomes = tuple(one for one in made if isinstance(one, _SimulatedReconstruction))
    skipped = tuple(one for one in made if isinstance(one, _SkippedNode))
    return SimulationResults(outcomes, skipped, *first, complete)


def _attacks(
    plan: AuditPlan,
    level: int,
    seed: int,
    trace: Trace,
    truth: Truth,
    task: Task,
    nodes: Sequence[int],
) -> Iterator[_SimulatedReconstruction | _SkippedNode]:
    for adversary in plan.parsed:
        observed = Deduction(trace, adversary)
        mine = [n for n in nodes if n not in adversary.corrupt]
        leaks = hearing.deduce(observed, mine, plan.gradients)
        for node, why in leaks.undetermined.items():
            for name in plan.attacks:
                missed = scoring.nothing(node, name, truth)
                yield _SkippedNode(level, seed, adversary, name, node, why, missed)
        for leak in leaks:
            for j, name in enumerate(plan.attacks):
                chosen = child(plan.scenario.seed, seed, leak.node, j)
                random = torch.Generator().manual_seed(chosen)
                settings = plan.set.get(name, {})
                try:
                    found = attacking.attack_one(leak, task, name, random, **settings)
                except AttackError as error:
                    missed = scoring.nothing(leak.node, name, truth)
                    yield _SkippedNode(level, seed, adversary, name, leak.node, str(error), missed)
                    continue
                (score,) = scoring.score([found], truth, own=True)
                hit, among = identified(found, truth)
                # From here on, the inputs count for this node only, as its score does.
                alone = replace(found, others=())
                yield _SimulatedReconstruction(
                    level, seed, adversary, name, leak, alone, score, hit, among
                )


def identified(found: Reconstruction, truth: Truth) -> tuple[bool | None, int]:
    """Return whether the node's first record is identified by its image, and among how many.

    The image must be closest to it of all records that no other node holds. None with fewer than
    two candidates, which are then not drawn uniformly.
    """
    x, _ = truth.of(*found.nodes)
    records = torch.cat([x, truth.pool.to(x)])
    if len(records) < 2:
        return None, 1
    images = found.x.detach().cpu().to(x)
    pairs = match(images, x)
    owners = truth.node[truth.owned(found.nodes)]
    first = int((owners == found.node).nonzero()[0])
    at = (pairs.true == first).nonzero().flatten()
    if not len(at):
        return False, len(records)
    rank, _ = metrics.identification(images[pairs.found[at]], x[first : first + 1], records)
    return bool(rank[0] == 1), len(records)


def near(outcome: _SimulatedReconstruction, psnr: float) -> bool:
    """Return whether the first record reached the given PSNR."""
    column = outcome.score.psnr
    if not column or column[0] is None:
        return False
    return float(column[0]) >= psnr
