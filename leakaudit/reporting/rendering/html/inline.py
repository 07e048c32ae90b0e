"""Charts as part of the page: inline SVG in the page's colours, with values as tooltips."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from xml.etree import ElementTree as Tree

from markupsafe import Markup

from leakaudit.reporting.figures import plots
from leakaudit.reporting.findings.wording import clean

# Colours of a chart, and the CSS variables of the page that replace them. Only the dark page sets
# --c0 and the following; on the light page and on paper, the chart keeps its own colours.
_THEME = {
    plots.INK: f"var(--ink, {plots.INK})",
    plots.QUIET: f"var(--quiet, {plots.QUIET})",
    plots.EDGE: f"var(--edge, {plots.EDGE})",
}
for _k, _colour in enumerate(plots.COLOURS):
    _THEME.setdefault(_colour, f"var(--c{_k}, {_colour})")
ENLARGED = 1.5  # pixels of a point: text of 8 pt is as large as the notes of the page
_COLOUR = re.compile("|".join(_THEME))
_FAMILY = re.compile(r"font-family:[^;]*;? ?")  # the page's font is narrower than matplotlib's
_NUMBER = re.compile(r"-?\d+\.\d+")
_UNTURNED = re.compile(r"rotate\(-?0 [^)]*\)")
_REFERENCE = re.compile(r"#([\w-]+)")


def inline(svg: str, label: str, titles: Mapping[str, Sequence[str]]) -> Markup:
    """Convert a chart to a part of the page."""
    root = Tree.fromstring(svg)
    for element in root.iter():
        element.tag = _local(element.tag)
        for key, value in list(element.items()):
            del element.attrib[key]
            shown = _simpler(_local(key), value)
            if shown:
                element.set(_local(key), shown)
    for element in list(root.iter("g")):
        if element.get("id") in titles:
            _name_points(element, titles[element.attrib["id"]])
    _strip(root)
    _, _, points, _ = root.attrib["viewBox"].split()
    width = f"{float(points) * ENLARGED:.0f}"
    view = {"viewBox": root.attrib["viewBox"], "width": width, "style": f"max-width:{width}px"}
    root.attrib.clear()
    root.attrib.update({**view, "role": "img", "aria-label": clean(label)})
    return Markup(Tree.tostring(root, encoding="unicode"))


def _local(name: str) -> str:
    return name.rpartition("}")[2]


def _simpler(key: str, value: str) -> str:
    """A value with the page's colours, shortened if the difference is not visible."""
    if key == "style":
        return _COLOUR.sub(_themed, _FAMILY.sub("", value))
    if key in ("d", "x", "y"):
        return _NUMBER.sub(_rounded, value)
    return _UNTURNED.sub("", value)


def _themed(match: re.Match[str]) -> str:
    return _THEME[match[0]]


def _rounded(match: re.Match[str]) -> str:
    return f"{float(match[0]):.2f}".rstrip("0").rstrip(".")


def _name_points(line: Tree.Element, titles: Sequence[str]) -> None:
    for marker, text in zip(list(line.iter("use")), titles, strict=True):
        title = Tree.SubElement(marker, "title")
        title.text = clean(text)


def _strip(root: Tree.Element) -> None:
    used: set[str] = set()
    for element in root.iter():
        for value in (element.get("href", ""), element.get("clip-path", "")):
            used.update(_REFERENCE.findall(value))
    for parent in list(root.iter()):
        if parent.get("id") not in used:
            parent.attrib.pop("id", None)
        for child in list(parent):
            empty = child.tag in ("g", "defs") and not len(child)
            if child.tag in ("metadata", "style") or empty:
                parent.remove(child)
        if parent.tag not in ("text", "title"):
            parent.text = None
        parent.tail = None
