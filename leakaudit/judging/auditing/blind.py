"""What guesses reach without a view, and what an epsilon allows an attack to reach with one."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import median

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from leakaudit.core.trace import Truth
from leakaudit.core.verdict import Holds
from leakaudit.judging.auditing.levels import Level
from leakaudit.judging.auditing.plan import AuditPlan
from leakaudit.protocols.recording import POOL, Plan
from leakaudit.reporting.results.model import CeilingEntry, encoded
from leakaudit.scoring import metrics, scoring
from leakaudit.scoring.scoring import Score
from leakaudit.theory.bounds.gaussian import Gdp
from leakaudit.theory.bounds.guarantee import Guarantee
from leakaudit.theory.bounds.reconstruction import distances, kappa_packing, nearest, tolerance
from leakaudit.views.accounting.compare import Comparison

CHANCES = (0.5, 0.95)  # of a record, with which a ceiling is reached at most


@dataclass(frozen=True, eq=False)
class Blind:
    """The success of guessing, without a view, a record if all others of the run are known."""

    ready: Plan  # a scenario of the audit: all draw their records alike
    total: int  # records that it may then be: itself and those that no node holds
    why: str  # why nothing is known about such guesses, otherwise empty

    @classmethod
    def of(cls, ready: Plan) -> Blind:
        """Return the guesses in a scenario, whatever records are drawn."""
        scenario = ready.scenario
        count = len(ready.source.x)
        spare = count - scenario.nodes * scenario.samples
        why = ""
        if scenario.split != "iid" or spare > POOL:
            why = (
                "the success probability of a blind guess is unknown, because the records are not "
                f"drawn uniformly from a small set (split {scenario.split}, {count} records)"
            )
        return cls(ready, spare + 1, why)

    @cached_property
    def apart(self) -> NDArray[np.float64]:
        """Root mean squared errors between all records, (m, m)."""
        return distances(self.ready.source.x.numpy())

    @cached_property
    def unlike(self) -> NDArray[np.float64] | None:
        """Distances of structure between all records, (m, m); None if SSIM is not defined."""
        found = metrics.structural_distances(self.ready.source.x, data_range=self.ready.data_range)
        return None if found is None else found.numpy()

    @property
    def identified(self) -> float:
        """Upper limit of the probability that one guess identifies the record."""
        return self._kappa(0.0)

    def near(self, psnr: float) -> float:
        """Return the upper limit of the probability that one guess reaches a PSNR."""
        return self._kappa(tolerance(psnr, self.ready.data_range))

    def _kappa(self, distance: float) -> float:
        if self.why:
            return 1.0
        # kappa_packing is a share of all records; those that are known are excluded.
        return min(1.0, kappa_packing(self.apart, distance) * len(self.apart) / self.total)

    def psnr(self, guarantee: Guarantee, chance: float) -> float:
        """Return the PSNR that a record exceeds with a probability below `chance`, in dB."""
        error = self._nearest(guarantee, chance, self.apart)
        if not error:
            return metrics.PSNR_CAP
        return min(metrics.PSNR_CAP, 20 * math.log10(self.ready.data_range / error))

    def ssim(self, guarantee: Guarantee, chance: float) -> float | None:
        """Return the SSIM that a record exceeds with a probability below `chance`."""
        if self.unlike is None:
            return None
        return metrics.ssim_at(self._nearest(guarantee, chance, self.unlike))

    def _nearest(self, guarantee: Guarantee, chance: float, apart: NDArray[np.float64]) -> float:
        guesses = self.ready.scenario.samples  # each image of a batch may be the record
        return nearest(guarantee, apart, chance, guesses, self.total)


def ceilings(
    plan: AuditPlan, grid: Sequence[Level], blind: Blind, truth: Truth, *, void: bool
) -> Iterator[CeilingEntry]:
    """Yield what blind guesses reach, and what the view bounds allow for a record of some nodes.

    They are those of every point and adversary. Nodes without a bound are left out; all are if the
    sensitivity that the bounds assume was exceeded (`void`).
    """
    if not grid[0].ready.task.spec.is_image:
        return
    for level in grid:
        for adversary in plan.parsed:
            views = level.seen_by(adversary)
            where = CeilingEntry(
                epsilon=encoded(level.epsilon),
                adversary=str(adversary),
                chance=None,
                psnr=0.0,
                ssim=None,
            )
            guessed = [scoring.nothing(view.bound.node, "", truth) for view in views]
            yield replace(where, psnr=_median(guessed, "psnr"), ssim=_median(guessed, "ssim"))
            bounded = [view for view in views if _is_bounded(view, level.delta)]
            if void or blind.why or not bounded:
                continue
            where = replace(where, nodes=tuple(view.bound.node for view in bounded))
            guarantees = _weakest(view.bound.guarantee for view in bounded)
            for chance in CHANCES:
                psnr = max(blind.psnr(one, chance) for one in guarantees)
                ssim = [blind.ssim(one, chance) for one in guarantees]
                highest = max((value for value in ssim if value is not None), default=None)
                yield replace(where, chance=chance, psnr=psnr, ssim=highest)


def _median(scores: Sequence[Score], name: str) -> float | None:
    values = [value for one in scores for value in one.counted(name)]
    return median(values) if values else None


def _is_bounded(view: Comparison, delta: float) -> bool:
    """Return whether a record of the node of a view has an epsilon that holds."""
    guarantee = view.bound.guarantee
    if guarantee is None or view.holds not in (Holds.EXACT, Holds.AT_MOST):
        return False
    return guarantee.epsilon(delta) < math.inf


def _weakest(guarantees: Iterable[Guarantee | None]) -> list[Guarantee]:
    """Return those that may allow most: of Gaussian noise one, since a mu orders them."""
    weakest: Gdp | None = None
    others: list[Guarantee] = []
    for one in guarantees:
        if isinstance(one, Gdp):
            weakest = one if weakest is None or one.mu > weakest.mu else weakest
        elif one is not None and one not in others:
            others.append(one)
    return others if weakest is None else [weakest, *others]
