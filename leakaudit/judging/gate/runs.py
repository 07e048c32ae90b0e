"""A run of the program under test: a trace and its truth, for one seed."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TypeAlias

from leakaudit._util import config, own_code
from leakaudit.core import registry
from leakaudit.core.errors import PROGRAM_FAILED, LeakauditError
from leakaudit.core.reconstruction import Certificate, Reconstruction
from leakaudit.core.trace import TaskSpec, Trace, Truth
from leakaudit.judging.auditing.environment import RunEnvironment
from leakaudit.judging.gate.config import Check
from leakaudit.judging.gate.program import CheckedProgram, rehearse
from leakaudit.judging.gate.tapped import TappedProgram
from leakaudit.protocols.recording import Plan, record
from leakaudit.protocols.scenario import FORM, Scenario
from leakaudit.scoring import scoring
from leakaudit.scoring.scoring import Score
from leakaudit.tasks.task import Task
from leakaudit.traces import trace_file

# By how much a recording may be older than the call that made it: its time is truncated to whole
# seconds, and another second allows for adjustments of the clock.
SLACK = timedelta(seconds=2)


@dataclass(frozen=True)
class SeedResults:
    """The results of one seed."""

    seed: int  # the seed with which the program was called
    trace: Trace
    truth: Truth  # truth of the same run
    task: Task
    # node -> score of a blind guess; filled by `guess`
    guesses: dict[int, Score] = field(default_factory=dict)

    def guess(self, node: int) -> Score:
        """Score a blind guess of a node's records, the mean of all others."""
        if node not in self.guesses:
            mean = self.truth.blind_guess(node)
            count = int((self.truth.node == node).sum())
            x = mean.expand(count, *mean.shape)
            nothing = Reconstruction(node, "guess", x, None, Certificate.FAILED, 1.0)
            (self.guesses[node],) = scoring.score(nothing, self.truth)
        return self.guesses[node]


# Runs the program of a check with one seed after another; `anew` runs it in a new process.
Runner: TypeAlias = "_Function | _Scenario"


def ready(check: Check, folder: Path) -> Runner:
    """Return the runner of a check's program."""
    if not check.scenario:
        return _Function(check, folder)
    runner = _Scenario(_read(check, folder), folder)
    model = runner.scenario.model
    if _is_factory(model):
        rehearse(partial(runner.planned, 0), f"building the model {model}", check, folder)
    return runner


def _is_factory(model: str) -> bool:
    """Return whether a user's function, ``module:function``, builds a model."""
    return ":" in model


@dataclass(frozen=True)
class _Scenario:
    """Records one of leakaudit's own victims, in this process."""

    scenario: Scenario
    folder: Path

    def __call__(self, seed: int) -> SeedResults:
        planned = self.planned(seed)
        done = record(planned, None)
        return SeedResults(seed, done.trace, done.truth_record, planned.task)

    def planned(self, seed: int) -> Plan:
        scenario = replace(self.scenario, seed=seed)
        with own_code.importable(str(self.folder)):
            return RunEnvironment(self.folder / "data", trusted=True).plan(scenario)

    def anew(self, seed: int) -> None:
        """Return None: a victim draws all its noise from a generator initialised with the seed."""

    def close(self) -> None:
        """Do nothing: no process was started."""


def _read(check: Check, folder: Path) -> Scenario:
    if isinstance(check.scenario, str):
        return Scenario.from_toml(folder / check.scenario)
    table = config.ConfigTable(check.scenario, f"check {check.name}").named("scenario")
    return table.decode(FORM, Scenario)


class _Function:
    """Runs a check's function, or its tapped command, and verifies its recording."""

    def __init__(self, check: Check, folder: Path) -> None:
        self._check = check
        self._folder = folder
        self._program = TappedProgram(check, folder) if check.tap else CheckedProgram(check, folder)
        self._seen: dict[str, int] = {}  # id of a recording -> its seed
        self._rehearsed: list[TaskSpec] = []  # user's models that were built in another process

    def __call__(self, seed: int) -> SeedResults:
        return self._recorded(self._program, seed, self._seen)

    def anew(self, seed: int) -> SeedResults | None:
        """Record by another process; None if none, or each, of the runs has a process of its own.

        No process can import a function object again, and each run of a command starts anew.
        """
        if self._check.tap or not isinstance(self._check.run, str):
            return None
        program = CheckedProgram(self._check, self._folder)
        try:
            return self._recorded(program, seed, {})
        finally:
            program.close()

    def _recorded(
        self, program: CheckedProgram | TappedProgram, seed: int, seen: dict[str, int]
    ) -> SeedResults:
        """Call the program; `seen` maps the ids of earlier recordings of its process to seeds."""
        with tempfile.TemporaryDirectory(prefix="leakaudit-") as folder:
            path = Path(folder) / "trace.pt"
            began = datetime.now(UTC)
            program(seed, path)
            trace, truth = self._load(path)
            self._require_fresh(trace, seed, began, seen)
            trace_file.same_run(trace, truth)
            # The trace stays mapped when its file is removed with the folder.
            return SeedResults(seed, trace, truth, self._task(trace))

    def _load(self, path: Path) -> tuple[Trace, Truth]:
        if not path.exists():
            raise self._error("run wrote no trace; record with leakaudit.Recorder(path, …)")
        truth_path = trace_file.truth_path(path)
        if not truth_path.is_file():
            raise self._error(
                "run wrote no truth; call recorder.truth(node, x, y) for every node with data"
            )
        trace = trace_file.load(path)
        truth = trace_file.load_truth(truth_path)
        if not trace.complete:
            raise self._error(
                "run returned without closing its recorder, so the recording is incomplete; "
                "use the recorder in a with block"
            )
        # A program must not describe itself as one that reveals nothing.
        if registry.TEXT in trace.provenance and trace.protocol not in registry.names("victims"):
            raise self._error(
                f"the program describes its protocol {trace.protocol!r} itself; review its "
                "protocol file, and pass it to the gate with --plugin FILE"
            )
        return trace, truth

    def _task(self, trace: Trace) -> Task:
        """Build the training task; a user's model first in another process."""
        build = partial(Task.build, trace.task, trusted=True)
        model = trace.task.model
        if _is_factory(model) and trace.task not in self._rehearsed:
            rehearse(build, f"building the model {model}", self._check, self._folder)
            self._rehearsed.append(trace.task)
        with own_code.importable(str(self._folder)):
            task = build()
        task.check_layout(trace.layout)
        return task

    def close(self) -> None:
        self._program.close()

    def _require_fresh(
        self, trace: Trace, seed: int, began: datetime, seen: dict[str, int]
    ) -> None:
        """Reject a recording of another call, which shows an earlier program."""
        if trace.id in seen:
            raise self._error(
                f"the recordings of seeds {seen[trace.id]} and {seed} have the same id; "
                "record every call anew, without id="
            )
        seen[trace.id] = seed
        try:
            created = datetime.fromisoformat(str(trace.provenance.get("created")))
            early = created < began - SLACK
        except (TypeError, ValueError):
            raise self._error(
                "the recording does not state when it was made; "
                "record with leakaudit.Recorder(path, …)"
            ) from None
        if early:
            raise self._error(
                f"the recording was made at {created.isoformat()}, "
                f"before run was called with seed {seed}; "
                "record every call anew, without reusing files"
            )

    def _error(self, says: str) -> LeakauditError:
        return LeakauditError(f"check {self._check.name}: {says}", code=PROGRAM_FAILED)


def values(check: Check) -> Mapping[str, object]:
    """Return the description of the program under test for a record."""
    if isinstance(check.scenario, str):
        if check.scenario:
            return {"scenario": check.scenario}
    elif check.scenario:
        return {"scenario": dict(check.scenario)}
    if check.tap:
        return {"tap": check.tap}
    if isinstance(check.run, str):
        return {"run": check.run}
    return {"run": getattr(check.run, "__qualname__", "a function")}
