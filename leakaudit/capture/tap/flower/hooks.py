"""Install the tap in the modules of Flower, each right after its import."""

# `hooks` lists the modules. All of these functions are called by name, so that what a version of
# flwr lacks is not tapped and what it has is.

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from types import ModuleType
from typing import Any

from leakaudit.capture.tap.exchanges import note_once, wrap
from leakaudit.capture.tap.flower.messages import FlowerServerTap
from leakaudit.capture.tap.log.capture import SPENT, Capture
from leakaudit.capture.tap.log.environment import ENDS, LAUNCHER

MODS = ("fixedclipping_mod", "adaptiveclipping_mod", "secagg_mod", "secaggplus_mod")

_taps: dict[int, FlowerServerTap] = {}


def listen(module: ModuleType, capture: Capture) -> None:
    """Tap a module of flwr."""
    name = module.__name__.rpartition(".")[2]
    if name == "grid":
        _tap_grids(module, _tap(capture))
    elif name == "vce_api":
        _tap_simulation(module, _tap(capture))
    elif name == "grpc_client_proxy":
        wrap(module.GrpcClientProxy, "fit", _tap(capture).fit)
    elif name == "client_app":
        wrap(module.ClientApp, "__call__", _noting_partition(capture))
    elif name == "constant":
        module.LOCAL_SUPERLINK_HTTP_API_PORT = str(_free_port())  # type: ignore[attr-defined]
        module.LOCAL_CONTROL_API_ADDRESS = f"127.0.0.1:{_free_port()}"  # type: ignore[attr-defined]
    elif name == "local_superlink":
        _start_own_superlink(module)
    else:
        _note_mods(module, capture)


def _tap(capture: Capture) -> FlowerServerTap:
    return _taps.setdefault(id(capture), FlowerServerTap(capture))


def _tap_grids(module: ModuleType, tap: FlowerServerTap) -> None:
    base = module.Grid

    def tapped(cls: type, /, **named: Any) -> None:
        super(base, cls).__init_subclass__(**named)
        if "push_messages" in vars(cls):
            wrap(cls, "push_messages", tap.push)
        if "pull_messages" in vars(cls):
            wrap(cls, "pull_messages", tap.pull)

    base.__init_subclass__ = classmethod(tapped)


def _tap_simulation(module: ModuleType, tap: FlowerServerTap) -> None:

    def register(function: Callable[..., Any], *args: Any, **named: Any) -> Any:
        nodes = function(*args, **named)
        tap.talk.partitions = dict(nodes)
        return nodes

    wrap(module, "_register_nodes", register)


def _note_mods(module: ModuleType, capture: Capture) -> None:

    def tap_mod(owner: Any, name: str, mod: str) -> None:
        def noting(function: Callable[..., Any], *args: Any, **named: Any) -> Any:
            note_once(capture.folder, "mod", mod=mod)
            if mod == "LocalDpMod":
                capture.safely(_note_epsilon, args[0], capture)
            return function(*args, **named)

        wrap(owner, name, noting)

    if hasattr(module, "LocalDpMod"):
        tap_mod(module.LocalDpMod, "__call__", "LocalDpMod")
    for name in MODS:
        if hasattr(module, name):
            tap_mod(module, name, name)


def _note_epsilon(mod: Any, capture: Capture) -> None:
    """Note once per process the epsilon that a client's mod states."""
    note_once(
        capture.folder,
        SPENT,
        by="Flower's LocalDpMod",
        epsilon=float(mod.epsilon),
        delta=float(mod.delta),
        clip=float(mod.clipping_norm),
        sensitivity=float(mod.sensitivity),
    )


def _noting_partition(capture: Capture) -> Callable[..., Any]:
    """Note once per process which partition its client has, if its configuration says so."""

    def note(context: Any) -> None:
        partition = context.node_config.get("partition-id")
        if type(partition) is int:
            node = str(context.node_id)
            note_once(capture.folder, "client", node=node, partition=partition)

    def call(function: Callable[..., Any], app: Any, message: Any, context: Any) -> Any:
        capture.safely(note, context)
        return function(app, message, context)

    return call


# `flwr run` gives its work to a SuperLink that it leaves running in the background. One that runs
# already is not tapped, and must not be: so a tapped `flwr run` starts one of its own, on free
# ports and with its state in memory, which ends with the tap.


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


def _start_own_superlink(module: ModuleType) -> None:
    def start(function: Callable[..., Any], *_: Any, **__: Any) -> Any:
        os.environ[ENDS] = os.environ.get(LAUNCHER, str(os.getpid()))
        try:
            return function(True)
        finally:
            del os.environ[ENDS]

    wrap(module, "_start_local_superlink", start)
