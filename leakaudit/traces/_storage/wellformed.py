"""Requirements on every part of a trace or truth file, so that later code need not check again.

Arrays are tensors, or what `safe_reader.outline` returns for them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Protocol, TypeAlias, TypeVar, cast, runtime_checkable

import numpy as np
from msgspec import UNSET, Meta, Struct, UnsetType

from leakaudit._util.decoding import TypeMismatch, decoded
from leakaudit._util.forms import present
from leakaudit._util.uncollected import read_json
from leakaudit._util.untrusted.archive import refuse
from leakaudit.core.errors import LeakauditError
from leakaudit.core.payload import StoredColumns
from leakaudit.core.sketch import ROWS, WIDTH
from leakaudit.core.trace import LARGEST_RECORD, Graph, Json, Layout, TaskSpec, Trace, Truth

T = TypeVar("T")

FLOATS = ("float16", "bfloat16", "float32", "float64")
INDEX = ("round", "src", "dst", "kind", "row")
KINDS = 4096  # number of bytes for the names of kinds
INT32 = 1 << 31  # limit of the values of an index column, exclusive

# Limits on what a file may declare, far above any real run: choices that prevent a malicious file
# from taking excessive time or memory. Sizes are numbers of entries, not bytes.
MAX_NODES = 1_000_000
MAX_EDGES = 1_000_000
LONGEST_NAME = 1_000  # characters of a tensor's name: a choice; archives take at most 65,535 bytes
# Time and memory grow with the nodes and rounds, so their numbers have to go with the size of the
# file: nodes without an edge, and rounds without a message, are exceptions.
SPARE_NODES = 1000
SPARE_ROUNDS = 100_000
ROUNDS_PER_MESSAGE = 100
MAX_SIZE = 1 << 40
MAX_AXES = 8
DEEPEST = 100  # lists and dictionaries around a value of the description, a choice
MAX_NAME = 200

# "(?!\n)$": in Python, "$" also matches before a final line break.
_Name: TypeAlias = Annotated[
    str,
    Meta(
        pattern=r"^[^\x00-\x1f\x7f-\x9f\u2028\u2029]{1,200}(?!\n)$",
        description="a short printable name",
    ),
]
_Number: TypeAlias = int | float  # as written
_Free: TypeAlias = object  # any JSON value


@runtime_checkable
class _Array(Protocol):
    """A tensor, or one that has not been read."""

    @property
    def dtype(self) -> object:
        """Type of its numbers."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape."""


@dataclass(frozen=True)
class CommittedTable:
    """The part of a table of messages that was committed, without payloads."""

    rows: int  # number of payloads
    index: Mapping[str, np.ndarray[Any, np.dtype[np.int32]]]  # (m,) of each column of `INDEX`
    secure: np.ndarray[Any, np.dtype[np.bool_]]  # (m,) whether each message is encrypted
    kinds: tuple[str, ...]  # names of the kinds of messages
    dtype: str  # name of the type of the payloads
    last: int
    closed: bool  # whether the recording is complete

    def __len__(self) -> int:
        return len(self.secure)


class _Open(Struct, frozen=True, kw_only=True):
    """A description; entries that a later version of the format added are ignored."""


class _TaskEntry(_Open, frozen=True, kw_only=True):
    """The task of a description; `TaskSpec` has the defaults."""

    model: _Name
    args: dict[str, _Free] | UnsetType = UNSET
    loss: _Name | UnsetType = UNSET
    shape: tuple[int, ...] | UnsetType = UNSET
    classes: int | UnsetType = UNSET
    mean: tuple[_Number, ...] | UnsetType = UNSET
    std: tuple[_Number, ...] | UnsetType = UNSET
    levels: int | UnsetType = UNSET
    data: str | UnsetType = UNSET
    labels: tuple[str, ...] | UnsetType = UNSET


class _LayoutEntry(_Open, frozen=True, kw_only=True):
    names: tuple[_Name, ...]
    shapes: tuple[tuple[int, ...], ...]


class _SketchEntry(_Open, frozen=True, kw_only=True):
    seed: int  # determines the signs
    rows: int  # signs per row of numbers
    width: int  # length of a row of numbers


class _KeptEntry(_Open, frozen=True, kw_only=True):
    """What is stored of every message."""

    # first recorded column of each span, and the first one after it
    spans: tuple[tuple[int, int], ...]
    sketch: _SketchEntry | None  # the sketch; then the norm of each message is stored as well


class _TraceEntry(_Open, frozen=True, kw_only=True):
    """The description of a trace."""

    protocol: _Name  # name of the victim
    params: dict[str, _Free]  # public constants of the protocol
    task: _TaskEntry
    nodes: int
    layout: _LayoutEntry  # position of each parameter in the flat vector
    # first recorded column of the flat vector, and the first one after them
    columns: tuple[int, ...]
    # what is stored of every message, if that is more than these columns
    kept: _KeptEntry | UnsetType = UNSET
    id: str  # identifier of the recording
    provenance: dict[str, _Free]  # how it was made


class _TruthEntry(_Open, frozen=True, kw_only=True):
    """The description of a truth."""

    id: str  # identifier of the recording
    task: _TaskEntry
    provenance: dict[str, _Free] = {}  # how it was made


def _plain(values: Mapping[str, object]) -> Mapping[str, Json]:
    return cast("Mapping[str, Json]", values)


def without_messages(tree: Mapping[str, Any]) -> Trace:
    """Return the description as a trace without messages and tensors; raises `FileFault`."""
    about = _meta(tree, _TraceEntry)
    layout = _layout(about.layout)
    task = _spec(about.task)
    edges = tensor(tree, "topology", ("int32", "int64"), 2)
    columns = _columns(about.columns, layout.size)
    return Trace(
        protocol=about.protocol,
        params=_plain(about.params),
        task=task,
        graph=graph(about.nodes, edges),
        layout=layout,
        columns=columns,
        rounds=0,
        messages=(),
        id=about.id,
        provenance=_plain(about.provenance),
        kept=_kept(about.kept, columns, layout.size),
    )


def truth(tree: Mapping[str, Any]) -> Truth:
    """Return a truth; raises `FileFault`."""
    numbers = (*FLOATS, "int64")
    about = _meta(tree, _TruthEntry)
    found = Truth(
        id=about.id,
        task=_spec(about.task),
        x=tensor(tree, "x", FLOATS),
        y=tensor(tree, "y", numbers),
        node=tensor(tree, "node", ("int64",), 1),
        index=tensor(tree, "index", ("int64",), 1),
        pool=tensor(tree, "pool", FLOATS),
        states=tensors(tree, "states"),
        provenance=_plain(about.provenance),
    )
    _check_records(found)
    return found


def _check_records(truth: Truth) -> None:
    lengths = {t.shape[:1] for t in (truth.x, truth.y, truth.node, truth.index)}
    shapes = {tuple(t.shape[1:]) for t in (truth.x, truth.pool)}
    if len(lengths) != 1 or shapes != {tuple(truth.task.shape)}:
        came = ", ".join(
            f"{name} {tuple(t.shape)}"
            for name, t in (("x", truth.x), ("y", truth.y), ("pool", truth.pool))
        )
        refuse(f"its records are inconsistent: {came}, inputs of shape {truth.task.shape}")
    if bool((truth.node < 0).any()):
        refuse(f"node {int(truth.node.min())} of its records does not exist")
    for name, values in (("x", truth.x), ("y", truth.y), ("pool", truth.pool)):
        # The smallest and the largest number are NaN if any is.
        ends = (float(values.min()), float(values.max())) if values.numel() else ()
        if not all(map(math.isfinite, ends)):
            refuse(f"{name!r} should contain finite numbers, but has NaN or infinity")
        if any(abs(end) > LARGEST_RECORD for end in ends):
            refuse(f"{name!r} has numbers beyond {LARGEST_RECORD:g} in size")
    _check_values(truth)


def _check_values(truth: Truth) -> None:
    from leakaudit.traces import vocabulary  # it needs torch, which outlines are read without

    try:
        vocabulary.shape_of_labels(truth.y, truth.task, "y")
        if truth.task.is_text:
            vocabulary.inputs(truth.x, truth.task, "x")
            vocabulary.inputs(truth.pool, truth.task, "pool")
    except LeakauditError as why:
        refuse(str(why))


def _meta(tree: Mapping[str, Any], kind: type[T]) -> T:
    """Return the description, without entries that this version does not know.

    json.loads reads it, not msgspec, because it accepts half of a surrogate pair, which occurs in
    recordings made in a folder with a name that is not valid UTF-8.
    """
    text = tree.get("meta")
    value = None
    if isinstance(text, str):
        try:
            value = read_json(text, DEEPEST)
        except (ValueError, RecursionError):
            value = None
    if not isinstance(value, dict):
        refuse("its description 'meta' is not JSON text of a dictionary")
    try:
        return decoded(value, kind)
    except TypeMismatch as why:
        refuse(f"in its description, {ascii(str(why))[1:-1]}")


def _spec(value: _TaskEntry) -> TaskSpec:
    """Return the task."""
    task = TaskSpec(**present(value))
    if task.is_program and Path(task.model).name != task.model:
        refuse("its model is a program in another folder; expected the name of a file")
    numbers = 0 <= task.levels < INT32 and 1 <= task.classes < INT32
    axes = len(task.shape) <= MAX_AXES and all(n >= 1 for n in task.shape)
    if not numbers or not axes or math.prod(task.shape) > MAX_SIZE:
        said = f"its task has shape {task.shape}, {task.classes} classes and {task.levels} levels"
        refuse(said[:200])
    units = all(abs(m) <= 1e30 for m in task.mean) and all(1e-30 <= s <= 1e30 for s in task.std)
    if not units:
        refuse(
            "its task has a mean beyond 1e30 in size, or a standard deviation outside 1e-30 to 1e30"
        )
    return task


def _layout(value: _LayoutEntry) -> Layout:
    """Return the position of each parameter."""
    names = value.names
    shapes = value.shapes
    odd = any(len(shape) > MAX_AXES or min(shape, default=1) < 1 for shape in shapes)
    if odd or len(names) != len(shapes) or len(set(names)) != len(names):
        refuse("its layout must have one shape for every parameter name, each name once")
    found = Layout(names, shapes)
    if not 0 < found.size <= MAX_SIZE:
        refuse(f"its layout describes a model of {str(found.size)[:40]} parameters")
    return found


def _columns(value: tuple[int, ...], size: int) -> tuple[int, int]:
    """Return the recorded columns of the flat vector."""
    if len(value) != 2 or not 0 <= value[0] < value[1] <= size:
        refuse(f"its columns {str(list(value))[:60]} are outside a model of {size} parameters")
    return value[0], value[1]


def _kept(
    value: _KeptEntry | UnsetType, columns: tuple[int, int], size: int
) -> StoredColumns | None:
    """Return what is stored of every message, if that is more than one span of columns."""
    if value is UNSET:
        return None
    seed = None
    if value.sketch is not None:
        seed = value.sketch.seed
        if (value.sketch.rows, value.sketch.width) != (ROWS, WIDTH):
            refuse(f"its sketch is not one of {ROWS} x {WIDTH} sums")
    try:
        found = StoredColumns(size, value.spans, seed)
    except LeakauditError as why:
        refuse(f"what it keeps of a message is invalid: {why}")
    if found.columns != columns:
        refuse(f"its columns {list(columns)} are not the first of its spans")
    return found


def graph(nodes: int, edges: _Array) -> Graph:
    """Return the topology from edges (e, 2), which are distinct pairs (i, j) with i < j."""
    most = min(MAX_NODES, SPARE_NODES + 2 * edges.shape[0])
    if not 1 <= nodes <= most or edges.shape[1] != 2 or edges.shape[0] > MAX_EDGES:
        refuse(f"its topology has {str(nodes)[:40]} nodes and edges of shape {tuple(edges.shape)}")
    pairs = np.asarray(edges).astype(np.int64)
    i, j = pairs.T
    outside = bool(((i < 0) | (i >= j) | (j >= nodes)).any())
    if outside or len(np.unique(i * nodes + j)) != len(pairs):
        refuse(
            f"its topology repeats an edge, or has one that is not (i, j) with 0 <= i < j < {nodes}"
        )
    return Graph(nodes, tuple((i, j) for i, j in pairs.tolist()))


def tensor(
    tree: Mapping[str, Any], name: str, dtypes: tuple[str, ...], dim: int | None = None
) -> Any:
    """Return one tensor of the tree; `dim` is its number of axes, None for any."""
    value = tree.get(name)
    came = "not a tensor"
    if isinstance(value, _Array):
        dtype = type_of(value)
        came = f"{dtype} of shape {tuple(value.shape)}"
        if dtype in dtypes and dim in (None, len(value.shape)):
            return value
    kinds = " or ".join(dtypes)
    axes = "" if dim is None else f" with {dim} axes"
    refuse(f"{name!r} should be a tensor of {kinds}{axes}, but is {came}")


def type_of(array: _Array) -> str:
    """Return the name of the type of an array's numbers, such as ``float32``."""
    return str(array.dtype).removeprefix("torch.")


def tensors(tree: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return a dictionary of tensors; empty if it is missing."""
    value = tree.get(name, {})
    sound = isinstance(value, dict) and all(
        isinstance(t, _Array) and key.isprintable() and len(key) <= LONGEST_NAME
        for key, t in value.items()
    )
    if not sound:
        refuse(
            f"{name!r} should be a dictionary of tensors by names of at most {LONGEST_NAME} "
            "characters"
        )
    found: dict[str, Any] = value
    return found


def messages(table: Mapping[str, Any], nodes: int, width: int) -> CommittedTable:
    """Return which messages were committed, if their payloads have the described width."""
    rows, count, last, closed = _counters(table)
    index = {name: np.asarray(tensor(table, name, ("int32",), 1)) for name in INDEX}
    secure = np.asarray(tensor(table, "secure", ("bool",), 1))
    payload = tensor(table, "payload", FLOATS, 2)
    if payload.shape[1] != width:
        refuse(f"its payload has {payload.shape[1]} columns, but its description states {width}")
    held = all(0 <= count <= len(column) for column in (*index.values(), secure))
    if not 0 <= rows <= payload.shape[0] or not held or not 0 <= last < INT32:
        refuse(
            f"it declares {count} messages in {rows} rows up to round {last}, "
            "but does not contain them"
        )
    names = _kinds(tensor(table, "kinds", ("uint8",), 1))
    index = {name: column[:count] for name, column in index.items()}
    stops = {"round": INT32, "src": nodes, "dst": nodes, "kind": len(names), "row": rows}
    for name, stop in stops.items():
        _check_range(name, index[name], stop)
    if count:
        # torch treats any other byte as true; two readers could see different messages.
        if int(secure[:count].view(np.uint8).max()) > 1:
            refuse("its column 'secure' contains a value that is neither true nor false")
        # The program may have been killed between writing the counters of messages and of rounds.
        last = max(last, int(index["round"].max()))
    return CommittedTable(rows, index, secure[:count], names, type_of(payload), last, closed == 1)


def rounds(last: int, messages: int) -> int:
    """Return the last round of a recording."""
    most = SPARE_ROUNDS + ROUNDS_PER_MESSAGE * messages
    if last > most:
        refuse(f"its {messages} messages go up to round {last}, expected at most {most} rounds")
    return last


def _counters(table: Mapping[str, Any]) -> list[int]:
    if "written" not in table:
        refuse("it contains no messages")
    counters: list[int] = np.asarray(tensor(table, "written", ("int64",), 1)).tolist()
    if len(counters) not in range(4, 65):  # later versions may add some
        refuse("its counters are incomplete")
    return counters[:4]


def _check_range(name: str, column: np.ndarray[Any, Any], stop: int) -> None:
    if not len(column):
        return
    low = int(column.min())
    high = int(column.max())
    if low < 0 or high >= stop:
        wrong = low if low < 0 else high
        refuse(f"a message has {name} {wrong}, expected 0 to {stop - 1}")


def _kinds(text: _Array) -> tuple[str, ...]:
    """Return the names of kinds, each on a line, up to the first zero."""
    size = text.shape[0]
    if size > 16 * KINDS:  # later versions may keep more
        refuse(f"the names of its kinds take {size} bytes (maximum {16 * KINDS})")
    try:
        names = bytes(np.asarray(text)).split(b"\0", 1)[0].decode().split("\n")[:-1]
    except UnicodeDecodeError:
        refuse("the names of its kinds are not UTF-8 text")
    sound = all(1 <= len(n) <= MAX_NAME and n.isprintable() for n in names)
    if not sound or len(set(names)) != len(names):
        refuse("the names of its kinds are not printable, or are repeated")
    return tuple(names)
