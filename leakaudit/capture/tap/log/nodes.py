"""The nodes of a program that names them, instead of counting its processes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from leakaudit.capture.tap.log.event import Event
from leakaudit.capture.tap.log.rank_log import RankLog

NAME = 40  # characters of a node's name that are shown: a choice


def names(logs: Sequence[RankLog]) -> dict[int, str]:
    """Return rank -> what the program calls the node, in the order of the names."""
    found: dict[int, str] = {}
    for log in logs:
        for event in log.events:
            to = event.notes.get("to")
            node = event.notes.get("node")
            if isinstance(to, str) and isinstance(node, str) and event.peer is not None:
                found[log.rank] = node
                found[event.peer] = to
    return dict(sorted(found.items(), key=lambda item: (len(item[1]), item[1])))


def numbered(logs: Sequence[RankLog]) -> tuple[RankLog, ...]:
    """Number the nodes of a program in the order of their names; other logs stay as they are."""
    place = {rank: number for number, rank in enumerate(names(logs))}

    def moved(event: Event) -> Event:
        peer = event.peer
        if peer is not None:
            peer = place.get(peer, peer)
        return replace(event, rank=place.get(event.rank, event.rank), peer=peer)

    found: list[RankLog] = []
    for log in logs:
        if log.rank in place:
            events = tuple(map(moved, log.events))
            log = replace(log, rank=place[log.rank], events=events)
        found.append(log)
    return tuple(found)


def remark(logs: Sequence[RankLog]) -> Iterator[str]:
    """Yield what the nodes are called, if the program has named them."""
    listed = ", ".join(f"node {rank} is {name[:NAME]}" for rank, name in names(logs).items())
    if listed:
        yield listed
