"""The attack simulation: every point of the grid x seed x adversary x attack x node, scored against the truth."""

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
from leakaudit.scoring import metrics, scoring
from leakaudit.scoring.scoring import Score
from leakaudit.tasks.task import Task
from leakaudit.trace import Trace, Truth


@dataclass(frozen=True)
class Outcome:
    """One reconstruction. level: place in the grid. attack: as it was asked for. identified: the first record, among `candidates`."""

    level: int
    seed: int
    adversary: str
    attack: str
    leak: GradientLeak
    found: Reconstruction
    score: Score
    identified: bool | None
    candidates: int


@dataclass(frozen=True)
class Skipped:
    """A node that an attack refused, or of which nothing is determined, and why.

    score: as if the attack had found nothing, so that refusing on some nodes changes no mean for the better or the worse.
    """

    level: int
    seed: int
    adversary: str
    attack: str
    node: int
    why: str
    score: Score


@dataclass(frozen=True)
class Simulated:
    """All that was tried. trace: of the first run. complete: False where time or Ctrl-C ended it."""

    outcomes: tuple[Outcome, ...]
    skipped: tuple[Skipped, ...]
    trace: Trace
    truth: Truth
    complete: bool

    def values(
        self, metric: str, level: int, adversary: str, attack: str
    ) -> dict[str, float] | None:
        """Best, median and mean of a metric over all records of a cell, missed ones as blind guesses; None if none came back.

        The records of nodes that were refused are among the missed ones.
        """
        scores = self.scores(level, adversary, attack)
        if all(score.not_recovered == len(score.matched) for score in scores):
            return None
        values = [value for score in scores for value in score.counted(metric)]
        return (
            {"best": max(values), "median": median(values), "mean": fmean(values)}
            if values
            else None
        )

    def scores(self, level: int, adversary: str, attack: str) -> list[Score]:
        """Return the score of every node and seed of a cell, refused ones included."""
        cell = (level, adversary, attack)
        made = [o.score for o in self.outcomes if (o.level, o.adversary, o.attack) == cell]
        return [*made, *(s.score for s in self.refused(level, adversary, attack))]

    def refused(
        self, level: int, adversary: str, attack: str, node: int | None = None
    ) -> list[Skipped]:
        """Return the nodes and seeds of a cell, or of one node in it, that gave nothing to score."""
        cell = (level, adversary, attack)
        found = [s for s in self.skipped if (s.level, s.adversary, s.attack) == cell]
        return found if node is None else [s for s in found if s.node == node]


def simulate(
    plan: AuditPlan, grid: Sequence[Level], nodes: Sequence[int], device: str = "cpu"
) -> Simulated:
    """Run the whole grid; Ctrl-C and the deadline keep what was found so far."""
    outcomes, skipped = list[Outcome](), list[Skipped]()
    total, done, complete = (
        len(grid) * plan.seeds * len(plan.adversaries) * len(plan.attacks) * len(nodes),
        0,
        True,
    )
    first: tuple[Trace, Truth] | None = None
    try:
        for k, level in enumerate(grid):
            for seed in range(plan.seeds):
                recorder = recorded(seeded(level.ready, seed))
                first = first or (recorder.trace, recorder.truth_record)
                if expired():
                    complete = False
                    continue
                task = Task.build(recorder.trace.task, device=device)
                for one in _attacks(
                    plan, k, seed, recorder.trace, recorder.truth_record, task, nodes
                ):
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
    """Attack one recording as every adversary hears it."""
    for who in plan.adversaries:
        adversary = Adversary.parse(who)
        heard = Deduction(trace, adversary)
        mine = [n for n in nodes if n not in adversary.corrupt]
        leaks = hearing.deduce(heard, mine, plan.gradients)
        for node, why in leaks.undetermined.items():
            for name in plan.attacks:
                yield Skipped(level, seed, who, name, node, why, scoring.nothing(node, name, truth))
        for leak in leaks:
            for j, name in enumerate(plan.attacks):
                random = torch.Generator().manual_seed(
                    child(plan.scenario.seed, seed, leak.node, j)
                )
                try:
                    found = attacking.attack_one(leak, task, name, random, **plan.set.get(name, {}))
                except AttackError as error:
                    missed = scoring.nothing(leak.node, name, truth)
                    yield Skipped(level, seed, who, name, leak.node, str(error), missed)
                    continue
                (score,) = scoring.score([found], truth)
                yield Outcome(level, seed, who, name, leak, found, score, *identified(found, truth))


def identified(found: Reconstruction, truth: Truth) -> tuple[bool | None, int]:
    """Return whether the node's first record is nearest to its image among all records that no other node holds, and their number.

    None where the records are not drawn alike: fewer than two candidates. The images of a batch are matched, which counts as guesses.
    """
    x, _ = truth.of(found.node)
    records = torch.cat([x, truth.pool.to(x)])
    if len(records) < 2:
        return None, 1
    pairs = match(found.x.detach().cpu().to(x), x)
    at = (pairs.true == 0).nonzero().flatten()
    if not len(at):
        return False, len(records)
    guess = found.x.detach().cpu().to(x)[pairs.found[at]]
    rank, _ = metrics.identification(guess, x[:1], records)
    return bool(rank[0] == 1), len(records)


def near(outcome: Outcome, psnr: float) -> bool:
    """Whether the first record came back with at least this PSNR, in dB."""
    column = outcome.score.psnr
    return (
        bool(column) and column is not None and column[0] is not None and float(column[0]) >= psnr
    )
