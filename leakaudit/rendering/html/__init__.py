"""The report as one HTML file: no script, no request, every name from a trace escaped."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from leakaudit.rendering.html.content import content
from leakaudit.results.wording import clean
from leakaudit.trace import Json

_HERE = Path(__file__).parent


def page(results: Mapping[str, Json]) -> str:
    """Render a record; ``gallery`` (leakaudit.rendering.gallery) and ``against`` (leakaudit.results.comparison) are shown where it has them."""
    text: str = _environment().get_template("page.html.j2").render(**content(results))
    return text


@cache
def _environment() -> Environment:
    loader = FileSystemLoader(_HERE)
    made = Environment(
        loader=loader,
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
    """What stands between backticks is code."""
    parts = [
        f"<code>{escape(part)}</code>" if k % 2 else str(escape(part))
        for k, part in enumerate(clean(text).split("`"))
    ]
    return Markup("".join(parts))


def _figure(value: Any) -> str:
    """Write a number of the record, which may be absent or a word."""
    return (
        "-" if value is None else f"{value:.4g}" if isinstance(value, float | int) else str(value)
    )


def _shown(value: Any) -> Any:
    """Text of the record on one printable line; what is markup already stays."""
    return value if isinstance(value, Markup) or not isinstance(value, str) else clean(value)
