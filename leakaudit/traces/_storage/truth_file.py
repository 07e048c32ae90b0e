"""Collects the private side of a run, and writes it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from leakaudit._util.files import write_tensors
from leakaudit.core.errors import LeakauditError
from leakaudit.core.trace import Json, TaskSpec, Truth
from leakaudit.traces._storage import sidecar, tree
from leakaudit.traces._storage.arrays import integers, tensor
from leakaudit.traces._storage.sizes import human
from leakaudit.traces.callers import SENT
from leakaudit.traces.vocabulary import inputs, labels

LAST_INDEX = 1 << 62  # maximum row in a data set; a choice, within int64
LAST_ROUND = 1 << 31


class TruthFile:
    """Data, labels and private states of the nodes of one run.

    Args:
        path: Where it is written; None for memory.
        limit: Maximum size in bytes of private states in memory.
        samples: Maximum number of records per node; 0 for any number.
    """

    def __init__(
        self,
        path: Path | None,
        id: str,
        task: TaskSpec,
        nodes: int,
        limit: float,
        provenance: Mapping[str, Json],
        check: bool,
        samples: int,
    ) -> None:
        self._path = path
        self._id = id
        self._task = task
        self._nodes = nodes
        self._limit = limit
        self._provenance = dict(provenance)
        self._check = check
        self._samples = samples
        self._told: dict[int, int] = {}  # number of records by node
        # x (b, *shape), y, node and index (b,) of each call of `add`
        self._parts: list[tuple[Tensor, Tensor, Tensor, Tensor]] = []
        self._pool = torch.empty(0, *task.shape)
        self._states: dict[str, dict[int, Tensor]] = {}
        self._bytes: dict[str, int] = {}  # size by state
        self._changed = False  # whether anything was added that is not written
        self._written = False

    def sent(self, kind: str, place: Json) -> None:
        """Store where messages of a kind are sent."""
        noted = self._provenance.setdefault(SENT, {})
        if isinstance(noted, dict):
            noted[kind] = place
        self._changed = self._changed or bool(self._parts)

    def add(self, node: int, x: Any, y: Any, index: Any = None) -> None:
        """Store samples of a node: x (b, *shape), y (b,) and rows (b,) in the data set, or None."""
        (owner,) = integers(node, "node", self._nodes)
        x = self._inputs(x, "x")
        y = tensor(y, "y").cpu()
        if y.dim() == 0:
            y = y.reshape(1)
        if index is None:
            rows = torch.full((len(x),), -1)
        else:
            rows = torch.from_numpy(integers(index, "index", LAST_INDEX))
        if len(y) != len(x) or len(rows) != len(x):
            raise LeakauditError(
                f"node {owner}: expected one label and one index for each of {len(x)} samples, "
                f"got {len(y)} labels and {len(rows)} indices"
            )
        y = y.clone() if y.is_floating_point() else y.long()
        if self._check:
            self._count(int(owner), len(x))
            inputs(x, self._task, f"truth of node {owner}")
            labels(y, self._task, f"truth of node {owner}")
        self._parts.append((x, y, torch.full((len(x),), int(owner)), rows))
        self._changed = True

    def _count(self, node: int, more: int) -> None:
        total = self._told.get(node, 0) + more
        self._told[node] = total
        if self._samples and total > self._samples:
            raise LeakauditError(
                f"node {node}: expected the truth of at most samples = {self._samples} records, "
                f"got {total}; samples is the number of records of a node, "
                "and batch the number of records behind a gradient"
            )

    def pool(self, x: Any) -> None:
        """Store other records (p, *shape) of the data set, for identification."""
        self._pool = self._inputs(x, "pool")
        self._changed = True
        if self._check:
            inputs(self._pool, self._task, "pool")

    def state(self, name: str, round: int, value: Any) -> None:
        """Store a private vector of a round; a later one of the same round replaces it."""
        value = tensor(value, f"state {name}").cpu().clone()
        rounds = self._states.setdefault(name, {})
        first = next(iter(rounds.values()), value)
        if first.shape != value.shape:
            raise LeakauditError(
                f"state {name!r}: expected shape {tuple(first.shape)} as in earlier rounds, "
                f"got {tuple(value.shape)}"
            )
        if not 0 <= round < LAST_ROUND:
            raise LeakauditError(f"state {name!r}: expected a round >= 0, got {round}")
        rounds[int(round)] = value
        self._changed = True
        # A state is written with one row per round up to its last, whether provided or not.
        self._bytes[name] = (max(rounds) + 1) * value.nbytes
        if sum(self._bytes.values()) > self._limit:
            del rounds[int(round)]
            raise LeakauditError(
                f"private states take more than {human(self._limit)}; "
                "record without them or raise max_bytes"
            )

    def _inputs(self, value: Any, what: str) -> Tensor:
        """Return a copy of samples (b, *shape) as floats."""
        x = tensor(value, what).cpu()
        shape = self._task.shape
        if tuple(x.shape) == shape:
            x = x[None]
        if tuple(x.shape[1:]) != shape or x.dim() != len(shape) + 1:
            raise LeakauditError(
                f"{what}: expected samples of shape {shape} as in the task, got {tuple(x.shape)}"
            )
        if x.is_floating_point():
            return x.clone()
        if self._task.is_image:
            raise LeakauditError(
                f"{what}: expected images as floats in [0, 1], got {x.dtype}; "
                "divide by the number of levels"
            )
        return x.float()

    def write(self) -> None:
        """Write what was stored, if any of it is new."""
        if self._path is None or not self._changed:
            return
        # The sha256 of the file about to be replaced would reject the new file.
        sidecar.beside(self._path).unlink(missing_ok=True)
        write_tensors(self._path, tree.truth_tree(self.build()))
        self._changed = False
        self._written = True

    def seal(self) -> None:
        """Write the sha256 next to the file, if there is one."""
        if self._path is not None and self._written:
            sidecar.write(self._path)

    def build(self) -> Truth:
        """Return what was stored; states have a row per round, NaN without a value."""
        if self._parts:
            columns = zip(*self._parts, strict=True)
            x, y, node, index = (torch.cat(column) for column in columns)
        else:
            x = self._pool[:0]
            y = node = index = torch.empty(0, dtype=torch.int64)
        states = {name: _stack(rounds) for name, rounds in self._states.items()}
        return Truth(self._id, self._task, x, y, node, index, self._pool, states, self._provenance)


def _stack(rounds: Mapping[int, Tensor]) -> Tensor:
    first = next(iter(rounds.values()))
    dtype = first.dtype if first.is_floating_point() else torch.float64
    out = torch.full((max(rounds) + 1, *first.shape), torch.nan, dtype=dtype)
    for round, value in rounds.items():
        out[round] = value
    return out
