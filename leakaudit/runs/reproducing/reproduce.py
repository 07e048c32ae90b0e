"""Items by their names, from their plans to their pages and the index."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

from leakaudit.judging.papers import items
from leakaudit.judging.papers.items import Item
from leakaudit.reporting.results.output_folder import ready
from leakaudit.runs.reproducing import page, site
from leakaudit.runs.reproducing.plan import SMALL, plan
from leakaudit.runs.reproducing.run import ReproductionRun
from leakaudit.runs.sweeping.run import SweepOptions


def reproduce(
    names: Collection[str],
    folder: Path,
    options: SweepOptions,
    scale: str = SMALL,
    seeds: int | None = None,
) -> ReproductionRun:
    """Run items, all if no name is given, and write their pages; of several, also an index.

    The same call continues an interrupted one.
    """
    wanted = items.select(names)
    run = ReproductionRun(folder, [plan(item, scale, seeds) for item in wanted], options)
    with ready(folder):
        run.compute()
        for one in run.finished():
            page.write(one, run.place(one.item))
        if len(wanted) > 1:
            site.write(_index(wanted, folder), folder)
    return run


def _index(wanted: Sequence[Item], folder: Path) -> list[site.IndexedItem]:
    """Return the items of a call, and those of earlier ones in the same folder, in their order."""
    chosen = {item.full_name: item for item in wanted}
    known = []
    for entry in site.entries(items.every(), folder):
        if entry.item.full_name in chosen or entry.outcome is not None:
            known.append(entry)
    own = [item for item in wanted if item.paper == items.OWN]
    return [*known, *site.entries(own, folder)]
