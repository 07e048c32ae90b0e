"""One line of a raw log: nothing that it says is believed before it has been checked."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from leakaudit.capture.tap.log import DTYPES, FORMAT, LEFT_OUT, VERSION
from leakaudit.errors import LeakauditError

WORD = re.compile(r"[a-z][a-z0-9_.]{0,39}", re.ASCII)
FIELDS = frozenset(
    {"seq", "time", "rank", "op", "peer", "tag", "dtype", "shape", "offset", "nbytes", "spent"}
)
TEXT = 500_000  # letters of a note


@dataclass(frozen=True)
class Event:
    """One thing that a rank sent or received.

    seq: its place in the log. time: seconds since the epoch. op: send, recv, allreduce, broadcast, … peer: the other rank, None where
    there is none. dtype, shape: of the tensor. offset, nbytes: of its payload; 0 bytes where it was left out. notes: what else was said.
    """

    seq: int
    time: float
    rank: int
    op: str
    peer: int | None
    tag: int
    dtype: str | None
    shape: tuple[int, ...]
    offset: int
    nbytes: int
    notes: Mapping[str, Any]

    @property
    def numel(self) -> int:
        """Numbers in the tensor."""
        return math.prod(self.shape)

    @property
    def kept(self) -> bool:
        """Whether all of the tensor is in the log."""
        return (
            self.dtype is not None
            and self.nbytes == self.numel * DTYPES[self.dtype]
            and LEFT_OUT not in self.notes
        )


def values(line: bytes) -> dict[str, Any] | None:
    """Read one line; None where it was cut off."""
    if not line.endswith(b"\n"):
        return None
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def first(line: bytes, rank: int, path: Path) -> dict[str, Any]:
    """Check the first line of a log; nothing where it was cut off. Raises LeakauditError for another file's."""
    if not line.endswith(b"\n"):
        return {}
    value = values(line) or {}
    if (
        value.get("format") != FORMAT
        or value.get("version") != VERSION
        or value.get("rank") != rank
    ):
        raise LeakauditError(
            f"{path} is refused: expected the log of rank {rank} in version {VERSION} of {FORMAT}"
        )
    return _plain(value, path, 0)


def event(value: dict[str, Any], rank: int, path: Path, line: int) -> Event:
    """Return the event of one line. Raises LeakauditError, with the line, for one that we would not have written."""
    dtype, peer = value.get("dtype"), value.get("peer")
    shape: Any = value.get("shape")
    whole = [
        value.get(name)
        for name in ("seq", "offset", "nbytes", *(["peer"] if peer is not None else []))
    ]
    sound = (
        all(type(n) is int and 0 <= n < 1 << 48 for n in whole)
        and type(value.get("tag")) is int
        and abs(value["tag"]) < 1 << 48
        and value.get("rank") == rank
        and isinstance(value.get("op"), str)
        and WORD.fullmatch(value["op"])
        and (dtype is None or isinstance(dtype, str))
        and isinstance(shape, list)
        and len(shape) <= 16
        and all(type(n) is int and 0 <= n < 1 << 40 for n in shape)
    )
    if sound and value["nbytes"]:
        sound = (
            dtype in DTYPES
            and value["nbytes"] == math.prod(shape) * DTYPES[dtype]
            and value["offset"] % DTYPES[dtype] == 0
        )
    if not sound:
        raise LeakauditError(f"{path} is refused: line {line + 1} does not describe an event")
    notes = _plain({k: v for k, v in value.items() if k not in FIELDS}, path, line)
    if dtype not in DTYPES:
        dtype, notes = None, {LEFT_OUT: "its number format", **notes}
    at = (
        value["seq"],
        number(value.get("time")),
        rank,
        value["op"],
        peer,
        value["tag"],
        dtype,
        tuple(shape),
    )
    return Event(*at, value["offset"], value["nbytes"], notes)


def _plain(value: dict[str, Any], path: Path, line: int) -> dict[str, Any]:
    """Refuse notes that are long or nested."""
    for key, v in value.items():
        flat = v if isinstance(v, list) else [v]
        if (
            not all(n is None or isinstance(n, bool | int | float | str) for n in flat)
            or len(key) > 40
            or len(str(v)) > TEXT
        ):
            raise LeakauditError(f"{path} is refused: line {line + 1} holds more than short notes")
    return value


def number(value: Any) -> float:
    """Return a finite number, 0 for anything else."""
    return (
        float(value)
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        else 0.0
    )
