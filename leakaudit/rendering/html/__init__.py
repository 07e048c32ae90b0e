"""The report as one HTML file without scripts or requests; every name from a trace is escaped."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from leakaudit.rendering.html.content import content
from leakaudit.rendering.shown import Shown
from leakaudit.results.wording import clean

_HERE = Path(__file__).parent


def page(shown: Shown) -> str:
    """Render a record.

    Args:
        shown: The record, with images and a comparison if there are any.

    Returns:
        The page.
    """
    return _environment().get_template("page.html.j2").render(**content(shown))


@cache
def _environment() -> Environment:
    made = Environment(
        loader=FileSystemLoader(_HERE),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_shown,
        keep_trailing_newline=True,
    )
    made.globals["style"] = Markup((_HERE / "style.css").read_text(encoding="utf-8"))
    made.filters |= {"code": _code, "figure": _figure}
    return made


def _code(text: str) -> Markup:
    """Convert text between backticks to code."""
    parts = []
    for k, part in enumerate(clean(text).split("`")):
        shown = str(escape(part))
        parts.append(f"<code>{shown}</code>" if k % 2 else shown)
    return Markup("".join(parts))


def _figure(value: object) -> str:
    """Return a number of the record as text; the value may also be absent or a word."""
    if value is None:
        return "-"
    if isinstance(value, float | int):
        return f"{value:.4g}"
    return str(value)


def _shown(value: object) -> object:
    """Return text of the record as one printable line; markup stays unchanged."""
    if isinstance(value, str) and not isinstance(value, Markup):
        return clean(value)
    return value
