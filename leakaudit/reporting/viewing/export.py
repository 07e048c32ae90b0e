"""The list and all reports as files that any web server can show."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from leakaudit._util.files import UNFINISHED, replacing
from leakaudit.core.errors import LeakauditError
from leakaudit.reporting.viewing import files, pages
from leakaudit.reporting.viewing.filters import Query
from leakaudit.reporting.viewing.index import RunIndex
from leakaudit.reporting.viewing.reports import Reports

PAGES = "runs"
MARK = b'<meta name="generator" content="leakaudit view">'
_PAGE = re.compile(r"[0-9a-f]{16}\.html")


@dataclass(frozen=True)
class _ExportedFiles:
    """What was written."""

    pages: int  # number of reports
    failed: Sequence[tuple[str, str]]  # runs without a report, each with the reason


def export(root: Path, target: Path, step: Callable[[str, int, int], None]) -> _ExportedFiles:
    """Write the list and a page for every run."""
    index = RunIndex(root)
    listing = index.listing()
    if not listing.runs:
        raise LeakauditError(f"{root}: it contains no run (no results.json that can be read)")
    _expect_free(target)
    reports = Reports(index.root)
    failed = []
    for done, run in enumerate(listing.runs):
        step("reports", done, len(listing.runs))
        try:
            text = pages.report(run, reports.page(listing.paths[run.id]).html)
        except LeakauditError as error:
            why = str(error).replace(f"{index.root}/", "")
            failed.append((run.place, why))
            text = pages.message("The report cannot be shown", why, f"../{pages.LIST}")
        _write(target / PAGES / f"{run.id}.html", text)
    step("reports", len(listing.runs), len(listing.runs))
    _write(target / pages.LIST, pages.listed(listing, Query(), index.root.name, static=True))
    _remove_others(target / PAGES, {f"{run.id}.html" for run in listing.runs})
    return _ExportedFiles(len(listing.runs) - len(failed), failed)


def _expect_free(target: Path) -> None:
    for path in (target, target / PAGES):
        if path.is_symlink():
            raise LeakauditError(
                f"--export {target}: {path} is a link, through which other files could be "
                "replaced; choose a new folder"
            )
    if not target.exists():
        return
    if not target.is_dir():
        raise LeakauditError(f"--export {target}: expected a folder, found a file")
    if _interrupted(target):
        return
    known = files.facts(target / pages.LIST)
    if known is None or MARK not in files.head(target / pages.LIST, 4096):
        raise LeakauditError(
            f"--export {target}: the folder contains other files; choose a new or empty folder"
        )


def _interrupted(target: Path) -> bool:
    for path in target.iterdir():
        if path.name != PAGES and not path.name.endswith(UNFINISHED):
            return False
    folder = target / PAGES
    if not folder.is_dir():
        return not folder.exists()
    return all(
        _PAGE.fullmatch(path.name) or path.name.endswith(UNFINISHED) for path in folder.iterdir()
    )


def _write(path: Path, text: str) -> None:
    with replacing(path) as file:
        file.write(text.encode("utf-8", "backslashreplace"))


def _remove_others(folder: Path, kept: set[str]) -> None:
    for path in folder.iterdir():
        if _PAGE.fullmatch(path.name) and path.name not in kept:
            path.unlink(missing_ok=True)
