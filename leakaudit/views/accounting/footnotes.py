"""The footnotes of a table of view bounds: what the figures cover and assume, and in which rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from leakaudit.core.evidence import weakest
from leakaudit.views.accounting.compare import Comparison


def footnotes(found: Sequence[Comparison], begun: bool) -> tuple[list[str], list[str]]:
    """Return remarks on rows, and for every row the numbers of its remarks, such as `[1] [3]`.

    Remarks that concern all rows have no number.
    """
    rows: dict[str, list[int]] = {}
    remarks = [list(_remarks(one, begun)) for one in found]
    for same_subject in zip(*remarks, strict=True):
        for row, text in enumerate(same_subject):
            if text:
                rows.setdefault(text, []).append(row)
    lines = []
    marks: list[list[str]] = [[] for _ in found]
    number = 0
    for text, some in rows.items():
        if len(some) == len(found):
            lines.append(text)
            continue
        number += 1
        lines.append(f"[{number}] {text}")
        for row in some:
            marks[row].append(f"[{number}]")
    return lines, list(map(" ".join, marks))


def _remarks(one: Comparison, begun: bool) -> Iterator[str]:
    """Yield the remarks on one row, each on its own subject; empty if there is none."""
    bound = one.bound
    more = ""
    if begun:
        more = ", the last one incomplete: any of its messages may have been sent"
    yield f"rounds: {bound.rounds}{more}"
    batches = ""
    if bound.enters != bound.gradients:
        batches = (
            f"mini-batches: at most {bound.enters} of the {bound.gradients} gradients of a node "
            "contain a given record"
        )
    elif bound.every_batch:
        batches = (
            "mini-batches: at most; assumes that a record is in every batch, because the "
            "declaration does not say in which"
        )
    yield batches
    yield _sensitivity(one)
    basis = ""
    if bound.basis is not None:
        basis = str(bound.basis)
    yield basis
    claim = ""
    if one.claim is not None:
        claim = f"claim: {one.claim.source}"
    yield claim
    least = weakest(one.rests)
    rests = ""
    if least is not None:
        rests = f"weakest input: {least}"
    yield rests


def _sensitivity(one: Comparison) -> str:
    """Return the sensitivity and where it comes from; empty if no value was computed."""
    bound = one.bound
    if bound.refused:
        return ""
    if bound.per_unit:
        return f"S: the sensitivity is unknown, so no epsilon: {one.sensitivity_from}"
    if not one.sensitivity_known:
        if bound.mu == 0:  # for every sensitivity
            return ""
        return f"sensitivity: unknown, and no value would make mu finite: {one.sensitivity_from}"
    return f"sensitivity {bound.sensitivity:.6g}: {one.sensitivity_from}"
