"""Save the model of a tapped program: its name, its state, and a torch.export program."""

# Calls of modules are watched until the model is found: the one that `DistributedDataParallel`
# wraps, or the outermost module whose parameters are as many as the numbers of a message. It is
# exported from a copy, at inputs of zeros with the shape and the number format of those that the
# program used, so that neither the program's results nor its data are touched.

from __future__ import annotations

import inspect
import json
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import wraps
from pathlib import Path
from types import ModuleType
from typing import Any
from weakref import WeakKeyDictionary, ref

from leakaudit._util.files import private_folder
from leakaudit.capture.tap.log.exporting import (
    LABELS,
    REPLACED,
    ModuleInputs,
    NotExported,
    exported,
    is_distributed,
    is_replaced,
    own_class,
    unwrapped,
)

FACTS = "model.json"
PROGRAM = "model.pt2"
STATE = "model.pt"
FILES = (FACTS, PROGRAM, STATE)
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
# Largest logarithm of a sum of probabilities, far above the rounding of float32: a choice. In
# bfloat16, it is not reached, and the loss keeps its name.
NORMALISED = 1e-4
UNUSUAL = "with other arguments than the usual ones"


def _nothing() -> None:
    return None


def inputs_of(module: Any, args: tuple[Any, ...], named: dict[str, Any]) -> ModuleInputs:
    """Return shapes and formats of what a module is called with."""
    bound = inspect.signature(module.forward).bind(*args, **named)
    kinds = {name: p.kind for name, p in bound.signature.parameters.items()}
    required = [name for name, p in bound.signature.parameters.items() if p.default is p.empty]
    given = list(_flat(bound.arguments, kinds))
    first = next((ref(value) for _, value in given if hasattr(value, "requires_grad")), _nothing)
    found = ModuleInputs({}, {}, [], required, first)
    for name, value in given:
        if hasattr(value, "requires_grad"):
            uniform = name != LABELS and not is_distributed(value) and bool((value == 1).all())
            found.tensors[name] = (tuple(value.shape), value.dtype, uniform)
        elif value is None or isinstance(value, bool | int | float | str):
            found.plain[name] = value
        else:
            found.other.append(name)
    return found


class Finder:
    """Watches the modules of this process until the model is found."""

    def __init__(self, folder: str) -> None:
        self.folder = Path(folder)
        self.done = False
        self.calls: WeakKeyDictionary[Any, ModuleInputs] = WeakKeyDictionary()
        self.losses: set[str] = set()
        self._facts: dict[str, Any] | None = None  # what this process has written
        self._restore: Callable[[], None] = lambda: None
        self._input: Callable[[], Any] = _nothing  # that of the call with which it was saved
        # the module that travels, until the one in it is called that computes outputs from inputs
        self._whole: Any = None
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
            if self._whole is not None and torch.is_grad_enabled():
                self._save_inner(own, args, named)
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
        for name in LOSSES:
            setattr(module, name, self._watched_loss(getattr(module, name), name))

    def _watched_loss(self, real: Callable[..., Any], name: str) -> Any:
        import torch

        form = inspect.signature(real)

        @wraps(real)
        def loss(*args: Any, **named: Any) -> Any:
            out = real(*args, **named)
            # Programs validate with another loss than that of training, without gradients.
            if getattr(out, "requires_grad", False) and not torch.compiler.is_compiling():
                self._note_loss(form.bind(*args, **named).arguments, name)
            return out

        return loss

    def _note_loss(self, given: Mapping[str, Any], name: str) -> None:
        name = meant(name, given)
        known = LOSSES[name] or name
        if not usual(given):
            known = f"{name} {UNUSUAL}"
        changed = known not in self.losses
        self.losses.add(known)
        x = self._input()
        if x is not None and self._facts is not None:
            self._input = _nothing
            self._facts["following"] = _follow(x, given.get("target"))
            changed = True
        if changed and self._facts is not None:
            self._write()

    def _write(self) -> None:
        facts = {**(self._facts or {}), "losses": sorted(self.losses)}
        with suppress(OSError):  # a full disk; the recording itself reports it
            (self.folder / FACTS).write_text(json.dumps(facts))

    def _note(self, module: Any, args: tuple[Any, ...], named: dict[str, Any]) -> None:
        try:
            inner = unwrapped(module)
            if any(p.requires_grad for p in inner.parameters()):
                self.calls[module] = inputs_of(inner, args, named)
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
        if is_replaced(inner):
            if self._whole is not None:  # no module in it was called in this way
                self.save(inner, None, REPLACED)
            self._whole = inner
            return
        try:
            call = inputs_of(inner, args, named)
        except Exception as error:  # a forward of any kind
            self.save(inner, None, f"its arguments are not understood: {error}")
            return
        self.save(inner, call)

    def _save_inner(self, module: Any, args: tuple[Any, ...], named: dict[str, Any]) -> None:
        """Save a module with all trained parameters of the one that travels."""
        if self.done or is_replaced(module) or _trained(module) != _trained(self._whole):
            return
        with suppress(Exception):  # a forward of any kind
            self.save(module, inputs_of(module, args, named))

    def save_noted(self, module: Any) -> None:
        """Save a model that is being called, and of which is known that it travels."""
        if self.done:
            return
        call = self.calls.get(module)
        why = "" if call is not None else "its arguments are not understood"
        self.save(module, call, why)

    def save(self, module: Any, call: ModuleInputs | None, why: str = "") -> None:
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
            if why:
                raise NotExported(why)
            import torch

            if not any(map(is_distributed, module.parameters())):
                state = {name: t.detach().cpu() for name, t in module.state_dict().items()}
                torch.save(state, self.folder / STATE)
            if call is not None:
                facts |= exported(module, call, self.folder / PROGRAM)
                self._input = call.input
        except NotExported as reason:
            why = str(reason)
        except Exception as error:
            why = f"{type(error).__name__}: {str(error).strip() or 'no message'}"
        if why:
            facts["why"] = why.splitlines()[0][:300]
        self._facts = facts
        self._write()


def _follow(x: Any, target: Any) -> bool:
    """Return whether the targets of a loss are the next tokens of sequences x (b, length)."""
    if x.is_floating_point() or x.dim() != 2 or x.shape[1] < 2 or not hasattr(target, "reshape"):
        return False
    if target.is_floating_point() or target.numel() != x.numel():
        return False
    return bool((target.reshape(x.shape)[:, :-1] == x[:, 1:]).all())


def meant(name: str, given: Mapping[str, Any]) -> str:
    """Return the name of a loss, which has another one if its inputs are log-probabilities."""
    x = given.get("input")
    if name != "nll_loss" or x is None or x.dim() != 2 or is_distributed(x):
        return name
    sums = x.detach().float().logsumexp(1)
    return "cross_entropy" if bool((sums.abs() < NORMALISED).all()) else name


def usual(given: Mapping[str, Any]) -> bool:
    """Return whether the arguments of a loss are those that a loss of ours has."""
    return all(_is_usual(given.get(key), value) for key, value in USUAL.items())


def _is_usual(given: Any, value: Any) -> bool:
    return given is None or (not hasattr(given, "shape") and given == value)


def _trained(module: Any) -> list[int]:
    return [id(p) for p in module.parameters() if p.requires_grad]


def sizes(module: Any) -> set[int]:
    """Return the lengths of the vectors in which a model may travel."""
    parameters = list(module.parameters())
    whole = sum(p.numel() for p in parameters)
    trained = sum(p.numel() for p in parameters if p.requires_grad)
    buffers = sum(b.numel() for b in module.buffers() if b.is_floating_point())
    return {whole, trained, whole + buffers, parameters[0].numel()}


def about(module: Any) -> dict[str, Any]:
    """Return the name of a model's class, and the arguments of its constructor that are known."""
    kind = own_class(type(module))
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


def _flat(arguments: Mapping[str, Any], kinds: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the arguments of a call, also those that were passed as ``**named``."""
    for name, value in arguments.items():
        if kinds[name] is inspect.Parameter.VAR_KEYWORD:
            yield from value.items()
        elif kinds[name] is inspect.Parameter.VAR_POSITIONAL:
            yield from ((f"{name}[{k}]", held) for k, held in enumerate(value))
        else:
            yield name, value
