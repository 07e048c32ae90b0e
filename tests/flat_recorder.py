"""A `Recorder` from one flat list of settings, for tests that vary any of them."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from leakaudit.core.payload import StoredColumns
from leakaudit.traces.recorder import Recorder, RecorderOptions, Storage


def flat_recorder(path: Any, **settings: Any) -> Recorder:
    """Sort settings into arguments, storage and options; `columns` (start, stop) needs a layout."""
    columns = settings.pop("columns", None)
    if columns is not None:
        settings["layers"] = StoredColumns(settings["layout"].size, (columns,))
    sorted_by_kind = []
    for kind in (Storage, RecorderOptions):
        names = {field.name for field in fields(kind)} & settings.keys()
        sorted_by_kind.append({name: settings.pop(name) for name in names})
    storage, options = sorted_by_kind
    return Recorder(Storage(path, **storage), options=RecorderOptions(**options), **settings)
