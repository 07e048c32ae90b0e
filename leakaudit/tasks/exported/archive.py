"""Reading of a torch.export program (.pt2): its graph as data, and its tensors."""

from __future__ import annotations

import math
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import ZIP_STORED, BadZipFile, ZipFile

import msgspec
import torch
from msgspec import Struct
from torch import Tensor

from leakaudit._util.decoding import from_json
from leakaudit.core.errors import LeakauditError

# `torch.export.load` must not read a file from a stranger. In torch 2.13 it unpickles tensors that
# the file declares as pickled, custom objects, and sample inputs that a restricted unpickler
# rejects; it evaluates symbolic shapes and guards as Python expressions; and it loads compiled
# libraries (docs/models.md). Here JSON is decoded and raw numbers become tensors. Everything else
# is ignored, and a program that needs it is rejected.

GRAPH = "models/model.json"
TENSORS = {  # configuration of the tensors -> folder of their numbers
    "data/weights/model_weights_config.json": "data/weights/",
    "data/constants/model_constants_config.json": "data/constants/",
}
MAJOR = 8  # version of the format that torch 2.6 to 2.13 write
# A file may come from a stranger and request more memory than available. Choices: far above a graph
# (that of ResNet-18 has 150 kB), and four bytes for each parameter of the largest model.
LARGEST_GRAPH = 64 << 20  # bytes
LARGEST_FILE = 1 << 31  # bytes
LARGEST_INPUT = 1 << 26  # numbers of a whole batch, such as 400 images of ImageNet
DTYPES = {  # torch.export's number of a number format
    1: torch.uint8,
    2: torch.int8,
    3: torch.int16,
    4: torch.int32,
    5: torch.int64,
    6: torch.float16,
    7: torch.float32,
    8: torch.float64,
    12: torch.bool,
    13: torch.bfloat16,
}


class _Size(Struct):
    """A length, stride or offset; symbolic ones are not evaluated."""

    as_int: int | None = None


class _TensorMeta(Struct):
    dtype: int
    sizes: list[_Size]
    strides: list[_Size]
    storage_offset: _Size
    requires_grad: bool


class _Payload(Struct):
    path_name: str
    is_param: bool
    use_pickle: bool
    tensor_meta: _TensorMeta | None


class _Payloads(Struct):
    config: dict[str, _Payload]


class _Input(Struct):
    name: str  # name of the operator's parameter
    arg: dict[str, Any]  # the value, by its kind, for example `{"as_int": 1}`
    kind: int | None = None  # 1 if it is passed by position, else by name


class Node(Struct):
    """One operation of the graph."""

    target: str  # name of the operator, such as `torch.ops.aten.linear.default`
    inputs: list[_Input]
    outputs: list[dict[str, Any]]  # names of its results, by their kinds


class _Form(Struct):
    dtype: int
    sizes: list[_Size]


class _Graph(Struct):
    nodes: list[Node]
    tensor_values: dict[str, _Form]


class _Signature(Struct):
    input_specs: list[dict[str, dict[str, Any]]]
    output_specs: list[dict[str, dict[str, Any]]]


class _GraphModule(Struct):
    graph: _Graph
    signature: _Signature


class _Version(Struct):
    major: int


class _Program(Struct):
    graph_module: _GraphModule
    schema_version: _Version


@dataclass(frozen=True, eq=False)
class ArchiveContent:
    """The content of a file."""

    nodes: list[Node]  # the operations in order
    parameters: dict[str, str]  # name in the graph -> name of the parameter, in the model's order
    buffers: dict[str, str]  # name in the graph -> name of the buffer or of another constant tensor
    # name in the graph -> a plain value that was an argument of the model
    constants: dict[str, bool | int | float | str | None]
    input: str  # name of the input in the graph
    output: str  # name of the output in the graph
    # shape of the input, with the batch; None for a length that may vary
    shape: tuple[int | None, ...]
    dtype: torch.dtype  # number format of the input
    tensors: dict[str, Tensor]  # values of parameters and buffers by name
    trained: frozenset[str]  # names of the parameters that were trained
    # name of a parameter -> the first one that is the same tensor, and stored once
    tied: dict[str, str]


def read(path: Path) -> ArchiveContent:
    """Read a program.

    Raises:
        LeakauditError: `torch.export.save` did not write it, it contains pickled or compiled parts,
            or it does not have one tensor as input and one as output.
    """
    try:
        status = os.stat(path)
        if not stat.S_ISREG(status.st_mode) or status.st_size > LARGEST_FILE:
            raise LeakauditError(f"{path}: expected a file of at most {LARGEST_FILE} bytes")
        with ZipFile(path) as file:
            return _stored(_records(file))
    except OSError as error:
        raise LeakauditError(f"cannot read model {path}: {error.strerror}") from None
    except BadZipFile as error:
        raise LeakauditError(
            f"model {path}: expected a program that torch.export.save wrote ({error})"
        ) from None
    except msgspec.ValidationError as error:
        raise LeakauditError(
            f"model {path}: not in the format of torch.export 2.13 ({error}); "
            "export the model again with that version"
        ) from None
    except (_Rejected, msgspec.DecodeError, RuntimeError, ValueError, OverflowError) as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise LeakauditError(f"model {path} is rejected: {reason}") from None


class _Rejected(Exception):
    """Why a program is not read."""


def _records(file: ZipFile) -> Mapping[str, bytes]:
    """Return the records that are used, by name without the archive's own prefix."""
    found: dict[str, bytes] = {}
    for info in file.infolist():
        name = info.filename.partition("/")[2]
        if name.startswith("data/aotinductor/"):
            raise _Rejected("it contains a compiled library, which is not loaded")
        used = name == GRAPH or name.startswith(tuple(TENSORS.values()))
        if not used:
            continue
        if info.compress_type != ZIP_STORED or name in found:
            raise _Rejected(f"record {name!r:.60} is compressed or repeated")
        if name.endswith(".json") and info.file_size > LARGEST_GRAPH:
            raise _Rejected(f"record {name!r:.60} has {info.file_size} bytes")
        found[name] = file.read(info)
    missing = [name for name in (GRAPH, *TENSORS) if name not in found]
    if missing:
        raise _Rejected(f"it has no record {missing[0]}; save it with torch.export.save")
    return found


def _stored(records: Mapping[str, bytes]) -> ArchiveContent:
    program = from_json(records[GRAPH], _Program)
    if program.schema_version.major != MAJOR:
        raise _Rejected(
            f"its format has version {program.schema_version.major}, expected {MAJOR}; "
            "export it with torch 2.13"
        )
    tensors: dict[str, Tensor] = {}
    trained: set[str] = set()
    tied: dict[str, str] = {}
    first: dict[bytes, str] = {}
    for config, folder in TENSORS.items():
        for name, payload in from_json(records[config], _Payloads).config.items():
            tensors[name] = _tensor(name, payload, records, folder)
            if not (payload.is_param and payload.tensor_meta and payload.tensor_meta.requires_grad):
                continue
            trained.add(name)
            earlier = first.setdefault(msgspec.json.encode(payload), name)
            if earlier != name:
                tied[name] = earlier
    graph = program.graph_module
    try:
        bound, results = _ends(graph)
    except (AttributeError, KeyError, StopIteration, TypeError, ValueError) as error:
        raise _Rejected("the inputs and outputs of its graph are not described as such") from error
    if len(bound.given) != 1 or len(results) != 1:
        raise _Rejected(
            f"expected one input and one output, got {len(bound.given)} and {len(results)}; "
            "export a module whose forward takes the inputs and returns the logits"
        )
    missing = {*bound.parameters.values(), *bound.buffers.values()} - tensors.keys()
    if missing:
        raise _Rejected(f"the tensor {min(missing)!r:.60} is missing")
    form = graph.graph.tensor_values.get(bound.given[0])
    if form is None or form.dtype not in DTYPES:
        raise _Rejected("it does not state the shape and the number format of its input")
    shape = tuple(size.as_int for size in form.sizes)
    if math.prod(size for size in shape if size is not None) > LARGEST_INPUT:
        raise _Rejected(f"expected a batch of at most {LARGEST_INPUT} numbers, got shape {shape}")
    return ArchiveContent(
        nodes=graph.graph.nodes,
        parameters=bound.parameters,
        buffers=bound.buffers,
        constants=bound.constants,
        input=bound.given[0],
        output=results[0],
        shape=shape,
        dtype=DTYPES[form.dtype],
        tensors=tensors,
        trained=frozenset(trained),
        tied=tied,
    )


def _ends(graph: _GraphModule) -> tuple[_Bound, list[str]]:
    """Return what the inputs of a graph stand for, and the tensors that it returns.

    What a file says of them is a tree without a fixed form, and any error means another form.
    """
    bound = _Bound({}, {}, {}, [])
    for spec in graph.signature.input_specs:
        bound.add(spec)
    results = []
    for spec in graph.signature.output_specs:
        if "user_output" in spec:
            results.append(_name(spec["user_output"]["arg"].get("as_tensor")))
    return bound, results


@dataclass(frozen=True, eq=False)
class _Bound:
    """What the inputs of a graph stand for; the attributes are those of `ArchiveContent`."""

    parameters: dict[str, str]
    buffers: dict[str, str]  # buffers and constant tensors
    constants: dict[str, bool | int | float | str | None]  # plain values
    given: list[str]  # the tensors that a caller passes

    def add(self, spec: dict[str, dict[str, Any]]) -> None:
        ((kind, held),) = spec.items()
        argument = held.get("arg", {})
        if kind in ("parameter", "buffer", "tensor_constant"):
            tensors = self.parameters if kind == "parameter" else self.buffers
            tensors[_name(argument)] = str(held[f"{kind}_name"])
        elif kind == "constant_input":
            self.constants[str(held["name"])] = next(iter(held["value"].values()))
        elif kind == "user_input" and "as_tensor" in argument:
            self.given.append(_name(argument["as_tensor"]))
        elif kind != "user_input" or "as_none" not in argument:
            raise _Rejected(f"it has an input of kind {kind!r:.40}, which is not loaded")


def _name(argument: Any) -> str:
    if not isinstance(argument, dict) or not isinstance(argument.get("name"), str):
        raise _Rejected("an input or output of its graph is not a tensor")
    name: str = argument["name"]
    return name


def _tensor(name: str, payload: _Payload, records: Mapping[str, bytes], folder: str) -> Tensor:
    meta = payload.tensor_meta
    if payload.use_pickle or meta is None:
        raise _Rejected(
            f"{name!r:.60} is pickled, which could execute code; export plain tensors only"
        )
    if meta.dtype not in DTYPES:
        raise _Rejected(f"{name!r:.60} has an unsupported number format")
    dtype = DTYPES[meta.dtype]
    shape = _whole(meta.sizes)
    strides = _whole(meta.strides)
    if not math.prod(shape):
        return torch.empty(shape, dtype=dtype)
    numbers = records.get(folder + payload.path_name)
    if numbers is None or len(numbers) % dtype.itemsize:
        raise _Rejected(f"the numbers of {name!r:.60} are missing or incomplete")
    # A stride of 0 would let a few bytes pass for a tensor of any size.
    held = len(numbers) // dtype.itemsize
    if math.prod(shape) > held or len(strides) != len(shape) or max(strides, default=0) > held:
        raise _Rejected(f"{name!r:.60} has {shape} entries, more than are stored")
    flat = torch.frombuffer(bytearray(numbers), dtype=dtype)
    offset = _whole([meta.storage_offset])[0]
    return flat.as_strided(shape, strides, offset).clone()


def _whole(sizes: list[_Size]) -> list[int]:
    found = []
    for size in sizes:
        if size.as_int is None or size.as_int < 0:
            raise _Rejected("a stored tensor has no fixed shape")
        found.append(size.as_int)
    return found
