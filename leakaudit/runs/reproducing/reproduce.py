"""Items by their names, from their plans to their pages and the index."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from leakaudit.judging.papers import items
from leakaudit.judging.papers.items import Item
from leakaudit.reporting.results.output_folder import ready
from leakaudit.runs.reproducing import page, site
from leakaudit.runs.reproducing.plan import SMALL, plan
from leakaudit.runs.reproducing.run import Reproduced, ReproductionRun
from leakaudit.runs.sweeping.run import SweepOptions


@dataclass
class Reproductions:
    """The outcome of one call."""

    folder: Path
    found: list[Reproduced] = field(default_factory=list)  # in the order of the call
    interrupted: bool = False  # whether Ctrl-C ended the work
    # items that cannot be run here -> the reason, such as data that are missing
    blocked: dict[str, str] = field(default_factory=dict)

    @property
    def left(self) -> int:
        """Number of results that the same call would still compute."""
        able = [one for one in self.found if one.item.full_name not in self.blocked]
        return sum(one.left for one in able)


def reproduce(
    names: Collection[str],
    folder: Path,
    options: SweepOptions,
    scale: str = SMALL,
    seeds: int | None = None,
) -> Reproductions:
    """Run items, all if no name is given, and write their pages; of several, also an index.

    The same call continues an interrupted one.
    """
    wanted = items.select(names)
    run = ReproductionRun(folder, [plan(item, scale, seeds) for item in wanted], options)
    outcome = Reproductions(folder)
    with ready(folder):
        run.compute()
        for one in run.finished():
            page.write(one, run.place(one.item))
            outcome.found.append(one)
        if len(wanted) > 1:
            site.write(_index(wanted, folder), folder)
    outcome.interrupted = run.interrupted
    outcome.blocked = run.blocked
    return outcome


def _index(wanted: Sequence[Item], folder: Path) -> list[site.Entry]:
    """Return the items of a call, and those of earlier ones in the same folder, in their order."""
    chosen = {item.full_name: item for item in wanted}
    known = []
    for entry in site.entries(items.every(), folder):
        if entry.item.full_name in chosen or entry.outcome is not None:
            known.append(entry)
    own = [item for item in wanted if item.paper == items.OWN]
    return [*known, *site.entries(own, folder)]
