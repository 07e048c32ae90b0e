"""One run of the program under test: a trace and its truth, for a seed."""

from __future__ import annotations

import importlib
import inspect
import sys
import sysconfig
import tempfile
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from leakaudit import scoring, tracefile
from leakaudit.errors import LeakauditError, suggest
from leakaudit.gate.config import Check
from leakaudit.reconstruction import Certificate, Reconstruction
from leakaudit.recording import plan, record
from leakaudit.scenario import Scenario
from leakaudit.scoring import Score
from leakaudit.task import Task
from leakaudit.trace import Trace, Truth


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


def ready(check: Check, folder: Path) -> Callable[[int], Recorded]:
    """Return the function that runs a check's program with a seed.

    Raises LeakauditError where the function or the scenario is not there; what the program itself raises goes through.
    """
    if check.scenario:
        return _scenario(_read(check, folder), folder)
    return _function(_imported(check, folder), check)


def _scenario(scenario: Scenario, folder: Path) -> Callable[[int], Recorded]:
    def run(seed: int) -> Recorded:
        planned = plan(replace(scenario, seed=seed), data_root=folder / "data", trusted=True)
        done = record(planned, None)
        return Recorded(seed, done.trace, done.truth_record, planned.task)

    return run


def _read(check: Check, folder: Path) -> Scenario:
    if isinstance(check.scenario, str):
        return Scenario.from_toml(folder / check.scenario)
    known = [f.name for f in fields(Scenario)]
    for key in check.scenario:
        if key not in known:
            raise LeakauditError(f"check {check.name}: scenario: unknown key {key!r}{suggest(key, known)}")
    return Scenario(**check.scenario)


def _function(function: Callable[[int, Path], object], check: Check) -> Callable[[int], Recorded]:
    def run(seed: int) -> Recorded:
        with tempfile.TemporaryDirectory(prefix="leakaudit-") as folder:
            path = Path(folder) / "trace.pt"
            try:
                function(seed, path)
            except LeakauditError:
                raise
            except Exception as error:  # a user's program may raise anything
                raise _failed(check, error) from error
            if not path.exists():
                raise LeakauditError(f"check {check.name}: run wrote no trace; record with leakaudit.Recorder(path, …)")
            if not tracefile.truth_path(path).is_file():
                raise LeakauditError(f"check {check.name}: run wrote no truth; call recorder.truth(node, x, y) for every node with data")
            trace, truth = tracefile.load(path), tracefile.load_truth(tracefile.truth_path(path))
            scoring.same_run(trace, truth)
            task = Task.build(trace.task, trusted=True)
            task.check_layout(trace.layout)
            return Recorded(seed, trace, truth, task)  # the trace stays mapped when its file goes

    return run


def _imported(check: Check, folder: Path) -> Callable[[int, Path], object]:
    """Return the function that ``module:function`` names; modules are looked for in the configuration's folder first."""
    if callable(check.run):
        return _checked(check.run, check)
    module, _, name = check.run.partition(":")
    if (place := str(folder.resolve())) not in sys.path:
        sys.path.insert(0, place)
    try:
        function: Any = importlib.import_module(module)
    except ModuleNotFoundError as e:
        raise LeakauditError(f"check {check.name}: run: cannot import {module!r}: {e}; it is looked for in {place}") from None
    except LeakauditError:
        raise
    except Exception as error:  # a user's module may raise anything
        raise _failed(check, error) from error
    for part in name.split("."):
        if not hasattr(function, part):
            raise LeakauditError(f"check {check.name}: run: {module} has no {part!r}{suggest(part, vars(function))}")
        function = getattr(function, part)
    return _checked(function, check)


def _failed(check: Check, error: Exception) -> LeakauditError:
    """Say in one line where the program under test failed, outside libraries where one of its calls did; that is no leak."""
    frames = traceback.extract_tb(error.__traceback__)
    libraries = tuple({sysconfig.get_path(which) for which in ("stdlib", "purelib", "platlib")})
    place = next((f for f in frames[:0:-1] if Path(f.filename).is_file() and not f.filename.startswith(libraries)), frames[-1])
    file, line = (error.filename, error.lineno) if isinstance(error, SyntaxError) else (place.filename, place.lineno)
    said = " ".join(str(error).split())
    return LeakauditError(f"check {check.name}: run: {type(error).__name__} in {Path(file or '?').name}, line {line}: {said}")


def _checked(function: Any, check: Check) -> Callable[[int, Path], object]:
    try:
        inspect.signature(function).bind(0, Path())
    except (TypeError, ValueError):
        raise LeakauditError(f"check {check.name}: run: expected a function of (seed, path), got {function!r:.80}") from None
    done: Callable[[int, Path], object] = function
    return done


def values(check: Check, folder: Path) -> Mapping[str, object]:
    """Return what a record should say of the program under test."""
    if check.scenario:
        return {"scenario": check.scenario if isinstance(check.scenario, str) else dict(check.scenario)}
    return {"run": check.run if isinstance(check.run, str) else getattr(check.run, "__qualname__", "a function")}
