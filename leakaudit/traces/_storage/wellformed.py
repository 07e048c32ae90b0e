"""Requirements on every part of a trace or truth file, so that later code need not check again."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
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
KINDS = 4096  # number of bytes for the names of kinds
INT32 = 1 << 31  # limit of the values of an index column, exclusive

# Limits on what a file may declare, far above any real run: choices that prevent a malicious file
# from taking excessive time or memory. Sizes are numbers of entries, not bytes.
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
_Number: TypeAlias = int | float  # as written
_Free: TypeAlias = object  # any JSON value


class _Open(Struct, frozen=True, kw_only=True):
    """A description; entries that a later version of the format added are ignored."""


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
    """The position of each parameter in the flat vector.

    Attributes:
        names: Names of the parameters.
        shapes: Shapes of the parameters.
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
        layout: Position of each parameter in the flat vector.
        columns: First recorded column of the flat vector, and the first one after them.
        id: Identifier of the recording.
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
        id: Identifier of the recording.
        task: The learning task.
        provenance: How it was made.
    """

    id: str
    task: _TaskEntry
    provenance: dict[str, _Free] = {}


class Bad(Exception):
    """Describes what is wrong with a file."""


def bad(why: str) -> NoReturn:
    """Raise `Bad`.

    Args:
        why: Reason, to follow "FILE is rejected: ".
    """
    raise Bad(why)


def meta(tree: Mapping[str, Any], kind: type[T]) -> T:
    """Return the description, without entries that this version does not know.

    json.loads reads the text, not msgspec, because it accepts half of a surrogate pair, which
    occurs in the provenance of recordings made in a folder with a name that is not valid UTF-8.

    Args:
        tree: Tree of the file.
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
        bad("its description 'meta' is not JSON text of a dictionary")
    try:
        return decoded(value, kind)
    except Misfit as why:
        bad(f"in its description, {ascii(str(why))[1:-1]}")


def spec(value: _TaskEntry) -> TaskSpec:
    """Return the task.

    Args:
        value: The entry of the description.

    Raises:
        Bad: Its numbers are out of range.
    """
    task = TaskSpec(**present(value))
    if task.is_program and Path(task.model).name != task.model:
        bad("its model is a program in another folder; expected the name of a file")
    numbers = 0 <= task.levels < INT32 and 1 <= task.classes < INT32
    axes = len(task.shape) <= MAX_AXES and all(n >= 1 for n in task.shape)
    if not numbers or not axes or math.prod(task.shape) > MAX_SIZE:
        said = f"its task has shape {task.shape}, {task.classes} classes and {task.levels} levels"
        bad(said[:200])
    return task


def layout(value: LayoutEntry) -> Layout:
    """Return the position of each parameter.

    Args:
        value: The entry of the description.

    Raises:
        Bad: Names and shapes do not match, or the model is too large.
    """
    names = value.names
    shapes = value.shapes
    odd = any(len(shape) > MAX_AXES or min(shape, default=1) < 1 for shape in shapes)
    if odd or len(names) != len(shapes) or len(set(names)) != len(names):
        bad("its layout must have one shape for every parameter name, each name once")
    found = Layout(names, shapes)
    if not 0 < found.size <= MAX_SIZE:
        bad(f"its layout describes a model of {str(found.size)[:40]} parameters")
    return found


def columns(value: tuple[int, ...], size: int) -> tuple[int, int]:
    """Return the recorded columns of the flat vector.

    Args:
        value: The entry of the description.
        size: Length of the flat vector.

    Raises:
        Bad: The columns are outside the vector.
    """
    if len(value) != 2 or not 0 <= value[0] < value[1] <= size:
        bad(f"its columns {str(list(value))[:60]} are outside a model of {size} parameters")
    return value[0], value[1]


def graph(nodes: int, edges: Tensor) -> Graph:
    """Return the topology.

    Args:
        nodes: Number of nodes.
        edges: (e, 2) pairs of nodes.

    Raises:
        Bad: There are too many, or edges are not distinct pairs (i, j) with i < j.
    """
    if not 1 <= nodes <= MAX_NODES or edges.shape[1] != 2 or len(edges) > MAX_EDGES:
        bad(f"its topology has {str(nodes)[:40]} nodes and edges of shape {tuple(edges.shape)}")
    i, j = edges.long().T
    outside = bool(((i < 0) | (i >= j) | (j >= nodes)).any())
    if outside or len(torch.unique(i * nodes + j)) != len(edges):
        bad(
            f"its topology repeats an edge, or has one that is not (i, j) with 0 <= i < j < {nodes}"
        )
    return Graph(nodes, tuple((i, j) for i, j in edges.tolist()))


def tensor(
    tree: Mapping[str, Any], name: str, dtypes: tuple[torch.dtype, ...], dim: int | None = None
) -> Tensor:
    """Return one tensor of the tree.

    Args:
        tree: Tree of the file.
        name: Name of the tensor.
        dtypes: Allowed types.
        dim: Required number of axes; None for any number.

    Raises:
        Bad: It is missing or of another form.
    """
    value = tree.get(name)
    came = "not a tensor"
    if isinstance(value, Tensor):
        came = f"{value.dtype} of shape {tuple(value.shape)}"
        if value.dtype in dtypes and dim in (None, value.dim()):
            return value
    kinds = " or ".join(str(d).removeprefix("torch.") for d in dtypes)
    axes = "" if dim is None else f" with {dim} axes"
    bad(f"{name!r} should be a tensor of {kinds}{axes}, but is {came}")


def tensors(tree: Mapping[str, Any], name: str) -> dict[str, Tensor]:
    """Return a dictionary of tensors; empty if it is missing.

    Args:
        tree: Tree of the file.
        name: Name of the dictionary.

    Raises:
        Bad: It is something else.
    """
    value = tree.get(name, {})
    sound = isinstance(value, dict) and all(
        isinstance(t, Tensor) and key.isprintable() for key, t in value.items()
    )
    if not sound:
        bad(f"{name!r} should be a dictionary of tensors by name")
    found: dict[str, Tensor] = value
    return found


def messages(table: Mapping[str, Any], nodes: int, width: int) -> tuple[Messages, int, bool]:
    """Return the messages that were committed.

    Args:
        table: The dictionary ``messages`` of the file.
        nodes: Number of nodes of the network.
        width: Number of columns of a payload, according to the description.

    Returns:
        The messages, the last round, and whether the recording is complete.

    Raises:
        Bad: They are missing, malformed or out of range.
    """
    rows, count, last, closed = _counters(table)
    index = {name: tensor(table, name, (torch.int32,), 1) for name in INDEX}
    secure = tensor(table, "secure", (torch.bool,), 1)
    payload = tensor(table, "payload", FLOATS, 2)
    if payload.shape[1] != width:
        bad(f"its payload has {payload.shape[1]} columns, but its description states {width}")
    held = all(0 <= count <= len(column) for column in (*index.values(), secure))
    if not 0 <= rows <= len(payload) or not held or not 0 <= last < INT32:
        bad(
            f"it declares {count} messages in {rows} rows up to round {last}, "
            "but does not contain them"
        )
    names = _kinds(tensor(table, "kinds", (torch.uint8,), 1))
    index = {name: column[:count] for name, column in index.items()}
    stops = {"round": INT32, "src": nodes, "dst": nodes, "kind": len(names), "row": rows}
    for name, stop in stops.items():
        _check_range(name, index[name], stop)
    if count:
        # torch treats any other byte as true; two readers could see different messages.
        if int(secure[:count].view(torch.uint8).max()) > 1:
            bad("its column 'secure' contains a value that is neither true nor false")
        # The program may have been killed between writing the counters of messages and of rounds.
        last = max(last, int(index["round"].max()))
    committed = Messages(**index, secure=secure[:count], payload=payload[:rows], kinds=names)
    return committed, last, closed == 1


def _counters(table: Mapping[str, Any]) -> list[int]:
    """Return rows, messages, the last round, and whether the recording was closed."""
    if "written" not in table:
        bad("it contains no messages")
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
    """Return the names of kinds from their bytes, each on a line, up to the first zero."""
    if len(text) > 16 * KINDS:  # later versions may keep more
        bad(f"the names of its kinds take {len(text)} bytes (maximum {16 * KINDS})")
    try:
        names = bytes(text.numpy()).split(b"\0", 1)[0].decode().split("\n")[:-1]
    except UnicodeDecodeError:
        bad("the names of its kinds are not UTF-8 text")
    sound = all(1 <= len(n) <= MAX_NAME and n.isprintable() for n in names)
    if not sound or len(set(names)) != len(names):
        bad("the names of its kinds are not printable, or are repeated")
    return tuple(names)
