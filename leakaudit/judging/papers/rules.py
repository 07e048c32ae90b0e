"""Our numbers beside the printed ones: rules, and the verdict, no stronger than what it rests on.

A test is a number for each seed and the range in which it must lie. With several seeds, the 95 %
interval of its mean decides: inside the range it holds, outside it fails, and otherwise the seeds
do not tell. A single seed has no interval: its number decides if the item states how much is
enough; a bare comparison of two numbers counts only if they are farther apart than `ONE_SEED`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import pairwise

from leakaudit._util.plural import counted
from leakaudit.core.quantities import ACCURACIES, ERRORS, QUANTITIES
from leakaudit.judging.papers.items import (
    ANY,
    EVERY,
    FIRST,
    LAST,
    Expected,
    Item,
    Place,
    Printed,
)
from leakaudit.judging.papers.measured import (
    MeasuredLine,
    MeasuredPanel,
    SeedMean,
    Values,
    estimate,
    lookup,
    numbers,
    with_stand_in,
)

ONE_SEED = 0.1  # of the larger number compared: a smaller difference of one seed does not count
TOLD = 2  # most tests of one expectation whose numbers are stated


class Outcome(StrEnum):
    """The outcome of one test."""

    HOLDS = "holds"
    FAILS = "fails"
    UNDECIDED = "our seeds do not tell"
    MISSING = "not measured"


class Reproduction(StrEnum):
    """The verdict on an item."""

    REPRODUCED = "REPRODUCED"
    SAME_SHAPE = "SAME SHAPE"
    DIFFERS = "DIFFERS"
    UNDECIDED = "NOT DETERMINED"
    LOST = "NOT DETERMINED BY THE PAPER"


MEANT = {
    Reproduction.REPRODUCED: (
        "at the paper's own size, every printed number lies within its tolerance of our interval "
        "over seeds, and everything that the paper shows holds"
    ),
    Reproduction.SAME_SHAPE: (
        "what the paper shows holds, but no printed number was compared at the paper's own size "
        "with several seeds, or a part of the paper is not known"
    ),
    Reproduction.DIFFERS: (
        "a printed number is missed, or something that the paper shows is not seen; with one seed, "
        "a small scale or a stand-in, this says nothing about the paper yet"
    ),
    Reproduction.UNDECIDED: (
        "our own runs do not tell: seeds disagree or are too few, or results are missing"
    ),
    Reproduction.LOST: "the paper, or our copy of it, does not say enough to run it",
}


@dataclass(frozen=True)
class ComparedNumber:
    """A printed number beside ours."""

    printed: Printed
    ours: SeedMean | None  # None if it is missing
    outcome: Outcome
    why: str = ""  # why it is missing
    stand_in: str = ""  # data on which the line ran in place of the paper's

    @property
    def line(self) -> str:
        """The name of the line, which says what it ran on."""
        return with_stand_in(self.printed.line, self.stand_in)

    @property
    def deviation(self) -> float | None:
        """Ours minus the printed number; None if a difference of infinite numbers is not known."""
        if self.ours is None or math.isnan(self.ours.mean):
            return None
        if self.ours.mean == self.printed.value:  # also infinity
            return 0.0
        return self.ours.mean - self.printed.value

    @property
    def says(self) -> str:
        """The comparison in words."""
        printed = self.printed
        name = f"{printed.y} of {self.line}{where(printed.x)}"
        if self.ours is None:
            return f"{name}: printed {printed.value:.4g}, ours is missing ({self.why})"
        return f"{name}: printed {printed.value:.4g}, ours {in_words(self.ours)}"


@dataclass(frozen=True)
class TestedShape:
    """An expectation, and what our numbers say about it."""

    __test__ = False  # pytest: no test class

    expected: Expected
    outcome: Outcome
    found: str  # the numbers in words


@dataclass(frozen=True)
class Judged:
    """The verdict on an item's numbers."""

    word: Reproduction
    why: str  # what it rests on, or what is missing
    numbers: tuple[ComparedNumber, ...] = ()
    shapes: tuple[TestedShape, ...] = ()
    firm: bool = True  # whether a difference is one from the paper, and not from a smaller run

    @property
    def seeds_disagree(self) -> bool:
        """Whether more seeds may decide."""
        outcomes = {one.outcome for one in self.numbers} | {one.outcome for one in self.shapes}
        undecided = Outcome.UNDECIDED in outcomes and Outcome.MISSING not in outcomes
        return self.word is Reproduction.UNDECIDED and undecided

    @property
    def meant(self) -> str:
        """What the verdict means for these runs."""
        if self.word is not Reproduction.DIFFERS:
            return MEANT[self.word]
        says = "a printed number is missed, or something that the paper shows is not seen"
        if self.firm:
            return says
        return f"{says} in these runs; alone, they say nothing about the paper yet"


def in_words(ours: SeedMean) -> str:
    """Return an estimate with its interval."""
    if ours.interval is None or ours.interval[0] == ours.interval[1]:
        return f"{ours.mean:.4g}"
    return f"{ours.mean:.4g} [{ours.interval[0]:.4g}, {ours.interval[1]:.4g}]"


# --- printed numbers --------------------------------------------------------------------------


def compared(printed: Printed, panels: Sequence[MeasuredPanel]) -> ComparedNumber:
    """Compare a printed number with ours."""
    line = lookup(panels, printed.y).get(printed.line)
    if line is None:
        return ComparedNumber(printed, None, Outcome.MISSING, f"there is no {printed.y}")
    ours = estimate(line.at(printed.x), line.exact, printed.y)
    if ours is None:
        why = line.why or f"no value at {printed.x}"
        return ComparedNumber(printed, None, Outcome.MISSING, why, line.stand_in)
    return ComparedNumber(printed, ours, _fits(printed, ours), stand_in=line.stand_in)


def _fits(printed: Printed, ours: SeedMean) -> Outcome:
    """Return whether our interval is near enough, and narrow enough to tell."""
    low, high = ours.ends
    if printed.value == low == high:  # also infinity
        return Outcome.HOLDS
    if max(low - printed.value, printed.value - high) > printed.tolerance:
        return Outcome.FAILS
    if not math.isfinite(ours.mean) or (high - low) / 2 > printed.tolerance:
        return Outcome.UNDECIDED
    return Outcome.HOLDS


# --- expectations -----------------------------------------------------------------------------


@dataclass(frozen=True)
class _Test:
    """A number for each seed, which must lie between two others."""

    about: str
    values: Values
    low: float = -math.inf
    high: float = math.inf
    exact: bool = False
    strict: bool = True  # whether the ends of the range are outside it
    margin: float = 0.0  # how far a single seed must be from an end of the range to count

    @property
    def outcome(self) -> Outcome:
        """Whether the number lies in the range."""
        found = estimate(self.values, self.exact)
        if found is None:
            return Outcome.MISSING
        low, high = found.ends
        if found.interval is None:
            low, high = low - self.margin, high + self.margin
        if self._above(low) and self._below(high):
            return Outcome.HOLDS
        if not self._above(high) or not self._below(low):
            return Outcome.FAILS
        return Outcome.UNDECIDED

    def _above(self, value: float) -> bool:
        if self.low == -math.inf:
            return True
        return value > self.low or (value == self.low and not self.strict)

    def _below(self, value: float) -> bool:
        if self.high == math.inf:
            return True
        return value < self.high or (value == self.high and not self.strict)

    @property
    def found(self) -> str:
        """The number in words."""
        found = estimate(self.values, self.exact)
        return f"{self.about}: {'missing' if found is None else in_words(found)}"


def tested(expected: Expected, panels: Sequence[MeasuredPanel]) -> TestedShape:
    """Test an expectation on our numbers."""
    known = lookup(panels, expected.y)
    names = expected.lines or tuple(known)
    missing = [name for name in names if name not in known]
    if missing or not names:
        return TestedShape(expected, Outcome.MISSING, f"no {expected.y} of {missing or 'any line'}")
    lines = [known[name] for name in names]
    tests = list(RULES[expected.rule](expected, lines))
    outcomes = [test.outcome for test in tests]
    outcome = _any(outcomes) if expected.x == ANY else _all(outcomes)
    shown = [test for test in tests if test.outcome is outcome] or tests
    words = "; ".join(test.found for test in shown[:TOLD])
    if len(shown) > TOLD:
        words = f"{words}; and {counted(len(shown) - TOLD, 'more comparison')}"
    why = [line.why for line in lines if line.why]
    if outcome is Outcome.MISSING and why:
        words = f"{words} ({why[0]})" if words else why[0]
    return TestedShape(expected, outcome, words or "nothing to compare")


def _all(outcomes: Sequence[Outcome]) -> Outcome:
    """Return the outcome of tests that must all hold."""
    for worst in (Outcome.FAILS, Outcome.MISSING, Outcome.UNDECIDED):
        if worst in outcomes:
            return worst
    return Outcome.HOLDS if outcomes else Outcome.MISSING


def _any(outcomes: Sequence[Outcome]) -> Outcome:
    """Return the outcome of tests of which one must hold."""
    for best in (Outcome.HOLDS, Outcome.MISSING, Outcome.UNDECIDED):
        if best in outcomes:
            return best
    return Outcome.FAILS if outcomes else Outcome.MISSING


def _places(expected: Expected, lines: Sequence[MeasuredLine]) -> list[Place]:
    """Return where a rule compares lines: one place, or all that they have in common."""
    if expected.x not in (EVERY, ANY):
        return [expected.x]
    longest = max(lines, key=lambda line: len(line.x))
    if not longest.x:
        return [LAST]
    return [place for place in longest.x if _counts(place, lines)]


def _counts(place: Place, lines: Sequence[MeasuredLine]) -> bool:
    """Return whether lines are compared at a place.

    A round that a line did not evaluate is left out, but not one after the last that it did: its
    run ended early or diverged, and a value is missing.
    """
    some = False
    for line in lines:
        k = line.index(place)
        if k is None:
            return False
        known = line.known()
        some = some or line.planned or k in known
        if not line.x or line.planned or k in known:
            continue
        if line.exact or any(later > k for later in known):
            return False
    return some


def _paired(
    combine: Callable[[float, float], float],
    one: Values,
    other: Values,
) -> dict[int, float | None]:
    """Combine two values for each seed; a value without seeds, of a closed form, fits every one."""
    found: dict[int, float | None] = {}
    for seed in dict.fromkeys((*one, *other)):
        left = one.get(seed)
        right = other.get(seed)
        found[seed] = None if left is None or right is None else combine(left, right)
    return found


def _spread(line: MeasuredLine, like: Sequence[MeasuredLine], x: Place) -> Values:
    """Return a line's values at a place, for all seeds of the lines that it is compared with."""
    values = line.at(x)
    if not line.exact:
        return values
    (value,) = values.values()
    seeds = dict.fromkeys(seed for other in like for seed in other.runs)
    return dict.fromkeys(seeds, value)


def _margin(expected: Expected, *compared: Values) -> float:
    """Return by how much a single seed must differ, unless the item states a margin."""
    sizes = [abs(value) for values in compared for value in numbers(values.values())]
    largest = max(sizes, default=0.0)
    return ONE_SEED * largest if not expected.by and math.isfinite(largest) else 0.0


def _pairs(
    expected: Expected,
    lines: Sequence[MeasuredLine],
    combine: Callable[[float, float], float],
    sign: str,
) -> Iterator[_Test]:
    """Yield a test of the combined values of each line and the next, at each place."""
    for pair in pairwise(lines):
        for x in _places(expected, pair):
            first, second = (_spread(line, pair, x) for line in pair)
            yield _Test(
                f"{pair[0].shown} {sign} {pair[1].shown}{where(x)}",
                _paired(combine, first, second),
                low=expected.by,
                exact=all(line.exact for line in pair),
                margin=_margin(expected, first, second),
            )


def _above(expected: Expected, lines: Sequence[MeasuredLine]) -> Iterator[_Test]:
    yield from _pairs(expected, lines, lambda a, b: a - b, "minus")


def _ratio(expected: Expected, lines: Sequence[MeasuredLine]) -> Iterator[_Test]:
    def divided(a: float, b: float) -> float:
        return a / b if b else math.copysign(math.inf, a) if a else math.nan

    yield from _pairs(expected, lines, divided, "/")


def _ends(expected: Expected, line: MeasuredLine) -> tuple[Values, Values]:
    """Return the first and the last value of each seed, or those at the two places."""
    first, last = expected.between or (FIRST, LAST if expected.x in (EVERY, ANY) else expected.x)
    if line.index(first) == line.index(last):  # one place, such as that of a level
        return dict.fromkeys(line.runs), {}
    return line.at(first), line.at(last)


def _changes(expected: Expected, lines: Sequence[MeasuredLine]) -> Iterator[_Test]:
    by = expected.by
    low = {"rises": by, "flat": -by}.get(expected.rule, -math.inf)
    high = {"falls": -by, "flat": by}.get(expected.rule, math.inf)
    strict = expected.rule != "flat"
    for line in lines:
        ends = _ends(expected, line)
        values = _paired(lambda a, b: b - a, *ends)
        margin = _margin(expected, *ends)
        about = f"{line.shown}, last minus first"
        yield _Test(about, values, low, high, line.exact, strict, margin)


def _within(expected: Expected, lines: Sequence[MeasuredLine]) -> Iterator[_Test]:
    by = expected.by
    wanted = expected.value
    if wanted is not None:
        for line in lines:
            for x in _places(expected, (line,)):
                values = {s: None if v is None else v - wanted for s, v in line.at(x).items()}
                about = f"{line.shown} minus {wanted:.4g}{where(x)}"
                yield _Test(about, values, -by, by, exact=line.exact, strict=False)
        return
    first, *others = lines
    for other in others:
        for test in _pairs(expected, (first, other), lambda a, b: a - b, "minus"):
            yield replace(test, low=-by, high=by, strict=False, margin=0.0)


def _reaches(expected: Expected, lines: Sequence[MeasuredLine]) -> Iterator[_Test]:
    wanted = expected.value or 0.0
    for line in lines:
        last = line.index(LAST if expected.x in (EVERY, ANY) else expected.x)
        values: dict[int, float | None] = {}
        for seed, run in line.runs.items():
            until = run if last is None else run[: last + 1]
            known = numbers(until)
            values[seed] = None
            if known and last is not None and line.x:
                upwards = _upwards(expected.y, known, wanted)
                found = max(known) - wanted if upwards else wanted - min(known)
                missed = line.planned and len(known) < len(until)
                values[seed] = None if missed and found < 0 else found
        about = f"{line.shown}, how far beyond {wanted:.4g}"
        yield _Test(about, values, low=0.0, exact=line.exact, strict=False)


def _upwards(y: str, known: Sequence[float], wanted: float) -> bool:
    """Return whether a value is reached from below; unless the quantity tells, by the first one."""
    if y in ACCURACIES or (y in QUANTITIES and QUANTITIES[y].better is max):
        return True
    if y in ERRORS or y in QUANTITIES:
        return False
    return known[0] <= wanted


def where(x: Place) -> str:
    """Return a place on the horizontal axis in words; empty for the last one."""
    return "" if x == LAST else f" at {x}"


RULES: Mapping[str, Callable[[Expected, Sequence[MeasuredLine]], Iterator[_Test]]] = {
    "above": _above,
    "falls": _changes,
    "rises": _changes,
    "flat": _changes,
    "within": _within,
    "reaches": _reaches,
    "ratio": _ratio,
}


# --- the verdict ------------------------------------------------------------------------------


def judge(
    item: Item, panels: Sequence[MeasuredPanel], scale: str, troubles: Sequence[str]
) -> Judged:
    """Return the verdict on an item.

    Args:
        troubles: Why cells have no result.
    """
    own_size = item.is_own_size(scale)
    printed = tuple(compared(one, panels) for one in item.numbers(scale))
    shapes = tuple(tested(expected, panels) for expected in item.shapes(scale))
    outcomes = [*(one.outcome for one in printed), *(one.outcome for one in shapes)]
    lines = [line for panel in panels for line in panel.lines]
    seeds = max((len(line.runs) for line in lines if not line.exact), default=0)
    ran = _ran(item, own_size, seeds)
    if Outcome.FAILS in outcomes:
        firm = own_size and not item.stand_in and not item.lost and seeds != 1
        says = f"{_failed(printed, shapes, firm)}; {ran}"
        return Judged(Reproduction.DIFFERS, says, printed, shapes, firm)
    if not outcomes and not troubles:
        why = "nothing that the paper shows can be tested at this scale"
        return Judged(Reproduction.UNDECIDED, why)
    if Outcome.MISSING in outcomes or not outcomes:
        why = troubles[0] if troubles else _missing(printed, shapes)
        says = f"a result is missing: {why}"
        return Judged(Reproduction.UNDECIDED, says, printed, shapes)
    if Outcome.UNDECIDED in outcomes:
        says = f"{Outcome.UNDECIDED}: run more; {ran}"
        return Judged(Reproduction.UNDECIDED, says, printed, shapes)
    weaker = _weaker(item, printed, own_size, seeds)
    if troubles:
        weaker = f"{counted(len(troubles), 'cell')} without a result: {troubles[0]}"
    if weaker:
        return Judged(Reproduction.SAME_SHAPE, weaker, printed, shapes)
    says = f"{counted(len(printed), 'printed number')}, {ran}"
    return Judged(Reproduction.REPRODUCED, says, printed, shapes)


def _weaker(item: Item, numbers: Sequence[ComparedNumber], own_size: bool, seeds: int) -> str:
    """Return why an item without a failure is not reproduced; empty if it is."""
    reasons = []
    if not own_size:
        reasons.append(f"small scale: {item.small}")
    if item.stand_in:
        reasons.append(item.stand_in)
    if item.lost:
        reasons.append(f"not known of the paper: {item.lost}")
    if not numbers:
        reasons.append("the paper prints no number to compare with")
    elif all(one.printed.figure for one in numbers):
        reasons.append("its numbers were read off a picture")
    if seeds == 1:
        reasons.append("one seed has no interval")
    return "; ".join(reasons)


def _ran(item: Item, own_size: bool, seeds: int) -> str:
    size = "the paper's size" if own_size else f"small scale: {item.small}"
    return f"{counted(seeds, 'seed')}, {size}" if seeds else size


def _failed(numbers: Sequence[ComparedNumber], shapes: Sequence[TestedShape], firm: bool) -> str:
    """Return what fails; unless the runs are those of the paper, it was only not seen in them."""
    failed = [one.says for one in numbers if one.outcome is Outcome.FAILS]
    says = "it is not true that" if firm else "not seen in these runs:"
    for shape in shapes:
        if shape.outcome is Outcome.FAILS:
            failed.append(f"{says} {shape.expected.says}")
    if len(failed) == 1:
        return failed[0]
    return f"{failed[0]}; {len(failed)} of {len(numbers) + len(shapes)} comparisons fail"


def _missing(numbers: Sequence[ComparedNumber], shapes: Sequence[TestedShape]) -> str:
    for number in numbers:
        if number.outcome is Outcome.MISSING:
            return number.says
    for shape in shapes:
        if shape.outcome is Outcome.MISSING:
            return f"{shape.expected.says}: {shape.found}"
    return "there is nothing to compare"
