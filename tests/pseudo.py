"""Run a command on a pseudo-terminal of 80 columns, as a user sees it."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import termios
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

CODES = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b[=>]|\x1b\][^\x07]*\x07")


@dataclass(frozen=True)
class Screen:
    """What a command wrote. raw: with terminal codes; code: its exit code."""

    raw: str
    code: int

    @property
    def text(self) -> str:
        """Without codes, as lines; of a line that was overwritten, what stands last."""
        lines = CODES.sub("", self.raw).replace("\r\n", "\n").split("\n")
        return "\n".join(line.rpartition("\r")[2] for line in lines)


class Terminal:
    """A command on a terminal, to which one can type."""

    def __init__(
        self,
        command: Sequence[str],
        cwd: Path,
        environ: Mapping[str, str] | None = None,
        columns: int = 80,
    ) -> None:
        self.master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
        own = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "NO_COLOR")}
        self.process = subprocess.Popen(
            command,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            cwd=cwd,
            env={**own, "TERM": "xterm", **(environ or {})},
            start_new_session=True,
        )
        os.close(slave)
        self.said = ""

    def type(self, keys: str) -> None:
        os.write(self.master, keys.encode())

    def read(self, until: str | None = None, seconds: float = 120.0) -> str:
        """Read until a text is there, or the command has ended; returns what came."""
        came = ""
        end = time.monotonic() + seconds
        while time.monotonic() < end and (until is None or until not in CODES.sub("", came)):
            if not select.select([self.master], [], [], 0.1)[0]:
                continue
            try:
                chunk = os.read(self.master, 65536)
            except OSError:  # the command has ended
                break
            if not chunk:
                break
            came += chunk.decode(errors="replace")
        self.said += came
        return came

    def close(self) -> int:
        self.process.kill()
        os.close(self.master)
        return self.process.wait()


def run(
    command: Sequence[str],
    cwd: Path,
    environ: Mapping[str, str] | None = None,
    columns: int = 80,
) -> Screen:
    terminal = Terminal(command, cwd, environ, columns)
    said = terminal.read()
    code = terminal.process.wait()
    os.close(terminal.master)
    return Screen(said, code)
