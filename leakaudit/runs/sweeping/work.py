"""The computation of one cell, from its configuration to its result."""

from __future__ import annotations

import math
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from msgspec import UNSET, UnsetType, structs

from leakaudit._util import seeds
from leakaudit._util.own_code import Trust
from leakaudit.core import registry
from leakaudit.core.adversary import Adversary
from leakaudit.core.errors import LeakauditError
from leakaudit.core.leak import GradientLeak
from leakaudit.core.reconstruction import Reconstruction
from leakaudit.core.trace import Setting, Truth
from leakaudit.core.verdict import Holds
from leakaudit.inversion import attacking
from leakaudit.inversion.attack import Attack
from leakaudit.judging.auditing.environment import RunEnvironment
from leakaudit.protocols import recording, training_curves
from leakaudit.reporting.findings import findings
from leakaudit.reporting.results.cell_files import (
    DIED,
    DONE,
    FAILED,
    CellBound,
    CellFinding,
    CellResult,
    Status,
)
from leakaudit.reporting.results.model import Extended, Scores, encoded
from leakaudit.runs.sweeping.cells import PlannedCell
from leakaudit.runs.sweeping.plan import NO_ATTACK
from leakaudit.scoring.scoring import Score, nothing, score
from leakaudit.tasks.shared import SharedData
from leakaudit.tasks.task import Task
from leakaudit.views.extraction import hearing
from leakaudit.views.extraction.deduction import Deduction

if TYPE_CHECKING:
    from leakaudit.judging.auditing.levels import Level
    from leakaudit.views.accounting.compare import Comparison

# What a cell stores of a finding.
KEPT = [name for name in CellFinding.__struct_fields__ if name != "certified"]
SHARED = SharedData()  # the cells of a sweep share their data, and most of them their model


@dataclass(frozen=True)
class _ComputedCell:
    """A cell that was computed."""

    result: CellResult
    trouble: str | None  # the traceback if it failed by an error that is not ours, otherwise None
    seconds: float  # wall-clock time
    cpu: float  # processor time in seconds


@dataclass(frozen=True)
class Job:
    """The computation of a cell, which needs only data sets and models."""

    data_root: Path | None = None  # where torchvision's data sets lie
    download: bool = False  # whether data sets may be fetched
    trusted: Trust = False  # the `package.module:factory` that may execute its code; True for any

    def __call__(self, cell: PlannedCell) -> _ComputedCell:
        """Compute one cell; an error is its result."""
        start = time.perf_counter()
        cpu = time.process_time()
        trouble = None
        threads = torch.get_num_threads()
        torch.set_num_threads(1)  # as in a worker: the order of a sum may depend on it
        try:
            result = self.measure(cell)
        except LeakauditError as error:
            result = failure(cell, FAILED, str(error))
        except Exception as error:  # a user's own attack or victim may raise anything
            result = failure(cell, FAILED, f"{type(error).__name__}: {error}")
            trouble = traceback.format_exc()
        finally:
            torch.set_num_threads(threads)
        return _ComputedCell(
            result, trouble, time.perf_counter() - start, time.process_time() - cpu
        )

    def measure(self, cell: PlannedCell) -> CellResult:
        """Record one cell, attack and score it if the plan says so, and bound its views."""
        ready = self._ready(cell)
        if cell.attack == NO_ATTACK:
            result = self._trained(cell, ready)
        else:
            result = self._attacked(cell, ready)
        return structs.replace(result, bound=_bound(cell, ready))

    def _trained(self, cell: PlannedCell, ready: _ReadyCell) -> CellResult:
        """Return the curves of a cell without an attack."""
        curves: Mapping[str, tuple[Extended, ...]] | UnsetType = UNSET
        if cell.scenario.curves:
            curves = _curves(recording.train(ready.plan).truth_record)
        return CellResult(
            config=cell.config(),
            status=DONE,
            says="",
            constants=dict(ready.constants),
            records=0,
            findings=(),
            refused=(),
            reasons={},
            curves=curves,
        )

    def _attacked(self, cell: PlannedCell, ready: _ReadyCell) -> CellResult:
        """Record, attack and score one cell."""
        recorder = recording.record(ready.plan, None)
        trace, truth = recorder.trace, recorder.truth_record
        task = SHARED.task(trace.task, torch.float32, cell.plan.device, self.trusted)
        adversary = Adversary.parse(cell.adversary)
        adversary.check(trace.graph)
        wanted = cell.plan.nodes or hearing.targets(trace, adversary)
        mine = [n for n in wanted if n not in adversary.corrupt]
        heard = Deduction(trace, adversary)
        estimator = attacking.estimator(cell.attack, cell.settings)
        leaks = hearing.deduce(
            heard, mine, cell.plan.gradients, incomplete=True, estimator=estimator
        )
        if leaks.not_understood:
            node = min(leaks.not_understood)
            raise LeakauditError(f"node {node}: {leaks.undetermined[node]}")
        if not len(leaks) and (unexamined := heard.unexamined(mine)):
            raise LeakauditError("; ".join(unexamined))
        fit, unusable = _usable(cell, list(hearing.each_sum_once(leaks)), task)
        made = _reconstructed(cell, fit, task)
        scores = score([one.found for one in made], truth)
        entries = []
        for one, scored in zip(made, scores, strict=True):
            entries.append(_finding(fit[one.place], one.found, scored))
        reasons = {**leaks.undetermined, **unusable}
        return CellResult(
            config=cell.config(),
            status=DONE,
            says="",
            constants=dict(ready.constants),
            records=len(mine) * cell.scenario.samples,
            findings=tuple(entries),
            refused=tuple(_missed(node, cell, truth) for node in sorted(reasons)),
            reasons={str(node): why for node, why in sorted(reasons.items())},
            curves=_curves(truth) if cell.scenario.curves else UNSET,
        )

    def _ready(self, cell: PlannedCell) -> _ReadyCell:
        """Return the recording's plan, and the constants that set its epsilon."""
        plan = cell.plan
        where = RunEnvironment(self.data_root, self.download, plan.device, trusted=self.trusted)
        if cell.epsilon is None and not plan.bounds:
            made = where.plan(cell.scenario, SHARED)
            return _ReadyCell(made, _calibrated(made), None)
        # They load scipy, which few sweeps need.
        from leakaudit.judging.auditing.levels import levels

        noises = plan.noises(cell.scenario, cell.epsilon)
        (level,) = levels(noises, where)
        return _ReadyCell(level.ready, {**_calibrated(level.ready), **level.constants}, level)


@dataclass(frozen=True)
class _ReadyCell:
    """A cell whose recording is planned."""

    plan: recording.Plan
    constants: Mapping[str, Setting]  # constants of the victim that set the epsilon
    level: Level | None  # with the view bounds; None if none were needed


def _calibrated(plan: recording.Plan) -> dict[str, Setting]:
    """Return the constant that was found for an epsilon of the scenario, if any."""
    found = plan.calibrated
    return {} if found is None else {found.constant: found.value}


def _curves(truth: Truth) -> dict[str, tuple[Extended, ...]]:
    """Return the curves of a run; NaN, of a round without a value, becomes None.

    The time that a round took is omitted, because it differs from run to run.
    """
    kept = training_curves.kept(truth, "the run")
    found = {}
    for name, values in kept.items():
        if name in training_curves.LAST:
            continue
        # Neither NaN nor -inf is above it.
        column = [encoded(value) if value > -math.inf else None for value in values.tolist()]
        found[name] = tuple(column)
    return found


def _bound(cell: PlannedCell, ready: _ReadyCell) -> CellBound | UnsetType:
    """Return the bound of the worst view, no stronger than what it rests on."""
    level = ready.level
    if level is None or not cell.plan.bounds:
        return UNSET
    worst = max(level.views, key=lambda view: (_epsilon(view) is None, _epsilon(view) or 0.0))
    epsilon = _epsilon(worst)
    claimed = [view.claim.epsilon for view in level.views if view.claim is not None]
    holds = worst.holds
    why = ""
    if epsilon is None:
        why = worst.bound.refused or worst.why
    elif void := recording.contradictions(ready.plan, recording.public(ready.plan)):
        holds = Holds.DECLARED
        why = "; ".join(one.says for one in void)
    return CellBound(
        epsilon=encoded(epsilon),
        claimed=encoded(max((said for said in claimed if said is not None), default=None)),
        delta=level.delta,
        holds=str(holds),
        why=why,
    )


def _epsilon(view: Comparison) -> float | None:
    """Return the epsilon of a view at the claim's delta, or else at the bound's."""
    return view.bound.epsilon if view.exact is None else view.exact


def _finding(leak: GradientLeak, found: Reconstruction, scored: Score) -> CellFinding:
    whole = findings.finding(leak, found, scored)
    kept = {name: getattr(whole, name) for name in KEPT}
    return CellFinding(**kept, certified=findings.certified(found))


def _missed(node: int, cell: PlannedCell, truth: Truth) -> Scores:
    scored = findings.scores(nothing(node, cell.attack, truth))
    if scored is None:
        raise LeakauditError(f"node {node} has no records in the truth")
    return scored


def failure(cell: PlannedCell, status: Status, says: str) -> CellResult:
    """Return the entry of a cell that failed, with one line of at most 500 characters."""
    return CellResult(
        config=cell.config(),
        status=status,
        says=" ".join(says.split())[:500],
        constants={},
        records=0,
        findings=(),
        refused=(),
        reasons={},
    )


def died(cell: PlannedCell, why: str) -> _ComputedCell:
    """Return the entry of a cell whose process died."""
    return _ComputedCell(failure(cell, DIED, why), None, 0.0, 0.0)


def _reconstructed(
    cell: PlannedCell, fit: Sequence[GradientLeak], task: Task
) -> list[attacking.FinalReconstruction]:
    random = [seeds.generator(cell.scenario.seed, leak.node) for leak in fit]
    settings = {} if cell.attack == "auto" else dict(cell.settings)
    made = attacking.attack_together(fit, task, cell.attack, random, **settings)
    return sorted(made, key=lambda settled: settled.place)


def _usable(
    cell: PlannedCell, leaks: Sequence[GradientLeak], task: Task
) -> tuple[list[GradientLeak], dict[int, str]]:
    """Return the leaks that the attack can use, and by node why not the others."""
    if cell.attack == "auto":
        return list(leaks), {}
    chosen: Attack = registry.configure(registry.get("attacks", cell.attack), dict(cell.settings))
    usable = []
    reasons = {}
    for leak in leaks:  # one per node
        why = chosen.refuses(leak, task)
        if why:
            reasons[leak.node] = f"{cell.attack}: {why}"
        else:
            usable.append(leak)
    return usable, reasons
