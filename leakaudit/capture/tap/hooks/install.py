"""Wait for torch.distributed and other frameworks to be imported, then tap them.

`site/sitecustomize` installs this in every process of a tapped program.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import import_module
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType

from leakaudit.capture.tap.exchanges import wrap
from leakaudit.capture.tap.log.environment import ENDS, VARIABLE

POLL = 0.5  # seconds between two looks at another process: a choice
HOOKS = {  # module of ours -> the modules that its `listen` taps; not every version has all of them
    "hooks.group": ("torch.distributed", "torch.distributed._functional_collectives"),
    "hooks.ddp": ("torch.nn.parallel.distributed",),
    "hooks.fsdp": ("torch.distributed.fsdp._fully_shard._fsdp_state",),
    "hooks.opacus": (  # modules in which optimisers and the engine are defined
        "opacus.optimizers.optimizer",
        "opacus.optimizers.optimizer_fast_gradient_clipping",
        "opacus.optimizers.adaclipoptimizer",
        "opacus.optimizers.ddpoptimizer",
        "opacus.optimizers.ddpoptimizer_fast_gradient_clipping",
        "opacus.optimizers.fsdpoptimizer_fast_gradient_clipping",
        "opacus.privacy_engine",
    ),
    "flower.hooks": (
        "flwr.serverapp.grid.grid",
        "flwr.server.superlink.fleet.vce.vce_api",
        "flwr.server.superlink.fleet.grpc_bidi.grpc_client_proxy",
        "flwr.clientapp.client_app",
        "flwr.clientapp.mod.localdp_mod",
        "flwr.clientapp.mod.centraldp_mods",
        "flwr.client.mod.localdp_mod",
        "flwr.client.mod.centraldp_mods",
        "flwr.client.mod.secure_aggregation.secagg_mod",
        "flwr.client.mod.secure_aggregation.secaggplus_mod",
        "flwr.cli.constant",
        "flwr.cli.local_superlink",
    ),
    "nvflare.tasks": (
        "nvflare.private.fed.server.server_runner",
        "nvflare.apis.utils.task_utils",
        "nvflare.fuel.f3.mpm",
    ),
    "p2pfl.hooks": (
        "p2pfl.communication.protocols.protobuff.memory.client",
        "p2pfl.communication.protocols.protobuff.grpc.client",
    ),
}


def install() -> None:
    """Tap this process with the settings in the environment."""
    from leakaudit.capture.tap.hooks.training import Training
    from leakaudit.capture.tap.log.capture import Capture, CaptureSettings

    settings = json.loads(os.environ[VARIABLE])
    capture = Capture(settings.pop("folder"), CaptureSettings(**settings))
    if ENDS in os.environ:
        threading.Thread(target=_end_with, args=(int(os.environ[ENDS]),), daemon=True).start()

    def tap(own: str, module: ModuleType) -> None:
        import_module(f"leakaudit.capture.tap.{own}").listen(module, capture)

    waiting: dict[str, Callable[[ModuleType], None]] = {}
    for own, modules in HOOKS.items():
        waiting |= dict.fromkeys(modules, partial(tap, own))
    watchers: list[Mapping[str, Callable[[ModuleType], None]]] = [Training(capture).installers]
    if capture.model is not None:
        watchers.append(capture.model.installers)
    for watcher in watchers:
        for name, install_in in watcher.items():
            waiting[name] = partial(_both, waiting.get(name), install_in)
    sys.meta_path.insert(0, _AfterImport(waiting))


def _both(
    first: Callable[[ModuleType], None] | None,
    second: Callable[[ModuleType], None],
    module: ModuleType,
) -> None:
    if first is not None:
        first(module)
    second(module)


def _end_with(process: int) -> None:
    """End this process when another one has ended: the background of a tapped `flwr run`."""
    while True:
        time.sleep(POLL)
        try:
            os.kill(process, 0)
        except OSError:
            os.kill(os.getpid(), signal.SIGTERM)
            return


# A program must not be forced to import torch, so the tap waits until the program does. The finder
# below is first on `sys.meta_path`. When asked for a module in `waiting`, it lets the other finders
# find it and wraps its execution, so that the callback runs right after the module's own code.


class _AfterImport:
    """An importer that finds nothing itself and calls a function after a module was executed."""

    def __init__(self, waiting: dict[str, Callable[[ModuleType], None]]) -> None:
        self.waiting = waiting  # module name -> function to call with it, once

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        callback = self.waiting.pop(name, None)
        if callback is None:
            return None
        # The entry has been removed, so this search skips this finder.
        spec = find_spec(name)
        if spec is not None and spec.loader is not None:
            wrap(spec.loader, "exec_module", partial(_execute, callback))
        return spec


def _execute(
    callback: Callable[[ModuleType], None], execute: Callable[..., None], module: ModuleType
) -> None:
    execute(module)
    try:
        callback(module)
    except Exception as error:
        sys.stderr.write(f"leakaudit tap: {module.__name__} is not tapped: {error}\n")
