"""Tap torch.distributed's process groups: log each payload when Python passes it on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from inspect import Signature, signature
from types import ModuleType
from typing import Any

from leakaudit.capture.tap.exchanges import wrap
from leakaudit.capture.tap.log.capture import Capture
from leakaudit.capture.tap.log.layers import flat

# Method of a process group -> the operation, and the place of the tensors among the arguments.
HEARD = {
    "allreduce": ("allreduce", 0),
    "allreduce_coalesced": ("allreduce", 0),
    "broadcast": ("broadcast", 0),
    "reduce": ("reduce", 0),
    "gather": ("gather", 1),
    "allgather": ("allgather", 1),
    "allgather_coalesced": ("allgather", 1),
    "_allgather_base": ("allgather", 1),
    "all_gather_single": ("allgather", 1),
    "allgather_into_tensor_coalesced": ("allgather", 1),
    "all_gather_single_coalesced": ("allgather", 1),
    "reduce_scatter_tensor_coalesced": ("reduce_scatter", 1),
    "reduce_scatter_single_coalesced": ("reduce_scatter", 1),
}
IN_PARTS = {  # method -> the method of `_Calls` that logs tensors that are parts of others
    "send": "send",
    "scatter": "scatter",
    "reduce_scatter": "reduce_scatter",
    "_reduce_scatter_base": "reduce_scatter",
    "reduce_scatter_single": "reduce_scatter",
    "alltoall": "alltoall",
    "alltoall_base": "alltoall_single",
    "all_to_all_single": "alltoall_single",
}
# Functional collectives, which DTensor uses, run in C++ and do not use the process group's Python
# methods. Older versions of torch have only some of the names.
FUNCTIONAL = {
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
ROOTED = ("broadcast", "gather", "reduce")  # operations whose tensors are followed by a root
TENSORS = ("input_tensors", "input_tensor", "input", "tensors", "tensor")  # names of overloads


def listen(module: ModuleType, capture: Capture) -> None:
    """Wrap the methods of ``ProcessGroup``, or the functions, that send or receive tensors."""
    if module.__name__ == "torch.distributed":
        _listen_to_groups(module, capture)
    else:
        _listen_to_functions(module, capture)


def _listen_to_groups(dist: ModuleType, capture: Capture) -> None:
    # Some versions of torch lack some methods.
    if not dist.is_available():
        return
    kind = dist.ProcessGroup
    calls = _Calls(dist, capture)

    def logging(log: Callable[..., None]) -> Callable[..., Any]:
        def call(real: Callable[..., Any], *args: Any, **named: Any) -> Any:
            log(*args, **named)
            return real(*args, **named)

        return call

    heard: dict[str, Callable[..., None]] = {}
    for name, (op, place) in HEARD.items():
        heard[name] = partial(calls.contribute, op, place)
    for name, method in IN_PARTS.items():
        heard[name] = getattr(calls, method)
    for name, log in heard.items():
        if hasattr(kind, name):
            wrap(kind, name, logging(log))
    for name in ("recv", "recv_anysource"):
        if capture.settings.receive and hasattr(kind, name):
            wrap(kind, name, calls.receiving(name == "recv"))


def _listen_to_functions(module: ModuleType, capture: Capture) -> None:
    import torch
    import torch.distributed as dist

    calls = _Calls(dist, capture)

    def logging(op: str, form: Signature) -> Callable[..., Any]:
        def contribute(real: Callable[..., Any], *args: Any, **named: Any) -> Any:
            if torch.compiler.is_compiling():
                return real(*args, **named)
            try:
                calls.functional(module, op, form.bind(*args, **named).arguments)
            except Exception as error:
                why = f"its arguments are not understood: {error}"[:200]
                capture.event(op, None, left_out=why)
            # Some of the functions call others of them.
            return capture.unlogged(lambda: real(*args, **named))

        return contribute

    for name, op in FUNCTIONAL.items():
        if hasattr(module, name):
            wrap(module, name, logging(op, signature(getattr(module, name))))


# The methods of a process group are bound C++ functions with several overloads each: a tensor or a
# list of tensors, an options object or plain numbers, by position or by name, and the names differ
# between the overloads. The signatures below therefore accept any arguments.


class _Calls:
    """Log what this rank contributes: one method per method of a process group, same arguments."""

    def __init__(self, dist: ModuleType, capture: Capture) -> None:
        self.dist = dist
        self.capture = capture

    def send(
        self, group: Any, tensors: Any, dst: int = 0, tag: int = 0, *_: Any, **named: Any
    ) -> None:
        peer = self._world(group, int(named.get("dstRank", dst)))
        for tensor in _several(tensors):
            self._event(group, "send", tensor, peer, int(tag))

    def contribute(self, op: str, place: int, group: Any, *args: Any, **named: Any) -> None:
        peer = None
        if op in ROOTED:
            root = _root(args, named, place + 1)
            receives = root == group.rank()
            if (op == "broadcast" and not receives) or (op == "gather" and receives):
                return
            if op != "broadcast":
                peer = self._world(group, root)
        for tensor in _several(_tensors(args, named, place)):
            self._event(group, op, tensor, peer)

    def scatter(self, group: Any, *args: Any, **named: Any) -> None:
        for parts in _tensors(args, named, 1):
            self._to_each(group, "scatter", _several(parts))

    def reduce_scatter(self, group: Any, *args: Any, **named: Any) -> None:
        """Log the whole contribution as one vector; each rank receives the sum of one part."""
        given = _several(_tensors(args, named, 1))
        if len(given) > 1 and not isinstance(given[0], list | tuple):
            given = [given]  # an overload takes the parts of one contribution as a plain list
        for parts in given:
            several = _several(parts)
            whole = several[0] if len(several) == 1 else flat(several)
            self._event(group, "reduce_scatter", whole)

    def alltoall(self, group: Any, *args: Any, **named: Any) -> None:
        self._to_each(group, "alltoall", _several(_tensors(args, named, 1)))

    def alltoall_single(self, group: Any, *args: Any, **named: Any) -> None:
        given = args[3] if len(args) > 3 else ()
        sizes = named.get("input_split_sizes", named.get("inputSplitSizes", given))
        parts = split(_tensors(args, named, 1), list(sizes or ()), group.size())
        self._to_each(group, "alltoall", parts)

    def functional(self, module: ModuleType, op: str, given: dict[str, Any]) -> None:
        name = module._resolve_group_name(given["group"], given.get("tag", ""))
        group = self.dist.distributed_c10d._resolve_process_group(name)
        tensors = given.get("self", given.get("inputs"))
        # The source of a broadcast counts within the group.
        if op == "broadcast" and group.rank() != given["src"]:
            return
        if op == "alltoall":
            sizes = given.get("input_split_sizes") or ()
            self._to_each(group, op, split(_plain(tensors), sizes, group.size()))
            return
        for tensor in _several(tensors):
            self._event(group, op, _plain(tensor))

    def _to_each(self, group: Any, op: str, parts: Sequence[Any]) -> None:
        for place, tensor in enumerate(parts):
            if place != group.rank():
                self._event(group, op, tensor, self._world(group, place))

    def _event(
        self, group: Any, op: str, tensor: Any, peer: int | None = None, tag: int = 0
    ) -> None:
        if not self.capture.listens:
            return
        notes = group_notes(self.dist, group)
        if self.capture.training is not None:
            notes |= self.capture.training.sends(op, tensor)
        self.capture.event(op, tensor, peer, tag, **notes)

    def receiving(self, named: bool) -> Callable[..., Any]:

        def receive(real: Callable[..., Any], group: Any, tensors: Any, *args: Any) -> Any:
            def arrived() -> None:
                src = self._world(group, int(args[0])) if named else None
                for tensor in _several(tensors):
                    self._event(group, "recv", tensor, src, int(args[-1]))

            return _Work(real(group, tensors, *args), arrived)

        return receive

    def _world(self, group: Any, rank: int) -> int:
        try:
            return int(self.dist.get_global_rank(group, rank))
        except (ValueError, RuntimeError, KeyError):
            return rank


class _Work:
    """A pending receive: calls a function once, when its buffer is known to be complete."""

    def __init__(self, work: Any, arrived: Callable[[], None]) -> None:
        self._work = work
        self._arrived: Callable[[], None] | None = arrived

    def wait(self, *args: Any, **named: Any) -> Any:
        done = self._work.wait(*args, **named)
        arrived = self._arrived
        self._arrived = None
        if arrived is not None:
            arrived()
        return done

    def __getattr__(self, name: str) -> Any:
        return getattr(self._work, name)


def group_notes(dist: ModuleType, group: Any) -> dict[str, Any]:
    """Return the notes that tell the messages of a process group from those of other groups."""
    world = dist.group.WORLD
    name = group.group_name
    if world is not None and name == world.group_name:
        return {}
    ranks = [int(rank) for rank in dist.get_process_group_ranks(group)]
    return {"lane": f"group {name}", "group": ranks}


def split(whole: Any, sizes: Sequence[int], count: int) -> Sequence[Any]:
    """Return the parts of a tensor for each rank of a group."""
    parts: Sequence[Any] = whole.split(list(sizes)) if sizes else whole.chunk(count)
    return parts


def _root(args: Sequence[Any], named: dict[str, Any], place: int) -> int:
    """Return the root of a collective call, which is a number or a field of its options."""
    given = args[place] if place < len(args) else 0
    root = named.get("opts", named.get("root", given))
    return int(getattr(root, "rootRank", root))


def _tensors(args: Sequence[Any], named: dict[str, Any], place: int) -> Any:
    """Return what a call passes on, by its place or by one of the names of its overloads."""
    for name in TENSORS:
        if name in named:
            return named[name]
    return args[place] if place < len(args) else ()


def _plain(tensor: Any) -> Any:
    """Return the result of an earlier collective as a plain tensor, once it is there."""
    if hasattr(tensor, "trigger_wait"):
        return tensor.trigger_wait()
    return tensor


def _several(tensors: Any) -> Sequence[Any]:
    if isinstance(tensors, list | tuple):
        return tensors
    return (tensors,)
