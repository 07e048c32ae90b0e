"""One run of the program under test: a trace and its truth, for a seed."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Protocol

from leakaudit.errors import LeakauditError, ProgramError, suggest
from leakaudit.gate.config import Check
from leakaudit.gate.program import Program, rehearse
from leakaudit.protocols.recording import Plan, plan, record
from leakaudit.protocols.scenario import Scenario
from leakaudit.reconstruction import Certificate, Reconstruction
from leakaudit.scoring import scoring
from leakaudit.scoring.scoring import Score
from leakaudit.tasks.task import Task
from leakaudit.trace import TaskSpec, Trace, Truth
from leakaudit.traces import trace_file

SLACK = timedelta(
    seconds=2
)  # times of recordings are cut to whole seconds, and another second is the clock's


@dataclass(frozen=True)
class Recorded:
    """What one seed gave. guesses: of each node that was asked for, the score of a guess without any leak."""

    seed: int
    trace: Trace
    truth: Truth
    task: Task
    guesses: dict[int, Score] = field(default_factory=dict)

    def guess(self, node: int) -> Score:
        """Score what anybody would guess of a node's records: the mean of all others."""
        if node not in self.guesses:
            mean = scoring.blind_guess(self.truth, node)
            x = mean.expand(int((self.truth.node == node).sum()), *mean.shape)
            nothing = Reconstruction(node, "guess", x, None, Certificate.FAILED, 1.0)
            (self.guesses[node],) = scoring.score(nothing, self.truth)
        return self.guesses[node]


class Runner(Protocol):
    """Runs what a check names with one seed after the other; `close` it after the last."""

    def __call__(self, seed: int) -> Recorded:
        """Return the recording of a seed."""

    def anew(self, seed: int) -> Recorded | None:
        """Return the recording of a seed by a process in which nothing was run before; None if there is no such process."""

    def close(self) -> None:
        """End what was started for it."""


def ready(check: Check, folder: Path) -> Runner:
    """Return what runs a check's program with a seed.

    Raises:
        LeakauditError: the function or the scenario is not there, or cannot be used.
        ProgramError: importing the function failed.
    """
    if check.scenario:
        scenario = _Scenario(_read(check, folder), folder)
        if ":" in scenario.scenario.model:
            rehearse(
                partial(scenario.planned, 0),
                f"building the model {scenario.scenario.model}",
                check,
                folder,
            )
        return scenario
    return _Function(check, folder)


@dataclass(frozen=True)
class _Scenario:
    """Records a scenario in this process; its program is leakaudit's own victim."""

    scenario: Scenario
    folder: Path

    def __call__(self, seed: int) -> Recorded:
        planned = self.planned(seed)
        done = record(planned, None)
        return Recorded(seed, done.trace, done.truth_record, planned.task)

    def planned(self, seed: int) -> Plan:
        """Return the scenario made ready with a seed."""
        return plan(replace(self.scenario, seed=seed), data_root=self.folder / "data", trusted=True)

    def anew(self, seed: int) -> None:
        """Return nothing: a victim takes all its noise from a generator that is given the seed."""

    def close(self) -> None:
        """Nothing was started."""


def _read(check: Check, folder: Path) -> Scenario:
    if isinstance(check.scenario, str):
        return Scenario.from_toml(folder / check.scenario)
    known = [f.name for f in fields(Scenario)]
    for key in check.scenario:
        if key not in known:
            raise LeakauditError(
                f"check {check.name}: scenario: unknown key {key!r}{suggest(key, known)}"
            )
    return Scenario(**check.scenario)


class _Function:
    """Runs a check's function, in its own process, and verifies what it recorded."""

    def __init__(self, check: Check, folder: Path) -> None:
        self._check, self._name, self._folder = check, check.name, folder
        self._program = Program(check, folder)
        self._seen: dict[str, int] = {}  # id of a recording -> its seed
        self._rehearsed: list[
            TaskSpec
        ] = []  # models of the user's that were built in a process of their own

    def __call__(self, seed: int) -> Recorded:
        """Return the recording of a seed; raises ProgramError unless it is there, whole and finished."""
        return self._recorded(self._program, seed, self._seen)

    def anew(self, seed: int) -> Recorded | None:
        """Return the recording of a seed by another process; None for a function object, whose module no process imports anew."""
        if not isinstance(self._check.run, str):
            return None
        program = Program(self._check, self._folder)
        try:
            return self._recorded(program, seed, {})
        finally:
            program.close()

    def _recorded(self, program: Program, seed: int, seen: dict[str, int]) -> Recorded:
        with tempfile.TemporaryDirectory(prefix="leakaudit-") as folder:
            path = Path(folder) / "trace.pt"
            began = datetime.now(UTC)
            program(seed, path)
            if not path.exists():
                raise self._error("run wrote no trace; record with leakaudit.Recorder(path, …)")
            if not trace_file.truth_path(path).is_file():
                raise self._error(
                    "run wrote no truth; call recorder.truth(node, x, y) for every node with data"
                )
            trace, truth = trace_file.load(path), trace_file.load_truth(trace_file.truth_path(path))
            if not trace.complete:
                raise self._error(
                    "run returned without closing its recorder, so the recording is cut short; use it in a with block"
                )
            self._fresh(trace, seed, began, seen)
            trace_file.same_run(trace, truth)
            build = partial(Task.build, trace.task, trusted=True)
            if ":" in trace.task.model and trace.task not in self._rehearsed:
                rehearse(build, f"building the model {trace.task.model}", self._check, self._folder)
                self._rehearsed.append(trace.task)
            with _importing(self._folder):
                task = build()
            task.check_layout(trace.layout)
            return Recorded(seed, trace, truth, task)  # the trace stays mapped when its file goes

    def close(self) -> None:
        """End the program's process."""
        self._program.close()

    def _fresh(self, trace: Trace, seed: int, began: datetime, seen: dict[str, int]) -> None:
        """Refuse a recording of another call: it shows an earlier program. seen: id of a recording of the process -> its seed."""
        if trace.id in seen:
            raise self._error(
                f"seeds {seen[trace.id]} and {seed} left recordings of one id; record every call anew, without id="
            )
        seen[trace.id] = seed
        try:
            created = datetime.fromisoformat(str(trace.provenance.get("created")))
            early = created < began - SLACK
        except (TypeError, ValueError):
            raise self._error(
                "the recording does not hold when it was made; record with leakaudit.Recorder(path, …)"
            ) from None
        if early:
            says = f"the recording was made at {created.isoformat()}, before run was called with seed {seed}"
            raise self._error(f"{says}; record every call anew, and keep no copies")

    def _error(self, says: str) -> ProgramError:
        return ProgramError(f"check {self._name}: {says}")


@contextmanager
def _importing(folder: Path) -> Iterator[None]:
    """Let a model's factory be imported from the configuration's folder."""
    place = str(folder.resolve())
    sys.path.insert(0, place)
    try:
        yield
    finally:
        sys.path.remove(place)


def values(check: Check, folder: Path) -> Mapping[str, object]:
    """Return what a record should say of the program under test."""
    if check.scenario:
        return {
            "scenario": check.scenario if isinstance(check.scenario, str) else dict(check.scenario)
        }
    return {
        "run": check.run
        if isinstance(check.run, str)
        else getattr(check.run, "__qualname__", "a function")
    }
