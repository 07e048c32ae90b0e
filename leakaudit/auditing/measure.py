"""From runs to tests: every guarantee of every view is compared with the counts.

Counts come from the attacks of the simulation, from replays, and from canaries.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from leakaudit.accounting.compare import Comparison
from leakaudit.adversary import Adversary
from leakaudit.auditing import canary
from leakaudit.auditing.canary import Guesses
from leakaudit.auditing.evidence import Canary, OneRun, Successes
from leakaudit.auditing.judge import JudgedTest, Test
from leakaudit.auditing.levels import Level
from leakaudit.auditing.plan import AuditPlan
from leakaudit.auditing.promise import Promise, TrialCounts
from leakaudit.auditing.replays import Replays, replay
from leakaudit.auditing.simulate import Simulated, near
from leakaudit.bounds.gaussian import epsilon
from leakaudit.bounds.reconstruction import (
    distances,
    kappa_identification,
    kappa_packing,
    tolerance,
)
from leakaudit.protocols.recording import POOL, Plan
from leakaudit.results.audit_names import Guesser, TestName, as_near_as, identified_among
from leakaudit.results.model import (
    CanaryFigures,
    Figures,
    OneRunFigures,
    SensitivityFigures,
    SuccessFigures,
    ViewFigures,
    encoded,
)
from leakaudit.verdict import Verdict

# Relative excess up to which a measured sensitivity counts as the assumed one: a choice, far above
# the rounding of gradients in float64.
SLACK = 1e-6
# `ViewBound.mu` always refers to one record; `ViewBound.node_mu`, for a whole node, is not tested.
EXACT_VIEW = "the view bound of one record"


@dataclass(frozen=True)
class Measured:
    """The results of the replays of one view.

    Attributes:
        level: Index in the grid.
        adversary: The adversary whose view it is.
        node: The node that was attacked.
        rero: Replays among all candidates.
        pairs: Replays with one of two records.
        run: Canaries of one run.
        moved: The largest change of a gradient between two candidates.
    """

    level: int
    adversary: Adversary
    node: int
    rero: Replays
    pairs: Replays
    run: Guesses
    moved: float


def promises(entry: Comparison, delta: float) -> list[Promise]:
    """Return the guarantees for one record in one view.

    Args:
        entry: The view bound of an adversary and node, with the claim.
        delta: Delta of the epsilon of the view bound.

    Returns:
        The view bound, if there is one at record level, and the claim of the paper, if any.
    """
    found = []
    mu = entry.bound.mu
    if mu is not None and mu < math.inf:
        found.append(Promise(EXACT_VIEW, epsilon(delta, mu), delta, mu))
    claim = entry.claim
    if claim is not None and claim.epsilon is not None and claim.delta is not None:
        found.append(Promise(claim.source, claim.epsilon, claim.delta))
    return found


def measure(plan: AuditPlan, grid: Sequence[Level], nodes: Sequence[int]) -> list[Measured]:
    """Replay every point of the grid as every adversary observes it.

    Args:
        plan: Plan of the audit.
        grid: Its points.
        nodes: The attacked nodes; the first one that the adversary does not control is replayed.
    """
    found = []
    for k, level in enumerate(grid):
        for adversary in plan.parsed:
            node = next(n for n in nodes if n not in adversary.corrupt)
            found.append(_measured(plan, k, level, adversary, node))
    return found


def _measured(plan: AuditPlan, k: int, level: Level, adversary: Adversary, node: int) -> Measured:
    """Replay one view."""
    ready = level.ready
    rero = replay(
        ready,
        adversary,
        node,
        rows=canary.free_rows(ready, node)[: plan.candidates],
        trials=plan.replays,
        gradients=plan.gradients,
        seed=1,
        what=f"replays at {level.words}",
    )
    pairs = replay(
        ready,
        adversary,
        node,
        rows=canary.pair(ready, node),
        trials=plan.canary,
        gradients=plan.gradients,
        seed=2,
        what=f"canaries at {level.words}",
    )
    once = Guesses(0, 0, 0, "not requested (one_run = false)")
    if plan.one_run:
        once = canary.one_run(ready, adversary, plan.gradients, 3)
    return Measured(k, adversary, node, rero, pairs, once, max(rero.moved, pairs.moved))


def cases(
    plan: AuditPlan, grid: Sequence[Level], simulated: Simulated, measured: Sequence[Measured]
) -> list[Test]:
    """Return a test for every combination of a guarantee and a count.

    Args:
        plan: Plan of the audit.
        grid: Its points.
        simulated: Results of the attacks.
        measured: Results of the replays.
    """
    found = []
    blind = Blind.of(grid[0].ready, plan.psnr)
    for one in measured:
        entry = grid[one.level].view(one.adversary, one.node)
        attacked = list(_attacked(plan, blind, one, simulated))
        said: Sequence[Promise | None] = promises(entry, grid[one.level].delta) or [None]
        for promise in said:
            for count in (*_replayed(plan, one, promise), *attacked):
                test = Test(
                    one.level,
                    one.adversary,
                    one.node,
                    count.test,
                    count.attack,
                    promise,
                    evidence=None if count.why else count.evidence,
                    why=count.why,
                    figures=_figures(count.evidence, promise),
                )
                found.append(test)
    return found


class Counted(NamedTuple):
    """The counts of one test.

    Attributes:
        test: Its name.
        attack: The attack or method that guessed.
        evidence: The counts.
        why: Why they are not valid, otherwise empty.
    """

    test: str
    attack: str
    evidence: TrialCounts
    why: str


@dataclass(frozen=True)
class Blind:
    """The success of guessing one record without any view.

    The record is drawn from all records that other nodes do not hold.

    Attributes:
        total: Number of those records.
        samples: Records per node.
        identified: Upper limit of the probability that one guess identifies the record.
        near: Upper limit of the probability that one guess reaches the PSNR.
        why: Why both are unknown, otherwise empty.
    """

    total: int
    samples: int
    identified: float
    near: float
    why: str

    @classmethod
    def of(cls, ready: Plan, psnr: float) -> Blind:
        """Return the probabilities for a scenario, regardless of which records are drawn.

        Equal records are interchangeable.

        Args:
            ready: The scenario's own plan.
            psnr: PSNR of a success, in dB.
        """
        scenario = ready.scenario
        x = ready.source.x
        total = len(x) - (scenario.nodes - 1) * scenario.samples
        if scenario.split != "iid" or len(x) - scenario.nodes * scenario.samples > POOL:
            why = (
                "the success probability of a blind guess is unknown, because the records are not "
                f"drawn uniformly from a small set (split {scenario.split}, {len(x)} records)"
            )
            return cls(total, scenario.samples, 1.0, 1.0, why)
        # kappa_packing is a share of all records; those that other nodes hold are excluded.
        apart = distances(x.numpy())
        same = kappa_packing(apart, 0.0) * len(x) / total
        close = kappa_packing(apart, tolerance(psnr, 1.0)) * len(x) / total
        return cls(total, scenario.samples, min(1.0, same), min(1.0, close), "")


def _replayed(plan: AuditPlan, one: Measured, promise: Promise | None) -> Iterator[Counted]:
    """Yield the counts of the replays of one view."""
    rero = one.rero
    candidates = len(rero.scores[0]) if len(rero.scores) else plan.candidates
    hits = Successes(rero.hits, len(rero.drawn), kappa_identification(candidates))
    yield Counted(TestName.LIKELIHOOD, Guesser.LIKELIHOOD, hits, rero.why)
    told_apart = Canary(canary.counted(one.pairs, promise, plan.alpha))
    yield Counted(TestName.CANARIES, Guesser.RATIO, told_apart, one.pairs.why)
    if plan.one_run:
        run = one.run
        right = OneRun(run.canaries, run.guesses, run.right)
        yield Counted(TestName.ONE_RUN, Guesser.RATIO, right, run.why)


def _attacked(
    plan: AuditPlan, blind: Blind, one: Measured, simulated: Simulated
) -> Iterator[Counted]:
    """Yield the counts of the attacks on one view: its node's first record, once for each seed.

    The images of a batch are matched, so each image that could be the record counts as a guess. A
    seed for which the attack returned nothing is a failed trial: without such trials, the rate
    would describe only the easy seeds.
    """
    for name in plan.attacks:
        made = simulated.made(one.level, one.adversary, name)
        mine = [o for o in made if o.found.node == one.node]
        refused = simulated.refused(one.level, one.adversary, name, one.node)
        trials = len(mine) + len(refused)
        hits = sum(bool(o.identified) for o in mine)
        kappa = min(1.0, blind.samples * blind.identified)
        counts = Successes(hits, trials, kappa)
        yield Counted(identified_among(blind.total), name, counts, blind.why)
        if simulated.trace.task.is_image:
            close = sum(near(o, plan.psnr) for o in mine)
            counts = Successes(close, trials, min(1.0, blind.samples * blind.near))
            yield Counted(as_near_as(plan.psnr), name, counts, blind.why)


def _figures(evidence: TrialCounts, promise: Promise | None) -> Figures | None:
    """Return the counts, for programs."""
    if isinstance(evidence, Successes):
        ceiling = None
        if promise is not None and not promise.empty:
            ceiling = evidence.ceiling(promise)
        return SuccessFigures(
            hits=evidence.hits,
            trials=evidence.trials,
            kappa=evidence.kappa,
            ceiling=ceiling,
        )
    if isinstance(evidence, Canary):
        counts = evidence.counts
        return CanaryFigures(
            true_positives=counts.true_positives,
            positives=counts.positives,
            false_positives=counts.false_positives,
            negatives=counts.negatives,
        )
    if isinstance(evidence, OneRun):
        return OneRunFigures(
            canaries=evidence.canaries,
            guesses=evidence.guesses,
            right=evidence.right,
        )
    return None


def static(grid: Sequence[Level], measured: Sequence[Measured]) -> list[JudgedTest]:
    """Return the verdicts that need no statistics.

    These are the view bound against the claim, and the sensitivity that both assume.

    Args:
        grid: The points of the audit.
        measured: Results of the replays.
    """
    found = []
    for one in measured:
        level = grid[one.level]
        worst = max(level.seen_by(one.adversary), key=lambda v: v.bound.largest or 0.0)
        found.append(_against_claim(one, worst))
        largest = worst.bound.largest
        if one.moved and largest is not None and largest < math.inf:
            found.append(_sensitivity(one, level.sensitivity))
    return found


def _against_claim(one: Measured, worst: Comparison) -> JudgedTest:
    """Return the verdict of the view bound against the claim."""
    claimed = None
    if worst.claim is not None:
        claimed = worst.claim.epsilon
    figures = ViewFigures(
        mu=encoded(worst.bound.mu),
        node_mu=encoded(worst.bound.node_mu),
        rounds_priced=worst.bound.rounds,
        exact=encoded(worst.exact),
        claimed=encoded(claimed),
        ratio=encoded(worst.ratio),
    )
    test = Test(
        one.level,
        one.adversary,
        worst.bound.node,
        TestName.VIEW,
        Guesser.NOBODY,
        promise=None,
        evidence=None,
        figures=figures,
    )
    return JudgedTest(test, worst.verdict, worst.why)


def _sensitivity(one: Measured, assumed: float) -> JudgedTest:
    """Return the verdict on the sensitivity that every epsilon assumes."""
    test = Test(
        one.level,
        one.adversary,
        one.node,
        TestName.SENSITIVITY,
        Guesser.NOBODY,
        promise=None,
        evidence=None,
        figures=SensitivityFigures(moved=one.moved, assumed=assumed),
    )
    over = one.moved > assumed * (1 + SLACK)
    says = (
        f"exchanging a record changed a gradient by {one.moved:.4g}; "
        f"every epsilon of this audit assumes at most {assumed:.4g}"
    )
    verdict = Verdict.NOT_REFUTED
    if over:
        verdict = Verdict.UNSUPPORTED
    return JudgedTest(test, verdict, says)
