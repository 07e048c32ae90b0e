"""Names and values allowed in a recording: kinds and channels of its protocol, data of its task.

An unknown name would later only cause leaks to be missed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch
from torch import Tensor

from leakaudit.core import registry
from leakaudit.core.errors import LeakauditError, suggest
from leakaudit.core.trace import Graph, Json, TaskSpec

if TYPE_CHECKING:
    from leakaudit.theory.relations import Relations

SAID = (
    "samples",
    "records",
    "batch",
    "reduction",
)  # constants allowed in every recording: attacks and the lint read them
# Number of rounds to declare to find the kinds of messages: schedules repeat soon after the start.
FIRST = 3
INSIDE = 1e-6  # tolerance of pictures outside [0, 1]: rounding of an inverted normalisation
Integers = np.ndarray[tuple[int, ...], np.dtype[np.int64]]


class _Declares(Protocol):
    def relations(self, graph: Graph, rounds: int, public: Mapping[str, Tensor]) -> Relations:
        """Declare the protocol."""


class Vocabulary:
    """The names that a recording of one protocol may use.

    The protocol is a registered victim, the path of a protocol file, or ``own:NAME``, whose kinds
    and constants are arbitrary.
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
        self.provenance: dict[str, Json] = {}
        self.victim: _Declares | None = None
        self._seen = set[str]()
        if protocol.startswith(registry.OWN):
            return
        is_file = protocol.endswith(registry.FILE)
        if not is_file and protocol not in registry.names("victims"):
            near = suggest(protocol, registry.names("victims"))
            raise LeakauditError(
                f"protocol: unknown {protocol!r}{near}; to record a protocol without a victim, "
                "name a protocol file (docs/protocol-file.md), or 'own:NAME'"
            )
        kind = registry.get("victims", protocol)
        written = getattr(kind, "definition", None)
        if written is not None:
            self.protocol = written.name
            self.provenance[registry.TEXT] = written.text
        known = registry.parameters(kind)
        for name in params:
            if name not in known and name not in SAID:
                raise LeakauditError(
                    f"params: {self.protocol} has no constant {name!r}{suggest(name, known)}"
                )
        self.victim = registry.configure(kind, {k: v for k, v in params.items() if k in known})

    @cached_property
    def kinds(self) -> Mapping[str, bool] | None:
        """Kinds of messages that the protocol sends, and whether each is public (a board).

        None if they cannot be determined yet.
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
        ):  # a constant or a schedule is missing; an attack reports this later
            return None
        return {v.name: v.dst is None for v in declared.vectors if v.kind == "message"}

    def check(self, round: int, src: Integers, dst: Integers, kind: str) -> None:
        """Check the kind and the channels of messages."""
        kinds = self.kinds
        if kind not in self._seen and kinds is not None and kind not in kinds:
            raise LeakauditError(
                f"round {round}: {self.protocol} does not send messages of kind "
                f"{kind!r}{suggest(str(kind), kinds)}"
            )
        self._seen.add(kind)
        if kinds is not None and kinds[kind]:
            return  # a public board, which all nodes read
        codes = src * self.graph.nodes + dst
        at = np.searchsorted(self._arcs, codes).clip(max=max(0, len(self._arcs) - 1))
        wrong = (
            np.flatnonzero(self._arcs[at] != codes) if len(self._arcs) else np.arange(len(codes))
        )
        if len(wrong):
            i, j = int(src[wrong[0]]), int(dst[wrong[0]])
            near = list(self.graph.neighbours[i])
            raise LeakauditError(
                f"round {round}: channel {i} -> {j} is not in the graph; node {i} has neighbours "
                f"{near}"
            )

    @cached_property
    def _arcs(self) -> Integers:
        arcs = np.array(self.graph.arcs, np.int64).reshape(-1, 2)
        return np.sort(arcs[:, 0] * self.graph.nodes + arcs[:, 1])


def finite(value: Tensor, what: str) -> None:
    """Check that a message contains neither NaN nor infinity."""
    if not bool(torch.isfinite(value).all()):
        bad = int((~torch.isfinite(value)).sum())
        says = (
            f"{what}: {bad} of {value.numel()} numbers are NaN or infinite, which no attack can use"
        )
        raise LeakauditError(
            f"{says}; lower the step size, or stop recording when training diverges"
        )


def inputs(x: Tensor, task: TaskSpec, what: str) -> None:
    """Check inputs (n, *shape): in [0, 1] for pictures, tokens for text, otherwise finite."""
    if not x.numel():
        return
    low, high = float(x.min()), float(x.max())
    if not (math.isfinite(low) and math.isfinite(high)):
        raise LeakauditError(f"{what}: expected finite numbers, got NaN or infinity")
    if task.is_text and not (low >= 0 and high < task.classes):
        raise LeakauditError(
            f"{what}: expected tokens from 0 to {task.classes - 1}, got {low:g} to {high:g}"
        )
    if (task.is_image or task.levels) and not (low >= -INSIDE and high <= 1 + INSIDE):
        fix = (
            "divide them by 255"
            if low >= 0 and 1 < high <= 255
            else "undo the normalisation; TaskSpec has mean and std for it"
        )
        raise LeakauditError(
            f"{what}: expected pictures in [0, 1], got numbers from {low:g} to {high:g}; {fix}"
        )


def shape_of_labels(y: Tensor, task: TaskSpec, what: str) -> None:
    """Check that labels have a shape that the task's loss understands.

    These are (n,); for ``cross_entropy`` also (n, classes) probabilities; for ``squared`` also (n,
    k) targets for k outputs.
    """
    probabilities = y.is_floating_point() and y.shape[1:] == (task.classes,)
    fits = y.dim() == 1
    expected = "one number for each record"
    if task.loss == "cross_entropy":
        fits = fits or probabilities
        expected = f"one label for each record, or {task.classes} probabilities as floats"
    elif task.loss == "squared":
        fits = fits or (y.dim() == 2 and y.shape[1] > 0)
        expected = "one target for each record, or one for each output"
    if not fits:
        raise LeakauditError(
            f"{what}: expected {expected} for loss {task.loss!r}, got {y.dtype} of shape "
            f"{tuple(y.shape)}"
        )


def labels(y: Tensor, task: TaskSpec, what: str) -> None:
    """Check that labels are valid for the task's loss."""
    shape_of_labels(y, task, what)
    if not y.numel():
        return
    low, high = float(y.min()), float(y.max())
    if not (math.isfinite(low) and math.isfinite(high)):
        raise LeakauditError(f"{what}: expected finite labels, got NaN or infinity")
    if task.loss in ("cross_entropy", "next_token"):
        whole = not y.is_floating_point()
        or_soft = "" if task.is_text else f", or {task.classes} probabilities for each record"
        if not whole and (task.is_text or y.dim() == 1):
            raise LeakauditError(
                f"{what}: expected whole numbers as labels{or_soft}, got {y.dtype} of shape "
                f"{tuple(y.shape)}"
            )
        if whole and not (low >= 0 and high < task.classes):
            raise LeakauditError(
                f"{what}: expected labels from 0 to {task.classes - 1}, got {low:g} to {high:g}; "
                "set classes in TaskSpec"
            )
    if task.loss == "binary" and not (low >= 0 and high <= 1):
        raise LeakauditError(
            f"{what}: expected labels in [0, 1] for loss 'binary', got {low:g} to {high:g}"
        )
