"""Merging the logs of all processes into one trace, and finding what is missing in it."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from leakaudit.capture.gloo.setup import Setup
from leakaudit.capture.tap.log.reading import Event, RankLog, read_logs
from leakaudit.capture.tap.messages.wires import absent
from leakaudit.core.errors import LeakauditError
from leakaudit.core.trace import Json
from leakaudit.traces.recorder import Recorder

ERROR = "error"  # prefix of the file in which a process leaves its error; its number follows


@dataclass(frozen=True)
class _Logs:
    setup: Setup
    ranks: dict[int, RankLog]  # log by process; a process that was killed immediately has none
    codes: dict[int, int]  # exit code by process, negative for a signal

    @property
    def begun(self) -> bool:
        return self.rounds >= 0 or any(self.events("send"))

    def events(self, op: str) -> list[Event]:
        return [e for log in self.ranks.values() for e in log.events if e.op == op]

    def tensor(self, event: Event) -> Tensor:
        return self.ranks[event.rank].tensor(event)

    def last(self, rank: int) -> int:
        """Return the last round that a process completed, -1 for none."""
        rounds = (int(e.notes["round"]) for e in self.events("round") if e.rank == rank)
        return max(rounds, default=-1)

    @property
    def faults(self) -> set[str]:
        return {str(e.notes["what"]) for e in self.events("fault")}

    @property
    def rounds(self) -> int:
        return max((int(e.notes["round"]) for e in self.events("round")), default=-1)

    def about(self, cut: str = "") -> dict[str, Json]:
        planned = self.setup.scenario.rounds
        missed = self.events("missed")
        ended: list[Json] = []
        for rank in sorted(set(self.setup.place)):
            last = self.last(rank)
            if last < planned:
                why = self._why(rank, cut)
                ended.append({"nodes": self.setup.here(rank), "round": last, "why": why})
        found: dict[str, Json] = {"planned": planned, "missing": _missing(missed), "ended": ended}
        if missed:
            found["holds_until"] = min(event.notes["round"] for event in missed) - 1
        return found

    def _why(self, rank: int, cut: str) -> str:
        for event in self.events("silence"):
            if event.rank == rank:
                return str(event.notes["why"])
        code = self.codes.get(rank)
        if code is not None and code < 0:
            return f"killed by signal {-code}"
        return cut or "its process failed"


def read(setup: Setup) -> _Logs:
    """Read the logs and the exit codes."""
    with suppress(LeakauditError):  # no process wrote a log
        ranks = {log.rank: log for log in read_logs(setup.folder)}
        return _Logs(setup, ranks, exit_codes(setup.folder))
    return _Logs(setup, {}, {})


def _missing(events: Iterable[Event]) -> list[dict[str, Json]]:
    """Return an entry for the messages of one channel that are missing in consecutive rounds."""
    rounds: dict[tuple[int, int, str, str], list[int]] = {}
    for e in events:
        for src, dst in zip(e.notes["src"], e.notes["dst"], strict=True):
            message = (src, dst, e.notes["kind"], e.notes["why"])
            rounds.setdefault(message, []).append(e.notes["round"])
    found: list[dict[str, Json]] = []
    for message, some in sorted(rounds.items(), key=lambda item: (min(item[1]), item[0])):
        src, dst, kind, why = message
        for run in absent(src, dst, kind, sorted(set(some))):
            found.append({**run, "why": why})
    return found


def fill(recorder: Recorder, logs: _Logs, complete: bool) -> None:
    """Write all messages and private states into the recorder.

    An incomplete run ends with its last message in a round that at least one process completed.
    """
    last = logs.rounds
    sent = sorted(logs.events("send"), key=_exchange_of)
    for (round, _), together in itertools.groupby(sent, key=_exchange_of):
        if round <= last:
            _exchange(recorder, logs, round, list(together))
    if complete:
        recorder.end_round(last)
    nodes = recorder.graph.nodes
    states: dict[tuple[int, str], Tensor] = {}
    for event in logs.events("state"):
        own = logs.tensor(event)
        key = (int(event.notes["round"]), str(event.notes["kind"]))
        if key not in states:
            states[key] = own.new_full((nodes, *own.shape[1:]), torch.nan)
        states[key][torch.tensor(logs.setup.here(event.rank))] = own
    for (round, name), value in sorted(states.items()):
        recorder.state(name, round, value)


def _exchange_of(event: Event) -> tuple[int, int]:
    return int(event.notes["round"]), event.tag


class _Sent(NamedTuple):
    src: int
    dst: int
    payload: Tensor


def _exchange(recorder: Recorder, logs: _Logs, round: int, together: Sequence[Event]) -> None:
    """Write the messages of one exchange; equal payloads of one row are stored once."""
    messages: list[_Sent] = []
    for event in together:
        notes = event.notes
        for src, dst, at in zip(notes["src"], notes["dst"], notes["at"], strict=True):
            messages.append(_Sent(src, dst, logs.tensor(event)[at]))
    messages.sort(key=lambda message: (message.src, message.dst))
    payloads: list[Tensor] = []
    row: list[int] = []
    sender = None
    for message in messages:
        # Payloads are views of the log, so equal memory addresses mean the same row.
        same = sender == message.src and message.payload.data_ptr() == payloads[-1].data_ptr()
        if not same:
            payloads.append(message.payload)
        row.append(len(payloads) - 1)
        sender = message.src
    notes = together[0].notes
    out = recorder.send_many(
        round,
        [message.src for message in messages],
        [message.dst for message in messages],
        str(notes["kind"]),
        secure=bool(notes["secure"]),
        row=row,
    )
    for k, payload in enumerate(payloads):
        out[k] = payload


def exit_codes(folder: Path) -> dict[int, int]:
    """Return the exit code of every process that has ended, negative for a signal."""
    codes = {}
    ended = folder / "ended"
    if ended.is_file():
        for line in ended.read_text(encoding="utf-8").splitlines():
            with suppress(ValueError):  # the disk may have failed in the middle of a line
                one = json.loads(line)
                codes[one["rank"]] = one["code"]
    return codes


def last_word(folder: Path) -> str:
    """Return the error that a process left, empty if there is none."""
    found = {int(file.name.removeprefix(ERROR)): file for file in folder.glob(f"{ERROR}*")}
    if not found:
        return ""
    rank = min(found)
    return f"process {rank}: {found[rank].read_text(encoding='utf-8')}"
