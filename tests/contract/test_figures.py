"""Figures for papers: only measured points, one colour for one meaning, widths and fonts of a paper, the same bytes."""

from __future__ import annotations

import re
import struct
from typing import Any
from xml.etree import ElementTree as Tree

import msgspec
import pytest
from records import RECORDS, Record

from leakaudit.core import registry
from leakaudit.core.errors import LeakauditError
from leakaudit.reporting.figures import audit_panels, paper, plots, record_figure, sweep_figure
from leakaudit.reporting.figures.curves import CurveFigure, _Scale, on_screen
from leakaudit.reporting.figures.paper_strips import StripPanel, Strips
from leakaudit.reporting.rendering.html import curves
from leakaudit.reporting.results.model import AuditRecord, SweepPart, fitted

Lines = dict[tuple[str, str], plots.PlotLine]


def rendered(format: str, of: Record, **options: Any) -> Any:
    return registry.get("reports", format)(of, **options)


# --- sweeps -----------------------------------------------------------------------------------------------------------


def cell(at: Record, seed: int, psnr: float, attack: str = "analytic") -> Record:
    columns: Record = {"attacked": 1, "refused": 0, "returned": 1, "records": 1, "recovered": 1}
    columns |= {"exact": 0, "certified": 0, "psnr": [psnr], "ssim": [0.5]}
    columns |= {"relative_error": [0.1], "labels": []}
    rest = {"key": "0" * 64, "status": "done", "says": "", "constants": {}, "reasons": {}}
    return {
        **rest,
        **{"attack": attack, "adversary": "eavesdropper", "at": at, "seed": seed, "records": 1},
        "columns": columns,
    }


def point(at: Record, cells: int, psnr: float, attack: str = "analytic") -> Record:
    three = {"best": psnr, "median": psnr, "mean": psnr}
    counts: Record = {"cells": cells, "attacked": cells, "refused": 0, "records": cells}
    counts |= {"recovered": 1, "exact": 0, "certified": 0, "labels_found": None}
    return {
        **{"attack": attack, "adversary": "eavesdropper", "at": at},
        **counts,
        **{"psnr": three, "ssim": {**three, "best": 0.5, "median": 0.5, "mean": 0.5}},
    }


def sweep(seeds: int = 2) -> SweepPart:
    """The plan of docs/sweep.md: D-PSGD with three values of sigma, PDMM without any."""
    places: list[tuple[Record, float]] = [
        ({"victim": "dpsgd", "dpsgd.sigma": 0.0}, 200.0),
        ({"victim": "dpsgd", "dpsgd.sigma": 0.001}, 42.0),
        ({"victim": "dpsgd", "dpsgd.sigma": 0.01}, 12.0),
        ({"victim": "pdmm"}, 55.0),
    ]
    cells = [cell(at, seed, psnr - seed) for at, psnr in places for seed in range(seeds)]
    of = {
        "digest": "0" * 64,
        "plan": {"own": {"dpsgd": {"sigma": [0.0, 0.001, 0.01]}}},
        "versions": {},
        "axes": {"victim": ["dpsgd", "pdmm"], "dpsgd.sigma": [0.0, 0.001, 0.01]},
        "across": "dpsgd.sigma",
        "psnr": 20.0,
        "cells": cells,
        "missing": 0,
        "points": [point(at, seeds, psnr) for at, psnr in places],
        "figure": "sweep.png",
    }
    return fitted(of, SweepPart)


def lines(panel: plots.Panel) -> Lines:
    return {(line.name, line.style): line for line in panel.lines}


def test_a_protocol_without_the_setting_is_a_level_and_has_no_points() -> None:
    drawing = sweep_figure.content(sweep())
    ((title, panels),) = drawing.rows
    assert title.startswith("victim=dpsgd")
    found = lines(panels[0])
    assert found["analytic", "median"].values == [60.0, 42.0, 12.0]
    level = found["analytic, pdmm (has no sigma)", "level"]
    assert list(level.values) == [55.0] * 3
    assert not level.intervals
    assert {style for name, style in found if "pdmm" in name} == {"level"}
    assert "analytic, pdmm (has no sigma)" in drawing.legend
    look = plots.looks_of(drawing.legend)["analytic, pdmm (has no sigma)"]
    marked = 0
    for place in on_screen(sweep_figure.content(sweep())).axes:
        for line in place.lines:
            if line.get_color() == look.colour:
                assert line.get_marker() in ("", "_")
            elif line.get_marker() == "o":
                marked += 1
    assert marked >= 3  # one median in each of two panels, and the share


def test_an_attack_without_the_setting_is_a_level_too() -> None:
    places: list[Record] = [{"dlg.steps": 10}, {"dlg.steps": 20}]
    points = [point(at, 1, 20.0, "dlg") for at in places] + [point({}, 1, 30.0, "inverting")]
    part = fitted(
        {
            **{"digest": "0" * 64, "versions": {}, "missing": 0, "figure": None, "psnr": 20.0},
            "plan": {"own": {"dlg": {"steps": [10, 20]}}},
            "axes": {"dlg.steps": [10, 20]},
            "across": "dlg.steps",
            "cells": [],
            "points": points,
        },
        SweepPart,
    )
    ((_, panels),) = sweep_figure.content(part).rows
    found = lines(panels[0])
    assert list(found["dlg", "median"].values) == [20.0, 20.0]
    assert list(found["inverting (has no steps)", "level"].values) == [30.0, 30.0]


def test_intervals_are_those_of_several_seeds_only() -> None:
    several = sweep_figure.content(sweep(2))
    panels = several.rows[0][1]
    assert lines(panels[0])["analytic", "median"].intervals == [
        (60.0, 60.0),
        (41.0, 42.0),
        (11.0, 12.0),
    ]
    low, high = lines(panels[2])["analytic", "rate"].intervals[0] or (0, 0)
    assert low == pytest.approx(0.0126, abs=1e-4)
    assert high == pytest.approx(0.9874, abs=1e-4)
    assert several.styles["median"] == sweep_figure.MEDIANS
    assert "Clopper-Pearson" in several.styles["rate"]
    one = sweep_figure.content(sweep(1))
    assert not any(any(line.intervals) for panel in one.rows[0][1] for line in panel.lines)
    assert one.styles == sweep_figure.STYLES


# --- one cap, one colour ----------------------------------------------------------------------------------------------


def test_every_figure_has_the_same_psnr_cap_and_states_it() -> None:
    audit = fitted(RECORDS["audit"], AuditRecord)
    ((_, (panel, *_)),) = audit_panels.views(audit)
    assert panel.cap == plots.PSNR_SHOWN
    assert sweep_figure.content(sweep()).rows[0][1][0].cap == panel.cap
    (_, (drawn, *_)), *_ = curves.panels(audit)
    assert drawn.title.startswith(panel.title)
    text = rendered("svg", RECORDS["attack"])
    assert f"≥{plots.PSNR_SHOWN:g}" in text


@pytest.mark.parametrize("bounded", [(1, 2), (2,)])
def test_a_limit_is_drawn_where_all_attacked_nodes_have_a_bound(bounded: tuple[int, ...]) -> None:
    of = RECORDS["audit"]["audit"]
    grid = []
    for point in of["grid"]:
        (view,) = point["views"]
        grid.append({**point, "views": [view, {**view, "node": 2}]})
    limit = {"epsilon": 10.0, "adversary": "node:3", "chance": 0.5, "psnr": 24.0, "ssim": None}
    part = {**of, "grid": grid, "ceilings": [{**limit, "nodes": bounded}]}
    audit = fitted({**RECORDS["audit"], "audit": part}, AuditRecord)
    ((_, (panel, *_)),) = audit_panels.views(audit)
    drawn = [line.values for line in panel.lines if line.style == "ceiling"]
    missing = audit_panels.unlimited(audit.audit)
    assert drawn == ([[24.0, None]] if len(bounded) == 2 else [])
    assert [": node 1 without a bound" in one for one in missing] == [True] * (2 - len(bounded))
    assert set(missing) <= set(curves.refusals(audit))
    assert audit_panels.content(audit).note == "; ".join(missing)


def test_a_meaning_has_one_colour_everywhere() -> None:
    of = {**RECORDS["audit"]["audit"]}
    verdicts = []
    for one in of["verdicts"]:
        for name, mu in (("view", 1.0), ("theorem", None)):
            verdicts.append({**one, "promise": {**one["promise"], "name": name, "mu": mu}})
    audit = fitted(
        {**RECORDS["audit"], "audit": {**of, "verdicts": verdicts}},
        AuditRecord,
    )
    looks = audit_panels.looks(audit.audit)
    assert looks["view"] == plots.LIMIT_BY_VIEW
    assert looks["theorem"] == plots.LIMIT_BY_CLAIM
    attack = looks["auto"].colour
    assert attack == plots.looks_of(["auto"])["auto"].colour == plots.COLOURS[0]
    colours = set()
    for _, pictures in curves.panels(audit):
        for picture in pictures:
            colours |= set(re.findall(r"stroke: var\(--c\d, (#\w+)\)", picture.picture))
    assert colours == {attack, plots.LIMIT_BY_VIEW.colour, plots.LIMIT_BY_CLAIM.colour}


def test_the_first_colours_are_the_same_with_and_without_limits() -> None:
    names = [f"attack{k}" for k in range(4)]
    plain = plots.looks_of(names)
    limited = plots.looks_of(names, {"view": plots.LIMIT_BY_VIEW})
    assert [plain[name] for name in names] == [limited[name] for name in names]


# --- files ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", RECORDS)
@pytest.mark.parametrize("width", ["column", "page", 120])
def test_every_record_has_a_figure_of_the_width_of_a_paper(kind: str, width: str | float) -> None:
    made = rendered("pdf", RECORDS[kind], figure_width=width)
    assert made.startswith(b"%PDF-")
    boxes = re.findall(rb"/MediaBox \[ 0 0 ([\d.]+) ([\d.]+) \]", made)
    wanted = paper.width_of(width)
    assert [float(wide) / 72 * 25.4 for wide, _ in boxes] == [pytest.approx(wanted, abs=0.1)]
    assert b"/Type3" not in made
    assert b"/FontFile2" in made  # TrueType
    assert b"/CreationDate" not in made
    assert made == rendered("pdf", RECORDS[kind], figure_width=width)


def test_svg_and_png_are_one_figure_and_always_the_same() -> None:
    text = rendered("svg", RECORDS["audit"], figure_width="column")
    tree = Tree.fromstring(text)
    assert float((tree.get("width") or "").removesuffix("pt")) == pytest.approx(84 / 25.4 * 72)
    assert "ε" in [element.text for element in tree.iter()]  # text stays text
    assert text == rendered("svg", RECORDS["audit"], figure_width="column")
    image = rendered("png", RECORDS["audit"], figure_width="column")
    wide, _ = struct.unpack(">II", image[16:24])
    assert wide == int(84 / 25.4 * plots.DOTS)
    assert image == rendered("png", RECORDS["audit"], figure_width="column")


@pytest.mark.parametrize("width", ["wide", "59", "401", "nan", ""])
def test_another_width_is_refused(width: str) -> None:
    with pytest.raises(LeakauditError, match="--width: expected column or page, or a number"):
        rendered("pdf", RECORDS["audit"], figure_width=width)


def test_names_of_a_record_are_drawn_as_text() -> None:
    text = rendered("svg", RECORDS["hostile"])
    Tree.fromstring(text)
    assert "<script" not in text


def test_many_rows_take_several_pages() -> None:
    panel = plots.Panel("SSIM", (plots.PlotLine("a", "rate", [0.5]),), points=("1",))
    rows = [(f"row {k}", [panel]) for k in range(12)]
    made = paper.drawn(CurveFigure(rows, {"a": "a"}, {}), "pdf", 84, "many")
    assert len(re.findall(rb"/MediaBox", made)) == 3
    names = [f"node {k}" for k in range(120)]
    strips = Strips(names, [StripPanel("PSNR, dB", [[1.0]] * 120)])
    assert len(re.findall(rb"/MediaBox", paper.drawn(strips, "pdf", 84, "many"))) == 3
    assert paper.drawn(strips, "png", 84, "").startswith(b"\x89PNG")


def test_zero_and_infinity_are_beside_a_logarithmic_axis_and_not_joined_to_it() -> None:
    scale = _Scale.of(("0", "1", "10", "100", "inf"), range(5), True)
    assert scale.at == pytest.approx((-0.8, 0, 1, 2, 2.8))
    assert scale.joined == (False, True, True, False, False)
    assert scale.names == ("0", "1", "10", "100", "∞")
    linear = _Scale.of(("0", "1", "2", "3"), range(4), True)
    assert linear.at == (0, 1, 2, 3)
    assert linear.joined == (True,) * 4
    assert _Scale.of(("1e-05", "30000", "1e8"), range(3), True).names == ("10⁻⁵", "3·10⁴", "10⁸")


@pytest.mark.parametrize(
    "words", [("mlp", "lenet"), ("1111111", "12e45", "9999999", "inf"), ("1", "nan", "infinity")]
)
def test_words_are_not_read_as_numbers(words: tuple[str, ...]) -> None:
    scale = _Scale.of(words, range(len(words)), False)
    assert scale.at == tuple(range(len(words)))
    assert scale.names == words
    assert all(scale.joined)


def test_only_numbers_of_a_sweep_have_a_numeric_axis() -> None:
    made = sweep()
    words = msgspec.structs.replace(made, axes={**made.axes, "dpsgd.sigma": ["0", "0.001", "0.01"]})
    for swept, numeric in ((made, True), (words, False)):
        panels = [panel for _, some in sweep_figure.content(swept).rows for panel in some]
        assert {panel.numeric for panel in panels} == {numeric}


def test_a_value_that_is_the_median_everywhere_is_drawn_once() -> None:
    content, _ = record_figure.of(RECORDS["audit"])
    assert isinstance(content, CurveFigure)
    assert set(content.styles) == {"median", "best", "rate"}
    swept = record_figure._without_thin_lines(sweep_figure.content(sweep(1)))
    assert swept.styles == {"median": ""}
