"""The computation of one cell, from its configuration to its result."""

from __future__ import annotations

import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from leakaudit._util import seeds
from leakaudit._util.own_code import Trust
from leakaudit.core import registry
from leakaudit.core.adversary import Adversary
from leakaudit.core.errors import LeakauditError
from leakaudit.core.leak import GradientLeak
from leakaudit.core.reconstruction import Reconstruction
from leakaudit.core.trace import Setting, Truth
from leakaudit.inversion import attacking
from leakaudit.inversion.attack import Attack
from leakaudit.protocols import recording
from leakaudit.reporting.findings import findings
from leakaudit.reporting.results.cell_files import (
    DIED,
    DONE,
    FAILED,
    CellFinding,
    CellResult,
    Status,
)
from leakaudit.reporting.results.model import Scores
from leakaudit.runs.sweeping.cells import PlannedCell
from leakaudit.scoring.scoring import Score, nothing, score
from leakaudit.tasks.shared import SharedData
from leakaudit.tasks.task import Task
from leakaudit.views.extraction import hearing
from leakaudit.views.extraction.deduction import Deduction

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
        """Record, attack and score one cell."""
        ready, constants = self._ready(cell)
        recorder = recording.record(ready, None)
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
        made = _attacked(cell, fit, task)
        scores = score([one.found for one in made], truth)
        entries = []
        for one, scored in zip(made, scores, strict=True):
            entries.append(_finding(fit[one.place], one.found, scored))
        reasons = {**leaks.undetermined, **unusable}
        return CellResult(
            config=cell.config(),
            status=DONE,
            says="",
            constants=dict(constants),
            records=len(mine) * cell.scenario.samples,
            findings=tuple(entries),
            refused=tuple(_missed(node, cell, truth) for node in sorted(reasons)),
            reasons={str(node): why for node, why in sorted(reasons.items())},
        )

    def _ready(self, cell: PlannedCell) -> tuple[recording.Plan, Mapping[str, Setting]]:
        """Return the recording's plan, and the constants that set its epsilon."""
        plan = cell.plan
        if cell.epsilon is None:
            made = recording.plan(
                cell.scenario,
                data_root=self.data_root,
                download=self.download,
                device=plan.device,
                trusted=self.trusted,
                shared=SHARED,
            )
            return made, {}
        # They load scipy, which few sweeps need.
        from leakaudit.judging.auditing.levels import RunEnvironment, levels

        noises = plan.noises(cell.scenario, cell.epsilon)
        (level,) = levels(noises, RunEnvironment(self.data_root, self.download, plan.device))
        return level.ready, level.constants


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


def _attacked(
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
