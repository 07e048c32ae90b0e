"""Many searches of one shape at once: restarts, targets and labels share every evaluation, and each ends by itself.

Each search has its own L-BFGS memory, line search, convergence test and end; what has ended leaves the batch. One evaluation serves all
that are left: a vmap below `task.LOOP_ABOVE` parameters, a loop above, where vmap has no gain.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from leakaudit.inversion.search.evaluate import Problems
from leakaudit.inversion.search.lbfgs import Memory
from leakaudit.inversion.search.line_search import Brackets
from leakaudit.inversion.search.optimise import FALLS, PATIENCE, Ended, Point, Run
from leakaudit.progress import expired, step

STEP = 20  # evaluations of one step
TRIES = 20  # trials of one line search
MEMORY = (
    512 << 20
)  # bytes that the pairs of all searches together may take; more searches go in several parts
ENOUGH = 100.0  # times its goal, an objective after which no other start is tried
FORMATS: dict[str, tuple[torch.dtype, ...]] = {
    "mixed": (torch.float32, torch.float64),
    "float32": (torch.float32,),
    "float64": (torch.float64,),
}


@dataclass(frozen=True)
class Schedule:
    """How searches go: at most `steps` of 20 evaluations each, in `formats` one after the other.

    history: pairs of L-BFGS. patience: a search has converged once its objective fell by less than 3 % in so many steps; it then goes on
    in the next format, and so does one that reached its goal. formats: float32 finds the way at half the cost of float64, which polishes;
    in a loop, where float32 is no faster, only the last one is used.
    """

    steps: int = 300
    history: int = 100
    patience: int = PATIENCE
    formats: tuple[torch.dtype, ...] = FORMATS["mixed"]


def restarted(
    problems: Problems,
    draw: Callable[[int], Point],
    restarts: int,
    enough: float,
    schedule: Schedule,
    what: str,
) -> Iterator[tuple[int, Run]]:
    """Search each problem from up to `restarts` points, until a run reaches `enough` times its goal or the time is over.

    draw: a new start of a problem; called only where one is needed. Starts go in rounds of 1, 2, 4, ... a problem, together with those of
    all others. Yields a problem's place and its best run, with the steps of all its runs counted, as soon as it is settled.
    """
    best: dict[int, Run] = {}
    left, tried, restarts = list(range(len(problems))), 0, max(1, restarts)
    while left:
        count = min(max(1, tried), restarts - tried)
        tried += count
        owner = [k for k in left for _ in range(count)]
        waiting = {k: count for k in left}
        starts = [draw(k) for k in owner]
        point = tuple(torch.stack(parts) for parts in zip(*starts, strict=True))

        def good(row: int, owner: Sequence[int] = owner) -> bool:
            k = owner[row]
            return k in best and best[k].objective <= enough * float(problems.goal[k])

        for row, run in search(
            problems.of_these(torch.tensor(owner, device=problems.goal.device)),
            point,
            schedule,
            what,
            good,
        ):
            k = owner[row]
            old = best.get(k)
            best[k] = (
                run
                if old is None
                else run.after(old)
                if run.objective < old.objective
                else old.after(run)
            )
            waiting[k] -= 1
            if not waiting[k] and (good(row) or tried >= restarts or expired()):
                left.remove(k)
                yield k, best[k]


def search(
    problems: Problems,
    start: Point,
    schedule: Schedule,
    what: str,
    needless: Callable[[int], bool] = lambda place: False,
) -> Iterator[tuple[int, Run]]:
    """Minimise every problem; yield its place and the best point that it met, once it has ended.

    start: tensors (K, ...). needless: asked now and then whether a search need not go on. What a problem gives does not depend on the
    others but for rounding.
    """
    flat = torch.cat([t.detach().flatten(1) for t in start], dim=1)
    size = max(
        1,
        MEMORY
        // (2 * schedule.history * flat.shape[1] * max(t.itemsize for t in schedule.formats)),
    )
    for first in range(0, len(flat), size):
        part = torch.arange(first, min(first + size, len(flat)), device=flat.device)
        chosen = problems.of_these(part).at(tuple(t[part] for t in start))
        for place, run in _search(
            chosen, flat[part], schedule, what, partial(_at, needless, part.tolist())
        ):
            yield first + place, run


def _search(
    problems: Problems, flat: Tensor, schedule: Schedule, what: str, needless: Callable[[int], bool]
) -> Iterator[tuple[int, Run]]:
    """Search from points (K, n) that fit in memory together."""
    left = {k: Run(problems.split(x)) for k, x in enumerate(flat)}
    formats = schedule.formats[-1:] if problems.chunk == 1 else schedule.formats
    for dtype in formats:
        places = torch.tensor(list(left), device=flat.device)
        points = torch.stack(
            [torch.cat([t.flatten() for t in run.point]) for run in left.values()]
        ).to(dtype)
        batch = _Batch(
            problems.of_these(places).to(dtype),
            points,
            [run.steps for run in left.values()],
            schedule,
        )
        for row, found in batch.run(what, partial(_at, needless, places.tolist())):
            k = int(places[row])
            run = replace(found, point=problems.split(found.point[0].to(flat))).after(left[k])
            left[k] = run
            if (
                dtype == formats[-1]
                or run.ended == "out of time"
                or run.steps >= schedule.steps
                or needless(k)
            ):
                del left[k]
                yield k, run
        if not left:
            return


def _at(needless: Callable[[int], bool], places: Sequence[int], row: int) -> bool:
    """Ask for the place of a row."""
    return needless(places[row])


class _Batch:
    """The searches that are left, in one format; everything is by search, (K, ...), and what is compared is in float64."""

    def __init__(self, problems: Problems, x: Tensor, done: list[int], schedule: Schedule) -> None:
        """Evaluate the start. done: steps that each search has behind it."""
        self.problems, self.schedule, self.x = problems, schedule, x
        self.place = torch.arange(len(x), device=x.device)
        self.most = STEP * (schedule.steps - torch.tensor(done, device=x.device))
        self.count = 1
        value, self.g = problems(x)
        self.f = value.double()
        self.d, self.memory = -self.g, Memory(x, schedule.history)
        self.brackets = Brackets(self.f, self._slope(self.g))
        self.t = self._first(self.g)
        self.tries = torch.zeros_like(self.place)
        self.past = torch.full(
            (len(x), schedule.patience + 1), math.inf, dtype=torch.float64, device=x.device
        )
        self.stuck = ~self.f.isfinite()

    def run(self, what: str, needless: Callable[[int], bool]) -> Iterator[tuple[int, Run]]:
        """Go on until all have ended; yield the place and the run of each."""
        while len(self.x):
            ends = self._ends(needless)
            for row, why in ends.items():
                yield (
                    int(self.place[row]),
                    Run(
                        (self.x[row].clone(),),
                        float(self.f[row]),
                        -(-self.count // STEP),
                        self.count,
                        why,
                    ),
                )
            if ends:
                self._keep([row for row in range(len(self.x)) if row not in ends])
            if len(self.x):
                self._advance()
                if self.count % STEP == 0:
                    step(what, self.count // STEP, self.schedule.steps)

    def _ends(self, needless: Callable[[int], bool]) -> dict[int, Ended]:
        """Rows that have ended, and why."""
        late, turn = expired() and self.count > 1, self.count % STEP == 0
        if turn:
            self.past = torch.cat([self.past[:, 1:], self.f[:, None]], dim=1)
        flat = self.stuck | (self.f > (1 - FALLS) * self.past[:, 0] if turn else False)
        over = self.count >= self.most
        fitted = self.f <= self.problems.goal
        ends: dict[int, Ended] = {}
        for row in (fitted | flat | over | late | turn).nonzero().flatten().tolist():
            if fitted[row]:
                ends[row] = "fitted"
            elif not self.f[row].isfinite():
                ends[row] = "diverged"
            elif late:
                ends[row] = "out of time"
            elif flat[row]:
                ends[row] = "converged"
            elif over[row] or needless(int(self.place[row])):
                ends[row] = "stopped"
        return ends

    def _advance(self) -> None:
        """One evaluation: a trial of each search."""
        trial = self.x + self.t.to(self.x)[:, None] * self.d
        value, g = self.problems(trial)
        value = value.double()
        self.count, self.tries = self.count + 1, self.tries + 1
        accepted, self.t = self.brackets.judge(self.t, value, self._slope(g))
        lost = ~accepted & (self.tries >= TRIES)
        self.stuck = lost & (self.memory.count == 0)
        self.memory.forget(lost)
        steps, changes = trial - self.x, g - self.g
        self.x = torch.where(accepted[:, None], trial, self.x)
        self.g = torch.where(accepted[:, None], g, self.g)
        self.f = torch.where(accepted, value, self.f)
        turn = accepted | lost
        if bool(turn.any()):
            self._turn(turn, self.memory.update(accepted, steps, changes, self.g))

    def _turn(self, which: Tensor, direction: Tensor) -> None:
        """Take new directions where `which` is set; the steepest descent where one does not lead down."""
        up = which & ~(torch.linalg.vecdot(direction.double(), self.g.double()) < 0)
        self.memory.forget(up)
        self.d = torch.where(which[:, None], torch.where(up[:, None], -self.g, direction), self.d)
        self.tries = torch.where(which, 0, self.tries)
        self.t = torch.where(
            which, torch.where(self.memory.count == 0, self._first(self.g), 1.0), self.t
        )
        self.brackets.open(which, self.f, self._slope(self.g))

    def _slope(self, g: Tensor) -> Tensor:
        """Slope along the directions."""
        along: Tensor = torch.linalg.vecdot(g.double(), self.d.double())
        return along

    def _first(self, g: Tensor) -> Tensor:
        """Step of a search without memory: one unit in all coordinates together, at most 1."""
        first: Tensor = (1 / g.double().abs().sum(1)).clamp_max(1.0)
        return first

    def _keep(self, rows: list[int]) -> None:
        """Go on with these rows alone."""
        index = torch.tensor(rows, dtype=torch.long, device=self.x.device)
        for name in ("x", "f", "g", "d", "t", "place", "most", "tries", "past", "stuck"):
            setattr(self, name, getattr(self, name)[index])
        self.problems = self.problems.of_these(index)
        self.memory.keep(index)
        self.brackets.keep(index)
