"""Listen to DistributedDataParallel by a communication hook: its all-reduce runs in C++, past the process group's Python methods."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from types import ModuleType
from typing import Any

from leakaudit.capture.tap.capture import Capture


def listen(module: ModuleType, capture: Capture) -> None:
    """Give every DistributedDataParallel a hook: around the program's own where it registers one, else around the plain average."""
    kind = module.DistributedDataParallel
    register, forward = kind.register_comm_hook, kind.forward
    hooked = "_leakaudit_tapped"

    @wraps(register)
    def registering(self: Any, state: object, hook: Callable[..., Any]) -> None:
        register(self, state, _listening(self, hook, capture))
        self.__dict__[hooked] = True

    @wraps(forward)
    def forwarding(self: Any, *args: Any, **named: Any) -> Any:
        if not self.__dict__.get(hooked):
            self.__dict__[hooked] = True
            from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

            try:
                register(self, self.process_group, _listening(self, allreduce_hook, capture))
            except RuntimeError as error:
                sys.stderr.write(
                    f"leakaudit tap: this model's gradients are not heard: {str(error).splitlines()[0]}\n"
                )
        return forward(self, *args, **named)

    kind.register_comm_hook, kind.forward = registering, forwarding


def _listening(model: Any, hook: Callable[..., Any], capture: Capture) -> Callable[..., Any]:
    """Return a hook that logs a bucket of the rank's own gradients, then does what `hook` does.

    With the first bucket of a backward pass, rank 0 also logs the model at which it was taken; all ranks hold the same.
    """
    named = [(n, p) for n, p in model.module.named_parameters() if p.requires_grad]
    place, step = {id(p): k for k, (_, p) in enumerate(named)}, -1

    @wraps(hook)
    def listening(state: object, bucket: Any) -> Any:
        nonlocal step
        parameters = [place[id(p)] for p in bucket.parameters()]
        if bucket.index() == 0:
            step += 1
            if capture.rank == 0:
                _log_model(named, capture, step)
        buffer, grads = bucket.buffer(), bucket.gradients()
        whole = sum(g.numel() for g in grads) == buffer.numel() and all(
            g.is_contiguous() for g in grads
        )
        capture.event(
            "ddp",
            buffer if whole else _flat(grads),
            at=step,
            parameters=parameters,
            last=bool(bucket.is_last()),
        )
        return capture.quietly(hook, state, bucket)

    return listening


def _log_model(named: list[tuple[str, Any]], capture: Capture, step: int) -> None:
    sizes = [p.numel() for _, p in named]
    capture.event(
        "model",
        _flat([p for _, p in named]),
        at=step,
        parameters=list(range(len(named))),
        sizes=sizes,
    )


def _flat(tensors: Any) -> Any:
    import torch

    return torch.cat([t.detach().reshape(-1) for t in tensors])
