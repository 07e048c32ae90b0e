"""Charts: any text is drawn as text, the same chart gives the same bytes, and nothing of the process changes."""

from __future__ import annotations

import hashlib
import itertools
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as Tree

import matplotlib
import pytest
from matplotlib.figure import Figure

from leakaudit.core.errors import LeakauditError
from leakaudit.reporting.figures import curves, explanation_chart, plots
from leakaudit.views.extraction.explanation import ExplainedRow, Explanation

HOSTILE = (
    "$\\frac{",
    "</text><script>alert(1)</script>",
    "a\x00b\x1b[31m\ud800",
    "\u202eevil\u2066",
    "顔写真",
    "&amp;" * 400,
    "",
)


def drawn(
    rows: Sequence[plots.Row],
    legend: Mapping[str, str],
    styles: Mapping[str, str] | None = None,
    note: str = "",
) -> Figure:
    return curves.on_screen(curves.CurveFigure(rows, legend, styles or {}, note=note))


def chart(text: str = "plain", log: bool | None = False) -> Figure:
    lines = (
        plots.PlotLine(text, "median", [1.0, None, 30.0, 4.0]),
        plots.PlotLine(text, "best", [2.0, float("inf"), 300.0, 5.0]),
        plots.PlotLine("not in the legend", "ceiling", [None, 3.0, None, None]),
    )
    panel = plots.Panel(text, lines, text, (text, "b", "c", "d"), log=log)
    rows = [(text, [panel, panel]), ("", [plots.Panel(text, ())])]
    return drawn(rows, {text: text}, {"median": text, "best": "best"}, text)


def weights(text: str = "plain") -> Figure:
    rows = []
    for weight in ("1", "-1/100"):
        rows.append(ExplainedRow(text, ((0, 0, "1"), (1, 0, weight)), text, False, 0.0, 1.0, 1.0))
    one = Explanation(0, text, 2, tuple(rows), text)
    return explanation_chart.combinations([one])


@pytest.mark.parametrize("suffix", plots.SUFFIXES)
@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_any_text_is_drawn_as_text(text: str, suffix: str, tmp_path: Path) -> None:
    for k, figure in enumerate((chart(text), weights(text))):
        path = tmp_path / f"{k}{suffix}"
        plots.save(figure, path)
        head = path.read_bytes()[:5]
        assert head == {".png": b"\x89PNG\r", ".svg": b"<?xml", ".pdf": b"%PDF-"}[suffix]
        if suffix == ".svg":
            tree = Tree.parse(path)
            tags = {element.tag.rpartition("}")[2] for element in tree.iter()}
            assert tags <= {
                "svg",
                "defs",
                "style",
                "g",
                "path",
                "text",
                "use",
                "clipPath",
                "rect",
                "image",
                *("metadata", "RDF", "Work", "title", "creator", "Agent"),
            }
            shown = [element.text or "" for element in tree.iter() if element.tag.endswith("text")]
            if text.startswith(("$", "</", "顔")) and not k:
                assert text in shown


@pytest.mark.parametrize("suffix", plots.SUFFIXES)
def test_the_same_chart_gives_the_same_bytes_whatever_the_configuration(
    suffix: str, tmp_path: Path
) -> None:
    plots.save(chart(), tmp_path / f"a{suffix}")
    plots.save(weights(), tmp_path / f"c{suffix}")
    changed: Any = {"lines.linewidth": 9.0, "text.usetex": True, "font.size": 30, "savefig.dpi": 30}
    with matplotlib.rc_context(changed):
        before = dict(matplotlib.rcParams)
        plots.save(chart(), tmp_path / f"b{suffix}")
        plots.save(weights(), tmp_path / f"d{suffix}")
        assert dict(matplotlib.rcParams) == before
    digests = []
    for name in "abcd":
        digests.append(hashlib.sha256((tmp_path / f"{name}{suffix}").read_bytes()).hexdigest())
    assert digests[0] == digests[1]
    assert digests[2] == digests[3]
    assert digests[0] != digests[2]


def test_ids_of_two_charts_differ_by_their_name() -> None:
    first, second = (plots.svg(chart(), name) for name in ("one", "two"))
    assert first != second
    assert first == plots.svg(chart(), "one")


def test_another_suffix_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    for name in ("a.jpg", "a", "a.png.gz"):
        with pytest.raises(
            LeakauditError, match=r"^--output: expected a name that ends in \.png, "
        ):
            plots.save(chart(), tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_every_point_is_seen_and_every_name_told_apart() -> None:
    names = [f"line {k}" for k in range(12)]
    panel = plots.Panel("", tuple(plots.PlotLine(n, "rate", [k, k]) for k, n in enumerate(names)))
    figure = drawn([("", [panel])], dict(zip(names, names, strict=True)))
    (place,) = figure.axes
    looks = [(line.get_color(), line.get_marker()) for line in place.lines]
    assert len(set(looks)) == len(names)
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == names
    dashed = chart().axes[0].lines[2]
    assert (dashed.get_marker(), dashed.get_markevery()) == ("_", [1])


@pytest.mark.parametrize(
    ("values", "low", "high", "log", "limits"),
    [
        ([0.2, 0.4], 0.0, 1.0, False, (0, 1)),
        ([0.2, 7.0], 0.0, None, False, (0, 7)),
        ([-3.0, -2.0], None, None, False, (-3, -2)),
        ([3e-7, 2.0], None, None, True, (1e-7, 10)),
        ([0.3, 0.3], None, None, True, (0.1, 1)),
    ],
)
def test_an_axis_holds_all_values_and_numbers_some_of_them(
    values: list[float],
    low: float | None,
    high: float | None,
    log: bool,
    limits: tuple[float, float],
) -> None:
    panel = plots.Panel("", (plots.PlotLine("a", "rate", values),), low=low, high=high, log=log)
    (place,) = drawn([("", [panel])], {"a": "a"}).axes
    bottom, top = place.get_ylim()
    assert bottom <= limits[0] <= limits[1] <= top
    if log:
        assert (bottom, top) == pytest.approx(limits)
    inside = [tick for tick in place.get_yticks() if bottom <= tick <= top]
    assert 2 <= len(inside) <= 9


def test_many_points_are_named_with_room_between_them() -> None:
    points = tuple(f"{10**k:g}" for k in range(12))
    panel = plots.Panel("", (plots.PlotLine("a", "rate", [1.0] * 12),), points=points, numeric=True)
    figure = drawn([("", [panel])], {"a": "a"})
    plots.svg(figure, "drawn")
    (place,) = figure.axes
    boxes = [label.get_window_extent() for label in place.get_xticklabels()]
    assert len(boxes) > 3
    assert all(a.x1 < b.x0 for a, b in itertools.pairwise(boxes))


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize("values", [[1e-5, 1.2e-5], [-3e5, 1.2e6], [1234567, 1234570], [0, 9e99]])
@pytest.mark.parametrize(("name", "legends"), [("a long name of this line " * 9, 1), ("a", 2)])
def test_nothing_covers_anything_else(
    values: list[float], log: bool, name: str, legends: int
) -> None:
    panel = plots.Panel(
        "a rather long title " * 9,
        (plots.PlotLine("a", "rate", values),),
        "axis",
        ("x", "y"),
        log=log,
        heading="a heading, and a value",
    )
    rows = [("first", [panel, panel]), ("", [panel, panel]), ("third", [panel])]
    figure = drawn(rows, {"a": name, "b": "b"}, note="note")
    plots.svg(figure, "drawn")
    boxes = []
    for artist in (*figure.axes, *figure.texts, *figure.legends):
        box = artist.get_tightbbox()
        assert box is not None
        boxes.append(box)
    assert len(boxes) == 5 + legends
    assert not any(a.overlaps(b) for a, b in itertools.combinations(boxes, 2))
    page = figure.bbox
    for box in boxes:
        assert page.x0 <= box.x0 <= box.x1 <= page.x1
        assert page.y0 <= box.y0 <= box.y1 <= page.y1


def test_matplotlib_is_loaded_when_a_chart_is_drawn_and_never_with_windows() -> None:
    probe = (
        "import sys\n"
        "from leakaudit.reporting.figures import curves, plots, training_chart, explanation_chart\n"
        "from leakaudit.reporting.rendering.html import page\n"
        "from leakaudit.reporting.figures import audit_panels\n"
        "from leakaudit.reporting.figures import sweep_figure\n"
        "assert 'matplotlib' not in sys.modules\n"
        "curves.on_screen(curves.CurveFigure([('', [plots.Panel('a', ())])], {}, {}))\n"
        "assert 'matplotlib' in sys.modules\n"
        "assert 'matplotlib.pyplot' not in sys.modules\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", probe], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
