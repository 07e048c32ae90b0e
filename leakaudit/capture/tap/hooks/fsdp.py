"""Tap FSDP2 (`fully_shard`): each rank's own gradients before they are reduced and scattered."""

# The gradients travel in one padded buffer per group of parameters. The tap logs the gradients
# instead, in the number format in which they travel.

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from inspect import signature
from itertools import count
from types import ModuleType
from typing import Any

from leakaudit.capture.tap.exchanges import wrap
from leakaudit.capture.tap.hooks.model import HookedModel
from leakaudit.capture.tap.log.capture import Capture, Notes

OWNER = "_leakaudit_tapped"  # attribute of a group of parameters: the model to which it belongs


def listen(module: ModuleType, capture: Capture) -> None:
    """Wrap the functions that gather parameters and reduce gradients.

    module: torch.distributed.fsdp._fully_shard._fsdp_state.
    """
    from torch.distributed.fsdp._fully_shard import _fsdp_param_group

    inside: Any = _fsdp_param_group  # not a public module
    numbers = count()
    form = signature(inside.foreach_reduce)

    def initialising(initialise: Callable[..., Any], state: Any) -> None:
        fresh = state._is_root is None
        initialise(state)
        if fresh and state._is_root:
            capture.safely(_own, state, next(numbers), capture)

    def finishing(finish: Callable[..., Any], state: Any) -> Any:
        done = finish(state)
        for group in _groups(state)[:1]:
            model = getattr(group, OWNER, None)
            if model is not None:
                capture.safely(model.end)
        return done

    def backward(after_backward: Callable[..., Any], group: Any, *unused: Any) -> Any:
        model = getattr(group, OWNER, None)
        if model is not None and group.reduce_grads:
            capture.safely(model.log_parameters, group)
        return after_backward(group, *unused)

    def reducing(reduce: Callable[..., Any], *args: Any, **named: Any) -> Any:
        given = form.bind(*args, **named).arguments
        parameters = given["fsdp_params"]
        model = getattr(parameters[0], OWNER, None)
        if model is None:
            return reduce(*args, **named)
        gradients = given["unsharded_grads"]
        capture.safely(model.log_gradients, parameters, gradients, given["reduce_dtype"])
        return capture.unlogged(lambda: reduce(*args, **named))

    def gathering(gather: Callable[..., Any], *args: Any, **named: Any) -> Any:
        # What is gathered are the parts of the model, which the first rank logs as a whole.
        return capture.unlogged(lambda: gather(*args, **named))

    wrap(module.FSDPState, "_lazy_init", initialising)
    wrap(module.FSDPState, "_root_post_backward_final_callback", finishing)
    wrap(inside.FSDPParamGroup, "post_backward", backward)
    wrap(inside, "foreach_reduce", reducing)
    wrap(inside, "foreach_all_gather", gathering)


def _groups(root: Any) -> list[Any]:
    found: list[Any] = []
    for state in root._state_ctx.all_states:
        several = getattr(state, "_fsdp_param_groups", None)
        if several is None:
            several = [state._fsdp_param_group]
        found.extend(group for group in several if group is not None)
    return found


def _own(root: Any, number: int, capture: Capture) -> None:
    """Mark the groups of a model, and their parameters, as parts of it."""
    import torch.distributed as dist

    notes: Notes = {"lane": f"fsdp {number}"}
    ranks = list(range(dist.get_world_size()))
    for group in _groups(root):
        mesh = sorted(group.mesh_info.mesh.mesh.flatten().tolist())
        if mesh != ranks:
            ranks = mesh
            notes["group"] = mesh
    inner = root._modules[0]
    model = _Model(capture, inner.named_parameters(), ranks, "fsdp", capture.settings.layers, notes)
    if capture.model is not None:
        capture.model.save_noted(inner)
    for group in _groups(root):
        for part in (group, *group.fsdp_params):
            setattr(part, OWNER, model)


class _Model(HookedModel):
    begun = False  # whether gradients were sent in this step

    @cached_property
    def place(self) -> dict[str, int]:
        return {name: k for k, name in enumerate(self.names)}

    def log_parameters(self, group: Any) -> None:
        """Log the parameters at which a group's gradients were computed, on the first rank."""
        if not self.is_first:
            return
        parts: dict[int, Any] = {}
        for p in group.fsdp_params:
            if hasattr(p, "_unsharded_param") and p.unsharded_param.requires_grad:
                parts[self.place[p._param_fqn]] = p.unsharded_param
        if parts:
            self.log("model", parts, last=False, **self.facts)

    def log_gradients(self, parameters: list[Any], gradients: list[Any], dtype: Any) -> None:
        """Log gradients, before they are reduced, in the number format in which they travel."""
        self.begun = True
        parts: dict[int, Any] = {}
        for p, gradient in zip(parameters, gradients, strict=True):
            parts[self.place[p._param_fqn]] = gradient.to(dtype or gradient.dtype)
        self.log("fsdp", parts, last=False)

    def end(self) -> None:
        """Mark the end of a backward pass, unless it sent nothing."""
        if not self.begun:
            return
        if self.is_first:
            self.log("model", {}, last=True)
        self.log("fsdp", {}, last=True)
        self.step += 1
        self.begun = False
