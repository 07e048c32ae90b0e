"""Record one client or the server of an NVFlare job, with one line in the job.

    from leakaudit.capture.tap.nvflare.filters import RecordMessages

    recipe.add_client_output_filter(RecordMessages("client.tap"))   # or: job.to_clients(...)
    recipe.add_server_input_filter(RecordMessages("server.tap"))    # or: job.to_server(...)

The filter changes nothing. One line records both what arrives and what is sent. It writes a log as
the tap does; ``leakaudit tap describe`` and ``merge`` read it. Use a new folder for each run.
"""

# What nvflare defines has no types.
# mypy: disable-error-code="misc"

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from leakaudit.capture.tap.exchanges import SERVER, TRAIN, capture_of
from leakaudit.capture.tap.nvflare.tasks import TaskTap, note_filters
from leakaudit.core.errors import LeakauditError

_missing = ""  # why NVFlare cannot be imported
try:
    from nvflare.apis.event_type import EventType
    from nvflare.apis.filter import Filter, FilterChainType, FilterContextKey
    from nvflare.apis.fl_constant import FLContextKey, ProcessType
    from nvflare.apis.utils import task_utils
    from nvflare.job_config.defs import FilterType
except ImportError as error:
    Filter = object
    _missing = str(error)

_taps: dict[tuple[str, int], TaskTap] = {}  # folder and rank -> tap
_noting: set[str] = set()  # folders in which the filters of this process are noted


class RecordMessages(Filter):
    """A filter of nvflare that records tasks and their results, and changes nothing.

    Args:
        folder: folder of the log; created if it does not exist. A relative one is completed where
            the job is defined.
        rank: rank of the client; None for the number at the end of its name, or else 1.
    """

    def __init__(self, folder: str, rank: int | None = None) -> None:
        if _missing:
            raise LeakauditError(
                f"recording needs NVFlare ({_missing}): pip install leakaudit[nvflare]"
            )
        super().__init__()
        self.folder = str(Path(folder).resolve())
        self.rank = rank

    def add_to_fed_job(self, job: Any, ctx: Any, **named: Any) -> None:
        """Add the filter to a job: to its tasks and to their results.

        Args:
            named: ``tasks``, the names of the tasks to record; by default the task train.
        """
        # Otherwise NVFlare would send parts of leakaudit to the clients, in place of their own.
        packages = job.job.app_packages
        job.set_app_packages([*packages, "leakaudit"])
        tasks = named.get("tasks") or [TRAIN]
        for kind in (FilterType.TASK_DATA, FilterType.TASK_RESULT):
            job.add_filter(obj=self, filter_type=kind, tasks=tasks, ctx=ctx)

    def process(self, shareable: Any, fl_ctx: Any) -> Any:
        """Log a message."""
        if self.folder not in _noting:
            _noting.add(self.folder)
            note_filters(task_utils, self.folder)
        is_task = self.get_prop(FilterContextKey.CHAIN_TYPE) == FilterChainType.TASK_DATA_CHAIN
        task = str(fl_ctx.get_prop(FLContextKey.TASK_NAME, ""))
        client = str(fl_ctx.get_identity_name())
        number = ""
        rank = SERVER
        if fl_ctx.get_process_type() == ProcessType.SERVER_JOB:
            client = str(fl_ctx.get_peer_context().get_identity_name())
            number = str(fl_ctx.get_prop(FLContextKey.TASK_ID, ""))
        else:
            rank = self._rank(fl_ctx)
        key = (self.folder, rank)
        if key not in _taps:
            own = "" if rank == SERVER else client
            _taps[key] = TaskTap(capture_of(self.folder, rank), own)
        tap = _taps[key]
        way = tap.instruct if is_task else tap.receive
        tap.capture.safely(way, client, task, number, shareable)
        return shareable

    def handle_event(self, event_type: str, fl_ctx: Any) -> None:
        """Close the log when the job ends."""
        if event_type != EventType.END_RUN:
            return
        for rank in (self._rank(fl_ctx), SERVER):
            if (self.folder, rank) in _taps:
                _taps[self.folder, rank].capture.end()

    def _rank(self, fl_ctx: Any) -> int:
        if self.rank is not None:
            return self.rank
        number = re.search(r"\d{1,6}$", str(fl_ctx.get_identity_name()))
        return SERVER + 1 if number is None else max(1, int(number[0]))
