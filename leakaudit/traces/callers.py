"""Where a program sends its messages: a file below the current folder, and a line.

A recorder notes the first call for each kind of message in the provenance of the truth, which stays
with its owner; reports point at that line. A path outside the current folder is not recorded, so no
record names a folder of the machine.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from leakaudit.core.trace import Json

SENT = "sent"  # key in the provenance of a truth: kind of a message -> [file, line]
MOST = 32  # kinds of messages that are read from a file


@dataclass(frozen=True)
class _Caller:
    """A line of a program."""

    kind: str  # kind of the messages that it sends
    file: str  # path of the file, relative to the folder in which the program ran
    line: int  # number of the line, from 1


def of_frame(frame: FrameType) -> list[Json] | None:
    """Return the file and the line of a call.

    Returns:
        [file, line]; None if the file is not below the current folder, or is a part of leakaudit.
    """
    file = Path(os.path.abspath(frame.f_code.co_filename))
    folder = Path.cwd()
    ours = str(frame.f_globals.get("__name__")).startswith("leakaudit.")
    if ours or not file.is_file() or not file.is_relative_to(folder):
        return None
    return [file.relative_to(folder).as_posix(), frame.f_lineno]


def read(provenance: Mapping[str, Json]) -> list[_Caller]:
    """Return the lines that send messages.

    Returns:
        One entry per kind; what does not have the form that a recorder writes is left out.
    """
    found = []
    noted = provenance.get(SENT)
    if not isinstance(noted, dict):
        return []
    for kind, place in list(noted.items())[:MOST]:
        match place:
            case [str(file), int(line)] if line > 0 and _is_below(file):
                found.append(_Caller(str(kind), file, line))
    return found


def _is_below(file: str) -> bool:
    """Whether a path is relative, stays in its folder, and can be printed."""
    path = Path(file)
    return file.isprintable() and not path.is_absolute() and ".." not in path.parts
