"""The attack simulation: every point of the grid x seed x adversary x attack x node, scored."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean, median

import torch

from leakaudit._util.assignment import match
from leakaudit.adversary import Adversary
from leakaudit.auditing.levels import Level
from leakaudit.auditing.plan import AuditPlan
from leakaudit.auditing.runs import child, recorded, seeded
from leakaudit.errors import AttackError
from leakaudit.extraction import hearing
from leakaudit.extraction.deduction import Deduction
from leakaudit.inversion import attacking
from leakaudit.leak import GradientLeak
from leakaudit.progress import expired, step
from leakaudit.reconstruction import Reconstruction
from leakaudit.results.model import CurveValues
from leakaudit.scoring import metrics, scoring
from leakaudit.scoring.scoring import Score
from leakaudit.tasks.task import Task
from leakaudit.trace import Trace, Truth


@dataclass(frozen=True)
class Outcome:
    """One reconstruction.

    Attributes:
        level: Place in the grid.
        seed: Number of the run.
        adversary: Whose view was attacked.
        attack: As it was asked for.
        leak: What was attacked.
        found: What came back.
        score: Of all records of the node.
        identified: Whether the first record was, among `candidates`; None if that means nothing.
        candidates: Records among which it had to be identified.
    """

    level: int
    seed: int
    adversary: Adversary
    attack: str
    leak: GradientLeak
    found: Reconstruction
    score: Score
    identified: bool | None
    candidates: int


@dataclass(frozen=True)
class Skipped:
    """A node that an attack refused, or of which nothing is determined.

    Attributes:
        level: Place in the grid.
        seed: Number of the run.
        adversary: Whose view was attacked.
        attack: As it was asked for.
        node: The node.
        why: Why nothing came back.
        score: As if the attack had found nothing, so that refusing on some nodes changes no mean
            for the better or the worse.
    """

    level: int
    seed: int
    adversary: Adversary
    attack: str
    node: int
    why: str
    score: Score


@dataclass(frozen=True)
class Simulated:
    """All that was tried.

    Attributes:
        outcomes: What came back.
        skipped: What did not.
        trace: Of the first run.
        truth: Of the first run.
        complete: False if time or Ctrl-C ended the work.
    """

    outcomes: tuple[Outcome, ...]
    skipped: tuple[Skipped, ...]
    trace: Trace
    truth: Truth
    complete: bool

    def values(
        self, metric: str, level: int, adversary: Adversary, attack: str
    ) -> CurveValues | None:
        """Return best, median and mean of a metric over all records of a cell.

        Records that were missed count as blind guesses; those of nodes that were refused are among
        them.

        Args:
            metric: Name of a column of a `Score`.
            level: Place in the grid.
            adversary: Of the cell.
            attack: Of the cell.

        Returns:
            The three numbers; None if no record came back.
        """
        scores = self.scores(level, adversary, attack)
        if all(score.not_recovered == len(score.matched) for score in scores):
            return None
        values = [value for score in scores for value in score.counted(metric)]
        if not values:
            return None
        return CurveValues(
            images=float(sum(len(score.matched) for score in scores)),
            best=max(values),
            median=median(values),
            mean=fmean(values),
        )

    def made(self, level: int, adversary: Adversary, attack: str) -> list[Outcome]:
        """Return what came back of the nodes and seeds of a cell.

        Args:
            level: Place in the grid.
            adversary: Of the cell.
            attack: Of the cell.
        """
        cell = (level, adversary, attack)
        return [o for o in self.outcomes if (o.level, o.adversary, o.attack) == cell]

    def scores(self, level: int, adversary: Adversary, attack: str) -> list[Score]:
        """Return the score of every node and seed of a cell, refused ones included.

        Args:
            level: Place in the grid.
            adversary: Of the cell.
            attack: Of the cell.
        """
        found = [outcome.score for outcome in self.made(level, adversary, attack)]
        return [*found, *(missed.score for missed in self.refused(level, adversary, attack))]

    def refused(
        self, level: int, adversary: Adversary, attack: str, node: int | None = None
    ) -> list[Skipped]:
        """Return the nodes and seeds of a cell that gave nothing to score.

        Args:
            level: Place in the grid.
            adversary: Of the cell.
            attack: Of the cell.
            node: One node of it; None for all.
        """
        cell = (level, adversary, attack)
        found = [s for s in self.skipped if (s.level, s.adversary, s.attack) == cell]
        return found if node is None else [s for s in found if s.node == node]


def simulate(
    plan: AuditPlan, grid: Sequence[Level], nodes: Sequence[int], device: str = "cpu"
) -> Simulated:
    """Run the whole grid; Ctrl-C and the deadline keep what was found so far.

    Args:
        plan: Of the audit.
        grid: Its points.
        nodes: That are attacked.
        device: Where attacks compute.

    Raises:
        KeyboardInterrupt: Ctrl-C came before the first run was over.
    """
    outcomes: list[Outcome] = []
    skipped: list[Skipped] = []
    each = len(plan.adversaries) * len(plan.attacks) * len(nodes)
    total = len(grid) * plan.seeds * each
    done = 0
    complete = True
    first: tuple[Trace, Truth] | None = None
    try:
        for k, level in enumerate(grid):
            for seed in range(plan.seeds):
                recorder = recorded(seeded(level.ready, seed))
                trace = recorder.trace
                truth = recorder.truth_record
                first = first or (trace, truth)
                if expired():
                    complete = False
                    continue
                task = Task.build(trace.task, device=device)
                for one in _attacks(plan, k, seed, trace, truth, task, nodes):
                    done += 1
                    step("attacks", done, total)
                    if isinstance(one, Outcome):
                        outcomes.append(one)
                    else:
                        skipped.append(one)
    except KeyboardInterrupt:
        complete = False
    if first is None:
        raise KeyboardInterrupt
    return Simulated(tuple(outcomes), tuple(skipped), *first, complete)


def _attacks(
    plan: AuditPlan,
    level: int,
    seed: int,
    trace: Trace,
    truth: Truth,
    task: Task,
    nodes: Sequence[int],
) -> Iterator[Outcome | Skipped]:
    """Attack one recording as every adversary observes it."""
    for adversary in plan.parsed:
        observed = Deduction(trace, adversary)
        mine = [n for n in nodes if n not in adversary.corrupt]
        leaks = hearing.deduce(observed, mine, plan.gradients)
        for node, why in leaks.undetermined.items():
            for name in plan.attacks:
                missed = scoring.nothing(node, name, truth)
                yield Skipped(level, seed, adversary, name, node, why, missed)
        for leak in leaks:
            for j, name in enumerate(plan.attacks):
                chosen = child(plan.scenario.seed, seed, leak.node, j)
                random = torch.Generator().manual_seed(chosen)
                settings = plan.set.get(name, {})
                try:
                    found = attacking.attack_one(leak, task, name, random, **settings)
                except AttackError as error:
                    missed = scoring.nothing(leak.node, name, truth)
                    yield Skipped(level, seed, adversary, name, leak.node, str(error), missed)
                    continue
                (score,) = scoring.score([found], truth)
                hit, among = identified(found, truth)
                yield Outcome(level, seed, adversary, name, leak, found, score, hit, among)


def identified(found: Reconstruction, truth: Truth) -> tuple[bool | None, int]:
    """Return whether the node's first record is identified by its image.

    It is if it is nearest to that image among all records that no other node holds. The images of a
    batch are matched to its records, which counts as guesses.

    Args:
        found: Of one node.
        truth: Of the run.

    Returns:
        Whether, and among how many. None if there are fewer than two candidates: then the records
        are not drawn alike.
    """
    x, _ = truth.of(found.node)
    records = torch.cat([x, truth.pool.to(x)])
    if len(records) < 2:
        return None, 1
    images = found.x.detach().cpu().to(x)
    pairs = match(images, x)
    at = (pairs.true == 0).nonzero().flatten()
    if not len(at):
        return False, len(records)
    rank, _ = metrics.identification(images[pairs.found[at]], x[:1], records)
    return bool(rank[0] == 1), len(records)


def near(outcome: Outcome, psnr: float) -> bool:
    """Return whether the first record came back at least this near.

    Args:
        outcome: Of one node.
        psnr: How near, in dB.
    """
    column = outcome.score.psnr
    if not column or column[0] is None:
        return False
    return float(column[0]) >= psnr
