"""Drawing of the network: the nodes, what the adversary observes, and what was recovered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from xml.sax.saxutils import escape

from jinja2 import Template
from markupsafe import Markup

from leakaudit.core.adversary import Adversary
from leakaudit.reporting.findings.wording import clean
from leakaudit.reporting.findings.worst_case import parsed
from leakaudit.reporting.rendering.html.positions import positions
from leakaudit.reporting.rendering.html.shades import STEPS
from leakaudit.reporting.rendering.templates import environment
from leakaudit.reporting.results.model import TraceSummary, given

MOST = 150  # most nodes that are drawn; more cannot be distinguished on a page
NUMBERED = 60  # most nodes that are drawn with numbers
SIDE = 420  # side of the drawing in pixels
ROOM = 28.0  # margin around the nodes
SMALL_NODE = 5.0  # radius of a node without a number
NODE = 14.0  # radius of a node with a number

Edge = Sequence[int]


def network(
    trace: TraceSummary,
    adversary: str,
    steps: Mapping[int, int],
    words: Mapping[int, str] | None = None,
    rounds: Mapping[int, Sequence[tuple[int, int]]] | None = None,
) -> Markup | None:
    """Draw the network as one adversary observes it; None if it is too large or not known.

    The shade of each node is an index in `shades.STEPS`, which also explains it unless there are
    other words. With the last round and the step of each leak of a node, the page replays rounds.
    """
    links = given(trace.links, ())
    nodes = trace.nodes
    if not links or len(links) < trace.edges or not 1 < nodes <= MOST:
        return None
    if any(len(edge) != 2 or not 0 <= min(edge) <= max(edge) < nodes for edge in links):
        return None
    if words is None:
        words = {node: STEPS[step] for node, step in steps.items()}
    who = parsed(adversary)
    own = frozenset() if who is None else who.corrupt
    xs, ys = map(_spread, positions(nodes, links).T.tolist())
    lines = []
    for i, j in links:
        look = "unobserved"
        if _observes(who, (i, j)):
            # The worse of its two nodes shades an observed edge.
            look = f"observed s{max(steps.get(i, 0), steps.get(j, 0))}"
        ends = {"x1": xs[i], "y1": ys[i], "x2": xs[j], "y2": ys[j]}
        lines.append({**ends, "look": look, "ends": f"{i} {j}"})
    bodies = []
    for n in range(nodes):
        look = "unknown"
        title = "not attacked"
        if n in own:
            look = "own"
            title = "the adversary's own"
        elif n in steps:
            look = f"s{steps[n]}"
            title = words.get(n, "")
        ink = "" if look == "unknown" else f" {look}"
        leaks = ""
        if rounds and n in rounds and n in steps:
            leaks = " ".join(f"{last}:{step}" for last, step in rounds[n])
        body = {"number": n, "x": xs[n], "y": ys[n], "own": n in own, "leaks": leaks}
        bodies.append({**body, "look": look, "ink": ink, "title": f"node {n}: {title}"})
    observed = sum(_observes(who, edge) for edge in links)
    label = (
        f"Network of {nodes} nodes and {len(links)} edges. "
        f"{adversary} observes {observed} of the edges."
    )
    numbered = nodes <= NUMBERED
    drawn = _template().render(
        side=SIDE,
        label=clean(label),
        lines=lines,
        nodes=bodies,
        radius=NODE if numbered else SMALL_NODE,
        numbered=numbered,
    )
    return Markup(drawn)


@cache
def _template() -> Template:
    made = environment(Path(__file__).parent)
    made.filters |= {"place": _place, "text": _text}
    return made.get_template("network.html.j2")


def _observes(who: Adversary | None, edge: Edge) -> bool:
    if who is None:
        return False
    i, j = edge
    return who.observes(i, j) or who.observes(j, i)


def _text(text: str) -> Markup:
    """Escape text for XML, in which an apostrophe stays."""
    return Markup(escape(text, {'"': "&quot;"}))


def _place(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def _spread(values: Sequence[float]) -> list[float]:
    """Stretch coordinates over the drawing; if all are equal, they go to the middle."""
    low = min(values)
    wide = max(values) - low
    if wide < 1e-9:
        return [SIDE / 2] * len(values)
    return [ROOM + (v - low) / wide * (SIDE - 2 * ROOM) for v in values]
