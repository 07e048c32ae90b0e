"""The files of published items: each loads, is named once, quotes its paper, and can be planned."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from leakaudit.core.errors import LeakauditError
from leakaudit.core.verdict import Holds
from leakaudit.judging.papers import PAPERS, ROWS, drawing, items
from leakaudit.judging.papers.items import Item
from leakaudit.judging.papers.row import folder
from leakaudit.reporting.figures import plots
from leakaudit.reporting.results.cell_files import CellBound, CellResult
from leakaudit.runs.reproducing import gather
from leakaudit.runs.reproducing.plan import plan
from leakaudit.runs.sweeping.cells import PlannedCell

EVERY = items.every()
NAMES = [item.full_name for item in EVERY]
PLANNED = [item for item in EVERY if item.plan is not None]
RUN = [item for item in EVERY if item.state == "runs"]
DOWNLOADED = {"mnist", "fashion", "cifar10", "ijcnn1"}

GOOD = """
kind = "figure"
title = "a title"
place = "Figure 1"
[plan]
[plan.scenario]
data = "gaussians"
model = "logistic"
[[plan.line]]
name = "one"
scenario = { victim = "dpsgd" }
[[plan.line]]
name = "two"
scenario = { victim = "fedavg" }
[[plan.panel]]
y = "loss"
[[plan.expected]]
says = "one ends above two"
rule = "above"
lines = ["one", "two"]
y = "loss"
"""


def names(of: list[Item]) -> list[str]:
    return [item.full_name for item in of]


def test_every_name_is_unique_and_can_be_typed() -> None:
    assert len({*NAMES}) == len(NAMES) > 0
    assert all(re.fullmatch(r"[a-z-]+/[a-z0-9.-]+", name) for name in NAMES)


@pytest.mark.parametrize("item", EVERY, ids=NAMES)
def test_an_item_quotes_its_paper_in_whole_sentences_and_says_what_it_needs(item: Item) -> None:
    assert item.quotes or item.lost
    for quote in item.quotes:
        assert quote.text.strip() == quote.text
        assert len(quote.text.split()) >= 3
    assert {*item.claims} <= {row.number for row in ROWS}
    for text in (item.title, item.place, item.small, item.stand_in):
        assert not text.endswith(".")
    if item.state == "not determined":
        assert item.missing


@pytest.mark.parametrize("item", RUN, ids=names(RUN))
def test_an_item_that_runs_is_compared_with_something_or_says_that_it_is_too_short(
    item: Item,
) -> None:
    assert item.numbers("paper") or item.shapes("paper")
    if not item.small.startswith("too short to compare"):
        assert item.numbers("small") or item.shapes("small")
    if item.drawn:
        assert callable(drawing.function_of(item))


@pytest.mark.parametrize("item", PLANNED, ids=names(PLANNED))
def test_the_scenarios_of_a_plan_are_valid_at_both_scales(item: Item) -> None:
    small = plan(item, "small")
    paper = plan(item, "paper")
    assert small.cells
    assert len(paper.cells) >= len(small.cells)
    if not item.small:
        assert {*small.cells} <= {*paper.cells}  # it may have fewer seeds
    elif small.seeds == paper.seeds:
        assert {*small.cells} != {*paper.cells}


@pytest.mark.parametrize("item", PLANNED, ids=names(PLANNED))
def test_an_item_names_the_data_that_it_needs_and_tells_its_lines_apart(item: Item) -> None:
    assert item.plan is not None
    lines = plan(item, "paper").lines
    needed = {data for line in lines for data in line.data} & DOWNLOADED
    assert {*item.data} == needed
    every = {line.name: "" for line in lines}
    panels = [
        [own or name for name, own in (one.legend or every).items()] for one in item.plan.panel
    ]
    looks = plots.looks_of(name for panel in panels for name in panel)
    for panel in panels:
        assert len({looks[name].colour for name in panel}) == len(panel)
    told = [(one.title, one.y, one.at) for one in item.plan.panel]
    assert len({*told}) == len(told)
    assert all(len(one.at) <= 24 for one in item.plan.panel)  # it has one line above a panel


def test_the_wheel_carries_the_files(project: Path) -> None:
    import tomllib

    listed = tomllib.loads((project / "pyproject.toml").read_text())["tool"]["setuptools"]
    for paper in PAPERS:
        package = f"leakaudit.judging.papers.{folder(paper).name}"
        assert package in listed["packages"]
        assert listed["package-data"][package] == ["*.toml"]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("thesis/apendix-fig4", "did you mean 'appendix-fig4'"),
        ("thesys", "did you mean 'pdmm-thesis'"),
        ("thesis/", "has no item ''"),
        ("nothing.toml", "nothing.toml"),
    ],
)
def test_an_unknown_name_is_refused_with_a_suggestion(name: str, words: str) -> None:
    with pytest.raises(LeakauditError, match=re.escape(words)):
        items.select([name])


def test_a_paper_has_aliases_and_stands_for_all_its_items() -> None:
    of_thesis = names(items.select(["thesis"]))
    assert of_thesis == [name for name in NAMES if name.startswith("pdmm-thesis/")]
    assert names(items.select(["THESIS/appendix-fig4", "pdmm-thesis/appendix-fig4"])) == [
        "pdmm-thesis/appendix-fig4"
    ]
    assert names(items.select([])) == NAMES


def test_names_are_ordered_by_kind_and_by_their_numbers(tmp_path: Path) -> None:
    made = []
    for name in ("theorem1", "fig10", "fig2", "fig2-b"):
        kind = "theorem" if name == "theorem1" else "figure"
        path = tmp_path / f"{name}.toml"
        path.write_text(f'kind = "{kind}"\ntitle = "t"\nplace = "p"\nlost = "all"\n')
        made.append(items.load(path, "own"))
    assert [item.name for item in sorted(made, key=items._order)] == [
        *("fig2", "fig2-b", "fig10", "theorem1")
    ]


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('"figure"', '"painting"', "kind: expected"),
        ('title = "a title"', "", "expected the keys title"),
        ('y = "loss"', 'z = "loss"', "plan.panel"),
        ('place = "Figure 1"', 'place = "Figure 1"\ndrawn = true', "got both"),
        ('rule = "above"', 'rule = "over"', "rule"),
        ('rule = "above"', 'rule = "reaches"', "reaches needs a value"),
        ('rule = "above"', 'rule = "above"\nvalue = 1', "compares with no value"),
        ('rule = "above"', 'rule = "above"\nbetween = [1]', "two places"),
        ('["one", "two"]', '["one", "too"]', "did you mean 'two'"),
        ('["one", "two"]', '["one"]', "above needs at least 2 lines, got 1"),
        ('name = "two"', 'name = "one"', "distinct names"),
        ("[[plan.panel]]", '[[plan.panel]]\nlines = ["three"]', "no line is named 'three'"),
        ("[plan.scenario]", "[plan.sweep]\nseeds = 3\n[plan.scenario]", "`seeds` of the plan"),
    ],
)
def test_a_file_that_is_wrong_says_where(tmp_path: Path, old: str, new: str, words: str) -> None:
    path = tmp_path / "fig1.toml"
    assert old in GOOD
    path.write_text(GOOD.replace(old, new, 1))
    with pytest.raises(LeakauditError, match=re.escape(words)) as caught:
        items.load(path, "own")
    assert "fig1.toml" in str(caught.value)


def done(cell: PlannedCell, **found: Any) -> CellResult:
    """A cell that only trained."""
    return CellResult(
        config=cell.config(),
        status="done",
        says="",
        constants={},
        records=0,
        findings=(),
        refused=(),
        reasons={},
        **found,
    )


@pytest.mark.parametrize("holds", list(Holds))
def test_only_an_epsilon_that_is_known_exactly_is_a_value(tmp_path: Path, holds: Holds) -> None:
    path = tmp_path / "fig1.toml"
    swept = '[plan]\nx = "samples"\n[plan.sweep]\nover = { samples = [1, 2] }\n'
    path.write_text(GOOD.replace("[plan]\n", swept, 1).replace('"loss"', '"epsilon"'))
    made = plan(items.load(path, "own"))
    bound = CellBound(epsilon=2.0, claimed=1.0, delta=1e-5, holds=str(holds), why="")
    results = {key: done(cell, bound=bound) for key, cell in made.cells.items()}
    (panel,) = gather.panels(made, results)
    values = [value for line in panel.lines for run in line.runs.values() for value in run]
    exact = holds is Holds.EXACT
    assert [value == 2.0 for value in values] == [exact] * len(values)
    assert all(exact or "not known exactly" in line.why for line in panel.lines)


def test_a_stride_takes_every_so_many_rounds_of_the_protocol(tmp_path: Path) -> None:
    path = tmp_path / "fig1.toml"
    path.write_text(GOOD.replace('name = "two"', 'name = "two"\nstride = 3', 1))
    made = plan(items.load(path, "own"))
    curves = {"loss": tuple(float(t) for t in range(8))}
    results = {key: done(cell, curves=curves) for key, cell in made.cells.items()}
    (panel,) = gather.panels(made, results)
    one, two = panel.lines
    assert [*one.runs.values()] == [tuple(map(float, range(8)))]
    assert [*two.runs.values()] == [(0.0, 3.0, 6.0)]
    assert two.x == (0, 1, 2)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('data = "gaussians"', 'dat = "gaussians"', "line one, scenario: unknown key 'dat'"),
        ('"dpsgd"', '"dpsdg"', "dpsgd"),
        ("[[plan.line]]", "sweep = { over = { rounds = [1, 2] } }\n[[plan.line]]", "axis is round"),
    ],
)
def test_a_plan_that_is_wrong_names_the_line(
    tmp_path: Path, old: str, new: str, words: str
) -> None:
    path = tmp_path / "fig1.toml"
    text = GOOD.replace(old, new, 1)
    if "sweep = {" in new:
        text = GOOD.replace(
            "[plan.scenario]", "[plan.sweep.over]\nrounds = [1, 2]\n[plan.scenario]"
        )
    path.write_text(text)
    with pytest.raises(LeakauditError, match=re.escape(words)):
        plan(items.load(path, "own"))
