"""Listen to torch.distributed's process groups: the calls that Python makes, each payload as it is when it is handed over."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from types import ModuleType
from typing import Any

from leakaudit.capture.tap.capture import Capture

UNHEARD = (
    "alltoall",
    "alltoall_base",
    "reduce_scatter",
    "_reduce_scatter_base",
    "allreduce_coalesced",
    "allgather_into_tensor_coalesced",
)


def listen(dist: ModuleType, capture: Capture) -> None:
    """Wrap the methods of ``dist.ProcessGroup`` that carry tensors."""
    if not dist.is_available():
        return
    kind, ear = dist.ProcessGroup, _Ear(dist, capture)
    for name in (
        "send",
        "allreduce",
        "broadcast",
        "allgather",
        "_allgather_base",
        "gather",
        "reduce",
        "scatter",
    ):
        _wrap(kind, name, getattr(ear, name.removeprefix("_")))
    for name in UNHEARD:
        _wrap(kind, name, ear.unheard(name))
    if capture.receive:
        for name in ("recv", "recv_anysource"):
            if (real := getattr(kind, name, None)) is not None:
                setattr(kind, name, ear.receiving(real, name == "recv"))


def _wrap(kind: Any, name: str, before: Callable[..., None]) -> None:
    real = getattr(kind, name, None)
    if real is None:
        return

    @wraps(real)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        before(self, *args, **kwargs)
        return real(self, *args, **kwargs)

    setattr(kind, name, method)


class _Ear:
    """One method for every method of a process group; it takes the same arguments and logs what this rank contributes."""

    def __init__(self, dist: ModuleType, capture: Capture) -> None:
        self.dist, self.capture = dist, capture

    def send(
        self, group: Any, tensors: Any, dst: int = 0, tag: int = 0, *_: Any, **named: Any
    ) -> None:
        for tensor in _several(tensors):
            self.capture.event(
                "send", tensor, self._world(group, int(named.get("dstRank", dst))), int(tag)
            )

    def allreduce(self, group: Any, tensors: Any = None, *_: Any, **named: Any) -> None:
        for tensor in _several(named.get("tensor", tensors)):
            self.capture.event("allreduce", tensor)

    def broadcast(
        self, group: Any, tensors: Any = None, options: Any = 0, *_: Any, **named: Any
    ) -> None:
        root = self._root(named.get("opts", named.get("root", options)))
        if root == group.rank():
            for tensor in _several(named.get("tensor", tensors)):
                self.capture.event("broadcast", tensor)

    def allgather(
        self, group: Any, output: Any, tensors: Any = None, *_: Any, **named: Any
    ) -> None:
        for tensor in _several(named.get("input_tensors", named.get("input_tensor", tensors))):
            self.capture.event("allgather", tensor)

    def allgather_base(
        self, group: Any, output: Any, tensor: Any = None, *_: Any, **named: Any
    ) -> None:
        self.capture.event("allgather", named.get("input", tensor))

    def gather(
        self, group: Any, output: Any, tensors: Any = None, options: Any = 0, *_: Any, **named: Any
    ) -> None:
        root = self._root(named.get("opts", named.get("root", options)))
        for tensor in (
            _several(named.get("input_tensors", named.get("input_tensor", tensors)))
            if root != group.rank()
            else ()
        ):
            self.capture.event("gather", tensor, self._world(group, root))

    def reduce(
        self, group: Any, tensors: Any = None, options: Any = 0, *_: Any, **named: Any
    ) -> None:
        root = self._root(named.get("opts", named.get("root", options)))
        for tensor in _several(named.get("tensor", tensors)):
            self.capture.event("reduce", tensor, self._world(group, root))

    def scatter(
        self, group: Any, output: Any, tensors: Any = (), options: Any = 0, *_: Any, **named: Any
    ) -> None:
        for parts in named.get("input_tensors", tensors):
            for place, tensor in enumerate(_several(parts)):
                if place != group.rank():
                    self.capture.event("scatter", tensor, self._world(group, place))

    def unheard(self, name: str) -> Callable[..., None]:
        """Return what logs that a call was made, and nothing of what it carried."""

        def before(*_: Any, **__: Any) -> None:
            self.capture.event(name.strip("_"), None, left_out="this call is not listened to")

        return before

    def receiving(self, real: Callable[..., Any], named: bool) -> Callable[..., Any]:
        """Return the method that logs what arrived once somebody has waited for it."""

        @wraps(real)
        def method(group: Any, tensors: Any, *args: Any) -> Any:
            def arrived() -> None:
                src = self._world(group, int(args[0])) if named else None
                for tensor in _several(tensors):
                    self.capture.event("recv", tensor, src, int(args[-1]))

            return _Work(real(group, tensors, *args), arrived)

        return method

    def _root(self, options: Any) -> int:
        return int(
            getattr(options, "rootRank", options) if not isinstance(options, int) else options
        )

    def _world(self, group: Any, rank: int) -> int:
        """Return a group's rank as a rank of the whole program."""
        try:
            return int(self.dist.get_global_rank(group, rank))
        except (ValueError, RuntimeError, KeyError):
            return rank


class _Work:
    """A pending receive: copies the buffer when it is known to be full, once."""

    def __init__(self, work: Any, arrived: Callable[[], None]) -> None:
        self._work, self._arrived = work, arrived

    def wait(self, *args: Any, **named: Any) -> Any:
        done = self._work.wait(*args, **named)
        if self._arrived is not None:
            arrived, self._arrived = self._arrived, lambda: None
            arrived()
        return done

    def __getattr__(self, name: str) -> Any:
        return getattr(self._work, name)


def _several(tensors: Any) -> Sequence[Any]:
    return tensors if isinstance(tensors, list | tuple) else (tensors,)
