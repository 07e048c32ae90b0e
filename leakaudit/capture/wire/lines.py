"""One line of a file of messages; its content is not trusted before it has been checked."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, TypeAlias

import msgspec
from msgspec import Meta, Struct

from leakaudit._util import decoding
from leakaudit.capture.tap.log.reading import COUNT, DIMENSIONS, KEY, LENGTH
from leakaudit.core.errors import LeakauditError, suggest

ALL = "all"
# Far above what programs use. They prevent a malformed file from using up memory.
ROUNDS = 1 << 31
NODES = 100_000
TENSORS = 10_000  # of one message
NAME = 500  # characters of a tensor's or file's name

Whole: TypeAlias = Annotated[int, Meta(description="a whole number")]
Text: TypeAlias = Annotated[str, Meta(description="text")]
Shapes: TypeAlias = Annotated[
    tuple[tuple[int, ...], ...], Meta(description="a list with the shape of each tensor")
]
Receivers: TypeAlias = Annotated[
    int | tuple[int, ...] | str, Meta(description='a node, a list of nodes, or "all"')
]


class MessageLine(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A message as its line describes it."""

    round: Whole  # the program's own number of the round
    src: Whole  # node that sent it
    dst: Receivers  # nodes that receive it
    file: Text
    kind: Text | None = None  # its name in the protocol
    tag: Whole = 0  # distinguishes several messages of a round on one channel
    offset: Whole | None = None  # offset of the first tensor in a raw file
    dtype: Text | None = None  # number format of a raw file
    shapes: Shapes | None = None  # shapes of the tensors in a raw file
    # names of its tensors; empty if they have none
    names: Annotated[tuple[str, ...], Meta(description="a list of names")] = ()


def parse(text: bytes) -> object:
    """Parse one line as JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise LeakauditError("expected one JSON object") from None


def checked(value: object) -> MessageLine:
    """Check the values of a line."""
    try:
        line = msgspec.convert(value, MessageLine)
    except (msgspec.ValidationError, TypeError, ValueError, RecursionError) as error:
        raise LeakauditError(_departure(value) or str(error)) from None
    _in_range("round", line.round, ROUNDS)
    _in_range("src", line.src, NODES)
    if abs(line.tag) >= COUNT:
        raise LeakauditError(f"tag: expected a number below 2^48, got {line.tag!r:.40}")
    if line.offset is not None:
        _in_range("offset", line.offset, COUNT)
    if line.kind is not None:
        require_name("kind", line.kind, KEY)
    require_name("file", line.file, NAME)
    _check_names(line.names)
    if line.shapes is not None:
        _check_shapes(line.shapes)
    return line


def _departure(value: object) -> str:
    if not isinstance(value, dict):
        return "expected one JSON object"
    found = decoding.first(value, MessageLine)
    if found is None:
        return ""
    if found.fault == "unknown":
        name = str(found.value)[:NAME]
        return f"unknown key {name!r:.60}{suggest(name, found.known)}"
    return str(found)


def _in_range(name: str, value: int, limit: int) -> None:
    if not 0 <= value < limit:
        raise LeakauditError(f"{name}: expected a number from 0 to {limit - 1}, got {value!r:.40}")


def receivers(line: MessageLine) -> tuple[int, ...]:
    """Return the receivers that a line lists; none if all other nodes receive the message."""
    dst = line.dst
    if dst == ALL:
        return ()
    if isinstance(dst, str):
        raise LeakauditError(f'dst: expected a node, a list of nodes, or "all", got {dst!r:.40}')
    to = (dst,) if isinstance(dst, int) else dst
    if not to:
        raise LeakauditError("dst: expected at least one node, got an empty list")
    for node in to:
        _in_range("dst", node, NODES)
    if line.src in to:
        raise LeakauditError(f"dst: node {line.src} sends to itself; leave such messages out")
    if len(set(to)) < len(to):
        raise LeakauditError("dst: expected each node once")
    return to


def _check_names(names: Sequence[str]) -> None:
    if len(names) > TENSORS:
        raise LeakauditError(f"names: expected at most {TENSORS} tensors, got {len(names)}")
    for name in names:
        require_name("names", name, NAME)
    if len(set(names)) < len(names):
        raise LeakauditError("names: expected each tensor once")


def require_name(key: str, name: str, limit: int) -> None:
    """Reject a name that is empty, too long, or not printable."""
    if not 0 < len(name) <= limit or not name.isprintable():
        raise LeakauditError(f"{key}: expected 1 to {limit} printable characters, got {name!r:.60}")


def _check_shapes(shapes: Sequence[Sequence[int]]) -> None:
    if not 0 < len(shapes) <= TENSORS:
        raise LeakauditError(f"shapes: expected 1 to {TENSORS} tensors, got {len(shapes)}")
    for shape in shapes:
        if len(shape) > DIMENSIONS or not all(0 < n < LENGTH for n in shape):
            raise LeakauditError(
                f"shapes: expected up to {DIMENSIONS} positive lengths, got {list(shape)!r:.60}"
            )
