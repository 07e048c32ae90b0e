"""What a process of its own does for the viewer: render one report, or compare two runs.

A malformed record can cost time and memory, or end the process; it cannot reach the server.
"""

from __future__ import annotations

import json
import resource
from collections.abc import Iterator, Mapping
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path

from msgspec.structs import replace

from leakaudit._util.files import resolved
from leakaudit.core import registry
from leakaudit.core.errors import LeakauditError
from leakaudit.reporting.findings import comparison
from leakaudit.reporting.rendering import attachments, gallery, html, passages  # noqa: F401 - once
from leakaudit.reporting.results import model, record_file
from leakaudit.reporting.results.model import RunRecord
from leakaudit.reporting.viewing import files
from leakaudit.reporting.viewing.summaries import RECORD

LARGEST = 1 << 26  # bytes of a results.json that is rendered; a choice
MEMORY = 1 << 32  # bytes that one process may allocate
SECONDS = 120  # processor time of one process
ROWS = 1000  # rows of a comparison; a choice


def work(
    answer: Connection[object, object], job: str, folders: tuple[Path, ...], root: Path
) -> None:
    """Do one job and send the outcome, as JSON: a page or rows, or the reason of a failure."""
    _limit()
    try:
        for folder in folders:
            check(folder, root)
        if job == "page":
            made = page(folders[0])
        else:
            made = changes(folders[0], folders[1])
    except LeakauditError as error:
        made = {"failed": str(error)}
    except MemoryError:
        made = {"failed": f"{folders[0]}: it needs more memory than the viewer allows"}
    except Exception as error:  # a malformed record may cause any
        made = {"failed": f"{type(error).__name__}: {str(error)[:300]}"}
    text = json.dumps(made, ensure_ascii=False)
    with suppress(OSError):  # the server may have given up
        answer.send_bytes(text.encode("utf-8", "backslashreplace"))
    answer.close()


def _limit() -> None:
    for which, most in ((resource.RLIMIT_CPU, SECONDS), (resource.RLIMIT_DATA, MEMORY)):
        with suppress(OSError, ValueError):
            _, hard = resource.getrlimit(which)
            resource.setrlimit(which, (most, hard))


def check(folder: Path, root: Path) -> None:
    """Check that everything that a report would read is a regular file inside a folder."""
    if not resolved(folder).is_relative_to(root):
        raise LeakauditError(f"{folder} is outside {root}")
    known = files.facts(folder / RECORD)
    if known is None:
        raise LeakauditError(f"{folder / RECORD} is not a regular file")
    if known.st_size > LARGEST:
        raise LeakauditError(
            f"{folder / RECORD} has {known.st_size >> 20} MiB, more than the {LARGEST >> 20} MiB "
            "that the viewer renders; use 'leakaudit report' instead"
        )
    for name in sorted(set(_named(record_file.read(folder / RECORD)))):
        path = folder / name
        if path.is_symlink() or (path.exists() and not path.is_file()):
            raise LeakauditError(
                f"{path} is a link or not a regular file, so the report is not opened; replace it "
                "by the file itself"
            )


def _named(results: Mapping[str, object]) -> Iterator[str]:
    record = model.of(results)
    if not isinstance(record, RunRecord):
        return
    yield from model.given(record.files, {})
    for finding in record.findings:
        if finding.images is not None:
            yield finding.images.file
    for name in (record.picture, model.given(record.originals, None)):
        if name:
            yield name


def page(folder: Path) -> dict[str, object]:
    """Return the page of a run, and its content security policy."""
    shown = record_file.read(folder / RECORD)
    record_file.whole(shown, folder)
    render = registry.get("reports", "html")
    text = render(attachments.attached(shown, folder, "html"))
    return {"html": text, "policy": html.policy()}


def changes(now: Path, before: Path) -> dict[str, object]:
    """Compare two runs, check by check."""
    new = model.of_run(record_file.read(now / RECORD))
    old = model.of_run(record_file.read(before / RECORD))
    found = comparison.against(new, old)
    shown = replace(found, rows=found.rows[:ROWS])
    return {"against": model.plain(shown), "more": len(found.rows) - len(shown.rows)}
