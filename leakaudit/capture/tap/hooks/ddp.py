"""Tap DistributedDataParallel with a communication hook."""

# Its all-reduce runs in C++ and does not use the process group's Python methods.

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import wraps
from itertools import count
from types import ModuleType
from typing import TYPE_CHECKING, Any

from leakaudit.capture.tap.exchanges import wrap
from leakaudit.capture.tap.hooks.group import group_notes
from leakaudit.capture.tap.hooks.model import HookedModel
from leakaudit.capture.tap.log.capture import HOOK, Capture, Notes
from leakaudit.capture.tap.log.layers import ALL, flat

if TYPE_CHECKING:
    from torch import Tensor

HOOKED = "_leakaudit_tapped"  # attribute of a model that has our hook
# A hook that casts and divides rounds twice; the rest is a choice. Below the normal numbers of
# float16, the error is absolute: half of its smallest step, 2^-24, for each of the two.
ROUNDINGS = 2.5


def listen(module: ModuleType, capture: Capture) -> None:
    """Install a hook in every DistributedDataParallel that logs the rank's own gradients."""
    # It wraps the hook that the program registers, or the default average.
    kind = module.DistributedDataParallel
    register = kind.register_comm_hook
    numbers = count()

    def registering(_: Any, model: Any, state: object, hook: Callable[..., Any]) -> None:
        # What a hook of the program sends is recorded whole, so by default the models are, too.
        gradients = _Gradients(model, next(numbers), capture, capture.settings.layers or [ALL])
        register(model, state, gradients.of_own_hook(hook))
        model.__dict__[HOOKED] = True

    def registering_builtin(register_builtin: Callable[..., Any], model: Any, hook: Any) -> None:
        register_builtin(model, hook)
        model.__dict__[HOOKED] = True
        capture.event("ddp", None, left_out=f"the hook {hook} runs in C++")

    def forwarding(forward: Callable[..., Any], model: Any, *args: Any, **named: Any) -> Any:
        if capture.model is not None:
            capture.safely(capture.model.save_called, model.module, args, named)
        if not model.__dict__.get(HOOKED):
            model.__dict__[HOOKED] = True
            from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

            hook = hook_of_average(model, next(numbers), capture, allreduce_hook)
            try:
                register(model, model.process_group, hook)
            except RuntimeError as error:
                reason = str(error).splitlines()[0]
                sys.stderr.write(f"leakaudit tap: gradients of a model are not logged: {reason}\n")
        return forward(model, *args, **named)

    wrap(kind, "register_comm_hook", registering)
    wrap(kind, "_register_builtin_comm_hook", registering_builtin)
    wrap(kind, "forward", forwarding)


def hook_of_average(
    model: Any, number: int, capture: Capture, hook: Callable[..., Any]
) -> Callable[..., Any]:
    """Return a communication hook that logs the rank's gradients and then averages them."""
    gradients = _Gradients(model, number, capture, capture.settings.layers)

    @wraps(hook)
    def listening(state: object, bucket: Any) -> Any:
        capture.safely(gradients.log_bucket, bucket)
        return capture.unlogged(hook, state, bucket)

    return listening


class _Gradients(HookedModel):
    def __init__(
        self, model: Any, number: int, capture: Capture, layers: Sequence[str] | None
    ) -> None:
        import torch.distributed as dist

        notes = {**group_notes(dist, model.process_group), "lane": f"model {number}"}
        ranks = dist.get_process_group_ranks(model.process_group)
        super().__init__(capture, model.module.named_parameters(), ranks, "ddp", layers, notes)
        self.place = {id(p): k for k, (_, p) in enumerate(self.named)}
        self.step = -1

    def of_own_hook(self, hook: Callable[..., Any]) -> Callable[..., Any]:
        # A gradient up to a factor, perhaps in a shorter format, is logged as the rank's gradient.
        # Otherwise the event of the gradient has no payload, and the messages are the hook's own.
        name = str(getattr(hook, "__name__", type(hook).__name__))

        @wraps(hook)
        def listening(state: object, bucket: Any) -> Any:
            notes = {**self.notes, **self._begin(bucket)}
            own = flat(bucket.gradients()).clone()  # a hook may change them
            sending = _Sending(own, len(self.ranks), name, {**notes, "at": self.step})
            future = self.capture.within_hook(name, sending.translate, hook, state, bucket)
            if not sending.found:
                reason = f"{name} does not send it as it is"
                self.capture.event("ddp", own, at=self.step, left_out=reason, **notes)
            return future

        return listening

    def _begin(self, bucket: Any) -> Notes:
        """Return which parameters are in a bucket; before the first one, a rank logs the model."""
        if bucket.index() == 0:
            self.step += 1
            if self.is_first and (self.selection is None or self.selection.kept):
                parts = {k: self.named[k][1] for k in self.trained}
                self.log("model", parts, last=True, **self.facts)
        places = [self.place[id(p)] for p in bucket.parameters()]
        return {"parameters": places, "last": bool(bucket.is_last())}

    def log_bucket(self, bucket: Any) -> None:
        held = self._begin(bucket)
        parts = dict(zip(held["parameters"], bucket.gradients(), strict=True))
        self.log("ddp", parts, held["last"])


class _Sending:
    """What a communication hook sends for one bucket; own: (n,) the rank's gradient before it."""

    def __init__(self, own: Tensor, ranks: int, name: str, notes: Notes) -> None:
        self.own = own
        self.ranks = ranks
        self.name = name
        self.notes = notes
        self.found = False

    def translate(self, op: str, value: Any, notes: Notes) -> tuple[str, Notes]:
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
    import torch

    if not value.is_floating_point():
        return False
    exact = own.detach().reshape(-1).double() / factor
    sent = value.detach().reshape(-1).double()
    near = ROUNDINGS * torch.finfo(value.dtype).eps * exact.abs()
    near += ROUNDINGS * torch.finfo(value.dtype).smallest_normal * torch.finfo(value.dtype).eps
    return bool(((sent - exact).abs() <= near).all())
