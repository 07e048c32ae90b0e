"""Tap DistributedDataParallel with a communication hook.

Its all-reduce runs in C++ and does not use the process group's Python methods.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import wraps
from types import ModuleType
from typing import TYPE_CHECKING, Any

from leakaudit.capture.tap.capture import Capture

if TYPE_CHECKING:
    from torch import Tensor

HOOKED = "_leakaudit_tapped"  # attribute of a model that has our hook


def listen(module: ModuleType, capture: Capture) -> None:
    """Install a hook in every DistributedDataParallel that logs the rank's own gradients.

    It wraps the hook that the program registers, or the default average.

    Args:
        module: torch.nn.parallel.distributed.
        capture: the tap of this process.
    """
    kind = module.DistributedDataParallel
    register = kind.register_comm_hook
    forward = kind.forward

    @wraps(register)
    def registering(self: Any, state: object, hook: Callable[..., Any]) -> None:
        register(self, state, _listening(self, hook, capture))
        self.__dict__[HOOKED] = True

    @wraps(forward)
    def forwarding(self: Any, *args: Any, **named: Any) -> Any:
        if not self.__dict__.get(HOOKED):
            self.__dict__[HOOKED] = True
            from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

            try:
                register(self, self.process_group, _listening(self, allreduce_hook, capture))
            except RuntimeError as error:
                reason = str(error).splitlines()[0]
                sys.stderr.write(f"leakaudit tap: gradients of a model are not logged: {reason}\n")
        return forward(self, *args, **named)

    kind.register_comm_hook = registering
    kind.forward = forwarding


def _listening(model: Any, hook: Callable[..., Any], capture: Capture) -> Callable[..., Any]:
    """Return a hook that logs a bucket of the rank's own gradients and then calls `hook`.

    With the first bucket of a backward pass, rank 0 also logs the model at which the gradients were
    computed; it is the same on all ranks.
    """
    parameters = [p for _, p in model.module.named_parameters() if p.requires_grad]
    place = {id(p): k for k, p in enumerate(parameters)}
    step = -1

    @wraps(hook)
    def listening(state: object, bucket: Any) -> Any:
        nonlocal step
        places = [place[id(p)] for p in bucket.parameters()]
        if bucket.index() == 0:
            step += 1
            if capture.rank == 0:
                _log_model(parameters, capture, step)
        capture.event(
            "ddp", _gradients(bucket), at=step, parameters=places, last=bool(bucket.is_last())
        )
        return capture.unlogged(hook, state, bucket)

    return listening


def _gradients(bucket: Any) -> Tensor:
    """Return the gradients of a bucket as one vector, without a copy if its buffer has no gaps."""
    buffer: Tensor = bucket.buffer()
    gradients: list[Tensor] = bucket.gradients()
    filled = sum(g.numel() for g in gradients) == buffer.numel()
    if filled and all(g.is_contiguous() for g in gradients):
        return buffer
    return _flat(gradients)


def _log_model(parameters: Sequence[Tensor], capture: Capture, step: int) -> None:
    capture.event(
        "model",
        _flat(parameters),
        at=step,
        parameters=list(range(len(parameters))),
        sizes=[p.numel() for p in parameters],
    )


def _flat(tensors: Sequence[Tensor]) -> Tensor:
    import torch

    return torch.cat([t.detach().reshape(-1) for t in tensors])
