"""The table of quantities: what is measured of a recovered record, and how it is shown.

A new quantity is one row here, and one function in `leakaudit.scoring.metrics`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum, Flag, auto
from typing import Any, Generic, Literal, TypeVar

Numbers = TypeVar("Numbers")
Flags = TypeVar("Flags")
Ranks = TypeVar("Ranks")


class Data(Enum):
    """The data of which a quantity is measured."""

    ANY = auto()
    IMAGES = auto()
    TEXT = auto()


class Place(Flag):
    """Where a quantity is shown; the JSON record has every quantity."""

    TABLE = auto()  # tables of findings, for people
    CARD = auto()  # tables of scores in notebooks
    COLUMN = auto()  # CSV, data frames and trackers
    PAPER = auto()  # LaTeX
    CURVE = auto()  # points of audits and sweeps: their records, tables and figures
    IMAGE = auto()  # below the image of a record


NOWHERE = Place(0)
EVERYWHERE = ~NOWHERE
TABLES = Place.TABLE | Place.CARD | Place.COLUMN


@dataclass(frozen=True)
class Quantity:
    """One row."""

    words: str  # name in headings
    meaning: str  # definition, as a part of a sentence
    kind: Literal["Number", "Flag", "Rank"] = "Number"
    unit: str = ""
    form: str = ".3f"  # format of a value
    better: Callable[[Sequence[float]], float] = max  # returns the best of several values
    data: Data = Data.ANY
    shown: Place = EVERYWHERE
    fallback: bool = False  # omitted beside a number of images or of text
    title: str = ""  # name in figures, if not that of headings
    coarse: str = ""  # format in the table of a sweep, if another
    near: str = ""  # states how close a record is, if this is the number that says it best
    high: float | None = None  # largest value that is possible
    spare: bool = False  # a column that a narrow terminal omits
    tolerance: float | None = None  # growth that a gate ignores; None if it does not measure it
    key: str = ""  # name of the row

    @property
    def heading(self) -> str:
        """Heading of a column, with the unit."""
        return f"{self.words} {self.unit}".rstrip()

    @property
    def drawn(self) -> str:
        """Title in a figure, with the unit."""
        return ", ".join(filter(None, (self.title or self.words, self.unit)))

    @property
    def is_power(self) -> bool:
        """Whether values span orders of magnitude."""
        return self.form[-1] == "e"

    def text(self, value: float) -> str:
        """Return a value without its unit."""
        return f"{value:{self.form}}"

    def caption(self, value: float) -> str:
        """Return a value with its unit, or its name if it has none."""
        if self.unit:
            return f"{self.text(value)} {self.unit}"
        return f"{self.words} {self.text(value)}"


def _row(words: str, meaning: str, **others: Any) -> Any:
    """Return a row, in the place of the columns that a class of scores has there."""
    return Quantity(words, meaning, **others)


class Metrics(Generic[Numbers, Flags, Ranks]):
    """The rows; a class of scores has a column for each."""

    mse: Numbers = _row("MSE", "mean squared error in data units", better=min, shown=NOWHERE)
    psnr: Numbers = _row(
        "PSNR",
        "peak signal-to-noise ratio in dB",
        unit="dB",
        form=".1f",
        data=Data.IMAGES,
        near="{:.1f} dB PSNR",
        tolerance=1.0,
    )
    ssim: Numbers = _row(
        "SSIM", "structural similarity", data=Data.IMAGES, high=1.0, spare=True, tolerance=0.05
    )
    lpips: Numbers = _row(
        "LPIPS",
        "perceptual distance",
        better=min,
        data=Data.IMAGES,
        shown=EVERYWHERE & ~Place.CARD & ~Place.CURVE,
        spare=True,
    )
    relative_error: Numbers = _row(
        "rel. error",
        "|found - true| / |true|, Euclidean",
        form=".1e",
        better=min,
        shown=EVERYWHERE & ~Place.IMAGE,
        fallback=True,
        title="relative error",
        coarse=".3g",
        near="relative error {:.1e}",
    )
    exact: Flags = _row(
        "identical",
        "whether the record is bit-identical on the data's grid",
        kind="Flag",
        shown=TABLES,
        spare=True,
    )
    label_correct: Flags = _row("label", "whether its label is correct", kind="Flag", shown=TABLES)
    identified: Flags = _row(
        "identified",
        "whether it is closer to its true record than to every other record, by `rank`",
        kind="Flag",
        shown=TABLES,
        spare=True,
    )
    rank: Ranks = _row(
        "rank",
        "rank of its true record among all records by distance; 1 is best",
        kind="Rank",
        better=min,
        shown=NOWHERE,
    )
    tokens_correct: Numbers = _row(
        "tokens",
        "share of the positions with the correct token",
        form=".0%",
        data=Data.TEXT,
        shown=TABLES,
        near="{:.0%} of the tokens",
    )
    token_f1: Numbers = _row(
        "F1",
        "F1 of the tokens of both sequences, regardless of their order",
        data=Data.TEXT,
        shown=NOWHERE,
    )
    rouge1: Numbers = _row("ROUGE-1", "ROUGE-1 of words, F1", data=Data.TEXT, shown=NOWHERE)
    rouge2: Numbers = _row("ROUGE-2", "ROUGE-2 of words, F1", data=Data.TEXT, shown=NOWHERE)
    rougel: Numbers = _row("ROUGE-L", "ROUGE-L of words, F1", data=Data.TEXT, shown=NOWHERE)


QUANTITIES: dict[str, Quantity] = {}
for _name, _value in vars(Metrics).items():
    if isinstance(_value, Quantity):
        QUANTITIES[_name] = replace(_value, key=_name)

# Quantities of a training: what it makes large, and what it makes small.
ACCURACIES = frozenset({"accuracy", "test_accuracy", "test_accuracy_mean_model"})
ERRORS = frozenset(
    (
        *("loss", "test_loss", "test_loss_mean_model", "test_error", "test_error_mean_model"),
        *("consensus", "rmse", "rmse_nodes", "rmse_planted", "relative_error", "error"),
        *("mse", "lpips"),
    )
)
SHARES = frozenset({"recovered", "certified", "labels", "connected"})  # of records or of graphs
EPSILONS = frozenset({"epsilon", "claimed_epsilon"})
SIZES = frozenset({"norm_w", "norm_dual", "norm_lam", "moved", "plf", "messages"})


def range_of(name: str) -> tuple[float, float]:
    """Return the smallest and the largest value of a quantity; infinite if it is not known."""
    row = QUANTITIES.get(name)
    if name in ACCURACIES | SHARES or (row is not None and row.kind == "Flag"):
        return 0.0, 1.0
    if name in ERRORS | EPSILONS | SIZES:
        return 0.0, math.inf
    high = math.inf if row is None or row.high is None else row.high
    return -high, high  # SSIM reaches from -1 to 1


def is_value(name: str, number: float) -> bool:
    """Return whether a number is a value of a quantity; only an epsilon can be infinite."""
    return math.isfinite(number) or (name in EPSILONS and number == math.inf)


def shown(place: Place, kind: str = "", data: Data | None = None) -> tuple[Quantity, ...]:
    """Return the rows of a place, of one kind, that some data has; of images without fallbacks."""
    found = []
    for one in QUANTITIES.values():
        hidden = data is not None and one.data not in (Data.ANY, data)
        hidden = hidden or (data is Data.IMAGES and one.fallback)
        if place in one.shown and kind in ("", one.kind) and not hidden:
            found.append(one)
    return tuple(found)


def visible(rows: Iterable[Quantity], measured: Container[str]) -> list[Quantity]:
    """Return the rows that were measured, without fallbacks beside numbers of images or of text."""
    found = [one for one in rows if one.key in measured]
    specific = any(one.data is not Data.ANY for one in found)
    return [one for one in found if not (one.fallback and specific)]


def fallbacks_last(rows: Iterable[Quantity]) -> tuple[Quantity, ...]:
    """Return rows in the order of tables for people, which show a fallback after all others."""
    return tuple(sorted(rows, key=lambda one: one.fallback))


# What says best how close a record is, the first that is measured.
NEAREST = fallbacks_last(one for one in QUANTITIES.values() if one.near)


def add_columns(
    body: dict[str, Any],
    rows: Iterable[Quantity],
    annotation: str,
    default: object,
) -> None:
    """Add a field and a line of documentation for each row to the body of a class.

    In the annotation, ``{}`` stands for the kind of the row.
    """
    lines = []
    for one in rows:
        body["__annotations__"][one.key] = annotation.format(one.kind)
        body[one.key] = default
        lines.append(f"{one.key}: {one.meaning[0].upper()}{one.meaning[1:]}.")
    described = body.get("__doc__") or ""
    body["__doc__"] = described.replace("{quantities}", "\n        ".join(lines))


@dataclass(frozen=True)
class Measure:
    """A number of one run of a gate, which grows with what an attack recovers."""

    words: str  # what is measured
    means: str  # definition
    tolerance: float  # growth over the baseline that is ignored
    unit: str = ""
    # whether it is a share of the records; otherwise, it is the value of the worst record
    share: bool = False
    # whether a guess is right by chance, so that it differs from seed to seed
    guessed: bool = False


BETTER = "0 unless it is closer than a blind guess (the mean of all other records)"


def _of_best(one: Quantity, tolerance: float) -> Measure:
    words = f"{one.words} of the best record"
    return Measure(words, f"{words}, {BETTER}", tolerance, one.unit)


# The tolerances are choices: differences that a reader of a report would consider insignificant.
# 1 dB is an error that is smaller by a ninth; bit-identical recovery has no tolerance, because it
# does not happen by chance.
MEASURES = {
    "gain": Measure(
        "advantage over a blind guess",
        "20 log10 of how much closer the best record is than a blind guess, from 0 to 200",
        1.0,
        "dB",
    ),
    **{name: _of_best(one, one.tolerance) for name, one in QUANTITIES.items() if one.tolerance},
    "recovered": Measure(
        "recovered part of the best record",
        f"1 - |found - true| / |true| of the best record, {BETTER}",
        0.05,
    ),
    "exact": Measure(
        "records recovered bit for bit",
        "share of the records that were recovered bit for bit",
        0.0,
        share=True,
    ),
    "identified": Measure(
        "records told apart from all others",
        "share of the records whose reconstruction is closer to them than to every other record",
        0.1,
        share=True,
        guessed=True,
    ),
    "labels": Measure(
        "labels found",
        "share of the records' labels that were found",
        0.1,
        share=True,
        guessed=True,
    ),
}
