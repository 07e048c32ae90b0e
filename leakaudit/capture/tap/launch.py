"""Run a program with the tap in each of its Python processes."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from leakaudit._util.files import explained, private_folder
from leakaudit._util.locking import lock
from leakaudit.capture.tap.log import finder
from leakaudit.capture.tap.log.environment import LAUNCHER, VARIABLE
from leakaudit.capture.tap.log.reading import NAME, parse
from leakaudit.core.errors import LeakauditError

SITE = Path(__file__).resolve().parent / "site"
PATIENCE = 20  # seconds to wait for processes that outlive the command: a choice
POLL = 0.1  # seconds between two looks at them: a choice
ELSEWHERE = "; choose another place with --output"
FORWARDED = (signal.SIGTERM, signal.SIGHUP)
SILENT = (
    "it sent none by torch.distributed, Flower, NVFlare or p2pfl, or sends them by "
    "torch.distributed.rpc, which is not tapped, its server runs elsewhere, or its Python "
    "ignores PYTHONPATH (-I, -E, -S)"
)


@dataclass(frozen=True)
class Unattended:
    """The surroundings of a program that another program starts: a gate."""

    folder: Path  # in which it runs
    variables: Mapping[str, str]  # added to its environment
    timeout: float  # seconds after which it is ended


def prepare(folder: Path) -> None:
    """Create an empty folder for the logs; logs of an earlier tap are removed."""
    with explained(f"cannot write {folder}", ELSEWHERE):
        private_folder(folder)
        held = sorted(folder.iterdir())
        for path in held:
            if not _is_log(path) or path.is_dir():
                raise LeakauditError(
                    f"{folder} contains {path.name!r}, which is not a log of a tap; "
                    "choose another --output or remove it"
                )
        for path in held:
            path.unlink()


@contextmanager
def owned(folder: Path) -> Iterator[None]:
    """Keep other taps out of the folder for the logs, which is created."""
    with explained(f"cannot write {folder}", ELSEWHERE):
        try:
            held = _held(folder)
        except BlockingIOError:
            raise LeakauditError(
                f"another tap writes to {folder}; choose another --output, or wait until it has "
                "ended"
            ) from None
    try:
        yield
    finally:
        if held is not None:
            os.close(held)


def _held(folder: Path) -> int | None:
    """Create and lock a folder; None if it cannot be locked on this system."""
    while True:
        private_folder(folder)
        try:
            held = lock(folder, wait=False)
        except FileNotFoundError:  # another tap has ended, and removed it
            continue
        except OSError as error:
            if error.errno in (errno.ENOLCK, errno.ENOTSUP, errno.EBADF):
                return None
            raise
        if held is None or folder.exists():
            return held
        os.close(held)


def clear(folder: Path) -> None:
    """Remove the logs of a tap, and the folder if it is then empty."""
    for path in folder.iterdir():
        if _is_log(path):
            path.unlink()
    if not any(folder.iterdir()):
        folder.rmdir()


def recorded(folder: Path) -> bool:
    """Return whether a process sent something, so that there is more than its model."""
    return any(path.name not in finder.FILES for path in folder.iterdir())


def _is_log(path: Path) -> bool:
    if path.name in finder.FILES:
        return True
    return NAME.fullmatch(path.with_suffix(".jsonl").name) is not None


def waits_not(command: Sequence[str]) -> bool:
    """Return whether a command only hands its work to the background: ``flwr run`` without logs."""
    is_run = Path(command[0]).name == "flwr" and "run" in command[1:2]
    return is_run and "--stream" not in command


def run(
    command: Sequence[str], folder: Path, unattended: Unattended | None = None, **listening: Any
) -> int:
    """Run a program on our own standard streams; what an unattended one prints goes to stderr.

    Raises:
        TimeoutError: An unattended program took too long, and was ended.
        KeyboardInterrupt: An unattended program ended after Ctrl-C.
    """
    # Ctrl-C reaches the program through the terminal; other termination signals are forwarded.
    path = [str(SITE)]
    if os.environ.get("PYTHONPATH"):
        path.append(os.environ["PYTHONPATH"])
    environment = dict(os.environ)
    environment[VARIABLE] = json.dumps({"folder": str(folder.resolve()), **listening})
    environment[LAUNCHER] = str(os.getpid())
    environment["PYTHONPATH"] = os.pathsep.join(path)
    place: Path | None = None
    stdout: int | None = None
    if unattended is not None:
        environment |= unattended.variables
        place = unattended.folder
        stdout = sys.__stderr__.fileno() if sys.__stderr__ else None
    sys.stdout.flush()
    try:
        process = subprocess.Popen(list(command), env=environment, cwd=place, stdout=stdout)
    except OSError as error:
        raise LeakauditError(f"cannot run {command[0]!r}: {error.strerror}") from None
    with _forwarding(process):
        code = _wait(process) if unattended is None else _within(process, unattended.timeout)
    _settle(folder)
    if code < 0:
        return 128 - code
    return code


@contextmanager
def _forwarding(process: subprocess.Popen[bytes]) -> Iterator[None]:

    def forward(number: int, _: FrameType | None) -> None:
        process.send_signal(number)

    before = {number: signal.signal(number, forward) for number in FORWARDED}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _settle(folder: Path) -> None:
    """Wait until background processes of the program, such as those of Flower, close their logs."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        if not any(_is_open(path) for path in folder.glob("*.jsonl")):
            return
        time.sleep(POLL)


def _is_open(path: Path) -> bool:
    lines = path.read_bytes().splitlines()
    about = parse(lines[0] + b"\n") if lines else None
    last = parse(lines[-1] + b"\n") if lines else None
    if not about or (last or {}).get("end") is True:
        return False
    try:
        os.kill(int(about["pid"]), 0)
    except (OSError, KeyError, ValueError):
        return False
    return True


def _wait(process: subprocess.Popen[bytes]) -> int:
    """Wait for a process to end, despite any number of Ctrl-C, which it has received as well."""
    while True:
        try:
            return process.wait()
        except KeyboardInterrupt:
            continue


def _within(process: subprocess.Popen[bytes], seconds: float) -> int:
    """Wait for a process to end; end it, and the workers that it then ends, if it takes longer."""
    try:
        return process.wait(seconds)
    except (subprocess.TimeoutExpired, KeyboardInterrupt) as error:
        process.terminate()
        try:
            process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if isinstance(error, KeyboardInterrupt):
            raise
        raise TimeoutError from None
