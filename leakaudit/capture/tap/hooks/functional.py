"""Tap torch's functional collectives, which DTensor uses."""

# Their operations run in C++ and do not use the process group's Python methods.

from __future__ import annotations

from collections.abc import Callable
from inspect import Signature, signature
from types import ModuleType
from typing import Any

from leakaudit.capture.tap.exchanges import wrap
from leakaudit.capture.tap.hooks.group import group_notes, split
from leakaudit.capture.tap.log.capture import Capture

HEARD = {  # function -> op; older versions of torch have only some of the names
    "all_reduce": "allreduce",
    "all_reduce_coalesced": "allreduce",
    "all_gather_single": "allgather",
    "all_gather_tensor": "allgather",
    "all_gather_tensor_autograd": "allgather",
    "all_gather_single_coalesced": "allgather",
    "all_gather_into_tensor_coalesced": "allgather",
    "reduce_scatter_single": "reduce_scatter",
    "reduce_scatter_tensor": "reduce_scatter",
    "reduce_scatter_tensor_autograd": "reduce_scatter",
    "reduce_scatter_single_coalesced": "reduce_scatter",
    "reduce_scatter_tensor_coalesced": "reduce_scatter",
    "all_to_all_single": "alltoall",
    "all_to_all_single_autograd": "alltoall",
    "broadcast": "broadcast",
}


def listen(module: ModuleType, capture: Capture) -> None:
    """Wrap the functions that send tensors, to log what this rank contributes."""
    import torch
    import torch.distributed as dist

    def logging(op: str, form: Signature) -> Callable[..., Any]:
        def contribute(real: Callable[..., Any], *args: Any, **named: Any) -> Any:
            if torch.compiler.is_compiling():
                return real(*args, **named)
            try:
                given = form.bind(*args, **named).arguments
                _log(module, dist, capture, op, given)
            except Exception as error:
                why = f"its arguments are not understood: {error}"[:200]
                capture.event(op, None, left_out=why)
            # Some of the functions call others of them.
            return capture.unlogged(lambda: real(*args, **named))

        return contribute

    for name, op in HEARD.items():
        if hasattr(module, name):
            wrap(module, name, logging(op, signature(getattr(module, name))))


def _log(
    module: ModuleType, dist: ModuleType, capture: Capture, op: str, given: dict[str, Any]
) -> None:
    name = module._resolve_group_name(given["group"], given.get("tag", ""))
    group = dist.distributed_c10d._resolve_process_group(name)
    notes = group_notes(dist, group)
    tensors = given.get("self", given.get("inputs"))
    # The source of a broadcast counts within the group.
    if op == "broadcast" and dist.get_rank() != dist.get_global_rank(group, given["src"]):
        return
    if op == "alltoall":
        parts = split(_plain(tensors), given.get("input_split_sizes") or (), group.size())
        for place, part in enumerate(parts):
            if place != group.rank():
                peer = int(dist.get_global_rank(group, place))
                capture.event(op, part, peer, **notes)
        return
    if not isinstance(tensors, list | tuple):
        tensors = [tensors]
    for tensor in tensors:
        capture.event(op, _plain(tensor), **notes)


def _plain(tensor: Any) -> Any:
    """Return the result of an earlier collective as a plain tensor, once it is there."""
    if hasattr(tensor, "trigger_wait"):
        return tensor.trigger_wait()
    return tensor
