"""Where a program sends its messages: a file below the current folder, and a line.

The first call for each kind is noted in the truth. Other paths would name a folder of the machine.
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
    kind: str  # kind of the messages that it sends
    file: str  # path of the file, relative to the folder in which the program ran
    line: int  # number of the line, from 1


def of_frame(frame: FrameType) -> list[Json] | None:
    """Return [file, line] of a call.

    None if the file is not below the current folder, or is ours.
    """
    file = Path(os.path.abspath(frame.f_code.co_filename))
    folder = Path.cwd()
    ours = str(frame.f_globals.get("__name__")).startswith("leakaudit.")
    if ours or not file.is_file() or not file.is_relative_to(folder):
        return None
    return [file.relative_to(folder).as_posix(), frame.f_lineno]


def read(provenance: Mapping[str, Json]) -> list[_Caller]:
    """Return the lines that send messages, one per kind; whatever has another form is left out."""
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
    path = Path(file)
    return file.isprintable() and not path.is_absolute() and ".." not in path.parts
