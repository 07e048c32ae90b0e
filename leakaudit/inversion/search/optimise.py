"""The result of a search, and searches from several starts.

A search minimises objectives that are normalised to 1 if nothing is explained.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from torch import Tensor

from leakaudit.core.progress import expired

Point = tuple[Tensor, ...]
Ended = Literal["fitted", "converged", "stopped", "out of time", "diverged"]


@dataclass(frozen=True)
class SearchRun:
    """The result of a search."""

    point: Point
    objective: float = math.inf
    steps: int = 0  # number of steps taken
    # number of evaluations of the objective and its slopes, each one forward and one double
    # backward pass
    evaluations: int = 0
    ended: Ended = "stopped"

    def __str__(self) -> str:
        """Describe the search for the note of a reconstruction."""
        return f"{self.ended} after {self.steps} steps ({self.evaluations} evaluations)"

    def after(self, *earlier: SearchRun) -> SearchRun:
        """Return the run with the steps and evaluations of earlier runs added."""
        steps = sum(run.steps for run in earlier)
        evaluations = sum(run.evaluations for run in earlier)
        return replace(self, steps=self.steps + steps, evaluations=self.evaluations + evaluations)


def restarted(
    search: Callable[[Point], SearchRun], draw: Callable[[], Point], restarts: int, goal: float
) -> SearchRun:
    """Search from several points, until one run is good enough or time expires."""
    best = search(draw())
    for _ in range(1, restarts):
        if best.objective <= goal or expired():
            break
        run = search(draw())
        best = run.after(best) if run.objective < best.objective else best.after(run)
    return best
