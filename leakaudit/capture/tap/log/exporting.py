"""Export a copy of a program's model as a torch.export program with one input."""

# Of what a model is called with, the first tensor is the input. The copy computes what the outputs
# need and nothing else, so a loss that the model computes from labels beside them is left out.

from __future__ import annotations

import copy
import math
import random
import sys
import types
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

LABELS = "labels"  # with this argument, models of transformers return a loss as well
LOGITS = "logits"
MOST = 8  # inputs of the copy, at least 2, because 1 would be taken for a fixed number: a choice
REPLACED = "its forward was replaced on the object"
SHARDED = "its parameters are sharded, each process holds a part of them"
# Packages whose hooks gather parameters or keep gradients, and leave outputs as they are.
FRAMEWORKS = ("torch.distributed.", "opacus.")
WRAPPERS = {  # class -> the attribute with the module that it wraps
    "DistributedDataParallel": "module",
    "DifferentiallyPrivateDistributedDataParallel": "module",
    "DPDDP": "module",
    "GradSampleModule": "_module",
    "GradSampleModuleFastGradientClipping": "_module",
    "OptimizedModule": "_orig_mod",
}
ATTACHED = "__composable_api"  # attributes of a module for what FSDP2 attaches to it
HOOKS = ("_forward_hooks", "_forward_pre_hooks")


class NotExported(Exception):
    """Says why a model cannot be exported."""


@dataclass(frozen=True)
class ModuleInputs:
    """What a module was called with: shapes and formats, but no values of tensors."""

    # argument -> shape, format, and whether it has only ones
    tensors: dict[str, tuple[tuple[int, ...], Any, bool]]
    plain: dict[str, Any]  # arguments that are numbers or text
    other: list[str]  # those that are neither
    required: list[str]  # those that have no default
    input: Callable[[], Any]  # returns the first tensor as long as the program holds it


@dataclass(frozen=True)
class _Inputs:
    """How the copy is called."""

    name: str  # the argument that is the input
    plain: Mapping[str, Any]
    # arguments without influence on the outputs -> sizes, None for that of the input in this place,
    # and format of what is passed for them
    filled: dict[str, tuple[list[int | None], Any]] = field(default_factory=dict)


def unwrapped(module: Any) -> Any:
    """Return the module behind the wrappers of frameworks."""
    inner = module._modules.get(WRAPPERS.get(type(module).__name__, ""))
    return module if inner is None else unwrapped(inner)


def is_distributed(tensor: Any) -> bool:
    """Return whether a tensor is a DTensor, of which this process holds a part."""
    return hasattr(tensor, "placements")


def is_replaced(module: Any) -> bool:
    """Return whether a module has another forward than its class, as that of Lightning has."""
    own = module.__dict__.get("forward")
    return own is not None and getattr(own, "__func__", None) is not type(module).forward


def exported(module: Any, call: ModuleInputs, path: Path) -> dict[str, Any]:
    """Export a copy of a model, write the program, and return facts about its inputs."""
    import torch

    name, others = _names(call)
    shape, dtype, _ = call.tensors[name]
    if is_replaced(module):
        raise NotExported(REPLACED)
    x = torch.zeros((min(max(shape[0], 2), MOST), *shape[1:]), dtype=dtype)
    with _undisturbed():
        twin = _twin(module)
        twin.__dict__.pop("forward", None)
        kind = type(twin)
        given = _Inputs(name, call.plain)
        depends = _fill(twin, given, call, others, x) if others else []
        missing = [other for other in depends if other in call.required]
        if missing:
            raise NotExported(f"its outputs depend on several inputs: {name}, {', '.join(missing)}")
        twin.__class__ = _with_one_input(kind, given)
        program, dynamic = _traced(torch.export.export, twin, x)
        program.graph.eliminate_dead_code()
        for node in program.graph.nodes:
            node.meta.pop("stack_trace", None)  # it has paths and lines of the program
        torch.export.save(program, path)
        out = program.graph_signature.user_outputs
        value = next(n for n in program.graph.nodes if n.name == out[0]).meta["val"]
    tokens = not dtype.is_floating_point
    each = tokens and value.dim() == 3  # an output for every token
    return {
        "shape": list(shape[1:]),
        "outputs": int(value.shape[-1]) if each or value.dim() == 2 else 0,
        "tokens": tokens,
        "each": each,
        "labels": LABELS in call.tensors,
        "batch": None if dynamic else len(x),
        "left_out": [other for other in depends if call.tensors[other][2]],
        "varied": [other for other in depends if not call.tensors[other][2]],
    }


def _names(call: ModuleInputs) -> tuple[str, list[str]]:
    """Return the argument that is the input, and the other tensors apart from labels."""
    names = [name for name in call.tensors if name != LABELS or name in call.required]
    if not names or call.other:
        raise NotExported(f"its forward takes other inputs than tensors: {', '.join(call.other)}")
    if not math.prod(call.tensors[names[0]][0]):
        raise NotExported("its input is empty")
    return names[0], names[1:]


def _fill(
    twin: Any, given: _Inputs, call: ModuleInputs, others: Sequence[str], x: Any
) -> list[str]:
    """Fill in the tensors that have no influence on the outputs, and return the others."""
    import torch

    first = call.tensors[given.name][0][0]
    forms: dict[str, tuple[tuple[int, ...], Any]] = {}
    for other in others:
        shape, dtype, _ = call.tensors[other]
        whole = shape and shape[0] == first
        forms[other] = ((len(x), *shape[1:]) if whole else shape), dtype
    kind = type(twin)
    twin.__class__ = _with_inputs(kind, given, list(forms))
    values = [torch.zeros(shape, dtype=dtype) for shape, dtype in forms.values()]
    try:
        graph = torch.export.export(twin, (x, *values), strict=False).graph
        graph.eliminate_dead_code()
    except Exception:  # a forward of any kind; the export with one input says why
        return list(others)
    finally:
        twin.__class__ = kind
    user = [node for node in graph.nodes if node.op == "placeholder"][-len(forms) :]
    depends: list[str] = []
    for other, node in zip(forms, user, strict=True):
        if node.users:
            depends.append(other)
        else:
            shape, dtype = forms[other]
            own = (*x.shape, *shape)  # at least as long as `shape`
            sizes = [None if n == m else n for n, m in zip(shape, own, strict=False)]
            given.filled[other] = sizes, dtype
    return depends


def _traced(export: Callable[..., Any], twin: Any, x: Any) -> tuple[Any, bool]:
    """Export a module for any number of inputs, and for sequences of any length."""
    # If that fails, it is exported for the number and the length of these.
    import torch

    free = {0: torch.export.Dim.AUTO}
    if x.dim() == 2 and not x.is_floating_point():
        free[1] = torch.export.Dim.AUTO
    try:
        return export(twin, (x,), dynamic_shapes=(free,), strict=False), True
    except Exception:  # the reason is that of the second attempt
        return export(twin, (x,), strict=False), False


def _with_one_input(kind: Any, given: _Inputs) -> Any:
    def forward(self: Any, x: Any) -> Any:
        filled: dict[str, Any] = {}
        for name, (shape, dtype) in given.filled.items():
            sizes = [x.shape[k] if n is None else n for k, n in enumerate(shape)]
            filled[name] = x.new_zeros(sizes, dtype=dtype)
        return _outputs(kind.forward(self, **{given.name: x}, **filled, **given.plain), x)

    return types.new_class(kind.__name__, (kind,), {}, lambda body: body.update(forward=forward))


def _with_inputs(kind: Any, given: _Inputs, others: Sequence[str]) -> Any:
    def forward(self: Any, x: Any, *values: Any) -> Any:
        named = dict(zip(others, values, strict=True))
        return _outputs(kind.forward(self, **{given.name: x}, **named, **given.plain), x)

    return types.new_class(kind.__name__, (kind,), {}, lambda body: body.update(forward=forward))


def _outputs(out: Any, x: Any) -> Any:
    """Return the outputs for inputs x among what a forward returns, such as beside a loss."""
    if isinstance(out, Mapping) and LOGITS in out:
        return out[LOGITS]
    if hasattr(out, LOGITS):
        return getattr(out, LOGITS)
    if not isinstance(out, list | tuple):
        return out
    several = [one for one in out if hasattr(one, "dim") and one.dim() > 1]
    held = [one for one in several if one.shape[0] == x.shape[0]]
    if len(held) != 1:
        raise NotExported(f"its forward returns {len(held)} tensors with a row for each input")
    return held[0]


def _twin(module: Any) -> Any:
    """Copy a module to the CPU, without hooks of frameworks and with whole parameters."""
    hooks = [hook for one in module.modules() for hook in _forward_hooks(one)]
    if not all(map(_is_framework, hooks)):
        raise NotExported("its modules have forward hooks, which an export would run")
    sharded = [p for p in module.parameters() if is_distributed(p)]
    if any(not p.requires_grad for p in sharded):
        raise NotExported(f"{SHARDED}, and some are frozen")
    if not sharded and not hooks:
        return copy.deepcopy(module).cpu()
    return _rebuilt(module, sharded).cpu()


def _forward_hooks(module: Any) -> Iterator[Any]:
    for name in HOOKS:
        yield from module.__dict__[name].values()


def _is_framework(hook: Any) -> bool:
    function = getattr(hook, "__func__", hook)
    return str(getattr(function, "__module__", "")).startswith(FRAMEWORKS)


def _rebuilt(module: Any, sharded: Sequence[Any]) -> Any:
    """Copy a module without hooks, with zeros for the parameters of which a process has a part."""
    import torch

    memo: dict[int, Any] = {}
    for p in sharded:
        memo[id(p)] = torch.nn.Parameter(torch.zeros(p.shape, dtype=p.dtype))
    parts = list(module.modules())
    for one in parts:
        kind = own_class(type(one))
        memo[id(one)] = kind.__new__(kind)
        for name, value in one.__dict__.items():
            if name.endswith("_hooks") or name.startswith(ATTACHED):
                memo[id(value)] = OrderedDict()
    for one in parts:
        memo[id(one)].__dict__ = {k: copy.deepcopy(v, memo) for k, v in one.__dict__.items()}
    return memo[id(module)]


def own_class(kind: Any) -> Any:
    """Return the class that the program wrote, of one that FSDP2 derived from it."""
    wrapped = kind.__module__.startswith("torch.distributed.fsdp.")
    return kind.__mro__[2] if wrapped and len(kind.__bases__) == 2 else kind


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Restore random states afterwards, and keep warnings and automatic casts out."""
    import torch

    devices: Sequence[int] = ()
    if torch.cuda.is_initialized():
        devices = range(torch.cuda.device_count())
    own = random.getstate()
    numpy = sys.modules.get("numpy")
    drawn = None if numpy is None else numpy.random.get_state()
    try:
        with (
            torch.random.fork_rng(devices),
            warnings.catch_warnings(),
            torch.autocast("cpu", enabled=False),
            torch.enable_grad(),
        ):
            warnings.simplefilter("ignore")
            yield
    finally:
        random.setstate(own)
        if numpy is not None:
            numpy.random.set_state(drawn)
