"""Drawing of the network: the nodes, what the adversary observes, and what was recovered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from xml.etree import ElementTree as Tree

from markupsafe import Markup

from leakaudit.core.adversary import Adversary
from leakaudit.reporting.findings.wording import clean
from leakaudit.reporting.findings.worst_case import parsed
from leakaudit.reporting.rendering.html.positions import positions
from leakaudit.reporting.rendering.html.shades import STEPS
from leakaudit.reporting.results.model import TraceSummary, given

MOST = 150  # most nodes that are drawn; more cannot be distinguished on a page
NUMBERED = 60  # most nodes that are drawn with numbers
SIDE = 420  # side of the drawing in pixels
ROOM = 28.0  # margin around the nodes
SMALL_NODE = 5.0  # radius of a node without a number
NODE = 14.0  # radius of a node with a number

Point = tuple[float, float]
Edge = Sequence[int]


def network(
    trace: TraceSummary,
    adversary: str,
    steps: Mapping[int, int],
    words: Mapping[int, str] | None = None,
    rounds: Mapping[int, Sequence[tuple[int, int]]] | None = None,
) -> Markup | None:
    """Draw the network as one adversary observes it."""
    if words is None:
        words = {node: STEPS[step] for node, step in steps.items()}
    links = given(trace.links, ())
    nodes = trace.nodes
    if not links or len(links) < trace.edges or not 1 < nodes <= MOST:
        return None
    if any(len(edge) != 2 or not 0 <= min(edge) <= max(edge) < nodes for edge in links):
        return None
    who = parsed(adversary)
    at = _layout(nodes, links)
    small = nodes > NUMBERED
    observed = sum(_observes(who, edge) for edge in links)
    label = (
        f"Network of {nodes} nodes and {len(links)} edges. "
        f"{adversary} observes {observed} of the edges."
    )
    drawing = Tree.Element(
        "svg",
        {
            "viewBox": f"0 0 {SIDE} {SIDE}",
            "width": f"{SIDE}",
            "style": f"max-width:{SIDE}px",
            "role": "img",
            "aria-label": clean(label),
        },
    )
    for edge in links:
        _edge(drawing, edge, at, who, steps)
    for n in range(nodes):
        shape = _node(drawing, n, at[n], who, steps.get(n), words.get(n, ""), small)
        if rounds and n in rounds and n in steps:
            shape.set("data-leaks", " ".join(f"{last}:{step}" for last, step in rounds[n]))
    return Markup(Tree.tostring(drawing, encoding="unicode"))


def _observes(who: Adversary | None, edge: Edge) -> bool:
    if who is None:
        return False
    i, j = edge
    return who.observes(i, j) or who.observes(j, i)


def _edge(
    drawing: Tree.Element,
    edge: Edge,
    at: Sequence[Point],
    who: Adversary | None,
    steps: Mapping[int, int],
) -> None:
    """Draw an edge; an observed edge is shaded by the worse of its two nodes."""
    i, j = edge
    look = "link unobserved"
    if _observes(who, edge):
        step = max(steps.get(i, 0), steps.get(j, 0))
        look = f"link observed s{step}"
    x1, y1 = at[i]
    x2, y2 = at[j]
    ends = {"x1": _place(x1), "y1": _place(y1), "x2": _place(x2), "y2": _place(y2)}
    Tree.SubElement(drawing, "line", {**ends, "class": look, "data-ends": f"{i} {j}"})


def _node(
    drawing: Tree.Element,
    n: int,
    at: Point,
    who: Adversary | None,
    step: int | None,
    words: str,
    small: bool,
) -> Tree.Element:
    """Draw a node: a square for the adversary's own, with its number if there is room."""
    radius = SMALL_NODE if small else NODE
    x, y = at
    if who is not None and n in who.corrupt:
        ink = "number own"
        title = f"node {n}: the adversary's own"
        box = {"x": x - radius, "y": y - radius, "width": 2 * radius, "height": 2 * radius}
        body = _shape(drawing, "rect", box, "node own")
    else:
        look = "unknown"
        ink = "number"
        title = f"node {n}: not attacked"
        if step is not None:
            look = f"s{step}"
            ink = f"number s{step}"
            title = f"node {n}: {words}"
        body = _shape(drawing, "circle", {"cx": x, "cy": y, "r": radius}, f"node {look}")
    Tree.SubElement(body, "title").text = title
    body.set("data-node", str(n))
    if not small:
        number = _shape(drawing, "text", {"x": x, "y": y + 4.5}, ink)
        number.text = str(n)
        number.set("data-label", str(n))
    return body


def _shape(drawing: Tree.Element, tag: str, places: Mapping[str, float], look: str) -> Tree.Element:
    attributes = {name: _place(value) for name, value in places.items()}
    return Tree.SubElement(drawing, tag, {**attributes, "class": look})


def _place(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def _layout(nodes: int, links: Sequence[Edge]) -> list[Point]:
    """Positions in pixels; deterministic for a given network."""
    xs, ys = positions(nodes, links).T.tolist()
    return list(zip(_spread(xs), _spread(ys), strict=True))


def _spread(values: Sequence[float]) -> list[float]:
    """Stretch coordinates over the drawing; if all are equal, they go to the middle."""
    low = min(values)
    wide = max(values) - low
    if wide < 1e-9:
        return [SIDE / 2] * len(values)
    return [ROOM + (v - low) / wide * (SIDE - 2 * ROOM) for v in values]
