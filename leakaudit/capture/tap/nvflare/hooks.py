"""Install the tap in the modules of NVFlare, each right after its import.

`hooks.install` lists the modules.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from leakaudit.capture.tap.exchanges.wrapping import ProcessRemarks, wrap
from leakaudit.capture.tap.log.capture import Capture
from leakaudit.capture.tap.nvflare.server import NVFlareServerTap


def listen(module: ModuleType, capture: Capture) -> None:
    """Tap a module of nvflare."""
    name = module.__name__.rpartition(".")[2]
    if name == "server_runner":
        tap = NVFlareServerTap(capture)
        wrap(module.ServerRunner, "process_task_request", tap.request)
        wrap(module.ServerRunner, "process_submission", tap.submission)
    elif name == "task_utils":
        note_filters(module, capture.folder)
    else:
        _end_with_main(module, capture)


def note_filters(module: ModuleType, folder: str) -> None:
    """Note which filters run in this process, on tasks or on their results.

    Args:
        module: ``nvflare.apis.utils.task_utils``.
    """
    noted = ProcessRemarks(folder)

    def noting(get_filters: Callable[..., Any], *args: Any, **named: Any) -> Any:
        filters = get_filters(*args, **named)
        for one in filters:
            noted.write("filter", type(one).__name__)
        return filters

    wrap(module, "get_filters", noting)


def _end_with_main(module: ModuleType, capture: Capture) -> None:
    """Close the log when a process's main function ends: NVFlare may then end it at once."""
    monitor = module.MainProcessMonitor
    run = monitor.run

    def ending(main_func: Callable[..., Any], *args: Any, **named: Any) -> Any:
        def main(**options: Any) -> Any:
            try:
                return main_func(**options)
            finally:
                capture.end()

        return run(main, *args, **named)

    monitor.run = staticmethod(ending)
