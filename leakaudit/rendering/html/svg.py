"""Drawings as inline SVG; colours are classes of the page's style, so that dark mode and print apply."""

from __future__ import annotations

from collections.abc import Iterable

from markupsafe import Markup, escape

from leakaudit.results.wording import clean


def element(name: str, *children: Markup | str, **attributes: object) -> Markup:
    """One element; children that are no Markup and all attributes are cleaned and escaped. ``class_`` is class, ``_`` becomes a hyphen."""
    shown = "".join(
        f' {k.rstrip("_").replace("_", "-")}="{_text(v)}"'
        for k, v in attributes.items()
        if v is not None
    )
    inner = "".join(c if isinstance(c, Markup) else _text(c) for c in children)
    return Markup(f"<{name}{shown}>{inner}</{name}>") if inner else Markup(f"<{name}{shown}/>")


def drawing(width: float, height: float, parts: Iterable[Markup], label: str) -> Markup:
    """Return a picture that shrinks with the page; label: what a reader who does not see it is told."""
    box = f"0 0 {_number(width)} {_number(height)}"
    style = f"max-width:{_number(width)}px"
    return element(
        "svg", *parts, viewBox=box, width=_number(width), style=style, role="img", aria_label=label
    )


def line(x1: float, y1: float, x2: float, y2: float, class_: str) -> Markup:
    """A line."""
    return element(
        "line", x1=_number(x1), y1=_number(y1), x2=_number(x2), y2=_number(y2), class_=class_
    )


def rectangle(
    x: float, y: float, width: float, height: float, class_: str, title: str = "", radius: float = 0
) -> Markup:
    """A rectangle; title: what a pointer on it is told."""
    inside = (element("title", title),) if title else ()
    corner = _number(radius) if radius else None
    return element(
        "rect",
        *inside,
        x=_number(x),
        y=_number(y),
        width=_number(width),
        height=_number(height),
        rx=corner,
        class_=class_,
    )


def circle(x: float, y: float, radius: float, class_: str, title: str = "") -> Markup:
    """A circle."""
    inside = (element("title", title),) if title else ()
    return element(
        "circle", *inside, cx=_number(x), cy=_number(y), r=_number(radius), class_=class_
    )


def text(x: float, y: float, said: object, class_: str = "", anchor: str = "middle") -> Markup:
    """One line of text, its baseline at y."""
    return element(
        "text", str(said), x=_number(x), y=_number(y), text_anchor=anchor, class_=class_ or None
    )


def path(points: Iterable[tuple[float, float]], class_: str) -> Markup:
    """A line through points."""
    return element(
        "polyline", points=" ".join(f"{_number(x)},{_number(y)}" for x, y in points), class_=class_
    )


def _text(value: object) -> str:
    return str(escape(clean(value)))


def _number(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")
