"""The program under test, in a process of its own, so that no way in which it ends is a verdict.

A run counts only if the function returns and leaves a complete recording; anything else is an
error that ends the gate with code 4, `PROGRAM_FAILED`.
"""

from __future__ import annotations

import atexit
import importlib
import inspect
import os
import signal
import sys
import sysconfig
import time
import traceback
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import numpy as np
import torch

from leakaudit._util import forks, own_code
from leakaudit.core.errors import PROGRAM_FAILED, LeakauditError, suggest
from leakaudit.judging.gate.config import Check, Function

# Seconds between checks of whether the process is alive, for cases in which its end is not
# signalled. A choice: short compared with a timeout, long compared with the check.
POLL = 0.5
GRACE = 5.0  # seconds that a program has to clean up after its last run; a choice
# Exit code of a completed rehearsal: neither a signal nor a code that Python itself uses.
ENDED = 77
NOTHING = "nothing was judged"


class _OperationOutcome(Enum):
    RETURNED = "returned"
    REFUSED = "refused"  # leakaudit itself raised an error
    FAILED = "failed"


Order = tuple[int, str]  # a seed, and the path of its recording
Answer = tuple[_OperationOutcome, str]  # outcome and reason
if TYPE_CHECKING:
    Parent = Connection[Order, Answer]  # this process's end of the connection
    Child = Connection[Answer, Order]  # the program's end of the connection


@dataclass(frozen=True)
class _Place:
    """The environment of a process, inherited from its parent."""

    folder: str  # folder of the configuration; modules are searched there first
    directory: str
    environment: dict[str, str]
    threads: int  # number of threads of the tensor library

    @classmethod
    def here(cls, folder: Path) -> _Place:
        return cls(str(folder.resolve()), os.getcwd(), dict(os.environ), torch.get_num_threads())

    def settle(self) -> None:
        """Apply it to this process, and redirect stdout to stderr."""
        os.dup2(2, 1)  # a program's own output must not mix with a report on stdout
        os.environ.clear()
        os.environ.update(self.environment)
        os.chdir(self.directory)
        torch.set_num_threads(self.threads)


class CheckedProgram:
    """The function of a check in its own process, called with one seed after another.

    One that is named, ``module:function``, is imported by a process that inherits only torch; a
    function object, which only a test can provide, runs in a fork.
    """

    def __init__(self, check: Check, folder: Path) -> None:
        self._check = check
        place = _Place.here(folder)
        if isinstance(check.run, str):
            context = forks.context()
            self._ours, theirs = context.Pipe()
            work = partial(_serve_named, theirs, check.run, check.name, place)
            self._process: BaseProcess = context.Process(target=work)
        else:
            fork = get_context("fork")
            self._ours, theirs = fork.Pipe()
            function = _checked(check.run, check.name)
            # A fork inherits a copy of our end, and would not notice when we close it.
            work = partial(_serve_function, theirs, self._ours, function, place)
            self._process = fork.Process(target=work)
        self._process.start()
        theirs.close()
        self._close = weakref.finalize(self, _end, self._process, self._ours)
        try:
            self._answer("while it was imported")
        except BaseException:
            self.close()
            raise

    def __call__(self, seed: int, path: Path) -> None:
        """Call the function, and wait until it returns."""
        self._ours.send((seed, str(path)))
        self._answer(f"with seed {seed}")

    def close(self) -> None:
        """End the process."""
        self._close()

    def _answer(self, when: str) -> None:
        limit = time.monotonic() + self._check.timeout
        while not self._ours.poll():
            left = limit - time.monotonic()
            if left <= 0:
                self._process.kill()
                raise self._late(when)
            wait([self._ours, self._process.sentinel], min(left, POLL))
            if self._process.exitcode is not None and not self._ours.poll():
                raise self._silent(when)
        try:
            answer: Answer = self._ours.recv()
        except EOFError:  # the process closed its end before its exit was seen
            self._process.join(GRACE)
            raise self._silent(when) from None
        word, says = answer
        if word is _OperationOutcome.REFUSED:
            raise LeakauditError(says)
        if word is _OperationOutcome.FAILED:
            raise self._error(says)

    def _late(self, when: str) -> LeakauditError:
        allowed = f"{self._check.timeout:g} s, the check's timeout"
        setting = f"set timeout = SECONDS in [check.{self._check.name}]"
        return self._error(f"it did not return {when} within {allowed}; {setting}")

    def _silent(self, when: str) -> LeakauditError:
        return self._error(f"{_died(self._process.exitcode)} {when}, before it returned")

    def _error(self, says: str) -> LeakauditError:
        return _failed(self._check, f"run: {says}")


def rehearse(work: Callable[[], object], what: str, check: Check, folder: Path) -> None:
    """Run user code in another process first: code that ends its process would end the gate."""
    context = forks.context()
    ours, theirs = context.Pipe()
    process = context.Process(target=_rehearse, args=(theirs, work, _Place.here(folder)))
    process.start()
    theirs.close()
    try:
        if not ours.poll(check.timeout):
            allowed = f"{check.timeout:g} s, the check's timeout"
            raise _failed(check, f"{what} did not end within {allowed}")
        answer: Answer = ours.recv()
        word, says = answer
        process.join(GRACE)
        if word is _OperationOutcome.REFUSED:
            raise LeakauditError(says)
        if word is _OperationOutcome.FAILED or process.exitcode != ENDED:
            why = says or f"{_died(process.exitcode)} when it ended"
            raise _failed(check, f"{what} failed: {why}")
    except EOFError:
        process.join(GRACE)
        raise _failed(check, f"{what} failed: {_died(process.exitcode)}") from None
    finally:
        _end(process, ours)


class _Ended(BaseException):
    """Code that runs in this process tried to end it; no handler of `Exception` catches this."""


@contextmanager
def staying() -> Iterator[None]:
    """Convert a call of `os._exit` in this process to an error."""
    end = os._exit
    own = os.getpid()

    def refuse(status: int) -> NoReturn:
        if os.getpid() != own:  # a forked child, which legitimately ends this way
            end(status)
        caller = sys._getframe(1)
        file = Path(caller.f_code.co_filename).name
        raise _Ended(f"os._exit({status}) was called in {file}, line {caller.f_lineno}")

    os._exit = refuse
    try:
        yield
    except _Ended as error:
        where = "in the gate's own process, by a model, an attack or a victim"
        raise LeakauditError(f"{error}, {where}; {NOTHING}", code=PROGRAM_FAILED) from None
    finally:
        os._exit = end


def _failed(check: Check, says: str) -> LeakauditError:
    return LeakauditError(f"check {check.name}: {says}; {NOTHING}", code=PROGRAM_FAILED)


def _died(code: int | None) -> str:
    if code is not None and code < 0:
        return f"its process was killed by {signal.Signals(-code).name}"
    return f"its process ended with code {code}"


def _end(process: BaseProcess, connection: Parent) -> None:
    """Close the connection, which ends the process; kill it if it does not."""
    connection.close()
    process.join(GRACE)
    if process.is_alive():
        process.kill()
        process.join()


# --- in the other process -------------------------------------------------------------------------


def _serve_named(connection: Child, run: str, check: str, place: _Place) -> None:
    """Import a function, then call it with every seed, until the parent has ended."""
    place.settle()
    # The program under test may draw its noise from numpy's global generator, which every new
    # process initialises from the system's entropy. A fork would inherit its state instead, so that
    # an honest program would seem to draw the same noise in every process.
    np.random.seed()  # noqa: NPY002
    loaded: list[Function] = []

    def load() -> None:
        loaded.append(imported(run, check, Path(place.folder)))

    connection.send(_outcome(load))
    if loaded:
        _serve(connection, loaded[0])


def _serve_function(connection: Child, parents: Parent, function: Function, place: _Place) -> None:
    parents.close()
    # The threads of a pool do not survive a fork, and a parallel region would wait for them.
    replace(place, threads=1).settle()
    connection.send((_OperationOutcome.RETURNED, ""))
    _serve(connection, function)


def _serve(connection: Child, function: Function) -> None:
    while True:
        try:
            seed, path = connection.recv()
        except EOFError:
            return
        connection.send(_outcome(partial(function, seed, Path(path))))


def _rehearse(connection: Child, work: Callable[[], object], place: _Place) -> None:
    """Run the operation, then exit as Python does, with code `ENDED`."""
    place.settle()
    with own_code.importable(place.folder):
        connection.send(_outcome(work))
    atexit._run_exitfuncs()  # children of multiprocessing do not run them
    os._exit(ENDED)


def _outcome(work: Callable[[], object]) -> Answer:
    try:
        work()
    except LeakauditError as error:
        return _OperationOutcome.REFUSED, str(error)
    except SystemExit as error:
        called = f"it called sys.exit({error.code!r}) {_where(error)}"
        return (
            _OperationOutcome.FAILED,
            f"{called}; return instead, and put scripts under a main guard",
        )
    except Exception as error:
        said = " ".join(str(error).split())
        return _OperationOutcome.FAILED, f"{type(error).__name__} {_where(error)}: {said}"
    return _OperationOutcome.RETURNED, ""


def imported(run: str, check: str, folder: Path) -> Function:
    """Return the function of (seed, path) that ``module:function`` names, which may be nested."""
    module, _, name = run.partition(":")
    place = str(folder)
    if place not in sys.path:
        sys.path.insert(0, place)
    try:
        found: object = importlib.import_module(module)
    except ModuleNotFoundError as error:
        hint = f"modules are searched in {place} first"
        raise LeakauditError(
            f"check {check}: run: cannot import {module!r}: {error}; {hint}"
        ) from None
    for part in name.split("."):
        if not hasattr(found, part):
            near = suggest(part, vars(found))
            raise LeakauditError(f"check {check}: run: {module} has no {part!r}{near}")
        found = getattr(found, part)
    return _checked(found, check)


def _checked(function: object, check: str) -> Function:
    expected = f"check {check}: run: expected a function of (seed, path), got {function!r:.80}"
    if not callable(function):
        raise LeakauditError(expected)
    try:
        inspect.signature(function).bind(0, Path())
    except (TypeError, ValueError):
        raise LeakauditError(expected) from None
    return function


def _where(error: BaseException) -> str:
    """Return the place in the program under test, even if a library failed."""
    frames = traceback.extract_tb(error.__traceback__)
    own = (
        frame
        for frame in frames[:0:-1]
        if Path(frame.filename).is_file() and not _library(frame.filename)
    )
    place = next(own, frames[-1])
    file = place.filename
    line = place.lineno
    if isinstance(error, SyntaxError):
        file = error.filename or "?"
        line = error.lineno
    return f"in {Path(file).name}, line {line}"


def _library(file: str) -> bool:
    """Return whether a file belongs to Python itself or to an installed package."""
    installed = {"site-packages", "dist-packages"} & set(Path(file).parts)
    return bool(installed) or file.startswith(sysconfig.get_path("stdlib"))
