"""Drawings of the page: the right edges are marked as observed, the right cells are shaded, and
every value lies where the axis says.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as Tree

import pytest
from markupsafe import Markup
from records import RECORDS, Record
from records import column as measured
from records import finding as entry

from leakaudit.reporting.findings.shown import DisplayRecord
from leakaudit.reporting.rendering import html
from leakaudit.reporting.rendering.html import curves, heat, topology
from leakaudit.reporting.rendering.html.shades import STEPS, NetworkScene, shaded, step
from leakaudit.reporting.results.model import AuditRecord, Finding, TraceSummary, fitted

RING: Record = {"nodes": 5, "edges": 5, "links": [[k, (k + 1) % 5] for k in range(5)]}


def network(**sizes: Any) -> TraceSummary:
    rest = {"protocol": "pdmm", "data": "faces", "model": "mlp", "rounds": 5, "shape": [2]}
    return fitted({**rest, "classes": 2, **sizes}, TraceSummary)


def scene(rounds: int, *findings: Finding) -> NetworkScene:
    shades = tuple(shade for one in findings for shade in shaded(one))
    return NetworkScene(network(nodes=1000, edges=0, rounds=rounds), shades, ())


def parts(drawing: Markup | None, tag: str, word: str = "") -> list[Tree.Element]:
    assert drawing is not None
    return [
        e
        for e in Tree.fromstring(drawing).iter(tag)
        if not word or word in (e.get("class") or "").split()
    ]


@pytest.mark.parametrize(
    ("adversary", "observed", "own"),
    [
        ("eavesdropper", 5, 0),
        ("node:3", 2, 1),
        ("nodes:0,1", 3, 2),
        ("edges:0-1,1-0", 1, 0),
        ("edges:1-2+node:4", 3, 1),
        ("stranger", 0, 0),
    ],
)
def test_edges_that_are_observed_and_nodes_of_the_adversary_are_marked(
    adversary: str, observed: int, own: int
) -> None:
    drawing = topology.network(network(**RING), adversary, {1: 5})
    assert len(parts(drawing, "line", "observed")) == observed
    assert len(parts(drawing, "line", "unobserved")) == 5 - observed
    assert len(parts(drawing, "rect", "own")) == own
    assert f"{adversary} observes {observed} of the edges" in str(drawing)


def test_the_same_network_is_drawn_the_same_and_inside_its_frame() -> None:
    drawing = topology.network(network(**RING), "eavesdropper", {})
    assert drawing == topology.network(network(**RING), "eavesdropper", {})
    for node in parts(drawing, "circle"):
        assert 14 <= float(node.get("cx", "0")) <= topology.SIDE - 14
        assert 14 <= float(node.get("cy", "0")) <= topology.SIDE - 14


@pytest.mark.parametrize(
    "trace",
    [
        {"nodes": 5, "edges": 5},
        {**RING, "edges": 6},
        {"nodes": 200, "edges": 1, "links": [[0, 1]]},
        {"nodes": 2, "edges": 1, "links": [[0, 9]]},
        {"nodes": 1, "edges": 0, "links": []},
    ],
)
def test_a_network_that_is_not_known_is_not_drawn(trace: Record) -> None:
    assert topology.network(network(**trace), "eavesdropper", {}) is None


def test_networks_in_parts_and_large_ones_are_drawn() -> None:
    apart = {"nodes": 4, "edges": 2, "links": [[0, 1], [2, 3]]}
    assert len(parts(topology.network(network(**apart), "eavesdropper", {}), "circle")) == 4
    wide = {"nodes": 150, "edges": 149, "links": [[0, k] for k in range(1, 150)]}
    assert len(parts(topology.network(network(**wide), "node:0", {}), "circle")) == 149


def finding(
    node: int,
    first: int,
    last: int,
    psnr: float | None,
    certificate: str = "APPROXIMATE",
    exact: bool = False,
) -> Finding:
    of = entry(node, psnr, exact, certificate, adversary=f"node:{node + 1}")
    span = {"first": first, "last": last, "count": 1}
    scores = {**of["scores"], "psnr": measured(psnr)}
    return fitted({**of, "scores": scores, "leak": {**of["leak"], "rounds": span}}, Finding)


@pytest.mark.parametrize(
    ("psnr", "wanted"),
    [(None, 0), (9.9, 1), (10.0, 2), (19.9, 2), (20.0, 3), (30.0, 4), (150.0, 4)],
)
def test_steps_follow_the_closest_record(psnr: float | None, wanted: int) -> None:
    assert step(finding(0, 0, 0, psnr)) == wanted
    assert step(finding(0, 0, 0, psnr, exact=True)) == len(STEPS) - 1


def test_a_cell_shows_the_worst_of_the_leaks_that_span_it() -> None:
    found = scene(5, finding(2, 0, 3, 12.0), finding(2, 2, 3, 25.0), finding(7, 5, 5, 40.0))
    table = heat.by_round(found)
    assert table is not None
    assert table.heads == tuple((str(t), 1) for t in range(6))
    assert [
        [(cell.title, cell.shade, cell.columns) for cell in cells] for _, cells in table.rows
    ] == [
        [
            ("node 2, round 0 to 1: 10 to 20 dB", "s2", 2),
            ("node 2, round 2 to 3: 20 to 30 dB", "s3", 2),
            ("node 2, round 4 to 5: not examined", "blank", 2),
        ],
        [
            ("node 7, round 0 to 4: not examined", "blank", 5),
            ("node 7, round 5: 30 dB or more", "s4", 1),
        ],
    ]
    other = heat.by_adversary(found)
    assert other is not None
    assert sum(len(cells) for _, cells in other.rows) == 4


def test_many_nodes_and_rounds_share_cells() -> None:
    found = [finding(n, 0, 9_999, 40.0 if n == 777 else 5.0) for n in range(1000)]
    table = heat.by_round(scene(10_000, *found))
    assert table is not None
    assert len(table.rows) <= heat.ROWS
    assert table.columns <= heat.COLUMNS
    assert sum(columns for _, columns in table.heads) == table.columns
    assert all(sum(c.columns for c in cells) == table.columns for _, cells in table.rows)
    strong = [cell for _, cells in table.rows for cell in cells if "30 dB" in cell.words]
    assert len(strong) == 1


def test_a_heat_map_is_a_table_that_says_what_its_shades_show() -> None:
    shown = html.page(DisplayRecord.of(RECORDS["attack"]))
    found = re.search(r'<table class="heat".*?</table>', shown, re.DOTALL)
    assert found is not None
    table = Tree.fromstring(found[0])
    body = table.find("tbody")
    assert body is not None
    for row in body:
        name, *cells = row
        assert name.get("scope") == "row"
        for cell in cells:
            words = "".join(cell.itertext())
            assert (cell.get("title") or "").startswith(f"node {name.text}, round ")
            assert (cell.get("title") or "").endswith(f": {words}")
            assert words in (*STEPS, "not examined")


CURVES: list[Record] = [
    {
        "epsilon": e,
        "adversary": "a",
        "attack": "dlg",
        "psnr": {"images": 1.0, "best": b, "median": b / 2, "mean": b / 4},
    }
    for e, b in ((1.0, 8.0), (10.0, 36.0), ("inf", 200.0))
]


def panels(*attacks: str) -> list[curves._HeadedFigure]:
    rows = [{**row, "attack": attack} for attack in attacks for row in CURVES]
    audit = {**RECORDS["audit"]["audit"], "curves": rows, "verdicts": []}
    ((who, found),) = curves.panels(fitted({**RECORDS["audit"], "audit": audit}, AuditRecord))
    assert who == "a"
    return found


def test_every_point_lies_where_the_axis_says() -> None:
    (panel,) = panels("dlg")
    ticks, marks = {}, []
    for text in parts(panel.picture, "text"):
        if "text-anchor: end" in (text.get("style") or "") and text.text != "epsilon":
            ticks[float((text.text or "").lstrip("≥"))] = float(text.get("y", "0"))
    for mark in parts(panel.picture, "use"):
        title = mark.find("title")
        if title is not None:
            marks.append((float(mark.get("x", "0")), float(mark.get("y", "0")), title.text))
    assert [text for *_, text in marks] == [
        "dlg at epsilon 1: median 4, best 8, mean 2",
        "dlg at epsilon 10: median 18, best 36, mean 9",
        "dlg at epsilon inf: median 60, best 60, mean 50",
    ]
    low, high = ticks[0.0], ticks[60.0]
    below = 3.3  # from the middle of a number to the line that it stands on
    for (_, y, _), value in zip(marks, (4.0, 18.0, 60.0), strict=True):
        assert y == pytest.approx(low + (high - low) * value / 60 - below, abs=0.5)
    assert [x for x, *_ in marks] == sorted(x for x, *_ in marks)
    assert "dlg, best: 8, 36, 60" in str(panel.picture)


def test_pictures_of_a_page_share_no_ids_and_no_styles() -> None:
    rows = [*CURVES, *({**row, "adversary": "b"} for row in CURVES)]
    audit = {**RECORDS["audit"]["audit"], "curves": rows}
    found: list[curves._HeadedFigure] = []
    for _, some in curves.panels(fitted({**RECORDS["audit"], "audit": audit}, AuditRecord)):
        found += some
    assert len(found) > 1
    seen: set[str] = set()
    for one in found:
        tree = Tree.fromstring(one.picture)
        ids = {e.get("id", "") for e in tree.iter() if e.get("id")}
        assert not ids & seen
        seen |= ids
        referred = set(re.findall(r'(?:href="|url\()#([\w-]+)', one.picture))
        assert referred == ids
        assert not [e for e in tree.iter() if e.tag in ("style", "metadata", "script")]
        assert tree.get("role") == "img"
        assert tree.get("aria-label")


def test_a_page_in_the_dark_replaces_every_colour_of_a_chart(project: Path) -> None:
    style = (project / "leakaudit/reporting/rendering/html/style.css").read_text()
    dark = style[style.index("prefers-color-scheme: dark") :].split("}")[0]
    (panel,) = panels(*(f"attack{k}" for k in range(8)))
    used = set(re.findall(r"var\((--[a-z0-9]+), #[0-9a-f]{6}\)", panel.picture))
    assert len(used) == 10  # eight lines of which one is in the colour of the text, and two more
    assert [name for name in used if f"{name}:" not in dark] == []
    left = re.sub(r"var\([^)]*\)", "", panel.picture)
    assert re.findall(r"(?:fill|stroke): (#\w+)", left) == []


def test_text_in_a_drawing_is_escaped() -> None:
    hostile = '"><script>alert(1)</script>\x00\u202e $\\frac{'
    for shown in (
        topology.network(network(**RING), hostile, {}),
        panels(hostile)[0].picture,
    ):
        assert shown is not None
        tree = Tree.fromstring(shown)
        assert '"><script>alert(1)</script> $\\frac{' in (tree.get("aria-label") or "")
        assert not re.search(r"<script|\x00|\u202e", shown)
    assert any("<script>" in (e.text or "") for e in tree.iter("text"))
