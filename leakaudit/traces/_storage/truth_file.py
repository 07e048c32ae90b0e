"""Collects the private side of a run until it is written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from leakaudit._util.vocabulary import inputs, labels
from leakaudit.errors import LeakauditError
from leakaudit.trace import Json, TaskSpec, Truth
from leakaudit.traces._storage.arrays import integers, tensor
from leakaudit.traces._storage.sizes import human


class TruthKeeper:
    """Data, labels and private states of the nodes of one run.

    limit: bytes of private states that are kept in memory. provenance: plain values that must not stand in the trace. check: whether
    inputs and labels are held against what the task can hold. samples: how many records a node may have, 0 for any number.
    """

    def __init__(
        self,
        task: TaskSpec,
        nodes: int,
        limit: float,
        provenance: Mapping[str, Json],
        check: bool = True,
        samples: int = 0,
    ) -> None:
        """Start empty."""
        self._check, self._samples = check, samples
        self._told: dict[int, int] = {}
        self._provenance = dict(provenance)
        self._task, self._nodes, self._limit = task, nodes, limit
        self._parts: list[tuple[Tensor, Tensor, Tensor, Tensor]] = []
        self._pool = torch.empty(0, *task.shape)
        self._states: dict[str, dict[int, Tensor]] = {}
        self._bytes: dict[str, int] = {}
        self.changed = False

    def add(self, node: int, x: Any, y: Any, index: Any = None) -> None:
        """Keep samples of a node: x (b, *shape) or one (*shape), y (b,), index (b,) rows in the data set, -1 where not given."""
        (owner,) = integers(node, "node", self._nodes)
        x, y = self._inputs(x, "x"), tensor(y, "y").cpu()
        y = y.reshape(1) if y.dim() == 0 else y
        rows = (
            torch.full((len(x),), -1)
            if index is None
            else torch.from_numpy(integers(index, "index", 1 << 62))
        )
        if len(y) != len(x) or len(rows) != len(x):
            raise LeakauditError(
                f"node {owner}: expected a label and an index for each of {len(x)} samples, got {len(y)} and {len(rows)}"
            )
        y = y.clone() if y.is_floating_point() else y.long()
        if self._check:
            self._told[int(owner)] = self._told.get(int(owner), 0) + len(x)
            if self._samples and self._told[int(owner)] > self._samples:
                raise LeakauditError(
                    f"node {owner}: expected the truth of samples = {self._samples} records, got {self._told[int(owner)]}; "
                    "samples is how many records a node holds, and batch how many of them a gradient is of"
                )
            inputs(x, self._task, f"truth of node {owner}")
            labels(y, self._task, f"truth of node {owner}")
        self._parts.append((x, y, torch.full((len(x),), int(owner)), rows))
        self.changed = True

    def pool(self, x: Any) -> None:
        """Keep the data set's other records, (p, *shape), for identification."""
        self._pool, self.changed = self._inputs(x, "pool"), True
        if self._check:
            inputs(self._pool, self._task, "pool")

    def state(self, name: str, round: int, value: Any) -> None:
        """Keep a private vector of a round; a later one of the same round replaces it."""
        value = tensor(value, f"state {name}").cpu().clone()
        rounds = self._states.setdefault(name, {})
        if rounds and (first := next(iter(rounds.values()))).shape != value.shape:
            raise LeakauditError(
                f"state {name!r}: expected shape {tuple(first.shape)} as in the round before, got {tuple(value.shape)}"
            )
        if not 0 <= round < 1 << 31:
            raise LeakauditError(f"state {name!r}: expected a round from 0 on, got {round}")
        rounds[int(round)], self.changed = value, True
        self._bytes[name] = (max(rounds) + 1) * value.nbytes
        if sum(self._bytes.values()) > self._limit:
            del rounds[int(round)]
            raise LeakauditError(
                f"private states take more than {human(self._limit)}; record without them or raise max_bytes"
            )

    def _inputs(self, value: Any, what: str) -> Tensor:
        x, shape = tensor(value, what).cpu(), self._task.shape
        x = x[None] if tuple(x.shape) == shape else x
        if tuple(x.shape[1:]) != shape or x.dim() != len(shape) + 1:
            raise LeakauditError(
                f"{what}: expected samples of shape {shape} as the task says, got {tuple(x.shape)}"
            )
        if not x.is_floating_point() and self._task.is_image:
            raise LeakauditError(
                f"{what}: expected images as floats in [0, 1], got {x.dtype}; divide by their levels"
            )
        return x.clone() if x.is_floating_point() else x.float()

    def build(self, id: str) -> Truth:
        """Return what was kept; states have a row a round, NaN in rounds that were not given."""
        none = torch.empty(0, dtype=torch.int64)
        x, y, node, index = (
            (torch.cat(c) for c in zip(*self._parts, strict=True))
            if self._parts
            else (self._pool[:0], none, none, none)
        )
        states = {name: _stack(rounds) for name, rounds in self._states.items()}
        return Truth(id, self._task, x, y, node, index, self._pool, states, self._provenance)


def _stack(rounds: Mapping[int, Tensor]) -> Tensor:
    first = next(iter(rounds.values()))
    dtype = first.dtype if first.is_floating_point() else torch.float64
    out = torch.full((max(rounds) + 1, *first.shape), torch.nan, dtype=dtype)
    for round, value in rounds.items():
        out[round] = value
    return out
