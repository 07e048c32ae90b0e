"""From the logs of all processes to one trace, and to words about what is missing."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from leakaudit.capture.tap.reading import Event, RankLog, read_logs
from leakaudit.trace import Json
from leakaudit.traces.recorder import Recorder

Missed = tuple[int, int, str, str]  # src, dst, kind, why


@dataclass(frozen=True)
class Logs:
    """What all processes of a run wrote.

    ranks: by process; one that was killed at once has none. codes: exit code of each process, negative for a signal. place: the
    process of every node.
    """

    ranks: dict[int, RankLog]
    codes: dict[int, int]
    place: Sequence[int]

    @classmethod
    def read(cls, folder: Path, place: Sequence[int]) -> Logs:
        """Read the logs, and how each process ended. Raises LeakauditError where there is no log."""
        ended = folder / "ended"
        lines = (
            [json.loads(line) for line in ended.read_text(encoding="utf-8").splitlines()]
            if ended.is_file()
            else []
        )
        return cls(
            {log.rank: log for log in read_logs(folder)},
            {line["rank"]: line["code"] for line in lines},
            place,
        )

    @property
    def begun(self) -> bool:
        """Whether any process got so far as to send something, or to end a round."""
        return self.rounds >= 0 or any(self.events("send"))

    def nodes(self, rank: int) -> list[int]:
        """Return the nodes of a process."""
        return [i for i, p in enumerate(self.place) if p == rank]

    def events(self, op: str) -> Iterator[tuple[RankLog, Event]]:
        """All events of one kind."""
        return ((log, e) for log in self.ranks.values() for e in log.events if e.op == op)

    def last(self, rank: int) -> int:
        """Return the last round that a process ended, -1 for none."""
        events = self.ranks[rank].events if rank in self.ranks else ()
        return max((int(e.notes["round"]) for e in events if e.op == "round"), default=-1)

    @property
    def faults(self) -> set[str]:
        """The faults that happened, as they are written on the command line."""
        return {str(e.notes["what"]) for _, e in self.events("fault")}

    @property
    def rounds(self) -> int:
        """The last round that some process ended."""
        return max(map(self.last, self.place))

    def about(self, planned: int, cut: str = "") -> dict[str, Json]:
        """Return for the provenance: rounds planned, messages missing, nodes ended early, and up to where the relations hold.

        cut: why the processes that were still running were ended.
        """
        missing = list(_grouped((e for _, e in self.events("missed"))))
        ended = [
            {"nodes": self.nodes(rank), "round": self.last(rank), "why": self._why(rank, cut)}
            for rank in sorted(set(self.place))
            if self.last(rank) < planned
        ]
        until = min((int(m["rounds"][0]) - 1 for m in missing), default=planned)
        return {
            "planned": planned,
            "missing": missing,
            "ended": ended,
            **({"holds_until": until} if missing else {}),
        }

    def _why(self, rank: int, cut: str) -> str:
        silent = [str(e.notes["why"]) for log, e in self.events("silence") if log.rank == rank]
        code = self.codes.get(rank)
        return (
            silent[0]
            if silent
            else f"killed by signal {-code}"
            if code is not None and code < 0
            else cut or "its process failed"
        )


def _grouped(events: Iterable[Event]) -> Iterator[dict[str, Json]]:
    """Join messages that are missing in consecutive rounds."""
    rounds: dict[Missed, list[int]] = {}
    for e in events:
        for src, dst in zip(e.notes["src"], e.notes["dst"], strict=True):
            rounds.setdefault((src, dst, e.notes["kind"], e.notes["why"]), []).append(
                e.notes["round"]
            )
    for (src, dst, kind, why), found in sorted(
        rounds.items(), key=lambda item: (min(item[1]), item[0])
    ):
        for _, run in itertools.groupby(
            enumerate(sorted(set(found))), key=lambda pair: pair[1] - pair[0]
        ):
            these = [t for _, t in run]
            yield {
                "src": src,
                "dst": dst,
                "kind": kind,
                "rounds": [these[0], these[-1]],
                "why": why,
            }


def fill(recorder: Recorder, logs: Logs, complete: bool) -> None:
    """Write all messages and private states into the recorder, in the order of rounds, exchanges, senders and receivers.

    A run that is not complete ends with its last message in a round that some process ended.
    """
    last, nodes = logs.rounds, recorder.graph.nodes
    sent = sorted(logs.events("send"), key=lambda pair: (pair[1].notes["round"], pair[1].tag))
    for (round, _), together in itertools.groupby(
        sent, key=lambda pair: (int(pair[1].notes["round"]), pair[1].tag)
    ):
        if round <= last:
            _exchange(recorder, round, list(together))
    if complete:
        recorder.end_round(last)
    states: dict[tuple[int, str], Tensor] = {}
    for log, e in logs.events("state"):
        own = log.tensor(e)
        value = states.setdefault(
            (int(e.notes["round"]), str(e.notes["kind"])),
            own.new_full((nodes, *own.shape[1:]), torch.nan),
        )
        value[torch.tensor(logs.nodes(log.rank))] = own
    for (round, name), value in sorted(states.items()):
        recorder.state(name, round, value)


def _exchange(recorder: Recorder, round: int, together: Sequence[tuple[RankLog, Event]]) -> None:
    """Write the messages of one exchange; equal payloads of one row are stored once."""
    first = together[0][1]
    found = [
        (src, dst, log.tensor(e)[at])
        for log, e in together
        for src, dst, at in zip(e.notes["src"], e.notes["dst"], e.notes["at"], strict=True)
    ]
    found.sort(key=lambda message: message[:2])
    payloads: list[Tensor] = []
    row: list[int] = []
    for k, (src, _, payload) in enumerate(found):
        same = k > 0 and found[k - 1][0] == src and payload.data_ptr() == payloads[-1].data_ptr()
        payloads += [] if same else [payload]
        row.append(len(payloads) - 1)
    src, dst = [m[0] for m in found], [m[1] for m in found]
    out = recorder.send_many(
        round, src, dst, str(first.notes["kind"]), secure=bool(first.notes["secure"]), row=row
    )
    for k, payload in enumerate(payloads):
        out[k] = payload


def last_word(folder: Path) -> str:
    """Return the error that a process left, empty where there is none."""
    found: list[Any] = sorted(
        folder.glob("error*"), key=lambda p: int(p.name.removeprefix("error"))
    )
    return (
        ""
        if not found
        else f"process {found[0].name.removeprefix('error')}: {found[0].read_text(encoding='utf-8')}"
    )
