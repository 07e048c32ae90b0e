"""Adversaries, and the part of a trace that each observes; attacks receive nothing else."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal, TypeVar

import numpy as np

from leakaudit.core import mapping
from leakaudit.core.errors import LeakauditError, suggest
from leakaudit.core.trace import Graph, Json, Layout, Messages, TaskSpec, Trace

if TYPE_CHECKING:
    import torch
    from torch import Tensor

T = TypeVar("T")
Whole = TypeVar("Whole", int, np.ndarray)

Edges = frozenset[tuple[int, int]]

# Largest number of nodes for which a table of all channels is built; it takes 8 MB. Filling it
# takes a fiftieth of the time that sorting the messages takes.
TABLE_NODES = 2048

# Numbers of a message that are looked at together, which limits the memory of large models.
CHUNK = 1 << 20
SMALL = 1 << 26  # bytes of all messages up to which they are tested together


@dataclass(frozen=True)
class Adversary:
    """The channels that an adversary taps, the nodes that it controls, and what it knows.

    Attributes:
        hears: Tapped channels as directed edges (src, dst), or "all" or "none". The content of
            secure messages is not visible to a tap.
        corrupt: Curious nodes; all messages that they send and receive are read, secure ones
            included.
        window: Rounds that are observed; None for all.
        knows: Names of the known constants and public tensors, or "all".
    """

    hears: Edges | Literal["all", "none"] = "all"
    corrupt: frozenset[int] = frozenset()
    window: range | None = None
    knows: frozenset[str] | Literal["all"] = "all"

    @classmethod
    def parse(
        cls, text: str, window: range | None = None, knows: frozenset[str] | Literal["all"] = "all"
    ) -> Adversary:
        """Parse an adversary as users write it.

        Args:
            text: ``eavesdropper``, ``node:3``, ``nodes:3,5``, ``edges:0-1,1-0``, or several of them
                joined by ``+``: ``node:3`` observes only the messages of node 3, and
                ``eavesdropper+node:3`` also taps every channel.
            window: Rounds that are observed; None for all.
            knows: Names of the known constants and public tensors, or "all".
        """
        hears: Edges | Literal["all"] = frozenset()
        corrupt: frozenset[int] = frozenset()
        for part in text.split("+"):
            if part == "eavesdropper":
                hears = "all"
            elif re.fullmatch(r"nodes?:\d{1,10}(,\d{1,10})*", part):
                corrupt |= {int(n) for n in part.split(":")[1].split(",")}
            elif re.fullmatch(r"edges:\d{1,10}-\d{1,10}(,\d{1,10}-\d{1,10})*", part):
                pairs = frozenset((int(a), int(b)) for a, b in re.findall(r"(\d+)-(\d+)", part))
                hears = hears if hears == "all" else hears | pairs
            else:
                raise LeakauditError(
                    f"adversary {part!r}: expected eavesdropper, node:3, nodes:3,5 or "
                    "edges:0-1,1-0, joined by '+'"
                )
        return cls(hears=hears or "none", corrupt=corrupt, window=window, knows=knows)

    @classmethod
    def of(cls, who: Adversary | str) -> Adversary:
        """Return an adversary that was given as a value, or as text that `parse` accepts."""
        if isinstance(who, Adversary):
            return who
        if isinstance(who, str):
            return cls.parse(who)
        raise LeakauditError(
            f"adversary: expected an Adversary, or text such as 'eavesdropper' or 'node:3', "
            f"got {who!r:.40}"
        )

    def __str__(self) -> str:
        """Return the form that `parse` accepts."""
        parts = []
        if self.hears == "all":
            parts.append("eavesdropper")
        elif self.hears != "none":
            parts.append("edges:" + ",".join(f"{a}-{b}" for a, b in sorted(self.hears)))
        if self.corrupt:
            parts.append("nodes:" + ",".join(map(str, sorted(self.corrupt))))
        return "+".join(parts) or "nobody"

    def observes(self, src: int, dst: int | None, *, secure: bool = False) -> bool:
        """Whether the adversary reads the content of a message on this channel, inside the window.

        This is the only place that decides who observes what, in recordings and in declarations.

        Args:
            src: The sender.
            dst: The receiver; None for a public board, which everyone reads.
            secure: Whether it is encrypted, so that only sender and receivers read it.
        """
        if src in self.corrupt or dst in self.corrupt:
            return True
        if dst is None:
            return bool(self.corrupt) or not secure
        if secure or self.hears == "none":
            return False
        return self.hears == "all" or (src, dst) in self.hears

    def view(self, trace: Trace) -> View:
        """Restrict a trace to what this adversary observes.

        Raises LeakauditError if that is nothing.
        """
        self.check(trace.graph)
        view = View(self, trace)
        if self.window is not None and not view.rounds:
            raise LeakauditError(
                f"expected rounds between 0 and {trace.rounds}, as in the trace, "
                f"got rounds from {self.window.start}"
            )
        return view

    def check(self, graph: Graph) -> None:
        """Raise LeakauditError unless a graph has the nodes and edges of this adversary."""
        missing = {node for node in self.corrupt if node >= graph.nodes}
        if missing:
            raise LeakauditError(
                f"node {min(missing)} does not exist (the trace has nodes 0 to {graph.nodes - 1})"
            )
        if not isinstance(self.hears, frozenset):
            return
        wrong = sorted(self.hears - set(graph.arcs))
        if wrong:
            src, dst = wrong[0]
            near = list(graph.neighbours[src]) if src < graph.nodes else []
            raise LeakauditError(
                f"edge {src}-{dst} does not exist (in the trace, node {src} has neighbours {near})"
            )


def node_list(nodes: Iterable[int] | None) -> list[int] | None:
    """Return the nodes that a caller asks for; None for the default."""
    if nodes is None:
        return None
    if isinstance(nodes, int):
        raise LeakauditError(f"nodes: expected a list, got {nodes}; write nodes=[{nodes}]")
    if isinstance(nodes, str) or not isinstance(nodes, Iterable):
        raise LeakauditError(f"nodes: expected a list such as [0, 3], got {nodes!r:.40}")
    numbers = []
    for node in nodes:
        if not isinstance(node, int | np.integer):
            raise LeakauditError(f"nodes: expected whole numbers, got {node!r:.40}")
        numbers.append(int(node))
    return numbers


def _not_finite(payload: Tensor) -> int:
    count = 0
    for first in range(0, len(payload), CHUNK):
        part = payload[first : first + CHUNK]
        if not math.isfinite(float(part.sum())):
            count += int((~part.isfinite()).sum())
        mapping.release(part)
    return count


class View:
    """What one adversary observes of a trace: messages, and the constants that it knows."""

    def __init__(self, adversary: Adversary, trace: Trace) -> None:
        self.adversary = adversary
        self._trace = trace
        self.protocol: str = trace.protocol
        self.task: TaskSpec = trace.task
        self.graph: Graph = trace.graph
        self.layout: Layout = trace.layout
        self.columns: tuple[int, int] = trace.columns
        self.dtype: torch.dtype = trace.dtype
        self.tensors: frozenset[str] = frozenset(trace.public)
        window = adversary.window or range(trace.rounds + 1)
        self.rounds = range(max(window.start, 0), min(window.stop, trace.rounds + 1))
        self._kinds = {k: i for i, k in enumerate(trace.kinds())}
        self._finite: set[tuple[int, int]] = set()  # payloads that were found to be finite

    def knows(self, name: str) -> bool:
        """Whether the adversary knows a constant or public tensor of the trace with this name."""
        allowed = self.adversary.knows == "all" or name in self.adversary.knows
        return allowed and (name in self._trace.params or name in self._trace.public)

    def constant(self, name: str) -> Json:
        """Return a constant of the protocol."""
        return self._known(name, self._trace.params)

    def number(self, name: str) -> float:
        """Return a constant of the protocol that is a number."""
        value = self.constant(name)
        expected = f"constant {name!r} of the trace: expected a number, got {value!r:.60}"
        if not isinstance(value, str | int | float):
            raise LeakauditError(expected)
        try:
            return float(value)
        except ValueError:
            raise LeakauditError(expected) from None

    def public(self, name: str) -> Tensor:
        """Return a public tensor."""
        return self._known(name, self._trace.public)

    def _known(self, name: str, where: Mapping[str, T]) -> T:
        if name not in where:
            raise LeakauditError(
                f"the trace of {self.protocol} does not contain {name!r}{suggest(name, where)}"
            )
        if not self.knows(name):
            raise LeakauditError(
                f"this adversary does not know {name!r}; it knows {sorted(self.adversary.knows)}"
            )
        return where[name]

    @property
    def kinds(self) -> frozenset[str]:
        """Kinds of all messages that were sent: encryption hides contents, but not that."""
        return frozenset(self._kinds)

    @cached_property
    def channels(self) -> frozenset[tuple[int, int, str]]:
        """All (src, dst, kind) of observed messages."""
        names = list(self._kinds)
        n = self.graph.nodes + 1
        found: set[tuple[int, int, str]] = set()
        for keys, _ in self._index:
            without_round = np.unique(keys % (len(names) * n * n))
            for key in without_round.tolist():
                pair, dst = divmod(key, n)
                kind, src = divmod(pair, n)
                found.add((src, dst - 1, names[kind]))
        return frozenset(found)

    def has(self, round: int, src: int, dst: int, kind: str) -> bool:
        """Whether this message was sent and is observed."""
        return self._find(round, src, dst, kind) is not None

    def message(self, round: int, src: int, dst: int, kind: str) -> Tensor:
        """Return the payload (c,) of one message that was observed and is finite."""
        found = self._find(round, src, dst, kind)
        if found is None:
            span = f"rounds {self.rounds.start} to {self.rounds.stop - 1}"
            raise LeakauditError(
                f"round {round} has no message {kind!r} {src} -> {dst} "
                f"that {self.adversary} observes ({span})"
            )
        table, row = found
        payload = self._trace.messages[table].payload[row]
        bad = 0
        if not self._all_finite[table] and found not in self._finite:
            bad = _not_finite(payload)
        if bad:
            where = f"message {kind!r} {src} -> {dst} of round {round}"
            raise LeakauditError(
                f"{where} contains non-finite values ({bad}); exclude it with --rounds 0:{round}"
            )
        self._finite.add(found)
        return payload

    @cached_property
    def _all_finite(self) -> list[bool]:
        """Whether all messages of a table are known to be finite, which saves testing each one.

        Of a large trace, only the messages that somebody asks for are read, so nothing is known.
        """
        tables = [messages.payload for messages in self._trace.messages]
        if self._trace.payload_bytes > SMALL:
            return [False] * len(tables)
        found = [math.isfinite(float(payload.sum())) for payload in tables]
        for payload in tables:
            mapping.release(payload)
        return found

    def some(self, round: int, src: int, dst: int, kind: str, columns: Tensor) -> Tensor:
        """Return some columns (k,), ascending, of one message, without reading the rest of it."""
        found = self._find(round, src, dst, kind)
        if found is None:
            return self.message(round, src, dst, kind)  # raises
        table, row = found
        payload = self._trace.messages[table].payload[row]
        numbers = payload[columns]
        mapping.release(payload)
        if not bool(numbers.isfinite().all()):
            return self.message(round, src, dst, kind)  # raises
        return numbers

    def _key(self, round: Whole, src: Whole, dst: Whole, kind: Whole) -> Whole:
        n = self.graph.nodes + 1
        key: Whole = ((round * len(self._kinds) + kind) * n + src) * n + dst + 1
        return key

    def _find(self, round: int, src: int, dst: int, kind: str) -> tuple[int, int] | None:
        if kind not in self._kinds:
            return None
        key = self._key(round, src, dst, self._kinds[kind])
        for table, (keys, rows) in enumerate(self._index):
            at = int(keys.searchsorted(key))
            if at < len(keys) and keys[at] == key:
                return table, int(rows[at])
        return None

    @cached_property
    def _index(self) -> list[tuple[np.ndarray, np.ndarray]]:
        return [self._heard(m) for m in self._trace.messages]

    def _heard(self, m: Messages) -> tuple[np.ndarray, np.ndarray]:
        round_, src, dst, kind, row = (
            c.numpy().astype(np.int64) for c in (m.round, m.src, m.dst, m.kind, m.row)
        )
        inside = (round_ >= self.rounds.start) & (round_ < self.rounds.stop)
        keep = inside & self._observed(src, dst, m.secure.numpy())
        names = np.array([self._kinds[k] for k in m.kinds], np.int64)
        keys = self._key(round_, src, dst, names[kind] if len(names) else kind)[keep]
        order = np.argsort(keys, kind="stable")
        return keys[order], row[keep][order]

    def _observed(self, src: np.ndarray, dst: np.ndarray, secure: np.ndarray) -> np.ndarray:
        """Return `Adversary.observes` (m,) of messages (m,), evaluated once per channel."""
        n = self.graph.nodes
        channel = (src * n + dst) * 2 + secure
        if n > TABLE_NODES:
            distinct, place = np.unique(channel, return_inverse=True)
            answers = self._answers(distinct)
            return np.asarray(answers[place])
        table = np.zeros(2 * n * n, bool)
        table[channel] = True
        distinct = np.flatnonzero(table)
        table[distinct] = self._answers(distinct)
        return np.asarray(table[channel])

    def _answers(self, channels: np.ndarray) -> np.ndarray:
        answers = np.empty(len(channels), bool)
        for at, code in enumerate(channels.tolist()):
            arc, secure = divmod(code, 2)
            src, dst = divmod(arc, self.graph.nodes)
            answers[at] = self.adversary.observes(src, dst, secure=bool(secure))
        return answers
