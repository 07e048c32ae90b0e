"""What the scores of a finding say in numbers: best values, and how much a finding leaks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import TypeAlias

from msgspec import UnsetType

from leakaudit.core.quantities import NEAREST, Quantity
from leakaudit.reporting.results.model import (
    NO_SCORES,
    Column,
    Finding,
    NumberColumn,
    Scores,
    given,
)

Record: TypeAlias = tuple[int, int]  # its owner, and its place among the owner's records
MaybeColumn: TypeAlias = Column | UnsetType | None  # None or absent: not measured
HALF_ENERGY = 3.0  # dB
CHANCE = 0.05  # largest probability with which a guess may do what an attack is credited with
# How certain an attack is of its result; larger is more certain.
CERTIFICATE_RANK = {"EXACT": 3, "INTERVAL": 2, "APPROXIMATE": 1, "FAILED": 0}


def values(column: MaybeColumn) -> Sequence[float | None]:
    """Return one value per image."""
    if column is None or isinstance(column, UnsetType):
        return ()
    return column.per_image


def of_record(column: MaybeColumn, record: int) -> float | None:
    """Return the value of one record."""
    measured = values(column)
    return measured[record] if record < len(measured) else None


def record_keys(scores: Scores, node: int) -> list[Record]:
    """Name every true record of a finding by its owner and its place among the owner's records."""
    owners = given(scores.owners, ())
    if len(owners) != len(scores.matched):  # of one node, or in a file of a stranger
        owners = (node,) * len(scores.matched)
    found: list[Record] = []
    seen: Counter[int] = Counter()
    for owner in owners:
        found.append((owner, seen[owner]))
        seen[owner] += 1
    return found


def known(column: MaybeColumn) -> list[float]:
    """Return the values of the images that were recovered."""
    return [float(value) for value in values(column) if value is not None]


def with_missed(column: NumberColumn) -> list[float]:
    """Return the values that enter the statistics: also those of missed records."""
    return [*known(column), *given(column.missed, ())]


def count(column: MaybeColumn) -> int:
    """Return of how many images a yes-or-no metric holds."""
    return sum(map(bool, values(column)))


def best(column: MaybeColumn, pick: Callable[[Sequence[float]], float]) -> float | None:
    """Return the best value of one metric over all images."""
    measured = known(column)
    return pick(measured) if measured else None


def nearest(scores: Scores) -> tuple[Quantity, float] | None:
    """Return the quantity that says best how close records are, and its best value."""
    for one in NEAREST:
        value = best(getattr(scores, one.key), one.better)
        if value is not None:
            return one, value
    return None


def is_identical(scores: Scores | None) -> bool:
    """Return whether a record was recovered bit for bit."""
    return scores is not None and any(values(scores.exact))


def shows_record(scores: Scores) -> bool:
    """Return whether an image is closer to the record than a guess without any leak.

    It is if its error has at most half the energy of that of the blind guess.
    """
    psnr = best(scores.psnr, max)
    blind = scores.blind_psnr
    if psnr is None or isinstance(blind, UnsetType):
        return True
    return psnr >= blind + HALF_ENERGY


def identifies(scores: Scores | None) -> bool:
    """Return whether a record is told from all others, as a guess hardly ever does."""
    if scores is None or not any(values(scores.identified)):
        return False
    return scores.chance is not None and scores.chance <= CHANCE


def harm(finding: Finding) -> tuple[float, ...]:
    """Return a sort key that orders findings by how much they leak."""
    scores = finding.scores or NO_SCORES
    identical = best(scores.exact, max) or 0.0
    residual = float("-inf")
    if finding.residual is not None:
        residual = -finding.residual
    nearness = float("-inf")
    found = nearest(scores)
    if found is not None:
        one, value = found
        nearness = value if one.better is max else -value
    return identical, nearness, CERTIFICATE_RANK[finding.certificate.name], residual
