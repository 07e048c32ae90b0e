"""Reports as one HTML file each, which requests nothing; every name from a record is escaped.

The only script is `page.js`, whose hash the policy of the page names: no other script can run.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path

from jinja2 import Environment
from markupsafe import Markup, escape

from leakaudit.core.verdict import Holds
from leakaudit.reporting.findings.shown import DisplayRecord
from leakaudit.reporting.findings.wording import clean, point_of, test_words
from leakaudit.reporting.findings.worst_case import who
from leakaudit.reporting.rendering.html.content import content
from leakaudit.reporting.rendering.templates import environment, source_of

_HERE = Path(__file__).parent


def page(shown: DisplayRecord) -> str:
    """Render the record of an attack, an audit or a gate."""
    return rendered("page.html.j2", content(shown))


def rendered(template: str, values: Mapping[str, object]) -> str:
    """Fill in a template."""
    return _environment().get_template(template).render(**values)


def policy() -> str:
    """Return the content security policy of every page."""
    return (
        "default-src 'none'; img-src data:; style-src 'unsafe-inline'; "
        f"script-src {source_of(_read('page.js'))}; base-uri 'none'; form-action 'none'"
    )


@cache
def _environment() -> Environment:
    made = environment(_HERE, _shown)
    made.globals["style"] = Markup(_read("style.css"))
    made.globals["script"] = Markup(_read("page.js"))
    made.globals["policy"] = policy()
    made.filters |= {"code": _code, "figure": _figure, "counted": _counted}
    made.filters |= {"point": point_of, "test_words": test_words, "most": _most}
    made.filters["who"] = lambda adversary: who(str(adversary))
    return made


@cache
def _read(name: str) -> str:
    return (_HERE / name).read_text(encoding="utf-8")


def _code(text: str) -> Markup:
    parts = []
    for k, part in enumerate(clean(text).split("`")):
        shown = str(escape(part))
        parts.append(f"<code>{shown}</code>" if k % 2 else shown)
    return Markup("".join(parts))


def _figure(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, float | int):
        return f"{value:.4g}"
    return str(value)


def _counted(figures: Mapping[str, object]) -> str:
    """Return what a test counted, such as ``hits 3, trials 20``."""
    said = []
    for name, value in figures.items():
        shown = f"{value:.4g}" if isinstance(value, float) else str(value)
        said.append(f"{name.replace('_', ' ')} {shown}")
    return ", ".join(said)


def _most(holds: str | None) -> str:
    return Holds.read(holds).says("")


def _shown(value: object) -> object:
    """Return text of the record as one printable line; markup stays unchanged."""
    if isinstance(value, str) and not isinstance(value, Markup):
        return clean(value)
    return value
