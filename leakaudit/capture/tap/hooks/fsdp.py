"""Tap FSDP2 (`fully_shard`): each rank's own gradients before they are reduced and scattered.

The gradients travel in one padded buffer per group of parameters. The tap logs the gradients
instead, in the number format in which they travel.
"""

from __future__ import annotations

from functools import wraps
from inspect import signature
from itertools import count
from types import ModuleType
from typing import Any

from leakaudit.capture.fitting.sketch import RunningSketch
from leakaudit.capture.tap.hooks.ddp import flat, names
from leakaudit.capture.tap.log.capture import Capture, Notes
from leakaudit.capture.tap.log.layers import NOTE, REST, WHOLE

OWNER = "_leakaudit_tapped"  # attribute of a group of parameters: the model to which it belongs


def listen(module: ModuleType, capture: Capture) -> None:
    """Wrap the functions that gather parameters and reduce gradients.

    Args:
        module: torch.distributed.fsdp._fully_shard._fsdp_state.
    """
    from torch.distributed.fsdp._fully_shard import _fsdp_param_group

    inside: Any = _fsdp_param_group  # not a public module
    kind = inside.FSDPParamGroup
    state_kind = module.FSDPState
    numbers = count()
    initialise = state_kind._lazy_init
    finish = state_kind._root_post_backward_final_callback
    after_backward = kind.post_backward
    gather = inside.foreach_all_gather
    reduce = inside.foreach_reduce
    form = signature(reduce)

    @wraps(initialise)
    def initialising(self: Any) -> None:
        fresh = self._is_root is None
        initialise(self)
        if fresh and self._is_root:
            capture.safely(_own, self, next(numbers), capture)

    @wraps(finish)
    def finishing(self: Any) -> Any:
        done = finish(self)
        for group in groups(self)[:1]:
            model = getattr(group, OWNER, None)
            if model is not None:
                capture.safely(model.end)
        return done

    @wraps(after_backward)
    def backward(self: Any, *unused: Any) -> Any:
        model = getattr(self, OWNER, None)
        if model is not None and self.reduce_grads:
            capture.safely(model.log_parameters, self)
        return after_backward(self, *unused)

    @wraps(reduce)
    def reducing(*args: Any, **named: Any) -> Any:
        given = form.bind(*args, **named).arguments
        parameters = given["fsdp_params"]
        model = getattr(parameters[0], OWNER, None)
        if model is None:
            return reduce(*args, **named)
        gradients = given["unsharded_grads"]
        capture.safely(model.log_gradients, parameters, gradients, given["reduce_dtype"])
        return capture.unlogged(lambda: reduce(*args, **named))

    @wraps(gather)
    def gathering(*args: Any, **named: Any) -> Any:
        # What is gathered are the parts of the model, which the first rank logs as a whole.
        return capture.unlogged(lambda: gather(*args, **named))

    state_kind._lazy_init = initialising
    state_kind._root_post_backward_final_callback = finishing
    kind.post_backward = backward
    inside.foreach_reduce = reducing
    inside.foreach_all_gather = gathering


def groups(root: Any) -> list[Any]:
    """Return all groups of parameters of a model."""
    found: list[Any] = []
    for state in root._state_ctx.all_states:
        several = getattr(state, "_fsdp_param_groups", None)
        if several is None:
            several = [state._fsdp_param_group]
        found.extend(group for group in several if group is not None)
    return found


def _own(root: Any, number: int, capture: Capture) -> None:
    """Mark the groups of a model as parts of it."""
    model = _Model(root, number, capture)
    if capture.model is not None:
        why = "its parameters are sharded, each process holds a part of them"
        capture.model.save(root._modules[0], None, why)
    for group in groups(root):
        setattr(group, OWNER, model)


class _Model:
    """One model that is sharded with FSDP2."""

    def __init__(self, root: Any, number: int, capture: Capture) -> None:
        import torch.distributed as dist

        self.capture = capture
        self.named = list(root._modules[0].named_parameters())
        self.place = {name: k for k, (name, _) in enumerate(self.named)}
        self.notes: Notes = {"lane": f"fsdp {number}", "of": len(self.named)}
        self.ranks = list(range(dist.get_world_size()))
        self.sizes = [p.numel() for _, p in self.named]
        self.step = 0
        self.begun = False
        for group in groups(root):
            mesh = sorted(group.mesh_info.mesh.mesh.flatten().tolist())
            if mesh != self.ranks:
                self.ranks = mesh
                self.notes["group"] = mesh
            for parameter in group.fsdp_params:
                setattr(parameter, OWNER, self)
        self.trained = [k for k, (_, p) in enumerate(self.named) if p.requires_grad]
        self.selection = capture.selection(
            [name for name, _ in self.named],
            self.sizes,
            capture.layers,
            self.trained,
            self.notes["lane"] if capture.rank == self.ranks[0] else "",
        )
        self.running: dict[str, RunningSketch] = {}  # by operation
        if self.selection is not None:
            self.notes[NOTE] = True
        if self.selection is not None and self.selection.sketch is not None:
            for op in ("model", "fsdp"):
                self.running[op] = RunningSketch(self.selection.sketch)

    def log_parameters(self, group: Any) -> None:
        """Log the parameters at which a group's gradients were computed, on the first rank."""
        if self.capture.rank != self.ranks[0]:
            return
        held = [p for p in group.fsdp_params if hasattr(p, "_unsharded_param")]
        trained = [p for p in held if p.unsharded_param.requires_grad]
        kept = [p for p in trained if self._is_chosen(p)]
        if kept:
            values = [p.unsharded_param for p in kept]
            self._event("model", kept, flat(values), **self._facts())
        others = [p for p in trained if not self._is_chosen(p)]
        if not others or not self._sketches("model"):
            return
        if self.step != self.capture.first:
            for p in others:
                self.running["model"].add(self.place[p._param_fqn], p.unsharded_param)
        else:
            whole = flat([p.unsharded_param for p in others])
            self._event("model", others, whole, **{REST: WHOLE})

    def log_gradients(self, parameters: list[Any], gradients: list[Any], dtype: Any) -> None:
        """Log gradients before they are reduced.

        Args:
            dtype: number format in which they travel; None for their own.
        """
        self.begun = True
        pairs = list(zip(parameters, gradients, strict=True))
        kept = [(p, gradient) for p, gradient in pairs if self._is_chosen(p)]
        for p, gradient in pairs:
            if self._sketches("fsdp") and not self._is_chosen(p):
                sent = gradient.to(dtype or gradient.dtype)
                self.running["fsdp"].add(self.place[p._param_fqn], sent)
        if kept:
            value = flat([gradient for _, gradient in kept])
            self._event("fsdp", [p for p, _ in kept], value.to(dtype or value.dtype))

    def end(self) -> None:
        """Mark the end of a backward pass, unless it sent nothing."""
        if not self.begun:
            return
        import torch

        for op in ("model", "fsdp"):
            if op == "fsdp" or self.capture.rank == self.ranks[0]:
                self.capture.rest(op, self.running.get(op), self.step, **self.notes)
                self._event(op, [], torch.empty(0), last=True)
        self.step += 1
        self.begun = False

    def _sketches(self, op: str) -> bool:
        return op in self.running and self.capture.sketches(self.step)

    def _is_chosen(self, parameter: Any) -> bool:
        if self.selection is None:
            return True
        return self.place[parameter._param_fqn] in self.selection.kept

    def _event(self, op: str, parameters: list[Any], value: Any, **notes: Any) -> None:
        places = [self.place[p._param_fqn] for p in parameters]
        notes = {"last": False, **self.notes, **notes}
        self.capture.event(op, value, at=self.step, parameters=places, **notes)

    def _facts(self) -> Notes:
        """Return the sizes of all parameters, and their names in the first step."""
        notes: Notes = {"sizes": self.sizes}
        if not self.step:
            notes |= names([name for name, _ in self.named], self.trained)
        return notes
