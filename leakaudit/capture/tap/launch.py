"""Run a program with the tap listening in every Python process of it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from leakaudit.capture.tap.hooks import VARIABLE
from leakaudit.capture.tap.reading import NAME
from leakaudit.errors import LeakauditError

SITE = Path(__file__).resolve().parent / "site"
FORWARDED = (signal.SIGTERM, signal.SIGHUP)


def prepare(folder: Path) -> None:
    """Make the folder of the logs, empty; logs of an earlier tap are removed.

    Raises LeakauditError where it cannot be written, or holds anything else.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        held = sorted(folder.iterdir())
        if other := [
            p.name for p in held if not NAME.fullmatch(p.with_suffix(".jsonl").name) or p.is_dir()
        ]:
            raise LeakauditError(
                f"{folder} holds {other[0]!r}, which is no log of a tap; name another --output or remove it"
            )
        for path in held:
            path.unlink()
    except OSError as error:
        raise LeakauditError(
            f"cannot write {folder}: {error.strerror}; choose another place with --output"
        ) from None


def clear(folder: Path) -> None:
    """Remove the logs of a tap, and the folder where it is then empty."""
    for path in folder.iterdir():
        if NAME.fullmatch(path.with_suffix(".jsonl").name):
            path.unlink()
    if not any(folder.iterdir()):
        folder.rmdir()


def run(command: Sequence[str], folder: Path, **listening: Any) -> int:
    """Run a program and return its exit code, 128 + n where a signal n ended it; its standard streams are ours.

    listening: what `capture.Capture` takes. Ctrl-C reaches the program by the terminal; other signals to end are passed on.
    Raises LeakauditError where the program cannot be started.
    """
    environment = dict(os.environ)
    environment[VARIABLE] = json.dumps({"folder": str(folder.resolve()), **listening})
    environment["PYTHONPATH"] = os.pathsep.join(
        [str(SITE), *filter(None, [os.environ.get("PYTHONPATH")])]
    )
    sys.stdout.flush()
    try:
        process = subprocess.Popen(list(command), env=environment)
    except OSError as error:
        raise LeakauditError(f"cannot run {command[0]!r}: {error.strerror}") from None
    before = {
        number: signal.signal(number, lambda n, _: process.send_signal(n)) for number in FORWARDED
    }
    try:
        while True:
            try:
                code = process.wait()
                break
            except KeyboardInterrupt:
                continue
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return 128 - code if code < 0 else code
