"""The pages of the viewer as HTML, and the policy with which a browser shows them.

The policy allows one style sheet and, in the list, one script by their hashes, and nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from jinja2 import Environment
from markupsafe import Markup, escape

from leakaudit.reporting.findings.comparison import ResultsComparison
from leakaudit.reporting.findings.wording import SEVERITIES, clean
from leakaudit.reporting.rendering import templates
from leakaudit.reporting.viewing import compare, filters
from leakaudit.reporting.viewing.filters import Query
from leakaudit.reporting.viewing.index import RUNS, FolderListing
from leakaudit.reporting.viewing.running import Progress
from leakaudit.reporting.viewing.summaries import RunSummary

ROWS = 2000  # runs on one page of the list; a choice
BROKEN = 200  # unreadable folders that are listed
REFRESH = 3  # seconds after which the page of a run in progress is loaded again
LIST = "index.html"

_HERE = Path(__file__).parent
# The package of the page is not imported: it loads torch.
_LOOK = Path(templates.__file__).parent / "html" / "style.css"


def policy(script: bool = False) -> str:
    """Return the content security policy of a page of the viewer."""
    allowed = "'none'"
    if script:
        allowed = templates.source_of(_script())
    parts = [
        "default-src 'none'",
        "img-src data:",
        f"style-src {templates.source_of(_style())}",
        f"script-src {allowed}",
        "base-uri 'none'",
        "form-action 'self'",
    ]
    return "; ".join(parts)


def listed(
    listing: FolderListing, query: Query, name: str, page: int = 1, *, static: bool = False
) -> str:
    """Render the list."""
    found = query.apply(listing.runs)
    last = max(1, -(-len(found) // ROWS))
    page = min(max(1, page), last)
    shown: Sequence[RunSummary] = found
    if not static:
        shown = found[(page - 1) * ROWS : page * ROWS]
    counts = {level: 0 for level in ("error", "warning", "note")}
    for run in listing.runs:
        counts[run.level] += 1
    return _render(
        "list.html.j2",
        script=Markup(_script()),
        policy=policy(script=True),
        name=clean(name),
        runs=shown,
        found=len(found),
        total=len(listing.runs),
        counts=counts,
        progress=() if static else listing.progress,
        broken=listing.broken[:BROKEN],
        more_broken=max(0, len(listing.broken) - BROKEN),
        most=RUNS if listing.cut else 0,
        query=query,
        options=filters.options(listing.runs),
        sorts=filters.SORTS,
        page=page,
        last=last,
        # The script may choose among the runs of the page only if all of them are there.
        whole=len(shown) == len(listing.runs),
        static=static,
    )


def compared(
    runs: Sequence[RunSummary], changes: tuple[ResultsComparison, int] | None, why: str
) -> str:
    """Render a comparison."""
    pair = compare.in_time(runs)
    return _render(
        "compare.html.j2",
        table=compare.table(runs),
        pair=pair,
        against=changes[0] if changes else None,
        changed=changes[0].changed if changes else [],
        more=changes[1] if changes else 0,
        why=clean(why),
        levels={"worse": "error", "new": "warning"},
    )


def watched(progress: Progress, cells: Sequence[object], paused: bool) -> str:
    """Render the progress of a run."""
    return _render("watch.html.j2", progress=progress, cells=cells, paused=paused, refresh=REFRESH)


def report(run: RunSummary, html: str) -> str:
    """Return the report of a run, with a way back to the list."""
    bar = (
        f'<nav aria-label="All runs"><p><a href="../{LIST}">All runs</a> '
        f'<span class="quiet">/ {escape(run.place)}</span></p></nav>'
    )
    before, mark, after = html.partition("<body>")
    if not mark:
        return html
    return f"{before}{mark}\n{bar}{after}"


def message(title: str, text: str, back: str = LIST) -> str:
    """Render a page that states a problem."""
    return _render("message.html.j2", title=clean(title), text=clean(text), back=back)


def duration(seconds: float) -> str:
    """Return a duration in words, such as ``3 min``."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    if seconds < 172_800:
        return f"{seconds / 3600:.1f} h"
    return f"{seconds / 86_400:.0f} days"


def _render(template: str, **values: object) -> str:
    given: Mapping[str, object] = {"policy": policy(), **values}
    return _environment().get_template(template).render(**given)


@cache
def _environment() -> Environment:
    made = templates.environment(_HERE)
    made.globals["style"] = Markup(_style())
    made.globals["list"] = LIST
    made.globals["severities"] = SEVERITIES
    made.filters |= {"duration": duration, "number": _number, "folder": _folder}
    made.globals["values_of"] = filters.values
    return made


def _number(value: int) -> str:
    return f"{value:,}"


def _folder(place: str) -> tuple[str, str]:
    before, mark, name = place.rpartition("/")
    return before + mark, name


@cache
def _style() -> str:
    look = _LOOK.read_text(encoding="utf-8")
    own = (_HERE / "style.css").read_text(encoding="utf-8")
    return f"\n{look}{own}"


@cache
def _script() -> str:
    return "\n" + (_HERE / "list.js").read_text(encoding="utf-8")
