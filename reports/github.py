"""Annotations of a run as workflow commands of GitHub Actions, the most severe first."""

from __future__ import annotations

from collections.abc import Mapping

from leakaudit.core.registry import renderer
from leakaudit.core.trace import Json
from leakaudit.reporting.findings.grading import checks, is_settled
from leakaudit.reporting.findings.shown import DisplayRecord
from leakaudit.reporting.findings.wording import clean

# GitHub shows ten annotations of each kind per step. Two of them are reserved for the summary and
# for the number of omitted annotations; the summary of a comparison takes a third.
SHOWN = 8
_COMMANDS = {"error": "error", "warning": "warning", "note": "notice"}


@renderer("github")
def render(results: Mapping[str, Json]) -> str:
    """Return the summary and one line per check; the Markdown report serves as the job's summary.

    They are workflow commands of GitHub Actions.
    """
    shown = DisplayRecord.of(results)
    found = checks(shown.record)
    command = "notice" if is_settled(shown.record) else "warning"
    lines = [_line(command, "leakaudit", shown.record.summary)]
    room = dict.fromkeys(_COMMANDS, SHOWN)
    if shown.against:
        lines.append(_line("notice", "leakaudit", shown.against.summary))
        room["note"] -= 1
    for level, command in _COMMANDS.items():
        some = [check for check in found if check.level == level]
        for check in some[: room[level]]:
            lines.append(_line(command, check.name, check.message))
        left = len(some) - room[level]
        if left > 0:
            more = f"{left} more of this kind, none of them more severe; see the full report"
            lines.append(_line(command, "leakaudit", more))
    return "\n".join(lines) + "\n"


def _line(command: str, title: object, text: object) -> str:
    """One workflow command; colons and commas are escaped because they would end its title."""
    name = _escape(title).replace(":", "%3A").replace(",", "%2C")
    return f"::{command} title={name}::{_escape(text)}"


def _escape(text: object) -> str:
    """Escape text so that the runner decodes it unchanged; `clean` has removed line breaks."""
    return clean(text).replace("%", "%25")
