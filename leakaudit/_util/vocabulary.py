"""What a recording may say: names and wires of its protocol, and data that its task can hold.

A name that is not known is refused when it is recorded, with the nearest known one: later it would
only mean that nothing is found.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from leakaudit import registry
from leakaudit.errors import LeakauditError, suggest
from leakaudit.trace import Graph, Json, TaskSpec
from leakaudit.victim import Victim

SAID = (
    "samples",
    "records",
    "batch",
)  # constants that every recording may name: attacks and the lint read them
# Rounds that are declared to learn the kinds of messages: schedules repeat soon after the start.
FIRST = 3
INSIDE = 1e-6  # by which pictures may leave [0, 1]: rounding of a normalisation that was undone
Integers = np.ndarray[tuple[int, ...], np.dtype[np.int64]]


class Vocabulary:
    """The names that a recording of one protocol may use.

    A protocol without a victim is named ``own:NAME``: its kinds and constants are its own, and only
    its wires are checked.

    Args:
        protocol: a registered victim, or ``own:NAME``.
        params: its constants.
        graph: its network.
        rounds: how many there will be, None if that is not known.
        public: what everybody has; schedules are read from it.

    Raises:
        LeakauditError: the protocol or a constant is not known, or has a value that it cannot have.
    """

    def __init__(
        self,
        protocol: str,
        params: Mapping[str, Json],
        graph: Graph,
        rounds: int | None,
        public: Mapping[str, Tensor],
    ) -> None:
        self.protocol, self.graph, self.rounds, self.public = protocol, graph, rounds, public
        self.victim: Victim | None = None
        self._seen = set[str]()
        if protocol.startswith(registry.OWN):
            return
        if protocol not in registry.names("victims"):
            near = suggest(protocol, registry.names("victims"))
            raise LeakauditError(
                f"protocol: unknown {protocol!r}{near}; a protocol that nobody has declared is "
                "recorded as 'own:NAME'"
            )
        kind = registry.get("victims", protocol)
        known = registry.parameters(kind)
        for name in params:
            if name not in known and name not in SAID:
                raise LeakauditError(
                    f"params: {protocol} has no constant {name!r}{suggest(name, known)}"
                )
        self.victim = registry.configure(kind, {k: v for k, v in params.items() if k in known})

    @cached_property
    def kinds(self) -> Mapping[str, bool] | None:
        """Kinds of messages that the protocol sends, and whether each goes to a public board.

        None if it cannot be declared yet.
        """
        if self.victim is None:
            return None
        few = FIRST if self.rounds is None else min(self.rounds, FIRST)
        try:
            declared = self.victim.relations(self.graph, max(1, few), self.public)
        except (
            LeakauditError,
            KeyError,
            IndexError,
        ):  # a constant or a schedule is missing, which whoever attacks is told
            return None
        return {v.name: v.dst is None for v in declared.vectors if v.kind == "message"}

    def check(self, round: int, src: Integers, dst: Integers, kind: str) -> None:
        """Check the kind and the wires of messages.

        Raises:
            LeakauditError: the protocol sends no messages of this kind, or there is no such wire.
        """
        kinds = self.kinds
        if kind not in self._seen and kinds is not None and kind not in kinds:
            raise LeakauditError(
                f"round {round}: {self.protocol} sends no messages of kind "
                f"{kind!r}{suggest(str(kind), kinds)}"
            )
        self._seen.add(kind)
        if kinds is not None and kinds[kind]:
            return  # a public board, which everybody reads
        codes = src * self.graph.nodes + dst
        at = np.searchsorted(self._arcs, codes).clip(max=max(0, len(self._arcs) - 1))
        wrong = (
            np.flatnonzero(self._arcs[at] != codes) if len(self._arcs) else np.arange(len(codes))
        )
        if len(wrong):
            i, j = int(src[wrong[0]]), int(dst[wrong[0]])
            near = list(self.graph.neighbours[i])
            raise LeakauditError(
                f"round {round}: there is no wire {i} -> {j} in the graph; node {i} has neighbours "
                f"{near}"
            )

    @cached_property
    def _arcs(self) -> Integers:
        arcs = np.array(self.graph.arcs, np.int64).reshape(-1, 2)
        return np.sort(arcs[:, 0] * self.graph.nodes + arcs[:, 1])


def finite(value: Tensor, what: str) -> None:
    """Check that a message holds neither NaN nor infinity.

    Args:
        value: Its payload.
        what: How a message names it.

    Raises:
        LeakauditError: It does.
    """
    if not bool(torch.isfinite(value).all()):
        bad = int((~torch.isfinite(value)).sum())
        says = (
            f"{what}: {bad} of {value.numel()} numbers are NaN or infinite, which no attack can use"
        )
        raise LeakauditError(
            f"{says}; lower the step size, or stop recording when training diverges"
        )


def inputs(x: Tensor, task: TaskSpec, what: str) -> None:
    """Check that inputs are in the range of the task's data: [0, 1] for pictures, else finite.

    Args:
        x: (n, *shape) inputs.
        task: What is trained.
        what: How a message names them.

    Raises:
        LeakauditError: They are not.
    """
    if not x.numel():
        return
    low, high = float(x.min()), float(x.max())
    if not (math.isfinite(low) and math.isfinite(high)):
        raise LeakauditError(f"{what}: expected finite numbers, got NaN or infinity")
    if (task.is_image or task.levels) and not (low >= -INSIDE and high <= 1 + INSIDE):
        fix = (
            "divide them by 255"
            if low >= 0 and 1 < high <= 255
            else "undo the normalisation; TaskSpec's mean and std are for that"
        )
        raise LeakauditError(
            f"{what}: expected pictures in [0, 1], got numbers from {low:g} to {high:g}; {fix}"
        )


def labels(y: Tensor, task: TaskSpec, what: str) -> None:
    """Check that labels are such that the task's loss takes.

    Args:
        y: (n,) labels.
        task: What is trained.
        what: How a message names them.

    Raises:
        LeakauditError: They are not.
    """
    if not y.numel():
        return
    low, high = float(y.min()), float(y.max())
    if not (math.isfinite(low) and math.isfinite(high)):
        raise LeakauditError(f"{what}: expected finite labels, got NaN or infinity")
    whole = not y.is_floating_point()
    if task.loss == "cross_entropy" and whole and not (low >= 0 and high < task.classes):
        raise LeakauditError(
            f"{what}: expected labels from 0 to {task.classes - 1}, got {low:g} to {high:g}; set "
            "classes in TaskSpec"
        )
    if task.loss == "binary" and not (low >= 0 and high <= 1):
        raise LeakauditError(
            f"{what}: expected labels in [0, 1] for loss 'binary', got {low:g} to {high:g}"
        )
