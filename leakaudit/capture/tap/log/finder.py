"""Save the model of a tapped program: its name, its state, and a torch.export program."""

# Calls of modules are watched until the model is found: the one that `DistributedDataParallel`
# wraps, or the outermost module whose parameters are as many as the numbers of a message. It is
# exported from a copy, at inputs of zeros with the shape and the number format of those that the
# program used, so that neither the program's results nor its data are touched.

from __future__ import annotations

import copy
import inspect
import json
import math
import os
import random
import sys
import threading
import types
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import wraps
from pathlib import Path
from types import ModuleType
from typing import Any
from weakref import WeakKeyDictionary

from leakaudit._util.files import private_folder

FACTS = "model.json"
PROGRAM = "model.pt2"
STATE = "model.pt"
FILES = (FACTS, PROGRAM, STATE)
LABELS = "labels"  # with this argument, models of transformers return a loss as well
LOGITS = "logits"
MOST = 8  # inputs of the copy, at least 2, because 1 would be taken for a fixed number: a choice
# Function of torch.nn.functional -> the loss of ours that it is with these arguments.
LOSSES = {
    "cross_entropy": "cross_entropy",
    "binary_cross_entropy_with_logits": "binary",
    "mse_loss": "",
    "nll_loss": "",
    "l1_loss": "",
    "smooth_l1_loss": "",
    "kl_div": "",
}
USUAL = {"reduction": "mean", "weight": None, "pos_weight": None, "label_smoothing": 0.0}
SHARDED = "its parameters are sharded, each process holds a part of them"
UNUSUAL = "with other arguments than the usual ones"


class _NotExported(Exception):
    """Says why a model cannot be exported."""


class _ModuleCall:
    """How a module was called: shapes and formats, but no values of tensors."""

    def __init__(self, module: Any, args: tuple[Any, ...], named: dict[str, Any]) -> None:
        bound = inspect.signature(module.forward).bind(*args, **named)
        self.kinds = {name: p.kind for name, p in bound.signature.parameters.items()}
        self.required = [
            name for name, p in bound.signature.parameters.items() if p.default is p.empty
        ]
        self.tensors: dict[str, tuple[tuple[int, ...], Any, bool]] = {}
        self.plain: dict[str, Any] = {}
        self.other: list[str] = []
        for name, value in _flat(bound.arguments, self.kinds):
            if hasattr(value, "requires_grad"):
                uniform = name != LABELS and _only_ones(value)
                self.tensors[name] = (tuple(value.shape), value.dtype, uniform)
            elif value is None or isinstance(value, bool | int | float | str):
                self.plain[name] = value
            else:
                self.other.append(name)


class Finder:
    """Watches the modules of this process until the model is found."""

    def __init__(self, folder: str) -> None:
        self.folder = Path(folder)
        self.done = False
        self.calls: WeakKeyDictionary[Any, _ModuleCall] = WeakKeyDictionary()
        self.losses: set[str] = set()
        self._facts: dict[str, Any] | None = None  # what this process has written
        self._restore: Callable[[], None] = lambda: None
        self._here = threading.local()

    @property
    def installers(self) -> Mapping[str, Callable[[ModuleType], None]]:
        """Module of torch -> the function that watches it."""
        return {"torch.nn.modules.module": self.watch, "torch.nn.functional": self.watch_losses}

    def watch(self, module: ModuleType) -> None:
        """Watch the outermost calls of modules."""
        import torch

        kind = module.Module
        real = kind.__call__

        @wraps(real)
        def calling(own: Any, *args: Any, **named: Any) -> Any:
            outermost = not getattr(self._here, "inside", False)
            if self.done or not outermost:
                return real(own, *args, **named)
            if own not in self.calls and torch.is_grad_enabled():
                self._note(own, args, named)
            self._here.inside = True
            try:
                return real(own, *args, **named)
            finally:
                self._here.inside = False

        kind.__call__ = calling
        self._restore = lambda: setattr(kind, "__call__", real)

    def watch_losses(self, module: ModuleType) -> None:
        """Record which losses the program computes with gradients."""
        for name, meaning in LOSSES.items():
            setattr(module, name, self._watched_loss(getattr(module, name), name, meaning))

    def _watched_loss(self, real: Callable[..., Any], name: str, meaning: str) -> Any:
        form = inspect.signature(real)

        @wraps(real)
        def loss(*args: Any, **named: Any) -> Any:
            out = real(*args, **named)
            # Programs validate with another loss than that of training, without gradients.
            if getattr(out, "requires_grad", False):
                self._note_loss(form.bind(*args, **named).arguments, name, meaning)
            return out

        return loss

    def _note_loss(self, given: Mapping[str, Any], name: str, meaning: str) -> None:
        known = meaning or name
        if not usual(given):
            known = f"{name} {UNUSUAL}"
        if known in self.losses:
            return
        self.losses.add(known)
        if self._facts is not None:
            self._write()

    def _write(self) -> None:
        facts = {**(self._facts or {}), "losses": sorted(self.losses)}
        with suppress(OSError):  # a full disk; the recording itself reports it
            (self.folder / FACTS).write_text(json.dumps(facts))

    def _note(self, module: Any, args: tuple[Any, ...], named: dict[str, Any]) -> None:
        try:
            inner = unwrapped(module)
            if any(p.requires_grad for p in inner.parameters()):
                self.calls[module] = _ModuleCall(inner, args, named)
        except Exception:  # a module of any kind; it is then not found
            return

    def travels(self, value: Any) -> None:
        """Look for the model to which a message belongs, and save it."""
        if self.done or value is None:
            return
        count = int(value.numel() if hasattr(value, "numel") else value.size)
        for module, call in list(self.calls.items()):
            if count in sizes(unwrapped(module)):
                self.save(unwrapped(module), call)
                return

    def save_called(self, module: Any, args: tuple[Any, ...], named: dict[str, Any]) -> None:
        """Save a model that is about to be called, and of which is known that it travels."""
        import torch

        if self.done or not torch.is_grad_enabled():
            return
        inner = unwrapped(module)
        try:
            call = _ModuleCall(inner, args, named)
        except Exception as error:  # a forward of any kind
            self.save(inner, None, f"its arguments are not understood: {error}")
            return
        self.save(inner, call)

    def save(self, module: Any, call: _ModuleCall | None, why: str = "") -> None:
        """Save a model, unless another process has done so; call: how it was called, if known."""
        self.done = True
        self.calls.clear()
        self._restore()
        try:
            private_folder(self.folder)
            os.close(os.open(self.folder / FACTS, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        except OSError:  # another process has saved it
            return
        facts: dict[str, Any] = {}
        try:
            facts = about(module)
            if any(map(is_distributed, module.parameters())):
                why = why or SHARDED
            if why:
                raise _NotExported(why)
            import torch

            state = {name: t.detach().cpu() for name, t in module.state_dict().items()}
            torch.save(state, self.folder / STATE)
            if call is not None:
                facts |= exported(module, call, self.folder / PROGRAM)
        except _NotExported as reason:
            why = str(reason)
        except Exception as error:
            why = f"{type(error).__name__}: {str(error).strip() or 'no message'}"
        if why:
            facts["why"] = why.splitlines()[0][:300]
        self._facts = facts
        self._write()


def is_distributed(tensor: Any) -> bool:
    """Return whether a tensor is a DTensor, of which this process holds a part."""
    return hasattr(tensor, "placements")


def _only_ones(value: Any) -> bool:
    return not is_distributed(value) and bool((value == 1).all())


def usual(given: Mapping[str, Any]) -> bool:
    """Return whether the arguments of a loss are those that a loss of ours has."""
    return all(_is_usual(given.get(key), value) for key, value in USUAL.items())


def _is_usual(given: Any, value: Any) -> bool:
    return given is None or (not hasattr(given, "shape") and given == value)


def unwrapped(module: Any) -> Any:
    """Return the module behind the wrappers of DistributedDataParallel and torch.compile."""
    inner = module._modules.get("_orig_mod", module)
    if type(inner).__name__ == "DistributedDataParallel":
        return unwrapped(inner.module)
    return inner


def sizes(module: Any) -> set[int]:
    """Return the lengths of the vectors in which a model may travel."""
    parameters = list(module.parameters())
    whole = sum(p.numel() for p in parameters)
    trained = sum(p.numel() for p in parameters if p.requires_grad)
    buffers = sum(b.numel() for b in module.buffers() if b.is_floating_point())
    return {whole, trained, whole + buffers, parameters[0].numel()}


def about(module: Any) -> dict[str, Any]:
    """Return the name of a model's class, and the arguments of its constructor that are known."""
    kind = type(module)
    where = kind.__module__
    file = getattr(sys.modules.get("__main__"), "__file__", None)
    if where == "__main__" and file:
        where = Path(str(file)).stem
    args: dict[str, Any] = {}
    unknown: list[str] = []
    for name, parameter in _constructor(kind).items():
        if name == "self" or parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
            continue
        value = getattr(module, name, ...)
        if isinstance(value, bool | int | float | str) or value is None:
            args[name] = value
        else:
            unknown.append(name)
    return {
        "name": f"{where}:{kind.__qualname__}",
        "args": args,
        "unknown": unknown,
        "training": bool(module.training),
        "parameters": sum(p.numel() for p in module.parameters()),
        "frozen": [name for name, p in module.named_parameters() if not p.requires_grad],
    }


def _constructor(kind: Any) -> Mapping[str, inspect.Parameter]:
    """Return the parameters of a constructor; nothing if it is not a Python function."""
    try:
        return inspect.signature(kind.__init__).parameters
    except (TypeError, ValueError):
        return {}


def exported(module: Any, call: _ModuleCall, path: Path) -> dict[str, Any]:
    """Export a copy of a model, write the program, and return facts about its inputs."""
    import torch

    name, left_out = _input(call)
    shape, dtype, _ = call.tensors[name]
    if any(m._forward_hooks or m._forward_pre_hooks for m in module.modules()):
        raise _NotExported("its modules have forward hooks, which an export would run")
    if "forward" in module.__dict__:
        raise _NotExported("its forward was replaced on the object")
    x = torch.zeros((min(max(shape[0], 2), MOST), *shape[1:]), dtype=dtype)
    with _undisturbed():
        twin = copy.deepcopy(module).cpu()
        twin.__class__ = _with_one_input(type(module), name, call.plain)
        program, dynamic = _traced(torch.export.export, twin, x)
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
        "left_out": left_out,
    }


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


def _input(call: _ModuleCall) -> tuple[str, list[str]]:
    names = [name for name in call.tensors if name != LABELS]
    if not names or call.other:
        raise _NotExported(f"its forward takes other inputs than tensors: {', '.join(call.other)}")
    rest = [name for name in names[1:] if name in call.required or not call.tensors[name][2]]
    if rest:
        raise _NotExported(f"its forward takes several inputs: {', '.join(names)}")
    if not math.prod(call.tensors[names[0]][0]):
        raise _NotExported("its input is empty")
    return names[0], names[1:]


def _with_one_input(kind: Any, name: str, plain: Mapping[str, Any]) -> Any:
    def forward(self: Any, x: Any) -> Any:
        out = kind.forward(self, **{name: x}, **plain)
        if isinstance(out, Mapping) and LOGITS in out:
            return out[LOGITS]
        return getattr(out, LOGITS, out)

    return types.new_class(kind.__name__, (kind,), {}, lambda body: body.update(forward=forward))


def _flat(arguments: Mapping[str, Any], kinds: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the arguments of a call, also those that were passed as ``**named``."""
    for name, value in arguments.items():
        if kinds[name] is inspect.Parameter.VAR_KEYWORD:
            yield from value.items()
        elif kinds[name] is inspect.Parameter.VAR_POSITIONAL:
            yield from ((f"{name}[{k}]", held) for k, held in enumerate(value))
        else:
            yield name, value


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
