"""Items that a function computes: closed forms, densities, designs, tables of formulas."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import TypeAlias

from leakaudit.core.errors import LeakauditError
from leakaudit.judging.papers.items import Item, Place
from leakaudit.judging.papers.measured import MeasuredLine, MeasuredPanel
from leakaudit.judging.papers.row import folder

# Computes an item at a scale, `small` or `paper`, with some seeds.
Draw: TypeAlias = Callable[[str, Sequence[int]], Sequence[MeasuredPanel]]
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


def exact(name: str, x: Sequence[Place], y: Sequence[float | None]) -> MeasuredLine:
    """Return a line about which nothing is random: a value, or None, for each place."""
    return of_seeds(name, x, (0,), [y], exact=True)


def of_seeds(
    name: str,
    x: Sequence[Place],
    seeds: Sequence[int],
    runs: Sequence[Sequence[float | None]],
    *,
    exact: bool = False,
) -> MeasuredLine:
    """Return a line of random runs: for each seed, a value, or None, for each place."""
    if any(len(run) != len(x) for run in runs):
        raise LeakauditError(f"line {name}: expected {len(x)} values, one per place")
    values = {seed: tuple(run) for seed, run in zip(seeds, runs, strict=True)}
    return MeasuredLine(name, tuple(x), values, exact)
