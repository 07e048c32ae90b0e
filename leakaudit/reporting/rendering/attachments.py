"""What a report shows besides the record: pictures and passages from the files beside it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from leakaudit.core.trace import Json
from leakaudit.reporting.results import model
from leakaudit.reporting.results.model import CheckRecord

WITH_PICTURES = ("html", "pdf", "svg", "png")
WITH_PASSAGES = ("html", "text")


def attached(shown: Mapping[str, Json], folder: Path, format: str) -> dict[str, Json]:
    """Add to a record what a format shows of the files in its folder."""
    complete = dict(shown)
    if shown["kind"] == "sweep":
        return complete
    if format in WITH_PICTURES:
        complete = with_pictures(complete, folder)
    if format in WITH_PASSAGES:
        from leakaudit.reporting.rendering import passages

        complete = passages.with_passages(complete, folder)
    return complete


def with_pictures(results: Mapping[str, Json], folder: Path) -> dict[str, Json]:
    """Add images to a record; those of a gate are in a file of their own."""
    from leakaudit.reporting.rendering import gallery, leaked  # they import numpy

    record = model.of_run(results)
    if isinstance(record, CheckRecord):
        return {**results, "gallery": leaked.sections(record, folder)}
    return gallery.with_pictures(results, folder)
