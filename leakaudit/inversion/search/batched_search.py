"""Many L-BFGS searches of one shape: restarts, targets and labels share every evaluation."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial

import torch
from torch import Tensor

from leakaudit.core.progress import expired, step
from leakaudit.inversion.search.evaluate import Problems
from leakaudit.inversion.search.lbfgs import LbfgsMemory
from leakaudit.inversion.search.optimise import Ended, Point, SearchRun

# Each search has its own L-BFGS memory (`lbfgs`), line search (`_Brackets`), convergence test and
# end; searches that have ended leave the batch. One evaluation serves all remaining searches
# (`evaluate`).
#
# Every evaluation is one trial of each search's line search. A search with an accepted trial
# receives a new direction at once, so searches never wait for each other.

# Number of evaluations that count as one step: torch's L-BFGS has 20 iterations per step, as in Zhu
# et al. 2019, with up to 25 evaluations, which `lbfgs` takes.
STEP = 20
LONG_STEP = 25

# Maximum number of trials of one line search. A choice: most searches need one or two, and one that
# needs more than this takes the direction of steepest descent instead.
TRIES = 20

# Number of steps in which the objective must decrease ...
PATIENCE = 15
# ... by this share; otherwise the search has converged. Both are choices.
FALLS = 0.03

# Number of trials, and of steps without such a decrease, after which a search leaves a number
# format other than its last: beyond this, rounding decides what is accepted. Choices.
EARLY_TRIES = 6
EARLY_PATIENCE = 3

# Maximum number of bytes for the pairs of all searches; more searches are split into several parts.
MEMORY = 512 << 20

# Objective, in units of its goal, below which no other start is tried: ten times the relative
# residual.
ENOUGH = 100.0

# Line search: a step t is accepted under the weak Wolfe conditions (Nocedal and Wright 2006, eq.
# 3.6), with s the slope along the direction at 0:
#
#     f(t) <= f(0) + LOWER t s    and    slope(t) >= FLATTER s.
#
# A trial that is too long or not finite becomes the upper end of the bracket, one that is too short
# the lower end. The next trial is the minimum of the cubic through both ends, kept away from them
# by a tenth of the bracket.

# Constants of the conditions, as recommended by Nocedal and Wright for quasi-Newton methods.
LOWER = 1e-4
FLATTER = 0.9

# Ratio of the next trial to one that is too short, as long as no upper end is known. A choice.
GROW = 2.5

# Minimum distance of a trial from both ends, relative to the bracket, so that it shrinks. A choice.
MARGIN = 0.1

FORMATS: dict[str, tuple[torch.dtype, ...]] = {
    "mixed": (torch.float32, torch.float64),
    "float32": (torch.float32,),
    "float64": (torch.float64,),
}


@dataclass(frozen=True)
class SearchSchedule:
    """The schedule of searches."""

    steps: int = 300  # maximum number of steps
    history: int = 100  # number of pairs of L-BFGS; fewer if those of one search exceed `MEMORY`
    # number formats, one after the other. float32 approaches the solution at half the cost of
    # float64, which refines it. A search continues in the next format, with its pairs, once it
    # reached its goal or rounding stops it. In a loop, in which float32 gains nothing, only the
    # last one is used.
    formats: tuple[torch.dtype, ...] = FORMATS["mixed"]
    # number of steps in which the objective must decrease; in a number format other than the last,
    # `EARLY_PATIENCE`
    patience: int = PATIENCE
    each: int = STEP  # number of evaluations of a step


def restarted(
    problems: Problems,
    draw: Callable[[int], Point],
    restarts: int,
    enough: float,
    schedule: SearchSchedule,
    what: str,
) -> Iterator[tuple[int, SearchRun]]:
    """Search each problem from several points, until a run is good enough or time expires.

    Starts are tried in rounds of 1, 2, 4, ... for each problem, together with those of all
    others. No other is tried if the objective is below `enough` times the problem's goal.
    Yields the index of a problem and its best run, with the steps of all its runs, as soon as
    it is finished.
    """
    best: dict[int, SearchRun] = {}
    left = list(range(len(problems)))
    tried = 0
    restarts = max(1, restarts)
    while left:
        count = min(max(1, tried), restarts - tried)
        tried += count
        owner = [k for k in left for _ in range(count)]  # the problem of each start
        waiting = dict.fromkeys(left, count)
        starts = [draw(k) for k in owner]
        point = tuple(torch.stack(parts) for parts in zip(*starts, strict=True))

        def good(row: int, owner: Sequence[int] = owner) -> bool:
            k = owner[row]
            return k in best and best[k].objective <= enough * float(problems.goal[k])

        chosen = problems.of_these(torch.tensor(owner, device=problems.goal.device))
        for row, run in search(chosen, point, schedule, what, good):
            k = owner[row]
            best[k] = _best(best.get(k), run)
            waiting[k] -= 1
            if not waiting[k] and (good(row) or tried >= restarts or expired()):
                left.remove(k)
                yield k, best[k]


def lbfgs(
    objective: Callable[..., Tensor],
    start: Point,
    steps: int,
    goal: float = 0.0,
    what: str = "L-BFGS",
    patience: int = PATIENCE,
) -> SearchRun:
    """Minimise one scalar of the tensors of a point."""
    problem = Problems.single(objective, start, goal)
    formats = (start[0].dtype,)
    schedule = SearchSchedule(steps, formats=formats, patience=patience, each=LONG_STEP)
    ((_, run),) = search(problem, tuple(t[None] for t in start), schedule, what)
    return run


def _best(old: SearchRun | None, new: SearchRun) -> SearchRun:
    """Return the better of two runs, with the total steps of both."""
    if old is None:
        return new
    return new.after(old) if new.objective < old.objective else old.after(new)


def search(
    problems: Problems,
    start: Point,
    schedule: SearchSchedule,
    what: str,
    needless: Callable[[int], bool] = lambda place: False,
) -> Iterator[tuple[int, SearchRun]]:
    """Minimise every problem from tensors (K, ...); others affect a result only in its rounding.

    `needless` is asked from time to time whether the search of a problem can end. Yields the
    index of a problem and the best point found, once its search has ended.
    """
    flat = torch.cat([t.detach().flatten(1) for t in start], dim=1)
    bytes_each = max(t.itemsize for t in schedule.formats)
    # Each search stores `history` pairs of n numbers, or as many as fit.
    pair = 2 * flat.shape[1] * bytes_each
    schedule = replace(schedule, history=max(1, min(schedule.history, MEMORY // pair)))
    size = max(1, MEMORY // (schedule.history * pair))
    for first in range(0, len(flat), size):
        part = torch.arange(first, min(first + size, len(flat)), device=flat.device)
        chosen = problems.of_these(part).at(tuple(t[part] for t in start))
        ask = partial(_at, needless, part.tolist())
        for place, run in _search(chosen, flat[part], schedule, what, ask):
            yield first + place, run


def _search(
    problems: Problems,
    flat: Tensor,
    schedule: SearchSchedule,
    what: str,
    needless: Callable[[int], bool],
) -> Iterator[tuple[int, SearchRun]]:
    """Search from points (K, n) that fit in memory together, in one format after another."""
    left = {k: SearchRun(problems.split(x)) for k, x in enumerate(flat)}
    formats = schedule.formats[-1:] if problems.chunk == 1 else schedule.formats
    pairs: dict[int, LbfgsMemory] = {}
    for dtype in formats:
        early = dtype != formats[-1]
        places = torch.tensor(list(left), device=flat.device)
        rows = [torch.cat([t.flatten() for t in run.point]) for run in left.values()]
        done = [run.steps for run in left.values()]
        chosen = problems.of_these(places).to(dtype)
        memory = LbfgsMemory.joined([pairs.pop(k) for k in left]) if pairs else None
        batch = _Batch(chosen, torch.stack(rows).to(dtype), done, schedule, early, memory)
        for row, found in batch.run(what, partial(_at, needless, places.tolist())):
            k = int(places[row])
            run = replace(found, point=problems.split(found.point[0].to(flat))).after(left[k])
            left[k] = run
            over = run.ended == "out of time" or run.steps >= schedule.steps
            if not early or over or needless(k):
                del left[k]
                yield k, run
            else:
                pairs[k] = batch.pairs.pop(row)
        if not left:
            return


def _at(needless: Callable[[int], bool], places: Sequence[int], row: int) -> bool:
    return needless(places[row])


@dataclass
class _State:
    """The state of the searches of a batch; all attributes are by search, (K, ...)."""

    place: Tensor  # (K,) index of the problem of each search
    most: Tensor  # (K,) maximum number of evaluations
    x: Tensor  # (K, n) best points
    f: Tensor  # (K,) objectives there, in float64, because they are compared
    g: Tensor  # (K, n) slopes there
    d: Tensor  # (K, n) directions of the line searches
    t: Tensor  # (K,) next trials along them
    tries: Tensor  # (K,) number of trials so far
    past: Tensor  # (K, patience + 1) objectives at the ends of the last steps
    stuck: Tensor  # (K,) whether a search cannot continue

    def of_these(self, index: Tensor) -> _State:
        """Return the state of some searches."""
        return _State(**{one.name: getattr(self, one.name)[index] for one in fields(self)})


class _Batch:
    """The remaining searches, in one format."""

    def __init__(
        self,
        problems: Problems,
        x: Tensor,
        done: list[int],
        schedule: SearchSchedule,
        early: bool,
        memory: LbfgsMemory | None,
    ) -> None:
        """Evaluate the starts (K, n), with pairs from an earlier format."""
        self.problems = problems
        self.schedule = schedule
        self.early = early
        self.patience = EARLY_PATIENCE if early else schedule.patience
        self.pairs: dict[
            int, LbfgsMemory
        ] = {}  # of the searches that ended, if another format follows
        self.count = 1  # evaluations
        value, g = problems(x)
        f = value.double().where(value.isfinite(), math.inf)
        past = (len(x), self.patience + 1)
        place = torch.arange(len(x), device=x.device)
        self.at = _State(
            place=place,
            most=schedule.each * (schedule.steps - torch.tensor(done, device=x.device)),
            x=x,
            f=f,
            g=g,
            d=-g,
            t=_first(g),
            tries=torch.zeros_like(place),
            past=torch.full(past, math.inf, dtype=torch.float64, device=x.device),
            stuck=~f.isfinite(),
        )
        self.memory = memory or LbfgsMemory(x, schedule.history)
        self.brackets = _Brackets(f, _along(g, self.at.d))
        if memory:
            none = torch.zeros_like(x)
            direction = memory.update(torch.zeros_like(self.at.stuck), none, none, g)
            self._turn(~self.at.stuck, direction)

    def run(self, what: str, needless: Callable[[int], bool]) -> Iterator[tuple[int, SearchRun]]:
        """Continue until all have ended; yield the index and the run of each."""
        while len(self.at.x):
            ends = self._ends(needless)
            for row, why in ends.items():
                point = (self.at.x[row].clone(),)
                steps = -(-self.count // self.schedule.each)
                run = SearchRun(point, float(self.at.f[row]), steps, self.count, why)
                place = int(self.at.place[row])
                if self.early:
                    self.pairs[place] = self.memory.of_these(
                        torch.tensor([row], device=self.at.x.device)
                    )
                yield place, run
            if ends:
                self._keep([row for row in range(len(self.at.x)) if row not in ends])
            if len(self.at.x):
                self._advance()
                if self.count % self.schedule.each == 0:
                    step(what, self.count // self.schedule.each, self.schedule.steps)

    def _ends(self, needless: Callable[[int], bool]) -> dict[int, Ended]:
        """Return the rows that have ended, and why."""
        at = self.at
        late = expired() and self.count > 1
        turn = self.count % self.schedule.each == 0
        flat = at.stuck
        if turn:
            at.past = torch.cat([at.past[:, 1:], at.f[:, None]], dim=1)
            flat = flat | (at.f > (1 - FALLS) * at.past[:, 0])
        over = self.count >= at.most
        fitted = at.f <= self.problems.goal
        ends: dict[int, Ended] = {}
        for row in (fitted | flat | over | late | turn).nonzero().flatten().tolist():
            if fitted[row]:
                ends[row] = "fitted"
            elif not at.f[row].isfinite():
                ends[row] = "diverged"
            elif late:
                ends[row] = "out of time"
            elif flat[row]:
                ends[row] = "converged"
            elif over[row] or needless(int(at.place[row])):
                ends[row] = "stopped"
        return ends

    def _advance(self) -> None:
        """Make one evaluation: a trial of each search."""
        at = self.at
        trial = at.x + at.t.to(at.x)[:, None] * at.d
        value, g = self.problems(trial)
        value = value.double()
        self.count += 1
        at.tries = at.tries + 1
        accepted, at.t = self.brackets.judge(at.t, value, _along(g, at.d))
        if self.early:
            at.stuck = lost = ~accepted & (at.tries >= EARLY_TRIES)
        else:
            # A search without an accepted step discards its pairs and takes the direction of
            # steepest descent; without pairs, it ends.
            lost = ~accepted & (at.tries >= TRIES)
            at.stuck = lost & (self.memory.count == 0)
            self.memory.forget(lost)
        steps = trial - at.x
        changes = g - at.g
        at.x = torch.where(accepted[:, None], trial, at.x)
        at.g = torch.where(accepted[:, None], g, at.g)
        at.f = torch.where(accepted, value, at.f)
        turn = accepted | lost
        if bool(turn.any()):
            self._turn(turn, self.memory.update(accepted, steps, changes, at.g))

    def _turn(self, which: Tensor, direction: Tensor) -> None:
        """Set new directions (K, n) of some searches; steepest descent if one leads up."""
        at = self.at
        up = which & ~(_along(direction, at.g) < 0)
        self.memory.forget(up)
        down = torch.where(up[:, None], -at.g, direction)
        at.d = torch.where(which[:, None], down, at.d)
        at.tries = torch.where(which, 0, at.tries)
        # A quasi-Newton step is tried at length 1.
        length = torch.where(self.memory.count == 0, _first(at.g), 1.0)
        at.t = torch.where(which, length, at.t)
        self.brackets.open(which, at.f, _along(at.g, at.d))

    def _keep(self, rows: list[int]) -> None:
        """Continue with only these rows."""
        index = torch.tensor(rows, dtype=torch.long, device=self.at.x.device)
        self.at = self.at.of_these(index)
        self.problems = self.problems.of_these(index)
        self.memory = self.memory.of_these(index)
        self.brackets.keep(index)


def _along(a: Tensor, b: Tensor) -> Tensor:
    """Return the products (K,) of vectors (K, n), in float64."""
    product: Tensor = torch.linalg.vecdot(a.double(), b.double())
    return product


def _first(g: Tensor) -> Tensor:
    """Return the first trial without memory: one unit in all coordinates together, at most 1."""
    first: Tensor = (1 / g.double().abs().sum(1)).clamp_max(1.0)
    return first


class _Brackets:
    """Both ends of K brackets: step, objective and slope (3, K) at each; all in float64.

    The step of the upper end is infinite as long as it is unknown.
    """

    def __init__(self, value: Tensor, slope: Tensor) -> None:
        """Start the brackets at step 0 with value and slope (K,) there."""
        zero = torch.zeros_like(value)
        self.low = torch.stack([zero, value, slope])
        self.high = torch.stack([zero + math.inf, zero, zero])
        self.start = self.low.clone()

    def keep(self, index: Tensor) -> None:
        """Continue with only these searches."""
        self.low = self.low[:, index]
        self.high = self.high[:, index]
        self.start = self.start[:, index]

    def open(self, which: Tensor, value: Tensor, slope: Tensor) -> None:
        """Restart the brackets of `which` (K,) at step 0."""
        fresh = _Brackets(value, slope)
        self.low = torch.where(which, fresh.low, self.low)
        self.high = torch.where(which, fresh.high, self.high)
        self.start = torch.where(which, fresh.start, self.start)

    def judge(self, t: Tensor, value: Tensor, slope: Tensor) -> tuple[Tensor, Tensor]:
        """Decide which trials (K,) are accepted, and return the next trial of the others."""
        finite = value.isfinite() & slope.isfinite()
        _, f, s = self.start
        long = ~finite | (value > f + LOWER * t * s)
        short = ~long & (slope < FLATTER * s)
        here = torch.stack([t, value, slope])
        self.high = torch.where(long, here, self.high)
        self.low = torch.where(short, here, self.low)
        low = self.low[0]
        high = self.high[0]
        width = high - low
        inside = torch.maximum(_cubic(self.low, self.high), low + MARGIN * width)
        inside = torch.minimum(inside, high - MARGIN * width)
        inside = torch.where(inside.isfinite(), inside, low + 0.5 * width)
        inside = torch.where(finite, inside, low + MARGIN * width)
        return ~long & ~short, torch.where(high.isinf(), GROW * t, inside)


def _cubic(low: Tensor, high: Tensor) -> Tensor:
    """Return the minimum of the cubic through two points with slopes (eq. 3.59), or NaN."""
    a, fa, sa = low
    b, fb, sb = high
    d1 = sa + sb - 3 * (fa - fb) / (a - b)
    d2 = (d1.square() - sa * sb).sqrt()
    t: Tensor = b - (b - a) * (sb + d2 - d1) / (sb - sa + 2 * d2)
    return t
