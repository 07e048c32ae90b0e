"""Tap DistributedDataParallel with a communication hook.

Its all-reduce runs in C++ and does not use the process group's Python methods.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import wraps
from itertools import count
from types import ModuleType
from typing import TYPE_CHECKING, Any

from leakaudit.capture.fitting.sketch import RunningSketch
from leakaudit.capture.tap.hooks.group import group_notes
from leakaudit.capture.tap.log.capture import HOOK, Capture, Notes
from leakaudit.capture.tap.log.layers import ALL, NOTE, REST, WHOLE, Selection

if TYPE_CHECKING:
    from torch import Tensor

HOOKED = "_leakaudit_tapped"  # attribute of a model that has our hook
NAMES = 100_000  # characters of all names of parameters that are logged: a choice
# A hook that casts and divides rounds twice; the rest is a choice. Below the normal numbers of
# float16, the error is absolute: half of its smallest step, 2^-24, for each of the two.
ROUNDINGS = 2.5


def listen(module: ModuleType, capture: Capture) -> None:
    """Install a hook in every DistributedDataParallel that logs the rank's own gradients.

    It wraps the hook that the program registers, or the default average.
    """
    kind = module.DistributedDataParallel
    register = kind.register_comm_hook
    register_builtin = kind._register_builtin_comm_hook
    forward = kind.forward
    numbers = count()

    @wraps(register)
    def registering(self: Any, state: object, hook: Callable[..., Any]) -> None:
        gradients = _Gradients(self, next(numbers), capture)
        register(self, state, gradients.of_own_hook(hook))
        self.__dict__[HOOKED] = True

    @wraps(register_builtin)
    def registering_builtin(self: Any, hook: Any) -> None:
        register_builtin(self, hook)
        self.__dict__[HOOKED] = True
        capture.event("ddp", None, left_out=f"the hook {hook} runs in C++")

    @wraps(forward)
    def forwarding(self: Any, *args: Any, **named: Any) -> Any:
        if capture.model is not None:
            capture.safely(capture.model.save_called, self.module, args, named)
        if not self.__dict__.get(HOOKED):
            self.__dict__[HOOKED] = True
            from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

            hook = hook_of_average(self, next(numbers), capture, allreduce_hook)
            try:
                register(self, self.process_group, hook)
            except RuntimeError as error:
                reason = str(error).splitlines()[0]
                sys.stderr.write(f"leakaudit tap: gradients of a model are not logged: {reason}\n")
        return forward(self, *args, **named)

    kind.register_comm_hook = registering
    kind._register_builtin_comm_hook = registering_builtin
    kind.forward = forwarding


def hook_of_average(
    model: Any, number: int, capture: Capture, hook: Callable[..., Any]
) -> Callable[..., Any]:
    """Return a communication hook that logs the rank's gradients and then averages them."""
    return _Gradients(model, number, capture).of_average(hook)


class _Gradients:
    """The gradients of one DistributedDataParallel."""

    def __init__(self, model: Any, number: int, capture: Capture) -> None:
        import torch.distributed as dist

        self.capture = capture
        self.named = list(model.module.named_parameters())
        self.place = {id(p): k for k, (_, p) in enumerate(self.named)}
        notes = group_notes(dist, model.process_group)
        self.notes: Notes = {**notes, "lane": f"model {number}", "of": len(self.named)}
        self.ranks = dist.get_process_group_ranks(model.process_group)
        self.sizes = [p.numel() for _, p in self.named]
        self.step = -1
        self.selection: Selection | None = None
        self.running: RunningSketch | None = None

    def of_average(self, hook: Callable[..., Any]) -> Callable[..., Any]:
        """Return a hook that logs a bucket and then calls `hook`, which averages it."""
        self._select(self.capture.layers)

        @wraps(hook)
        def listening(state: object, bucket: Any) -> Any:
            self.capture.safely(self._log, bucket)
            return self.capture.unlogged(hook, state, bucket)

        return listening

    def of_own_hook(self, hook: Callable[..., Any]) -> Callable[..., Any]:
        """Return a hook that calls the program's hook and logs what it sends.

        If this is the gradient up to a factor, perhaps in a shorter number format, it is logged as
        the rank's gradient. Otherwise the event of the gradient has no payload, and the log has the
        messages of the hook.
        """
        name = str(getattr(hook, "__name__", type(hook).__name__))
        # What a hook of the program sends is recorded whole, so by default the models are, too.
        self._select(self.capture.layers or [ALL])

        @wraps(hook)
        def listening(state: object, bucket: Any) -> Any:
            notes = self._begin(bucket)
            own = _gradients(bucket).clone()
            sending = _Sending(own, len(self.ranks), name, {**notes, "at": self.step})
            future = self.capture.within_hook(name, sending.translate, hook, state, bucket)
            if not sending.found:
                reason = f"{name} does not send it as it is"
                self.capture.event("ddp", own, at=self.step, left_out=reason, **notes)
            return future

        return listening

    def _select(self, layers: Sequence[str] | None) -> None:
        """Determine which parameters are logged."""
        trained = [k for k, (_, p) in enumerate(self.named) if p.requires_grad]
        self.selection = self.capture.selection(
            [name for name, _ in self.named],
            self.sizes,
            layers,
            trained,
            self.notes["lane"] if self.capture.rank == self.ranks[0] else "",
        )
        if self.selection is not None:
            self.notes[NOTE] = True

    def _begin(self, bucket: Any) -> Notes:
        """Return the notes of a bucket.

        With the first bucket of a backward pass, the first rank also logs the model at which the
        gradients were computed; it is the same on all ranks.
        """
        if bucket.index() == 0:
            self.step += 1
            self.running = None  # also drops that of an aborted pass
            if self.selection is not None and self.capture.sketches(self.step):
                self.running = self.selection.running()
            if self.capture.rank == self.ranks[0]:
                self._log_model()
        places = [self.place[id(p)] for p in bucket.parameters()]
        return {**self.notes, "parameters": places, "last": bool(bucket.is_last())}

    def _log(self, bucket: Any) -> None:
        """Log the gradients of a bucket, or of the chosen parameters in it."""
        notes = self._begin(bucket)
        if self.selection is None:
            self.capture.event("ddp", _gradients(bucket), at=self.step, **notes)
            return
        places: list[int] = []
        gradients = [bucket.buffer()[:0]]
        for place, gradient in zip(notes["parameters"], bucket.gradients(), strict=True):
            if place in self.selection.kept:
                places.append(place)
                gradients.append(gradient)
            elif self.running is not None:
                self.running.add(place, gradient)
        if notes["last"]:
            self.capture.rest("ddp", self.running, self.step, **self.notes)
        if places or notes["last"]:
            notes = {**notes, "parameters": places}
            self.capture.event("ddp", flat(gradients), at=self.step, **notes)

    def _log_model(self) -> None:
        trained = [k for k, (_, p) in enumerate(self.named) if p.requires_grad]
        kept = trained
        if self.selection is not None:
            kept = [k for k in trained if k in self.selection.kept]
            if not kept:
                return
            self._log_others([k for k in trained if k not in self.selection.kept])
        notes = dict(self.notes)
        if not self.step:
            notes |= names([name for name, _ in self.named], trained)
        self.capture.event(
            "model",
            flat([self.named[k][1] for k in kept]),
            at=self.step,
            parameters=kept,
            last=True,
            sizes=self.sizes,
            **notes,
        )

    def _log_others(self, places: list[int]) -> None:
        """Log the parameters of the model that are not chosen: of the first model, all numbers."""
        if self.running is None:
            return
        if self.step != self.capture.first:
            for place in places:
                self.running.add(place, self.named[place][1])
            self.capture.rest("model", self.running, self.step, **self.notes)
            return
        noted = {**self.notes, REST: WHOLE, "parameters": places, "last": False}
        self.capture.event("model", flat([self.named[k][1] for k in places]), at=self.step, **noted)


class _Sending:
    """What a communication hook sends for one bucket.

    Args:
        own: (n,) the rank's gradient, before the hook changes it.
    """

    def __init__(self, own: Tensor, ranks: int, name: str, notes: Notes) -> None:
        self.own = own
        self.ranks = ranks
        self.name = name
        self.notes = notes
        self.found = False

    def translate(self, op: str, value: Any, notes: Notes) -> tuple[str, Notes]:
        """Return op and notes of a message: the gradient, or something of the hook's own."""
        group = notes.get("group", range(self.ranks))
        fits = value is not None and value.numel() == self.own.numel()
        # What a group of one rank adds up does not travel.
        if fits and not self.found and len(group) > 1:
            for factor in dict.fromkeys((1, len(group), self.ranks)):
                if _is_rounded(value, self.own, factor):
                    self.found = True
                    within = {"within": group} if "group" in notes else {}
                    sent = {HOOK: self.name, "factor": factor, **within}
                    return "ddp", {**self.notes, **sent}
        return op, {**notes, HOOK: self.name}


def _is_rounded(value: Tensor, own: Tensor, factor: int) -> bool:
    """Return whether a tensor is a gradient divided by a factor, up to rounding."""
    import torch

    if not value.is_floating_point():
        return False
    exact = own.detach().reshape(-1).double() / factor
    sent = value.detach().reshape(-1).double()
    near = ROUNDINGS * torch.finfo(value.dtype).eps * exact.abs()
    near += ROUNDINGS * torch.finfo(value.dtype).smallest_normal * torch.finfo(value.dtype).eps
    return bool(((sent - exact).abs() <= near).all())


def names(all_names: Sequence[str], trained: Sequence[int]) -> Notes:
    """Return notes with the names of the parameters that travel and of those that do not."""
    if sum(map(len, all_names)) > NAMES:
        return {}
    frozen = sorted(set(range(len(all_names))) - set(trained))
    return {"names": list(all_names), "frozen": [all_names[k] for k in frozen]}


def _gradients(bucket: Any) -> Tensor:
    """Return the gradients of a bucket as one vector, without a copy if its buffer has no gaps."""
    buffer: Tensor = bucket.buffer()
    gradients: list[Tensor] = bucket.gradients()
    filled = sum(g.numel() for g in gradients) == buffer.numel()
    if filled and all(g.is_contiguous() for g in gradients):
        return buffer
    return flat(gradients)


def flat(tensors: Sequence[Tensor]) -> Tensor:
    """Return tensors as one vector."""
    import torch

    return torch.cat([t.detach().reshape(-1) for t in tensors])
