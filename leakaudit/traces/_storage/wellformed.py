"""What every part of a trace or truth file must be, so that no later code needs to check again."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Annotated, Any, NoReturn, TypeAlias, TypeVar

import torch
from msgspec import UNSET, Meta, Struct, UnsetType
from torch import Tensor

from leakaudit._util.decoding import Misfit, decoded
from leakaudit._util.forms import present
from leakaudit.trace import Graph, Layout, Messages, TaskSpec

T = TypeVar("T")

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
INDEX = ("round", "src", "dst", "kind", "row")
KINDS = 4096  # bytes for the names of kinds
INT32 = 1 << 31  # what an index column can hold, exclusive

# Limits on what a file may announce, far above any real run: they are choices that keep a malicious
# file from taking all time or memory. Sizes in numbers, not bytes.
MAX_NODES = 1_000_000
MAX_EDGES = 1_000_000
MAX_SIZE = 1 << 40
MAX_AXES = 8
MAX_NAME = 200

# "(?!\n)$": in Python, "$" also matches before a final line break.
_Name: TypeAlias = Annotated[
    str,
    Meta(
        pattern=r"^[^\x00-\x1f\x7f-\x9f\u2028\u2029]{1,200}(?!\n)$",
        description="a short printable name",
    ),
]
_Number: TypeAlias = int | float  # as it was written
_Free: TypeAlias = object  # any JSON value


class _Open(Struct, frozen=True, kw_only=True):
    """What a later version of the same format added is not read."""


class _TaskEntry(_Open, frozen=True, kw_only=True):
    """The task of a description; the attributes are those of `TaskSpec`, which has the defaults."""

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


class LayoutEntry(_Open, frozen=True, kw_only=True):
    """Where each parameter lies.

    Attributes:
        names: Of the parameters.
        shapes: Of the parameters.
    """

    names: tuple[_Name, ...]
    shapes: tuple[tuple[int, ...], ...]


class TraceEntry(_Open, frozen=True, kw_only=True):
    """The description of a trace.

    Attributes:
        protocol: Name of the victim.
        params: Public constants of the protocol.
        task: The learning task.
        nodes: Number of nodes.
        layout: Where each parameter lies.
        columns: First recorded column of the flat vector, and the first one after them.
        id: Of the recording.
        provenance: How it was made.
    """

    protocol: _Name
    params: dict[str, _Free]
    task: _TaskEntry
    nodes: int
    layout: LayoutEntry
    columns: tuple[int, ...]
    id: str
    provenance: dict[str, _Free]


class TruthEntry(_Open, frozen=True, kw_only=True):
    """The description of a truth.

    Attributes:
        id: Of the recording.
        task: The learning task.
        provenance: How it was made.
    """

    id: str
    task: _TaskEntry
    provenance: dict[str, _Free] = {}


class Bad(Exception):
    """What is out of order in a file, in words."""


def bad(why: str) -> NoReturn:
    """Raise `Bad`.

    Args:
        why: In words, after "FILE is refused: ".
    """
    raise Bad(why)


def meta(tree: Mapping[str, Any], kind: type[T]) -> T:
    """Return the description, without what this version does not know.

    json.loads reads the text, and not msgspec: it takes half of a surrogate pair, which stands in
    the provenance of whoever recorded from a folder whose name is no UTF-8.

    Args:
        tree: Of the file.
        kind: `TraceEntry` or `TruthEntry`.

    Raises:
        Bad: It is missing or malformed.
    """
    text = tree.get("meta")
    value = None
    if isinstance(text, str):
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            value = None
    if not isinstance(value, dict):
        bad("its description 'meta' is no JSON text of a dictionary")
    try:
        return decoded(value, kind)
    except Misfit as why:
        bad(f"in its description, {ascii(str(why))[1:-1]}")


def spec(value: _TaskEntry) -> TaskSpec:
    """Return the task.

    Args:
        value: As the description holds it.

    Raises:
        Bad: Its numbers are out of range.
    """
    task = TaskSpec(**present(value))
    numbers = 0 <= task.levels < INT32 and 1 <= task.classes < INT32
    axes = len(task.shape) <= MAX_AXES and all(n >= 1 for n in task.shape)
    if not numbers or not axes or math.prod(task.shape) > MAX_SIZE:
        said = f"its task has shape {task.shape}, {task.classes} classes and {task.levels} levels"
        bad(said[:200])
    return task


def layout(value: LayoutEntry) -> Layout:
    """Return where each parameter lies.

    Args:
        value: As the description holds it.

    Raises:
        Bad: Names and shapes do not belong together, or the model is too large.
    """
    names = value.names
    shapes = value.shapes
    odd = any(len(shape) > MAX_AXES or min(shape, default=1) < 0 for shape in shapes)
    if odd or len(names) != len(shapes) or len(set(names)) != len(names):
        bad("its layout needs one shape for every parameter name, each name once")
    found = Layout(names, shapes)
    if not 0 < found.size <= MAX_SIZE:
        bad(f"its layout describes a model of {str(found.size)[:40]} parameters")
    return found


def columns(value: tuple[int, ...], size: int) -> tuple[int, int]:
    """Return which columns of the flat vector were recorded.

    Args:
        value: As the description holds it.
        size: Length of the flat vector.

    Raises:
        Bad: They do not lie in it.
    """
    if len(value) != 2 or not 0 <= value[0] < value[1] <= size:
        bad(f"its columns {str(list(value))[:60]} do not lie in a model of {size} parameters")
    return value[0], value[1]


def graph(nodes: int, edges: Tensor) -> Graph:
    """Return the topology.

    Args:
        nodes: How many.
        edges: (e, 2) Pairs of nodes.

    Raises:
        Bad: There are too many, or edges are not distinct pairs (i, j) with i < j.
    """
    if not 1 <= nodes <= MAX_NODES or edges.shape[1] != 2 or len(edges) > MAX_EDGES:
        bad(f"its topology has {str(nodes)[:40]} nodes and edges of shape {tuple(edges.shape)}")
    i, j = edges.long().T
    outside = bool(((i < 0) | (i >= j) | (j >= nodes)).any())
    if outside or len(torch.unique(i * nodes + j)) != len(edges):
        bad(
            f"its topology names an edge twice, or one that is not (i, j) with 0 <= i < j < {nodes}"
        )
    return Graph(nodes, tuple((i, j) for i, j in edges.tolist()))


def tensor(
    tree: Mapping[str, Any], name: str, dtypes: tuple[torch.dtype, ...], dim: int | None = None
) -> Tensor:
    """Return one tensor of the tree.

    Args:
        tree: Of the file.
        name: Of the tensor.
        dtypes: Types that it may have.
        dim: Axes that it must have; None for any number.

    Raises:
        Bad: It is missing or of another form.
    """
    value = tree.get(name)
    came = "no tensor"
    if isinstance(value, Tensor):
        came = f"{value.dtype} of shape {tuple(value.shape)}"
        if value.dtype in dtypes and dim in (None, value.dim()):
            return value
    kinds = " or ".join(str(d).removeprefix("torch.") for d in dtypes)
    axes = "" if dim is None else f" with {dim} axes"
    bad(f"{name!r} should be a tensor of {kinds}{axes}, it is {came}")


def tensors(tree: Mapping[str, Any], name: str) -> dict[str, Tensor]:
    """Return a dictionary of tensors, empty if it is missing.

    Args:
        tree: Of the file.
        name: Of the dictionary.

    Raises:
        Bad: It is something else.
    """
    value = tree.get(name, {})
    sound = isinstance(value, dict) and all(
        isinstance(t, Tensor) and key.isprintable() for key, t in value.items()
    )
    if not sound:
        bad(f"{name!r} should be tensors by name")
    found: dict[str, Tensor] = value
    return found


def messages(table: Mapping[str, Any], nodes: int, width: int) -> tuple[Messages, int, bool]:
    """Return the messages that were committed.

    Args:
        table: The dictionary ``messages`` of the file.
        nodes: Of the network.
        width: Columns of a payload, as the description says.

    Returns:
        The messages, the last round, and whether the recording came to its end.

    Raises:
        Bad: They are missing, malformed or out of range.
    """
    rows, count, last, closed = _counters(table)
    index = {name: tensor(table, name, (torch.int32,), 1) for name in INDEX}
    secure = tensor(table, "secure", (torch.bool,), 1)
    payload = tensor(table, "payload", FLOATS, 2)
    if payload.shape[1] != width:
        bad(f"its payload has {payload.shape[1]} columns, its description says {width}")
    held = all(0 <= count <= len(column) for column in (*index.values(), secure))
    if not 0 <= rows <= len(payload) or not held or not 0 <= last < INT32:
        bad(
            f"it announces {count} messages in {rows} rows up to round {last}, "
            "and does not hold them"
        )
    names = _kinds(tensor(table, "kinds", (torch.uint8,), 1))
    index = {name: column[:count] for name, column in index.items()}
    stops = {"round": INT32, "src": nodes, "dst": nodes, "kind": len(names), "row": rows}
    for name, stop in stops.items():
        _check_range(name, index[name], stop)
    if count:
        # torch reads any other byte as true; two readers could see different messages.
        if int(secure[:count].view(torch.uint8).max()) > 1:
            bad("its column 'secure' holds neither true nor false")
        # A program that was killed between writing the counter of messages and that of rounds.
        last = max(last, int(index["round"].max()))
    committed = Messages(**index, secure=secure[:count], payload=payload[:rows], kinds=names)
    return committed, last, closed == 1


def _counters(table: Mapping[str, Any]) -> list[int]:
    """Return rows, messages, the last round, and whether the recording was closed."""
    if "written" not in table:
        bad("it holds no messages")
    counters = tensor(table, "written", (torch.int64,), 1).tolist()
    if len(counters) not in range(4, 65):  # later versions may add some
        bad("its counters are incomplete")
    return counters[:4]


def _check_range(name: str, column: Tensor, stop: int) -> None:
    """Raise `Bad` for a value outside [0, stop)."""
    if not len(column):
        return
    low, high = (int(v) for v in column.aminmax())
    if low < 0 or high >= stop:
        wrong = low if low < 0 else high
        bad(f"a message has {name} {wrong}, expected 0 to {stop - 1}")


def _kinds(text: Tensor) -> tuple[str, ...]:
    """Return the names of kinds from the bytes that hold them, one a line, up to the first zero."""
    if len(text) > 16 * KINDS:  # later versions may keep more
        bad(f"the names of its kinds take {len(text)} bytes")
    try:
        names = bytes(text.numpy()).split(b"\0", 1)[0].decode().split("\n")[:-1]
    except UnicodeDecodeError:
        bad("the names of its kinds are no text")
    sound = all(1 <= len(n) <= MAX_NAME and n.isprintable() for n in names)
    if not sound or len(set(names)) != len(names):
        bad("the names of its kinds are not printable, or repeat")
    return tuple(names)
