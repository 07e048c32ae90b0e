"""One line of a raw log; its content is not trusted before it has been checked."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from leakaudit._util.plain import is_number
from leakaudit.capture.tap.log.writing import DTYPES, FORMAT, LEFT_OUT, VERSION
from leakaudit.core.errors import LeakauditError

WORD = re.compile(r"[a-z][a-z0-9_.]{0,39}", re.ASCII)
FIELDS = frozenset(
    {"seq", "time", "rank", "op", "peer", "tag", "dtype", "shape", "offset", "nbytes", "spent"}
)
# Limits far above what a tap writes. They prevent a malformed file from using up memory or
# overflowing torch's 64-bit numbers; below that they are arbitrary.
COUNT = 1 << 48  # of ranks, offsets, bytes and tags
LENGTH = 1 << 40  # of one dimension
DIMENSIONS = 16
KEY = 40  # characters of a note's name
TEXT = 500_000  # characters of a note
SHOWN = 40  # characters of a note in a message: a choice


def _is_whole(value: object, limit: int = COUNT) -> bool:
    """Return whether a value is an integer from 0 to below a limit; a bool is not."""
    return type(value) is int and 0 <= value < limit


def _is_integer(value: object) -> bool:
    return type(value) is int and abs(value) < COUNT


def _is_real(value: object) -> bool:
    return type(value) in (int, float)


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_flag(value: object) -> bool:
    return isinstance(value, bool)


def _is_anything(_: object) -> bool:
    return True


def _are_whole(value: object) -> bool:
    return isinstance(value, list) and all(map(_is_whole, value))


def _are_texts(value: object) -> bool:
    return isinstance(value, list) and all(map(_is_text, value))


# The type of each note that a tap writes: what it is called, its test, and the notes. Notes of
# other names are those of a program, which may hold anything that is flat.
_TYPES: tuple[tuple[str, Callable[[object], bool], tuple[str, ...]], ...] = (
    (
        "text",
        _is_text,
        (
            *("content", "filter", "hook", "kind", "lane", "left_out", "mod", "name", "node"),
            *("rest", "to", "way", "why"),
        ),
    ),
    (
        "a list of texts",
        _are_texts,
        ("beside", "filters", "frozen", "holds", "names", "trained_by"),
    ),
    (
        "a whole number from 0",
        _is_whole,
        ("array", "arrays", "factor", "of", "position", "seed", "server"),
    ),
    (
        "an integer",
        _is_integer,
        ("examples", "partition", "records", "round", "steps"),
    ),
    (
        "a list of whole numbers from 0",
        _are_whole,
        ("group", "parameters", "sizes", "within"),
    ),
    (
        "a number",
        _is_real,
        ("divisor", "max_grad_norm", "noise", "noise_multiplier"),
    ),
    ("true or false", _is_flag, ("by_layer", "last", "layers")),
)
TYPES: Mapping[str, tuple[str, Callable[[object], bool]]] = {
    name: (called, fits) for called, fits, names in _TYPES for name in names
}


@dataclass(frozen=True)
class Event:
    """One message or mark that a rank logged."""

    seq: int  # its position in the log
    time: float  # seconds since the epoch
    rank: int  # rank of the process that logged it
    op: str  # send, recv, allreduce, broadcast or another word
    peer: int | None  # the other rank, None if there is none
    tag: int
    dtype: str | None  # number format of the tensor, None if there is none or it is unknown
    shape: tuple[int, ...]  # shape of the tensor
    offset: int  # offset of the payload in the file of payloads
    nbytes: int  # bytes of the payload; 0 if it was omitted
    notes: Mapping[str, Any]  # all other values of the line

    @property
    def numel(self) -> int:
        """Numbers in the tensor."""
        return math.prod(self.shape)

    @property
    def kept(self) -> bool:
        """Whether the complete tensor is in the log."""
        if self.dtype is None or LEFT_OUT in self.notes:
            return False
        return self.nbytes == self.numel * DTYPES[self.dtype]


def parse(line: bytes) -> dict[str, Any] | None:
    """Parse one line.

    Returns:
        Its values, None if it was truncated.
    """
    if not line.endswith(b"\n"):
        return None
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict):
        return None
    return value


def first(line: bytes, rank: int, path: Path) -> dict[str, Any]:
    """Check the first line of a log."""
    if not line.endswith(b"\n"):
        return {}
    value = parse(line) or {}
    found = (value.get("format"), value.get("version"), value.get("rank"))
    if found != (FORMAT, VERSION, rank):
        raise LeakauditError(
            f"{path}: expected the log of rank {rank} in version {VERSION} of {FORMAT}"
        )
    return _checked_notes(value, path, 0)


def event(value: dict[str, Any], rank: int, path: Path, line: int) -> Event:
    """Check the values of a line and return its event.

    Args:
        line: number of the line from 0, for messages.

    Raises:
        LeakauditError: a tap does not write such a line; the message gives its number.
    """
    if not _is_sound(value, rank):
        raise LeakauditError(f"{path}: line {line + 1} does not describe an event")
    others = {key: held for key, held in value.items() if key not in FIELDS}
    notes = _checked_notes(others, path, line)
    dtype = value.get("dtype")
    if dtype not in DTYPES:
        dtype = None
        notes = {LEFT_OUT: "an unsupported number format", **notes}
    return Event(
        seq=value["seq"],
        time=number(value.get("time")),
        rank=rank,
        op=value["op"],
        peer=value.get("peer"),
        tag=value["tag"],
        dtype=dtype,
        shape=tuple(value["shape"]),
        offset=value["offset"],
        nbytes=value["nbytes"],
        notes=notes,
    )


def _is_sound(value: dict[str, Any], rank: int) -> bool:
    """Return whether all fields have the types and ranges of an event of this rank."""
    counts = [value.get("seq"), value.get("offset"), value.get("nbytes")]
    if value.get("peer") is not None:
        counts.append(value["peer"])
    if not all(_is_whole(n, COUNT) for n in counts):
        return False
    tag = value.get("tag")
    if type(tag) is not int or abs(tag) >= COUNT:
        return False
    op = value.get("op")
    if value.get("rank") != rank or not isinstance(op, str) or not WORD.fullmatch(op):
        return False
    dtype = value.get("dtype")
    if dtype is not None and not isinstance(dtype, str):
        return False
    shape = value.get("shape")
    if not isinstance(shape, list) or len(shape) > DIMENSIONS:
        return False
    if not all(_is_whole(n, LENGTH) for n in shape):
        return False
    return _payload_fits(value)


def _payload_fits(value: dict[str, Any]) -> bool:
    """Return whether the payload, if there is one, is the complete tensor, and aligned."""
    if value["nbytes"] == 0:
        return True
    if value.get("dtype") not in DTYPES:
        return False
    item = DTYPES[value["dtype"]]
    return bool(value["nbytes"] == math.prod(value["shape"]) * item and value["offset"] % item == 0)


def _checked_notes(value: dict[str, Any], path: Path, line: int) -> dict[str, Any]:
    """Return notes unchanged; reject long and nested ones, and those of another type."""
    for key, held in value.items():
        entries = held if isinstance(held, list) else [held]
        flat = all(n is None or isinstance(n, bool | int | float | str) for n in entries)
        if not flat or len(key) > KEY or len(str(held)) > TEXT:
            raise LeakauditError(f"{path}: line {line + 1} contains more than short notes")
        called, fits = TYPES.get(key, ("", _is_anything))
        if not fits(held):
            found = str(held)[:SHOWN]
            raise LeakauditError(
                f"{path}: line {line + 1} notes {key} = {found!r}, expected {called}"
            )
    return value


def number(value: Any) -> float:
    """Return a value as a float."""
    if not is_number(value):
        return 0.0
    return float(value)
