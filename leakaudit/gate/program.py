"""The program under test, in a process of its own, so that each of its ways to end is known and none of them is a verdict.

What else calls a user's code (a model's factory, a plugin) is rehearsed in such a process, or may not end this one.

A run counts only if the function returns and leaves a finished recording. Whatever else happens (an exception, sys.exit, os._exit, a
signal, a time-out) is a `ProgramError`, which ends the gate with code 4. What the program prints goes to stderr.
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
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch

from leakaudit._util import forks
from leakaudit.errors import LeakauditError, ProgramError, suggest
from leakaudit.gate.config import Check

Function = Callable[[int, Path], object]
RETURNED, REFUSED, FAILED = "returned", "refused", "failed"  # what a process answers
POLL = 0.5  # seconds between two looks at whether the process is alive, where its end does not announce itself
ENDED = 77  # exit code of a rehearsal that came to its end
NOTHING = "nothing was judged"
GRACE = 5.0  # seconds that a program has to clean up after its last run


@dataclass(frozen=True)
class _Place:
    """Where the process works: the configuration's folder, the working directory, the environment and the threads of its parent."""

    folder: str
    directory: str
    environment: dict[str, str]
    threads: int


class Program:
    """The function of a check, imported in its own process and called with one seed after the other.

    A function that is named, ``module:function``, is imported by a process that has nothing of this one but torch. A function object,
    which only a test can give, runs in a fork of this process.

    Args:
        check: names the function.
        folder: of the configuration; modules are looked for there first.

    Raises:
        LeakauditError: the function cannot be imported, or takes other arguments than a seed and a path.
        ProgramError: importing it failed or ended the process.
    """

    def __init__(self, check: Check, folder: Path) -> None:
        self._check = check
        named = isinstance(check.run, str)
        context: Any = forks.context() if named else get_context("fork")
        self._ours, theirs = context.Pipe()
        place = _Place(
            str(folder.resolve()), os.getcwd(), dict(os.environ), torch.get_num_threads()
        )
        closed = (
            None if named else self._ours
        )  # a fork holds a copy of our end, and would not notice when we close it
        target = check.run if named else _checked(check.run, check.name)
        self._process: BaseProcess = context.Process(
            target=_serve, args=(theirs, closed, target, check.name, place)
        )
        self._process.start()
        theirs.close()
        self._close = weakref.finalize(self, _end, self._process, self._ours)
        try:
            self._answer("while it was imported")
        except BaseException:
            self.close()
            raise

    def __call__(self, seed: int, path: Path) -> None:
        """Call the function with a seed and the path of its recording, and wait until it returns.

        Raises:
            LeakauditError: leakaudit refused something that the program did, such as a message of an unknown kind.
            ProgramError: the program did not return.
        """
        self._ours.send((seed, str(path)))
        self._answer(f"with seed {seed}")

    def close(self) -> None:
        """End the process."""
        self._close()

    def _answer(self, when: str) -> None:
        """Wait for the process to say how the last thing went."""
        limit = time.monotonic() + self._check.timeout
        while not self._ours.poll():
            left = limit - time.monotonic()
            if left <= 0:
                self._process.kill()
                allowed = f"{self._check.timeout:g} s, the check's timeout"
                raise self._error(
                    f"it did not return {when} within {allowed}; set timeout = SECONDS in [check.{self._check.name}]"
                )
            wait([self._ours, self._process.sentinel], min(left, POLL))
            if self._process.exitcode is not None and not self._ours.poll():
                raise self._error(f"{_died(self._process.exitcode)} {when}, before it returned")
        try:
            word, says = self._ours.recv()
        except EOFError:  # the process closed its end before its exit was seen
            self._process.join(GRACE)
            raise self._error(
                f"{_died(self._process.exitcode)} {when}, before it returned"
            ) from None
        if word == REFUSED:
            raise LeakauditError(says)
        if word == FAILED:
            raise self._error(says)

    def _error(self, says: str) -> ProgramError:
        return _failed(self._check, f"run: {says}")


def rehearse(work: Callable[[], object], what: str, check: Check, folder: Path) -> None:
    """Do something that calls a user's code in a process of its own, before it is done in this one.

    Code that ends its process there, at once or when the process ends, would end the gate.

    Args:
        work: what is done; its result is thrown away.
        what: a few words for it.
        check: of which check; its timeout holds.
        folder: of the configuration; modules are looked for there first.

    Raises:
        LeakauditError: leakaudit refused it.
        ProgramError: it failed, or did not leave the process as it was.
    """
    ours, theirs = forks.context().Pipe()
    place = _Place(str(folder.resolve()), os.getcwd(), dict(os.environ), torch.get_num_threads())
    process = forks.context().Process(target=_rehearse, args=(theirs, work, place))
    process.start()
    theirs.close()
    failed = partial(_failed, check)
    try:
        if not ours.poll(check.timeout):
            raise failed(f"{what} did not end within {check.timeout:g} s, the check's timeout")
        word, says = ours.recv()
        process.join(GRACE)
        if word == REFUSED:
            raise LeakauditError(says)
        if word == FAILED or process.exitcode != ENDED:
            raise failed(f"{what} failed: {says or f'{_died(process.exitcode)} when it ended'}")
    except EOFError:
        process.join(GRACE)
        raise failed(f"{what} failed: {_died(process.exitcode)}") from None
    finally:
        _end(process, ours)


def _rehearse(connection: Connection, work: Callable[[], object], place: _Place) -> None:
    """Do the work as `_serve` would, then end the process as Python does, with a code that nothing else ends it with."""
    _settle(place)
    sys.path.insert(0, place.folder)
    connection.send(_outcome(work))
    atexit._run_exitfuncs()  # which children of multiprocessing leave out
    os._exit(ENDED)


def _settle(place: _Place) -> None:
    """Take over the parent's directory, environment and threads; what is printed goes to stderr."""
    os.dup2(2, 1)  # a program's own output must not mix with a report on stdout
    os.environ.clear()
    os.environ.update(place.environment)
    os.chdir(place.directory)
    torch.set_num_threads(place.threads)


class _Ended(BaseException):
    """Code that runs in this process tried to end it; no handler of `Exception` on the way takes it for something else."""


@contextmanager
def staying() -> Iterator[None]:
    """Turn `os._exit` in this process, which nothing would see, into an error.

    Raises:
        ProgramError: something called it.
    """
    end, own = os._exit, os.getpid()

    def refuse(status: int) -> NoReturn:
        if os.getpid() != own:  # a child of a fork, which ends like this
            end(status)
        caller = sys._getframe(1)
        raise _Ended(
            f"os._exit({status}) was called in {Path(caller.f_code.co_filename).name}, line {caller.f_lineno}"
        )

    os._exit = refuse
    try:
        yield
    except _Ended as error:
        raise ProgramError(
            f"{error}, in the gate's own process, by a model, an attack or a victim; {NOTHING}"
        ) from None
    finally:
        os._exit = end


def _failed(check: Check, says: str) -> ProgramError:
    return ProgramError(f"check {check.name}: {says}; {NOTHING}")


def _died(code: int | None) -> str:
    """Say how a process ended that did not answer."""
    if code is not None and code < 0:
        return f"its process was killed by {signal.Signals(-code).name}"
    return f"its process ended with code {code}"


def _end(process: BaseProcess, connection: Connection) -> None:
    """Close the connection, upon which the process ends; one that does not is killed."""
    connection.close()
    process.join(GRACE)
    if process.is_alive():
        process.kill()
        process.join()


def _serve(
    connection: Connection,
    parents: Connection | None,
    run: str | Function,
    check: str,
    place: _Place,
) -> None:
    """Import the function, then call it with every seed that comes; this is the whole life of the process."""
    if parents is not None:
        parents.close()
    # Threads of a pool do not survive a fork, and a parallel region would wait for them.
    _settle(place if isinstance(run, str) else replace(place, threads=1))
    if isinstance(run, str):
        # A fork inherits numpy's global generator, which in a process of its own would start from the system's entropy.
        np.random.seed()  # noqa: NPY002
    loaded: list[Function] = []

    def load() -> None:
        loaded.append(imported(run, check, Path(place.folder)) if isinstance(run, str) else run)

    connection.send(_outcome(load))
    while loaded:
        try:
            seed, path = connection.recv()
        except EOFError:
            return
        connection.send(_outcome(partial(loaded[0], seed, Path(path))))


def _outcome(work: Callable[[], object]) -> tuple[str, str]:
    """Do something, and return how it ended, in words that can travel."""
    try:
        work()
    except LeakauditError as error:
        return REFUSED, str(error)
    except SystemExit as error:
        return (
            FAILED,
            f"it called sys.exit({error.code!r}) {_where(error)}; return instead, and keep scripts under a main guard",
        )
    except Exception as error:
        said = " ".join(str(error).split())
        return FAILED, f"{type(error).__name__} {_where(error)}: {said}"
    return RETURNED, ""


def imported(run: str, check: str, folder: Path) -> Function:
    """Return the function that ``module:function`` names; modules are looked for in `folder` first.

    Raises:
        LeakauditError: there is no such module or function, or it does not take a seed and a path.
    """
    module, _, name = run.partition(":")
    place = str(folder)
    if place not in sys.path:
        sys.path.insert(0, place)
    try:
        found: Any = importlib.import_module(module)
    except ModuleNotFoundError as e:
        raise LeakauditError(
            f"check {check}: run: cannot import {module!r}: {e}; it is looked for in {place}"
        ) from None
    for part in name.split("."):
        if not hasattr(found, part):
            raise LeakauditError(
                f"check {check}: run: {module} has no {part!r}{suggest(part, vars(found))}"
            )
        found = getattr(found, part)
    return _checked(found, check)


def _checked(function: Any, check: str) -> Function:
    try:
        inspect.signature(function).bind(0, Path())
    except (TypeError, ValueError):
        raise LeakauditError(
            f"check {check}: run: expected a function of (seed, path), got {function!r:.80}"
        ) from None
    done: Function = function
    return done


def _where(error: BaseException) -> str:
    """Return the place in the program under test, outside libraries if one of its calls failed there."""
    frames = traceback.extract_tb(error.__traceback__)
    own = (f for f in frames[:0:-1] if Path(f.filename).is_file() and not _library(f.filename))
    place = next(own, frames[-1])
    file, line = place.filename, place.lineno
    if isinstance(error, SyntaxError):
        file, line = error.filename or "?", error.lineno
    return f"in {Path(file).name}, line {line}"


def _library(file: str) -> bool:
    """Whether a file is of Python itself or of an installed package."""
    installed = {"site-packages", "dist-packages"} & set(Path(file).parts)
    return bool(installed) or file.startswith(sysconfig.get_path("stdlib"))
