"""Deliberate faults of a run: a node that stops, a late node, or a lost message."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from leakaudit.core.errors import LeakauditError
from leakaudit.core.trace import Graph

Kind: TypeAlias = Literal["stop", "late", "drop"]
FORM = re.compile(
    r"(stop|late|drop):(\d{1,6})(?:-(\d{1,6}))?@(\d{1,9})(?::([0-9.eE+-]{1,20}))?", re.ASCII
)
# Whether a fault of each kind has a receiver, and a number of seconds.
PARTS = {"stop": (False, False), "late": (False, True), "drop": (True, False)}
LONGEST = 3600.0  # seconds: a choice


@dataclass(frozen=True)
class Fault:
    """A fault: ``stop:3@5``, ``late:2@4:0.5`` or ``drop:0-1@6``.

    The process of node 3 ends without notice after round 5; node 2 sends its messages of round 4
    half a second late; the message from node 0 to node 1 in round 6 is lost, and nobody observes
    it.
    """

    kind: Kind  # `stop`, `late` or `drop`
    node: int  # the node that stops, is late or sends
    round: int
    to: int | None = None  # the node that does not receive; None except for `drop`
    seconds: float = 0.0  # the delay; 0 except for `late`

    @classmethod
    def parse(cls, text: str) -> Fault:
        """Read one fault."""
        found = FORM.fullmatch(text)
        kind, node, to, round, seconds = found.groups() if found else ("", "0", None, "0", None)
        if (to is not None, seconds is not None) != PARTS.get(kind):
            raise LeakauditError(
                "--fault: expected stop:NODE@ROUND, late:NODE@ROUND:SECONDS or drop:FROM-TO@ROUND, "
                f"got {text!r}"
            )
        known = next(k for k in get_args(Kind) if k == kind)
        receiver = None if to is None else int(to)
        return cls(known, int(node), int(round), receiver, _seconds(seconds))

    def __str__(self) -> str:
        ends = str(self.node) if self.to is None else f"{self.node}-{self.to}"
        delay = f":{self.seconds:g}" if self.kind == "late" else ""
        return f"{self.kind}:{ends}@{self.round}{delay}"

    @property
    def missed(self) -> str:
        """Return a sentence that the fault did not occur, and why."""
        why = {
            "stop": "did not complete",
            "late": "sent nothing in",
            "drop": f"sent nothing to node {self.to} in",
        }[self.kind]
        return f"--fault {self}: did not occur, because node {self.node} {why} round {self.round}"

    def check(self, graph: Graph, rounds: int) -> None:
        """Reject a fault that cannot occur."""
        what = ""
        if self.to is None and self.node >= graph.nodes:
            what = f"nodes 0 to {graph.nodes - 1}"
        elif self.to is not None and (self.node, self.to) not in graph.arcs:
            what = "no such channel"
        if what:
            raise LeakauditError(
                f"--fault {self}: the run has {what}; use a node or a channel of its graph"
            )
        if self.round > rounds:
            raise LeakauditError(f"--fault {self}: the run has {rounds} rounds; use one of them")


def _seconds(text: str | None) -> float:
    try:
        seconds = 0.0 if text is None else float(text)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds <= LONGEST:
        raise LeakauditError(f"--fault: expected 0 to {LONGEST:g} seconds, got {text!r}")
    return seconds
