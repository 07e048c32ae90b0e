"""Watch what a program does between two messages: its optimiser, batches, loss and clipping."""

# What is seen is written before the next message, so that a log says which steps lie between two of
# them. Nothing is computed that the program could notice: a hook on the output of the outermost
# module tells which calls a gradient reaches, so that evaluation does not count.

from __future__ import annotations

import inspect
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import wraps
from types import ModuleType
from typing import Any
from weakref import WeakKeyDictionary, ref

from leakaudit.capture.tap.exchanges import wrap
from leakaudit.capture.tap.log.capture import Capture, Notes
from leakaudit.capture.tap.log.exporting import is_distributed, own_class, unwrapped
from leakaudit.capture.tap.log.finder import LOSSES, meant, usual

OPTIMISER = "optimiser"  # the word in a log for the constants of one group of parameters
TRAINED = "trained"  # the word for what happened since the last message
# Constants that do not change what a step computes, apart from rounding.
ASIDE = ("foreach", "fused", "capturable", "differentiable")
PARTS = "parts"  # the note that every process holds a part of the model
MOST = 10_000  # lines and entries that wait for the next message: a choice that bounds the memory
START = "start"  # the word for a model from which steps begin
ADDED = ("allreduce", "reduce_scatter")  # operations in which all ranks add up
KEPT = 50_000_000  # numbers of a model that is kept in memory until it is needed: a choice
COMPARED = 64  # numbers at both ends of a vector that show that it is a copy: also a choice
PROBES = 1024  # numbers by which a batch is recognised: a choice


@dataclass
class _Root:
    """A module that the program calls itself."""

    number: int
    size: int  # numbers in its trained parameters
    whole: int  # and in all of them
    parts: bool  # whether every process holds a part of the model for good, which FSDP2 does not
    known: set[int] = field(default_factory=set)  # fingerprints of the batches so far


@dataclass
class _RootCall:
    """One call of a root; `batch` is the first dimension of its first tensor."""

    root: _Root
    batch: int
    shape: list[int]  # of one record
    outputs: int  # last dimension of an output (batch, n); 0 if it has another form
    fingerprint: int
    counted: bool = False


@dataclass
class _Interval:
    """What happened since the last message."""

    steps: Counter[int] = field(default_factory=Counter)  # optimiser -> steps
    backwards: int = 0
    calls: list[_RootCall] = field(default_factory=list)
    losses: dict[str, None] = field(default_factory=dict)
    usual: bool = True  # whether the losses have the usual arguments
    counts: list[int] = field(default_factory=list)  # first dimension of what a loss received
    facts: Notes = field(default_factory=dict)  # clipping and the factor of a loss


class Training:
    """What the process does to train, from one message to the next."""

    def __init__(self, capture: Capture) -> None:
        self._numbers: WeakKeyDictionary[Any, int] = WeakKeyDictionary()  # optimiser -> number
        self._constants: dict[int, Any] = {}  # optimiser -> those of its last step
        self._taken = Counter[int]()  # optimiser -> steps so far
        self._roots: WeakKeyDictionary[Any, _Root] = WeakKeyDictionary()
        self._last: Callable[[], Any] = lambda: None  # the root that was called last
        self._lines: list[tuple[str, Notes]] = []
        self._since = _Interval()
        self._here = threading.local()  # whether a module is being called in this thread
        self._backward = 0  # backward passes that are running
        self._broken = ""
        self._count = 0
        self._capture = capture
        self._changes = 0  # steps and backward passes so far
        self._addresses: tuple[int, dict[int, Any]] = (-1, {})  # changes, and what lay where
        self._started = -1  # steps so far at the last model that was written
        self._starts = 0  # models that were written
        self._initial: Any = None  # the model before the first step, until it is needed or useless
        self._scaled = False  # whether gradients are those of a scaled loss now
        self._averaged = False  # whether parameters were added up since the last step
        capture.training = self

    @property
    def installers(self) -> Mapping[str, Callable[[ModuleType], None]]:
        """Module of torch -> the function that watches it."""
        return {
            "torch.nn.modules.module": self._watch_calls,
            "torch.nn.functional": self._watch_losses,
            "torch.optim.optimizer": self._watch_steps,
            "torch.autograd": self._watch_backward,
            "torch.nn.utils.clip_grad": self._watch_clipping,
            "torch.amp.grad_scaler": self._watch_scaling,
        }

    def taken(self) -> list[tuple[str, Notes]]:
        """Return what is to be written before a message, and begin anew."""
        lines = self._lines
        seen = self._since
        self._lines = []
        self._since = _Interval()
        if self._broken:
            return [*lines, (TRAINED, {"why": self._broken})]
        if not (lines or seen.steps or seen.calls or seen.backwards or seen.facts):
            return []
        notes: Notes = {"backwards": seen.backwards, **seen.facts}
        if seen.steps:
            notes |= {"numbers": list(seen.steps), "taken": list(seen.steps.values())}
        if seen.calls:
            notes |= _described(seen.calls)
        if seen.losses:
            notes |= {"losses": list(seen.losses), "usual": seen.usual, "counts": seen.counts}
        return [*lines, (TRAINED, notes)]

    def sends(self, op: str, tensor: Any) -> Notes:
        """Return what is known about a tensor that the program sends.

        If all ranks add up parameters or gradients, the first rank logs the model before that.
        """
        found: Notes = {}
        if op in (*ADDED, "send"):
            self._noting(self._recognise, op, tensor, found)
        return found

    def _recognise(self, op: str, tensor: Any, found: Notes) -> None:
        root = self._last()
        if root is None or not tensor.is_floating_point():
            return
        parameters = _whole(root)
        if not parameters:
            return
        if self._addresses[0] != self._changes:
            held = {p.grad.data_ptr(): p for p in parameters if p.grad is not None}
            held |= {p.data_ptr(): p for p in parameters}
            self._addresses = self._changes, held
        what = _part(tensor, self._addresses[1].get(tensor.data_ptr()))
        if not what and tensor.numel() == sum(p.numel() for p in parameters):
            what = _copied(tensor.detach().reshape(-1), parameters)
        if not what:
            return
        found["sends"] = what
        if op not in ADDED:
            self._initial = None
        elif what == "parameters":
            self._averaged = True
            if self._initial is not None:
                self._write_start(parameters, self._initial)
        elif self._started != sum(self._taken.values()):
            self._write_start(parameters, _flat(parameters))

    def _write_start(self, parameters: list[Any], value: Any) -> None:
        """Log the model at which a gradient was computed, or from which local steps begin."""
        self._initial = None
        self._started = sum(self._taken.values())
        if self._capture.rank:
            return
        sizes = [p.numel() for p in parameters]
        places = list(range(len(sizes)))
        notes: Notes = {"parameters": places, "of": len(sizes), "last": True, "sizes": sizes}
        root = self._last()
        if root is not None and not self._starts:
            notes |= {"names": [name for name, _ in root.named_parameters()], "frozen": []}
        self._capture.event(START, value, at=self._starts, **notes)
        self._starts += 1

    def _begin_steps(self) -> None:
        """Keep the model before the first step, and log that after an average."""
        root = self._last()
        if root is None or (self._taken and not self._averaged):
            return
        if unwrapped(root) is not root or self._capture.rank:
            return
        parameters = _whole(root)
        if not parameters:
            return
        if self._averaged:
            self._averaged = False
            self._write_start(parameters, _flat(parameters))
        elif sum(p.numel() for p in parameters) <= KEPT:
            self._initial = _flat(parameters)

    def _noting(self, call: Callable[..., None], *args: Any) -> None:
        """Note something; what cannot be understood ends the notes, not the program."""
        if self._broken:
            return
        try:
            call(*args)
        except Exception as error:  # objects of any kind
            self._broken = f"{type(error).__name__}: {error}"[:200]

    def _watch_steps(self, module: ModuleType) -> None:
        def before(optimiser: Any, *_: Any) -> None:
            if not _compiling():
                self._noting(self._note_step, optimiser)

        module.register_optimizer_step_pre_hook(before)

    def _note_step(self, optimiser: Any) -> None:
        number = self._numbers.setdefault(optimiser, self._count)
        if number == self._count:
            self._count += 1
        # Schedules keep values of their own in the groups, too.
        names = optimiser.defaults.keys() - set(ASIDE)
        constants = [_constants(group, names) for group in optimiser.param_groups]
        if self._constants.get(number) != constants and len(self._lines) < MOST:
            self._constants[number] = constants
            self._lines += self._groups(optimiser, number, constants)
        self._begin_steps()
        self._changes += 1
        self._taken[number] += 1
        self._since.steps[number] += 1

    def _groups(
        self, optimiser: Any, number: int, constants: list[dict[str, Any]]
    ) -> Iterator[tuple[str, Notes]]:
        import torch

        kind = type(optimiser)
        of_torch = kind is getattr(torch.optim, kind.__name__, None)
        places: dict[int, int] = {}
        root = self._last()
        if root is not None and len(constants) > 1:
            places = {id(p): k for k, p in enumerate(root.parameters())}
        for place, (group, held) in enumerate(zip(optimiser.param_groups, constants, strict=True)):
            notes: Notes = {
                "number": number,
                "kind": kind.__name__ if of_torch else f"{kind.__module__}.{kind.__name__}",
                "after": self._taken[number],
                "place": place,
                "groups": len(constants),
                # A program may pass frozen parameters as well, which no step changes.
                "size": sum(p.numel() for p in group["params"] if p.requires_grad),
                "constants": list(held),
                "values": list(held.values()),
            }
            if places:
                notes["members"] = [places.get(id(p), -1) for p in group["params"]]
            yield OPTIMISER, notes

    def _watch_calls(self, module: ModuleType) -> None:
        import torch

        kind = module.Module
        real = kind.__call__
        here = self._here

        @wraps(real)
        def calling(own: Any, *args: Any, **named: Any) -> Any:
            if _compiling() or getattr(here, "inside", False) or self._backward:
                return real(own, *args, **named)
            here.inside = True
            try:
                out = real(own, *args, **named)
            finally:
                here.inside = False
            if torch.is_grad_enabled():
                self._noting(self._note_call, own, args, named, out)
            return out

        kind.__call__ = calling

    def _note_call(self, own: Any, args: Any, named: dict[str, Any], out: Any) -> None:
        import torch

        root = self._root(own)
        given = next(_tensors([*args, *named.values()]), None)
        results = [one for one in _tensors([out]) if one.requires_grad]
        if not root.size or given is None or not given.dim() or not results:
            return
        if torch._C._functorch.peek_interpreter_stack() is not None:
            raise ValueError("functions of torch.func call the model")
        first = results[0]
        outputs = int(first.shape[-1]) if first.dim() == 2 else 0
        call = _RootCall(root, len(given), list(given.shape[1:]), outputs, _fingerprint(given))

        def reached(_: Any) -> None:
            # `torch.autograd.grad` computes gradients that no step uses.
            if self._backward and not call.counted and len(self._since.calls) < MOST:
                call.counted = True
                self._last = ref(own)
                if len(root.known) < MOST:
                    root.known.add(call.fingerprint)
                self._since.calls.append(call)

        # One result may have no gradient, as the logits beside a loss; the last one has one.
        for result in {id(one): one for one in (first, results[-1])}.values():
            result.register_hook(reached)

    def _root(self, own: Any) -> _Root:
        found = self._roots.get(own)
        if found is None:
            parameters = list(unwrapped(own).parameters())
            trained = sum(p.numel() for p in parameters if p.requires_grad)
            whole = sum(p.numel() for p in parameters)
            sharded = any(map(is_distributed, parameters)) and own_class(type(own)) is type(own)
            found = _Root(len(self._roots), trained, whole, sharded)
            self._roots[own] = found
        return found

    def _watch_backward(self, module: ModuleType) -> None:
        def running(real: Callable[..., Any], *args: Any, **named: Any) -> Any:
            if _compiling():
                return real(*args, **named)
            self._backward += 1
            self._changes += 1
            self._since.backwards += 1
            try:
                return real(*args, **named)
            finally:
                self._backward -= 1

        wrap(module, "backward", running)

    def _watch_losses(self, module: ModuleType) -> None:
        for name in LOSSES:
            wrap(module, name, self._watched_loss(name, getattr(module, name)))

    def _watched_loss(self, name: str, function: Any) -> Callable[..., Any]:
        names = list(inspect.signature(function).parameters)

        def loss(real: Callable[..., Any], *args: Any, **named: Any) -> Any:
            out = real(*args, **named)
            if not _compiling() and getattr(out, "requires_grad", False):
                given = {**dict(zip(names, args, strict=False)), **named}
                self._noting(self._note_loss, name, given, out)
            return out

        return loss

    def _note_loss(self, name: str, given: Mapping[str, Any], out: Any) -> None:
        received = given.get("input")
        count = len(received) if received is not None and received.dim() else 0
        is_usual = usual(given)
        name = meant(name, given)

        def reached(_: Any) -> None:
            seen = self._since
            if not self._backward or len(seen.counts) >= MOST:
                return
            seen.losses[name] = None
            seen.usual = seen.usual and is_usual
            seen.counts.append(count)

        out.register_hook(reached)

    def _watch_clipping(self, module: ModuleType) -> None:
        for name, word in (("clip_grad_norm_", "clip_norm"), ("clip_grad_value_", "clip_value")):
            wrap(module, name, self._watched_clip(word, inspect.signature(getattr(module, name))))

    def _watched_clip(self, word: str, form: inspect.Signature) -> Callable[..., Any]:
        def clip(real: Callable[..., Any], *args: Any, **named: Any) -> Any:
            if _compiling():
                return real(*args, **named)
            bound = form.bind(*args, **named)
            held = bound.arguments["parameters"]
            if not hasattr(held, "numel"):
                held = list(held)
                # torch warns if a generator yields nothing, so it gets one again.
                bound.arguments["parameters"] = (one for one in held)
            self._noting(self._note_clip, word, {**bound.arguments, "parameters": held})
            return real(*bound.args, **bound.kwargs)

        return clip

    def _note_clip(self, word: str, given: dict[str, Any]) -> None:
        held = given["parameters"]
        parameters = [held] if hasattr(held, "numel") else held
        size = sum(p.numel() for p in parameters if p.requires_grad)
        bound = given["max_norm"] if "max_norm" in given else given["clip_value"]
        self._since.facts |= {word: float(bound), "clipped": size}
        if self._scaled:
            self._since.facts["clip_scaled"] = True
        if "norm_type" in given:
            self._since.facts["norm_type"] = float(given["norm_type"])

    def _watch_scaling(self, module: ModuleType) -> None:
        def scaling(real: Callable[..., Any], scaler: Any, outputs: Any) -> Any:
            out = real(scaler, outputs)
            if scaler.is_enabled():
                self._noting(self._note_scale, scaler)
            return out

        def unscaling(real: Callable[..., Any], *args: Any) -> Any:
            self._scaled = False
            return real(*args)

        wrap(module.GradScaler, "scale", scaling)
        wrap(module.GradScaler, "unscale_", unscaling)

    def _note_scale(self, scaler: Any) -> None:
        self._scaled = True
        self._since.facts["loss_scale"] = float(scaler.get_scale())


def _whole(module: Any) -> list[Any]:
    """Return the parameters of a module; none if a process holds only parts of some of them."""
    # An operation on such a tensor may communicate, and this process may be the only one to do it.
    parameters = list(module.parameters())
    return [] if any(map(is_distributed, parameters)) else parameters


def _flat(parameters: Iterable[Any]) -> Any:
    import torch

    return torch.cat([p.detach().reshape(-1).clone() for p in parameters])


def _part(tensor: Any, parameter: Any) -> str:
    """Return what of a parameter a tensor is; empty if it is none of it (any more)."""
    if parameter is None or tensor.numel() != parameter.numel():
        return ""
    if parameter.data_ptr() == tensor.data_ptr():
        return "parameters"
    gradient = parameter.grad
    same = gradient is not None and gradient.data_ptr() == tensor.data_ptr()
    return "gradients" if same else ""


def _copied(vector: Any, parameters: list[Any]) -> str:
    """Return of what a vector of a model's length is a copy, divided by the number of ranks or not.

    Empty if it is not known.
    """
    import torch
    import torch.distributed as dist

    first = parameters[0]
    last = parameters[-1]
    pairs = {"parameters": (first.detach(), last.detach()), "gradients": (first.grad, last.grad)}
    for what, (begin, end) in pairs.items():
        if begin is None or end is None:
            continue
        for divisor in (1, dist.get_world_size()):
            ends = (begin.reshape(-1)[:COMPARED], end.reshape(-1)[-COMPARED:])
            begun, ended = (part.to(vector.dtype) / divisor for part in ends)
            same = torch.equal(vector[: len(begun)], begun)
            if same and torch.equal(vector[-len(ended) :], ended) and bool(ended.any()):
                return what
    return ""


def _compiling() -> bool:
    import torch

    return bool(torch.compiler.is_compiling())


def _constants(group: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    """Return the constants of a group of parameters, with numbers in place of pairs and tensors."""
    found: dict[str, Any] = {}
    for name, value in group.items():
        if name not in names:
            continue
        if isinstance(value, tuple):
            found |= {f"{name}{k}": float(one) for k, one in enumerate(value)}
        elif hasattr(value, "item"):
            found[name] = float(value)
        elif value is None or isinstance(value, bool | int | float | str):
            found[name] = value
    return found


def _described(calls: Iterable[_RootCall]) -> Notes:
    """Return the calls as notes, with the facts that they share."""
    held = list(calls)
    last = held[-1]
    return {
        "batches": [call.batch for call in held],
        "roots": [call.root.number for call in held],
        "root_sizes": [last.root.size, last.root.whole],
        "record": last.shape if all(call.shape == last.shape for call in held) else [-1],
        "outputs": last.outputs,
        "distinct": len(last.root.known),
        **({PARTS: True} if last.root.parts else {}),
    }


def _tensors(values: Iterable[Any]) -> Iterator[Any]:
    """Yield the tensors among values, and in the containers among them."""
    for value in values:
        if hasattr(value, "requires_grad") and hasattr(value, "dim"):
            yield value
        elif isinstance(value, Mapping):
            yield from _tensors(value.values())
        elif isinstance(value, list | tuple):
            yield from _tensors(value)


def _fingerprint(batch: Any) -> int:
    """Return a hash of a batch's shape and of some of its numbers."""
    import torch

    if is_distributed(batch):
        batch = batch.to_local()
    flat = batch.detach().reshape(-1)
    some = flat[:: max(1, flat.numel() // PROBES)].cpu().contiguous()
    return hash((tuple(batch.shape), some.view(torch.uint8).numpy().tobytes()))
