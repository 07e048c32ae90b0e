"""Tap the nodes of p2pfl in this process: the models that they send to each other."""

# Each node writes a log of its own. Its rank is a number made of its address, so that processes
# need not agree on one; `log.reading` numbers the nodes of a whole run. This module imports
# neither torch nor p2pfl.

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any
from zlib import crc32

from leakaudit.capture.tap.exchanges import KEYS, NAMES, wrap
from leakaudit.capture.tap.log.capture import Capture

# The ranks of nodes are below it. Of a thousand nodes, two get the same one in every other run.
RANKS = 900_000
OWN = "partial_model"  # command of a model that its sender has trained, and of means of several


def listen(module: ModuleType, capture: Capture) -> None:
    """Tap a module of p2pfl that defines how a node sends to another."""
    tap = _NodesTap(capture)
    for name in ("MemoryClient", "GrpcClient"):
        if hasattr(module, name):
            wrap(getattr(module, name), "send", tap.send)


class _NodesTap:
    """The tap of all nodes of a process; its methods may be called by several threads."""

    def __init__(self, capture: Capture) -> None:
        self.capture = capture
        self._captures: dict[int, tuple[str, Capture]] = {}  # rank -> address, recording
        self._sent: set[tuple[Any, ...]] = set()
        self._lock = threading.Lock()

    def send(
        self, send: Callable[..., Any], client: Any, msg: Any, *args: Any, **named: Any
    ) -> Any:
        """Send a message, and log it if it holds a model."""
        result = send(client, msg, *args, **named)
        if msg.HasField("weights"):
            self.capture.safely(self._write, client.self_addr, client.nei_addr, msg)
        return result

    def end(self) -> None:
        """Close the logs of all nodes."""
        for _, capture in self._captures.values():
            capture.end()

    def _write(self, source: str, to: str, msg: Any) -> None:
        with self._lock:
            capture = self._capture(source)
            trained_by = sorted(msg.weights.contributors)
            lane = msg.cmd
            if lane == OWN and trained_by != [source]:
                lane = f"{OWN} of several"
            notes: dict[str, Any] = {"node": source, "to": to, "round": msg.round + 1}
            key = (source, to, lane, msg.round, *trained_by)
            if key in self._sent:
                capture.event("other", None, rank_of(to), kind=f"{lane}, again", **notes)
                return
            self._sent.add(key)
            notes |= {"lane": lane, "trained_by": trained_by[:NAMES]}
            self._write_arrays(capture, rank_of(to), msg.weights.weights, notes)

    def _write_arrays(
        self, capture: Capture, peer: int, packed: bytes, notes: dict[str, Any]
    ) -> None:
        arrays, techniques, beside = unpacked(packed)
        if techniques:
            notes["filters"] = techniques
        if beside:
            notes["beside"] = beside
        at = int(notes["round"]) - capture.settings.start
        for k, array in enumerate(arrays):
            capture.event("send", array, peer, at=at, array=k, arrays=len(arrays), **notes)

    def _capture(self, address: str) -> Capture:
        rank = rank_of(address)
        if rank not in self._captures:
            self._captures[rank] = address, self.capture.of_rank(rank)
        known, capture = self._captures[rank]
        if known != address:
            raise ValueError(f"nodes {known} and {address} get the same rank; rename one")
        return capture


def rank_of(address: str) -> int:
    """Return the rank of a node."""
    return crc32(address.encode()) % RANKS


def unpacked(packed: bytes) -> tuple[Sequence[Any], list[str], list[str]]:
    """Return the arrays of a message, the techniques that changed them, and other names.

    packed: the content of a message between nodes of the program, which also unpickles it.
    """
    from p2pfl.learning.compression.manager import CompressionManager

    outer = pickle.loads(packed)
    body = outer["bytes"]
    if outer["byte_compressor"] is not None:
        body = CompressionManager.get_registry()[outer["byte_compressor"]]().reverse_strategy(body)
    info = pickle.loads(body)["additional_info"]
    techniques = [str(name)[:KEYS] for name, _ in info["applied_techniques"]]
    arrays, rest = CompressionManager.reverse(packed)
    return arrays, techniques[:NAMES], [str(name)[:KEYS] for name in rest][:NAMES]
