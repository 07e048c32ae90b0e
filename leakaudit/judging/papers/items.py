"""Published items: figures, tables, theorems and algorithms, as their TOML files describe them."""

from __future__ import annotations

import math
import re
import shlex
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

from msgspec import Meta, Struct

from leakaudit._util import config
from leakaudit.core.errors import LeakauditError, suggest
from leakaudit.core.quantities import is_value
from leakaudit.judging.papers.row import CLAIMS, PAPERS, folder

# In this order an index shows them.
KINDS = (
    *("figure", "table", "theorem", "lemma", "proposition", "corollary", "definition"),
    *("algorithm", "claim"),
)
ROUND = "round"  # the horizontal axis of curves
LAST = "last"
FIRST = "first"
EVERY = "every"
BEST = "best"  # the largest value of a line
ANY = "any"
OWN = "own"  # the paper of a file that a user names
# Further names of the papers, as users may know them.
ALIASES = {
    "dpnorm": "dp-norm",
    "dprecal": "dp-recal",
    "recal": "dp-recal",
    "dpdkm": "dp-dkm",
    "dkm": "dp-dkm",
    "secured": "secured-fl",
    "thesis": "pdmm-thesis",
    "pdmm": "pdmm-thesis",
}
# Abbreviations of papers that the texts of their items use.
TERMS = {
    "dp-recal": {
        "PLF": "privacy leakage frequency: how often the busiest agent is activated, and "
        "releases something",
    },
}

Rule: TypeAlias = Literal["above", "falls", "rises", "flat", "within", "reaches", "ratio"]
Scale: TypeAlias = Literal["", "small", "paper"]
Place: TypeAlias = Annotated[str | int | float, Meta(description="a number, a word, or last")]
Count: TypeAlias = Annotated[int, Meta(ge=1, le=1000, description="an integer from 1 to 1000")]
Table: TypeAlias = Annotated[Mapping[str, Any], Meta(description="a table")]


class _Entry(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table of an item's file."""


class Quote(_Entry, frozen=True, kw_only=True):
    """Whole sentences of a paper."""

    place: str
    text: str


class Printed(_Entry, frozen=True, kw_only=True):
    """A number that the paper prints, beside which ours is shown."""

    line: str  # name of the line of ours
    y: str  # quantity of ours
    x: Place = LAST  # place on the horizontal axis, or `best`
    value: float
    tolerance: float  # largest distance that still counts as reproduced
    place: str  # where the paper prints it
    figure: bool = False  # whether it was read off a picture
    # the only scale at which it is compared, empty for both: a paper prints numbers of its own size
    scale: Literal["", "paper"] = ""


class Expected(_Entry, frozen=True, kw_only=True):
    """What the published item shows, as a test on our numbers."""

    says: str  # the statement
    rule: Rule
    lines: tuple[str, ...] = ()  # names of lines, empty for all
    y: str
    x: Place = LAST  # place on the horizontal axis, or `every`, `any` or `best`
    by: float = 0.0  # margin of the comparison
    between: tuple[Place, ...] = ()  # two places to compare, the first and the last by default
    value: float | None = None  # number that is compared with, if the rule needs one
    scale: Scale = ""  # the only scale at which it is tested, empty for both


class Change(_Entry, frozen=True, kw_only=True):
    """Entries of a scenario and of a sweep that are merged over others."""

    scenario: Table = {}
    sweep: Table = {}
    seeds: Count | None = None


class Line(_Entry, frozen=True, kw_only=True):
    """One line of a figure, or one row of a table: what it does not share with the others."""

    name: str
    scenario: Table = {}
    sweep: Table = {}
    stride: Count = 1  # rounds of the protocol in a round of the figure, with x = "round"
    small: Change = Change()


class PlannedPanel(_Entry, frozen=True, kw_only=True):
    """One pair of axes."""

    y: str  # quantity
    title: str = ""  # name of the vertical axis, that of the quantity by default
    at: str = ""  # what tells it from the other panels, such as an epsilon
    logarithmic: bool = False
    # names of its lines, empty for all; or for each name in the legend, which panels share, a line
    lines: tuple[str, ...] | dict[str, str] = ()

    @property
    def legend(self) -> dict[str, str]:
        """Its lines with their names in the legend."""
        if isinstance(self.lines, dict):
            return {line: name for name, line in self.lines.items()}
        return {line: "" for line in self.lines}


class ItemPlan(_Entry, frozen=True, kw_only=True):
    """How an item is run."""

    x: str = ROUND  # horizontal axis: `round`, or an axis of the sweeps of the lines
    axis: str = ""  # its name in the paper, x by default
    seeds: Count = 3  # number of seeds at the paper's scale
    scenario: Table = {}  # what all lines share
    sweep: Table = {}
    small: Change = Change()  # merged over these at the small scale
    line: tuple[Line, ...]
    panel: tuple[PlannedPanel, ...]
    printed: tuple[Printed, ...] = ()
    expected: tuple[Expected, ...] = ()


class _ItemFile(_Entry, frozen=True, kw_only=True):
    """The content of an item's file."""

    kind: Literal[KINDS]  # type: ignore[valid-type]
    title: str
    place: str  # where it is in the paper
    quotes: tuple[Quote, ...] = ()
    claims: tuple[int, ...] = ()  # rows of the scoreboard that judge it
    lost: str = ""  # what is missing in our copy or cannot be had; empty if nothing is
    undetermined: tuple[str, ...] = ()  # what the paper does not say
    chosen: tuple[str, ...] = ()  # what the plan chose instead
    stand_in: str = ""  # data or models that replace the paper's; empty if there are none
    note: str = ""  # whose fault a deviation is, and other remarks
    data: tuple[str, ...] = ()  # data sets that must be in --data-root
    small: str = ""  # how the small scale differs; empty if it is the paper's own
    drawn: bool = False  # whether a function of the paper's `drawn.py` computes it
    plan: ItemPlan | None = None
    printed: tuple[Printed, ...] = ()  # of a drawn item
    expected: tuple[Expected, ...] = ()


class Item(_ItemFile, frozen=True, kw_only=True):
    """A published figure, table, theorem or algorithm."""

    paper: str
    name: str  # name of its file, such as `fig5.1`
    file: str = ""  # path of a file that a user names, as it was given

    @property
    def full_name(self) -> str:
        """Its name, and that of its folder of results."""
        return f"{self.paper}/{self.name}"

    @property
    def argument(self) -> str:
        """Its name on the command line."""
        return shlex.quote(self.file or self.full_name)

    @property
    def state(self) -> str:
        """How it can be run, in a word: ``runs``, ``claims`` or ``not determined``."""
        if self.plan is not None or self.drawn:
            return "runs"
        return "claims" if self.claims else "not determined"

    @property
    def missing(self) -> str:
        """What the paper lacks for an item that cannot be run."""
        return self.lost or "; ".join(self.undetermined)

    def is_own_size(self, scale: str) -> bool:
        """Return whether a scale is the paper's own size."""
        return scale == "paper" or not self.small

    def numbers(self, scale: str) -> tuple[Printed, ...]:
        """Return the printed numbers that are compared at a scale."""
        every = self.printed if self.plan is None else self.plan.printed
        return tuple(one for one in every if one.scale in ("", scale))

    def shapes(self, scale: str) -> tuple[Expected, ...]:
        """Return the expectations that are tested at a scale."""
        every = self.expected if self.plan is None else self.plan.expected
        return tuple(one for one in every if one.scale in ("", scale))


def load(path: Path, paper: str) -> Item:
    """Read and check the file of an item."""
    name = path.stem
    own = str(path) if paper == OWN else ""
    file = _whole(config.read(path, f"item {own or f'{paper}/{name}'}"), path)
    item = file.decode(_ItemFile, partial(Item, paper=paper, name=name, file=own))
    _check(item, file)
    return item


def _whole(
    file: config.ConfigTable, path: Path, after: Collection[Path] = ()
) -> config.ConfigTable:
    """Return the entries of a file over those of the item that it is `like`, in the same folder."""
    like = file.values.get("like")
    if like is None:
        return file
    base = path.parent / f"{like}.toml"
    if base.parent != path.parent or not isinstance(like, str) or base in (path, *after):
        raise file.error(f"like: expected the name of another item of the folder, got {like!r}")
    found = _whole(config.read(base, f"{file.file}: like {like}"), base, (path, *after))
    return replace(file, values=merged(found.values, file.without("like").values))


def merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Return a table with the entries of another one over its own.

    Tables merge key by key, and the lines of a plan name by name if none of them is new.
    """
    found = dict(base)
    for key, value in over.items():
        own = found.get(key)
        if isinstance(own, Mapping) and isinstance(value, Mapping):
            value = merged(own, value)
        elif key == "line":
            known, named = _by_name(own), _by_name(value)
            if named and named.keys() <= known.keys():
                value = list(merged(known, named).values())
        found[key] = value
    return found


def _by_name(lines: object) -> dict[str, Any]:
    """Return tables by name; a list that is none of lines is checked later."""
    named = lines if isinstance(lines, list) else []
    return {str(one.get("name")): one for one in named if isinstance(one, Mapping)}


def every() -> list[Item]:
    """Return the items of all papers, in the order of an index."""
    found = []
    for paper in PAPERS:
        of_paper = [load(path, paper) for path in _files(paper)]
        found += sorted(of_paper, key=_order)
    return found


def select(names: Collection[str]) -> list[Item]:
    """Return the items of some names: ``PAPER/ITEM``, ``PAPER``, or a file; all by default."""
    known = every()
    if not names:
        return known
    chosen: dict[str, Item] = {}
    for name in names:
        for item in _named(name, known):
            if chosen.setdefault(item.full_name, item) != item:
                raise LeakauditError(
                    f"{name}: another item is called {item.full_name}, too; their results would be "
                    "in the same folder, so rename one of the files"
                )
    return list(chosen.values())


def of_paper(name: str) -> str:
    """Return the name of a paper that may be given by an alias."""
    lowered = name.lower()
    found = ALIASES.get(lowered, lowered)
    if found not in PAPERS:
        near = suggest(lowered, PAPERS) or suggest(lowered, ALIASES)
        raise LeakauditError(f"paper {name!r} does not exist{near}; expected {', '.join(PAPERS)}")
    return found


def _named(name: str, known: Sequence[Item]) -> list[Item]:
    if Path(name).suffix == ".toml":
        return [load(_plain(Path(name)), OWN)]
    start, slash, rest = name.partition("/")
    paper = of_paper(start)
    mine = [item for item in known if item.paper == paper]
    if not slash:
        return mine
    found = [item for item in mine if item.name == rest.lower()]
    if not found:
        names = [item.name for item in mine]
        raise LeakauditError(
            f"{paper} has no item {rest!r}{suggest(rest.lower(), names)}; `leakaudit reproduce` "
            "lists them all"
        )
    return found


def _plain(path: Path) -> Path:
    """Return the path of an own item, after whose name a folder of results can be named."""
    if not path.stem.strip("."):
        raise LeakauditError(f"item {path}: expected a name before .toml")
    return path


def _files(paper: str) -> Iterator[Path]:
    for path in folder(paper).glob("*.toml"):
        if path.name != CLAIMS:
            yield path


def _order(item: Item) -> tuple[int, list[tuple[int, str]]]:
    """Return a sorting key: the kind, then the name with its numbers as numbers."""
    parts = []
    for part in re.findall(r"\d+|\D+", item.name):
        parts.append((int(part), "") if part.isdigit() else (-1, part))
    return KINDS.index(item.kind), parts


# --- checks -----------------------------------------------------------------------------------


def _check(item: Item, file: config.ConfigTable) -> None:
    if item.plan is not None and item.drawn:
        raise file.error("expected either a table [plan] or drawn = true, got both", "drawn")
    if item.drawn and item.paper == OWN:
        says = "drawn: expected a table [plan]; only items of leakaudit's papers have a function"
        raise file.error(says, "drawn")
    if item.state == "not determined" and not item.missing:
        raise file.error("expected [plan], drawn = true, claims, or lost that says what is missing")
    scales: set[str] = {one.scale for one in item.numbers("paper")}
    for scale in ("paper", "small"):
        scales |= {one.scale for one in item.shapes(scale)}
    if not item.small and scales - {""}:
        says = "scale: expected none, or `small` that says how the scales differ"
        raise file.error(says, "small")
    if item.plan is None:
        _check_tests(item.printed, item.expected, None, file)
    else:
        if item.printed or item.expected:
            given = "printed" if item.printed else "expected"
            raise file.error(f"{given}: expected below [plan], as [[plan.{given}]]", given)
        _check_plan(item.plan, file.table("plan"))
        changes = (item.plan.small, *(line.small for line in item.plan.line))
        if not item.small and any(change.scenario or change.sweep for change in changes):
            says = "small: expected how the small scale differs, as it has entries of its own"
            raise file.error(says, "plan")


def _check_plan(plan: ItemPlan, file: config.ConfigTable) -> None:
    names = [line.name for line in plan.line]
    if not names or len({*names}) < len(names):
        raise file.error("line: expected at least one line, with distinct names", "line")
    if not plan.panel:
        raise file.error("panel: expected at least one table [[plan.panel]]", "panel")
    for table in (plan.sweep, plan.small.sweep, *(line.sweep for line in plan.line)):
        if "seeds" in table:
            raise file.error("sweep.seeds: expected `seeds` of the plan instead", "sweep")
    for k, panel in enumerate(plan.panel):
        _known(tuple(panel.legend), names, file, "panel", k)
    _check_tests(plan.printed, plan.expected, names, file)


def _check_tests(
    printed: Sequence[Printed],
    expected: Sequence[Expected],
    names: Sequence[str] | None,
    file: config.ConfigTable,
) -> None:
    """Check printed numbers and expectations; `names` are None if lines are not known yet."""
    for k, number in enumerate(printed):
        _known((number.line,), names, file, "printed", k)
        _check_finite(file, "printed", k, number.x)
        if not 0 <= number.tolerance < math.inf or not is_value(number.y, number.value):
            says = "printed: expected a finite number, with a finite tolerance >= 0"
            raise file.error(f"{says}; only an epsilon can be inf", "printed", k)
        if number.x in (EVERY, ANY):
            raise file.error(f"printed: expected one place x, got {number.x}", "printed", k)
    for k, one in enumerate(expected):
        _known(one.lines, names, file, "expected", k)
        _check_finite(file, "expected", k, one.by, one.value or 0.0, one.x, *one.between)
        if len({*one.lines}) < len(one.lines):
            raise file.error("expected: lines has a name twice", "expected", k)
        if one.by < 0 or (one.rule == "ratio" and not one.by):
            least = "> 0, the least ratio" if one.rule == "ratio" else ">= 0"
            raise file.error(f"expected: by is a number {least}, got {one.by:g}", "expected", k)
        count = len(one.lines or names or ())
        if (one.rule == "above" and count == 1) or (one.rule == "ratio" and count not in (0, 2)):
            few = "exactly 2" if one.rule == "ratio" else "at least 2"
            says = f"expected: {one.rule} needs {few} lines, got {count}"
            raise file.error(says, "expected", k)
        if len(one.between) not in (0, 2):
            raise file.error("expected: between has two places, a list [x1, x2]", "expected", k)
        if one.x in (EVERY, ANY) and one.rule not in ("above", "within", "ratio"):
            says = f"expected: {one.rule} looks at one last place, got x = {one.x}"
            raise file.error(says, "expected", k)
        first, last = one.between or (FIRST, one.x)
        if one.rule in ("falls", "rises", "flat") and first == last:
            says = f"expected: {one.rule} compares two places, got {first} twice"
            raise file.error(says, "expected", k)
        single = one.rule == "within" and count == 1
        if one.value is None and (one.rule == "reaches" or single):
            raise file.error(f"expected: {one.rule} needs a value here", "expected", k)
        if one.value is not None and one.rule not in ("reaches", "within"):
            says = f"expected: {one.rule} compares with no value; its margin is `by`"
            raise file.error(says, "expected", k)


def _check_finite(file: config.ConfigTable, table: str, k: int, *numbers: Place) -> None:
    for number in numbers:
        if not isinstance(number, str) and not abs(number) <= sys.float_info.max:
            says = f'{table}: expected finite numbers, got {number}; a place can be the word "inf"'
            raise file.error(says, table, k)


def _known(
    lines: Sequence[str],
    names: Sequence[str] | None,
    file: config.ConfigTable,
    *at: str | int,
) -> None:
    if names is None:
        return
    for line in lines:
        if line not in names:
            near = suggest(line, names)
            raise file.error(f"{at[0]}: no line is named {line!r}{near}", *at)
