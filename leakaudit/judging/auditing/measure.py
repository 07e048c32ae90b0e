"""From runs to tests: every guarantee of every view against attacks, replays and canaries."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from leakaudit._util.jobs import IN_PROCESS, Pool
from leakaudit._util.plain import Figures
from leakaudit.core.adversary import Adversary
from leakaudit.core.progress import step
from leakaudit.core.verdict import Verdict
from leakaudit.judging.auditing import canary
from leakaudit.judging.auditing.blind import Blind
from leakaudit.judging.auditing.evidence import Canary, OneRun, Successes, TrialCounts
from leakaudit.judging.auditing.judge import Test
from leakaudit.judging.auditing.levels import Level
from leakaudit.judging.auditing.plan import AuditPlan
from leakaudit.judging.auditing.promise import Promise
from leakaudit.judging.auditing.replays import Replays, joined, replay
from leakaudit.judging.auditing.simulate import SimulationResults, near
from leakaudit.reporting.results import audit_names
from leakaudit.reporting.results.audit_names import as_near_as, identified_among
from leakaudit.reporting.results.model import encoded
from leakaudit.theory.bounds.reconstruction import kappa_identification
from leakaudit.views.accounting.compare import Comparison

# Relative excess up to which a measured sensitivity counts as the assumed one: a choice, far above
# the rounding of gradients in float64.
SLACK = 1e-6
# `ViewBound.guarantee` always refers to one record; that of a whole node is not tested.

# Kinds of replays, as the progress display names them.
RERO = "replays"
PAIRS = "canaries"
ONCE = "one run"
TOGETHER = 25  # replays per job, so that workers are busy with few points, too: a choice


@dataclass(frozen=True)
class ViewMeasurements:
    """The results of the replays of one view."""

    level: int  # index in the grid
    adversary: Adversary  # the adversary whose view it is
    node: int
    rero: Replays  # replays among all candidates
    pairs: Replays  # replays with one of two records
    run: OneRun
    why: str  # why no guesses were made in one run, otherwise empty
    moved: float  # the largest change of a gradient between two candidates

    def over(self, grid: Sequence[Level]) -> bool:
        """Return whether a gradient changed by more than every epsilon of the grid assumes."""
        return self.moved > grid[self.level].sensitivity * (1 + SLACK)


def promises(entry: Comparison, delta: float) -> list[Promise]:
    """Return the guarantees for one record in one view."""
    found = []
    curve = entry.bound.guarantee
    if curve is not None and entry.bound.mu != math.inf:
        found.append(Promise(audit_names.OF_VIEW, curve.epsilon(delta), delta, curve))
    claim = entry.claim
    if claim is not None and claim.epsilon is not None and claim.delta is not None:
        found.append(Promise(claim.source, claim.epsilon, claim.delta))
    return found


_Replayed: TypeAlias = Replays | tuple[OneRun, str]


@dataclass(frozen=True)
class _ReplayPart:
    level: int  # index in the grid
    adversary: Adversary  # the adversary whose view it is
    kind: str  # `RERO`, `PAIRS` or `ONCE`
    trials: range  # the replays; empty for `ONCE`


@dataclass(frozen=True)
class _ReplayJob:
    plan: AuditPlan
    grid: Sequence[Level]
    # the attacked nodes; the first one that the adversary does not control is replayed
    nodes: Sequence[int]

    def node(self, adversary: Adversary) -> int:
        return next(n for n in self.nodes if n not in adversary.corrupt)

    def __call__(self, part: _ReplayPart) -> _Replayed:
        plan = self.plan
        level = self.grid[part.level]
        ready = level.ready
        node = self.node(part.adversary)
        if part.kind == ONCE:
            return canary.one_run(ready, part.adversary, plan.gradients, 3)
        rows: Sequence[int] = canary.pair(ready, node)
        seed = 2
        if part.kind == RERO:
            rows = canary.free_rows(ready, node)[: plan.candidates]
            seed = 1
        return replay(
            ready,
            part.adversary,
            node,
            rows,
            part.trials,
            seed,
            plan.gradients,
            what=f"{part.kind} at {level.words}",
        )


def measure(
    plan: AuditPlan,
    grid: Sequence[Level],
    nodes: Sequence[int],
    executor: Pool = IN_PROCESS,
) -> list[ViewMeasurements]:
    """Replay every point of the grid as every adversary observes it."""
    together = TOGETHER
    if executor.inside:
        together = max(plan.replays, plan.canary, 1)
    views = [(k, adversary) for k in range(len(grid)) for adversary in plan.parsed]
    parts = [part for view in views for part in _parts(plan, *view, together)]
    job = _ReplayJob(plan, grid, nodes)
    found: dict[_ReplayPart, _Replayed] = {}
    for part, made in zip(parts, executor.map(job, parts), strict=True):
        found[part] = made
        if not executor.inside:
            step("replays", len(found), len(parts))
    measured = []
    for k, adversary in views:
        mine = [part for part in parts if (part.level, part.adversary) == (k, adversary)]
        rero = _joined(found, mine, RERO)
        pairs = _joined(found, mine, PAIRS)
        once = OneRun(0, 0, 0)
        why = "not requested (one_run = false)"
        for part in mine:
            run = found[part]
            if not isinstance(run, Replays):
                once, why = run
        moved = max(rero.moved, pairs.moved)
        node = job.node(adversary)
        measured.append(ViewMeasurements(k, adversary, node, rero, pairs, once, why, moved))
    return measured


def _parts(
    plan: AuditPlan, level: int, adversary: Adversary, together: int
) -> Iterator[_ReplayPart]:
    """Yield the parts of the replays of one view, with at most `together` replays each."""
    for kind, trials in ((RERO, plan.replays), (PAIRS, plan.canary)):
        for first in range(0, max(trials, 1), together):
            yield _ReplayPart(level, adversary, kind, range(first, min(first + together, trials)))
    if plan.one_run:
        yield _ReplayPart(level, adversary, ONCE, range(0))


def _joined(
    found: Mapping[_ReplayPart, _Replayed], mine: Sequence[_ReplayPart], kind: str
) -> Replays:
    made: list[Replays] = []
    counts: list[int] = []
    for part in mine:
        replays = found[part]
        if part.kind == kind and isinstance(replays, Replays):
            made.append(replays)
            counts.append(len(part.trials))
    return joined(made, counts)


def cases(
    plan: AuditPlan,
    grid: Sequence[Level],
    simulated: SimulationResults,
    measured: Sequence[ViewMeasurements],
    blind: Blind,
) -> list[Test]:
    """Return a test for every combination of a guarantee and a count."""
    found = []
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
                    figures=count.evidence.figures(promise),
                )
                found.append(test)
    return found


class _OutcomeCounts(NamedTuple):
    test: str
    attack: str  # the attack or method that guessed
    evidence: TrialCounts
    why: str  # why they are not valid, otherwise empty


def _replayed(
    plan: AuditPlan, one: ViewMeasurements, promise: Promise | None
) -> Iterator[_OutcomeCounts]:
    rero = one.rero
    candidates = len(rero.scores[0]) if len(rero.scores) else plan.candidates
    hits = Successes(rero.hits, len(rero.drawn), kappa_identification(candidates))
    yield _OutcomeCounts(audit_names.BY_LIKELIHOOD, audit_names.LIKELIHOOD, hits, rero.why)
    told_apart = Canary(canary.counted(one.pairs, promise, plan.alpha))
    yield _OutcomeCounts(audit_names.CANARIES, audit_names.RATIO, told_apart, one.pairs.why)
    if plan.one_run:
        yield _OutcomeCounts(audit_names.ONE_RUN, audit_names.RATIO, one.run, one.why)


def _attacked(
    plan: AuditPlan, blind: Blind, one: ViewMeasurements, simulated: SimulationResults
) -> Iterator[_OutcomeCounts]:
    """Yield the counts of the attacks on a view: its node's first record, once per seed.

    Each image of a batch that could be the record counts as a guess, a seed without a result as a
    failed trial.
    """
    samples = plan.scenario.samples
    for name in plan.attacks:
        made = simulated.made(one.level, one.adversary, name)
        mine = [o for o in made if o.found.node == one.node]
        refused = simulated.refused(one.level, one.adversary, name, one.node)
        trials = len(mine) + len(refused)
        hits = sum(bool(o.identified) for o in mine)
        kappa = min(1.0, samples * blind.identified)
        counts = Successes(hits, trials, kappa)
        yield _OutcomeCounts(identified_among(blind.total), name, counts, blind.why)
        if simulated.trace.task.is_image:
            close = sum(near(o, plan.psnr) for o in mine)
            counts = Successes(close, trials, min(1.0, samples * blind.near(plan.psnr)))
            yield _OutcomeCounts(as_near_as(plan.psnr), name, counts, blind.why)


def static(grid: Sequence[Level], measured: Sequence[ViewMeasurements]) -> list[Test]:
    """Return the verdicts that need no statistics: view bound against claim, and sensitivity."""
    found = []
    for one in measured:
        level = grid[one.level]
        worst = max(level.seen_by(one.adversary), key=lambda v: v.bound.largest or 0.0)
        found.append(_against_claim(one, worst))
        largest = worst.bound.largest
        if one.moved and largest is not None and largest < math.inf:
            found.append(_sensitivity(one, grid))
    return found


def _against_claim(one: ViewMeasurements, worst: Comparison) -> Test:
    claimed = None
    if worst.claim is not None:
        claimed = worst.claim.epsilon
    figures: Figures = {
        "mu": encoded(worst.bound.mu),
        "node_mu": encoded(worst.bound.node_mu),
        "rounds_priced": worst.bound.rounds,
        "exact": encoded(worst.exact),
        "claimed": encoded(claimed),
        "ratio": encoded(worst.ratio),
        "holds": str(worst.holds),
    }
    return Test(
        one.level,
        one.adversary,
        worst.bound.node,
        audit_names.VIEW,
        audit_names.NOBODY,
        figures=figures,
        verdict=worst.verdict,
        says=worst.why,
    )


def _sensitivity(one: ViewMeasurements, grid: Sequence[Level]) -> Test:
    assumed = grid[one.level].sensitivity
    return Test(
        one.level,
        one.adversary,
        one.node,
        audit_names.SENSITIVITY,
        audit_names.NOBODY,
        figures={"moved": one.moved, "assumed": assumed},
        verdict=Verdict.UNSUPPORTED if one.over(grid) else Verdict.NOT_REFUTED,
        says=(
            f"exchanging a record changed a gradient by {one.moved:.4g}; "
            f"every epsilon of this audit assumes at most {assumed:.4g}"
        ),
    )
