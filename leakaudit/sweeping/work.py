"""One cell, from its configuration to what its result file holds."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from leakaudit import registry
from leakaudit._util import seeds
from leakaudit.adversary import Adversary
from leakaudit.auditing.levels import levels
from leakaudit.errors import LeakauditError
from leakaudit.extraction import hearing
from leakaudit.extraction.deduction import Deduction
from leakaudit.inversion import attacking
from leakaudit.leak import GradientLeak
from leakaudit.protocols import recording
from leakaudit.reconstruction import Attack
from leakaudit.results import findings
from leakaudit.scoring.scoring import nothing, score
from leakaudit.sweeping.cells import Cell
from leakaudit.sweeping.store import DONE, FAILED, Store
from leakaudit.tasks.task import Task
from leakaudit.trace import Json

LEFT_OUT = (
    "seconds",
    "labels",
    "images",
)  # of a finding: what differs from run to run, and what is private and not needed


@dataclass(frozen=True)
class Ended:
    """How a cell ended. seconds: of wall clock; cpu: of the processor. worker: its process."""

    key: str
    status: str
    says: str
    seconds: float
    cpu: float
    worker: int


@dataclass(frozen=True)
class Job:
    """What every worker does with a cell: run it, and write its result."""

    folder: Path
    data_root: Path | None = None
    download: bool = False
    trusted: bool = False

    def __call__(self, key: str, cell: Cell) -> Ended:
        """Run one cell; whatever it raises is its result."""
        start, cpu, store = time.perf_counter(), time.process_time(), Store(self.folder)
        try:
            record, trouble = {"status": DONE, "says": "", **self.measure(cell)}, None
        except LeakauditError as error:
            record, trouble = failure(FAILED, str(error)), None
        except Exception as error:  # a user's own attack or victim may raise anything
            record, trouble = (
                failure(FAILED, f"{type(error).__name__}: {error}"),
                traceback.format_exc(),
            )
        store.explain(key, trouble)
        store.save(key, {"config": cell.config(), **record})
        return Ended(
            key,
            str(record["status"]),
            str(record["says"]),
            time.perf_counter() - start,
            time.process_time() - cpu,
            0,
        )

    def measure(self, cell: Cell) -> dict[str, Json]:
        """Return constants, findings, and why nothing is known of other nodes, with what these score."""
        ready, constants = self._ready(cell)
        recorder = recording.record(ready, None)
        trace, truth = recorder.trace, recorder.truth_record
        task = Task.build(trace.task, device=cell.plan.device, trusted=self.trusted)
        adversary = Adversary.parse(cell.adversary)
        adversary.check(trace.graph)
        mine = [
            n
            for n in cell.plan.nodes or hearing.targets(trace, adversary)
            if n not in adversary.corrupt
        ]
        leaks = hearing.deduce(Deduction(trace, adversary), mine, cell.plan.gradients)
        fit, reasons = _usable(cell, list(leaks), task)
        random = [seeds.generator(cell.scenario.seed, leak.node) for leak in fit]
        settings = {} if cell.attack == "auto" else dict(cell.settings)
        made = sorted(
            attacking.attack_together(fit, task, cell.attack, random, **settings),
            key=lambda settled: settled.place,
        )
        scores = score([one.found for one in made], truth)
        reasons = {**leaks.undetermined, **reasons}
        refused = [nothing(node, cell.attack, truth).to_json() for node in sorted(reasons)]
        entries = [
            findings.finding(fit[one.place], one.found, s)
            for one, s in zip(made, scores, strict=True)
        ]
        return {
            "constants": dict(constants),
            "records": len(mine) * cell.scenario.samples,
            "findings": [
                {k: v for k, v in entry.items() if k not in LEFT_OUT} for entry in entries
            ],
            "refused": refused,
            "reasons": {str(k): v for k, v in sorted(reasons.items())},
        }

    def _ready(self, cell: Cell) -> tuple[recording.Plan, Mapping[str, Any]]:
        """Return the recording's plan, and the constants by which its epsilon was set."""
        if cell.epsilon is None:
            made: Callable[..., recording.Plan] = recording.plan
            where = {
                "data_root": self.data_root,
                "download": self.download,
                "device": cell.plan.device,
            }
            return made(cell.scenario, **where, trusted=self.trusted), {}
        (level,) = levels(
            cell.plan.noises(cell.scenario, cell.epsilon),
            self.data_root,
            self.download,
            cell.plan.device,
        )
        return level.ready, level.constants


def failure(status: str, says: str) -> dict[str, Json]:
    """Return the result of a cell that has none."""
    nothing_known: dict[str, Json] = {
        "constants": {},
        "records": 0,
        "findings": [],
        "refused": [],
        "reasons": {},
    }
    return {"status": status, "says": " ".join(says.split())[:500], **nothing_known}


def _usable(
    cell: Cell, leaks: Sequence[GradientLeak], task: Task
) -> tuple[list[GradientLeak], dict[int, str]]:
    """Split leaks into those that the attack can use, and why it cannot use the others; `auto` says so itself."""
    if cell.attack == "auto":
        return list(leaks), {}
    chosen: Attack = registry.configure(registry.get("attacks", cell.attack), dict(cell.settings))
    why = {leak.node: chosen.refuses(leak, task) for leak in leaks}
    return [leak for leak in leaks if not why[leak.node]], {
        n: f"{cell.attack}: {w}" for n, w in why.items() if w
    }


def one_thread() -> None:
    """Let this process compute on one thread."""
    torch.set_num_threads(1)
