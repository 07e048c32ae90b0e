"""What was overheard (`Trace`) and what was true (`Truth`): plain tensors and JSON values, on disk as in memory."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from leakaudit.errors import LeakauditError

Json = Any  # None, bool, int, float, str, list or dict of them
RECORDING = "recording"  # entry of the provenance of a trace and of its truth, drawn anew for every recording
_DRAWN = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True)
class Layout:
    """Where each parameter lies in the flat model vector.

    names: dotted parameter names in the model's order; shapes: their shapes.
    """

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]

    @cached_property
    def slices(self) -> dict[str, slice]:
        """Name -> its columns of the flat vector."""
        out, at = {}, 0
        for name, shape in zip(self.names, self.shapes, strict=True):
            out[name] = slice(at, at + math.prod(shape))
            at += math.prod(shape)
        return out

    @property
    def size(self) -> int:
        """Length d of the flat vector."""
        return sum(math.prod(s) for s in self.shapes)

    def split(self, flat: Tensor) -> dict[str, Tensor]:
        """View (..., d) as one tensor a parameter, each (..., *shape)."""
        lead = flat.shape[:-1]
        return {
            n: flat[..., self.slices[n]].reshape(*lead, *s)
            for n, s in zip(self.names, self.shapes, strict=True)
        }


@dataclass(frozen=True)
class Graph:
    """An undirected graph of nodes 0..nodes-1; edges are pairs (i, j) with i < j, sorted, without repeats."""

    nodes: int
    edges: tuple[tuple[int, int], ...]

    def __post_init__(self) -> None:
        """Reject edges that the rest of the program could not read."""
        bad = [e for e in self.edges if not 0 <= e[0] < e[1] < self.nodes]
        if bad or len(set(self.edges)) != len(self.edges):
            raise LeakauditError(
                f"graph: expected distinct edges (i, j) with 0 <= i < j < {self.nodes}, got {bad[:3] or 'repeats'}"
            )

    @cached_property
    def neighbours(self) -> tuple[tuple[int, ...], ...]:
        """Sorted neighbours of every node."""
        out: list[list[int]] = [[] for _ in range(self.nodes)]
        for i, j in self.edges:
            out[i].append(j)
            out[j].append(i)
        return tuple(tuple(sorted(n)) for n in out)

    @cached_property
    def arcs(self) -> tuple[tuple[int, int], ...]:
        """Both directions of every edge, sorted: what can travel in a round."""
        return tuple(sorted([*self.edges, *((j, i) for i, j in self.edges)]))

    def degree(self, node: int) -> int:
        """Number of neighbours d_i."""
        return len(self.neighbours[node])

    @property
    def connected(self) -> bool:
        """Whether a walk reaches every node."""
        seen, todo = {0}, [0]
        while todo:
            new = set(self.neighbours[todo.pop()]) - seen
            seen |= new
            todo += new
        return len(seen) == self.nodes


@dataclass(frozen=True)
class TaskSpec:
    """Public description of what is trained.

    model: registered name or ``package.module:factory``; args: its keyword arguments;
    loss: ``cross_entropy`` | ``binary`` | ``squared``; shape: one input, e.g. (1, 25, 25);
    mean, std: the model sees (x - mean) / std, x in [0, 1] for images, one entry a channel;
    levels: 255 where inputs are k/255, else 0; labels: names of the classes, may be empty.
    """

    model: str
    args: Mapping[str, Json] = field(default_factory=dict)
    loss: str = "cross_entropy"
    shape: tuple[int, ...] = ()
    classes: int = 2
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    levels: int = 0
    data: str = ""
    labels: tuple[str, ...] = ()

    @property
    def is_image(self) -> bool:
        """Channels first, with two spatial sides."""
        return len(self.shape) == 3

    def to_json(self) -> dict[str, Json]:
        """Plain JSON values."""
        return {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(self).items()}

    @classmethod
    def from_json(cls, value: Mapping[str, Json]) -> TaskSpec:
        """Inverse of `to_json`; unknown keys are refused."""
        known = {f.name for f in fields(cls)}
        if extra := set(value) - known:
            raise LeakauditError(f"task: unknown keys {sorted(extra)} (known: {sorted(known)})")
        values: dict[str, Any] = {
            k: tuple(v) if isinstance(v, list) else v for k, v in value.items()
        }
        return cls(**values)


@dataclass(frozen=True)
class Messages:
    """Columns of what was sent; a broadcast is one payload row with several index rows.

    round, src, dst, kind, row: (m,) int32; kind indexes `kinds`; row indexes `payload`.
    secure: (m,) bool, an outsider sees that it was sent, not what. payload: (rows, columns).
    """

    round: Tensor
    src: Tensor
    dst: Tensor
    kind: Tensor
    row: Tensor
    secure: Tensor
    payload: Tensor
    kinds: tuple[str, ...]

    def __len__(self) -> int:
        """Number of messages m."""
        return len(self.round)


@dataclass(frozen=True)
class Trace:
    """A recording of a training run's channels; holds nothing private.

    params: the protocol's constants, public unless an adversary's `knows` says otherwise.
    columns: (start, stop) of the flat model vector that was recorded, (0, layout.size) for all of it.
    public: named tensors that everybody has, e.g. ``w0`` (d,), the common initial model.
    messages: one table a file of the recording (one, or one a shard).
    id: equal in the trace and its truth; a user may choose it, so `recording` tells runs of one id apart.
    complete: False where the recording was cut short.
    """

    protocol: str
    params: Mapping[str, Json]
    task: TaskSpec
    graph: Graph
    layout: Layout
    columns: tuple[int, int]
    rounds: int
    messages: tuple[Messages, ...]
    public: Mapping[str, Tensor] = field(default_factory=dict)
    id: str = ""
    complete: bool = True
    provenance: Mapping[str, Json] = field(default_factory=dict)

    def __len__(self) -> int:
        """Number of messages in all tables."""
        return sum(len(m) for m in self.messages)

    @property
    def recording(self) -> str | None:
        """Number drawn for this recording, equal in its truth; None if the file holds none."""
        return drawn(self.provenance.get(RECORDING))

    @property
    def dtype(self) -> torch.dtype:
        """Number format on the wire."""
        return self.messages[0].payload.dtype

    def kinds(self) -> Iterator[str]:
        """Names of the kinds of messages, each once."""
        yield from dict.fromkeys(k for m in self.messages for k in m.kinds)


@dataclass(frozen=True)
class Truth:
    """The private side of a run; opened for scoring and nowhere else.

    x: (s, *shape), images in [0, 1]; y: (s,) labels; node: (s,) owner; index: (s,) row in the data set.
    pool: the data set's other records for identification, (p, *shape), may be empty.
    states: private vectors kept on request, e.g. ``w`` (rounds + 1, N, d). provenance: what would give the data
    away beside the trace, such as the seed.
    """

    id: str
    task: TaskSpec
    x: Tensor
    y: Tensor
    node: Tensor
    index: Tensor
    pool: Tensor
    states: Mapping[str, Tensor] = field(default_factory=dict)
    provenance: Mapping[str, Json] = field(default_factory=dict)

    @property
    def recording(self) -> str | None:
        """Number drawn for this recording, equal in its trace; None if the file holds none."""
        return drawn(self.provenance.get(RECORDING))

    def of(self, node: int) -> tuple[Tensor, Tensor]:
        """Inputs (b, *shape) and labels (b,) of one node."""
        mine = self.node == node
        return self.x[mine], self.y[mine]


def drawn(value: Json) -> str | None:
    """Return the number of a recording as a file gives it, None for anything else."""
    return value if isinstance(value, str) and _DRAWN.fullmatch(value) else None
