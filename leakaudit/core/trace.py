"""The recording (`Trace`) and the private data (`Truth`): only tensors and JSON values."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias

from leakaudit.core.display import CardDisplay
from leakaudit.core.errors import LeakauditError
from leakaudit.core.payload import Span, StoredColumns
from leakaudit.core.sketch import NUMBERS

if TYPE_CHECKING:  # what is read without its tensors needs no torch
    import torch
    from torch import Tensor

Json: TypeAlias = "bool | int | float | str | Sequence[Json] | Mapping[str, Json] | None"
# A hyper-parameter of an attack, or a constant of a victim or a model, as users type it.
Setting: TypeAlias = bool | int | float | str
PROGRAM = ".pt2"  # how the name of a file with a torch.export program ends
RECORDING = "recording"  # key in the provenance of a trace and its truth; random for each recording
CONSTANTS = "constants."  # how the names of public tensors with constants of the model begin
UNSTORED = ("beside", "constants")  # fields of a task that its JSON does not have
RANGE = "data_range"  # key in the provenance of a truth; see `Truth.data_range`
_DRAWN = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True)
class Layout:
    """The position of each parameter in the flat model vector."""

    names: tuple[str, ...]  # dotted parameter names in the model's order
    shapes: tuple[tuple[int, ...], ...]  # their shapes

    @cached_property
    def slices(self) -> dict[str, slice]:
        """Name -> its columns of the flat vector."""
        found = {}
        start = 0
        for name, shape in zip(self.names, self.shapes, strict=True):
            stop = start + math.prod(shape)
            found[name] = slice(start, stop)
            start = stop
        return found

    @property
    def size(self) -> int:
        """Length d of the flat vector."""
        return sum(math.prod(s) for s in self.shapes)

    def split(self, flat: Tensor) -> dict[str, Tensor]:
        """View a flat vector as parameters."""
        lead = flat.shape[:-1]
        if flat.shape[-1:] != (self.size,):
            raise LeakauditError(
                f"expected a vector of {self.size} parameters, got shape {tuple(flat.shape)}"
            )
        parts = {}
        for name, shape in zip(self.names, self.shapes, strict=True):
            parts[name] = flat[..., self.slices[name]].reshape((*lead, *shape))
        return parts


@dataclass(frozen=True)
class Graph:
    """An undirected graph.

    Attributes:
        nodes: Number of nodes, which are 0 to nodes - 1.
        edges: Pairs (i, j) with i < j, without repeats.

    Raises:
        LeakauditError: An edge has another form or occurs twice.
    """

    nodes: int
    edges: tuple[tuple[int, int], ...]

    def __post_init__(self) -> None:
        """Reject invalid edges."""
        bad = [edge for edge in self.edges if not 0 <= edge[0] < edge[1] < self.nodes]
        if bad or len(set(self.edges)) != len(self.edges):
            raise LeakauditError(
                f"graph: expected distinct edges (i, j) with 0 <= i < j < {self.nodes}, "
                f"got {bad[:3] or 'repeats'}"
            )

    @cached_property
    def neighbours(self) -> tuple[tuple[int, ...], ...]:
        """Sorted neighbours of every node."""
        near: list[list[int]] = [[] for _ in range(self.nodes)]
        for i, j in self.edges:
            near[i].append(j)
            near[j].append(i)
        return tuple(tuple(sorted(some)) for some in near)

    @cached_property
    def arcs(self) -> tuple[tuple[int, int], ...]:
        """Both directions of every edge, sorted."""
        return tuple(sorted([*self.edges, *((j, i) for i, j in self.edges)]))

    def require(self, node: int, what: str = "graph") -> None:
        """Reject a node that does not exist.

        Args:
            node: The node.
            what: What has the nodes, in the message.
        """
        if not 0 <= node < self.nodes:
            raise LeakauditError(
                f"node {node} does not exist (the {what} has nodes 0 to {self.nodes - 1})"
            )

    def degree(self, node: int) -> int:
        """Number of neighbours d_i."""
        return len(self.neighbours[node])

    @property
    def connected(self) -> bool:
        """Whether there is a path between any two nodes."""
        seen = {0}
        todo = [0]
        while todo:
            new = set(self.neighbours[todo.pop()]) - seen
            seen |= new
            todo += new
        return len(seen) == self.nodes


# Largest number of a record in size. Its square, and sums of squares, are far below the largest
# float: a choice, as for the mean and the standard deviation of a task.
LARGEST_RECORD = 1e30


@dataclass(frozen=True)
class TaskSpec:
    """Public description of the training task.

    Attributes:
        model: Registered name, ``package.module:factory``, or the name of a torch.export program
            (``file.pt2``).
        args: Its keyword arguments.
        loss: "cross_entropy", "binary", "squared", or "next_token" for sequences of tokens.
        shape: Shape of one input, such as (1, 25, 25).
        classes: Number of classes.
        mean: The model sees (x - mean) / std, with x in [0, 1] for images; one entry
            per channel, or one for all.
        std: See `mean`.
        levels: 255 if inputs are k/255, else 0.
        data: Name of the data set.
        labels: Names of the classes; may be empty.
        beside: Folder of the file that names a program, which is looked for there; not stored.
        constants: Running statistics and frozen parameters that differ from those of a new model,
            by name; a trace stores them as public tensors ``constants.NAME``.
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
    beside: str = field(default="", compare=False, repr=False)
    constants: Mapping[str, Tensor] = field(default_factory=dict, compare=False, repr=False)

    @property
    def is_program(self) -> bool:
        """Whether the model is a torch.export program, which is a file."""
        return self.model.endswith(PROGRAM)

    @property
    def is_image(self) -> bool:
        """Whether inputs have channels and two spatial dimensions."""
        return len(self.shape) == 3

    @property
    def is_text(self) -> bool:
        """Whether inputs are sequences of tokens, of which a model predicts the next one."""
        return self.loss == "next_token"

    def to_json(self) -> dict[str, Json]:
        """Plain JSON values."""
        values = asdict(replace(self, constants={}))
        for name in UNSTORED:
            del values[name]
        for name, value in values.items():
            if isinstance(value, tuple):
                values[name] = list(value)
        return values

    @classmethod
    def from_json(cls, value: Mapping[str, Json]) -> TaskSpec:
        """Return the task that `to_json` wrote."""
        known = {f.name for f in fields(cls)} - {*UNSTORED}
        extra = set(value) - known
        if extra:
            raise LeakauditError(f"task: unknown keys {sorted(extra)} (known: {sorted(known)})")
        values: dict[str, Any] = dict(value)
        for name, entry in value.items():
            if isinstance(entry, list):
                values[name] = tuple(entry)
        return cls(**values)


@dataclass(frozen=True)
class Messages:
    """Messages by column; a broadcast is one row of payload with several rows of indices."""

    round: Tensor  # (m,) int32
    src: Tensor  # (m,) int32, the sender
    dst: Tensor  # (m,) int32, the receiver
    kind: Tensor  # (m,) int32, an index into `kinds`
    row: Tensor  # (m,) int32, an index into `payload`
    secure: Tensor  # (m,) bool, whether an outsider sees that it was sent, but not its content
    payload: Tensor  # (rows, columns)
    kinds: tuple[str, ...]  # names of the kinds of messages
    # (rows, width) everything that the file holds of each message, in the order of
    # `leakaudit.core.payload.StoredColumns`; it starts with `payload`. None if there is nothing
    # else.
    stored: Tensor | None = None

    def __len__(self) -> int:
        return len(self.round)

    @property
    def rows(self) -> Tensor:
        """Everything that the file holds of each payload."""
        return self.payload if self.stored is None else self.stored

    def __repr__(self) -> str:
        rows, columns = self.payload.shape
        kinds = f"{', '.join(self.kinds)!r:.60}"
        return f"Messages({len(self)} of kinds {kinds}, payload {rows} x {columns})"


@dataclass(frozen=True)
class Trace(CardDisplay):
    """A recording of the messages of a run; contains nothing private.

    Attributes:
        protocol: Its registered name.
        params: The protocol's constants, public unless an adversary's `knows` says otherwise.
        task: The training task.
        graph: The network.
        layout: Position of each parameter in the flat model vector.
        columns: (start, stop) of the flat model vector that was recorded, or the first such span.
        rounds: Number of rounds.
        messages: One table per file of the recording: one, or one per shard.
        public: Named tensors that everyone knows, such as ``w0`` (d,), the common initial model.
        id: Identical in the trace and its truth. Users may choose it, unlike `recording`.
        complete: False if the recording was interrupted.
        provenance: When and how it was recorded.
        kept: Everything that was recorded of each message, if that is more than `columns`.
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
    kept: StoredColumns | None = None

    def __post_init__(self) -> None:
        """Give the task the constants of its model."""
        constants = {
            name.removeprefix(CONSTANTS): value
            for name, value in self.public.items()
            if name.startswith(CONSTANTS)
        }
        if constants:
            object.__setattr__(self, "task", replace(self.task, constants=constants))

    def __len__(self) -> int:
        """Number of messages in all tables."""
        return sum(len(table) for table in self.messages)

    def __repr__(self) -> str:
        """One line without tensors; names from a file are quoted, so that they are inert."""
        cut = ""
        if not self.complete:
            cut = ", incomplete"
        return (
            f"Trace({self.protocol!r:.60}, {self.graph.nodes} nodes, {len(self.graph.edges)} edges,"
            f" {self.rounds} rounds, {len(self)} messages, model {self.task.model!r:.60},"
            f" data {self.task.data!r:.60}{cut})"
        )

    @property
    def recording(self) -> str | None:
        """Random number of this recording, identical in its truth; None if the file has none."""
        return drawn(self.provenance.get(RECORDING))

    @property
    def dtype(self) -> torch.dtype:
        """Number format of the messages."""
        return self.messages[0].payload.dtype

    @property
    def spans(self) -> tuple[Span, ...]:
        """All recorded spans of columns, (start, stop)."""
        return self.recorded.spans

    @property
    def recorded(self) -> StoredColumns:
        """What was recorded of each message, even if that is only `columns`."""
        return self.kept or StoredColumns(self.layout.size, (self.columns,))

    def of_span(self, span: Span) -> Trace:
        """Return the trace with another one of `spans` as its only recorded span."""
        if span not in self.spans:
            known = ", ".join(f"{a}:{b}" for a, b in self.spans)
            raise LeakauditError(
                f"columns {span[0]}:{span[1]} were not recorded as a whole; the trace has {known}"
            )
        if self.kept is None:
            return self
        return self._with(span, self.kept.places[span])

    @cached_property
    def sketched(self) -> Trace | None:
        """The run of the sketches, whose messages follow the same relations; None without them.

        Its model is the sketch. A relation may use a constant of the protocol as a vector with this
        value in every coordinate, so constants become public vectors, the sketches of these.
        """
        if self.kept is None or self.kept.sketch is None:
            return None
        import torch

        ones = self.kept.sketched(torch.ones(1, self.layout.size, dtype=self.dtype))[0]
        public = {
            name: value * ones
            for name, value in self.params.items()
            if isinstance(value, int | float)
        }
        public |= self.public
        for name, value in public.items():
            if value.shape == (self.layout.size,) and value.is_floating_point():
                public[name] = self.kept.sketched(value[None])[0]
        place = slice(self.kept.raw, self.kept.linear)
        layout = Layout(("sketch",), ((NUMBERS,),))
        return replace(self._with((0, NUMBERS), place), layout=layout, public=public)

    def _with(self, columns: Span, place: slice) -> Trace:
        """Return the trace with a part of each stored row as its payload."""
        tables = []
        for table in self.messages:
            assert table.stored is not None
            tables.append(replace(table, payload=table.stored[:, place], stored=None))
        return replace(self, columns=columns, messages=tuple(tables), kept=None)

    @property
    def payload_bytes(self) -> int:
        """Number of bytes of all payloads, of which a mapped file need not hold any in memory."""
        return sum(m.payload.numel() * m.payload.element_size() for m in self.messages)

    def kinds(self) -> Iterator[str]:
        """Names of the kinds of messages, each once."""
        seen: dict[str, None] = {}
        for table in self.messages:
            seen |= dict.fromkeys(table.kinds)
        yield from seen


@dataclass(frozen=True)
class Truth:
    """The private side of a run; opened for scoring only.

    Attributes:
        id: Id of its trace.
        task: The training task.
        x: (s, *shape), images in [0, 1].
        y: (s,) labels.
        node: (s,) owner of each record.
        index: (s,) row in the data set.
        pool: (p, *shape), other records of the data set, for identification; may be empty.
        states: Private vectors kept on request, such as ``w`` (rounds + 1, N, d).
        provenance: Facts that would reveal the data if stored in the trace, such as the seed.
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

    def __repr__(self) -> str:
        """Sizes, without any of the data."""
        nodes = len(self.node.unique())
        states = f"{', '.join(self.states)!r:.60}"
        return (
            f"Truth({len(self.x)} records of {nodes} nodes, shape {tuple(self.task.shape)},"
            f" data {self.task.data!r:.60}, pool of {len(self.pool)}, states {states})"
        )

    @property
    def recording(self) -> str | None:
        """Random number of this recording, identical in its trace; None if the file has none."""
        return drawn(self.provenance.get(RECORDING))

    @property
    def summed(self) -> int:
        """Number of records of which a protocol's gradient is the sum; 1 if it is their mean."""
        said = self.provenance.get("scenario")
        if isinstance(said, Mapping) and said.get("reduction") == "sum":
            samples = said.get("samples")
            return samples if isinstance(samples, int) and samples > 0 else 1
        return 1

    @property
    def data_range(self) -> float:
        """Width of the scale of images: 1, or the largest pixel of rows of unit norm."""
        said = self.provenance.get(RANGE, 1.0)
        return float(said) if isinstance(said, int | float) and said > 0 else 1.0

    def of(self, *nodes: int) -> tuple[Tensor, Tensor]:
        """Inputs (b, *shape) and labels (b,) of one node, or of several."""
        mine = self.owned(nodes)
        return self.x[mine], self.y[mine]

    def owned(self, nodes: Iterable[int]) -> Tensor:
        """Return which records (s,) belong to one of the nodes."""
        import torch

        return torch.isin(self.node, torch.tensor(list(nodes)))

    def blind_guess(self, *nodes: int) -> Tensor:
        """Return the best guess (*shape) of the records of nodes without a leak.

        This is the mean of all other records, grey if there are none; for sequences, the most
        frequent token at every position.
        """
        import torch

        others = torch.cat([self.pool.to(self.x), self.x[~self.owned(nodes)]])
        if self.task.is_text:
            return others.mode(0).values if len(others) else torch.zeros_like(self.x[0])
        if not len(others):
            return torch.full_like(self.x[0], 0.5)
        return others.mean(0)


def drawn(value: Json) -> str | None:
    """Return the number of a recording, or None if `value` is anything else."""
    if isinstance(value, str) and _DRAWN.fullmatch(value):
        return value
    return None


@dataclass(frozen=True)
class Training:
    """Local steps of a nonlinear optimiser, of which only the sum is sent."""

    optimiser: str  # its name in torch.optim, in lower case
    steps: int
    lr: float  # step size
    decay: float  # weight decay, decoupled
    # bits of a number of the message, with one scale for each parameter; 0 if it is not rounded
    bits: int
