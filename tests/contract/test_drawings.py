"""Drawings of the page: the right wires are heard, the right cells are shaded, and every value lies where the axis says."""

from __future__ import annotations

import re
from typing import Any
from xml.etree import ElementTree as Tree

import pytest
from markupsafe import Markup
from records import RECORDS, Record
from records import column as measured
from records import finding as entry

from leakaudit.rendering.html import curves, heat, svg, topology
from leakaudit.rendering.html.shades import STEPS, Scene, shaded, step
from leakaudit.results.model import AuditRecord, Finding, TraceSummary, fitted

RING: Record = {"nodes": 5, "edges": 5, "links": [[k, (k + 1) % 5] for k in range(5)]}


def network(**sizes: Any) -> TraceSummary:
    rest = {"protocol": "pdmm", "data": "faces", "model": "mlp", "rounds": 5, "shape": [2]}
    return fitted({**rest, "classes": 2, **sizes}, TraceSummary)


def scene(rounds: int, *findings: Finding) -> Scene:
    shades = tuple(map(shaded, findings))
    return Scene(network(nodes=1000, edges=0, rounds=rounds), shades, ())


def parts(drawing: Markup | None, tag: str, word: str = "") -> list[Tree.Element]:
    assert drawing is not None
    return [
        e
        for e in Tree.fromstring(drawing).iter(tag)
        if not word or word in (e.get("class") or "").split()
    ]


@pytest.mark.parametrize(
    ("adversary", "heard", "own"),
    [
        ("eavesdropper", 5, 0),
        ("node:3", 2, 1),
        ("nodes:0,1", 3, 2),
        ("edges:0-1,1-0", 1, 0),
        ("edges:1-2+node:4", 3, 1),
        ("stranger", 0, 0),
    ],
)
def test_wires_that_are_heard_and_nodes_of_the_adversary_are_marked(
    adversary: str, heard: int, own: int
) -> None:
    drawing = topology.network(network(**RING), adversary, {1: 5})
    assert len(parts(drawing, "line", "heard")) == heard
    assert len(parts(drawing, "line", "deaf")) == 5 - heard
    assert len(parts(drawing, "rect", "own")) == own
    assert f"{adversary} hears {heard} of the wires" in str(drawing)


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
    drawing = heat.by_round(found)
    said = [title.text for title in parts(drawing, "title")]
    assert said == [
        "node 2, round 0 to 1: 10 to 20 dB",
        "node 2, round 2 to 3: 20 to 30 dB",
        "node 2, round 4 to 5: not looked at",
        "node 7, round 0 to 4: not looked at",
        "node 7, round 5: 30 dB or more",
    ]
    assert len(parts(heat.by_adversary(found), "rect")) == 4


def test_many_nodes_and_rounds_share_cells() -> None:
    found = [finding(n, 0, 9_999, 40.0 if n == 777 else 5.0) for n in range(1000)]
    rows = parts(heat.by_round(scene(10_000, *found)), "rect")
    assert len(rows) <= heat.ROWS
    assert [
        r.find("title") is not None and "30 dB" in str(r.find("title").text)  # type: ignore[union-attr]
        for r in rows
    ].count(True) == 1


def test_every_point_lies_where_the_axis_says() -> None:
    audit = {
        **RECORDS["audit"]["audit"],
        "curves": [
            {
                "epsilon": e,
                "adversary": "a",
                "attack": "dlg",
                "psnr": {"images": 1.0, "best": b, "median": b / 2, "mean": b / 4},
            }
            for e, b in ((1.0, 8.0), (10.0, 36.0), ("inf", 200.0))
        ],
        "verdicts": [],
    }
    ((who, (panel,)),) = curves.panels(fitted({**RECORDS["audit"], "audit": audit}, AuditRecord))
    assert who == "a"
    best, median, _ = (
        [tuple(map(float, p.split(","))) for p in line.get("points", "").split()]
        for line in parts(panel.picture, "polyline")
    )
    ticks = {
        float(t.text or ""): float(t.get("y", "0")) - 4
        for t in parts(panel.picture, "text")
        if t.get("text-anchor") == "end"
    }
    low, high = ticks[0.0], ticks[60.0]
    for points, values in ((best, (8.0, 36.0, 60.0)), (median, (4.0, 18.0, 60.0))):
        for (_, y), value in zip(points, values, strict=True):
            assert y == pytest.approx(low + (high - low) * value / 60, abs=0.11)
    assert [x for x, _ in best] == sorted(x for x, _ in best)
    assert "dlg, best: 8, 36, 60" in str(panel.picture)


@pytest.mark.parametrize(
    ("values", "log", "wanted"),
    [
        ([0.0, 60.0], False, [0, 20, 40, 60]),
        ([-0.02, 1.0], False, [-0.25, 0, 0.25, 0.5, 0.75, 1]),
        ([60.0, 60.0], False, [0, 20, 40, 60]),
        ([-3.0, -2.0], False, [-3, -2, -1, 0]),
        ([0.0, 0.0], False, None),
        ([3e-7, 2.0], True, [1e-7, 1e-5, 1e-3, 1e-1, 10]),
    ],
)
def test_ticks_are_round_and_hold_all_values(
    values: list[float], log: bool, wanted: list[float] | None
) -> None:
    found = curves._ticks(values, log)
    assert found == sorted(set(found))
    assert len(found) <= 7
    if wanted is not None:
        assert found == pytest.approx(wanted)
    assert found[0] <= min(values)
    assert found[-1] >= max(values)


def test_text_in_a_drawing_is_escaped() -> None:
    shown = svg.drawing(
        10,
        10,
        [svg.text(1, 1, "<script>&\x00"), svg.circle(1, 1, 1, 'a" onload="x', "<b>")],
        '"><script>',
    )
    tree = Tree.fromstring(shown)
    assert [e.text for e in tree.iter("text")] == ["<script>&"]
    assert tree.get("aria-label") == '"><script>'
    assert not re.search(r"<script|<b>", shown)
