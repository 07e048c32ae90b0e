"""Workflow commands of GitHub Actions: annotations of a run, the worst first."""

from __future__ import annotations

from collections.abc import Mapping

from leakaudit.registry import renderer
from leakaudit.results.grading import checks
from leakaudit.results.wording import clean
from leakaudit.trace import Json

SHOWN = 8  # checks of each kind; GitHub shows ten of each in a step, and two lines are for the sentence and for how many are left
_COMMANDS = {"error": "error", "warning": "warning", "note": "notice"}


@renderer("github")
def render(results: Mapping[str, Json]) -> str:
    """One line a check under the sentence of the whole; the job's summary is the Markdown report."""
    lines, found = [_line("notice", "leakaudit", results["summary"])], checks(results)
    if against := results.get("against"):
        lines.append(_line("notice", "leakaudit", against["summary"]))
    for level, command in _COMMANDS.items():
        some = [c for c in found if c.level == level]
        lines += [_line(command, c.name, c.message) for c in some[:SHOWN]]
        if left := len(some) - SHOWN:
            lines += [
                _line(
                    command,
                    "leakaudit",
                    f"{left} more of this kind, none of them worse; see the whole report",
                )
            ] * (left > 0)
    return "\n".join(lines) + "\n"


def _line(command: str, title: object, text: object) -> str:
    return f"::{command} title={_escape(title).replace(':', '%3A').replace(',', '%2C')}::{_escape(text)}"


def _escape(text: object) -> str:
    """Write text so that the runner reads it back as it is; a line break is gone already."""
    return clean(text).replace("%", "%25")
