"""From runs to tests: every promise of every view against the attacks of the simulation, the replays and the canaries."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from leakaudit.accounting.ledger import Entry
from leakaudit.adversary import Adversary
from leakaudit.auditing import canary
from leakaudit.auditing.evidence import Canary, OneRun, Successes
from leakaudit.auditing.judge import Judged, Test
from leakaudit.auditing.levels import Level
from leakaudit.auditing.plan import AuditPlan
from leakaudit.auditing.promise import Evidence, Promise
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
from leakaudit.trace import Json
from leakaudit.verdict import Verdict

RERO, CANARY, ONE = "identification by likelihood", "canary replays", "canaries of one run"
SLACK = 1e-6


@dataclass(frozen=True)
class Measured:
    """What the replays of one view gave.

    rero: replays among all candidates. pairs: with one record or another. run: canaries, guesses and right ones of one run, and why
    none. moved: the largest change of a gradient between two candidates.
    """

    level: int
    adversary: str
    node: int
    rero: Replays
    pairs: Replays
    run: tuple[int, int, int, str]
    moved: float


def promises(entry: Entry, delta: float) -> list[Promise]:
    """Return what is said of one record in one view: by its price, if that is at record level, and by the paper."""
    found, mu = [], entry.price.mu
    if mu is not None and mu < math.inf:
        level = entry.price.level.partition(":")[0]
        found.append(Promise(f"the exact view [{level}]", epsilon(delta, mu), delta, mu))
    if (
        entry.claim is not None
        and entry.claim.epsilon is not None
        and entry.claim.delta is not None
    ):
        found.append(Promise(entry.claim.source, entry.claim.epsilon, entry.claim.delta))
    return found


def measure(plan: AuditPlan, grid: Sequence[Level], nodes: Sequence[int]) -> list[Measured]:
    """Replay every point of the grid as every adversary hears it."""
    found = []
    for k, level in enumerate(grid):
        for who in plan.adversaries:
            adversary = Adversary.parse(who)
            node = next(n for n in nodes if n not in adversary.corrupt)
            ready, free = level.ready, canary.free_rows(level.ready, node)
            rero = replay(
                ready,
                adversary,
                node,
                free[: plan.candidates],
                plan.replays,
                plan.gradients,
                1,
                f"replays at {level.words}",
            )
            ends = canary.pair(ready, node)
            pairs = replay(
                ready,
                adversary,
                node,
                ends,
                plan.canary,
                plan.gradients,
                2,
                f"canaries at {level.words}",
            )
            once = (
                canary.one_run(ready, adversary, plan.gradients, 3)
                if plan.one_run
                else (0, 0, 0, "it was not asked for (one_run)")
            )
            found.append(Measured(k, who, node, rero, pairs, once, max(rero.moved, pairs.moved)))
    return found


def cases(
    plan: AuditPlan, grid: Sequence[Level], simulated: Simulated, measured: Sequence[Measured]
) -> list[Test]:
    """Return every promise against every count."""
    found, blind = [], Blind.of(grid[0].ready, plan.psnr)
    for one in measured:
        entry = grid[one.level].view(one.adversary, one.node)
        attacked = list(_attacked(plan, blind, one, simulated))
        said: Sequence[Promise | None] = promises(entry, grid[one.level].delta) or [None]
        for promise in said:
            made = [*_replayed(plan, one, promise), *attacked]
            for name, attack, evidence, why in made:
                shown = None if why else evidence
                found.append(
                    Test(
                        one.level,
                        one.adversary,
                        one.node,
                        name,
                        attack,
                        promise,
                        shown,
                        why,
                        _figures(evidence, promise),
                    )
                )
    return found


@dataclass(frozen=True)
class Blind:
    """What a guess that saw nothing can do about one record that is dealt from all that other nodes do not hold.

    total: of those records. identified, near: chance of one guess to pick the record out, and to come within the PSNR, at most.
    why: what makes both unknown.
    """

    total: int
    samples: int
    identified: float
    near: float
    why: str

    @classmethod
    def of(cls, ready: Plan, psnr: float) -> Blind:
        """Return it for a scenario, whichever records are dealt; equal records stand for each other."""
        scenario, x = ready.scenario, ready.source.x
        total = len(x) - (scenario.nodes - 1) * scenario.samples
        if scenario.split != "iid" or len(x) - scenario.nodes * scenario.samples > POOL:
            dealt = f"the records are not drawn alike from few (split {scenario.split}, {len(x)} records), so a blind guess has no known chance"
            return cls(total, scenario.samples, 1.0, 1.0, dealt)
        apart = distances(x.numpy())
        same, close = (
            kappa_packing(apart, at) * len(x) / total for at in (0.0, tolerance(psnr, 1.0))
        )
        return cls(total, scenario.samples, min(1.0, same), min(1.0, close), "")


def _replayed(
    plan: AuditPlan, one: Measured, promise: Promise | None
) -> Iterator[tuple[str, str, Evidence, str]]:
    count = len(one.rero.scores[0]) if len(one.rero.scores) else plan.candidates
    yield (
        RERO,
        "likelihood",
        Successes(one.rero.hits, len(one.rero.drawn), kappa_identification(count)),
        one.rero.why,
    )
    yield (
        CANARY,
        "likelihood ratio",
        Canary(canary.counted(one.pairs, promise, plan.alpha)),
        one.pairs.why,
    )
    if plan.one_run:
        yield ONE, "likelihood ratio", OneRun(*one.run[:3]), one.run[3]


def _attacked(
    plan: AuditPlan, blind: Blind, one: Measured, simulated: Simulated
) -> Iterator[tuple[str, str, Evidence, str]]:
    """The first record of the first node, once a seed; the images of a batch are matched, so each that can be counts as a guess.

    A seed in which the attack refused is a trial that failed: without those, the rate would be that of the easy seeds only.
    """
    for name in plan.attacks:
        cell = one.level, one.adversary, name, one.node
        mine = [
            o for o in simulated.outcomes if (o.level, o.adversary, o.attack, o.found.node) == cell
        ]
        trials = len(mine) + len(simulated.refused(*cell))
        hits, close = sum(bool(o.identified) for o in mine), sum(near(o, plan.psnr) for o in mine)
        yield (
            f"identified among {blind.total}",
            name,
            Successes(hits, trials, min(1.0, blind.samples * blind.identified)),
            blind.why,
        )
        if simulated.trace.task.is_image:
            yield (
                f"PSNR >= {plan.psnr:g} dB",
                name,
                Successes(close, trials, min(1.0, blind.samples * blind.near)),
                blind.why,
            )


def _figures(evidence: Evidence, promise: Promise | None) -> dict[str, Json]:
    """What was counted, for programs."""
    if isinstance(evidence, Successes):
        ceiling = None if promise is None or promise.empty else evidence.ceiling(promise)
        return {
            "hits": evidence.hits,
            "trials": evidence.trials,
            "kappa": evidence.kappa,
            "ceiling": ceiling,
        }
    if isinstance(evidence, Canary):
        c = evidence.counts
        counts = {"true_positives": c.true_positives, "positives": c.positives}
        return {**counts, "false_positives": c.false_positives, "negatives": c.negatives}
    if isinstance(evidence, OneRun):
        return {"canaries": evidence.canaries, "guesses": evidence.guesses, "right": evidence.right}
    return {}


def static(grid: Sequence[Level], measured: Sequence[Measured]) -> list[Judged]:
    """Return the verdicts that need no statistics: the exact view against the claim, and the sensitivity that both assume."""
    found = []
    for one in measured:
        level, entries = (
            grid[one.level],
            [v for v in grid[one.level].views if str(v.listener.adversary) == one.adversary],
        )
        worst = max(entries, key=lambda v: v.price.largest or 0.0)
        figures = {
            "mu": _plain(worst.price.mu),
            "node_mu": _plain(worst.price.node_mu),
            "rounds_priced": worst.price.rounds_priced,
            "exact": _plain(worst.exact),
            "claimed": worst.claim and worst.claim.epsilon,
            "ratio": _plain(worst.ratio),
        }
        about = Test(
            one.level,
            one.adversary,
            worst.price.node,
            "exact view against the claim",
            "none",
            None,
            None,
            "",
            figures,
        )
        found.append(Judged(about, worst.verdict, worst.why))
        if one.moved and worst.price.largest is not None and worst.price.largest < math.inf:
            moved = Test(
                one.level,
                one.adversary,
                one.node,
                "sensitivity",
                "none",
                None,
                None,
                "",
                {"moved": one.moved, "assumed": level.sensitivity},
            )
            over = one.moved > level.sensitivity * (1 + SLACK)
            says = f"another record moved a gradient by {one.moved:.4g}; every epsilon here assumes at most {level.sensitivity:.4g}"
            found.append(Judged(moved, Verdict.UNSUPPORTED if over else Verdict.NOT_REFUTED, says))
    return found


def _plain(value: float | None) -> float | str | None:
    return "inf" if value == math.inf else value
