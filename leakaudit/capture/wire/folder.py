"""All messages of a folder in the wire format (docs/wire.md)."""

from __future__ import annotations

import os
import re
import stat
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from leakaudit._util.files import explained
from leakaudit.capture.wire import lines, payloads
from leakaudit.capture.wire.lines import MessageLine
from leakaudit.capture.wire.payloads import IncompletePayload, Payload
from leakaudit.core.errors import LeakauditError
from leakaudit.traces.recorder import human

FILES = re.compile(r"messages[\w.-]{0,60}\.jsonl", re.ASCII)
LONGEST = 1 << 20  # bytes of a line
MOST = 1_000_000  # messages, each counted for every receiver: a choice that bounds the memory
SHOWN = 6  # tensors that an error message lists


@dataclass(frozen=True, slots=True)
class FolderMessage:
    """One message of the folder."""

    where: str  # file and line, for messages to the user
    line: MessageLine  # what the line states
    payload: Payload
    dst: tuple[int, ...]  # the receivers


@dataclass(frozen=True)
class Folder:
    """The messages of a folder."""

    path: Path
    messages: tuple[FolderMessage, ...]  # all messages, ordered by round, then as written
    nodes: int
    cut: Mapping[str, str]  # file -> why it is incomplete
    cut_nodes: frozenset[int]  # nodes of which the last messages may be missing
    skipped: tuple[str, ...]  # tensors without floating-point numbers, which are not read

    @property
    def first(self) -> int:
        """The lowest number of a round."""
        return self.messages[0].line.round

    @property
    def ambiguous(self) -> FolderMessage | None:
        """A message that follows another of its round on its channel; None if there is none."""
        seen: set[tuple[int, int, int]] = set()
        for message in self.messages:
            for dst in message.dst:
                key = (message.line.round, message.line.src, dst)
                if key in seen:
                    return message
                seen.add(key)
        return None


def read(path: Path, max_bytes: float) -> Folder:
    """Read and check the lines of all files of messages; payloads are only located."""
    found: list[FolderMessage] = []
    cut: dict[str, str] = {}
    cut_nodes: set[int] = set()
    for file in _files(path):
        begin = len(found)
        reason = _read(path, file, found)
        if reason:
            cut[file.name] = reason
            cut_nodes.update(message.line.src for message in found[begin:])
    if not found:
        reasons = "; ".join(f"{file}: {why}" for file, why in cut.items())
        raise LeakauditError(f"{path}: no complete message {f'({reasons})' if reasons else ''}")
    nodes = _nodes(path, found)
    messages = sorted((_addressed(message, nodes) for message in found), key=_round)
    _check_number(path, messages)
    _check_unique(messages)
    _check_forms(messages)
    _check_size(path, messages, max_bytes)
    skipped = {name for message in messages for name in message.payload.skipped}
    if cut and not cut_nodes:
        cut_nodes.update(range(nodes))
    return Folder(path, tuple(messages), nodes, cut, frozenset(cut_nodes), tuple(sorted(skipped)))


def _files(folder: Path) -> list[Path]:
    with explained(f"cannot read {folder}", "; expected a folder with messages.jsonl"):
        names = sorted(os.listdir(folder))
    found = [folder / name for name in names if FILES.fullmatch(name)]
    if not found:
        raise LeakauditError(f"{folder} contains no messages.jsonl (see docs/wire.md)")
    for path in found:
        if not stat.S_ISREG(os.lstat(path).st_mode):
            raise LeakauditError(f"{path}: not a regular file")
    return found


def _read(folder: Path, file: Path, found: list[FolderMessage]) -> str:
    """Append the messages of one file, and return why it is incomplete, or empty.

    Only the last line of a program that was killed may be truncated, or lack its payload.
    """
    known: dict[object, Payload] = {}
    pending = ""  # what the line before lacks; an error unless it is the last
    for number, text in _lines(file):
        if pending:
            raise LeakauditError(f"{file}, {pending}")
        where = f"{file}, line {number}"
        try:
            value = lines.parse(text)
        except LeakauditError as error:
            # A truncated line lacks its line break.
            if text.endswith(b"\n"):
                raise LeakauditError(f"{where}: {error}") from None
            return f"line {number} is truncated"
        try:
            line = lines.checked(value)
            listed_receivers = lines.receivers(line)
            form = (line.file, line.names, line.offset, line.dtype, line.shapes)
            if form not in known:
                known[form] = payloads.find(folder, line)
            found.append(FolderMessage(where, line, known[form], listed_receivers))
        except IncompletePayload as error:
            pending = f"line {number}: {error}"
        except LeakauditError as error:
            raise LeakauditError(f"{where}: {error}") from None
        if len(found) > MOST:
            raise LeakauditError(f"{file}: more than {MOST} messages; record fewer rounds")
    return pending


def _lines(file: Path) -> Iterator[tuple[int, bytes]]:
    with explained(f"cannot read {file}"):
        opened = file.open("rb")
    number = 0
    with opened:
        while True:
            line = opened.readline(LONGEST)
            number += 1
            if not line:
                return
            if len(line) == LONGEST and not line.endswith(b"\n"):
                raise LeakauditError(f"{file}, line {number}: longer than {LONGEST} bytes")
            if line.strip():
                yield number, line


def _nodes(path: Path, found: Iterable[FolderMessage]) -> int:
    """Return the number of nodes; each must take part."""
    seen: set[int] = set()
    for message in found:
        seen.add(message.line.src)
        seen.update(message.dst)
    nodes = 1 + max(seen)
    if len(seen) < nodes:
        absent = min(set(range(nodes)) - seen)
        raise LeakauditError(
            f"{path}: node {absent} neither sends nor receives, but node {nodes - 1} does; "
            "number the nodes from 0 without gaps"
        )
    return nodes


def _addressed(message: FolderMessage, nodes: int) -> FolderMessage:
    if message.dst:
        return message
    others = tuple(node for node in range(nodes) if node != message.line.src)
    if not others:
        raise LeakauditError(f"{message.where}: dst: there is no other node")
    return replace(message, dst=others)


def _round(message: FolderMessage) -> int:
    return message.line.round


def _check_number(path: Path, messages: Iterable[FolderMessage]) -> None:
    total = sum(len(message.dst) for message in messages)
    if total > MOST:
        raise LeakauditError(
            f"{path}: {total} messages, counted for every receiver; at most {MOST} can be "
            "imported; record fewer rounds"
        )


def _check_unique(messages: Iterable[FolderMessage]) -> None:
    seen: dict[tuple[int, int, int, str | None, int], str] = {}
    for message in messages:
        line = message.line
        for dst in message.dst:
            key = (line.round, line.src, dst, line.kind, line.tag)
            if key in seen:
                raise LeakauditError(
                    f"{message.where}: a second message of round {line.round} from {line.src} to "
                    f"{dst} (the first: {seen[key]}); distinguish them by kind or tag"
                )
            seen[key] = message.where


def _check_forms(messages: Iterable[FolderMessage]) -> None:
    """Reject messages of one kind with different tensors: some would be incomplete."""
    first: dict[tuple[str | None, int], FolderMessage] = {}
    for message in messages:
        key = (message.line.kind, message.line.tag)
        usual = first.setdefault(key, message)
        if message.payload.form != usual.payload.form:
            raise LeakauditError(
                f"{message.where}: tensors {listed(message.payload)}, but {usual.where} with "
                f"equal kind and tag has {listed(usual.payload)}; record complete messages, and "
                "give messages with other contents another kind or tag"
            )


def listed(payload: Payload) -> str:
    """Return the tensors of a payload for an error message."""
    texts = []
    for place, shape in enumerate(payload.shapes[:SHOWN]):
        lengths = "x".join(map(str, shape)) or "scalar"
        texts.append(f"{payload.names[place]} {lengths}" if payload.names else lengths)
    if len(payload.shapes) > SHOWN:
        texts.append(f"{len(payload.shapes) - SHOWN} more")
    return f"({', '.join(texts)})"


def _check_size(path: Path, messages: Iterable[FolderMessage], max_bytes: float) -> None:
    """Reject payloads above a limit; one that is sent several times in a round counts once."""
    sizes: Counter[tuple[object, ...]] = Counter()
    for message in messages:
        payload = message.payload
        key = (message.line.round, message.line.src, payload.path, payload.offset, payload.form)
        sizes[key] = payload.nbytes
    total = sizes.total()
    if total > max_bytes:
        raise LeakauditError(
            f"{path}: the payloads take {human(total)}, but max_bytes allows {human(max_bytes)}; "
            "record fewer rounds, or raise --max-bytes"
        )
