"""Drawings as inline SVG.

Colours are classes of the page's style, so that dark mode and print apply.
"""

from __future__ import annotations

from collections.abc import Iterable

from markupsafe import Markup, escape

from leakaudit.results.wording import clean


def element(name: str, *children: Markup | str, **attributes: object) -> Markup:
    """One element.

    Args:
        name: Of the element.
        children: What is inside; a text that is not Markup is cleaned and escaped.
        attributes: Their values are cleaned and escaped, those that are None left out. In their
            names an underscore is a hyphen, and one at the end is dropped: ``class_`` is class.

    Returns:
        The element.
    """
    shown = ""
    for key, value in attributes.items():
        if value is not None:
            shown += f' {key.rstrip("_").replace("_", "-")}="{_text(value)}"'
    inner = ""
    for child in children:
        inner += str(child) if isinstance(child, Markup) else _text(child)
    if not inner:
        return Markup(f"<{name}{shown}/>")
    return Markup(f"<{name}{shown}>{inner}</{name}>")


def drawing(width: float, height: float, parts: Iterable[Markup], label: str) -> Markup:
    """Return a picture that shrinks with the page.

    Args:
        width: In pixels.
        height: In pixels.
        parts: Its elements, from the back to the front.
        label: Description for a reader who does not see it.

    Returns:
        The picture.
    """
    box = f"0 0 {_number(width)} {_number(height)}"
    style = f"max-width:{_number(width)}px"
    return element(
        "svg", *parts, viewBox=box, width=_number(width), style=style, role="img", aria_label=label
    )


def line(x1: float, y1: float, x2: float, y2: float, class_: str) -> Markup:
    """A line.

    Args:
        x1: Of its beginning.
        y1: Of its beginning.
        x2: Of its end.
        y2: Of its end.
        class_: Classes of the page's style.

    Returns:
        The element.
    """
    return element(
        "line", x1=_number(x1), y1=_number(y1), x2=_number(x2), y2=_number(y2), class_=class_
    )


def rectangle(
    x: float, y: float, width: float, height: float, class_: str, title: str = "", radius: float = 0
) -> Markup:
    """A rectangle.

    Args:
        x: Of the upper left corner.
        y: Of the upper left corner.
        width: In pixels.
        height: In pixels.
        class_: Classes of the page's style.
        title: Text that appears under the pointer, "" for none.
        radius: Of the corners, 0 for sharp ones.

    Returns:
        The element.
    """
    corner = None
    if radius:
        corner = _number(radius)
    return element(
        "rect",
        *_title(title),
        x=_number(x),
        y=_number(y),
        width=_number(width),
        height=_number(height),
        rx=corner,
        class_=class_,
    )


def circle(x: float, y: float, radius: float, class_: str, title: str = "") -> Markup:
    """A circle.

    Args:
        x: Of the centre.
        y: Of the centre.
        radius: In pixels.
        class_: Classes of the page's style.
        title: Text that appears under the pointer, "" for none.

    Returns:
        The element.
    """
    inside = _title(title)
    return element(
        "circle", *inside, cx=_number(x), cy=_number(y), r=_number(radius), class_=class_
    )


def text(x: float, y: float, said: object, class_: str = "", anchor: str = "middle") -> Markup:
    """One line of text.

    Args:
        x: Of the anchor.
        y: Of the baseline.
        said: The text.
        class_: Classes of the page's style, "" for none.
        anchor: ``start``, ``middle`` or ``end`` of the text.

    Returns:
        The element.
    """
    return element(
        "text", str(said), x=_number(x), y=_number(y), text_anchor=anchor, class_=class_ or None
    )


def path(points: Iterable[tuple[float, float]], class_: str) -> Markup:
    """A line through points.

    Args:
        points: (x, y), in order.
        class_: Classes of the page's style.

    Returns:
        The element.
    """
    places = [f"{_number(x)},{_number(y)}" for x, y in points]
    return element("polyline", points=" ".join(places), class_=class_)


def _title(title: str) -> list[Markup]:
    """The text that appears under the pointer, if there is one."""
    if not title:
        return []
    return [element("title", title)]


def _text(value: object) -> str:
    return str(escape(clean(value)))


def _number(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")
