"""What is to go wrong in a run, on purpose: a node that stops, a late node, a lost message."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from leakaudit.errors import LeakauditError
from leakaudit.trace import Graph

Kind: TypeAlias = Literal["stop", "late", "drop"]
FORM = re.compile(
    r"(stop|late|drop):(\d{1,6})(?:-(\d{1,6}))?@(\d{1,9})(?::([0-9.eE+-]{1,20}))?", re.ASCII
)
LONGEST = 3600.0  # seconds


@dataclass(frozen=True)
class Fault:
    """One fault.

    ``stop:3@5``: the process of node 3 ends, without a word, when round 5 is over. ``late:2@4:0.5``: node 2 sends what it sends in
    round 4 half a second late. ``drop:0-1@6``: what node 0 sends to node 1 in round 6 is lost on its way, and nobody hears it.
    """

    kind: Kind
    node: int
    round: int
    to: int | None = None
    seconds: float = 0.0

    @classmethod
    def parse(cls, text: str) -> Fault:
        """Read one fault; raises LeakauditError with the three forms."""
        found = FORM.fullmatch(text)
        kind, node, to, round, seconds = found.groups() if found else ("", "0", None, "0", None)
        wanted = {"stop": (False, False), "late": (False, True), "drop": (True, False)}.get(kind)
        if (to is not None, seconds is not None) != wanted:
            raise LeakauditError(
                f"--fault: expected stop:NODE@ROUND, late:NODE@ROUND:SECONDS or drop:FROM-TO@ROUND, got {text!r}"
            )
        return cls(
            next(k for k in get_args(Kind) if k == kind),
            int(node),
            int(round),
            None if to is None else int(to),
            _seconds(seconds),
        )

    def __str__(self) -> str:
        ends = str(self.node) if self.to is None else f"{self.node}-{self.to}"
        return f"{self.kind}:{ends}@{self.round}" + (
            f":{self.seconds:g}" if self.kind == "late" else ""
        )

    @property
    def missed(self) -> str:
        """Say that it did not happen, and why."""
        why = {
            "stop": "did not come to the end of",
            "late": "sent nothing in",
            "drop": f"sent nothing to node {self.to} in",
        }[self.kind]
        return f"--fault {self}: did not happen, node {self.node} {why} round {self.round}"

    def check(self, graph: Graph, rounds: int) -> None:
        """Raise LeakauditError where the run has no such node, wire or round."""
        if self.node >= graph.nodes or (
            self.to is not None and (self.node, self.to) not in graph.arcs
        ):
            what = f"nodes 0 to {graph.nodes - 1}" if self.to is None else "no such wire"
            raise LeakauditError(
                f"--fault {self}: the run has {what}; name a node or a wire of its graph"
            )
        if self.round > rounds:
            raise LeakauditError(f"--fault {self}: the run has {rounds} rounds; name one of them")


def _seconds(text: str | None) -> float:
    try:
        seconds = 0.0 if text is None else float(text)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds <= LONGEST:
        raise LeakauditError(f"--fault: expected 0 to {LONGEST:g} seconds, got {text!r}")
    return seconds
