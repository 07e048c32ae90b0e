"""Items that a function computes: closed forms, densities, designs, tables of formulas."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from leakaudit.core.errors import LeakauditError
from leakaudit.judging.papers.items import Item, Place
from leakaudit.judging.papers.measured import MeasuredLine, Panel
from leakaudit.judging.papers.row import folder


@dataclass(frozen=True)
class DrawnLine:
    """One line of a drawn item: of a closed form, or of several random runs."""

    name: str
    x: Sequence[Place]  # places on the horizontal axis
    # one value per place if nothing is random, None for one that does not exist
    y: Sequence[float | None] = ()
    runs: Sequence[Sequence[float | None]] = ()  # otherwise, such values for each seed in order


@dataclass(frozen=True)
class DrawnPanel:
    """One pair of axes of a drawn item."""

    y: str  # name of the quantity, as printed numbers and expectations call it
    title: str  # name of the vertical axis
    axis: str  # name of the horizontal axis
    lines: Sequence[DrawnLine]
    logarithmic: bool = False  # whether the vertical axis is


@dataclass(frozen=True)
class DrawnItem:
    """What the function of an item returns."""

    panels: Sequence[DrawnPanel]  # axes of the published picture, or columns of a table
    note: str = ""  # a remark for the page


# Computes an item at a scale, `small` or `paper`, with some seeds.
Draw: TypeAlias = Callable[[str, Sequence[int]], DrawnItem]
_DRAWN: dict[str, Draw] = {}


def draws(name: str) -> Callable[[Draw], Draw]:
    """Mark the function that computes an item, such as ``pdmm-thesis/fig3.1``."""

    def marked(draw: Draw) -> Draw:
        _DRAWN[name] = draw
        return draw

    return marked


def function_of(item: Item) -> Draw:
    """Return the function that computes an item, from the module `drawn` of its paper."""
    importlib.import_module(f"leakaudit.judging.papers.{folder(item.paper).name}.drawn")
    if item.full_name not in _DRAWN:
        raise LeakauditError(f"{item.full_name}: expected a function that draws it, found none")
    return _DRAWN[item.full_name]


def panels_of(drawn: DrawnItem, seeds: Sequence[int]) -> list[Panel]:
    """Return the panels of a drawn item as those of a run."""
    made = []
    for panel in drawn.panels:
        lines = tuple(_measured(line, panel.y, seeds) for line in panel.lines)
        made.append(Panel(panel.y, panel.title, panel.axis, lines, panel.logarithmic))
    return made


def _measured(line: DrawnLine, y: str, seeds: Sequence[int]) -> MeasuredLine:
    if bool(line.y) == bool(line.runs):
        raise LeakauditError(f"line {line.name}: expected either y or runs")
    exact = bool(line.y)
    columns = [line.y] if exact else line.runs
    if len(columns) != (1 if exact else len(seeds)):
        raise LeakauditError(f"line {line.name}: expected a run for each of {len(seeds)} seeds")
    runs: Mapping[int, tuple[float | None, ...]] = {
        seed: tuple(column) for seed, column in zip(seeds, columns, strict=False)
    }
    if any(len(column) != len(line.x) for column in columns):
        raise LeakauditError(f"line {line.name}: expected {len(line.x)} values, one per place")
    return MeasuredLine(line.name, y, tuple(line.x), runs, exact=exact)
