"""Tap torch.distributed's process groups: log each payload when Python passes it on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from types import ModuleType
from typing import Any

from leakaudit.capture.tap.log.capture import Capture

HEARD = {  # method of a process group -> the method of `_Calls` that logs its tensors
    "send": "send",
    "allreduce": "allreduce",
    "allreduce_coalesced": "allreduce",
    "broadcast": "broadcast",
    "allgather": "allgather",
    "allgather_coalesced": "allgather",
    "_allgather_base": "allgather",
    "all_gather_single": "allgather",
    "allgather_into_tensor_coalesced": "allgather",
    "all_gather_single_coalesced": "allgather",
    "gather": "gather",
    "reduce": "reduce",
    "scatter": "scatter",
    "reduce_scatter": "reduce_scatter",
    "_reduce_scatter_base": "reduce_scatter",
    "reduce_scatter_single": "reduce_scatter",
    "reduce_scatter_tensor_coalesced": "reduce_scatter_coalesced",
    "reduce_scatter_single_coalesced": "reduce_scatter_coalesced",
    "alltoall": "alltoall",
    "alltoall_base": "alltoall_single",
    "all_to_all_single": "alltoall_single",
}


def listen(dist: ModuleType, capture: Capture) -> None:
    """Wrap the methods of ``dist.ProcessGroup`` that send or receive tensors."""
    if not dist.is_available():
        return
    kind = dist.ProcessGroup
    calls = _Calls(dist, capture)
    for name, method in HEARD.items():
        _wrap(kind, name, getattr(calls, method))
    if not capture.receive:
        return
    for name in ("recv", "recv_anysource"):
        real = getattr(kind, name, None)
        if real is not None:
            setattr(kind, name, calls.receiving(real, name == "recv"))


def _wrap(kind: Any, name: str, before: Callable[..., None]) -> None:
    """Make a method of a class call `before` first; some torch versions lack some methods."""
    real = getattr(kind, name, None)
    if real is None:
        return

    @wraps(real)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        before(self, *args, **kwargs)
        return real(self, *args, **kwargs)

    setattr(kind, name, method)


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

    def allreduce(self, group: Any, tensors: Any = None, *_: Any, **named: Any) -> None:
        for tensor in _several(named.get("tensor", tensors)):
            self._event(group, "allreduce", tensor)

    def broadcast(
        self, group: Any, tensors: Any = None, options: Any = 0, *_: Any, **named: Any
    ) -> None:
        if _root(options, named) != group.rank():
            return
        for tensor in _several(named.get("tensor", tensors)):
            self._event(group, "broadcast", tensor)

    def allgather(
        self, group: Any, output: Any, tensors: Any = None, *_: Any, **named: Any
    ) -> None:
        for tensor in _several(_input(tensors, named)):
            self._event(group, "allgather", tensor)

    def gather(
        self, group: Any, output: Any, tensors: Any = None, options: Any = 0, *_: Any, **named: Any
    ) -> None:
        root = _root(options, named)
        if root == group.rank():
            return
        for tensor in _several(_input(tensors, named)):
            self._event(group, "gather", tensor, self._world(group, root))

    def reduce(
        self, group: Any, tensors: Any = None, options: Any = 0, *_: Any, **named: Any
    ) -> None:
        peer = self._world(group, _root(options, named))
        for tensor in _several(named.get("tensor", tensors)):
            self._event(group, "reduce", tensor, peer)

    def scatter(
        self, group: Any, output: Any, tensors: Any = (), options: Any = 0, *_: Any, **named: Any
    ) -> None:
        for parts in named.get("input_tensors", tensors):
            self._to_each(group, "scatter", _several(parts))

    def reduce_scatter(
        self, group: Any, output: Any, tensors: Any = None, *_: Any, **named: Any
    ) -> None:
        """Log the whole contribution as one vector; each rank receives the sum of one part."""
        given = _several(_input(tensors, named))
        if len(given) > 1 and not isinstance(given[0], list | tuple):
            given = [given]  # an overload takes the parts of one contribution as a plain list
        for parts in given:
            self._event(group, "reduce_scatter", joined(_several(parts)))

    def reduce_scatter_coalesced(
        self, group: Any, outputs: Any, tensors: Any = (), *_: Any, **named: Any
    ) -> None:
        for tensor in _several(named.get("input_tensors", tensors)):
            self._event(group, "reduce_scatter", tensor)

    def alltoall(self, group: Any, output: Any, tensors: Any = (), *_: Any, **named: Any) -> None:
        self._to_each(group, "alltoall", _several(_input(tensors, named)))

    def alltoall_single(
        self,
        group: Any,
        output: Any,
        tensor: Any = None,
        received: Any = (),
        sent: Any = (),
        *_: Any,
        **named: Any,
    ) -> None:
        whole = named.get("input", tensor)
        splits = named.get("input_split_sizes", named.get("inputSplitSizes", sent))
        parts = split(whole, list(splits or ()), group.size())
        self._to_each(group, "alltoall", parts)

    def _to_each(self, group: Any, op: str, parts: Sequence[Any]) -> None:
        """Log one part for each other rank of the group."""
        for place, tensor in enumerate(parts):
            if place != group.rank():
                self._event(group, op, tensor, self._world(group, place))

    def _event(
        self, group: Any, op: str, tensor: Any, peer: int | None = None, tag: int = 0
    ) -> None:
        self.capture.event(op, tensor, peer, tag, **group_notes(self.dist, group))

    def receiving(self, real: Callable[..., Any], named: bool) -> Callable[..., Any]:
        """Return a method that logs a received message once the program has waited for it."""

        @wraps(real)
        def method(group: Any, tensors: Any, *args: Any) -> Any:
            def arrived() -> None:
                src = self._world(group, int(args[0])) if named else None
                for tensor in _several(tensors):
                    self._event(group, "recv", tensor, src, int(args[-1]))

            return _Work(real(group, tensors, *args), arrived)

        return method

    def _world(self, group: Any, rank: int) -> int:
        """Return a group's rank as a rank of the whole program."""
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


def joined(parts: Sequence[Any]) -> Any:
    """Return tensors as one vector, without a copy if there is only one."""
    if len(parts) == 1:
        return parts[0]
    import torch

    return torch.cat([part.detach().reshape(-1) for part in parts])


def split(whole: Any, sizes: Sequence[int], count: int) -> Sequence[Any]:
    """Return the parts of a tensor for each rank of a group."""
    parts: Sequence[Any] = whole.split(list(sizes)) if sizes else whole.chunk(count)
    return parts


def _root(options: Any, named: dict[str, Any]) -> int:
    """Return the root of a collective call, which is a number or a field of its options."""
    found = named.get("opts", named.get("root", options))
    if isinstance(found, int):
        return int(found)
    return int(getattr(found, "rootRank", found))


def _input(tensors: Any, named: dict[str, Any]) -> Any:
    """Return what a collective call passes on, under one of the names of its overloads."""
    for name in ("input_tensors", "input_tensor", "input"):
        if name in named:
            return named[name]
    return tensors


def _several(tensors: Any) -> Sequence[Any]:
    if isinstance(tensors, list | tuple):
        return tensors
    return (tensors,)
