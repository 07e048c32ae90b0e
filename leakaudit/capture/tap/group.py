"""Tap torch.distributed's process groups: log each payload when Python passes it on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from types import ModuleType
from typing import Any

from leakaudit.capture.tap.capture import Capture

HEARD = (  # methods of a process group that log their tensors
    "send",
    "allreduce",
    "broadcast",
    "allgather",
    "_allgather_base",
    "gather",
    "reduce",
    "scatter",
)
UNHEARD = (  # methods that only log the call
    "alltoall",
    "alltoall_base",
    "reduce_scatter",
    "_reduce_scatter_base",
    "allreduce_coalesced",
    "allgather_into_tensor_coalesced",
)


def listen(dist: ModuleType, capture: Capture) -> None:
    """Wrap the methods of ``dist.ProcessGroup`` that send or receive tensors.

    Args:
        dist: torch.distributed.
        capture: the tap of this process.
    """
    if not dist.is_available():
        return
    kind = dist.ProcessGroup
    calls = _Calls(dist, capture)
    for name in HEARD:
        _wrap(kind, name, getattr(calls, name.removeprefix("_")))
    for name in UNHEARD:
        _wrap(kind, name, calls.unheard(name))
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
    """Log what this rank contributes: one method per method of a process group, same arguments.

    Args:
        dist: torch.distributed.
        capture: the tap of this process.
    """

    def __init__(self, dist: ModuleType, capture: Capture) -> None:
        self.dist = dist
        self.capture = capture

    def send(
        self, group: Any, tensors: Any, dst: int = 0, tag: int = 0, *_: Any, **named: Any
    ) -> None:
        peer = self._world(group, int(named.get("dstRank", dst)))
        for tensor in _several(tensors):
            self.capture.event("send", tensor, peer, int(tag))

    def allreduce(self, group: Any, tensors: Any = None, *_: Any, **named: Any) -> None:
        for tensor in _several(named.get("tensor", tensors)):
            self.capture.event("allreduce", tensor)

    def broadcast(
        self, group: Any, tensors: Any = None, options: Any = 0, *_: Any, **named: Any
    ) -> None:
        if _root(options, named) != group.rank():
            return
        for tensor in _several(named.get("tensor", tensors)):
            self.capture.event("broadcast", tensor)

    def allgather(
        self, group: Any, output: Any, tensors: Any = None, *_: Any, **named: Any
    ) -> None:
        for tensor in _several(_input(tensors, named)):
            self.capture.event("allgather", tensor)

    def allgather_base(
        self, group: Any, output: Any, tensor: Any = None, *_: Any, **named: Any
    ) -> None:
        self.capture.event("allgather", named.get("input", tensor))

    def gather(
        self, group: Any, output: Any, tensors: Any = None, options: Any = 0, *_: Any, **named: Any
    ) -> None:
        root = _root(options, named)
        if root == group.rank():
            return
        for tensor in _several(_input(tensors, named)):
            self.capture.event("gather", tensor, self._world(group, root))

    def reduce(
        self, group: Any, tensors: Any = None, options: Any = 0, *_: Any, **named: Any
    ) -> None:
        peer = self._world(group, _root(options, named))
        for tensor in _several(named.get("tensor", tensors)):
            self.capture.event("reduce", tensor, peer)

    def scatter(
        self, group: Any, output: Any, tensors: Any = (), options: Any = 0, *_: Any, **named: Any
    ) -> None:
        for parts in named.get("input_tensors", tensors):
            for place, tensor in enumerate(_several(parts)):
                if place != group.rank():
                    self.capture.event("scatter", tensor, self._world(group, place))

    def unheard(self, name: str) -> Callable[..., None]:
        """Return a function that only logs that a call was made."""
        op = name.strip("_")

        def before(*_: Any, **__: Any) -> None:
            self.capture.event(op, None, left_out="an unsupported operation")

        return before

    def receiving(self, real: Callable[..., Any], named: bool) -> Callable[..., Any]:
        """Return a method that logs a received message once the program has waited for it.

        Args:
            real: the method to call.
            named: whether the call names the sender.
        """

        @wraps(real)
        def method(group: Any, tensors: Any, *args: Any) -> Any:
            def arrived() -> None:
                src = self._world(group, int(args[0])) if named else None
                for tensor in _several(tensors):
                    self.capture.event("recv", tensor, src, int(args[-1]))

            return _Work(real(group, tensors, *args), arrived)

        return method

    def _world(self, group: Any, rank: int) -> int:
        """Return a group's rank as a rank of the whole program."""
        try:
            return int(self.dist.get_global_rank(group, rank))
        except (ValueError, RuntimeError, KeyError):
            return rank


class _Work:
    """A pending receive: calls a function once, when its buffer is known to be complete.

    Args:
        work: the pending receive of the process group.
        arrived: the function.
    """

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


def _root(options: Any, named: dict[str, Any]) -> int:
    """Return the root of a collective call, which is a number or a field of its options."""
    found = named.get("opts", named.get("root", options))
    if isinstance(found, int):
        return int(found)
    return int(getattr(found, "rootRank", found))


def _input(tensors: Any, named: dict[str, Any]) -> Any:
    return named.get("input_tensors", named.get("input_tensor", tensors))


def _several(tensors: Any) -> Sequence[Any]:
    if isinstance(tensors, list | tuple):
        return tensors
    return (tensors,)
